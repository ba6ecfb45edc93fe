-- Rows come back as they were put in, at the positions that the insert
-- reported, whatever way they came: INSERT, RETURNING, SELECT, COPY.
-- I1: a committed message is there.
\set VERBOSITY terse
CREATE TABLE am_insert (LIKE narad.topic_template) USING narad;

-- an empty file is a valid topic
SELECT count(*) FROM am_insert;
SELECT pg_relation_size('am_insert');

-- positions are assigned, and told
INSERT INTO am_insert (key, value) VALUES ('a', '1')
	RETURNING partition, msg_offset, produced_at IS NOT NULL AS has_time, key, value, headers;
INSERT INTO am_insert (value, headers) VALUES ('2', '{"h": 1}'), ('3', NULL), (NULL, NULL)
	RETURNING partition, msg_offset, key, value, headers;
SELECT partition, msg_offset, key, value, headers FROM am_insert;

-- RETURNING shows what is stored, system columns included
WITH put AS (INSERT INTO am_insert (value) VALUES ('4')
			 RETURNING ctid, tableoid, xmin::text, msg_offset, produced_at)
SELECT put.tableoid::regclass, put.xmin = pg_current_xact_id()::xid::text AS own_xmin, msg_offset FROM put;
WITH put AS (INSERT INTO am_insert (value) VALUES ('5') RETURNING *)
SELECT count(*) FROM put WHERE produced_at <= clock_timestamp();
SELECT count(*) AS same FROM am_insert a JOIN am_insert b ON a.ctid = b.ctid
	WHERE a.msg_offset = b.msg_offset;

-- times never go back
SELECT count(*) FROM (SELECT produced_at < lag(produced_at) OVER (ORDER BY msg_offset) AS back
					  FROM am_insert) t WHERE back;

-- INSERT ... SELECT from the topic itself sees the rows before it only
INSERT INTO am_insert (key, value) SELECT key, value FROM am_insert;
SELECT count(*), min(msg_offset), max(msg_offset), count(DISTINCT msg_offset) FROM am_insert;

-- COPY in and out
COPY am_insert (key, value) FROM STDIN;
copied	{"n": 1}
\N	{"n": 2}
\.
COPY (SELECT partition, msg_offset, key, value FROM am_insert WHERE msg_offset >= 12) TO STDOUT;
COPY am_insert (partition, key, value) FROM STDIN (FREEZE false);
0	named	{"n": 3}
\.

-- many at once, over pages and segments, in order
INSERT INTO am_insert (key, value)
	SELECT 'k' || i, jsonb_build_object('i', i, 'pad', repeat('x', i % 300))
	FROM generate_series(1, 20000) i;
SELECT count(*), count(DISTINCT msg_offset), bool_and((value ->> 'i')::int = msg_offset - 14)
	FROM am_insert WHERE key ~ '^k\d' AND msg_offset > 14;
SELECT count(*) AS out_of_order
	FROM (SELECT msg_offset - lag(msg_offset) OVER () AS step FROM am_insert) t WHERE step <> 1;

-- what a row may ask for
INSERT INTO am_insert (partition, value) VALUES (1, '0');
INSERT INTO am_insert (partition, value) VALUES (-1, '0');
INSERT INTO am_insert (msg_offset, value) VALUES (5, '0');
INSERT INTO am_insert (partition, msg_offset, value) VALUES (0, 5, '0');
INSERT INTO am_insert (partition, msg_offset, value) VALUES (0, -1, '0');
INSERT INTO am_insert (partition, msg_offset, value) VALUES (0, 4611686018427387905, '0');
INSERT INTO am_insert (partition, msg_offset, produced_at, value) VALUES (0, 100000, 'infinity', '0');
INSERT INTO am_insert (partition, msg_offset, value) VALUES (0, 100000, '"far"')
	RETURNING partition, msg_offset, value;
INSERT INTO am_insert (value) VALUES ('"after"') RETURNING msg_offset;
INSERT INTO am_insert (partition, msg_offset, produced_at, value)
	VALUES (0, 100010, '2001-01-01 00:00+00', '"old"');
SELECT msg_offset, value, produced_at > '2002-01-01' AS raised FROM am_insert WHERE msg_offset >= 100000;

-- only the owner may
CREATE ROLE regress_narad_am;
GRANT INSERT, SELECT ON am_insert TO regress_narad_am;
SET ROLE regress_narad_am;
INSERT INTO am_insert (partition, msg_offset, value) VALUES (0, 200000, '0');
INSERT INTO am_insert (value) VALUES ('"granted"') RETURNING msg_offset;
RESET ROLE;

-- a dump's COPY keeps offsets
CREATE TABLE am_restore (LIKE narad.topic_template) USING narad;
COPY am_restore FROM STDIN;
0	7	2020-01-01 00:00:00+00	a	1	\N
0	8	2020-01-01 00:00:01+00	\N	2	{"h": 1}
0	1000000	2020-06-01 00:00:00+00	c	\N	\N
\.
SELECT partition, msg_offset, produced_at = '2020-01-01 00:00:00+00' AS t, key, value, headers FROM am_restore;
INSERT INTO am_restore (value) VALUES ('4') RETURNING msg_offset;

-- AFTER triggers and transition tables see what was assigned
CREATE TABLE am_log (kind text, partition int, msg_offset bigint, value jsonb);
CREATE FUNCTION am_row_trigger() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO am_log VALUES ('row', NEW.partition, NEW.msg_offset, NEW.value);
	RETURN NULL;
END $$;
CREATE FUNCTION am_statement_trigger() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO am_log SELECT 'statement', partition, msg_offset, value FROM new_rows;
	RETURN NULL;
END $$;
CREATE FUNCTION am_before_trigger() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	NEW.value := NEW.value || '{"before": true}';
	RETURN NEW;
END $$;
CREATE TRIGGER am_row AFTER INSERT ON am_restore FOR EACH ROW EXECUTE FUNCTION am_row_trigger();
CREATE TRIGGER am_statement AFTER INSERT ON am_restore REFERENCING NEW TABLE AS new_rows
	FOR EACH STATEMENT EXECUTE FUNCTION am_statement_trigger();
CREATE TRIGGER am_before BEFORE INSERT ON am_restore FOR EACH ROW EXECUTE FUNCTION am_before_trigger();
INSERT INTO am_restore (value) VALUES ('{"n": 1}'), ('{"n": 2}');
COPY am_restore (value) FROM STDIN;
{"n": 3}
{"n": 4}
\.
SELECT * FROM am_log ORDER BY kind, msg_offset;

-- ON CONFLICT without an arbiter is a plain insert; MERGE may insert
INSERT INTO am_restore (value) VALUES ('{}') ON CONFLICT DO NOTHING;
MERGE INTO am_restore t USING (VALUES (2000000)) AS v (n) ON t.msg_offset = v.n
	WHEN NOT MATCHED THEN INSERT (value) VALUES ('{"merged": true}');
SELECT msg_offset, value FROM am_restore WHERE msg_offset > 1000005;

DROP TABLE am_insert, am_restore, am_log;
DROP FUNCTION am_row_trigger, am_statement_trigger, am_before_trigger;
DROP ROLE regress_narad_am;
