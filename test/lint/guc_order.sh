#!/bin/sh
# Settings are registered in alphabetical order within each function of base_guc.c, and our prefix is reserved.
set -eu
cd "$(dirname "$0")/../.."

[ -e src/base/base_guc.c ] || exit 0
tr '\n' ' ' <src/base/base_guc.c | grep -oE 'DefineCustom[A-Za-z]+Variable\([[:space:]]*"[a-z_.]+"|[a-z_]+\(void\) \{' |
    awk '
    /\(void\)/ { last = ""; next }
    /DefineCustom/ {
        split($0, quoted, "\"")
        name = quoted[2]
        if (name !~ /^narad\./) { print name " is not in our name space"; bad = 1 }
        if (name < last) { print name " is registered after " last; bad = 1 }
        last = name
    }
    END { exit bad }'
grep -q 'MarkGUCPrefixReserved("narad")' src/base/base_guc.c src/narad.c || {
    echo 'MarkGUCPrefixReserved("narad") is missing'
    exit 1
}
