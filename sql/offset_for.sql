-- offset_for_time and offset_for_epoch find what a scan finds, and read few
-- pages for it.  I1: a record of an open transaction is not passed over.
SET client_min_messages = warning;
SET timezone = 'UTC';

-- Positions and times of our own: offset i is produced at second i, and every
-- third offset is left out.  Some 2,500 pages in some 80 segments, and in a few.
SELECT narad.create_topic('of_small', segment_size => '256kB');
SELECT narad.create_topic('of_large', segment_size => '16MB');
INSERT INTO of_small (partition, msg_offset, produced_at, value)
SELECT 0, i, '2020-01-01'::timestamptz + i * interval '1 s', to_jsonb(repeat('x', 1900))
FROM generate_series(0, 15000) i WHERE i % 3 < 2;
INSERT INTO of_large (partition, msg_offset, produced_at, value)
SELECT partition, msg_offset, produced_at, value FROM of_small;
SELECT topic, count(*) > 50 AS many, pg_relation_size(topic) / 8192 > 2500 AS pages
FROM narad.segments WHERE topic IN ('of_small'::regclass, 'of_large'::regclass) GROUP BY topic ORDER BY topic::text;

-- In order, and around the ends.
SELECT t, narad.offset_for_time('of_small', 0, t) AS small, narad.offset_for_time('of_large', 0, t) AS large
FROM unnest('{-infinity, 2019-12-31, 2020-01-01 00:00:00, 2020-01-01 00:00:00.5, 2020-01-01 00:00:02,
	2020-01-01 01:00:00, 2020-01-01 04:10:00, 2020-01-01 04:10:00.1, 2021-01-01, infinity}'::timestamptz[]) t;

-- The same as a scan finds, for every page's border and more.
SELECT count(*), count(*) FILTER (WHERE found IS DISTINCT FROM expected) AS wrong
FROM (SELECT narad.offset_for_time('of_small', 0, '2020-01-01'::timestamptz + i * interval '1 s') AS found,
		i + (i % 3 = 2)::int AS expected FROM generate_series(0, 14997) i) s;
SELECT count(*), count(*) FILTER (WHERE found IS DISTINCT FROM expected) AS wrong
FROM (SELECT narad.offset_for_time('of_large', 0, '2020-01-01'::timestamptz + i * interval '1 s') AS found,
		i + (i % 3 = 2)::int AS expected FROM generate_series(0, 14997) i) s;

-- A call looks at no more pages than two binary searches do: over segments and
-- over the pages of one.  Each look at a segment is two or three pages.
CREATE FUNCTION pg_temp.pages_read(call text) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
	plan json;
BEGIN
	EXECUTE 'SELECT ' || call;	-- what the catalogs cost is paid here
	EXECUTE 'EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT ' || call INTO plan;
	RETURN (plan->0->'Plan'->>'Shared Hit Blocks')::int + (plan->0->'Plan'->>'Shared Read Blocks')::int;
END $$;
SELECT topic, min(n) > 3 AS reads_some, max(n) <= 30 AS reads_few
FROM unnest('{of_small, of_large}'::text[]) topic, generate_series(-100, 15100, 700) i,
	pg_temp.pages_read(format('narad.offset_for_time(%L, 0, timestamptz ''2020-01-01'' + %s * interval ''1 s'')', topic, i)) n
GROUP BY topic ORDER BY topic;
SELECT pg_temp.pages_read($$narad.offset_for_epoch('of_small', 0, 1)$$) <= 30 AS reads_few;

-- Epochs: there is only the first; test/t/085_damage.pl has more.
SELECT e, narad.offset_for_epoch('of_small', 0, e) FROM generate_series(0, 2) e;

-- Of transactions that are open, or that were rolled back, too.
SELECT narad.create_topic('of_open', partitions => 2);
SELECT narad.offset_for_time('of_open', 0, '-infinity') AS nothing_yet, narad.offset_for_epoch('of_open', 1, 1) AS no_epoch;
CREATE TABLE of_empty (LIKE narad.topic_template) USING narad;
SELECT narad.offset_for_time('of_empty', 0, now()) AS never_used, narad.offset_for_epoch('of_empty', 0, 1) AS no_epoch;
INSERT INTO of_open (partition, value) VALUES (0, '1');
BEGIN;
INSERT INTO of_open (partition, value) VALUES (0, '2');
SELECT narad.offset_for_time('of_open', 0, '-infinity'), narad.offset_for_time('of_open', 0, produced_at) AS at_open
FROM of_open WHERE msg_offset = 1;
ROLLBACK;
SELECT narad.offset_for_time('of_open', 0, 'infinity') AS end_offset;
INSERT INTO of_open (partition, value) VALUES (0, '3');
SELECT msg_offset, narad.offset_for_time('of_open', 0, produced_at) <= msg_offset AS not_later FROM of_open ORDER BY msg_offset;

-- A record over many pages begins on the first of them.
INSERT INTO of_open (partition, msg_offset, produced_at, value)
SELECT 1, i, '2020-01-01'::timestamptz + i * interval '1 s',
	(SELECT jsonb_agg(md5(j::text || i)) FROM generate_series(1, 2000) j) FROM generate_series(0, 5) i;
SELECT i, narad.offset_for_time('of_open', 1, '2020-01-01'::timestamptz + i * interval '1 s') AS at,
	narad.offset_for_time('of_open', 1, '2020-01-01'::timestamptz + i * interval '1 s' + interval '1 us') AS after
FROM generate_series(0, 5) i;

-- After TRUNCATE nothing is left, and offsets go on.
TRUNCATE of_open;
SELECT narad.offset_for_time('of_open', 1, '-infinity'), narad.offset_for_time('of_open', 1, 'infinity'),
	narad.offset_for_epoch('of_open', 1, 1);

-- A group that starts at a time gets the same.
SELECT narad.create_group('of_small', 'g', '2020-01-01 00:10:00');
SELECT msg_offset, produced_at FROM narad.consume('of_small', 1, consumer_group => 'g');

-- What is refused.
SELECT narad.offset_for_time(NULL, 0, now());
SELECT narad.offset_for_time('of_small', NULL, now());
SELECT narad.offset_for_time('of_small', 0, NULL);
SELECT narad.offset_for_time('of_small', 1, now());
SELECT narad.offset_for_epoch('of_small', 0, -1);
SELECT narad.offset_for_time('pg_class', 0, now());
CREATE ROLE regress_of_nobody;
SET ROLE regress_of_nobody;
SELECT narad.offset_for_time('of_small', 0, now());
SELECT narad.offset_for_epoch('of_small', 0, 1);
RESET ROLE;
GRANT SELECT ON of_small TO regress_of_nobody;
SET ROLE regress_of_nobody;
SELECT narad.offset_for_time('of_small', 0, '2020-01-01 00:00:03');
RESET ROLE;
BEGIN READ ONLY;
SELECT narad.offset_for_time('of_small', 0, '2020-01-01 00:00:03');
COMMIT;

DROP TABLE of_small, of_large, of_open, of_empty;
DROP ROLE regress_of_nobody;
