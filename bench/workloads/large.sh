# Messages of 1 MB.

# large_rate STATEMENT [COMMIT]: MB a second; each message by a statement, in a DO block
large_rate() {
    local n=${BENCH_LARGE:-300} start
    query -c "TRUNCATE large_topic, large_heap" -c CHECKPOINT
    start=$EPOCHREALTIME
    query <<SQL
DO \$\$
DECLARE
    v bytea := (SELECT value FROM large_value);
BEGIN
    FOR i IN 1 .. $n LOOP
        $1;
        ${2:-}
    END LOOP;
END \$\$;
SQL
    awk -v n="$n" -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { print n / (b - a) }'
}

large_produce() {
    large_rate "PERFORM narad.produce_bytes('large_topic', v)" "${1:-}"
}

large_insert() {
    large_rate "INSERT INTO $1 (value) VALUES (v)" "${2:-}"
}

bench_large() {
    query >/dev/null <<SQL
SELECT FROM narad.create_topic('large_topic', value_type => 'bytea');
CREATE TABLE large_heap (LIKE large_topic) USING heap;
ALTER TABLE large_heap ALTER value SET STORAGE EXTERNAL;
CREATE TABLE large_value AS SELECT substr(string_agg(sha512(i::text::bytea), ''), 1, 1048576) AS value
    FROM generate_series(1, 16384) i;
SQL
    compare "1 MB messages, produce, in one transaction, MB/s" "INSERT into a heap table, STORAGE EXTERNAL" 3 \
        large_produce "large_insert large_heap"
    compare "the same, INSERT into the topic" "the same" 3 "large_insert large_topic" "large_insert large_heap"
    compare "the same, produce, a transaction each" "the same" 3 "large_produce COMMIT;" "large_insert large_heap COMMIT;"
}
