# What sessions that wait cost, beside as many that are idle.

# cpu_of SCRIPT: what 600 sessions in it cost in 20 s, ms.  Not the alarm that
# PostgreSQL leaves behind when a session has authenticated: it wakes each of them
# once, after authentication_timeout, asleep or idle.
cpu_of() {
    local before after pid
    clients -c 600 -j 1 -t 1 -f "$1" >/dev/null &
    pid=$!
    until_true "count(*) = 600 FROM pg_stat_activity WHERE application_name = 'pgbench'
        AND (state = 'idle' OR wait_event = 'Extension')"
    sleep 7
    before=$(server_cpu)
    sleep 20
    after=$(server_cpu)
    end_session pgbench
    wait "$pid" || true
    awk -v a="$before" -v b="$after" 'BEGIN { print b - a }'
}

bench_wait() {
    local idle waiting a b
    query -c "SELECT narad.create_topic('bench_idle')" >/dev/null
    idle=$(echo "\\sleep 60 s" | script idle)
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
