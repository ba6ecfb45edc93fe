#!/bin/sh
# A file includes no header of a layer above its own (base, log, queue, cluster, worker, sql).
set -eu
cd "$(dirname "$0")/../.."

# The wiring at the root sees everything; narad.h is seen by everybody.
find src -mindepth 2 -name '*.[ch]' | sort | xargs -r awk '
    function rank(folder) { return (folder in ranks) ? ranks[folder] : -1 }
    BEGIN {
        n = split("base log queue cluster worker sql", names, " ")
        for (i = 1; i <= n; i++) ranks[names[i]] = i
    }
    FNR == 1 {
        split(FILENAME, part, "/")
        mine = part[2]
        if (rank(mine) < 0) { print FILENAME ": folder " mine " has no rank"; bad = 1 }
    }
    /^#[ \t]*include[ \t]*"/ {
        split($0, quoted, "\"")
        header = quoted[2]
        folder = header
        sub(/\/.*/, "", folder)
        if (header ~ /^narad_/ || rank(folder) > rank(mine)) {
            print FILENAME ":" FNR ": " mine " must not include " header
            bad = 1
        }
    }
    END { exit bad }'
