# A heap table of a topic's columns, no index: the floor for writing.  With a
# primary key, in bench_keyed: the ceiling for reading.

contestant_defaults

load() {
    query >/dev/null <<SQL
SET client_min_messages = warning;
DROP TABLE IF EXISTS bench_keyed;
CREATE TABLE bench_keyed (id bigint PRIMARY KEY, value bytea NOT NULL);
INSERT INTO bench_keyed SELECT i, value FROM generate_series(1, $1) i JOIN bench_values ON n = i % 1000;
VACUUM ANALYZE bench_keyed;
CHECKPOINT;
SQL
}

# read_ranges BATCH: one range of the primary key after the other, each read once as
# a consumer does, by one client, messages a second; of 400,000 rows, which have to
# be there
read_ranges() {
    local file
    file=$(script heap_read <<SQL
SELECT array_agg(id) AS ids, sum(length(value)) AS bytes
FROM bench_keyed WHERE id BETWEEN :first AND :first + $1 - 1 \\gset
\\set first :first + $1
SQL
    )
    times "$(rate_of "$file" $((400000 / $1)) -D first=1)" "$1"
}

produce() {
    local value
    value=$(query -c "SELECT value FROM bench_values WHERE n = 1")
    query >/dev/null <<SQL
SET client_min_messages = warning;
DROP TABLE IF EXISTS bench_shape, bench_heap;
SELECT FROM narad.create_topic('bench_shape', value_type => 'bytea');
CREATE TABLE bench_heap (LIKE bench_shape) USING heap;
DROP TABLE bench_shape;
CHECKPOINT;
SQL
    insert_of "$1" bench_heap "$value" | script heap_insert >/dev/null
    times "$(rate "$scratch/heap_insert.sql" "$2")" "$1"
}
