# What a call of narad costs beside the cheapest calls there are.

two_calls() {
    run narad load 800000 8
    times 2 "$(run narad consume_one 8 plain)"
}

one_call() {
    run narad load 800000 8
    run narad consume_one 8 chained
}

consume_100() {
    run narad load 800000 8
    run narad consume 100 1 plain
}

# effect queue|select_one|bare CLIENTS: a transaction with an effect of one row, with
# the queue's two calls, with a SELECT 1 in the place of each of them, or without.
effect() {
    case $1 in
        queue)
            run narad load 800000 8
            cat <<SQL
BEGIN;
SELECT receipt, msg_offset FROM narad.consume_bytes('bench_topic') \\gset
INSERT INTO bench_effect VALUES (:msg_offset);
SELECT narad.ack(:receipt);
COMMIT;
SQL
            ;;
        select_one)
            cat <<SQL
BEGIN;
SELECT 1 AS msg_offset \\gset
INSERT INTO bench_effect VALUES (:msg_offset);
SELECT 1;
COMMIT;
SQL
            ;;
        bare)
            cat <<SQL
BEGIN;
INSERT INTO bench_effect VALUES (1);
COMMIT;
SQL
            ;;
    esac | script effect >/dev/null
    query -c "TRUNCATE bench_effect"
    rate "$scratch/effect.sql" "$2"
}

bench_calls() {
    local clients
    run narad load 800000 8
    enlist call
    compare "consume(1), then ack, 8 clients, calls/s" "SELECT 1" 0.6 two_calls "run call select_one 8"
    compare "the same" "a function that returns such a row" 0.7 two_calls "run call stub 8"
    compare "consume(1, ack => last), 8 clients, messages/s" "SELECT 1" 0.5 one_call "run call select_one 8"
    run heap load 800000
    compare "consume(100) + ack, 1 client, messages/s" "ranges of 100 of a primary key" 0.8 \
        consume_100 "run heap read_ranges 100"
    query -c "CREATE TABLE IF NOT EXISTS bench_effect (msg_offset bigint)"
    for clients in 1 8; do
        compare "consume(1), an effect of one row, ack, a transaction, $clients clients, transactions/s" \
            "the same without the queue" 0.7 "effect queue $clients" "effect bare $clients"
        compare "the same" "with a SELECT 1 in the place of each of the two calls" "" \
            "effect queue $clients" "effect select_one $clients"
    done
}
