-- I3: freezing makes no record of an aborted transaction visible, and loses
-- none that committed; VACUUM looks at no page that it has frozen.  Wraparound
-- itself is in test/t/100_wraparound.pl.
SET client_min_messages = warning;
SELECT narad.create_topic('va_topic', partitions => 2, segment_size => '256kB');
SELECT narad.create_topic('va_empty');
RESET client_min_messages;

-- What VERBOSE tells; its detail has transaction ids.
CREATE FUNCTION pg_temp.segments(topic regclass) RETURNS TABLE (partition int, sealed bigint, frozen bigint, open bigint) LANGUAGE sql AS $$
	SELECT partition, count(*) FILTER (WHERE state = 'sealed'), count(*) FILTER (WHERE frozen), count(*) FILTER (WHERE state = 'open')
	FROM narad.segments s WHERE s.topic = segments.topic GROUP BY partition ORDER BY partition $$;
CREATE FUNCTION pg_temp.hash(topic regclass) RETURNS text LANGUAGE plpgsql AS $$
	DECLARE h text;
	BEGIN
		EXECUTE format('SELECT count(*) || '' '' || md5(string_agg(partition || '':'' || msg_offset || value, '','' ORDER BY partition, msg_offset)) FROM %s', topic) INTO h;
		RETURN h;
	END $$;

-- Until no other transaction of the database is older than what was committed
-- last: the worker's, or autovacuum's.
CREATE PROCEDURE pg_temp.wait_for_others() LANGUAGE plpgsql AS $$
	BEGIN
		FOR i IN 1 .. 6000 LOOP
			EXIT WHEN NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid <> pg_backend_pid()
				AND datname = current_database() AND age(backend_xmin) > 0);
			PERFORM pg_sleep(0.01), pg_stat_clear_snapshot();
		END LOOP;
	END $$;

-- Partition 0 holds committed records only, partition 1 those of two that
-- were rolled back, too, one of them by a savepoint.
INSERT INTO va_topic (partition, value) SELECT i % 2, to_jsonb(rpad(i::text, 900, 'x')) FROM generate_series(1, 800) i;
BEGIN;
INSERT INTO va_topic (partition, value) SELECT 1, '"aborted"' FROM generate_series(1, 100) i;
ROLLBACK;
BEGIN;
INSERT INTO va_topic (partition, value) VALUES (1, '"before"');
SAVEPOINT s;
INSERT INTO va_topic (partition, value) SELECT 1, '"rolled back"' FROM generate_series(1, 100) i;
ROLLBACK TO s;
INSERT INTO va_topic (partition, value) VALUES (1, '"after"');
COMMIT;
INSERT INTO va_topic (partition, value) SELECT i % 2, to_jsonb(rpad(i::text, 900, 'x')) FROM generate_series(1, 800) i;
-- A segment of nothing but aborted records.
BEGIN;
INSERT INTO va_topic (partition, value) SELECT 0, to_jsonb(rpad(i::text, 900, 'x')) FROM generate_series(1, 800) i;
ROLLBACK;
INSERT INTO va_topic (partition, value) SELECT i % 2, to_jsonb(rpad(i::text, 900, 'x')) FROM generate_series(1, 300) i;
SELECT pg_temp.hash('va_topic') AS before \gset
SELECT relfrozenxid AS old_frozenxid, relminmxid AS old_minmxid FROM pg_class WHERE oid = 'va_topic'::regclass \gset
SELECT sealed > 5 AS sealed, frozen, open FROM pg_temp.segments('va_topic');

-- Nothing is old enough for a plain one.
\set VERBOSITY terse
VACUUM (VERBOSE) va_empty;
VACUUM (VERBOSE) va_topic;
-- Sealed segments are, when the age is 0; open ones stay.
SET vacuum_freeze_min_age = 0;
CALL pg_temp.wait_for_others();
VACUUM va_topic;
RESET vacuum_freeze_min_age;
SELECT sealed - frozen AS left, open FROM pg_temp.segments('va_topic');
SELECT pg_temp.hash('va_topic') = :'before' AS same;
SELECT * FROM narad.verify('va_topic');

-- FREEZE moves relfrozenxid to the present, whatever is open.
CALL pg_temp.wait_for_others();
VACUUM (FREEZE, VERBOSE) va_topic;
SELECT age(relfrozenxid) < 10 AS young, age(relfrozenxid) <= age(:'old_frozenxid'::xid) AS moved,
	mxid_age(relminmxid) <= mxid_age(:'old_minmxid'::xid) AS minmxid FROM pg_class WHERE oid = 'va_topic'::regclass;
SELECT pg_temp.hash('va_topic') = :'before' AS same;
SELECT * FROM narad.verify('va_topic');
SELECT count(*) FROM narad.fetch('va_topic', 1, 0, 10000) WHERE value IN ('"aborted"', '"rolled back"');
SELECT string_agg(value::text, ' ' ORDER BY msg_offset) FROM narad.fetch('va_topic', 1, 0, 10000) WHERE value IN ('"before"', '"after"');
-- Rows of frozen segments are frozen for everybody who looks at xmin.
SELECT bool_and(xmin::text::bigint > 2) AS named FROM va_topic;

-- Once more: no data page is read.  The open segments have a few.
CREATE TEMP TABLE va_io AS SELECT heap_blks_read + heap_blks_hit AS blocks FROM pg_statio_user_tables WHERE false;
CALL pg_temp.wait_for_others();
SELECT pg_stat_force_next_flush();
INSERT INTO va_io SELECT heap_blks_read + heap_blks_hit FROM pg_statio_user_tables WHERE relid = 'va_topic'::regclass;
VACUUM (FREEZE) va_topic;
SELECT pg_stat_force_next_flush();
SELECT s.heap_blks_read + s.heap_blks_hit - v.blocks < 40 AS few, c.relpages > 200 AS many
FROM pg_statio_user_tables s, va_io v, pg_class c WHERE s.relid = 'va_topic'::regclass AND c.oid = s.relid;

-- Open segments stay open, and are frozen in place.
TRUNCATE va_topic;
INSERT INTO va_topic (partition, value) SELECT 0, to_jsonb(rpad(i::text, 900, 'x')) FROM generate_series(1, 40) i;
INSERT INTO va_topic (partition, value) VALUES (1, '"one"');
SELECT * FROM pg_temp.segments('va_topic');
CALL pg_temp.wait_for_others();
VACUUM (FREEZE, VERBOSE) va_topic;
SELECT * FROM pg_temp.segments('va_topic');
INSERT INTO va_topic (partition, value) VALUES (0, '"next"'), (1, '"two"');
SELECT * FROM pg_temp.segments('va_topic');
SELECT partition, msg_offset, value FROM va_topic WHERE length(value::text) < 10 ORDER BY 1, 2;
SELECT count(*) FROM narad.consume('va_topic', 100);
SELECT * FROM narad.verify('va_topic');

-- An unlogged topic, and the options that have nothing to do.
CREATE UNLOGGED TABLE va_unlogged (LIKE narad.topic_template) USING narad;
INSERT INTO va_unlogged (value) SELECT to_jsonb(rpad(i::text, 900, 'x')) FROM generate_series(1, 300) i;
CALL pg_temp.wait_for_others();
VACUUM (FREEZE, DISABLE_PAGE_SKIPPING, INDEX_CLEANUP ON, TRUNCATE, PARALLEL 2, ANALYZE, VERBOSE) va_unlogged;
SELECT count(*) FROM va_unlogged;
SELECT * FROM narad.verify('va_unlogged');
ALTER TABLE va_topic SET (autovacuum_freeze_max_age = 100000, autovacuum_freeze_min_age = 0, autovacuum_freeze_table_age = 100000);
SET client_min_messages = warning;
SELECT narad.drop_topic('va_topic'), narad.drop_topic('va_empty'), narad.drop_topic('va_unlogged');
