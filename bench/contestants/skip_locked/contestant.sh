# A table whose free messages are in a partial index; a consumer claims a batch
# with SKIP LOCKED and deletes it when it is done.  Commits are flushed.

contestant_defaults

load() {
    query >/dev/null <<SQL
SET client_min_messages = warning;
DROP TABLE IF EXISTS bench_queue;
CREATE TABLE bench_queue (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    claimed_until timestamptz, deliveries int NOT NULL DEFAULT 0, value bytea NOT NULL);
INSERT INTO bench_queue (value)
    SELECT value FROM generate_series(1, $1) i JOIN bench_values ON n = i % 1000;
CREATE INDEX ON bench_queue (id) WHERE claimed_until IS NULL;
VACUUM ANALYZE bench_queue;
CHECKPOINT;
SQL
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
WITH taken AS (UPDATE bench_queue SET claimed_until = now() + interval '30 s', deliveries = deliveries + 1
    WHERE id IN (SELECT id FROM bench_queue
        WHERE claimed_until IS NULL ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED) RETURNING id, value)
SELECT array_agg(id) AS ids, sum(length(value)) AS bytes FROM taken \\gset
DELETE FROM bench_queue WHERE id = ANY ((:ids)::bigint[]);
SQL
            )
            ;;
    esac
    times "$(rate "$file" "$2")" "$1"
}
