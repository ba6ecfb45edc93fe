-- What does not exist yet is refused, and does nothing.
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

SELECT narad.create_topic('not_yet');
SELECT count(*) FROM narad.produce('not_yet', '1');
SELECT receipt AS receipt FROM narad.consume('not_yet') \gset
-- Values that will never be allowed are told apart.
SELECT pg_temp.attempt('SELECT narad.alter_topic(''not_yet'', ordering => ''random'')');
-- The defaults may be given.
SELECT narad.alter_topic('not_yet', ordering => 'none');
SELECT count(*) FROM narad.topic_settings WHERE topic = 'not_yet'::regclass;
SELECT count(*) FROM not_yet;
SELECT pg_temp.attempt('SELECT narad.' || a) FROM unnest(ARRAY['poll()',
	'commit(''not_yet'', ''default'', 0, 0)']) a;
SELECT narad.ack(:'receipt');
DROP TABLE not_yet;
