# Producers and consumers at once, each message in a transaction of its own, batches
# of at most 10 consumed: at a rate that all can carry, as fast as they can, and with a
# snapshot held open.  The table is vacuumed each second if it needs it.

both_names=("delivered, messages/s" "" "p50, ms" "" "p99, ms" "" "left at the end, messages" "")

# at_once CONTESTANT VARIANT RATE PRODUCERS CONSUMERS [HELD]
at_once() {
    local program statements
    program=$(client "$bench/both.c" -I "$("$PG_CONFIG" --includedir)" -lpq)
    run "$1" both 10 "$2" >"$scratch/statements"
    mapfile -d '' -t statements <"$scratch/statements"
    [ -z "${6:-}" ] || hold_open bench_held "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT pg_current_xact_id();"
    as_user env $(server_env "$scratch/server") "$program" "${BENCH_BOTH_SECONDS:-30}" "$3" "$4" "$5" "${statements[@]}"
    [ -z "${6:-}" ] || end_session bench_held
    query -c "ALTER DATABASE postgres RESET ALL"
}

bench_both() {
    local pairs=${BENCH_PAIRS:-3} held
    query -c "ALTER SYSTEM SET autovacuum = on" -c "ALTER SYSTEM SET autovacuum_naptime = '1 s'" -c "SELECT pg_reload_conf()" >/dev/null
    for held in "" held; do
        compare_columns "both at once, 1,000 msg/s, 2 producers, 2 consumers${held:+, a snapshot held open}" \
            "SKIP LOCKED table, polled each 10 ms" "at_once narad plain 1000 2 2 $held" "at_once skip_locked poll 1000 2 2 $held" \
            "${both_names[@]}"
        compare_columns "the same" "SKIP LOCKED table, LISTEN/NOTIFY" \
            "at_once narad plain 1000 2 2 $held" "at_once skip_locked listen 1000 2 2 $held" "${both_names[@]}"
        compare_columns "both at once, as fast as they can, 4 producers, 4 consumers${held:+, a snapshot held open}" \
            "SKIP LOCKED table, polled each 10 ms" "at_once narad plain 0 4 4 $held" "at_once skip_locked poll 0 4 4 $held" \
            "${both_names[@]}"
        compare_columns "the same, transactional acks" "the same" \
            "at_once narad transactional 0 4 4 $held" "at_once skip_locked poll 0 4 4 $held" "${both_names[@]}"
    done
    query -c "ALTER SYSTEM RESET autovacuum" -c "ALTER SYSTEM RESET autovacuum_naptime" -c "SELECT pg_reload_conf()" >/dev/null
}
