#!/bin/sh
# PG_VERSION_NUM is tested in src/base only.
set -eu
cd "$(dirname "$0")/../.."
! grep -rn 'PG_VERSION_NUM' src --include='*.[ch]' | grep -v '^src/base/'
