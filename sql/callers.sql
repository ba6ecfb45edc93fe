-- I1, I2, I5: the calls do the same wherever SQL lets them stand: in a target
-- list, WHERE, LATERAL, a CTE, a cursor, a prepared statement, EXPLAIN ANALYZE,
-- PL/pgSQL with its exceptions; and what is undone gives back what was taken.
SET client_min_messages = warning;

SELECT narad.create_topic('callers', visibility_timeout => '1 hour');
CREATE TABLE callers_effect (msg_offset bigint, deliveries integer);
CREATE VIEW callers_state AS
	SELECT (SELECT array_agg(msg_offset || CASE WHEN pinned THEN 'p' ELSE '' END ORDER BY msg_offset)
			FROM narad.leases WHERE topic = 'callers'::regclass) AS leases,
		(SELECT frontier FROM narad.groups WHERE topic = 'callers'::regclass) AS frontier;

SELECT count(*) FROM narad.produce_batch('callers', ARRAY(SELECT to_jsonb(i) FROM generate_series(0, 39) i));

-- In a target list; called once for all its columns.
SELECT (m).msg_offset, (m).value FROM (SELECT narad.consume('callers', 2) AS m OFFSET 0) s;
SELECT (narad.produce('callers', '40')).*;
SELECT * FROM callers_state;

-- In a CTE, whose rows are settled by the same statement: I5, as one.
WITH taken AS MATERIALIZED (SELECT * FROM narad.consume('callers', 2)),
	effect AS (INSERT INTO callers_effect SELECT msg_offset, deliveries FROM taken)
SELECT narad.ack(array_agg(receipt)) FROM taken;
SELECT * FROM callers_effect ORDER BY 1;
SELECT * FROM callers_state;

-- LATERAL: once for each row before it.
SELECT i, array_agg(m.msg_offset ORDER BY m.msg_offset) FROM generate_series(1, 3) i,
	LATERAL (SELECT * FROM narad.consume('callers', i)) m GROUP BY i ORDER BY i;
-- In WHERE: for each row; those that find no more take none.
SELECT count(*) FROM generate_series(1, 3) i
	WHERE EXISTS (SELECT FROM narad.consume('callers', 1 + 0 * i));
-- A subquery that is not run takes nothing.
SELECT CASE WHEN false THEN (SELECT count(*) FROM narad.consume('callers')) END;
SELECT * FROM callers_state;

-- What LIMIT or WHERE hides is leased all the same.
SELECT msg_offset FROM narad.consume('callers', 3) LIMIT 1;
SELECT msg_offset FROM narad.consume('callers', 2) WHERE value = '-1';
SELECT * FROM callers_state;

-- EXPLAIN alone takes nothing, with ANALYZE it does.
EXPLAIN (COSTS OFF) SELECT * FROM narad.consume('callers', 2);
DO $$ BEGIN EXECUTE 'EXPLAIN (ANALYZE) SELECT * FROM narad.consume(''callers'', 2)'; END $$;
SELECT * FROM callers_state;

-- A prepared statement, with the generic plan, too.
PREPARE callers_take(int) AS SELECT msg_offset FROM narad.consume('callers', $1);
SET plan_cache_mode = force_generic_plan;
EXECUTE callers_take(1);
EXECUTE callers_take(2);
RESET plan_cache_mode;
DEALLOCATE callers_take;

-- A cursor: taken as a whole at its first row; given back with its savepoint.
BEGIN;
SAVEPOINT before_cursor;
DECLARE c CURSOR FOR SELECT msg_offset FROM narad.consume('callers', 3);
FETCH 1 FROM c;
FETCH 1 FROM c;
ROLLBACK TO before_cursor;
SELECT msg_offset, deliveries FROM narad.consume('callers', 3);
COMMIT;

-- PL/pgSQL: the block that fails gives back, the one around it keeps.
CREATE FUNCTION callers_work(fail boolean) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	one narad.message;
BEGIN
	SELECT * INTO one FROM narad.consume('callers');
	BEGIN
		PERFORM narad.ack(one.receipt);
		INSERT INTO callers_effect VALUES (one.msg_offset, one.deliveries);
		IF fail THEN
			RAISE EXCEPTION 'work fails';
		END IF;
	EXCEPTION WHEN raise_exception THEN
		PERFORM narad.nack(one.receipt);
		RETURN 'given back ' || one.msg_offset;
	END;
	RETURN 'done ' || one.msg_offset;
END $$;
TRUNCATE callers_effect;
SELECT callers_work(false);
SELECT callers_work(true);
SELECT * FROM callers_effect ORDER BY 1;
SELECT msg_offset, deliveries FROM narad.consume('callers', partition => 0);

-- A procedure that commits as it goes: each round is its own transaction.
CREATE PROCEDURE callers_loop(rounds int) LANGUAGE plpgsql AS $$
DECLARE
	one narad.message;
BEGIN
	FOR i IN 1 .. rounds LOOP
		SELECT * INTO one FROM narad.consume('callers');
		EXIT WHEN one.receipt IS NULL;
		PERFORM narad.ack(one.receipt);
		INSERT INTO callers_effect VALUES (one.msg_offset, one.deliveries);
		IF i % 2 = 0 THEN
			ROLLBACK;
		ELSE
			COMMIT;
		END IF;
	END LOOP;
END $$;
TRUNCATE callers_effect;
CALL callers_loop(4);
SELECT * FROM callers_effect ORDER BY 1;
SELECT narad.verify('callers');

-- Savepoints and every call: only what is released counts.
TRUNCATE callers_effect;
SELECT narad.create_topic('callers_second', visibility_timeout => '1 hour');
BEGIN;
SELECT msg_offset FROM narad.produce('callers_second', '"kept"');
SAVEPOINT a;
SELECT msg_offset FROM narad.produce('callers_second', '"undone"');
SELECT receipt AS r1, msg_offset FROM narad.consume('callers') \gset
SAVEPOINT b;
SELECT narad.ack(:'r1');
ROLLBACK TO b;
SELECT * FROM narad.try_ack(ARRAY[:'r1']) AS t(receipt, accepted, reason) WHERE NOT accepted;
RELEASE b;
ROLLBACK TO a;
SELECT accepted, reason FROM narad.try_ack(ARRAY[:'r1']);
SAVEPOINT c;
SELECT msg_offset FROM narad.produce('callers_second', '"kept, too"');
SELECT receipt AS r2 FROM narad.consume('callers') \gset
SELECT narad.nack(:'r2');
SELECT narad.ack(:'r2');
RELEASE c;
COMMIT;
SELECT msg_offset, value FROM callers_second ORDER BY 1;
SELECT accepted, reason FROM narad.try_ack(ARRAY[:'r2']);
SELECT msg_offset, value FROM narad.consume('callers_second', 5);
DROP TABLE callers_effect, callers, callers_second CASCADE;
DROP FUNCTION callers_work;
DROP PROCEDURE callers_loop;
