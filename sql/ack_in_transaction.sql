-- I5: an ack takes effect if and only if its transaction commits, together
-- with what else that does.
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

SELECT narad.create_topic('tx_topic');
CREATE TABLE tx_effects (value jsonb);
SELECT count(*) FROM narad.produce_array('tx_topic', '[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]');

-- Commit: effect and ack.
BEGIN;
WITH m AS MATERIALIZED (SELECT * FROM narad.consume('tx_topic', 2)),
	e AS (INSERT INTO tx_effects SELECT value FROM m)
SELECT narad.ack(array_agg(receipt)) FROM m;
SELECT pinned, count(*), bool_and(pid = pg_backend_pid()), bool_and(xact_start = now())
FROM narad.leases WHERE topic = 'tx_topic'::regclass GROUP BY 1;
COMMIT;
SELECT * FROM tx_effects ORDER BY value;
SELECT frontier, in_flight FROM narad.groups WHERE topic = 'tx_topic'::regclass;

-- Rollback: neither, and the messages come again.
BEGIN;
WITH m AS MATERIALIZED (SELECT * FROM narad.consume('tx_topic', 2)),
	e AS (INSERT INTO tx_effects SELECT value FROM m)
SELECT narad.ack(array_agg(receipt)) FROM m;
ROLLBACK;
SELECT count(*) FROM tx_effects;
SELECT frontier, in_flight, returned FROM narad.groups WHERE topic = 'tx_topic'::regclass;

-- Ack before the transaction writes anything; and the other way round.
CREATE TEMP TABLE got AS SELECT * FROM narad.consume('tx_topic', 4);
SELECT msg_offset, deliveries FROM got ORDER BY 1;
BEGIN;
SELECT narad.ack(receipt) FROM got WHERE msg_offset = 2;
INSERT INTO tx_effects SELECT value FROM got WHERE msg_offset = 2;
COMMIT;
BEGIN;
INSERT INTO tx_effects SELECT value FROM got WHERE msg_offset = 3;
SELECT narad.ack(receipt) FROM got WHERE msg_offset = 3;
COMMIT;
SELECT frontier FROM narad.groups WHERE topic = 'tx_topic'::regclass;

-- Rolled back by one that only acked: leased as before, and can be acked again.
BEGIN;
SELECT narad.ack(receipt) FROM got WHERE msg_offset = 4;
ROLLBACK;
SELECT count(*) FROM narad.leases WHERE topic = 'tx_topic'::regclass AND NOT pinned AND msg_offset = 4;
SELECT narad.ack(receipt) FROM got WHERE msg_offset = 4;
SELECT frontier FROM narad.groups WHERE topic = 'tx_topic'::regclass;

-- A savepoint rolled back takes its acks with it; one released keeps them.
BEGIN;
SAVEPOINT a;
SELECT narad.ack(receipt) FROM got WHERE msg_offset = 5;
ROLLBACK TO a;
COMMIT;
SELECT frontier, in_flight FROM narad.groups WHERE topic = 'tx_topic'::regclass;
BEGIN;
SAVEPOINT a;
SAVEPOINT b;
SELECT narad.ack(receipt) FROM got WHERE msg_offset = 5;
RELEASE b;
RELEASE a;
COMMIT;
SELECT frontier, in_flight FROM narad.groups WHERE topic = 'tx_topic'::regclass;

-- A pinned lease does not expire while its transaction is open.
CREATE TEMP TABLE brief AS SELECT * FROM narad.consume('tx_topic', 1);
BEGIN;
SELECT narad.ack(receipt) FROM brief;
SELECT narad.extend(receipt, '1 ms') IS NOT NULL FROM brief;
SELECT pg_sleep(0.02);
SELECT msg_offset FROM narad.consume('tx_topic');
COMMIT;
SELECT frontier, in_flight FROM narad.groups WHERE topic = 'tx_topic'::regclass;

-- The last word counts: nack after ack, ack after nack.
CREATE TEMP TABLE words AS SELECT * FROM narad.consume('tx_topic', 2);
BEGIN;
SELECT narad.ack(receipt) FROM words WHERE msg_offset = 8;
SELECT narad.nack(receipt) FROM words WHERE msg_offset = 8;
SELECT narad.nack(receipt) FROM words WHERE msg_offset = 9;
SELECT narad.ack(receipt) FROM words WHERE msg_offset = 9;
COMMIT;
SELECT msg_offset, deliveries FROM narad.consume('tx_topic', 10);

-- Messages of one topic made into those of another, exactly once.
SELECT narad.create_topic('tx_next');
SELECT count(*) FROM narad.produce_array('tx_topic', '[10, 11]');
BEGIN;
WITH m AS MATERIALIZED (SELECT * FROM narad.consume('tx_topic', 2)),
	p AS MATERIALIZED (SELECT p.* FROM m, narad.produce('tx_next', m.value) p)
SELECT narad.ack(array_agg(receipt)), (SELECT count(*) FROM p) FROM m;
ROLLBACK;
SELECT count(*) FROM tx_next;
BEGIN;
WITH m AS MATERIALIZED (SELECT * FROM narad.consume('tx_topic', 2)),
	p AS MATERIALIZED (SELECT p.* FROM m, narad.produce('tx_next', m.value) p)
SELECT narad.ack(array_agg(receipt)), (SELECT count(*) FROM p) FROM m;
COMMIT;
SELECT value, deliveries FROM narad.consume('tx_next', 10);

-- Other ways of keeping an ack give the same answers without a crash.
SELECT count(*) FROM narad.produce_array('tx_topic', '[12, 13]');
SET narad.ack_mode = transactional;
SELECT narad.ack(receipt) FROM narad.consume('tx_topic');
SET narad.ack_mode = deferred;
BEGIN;
INSERT INTO tx_effects VALUES ('13');
SELECT narad.ack(receipt) FROM narad.consume('tx_topic');
COMMIT;
RESET narad.ack_mode;
SELECT count(*) FROM narad.consume('tx_topic');

-- A prepared transaction cannot hold acks.
SELECT count(*) FROM narad.produce('tx_topic', '14');
BEGIN;
SELECT narad.ack(receipt) FROM narad.consume('tx_topic');
PREPARE TRANSACTION 'tx_refused';
SELECT value, deliveries FROM narad.consume('tx_topic');

-- Deferred constraints that fail at commit undo the ack.
CREATE TABLE tx_unique (i int UNIQUE DEFERRABLE INITIALLY DEFERRED);
SELECT count(*) FROM narad.produce('tx_topic', '15');
BEGIN;
SELECT narad.ack(receipt) FROM narad.consume('tx_topic');
INSERT INTO tx_unique VALUES (1), (1);
COMMIT;
SELECT value, deliveries FROM narad.consume('tx_topic');

DROP TABLE tx_topic, tx_next, tx_effects, tx_unique;
