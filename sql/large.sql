-- I1, I3, I11: a record of any size up to narad.max_message_size comes back as
-- it was, over however many pages and segments it goes, by every way of
-- reading; and what was not finished hides nothing behind it.
SET client_min_messages = warning;
SET narad.max_message_size = '16MB';

-- Bytes that do not compress.
CREATE FUNCTION noise(seed int, n int) RETURNS bytea IMMUTABLE STRICT LANGUAGE sql AS $$
	SELECT substr(string_agg(sha512((seed || ':' || i)::bytea), '' ORDER BY i), 1, n)
	FROM generate_series(0, n / 64) i $$;

-- In segments of 32 pages each is longer than one, the last longer than twenty.
CREATE TABLE expected (msg_offset bigint, len int, hash text);
INSERT INTO expected SELECT i - 1, n, md5(noise(i::int, n)) FROM unnest(
	ARRAY[100, 262144, 8000, 1, 300000, 1000000, 0, 524288, 5300000]) WITH ORDINALITY u (n, i);
SELECT narad.create_topic('large', segment_size => '256kB', value_type => 'bytea');
INSERT INTO large (value) SELECT noise(msg_offset::int + 1, len) FROM expected ORDER BY msg_offset;

-- What a query on rows (msg_offset, value) gave, beside what it must give.
CREATE FUNCTION compare(query text, OUT missing bigint, OUT wrong bigint) LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE 'WITH got AS MATERIALIZED (' || query || ')
		SELECT count(*) FILTER (WHERE g.msg_offset IS NULL),
			count(*) FILTER (WHERE (length(g.value), md5(g.value)) <> (e.len, e.hash))
		FROM expected e LEFT JOIN got g USING (msg_offset)' INTO missing, wrong;
END $$;
SELECT * FROM compare('SELECT msg_offset, value FROM large');
SELECT * FROM compare('SELECT msg_offset, value FROM narad.fetch_bytes(''large'', 0, 0, max_bytes => 100000000)');
SELECT * FROM compare('SELECT msg_offset, value FROM large TABLESAMPLE SYSTEM (100)');
SELECT * FROM compare('SELECT l.msg_offset, l.value FROM (SELECT ctid AS tid FROM large) t JOIN large l ON l.ctid = t.tid');
BEGIN;
SET LOCAL parallel_setup_cost = 0;
SET LOCAL parallel_tuple_cost = 0;
SET LOCAL min_parallel_table_scan_size = 0;
SET LOCAL force_parallel_mode = on;
SELECT * FROM compare('SELECT msg_offset, value FROM large');
COMMIT;

-- Backwards, and by a cursor that goes both ways.
BEGIN;
DECLARE c SCROLL CURSOR FOR SELECT msg_offset, length(value) AS len, md5(value) AS hash FROM large;
MOVE FORWARD ALL FROM c;
CREATE TEMP TABLE backwards (LIKE expected);
DO $$
DECLARE
	c refcursor := 'c';
	r expected;
BEGIN
	LOOP
		FETCH BACKWARD FROM c INTO r;
		EXIT WHEN NOT FOUND;
		INSERT INTO backwards VALUES (r.*);
	END LOOP;
END $$;
SELECT count(*), count(*) FILTER (WHERE b = e) FROM backwards b JOIN expected e USING (msg_offset);
COMMIT;

-- A segment that only continues a record holds no offset.
SELECT bool_or(end_offset = first_offset) AS some, max(segment_no) > 20 AS many,
	bool_and(first_offset = previous) AS chained
FROM (SELECT *, lag(end_offset, 1, first_offset) OVER (ORDER BY segment_no) AS previous
	FROM narad.segments WHERE topic = 'large'::regclass) s;
SELECT count(*) FROM narad.verify('large');

-- By time and by batch.
SELECT narad.offset_for_time('large', 0, produced_at) = (SELECT min(l.msg_offset) FROM large l WHERE l.produced_at >= m.produced_at)
FROM large m WHERE msg_offset = 8;
SELECT * FROM compare('SELECT msg_offset, value FROM narad.consume_bytes(''large'', 100) UNION ALL
	SELECT msg_offset, value FROM narad.consume_bytes(''large'', 100)');
SELECT count(*) FROM narad.consume_bytes('large', 100);

-- COPY out and in gives the same.
SELECT narad.create_topic('large_copy', segment_size => '1MB', value_type => 'bytea');
COPY large (value) TO '/dev/null';
INSERT INTO large_copy (value) SELECT value FROM large ORDER BY msg_offset;
SELECT * FROM compare('SELECT msg_offset, value FROM large_copy');

-- What is rolled back is stepped over, and the space behind it used.
BEGIN;
INSERT INTO large (value) SELECT noise(77, 700000);
SELECT count(*), max(length(value)) FROM large WHERE msg_offset >= 9;
ROLLBACK;
BEGIN;
SAVEPOINT a;
INSERT INTO large (value) SELECT noise(78, 700000);
ROLLBACK TO a;
INSERT INTO large (value) VALUES ('after');
COMMIT;
SELECT msg_offset, value FROM large WHERE msg_offset >= 9;
SELECT msg_offset, value FROM narad.consume_bytes('large', 100);
SELECT count(*) FROM narad.verify('large');

-- A batch of large and small ones, and a long jump; text and jsonb are compressed in line.
SELECT narad.create_topic('large_json', segment_size => '256kB');
SELECT count(*) FROM narad.produce_batch('large_json', ARRAY(SELECT to_jsonb(encode(noise(i, i % 3 * 200000), 'base64'))
	FROM generate_series(1, 12) i));
INSERT INTO large_json (partition, msg_offset, value) SELECT 0, 1000000, to_jsonb(encode(noise(99, 400000), 'base64'));
SELECT count(*) FROM narad.produce('large_json', to_jsonb(repeat('compresses ', 200000)));
SELECT count(*), bool_and(value = CASE WHEN msg_offset < 12
	THEN to_jsonb(encode(noise(msg_offset::int + 1, (msg_offset::int + 1) % 3 * 200000), 'base64'))
	WHEN msg_offset = 1000000 THEN to_jsonb(encode(noise(99, 400000), 'base64'))
	ELSE to_jsonb(repeat('compresses ', 200000)) END)
FROM narad.consume('large_json', 1000);
SELECT count(*) FROM narad.consume('large_json', 1000);
SELECT count(*) FROM narad.verify('large_json');
ANALYZE large, large_json;

-- The limit is on what the values are, before compression; records that are there stay readable.
SELECT narad.produce('large_json', to_jsonb(repeat('x', 16 * 1024 * 1024)));
SET narad.max_message_size = '1kB';
SELECT max(length(value)) FROM large;
SELECT narad.produce_bytes('large', noise(1, 1025));
RESET narad.max_message_size;

-- TRUNCATE goes on behind the last one.
TRUNCATE large;
INSERT INTO large (value) VALUES (noise(5, 400000)) RETURNING msg_offset;
SELECT count(*), max(length(value)) FROM large;
SELECT count(*) FROM narad.verify('large');
DROP TABLE large, large_copy, large_json, expected;
DROP FUNCTION noise(int, int), compare(text);
