# From the producer to a consumer that waits, 500 messages a second, each in a
# transaction of its own that is flushed; beside what a bare commit and a SELECT 1
# take together, and beside LISTEN/NOTIFY with a SKIP LOCKED table.

# latency WHAT COUNT RATE WAITERS [IDLE]: its lines "series p50 p99", in ms
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

# p50 and p99 of the delivery, or of a commit and a SELECT together
late() {
    latency "$@" | awk '/^(delivery|commit|select)/ { a += $2; b += $3 } END { print a, b }'
}

# compare_latency WHAT AGAINST TARGET "A..." "B...": as compare, for p50 and p99
compare_latency() {
    compare_columns "$1" "$2" "$4" "$5" "p50, ms" "$3" "p99, ms" "$3"
}

bench_latency() {
    local pairs=3
    compare_latency "produce to delivery, one waiting consumer, 500 msg/s" "a bare commit's and a SELECT 1's together" "1.5 at most" \
        "late narad 5000 500 1" "late bare 5000 500 1"
    compare_latency "the same" "LISTEN/NOTIFY and a SKIP LOCKED table" "below 1" \
        "late narad 5000 500 1" "late listen 5000 500 1"
    # So many that the flushes which take long are as many on either side.
    compare_latency "produce to delivery, 500 msg/s, 600 waiters" "1 waiter" "1.3 at most" \
        "late narad 5000 500 600" "late narad 5000 500 1"
    # What sessions cost that have slept for so long, whatever they sleep in.
    compare_latency "a SELECT 1 by each of 600 sessions in turn, 500 a second" "by 1 session" "" \
        "late turns 5000 500 600" "late turns 5000 500 1"
    compare_latency "the same, 100 a second" "the same" "" \
        "late turns 3000 100 600" "late turns 3000 100 1"
    compare_latency "produce to delivery, 100 msg/s, 600 waiters" "1 waiter" "1.3 at most" \
        "late narad 3000 100 600" "late narad 3000 100 1"
    compare_latency "the same" "1 waiter, and 599 idle sessions" "" \
        "late narad 3000 100 600" "late narad 3000 100 1 599"
}
