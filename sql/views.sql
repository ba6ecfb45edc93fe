-- The views tell what is so, also of topics never used, and in transactions.
SET client_min_messages = warning;

SELECT narad.create_topic('views_topic', partitions => 2);
CREATE TABLE views_empty (LIKE narad.topic_template) USING narad;
CREATE FUNCTION pg_temp.of(t regclass) RETURNS bool LANGUAGE sql AS
$$ SELECT t IN ('views_topic'::regclass, 'views_empty'::regclass) $$;

SELECT topic, partitions, messages FROM narad.topics WHERE pg_temp.of(topic) ORDER BY topic::text;
SELECT topic, partition, earliest, end_offset, last_stable, epoch, segments, bytes, corrupt_records
FROM narad.partitions WHERE pg_temp.of(topic) ORDER BY topic::text, partition;
SELECT count(*) FROM narad.groups WHERE pg_temp.of(topic);
SELECT count(*) FROM narad.leases WHERE pg_temp.of(topic);

SELECT count(*) FROM narad.produce_batch('views_topic', '{0, 1, 2, 3, 4}', partition => 0);
SELECT count(*) FROM narad.produce_batch('views_topic', '{0, 1}', partition => 1);
CREATE TEMP TABLE got AS SELECT * FROM narad.consume('views_topic', 5, partition => 0);
SELECT topic, partitions, messages FROM narad.topics WHERE topic = 'views_topic'::regclass;
SELECT partition, earliest, end_offset, last_stable, epoch, segments, bytes > 0 AS has_bytes, corrupt_records
FROM narad.partitions WHERE topic = 'views_topic'::regclass ORDER BY partition;
-- One row a partition, those never consumed from included.
SELECT consumer_group, partition, frontier, end_offset, in_flight, returned, scheduled, acked_ahead_ranges, paused
FROM narad.groups WHERE topic = 'views_topic'::regclass ORDER BY partition;
SELECT consumer_group, partition, msg_offset, deliveries, pinned, pid = pg_backend_pid() AS mine, xact_start,
	leased_at <= clock_timestamp() AS leased, expires_at - leased_at = '30 s' AS for_30_s
FROM narad.leases WHERE topic = 'views_topic'::regclass ORDER BY msg_offset;

-- As the transaction goes: taken, pinned, settled.
BEGIN;
SELECT narad.ack(receipt) FROM got WHERE msg_offset IN (0, 3);
SELECT narad.nack(receipt, '1 hour') FROM got WHERE msg_offset = 4;
SELECT msg_offset FROM narad.consume('views_topic', 1, partition => 1);
SELECT partition, frontier, in_flight, returned, scheduled, acked_ahead_ranges
FROM narad.groups WHERE topic = 'views_topic'::regclass ORDER BY partition;
SELECT partition, msg_offset, pinned, xact_start = now() AS my_transaction
FROM narad.leases WHERE topic = 'views_topic'::regclass ORDER BY partition, msg_offset;
COMMIT;
SELECT partition, frontier, in_flight, returned, scheduled, acked_ahead_ranges
FROM narad.groups WHERE topic = 'views_topic'::regclass ORDER BY partition;
SELECT partition, msg_offset, pinned, xact_start
FROM narad.leases WHERE topic = 'views_topic'::regclass ORDER BY partition, msg_offset;

-- last_stable stands before an open transaction.
BEGIN;
SELECT msg_offset FROM narad.produce('views_topic', '"open"', partition => 1);
SELECT partition, end_offset, last_stable FROM narad.partitions WHERE topic = 'views_topic'::regclass ORDER BY partition;
COMMIT;
SELECT partition, end_offset, last_stable FROM narad.partitions WHERE topic = 'views_topic'::regclass ORDER BY partition;

-- They follow a rename, and TRUNCATE.
SELECT topic_id AS old_id FROM narad.topics WHERE topic = 'views_topic'::regclass \gset
ALTER TABLE views_topic RENAME TO views_renamed;
SELECT topic, topic_id = :'old_id' AS same_id FROM narad.topics WHERE topic = 'views_renamed'::regclass;
TRUNCATE views_renamed;
SELECT topic, topic_id = :'old_id' AS same_id, messages FROM narad.topics WHERE topic = 'views_renamed'::regclass;
SELECT partition, earliest, end_offset, last_stable, segments FROM narad.partitions
WHERE topic = 'views_renamed'::regclass ORDER BY partition;
SELECT partition, frontier, end_offset, in_flight, scheduled FROM narad.groups
WHERE topic = 'views_renamed'::regclass ORDER BY partition;
SELECT count(*) FROM narad.leases WHERE topic = 'views_renamed'::regclass;

-- Every view, column, function and type of the extension is described.
SELECT c.relname, a.attname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
WHERE c.relnamespace = 'narad'::regnamespace AND c.relkind = 'v' AND col_description(c.oid, a.attnum) IS NULL;
SELECT oid::regprocedure FROM pg_proc WHERE pronamespace = 'narad'::regnamespace AND obj_description(oid, 'pg_proc') IS NULL;
DROP TABLE views_renamed, views_empty;
