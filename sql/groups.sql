-- I1: every group gets every message, whatever other groups do.
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

SELECT narad.create_topic('groups_topic');
SELECT count(*) FROM narad.produce_array('groups_topic', '[0, 1, 2]');

-- Only the group "default" comes by itself.
SELECT count(*) FROM narad.groups WHERE topic = 'groups_topic'::regclass;
SELECT pg_temp.attempt($$SELECT narad.consume('groups_topic', consumer_group => 'early')$$);
SELECT narad.create_group('groups_topic', 'early');
SELECT narad.create_group('groups_topic', 'late', 'latest');
SELECT narad.create_group('groups_topic', 'long ago', '2001-02-03 04:05:06+00');
SELECT narad.create_group('groups_topic', 'far away', '2999-12-31');
SELECT consumer_group, partition, frontier, end_offset, paused FROM narad.groups
WHERE topic = 'groups_topic'::regclass ORDER BY 1;
SELECT count(*) FROM narad.produce('groups_topic', '3');
SELECT consumer_group, array_agg(msg_offset ORDER BY msg_offset)
FROM unnest(ARRAY['default', 'early', 'late', 'long ago', 'far away']) consumer_group,
	narad.consume('groups_topic', 10, consumer_group => consumer_group)
GROUP BY 1 ORDER BY 1;

-- One that exists is left as it is, with a notice.
SET client_min_messages = notice;
SELECT narad.create_group('groups_topic', 'early', 'latest');
SET client_min_messages = warning;

-- An ack is the group's alone.
SELECT count(*) FROM narad.produce('groups_topic', '4');
SELECT narad.ack(receipt) FROM narad.consume('groups_topic', 10, consumer_group => 'late');
SELECT msg_offset, deliveries FROM narad.consume('groups_topic', 10, consumer_group => 'early');

-- A start at a point in time, between two messages.
SELECT narad.create_topic('groups_time');
SELECT count(*) FROM narad.produce_array('groups_time', '[0, 1, 2]');
SELECT pg_sleep(0.01);
SELECT clock_timestamp() AS middle \gset
SELECT pg_sleep(0.01);
SELECT count(*) FROM narad.produce_array('groups_time', '[3, 4]');
SELECT narad.create_group('groups_time', 'middle', :'middle');
SELECT value FROM narad.consume('groups_time', 10, consumer_group => 'middle');

-- Paused, a group is handed out nothing; what is out can be settled.
SELECT narad.create_group('groups_time', 'pausing');
CREATE TEMP TABLE held AS SELECT * FROM narad.consume('groups_time', 2, consumer_group => 'pausing');
SELECT narad.pause_group('groups_time', 'pausing');
SELECT narad.pause_group('groups_time', 'pausing');
SELECT count(*) FROM narad.consume('groups_time', 10, consumer_group => 'pausing');
SELECT narad.ack(array_agg(receipt)) FROM held;
SELECT frontier, paused FROM narad.groups WHERE topic = 'groups_time'::regclass AND consumer_group = 'pausing';
SELECT narad.resume_group('groups_time', 'pausing');
SELECT msg_offset FROM narad.consume('groups_time', 10, consumer_group => 'pausing');

-- Dropped: leases are void, and a new one of the name starts anew.
CREATE TEMP TABLE dropped AS SELECT * FROM narad.consume('groups_time', 10, consumer_group => 'default');
SELECT narad.drop_group('groups_time', 'default');
SELECT split_part(pg_temp.attempt(format('SELECT narad.ack(%L)', receipt)), ' | ', 1) FROM dropped LIMIT 1;
SELECT msg_offset, deliveries FROM narad.consume('groups_time', 10);

-- Not undone by rollback.
BEGIN;
SELECT narad.create_group('groups_time', 'kept');
SELECT narad.drop_group('groups_time', 'middle');
ROLLBACK;
SELECT DISTINCT consumer_group FROM narad.groups WHERE topic = 'groups_time'::regclass ORDER BY 1;

-- TRUNCATE keeps groups, and their pause; they go on with what comes then.
SELECT narad.pause_group('groups_time', 'kept');
TRUNCATE groups_time;
SELECT consumer_group, frontier, end_offset, in_flight, paused FROM narad.groups
WHERE topic = 'groups_time'::regclass ORDER BY 1;
SELECT msg_offset FROM narad.produce('groups_time', '5');
SELECT msg_offset, value FROM narad.consume('groups_time', 10, consumer_group => 'pausing');

-- Bad arguments.
SELECT pg_temp.attempt('SELECT narad.' || a) FROM unnest(ARRAY[
	'create_group(NULL, ''g'')', 'create_group(''pg_class'', ''g'')', 'create_group(''groups_topic'', NULL)',
	'create_group(''groups_topic'', '''')', 'create_group(''groups_topic'', repeat(''x'', 64))',
	'create_group(''groups_topic'', ''g'', NULL)', 'create_group(''groups_topic'', ''g'', ''sometime'')',
	'create_group(''groups_topic'', ''g'', '''')',
	'drop_group(''groups_topic'', ''no_such'')', 'drop_group(''groups_topic'', NULL)', 'drop_group(NULL, ''g'')',
	'pause_group(''groups_topic'', ''no_such'')', 'pause_group(NULL, ''g'')',
	'resume_group(''groups_topic'', ''no_such'')', 'resume_group(''groups_topic'', NULL)']) a;
SELECT narad.create_group('groups_topic', repeat('x', 63));
SELECT narad.create_group('groups_topic', 'Ünïcode "quoted"');
SELECT count(*) FROM narad.consume('groups_topic', 10, consumer_group => 'Ünïcode "quoted"');

-- Many groups.
SELECT count(narad.create_group('groups_time', 'many ' || i)) FROM generate_series(1, 200) i;
SELECT sum(n) FROM generate_series(1, 200) i,
	LATERAL (SELECT count(*) AS n FROM narad.consume('groups_time', 10, consumer_group => 'many ' || i)) AS s;
SELECT count(DISTINCT consumer_group), sum(in_flight) FROM narad.groups
WHERE topic = 'groups_time'::regclass AND consumer_group LIKE 'many %';
DROP TABLE groups_topic, groups_time;
