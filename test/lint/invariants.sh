#!/bin/sh
# Every invariant (I1, I2, ...) that the code names has a test that names it.
set -eu
cd "$(dirname "$0")/../.."

# numbers FOLDER...: the invariants named there.
numbers() {
    for folder in "$@"; do
        [ ! -d "$folder" ] || find "$folder" -name '*.[chl]' -o -name '*.pl' -o -name '*.sql' -o -name '*.spec'
    done | sort | xargs -r grep -hoE '\bI[0-9]+\b' | sort -u
}

untested=$(numbers src | grep -vxF -e "$(numbers sql test/specs test/t test/unit)" || true)
[ -z "$untested" ] && exit 0
echo "no test names" $untested
exit 1
