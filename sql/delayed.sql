-- Delayed delivery: in the log at once, handed out when due.
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

-- Takes what there is until an offset has come; not before it is due.
CREATE FUNCTION pg_temp.await(t text, o bigint, due timestamptz) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
	m narad.message;
BEGIN
	LOOP
		FOR m IN SELECT * FROM narad.consume(t, 10) LOOP
			IF clock_timestamp() < due THEN
				RETURN format('%s came early', m.msg_offset);
			END IF;
			RETURN CASE WHEN m.msg_offset = o THEN 'came' ELSE format('%s came', m.msg_offset) END;
		END LOOP;
	END LOOP;
END $$;

SELECT narad.create_topic('delayed');
SELECT msg_offset FROM narad.produce('delayed', '"later"', deliver_after => '1 hour');
SELECT msg_offset FROM narad.produce('delayed', '"now"');
SELECT msg_offset FROM narad.produce('delayed', '"tomorrow"', deliver_at => now() + interval '1 day');
-- The log has them: to fetch and to a scan.
SELECT msg_offset, value FROM narad.fetch('delayed', 0, 0);
SELECT msg_offset, value FROM delayed ORDER BY 1;
-- To consume it is not there; it holds nobody back, and counts against no cap.
SELECT msg_offset, value, deliveries FROM narad.consume('delayed', 10);
SELECT msg_offset FROM narad.consume('delayed', 10);
SELECT frontier, end_offset, in_flight, scheduled FROM narad.groups WHERE topic = 'delayed'::regclass;
-- A time that is over is no delay.
SELECT msg_offset FROM narad.produce('delayed', '"past"', deliver_at => now() - interval '1 day');
SELECT msg_offset FROM narad.produce('delayed', '"zero"', deliver_after => '0');
SELECT msg_offset, value, deliveries FROM narad.consume('delayed', 10);

-- When it is due it comes, in the order of times, not before.
SELECT narad.create_topic('delayed_due');
CREATE TEMP TABLE due AS SELECT clock_timestamp() + interval '3.2 s' AS late, clock_timestamp() + interval '3 s' AS early;
SELECT msg_offset FROM due, narad.produce('delayed_due', '"late"', deliver_at => late);
SELECT msg_offset FROM due, narad.produce('delayed_due', '"early"', deliver_at => early);
SELECT count(*) FROM narad.consume('delayed_due', 10);
SELECT scheduled FROM narad.groups WHERE topic = 'delayed_due'::regclass;
-- Ordered by key: it holds nobody back.
SELECT narad.create_topic('delayed_key', ordering => 'key');
SELECT msg_offset FROM due, narad.produce('delayed_key', '0', key => 'a', deliver_at => early);
SELECT msg_offset FROM narad.produce_batch('delayed_key', '{1,2}', keys => '{a,a}');
SELECT msg_offset, receipt AS receipt FROM narad.consume('delayed_key', 10) \gset first_
SELECT :first_msg_offset AS msg_offset;
SELECT pg_temp.await('delayed_due', 1, early) FROM due;
SELECT pg_temp.await('delayed_due', 0, late) FROM due;
SELECT scheduled, in_flight FROM narad.groups WHERE topic = 'delayed_due'::regclass;
-- It is a message as any other then: rolled back, and again.
SELECT msg_offset FROM narad.produce('delayed_due', '2', deliver_after => '50 ms');
SELECT pg_sleep(0.06);
BEGIN;
SELECT msg_offset, deliveries FROM narad.consume('delayed_due');
ROLLBACK;
SELECT msg_offset, deliveries FROM narad.consume('delayed_due');

-- Batches; every group for itself; a million would be no other.
SELECT narad.create_topic('delayed_many');
SELECT narad.create_group('delayed_many', 'other');
SELECT count(*) FROM narad.produce_batch('delayed_many', ARRAY(SELECT to_jsonb(i) FROM generate_series(0, 2999) i), deliver_after => '1 hour');
SELECT count(*) FROM narad.produce('delayed_many', '"visible"');
SELECT msg_offset FROM narad.consume('delayed_many');
SELECT msg_offset FROM narad.consume('delayed_many', consumer_group => 'other');
SELECT consumer_group, scheduled FROM narad.groups WHERE topic = 'delayed_many'::regclass ORDER BY 1;
SELECT * FROM narad.verify('delayed_many');

-- An open transaction's; a rolled back one's.
BEGIN;
SELECT msg_offset FROM narad.produce('delayed', '"open"', deliver_after => '1 hour');
SELECT count(*) FROM narad.consume('delayed', 10);
COMMIT;
SELECT count(*) FROM narad.consume('delayed', 10);
BEGIN;
SELECT msg_offset FROM narad.produce('delayed', '"gone"', deliver_after => '1 hour');
ROLLBACK;
SELECT count(*) FROM narad.consume('delayed', 10);
SELECT scheduled FROM narad.groups WHERE topic = 'delayed'::regclass;

-- A topic that is written to by INSERT.
SELECT narad.create_topic('delayed_checked');
ALTER TABLE delayed_checked ADD CHECK (value IS NOT NULL);
SELECT msg_offset FROM narad.produce('delayed_checked', '0', deliver_after => '1 hour');
SELECT msg_offset FROM narad.produce('delayed_checked', '1');
SELECT msg_offset FROM narad.consume('delayed_checked', 10);

-- Ordered by key: when due it waits for its turn, and then comes next.
SELECT count(*) FROM narad.consume('delayed_key', 10);
SELECT narad.ack(:'first_receipt');
SELECT msg_offset, receipt AS receipt FROM narad.consume('delayed_key', 10) \gset second_
SELECT :second_msg_offset AS msg_offset;
SELECT narad.ack(:'second_receipt');
SELECT msg_offset FROM narad.consume('delayed_key', 10);
-- Delayed messages survive a change of order, once each.
SELECT msg_offset FROM narad.produce('delayed_key', '3', key => 'b', deliver_after => '1 hour');
SELECT count(*) FROM narad.consume('delayed_key', 10);
SELECT narad.alter_topic('delayed_key', ordering => 'none');
SELECT count(*) FROM narad.consume('delayed_key', 10);
SELECT scheduled FROM narad.groups WHERE topic = 'delayed_key'::regclass;

-- Who waits is woken when it is due.
SELECT narad.create_topic('delayed_wait');
SELECT msg_offset FROM narad.produce('delayed_wait', to_jsonb(clock_timestamp() + interval '0.5 s'), deliver_after => '0.5 s');
SELECT msg_offset, clock_timestamp() >= (value #>> '{}')::timestamptz AS due
FROM narad.consume('delayed_wait', wait => '55 s');

-- Bad arguments append nothing.
SELECT pg_temp.attempt('SELECT narad.produce(''delayed'', ''1'', ' || a || ')') FROM unnest(ARRAY[
	'deliver_after => ''-1 s''', 'deliver_after => ''102 years''', 'deliver_after => ''178000000 years''',
	'deliver_at => ''infinity''', 'deliver_at => ''-infinity''', 'deliver_at => now() + interval ''102 years''',
	'deliver_after => ''1 s'', deliver_at => now()']) a;
SELECT pg_temp.attempt('SELECT narad.produce_batch(''delayed'', ''{1}'', deliver_after => ''-1 s'')');
SELECT end_offset FROM narad.offsets('delayed');

DROP TABLE delayed, delayed_due, delayed_many, delayed_checked, delayed_key, delayed_wait;

-- One that retention drops before it is due is forgotten; those who want to be told are, of
-- the next one.
CREATE FUNCTION pg_temp.tokens_left(most bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
	give_up timestamptz := clock_timestamp() + interval '30 s';
	n bigint;
BEGIN
	LOOP
		SELECT count(*) INTO n FROM narad.waiters WHERE topic = 'delayed_dropped'::regclass;
		EXIT WHEN n <= most OR clock_timestamp() > give_up;
		PERFORM pg_sleep(0.01);
	END LOOP;
	RETURN greatest(n, most);
END $$;
SELECT narad.create_topic('delayed_dropped', segment_size => '256kB', max_in_flight => 10000);
SELECT msg_offset FROM narad.produce('delayed_dropped', '"dropped"', deliver_after => '30 days');
INSERT INTO delayed_dropped (value) SELECT to_jsonb(rpad(i || '.', 900, 'x')) FROM generate_series(1, 1000) i;
SELECT count(narad.ack(receipt)) FROM narad.consume('delayed_dropped', 2000);
SELECT scheduled FROM narad.groups WHERE topic = 'delayed_dropped'::regclass;
SELECT narad.alter_topic('delayed_dropped', retention => '1 ms');
SELECT pg_sleep(0.01);
DO $$ BEGIN PERFORM narad.apply_retention('delayed_dropped'); END $$;
SELECT earliest > 0 AS is_dropped FROM narad.offsets('delayed_dropped');
SELECT scheduled, lost_to_retention FROM narad.groups WHERE topic = 'delayed_dropped'::regclass;
SELECT narad.alter_topic('delayed_dropped', reset => '{retention}');
SELECT msg_offset FROM narad.produce('delayed_dropped', '"next"', deliver_after => '5 s');
SELECT count(*) FROM narad.consume('delayed_dropped', notify => 'first', notify_ttl => '1 hour');
SELECT pg_temp.tokens_left(0);
SELECT value FROM narad.consume('delayed_dropped', wait => '30 s');
DROP TABLE delayed_dropped;

-- max_acked_ahead used up: 3, which has become readable, is beyond what is settled; 1,
-- which has become due, is not.
SELECT narad.create_topic('delayed_ahead', max_acked_ahead => 1);
SELECT msg_offset FROM narad.produce('delayed_ahead', '0');
SELECT clock_timestamp() + interval '1 s' AS due \gset
SELECT msg_offset FROM narad.produce('delayed_ahead', '1', deliver_at => :'due');
SELECT msg_offset FROM narad.produce('delayed_ahead', '2');
BEGIN;
SELECT msg_offset FROM narad.produce('delayed_ahead', '3');
CREATE TABLE delayed_ahead_receipts AS SELECT receipt, msg_offset FROM narad.consume('delayed_ahead', 10);
COMMIT;
SELECT narad.ack(receipt) FROM delayed_ahead_receipts WHERE msg_offset = 2;
SELECT count(*) FROM narad.consume('delayed_ahead', 10);
SELECT pg_sleep_until(:'due');
SELECT msg_offset FROM narad.consume('delayed_ahead', 10);
DROP TABLE delayed_ahead, delayed_ahead_receipts;
