# How late a message comes again after its lease has ended, to a consumer that waits.

bench_redelivery() {
    local file
    query >/dev/null <<SQL
SELECT FROM narad.create_topic('bench_again');
CREATE UNLOGGED TABLE bench_again_late (ms double precision);
SELECT count(*) FROM narad.produce('bench_again', '1');
SELECT count(*) FROM narad.consume('bench_again', visibility_timeout => '50 ms');
SQL
    file=$(script again <<SQL
SELECT expires_at FROM narad.leases WHERE topic = 'bench_again'::regclass \\gset
INSERT INTO bench_again_late SELECT extract(epoch FROM clock_timestamp() - (:expires_at)::timestamptz) * 1000
FROM narad.consume('bench_again', wait => '60 s', visibility_timeout => '50 ms');
SQL
    )
    clients -c 1 -t 300 -f "$file" >/dev/null
    row "redelivery after the lease's end, $(query -c 'SELECT count(*) FROM bench_again_late') times, p50 and p99, ms" "" \
        "$(query -c "SELECT format('%s, %s',
            round(percentile_cont(0.5) WITHIN GROUP (ORDER BY ms)::numeric, 2),
            round(percentile_cont(0.99) WITHIN GROUP (ORDER BY ms)::numeric, 2)) FROM bench_again_late")" "" "" "p99 10"
}
