#!/bin/sh
# libpq-fe.h is included by src/cluster/cluster_link.c only.
set -eu
cd "$(dirname "$0")/../.."
! grep -rn 'libpq-fe\.h' src --include='*.[ch]' | grep -v '^src/cluster/cluster_link\.c:'
