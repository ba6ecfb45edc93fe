-- I1, I6: partitions are added to a topic in use: nothing is lost, groups read
-- the new ones from their beginning, and a rollback adds none.
SET client_min_messages = warning;

CREATE FUNCTION partitions(topic regclass) RETURNS int LANGUAGE sql AS $$
	SELECT partitions FROM narad.topics t WHERE t.topic = $1 $$;
-- What a command comes to: "ok", or its error.
CREATE FUNCTION attempt(command text) RETURNS text LANGUAGE plpgsql AS $$
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

SELECT narad.create_topic('grow', partitions => 2);
SELECT narad.create_group('grow', 'late', 'latest');
SELECT count(*) FROM narad.produce_batch('grow', ARRAY(SELECT to_jsonb(i) FROM generate_series(1, 20) i),
	keys => ARRAY(SELECT 'key' || i FROM generate_series(1, 20) i));
SELECT count(*) FROM narad.consume('grow', 5);

-- At commit, and not before.
BEGIN;
SELECT narad.alter_topic('grow', partitions => 5);
SELECT partitions('grow');
SELECT attempt('SELECT narad.produce(''grow'', ''1'', partition => 4)');
COMMIT;
SELECT partitions('grow');
SELECT partition, earliest, end_offset FROM narad.partitions WHERE topic = 'grow'::regclass ORDER BY 1;
SELECT count(*) FROM narad.produce('grow', '21', partition => 4);
SELECT attempt('SELECT narad.produce(''grow'', ''1'', partition => 5)');

-- Not by what is rolled back.
BEGIN;
SELECT narad.alter_topic('grow', partitions => 6);
ROLLBACK;
BEGIN;
SAVEPOINT a;
SELECT narad.alter_topic('grow', partitions => 7);
ROLLBACK TO a;
SAVEPOINT b;
SAVEPOINT c;
SELECT narad.alter_topic('grow', partitions => 6);
RELEASE c;
RELEASE b;
COMMIT;
SELECT partitions('grow');

-- Never fewer; the same number may be given; the largest of several counts.
SELECT attempt(format('SELECT narad.alter_topic(''grow'', partitions => %s)', n))
FROM unnest(ARRAY[5, 6, 0, -1, 65537]) n;
SELECT partitions('grow');
BEGIN;
SELECT narad.alter_topic('grow', partitions => 65536), narad.alter_topic('grow', partitions => 7);
ROLLBACK;
SELECT attempt('SELECT narad.create_topic(''grow_big'', partitions => 32768, segment_size => ''1GB'')');
SELECT narad.create_topic('grow_big', segment_size => '1GB');
SELECT attempt('SELECT narad.alter_topic(''grow_big'', partitions => 32768)');
SELECT narad.alter_topic('grow_big', partitions => 32767);
SELECT partitions('grow_big');
DROP TABLE grow_big;

-- A key goes to its partition among those that there are when it is produced.
SELECT count(*) FROM narad.produce_batch('grow', ARRAY(SELECT to_jsonb(100 + i) FROM generate_series(1, 60) i),
	keys => ARRAY(SELECT 'key' || i FROM generate_series(1, 60) i));
SELECT count(DISTINCT partition) FROM grow WHERE key IS NOT NULL AND value::int > 100;
SELECT bool_and(partition < 2) FROM grow WHERE key IS NOT NULL AND value::int <= 100;
SELECT count(*) > 0 AS moved FROM grow a JOIN grow b USING (key) WHERE a.partition <> b.partition;

-- Both groups get all that they have not had yet, from old and new partitions.
SELECT count(*), count(DISTINCT value) FROM narad.consume('grow', 1000, visibility_timeout => '1 hour');
SELECT count(*), count(DISTINCT value) FROM narad.consume('grow', 1000, consumer_group => 'late', visibility_timeout => '1 hour');
SELECT narad.ack(ARRAY(SELECT receipt FROM narad.consume('grow', 10, partition => 5)));
SELECT narad.create_group('grow', 'later', 'latest');
SELECT count(*) FROM narad.consume('grow', 1000, consumer_group => 'later');
SELECT narad.alter_topic('grow', partitions => 8);
SELECT count(*) FROM narad.produce('grow', '500', partition => 7);
SELECT partition, value FROM narad.consume('grow', 1000, consumer_group => 'later');
SELECT narad.drop_group('grow', 'late');
SELECT consumer_group, count(*) FROM narad.groups WHERE topic = 'grow'::regclass GROUP BY 1 ORDER BY 1;

-- TRUNCATE keeps them.
TRUNCATE grow;
SELECT partitions('grow');
SELECT narad.alter_topic('grow', partitions => 9);
SELECT count(*) FROM narad.produce('grow', '1', partition => 8);
SELECT partition, value FROM narad.consume('grow', 10, consumer_group => 'later');
SELECT count(*) FROM narad.verify('grow');
BEGIN;
SELECT narad.alter_topic('grow', partitions => 10);
TRUNCATE grow;
COMMIT;
SELECT partitions('grow');
SELECT partition, end_offset FROM narad.partitions WHERE topic = 'grow'::regclass AND partition IN (0, 8, 9) ORDER BY 1;
BEGIN;
SELECT narad.alter_topic('grow', partitions => 11);
DROP TABLE grow;
COMMIT;

-- A new topic, an empty table, and the same transaction.
BEGIN;
SELECT narad.create_topic('grow_new');
SELECT narad.alter_topic('grow_new', partitions => 3);
SELECT count(*) FROM narad.produce('grow_new', '1');
COMMIT;
SELECT partitions('grow_new');
CREATE TABLE grow_table (partition int, msg_offset bigint, produced_at timestamptz, key text, value jsonb, headers jsonb) USING narad;
SELECT narad.alter_topic('grow_table', partitions => 3);
SELECT partitions('grow_table');
DROP TABLE grow_new, grow_table;

-- Rows with a position bring their partition along, at once and for good: so a dump is restored.
CREATE TABLE grow_restored (partition int, msg_offset bigint, produced_at timestamptz, key text, value jsonb, headers jsonb) USING narad;
COPY grow_restored FROM stdin;
0	5	2026-01-01 00:00:00+00	a	1	\N
0	6	2026-01-01 00:00:01+00	\N	2	\N
3	0	2026-01-01 00:00:02+00	b	3	{"h": 1}
2	70000	2026-01-01 00:00:03+00	\N	4	\N
\.
SELECT partition, msg_offset, key, value FROM grow_restored ORDER BY 1, 2;
BEGIN;
INSERT INTO grow_restored (partition, msg_offset, value) VALUES (6, 1, '5');
ROLLBACK;
SELECT partition, earliest, end_offset FROM narad.partitions WHERE topic = 'grow_restored'::regclass ORDER BY 1;
SELECT attempt('INSERT INTO grow_restored (partition, value) VALUES (7, ''1'')');
SELECT attempt('INSERT INTO grow_restored (partition, msg_offset, value) VALUES (65536, 0, ''1'')');
SELECT attempt('INSERT INTO grow_restored (partition, msg_offset, value) VALUES (-1, 0, ''1'')');
SELECT partition, value FROM narad.consume('grow_restored', 10) ORDER BY 1, 2;
CREATE ROLE grow_user;
GRANT ALL ON grow_restored TO grow_user;
GRANT USAGE ON SCHEMA narad TO grow_user;
SET ROLE grow_user;
SELECT attempt('INSERT INTO grow_restored (partition, msg_offset, value) VALUES (7, 0, ''1'')');
SELECT attempt('SELECT narad.alter_topic(''grow_restored'', partitions => 8)');
RESET ROLE;
SELECT partitions('grow_restored');
SELECT count(*) FROM narad.verify('grow_restored');
DROP TABLE grow_restored;
DROP OWNED BY grow_user;
DROP ROLE grow_user;
DROP FUNCTION partitions(regclass), attempt(text);
