-- I7: fetch returns committed records in offset order, and never steps over
-- one that may still commit.
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

SELECT narad.create_topic('fetch_topic', partitions => 2);
SELECT * FROM narad.offsets('fetch_topic');
SELECT * FROM narad.fetch('fetch_topic', 0, 0);
SELECT count(*) FROM narad.produce_batch('fetch_topic', ARRAY(SELECT to_jsonb(i) FROM generate_series(0, 9) i),
	keys => ARRAY(SELECT 'k' || i FROM generate_series(0, 9) i), partition => 0);
SELECT * FROM narad.offsets('fetch_topic');
SELECT partition, msg_offset, produced_at IS NOT NULL AS has_time, key, value, headers
FROM narad.fetch('fetch_topic', 0, 7);
SELECT msg_offset FROM narad.fetch('fetch_topic', 0, 2, max_messages => 3);
SELECT count(*) FROM narad.fetch('fetch_topic', 0, 10);
SELECT count(*) FROM narad.fetch('fetch_topic', 1, 0);

-- It changes nothing: again the same, and consumers are not disturbed.
SELECT count(*) FROM narad.fetch('fetch_topic', 0, 0);
SELECT count(*) FROM narad.consume('fetch_topic', 100);
SELECT count(*) FROM narad.fetch('fetch_topic', 0, 0);

-- At least one record, whatever max_bytes says; then no more than that.
SELECT msg_offset FROM narad.fetch('fetch_topic', 0, 4, max_bytes => 0);
SELECT msg_offset FROM narad.fetch('fetch_topic', 0, 4, max_bytes => 1);
SELECT count(*) BETWEEN 2 AND 5 FROM narad.fetch('fetch_topic', 0, 0, max_bytes => 400);

-- Not what an open transaction wrote, its own included, nor what follows.
BEGIN;
SELECT msg_offset FROM narad.produce('fetch_topic', '"open"', partition => 0);
SELECT count(*) FROM narad.fetch('fetch_topic', 0, 10);
SELECT earliest, end_offset, last_stable FROM narad.offsets('fetch_topic') WHERE partition = 0;
ROLLBACK;
SELECT earliest, end_offset, last_stable FROM narad.offsets('fetch_topic') WHERE partition = 0;

-- Gaps of transactions rolled back are stepped over.
SELECT msg_offset FROM narad.produce('fetch_topic', '"after"', partition => 0);
SELECT msg_offset, value FROM narad.fetch('fetch_topic', 0, 10);
SELECT msg_offset, value FROM narad.fetch('fetch_topic', 0, 9);

-- Reading on from the last one got gives all, once.
SELECT narad.create_topic('fetch_long');
SELECT count(*) FROM narad.produce_batch('fetch_long', ARRAY(SELECT to_jsonb(repeat('x', i % 500)) FROM generate_series(0, 4999) i));
CREATE FUNCTION pg_temp.read_all(step int, OUT n int, OUT calls int, OUT in_order bool) LANGUAGE plpgsql AS $$
DECLARE
	at bigint := 0;
	r record;
	got bool;
BEGIN
	n := 0;
	calls := 0;
	in_order := true;
	LOOP
		got := false;
		FOR r IN SELECT msg_offset FROM narad.fetch('fetch_long', 0, at, step) LOOP
			in_order := in_order AND r.msg_offset >= at;
			at := r.msg_offset + 1;
			n := n + 1;
			got := true;
		END LOOP;
		EXIT WHEN NOT got;
		calls := calls + 1;
	END LOOP;
END $$;
SELECT * FROM pg_temp.read_all(500);
SELECT * FROM pg_temp.read_all(333);
SELECT count(*), min(msg_offset), max(msg_offset) FROM narad.fetch('fetch_long', 0, 4321, 10000);

-- After TRUNCATE the old offsets are gone, and said to be.
TRUNCATE fetch_long;
SELECT * FROM narad.offsets('fetch_long');
SELECT pg_temp.attempt($$SELECT narad.fetch('fetch_long', 0, 4999)$$);
SELECT count(*) FROM narad.fetch('fetch_long', 0, 5000);

-- Bytes and text.
SELECT narad.create_topic('fetch_bytea', value_type => 'bytea');
SELECT narad.create_topic('fetch_text', value_type => 'text');
SELECT count(*) FROM narad.produce_bytes('fetch_bytea', '\x00ff') a, narad.produce_bytes('fetch_text', 'abc') b;
SELECT msg_offset, value FROM narad.fetch_bytes('fetch_bytea', 0, 0);
SELECT msg_offset, convert_from(value, 'UTF8') FROM narad.fetch_bytes('fetch_text', 0, 0);

-- A topic with a column more.
ALTER TABLE fetch_topic ADD COLUMN more int;
INSERT INTO fetch_topic (partition, value, more) VALUES (1, '"more"', 5);
SELECT msg_offset, value FROM narad.fetch('fetch_topic', 1, 0);
SELECT msg_offset, value FROM narad.fetch('fetch_topic', 0, 9);

-- It reads in a read-only transaction.
BEGIN READ ONLY;
SELECT count(*) FROM narad.fetch('fetch_topic', 0, 0);
COMMIT;

-- A topic nothing was ever written to.
CREATE TABLE fetch_empty (LIKE narad.topic_template) USING narad;
SELECT count(*) FROM narad.fetch('fetch_empty', 0, 0);
SELECT * FROM narad.offsets('fetch_empty');

-- Bad arguments.
SELECT pg_temp.attempt('SELECT narad.fetch(' || a || ')') FROM unnest(ARRAY[
	'NULL, 0, 0', '''pg_class'', 0, 0', '''fetch_topic'', NULL, 0', '''fetch_topic'', 0, NULL',
	'''fetch_topic'', -1, 0', '''fetch_topic'', 2, 0', '''fetch_topic'', 2147483647, 0',
	'''fetch_topic'', 0, -1', '''fetch_topic'', 0, -9223372036854775808', '''fetch_topic'', 0, 13',
	'''fetch_topic'', 0, 9223372036854775807', '''fetch_empty'', 0, 1', '''fetch_empty'', 1, 0',
	'''fetch_topic'', 0, 0, 0', '''fetch_topic'', 0, 0, -1', '''fetch_topic'', 0, 0, NULL',
	'''fetch_topic'', 0, 0, max_bytes => -1', '''fetch_topic'', 0, 0, max_bytes => NULL',
	'''fetch_topic'', 0, 0, wait => NULL', '''fetch_topic'', 0, 0, wait => ''-1 s''',
	'''fetch_topic'', 0, 0, min_bytes => NULL', '''fetch_topic'', 0, 0, min_bytes => -1',
	'''fetch_bytea'', 0, 0']) a;
SELECT pg_temp.attempt($$SELECT narad.fetch_bytes('fetch_topic', 0, 0)$$);
SELECT pg_temp.attempt($$SELECT narad.offsets(NULL)$$);
SELECT pg_temp.attempt($$SELECT narad.offsets('pg_class')$$);
DROP TABLE fetch_topic, fetch_long, fetch_bytea, fetch_text, fetch_empty;
