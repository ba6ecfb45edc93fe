-- I4: a receipt settles its message while its lease is live, and never after.
SET client_min_messages = warning;

-- What a command comes to: "ok", or its error.
CREATE FUNCTION pg_temp.attempt(command text) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
	detail text;
	hint text;
BEGIN
	EXECUTE command;
	RETURN 'ok';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
	RETURN concat_ws(' | ', SQLSTATE || ': ' || SQLERRM, nullif(detail, ''), nullif(hint, ''));
END $$;

SELECT narad.create_topic('ack_topic');
SELECT count(*) FROM narad.produce_array('ack_topic', '[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]');
CREATE TEMP TABLE got AS SELECT * FROM narad.consume('ack_topic', 6);

-- The text of an array, as the server writes it and otherwise; a part of it that is no receipt.
BEGIN;
SELECT narad.ack(array_agg(receipt)::text) FROM got WHERE msg_offset IN (1, 3);
SELECT array_agg(msg_offset ORDER BY msg_offset) AS acked FROM narad.leases WHERE topic = 'ack_topic'::regclass AND pinned;
SELECT narad.ack('{' || string_agg(receipt, ', ') || '}') FROM got WHERE msg_offset IN (4, 5);
SELECT narad.ack('{"' || string_agg(receipt, '","') || '"}') FROM got WHERE msg_offset = 2;
SELECT array_agg(msg_offset ORDER BY msg_offset) AS acked FROM narad.leases WHERE topic = 'ack_topic'::regclass AND pinned;
SELECT replace(pg_temp.attempt(format('SELECT narad.ack(%L)', '{' || receipt || ',' || repeat('A', 44) || '}')), receipt, 'RECEIPT'),
	replace(pg_temp.attempt(format('SELECT narad.ack(%L)', '{' || receipt || ';' || receipt || '}')), receipt, 'RECEIPT'),
	replace(pg_temp.attempt(format('SELECT narad.ack(%L)', '{' || receipt || ',' || receipt)), receipt, 'RECEIPT')
FROM got WHERE msg_offset = 0;
SELECT array_agg(msg_offset ORDER BY msg_offset) AS acked FROM narad.leases WHERE topic = 'ack_topic'::regclass AND pinned;
ROLLBACK;

-- One, an array, the text of an array.
SELECT narad.ack(receipt) FROM got WHERE msg_offset = 1;
SELECT narad.ack(array_agg(receipt)) FROM got WHERE msg_offset IN (3, 4);
SELECT narad.ack(array_agg(receipt)::text) FROM got WHERE msg_offset = 5;
SELECT narad.ack('{}'::text[]);
SELECT narad.ack('{}'::text);
SELECT frontier, in_flight, acked_ahead_ranges FROM narad.groups WHERE topic = 'ack_topic'::regclass;
SELECT narad.ack(receipt) FROM got WHERE msg_offset = 0;
SELECT frontier, in_flight, acked_ahead_ranges FROM narad.groups WHERE topic = 'ack_topic'::regclass;

-- Settled is settled.
SELECT pg_temp.attempt(format('SELECT narad.ack(%L)', receipt)) FROM got WHERE msg_offset IN (0, 3) ORDER BY msg_offset;

-- All or none: the second of three is settled already, so the others are not.
SELECT narad.nack(receipt) FROM got WHERE msg_offset = 2;
CREATE TEMP TABLE more AS SELECT * FROM narad.consume('ack_topic', 2);
SELECT msg_offset, deliveries FROM more ORDER BY 1;
SELECT pg_temp.attempt(format('SELECT narad.ack(%L::text[])', ARRAY[
	(SELECT receipt FROM more WHERE msg_offset = 2),
	(SELECT receipt FROM got WHERE msg_offset = 3),
	(SELECT receipt FROM more WHERE msg_offset = 6)]));
SELECT frontier, in_flight FROM narad.groups WHERE topic = 'ack_topic'::regclass;

-- The receipt of a lease that went does not settle the lease that came.
SELECT pg_temp.attempt(format('SELECT narad.ack(%L)', receipt)) FROM got WHERE msg_offset = 2;

-- The same receipt twice is fine in one transaction.
BEGIN;
SELECT narad.ack(receipt) FROM more WHERE msg_offset = 2;
SELECT narad.ack(ARRAY[receipt, receipt]) FROM more WHERE msg_offset = 2;
COMMIT;
SELECT narad.ack(ARRAY[receipt, receipt]) FROM more WHERE msg_offset = 6;
SELECT frontier, in_flight FROM narad.groups WHERE topic = 'ack_topic'::regclass;

-- Expired, and expired and leased again.
CREATE TEMP TABLE brief AS SELECT * FROM narad.consume('ack_topic', 1, visibility_timeout => '1 ms');
SELECT pg_sleep(0.02);
SELECT pg_temp.attempt(format('SELECT narad.ack(%L)', receipt)) FROM brief;
SELECT msg_offset, deliveries FROM narad.consume('ack_topic');
SELECT pg_temp.attempt(format('SELECT narad.ack(%L)', receipt)) FROM brief;

-- try_ack tells for each.
CREATE TEMP TABLE last AS SELECT * FROM narad.consume('ack_topic', 2);
WITH r (n, receipt) AS (
	SELECT 1, receipt FROM last WHERE msg_offset = 8 UNION ALL
	SELECT 2, receipt FROM got WHERE msg_offset = 0 UNION ALL
	SELECT 3, receipt FROM brief UNION ALL
	SELECT 4, 'nonsense' UNION ALL
	SELECT 5, '' UNION ALL
	SELECT 6, receipt FROM last WHERE msg_offset = 9)
SELECT n, accepted, reason
FROM narad.try_ack(ARRAY(SELECT receipt FROM r ORDER BY n)) t JOIN r USING (receipt) ORDER BY n;
SELECT count(*) FROM narad.try_ack('{}');

-- consume(ack => ...): settles, then takes; if it cannot settle, takes nothing.
SELECT narad.create_topic('ack_loop');
SELECT count(*) FROM narad.produce_array('ack_loop', '[0, 1, 2, 3]');
CREATE TEMP TABLE batch AS SELECT * FROM narad.consume('ack_loop', 2);
CREATE TEMP TABLE next_batch AS
SELECT * FROM narad.consume('ack_loop', 1, ack => ARRAY(SELECT receipt FROM batch));
SELECT msg_offset FROM next_batch;
SELECT frontier, in_flight FROM narad.groups WHERE topic = 'ack_loop'::regclass;
SELECT pg_temp.attempt(format('SELECT narad.consume(''ack_loop'', ack => %L)', ARRAY(SELECT receipt FROM batch)));
SELECT frontier, in_flight FROM narad.groups WHERE topic = 'ack_loop'::regclass;
SELECT msg_offset, deliveries FROM narad.consume('ack_loop', 9, ack => '{}');

-- A topic emptied or dropped.
CREATE TEMP TABLE doomed AS SELECT receipt FROM next_batch;
SELECT narad.purge_topic('ack_loop');
SELECT split_part(pg_temp.attempt(format('SELECT narad.ack(%L)', receipt)), ' | ', 1) FROM doomed;
SELECT accepted, reason FROM narad.try_ack(ARRAY(SELECT receipt FROM doomed));
DROP TABLE ack_topic;
SELECT split_part(pg_temp.attempt(format('SELECT narad.ack(%L)', receipt)), ' | ', 1) FROM last LIMIT 1;
DROP TABLE ack_loop;

-- I4: one array may lead to many places, each of them found, in any order: two
-- topics, two groups, two partitions, of which the receipts come by turns.
SELECT narad.create_topic('ack_here', partitions => 2);
SELECT narad.create_topic('ack_there', partitions => 2);
SELECT narad.create_group('ack_here', 'other');
INSERT INTO ack_here (partition, value) SELECT i % 2, to_jsonb(i) FROM generate_series(0, 7) i;
INSERT INTO ack_there (partition, value) SELECT i % 2, to_jsonb(i) FROM generate_series(0, 7) i;
CREATE TEMP TABLE spread AS
	SELECT 'ack_here' AS topic, c.* FROM narad.consume('ack_here', 8) c
	UNION ALL SELECT 'ack_here, other', c.* FROM narad.consume('ack_here', 8, consumer_group => 'other') c
	UNION ALL SELECT 'ack_there', c.* FROM narad.consume('ack_there', 8) c;
SELECT narad.ack(array_agg(receipt ORDER BY msg_offset, partition, topic)) FROM spread WHERE msg_offset < 2;
SELECT accepted, reason, count(*)
FROM narad.try_ack(ARRAY(SELECT receipt FROM spread WHERE msg_offset <> 2 ORDER BY msg_offset, partition, topic))
GROUP BY 1, 2 ORDER BY 1, 2;
SELECT narad.nack(ARRAY(SELECT receipt FROM spread WHERE msg_offset = 2 ORDER BY partition, topic));
SELECT topic, consumer_group, partition, frontier, in_flight, returned FROM narad.groups
WHERE topic IN ('ack_here'::regclass, 'ack_there'::regclass) ORDER BY topic::text, 2, 3;
DROP TABLE ack_here, ack_there;
