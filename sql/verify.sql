-- I11: narad.verify finds nothing where all is well, whatever a topic went
-- through.  test/t/085_damage.pl has what it finds.
SET client_min_messages = warning;

SELECT narad.create_topic('vf_topic', partitions => 3, segment_size => '256kB', max_in_flight => 100000, max_acked_ahead => 100000);
SELECT * FROM narad.verify('vf_topic');
CREATE TABLE vf_empty (LIKE narad.topic_template) USING narad;
SELECT * FROM narad.verify('vf_empty');

-- Many pages, several kinds of segments, nulls, gaps, large records, and all of
-- them rolled back.
INSERT INTO vf_topic (partition, key, value, headers)
SELECT i % 3, CASE WHEN i % 2 = 0 THEN 'k' || i END, to_jsonb(repeat(i::text, 100)), CASE WHEN i % 5 = 0 THEN '{"a": 1}'::jsonb END
FROM generate_series(1, 15000) i;
INSERT INTO vf_topic (partition, msg_offset, value) SELECT 0, 1000000 * i, '1' FROM generate_series(1, 5) i;
CREATE FUNCTION pg_temp.big(seed int, n int) RETURNS jsonb LANGUAGE sql AS
$$ SELECT jsonb_agg(md5(seed::text || i)) FROM generate_series(1, n) i $$;
INSERT INTO vf_topic (partition, value) SELECT i % 3, pg_temp.big(i, 500 * i) FROM generate_series(1, 9) i;
BEGIN;
INSERT INTO vf_topic (partition, value) SELECT i % 3, pg_temp.big(i, 500 * i) FROM generate_series(1, 9) i;
SAVEPOINT s;
INSERT INTO vf_topic (partition, value) SELECT i % 3, to_jsonb(i) FROM generate_series(1, 3000) i;
SELECT * FROM narad.verify('vf_topic');
ROLLBACK TO s;
SELECT * FROM narad.verify('vf_topic');
ROLLBACK;
INSERT INTO vf_topic (value) VALUES ('"after"');
SELECT * FROM narad.verify('vf_topic');

-- Groups: more than a page of them, dropped and made again; leases in every
-- state; what is settled in runs and in bits.
SELECT count(narad.create_group('vf_topic', 'g' || i)) FROM generate_series(1, 120) i;
SELECT count(narad.drop_group('vf_topic', 'g' || i)) FROM generate_series(1, 120, 3) i;
SELECT count(narad.create_group('vf_topic', 'h' || i, 'latest')) FROM generate_series(1, 10) i;
CREATE TEMP TABLE vf_got AS SELECT receipt, partition, msg_offset FROM narad.consume('vf_topic', 9000);
SELECT narad.ack(array_agg(receipt)) FROM vf_got WHERE msg_offset % 2 = 1;
SELECT count(narad.nack(receipt, '1 hour')) > 10 FROM vf_got WHERE msg_offset % 100 = 2;
SELECT count(narad.nack(receipt)) > 10 FROM vf_got WHERE msg_offset % 100 = 4;
SELECT * FROM narad.verify('vf_topic');
BEGIN;
SELECT narad.ack(array_agg(receipt)) FROM vf_got WHERE msg_offset % 100 = 6;
CREATE TABLE vf_effect ();
SELECT * FROM narad.verify('vf_topic');
COMMIT;
SELECT * FROM narad.verify('vf_topic');

-- The segments of it: no hole in their numbers, nor in their offsets.
SELECT partition, count(*) FILTER (WHERE state = 'open') AS open, count(*) FILTER (WHERE state = 'sealed') > 5 AS sealed,
	bool_and(segment_no = n - 1) AS numbers, bool_and(before) AS chained,
	bool_and(first_time <= last_time) AS times, sum(bytes) > 100000 AS bytes, bool_or(frozen) AS frozen
FROM (SELECT *, row_number() OVER w AS n, coalesce(lag(end_offset) OVER w, first_offset) = first_offset AS before
	FROM (SELECT * FROM narad.segments WHERE topic = 'vf_topic'::regclass AND state <> 'spare') s
	WINDOW w AS (PARTITION BY partition ORDER BY segment_no)) s
GROUP BY partition ORDER BY partition;

-- Emptied; and emptied where it was made.
TRUNCATE vf_topic;
SELECT * FROM narad.verify('vf_topic');
INSERT INTO vf_topic (value) SELECT to_jsonb(i) FROM generate_series(1, 5000) i;
SELECT * FROM narad.verify('vf_topic');
BEGIN;
SELECT narad.create_topic('vf_new', partitions => 2);
INSERT INTO vf_new (value) SELECT to_jsonb(i) FROM generate_series(1, 5000) i;
TRUNCATE vf_new;
INSERT INTO vf_new (value) SELECT to_jsonb(i) FROM generate_series(1, 5000) i;
SELECT * FROM narad.verify('vf_new');
COMMIT;
SELECT * FROM narad.verify('vf_new');

-- Unlogged, and in more partitions than a map page holds.
CREATE UNLOGGED TABLE vf_unlogged (LIKE narad.topic_template) USING narad;
INSERT INTO vf_unlogged (value) SELECT to_jsonb(i) FROM generate_series(1, 5000) i;
SELECT * FROM narad.verify('vf_unlogged');
SELECT narad.create_topic('vf_many', partitions => 2100);
INSERT INTO vf_many (partition, value) SELECT i, to_jsonb(i) FROM generate_series(0, 2099, 3) i;
SELECT narad.ack(array_agg(receipt)) FROM narad.consume('vf_many', 10, partition => 2097);
SELECT narad.create_group('vf_many', 'late', 'latest');
SELECT * FROM narad.verify('vf_many');
TRUNCATE vf_many;
SELECT * FROM narad.verify('vf_many');

-- Columns of its own, and other values.
CREATE TABLE vf_wide (LIKE narad.topic_template, a int, b text) USING narad;
INSERT INTO vf_wide (value, a, b) SELECT to_jsonb(i), i, repeat('b', i % 3000) FROM generate_series(1, 2000) i;
ALTER TABLE vf_wide ADD COLUMN c int DEFAULT 3;
INSERT INTO vf_wide (value, a, b) SELECT to_jsonb(i), i, NULL FROM generate_series(1, 2000) i;
SELECT * FROM narad.verify('vf_wide');
SELECT narad.create_topic('vf_bytes', value_type => 'bytea');
SELECT count(*) FROM narad.produce_batch_bytes('vf_bytes', ARRAY(SELECT decode(md5(i::text), 'hex') FROM generate_series(1, 1000) i));
SELECT * FROM narad.verify('vf_bytes');

-- Who may, and of what.
SELECT * FROM narad.verify(NULL);
SELECT * FROM narad.verify('pg_class');
CREATE ROLE regress_vf_reader;
GRANT SELECT ON vf_topic TO regress_vf_reader;
SET ROLE regress_vf_reader;
SELECT * FROM narad.verify('vf_topic');
SELECT count(*) > 0 AS segments, bool_and(topic = 'vf_topic'::regclass) AS of_my_topics FROM narad.segments;
RESET ROLE;
REVOKE ALL ON vf_topic FROM regress_vf_reader;
BEGIN READ ONLY;
SELECT * FROM narad.verify('vf_topic');
COMMIT;

DROP TABLE vf_topic, vf_empty, vf_new, vf_unlogged, vf_many, vf_wide, vf_bytes, vf_effect;
DROP ROLE regress_vf_reader;
