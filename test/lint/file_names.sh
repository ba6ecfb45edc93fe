#!/bin/sh
# A file in src/FOLDER is named FOLDER_something.c or .h; at src itself, narad.c or narad_something.
set -eu
cd "$(dirname "$0")/../.."

bad=0
for file in $(find src -name '*.[ch]' | sort); do
    folder=$(basename "$(dirname "$file")")
    case $folder/${file##*/} in
        src/narad.c | src/narad.h | src/narad_*) ;;
        "$folder/$folder"_*) ;;
        *) echo "$file: wants the prefix ${folder}_"; bad=1 ;;
    esac
done
exit $bad
