-- I3: a message of an aborted transaction, or savepoint, is never seen; one
-- of this transaction is seen from the next command on.
\set VERBOSITY terse
CREATE TABLE am_subxact (LIKE narad.topic_template) USING narad;
BEGIN;
INSERT INTO am_subxact (value) VALUES ('"kept"');
SELECT value FROM am_subxact;
SAVEPOINT a;
INSERT INTO am_subxact (value) VALUES ('"a"');
SAVEPOINT b;
INSERT INTO am_subxact (value) VALUES ('"b"');
SELECT value FROM am_subxact;
ROLLBACK TO b;
INSERT INTO am_subxact (value) VALUES ('"after b"');
SELECT value FROM am_subxact;
RELEASE a;
SAVEPOINT c;
INSERT INTO am_subxact (value) VALUES ('"c"');
ROLLBACK TO c;
SELECT value FROM am_subxact;
COMMIT;
SELECT msg_offset, value FROM am_subxact;

-- the whole transaction; offsets are not given twice
BEGIN;
INSERT INTO am_subxact (value) SELECT to_jsonb(i) FROM generate_series(1, 1000) i;
SELECT count(*) FROM am_subxact;
ROLLBACK;
SELECT count(*) FROM am_subxact;
INSERT INTO am_subxact (value) VALUES ('"later"') RETURNING msg_offset;

-- a large record that was cut off by an error is no damage
DO $$
BEGIN
	INSERT INTO am_subxact (value) SELECT to_jsonb(repeat(md5('x'), 20000));
	RAISE EXCEPTION 'undone';
EXCEPTION WHEN raise_exception THEN
	INSERT INTO am_subxact (value) VALUES ('"handled"');
END $$;
SELECT msg_offset, value FROM am_subxact;

-- many subtransactions
DO $$
BEGIN
	FOR i IN 1..100 LOOP
		BEGIN
			INSERT INTO am_subxact (key, value) VALUES ('loop', to_jsonb(i));
			IF i % 2 = 0 THEN
				RAISE EXCEPTION 'undone';
			END IF;
		EXCEPTION WHEN raise_exception THEN
			NULL;
		END;
	END LOOP;
END $$;
SELECT count(*), sum((value #>> '{}')::int) FROM am_subxact WHERE key = 'loop';

-- a volatile function sees what its own command did not
CREATE FUNCTION am_count() RETURNS bigint LANGUAGE sql VOLATILE AS 'SELECT count(*) FROM am_subxact';
CREATE FUNCTION am_count_stable() RETURNS bigint LANGUAGE sql STABLE AS 'SELECT count(*) FROM am_subxact';
SELECT am_count() AS before;
INSERT INTO am_subxact (key, value) SELECT 'stable', to_jsonb(am_count_stable()) FROM generate_series(1, 3);
SELECT value FROM am_subxact WHERE key = 'stable';

-- isolation levels see their snapshot
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT count(*) FROM am_subxact;
INSERT INTO am_subxact (value) VALUES ('"rr"');
SELECT count(*) FROM am_subxact;
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT count(*) FROM am_subxact;
INSERT INTO am_subxact (value) VALUES ('"ser"');
COMMIT;

-- TRUNCATE and DROP roll back
BEGIN;
TRUNCATE am_subxact;
SELECT count(*) FROM am_subxact;
INSERT INTO am_subxact (value) VALUES ('"new file"');
ROLLBACK;
SELECT count(*) FROM am_subxact;
BEGIN;
DROP TABLE am_subxact;
ROLLBACK;
SELECT count(*) FROM am_subxact;
INSERT INTO am_subxact (value) VALUES ('"on"');
SELECT count(*) FROM am_subxact;
BEGIN;
CREATE TABLE am_gone (LIKE narad.topic_template) USING narad;
INSERT INTO am_gone (value) VALUES ('1');
ROLLBACK;
CREATE TABLE am_gone (LIKE narad.topic_template) USING narad;
SELECT count(*) FROM am_gone;
INSERT INTO am_gone (value) VALUES ('1') RETURNING msg_offset;

DROP TABLE am_subxact, am_gone;
DROP FUNCTION am_count, am_count_stable;
