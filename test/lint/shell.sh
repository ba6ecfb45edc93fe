#!/bin/sh
# Every script parses.
set -eu
cd "$(dirname "$0")/../.."

bad=0
for file in .ci/run test/run test/server test/*.sh test/lint/*.sh demo/run; do
    case $(head -n 1 "$file") in
        *perl*) perl -c "$file" 2>/dev/null || { echo "$file does not parse"; bad=1; } ;;
        *) bash -n "$file" || bad=1 ;;
    esac
done
for file in test/t/*.pl demo/*.pl; do
    [ ! -e "$file" ] || perl -c -I "$("${PG_CONFIG:-pg_config}" --pkglibdir)/pgxs/src/test/perl" -I test/perl "$file" 2>/dev/null || {
        echo "$file does not parse"
        bad=1
    }
done
exit $bad
