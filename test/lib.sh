# Shell functions that the scripts in test/ and demo/ share; to be sourced.
#
# A test never touches the installed PostgreSQL. PostgreSQL finds its
# libraries and its share folder relative to its own program file, so a tree
# with copied programs and links for everything else is an installation of its
# own: "make install PG_CONFIG=TREE/..." puts narad there, without root.

root=$(cd "$(dirname "$0")/.." && pwd)
: "${PG_CONFIG:=/usr/lib/postgresql/15/bin/pg_config}"
command -v "$PG_CONFIG" >/dev/null || PG_CONFIG=pg_config

WARN_FLAGS="-Wextra -Werror -Wno-unused-parameter -Wno-sign-compare
    -Wno-missing-field-initializers -Wno-cast-function-type -Wshadow=compatible-local"

say() {
    printf '%s\n' "$*"
}

die() {
    printf '%s: %s\n' "$(basename "$0")" "$*" >&2
    exit 1
}

# Servers refuse to run as root: then they, and all tests, run as another user.
pick_user() {
    test_user=$(id -un)
    [ "$(id -u)" = 0 ] || return 0
    for test_user in postgres nobody; do
        id "$test_user" >/dev/null 2>&1 && return 0
    done
    die "no unprivileged user to run a server as"
}

as_user() {
    if [ "$(id -un)" = "$test_user" ]; then
        "$@"
    else
        runuser -u "$test_user" -- "$@"
    fi
}

# in_dir DIR COMMAND...: as the test user, who may not be able to read where we are.
in_dir() (
    cd "$1"
    shift
    as_user "$@"
)

# make_scratch [DIR]: a folder the test user owns, its path left in $scratch.
make_scratch() {
    if [ -n "${1:-}" ]; then
        scratch=$1
        mkdir -p "$scratch"
    else
        scratch=$(mktemp -d "${TMPDIR:-/tmp}/narad.XXXXXX")
    fi
    chmod 755 "$scratch"
    [ "$(id -un)" = "$test_user" ] || chown "$test_user" "$scratch"
    # A socket's path has to fit into 107 bytes.
    [ ${#scratch} -le 80 ] || die "the path of the scratch folder is too long: $scratch"
}

# link_entries FROM TO: every entry of FROM that is not narad's, as a link.
link_entries() {
    mkdir -p "$2"
    for entry in "$1"/*; do
        case ${entry##*/} in
            narad*) ;;
            *) [ -e "$2/${entry##*/}" ] || ln -s "$entry" "$2/${entry##*/}" ;;
        esac
    done
}

# make_tree TREE: a private PostgreSQL installation, without narad.
make_tree() {
    bindir=$("$PG_CONFIG" --bindir)
    pkglibdir=$("$PG_CONFIG" --pkglibdir)
    sharedir=$("$PG_CONFIG" --sharedir)
    mkdir -p "$1$bindir" "$1$pkglibdir/bitcode" "$1$sharedir/extension"
    cp -pL "$bindir"/* "$1$bindir/"
    link_entries "$pkglibdir/bitcode" "$1$pkglibdir/bitcode"
    link_entries "$pkglibdir" "$1$pkglibdir"
    link_entries "$sharedir/extension" "$1$sharedir/extension"
    link_entries "$sharedir" "$1$sharedir"
    for dir in --includedir --includedir-server; do
        from=$("$PG_CONFIG" $dir)
        [ -e "$1$from" ] && continue
        mkdir -p "$1${from%/*}"
        ln -s "$from" "$1$from"
    done
    [ "$("$1$bindir/pg_config" --pkglibdir)" = "$1$pkglibdir" ] ||
        die "$1 did not become an installation of its own"
}

# variant_flags VARIANT: compiler flags of the builds; only "testing" has stop
# points and assertions.
variant_flags() {
    case $1 in
        plain) echo $WARN_FLAGS ;;
        testing) echo $WARN_FLAGS -DNARAD_TESTING -DUSE_ASSERT_CHECKING ;;
        *) die "no such build: $1" ;;
    esac
}

# link_sources DIR: the sources as links. (Not make's VPATH, which would take
# an object file left in the checkout for one of this build.)
link_sources() {
    for file in $(cd "$root" && find src -name '*.[ch]') Makefile narad.control \
        $(cd "$root" && ls narad--*.sql); do
        mkdir -p "$1/$(dirname "$file")"
        ln -sfn "$root/$file" "$1/$file"
    done
    find "$1" -xtype l -delete
    rm -f "$1/narad.so"
}

# variant_make VARIANT PG_CONFIG TARGET
variant_make() {
    (
        flock 9
        [ "$3" != all ] || link_sources "$root/build/$1"
        make -s -C "$root/build/$1" -j "$(nproc)" PG_CONFIG="$2" with_llvm=no \
            COPT="$(variant_flags "$1")" "$3"
    ) 9>"$root/build/$1/.lock"
}

# build VARIANT: compiles in build/VARIANT of the checkout.
build() {
    mkdir -p "$root/build/$1"
    variant_make "$1" "$PG_CONFIG" all
}

# install_variant VARIANT TREE: builds, and installs into the private tree.
install_variant() {
    build "$1" || return 1
    tree_config=$2$("$PG_CONFIG" --bindir)/pg_config
    [ -x "$tree_config" ] || make_tree "$2"
    variant_make "$1" "$tree_config" install >/dev/null
}

# Servers: each has a folder with data/, log and its socket. They listen on no
# network address; the port number only names the socket, so it is always free.
#
# server_init BIN DIR [SETTING...]: settings are lines for postgresql.conf.
server_init() {
    server_bin=$1
    server_dir=$2
    shift 2
    as_user mkdir -p "$server_dir"
    in_dir "$server_dir" "$server_bin/initdb" -D "$server_dir/data" -U postgres -A trust -E UTF8 \
        --locale=C --no-sync ${INITDB_OPTS:-} >"$scratch/initdb.log" 2>&1 || {
        cat "$scratch/initdb.log" >&2
        return 1
    }
    {
        echo "listen_addresses = ''"
        echo "unix_socket_directories = '$server_dir'"
        echo "port = 5432"
        echo "shared_preload_libraries = 'narad'"
        echo "max_connections = 60"
        echo "max_prepared_transactions = 10"
        echo "log_line_prefix = '%m [%p] %q%a '"
        for setting in "$@"; do
            echo "$setting"
        done
    } | as_user tee -a "$server_dir/data/postgresql.conf" >/dev/null
}

server_start() {
    in_dir "$2" "$1/pg_ctl" -s -w -t 120 -D "$2/data" -l "$2/log" start </dev/null || {
        tail -n 30 "$2/log" >&2 2>/dev/null || true
        return 1
    }
}

# server_stop BIN DIR [MODE]: no error when it does not run.
server_stop() {
    [ -e "$2/data/postmaster.pid" ] || return 0
    in_dir "$2" "$1/pg_ctl" -s -w -t 120 -D "$2/data" -m "${3:-fast}" stop </dev/null || true
}

# server_env DIR: libpq's variables, for eval or env.
server_env() {
    echo "PGHOST=$1 PGPORT=5432 PGUSER=postgres"
}
