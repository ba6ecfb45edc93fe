# consume + ack, by what a batch holds, and by how the acknowledgement is made.

narad_consume() {
    run narad load 800000 8
    run narad consume "$@"
}

skip_locked_consume() {
    run skip_locked load $(($1 == 1 ? 40000 : 300000))
    run skip_locked consume "$@"
}

pgq_consume() {
    run pgq load 100000
    run pgq consume 100000
}

redis_consume() {
    run redis load 800000
    run redis consume "$@"
}

# one_client BATCH
one_client() {
    compare "consume + ack at $1, 1 client, messages/s" "SKIP LOCKED table, claim and DELETE" "" \
        "narad_consume $1 1 plain" "skip_locked_consume $1 1 claim"
    compare "the same, transactional acks" "the same" "" \
        "narad_consume $1 1 transactional" "skip_locked_consume $1 1 claim"
}

# against_table BATCH CLIENTS TARGET_PLAIN TARGET_CHAINED TARGET_TRANSACTIONAL
against_table() {
    compare "consume + ack at $1, $2 clients, messages/s" "SKIP LOCKED table, claim and DELETE" "$3" \
        "narad_consume $1 $2 plain" "skip_locked_consume $1 $2 claim"
    compare "the same, ack => of the next consume" "the same" "$4" \
        "narad_consume $1 $2 chained" "skip_locked_consume $1 $2 claim"
    compare "the same, transactional acks" "the same" "$5" \
        "narad_consume $1 $2 transactional" "skip_locked_consume $1 $2 claim"
    compare "the same" "SKIP LOCKED table, DELETE in one transaction" "" \
        "narad_consume $1 $2 transactional" "skip_locked_consume $1 $2 one_transaction"
}

bench_consume() {
    local pairs=3 batch
    for batch in 1 10 100; do
        one_client "$batch"
    done
    against_table 1 8 5 8 1.5
    against_table 10 8 6 8 3
    against_table 100 8 5 8 3
    enlist pgq
    compare "consume + ack at 100, 1 client, messages/s" "PgQ, batches of 500 events" 1.5 \
        "narad_consume 100 1 plain" pgq_consume
    enlist redis
    compare "consume + ack at 1, 8 clients, ack => of the next consume, messages/s" "Redis stream, XACK with the next XREADGROUP" 1 \
        "narad_consume 1 8 chained" "redis_consume 1 8 chained"
    compare "consume + ack at 1, 8 clients, messages/s" "Redis stream, XREADGROUP, XACK" "" \
        "narad_consume 1 8 plain" "redis_consume 1 8 plain"
    compare "the same at 10" "the same" 1 "narad_consume 10 8 plain" "redis_consume 10 8 plain"
    compare "the same at 100" "the same" 2 "narad_consume 100 8 plain" "redis_consume 100 8 plain"
}
