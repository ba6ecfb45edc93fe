#!/bin/sh
# The guard of src/log/log_page.h is LOG_PAGE_H, at its top and in its last line.
set -eu
cd "$(dirname "$0")/../.."

bad=0
for header in $(find src test/unit -name '*.h' | sort); do
    guard=$(basename "$header" .h | tr 'a-z' 'A-Z')_H
    if ! grep -qx "#ifndef $guard" "$header" || ! grep -qx "#define $guard" "$header" ||
        ! tail -n 1 "$header" | grep -qE "^#endif[[:space:]]+/\* $guard \*/$"; then
        echo "$header: its guard has to be $guard"
        bad=1
    fi
done
exit $bad
