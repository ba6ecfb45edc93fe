# A table whose free messages are in a partial index; a consumer claims a batch
# with SKIP LOCKED and deletes it when it is done.  Commits are flushed.

contestant_defaults

load() {
    query >/dev/null <<SQL
SET client_min_messages = warning;
DROP TABLE IF EXISTS bench_queue;
CREATE TABLE bench_queue (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    claimed_until timestamptz, deliveries int NOT NULL DEFAULT 0, value bytea NOT NULL)
    WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
INSERT INTO bench_queue (value)
    SELECT value FROM generate_series(1, $1) i JOIN bench_values ON n = i % 1000;
CREATE INDEX ON bench_queue (id) WHERE claimed_until IS NULL;
VACUUM ANALYZE bench_queue;
CHECKPOINT;
SQL
}

# claim BATCH: the statement
claim() {
    echo "UPDATE bench_queue SET claimed_until = now() + interval '30 s', deliveries = deliveries + 1
        WHERE id IN (SELECT id FROM bench_queue
            WHERE claimed_until IS NULL ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED) RETURNING id, value"
}

# consume BATCH CLIENTS claim|one_transaction: messages a second
consume() {
    local file
    case $3 in
        one_transaction)
            file=$(script skip_locked_delete <<SQL
WITH taken AS (DELETE FROM bench_queue WHERE id IN (SELECT id FROM bench_queue
    WHERE claimed_until IS NULL ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED) RETURNING value)
SELECT sum(length(value)) FROM taken;
SQL
            )
            ;;
        *)
            file=$(script skip_locked_claim <<SQL
WITH taken AS ($(claim "$1"))
SELECT array_agg(id) AS ids, sum(length(value)) AS bytes FROM taken \\gset
DELETE FROM bench_queue WHERE id = ANY ((:ids)::bigint[]);
SQL
            )
            ;;
    esac
    times "$(rate "$file" "$2")" "$1"
}

# both BATCH poll|listen: an empty queue; prints the statements of produce, consume
# and settle, and what an idle consumer does, each ended by a null byte.  Indexes are
# used from the start, when the table is empty and its statistics say so.
both() {
    local insert="INSERT INTO bench_queue (value) VALUES (\$1)" idle=10
    load 0
    query -c "ALTER DATABASE postgres SET enable_seqscan = off"
    if [ "$2" = listen ]; then
        insert="WITH m AS ($insert) SELECT pg_notify('bench', '')"
        idle=bench
    fi
    printf '%s\0' "$insert" "WITH taken AS ($(claim "$1")) SELECT value, id::text FROM taken" \
        "DELETE FROM bench_queue WHERE id = ANY (\$1::bigint[])" "$idle"
}

# What passes through the queue by one client, in steps.
empty() { load 0; }

append() {
    query -c "INSERT INTO bench_queue (value) SELECT value FROM bench_values, generate_series(1, $1 / 1000)"
}

settle() {
    query <<SQL
DO \$\$
DECLARE
    ids bigint[];
BEGIN
    LOOP
        WITH taken AS ($(claim 100)) SELECT array_agg(id) INTO ids FROM taken;
        EXIT WHEN ids IS NULL;
        COMMIT;
        DELETE FROM bench_queue WHERE id = ANY (ids);
        COMMIT;
    END LOOP;
END \$\$;
SQL
}

clean_up() {
    query -c "VACUUM bench_queue"
}

size() {
    query -c "SELECT pg_total_relation_size('bench_queue')"
}
