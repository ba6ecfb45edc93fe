# How late delayed messages come, alone and behind a million others.

# delay_lateness OTHERS: a thousand messages due within 10 s, not in the order of
# offsets, behind so many due tomorrow; one consumer waits.  How late each came.
delay_lateness() {
    query <<SQL | awk -v n="$1" '/^Time/ { ms = $2 } /^late/ {
        print "delay, " n " others: first consume " ms " ms, then " $0 }'
DROP TABLE IF EXISTS bench_delay;
SELECT FROM narad.create_topic('bench_delay', max_in_flight => 1000000);
SELECT FROM generate_series(1, $1, 10000) i, narad.produce_batch('bench_delay',
    array_fill(to_jsonb(i), ARRAY[10000]), deliver_after => '1 day');
SELECT FROM generate_series(1, 1000) i,
    LATERAL (SELECT clock_timestamp() + interval '8 s' + i * 7919 % 1000 * interval '10 ms' AS due) d,
    narad.produce('bench_delay', to_jsonb(due), deliver_at => due);
CREATE TEMP TABLE late (ms float);
\\timing on
SELECT FROM narad.consume('bench_delay');
\\timing off
DO \$\$
DECLARE
    m narad.message;
    n int := 0;
BEGIN
    WHILE n < 1000 LOOP
        FOR m IN SELECT * FROM narad.consume('bench_delay', 100, wait => '10 s') LOOP
            INSERT INTO late VALUES (extract(epoch FROM clock_timestamp() - (m.value #>> '{}')::timestamptz) * 1000);
            n := n + 1;
        END LOOP;
        COMMIT;
    END LOOP;
END \$\$;
SELECT format('late by ms: p50 %s, p99 %s, max %s; early %s',
    round(percentile_cont(0.5) WITHIN GROUP (ORDER BY ms)::numeric, 2),
    round(percentile_cont(0.99) WITHIN GROUP (ORDER BY ms)::numeric, 2), round(max(ms)::numeric, 2),
    count(*) FILTER (WHERE ms < 0)) FROM late;
SQL
}

bench_delay() {
    delay_lateness 0
    delay_lateness 1000000
}
