-- Order by key: of a key's messages one at a time, in the order of offsets, and no other key is held.
SET client_min_messages = warning;

CREATE TEMP TABLE taken (n serial, msg_offset bigint, receipt text);

-- Takes up to n messages: offset, key, and the delivery if it is not the first.
CREATE FUNCTION pg_temp.take(topic text, n int DEFAULT 100, timeout interval DEFAULT '1 hour') RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
	m narad.message;
	got text;
BEGIN
	FOR m IN SELECT * FROM narad.consume(topic, n, visibility_timeout => timeout) LOOP
		INSERT INTO taken (msg_offset, receipt) VALUES (m.msg_offset, m.receipt);
		got := concat_ws(' ', got, m.msg_offset || coalesce(m.key, '-') ||
			CASE WHEN m.deliveries > 1 THEN '*' || m.deliveries ELSE '' END);
	END LOOP;
	RETURN coalesce(got, 'none');
END $$;

-- The last receipt of an offset.
CREATE FUNCTION pg_temp.receipt(o bigint) RETURNS text
LANGUAGE sql AS $$ SELECT receipt FROM taken WHERE msg_offset = o ORDER BY n DESC LIMIT 1 $$;

SELECT narad.create_topic('key_order', ordering => 'key');
SELECT ordering FROM narad.topics WHERE topic = 'key_order'::regclass;

-- 0a 1a 2b 3- 4a 5b 6-: one of a key, all without one.
SELECT count(*) FROM narad.produce_batch('key_order', '{0,1,2,3,4,5,6}', keys => '{a,a,b,NULL,a,b,NULL}');
SELECT pg_temp.take('key_order');
SELECT pg_temp.take('key_order');
-- Producing changes nothing; an ack frees its key, and no other.
SELECT msg_offset FROM narad.produce('key_order', '7', key => 'a');
SELECT pg_temp.take('key_order');
SELECT narad.ack(pg_temp.receipt(0));
SELECT pg_temp.take('key_order');
-- A nack does not, whatever comes after it.
SELECT narad.nack(pg_temp.receipt(1));
SELECT pg_temp.take('key_order');
-- Nor one with a delay: the key waits, others do not.
SELECT narad.nack(pg_temp.receipt(1), delay => '1 hour');
SELECT pg_temp.take('key_order');
SELECT narad.ack(pg_temp.receipt(2));
SELECT pg_temp.take('key_order');
SELECT narad.ack(pg_temp.receipt(5));
SELECT narad.ack(pg_temp.receipt(3));
-- Of a message that backs off it is known who comes next: nobody.
SELECT consumer_group, in_flight FROM narad.groups WHERE topic = 'key_order'::regclass;

-- An expired head comes before the rest of its key.
SELECT narad.create_topic('key_expiry', ordering => 'key');
SELECT count(*) FROM narad.produce_batch('key_expiry', '{0,1,2}', keys => '{a,a,b}');
SELECT pg_temp.take('key_expiry', timeout => '1 ms');
SELECT pg_sleep(0.02);
SELECT pg_temp.take('key_expiry');
SELECT narad.ack(pg_temp.receipt(0));
SELECT pg_temp.take('key_expiry');

-- In one transaction: what it acked is settled to itself, for as long as it is open.
SELECT narad.create_topic('key_xact', ordering => 'key');
SELECT count(*) FROM narad.produce_batch('key_xact', '{0,1,2,3}', keys => '{a,a,a,b}');
BEGIN;
SELECT pg_temp.take('key_xact', 1);
SELECT narad.ack(pg_temp.receipt(0));
SELECT pg_temp.take('key_xact', 1);
SELECT pg_temp.take('key_xact');
SELECT narad.ack(pg_temp.receipt(1));
SAVEPOINT s;
SELECT pg_temp.take('key_xact', 1);
SELECT narad.ack(pg_temp.receipt(2));
ROLLBACK TO s;
SELECT pg_temp.take('key_xact', 1);
ROLLBACK;
-- All of it undone: in order again, from the first.
SELECT pg_temp.take('key_xact');
BEGIN;
SELECT narad.ack(pg_temp.receipt(0));
SELECT pg_temp.take('key_xact');
COMMIT;
SELECT pg_temp.take('key_xact');
-- Acked and then nacked is not settled.
BEGIN;
SELECT narad.ack(pg_temp.receipt(1));
SELECT narad.nack(pg_temp.receipt(1));
SELECT pg_temp.take('key_xact');
COMMIT;
SELECT pg_temp.take('key_xact');
-- A take in a rolled back transaction.
SELECT narad.ack(pg_temp.receipt(1));
BEGIN;
SELECT pg_temp.take('key_xact');
ROLLBACK;
SELECT pg_temp.take('key_xact');
BEGIN;
SELECT msg_offset FROM narad.produce('key_xact', '4', key => 'c');
SELECT pg_temp.take('key_xact');
COMMIT;
SELECT pg_temp.take('key_xact');

-- A message of a transaction that rolled back frees its key; one that the batch has no room for keeps it.
SELECT narad.create_topic('key_dead', ordering => 'key');
BEGIN;
SELECT msg_offset FROM narad.produce('key_dead', '0', key => 'a');
ROLLBACK;
SELECT msg_offset FROM narad.produce('key_dead', '1', key => 'a');
SELECT pg_temp.take('key_dead');
SELECT narad.create_topic('key_large', ordering => 'key');
SELECT (narad.produce_batch('key_large', ARRAY['0', large, large, '3'], keys => '{a,b,c,b}')).msg_offset
	FROM (SELECT to_jsonb(string_agg(md5(i::text), '')) AS large FROM generate_series(1, 70000) i) l;
SELECT pg_temp.take('key_large');
SELECT pg_temp.take('key_large');
SELECT pg_temp.take('key_large');
SELECT narad.ack(pg_temp.receipt(1));
SELECT pg_temp.take('key_large');

-- Caps count what is leased, not what waits for its key.
SELECT narad.create_topic('key_caps', ordering => 'key', max_in_flight => 2, max_acked_ahead => 1);
SELECT count(*) FROM narad.produce_batch('key_caps', '{0,1,2,3,4,5,6}', keys => '{a,a,a,a,a,b,c}');
SELECT pg_temp.take('key_caps', 1);
SELECT pg_temp.take('key_caps');
SELECT pg_temp.take('key_caps');
SELECT narad.ack(pg_temp.receipt(5));
SELECT pg_temp.take('key_caps');
SELECT narad.ack(pg_temp.receipt(0));
SELECT pg_temp.take('key_caps');

-- More of a key than is remembered one by one; others behind it; nothing lost, all in order.
SELECT narad.create_topic('key_long', ordering => 'key', max_in_flight => 100000, max_acked_ahead => 100000);
SELECT count(*) FROM narad.produce_batch('key_long', ARRAY(SELECT to_jsonb(i) FROM generate_series(0, 40099) i),
	keys => ARRAY(SELECT CASE WHEN i >= 40000 THEN 'z' || i WHEN i % 2 = 0 THEN 'a' ELSE 'b' END FROM generate_series(0, 40099) i));
SELECT pg_temp.take('key_long', 2);
SELECT split_part(pg_temp.take('key_long', 1000), ' ', 1);
SELECT count(*), max(msg_offset) FROM taken WHERE msg_offset >= 40000;
CREATE FUNCTION pg_temp.drain(topic text) RETURNS TABLE (key text, count bigint, in_order bool)
LANGUAGE plpgsql AS $$
DECLARE
	m narad.message;
	got bool := true;
BEGIN
	CREATE TEMP TABLE drained (n serial, key text, msg_offset bigint);
	WHILE got LOOP
		got := false;
		FOR m IN SELECT * FROM narad.consume(topic, 10) LOOP
			INSERT INTO drained (key, msg_offset) VALUES (m.key, m.msg_offset);
			PERFORM narad.ack(m.receipt);
			got := true;
		END LOOP;
	END LOOP;
	RETURN QUERY SELECT d.key, count(*), bool_and(d.msg_offset > before) FROM
		(SELECT *, lag(c.msg_offset, 1, -1::bigint) OVER (PARTITION BY c.key ORDER BY n) AS before FROM drained c) d
		GROUP BY 1 ORDER BY 1;
END $$;
SELECT narad.ack(pg_temp.receipt(0)), narad.ack(pg_temp.receipt(1));
SELECT * FROM pg_temp.drain('key_long');
SELECT * FROM narad.verify('key_long');

-- Switched on: what is leased stays so; then the rule holds.  Switched off: all that waited is there.
SELECT narad.create_topic('key_switch');
SELECT count(*) FROM narad.produce_batch('key_switch', '{0,1,2,3,4,5}', keys => '{a,a,b,a,b,c}');
SELECT pg_temp.take('key_switch', 2);
SELECT narad.alter_topic('key_switch', ordering => 'key');
SELECT pg_temp.take('key_switch');
SELECT narad.ack(pg_temp.receipt(0));
SELECT pg_temp.take('key_switch');
SELECT narad.ack(pg_temp.receipt(1));
SELECT pg_temp.take('key_switch');
SELECT narad.ack(pg_temp.receipt(2)), narad.nack(pg_temp.receipt(3));
SELECT msg_offset FROM narad.produce('key_switch', '6', key => 'a');
SELECT narad.alter_topic('key_switch', reset => '{ordering}');
SELECT pg_temp.take('key_switch');
SELECT * FROM narad.verify('key_switch');

-- Given up: its key is free when it has been moved away.
SELECT narad.create_topic('key_dead_letters');
SELECT narad.create_topic('key_limit', ordering => 'key', max_deliveries => 1, dead_letter_topic => 'key_dead_letters');
SELECT count(*) FROM narad.produce_batch('key_limit', '{0,1}', keys => '{a,a}');
SELECT pg_temp.take('key_limit');
SELECT narad.nack(pg_temp.receipt(0));
DO $$ BEGIN
	WHILE (SELECT dead_lettered = 0 FROM narad.groups WHERE topic = 'key_limit'::regclass) LOOP
		COMMIT;
		PERFORM pg_sleep(0.01);
	END LOOP;
END $$;
SELECT pg_temp.take('key_limit');
SELECT key, value FROM key_dead_letters;

-- Where there is no dead-letter topic, too: by a nack, and by a rollback.
SELECT narad.create_topic('key_given_up', ordering => 'key', max_deliveries => 1);
SELECT count(*) FROM narad.produce_batch('key_given_up', '{0,1,2,3}', keys => '{a,a,b,b}');
BEGIN;
SELECT pg_temp.take('key_given_up', 1);
SAVEPOINT s;
SELECT pg_temp.take('key_given_up', 1);
ROLLBACK TO s;
SELECT narad.nack(pg_temp.receipt(0));
COMMIT;
DO $$ BEGIN
	WHILE (SELECT dead_lettered < 2 FROM narad.groups WHERE topic = 'key_given_up'::regclass) LOOP
		COMMIT;
		PERFORM pg_sleep(0.01);
	END LOOP;
END $$;
SELECT pg_temp.take('key_given_up');
SELECT frontier FROM narad.groups WHERE topic = 'key_given_up'::regclass;

-- Retention drops heads: one leased, one acked by an open transaction, one that
-- backs off, one in line for its turn; the next of each key has the turn.
SELECT narad.create_topic('key_retained', ordering => 'key', segment_size => '256kB');
SELECT count(*) FROM narad.produce_batch('key_retained', '{0,1,2,3}', keys => '{a,b,c,a}');
INSERT INTO key_retained (value) SELECT to_jsonb(rpad(i::text, 900, 'x')) FROM generate_series(4, 399) i;
SELECT count(*) FROM narad.produce_batch('key_retained', '{400,401,402,403}', keys => '{a,b,c,a}');
SELECT pg_temp.take('key_retained', 3);
SELECT narad.nack(pg_temp.receipt(2), delay => '1 hour');
SELECT pg_temp.take('key_retained', 1);
BEGIN;
SELECT narad.ack(pg_temp.receipt(1));
SELECT narad.alter_topic('key_retained', retention_bytes => 1000);
SELECT segments_freed > 0 AS freed, messages_dropped > 3 AS dropped FROM narad.apply_retention('key_retained');
SELECT regexp_replace(pg_temp.take('key_retained', 1000), '\d+- ', '', 'g');
COMMIT;
SELECT narad.ack(pg_temp.receipt(400));
SELECT pg_temp.take('key_retained');
SELECT pg_temp.take('key_retained');
SELECT * FROM narad.verify('key_retained');

-- A head that backs off by the topic's retry_delay, after a nack and after a
-- rollback, holds its key and no other.
SELECT narad.create_topic('key_retry', ordering => 'key', retry_delay => '1 hour');
SELECT count(*) FROM narad.produce_batch('key_retry', '{0,1,2,3,4,5}', keys => '{a,b,a,b,c,c}');
SELECT pg_temp.take('key_retry', 1);
SELECT narad.nack(pg_temp.receipt(0));
BEGIN;
SELECT pg_temp.take('key_retry', 1);
ROLLBACK;
SELECT pg_temp.take('key_retry');
SELECT narad.ack(pg_temp.receipt(4));
SELECT pg_temp.take('key_retry');
SELECT in_flight, scheduled, returned FROM narad.groups WHERE topic = 'key_retry'::regclass;
-- It comes when that is over, not before, and before the rest of its key; the
-- delay grows by retry_backoff.
SELECT narad.create_topic('key_backoff', ordering => 'key', retry_delay => '20 ms', retry_backoff => 2);
SELECT count(*) FROM narad.produce_batch('key_backoff', '{0,1}', keys => '{a,a}');
CREATE TEMP TABLE backoff (msg_offset bigint, deliveries int, in_time bool);
DO $$
DECLARE
	m narad.message;
	due timestamptz := '-infinity';
	in_time bool;
BEGIN
	FOR i IN 1 .. 5 LOOP
		SELECT * INTO m FROM narad.consume('key_backoff', wait => '60 s', visibility_timeout => '1 hour');
		in_time := clock_timestamp() >= due;
		due := clock_timestamp() + interval '20 ms' * 2 ^ (m.deliveries - 1);
		IF m.deliveries = 2 THEN
			ROLLBACK;
		ELSIF m.deliveries < 4 AND m.msg_offset = 0 THEN
			PERFORM narad.nack(m.receipt);
			COMMIT;
		ELSE
			PERFORM narad.ack(m.receipt);
			due := '-infinity';
			COMMIT;
		END IF;
		INSERT INTO backoff VALUES (m.msg_offset, m.deliveries, in_time);
		COMMIT;
	END LOOP;
END $$;
SELECT * FROM backoff;

-- Partitions and groups are apart: a key may be in flight once in each.
SELECT narad.create_topic('key_parts', partitions => 2, ordering => 'key');
SELECT count(*) FROM generate_series(0, 1) p, narad.produce_batch('key_parts', '{0,1}', keys => '{a,a}', partition => p);
SELECT narad.create_group('key_parts', 'other');
SELECT partition, msg_offset FROM narad.consume('key_parts', 100) ORDER BY 1;
SELECT partition, msg_offset FROM narad.consume('key_parts', 100, consumer_group => 'other') ORDER BY 1;
-- In REPEATABLE READ, too.
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT count(*) FROM narad.consume('key_parts', 100);
COMMIT;
-- Keys of any size.
SELECT count(*) FROM narad.produce_batch('key_parts', '{2,3,4,5}', partition => 0,
	keys => ARRAY['', repeat('k', 100000), '', repeat('k', 100000)]);
SELECT msg_offset FROM narad.consume('key_parts', 100) ORDER BY 1;

-- What a transaction has acked is passed, in whatever order: 0 came back when 1
-- had been taken, and 1 is acked first.
SELECT narad.create_topic('key_passed', ordering => 'key');
SELECT count(*) FROM narad.produce_batch('key_passed', '{0,1,2,3}', keys => '{a,a,a,a}');
SELECT receipt AS zero FROM narad.consume('key_passed') \gset
BEGIN;
SELECT receipt AS one FROM narad.consume('key_passed', ack => ARRAY[:'zero']) \gset
SELECT narad.nack(:'zero');
COMMIT;
SELECT receipt AS zero FROM narad.consume('key_passed') \gset
BEGIN;
SELECT narad.ack(:'one');
SELECT count(*) FROM narad.consume('key_passed', 10);
SELECT narad.ack(:'zero');
-- What was passed is so no more when one in between is nacked; and again, when
-- that is taken back.
SAVEPOINT s;
SELECT narad.nack(:'zero');
SELECT count(*) FROM narad.consume('key_passed', 10);
ROLLBACK TO s;
SELECT msg_offset FROM narad.consume('key_passed', 10);
ROLLBACK;
SELECT msg_offset, deliveries FROM narad.consume('key_passed', 10, ack => ARRAY[:'one', :'zero']);

-- A call for one message looks on for it however many have not the turn: of
-- several that came due at once, the free one is the last; and one that came back
-- is read behind two that did.
SELECT narad.create_topic('key_unread', ordering => 'key');
SELECT narad.create_topic('key_unread_returned', ordering => 'key');
SELECT count(*) FROM unnest('{key_unread,key_unread_returned}'::regclass[]) t, narad.produce(t, '0', key => 'a');
SELECT msg_offset FROM unnest('{key_unread,key_unread_returned}'::regclass[]) t, narad.consume(t);
SELECT clock_timestamp() + interval '1 s' AS due \gset
SELECT count(*) FROM unnest('{a,a,a,a,b}'::text[]) k,
	narad.produce('key_unread', '1', key => k, deliver_at => :'due');
SELECT count(*) FROM unnest('{a,a}'::text[]) k,
	narad.produce('key_unread_returned', '1', key => k, deliver_at => :'due');
SELECT msg_offset FROM unnest('{key_unread,key_unread_returned}'::regclass[]) t, narad.consume(t, 10);
SELECT msg_offset FROM narad.produce('key_unread', '2', key => 'a');
SELECT msg_offset FROM narad.produce('key_unread_returned', '2', key => 'b');
SELECT narad.nack(receipt, delay => '0') FROM narad.consume('key_unread_returned');
SELECT narad.nack(receipt, delay => '0') FROM narad.consume('key_unread_returned');
SELECT pg_sleep_until(:'due');
SELECT msg_offset FROM narad.consume('key_unread');
SELECT msg_offset, deliveries FROM narad.consume('key_unread_returned');

-- max_acked_ahead used up: 5 has the turn and is beyond what is settled, 1 is not, and
-- has it to who has acked 0.
SELECT narad.create_topic('key_ahead', ordering => 'key', max_acked_ahead => 1);
SELECT count(*) FROM narad.produce_batch('key_ahead', array_fill('1'::jsonb, ARRAY[6]), keys => '{a,a,c,b,d,b}');
CREATE TABLE key_ahead_receipts AS SELECT receipt, msg_offset FROM narad.consume('key_ahead', 10);
SELECT narad.ack(receipt) FROM key_ahead_receipts WHERE msg_offset IN (3, 4);
BEGIN;
SELECT narad.ack(receipt) FROM key_ahead_receipts WHERE msg_offset = 0;
SELECT msg_offset FROM narad.consume('key_ahead', 10);
ROLLBACK;

DROP TABLE key_order, key_expiry, key_xact, key_dead, key_large, key_caps, key_long, key_switch, key_parts, key_limit, key_dead_letters,
	key_given_up, key_retained, key_retry, key_backoff, key_passed,
	key_unread, key_unread_returned, key_ahead, key_ahead_receipts;
