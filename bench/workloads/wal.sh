# WAL of a message over its whole life: COPY, consume, plain ack; and what is on disk.

# Written to data files so far, bytes.  The first checkpoint's own count is there when
# the second has begun.
files_written() {
    query -c CHECKPOINT -c CHECKPOINT \
        -c "SELECT (buffers_checkpoint + buffers_clean + buffers_backend) * 8192 FROM pg_stat_bgwriter"
}

# life CONTESTANT: messages pass in ten rounds, each of them loaded, consumed and
# settled by a hundred, and cleaned up (what is settled is dropped, or vacuumed).  Prints,
# as bytes a byte of value: WAL, what was written to the files, with a checkpoint at
# the end; then the files, in MB, when they were largest and in the end.
life() {
    local round size largest=0 wal written
    run "$1" empty
    written=$(files_written)
    wal=$(lsn)
    for round in $(seq 10); do
        run "$1" append $((rows / 10))
        run "$1" settle
        size=$(run "$1" size)
        [ "$size" -le "$largest" ] || largest=$size
        run "$1" clean_up
    done
    wal=$(($(lsn) - wal))
    written=$(($(files_written) - written))
    awk -v b=$((rows * 1000)) -v w="$wal" -v f="$written" -v l="$largest" -v s="$(run "$1" size)" \
        'BEGIN { printf "%.3f %.3f %.1f %.1f\n", w / b, f / b, l / 1048576, s / 1048576 }'
}

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
    pairs=1 compare_columns "$rows messages of 1,000 B over their whole life, 10 rounds" "SKIP LOCKED table and its indexes, vacuumed" \
        "life narad" "life skip_locked" "WAL, bytes per byte of value" "" "written to files, bytes per byte of value" "" \
        "files at their largest, MB" "" "files in the end, MB" ""
}
