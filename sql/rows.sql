-- Results of consume and fetch lie in memory that a backend keeps (sql_rows.c):
-- whoever asks, several at a time, in any order, gets his own rows in full.

\set VERBOSITY terse
SELECT FROM narad.create_topic('r_a');
SELECT FROM narad.create_topic('r_b');
SELECT count(*) FROM generate_series(1, 60) i, narad.produce('r_a', to_jsonb(i));
SELECT count(*) FROM generate_series(101, 160) i, narad.produce('r_b', to_jsonb(i));

-- Two functions in one query, and one called again and again in it.
SELECT sum(a.value::int), sum(b.value::int), count(*)
	FROM narad.consume('r_a', 3) a FULL JOIN narad.consume('r_b', 3) b ON a.msg_offset = b.msg_offset;
SELECT i, array_agg(value ORDER BY msg_offset) FROM generate_series(1, 3) i, LATERAL narad.consume('r_a', 1 + i * 0) GROUP BY i;
SELECT i, array_agg(value ORDER BY msg_offset) FROM generate_series(0, 2) i, LATERAL narad.fetch('r_b', 0, i, 2) GROUP BY i;

-- Cursors that are read in turn, and outlive one another.
BEGIN;
DECLARE a CURSOR FOR SELECT value FROM narad.consume('r_a', 4);
DECLARE b CURSOR FOR SELECT value FROM narad.consume('r_b', 4);
FETCH 2 FROM a;
FETCH 2 FROM b;
SELECT value FROM narad.consume('r_a', 2);
FETCH 2 FROM b;
CLOSE b;
SELECT value FROM narad.consume('r_b', 2);
FETCH 5 FROM a;
DECLARE c CURSOR FOR SELECT value FROM narad.fetch('r_a', 0, 0, 3);
CLOSE a;
FETCH 3 FROM c;
COMMIT;

-- One that stays after its transaction, and one scrolled back.
BEGIN;
DECLARE h CURSOR WITH HOLD FOR SELECT value FROM narad.fetch('r_a', 0, 10, 3);
DECLARE s SCROLL CURSOR FOR SELECT value FROM narad.fetch('r_b', 0, 10, 3);
FETCH ALL FROM s;
FETCH FIRST FROM s;
COMMIT;
SELECT value FROM narad.fetch('r_b', 0, 0, 1);
FETCH ALL FROM h;
CLOSE h;

-- An error in the middle, inside and outside of a subtransaction.
BEGIN;
DECLARE a CURSOR FOR SELECT value FROM narad.consume('r_a', 4);
FETCH 1 FROM a;
SAVEPOINT s;
SELECT 1 / (msg_offset - msg_offset) FROM narad.consume('r_b', 2);
ROLLBACK TO s;
FETCH 1 FROM a;
SELECT value FROM narad.consume('r_b', 1);
SELECT 1 / (msg_offset - msg_offset) FROM narad.fetch('r_b', 0, 0, 2);
ROLLBACK;
SELECT value FROM narad.fetch('r_a', 0, 0, 2);
DO $$
DECLARE
	m narad.message;
	n int := 0;
BEGIN
	FOR m IN SELECT * FROM narad.consume('r_a', 5) LOOP
		BEGIN
			PERFORM 1 / (count(*) - 1) FROM narad.consume('r_b');
		EXCEPTION WHEN division_by_zero THEN
			n := n + (m.value #>> '{}')::int;
		END;
	END LOOP;
	RAISE NOTICE 'of a loop: %', n;
END $$;

-- More than work_mem.
SELECT FROM narad.create_topic('r_large', value_type => 'bytea');
INSERT INTO r_large (value) SELECT decode(repeat(md5(i::text), 600), 'hex') FROM generate_series(1, 60) i;
SELECT count(*), sum(length(value)), count(DISTINCT value) FROM narad.fetch_bytes('r_large', 0, 0, 60);
SET work_mem = '64kB';
SELECT count(*), sum(length(value)), count(DISTINCT value) FROM narad.consume_bytes('r_large', 60);
RESET work_mem;

-- Nothing is left behind: it is not more when all is read a hundred times.
SELECT sum(total_bytes) AS before FROM pg_backend_memory_contexts \gset
SELECT count(*) FROM generate_series(1, 100), narad.fetch_bytes('r_large', 0, 0, 60);
SELECT sum(total_bytes) < :before + 500000 AS small FROM pg_backend_memory_contexts;
DROP TABLE r_a, r_b, r_large;
