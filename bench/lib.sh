# Shell functions that the workloads share; sourced by bench/run.

bench=$root/bench
seconds=${BENCH_SECONDS:-5}
pairs=${BENCH_PAIRS:-5}
rows=${BENCH_ROWS:-100000}

query() {
    as_user env $(server_env "$scratch/server") "$bin/psql" -XAtq -v ON_ERROR_STOP=1 "$@"
}

cleanup() {
    local name
    for name in $started; do
        run "$name" shut_down || true
    done
    server_stop "$bin" "$scratch/server" immediate || true
    [ "$huge_pages" = off ] || echo $(($(cat "$huge_pages_file") - huge_pages_needed)) >"$huge_pages_file"
    rm -rf "$scratch"
}

# Huge pages for the server's shared memory, as PostgreSQL's manual advises for so
# much of it, if the machine lets us; given back at the end, however many others took.
reserve_huge_pages() {
    local before
    huge_pages=off
    huge_pages_file=/proc/sys/vm/nr_hugepages
    [ "${BENCH_HUGE_PAGES:-on}" = on ] && [ -w "$huge_pages_file" ] || return 0
    before=$(cat "$huge_pages_file")
    huge_pages_needed=$(as_user "$bin/postgres" -D "$scratch/server/data" -C shared_memory_size_in_huge_pages 2>/dev/null)
    huge_pages=on
    echo $((before + huge_pages_needed)) >"$huge_pages_file"
    if [ "$(awk '/^HugePages_Free/ { print $2 }' /proc/meminfo)" -lt "$huge_pages_needed" ]; then
        echo "$before" >"$huge_pages_file"
        huge_pages=off
    fi
}

# Installs Debian packages, unless they are there.
need_packages() {
    local package
    for package in "$@"; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q '^install ok installed$' ||
            DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install "$package" \
                </dev/null >/dev/null 2>&1 || die "could not install $package"
    done
}

start() {
    "$root/test/setup.sh"
    pick_user
    make_scratch
    install_variant plain "$scratch/plain"
    bin=$scratch/plain$("$PG_CONFIG" --bindir)
    started=
    huge_pages=off
    trap cleanup EXIT
    server_init "$bin" "$scratch/server" "fsync = on" "synchronous_commit = on" \
        "shared_buffers = 1GB" "max_wal_size = 8GB" "checkpoint_timeout = 1h" \
        "autovacuum = off" "narad.memory_limit = 256MB" "max_connections = 650" \
        "max_prepared_transactions = 10" "authentication_timeout = 5s"
    reserve_huge_pages
    echo "huge_pages = $huge_pages" >>"$scratch/server/data/postgresql.conf"
    say "huge pages: $huge_pages"
    server_start "$bin" "$scratch/server"
    query >/dev/null <<SQL
CREATE EXTENSION narad;
-- A thousand values of 1,000 bytes that do not compress.
CREATE TABLE bench_values AS
    SELECT i AS n, substr(string_agg(sha512((i * 16 + k)::text::bytea), ''), 1, 1000) AS value
    FROM generate_series(0, 999) i, generate_series(1, 16) k GROUP BY i;
ALTER TABLE bench_values ADD PRIMARY KEY (n);
SQL
}

# run CONTESTANT FUNCTION [ARG...]
run() (
    contestant=$bench/contestants/$1
    . "$contestant/contestant.sh"
    shift
    "$@"
)

# The contestant's own server, or extension: once.
enlist() {
    case " $started " in
        *" $1 "*) ;;
        *)
            started="$started $1"
            run "$1" start_up
            ;;
    esac
}

# What a contestant need not have.
contestant_defaults() {
    start_up() { :; }
    shut_down() { :; }
}

# script NAME: standard input as a script for pgbench; prints its path.
script() {
    cat >"$scratch/$1.sql"
    chmod 644 "$scratch/$1.sql"
    echo "$scratch/$1.sql"
}

# insert_of COUNT TABLE VALUE: an INSERT of so many rows of this value
insert_of() {
    echo "INSERT INTO $2 (value) VALUES"
    yes "('$3')," | head -n "$(($1 - 1))"
    echo "('$3');"
}

# PostgreSQL's pgbench on the bench's server.
clients() {
    as_user env $(server_env "$scratch/server") "$bin/pgbench" -n -M prepared "$@" 2>&1
}

# The transactions a second that pgbench reports; its errors go to our own, and end
# the comparison: a run that was cut off, at the end of its load perhaps, is no figure.
reported_rate() {
    awk -v failed="$scratch/failed" '/^tps/ { print $3 }
        /ERROR|error|aborted/ { print > "/dev/stderr"; print > failed }'
}

# rate SCRIPT CLIENTS [OPTION...]: transactions a second, in $seconds
rate() {
    local file=$1 clients=$2
    shift 2
    clients -T "$seconds" -c "$clients" -j "$clients" -f "$file" "$@" | reported_rate
}

# rate_all SCRIPT CLIENTS RUNS [OPTION...]: the same, in so many transactions of them all
rate_all() {
    local file=$1 clients=$2 runs=$3
    shift 3
    clients -t $((runs / clients)) -c "$clients" -j "$clients" -f "$file" "$@" | reported_rate
}

# rate_of SCRIPT RUNS [OPTION...]: transactions a second of one client that does so many
rate_of() {
    local file=$1 runs=$2
    shift 2
    clients -c 1 -t "$runs" -f "$file" "$@" | reported_rate
}

# settle_all TOPIC [GROUP]: one session consumes and acknowledges all there is,
# a hundred a transaction.
settle_all() {
    query <<SQL
DO \$\$
DECLARE
    receipts text[];
BEGIN
    LOOP
        SELECT array_agg(receipt) INTO receipts
        FROM narad.consume_bytes('$1', 100, consumer_group => '${2:-default}');
        EXIT WHEN receipts IS NULL;
        PERFORM narad.ack(receipts);
        COMMIT;
    END LOOP;
END \$\$;
SQL
}

# until_true CONDITION: waits until it is so; fails after a minute.
until_true() {
    local n
    for n in $(seq 600); do
        [ "$(query -c "SELECT $1")" != t ] || return 0
        sleep 0.1
    done
    die "a minute has passed, and it is not so: $1"
}

# times A B: the product of two numbers
times() {
    awk -v a="$1" -v b="$2" 'BEGIN { print a * b }'
}

seconds_of() {
    local start=$EPOCHREALTIME
    "$@" >/dev/null
    awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { print b - a }'
}

# Median, smallest and largest of the numbers on standard input.
median() {
    sort -g | awk '{ v[NR] = $1 } END {
        m = NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2
        printf "%.4g %.4g %.4g\n", m, v[1], v[NR] }'
}

# row WHAT AGAINST A B RATIO TARGET: a line of the table
row() {
    printf '| %s | %s | %s | %s | %s | %s |\n' "$@" | tee -a "$scratch/table"
}

# column_median COLUMN: of the pairs
column_median() {
    cut -d ' ' -f "$1" "$scratch/pairs" | median | cut -d ' ' -f 1
}

# compare_columns WHAT AGAINST "A..." "B..." NAME TARGET [NAME TARGET...]: runs the two
# commands, each of which prints a number for each NAME, in turn, and puts the medians
# of A / B, with their spreads, into the table, a row a NAME.
compare_columns() {
    local what=$1 against=$2 a=$3 b=$4 width column first second
    shift 4
    width=$(($# / 2))
    rm -f "$scratch/pairs"
    for _ in $(seq "$pairs"); do
        first=$($a)
        second=$($b)
        [ ! -e "$scratch/failed" ] || die "$what: a run was cut off"
        echo "$first $second" >>"$scratch/pairs"
    done
    for column in $(seq "$width"); do
        row "$what${1:+, $1}" "$against" "$(column_median "$column")" "$(column_median $((column + width)))" \
            "$(ratios "$column" $((column + width)))" "$2"
        shift 2
    done
}

# ratios COLUMN COLUMN: of the pairs; nothing if one would be by 0
ratios() {
    awk -v a="$1" -v b="$2" '$b == 0 { exit 1 } { print $a / $b }' "$scratch/pairs" >"$scratch/ratios" || return 0
    median <"$scratch/ratios" | awk -v n="$pairs" '{ printf "%s (%s to %s, %d)", $1, $2, $3, n }'
}

# compare WHAT AGAINST TARGET "A..." "B...": the same for commands that print one
# number, of which more is better.
compare() {
    compare_columns "$1" "$2" "$4" "$5" "" "$3"
}

lsn() {
    query -c "SELECT pg_current_wal_insert_lsn() - '0/0'"
}

# CPU time of all server processes so far, those that have ended included, ms.
server_cpu() {
    local postmaster
    postmaster=$(head -n 1 "$scratch/server/data/postmaster.pid")
    cat /proc/[0-9]*/stat 2>/dev/null | sed 's/(.*)/x/' |
        awk -v p="$postmaster" -v hz="$(getconf CLK_TCK)" \
            '$4 == p || $1 == p { t += $14 + $15 } $1 == p { t += $16 + $17 } END { print t * 1000 / hz }'
}

end_session() {
    query -c "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = '$1'" >/dev/null
    until_true "NOT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = '$1')"
}

# hold_open NAME STATEMENTS: a session that does them and stays as it then is;
# end_session NAME, or the end of this shell, ends it.  One a shell.
hold_open() {
    mkfifo "$scratch/$1"
    as_user env $(server_env "$scratch/server") PGAPPNAME="$1" "$bin/psql" -XAtq <"$scratch/$1" >/dev/null 2>&1 &
    exec 7>"$scratch/$1"
    rm "$scratch/$1"
    printf '%s\n' "$2" >&7
    until_true "EXISTS (SELECT FROM pg_stat_activity WHERE application_name = '$1' AND state = 'idle in transaction')"
}

# Compiles a client in C, once; prints its path.
client() {
    local source=$1 program
    shift
    program=$scratch/$(basename "$source" .c)
    [ -e "$program" ] || gcc -O2 -Wall -o "$program" "$source" "$@" -lpthread
    echo "$program"
}
