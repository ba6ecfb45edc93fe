-- retry_delay and retry_backoff: a message that was nacked without a delay, or
-- whose taker rolled back, waits; one whose lease expired does not.  Returned
-- messages starve nobody.
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

-- The settings.
SELECT narad.create_topic('retry_topic', retry_delay => '1 hour', retry_backoff => 2.5);
SELECT retry_delay, retry_backoff FROM narad.topics WHERE topic = 'retry_topic'::regclass;
SELECT pg_temp.attempt(format('SELECT narad.alter_topic(''retry_topic'', %s)', a)) FROM unnest(ARRAY[
	'retry_delay => ''-1 s''', 'retry_delay => ''12:00:01''', 'retry_delay => ''12:00''',
	'retry_backoff => 0.99', 'retry_backoff => ''NaN''', 'retry_backoff => ''Infinity''', 'retry_backoff => 1e300',
	'max_deliveries => 0', 'max_deliveries => -1', 'max_deliveries => 2147483647']) a;
SELECT max_deliveries, retry_delay, retry_backoff FROM narad.topics WHERE topic = 'retry_topic'::regclass;
SELECT narad.alter_topic('retry_topic', reset => '{max_deliveries, retry_backoff}', retry_delay => '1 hour');
SELECT max_deliveries, retry_delay, retry_backoff FROM narad.topics WHERE topic = 'retry_topic'::regclass;

-- Without a delay of its own a nack waits for the topic's; with one, for that.
SELECT count(*) FROM narad.produce_array('retry_topic', '[0, 1, 2, 3, 4, 5]');
CREATE TEMP TABLE got AS SELECT * FROM narad.consume('retry_topic', 3);
SELECT narad.nack(receipt) FROM got WHERE msg_offset = 0;
SELECT narad.nack(receipt, delay => '0') FROM got WHERE msg_offset = 1;
SELECT narad.nack(receipt, delay => '1 ms') FROM got WHERE msg_offset = 2;
SELECT pg_sleep(0.02);
SELECT scheduled, returned, in_flight FROM narad.groups WHERE topic = 'retry_topic'::regclass;
CREATE TEMP TABLE again AS SELECT * FROM narad.consume('retry_topic', 10);
SELECT msg_offset, deliveries FROM again ORDER BY 1;
SELECT scheduled, returned, in_flight FROM narad.groups WHERE topic = 'retry_topic'::regclass;

-- A rollback is a nack without a delay, of a savepoint, too.
SELECT narad.ack(array_agg(receipt)) FROM again;
SELECT count(*) FROM narad.produce_array('retry_topic', '[6, 7]');
BEGIN;
SELECT msg_offset, deliveries FROM narad.consume('retry_topic');
SAVEPOINT s;
SELECT msg_offset, deliveries FROM narad.consume('retry_topic');
ROLLBACK TO s;
SELECT scheduled, in_flight FROM narad.groups WHERE topic = 'retry_topic'::regclass;
ROLLBACK;
SELECT scheduled, in_flight FROM narad.groups WHERE topic = 'retry_topic'::regclass;
SELECT count(*) FROM narad.consume('retry_topic', 10);

-- A statement that fails after consume() is a rollback; a consume() that fails
-- takes nothing.
SELECT count(*) FROM narad.produce('retry_topic', '8');
SELECT pg_temp.attempt('SELECT 1 / (msg_offset - 8) FROM narad.consume(''retry_topic'')');
SELECT pg_temp.attempt('SELECT narad.consume(''retry_topic'', 10, ack => ARRAY[''AAAA''])');
SELECT scheduled, returned FROM narad.groups WHERE topic = 'retry_topic'::regclass;

-- An expired lease is available at once.
SELECT count(*) FROM narad.produce('retry_topic', '9');
CREATE TEMP TABLE short AS SELECT * FROM narad.consume('retry_topic', visibility_timeout => '1 ms');
SELECT pg_sleep(0.02);
SELECT msg_offset, deliveries FROM narad.consume('retry_topic', 10);

-- So is one whose taker rolls back only then, or to a savepoint.
SELECT count(*) FROM narad.produce_array('retry_topic', '[10, 11]');
BEGIN;
SELECT receipt AS first FROM narad.consume('retry_topic') \gset
SAVEPOINT s;
SELECT receipt AS second FROM narad.consume('retry_topic') \gset
SELECT narad.extend(r, '1 ms') IS NULL AS lost FROM unnest(ARRAY[:'first', :'second']) r;
SELECT pg_sleep(0.02);
ROLLBACK TO s;
SELECT scheduled, returned FROM narad.groups WHERE topic = 'retry_topic'::regclass;
ROLLBACK;
CREATE TEMP TABLE both_again AS SELECT * FROM narad.consume('retry_topic', 10);
SELECT msg_offset, deliveries FROM both_again ORDER BY 1;

-- But not what it had acknowledged in time: that is a rollback.
SELECT narad.ack(array_agg(receipt)) FROM both_again;
SELECT count(*) FROM narad.produce('retry_topic', '12');
BEGIN;
SELECT receipt AS first FROM narad.consume('retry_topic') \gset
SELECT narad.ack(:'first');
SELECT narad.extend(:'first', '1 ms') IS NULL AS lost;
SELECT pg_sleep(0.02);
ROLLBACK;
SELECT scheduled, returned, in_flight FROM narad.groups WHERE topic = 'retry_topic'::regclass;

-- Then, too, messages come back in the order in which they were taken.
SELECT narad.create_topic('retry_order');
SELECT count(*) FROM narad.produce_array('retry_order', '[0, 1, 2, 3]');
BEGIN;
CREATE TEMP TABLE taken AS SELECT * FROM narad.consume('retry_order', 4);
SELECT narad.ack(array_agg(receipt)) FROM taken WHERE msg_offset <> 1;
SELECT count(narad.extend(receipt, '1 ms')) FROM taken WHERE msg_offset <> 1;
SELECT pg_sleep(0.02);
ROLLBACK;
SELECT msg_offset FROM narad.consume('retry_order');
SELECT msg_offset FROM narad.consume('retry_order');
SELECT msg_offset FROM narad.consume('retry_order');
SELECT msg_offset FROM narad.consume('retry_order');

-- The delay grows with the deliveries, up to twelve hours.
SELECT narad.create_topic('retry_growing', retry_delay => '1 ms', retry_backoff => 1e9);
SELECT count(*) FROM narad.produce('retry_growing', '0');
SELECT narad.nack(receipt) FROM narad.consume('retry_growing');
SELECT pg_sleep(0.02);
CREATE TEMP TABLE second AS SELECT * FROM narad.consume('retry_growing');
SELECT deliveries FROM second;
SELECT narad.nack(receipt) FROM second;
SELECT pg_sleep(0.02);
SELECT scheduled, returned FROM narad.groups WHERE topic = 'retry_growing'::regclass;

-- A change counts for what comes back from then on.
SELECT narad.create_topic('retry_changed');
SELECT count(*) FROM narad.produce_array('retry_changed', '[0, 1]');
CREATE TEMP TABLE before AS SELECT * FROM narad.consume('retry_changed', 2);
SELECT narad.alter_topic('retry_changed', retry_delay => '1 hour');
SELECT narad.nack(receipt) FROM before WHERE msg_offset = 0;
SELECT narad.alter_topic('retry_changed', retry_delay => '0');
SELECT narad.nack(receipt, reason => 'no limit, so it is not kept') FROM before WHERE msg_offset = 1;
SELECT scheduled, returned FROM narad.groups WHERE topic = 'retry_changed'::regclass;

-- One that is nacked for ever takes every second place, and no more.
CREATE TEMP TABLE served (call int, msg_offset bigint, deliveries int);
SELECT narad.create_topic('retry_turns');
SELECT count(*) FROM narad.produce_array('retry_turns', (SELECT jsonb_agg(i) FROM generate_series(0, 19) i));
DO $$
DECLARE
	m record;
BEGIN
	FOR i IN 1 .. 39 LOOP
		SELECT * INTO m FROM narad.consume('retry_turns');
		IF m.msg_offset = 0 THEN
			PERFORM narad.nack(m.receipt);
		ELSE
			PERFORM narad.ack(m.receipt);
		END IF;
		INSERT INTO served VALUES (i, m.msg_offset, m.deliveries);
		COMMIT;
	END LOOP;
END $$;
SELECT count(*) FILTER (WHERE msg_offset = 0) AS poison, count(DISTINCT msg_offset) AS seen, max(deliveries) FROM served;
SELECT frontier, returned, in_flight FROM narad.groups WHERE topic = 'retry_turns'::regclass;
-- A whole batch of them, and a batch of fresh ones.
SELECT narad.create_topic('retry_batch');
SELECT count(*) FROM narad.produce_array('retry_batch', (SELECT jsonb_agg(i) FROM generate_series(0, 39) i));
SELECT count(narad.nack(receipt)) FROM narad.consume('retry_batch', 20);
SELECT count(*) FILTER (WHERE deliveries = 1) AS fresh, count(*) FILTER (WHERE deliveries = 2) AS returned
FROM narad.consume('retry_batch', 20);

SELECT * FROM narad.verify('retry_topic');
DROP TABLE retry_topic, retry_order, retry_growing, retry_changed, retry_turns, retry_batch;
