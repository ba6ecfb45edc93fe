-- Nobody does to a topic what the privileges on its table do not allow.
SET client_min_messages = warning;
CREATE ROLE regress_narad_owner;
CREATE ROLE regress_narad_user;

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

CREATE SCHEMA privileges_schema AUTHORIZATION regress_narad_owner;
GRANT USAGE ON SCHEMA privileges_schema TO PUBLIC;
SET search_path = privileges_schema, public;
SET ROLE regress_narad_owner;
SELECT narad.create_topic('priv_topic', max_in_flight => 100);
SELECT count(*) FROM narad.produce_array('priv_topic', '[0, 1, 2]');
SELECT narad.create_group('priv_topic', 'g');
SELECT count(*) FROM narad.consume('priv_topic');
RESET ROLE;
CREATE TABLE calls (n int, call text);
INSERT INTO calls VALUES
	(1, $$narad.produce('priv_topic', '1')$$),
	(2, $$narad.produce_batch('priv_topic', '{1}')$$),
	(3, $$narad.produce_array('priv_topic', '[1]')$$),
	(4, $$narad.consume('priv_topic')$$),
	(5, $$narad.fetch('priv_topic', 0, 0)$$),
	(6, $$narad.offsets('priv_topic')$$),
	(7, $$narad.create_group('priv_topic', 'h')$$),
	(8, $$narad.drop_group('priv_topic', 'h')$$),
	(9, $$narad.pause_group('priv_topic', 'g')$$),
	(10, $$narad.resume_group('priv_topic', 'g')$$),
	(11, $$narad.alter_topic('priv_topic', max_in_flight => 101)$$),
	(12, $$narad.purge_topic('priv_topic')$$),
	(13, $$narad.drop_topic('priv_topic')$$),
	(14, $$narad.create_topic('priv_other')$$);
GRANT SELECT ON calls TO PUBLIC;

-- No privilege: nothing, and nothing is shown.
SET ROLE regress_narad_user;
SELECT n, pg_temp.attempt('SELECT ' || call) FROM calls ORDER BY n;
SELECT (SELECT count(*) FROM narad.topics WHERE topic::oid = 'priv_topic'::regclass) AS topics,
	(SELECT count(*) FROM narad.partitions WHERE topic::oid = 'priv_topic'::regclass) AS partitions,
	(SELECT count(*) FROM narad.groups WHERE topic::oid = 'priv_topic'::regclass) AS groups,
	(SELECT count(*) FROM narad.leases WHERE topic::oid = 'priv_topic'::regclass) AS leases;
SELECT pg_temp.attempt('SELECT * FROM narad.topic_settings');
SELECT pg_temp.attempt('INSERT INTO narad.topic_settings (topic) VALUES (''priv_topic'')');
SELECT pg_temp.attempt('UPDATE narad.topic_settings SET max_in_flight = 1');
SELECT pg_temp.attempt('INSERT INTO narad.topic_template (value) VALUES (''1'')');

-- INSERT: produce, and no more.
RESET ROLE;
GRANT INSERT ON priv_topic TO regress_narad_user;
SET ROLE regress_narad_user;
SELECT n, pg_temp.attempt('SELECT ' || call) FROM calls WHERE n <= 6 ORDER BY n;

-- SELECT: read as a log, and look.
RESET ROLE;
REVOKE INSERT ON priv_topic FROM regress_narad_user;
GRANT SELECT ON priv_topic TO regress_narad_user;
SET ROLE regress_narad_user;
SELECT n, pg_temp.attempt('SELECT ' || call) FROM calls WHERE n <= 6 ORDER BY n;
SELECT (SELECT count(*) FROM narad.topics WHERE topic = 'priv_topic'::regclass) AS topics,
	(SELECT count(*) FROM narad.partitions WHERE topic = 'priv_topic'::regclass) AS partitions,
	(SELECT count(*) FROM narad.groups WHERE topic = 'priv_topic'::regclass) AS groups,
	(SELECT count(*) FROM narad.leases WHERE topic = 'priv_topic'::regclass) AS leases;

-- A receipt is of no use without UPDATE.
RESET ROLE;
CREATE TABLE receipts AS SELECT receipt FROM narad.consume('priv_topic', 2);
SELECT narad.create_topic('priv_own');
SELECT count(*) FROM narad.produce_array('priv_own', '[1, 2]');
CREATE TABLE own AS SELECT receipt FROM narad.consume('priv_own', 2);
GRANT SELECT, UPDATE ON priv_own TO regress_narad_user;
GRANT SELECT ON receipts, own TO PUBLIC;
SET ROLE regress_narad_user;
SELECT pg_temp.attempt(format('SELECT narad.%s(%L)', f, receipt))
FROM unnest(ARRAY['ack', 'nack', 'extend']) f, (SELECT min(receipt) FROM receipts) r (receipt);
SELECT pg_temp.attempt(format('SELECT * FROM narad.try_ack(ARRAY[%L])', min(receipt))) FROM receipts;
-- Neither is it between receipts that are.
SELECT pg_temp.attempt(format('SELECT narad.ack(%L::text[])', ARRAY[(SELECT min(receipt) FROM own),
	(SELECT min(receipt) FROM receipts), (SELECT max(receipt) FROM own)]));
SELECT in_flight FROM narad.groups WHERE topic = 'priv_own'::regclass;
SELECT narad.ack(ARRAY(SELECT receipt FROM own));

-- SELECT and UPDATE: consume and settle, with anybody's receipts.
RESET ROLE;
GRANT UPDATE ON priv_topic TO regress_narad_user;
SET ROLE regress_narad_user;
SELECT n, pg_temp.attempt('SELECT ' || call) FROM calls ORDER BY n;
SELECT narad.ack(array_agg(receipt)) FROM receipts;

-- TRUNCATE: purge.
RESET ROLE;
GRANT TRUNCATE ON priv_topic TO regress_narad_user;
SET ROLE regress_narad_user;
SELECT narad.purge_topic('priv_topic');

-- A grant to the column is not one to the table.
RESET ROLE;
REVOKE ALL ON priv_topic FROM regress_narad_user;
GRANT SELECT (value), UPDATE (value), INSERT (value) ON priv_topic TO regress_narad_user;
SET ROLE regress_narad_user;
SELECT n, pg_temp.attempt('SELECT ' || call) FROM calls WHERE n <= 6 ORDER BY n;

-- Row-level security: the functions would step over it, so they refuse.
RESET ROLE;
GRANT ALL ON priv_topic TO regress_narad_user;
ALTER TABLE priv_topic ENABLE ROW LEVEL SECURITY;
SET ROLE regress_narad_user;
SELECT n, pg_temp.attempt('SELECT ' || call) FROM calls WHERE n <= 6 ORDER BY n;
SET ROLE regress_narad_owner;
SELECT n, pg_temp.attempt('SELECT ' || call) FROM calls WHERE n <= 6 ORDER BY n;

-- Through the executor a producer needs no more: INSERT is enough.
RESET ROLE;
CREATE FUNCTION priv_trigger() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.key = 'by trigger'; RETURN NEW; END $$;
CREATE TRIGGER priv BEFORE INSERT ON priv_topic FOR EACH ROW EXECUTE FUNCTION priv_trigger();
ALTER TABLE priv_topic DISABLE ROW LEVEL SECURITY, ADD CHECK (value <> '"bad"');
REVOKE ALL ON priv_topic FROM regress_narad_user;
GRANT INSERT ON priv_topic TO regress_narad_user;
SET ROLE regress_narad_user;
SELECT n, pg_temp.attempt('SELECT ' || call) FROM calls WHERE n <= 6 ORDER BY n;
SELECT pg_temp.attempt($$SELECT narad.produce('priv_topic', '"bad"')$$);
RESET ROLE;
SELECT key, count(*) FROM priv_topic WHERE key IS NOT NULL GROUP BY key;

-- The owner may do it all.
SET ROLE regress_narad_owner;
SELECT n, pg_temp.attempt('SELECT ' || call) FROM calls ORDER BY n;
RESET ROLE;
RESET search_path;
DROP SCHEMA privileges_schema CASCADE;
DROP ROLE regress_narad_owner, regress_narad_user;
