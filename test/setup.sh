#!/bin/sh
# Installs, from Debian's packages, what building and testing narad needs.
# Says nothing when all of it is there.
set -eu

PACKAGES="gcc make binutils
    postgresql-15 postgresql-client-15 postgresql-server-dev-15
    libipc-run-perl pg-bsd-indent python3-psycopg2 pgbouncer"

is_installed() {
    dpkg-query -W -f '${Status}' "$1" 2>/dev/null | grep -q '^install ok installed$'
}

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        echo "setup: root or sudo is needed to install packages" >&2
        return 1
    fi
}

apt_install() {
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -o Dpkg::Use-Pty=0 -qq -y \
        --no-install-recommends install "$@" </dev/null >>"$log" 2>&1 || {
        cat "$log" >&2
        echo "setup: could not install: $*" >&2
        return 1
    }
}

# Debian's package creates and starts a cluster of its own when it is
# installed; narad brings its own servers, so a machine that had no PostgreSQL
# is left without a running one.
no_main_cluster() {
    apt_install postgresql-common
    as_root sed -i 's/^#\{0,1\} *create_main_cluster *=.*/create_main_cluster = false/' \
        /etc/postgresql-common/createcluster.conf
}

if ! command -v dpkg-query >/dev/null; then
    [ -n "${PG_CONFIG:-}" ] && exit 0
    echo "setup: this is not Debian: install PostgreSQL with its server headers, and set PG_CONFIG" >&2
    exit 1
fi

missing=
for package in $PACKAGES; do
    is_installed "$package" || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

echo "setup: installing$missing"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
as_root apt-get -qq update </dev/null >"$log" 2>&1 || {
    cat "$log" >&2
    exit 1
}
is_installed postgresql-common || no_main_cluster
# shellcheck disable=SC2086
apt_install $missing

# The same of the pooler: tests start their own.
case $missing in
*pgbouncer*)
    as_root sh -c 'service pgbouncer stop; update-rc.d pgbouncer disable' >/dev/null 2>&1 || : ;;
esac
