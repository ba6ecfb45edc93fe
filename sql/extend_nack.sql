-- extend moves the end of a live lease, at once; nack gives a message back
-- when its transaction commits, now or after a delay.
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

SELECT narad.create_topic('en_topic', visibility_timeout => '1 hour');
SELECT count(*) FROM narad.produce_array('en_topic', '[0, 1, 2, 3, 4, 5]');
CREATE TEMP TABLE got AS SELECT * FROM narad.consume('en_topic', 3, visibility_timeout => '1 min');

-- From now on, and as long as was asked for; the topic's timeout without.
SELECT narad.extend(receipt, '10 min') - clock_timestamp() BETWEEN '9 min' AND '10 min' FROM got WHERE msg_offset = 0;
SELECT narad.extend(receipt) - clock_timestamp() BETWEEN '59 min' AND '1 hour' FROM got WHERE msg_offset = 0;
SELECT e.receipt = g.receipt AS same, e.expires_at - clock_timestamp() BETWEEN '4 min' AND '5 min' AS right_time
FROM narad.extend(ARRAY(SELECT receipt FROM got), '5 min') e JOIN got g USING (receipt);
SELECT bool_and(expires_at - clock_timestamp() BETWEEN '4 min' AND '5 min')
FROM narad.leases WHERE topic = 'en_topic'::regclass;

-- Not undone by rollback.
BEGIN;
SELECT count(*) FROM narad.extend(ARRAY(SELECT receipt FROM got), '2 hours');
ROLLBACK;
SELECT bool_and(expires_at - clock_timestamp() > '1 hour') FROM narad.leases WHERE topic = 'en_topic'::regclass;

-- It may shorten, too: then the message is available sooner.
SELECT narad.extend(receipt, '1 ms') IS NOT NULL FROM got WHERE msg_offset = 0;
SELECT pg_sleep(0.02);
SELECT pg_temp.attempt(format('SELECT narad.extend(%L, ''1 min'')', receipt)) FROM got WHERE msg_offset = 0;
CREATE TEMP TABLE again AS SELECT * FROM narad.consume('en_topic');
SELECT msg_offset, deliveries FROM again;
SELECT narad.ack(receipt) FROM again;
SELECT pg_temp.attempt(format('SELECT narad.extend(%L)', receipt)) FROM again;

-- nack: available again, delivery count raised, behind fresh ones by turns.
SELECT narad.nack(receipt) FROM got WHERE msg_offset = 1;
SELECT in_flight, returned, scheduled FROM narad.groups WHERE topic = 'en_topic'::regclass;
CREATE TEMP TABLE mixed AS SELECT * FROM narad.consume('en_topic', 4);
SELECT msg_offset, deliveries FROM mixed ORDER BY 1;
SELECT pg_temp.attempt(format('SELECT narad.nack(%L)', receipt)) FROM got WHERE msg_offset = 1;

-- Rolled back, it is leased as before.
BEGIN;
SELECT narad.nack(receipt) FROM mixed WHERE msg_offset = 1;
ROLLBACK;
SELECT count(*) FROM narad.consume('en_topic');
SELECT narad.nack(array_agg(receipt)) FROM mixed WHERE msg_offset IN (1, 3);
SELECT msg_offset, deliveries FROM narad.consume('en_topic', 10) ORDER BY 1;

-- With a delay it is held back until then.
CREATE TEMP TABLE late AS SELECT * FROM got WHERE msg_offset = 2;
SELECT narad.nack(receipt, delay => '1 hour') FROM late;
SELECT in_flight, returned, scheduled FROM narad.groups WHERE topic = 'en_topic'::regclass;
SELECT count(*) FROM narad.consume('en_topic', 10);
SELECT narad.nack(array_agg(receipt)::text, delay => '1 ms') FROM mixed WHERE msg_offset IN (4, 5);
SELECT pg_sleep(0.02);
SELECT msg_offset, deliveries FROM narad.consume('en_topic', 10) ORDER BY 1;
SELECT count(*) FROM narad.nack('{}'::text[]);

-- A message nacked for ever starves nobody.
SELECT narad.create_topic('en_fair');
SELECT count(*) FROM narad.produce_array('en_fair', '["poison", 1, 2, 3, 4]');
CREATE FUNCTION pg_temp.loop(n int) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	m narad.message;
	seen jsonb[];
BEGIN
	FOR i IN 1 .. n LOOP
		SELECT * INTO m FROM narad.consume('en_fair');
		seen := seen || m.value;
		IF m.value = '"poison"' THEN
			PERFORM narad.nack(m.receipt);
		ELSE
			PERFORM narad.ack(m.receipt);
		END IF;
	END LOOP;
	RETURN (SELECT string_agg(DISTINCT v::text, ' ') FROM unnest(seen) v WHERE v <> '"poison"');
END $$;
-- One call is one transaction, in which what it nacked stays pinned.
SELECT pg_temp.loop(1);
SELECT pg_temp.loop(1);
SELECT pg_temp.loop(1);
SELECT pg_temp.loop(1);
SELECT pg_temp.loop(1);
SELECT pg_temp.loop(1);
SELECT pg_temp.loop(1);
SELECT pg_temp.loop(1);
SELECT frontier, acked_ahead_ranges FROM narad.groups WHERE topic = 'en_fair'::regclass;

-- Bad arguments.
SELECT pg_temp.attempt('SELECT narad.' || a) FROM unnest(ARRAY[
	'extend(NULL::text)', 'extend(NULL::text[])', 'extend(ARRAY[NULL])', 'extend(''x'')', 'extend(''{x}''::text[])',
	'nack(NULL::text)', 'nack(NULL::text[])', 'nack(ARRAY[NULL])', 'nack(''x'')', 'nack(''{x'')']) a;
SELECT pg_temp.attempt(format('SELECT narad.' || a, (SELECT receipt FROM mixed WHERE msg_offset = 1))) FROM unnest(ARRAY[
	'extend(%L, ''0'')', 'extend(%L, ''-1 s'')', 'extend(%L, ''2 years'')', 'extend(%L, ''178000000 years'')',
	'nack(%L, ''-1 s'')', 'nack(%L, ''2 years'')']) a;
DROP TABLE en_topic, en_fair;
