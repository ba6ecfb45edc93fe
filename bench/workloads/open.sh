# Transactions that stay open do not slow down what passes: 200,000 messages
# through one partition, produced and consumed at once.

# pass [OPEN]: messages a second, until one consumer has settled them all
pass() {
    local producer start pid
    query >/dev/null <<SQL
SET client_min_messages = warning;
DROP TABLE IF EXISTS bench_pass;
SELECT FROM narad.create_topic('bench_pass', value_type => 'bytea', max_in_flight => 100000, max_acked_ahead => 1000000);
INSERT INTO bench_pass (value) VALUES ('x');
CHECKPOINT;
SQL
    case ${1:-} in
        snapshot) hold_open bench_open "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM bench_pass;" ;;
        producer) hold_open bench_open "BEGIN; INSERT INTO bench_pass (value) VALUES ('x');" ;;
        acker) hold_open bench_open "BEGIN; INSERT INTO bench_effect VALUES (1);
            SELECT narad.ack(receipt) FROM narad.consume_bytes('bench_pass', visibility_timeout => '1 hour');" ;;
    esac
    producer=$(script pass_produce <<SQL
INSERT INTO bench_pass (value) SELECT value FROM bench_values WHERE n < 100;
SQL
    )
    clients -c 2 -j 2 -t 1000 -f "$producer" >/dev/null &
    pid=$!
    start=$EPOCHREALTIME
    query <<SQL
DO \$\$
DECLARE
    receipts text[];
    n int := 0;
BEGIN
    WHILE n < 200000 LOOP
        SELECT coalesce(array_agg(receipt), '{}') INTO receipts FROM narad.consume_bytes('bench_pass', 100, wait => '1 s');
        PERFORM narad.ack(receipts);
        COMMIT;
        n := n + cardinality(receipts);
    END LOOP;
END \$\$;
SQL
    awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { print 200000 / (b - a) }'
    wait "$pid"
    [ -z "${1:-}" ] || end_session bench_open
}

bench_open() {
    query -c "SET client_min_messages = warning" -c "CREATE TABLE IF NOT EXISTS bench_effect (msg_offset bigint)"
    compare "200,000 messages through a partition, a snapshot held open, messages/s" "without" 0.95 "pass snapshot" pass
    compare "the same, a producer idle in its transaction" "without" 0.95 "pass producer" pass
    compare "the same, a consumer idle in its transaction after an ack" "without" 0.95 "pass acker" pass
}
