-- I4, I6: seek moves a group at once, and what was leased before is void.
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

SELECT narad.create_topic('seek_topic', partitions => 2);
SELECT count(*) FROM narad.produce_batch('seek_topic', ARRAY['0', '1', '2', '3', '4']::jsonb[], partition => 0);
SELECT count(*) FROM narad.produce_batch('seek_topic', ARRAY['10', '11']::jsonb[], partition => 1);

-- Back: what was settled comes again, in one partition and for one group.
SELECT narad.create_group('seek_topic', 'other');
SELECT narad.ack(array_agg(receipt)) FROM narad.consume('seek_topic', 10);
SELECT narad.ack(array_agg(receipt)) FROM narad.consume('seek_topic', 10, consumer_group => 'other');
SELECT narad.seek('seek_topic', 'default', 0, 2);
SELECT partition, frontier FROM narad.groups WHERE topic = 'seek_topic'::regclass AND consumer_group = 'default' ORDER BY 1;
SELECT partition, msg_offset, deliveries FROM narad.consume('seek_topic', 10);
SELECT count(*) FROM narad.consume('seek_topic', 10, consumer_group => 'other');

-- Forward: what lies between is skipped; and to the very end.
SELECT narad.seek('seek_topic', 'default', 0, 4);
SELECT partition, msg_offset, deliveries FROM narad.consume('seek_topic', 10);
SELECT narad.seek('seek_topic', 'default', 0, 5);
SELECT count(*) FROM narad.consume('seek_topic', 10);
SELECT frontier FROM narad.groups WHERE topic = 'seek_topic'::regclass AND consumer_group = 'default' AND partition = 0;

-- Leases are void, whether they are below or above; nothing counts as leased.
SELECT narad.seek('seek_topic', 'default', 0, 0);
CREATE TEMP TABLE held AS SELECT * FROM narad.consume('seek_topic', 10, partition => 0);
SELECT narad.ack(receipt) FROM held WHERE msg_offset = 3;
SELECT narad.seek('seek_topic', 'default', 0, 1);
SELECT in_flight, acked_ahead_ranges, returned, unpersisted_ranges FROM narad.groups
WHERE topic = 'seek_topic'::regclass AND consumer_group = 'default' AND partition = 0;
SELECT h.msg_offset, a.accepted, a.reason FROM held h, narad.try_ack(ARRAY[h.receipt]) a ORDER BY 1;
SELECT split_part(pg_temp.attempt(format('SELECT narad.extend(%L)', receipt)), ': ', 1) FROM held WHERE msg_offset = 2;
CREATE TEMP TABLE again AS SELECT * FROM narad.consume('seek_topic', 10, partition => 0);
SELECT msg_offset, deliveries FROM again ORDER BY 1;
SELECT h.msg_offset, a.accepted, a.reason FROM held h, narad.try_ack(ARRAY[h.receipt]) a ORDER BY 1;
SELECT narad.ack(array_agg(receipt)) FROM again;
SELECT frontier FROM narad.groups WHERE topic = 'seek_topic'::regclass AND consumer_group = 'default' AND partition = 0;

-- Within a transaction: what it acked before is void, what it acks after counts.
SELECT narad.seek('seek_topic', 'default', 0, 0);
BEGIN;
CREATE TEMP TABLE mixed AS SELECT * FROM narad.consume('seek_topic', 2, partition => 0);
SELECT narad.ack(array_agg(receipt)) FROM mixed;
SELECT narad.seek('seek_topic', 'default', 0, 0);
SELECT narad.ack(receipt) FROM narad.consume('seek_topic', 1, partition => 0);
COMMIT;
SELECT msg_offset FROM narad.consume('seek_topic', 2, partition => 0);

-- It acts at once, is not undone by rollback, and takes a transaction id.
SELECT narad.seek('seek_topic', 'default', 0, 0);
BEGIN;
SELECT narad.seek('seek_topic', 'default', 0, 4);
SELECT pg_current_xact_id_if_assigned() IS NOT NULL AS has_xid;
SAVEPOINT a;
SELECT narad.seek('seek_topic', 'default', 0, 3);
ROLLBACK TO a;
ROLLBACK;
SELECT msg_offset FROM narad.consume('seek_topic', 10, partition => 0);

-- A group paused stays so.
SELECT narad.pause_group('seek_topic', 'default');
SELECT narad.seek('seek_topic', 'default', 0, 0);
SELECT count(*) FROM narad.consume('seek_topic', 10);
SELECT narad.resume_group('seek_topic', 'default');
SELECT count(*) FROM narad.consume('seek_topic', 10, partition => 0);

-- By time, in all partitions.
SELECT narad.create_topic('seek_time', partitions => 2);
SELECT count(*) FROM narad.produce_batch('seek_time', ARRAY['0', '1']::jsonb[], partition => 0);
SELECT count(*) FROM narad.produce_batch('seek_time', ARRAY['10']::jsonb[], partition => 1);
SELECT pg_sleep(0.01);
SELECT clock_timestamp() AS middle \gset
SELECT pg_sleep(0.01);
SELECT count(*) FROM narad.produce_batch('seek_time', ARRAY['2']::jsonb[], partition => 0);
SELECT count(*) FROM narad.produce_batch('seek_time', ARRAY['11', '12']::jsonb[], partition => 1);
SELECT narad.ack(array_agg(receipt)) FROM narad.consume('seek_time', 10);
SELECT narad.seek_to_time('seek_time', 'default', :'middle');
SELECT partition, msg_offset FROM narad.consume('seek_time', 10) ORDER BY 1, 2;
SELECT narad.seek_to_time('seek_time', 'default', '-infinity');
SELECT count(*) FROM narad.consume('seek_time', 10);
SELECT narad.seek_to_time('seek_time', 'default', 'infinity');
SELECT count(*) FROM narad.consume('seek_time', 10);
SELECT frontier FROM narad.groups WHERE topic = 'seek_time'::regclass ORDER BY partition;

-- A transaction rolled back at the target is stepped over.
SELECT narad.create_topic('seek_gap');
SELECT count(*) FROM narad.produce('seek_gap', '0');
BEGIN;
SELECT count(*) FROM narad.produce_batch('seek_gap', ARRAY['1', '2']::jsonb[]);
ROLLBACK;
SELECT count(*) FROM narad.produce('seek_gap', '3');
SELECT narad.seek('seek_gap', 'default', 0, 1);
SELECT msg_offset, value FROM narad.consume('seek_gap', 10);

-- A topic nothing was ever written to; the group "default" is made.
SELECT narad.create_topic('seek_empty');
CREATE TABLE seek_bare (LIKE narad.topic_template) USING narad;
SELECT narad.seek(t, 'default', 0, 0) FROM unnest('{seek_empty, seek_bare}'::regclass[]) t;
SELECT narad.seek_to_time(t, 'default', now()) FROM unnest('{seek_empty, seek_bare}'::regclass[]) t;
SELECT topic, frontier FROM narad.groups WHERE topic IN ('seek_empty'::regclass, 'seek_bare'::regclass) ORDER BY 1;

-- After TRUNCATE offsets begin where they ended.
TRUNCATE seek_topic;
SELECT pg_temp.attempt('SELECT narad.seek(''seek_topic'', ''default'', ' || a || ')') FROM unnest(ARRAY[
	'0, 0', '0, 4', '0, 5', '0, 6', '1, 1', '1, 2', '1, 3']) a;

-- Bad arguments.
SELECT pg_temp.attempt('SELECT narad.' || a) FROM unnest(ARRAY[
	'seek(NULL, ''default'', 0, 0)', 'seek(''seek_gap'', NULL, 0, 0)', 'seek(''seek_gap'', ''default'', NULL, 0)',
	'seek(''seek_gap'', ''default'', 0, NULL)', 'seek(''seek_gap'', ''default'', 1, 0)', 'seek(''seek_gap'', ''default'', -1, 0)',
	'seek(''seek_gap'', ''default'', 0, -1)', 'seek(''seek_gap'', ''default'', 0, 4)', 'seek(''seek_gap'', ''default'', 0, 5)',
	'seek(''seek_gap'', ''no_such'', 0, 0)', 'seek(''pg_class'', ''default'', 0, 0)', 'seek(''seek_gap'', '''', 0, 0)',
	'seek_to_time(NULL, ''default'', now())', 'seek_to_time(''seek_gap'', ''default'', NULL)',
	'seek_to_time(''seek_gap'', ''no_such'', now())']) a;
BEGIN READ ONLY;
SELECT pg_temp.attempt('SELECT narad.seek(''seek_gap'', ''default'', 0, 0)');
ROLLBACK;

-- Who may consume may seek.
CREATE ROLE seek_role;
SET ROLE seek_role;
SELECT pg_temp.attempt('SELECT narad.seek(''seek_gap'', ''default'', 0, 0)');
RESET ROLE;
GRANT SELECT ON seek_gap TO seek_role;
SET ROLE seek_role;
SELECT pg_temp.attempt('SELECT narad.seek_to_time(''seek_gap'', ''default'', now())');
RESET ROLE;
GRANT UPDATE ON seek_gap TO seek_role;
SET ROLE seek_role;
SELECT pg_temp.attempt('SELECT narad.seek(''seek_gap'', ''default'', 0, 0)');
RESET ROLE;

SELECT * FROM narad.verify('seek_topic');
SELECT * FROM narad.verify('seek_gap');
DROP TABLE seek_topic, seek_time, seek_gap, seek_empty, seek_bare;
DROP ROLE seek_role;
