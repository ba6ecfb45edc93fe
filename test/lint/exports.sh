#!/bin/sh
# The library exports only Narad*, narad_* and the names that PostgreSQL asks for.
set -eu
cd "$(dirname "$0")/../.."

library=${1:-build/plain/narad.so}
[ -e "$library" ] || {
    echo "$library is not built: test/run build"
    exit 1
}
bad=$(nm -D --defined-only "$library" | awk '{ print $3 }' |
    grep -vE '^(Narad[A-Z][A-Za-z0-9]*|narad_[a-z0-9_]+|_PG_init|Pg_magic_func|pg_finfo_narad_[a-z0-9_]+|_init|_fini)$' || true)
[ -z "$bad" ] && exit 0
echo "exported without our prefix: $bad"
exit 1
