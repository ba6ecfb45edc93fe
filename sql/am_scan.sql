-- Every kind of scan returns the same rows: sequential in log order, both
-- ways, parallel, sampled, by TID, through cursors, joins and sorts.
\set VERBOSITY terse
CREATE TABLE am_scan (LIKE narad.topic_template) USING narad;
ALTER TABLE am_scan SET (parallel_workers = 2);
INSERT INTO am_scan (key, value)
	SELECT 'k' || i, to_jsonb(i) FROM generate_series(0, 29999) i;
-- with records that go on over pages between
INSERT INTO am_scan (key, value)
	SELECT 'big', to_jsonb(string_agg(md5((i * 1000 + j)::text), ''))
	FROM generate_series(1, 5) i, generate_series(1, 1000) j GROUP BY i;
INSERT INTO am_scan (key, value) SELECT 'k' || i, to_jsonb(i) FROM generate_series(30005, 30104) i;

SELECT count(*), count(DISTINCT msg_offset), min(msg_offset), max(msg_offset) FROM am_scan;
SELECT count(*), sum(length(value #>> '{}')) FROM am_scan WHERE key = 'big';
SELECT count(*) AS out_of_order
	FROM (SELECT msg_offset - lag(msg_offset) OVER () AS step FROM am_scan) t WHERE step <> 1;

-- parallel
SET max_parallel_workers_per_gather = 2;
SET parallel_setup_cost = 0;
SET parallel_tuple_cost = 0;
SET min_parallel_table_scan_size = 0;
EXPLAIN (COSTS OFF) SELECT count(*), sum(msg_offset) FROM am_scan;
SELECT count(*), sum(msg_offset), count(DISTINCT msg_offset) FROM am_scan;
SELECT count(*), sum(length(value #>> '{}')) FROM am_scan WHERE key = 'big';
-- a parallel plan that feeds an insert
CREATE TABLE am_scan_copy (LIKE narad.topic_template) USING narad;
INSERT INTO am_scan_copy (key, value) SELECT key, value FROM am_scan WHERE key <> 'big';
SELECT count(*), sum((value #>> '{}')::int) FROM am_scan_copy;
DROP TABLE am_scan_copy;
RESET max_parallel_workers_per_gather;
RESET parallel_setup_cost;
RESET parallel_tuple_cost;
RESET min_parallel_table_scan_size;

-- backward, and both ways
BEGIN;
DECLARE c SCROLL CURSOR FOR SELECT msg_offset, key FROM am_scan;
FETCH LAST FROM c;
FETCH BACKWARD 2 FROM c;
FETCH BACKWARD 99 FROM c \g /dev/null
FETCH BACKWARD 4 FROM c;
FETCH FORWARD 2 FROM c;
FETCH FIRST FROM c;
FETCH PRIOR FROM c;
FETCH NEXT FROM c;
MOVE ABSOLUTE 15000 FROM c;
FETCH RELATIVE 0 FROM c;
FETCH NEXT FROM c;
FETCH PRIOR FROM c;
FETCH ABSOLUTE -1 FROM c;
FETCH NEXT FROM c;
FETCH PRIOR FROM c;
COMMIT;
SELECT count(*), bool_and(down) FROM (
	SELECT msg_offset > lead(msg_offset) OVER (ORDER BY msg_offset DESC) AS down FROM am_scan) t;

-- a cursor does not see what is inserted after it was opened
BEGIN;
DECLARE c CURSOR WITH HOLD FOR SELECT msg_offset FROM am_scan WHERE msg_offset > 30100;
INSERT INTO am_scan (value) VALUES ('"later"');
FETCH ALL FROM c;
COMMIT;
FETCH ALL FROM c;
CLOSE c;
SELECT msg_offset, value FROM am_scan WHERE msg_offset > 30104;

-- by TID
SELECT count(*) FROM am_scan a, LATERAL (SELECT b.msg_offset FROM am_scan b WHERE b.ctid = a.ctid) t
	WHERE a.msg_offset = t.msg_offset AND a.msg_offset % 1000 = 0;
SELECT count(*) FROM am_scan WHERE ctid = '(0,1)';
SELECT count(*) FROM am_scan WHERE ctid = '(1,1)';
SELECT count(*) FROM am_scan WHERE ctid = '(0,0)';
SELECT count(*) FROM am_scan WHERE ctid = '(2,65535)';
SELECT count(*) FROM am_scan WHERE ctid = '(4294967294,1)';
SELECT count(*) FROM am_scan WHERE ctid > '(0,0)' AND ctid < '(4294967294,1)';
SELECT count(*) FROM am_scan WHERE ctid > '(4294967294,1)' OR ctid < '(0,0)';
SELECT currtid2('am_scan', ctid) = ctid AS same FROM am_scan WHERE msg_offset = 5;

-- samples
SELECT count(*) FROM am_scan TABLESAMPLE SYSTEM (100);
SELECT count(*) FROM am_scan TABLESAMPLE BERNOULLI (100);
SELECT count(*) FROM am_scan TABLESAMPLE SYSTEM (0);
SELECT count(*) BETWEEN 1 AND 30105 AS some FROM am_scan TABLESAMPLE BERNOULLI (50) REPEATABLE (1);

-- statistics
ANALYZE am_scan;
SELECT reltuples BETWEEN 25000 AND 35000 AS plausible, relpages > 0 AS has_pages
	FROM pg_class WHERE oid = 'am_scan'::regclass;
SELECT attname, null_frac, n_distinct < -0.5 OR n_distinct > 25000 AS many
	FROM pg_stats WHERE tablename = 'am_scan' AND attname IN ('msg_offset', 'partition', 'headers')
	ORDER BY attname;
VACUUM am_scan;
SELECT reltuples FROM pg_class WHERE oid = 'am_scan'::regclass;
CREATE TABLE am_scan_empty (LIKE narad.topic_template) USING narad;
VACUUM ANALYZE am_scan_empty;
SELECT count(*) FROM am_scan_empty TABLESAMPLE SYSTEM (100);
BEGIN;
DECLARE c SCROLL CURSOR FOR SELECT * FROM am_scan_empty;
FETCH NEXT FROM c;
FETCH PRIOR FROM c;
COMMIT;
DROP TABLE am_scan_empty;

-- joins: merge, hash, nested loop with rescans
SET enable_hashjoin = off;
SELECT count(*) FROM am_scan a JOIN am_scan b USING (msg_offset);
SET enable_mergejoin = off;
SET enable_material = off;
SET enable_memoize = off;
SELECT count(*) FROM (SELECT * FROM am_scan WHERE msg_offset % 10000 = 0) a
	JOIN am_scan b ON a.msg_offset = b.msg_offset;
RESET enable_hashjoin;
RESET enable_mergejoin;
RESET enable_material;
RESET enable_memoize;
SELECT count(*) FROM am_scan a JOIN am_scan b USING (msg_offset);

-- a table of a topic's rows: slots change hands
CREATE TABLE am_scan_heap AS SELECT * FROM am_scan;
SELECT count(*), min(tableoid::regclass::text) FROM am_scan_heap;
SELECT tableoid::regclass, count(*) FROM am_scan GROUP BY 1;
DROP TABLE am_scan, am_scan_heap;
