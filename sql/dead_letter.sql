-- A message that was delivered max_deliveries times is handed out no more: it
-- is moved to the dead-letter topic, once, and settled, by the worker.
SET client_min_messages = warning;
CREATE ROLE regress_dead_owner;
CREATE ROLE regress_dead_other;

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

-- Waits until the groups of a topic have given up so many messages.
CREATE PROCEDURE pg_temp.wait_for(t regclass, n bigint) LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1 .. 6000 LOOP
		IF (SELECT sum(dead_lettered) FROM narad.groups WHERE topic = t) >= n THEN
			RETURN;
		END IF;
		COMMIT;
		PERFORM pg_sleep(0.01);
	END LOOP;
	RAISE 'nobody gave up % messages of %', n, t;
END $$;

-- The settings.
CREATE TABLE dead_table (LIKE narad.topic_template);
SELECT narad.create_topic('dead_letters');
SELECT narad.create_topic('dead_text', value_type => 'text');
SELECT narad.create_topic('dead_topic', max_deliveries => 2, dead_letter_topic => 'public.dead_letters', partitions => 2);
SELECT max_deliveries, dead_letter_topic FROM narad.topics WHERE topic = 'dead_topic'::regclass;
SELECT pg_temp.attempt(format('SELECT narad.create_topic(''dead_new'', dead_letter_topic => %L)', a)) FROM unnest(ARRAY[
	'dead_new', 'dead_nothing', 'dead_table', 'dead_text', '', 'a.b.c.d', 'pg_class']) a;
SELECT pg_temp.attempt(format('SELECT narad.alter_topic(%L, dead_letter_topic => %L)', a, b)) FROM (VALUES
	('dead_topic', 'dead_topic'), ('dead_letters', 'dead_topic'), ('dead_letters', 'dead_letters'),
	('dead_text', 'dead_letters'), ('dead_topic', 'dead_text')) v(a, b);
SELECT narad.create_topic('dead_end', dead_letter_topic => 'dead_topic');
SELECT pg_temp.attempt('SELECT narad.alter_topic(''dead_letters'', dead_letter_topic => ''dead_end'')');
DROP TABLE dead_end;
-- Both must be the caller's.
GRANT CREATE ON SCHEMA public TO regress_dead_owner, regress_dead_other;
SET ROLE regress_dead_other;
SELECT pg_temp.attempt('SELECT narad.create_topic(''dead_others'', dead_letter_topic => ''dead_letters'')');
RESET ROLE;

-- Nacked to the limit: the last one has no limbo, whatever its delay.
SELECT count(*) FROM narad.produce('dead_topic', '{"n": 1}', key => 'k', headers => '{"h": [1], "narad-reason": "old"}', partition => 1);
SELECT narad.nack(receipt, reason => 'first') FROM narad.consume('dead_topic');
CREATE TEMP TABLE last AS SELECT * FROM narad.consume('dead_topic');
SELECT deliveries FROM last;
SELECT narad.nack(receipt, delay => '1 hour', reason => 'it is "bad" ' || repeat('é', 200)) FROM last;
SELECT count(*) FROM narad.consume('dead_topic', 10);
CALL pg_temp.wait_for('dead_topic', 1);
SELECT partition, key, value, headers - ARRAY['narad-reason', 'narad-produced-at', 'narad-first-delivered-at', 'narad-last-delivered-at'] AS headers
FROM dead_letters;
SELECT left(headers->>'narad-reason', 13) AS reason, octet_length(headers->>'narad-reason') AS bytes,
	(headers->>'narad-produced-at')::timestamptz BETWEEN produced_at - interval '10 min' AND produced_at AS produced,
	(headers->>'narad-first-delivered-at')::timestamptz BETWEEN (headers->>'narad-produced-at')::timestamptz
		AND (headers->>'narad-last-delivered-at')::timestamptz AS first,
	(headers->>'narad-last-delivered-at')::timestamptz < produced_at AS last
FROM dead_letters;
SELECT partition, frontier, in_flight, returned, scheduled, dead_lettered, dead_letters_waiting
FROM narad.groups WHERE topic = 'dead_topic'::regclass ORDER BY 1;
-- The receipt is of no use any more, and twice is once.
SELECT pg_temp.attempt(format('SELECT narad.ack(%L)', receipt)) FROM last;
SELECT pg_temp.attempt(format('SELECT narad.nack(%L)', receipt)) FROM last;
SELECT count(*) FROM narad.consume('dead_topic', 10);
-- Still there to be read, and it is a message like others there.
SELECT value FROM narad.fetch('dead_topic', 1, 0);
SELECT narad.ack(receipt) FROM narad.consume('dead_letters');
SELECT frontier FROM narad.groups WHERE topic = 'dead_letters'::regclass;

-- Expired, and rolled back.
SELECT count(*) FROM narad.produce('dead_topic', '2', partition => 0);
SELECT count(*) FROM narad.consume('dead_topic', visibility_timeout => '1 ms');
SELECT pg_sleep(0.02);
SELECT deliveries FROM narad.consume('dead_topic', visibility_timeout => '1 ms');
SELECT pg_sleep(0.02);
SELECT count(*) FROM narad.consume('dead_topic');
SELECT count(*) FROM narad.produce('dead_topic', '3', headers => '[1, "a"]', partition => 0);
SELECT narad.nack(receipt) FROM narad.consume('dead_topic');
BEGIN;
SELECT value, deliveries FROM narad.consume('dead_topic');
ROLLBACK;
CALL pg_temp.wait_for('dead_topic', 3);
SELECT value, headers->>'narad-ended' AS ended, headers->'narad-headers' AS headers, headers ? 'narad-reason' AS reason
FROM dead_letters WHERE msg_offset > 0 ORDER BY msg_offset;

-- Acked at the last delivery, it is none.
SELECT count(*) FROM narad.produce('dead_topic', '4', partition => 0);
SELECT narad.nack(receipt) FROM narad.consume('dead_topic');
SELECT deliveries, narad.ack(receipt) FROM narad.consume('dead_topic');
SELECT sum(dead_lettered), sum(dead_letters_waiting) FROM narad.groups WHERE topic = 'dead_topic'::regclass;

-- Nacked twice in a transaction: the last word wins, be it without a reason, or
-- undone by a savepoint.
SELECT count(*) FROM narad.produce_batch('dead_topic', '{6, 7}', partition => 0);
SELECT count(narad.nack(receipt)) FROM narad.consume('dead_topic', 2);
BEGIN;
CREATE TEMP TABLE twice ON COMMIT DROP AS SELECT * FROM narad.consume('dead_topic', 2);
SELECT value, narad.nack(receipt, reason => 'first') FROM twice ORDER BY 1;
SELECT value, narad.nack(receipt) FROM twice WHERE value = '6';
SAVEPOINT s;
SELECT value, narad.nack(receipt) FROM twice WHERE value = '7';
ROLLBACK TO s;
COMMIT;
CALL pg_temp.wait_for('dead_topic', 5);
SELECT value, headers->>'narad-reason' AS reason FROM dead_letters WHERE value IN ('6', '7') ORDER BY 1;

-- Each group has its own count.
SELECT narad.create_group('dead_topic', 'other', 'latest');
SELECT count(*) FROM narad.produce('dead_topic', '5', partition => 0);
SELECT narad.ack(receipt) FROM narad.consume('dead_topic');
SELECT narad.nack(receipt) FROM narad.consume('dead_topic', consumer_group => 'other');
SELECT narad.nack(receipt) FROM narad.consume('dead_topic', consumer_group => 'other');
CALL pg_temp.wait_for('dead_topic', 6);
SELECT value, headers->>'narad-origin-group' AS grp, headers->>'narad-origin-offset' AS off FROM dead_letters WHERE value = '5';

-- Without a dead-letter topic it is settled and counted.
SELECT narad.create_topic('dead_dropped', max_deliveries => 1);
SELECT count(*) FROM narad.produce_array('dead_dropped', '[0, 1, 2]');
SELECT count(narad.nack(receipt)) FROM narad.consume('dead_dropped', 2);
CALL pg_temp.wait_for('dead_dropped', 2);
SELECT value FROM narad.consume('dead_dropped', 10);
SELECT frontier, dead_lettered FROM narad.groups WHERE topic = 'dead_dropped'::regclass;
SELECT count(*) FROM narad.fetch('dead_dropped', 0, 0);

-- A lower limit counts for what has come back before.
SELECT narad.create_topic('dead_lowered');
SELECT count(*) FROM narad.produce_array('dead_lowered', '[0, 1, 2]');
SELECT count(narad.nack(receipt)) FROM narad.consume('dead_lowered', 2);
SELECT narad.alter_topic('dead_lowered', max_deliveries => 1, dead_letter_topic => 'dead_letters');
SELECT value FROM narad.consume('dead_lowered', 10);
CALL pg_temp.wait_for('dead_lowered', 2);
SELECT value, headers->'narad-deliveries' AS deliveries FROM dead_letters WHERE headers->>'narad-origin-topic' = 'public.dead_lowered' ORDER BY msg_offset;

-- A move that fails is tried again, and holds nothing up; no message is lost,
-- and none is delivered once more.
SELECT narad.create_topic('dead_checked');
ALTER TABLE dead_checked ADD CHECK (value <> '0'), ADD COLUMN who name DEFAULT current_user;
SELECT narad.create_topic('dead_failing', max_deliveries => 1, dead_letter_topic => 'dead_checked');
SELECT count(*) FROM narad.produce_array('dead_failing', '[0, 1, 2, 3]');
SELECT count(narad.nack(receipt)) FROM narad.consume('dead_failing', 4);
-- Meanwhile it keeps its key from being delivered, and no other.
SELECT narad.create_topic('dead_keyed', max_deliveries => 1, dead_letter_topic => 'dead_checked', ordering => 'key');
SELECT count(*) FROM narad.produce_batch('dead_keyed', '{0, 1, 2, 3}', keys => '{a, a, b, b}');
SELECT narad.nack(receipt) FROM narad.consume('dead_keyed');
CALL pg_temp.wait_for('dead_failing', 3);
SELECT value, who = current_user AS who FROM dead_checked ORDER BY msg_offset;
SELECT frontier, acked_ahead_ranges, dead_lettered, dead_letters_waiting FROM narad.groups WHERE topic = 'dead_failing'::regclass;
SELECT count(*) FROM narad.consume('dead_failing', 10);
SELECT msg_offset, narad.ack(receipt) FROM narad.consume('dead_keyed', 10);
SELECT msg_offset, narad.ack(receipt) FROM narad.consume('dead_keyed', 10);
SELECT count(*) FROM narad.consume('dead_keyed', 10);
SELECT frontier, dead_lettered, dead_letters_waiting FROM narad.groups WHERE topic = 'dead_keyed'::regclass;
ALTER TABLE dead_checked DROP CONSTRAINT dead_checked_value_check;
CALL pg_temp.wait_for('dead_failing', 4);
CALL pg_temp.wait_for('dead_keyed', 1);
SELECT msg_offset, narad.ack(receipt) FROM narad.consume('dead_keyed', 10);
SELECT frontier, dead_lettered, dead_letters_waiting FROM narad.groups WHERE topic = 'dead_keyed'::regclass;
SELECT headers->>'narad-origin-topic' AS origin, count(*), count(DISTINCT value) FROM dead_checked GROUP BY 1 ORDER BY 1;
SELECT frontier, dead_lettered, dead_letters_waiting FROM narad.groups WHERE topic = 'dead_failing'::regclass;
-- The limit goes while one waits: it is delivered again.
ALTER TABLE dead_checked ADD CHECK (value <> '4');
SELECT count(*) FROM narad.produce('dead_failing', '4');
SELECT narad.nack(receipt) FROM narad.consume('dead_failing');
SELECT narad.alter_topic('dead_failing', reset => '{max_deliveries}');
CREATE TEMP TABLE back (value jsonb, deliveries int);
DO $$
BEGIN
	WHILE NOT EXISTS (SELECT FROM back) LOOP
		INSERT INTO back SELECT value, deliveries FROM narad.consume('dead_failing', 1, ack => NULL);
		COMMIT;
		PERFORM pg_sleep(0.01);
	END LOOP;
END $$;
SELECT * FROM back;

-- The functions of a dead-letter topic run as its owner, and not as more.
SET ROLE regress_dead_owner;
SELECT narad.create_topic('dead_owned_letters');
SELECT narad.create_topic('dead_owned', max_deliveries => 1, dead_letter_topic => 'dead_owned_letters');
CREATE FUNCTION dead_who() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	NEW.key := current_user || ' ' || current_setting('search_path');
	RETURN NEW;
END $$;
CREATE TRIGGER who BEFORE INSERT ON dead_owned_letters FOR EACH ROW EXECUTE FUNCTION dead_who();
SELECT count(*) FROM narad.produce('dead_owned', '1');
GRANT SELECT, UPDATE ON dead_owned TO regress_dead_other;
RESET ROLE;
ALTER TABLE dead_owned OWNER TO CURRENT_USER;
SET ROLE regress_dead_other;
SELECT narad.nack(receipt) FROM narad.consume('dead_owned');
RESET ROLE;
CALL pg_temp.wait_for('dead_owned', 1);
SELECT key, value FROM dead_owned_letters;
-- The topic's owner may not act for the other: it waits until he may.
SET ROLE regress_dead_owner;
DROP TRIGGER who ON dead_owned_letters;
RESET ROLE;
ALTER TABLE dead_owned OWNER TO regress_dead_owner;
ALTER TABLE dead_owned_letters OWNER TO regress_dead_other;
GRANT INSERT ON dead_owned_letters TO regress_dead_owner;
SELECT pg_temp.attempt('SELECT narad.alter_topic(''dead_owned'', dead_letter_topic => ''dead_owned_letters'')');
SELECT count(*) FROM narad.produce('dead_owned', '2');
SELECT narad.nack(receipt) FROM narad.consume('dead_owned');
SELECT pg_sleep(0.1);
SELECT dead_letters_waiting FROM narad.groups WHERE topic = 'dead_owned'::regclass;
GRANT regress_dead_other TO regress_dead_owner;
CALL pg_temp.wait_for('dead_owned', 2);
SELECT value FROM dead_owned_letters ORDER BY msg_offset;

-- Values of other types, and a message that the size limit would not take.
SELECT narad.create_topic('dead_text_source', value_type => 'text', max_deliveries => 1, dead_letter_topic => 'dead_text');
SELECT count(*) FROM narad.produce_bytes('dead_text_source', 'plain text');
SELECT narad.nack(receipt) FROM narad.consume_bytes('dead_text_source');
CALL pg_temp.wait_for('dead_text_source', 1);
SELECT value, headers->>'narad-origin-topic' AS origin FROM dead_text;
SELECT narad.create_topic('dead_bytes', value_type => 'bytea');
SELECT narad.create_topic('dead_bytes_source', value_type => 'bytea', max_deliveries => 1, dead_letter_topic => 'dead_bytes');
ALTER TABLE dead_bytes_source ADD COLUMN more int;
SELECT count(*) FROM narad.produce_bytes('dead_bytes_source', decode(repeat('5c', 100000), 'hex'), key => 'b');
SELECT narad.nack(receipt) FROM narad.consume_bytes('dead_bytes_source');
CALL pg_temp.wait_for('dead_bytes_source', 1);
SELECT key, md5(value) = md5(decode(repeat('5c', 100000), 'hex')) AS same FROM dead_bytes;

-- A dead-letter topic that is dropped is none, and that is said.
SET client_min_messages = notice;
DROP TABLE dead_letters;
SELECT count(*) FROM narad.topics WHERE dead_letter_topic IS NOT NULL AND topic IN ('dead_topic'::regclass, 'dead_lowered'::regclass);
SELECT max_deliveries FROM narad.topics WHERE topic = 'dead_topic'::regclass;
BEGIN;
DROP TABLE dead_text;
ROLLBACK;
ALTER TABLE dead_bytes SET ACCESS METHOD heap;
SELECT topic FROM narad.topics WHERE dead_letter_topic IS NOT NULL AND topic::text LIKE 'dead_%' ORDER BY topic::text;
SET client_min_messages = warning;

SELECT * FROM narad.verify('dead_topic');
SELECT * FROM narad.verify('dead_failing');
DROP TABLE dead_table, dead_text, dead_topic, dead_dropped, dead_lowered, dead_checked, dead_failing, dead_keyed, dead_owned_letters,
	dead_owned, dead_text_source, dead_bytes, dead_bytes_source;
SELECT count(*) FROM narad.topic_settings WHERE dead_letter_topic IS NOT NULL;
DROP FUNCTION dead_who();
REVOKE CREATE ON SCHEMA public FROM regress_dead_owner, regress_dead_other;
DROP ROLE regress_dead_owner, regress_dead_other;
