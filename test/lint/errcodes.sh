#!/bin/sh
# Every ereport of ERROR or above has an errcode.
set -eu
cd "$(dirname "$0")/../.."

# A statement is read to its semicolon; strings may hold one, so they go first.
find src -name '*.[ch]' | sort | xargs -r awk '
    function finish() {
        if (text != "" && text ~ /ereport\((ERROR|FATAL|PANIC)/ && text !~ /errcode/) {
            print file ":" line ": ereport without errcode"
            bad = 1
        }
        text = ""
    }
    FNR == 1 { finish() }
    {
        code = $0
        gsub(/\\"/, "", code)
        gsub(/"[^"]*"/, "\"\"", code)
    }
    text == "" && code ~ /ereport\(/ { text = code; file = FILENAME; line = FNR; if (code ~ /;/) finish(); next }
    text != "" { text = text code; if (code ~ /;/) finish() }
    END { finish(); exit bad }'
