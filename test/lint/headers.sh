#!/bin/sh
# Every header compiles alone, right after postgres.h.
set -eu
cd "$(dirname "$0")/../.."
: "${PG_CONFIG:=/usr/lib/postgresql/15/bin/pg_config}"

bad=0
for header in $(find src -name '*.h' | sort); do
    printf '#include "postgres.h"\n#include "%s"\n' "${header#src/}" |
        gcc -std=gnu99 -D_GNU_SOURCE -Wall -Werror -fsyntax-only -x c - \
            -Isrc -I"$("$PG_CONFIG" --includedir-server)" || bad=1
    if grep -n '#include "postgres.h"' "$header"; then
        echo "$header: a header does not include postgres.h"
        bad=1
    fi
done
exit $bad
