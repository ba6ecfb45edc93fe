# COPY by one client, of values that do not compress, of 1,000 and of 100 bytes.

copy_data() {
    [ -e "$scratch/copy.$1" ] || perl -e '
        open(my $in, "<", "/dev/urandom") or die;
        for (1 .. $ARGV[0]) { read($in, my $b, $ARGV[1]); print "\\\\x", unpack("H*", $b), "\n" }' \
        "$2" "$1" >"$scratch/copy.$1"
    chmod 644 "$scratch/copy.$1"
}

# copy_rate TABLE BYTES ROWS: rows a second, into a fresh table
copy_rate() {
    query <<SQL
SET client_min_messages = warning;
DROP TABLE IF EXISTS copy_topic, copy_heap;
SELECT FROM narad.create_topic('copy_topic', value_type => 'bytea');
CREATE TABLE copy_heap (LIKE copy_topic) USING heap;
CHECKPOINT;
SQL
    awk -v n="$3" -v s="$(seconds_of query -c "\copy $1 (value) FROM '$scratch/copy.$2'")" 'BEGIN { print n / s }'
}

bench_copy() {
    local n
    copy_data 1000 "$rows"
    compare "COPY, 1 client, values of 1,000 B, rows/s" "COPY into a heap table" 1.3 \
        "copy_rate copy_topic 1000 $rows" "copy_rate copy_heap 1000 $rows"
    n=$((rows * 5))
    copy_data 100 "$n"
    compare "the same, 100 B" "the same" 1.3 "copy_rate copy_topic 100 $n" "copy_rate copy_heap 100 $n"
}
