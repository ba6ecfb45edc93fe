-- Topics are made, altered, dropped and emptied by the calls for that, and a
-- topic is a table like any other to the catalogs.
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

SELECT narad.create_topic('topics_plain');
SELECT narad.create_topic('topics_many', partitions => 4, segment_size => '1MB',
	retention => '3 days', retention_bytes => 1000000,
	visibility_timeout => '2 min', max_in_flight => 10, max_acked_ahead => 20);
SELECT narad.create_topic('topics_bytes', value_type => 'bytea');
SELECT narad.create_topic('topics_text', value_type => 'text');
CREATE SCHEMA "Topics ""quoted""";
SELECT narad.create_topic('"Topics ""quoted""".":; DROP"');

-- The columns, and the access method.
SELECT c.oid::regclass, am.amname, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod)
FROM pg_class c JOIN pg_am am ON am.oid = c.relam
	JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
WHERE c.relname IN ('topics_plain', 'topics_bytes')
ORDER BY c.relname, a.attnum;

-- Settings, with defaults where none was given.
SELECT topic, topic_id ~ '^[0-9a-f]{16}$' AS has_id, partitions, messages, value_type,
	retention, retention_bytes, visibility_timeout, max_in_flight, max_acked_ahead, segment_size
FROM narad.topics WHERE topic::text ~ 'opics_' ORDER BY topic::text;
SELECT DISTINCT max_deliveries, dead_letter_topic, retry_delay, retry_backoff, ordering,
	cleanup, dedup_window, segment_age
FROM narad.topics WHERE topic::text ~ 'topics_';
-- Only what differs from the defaults is kept.
SELECT * FROM narad.topic_settings WHERE topic::text ~ 'topics_' ORDER BY topic;

-- A table made by hand is a topic, too, before and after its first message.
CREATE TABLE topics_by_hand (LIKE narad.topic_template) USING narad;
SELECT topic, topic_id, partitions, messages, bytes FROM narad.topics
WHERE topic = 'topics_by_hand'::regclass;
INSERT INTO topics_by_hand (value) VALUES ('1');
SELECT topic, topic_id IS NOT NULL AS has_id, partitions, messages, bytes > 0 AS has_bytes
FROM narad.topics WHERE topic = 'topics_by_hand'::regclass;

-- search_path decides where, and a temporary table of the name does not mislead.
SET search_path = "Topics ""quoted""", public;
CREATE TEMP TABLE topics_where (i int);
SELECT narad.create_topic('topics_where');
RESET search_path;
DROP TABLE pg_temp.topics_where;
SELECT narad.drop_topic('"Topics ""quoted""".topics_where');

-- alter_topic: null leaves alone, reset unsets.
SELECT narad.alter_topic('topics_plain', visibility_timeout => '1 min', max_in_flight => 5);
SELECT visibility_timeout, max_in_flight, max_acked_ahead FROM narad.topics
WHERE topic = 'topics_plain'::regclass;
SELECT narad.alter_topic('topics_plain', max_acked_ahead => 7, reset => '{visibility_timeout}');
SELECT visibility_timeout, max_in_flight, max_acked_ahead FROM narad.topics
WHERE topic = 'topics_plain'::regclass;
SELECT narad.alter_topic('topics_plain', partitions => 1, retention => '1 hour');
SELECT narad.alter_topic('topics_plain', reset => '{}');
SELECT narad.alter_topic('topics_plain');
SELECT retention, max_in_flight, max_acked_ahead FROM narad.topics
WHERE topic = 'topics_plain'::regclass;

-- All of it is transactional.
BEGIN;
SELECT narad.alter_topic('topics_plain', max_in_flight => 99);
SELECT narad.create_topic('topics_undone', max_in_flight => 3);
ROLLBACK;
SELECT max_in_flight FROM narad.topics WHERE topic = 'topics_plain'::regclass;
SELECT to_regclass('topics_undone'), count(*) FROM narad.topic_settings WHERE max_in_flight = 3;

-- A setting counts at once, also in the session that had it cached.
SELECT count(*) FROM narad.produce_array('topics_plain', '[1, 2, 3, 4, 5, 6]');
SELECT narad.alter_topic('topics_plain', max_in_flight => 2);
SELECT count(*) FROM narad.consume('topics_plain', 10);
SELECT narad.alter_topic('topics_plain', max_in_flight => 3);
SELECT count(*) FROM narad.consume('topics_plain', 10);

-- Bad arguments.
SELECT pg_temp.attempt(format('SELECT narad.create_topic(%s)', a)) FROM unnest(ARRAY[
	'NULL', '''''', '''a.b.c.d''', '''no_such_schema.t''', '''topics_plain''', '''pg_temp.t''',
	'''t'', partitions => 0', '''t'', partitions => -1', '''t'', partitions => 65537',
	'''t'', partitions => NULL', '''t'', partitions => 65536, segment_size => ''1GB''',
	'''t'', segment_size => ''''', '''t'', segment_size => ''big''', '''t'', segment_size => ''1kB''',
	'''t'', segment_size => ''2GB''', '''t'', segment_size => ''1000001''', '''t'', segment_size => ''-1MB''',
	'''t'', retention => ''0''', '''t'', retention => ''-1 day''', '''t'', retention => ''178000000 years''',
	'''t'', retention_bytes => 0', '''t'', retention_bytes => -9223372036854775808',
	'''t'', visibility_timeout => ''0''', '''t'', visibility_timeout => ''-1 s''',
	'''t'', visibility_timeout => ''2 years''', '''t'', max_in_flight => 0', '''t'', max_acked_ahead => -2147483648',
	'''t'', value_type => ''int4''', '''t'', value_type => 0::regtype']) a;
SELECT pg_temp.attempt(format('SELECT narad.alter_topic(%s)', a)) FROM unnest(ARRAY[
	'NULL', '0', '''pg_class''', '''no_such_topic''', '''topics_many'', partitions => 3',
	'''topics_many'', partitions => 65537', '''topics_many'', max_in_flight => 0',
	'''topics_many'', reset => ''{no_such}''', '''topics_many'', reset => ''{topic}''',
	'''topics_many'', reset => ''{partitions}''', '''topics_many'', reset => ''{NULL}''',
	'''topics_many'', reset => ''{{retention},{cleanup}}''',
	'''topics_many'', max_in_flight => 5, reset => ''{max_in_flight}''']) a;

-- purge_topic: the messages go, offsets go on.
SELECT narad.purge_topic('topics_plain');
SELECT count(*) FROM topics_plain;
SELECT * FROM narad.produce('topics_plain', '7');
SELECT msg_offset, deliveries, value FROM narad.consume('topics_plain', 10);
SELECT max_in_flight FROM narad.topics WHERE topic = 'topics_plain'::regclass;
BEGIN;
SELECT narad.purge_topic('topics_plain');
ROLLBACK;
SELECT count(*) FROM topics_plain;
SELECT pg_temp.attempt('SELECT narad.purge_topic(NULL)');
SELECT pg_temp.attempt('SELECT narad.purge_topic(''narad.topic_template'')');

-- drop_topic, and DROP TABLE: the settings go, too.
CREATE VIEW topics_view AS SELECT * FROM topics_text;
SELECT pg_temp.attempt('SELECT narad.drop_topic(''topics_text'')');
DROP VIEW topics_view;
SELECT pg_temp.attempt('SELECT narad.drop_topic(NULL)');
SELECT pg_temp.attempt('SELECT narad.drop_topic(''pg_class'')');
SELECT narad.drop_topic('topics_text');
SELECT narad.drop_topic('topics_plain');
SELECT narad.drop_topic('topics_bytes');
SELECT narad.drop_topic('topics_by_hand');
DROP TABLE topics_many;
DROP SCHEMA "Topics ""quoted""" CASCADE;
SELECT count(*) FROM narad.topic_settings s LEFT JOIN pg_class c ON c.oid = s.topic WHERE c.oid IS NULL;
SELECT count(*) FROM narad.topics WHERE topic::text ~ 'opics_';

-- I10: space is taken lowest first, and by what is held: 64 partitions with a
-- message each take 64 small segments in one slot, and no slot of their own
SELECT narad.create_topic('topics_small', partitions => 64);
INSERT INTO topics_small (partition, value) SELECT p, '0' FROM generate_series(0, 63) p;
SELECT pg_relation_size('topics_small') < 66 * 65536 + 2 * 8192 + 65536 AS is_small,
       sum(segments) AS segments FROM narad.partitions WHERE topic = 'topics_small'::regclass;
DROP TABLE topics_small;

-- What a topic was made with may be given again, and not changed.
SELECT narad.create_topic('topics_made', 2, segment_size => '512kB', value_type => 'text');
SELECT narad.alter_topic('topics_made', 2, segment_size => '0.5MB', value_type => 'text');
SELECT pg_temp.attempt(format('SELECT narad.alter_topic(''topics_made'', %s)', a)) FROM unnest(ARRAY[
	'segment_size => ''16MB''', 'segment_size => ''1kB''', 'segment_size => ''much''', 'value_type => ''jsonb''', 'value_type => ''int4''',
	'partitions => 1', 'partitions => 3']) a;
DROP TABLE topics_made;

-- A topic made an ordinary table keeps its messages, and nothing else.
SELECT narad.create_topic('topics_leaves', max_in_flight => 7);
SELECT count(*) FROM narad.produce_array('topics_leaves', '[0, 1, 2]');
SELECT receipt FROM narad.consume('topics_leaves') \gset
SELECT narad.drop_group('topics_leaves', 'default');
ALTER TABLE topics_leaves SET ACCESS METHOD heap;
SELECT count(*) FROM narad.topic_settings WHERE topic = 'topics_leaves'::regclass;
SELECT partition, msg_offset, value FROM topics_leaves ORDER BY msg_offset;
SELECT split_part(pg_temp.attempt(format('SELECT narad.ack(%L)', :'receipt')), ' | ', 1);
SELECT pg_temp.attempt($$SELECT narad.consume('topics_leaves')$$);
-- Rolled back, it is all as before.
SELECT narad.create_topic('topics_stays', max_in_flight => 7);
BEGIN;
ALTER TABLE topics_stays SET ACCESS METHOD heap;
ROLLBACK;
SELECT max_in_flight FROM narad.topics WHERE topic = 'topics_stays'::regclass;
DROP TABLE topics_leaves, topics_stays;
SELECT count(*) FROM narad.topic_settings s WHERE NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = s.topic);

-- A row left over from another table of the same OID does not count.
SELECT narad.create_topic('topics_stale');
INSERT INTO narad.topic_settings (topic, max_in_flight, visibility_timeout)
	SELECT g::oid::regclass, 3, '1 min' FROM generate_series('topics_stale'::regclass::oid::int8 + 1, 'topics_stale'::regclass::oid::int8 + 1000) g;
SELECT narad.create_topic('topics_stale_1');
SELECT narad.create_topic('topics_stale_2', max_acked_ahead => 5);
SELECT topic, max_in_flight, max_acked_ahead, visibility_timeout FROM narad.topics WHERE topic::text ~ '^topics_stale_' ORDER BY topic::text;
DELETE FROM narad.topic_settings s WHERE NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = s.topic AND c.relname <> 'topics_stale');
DROP TABLE topics_stale, topics_stale_1, topics_stale_2;

-- As with the commands, a topic in use by this session stays.
SELECT narad.create_topic('topics_used');
SELECT count(*) FROM narad.produce_array('topics_used', '[0, 1]');
BEGIN;
DECLARE c CURSOR FOR SELECT value FROM topics_used;
FETCH c;
SELECT pg_temp.attempt($$SELECT narad.drop_topic('topics_used')$$);
SELECT pg_temp.attempt($$SELECT narad.purge_topic('topics_used')$$);
COMMIT;
-- Triggers see purge_topic, and DROP is one for event triggers.
CREATE FUNCTION topics_truncated() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE WARNING '% %', TG_OP, TG_TABLE_NAME; RETURN NULL; END $$;
CREATE TRIGGER truncated AFTER TRUNCATE ON topics_used EXECUTE FUNCTION topics_truncated();
SELECT narad.purge_topic('topics_used');
SELECT count(*) FROM topics_used;
CREATE FUNCTION topics_dropped() RETURNS event_trigger LANGUAGE plpgsql AS $$
BEGIN RAISE WARNING '% %', TG_TAG, (SELECT object_identity FROM pg_event_trigger_dropped_objects() WHERE original); END $$;
CREATE EVENT TRIGGER topics_dropped ON sql_drop EXECUTE FUNCTION topics_dropped();
SELECT narad.drop_topic('topics_used');
DROP EVENT TRIGGER topics_dropped;
DROP FUNCTION topics_dropped, topics_truncated;

-- What an event trigger leaves of a topic is looked at before it is made one.
BEGIN;
CREATE FUNCTION meddle() RETURNS event_trigger LANGUAGE plpgsql AS $$
BEGIN
	IF (SELECT a.amname FROM pg_class c JOIN pg_am a ON a.oid = c.relam WHERE c.relname = 'meddled') = 'narad' THEN
		DROP TABLE meddled;
		EXECUTE current_setting('test.instead');
	END IF;
END $$;
CREATE EVENT TRIGGER meddle ON ddl_command_end WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION meddle();
SAVEPOINT s;
SET LOCAL test.instead = 'SELECT';
SELECT narad.create_topic('meddled');
ROLLBACK TO s;
SET LOCAL test.instead = 'CREATE TABLE meddled (n int) USING heap';
SELECT narad.create_topic('meddled');
ROLLBACK;
