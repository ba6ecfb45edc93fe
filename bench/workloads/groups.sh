# A second group costs a page a partition, and its deliveries what the first's cost.

# deliveries GROUPS: per second of the server's CPU time, each group consuming all
deliveries() {
    local before after g pids=
    query >/dev/null <<SQL
SET client_min_messages = warning;
DROP TABLE IF EXISTS bench_groups;
SELECT FROM narad.create_topic('bench_groups', value_type => 'bytea');
INSERT INTO bench_groups (value) SELECT value FROM generate_series(1, 400000) i JOIN bench_values ON n = i % 1000;
SELECT narad.create_group('bench_groups', 'g' || g) FROM generate_series(1, $1) g;
CHECKPOINT;
SQL
    before=$(server_cpu)
    for g in $(seq "$1"); do
        settle_all bench_groups "g$g" &
        pids="$pids $!"
    done
    wait $pids
    after=$(server_cpu)
    awk -v n="$1" -v a="$before" -v b="$after" 'BEGIN { print n * 400000 / (b - a) * 1000 }'
}

bench_groups() {
    compare "two groups each consuming all, deliveries per CPU second of the server" "one group" 0.9 \
        "deliveries 2" "deliveries 1"
}
