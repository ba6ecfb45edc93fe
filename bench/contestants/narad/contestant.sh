# A topic of bytea values.  Plain acknowledgements: a crash may bring back those of
# the last second; transactional ones are flushed with their commit.

contestant_defaults

# load MESSAGES PARTITIONS: once; afterwards the group goes back to the start.
load() {
    local name="$1 $2"
    if [ "$(cat "$scratch/narad.loaded" 2>/dev/null)" = "$name" ]; then
        query -c "SELECT narad.seek_to_time('bench_topic', 'default', '-infinity')" >/dev/null
        return
    fi
    query >/dev/null <<SQL
SET client_min_messages = warning;
DROP TABLE IF EXISTS bench_topic;
SELECT FROM narad.create_topic('bench_topic', partitions => $2, value_type => 'bytea',
    max_in_flight => 100000, max_acked_ahead => 100000);
INSERT INTO bench_topic (partition, value)
    SELECT i % $2, value FROM generate_series(1, $1) i JOIN bench_values ON n = i % 1000;
CHECKPOINT;
SQL
    echo "$name" >"$scratch/narad.loaded"
}

# consume BATCH CLIENTS plain|chained|transactional: messages a second; in large
# batches three quarters of what is loaded, which would not last for the time
consume() {
    local file options= loaded
    case $3 in
        chained)
            file=$(script narad_chained <<SQL
SELECT array_agg(receipt) AS last, sum(length(value)) AS bytes
FROM narad.consume_bytes('bench_topic', $1, ack => (:last)::text[]) \\gset
SQL
            )
            options="-D last={}"
            ;;
        *)
            file=$(script narad_consume <<SQL
SELECT array_agg(receipt) AS receipts, sum(length(value)) AS bytes
FROM narad.consume_bytes('bench_topic', $1) \\gset
SELECT narad.ack(:receipts);
SQL
            )
            ;;
    esac
    if [ "$3" = transactional ]; then
        query -c "ALTER DATABASE postgres SET narad.ack_mode = transactional"
    fi
    loaded=$(cut -d ' ' -f 1 "$scratch/narad.loaded")
    if [ "$1" -ge 100 ]; then
        times "$(rate_all "$file" "$2" $((loaded * 3 / 4 / $1)) $options)" "$1"
    else
        times "$(rate "$file" "$2" $options)" "$1"
    fi
    query -c "ALTER DATABASE postgres RESET narad.ack_mode"
}

# consume_one CLIENTS plain|chained: the same with a message at a time, whose
# receipt and value travel as they are.
consume_one() {
    local file options=
    case $2 in
        chained)
            file=$(script narad_one_chained <<SQL
SELECT '{' || receipt || '}' AS last, value FROM narad.consume_bytes('bench_topic', ack => (:last)::text[]) \\gset
SQL
            )
            options="-D last={}"
            ;;
        *)
            file=$(script narad_one <<SQL
SELECT receipt, value FROM narad.consume_bytes('bench_topic') \\gset
SELECT narad.ack(:receipt);
SQL
            )
            ;;
    esac
    rate "$file" "$1" $options
}

# produce BATCH CLIENTS [insert]: messages a second, by a call of produce or by INSERT
produce() {
    local value
    value=$(query -c "SELECT value FROM bench_values WHERE n = 1")
    query -c "TRUNCATE bench_topic" -c CHECKPOINT
    rm -f "$scratch/narad.loaded"
    if [ "${3:-call}" = insert ]; then
        insert_of "$1" bench_topic "$value"
    elif [ "$1" = 1 ]; then
        echo "SELECT narad.produce_bytes('bench_topic', '$value');"
    else
        echo "SELECT count(*) FROM narad.produce_batch_bytes('bench_topic', ARRAY["
        yes "'$value'," | head -n "$(($1 - 1))"
        echo "'$value']::bytea[]);"
    fi | script narad_produce >/dev/null
    times "$(rate "$scratch/narad_produce.sql" "$2")" "$1"
}

# both BATCH plain|transactional: an empty topic; prints the statements of produce,
# consume and settle, and what an idle consumer does, each ended by a null byte.
both() {
    local consume="SELECT value, receipt FROM narad.consume_bytes('bench_topic', $1, wait => '1 s'" settle=
    rm -f "$scratch/narad.loaded"
    load 0 8
    if [ "$2" = transactional ]; then
        query -c "ALTER DATABASE postgres SET narad.ack_mode = transactional"
        consume="$consume)"
        settle="SELECT narad.ack(\$1::text[])"
    else
        consume="$consume, ack => \$1::text[])"
    fi
    printf '%s\0' "SELECT narad.produce_bytes('bench_topic', \$1)" "$consume" "$settle" 0
}

# What passes through the topic by one client, in steps.
empty() {
    rm -f "$scratch/narad.loaded"
    load 0 1
    query -c "SELECT narad.alter_topic('bench_topic', cleanup => 'settled')" >/dev/null
}

append() {
    query -c "INSERT INTO bench_topic (value) SELECT value FROM bench_values, generate_series(1, $1 / 1000)"
}

settle() {
    settle_all bench_topic
    until_true "sum(unpersisted_ranges) = 0 FROM narad.groups WHERE topic = 'bench_topic'::regclass"
}

clean_up() {
    query -c "SELECT narad.apply_retention('bench_topic')" >/dev/null
}

size() {
    query -c "SELECT pg_total_relation_size('bench_topic')"
}
