#!/bin/sh
# Every C function that the script names is declared with PG_FUNCTION_INFO_V1, and the other way round.
set -eu
cd "$(dirname "$0")/../.."

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# The symbol follows in quotes, or is the function's own name.
cat narad--*.sql test/narad_test/*.sql 2>/dev/null | sed 's/--.*//' | tr '\n' ' ' |
    grep -oE "AS +'(MODULE_PATHNAME|\\\$libdir/narad)' *,? *('[a-z_0-9]+')?" |
    sed -n "s/.*, *'\([a-z_0-9]*\)'.*/\1/p" | sort -u >"$scratch/named"
find src test/narad_test -name '*.c' 2>/dev/null | xargs -r grep -hoE '^PG_FUNCTION_INFO_V1\([a-z_0-9]+\)' |
    sed 's/.*(\(.*\))/\1/' | sort -u >"$scratch/declared"

bad=0
for name in $(comm -23 "$scratch/named" "$scratch/declared"); do
    echo "$name is named in SQL and has no PG_FUNCTION_INFO_V1"
    bad=1
done
for name in $(comm -13 "$scratch/named" "$scratch/declared"); do
    echo "$name has PG_FUNCTION_INFO_V1 and is named in no SQL"
    bad=1
done
exit $bad
