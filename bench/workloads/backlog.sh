# The rates do not depend on how much lies there, nor on what is leased or not due.

# empty_topic NAME
empty_topic() {
    query >/dev/null -c "SELECT FROM narad.create_topic('$1', value_type => 'bytea', max_in_flight => 2000000,
        max_acked_ahead => 2000000)"
}

# backlog_topic NAME MESSAGES
backlog_topic() {
    empty_topic "$1"
    query >/dev/null <<SQL
INSERT INTO $1 (value) SELECT substr(value, 1, 100)
    FROM generate_series(1, $2) i JOIN bench_values ON n = i % 1000;
CHECKPOINT;
SQL
}

# backlog_rate TOPIC BATCH: consume + ack of the first thousand messages, the
# median of fifteen times
backlog_rate() {
    local file
    file=$(script backlog <<SQL
SELECT coalesce(array_agg(receipt), '{}') AS receipts FROM narad.consume_bytes('$1', $2) \\gset
SELECT narad.ack(:receipts);
SQL
    )
    for _ in $(seq 15); do
        query -c "SELECT narad.seek_to_time('$1', 'default', '-infinity')" >/dev/null
        rate_of "$file" $((1000 / $2))
    done | median | cut -d ' ' -f 1
}

# call_rate TOPIC: calls a second of the consume alone that gets a message which
# comes now.  That is durable by then, so that the call has not to flush it.
call_rate() {
    local file
    file=$(script visible <<SQL
SELECT count(*) FROM narad.produce_bytes('$1', 'x');
SELECT receipt FROM narad.consume_bytes('$1') \\gset
SELECT narad.ack(:receipt);
SQL
    )
    # Its mean latency is in ms.
    clients -c 1 -t 2000 -r -f "$file" |
        awk '/^ .*consume_bytes/ { print 1000 / $1 } /ERROR|error|aborted/ { print > "/dev/stderr" }'
}

# is_million TOPIC COLUMN: dies unless narad.groups says so
is_million() {
    [ "$(query -c "SELECT $2 FROM narad.groups WHERE topic = '$1'::regclass")" = 1000000 ] ||
        die "$1: not a million $2"
}

# A function that names nothing of generate_series would be called once, hence
# the 0 * i.
bench_backlog() {
    local batch
    query -c "SET client_min_messages = warning" -c "DROP TABLE IF EXISTS back_1k, back_1m, back_10m, back_leased, back_delayed, back_none"
    backlog_topic back_1k 1000
    backlog_topic back_1m 1000000
    backlog_topic back_10m 10000000
    for batch in 1 100; do
        compare "consume + ack at $batch, backlog of 1 M (100 B)" "backlog of 1 k" 0.95 \
            "backlog_rate back_1m $batch" "backlog_rate back_1k $batch"
        compare "consume + ack at $batch, backlog of 10 M" "backlog of 1 k" 0.95 \
            "backlog_rate back_10m $batch" "backlog_rate back_1k $batch"
    done
    query -c "DROP TABLE back_1k, back_1m, back_10m"

    backlog_topic back_none 0
    backlog_topic back_leased 1000000
    query -c "SELECT count(*) FROM generate_series(1, 100) i,
        narad.consume_bytes('back_leased', 10000 + 0 * i, visibility_timeout => '1 hour')" >/dev/null
    is_million back_leased in_flight
    compare "calls/s of consume(1), one visible behind 1 M leased" "a topic without them" "0.67 (1.5 x the time)" \
        "call_rate back_leased" "call_rate back_none"
    query -c "DROP TABLE back_leased"
    empty_topic back_delayed
    query >/dev/null <<SQL
SELECT FROM generate_series(1, 100) i, narad.produce_batch_bytes('back_delayed',
    array_fill('\\x00'::bytea, ARRAY[10000 + 0 * i]), deliver_after => '1 day');
SELECT count(*) FROM narad.consume_bytes('back_delayed');
SQL
    is_million back_delayed scheduled
    compare "the same, behind 1 M delayed" "the same" "0.67 (1.5 x the time)" \
        "call_rate back_delayed" "call_rate back_none"
    query -c "DROP TABLE back_delayed, back_none"
}
