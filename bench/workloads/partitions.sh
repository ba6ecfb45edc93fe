# What many partitions cost.

# consume_calls TOPIC: consume(1) and ack by one client, calls of consume a second
consume_calls() {
    rate "$(script parts <<SQL
SELECT array_agg(receipt) AS receipts FROM narad.consume('$1') \\gset
SELECT narad.ack(:receipts);
SQL
    )" 1
}

# parts_topic NAME PARTITIONS
parts_topic() {
    query -c "SET client_min_messages = warning" -c "DROP TABLE IF EXISTS $1"
    query <<SQL
\\timing on
SELECT FROM narad.create_topic('$1', partitions => $2);
SELECT count(*) FROM narad.produce('$1', '0', partition => $2 - 1);
SELECT count(*) FROM narad.consume('$1', 10);
SQL
}

bench_partitions() {
    local n load
    # For all runs of the four comparisons, at 20,000 a second.
    load=$((4 * pairs * seconds * 20000))
    for n in 1 64 4096; do
        parts_topic "parts_$n" "$n" | awk '/Time/ { print $2 }' | paste -s -d ' ' |
            sed "s/^/create, produce, first consume, ms, $n partitions: /"
        query -c "INSERT INTO parts_$n (partition, value) SELECT $n - 1, to_jsonb(i) FROM generate_series(1, $load) i"
    done
    compare "consume(1) + ack, 1 client, backlog in one of 64 partitions" "in a topic of one partition" "" \
        "consume_calls parts_64" "consume_calls parts_1"
    compare "the same, in one of 4,096" "the same" "0.5 (2 x the time)" "consume_calls parts_4096" "consume_calls parts_1"
    query -c "INSERT INTO parts_4096 (partition, value) SELECT i, '1' FROM generate_series(0, 4095) i"
    query -c "SELECT count(narad.ack(receipt)) FROM narad.consume('parts_4096', 10000)" >/dev/null
    query -c "SELECT count(narad.ack(receipt)) FROM narad.consume('parts_4096', 10000)" >/dev/null
    compare "the same, in one of 4,096 all of which were used" "the same" "0.5" "consume_calls parts_4096" "consume_calls parts_1"
    query -c "INSERT INTO parts_4096 (partition, value) SELECT i % 4096, '1' FROM generate_series(0, 409599) i"
    compare "the same, all of 4,096 holding messages" "the same" "0.5" "consume_calls parts_4096" "consume_calls parts_1"
}
