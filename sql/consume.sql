-- I2, I3: a message is leased to one at a time, and only once it is committed.
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

SELECT narad.create_topic('consume_one');
SELECT * FROM narad.consume('consume_one');
SELECT count(*) FROM narad.produce_array('consume_one', '[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]');

-- Lowest offset first, none twice.
SELECT partition, msg_offset, deliveries, key, value, headers, length(receipt) AS receipt_length,
	produced_at <= clock_timestamp() AS has_time
FROM narad.consume('consume_one');
SELECT msg_offset FROM narad.consume('consume_one', 3);
SELECT msg_offset FROM narad.consume('consume_one', 100);
SELECT count(*) FROM narad.consume('consume_one', 100);
SELECT count(DISTINCT receipt) FROM narad.consume('consume_one');

-- A lease expires: the message is delivered again, and says so.
SELECT count(*) FROM narad.produce('consume_one', '10');
SELECT msg_offset, deliveries FROM narad.consume('consume_one', visibility_timeout => '1 ms');
SELECT pg_sleep(0.02);
SELECT msg_offset, deliveries FROM narad.consume('consume_one', visibility_timeout => '1 ms');
SELECT pg_sleep(0.02);
SELECT msg_offset, deliveries FROM narad.consume('consume_one');

-- Not one's own open transaction's; those of one rolled back, never.
BEGIN;
SELECT msg_offset FROM narad.produce('consume_one', '"open"');
SELECT count(*) FROM narad.consume('consume_one');
COMMIT;
SELECT value FROM narad.consume('consume_one');
BEGIN;
SELECT msg_offset FROM narad.produce('consume_one', '"aborted"');
ROLLBACK;
SELECT count(*) FROM narad.consume('consume_one');
BEGIN;
SELECT msg_offset FROM narad.produce('consume_one', '"first"');
SAVEPOINT s;
SELECT msg_offset FROM narad.produce('consume_one', '"second"');
ROLLBACK TO s;
SELECT msg_offset FROM narad.produce('consume_one', '"third"');
COMMIT;
SELECT msg_offset, value FROM narad.consume('consume_one', 10);

-- Leases taken in a transaction that rolls back are given back at once.
SELECT count(*) FROM narad.produce_array('consume_one', '["a", "b"]');
BEGIN;
SELECT value, deliveries FROM narad.consume('consume_one', 10);
ROLLBACK;
SELECT value, deliveries FROM narad.consume('consume_one', 1);
BEGIN;
SAVEPOINT s;
SELECT value, deliveries FROM narad.consume('consume_one', 10);
ROLLBACK TO s;
SELECT value, deliveries FROM narad.consume('consume_one', 10);
COMMIT;
-- An error after consume gives them back, too.
SELECT count(*) FROM narad.produce('consume_one', '"c"');
SELECT pg_temp.attempt('SELECT 1 / (deliveries - 1) FROM narad.consume(''consume_one'')');
SELECT value, deliveries FROM narad.consume('consume_one', 10);

-- Partitions: all in turn, or the one named.
SELECT narad.create_topic('consume_many', partitions => 3);
SELECT count(*) FROM generate_series(0, 2) p,
	narad.produce_batch('consume_many', '{1, 2, 3, 4}', partition => p);
SELECT DISTINCT partition FROM narad.consume('consume_many', 2, partition => 1);
SELECT partition, msg_offset FROM narad.consume('consume_many', 100, partition => 1);
SELECT count(*), count(DISTINCT partition) FROM narad.consume('consume_many', 100);
SELECT count(*) FROM narad.consume('consume_many', 100);

-- Caps: no more leases than max_in_flight a partition.
SELECT narad.create_topic('consume_capped', partitions => 2, max_in_flight => 3);
SELECT count(*) FROM generate_series(0, 1) p,
	narad.produce_batch('consume_capped', '{1, 2, 3, 4, 5}', partition => p);
CREATE TEMP TABLE capped AS SELECT * FROM narad.consume('consume_capped', 100);
SELECT partition, count(*) FROM capped GROUP BY 1 ORDER BY 1;
SELECT count(*) FROM narad.consume('consume_capped', 100);
SELECT narad.ack(receipt) FROM capped WHERE partition = 1 AND msg_offset < 2;
SELECT partition, count(*) FROM narad.consume('consume_capped', 100) GROUP BY 1;

-- max_acked_ahead: with so many holes below what is settled, nothing beyond.
SELECT narad.create_topic('consume_holes', max_acked_ahead => 2);
SELECT count(*) FROM narad.produce_array('consume_holes', '[0, 1, 2, 3, 4, 5]');
CREATE TEMP TABLE holes AS SELECT * FROM narad.consume('consume_holes', 3);
SELECT narad.ack(receipt) FROM holes WHERE msg_offset = 2;
SELECT count(*) FROM narad.consume('consume_holes', 10);
SELECT narad.ack(receipt) FROM holes WHERE msg_offset = 0;
SELECT msg_offset FROM narad.consume('consume_holes', 10);

-- Bytes and text.
SELECT narad.create_topic('consume_bytea', value_type => 'bytea');
SELECT narad.create_topic('consume_text', value_type => 'text');
SELECT count(*) FROM narad.produce_bytes('consume_bytea', '\x00ff') a, narad.produce_bytes('consume_text', 'abc') b;
SELECT msg_offset, deliveries, value FROM narad.consume_bytes('consume_bytea');
SELECT msg_offset, value, convert_from(value, 'UTF8') FROM narad.consume_bytes('consume_text');

-- Values of all sizes come back as they were.
SELECT narad.create_topic('consume_large');
SELECT count(*) FROM generate_series(0, 5) i,
	narad.produce('consume_large', to_jsonb(repeat(md5(i::text), (10 ^ i)::int / 4)));
SELECT msg_offset, value = to_jsonb(repeat(md5(msg_offset::text), (10 ^ msg_offset)::int / 4)) AS same
FROM narad.consume('consume_large', 10);

-- In REPEATABLE READ only what the snapshot sees; in a cursor; in a target list.
SELECT narad.create_topic('consume_cursor');
SELECT count(*) FROM narad.produce_array('consume_cursor', '[1, 2, 3]');
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT value FROM narad.consume('consume_cursor');
COMMIT;
BEGIN;
DECLARE c CURSOR FOR SELECT value FROM narad.consume('consume_cursor', 2);
FETCH 1 FROM c;
FETCH 1 FROM c;
FETCH 1 FROM c;
COMMIT;
EXPLAIN (COSTS OFF) SELECT value FROM narad.consume('consume_cursor');
SELECT (narad.consume('consume_cursor')).value;
SELECT count(*) FROM narad.produce('consume_cursor', '4');
EXPLAIN (COSTS OFF) SELECT value FROM narad.consume('consume_cursor');
SELECT (narad.consume('consume_cursor')).value;

-- Bad arguments take nothing.
SELECT count(*) FROM narad.produce('consume_cursor', '5');
SELECT pg_temp.attempt('SELECT narad.consume(' || a || ')') FROM unnest(ARRAY[
	'NULL', '0', '''no_such''', '''pg_class''', '''narad.groups''', '''consume_bytea''',
	'''consume_cursor'', 0', '''consume_cursor'', -1', '''consume_cursor'', NULL',
	'''consume_cursor'', -2147483648', '''consume_cursor'', wait => NULL', '''consume_cursor'', wait => ''-1 s''',
	'''consume_cursor'', visibility_timeout => ''0''', '''consume_cursor'', visibility_timeout => ''-1 s''',
	'''consume_cursor'', visibility_timeout => ''1000 years''',
	'''consume_cursor'', visibility_timeout => ''178000000 years''',
	'''consume_cursor'', consumer_group => NULL', '''consume_cursor'', consumer_group => ''''',
	'''consume_cursor'', consumer_group => repeat(''x'', 64)', '''consume_cursor'', consumer_group => ''no_such''',
	'''consume_cursor'', partition => 1', '''consume_cursor'', partition => -1',
	'''consume_cursor'', ack => ARRAY[NULL]', '''consume_cursor'', ack => ''{nonsense}''',
	'''consume_cursor'', ack => ''{{a},{b}}''', '''consume_cursor'', notify_ttl => NULL']) a;
SELECT pg_temp.attempt('SELECT narad.consume_bytes(''consume_cursor'')');
BEGIN READ ONLY;
SELECT pg_temp.attempt('SELECT narad.consume(''consume_cursor'')');
ROLLBACK;
SELECT value, deliveries FROM narad.consume('consume_cursor', 2147483647);

DROP TABLE consume_one, consume_many, consume_capped, consume_holes, consume_bytea, consume_text,
	consume_large, consume_cursor;

-- What is found dead takes no place under max_in_flight.
SELECT narad.create_topic('consume_capped', max_in_flight => 2);
BEGIN;
SELECT count(*) FROM narad.produce_batch('consume_capped', '{1,2,3,4,5}');
ROLLBACK;
SELECT count(*) FROM narad.produce_batch('consume_capped', '{6,7,8}');
SELECT msg_offset, value FROM narad.consume('consume_capped', 10);
DROP TABLE consume_capped;
