# What a topic keeps on disk while much passes through it.

# Ten looks a second at the size of bench_keep, to a file, until it is ended.
look_at_size() {
    printf '%s\n' "SELECT pg_table_size('bench_keep') \watch 0.1" |
        as_user env $(server_env "$scratch/server") PGAPPNAME=look "$bin/psql" -XAtq >"$scratch/sizes" 2>&1
}

# Ten gigabytes through a partition that keeps 256 MB of them, while one session
# consumes and acknowledges; then all is settled and cleaned up, and at rest.
bench_retention() {
    local gigabytes=${BENCH_GIGABYTES:-10} producers consumers largest looks before size
    query >/dev/null <<SQL
SET client_min_messages = warning;
DROP TABLE IF EXISTS bench_keep;
SELECT FROM narad.create_topic('bench_keep', value_type => 'bytea', retention_bytes => 268435456);
SQL
    script keep <<SQL >/dev/null
INSERT INTO bench_keep (value) SELECT value FROM bench_values;
SQL
    script settle <<SQL >/dev/null
SELECT count(a) FROM (SELECT coalesce(array_agg(receipt), '{}') AS receipts
    FROM narad.consume_bytes('bench_keep', 1000, wait => '100 ms')) c, narad.try_ack(receipts) a;
SQL
    clients -c 1 -T 100000 -f "$scratch/settle.sql" >/dev/null &
    consumers=$!
    clients -c 2 -j 2 -t $((gigabytes * 537)) -f "$scratch/keep.sql" >/dev/null &
    producers=$!
    look_at_size &
    wait "$producers"
    end_session look
    read -r largest looks <<<"$(awk '/^[0-9]+$/ { if ($1 > m) m = $1; n++ } END { print m, n }' "$scratch/sizes")"
    query -c "SELECT format('retention: %s MB in %s messages passed; at most %s MB of file in %s looks, bound %s MB; lost to the group %s',
        round(end_offset * 1000 / 1048576.0), end_offset, round($largest / 1048576.0, 1), $looks, 256 + 4 * 16,
        (SELECT sum(lost_to_retention) FROM narad.groups WHERE topic = 'bench_keep'::regclass)) FROM narad.offsets('bench_keep')"
    until_true "sum(end_offset - 1 - frontier) = 0 FROM narad.groups WHERE topic = 'bench_keep'::regclass"
    end_session pgbench
    wait "$consumers" || true
    query -c "SELECT narad.alter_topic('bench_keep', cleanup => 'settled')" >/dev/null
    until_true "count(*) <= 2 FROM narad.segments WHERE topic = 'bench_keep'::regclass"
    query -c "SELECT format('retention: all settled: %s segments, %s MB', count(*), round(pg_table_size('bench_keep') / 1048576.0, 1))
        FROM narad.segments WHERE topic = 'bench_keep'::regclass"
    before=$(lsn)
    size=$(query -c "SELECT pg_table_size('bench_keep')")
    sleep 30
    echo "retention: at rest for 30 s: $(($(lsn) - before)) bytes of WAL, $(($(query -c "SELECT pg_table_size('bench_keep')") - size)) of file"
}
