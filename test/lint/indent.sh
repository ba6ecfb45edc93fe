#!/bin/sh
# The C code is formatted as pg_bsd_indent does with PostgreSQL's flags. Without --check, formats it.
#
#   indent.sh [--check] [FILE...]   formats (or compares) src/ and test/unit/
#   indent.sh --typedefs            renews typedefs.list from the objects of build/plain
set -eu
cd "$(dirname "$0")/../.."

typedefs=test/lint/typedefs.list
flags="-bad -bap -bbb -bc -bl -cli1 -cp33 -cdb -nce -d0 -di12 -nfc1 -i4 -l79
    -lp -lpl -nip -npro -sac -tpg -ts4"

# Our objects mention every type that our code uses; what the sources define is
# added for the files that are not compiled yet.
list_typedefs() {
    echo bool
    find build/plain/src -name '*.o' 2>/dev/null | sort | xargs -r objdump -Wi 2>/dev/null | awk '
        /DW_TAG_typedef/ { want = 1; next }
        /DW_TAG_/ { want = 0 }
        want && /DW_AT_name/ { print $NF; want = 0 }'
    find src test/unit -name '*.[ch]' | xargs -r sed -nE \
        -e 's/^typedef .*[ *]([A-Za-z_][A-Za-z0-9_]*);.*$/\1/p' \
        -e 's/^\}[[:space:]]*([A-Z][A-Za-z0-9_]*);.*$/\1/p' \
        -e 's/^typedef .*\(\*([A-Za-z_][A-Za-z0-9_]*)\).*$/\1/p'
}

# format FILE: to standard output, as pgindent does around pg_bsd_indent:
# "/* ---" comments keep their shape, "type *" of a return type is joined.
format() {
    perl -pe 's{/\* +---}{/*---X_X}g' "$1" >"$scratch/in.c"
    pg_bsd_indent $flags -U"$typedefs" "$scratch/in.c" "$scratch/out.c" >"$scratch/messages" 2>&1 || {
        cat "$scratch/messages" >&2
        return 1
    }
    perl -pe 's{/\*---X_X}{/* ---}g; s{\*/(/\*.*\*/)$}{*/\t$1}; s{^([A-Za-z_]\S*)[ \t]+\*$}{$1 *}' \
        "$scratch/out.c"
}

if [ "${1:-}" = --typedefs ]; then
    list_typedefs | grep -E '^[A-Za-z_][A-Za-z0-9_]*$' | LC_ALL=C sort -u >"$typedefs.new"
    mv "$typedefs.new" "$typedefs"
    exit 0
fi

check=
[ "${1:-}" != --check ] || { check=1; shift; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
[ $# -gt 0 ] || set -- $(find src test/unit -name '*.[ch]' | sort)

bad=0
for file in "$@"; do
    format "$file" >"$scratch/done.c"
    cmp -s "$file" "$scratch/done.c" && continue
    bad=1
    if [ -n "$check" ]; then
        diff -u --label "$file" --label "$file (indented)" "$file" "$scratch/done.c" || true
    else
        cat "$scratch/done.c" >"$file"
        echo "$file"
    fi
done
[ -z "$check" ] || exit $bad
