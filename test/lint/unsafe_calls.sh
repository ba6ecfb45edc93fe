#!/bin/sh
# No strcpy, strcat, sprintf, malloc or their like: strlcpy, snprintf and palloc.
set -eu
cd "$(dirname "$0")/../.."
! grep -rnE '(^|[^A-Za-z0-9_])(strcpy|strcat|sprintf|vsprintf|gets|malloc|calloc|realloc|strdup)\(' \
    src --include='*.[ch]'
