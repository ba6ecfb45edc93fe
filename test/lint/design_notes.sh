#!/bin/sh
# Every .c begins with a design note of at least five lines, and every header with a purpose line.
set -eu
cd "$(dirname "$0")/../.."

find src -name '*.[ch]' | sort | while read -r file; do
    awk -v file="$file" '
        NR == 1 && !/^\/\*/ { exit }
        { if (/[a-z][a-z]/ && !/Copyright/) lines++ }
        /\*\// { exit }
        END {
            least = file ~ /\.c$/ ? 5 : 2
            if (lines < least) print file ": the note at its head has " lines + 0 " lines, and wants " least
        }' "$file"
done | {
    ! grep .
}
