# Messages of 1 MB, in time and in CPU of the backend.

# What a session has cost so far: seconds, and ms of CPU of its process.
cost="SELECT extract(epoch FROM clock_timestamp()) AS s, (f[12]::int + f[13]::int) * 10 AS c
    FROM (SELECT string_to_array(regexp_replace(pg_read_file('/proc/self/stat'), '.*\) ', ''), ' ') AS f) x"

# loop STATEMENT COMMIT: so many messages of 1 MB, each by a statement.
loop() {
    cat <<SQL
DO \$\$
DECLARE
    v bytea := (SELECT value FROM large_value) || '';
    r text;
BEGIN
    FOR i IN 1 .. $large LOOP
        $1;
        $2
    END LOOP;
END \$\$;
SQL
}

copy_large() {
    echo "\\copy $1 (value) FROM '$scratch/large.copy' (FORMAT binary)"
}

# cost_of SCRIPT [AFTER]: of SCRIPT, and what is done after it, in a session that
# has done the same before.
cost_of() {
    query <<SQL
$1
$cost \\gset
$1
${2:-}
SELECT s - :s, c - :c FROM ($cost) x;
SQL
}

# median_of COLUMN, of the rates
median_of() {
    cut -d ' ' -f "$1" "$scratch/rates" | median | cut -d ' ' -f 1
}

# Tables as new, and WAL files ready to be used again.
empty_tables() {
    query -c "TRUNCATE large_topic, large_heap" -c CHECKPOINT
}

# Both tables hold the same, enough for two rounds.
fill_tables() {
    query -c "TRUNCATE large_topic, large_heap" \
        -c "INSERT INTO large_topic (value) SELECT value FROM large_value, generate_series(1, 2 * $large)" \
        -c "INSERT INTO large_heap (msg_offset, value)
            SELECT i % $large + 1, value FROM large_value, generate_series(1, 2 * $large) i" \
        -c CHECKPOINT
}

# compare_large NAME AGAINST TARGET PREPARE TOPIC_SCRIPT HEAP_SCRIPT [AFTER]
compare_large() {
    local a b
    rm -f "$scratch/rates"
    for _ in $(seq "$pairs"); do
        $4
        a=$(cost_of "$5" "${7:-}")
        $4
        b=$(cost_of "$6" "${7:-}")
        echo "$a|$b" | tr '|' ' ' >>"$scratch/rates"
    done
    row "1 MB messages, $1, MB/s (ms of CPU a MB)" "$2" "$(large_rate 1 2)" "$(large_rate 3 4)" \
        "$(awk '{ print $3 / $1 }' "$scratch/rates" | median | awk -v n="$pairs" '{ printf "%s (%s to %s, %d)", $1, $2, $3, n }'), in CPU $(
            awk -v c="$(median_of 2)" -v d="$(median_of 4)" 'BEGIN { printf "%.2f", d / c }')" "$3"
}

# large_rate SECONDS_COLUMN CPU_COLUMN
large_rate() {
    awk -v n="$large" -v s="$(median_of "$1")" -v c="$(median_of "$2")" 'BEGIN { printf "%.0f (%.1f)", n / s, c / n }'
}

# large_server SETTING...: the server anew, with these.
large_server() {
    for setting in "$@"; do
        query -c "ALTER SYSTEM SET $setting"
    done
    server_stop "$bin" "$scratch/server"
    server_start "$bin" "$scratch/server"
}

bench_large() {
    local produce insert heap ten="IF i % 10 = 0 THEN COMMIT; END IF;"
    large=${BENCH_LARGE:-150}
    produce=$(loop "PERFORM narad.produce_bytes('large_topic', v)" "COMMIT;")
    insert=$(loop "INSERT INTO large_topic (value) VALUES (v)" "COMMIT;")
    heap=$(loop "INSERT INTO large_heap (value) VALUES (v)" "COMMIT;")

    query <<SQL
SELECT FROM narad.create_topic('large_topic', value_type => 'bytea');
CREATE TABLE large_heap (LIKE large_topic) USING heap;
ALTER TABLE large_heap ALTER value SET STORAGE EXTERNAL;
CREATE TABLE large_value AS SELECT substr(string_agg(sha512(i::text::bytea), ''), 1, 1048576) AS value
    FROM generate_series(1, 16384) i;
\\copy (SELECT value FROM large_value, generate_series(1, $large)) TO '$scratch/large.copy' (FORMAT binary)
SQL
    compare_large "produce, 1 GB of buffers hardly used" "INSERT into a heap table, STORAGE EXTERNAL" 3 empty_tables "$produce" "$heap"
    large_server "shared_buffers = '128MB'"
    compare_large "produce, a pool of 128 MB in use" "the same" 3 empty_tables "$produce" "$heap"
    compare_large "the same, INSERT into the topic" "the same" 3 empty_tables "$insert" "$heap"
    compare_large "produce, ten in a transaction" "the same" 3 empty_tables "$(loop "PERFORM narad.produce_bytes('large_topic', v)" "$ten")" \
        "$(loop "INSERT INTO large_heap (value) VALUES (v)" "$ten")"
    compare_large "produce, all in one transaction" "the same" 3 empty_tables "$(loop "PERFORM narad.produce_bytes('large_topic', v)" "")" \
        "$(loop "INSERT INTO large_heap (value) VALUES (v)" "")"
    compare_large "produce, and a checkpoint" "the same" "" empty_tables "$produce" "$heap" "CHECKPOINT;"
    compare_large "binary COPY by a client" "the same" "" empty_tables "$(copy_large large_topic)" "$(copy_large large_heap)"
    large_server "fsync = off"
    compare_large "produce, fsync off" "INSERT into a heap table, STORAGE EXTERNAL" "" empty_tables "$produce" "$heap"
    large_server "fsync = on"
    query -c "CREATE INDEX ON large_heap (msg_offset)"
    compare_large "consume and ack" "SELECT by key of the heap table" "" fill_tables \
        "$(loop "SELECT value, receipt INTO v, r FROM narad.consume_bytes('large_topic'); PERFORM narad.ack(r)" "COMMIT;")" \
        "$(loop "SELECT value INTO v FROM large_heap WHERE msg_offset = i LIMIT 1" "COMMIT;")"
    large_server "shared_buffers = '1GB'"
}
