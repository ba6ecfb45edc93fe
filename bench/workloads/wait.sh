# What sessions that wait cost, beside as many that are idle.

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
    local idle waiting a b
    query -c "SELECT narad.create_topic('bench_idle')" >/dev/null
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
}
