-- I8: a waiting call ends with what became available, or when its time is over;
-- bad waits are refused.  I9: nobody is left in the lists afterwards.
SET client_min_messages = warning;

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
-- Did it take at least so long?
CREATE FUNCTION pg_temp.takes(command text, at_least interval) RETURNS bool
LANGUAGE plpgsql AS $$
DECLARE
	start timestamptz := clock_timestamp();
BEGIN
	EXECUTE command;
	RETURN clock_timestamp() - start >= at_least;
END $$;

SELECT narad.create_topic('wait_topic', partitions => 2);
-- What is there is not waited for, and what is not is not found.
SELECT count(*) FROM narad.produce('wait_topic', '1', partition => 1);
SELECT value FROM narad.consume('wait_topic', wait => '1 hour');
SELECT count(*) FROM narad.consume('wait_topic', wait => '20 ms');
SELECT pg_temp.takes('SELECT count(*) FROM narad.consume(''wait_topic'', wait => ''20 ms'')', '20 ms');
SELECT pg_temp.takes('SELECT count(*) FROM narad.consume(''wait_topic'', wait => ''20 ms'', partition => 1)', '20 ms');
SELECT value FROM narad.fetch('wait_topic', 1, 0, wait => '1 hour');
SELECT count(*) FROM narad.fetch('wait_topic', 0, 0, wait => '20 ms');
SELECT pg_temp.takes('SELECT count(*) FROM narad.fetch(''wait_topic'', 1, 1, wait => ''20 ms'')', '20 ms');
-- Fewer bytes than wanted come, too, when the time is over; none is no wait.
SELECT value FROM narad.fetch('wait_topic', 1, 0, wait => '20 ms', min_bytes => 1000000);
SELECT count(*) FROM narad.fetch('wait_topic', 1, 1, wait => '1 hour', min_bytes => 0);
SELECT value FROM narad.fetch('wait_topic', 1, 0, max_bytes => 1, wait => '1 hour', min_bytes => 1000000);

-- A lease that ends in the wait is delivered again, by nobody's doing but the waiter's.
SELECT narad.alter_topic('wait_topic', visibility_timeout => '50 ms');
SELECT count(*) FROM narad.produce('wait_topic', '2', partition => 0);
SELECT value, deliveries FROM narad.consume('wait_topic', partition => 0);
SELECT value, deliveries FROM narad.consume('wait_topic', partition => 0, wait => '10 s');
SELECT value, deliveries FROM narad.consume('wait_topic', partition => 0, wait => '10 s', visibility_timeout => '1 hour') AS m \gset
SELECT :deliveries AS deliveries;
-- So is one whose nack has a delay.
TRUNCATE wait_topic;
SELECT count(*) FROM narad.produce('wait_topic', '3', partition => 0);
SELECT narad.nack(receipt, delay => '50 ms') FROM narad.consume('wait_topic', visibility_timeout => '1 hour');
SELECT value, deliveries FROM narad.consume('wait_topic', wait => '10 s', visibility_timeout => '1 hour');

-- CALL wait: true when there may be something.
CALL narad.wait('wait_topic', '20 ms');
SELECT count(*) FROM narad.produce('wait_topic', '4', partition => 0);
CALL narad.wait('wait_topic', '1 hour');
CALL narad.wait('wait_topic', '0');
SELECT value FROM narad.consume('wait_topic', visibility_timeout => '1 hour');
CALL narad.wait('wait_topic', '0');
-- In a transaction block it waits in place.
BEGIN;
CALL narad.wait('wait_topic', '20 ms');
SELECT txid_current() IS NOT NULL AS has_id;
CALL narad.wait('wait_topic', '20 ms');
COMMIT;
-- Outside it commits.
CREATE TABLE wait_effect (i int);
CREATE PROCEDURE wait_twice() LANGUAGE plpgsql AS $$
DECLARE
	ready bool;
BEGIN
	INSERT INTO wait_effect VALUES (1);
	CALL narad.wait('wait_topic', '10 ms', ready => ready);
	INSERT INTO wait_effect SELECT 2 WHERE NOT ready;
	CALL narad.wait('wait_topic', '10 ms', ready => ready);
	INSERT INTO wait_effect VALUES (3);
	RAISE division_by_zero;
END $$;
CALL wait_twice();
SELECT * FROM wait_effect;
DROP PROCEDURE wait_twice;
DROP TABLE wait_effect;
-- A paused group is not ready.
SELECT count(*) FROM narad.produce('wait_topic', '5', partition => 0);
SELECT narad.pause_group('wait_topic', 'default');
CALL narad.wait('wait_topic', '10 ms');
SELECT count(*) FROM narad.consume('wait_topic', wait => '10 ms');
SELECT narad.resume_group('wait_topic', 'default');
CALL narad.wait('wait_topic', '10 s');
SELECT value FROM narad.consume('wait_topic', wait => '10 s', visibility_timeout => '1 hour');

-- Acks of a call that then sleeps are settled, as there is a worker; in a transaction block they are not.
DO $$ BEGIN
	WHILE NOT EXISTS (SELECT FROM pg_stat_activity
		WHERE application_name = 'narad worker' AND datname = current_database()) LOOP
		PERFORM pg_stat_clear_snapshot(), pg_sleep(0.01);
	END LOOP;
END $$;
SELECT count(*) FROM narad.produce_batch('wait_topic', '{6, 7}', partition => 0);
SELECT array_agg(receipt) AS receipts FROM narad.consume('wait_topic', 2, visibility_timeout => '1 hour') \gset
SELECT count(*) FROM narad.consume('wait_topic', ack => :'receipts', wait => '10 ms');
SELECT accepted, reason FROM narad.try_ack(:'receipts');
SELECT count(*) FROM narad.produce('wait_topic', '8', partition => 0);
SELECT array_agg(receipt) AS receipts FROM narad.consume('wait_topic', visibility_timeout => '1 hour') \gset
BEGIN;
SELECT count(*) FROM narad.consume('wait_topic', ack => :'receipts', wait => '10 ms');
ROLLBACK;
SELECT accepted, reason FROM narad.try_ack(:'receipts');
-- Nor are they in a function, nor where the result is written: what follows may fail.
SELECT count(*) FROM narad.produce('wait_topic', '9', partition => 0);
CREATE TEMP TABLE got AS
SELECT array_agg(receipt) AS receipts FROM narad.consume('wait_topic', visibility_timeout => '1 hour');
CREATE FUNCTION pg_temp.wait_and_fail() RETURNS bigint LANGUAGE sql AS $$
	SELECT count(*) FROM got, narad.consume('wait_topic', ack => receipts, wait => '10 ms');
	SELECT 1 / count(*) FROM got WHERE receipts IS NULL;
$$;
\set VERBOSITY terse
DO $$
DECLARE
	m record;
BEGIN
	PERFORM FROM got, narad.consume('wait_topic', ack => receipts, wait => '10 ms');
	FOR m IN SELECT * FROM got, narad.consume('wait_topic', ack => receipts, wait => '10 ms') LOOP
		NULL;
	END LOOP;
	RAISE division_by_zero;
END $$;
SELECT pg_temp.wait_and_fail();
CREATE TABLE wait_effect AS
SELECT 1 / count(*) FROM got, narad.consume('wait_topic', ack => receipts, wait => '10 ms');
\set VERBOSITY default
SELECT t.accepted, t.reason FROM got, narad.try_ack(receipts) t;
DROP TABLE got;

-- Waits are cut to narad.max_wait, and told so.
SET client_min_messages = notice;
SET narad.max_wait = '30 ms';
SELECT count(*) FROM narad.consume('wait_topic', wait => '1 hour');
SELECT count(*) > 0 AS some FROM narad.fetch('wait_topic', 0, 1, wait => '31 ms', min_bytes => 1000000);
SELECT count(*) FROM narad.consume('wait_topic', wait => '30 ms');
BEGIN;
CALL narad.wait('wait_topic', '1 hour');
COMMIT;
SET narad.max_wait = 0;
SELECT count(*) FROM narad.consume('wait_topic', wait => '1 hour');
RESET narad.max_wait;
SET client_min_messages = warning;

-- Statement timeouts and errors end a wait.
SET statement_timeout = '50 ms';
SELECT count(*) FROM narad.consume('wait_topic', wait => '1 min');
SELECT count(*) FROM narad.fetch('wait_topic', 0, 1, wait => '1 min', min_bytes => 1000000);
CALL narad.wait('wait_topic', '1 min');
RESET statement_timeout;

-- With a snapshot that stays nobody waits.
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT pg_temp.attempt('SELECT narad.consume(''wait_topic'', wait => ''1 s'')');
SELECT pg_temp.attempt('SELECT narad.fetch(''wait_topic'', 0, 0, wait => ''1 s'')');
SELECT pg_temp.attempt('CALL narad.wait(''wait_topic'', ''1 s'')');
SELECT pg_temp.attempt('SELECT narad.consume(''wait_topic'', wait => ''0'')');
ROLLBACK;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT pg_temp.attempt('SELECT narad.consume(''wait_topic'', wait => ''1 s'')');
ROLLBACK;

-- What makes no sense.
SELECT pg_temp.attempt(format('SELECT narad.consume(''wait_topic'', %s)', a)) FROM unnest(ARRAY[
	'wait => ''-1 s''', 'wait => NULL', 'notify => ''''', 'notify => repeat(''x'', 64)', 'notify_ttl => ''0''',
	'notify_ttl => NULL', 'notify => ''c'', consumer_group => ''nobody''']) a;
SELECT pg_temp.attempt(format('SELECT narad.fetch(''wait_topic'', 0, 0, %s)', a)) FROM unnest(ARRAY[
	'wait => ''-1 s''', 'wait => NULL', 'min_bytes => -1', 'min_bytes => NULL']) a;
SELECT pg_temp.attempt('CALL narad.wait(' || a || ')') FROM unnest(ARRAY[
	'NULL, ''1 s''', '''wait_topic'', NULL', '''wait_topic'', ''-1 s''', '''wait_topic'', ''1 s'', NULL',
	'''wait_topic'', ''1 s'', ''nobody''', '''pg_class'', ''1 s''']) a;
CREATE ROLE wait_nobody;
SET ROLE wait_nobody;
SELECT pg_temp.attempt('CALL narad.wait(''wait_topic'', ''1 s'')');
SELECT count(*) FROM narad.waiters;
RESET ROLE;
DROP ROLE wait_nobody;

-- A token is left when nothing is found, once a channel; the view shows it.
SELECT count(*) FROM narad.consume('wait_topic', notify => 'wait_channel');
SELECT count(*) FROM narad.consume('wait_topic', notify => 'wait_channel', partition => 1, notify_ttl => '1 hour');
SELECT count(*) FROM narad.consume('wait_topic', notify => 'Another "channel"', wait => '10 ms');
SELECT topic, consumer_group, partition, pid = pg_backend_pid() AS mine, kind, deadline - since AS ttl
FROM narad.waiters ORDER BY ttl;
-- Not when something is.
SELECT count(*) FROM narad.produce('wait_topic', '9', partition => 0);
SELECT value FROM narad.consume('wait_topic', notify => 'third', visibility_timeout => '1 hour');
SELECT kind, partition FROM narad.waiters;
-- Tokens go with their group, and with their topic.
SELECT narad.create_group('wait_topic', 'other', 'latest');
SELECT count(*) FROM narad.consume('wait_topic', notify => 'other', consumer_group => 'other');
SELECT consumer_group FROM narad.waiters ORDER BY 1;
SELECT narad.drop_group('wait_topic', 'other');
SELECT consumer_group FROM narad.waiters;
TRUNCATE wait_topic;
SELECT count(*) FROM narad.waiters;

-- Nobody is left.
SELECT partition, waiters FROM narad.groups WHERE topic = 'wait_topic'::regclass ORDER BY 1;
SELECT * FROM narad.verify('wait_topic');
-- A topic that was never written to can be waited for, too.
CREATE TABLE wait_empty (LIKE narad.topic_template) USING narad;
SELECT count(*) FROM narad.fetch('wait_empty', 0, 0, wait => '20 ms');
BEGIN READ ONLY;
SELECT count(*) FROM narad.fetch('wait_empty', 0, 0, wait => '20 ms');
ROLLBACK;
CALL narad.wait('wait_empty', '20 ms');
DROP TABLE wait_topic, wait_empty;
