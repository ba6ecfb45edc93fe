-- The settings: their defaults and limits, and what those of use to callers do.
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

SELECT name, unit, context, vartype, min_val, max_val, enumvals, boot_val
FROM pg_settings WHERE name LIKE 'narad.%' ORDER BY name;
SELECT name FROM pg_settings WHERE name LIKE 'narad.%' AND (coalesce(short_desc, '') = '' OR coalesce(extra_desc, '') = '');
SELECT pg_temp.attempt('SET narad.' || s) FROM unnest(ARRAY[
	'ack_mode = sometimes', 'no_such = 1', 'memory_limit = ''128MB''', 'frontier_write_interval = ''1s''',
	'frontier_flush_interval = ''1s''', 'max_message_size = ''1B''', 'max_batch_size = ''1kB''']) s;

-- max_message_size is a limit for writers alone.
SELECT narad.create_topic('settings_topic');
SELECT msg_offset FROM narad.produce('settings_topic', to_jsonb(repeat('x', 5000)));
SET narad.max_message_size = '1kB';
SELECT split_part(pg_temp.attempt($$SELECT narad.produce('settings_topic', to_jsonb(string_agg(md5(i::text), ''))) FROM generate_series(1, 100) i$$), ':', 1);
SELECT split_part(pg_temp.attempt($$INSERT INTO settings_topic (value) SELECT to_jsonb(string_agg(md5(i::text), '')) FROM generate_series(1, 100) i$$), ':', 1);
SELECT msg_offset, length(value #>> '{}') FROM narad.fetch('settings_topic', 0, 0);
SELECT msg_offset, length(value #>> '{}') FROM narad.consume('settings_topic');
RESET narad.max_message_size;

-- max_batch_size ends a batch early; the first message is always taken.
SELECT count(*) FROM generate_series(1, 4) i,
	narad.produce('settings_topic', (SELECT to_jsonb(string_agg(md5((i * 10000 + j)::text), '')) FROM generate_series(1, 3000) j));
SET narad.max_batch_size = '64kB';
SELECT msg_offset FROM narad.consume('settings_topic', 10);
RESET narad.max_batch_size;
SELECT msg_offset, deliveries FROM narad.consume('settings_topic', 10);
DROP TABLE settings_topic;
