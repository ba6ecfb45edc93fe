-- What is produced is in the topic, once, in order, at the position told.
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

SELECT narad.create_topic('produce_json');
SELECT * FROM narad.produce('produce_json', '{"a": 1}');
SELECT (narad.produce('produce_json', '[2]', key => 'k', headers => '{"h": true}')).*;
SELECT narad.produce('produce_json', '"three"', partition => 0);
-- A value may be SQL null, which is not JSON's.
SELECT * FROM narad.produce('produce_json', NULL);
SELECT * FROM narad.produce('produce_json', 'null');
SELECT msg_offset, key, value, value IS NULL AS is_null, headers FROM produce_json ORDER BY msg_offset;

-- Once for each row of a query.
SELECT p.* FROM generate_series(1, 3) i, narad.produce('produce_json', to_jsonb(i)) p;
SELECT i, (narad.produce('produce_json', to_jsonb(i))).msg_offset FROM generate_series(1, 3) i;

-- With a savepoint rolled back, nothing is left but a gap.
BEGIN;
SELECT narad.produce('produce_json', '"kept"');
SAVEPOINT s;
SELECT narad.produce('produce_json', '"lost"');
ROLLBACK TO s;
SELECT narad.produce('produce_json', '"kept too"');
SELECT msg_offset, value FROM produce_json WHERE msg_offset > 10 ORDER BY 1;
COMMIT;
SELECT msg_offset, value FROM produce_json WHERE msg_offset > 10 ORDER BY 1;

-- Batches: positions in input order, whatever the partition.
SELECT narad.create_topic('produce_many', partitions => 3);
SELECT count(*), count(DISTINCT (partition, msg_offset))
FROM narad.produce_batch('produce_many', ARRAY(SELECT to_jsonb(i) FROM generate_series(1, 100) i),
	keys => ARRAY(SELECT (i % 7)::text FROM generate_series(1, 100) i));
-- A key has one partition, and its messages keep their order there.
SELECT count(DISTINCT (key, partition)) AS key_partitions, count(DISTINCT partition) > 1 AS spread
FROM produce_many;
SELECT bool_and(ordered) FROM (
	SELECT value::int > lag(value::int, 1, 0) OVER (PARTITION BY key ORDER BY msg_offset) AS ordered
	FROM produce_many) AS s;
CREATE TEMP TABLE places AS SELECT * FROM narad.produce_batch('produce_many',
	ARRAY(SELECT to_jsonb(i) FROM generate_series(1, 50) i),
	keys => ARRAY(SELECT md5(i::text) FROM generate_series(1, 50) i)) WITH ORDINALITY;
SELECT count(*), bool_and(t.value = to_jsonb(p.ordinality))
FROM places p LEFT JOIN produce_many t USING (partition, msg_offset);
-- The hash of a key is part of the format: it may never change.
SELECT key, partition FROM produce_many WHERE key IN ('0', '1', '2', '3', '4', '5', '6') GROUP BY 1, 2 ORDER BY 1;
SELECT DISTINCT partition FROM narad.produce_batch('produce_many', '{1, 2, 3}', keys => '{a, b, c}', partition => 2);
SELECT count(*) FROM narad.produce_batch('produce_many', '{}');
SELECT count(*) FROM narad.produce_batch('produce_many', '{}', keys => '{}', headers => '{}');
SELECT narad.create_topic('produce_batch_nulls');
SELECT * FROM narad.produce_batch('produce_batch_nulls', ARRAY['1', NULL, '3']::jsonb[],
	keys => ARRAY[NULL, 'k', NULL], headers => ARRAY[NULL, NULL, '{"h": 3}']::jsonb[]);
SELECT msg_offset, key, value, headers FROM produce_batch_nulls ORDER BY 1;

-- One JSON array.
SELECT narad.create_topic('produce_arrays');
SELECT * FROM narad.produce_array('produce_arrays', '[1, "two", {"three": [3]}, null, [], [[5]], true]');
SELECT msg_offset, value, value IS NULL AS is_null FROM produce_arrays ORDER BY 1;
SELECT count(*) FROM narad.produce_array('produce_arrays', '[]');
SELECT count(*) FROM narad.produce_array('produce_arrays',
	(SELECT jsonb_agg(jsonb_build_object('i', i, 'pad', repeat('x', i))) FROM generate_series(1, 500) i));
SELECT count(*), sum((value->>'i')::int), bool_and(length(value->>'pad') = (value->>'i')::int)
FROM produce_arrays WHERE jsonb_typeof(value) = 'object' AND value ? 'i';

-- Bytes and text.
SELECT narad.create_topic('produce_bytea', value_type => 'bytea');
SELECT narad.create_topic('produce_text', value_type => 'text');
SELECT * FROM narad.produce_bytes('produce_bytea', '\x00ff', key => 'k');
SELECT * FROM narad.produce_batch_bytes('produce_bytea', ARRAY['\x', '\x01', NULL]::bytea[]);
SELECT msg_offset, key, value FROM produce_bytea ORDER BY 1;
SELECT * FROM narad.produce_bytes('produce_text', convert_to('plain text', 'UTF8'));
SELECT pg_temp.attempt($$SELECT narad.produce_bytes('produce_text', '\x00')$$);
SELECT pg_temp.attempt($$SELECT narad.produce_batch_bytes('produce_text', ARRAY['\x41', '\xff']::bytea[])$$);
SELECT msg_offset, value FROM produce_text ORDER BY 1;

-- Large values come back whole, and long ones from another table's TOAST.
SELECT narad.create_topic('produce_large');
CREATE TABLE produce_source AS SELECT i, jsonb_build_object('v',
	(SELECT string_agg(md5((i * 1000 + j)::text), '') FROM generate_series(1, 1000) j)) AS v
FROM generate_series(1, 5) i;
SELECT count(*) FROM produce_source, narad.produce('produce_large', v);
SELECT count(*) FROM produce_source s JOIN produce_large l ON l.value = s.v;
DROP TABLE produce_source;

-- What a user declared on a topic is not stepped over.
SELECT narad.create_topic('produce_checked');
ALTER TABLE produce_checked ADD CONSTRAINT small CHECK (length(value::text) < 10);
CREATE FUNCTION produce_stamp() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF NEW.value = '"drop"' THEN
		RETURN NULL;
	END IF;
	NEW.headers = '{"stamped": true}';
	RETURN NEW;
END $$;
CREATE TRIGGER stamp BEFORE INSERT ON produce_checked FOR EACH ROW EXECUTE FUNCTION produce_stamp();
SELECT * FROM narad.produce('produce_checked', '1', key => 'k');
SELECT * FROM narad.produce('produce_checked', '"drop"');
SELECT pg_temp.attempt($$SELECT narad.produce('produce_checked', '"much too long"')$$);
SELECT partition, msg_offset IS NULL AS dropped FROM narad.produce_batch('produce_checked', '{2, "\"drop\"", 3}');
SELECT key, value, headers FROM produce_checked ORDER BY msg_offset;
-- The position is that of the row, whatever else its triggers insert, before or
-- after it, by INSERT or produce, here or elsewhere; none if there is no row.
SELECT narad.create_topic('produce_audit');
CREATE FUNCTION produce_more() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF (NEW.value->>'more')::int > 0 THEN
		INSERT INTO produce_checked (value) VALUES (jsonb_build_object('i', (NEW.value->>'more')::int - 1));
		PERFORM narad.produce('produce_checked', '"p"');
		PERFORM narad.produce('produce_audit', NEW.value);
	END IF;
	RETURN CASE WHEN NEW.value ? 'drop' THEN NULL ELSE NEW END;
END $$;
ALTER TABLE produce_checked DROP CONSTRAINT small;
CREATE TRIGGER before_row BEFORE INSERT ON produce_checked FOR EACH ROW EXECUTE FUNCTION produce_more();
CREATE TRIGGER after_row AFTER INSERT ON produce_checked FOR EACH ROW EXECUTE FUNCTION produce_more();
SELECT partition, msg_offset FROM narad.produce('produce_checked', '{"more": 1}') \gset put_
SELECT msg_offset, msg_offset = :put_msg_offset AS is_it, value FROM produce_checked ORDER BY msg_offset;
CREATE TEMP TABLE put AS SELECT * FROM
	narad.produce_batch('produce_checked', '{"{\"more\": 2, \"drop\": 1}", "{\"n\": 2, \"more\": 1}", "{\"n\": 3}"}') WITH ORDINALITY;
SELECT ordinality, msg_offset IS NULL AS dropped, value FROM put LEFT JOIN produce_checked USING (partition, msg_offset) ORDER BY ordinality;
-- An error on the way leaves nothing behind that a later INSERT could meet.
CREATE FUNCTION produce_fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$;
CREATE TRIGGER fail AFTER INSERT ON produce_checked FOR EACH ROW WHEN (NEW.value ? 'fail') EXECUTE FUNCTION produce_fail();
SELECT pg_temp.attempt($$SELECT narad.produce('produce_checked', '{"fail": 1}')$$);
INSERT INTO produce_checked (value) VALUES ('{"fine": 1}');
SELECT value FROM produce_checked WHERE value ? 'fine';
DROP TRIGGER before_row ON produce_checked;
DROP TRIGGER after_row ON produce_checked;
-- Rules decide what is returned.
CREATE RULE produce_also AS ON INSERT TO produce_checked WHERE NEW.value ? 'rule'
	DO ALSO INSERT INTO produce_audit (value) VALUES ('"by rule"');
SELECT partition, msg_offset FROM narad.produce('produce_checked', '{"rule": 1}') \gset put_
SELECT value FROM produce_checked WHERE msg_offset = :put_msg_offset;
SELECT value FROM produce_audit WHERE value = '"by rule"';
DROP RULE produce_also ON produce_checked;
DROP TABLE produce_audit;
DROP TRIGGER fail ON produce_checked;
ALTER TABLE produce_checked DISABLE TRIGGER stamp;

-- Bad arguments: nothing is appended.
SELECT pg_temp.attempt('SELECT ' || a) FROM unnest(ARRAY[
	'narad.produce(NULL, ''1'')', 'narad.produce(0, ''1'')', 'narad.produce(999999::regclass, ''1'')',
	'narad.produce(''no_such'', ''1'')', 'narad.produce(''pg_class'', ''1'')',
	'narad.produce(''pg_class_oid_index'', ''1'')', 'narad.produce(''narad.topics'', ''1'')',
	'narad.produce(''produce_many'', ''1'', partition => -1)',
	'narad.produce(''produce_many'', ''1'', partition => 3)',
	'narad.produce(''produce_many'', ''1'', partition => 2147483647)',
	'narad.produce(''produce_bytea'', ''1'')', 'narad.produce(''produce_text'', ''1'')',
	'narad.produce_bytes(''produce_json'', ''1'')',
	'narad.produce_batch(''produce_bytea'', ''{1}'')', 'narad.produce_batch_bytes(''produce_json'', ''{1}'')',
	'narad.produce_array(''produce_bytea'', ''[1]'')',
	'narad.produce_batch(''produce_json'', NULL)',
	'narad.produce_batch(''produce_json'', ''{{1,2},{3,4}}'')',
	'narad.produce_batch(''produce_json'', ''{1,2}'', keys => ''{a}'')',
	'narad.produce_batch(''produce_json'', ''{1,2}'', keys => ''{}'')',
	'narad.produce_batch(''produce_json'', ''{1,2}'', headers => ''{1,2,3}'')',
	'narad.produce_batch(''produce_json'', ''{1,2}'', keys => ''{{a},{b}}'')',
	'narad.produce_batch(''produce_many'', ''{1,2}'', partition => 3)',
	'narad.produce_array(''produce_json'', NULL)', 'narad.produce_array(''produce_json'', ''{}'')',
	'narad.produce_array(''produce_json'', ''1'')', 'narad.produce_array(''produce_json'', ''null'')']) a;
SELECT count(*) FROM produce_json;
BEGIN READ ONLY;
SELECT pg_temp.attempt('SELECT narad.produce(''produce_json'', ''1'')');
SELECT pg_temp.attempt('SELECT narad.produce_batch(''produce_json'', ''{1}'')');
ROLLBACK;

DROP TABLE produce_json, produce_many, produce_batch_nulls, produce_arrays, produce_bytea,
	produce_text, produce_large, produce_checked;
DROP FUNCTION produce_stamp;
