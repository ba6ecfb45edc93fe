# From the producer to a consumer that waits, 500 messages a second, each in a
# transaction of its own that is flushed; beside what a bare commit and a SELECT 1
# take together, and beside LISTEN/NOTIFY with a SKIP LOCKED table.

# latency WHAT COUNT RATE WAITERS: its lines "series p50 p99", in ms
latency() {
    local program
    program=$(client "$bench/latency.c" -I "$("$PG_CONFIG" --includedir)" -lpq)
    query <<SQL
SET client_min_messages = warning;
DROP TABLE IF EXISTS bench_wait, bench_listen, bench_bare;
SELECT FROM narad.create_topic('bench_wait');
CREATE TABLE bench_listen (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, value int);
CREATE TABLE bench_bare (value int);
CHECKPOINT;
SQL
    as_user env $(server_env "$scratch/server") "$program" "$@"
}

# milliseconds COLUMN COMMAND...: p50 (2) or p99 (3), added over the lines
milliseconds() {
    local column=$1
    shift
    "$@" | awk -v c="$column" '/^(delivery|commit|select)/ { s += $c } END { print s }'
}

bench_latency() {
    local pairs=3 column name
    for column in 2 3; do
        name=$([ $column = 2 ] && echo p50 || echo p99)
        compare "produce to delivery, one waiting consumer, 500 msg/s, $name, ms" "a bare commit's and a SELECT 1's together" "1.5 at most" \
            "milliseconds $column latency narad 5000 500 1" "milliseconds $column latency bare 5000 500 1"
        compare "the same, $name" "LISTEN/NOTIFY and a SKIP LOCKED table" "below 1" \
            "milliseconds $column latency narad 5000 500 1" "milliseconds $column latency listen 5000 500 1"
        compare "the same, 50 msg/s, 600 waiters, $name" "1 waiter" "1.3 at most" \
            "milliseconds $column latency narad 1000 50 600" "milliseconds $column latency narad 1000 50 1"
    done
}
