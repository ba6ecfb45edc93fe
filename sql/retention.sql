-- I10: what retention does not keep goes, whole segments from the oldest, and
-- its space is used again and given back.  I1: what a group had not settled of
-- it is counted.  I12: offsets go on where they were.
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

-- Eight records fill a page.
CREATE FUNCTION pg_temp.fill(topic regclass, n integer, part integer DEFAULT 0) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE format('INSERT INTO %s (partition, value) SELECT %s, to_jsonb(rpad(i::text || ''.'', 900, ''x'')) FROM generate_series(1, %s) i',
		topic, part, n);
END $$;

-- Settings take effect for the worker at commit: so what a transaction that
-- changes them drops, it drops itself.
CREATE FUNCTION pg_temp.retain(topic regclass, settings text) RETURNS SETOF record
LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE format('SELECT narad.alter_topic(%L, %s)', topic, settings);
	PERFORM pg_sleep(0.01);
	RETURN QUERY EXECUTE format('SELECT * FROM narad.apply_retention(%L)', topic);
END $$;

-- The settings.
SELECT narad.create_topic('rt_age', segment_size => '256kB', segment_age => '1 hour');
SELECT segment_age, cleanup, retention, retention_bytes FROM narad.topics WHERE topic = 'rt_age'::regclass;
SELECT narad.alter_topic('rt_age', cleanup => 'settled', segment_age => '1 day', retention_bytes => 1000000);
SELECT segment_age, cleanup, retention, retention_bytes FROM narad.topics WHERE topic = 'rt_age'::regclass;
SELECT narad.alter_topic('rt_age', reset => '{cleanup,segment_age,retention_bytes}');
SELECT segment_age, cleanup, retention, retention_bytes FROM narad.topics WHERE topic = 'rt_age'::regclass;
SELECT pg_temp.attempt(format('SELECT narad.alter_topic(''rt_age'', %s)', a)) FROM unnest(ARRAY[
	'cleanup => ''''', 'cleanup => ''compact''', 'segment_age => ''-1 day''', 'segment_age => ''0''',
	'retention => ''0''', 'retention_bytes => 0']) a;

-- Nothing is dropped of what is kept.
SELECT * FROM narad.apply_retention('rt_age');
SELECT pg_temp.fill('rt_age', 2000);
SELECT * FROM narad.apply_retention('rt_age');
SELECT earliest, end_offset, segments FROM narad.partitions WHERE topic = 'rt_age'::regclass;

-- By age: the last segment is sealed for it, and an empty one remains, which
-- says where the partition goes on.
SELECT * FROM pg_temp.retain('rt_age', 'retention => ''1 ms''') AS (segments_freed integer, messages_dropped bigint);
SELECT segment_no, state, first_offset FROM narad.segments WHERE topic = 'rt_age'::regclass;
SELECT earliest, end_offset, last_stable, segments FROM narad.partitions WHERE topic = 'rt_age'::regclass;
SELECT messages FROM narad.topics WHERE topic = 'rt_age'::regclass;
SELECT count(*) FROM rt_age;
SELECT * FROM narad.verify('rt_age');
SELECT pg_temp.attempt('SELECT narad.fetch(''rt_age'', 0, 0)');
SELECT pg_temp.attempt('SELECT narad.fetch(''rt_age'', 0, 1999)');
SELECT count(*) FROM narad.fetch('rt_age', 0, 2000);
SELECT pg_temp.attempt('SELECT narad.fetch(''rt_age'', 0, 2001)');
-- A second time there is nothing to do, and nothing to write.
SELECT pg_current_wal_insert_lsn() AS before \gset
SELECT * FROM narad.apply_retention('rt_age');
SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), :'before') < 10000 AS quiet;
SELECT narad.alter_topic('rt_age', reset => '{retention}');
SELECT msg_offset FROM narad.produce('rt_age', '1');
-- Into the empty segment, though the last page that was written is gone.
SELECT state, first_offset FROM narad.segments WHERE topic = 'rt_age'::regclass AND state <> 'spare';
SELECT msg_offset, value FROM rt_age;
SELECT msg_offset, value FROM narad.fetch('rt_age', 0, 2000);
SELECT msg_offset, value FROM narad.consume('rt_age');
DROP TABLE rt_age;

-- By bytes: at least as many are kept, in whole segments.
SELECT narad.create_topic('rt_bytes', segment_size => '256kB', partitions => 2);
SELECT pg_temp.fill('rt_bytes', 2000, 0), pg_temp.fill('rt_bytes', 100, 1);
SELECT segments_freed > 0 AS freed, messages_dropped
FROM pg_temp.retain('rt_bytes', 'retention_bytes => 1048576') AS (segments_freed integer, messages_dropped bigint);
SELECT partition, earliest, end_offset, bytes >= 1048576 AS enough, bytes < 1048576 + 3 * 262144 AS not_more
FROM narad.partitions WHERE topic = 'rt_bytes'::regclass ORDER BY partition;
SELECT partition, count(*), min(msg_offset), max(msg_offset) FROM rt_bytes GROUP BY partition ORDER BY partition;
SELECT * FROM narad.verify('rt_bytes');
-- Space is used again, the lowest first: ten times as much takes no more.
SELECT pg_temp.fill('rt_bytes', 2000, 0) FROM generate_series(1, 2);
SELECT count(*) FROM narad.apply_retention('rt_bytes');
SELECT pg_relation_size('rt_bytes') AS size \gset
SELECT pg_temp.fill('rt_bytes', 1000, 0), count(*) FROM narad.apply_retention('rt_bytes');
SELECT pg_temp.fill('rt_bytes', 1000, 0), count(*) FROM narad.apply_retention('rt_bytes');
SELECT pg_temp.fill('rt_bytes', 1000, 0), count(*) FROM narad.apply_retention('rt_bytes');
SELECT pg_relation_size('rt_bytes') - :size <= 4 * 262144 AS same;
-- The worker does the same when a segment is begun; it may not have come to it.
SELECT count(*) FROM narad.apply_retention('rt_bytes');
SELECT value #>> '{}' LIKE (1 + (msg_offset - 6000) % 1000)::text || '.%' AS right, count(*)
FROM rt_bytes WHERE partition = 0 AND msg_offset >= 6000 GROUP BY 1;
SELECT * FROM narad.verify('rt_bytes');
DROP TABLE rt_bytes;

-- A large record goes on in other segments: its own bytes are no newer ones, and
-- it goes as a whole.
CREATE FUNCTION pg_temp.large(topic regclass) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE format('INSERT INTO %s (value) SELECT to_jsonb(string_agg(encode(sha512(i::text::bytea), ''base64''), ''''))
		FROM generate_series(1, 8000) i', topic);
END $$;
SELECT narad.create_topic('rt_large', segment_size => '256kB');
SELECT pg_temp.fill('rt_large', 100);
SELECT pg_temp.large('rt_large');
SELECT narad.alter_topic('rt_large', retention_bytes => 100000);
SELECT count(*) FROM narad.apply_retention('rt_large');
SELECT min(msg_offset) > 0 AS freed, max(msg_offset), max(length(value::text)) FROM rt_large;
SELECT count(*) FROM narad.segments WHERE topic = 'rt_large'::regclass AND first_offset = end_offset;
SELECT pg_temp.fill('rt_large', 40);
SELECT count(*) FROM narad.apply_retention('rt_large');
SELECT max(length(value::text)) FROM narad.fetch('rt_large', 0, 100, 1);
SELECT * FROM narad.verify('rt_large');
SELECT pg_temp.fill('rt_large', 400);
SELECT count(*) FROM narad.apply_retention('rt_large');
SELECT earliest > 100 AS gone, earliest < 541 - 100 AS enough FROM narad.partitions WHERE topic = 'rt_large'::regclass;
SELECT count(*) FROM narad.segments WHERE topic = 'rt_large'::regclass AND first_offset = end_offset;
SELECT * FROM narad.verify('rt_large');
DROP TABLE rt_large;

-- What all groups have settled.
SELECT narad.create_topic('rt_settled', segment_size => '256kB', cleanup => 'settled');
SELECT narad.create_group('rt_settled', 'a');
SELECT narad.create_group('rt_settled', 'unused');
SELECT pg_temp.fill('rt_settled', 1000);
-- No group has settled anything.
SELECT * FROM narad.apply_retention('rt_settled');
-- The page, not memory, says what is settled: acks of a transaction with an id
-- are on it with the next write, by the worker.
CREATE FUNCTION pg_temp.settle(topic regclass, grp text, n integer) RETURNS bigint
LANGUAGE sql AS $$
	WITH taken AS MATERIALIZED (SELECT receipt FROM narad.consume(topic, n, consumer_group => grp)),
		acked AS MATERIALIZED (SELECT accepted FROM (SELECT array_agg(receipt) r FROM taken) t, narad.try_ack(t.r))
	SELECT count(*) FROM acked WHERE accepted
$$;
CREATE PROCEDURE pg_temp.until_written(what regclass) LANGUAGE plpgsql AS $$
BEGIN
	COMMIT;
	WHILE EXISTS (SELECT FROM narad.groups WHERE topic = what AND unpersisted_ranges > 0) LOOP
		PERFORM pg_sleep(0.01);
		COMMIT;
	END LOOP;
END $$;
SELECT sum(pg_temp.settle('rt_settled', 'a', 500)) FROM generate_series(1, 2);
SELECT narad.create_group('rt_settled', 'b', 'latest');
CALL pg_temp.until_written('rt_settled');
SELECT count(*) FROM narad.apply_retention('rt_settled');
-- Both are done with it; 'unused' never began, and does not count.
SELECT state, count(*) FROM narad.segments WHERE topic = 'rt_settled'::regclass AND state <> 'spare' GROUP BY state;
SELECT earliest > 800 AS dropped FROM narad.partitions WHERE topic = 'rt_settled'::regclass;
-- One group has not begun with what is new: it stays.
SELECT pg_temp.fill('rt_settled', 1000);
SELECT sum(pg_temp.settle('rt_settled', 'a', 500)) FROM generate_series(1, 2);
CALL pg_temp.until_written('rt_settled');
SELECT count(*) FROM narad.apply_retention('rt_settled');
SELECT earliest <= 1000 AS kept FROM narad.partitions WHERE topic = 'rt_settled'::regclass;
SELECT sum(pg_temp.settle('rt_settled', 'b', 500)) FROM generate_series(1, 2);
CALL pg_temp.until_written('rt_settled');
SELECT count(*) FROM narad.apply_retention('rt_settled');
SELECT count(*) <= 2 AS few FROM narad.segments WHERE topic = 'rt_settled'::regclass;
SELECT consumer_group, frontier, lost_to_retention FROM narad.groups WHERE topic = 'rt_settled'::regclass ORDER BY 1;
SELECT * FROM narad.verify('rt_settled');
DROP TABLE rt_settled;

-- What has deduplication ids stays until they need not be known any more.
SELECT narad.create_topic('rt_ids', segment_size => '256kB', cleanup => 'settled', dedup_window => '1 hour');
SELECT pg_temp.fill('rt_ids', 300);
SELECT msg_offset FROM narad.produce('rt_ids', '"once"', dedup_id => 'once');
SELECT pg_temp.fill('rt_ids', 300);
SELECT sum(pg_temp.settle('rt_ids', 'default', 301)) FROM generate_series(1, 2);
CALL pg_temp.until_written('rt_ids');
SELECT count(*) FROM narad.apply_retention('rt_ids');
SELECT earliest > 0 AND earliest <= 300 AS kept FROM narad.partitions WHERE topic = 'rt_ids'::regclass;
SELECT msg_offset FROM narad.produce('rt_ids', '"again"', dedup_id => 'once');
-- VACUUM leaves that as it is.
VACUUM (FREEZE) rt_ids;
SELECT count(*) FROM narad.apply_retention('rt_ids');
SELECT msg_offset FROM narad.produce('rt_ids', '"again"', dedup_id => 'once');
SELECT * FROM narad.verify('rt_ids');
SELECT narad.alter_topic('rt_ids', dedup_window => '1 ms');
SELECT count(*) FROM narad.apply_retention('rt_ids');
SELECT count(*) <= 2 AS few FROM narad.segments WHERE topic = 'rt_ids'::regclass;
SELECT msg_offset FROM narad.produce('rt_ids', '"later"', dedup_id => 'once');
DROP TABLE rt_ids;

-- Nobody but a group that is dropped was waited for.
SELECT narad.create_topic('rt_group', segment_size => '256kB', cleanup => 'settled');
SELECT narad.create_group('rt_group', 'slow', 'earliest');
SELECT pg_temp.fill('rt_group', 600);
SELECT pg_temp.settle('rt_group', 'slow', 1);
SELECT sum(pg_temp.settle('rt_group', 'default', 300)) FROM generate_series(1, 2);
CALL pg_temp.until_written('rt_group');
SELECT count(*) FROM narad.apply_retention('rt_group');
SELECT earliest FROM narad.partitions WHERE topic = 'rt_group'::regclass;
SELECT narad.drop_group('rt_group', 'slow');
-- The worker does the rest.
CREATE PROCEDURE pg_temp.until_dropped(what regclass) LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1 .. 6000 LOOP
		COMMIT;
		EXIT WHEN EXISTS (SELECT FROM narad.partitions WHERE topic = what AND earliest > 0);
		PERFORM pg_sleep(0.01);
	END LOOP;
END $$;
CALL pg_temp.until_dropped('rt_group');
SELECT earliest > 0 AS dropped FROM narad.partitions WHERE topic = 'rt_group'::regclass;
DROP TABLE rt_group;

-- A large record is settled, and goes; what it left in the segment that stays,
-- for what else it holds, is no damage.
SELECT narad.create_topic('rt_large', segment_size => '256kB', cleanup => 'settled');
SELECT pg_temp.fill('rt_large', 100);
SELECT pg_temp.large('rt_large');
SELECT pg_temp.fill('rt_large', 20);
SELECT sum(pg_temp.settle('rt_large', 'default', n)) FROM unnest(ARRAY[100, 1]) n;
CALL pg_temp.until_written('rt_large');
SELECT count(*) FROM narad.apply_retention('rt_large');
SELECT earliest, end_offset FROM narad.partitions WHERE topic = 'rt_large'::regclass;
SELECT * FROM narad.verify('rt_large');
SELECT count(*), min(msg_offset) FROM rt_large;
SELECT count(*), min(msg_offset) FROM narad.consume('rt_large', 100);
DROP TABLE rt_large;

-- A group that is overtaken: it goes on at the earliest message, and knows what
-- it lost.  Settled before: 0 to 9 and 20 to 29 of 2000.
SELECT narad.create_topic('rt_lost', segment_size => '256kB');
SELECT narad.create_group('rt_lost', 'late');
SELECT pg_temp.fill('rt_lost', 2000);
CREATE TEMP TABLE taken AS SELECT receipt, msg_offset FROM narad.consume('rt_lost', 40);
SELECT count(*) FROM (SELECT array_agg(receipt) r FROM taken WHERE msg_offset < 10 OR msg_offset BETWEEN 20 AND 29) t, narad.try_ack(r);
SELECT narad.nack(receipt) FROM taken WHERE msg_offset = 12;
SELECT narad.nack(receipt, '1 hour') FROM taken WHERE msg_offset = 13;
SELECT frontier, in_flight, scheduled, acked_ahead_ranges, lost_to_retention
FROM narad.groups WHERE topic = 'rt_lost'::regclass AND consumer_group = 'default';
BEGIN;
SELECT narad.ack(receipt) FROM taken WHERE msg_offset = 14;
SELECT * FROM pg_temp.retain('rt_lost', 'retention => ''1 ms''') AS (segments_freed integer, messages_dropped bigint);
COMMIT;
SELECT consumer_group, frontier, in_flight, scheduled, returned, acked_ahead_ranges, lost_to_retention
FROM narad.groups WHERE topic = 'rt_lost'::regclass ORDER BY 1;
SELECT count(*) FROM narad.leases WHERE topic = 'rt_lost'::regclass;
SELECT DISTINCT accepted, reason FROM (SELECT array_agg(receipt) r FROM taken WHERE msg_offset >= 10) t, narad.try_ack(r);
SELECT pg_temp.attempt(format('SELECT narad.ack(%L)', receipt)) FROM taken WHERE msg_offset = 11;
SELECT pg_temp.attempt(format('SELECT narad.nack(%L)', receipt)) FROM taken WHERE msg_offset = 14;
SELECT pg_temp.attempt(format('SELECT narad.extend(%L)', receipt)) FROM taken WHERE msg_offset = 39;
SELECT count(*) FROM narad.consume('rt_lost', 10);
SELECT narad.alter_topic('rt_lost', reset => '{retention}');
SELECT msg_offset FROM narad.produce('rt_lost', '1');
SELECT msg_offset, deliveries FROM narad.consume('rt_lost', 10);
-- A group that has no position yet loses nothing.
SELECT msg_offset, deliveries FROM narad.consume('rt_lost', 10, consumer_group => 'late');
SELECT * FROM narad.verify('rt_lost');
DROP TABLE rt_lost, taken;

-- It passes the middle of a leased batch: what is above is settled by its ack, what
-- is below is lost and its ack refused, be it gone before the ack or before the
-- commit of the ack.
SELECT narad.create_topic('rt_middle', segment_size => '256kB', visibility_timeout => '1 hour');
SELECT pg_temp.fill('rt_middle', 600);
CREATE TEMP TABLE taken AS SELECT receipt, msg_offset FROM narad.consume('rt_middle', 500);
SELECT messages_dropped FROM pg_temp.retain('rt_middle', 'retention_bytes => 400000') AS (segments_freed integer, messages_dropped bigint);
SELECT earliest FROM narad.partitions WHERE topic = 'rt_middle'::regclass;
SELECT frontier, in_flight, lost_to_retention FROM narad.groups WHERE topic = 'rt_middle'::regclass;
SELECT a.accepted, a.reason, count(*), min(msg_offset), max(msg_offset)
FROM (SELECT array_agg(receipt ORDER BY msg_offset DESC) r FROM taken WHERE msg_offset % 2 = 1) t, narad.try_ack(r) a JOIN taken USING (receipt)
GROUP BY 1, 2 ORDER BY 1;
SELECT frontier, in_flight, acked_ahead_ranges, lost_to_retention FROM narad.groups WHERE topic = 'rt_middle'::regclass;
BEGIN;
SELECT count(*) FROM (SELECT array_agg(receipt) r FROM taken WHERE msg_offset % 2 = 0) t, narad.try_ack(r) WHERE accepted;
SELECT messages_dropped FROM pg_temp.retain('rt_middle', 'retention_bytes => 150000') AS (segments_freed integer, messages_dropped bigint);
SELECT frontier, in_flight, acked_ahead_ranges, lost_to_retention FROM narad.groups WHERE topic = 'rt_middle'::regclass;
COMMIT;
SELECT frontier, in_flight, acked_ahead_ranges, lost_to_retention FROM narad.groups WHERE topic = 'rt_middle'::regclass;
SELECT pg_temp.attempt(format('SELECT narad.ack(%L)', receipt)) FROM taken WHERE msg_offset IN (0, 383, 384) ORDER BY msg_offset;
-- A group cannot be moved to what is not there, and loses nothing by being moved to
-- where it begins.
SELECT pg_temp.attempt(format('SELECT narad.seek(''rt_middle'', ''default'', 0, %s)', o)) FROM unnest('{0,383,601}'::int[]) o;
SELECT narad.seek('rt_middle', 'default', 0, 384);
SELECT count(*), min(msg_offset), max(deliveries) FROM narad.consume('rt_middle', 1000);
SELECT frontier, lost_to_retention FROM narad.groups WHERE topic = 'rt_middle'::regclass;
SELECT * FROM narad.verify('rt_middle');
DROP TABLE rt_middle, taken;

-- One lease that is extended, or one message that is due in a month, keeps its
-- segment and all behind it, where everything else is settled; and none before it.
SELECT narad.create_topic('rt_leased', segment_size => '256kB', cleanup => 'settled');
SELECT narad.create_topic('rt_delayed', segment_size => '256kB', cleanup => 'settled');
SELECT pg_temp.fill('rt_leased', 700), pg_temp.fill('rt_delayed', 700);
SELECT msg_offset FROM narad.produce('rt_delayed', '"later"', deliver_after => '30 days');
SELECT pg_temp.fill('rt_leased', 800), pg_temp.fill('rt_delayed', 799);
SELECT pg_temp.settle('rt_leased', 'default', 700);
SELECT receipt, msg_offset FROM narad.consume('rt_leased') \gset leased_
SELECT narad.extend(:'leased_receipt', '1 hour') > now() AS extended, :leased_msg_offset AS msg_offset;
SELECT pg_temp.settle('rt_leased', 'default', 1000);
SELECT sum(pg_temp.settle('rt_delayed', 'default', 1000)) FROM generate_series(1, 2);
CALL pg_temp.until_written('rt_leased');
CALL pg_temp.until_written('rt_delayed');
SELECT count(*) FROM unnest('{rt_leased,rt_delayed}'::regclass[]) t, narad.apply_retention(t);
SELECT p.topic, earliest, p.end_offset, frontier, acked_ahead_ranges, in_flight, scheduled, lost_to_retention
FROM narad.partitions p JOIN narad.groups g USING (topic) WHERE topic IN ('rt_leased'::regclass, 'rt_delayed'::regclass) ORDER BY 1;
-- Limits of bytes and of age do not ask for them.
SELECT messages_dropped FROM pg_temp.retain('rt_leased', 'retention_bytes => 400000') AS (segments_freed integer, messages_dropped bigint);
SELECT messages_dropped FROM pg_temp.retain('rt_delayed', 'retention => ''1 ms''') AS (segments_freed integer, messages_dropped bigint);
SELECT pg_temp.attempt(format('SELECT narad.ack(%L)', :'leased_receipt'));
CALL pg_temp.until_written('rt_leased');
CALL pg_temp.until_written('rt_delayed');
SELECT count(*) FROM unnest('{rt_leased,rt_delayed}'::regclass[]) t, narad.apply_retention(t);
SELECT p.topic, earliest, p.end_offset, frontier, acked_ahead_ranges, in_flight, lost_to_retention
FROM narad.partitions p JOIN narad.groups g USING (topic) WHERE topic IN ('rt_leased'::regclass, 'rt_delayed'::regclass) ORDER BY 1;
SELECT v.* FROM unnest('{rt_leased,rt_delayed}'::regclass[]) t, narad.verify(t) v;
DROP TABLE rt_leased, rt_delayed;

-- What the transaction itself has appended stays; so does what came before it
-- in the same segments only as long.
SELECT narad.create_topic('rt_open', segment_size => '256kB');
SELECT pg_temp.fill('rt_open', 1000);
BEGIN;
SELECT msg_offset FROM narad.produce('rt_open', '1');
SELECT pg_temp.fill('rt_open', 500);
SELECT segments_freed > 0 AS freed FROM pg_temp.retain('rt_open', 'retention => ''1 ms''') AS (segments_freed integer, messages_dropped bigint);
SELECT earliest <= 1000 AS kept, end_offset FROM narad.partitions WHERE topic = 'rt_open'::regclass;
SELECT count(*) FROM rt_open WHERE msg_offset >= 1000;
COMMIT;
SELECT count(*) FROM narad.apply_retention('rt_open');
SELECT earliest, end_offset FROM narad.partitions WHERE topic = 'rt_open'::regclass;
DROP TABLE rt_open;

-- Times that were brought are not taken for the age: a restore is not dropped
-- before anybody has seen it.
CREATE TABLE rt_restore (LIKE narad.topic_template) USING narad;
INSERT INTO rt_restore (partition, msg_offset, produced_at, value)
	SELECT 0, 1000 + i, '2020-01-01 00:00 UTC', to_jsonb(i) FROM generate_series(1, 1000) i;
SELECT * FROM narad.apply_retention('rt_restore');
SELECT count(*), min(produced_at) AT TIME ZONE 'UTC' AS produced_at FROM rt_restore;
DROP TABLE rt_restore;

-- The end of the file is given back; a cursor of this session keeps it.
SELECT narad.create_topic('rt_cut', segment_size => '256kB');
SELECT pg_temp.fill('rt_cut', 8000);
SELECT pg_relation_size('rt_cut') AS size \gset
BEGIN;
DECLARE c CURSOR FOR SELECT msg_offset FROM rt_cut;
FETCH 1 FROM c;
SELECT segments_freed > 30 AS freed, messages_dropped FROM pg_temp.retain('rt_cut', 'retention => ''1 ms''') AS (segments_freed integer, messages_dropped bigint);
SELECT pg_relation_size('rt_cut') >= :size AS kept;
RESET client_min_messages;
FETCH FORWARD ALL FROM c;
SET client_min_messages = warning;
COMMIT;
-- Whoever uses the topic at the moment (the worker may) puts it off.
SELECT set_config('rt.size', :'size', false) <> '' AS noted;
DO $$
BEGIN
	FOR i IN 1 .. 1000 LOOP
		PERFORM narad.apply_retention('rt_cut');
		EXIT WHEN pg_relation_size('rt_cut') < current_setting('rt.size')::bigint / 8;
		PERFORM pg_sleep(0.02);
	END LOOP;
END $$;
SELECT pg_relation_size('rt_cut') < :size / 8 AS given_back;
SELECT narad.alter_topic('rt_cut', reset => '{retention}');
SELECT pg_temp.fill('rt_cut', 1000);
SELECT count(*), min(msg_offset), max(msg_offset) FROM rt_cut;
SELECT * FROM narad.verify('rt_cut');
DROP TABLE rt_cut;

-- Unlogged, and made in this transaction.
CREATE UNLOGGED TABLE rt_unlogged (LIKE narad.topic_template) USING narad;
SELECT pg_temp.fill('rt_unlogged', 3000);
SELECT messages_dropped FROM pg_temp.retain('rt_unlogged', 'retention => ''1 ms''') AS (segments_freed integer, messages_dropped bigint);
SELECT count(*) FROM rt_unlogged;
DROP TABLE rt_unlogged;
BEGIN;
SELECT narad.create_topic('rt_young', segment_size => '256kB', retention => '1 ms');
SELECT pg_temp.fill('rt_young', 3000);
SELECT * FROM narad.apply_retention('rt_young');
SELECT count(*) FROM rt_young;
ROLLBACK;

-- Who may, and how.
SELECT narad.create_topic('rt_mine');
SELECT pg_temp.attempt('SELECT narad.apply_retention(''pg_class'')');
CREATE ROLE rt_role;
GRANT ALL ON rt_mine TO rt_role;
SET ROLE rt_role;
SELECT pg_temp.attempt('SELECT narad.apply_retention(''rt_mine'')');
SELECT * FROM narad.apply_retention();
RESET ROLE;
BEGIN READ ONLY;
SELECT pg_temp.attempt('SELECT narad.apply_retention(''rt_mine'')');
ROLLBACK;
SELECT count(*) FROM narad.apply_retention();
DROP TABLE rt_mine;
DROP ROLE rt_role;
