# Sessions that wait: what they cost, how soon they are woken, and redelivery.

# clients N SCRIPT RUNS: sessions of one process, in the background.
clients() {
    as_user env $(server_env "$scratch/server") "$bin/pgbench" -n -c "$1" -j 1 -t "$3" -f "$2" \
        >/dev/null 2>&1 &
    clients_pid=$!
}

until_sessions() {
    while [ "$(query -c "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgbench'
            AND (state = 'idle' OR wait_event = 'Extension')")" -lt "$1" ]; do sleep 0.5; done
    sleep 2
}

end_clients() {
    query -c "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'pgbench'" >/dev/null
    wait "$clients_pid" || true
    while [ "$(query -c "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgbench'")" -gt 0 ]; do sleep 0.2; done
}

# cpu_of SCRIPT: what 600 sessions in it cost in 20 s, ms.
cpu_of() {
    clients 600 "$1" 1
    until_sessions 600
    before=$(server_cpu)
    sleep 20
    after=$(server_cpu)
    end_clients
    awk -v a="$before" -v b="$after" 'BEGIN { print b - a }'
}

bench_wait() {
    local idle waiting a b again
    query -c "SET client_min_messages = warning" -c "DROP TABLE IF EXISTS bench_idle, bench_again, bench_late"
    query -c "SELECT narad.create_topic('bench_idle'), narad.create_topic('bench_again')" \
        -c "CREATE UNLOGGED TABLE bench_late (ms double precision)" >/dev/null
    idle=$(echo "\\sleep 120 s" | script idle)
    waiting=$(echo "SELECT narad.consume('bench_idle', wait => '60 s');" | script waiting)
    rm -f "$scratch/pairs"
    for _ in 1 2 3; do
        a=$(cpu_of "$waiting")
        b=$(cpu_of "$idle")
        echo "$a $b" >>"$scratch/pairs"
    done
    row "600 sessions in 20 s, CPU time of the server, ms" "600 idle sessions" \
        "$(awk '{ print $1 }' "$scratch/pairs" | median)" "$(awk '{ print $2 }' "$scratch/pairs" | median)" \
        "difference $(awk '{ print $1 - $2 }' "$scratch/pairs" | median)" "50 ms more at most"
    again=$(script again <<SQL
SELECT expires_at FROM narad.leases WHERE topic = 'bench_again'::regclass \\gset
INSERT INTO bench_late SELECT extract(epoch FROM clock_timestamp() - :'expires_at'::timestamptz) * 1000
FROM narad.consume('bench_again', wait => '60 s', visibility_timeout => '50 ms');
SQL
    )
    query -c "SELECT count(*) FROM narad.produce('bench_again', '1')" \
        -c "SELECT count(*) FROM narad.consume('bench_again', visibility_timeout => '50 ms')" >/dev/null
    clients 1 "$again" 300
    wait "$clients_pid" || true
    row "redelivery after the lease's end, 300 times, p50 and p99, ms" "" "$(query -c "SELECT format('%s, %s',
        round(percentile_cont(0.5) WITHIN GROUP (ORDER BY ms)::numeric, 2),
        round(percentile_cont(0.99) WITHIN GROUP (ORDER BY ms)::numeric, 2)) FROM bench_late")" "" "" "p99 10"
}
