-- A producer's sequence number is appended once; who sends it again is told
-- where it is.
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

SELECT narad.create_topic('once', partitions => 2);
-- An unknown producer may start anywhere.
SELECT * FROM narad.produce_once('once', '1', 'p', 10, partition => 1);
SELECT (narad.produce_once('once', '2', 'p', 11, partition => 0)).*;
SELECT * FROM narad.produce_once('once', '"again"', 'p', 11);
SELECT * FROM narad.produce_once('once', '"again"', 'p', 10, key => 'k', headers => '{}');
SELECT * FROM narad.produce_once('once', '"another"', 'q', 0, partition => 1);
-- A gap, also behind a rolled back one.
SELECT pg_temp.attempt('SELECT narad.produce_once(''once'', ''3'', ''p'', 13)');
BEGIN;
SELECT * FROM narad.produce_once('once', '3', 'p', 12, partition => 0);
SELECT * FROM narad.produce_once('once', '4', 'p', 13, partition => 0);
SELECT * FROM narad.produce_once('once', '"own"', 'p', 12);
ROLLBACK;
SELECT pg_temp.attempt('SELECT narad.produce_once(''once'', ''4'', ''p'', 13)');
SELECT * FROM narad.produce_once('once', '3', 'p', 12, partition => 1);
-- Consumed and acknowledged: still there.
SELECT count(narad.ack(receipt)) FROM narad.consume('once', 10);
SELECT * FROM narad.produce_once('once', '"again"', 'p', 12);
SELECT count(*) FROM narad.consume('once', 10);

-- The last five positions are remembered.
SELECT s, p.* FROM generate_series(13, 16) s, narad.produce_once('once', to_jsonb(s), 'p', s, partition => 1) p;
SELECT s, p.* FROM generate_series(10, 16) s, narad.produce_once('once', to_jsonb(s), 'p', s) p;
SELECT * FROM narad.produce_once('once', '0', 'p', 0);
SELECT partition, msg_offset, value FROM once ORDER BY 1, 2;

-- A newer epoch shuts out the older, and starts over.
SELECT * FROM narad.produce_once('once', '"epoch 3"', 'p', 5, epoch => 3, partition => 0);
SELECT pg_temp.attempt('SELECT narad.produce_once(''once'', ''1'', ''p'', 17)');
SELECT pg_temp.attempt('SELECT narad.produce_once(''once'', ''1'', ''p'', 5, epoch => 2)');
SELECT * FROM narad.produce_once('once', '"again"', 'p', 5, epoch => 3);
SELECT * FROM narad.produce_once('once', '"older than the epoch"', 'p', 4, epoch => 3);
SELECT * FROM narad.produce_once('once', '"epoch 3"', 'p', 6, epoch => 3, partition => 0);
-- Rolled back, it has shut out nobody.
BEGIN;
SELECT * FROM narad.produce_once('once', '"epoch 4"', 'p', 0, epoch => 4, partition => 0);
SELECT pg_temp.attempt('SELECT narad.produce_once(''once'', ''1'', ''p'', 7, epoch => 3)');
ROLLBACK;
SELECT * FROM narad.produce_once('once', '"epoch 3"', 'p', 7, epoch => 3, partition => 0);

-- Savepoints.
BEGIN;
SELECT * FROM narad.produce_once('once', '1', 's', 1, partition => 1);
SAVEPOINT a;
SELECT * FROM narad.produce_once('once', '2', 's', 2, partition => 1);
SAVEPOINT b;
SELECT * FROM narad.produce_once('once', '3', 's', 3, partition => 1);
ROLLBACK TO b;
SELECT pg_temp.attempt('SELECT narad.produce_once(''once'', ''4'', ''s'', 4)');
SELECT * FROM narad.produce_once('once', '3', 's', 3, partition => 1);
RELEASE a;
SAVEPOINT c;
SELECT * FROM narad.produce_once('once', '"other"', 't', 1, partition => 1);
SELECT * FROM narad.produce_once('once', '4', 's', 4, partition => 1);
RELEASE c;
SAVEPOINT d;
SELECT * FROM narad.produce_once('once', '5', 's', 5, partition => 1);
ROLLBACK TO d;
COMMIT;
SELECT * FROM narad.produce_once('once', '"again"', 's', 4);
SELECT pg_temp.attempt('SELECT narad.produce_once(''once'', ''6'', ''s'', 6)');
SELECT * FROM narad.produce_once('once', '"again"', 't', 1);
-- Many savepoints.
DO $$
BEGIN
	FOR i IN 1 .. 300 LOOP
		BEGIN
			PERFORM narad.produce_once('once', to_jsonb(i), 'many', i, partition => 0);
			IF i % 3 = 0 THEN
				RAISE EXCEPTION 'back';
			END IF;
		EXCEPTION WHEN raise_exception THEN
			PERFORM narad.produce_once('once', to_jsonb(-i), 'many', i, partition => 0);
		END;
	END LOOP;
END $$;
SELECT count(*), sum(value::int) FROM once WHERE jsonb_typeof(value) = 'number' AND partition = 0 AND msg_offset > 5;
SELECT duplicate FROM narad.produce_once('once', '1', 'many', 300);
SELECT * FROM narad.verify('once');

-- Many producers, in one transaction and again in others.
SELECT count(*), count(*) FILTER (WHERE duplicate) AS duplicates
FROM generate_series(1, 2000) i, narad.produce_once('once', to_jsonb(i), 'producer ' || i, i);
SELECT count(*), count(*) FILTER (WHERE duplicate) AS duplicates
FROM generate_series(1, 2000) i, narad.produce_once('once', to_jsonb(i), 'producer ' || i, i + i % 2);
SELECT * FROM narad.verify('once');
-- VACUUM decides the entries: nothing changes.
BEGIN;
SELECT duplicate FROM narad.produce_once('once', '0', 'producer 1', 3);
ROLLBACK;
VACUUM once;
SELECT * FROM narad.verify('once');
SELECT count(*), count(*) FILTER (WHERE duplicate) AS duplicates, count(p.msg_offset) AS positions
FROM generate_series(1, 2000) i, narad.produce_once('once', to_jsonb(i), 'producer ' || i, i) p;
SELECT duplicate FROM narad.produce_once('once', '0', 'producer 1', 3);
SELECT duplicate FROM narad.produce_once('once', '0', 'producer 2', 2);

-- Arguments.
SELECT pg_temp.attempt('SELECT narad.produce_once(''once'', ''1'', ' || a) FROM unnest(ARRAY[
	'NULL, 1)', ''''', 1)', 'repeat(''x'', 256), 1)', '''x'', NULL)', '''x'', -1)', '''x'', 1, epoch => NULL)',
	'''x'', 1, epoch => -1)', '''x'', 1, partition => 2)', 'repeat(''x'', 255), 9223372036854775807, epoch => 2147483647)',
	'repeat(''x'', 255), 9223372036854775807, epoch => 2147483647)']) a;
SELECT pg_temp.attempt('SELECT narad.produce_once_bytes(''once'', ''1'', ''p'', 1)');
BEGIN READ ONLY;
SELECT pg_temp.attempt('SELECT narad.produce_once(''once'', ''1'', ''p'', 1)');
ROLLBACK;

-- purge starts over; rolled back, it does not.
BEGIN;
SELECT * FROM narad.produce_once('once', '"lost"', 's', 5, partition => 0) \gset before_
TRUNCATE once;
SELECT duplicate FROM narad.produce_once('once', '"new"', 's', 4);
ROLLBACK;
SELECT duplicate FROM narad.produce_once('once', '"again"', 's', 4);
SELECT narad.purge_topic('once');
SELECT duplicate FROM narad.produce_once('once', '"new"', 's', 4);
SELECT value FROM once;
-- Produced and truncated in one transaction: nothing is remembered.
BEGIN;
SELECT duplicate FROM narad.produce_once('once', '"gone"', 'u', 1);
TRUNCATE once;
COMMIT;
SELECT duplicate FROM narad.produce_once('once', '"new"', 'u', 7);
DROP TABLE once;

-- bytea.
SELECT narad.create_topic('once', value_type => 'bytea');
SELECT * FROM narad.produce_once_bytes('once', '\x01', 'p', 1);
SELECT * FROM narad.produce_once_bytes('once', '\x02', 'p', 1);
SELECT pg_temp.attempt('SELECT narad.produce_once(''once'', ''1'', ''p'', 2)');
DROP TABLE once;

-- Retention drops the messages, and a group has settled them; the numbers are
-- known, and where the messages were.
SELECT narad.create_topic('once', segment_size => '256kB');
SELECT s, p.* FROM generate_series(1, 2) s, narad.produce_once('once', to_jsonb(s), 'p', s) p;
INSERT INTO once (value) SELECT to_jsonb(rpad(i::text, 900, 'x')) FROM generate_series(1, 400) i;
SELECT count(narad.ack(receipt)) FROM narad.consume('once', 2);
SELECT narad.alter_topic('once', retention_bytes => 1000);
-- (By the worker, if it is faster.)
SELECT count(*) FROM narad.apply_retention('once');
SELECT earliest > 1 AS dropped FROM narad.partitions WHERE topic = 'once'::regclass;
SELECT s, p.* FROM generate_series(1, 2) s, narad.produce_once('once', '"again"', 'p', s) p;
SELECT duplicate, msg_offset FROM narad.produce_once('once', '"next"', 'p', 3);
SELECT count(*) FROM once WHERE value = '"again"';
SELECT * FROM narad.verify('once');
DROP TABLE once;

-- Through a trigger; what it drops has had its turn.
SELECT narad.create_topic('once');
CREATE FUNCTION once_before() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	RETURN CASE WHEN NEW.value <> '"drop"' THEN NEW END;
END $$;
CREATE TRIGGER before BEFORE INSERT ON once FOR EACH ROW EXECUTE FUNCTION once_before();
SELECT * FROM narad.produce_once('once', '"one"', 'p', 1);
SELECT * FROM narad.produce_once('once', '"drop"', 'p', 2);
SELECT * FROM narad.produce_once('once', '"three"', 'p', 3);
SELECT s, p.* FROM generate_series(1, 3) s, narad.produce_once('once', '"again"', 'p', s) p;
-- One that produces for the same producer is in the way.
CREATE FUNCTION once_nested() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF NEW.value = '"outer"' THEN
		PERFORM narad.produce_once('once', '"inner"', 'p', 4);
	END IF;
	RETURN NEW;
END $$;
CREATE TRIGGER nested BEFORE INSERT ON once FOR EACH ROW EXECUTE FUNCTION once_nested();
SELECT pg_temp.attempt('SELECT narad.produce_once(''once'', ''"outer"'', ''p'', 4)');
SELECT * FROM narad.produce_once('once', '"outer"', 'q', 0);
SELECT * FROM narad.produce_once('once', '"again"', 'p', 4);
SELECT msg_offset, value FROM once ORDER BY 1;
-- Only INSERT is needed, and that is.
CREATE ROLE once_user;
SET ROLE once_user;
SELECT pg_temp.attempt('SELECT narad.produce_once(''once'', ''1'', ''p'', 4)');
RESET ROLE;
GRANT INSERT ON once TO once_user;
SET ROLE once_user;
SELECT * FROM narad.produce_once('once', '5', 'p', 5);
RESET ROLE;
DROP TABLE once;
DROP FUNCTION once_before, once_nested;
DROP ROLE once_user;
