# Producers and consumers at once, each message in a transaction of its own, batches
# of at most 10 consumed: at a rate that all can carry, as fast as they can, and with a
# snapshot held open.  The table is vacuumed each second if it needs it.

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

# compare_both WHAT VARIANT TABLE_VARIANT ARG...: of at_once
compare_both() {
    local what=$1 variant=$2 other=$3 against="SKIP LOCKED table, polled each 10 ms"
    shift 3
    [ "$other" = poll ] || against="SKIP LOCKED table, LISTEN/NOTIFY"
    compare_columns "$what" "$against" "at_once narad $variant $*" "at_once skip_locked $other $*" \
        "delivered, messages/s" "" "p50, ms" "" "p99, ms" "" "left at the end, messages" ""
}

bench_both() {
    local pairs=${BENCH_PAIRS:-3}
    query -c "ALTER SYSTEM SET autovacuum = on" -c "ALTER SYSTEM SET autovacuum_naptime = '1 s'" -c "SELECT pg_reload_conf()" >/dev/null
    compare_both "both at once, 1,000 msg/s, 2 producers, 2 consumers" plain poll 1000 2 2
    compare_both "the same" plain listen 1000 2 2
    compare_both "the same, a snapshot held open" plain poll 1000 2 2 held
    compare_both "both at once, as fast as they can, 4 producers, 4 consumers" plain poll 0 4 4
    compare_both "the same, transactional acks" transactional poll 0 4 4
    compare_both "the same, plain acks, a snapshot held open" plain poll 0 4 4 held
    query -c "ALTER SYSTEM RESET autovacuum" -c "ALTER SYSTEM RESET autovacuum_naptime" -c "SELECT pg_reload_conf()" >/dev/null
}
