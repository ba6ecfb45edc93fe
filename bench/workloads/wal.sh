# WAL of a message over its whole life: COPY, consume, plain ack; and what is on disk.

bench_wal() {
    local before after
    . "$bench/workloads/copy.sh"
    copy_data 1000 "$rows"
    query >/dev/null <<SQL
SET client_min_messages = warning;
DROP TABLE IF EXISTS copy_topic, copy_heap;
SELECT FROM narad.create_topic('copy_topic', value_type => 'bytea', max_in_flight => 1000000);
CREATE TABLE copy_heap (LIKE copy_topic) USING heap;
CHECKPOINT;
SQL
    before=$(lsn)
    query -c "\copy copy_topic (value) FROM '$scratch/copy.1000'"
    settle_all copy_topic
    until_true "sum(unpersisted_ranges) = 0 FROM narad.groups WHERE topic = 'copy_topic'::regclass"
    after=$(lsn)
    row "WAL of COPY, consume, plain ack, bytes per byte of value" "the values" \
        "$(awk -v w=$((after - before)) -v b=$((rows * 1000)) 'BEGIN { printf "%.3f", w / b }')" 1 "" "1.15 at most"
    before=$(lsn)
    query -c "\copy copy_heap (value) FROM '$scratch/copy.1000'"
    after=$(lsn)
    row "the same" "heap table, COPY alone" "" \
        "$(awk -v w=$((after - before)) -v b=$((rows * 1000)) 'BEGIN { printf "%.3f", w / b }')" "" ""
    row "file, bytes per byte of value" "heap table" \
        "$(awk -v w="$(query -c "SELECT pg_table_size('copy_topic')")" -v b=$((rows * 1000)) 'BEGIN { printf "%.3f", w / b }')" \
        "$(awk -v w="$(query -c "SELECT pg_table_size('copy_heap')")" -v b=$((rows * 1000)) 'BEGIN { printf "%.3f", w / b }')" "" ""
}
