#!/bin/sh
# headers.sh MAJOR SUITE: prints the include folder of PostgreSQL MAJOR's
# server headers, taken from Debian SUITE's package and kept in a cache. The
# machine's own package lists are neither used nor changed; its mirror is.
set -eu

major=$1
suite=$2
cache=${NARAD_CACHE:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/narad}/headers
include=$cache/$major/usr/include/postgresql/$major/server

if [ -e "$include/postgres.h" ]; then
    echo "$include"
    exit 0
fi
if [ -n "${NARAD_OFFLINE:-}" ]; then
    echo "headers of PostgreSQL $major are not in $cache, and NARAD_OFFLINE is set" >&2
    exit 77
fi

codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
mirror=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
    awk -v release="$codename" '$2 == release && $3 == "main" { print $1; exit }')
[ -n "$mirror" ] || {
    echo "found no mirror for $codename in apt's sources" >&2
    exit 1
}

mkdir -p "$cache"
work=$(mktemp -d "$cache/fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial" "$work/archives/partial" "$work/unpacked"
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main" \
    >"$work/sources.list"
: >"$work/status"

private_apt() {
    apt-get -q -o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts=- \
        -o Dir::State::lists="$work/lists" -o Dir::State::status="$work/status" \
        -o Dir::Cache="$work" -o Dir::Cache::archives="$work/archives" \
        -o Acquire::Languages=none -o Acquire::Check-Valid-Until=false \
        -o APT::Sandbox::User="$(id -un)" "$@" </dev/null
}

{
    private_apt update &&
        (cd "$work" && private_apt download "postgresql-server-dev-$major" libpq-dev libicu-dev) &&
        for deb in "$work"/*.deb; do dpkg -x "$deb" "$work/unpacked"; done
} >"$work/log" 2>&1 || {
    tail -n 5 "$work/log" >&2
    echo "could not fetch the headers of PostgreSQL $major from $suite" >&2
    exit 1
}
rm -rf "${cache:?}/$major"
mkdir -p "$cache/$major/usr"
mv "$work/unpacked/usr/include" "$cache/$major/usr/"
echo "$include"
