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

-- Each function of the schema, by what its caller was granted.  One that is
-- missing here has been tried by nobody: it goes into the list, with a call that
-- succeeds.  %1$L is a receipt; there are a group d, and none of the name c.
CREATE TABLE tried (n serial, function regprocedure, call text);
INSERT INTO tried (function, call)
SELECT format('narad.%s', f)::regprocedure, c FROM (VALUES
	('tableam_handler(internal)', NULL),	-- not to be called by SQL
	('create_topic(text,int,interval,bigint,interval,int,text,interval,float8,text,text,interval,int,int,text,interval,regtype)',
		$$SELECT narad.create_topic('priv_new')$$),
	('alter_topic(regclass,int,interval,bigint,interval,int,text,interval,float8,text,text,interval,int,int,text,interval,regtype,text[])',
		$$SELECT narad.alter_topic('priv_topic', max_in_flight => 102)$$),
	('drop_topic(regclass)', $$SELECT narad.drop_topic('priv_topic')$$),
	('purge_topic(regclass)', $$SELECT narad.purge_topic('priv_topic')$$),
	('produce(regclass,jsonb,text,jsonb,int,interval,timestamptz,text)', $$SELECT narad.produce('priv_topic', '1')$$),
	('produce_bytes(regclass,bytea,text,jsonb,int,interval,timestamptz,text)', $$SELECT narad.produce_bytes('priv_bytes', '1')$$),
	('produce_batch(regclass,jsonb[],text[],jsonb[],int,interval,timestamptz,text[])', $$SELECT narad.produce_batch('priv_topic', '{1}')$$),
	('produce_batch_bytes(regclass,bytea[],text[],jsonb[],int,interval,timestamptz,text[])',
		$$SELECT narad.produce_batch_bytes('priv_bytes', '{1}')$$),
	('produce_array(regclass,jsonb)', $$SELECT narad.produce_array('priv_topic', '[1]')$$),
	('produce_once(regclass,jsonb,text,bigint,int,text,jsonb,int)', $$SELECT narad.produce_once('priv_topic', '1', 'p', 1)$$),
	('produce_once_bytes(regclass,bytea,text,bigint,int,text,jsonb,int)', $$SELECT narad.produce_once_bytes('priv_bytes', '1', 'p', 1)$$),
	('consume(regclass,int,interval,interval,text,int,text[],text,interval)', $$SELECT narad.consume('priv_topic')$$),
	('consume(regclass,int,interval,interval,text,int,text[],text,interval)', $$SELECT narad.consume('priv_topic', ack => ARRAY[%1$L])$$),
	('consume(regclass,int,interval,interval,text,int,text[],text,interval)',
		$$SELECT narad.consume('priv_topic', partition => 0, consumer_group => 'late', wait => '1 ms', notify => 'c')$$),
	('consume_bytes(regclass,int,interval,interval,text,int,text[],text,interval)', $$SELECT narad.consume_bytes('priv_bytes')$$),
	('wait(regclass,interval,text,bool)', $$CALL narad.wait('priv_topic', '1 ms')$$),
	('ack(text)', $$SELECT narad.ack(%1$L)$$),
	('ack(text[])', $$SELECT narad.ack(ARRAY[%1$L])$$),
	('try_ack(text[])', $$SELECT narad.try_ack(ARRAY[%1$L])$$),
	('nack(text,interval,text)', $$SELECT narad.nack(%1$L)$$),
	('nack(text[],interval,text)', $$SELECT narad.nack(ARRAY[%1$L])$$),
	('extend(text,interval)', $$SELECT narad.extend(%1$L)$$),
	('extend(text[],interval)', $$SELECT narad.extend(ARRAY[%1$L])$$),
	('fetch(regclass,int,bigint,int,int,interval,int)', $$SELECT narad.fetch('priv_topic', 0, 0)$$),
	('fetch_bytes(regclass,int,bigint,int,int,interval,int)', $$SELECT narad.fetch_bytes('priv_bytes', 0, 0)$$),
	('offsets(regclass)', $$SELECT narad.offsets('priv_topic')$$),
	('offset_for_time(regclass,int,timestamptz)', $$SELECT narad.offset_for_time('priv_topic', 0, now())$$),
	('offset_for_epoch(regclass,int,int)', $$SELECT narad.offset_for_epoch('priv_topic', 0, 0)$$),
	('create_group(regclass,text,text)', $$SELECT narad.create_group('priv_topic', 'c')$$),
	('drop_group(regclass,text)', $$SELECT narad.drop_group('priv_topic', 'd')$$),
	('pause_group(regclass,text)', $$SELECT narad.pause_group('priv_topic', 'd')$$),
	('resume_group(regclass,text)', $$SELECT narad.resume_group('priv_topic', 'd')$$),
	('seek(regclass,text,int,bigint)', $$SELECT narad.seek('priv_topic', 'd', 0, 0)$$),
	('seek_to_time(regclass,text,timestamptz)', $$SELECT narad.seek_to_time('priv_topic', 'd', now())$$),
	('verify(regclass)', $$SELECT narad.verify('priv_topic')$$),
	('apply_retention(regclass)', $$SELECT narad.apply_retention('priv_topic')$$),
	('_topics()', 'SELECT narad._topics()'),
	('_partitions()', 'SELECT narad._partitions()'),
	('_segments()', 'SELECT narad._segments()'),
	('_groups()', 'SELECT narad._groups()'),
	('_leases()', 'SELECT narad._leases()'),
	('_waiters()', 'SELECT narad._waiters()')) v (f, c);
SELECT oid::regprocedure AS not_tried FROM pg_proc
WHERE pronamespace = 'narad'::regnamespace AND NOT EXISTS (SELECT FROM tried WHERE function = pg_proc.oid);

SET ROLE regress_narad_owner;
SELECT narad.create_topic('priv_topic'), narad.create_topic('priv_bytes', value_type => 'bytea');
SELECT narad.create_group('priv_topic', 'late', 'latest');
SELECT count(*) FROM narad.produce_array('priv_topic', (SELECT jsonb_agg(i) FROM generate_series(1, 500) i));
RESET ROLE;

-- What a call comes to, which is undone as far as it can be.
CREATE FUNCTION pg_temp.try_as(who name, call text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	receipt text := (SELECT m.receipt FROM narad.consume('priv_topic') m);
BEGIN
	IF EXISTS (SELECT FROM narad.groups WHERE topic = 'priv_topic'::regclass AND consumer_group = 'c') THEN
		PERFORM narad.drop_group('priv_topic', 'c');
	END IF;
	IF NOT EXISTS (SELECT FROM narad.groups WHERE topic = 'priv_topic'::regclass AND consumer_group = 'd') THEN
		PERFORM narad.create_group('priv_topic', 'd');
	END IF;
	EXECUTE format('SET LOCAL ROLE %I', who);
	EXECUTE format(call, receipt);
	RAISE SQLSTATE 'T0000';
EXCEPTION
	WHEN SQLSTATE 'T0000' THEN
		RETURN 'ok';
	WHEN insufficient_privilege THEN
		RETURN 'refused';
	WHEN OTHERS THEN
		RETURN SQLSTATE || ': ' || SQLERRM;
END $$;
CREATE TABLE came_to (n int, granted text, result text);
DO $$
DECLARE
	g text;
	who name;
BEGIN
	FOREACH g IN ARRAY ARRAY['nothing', 'SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER',
		'SELECT, UPDATE', 'ALL', 'ownership']
	LOOP
		REVOKE ALL ON priv_topic, priv_bytes FROM regress_narad_user;
		who := CASE g WHEN 'ownership' THEN 'regress_narad_owner' ELSE 'regress_narad_user' END;
		IF g NOT IN ('nothing', 'ownership') THEN
			EXECUTE format('GRANT %s ON priv_topic, priv_bytes TO regress_narad_user', g);
		END IF;
		COMMIT;
		INSERT INTO came_to SELECT n, g, pg_temp.try_as(who, call) FROM tried WHERE call IS NOT NULL;
		COMMIT;
	END LOOP;
END $$;
SELECT regexp_replace(function::text, '\(.*', '') AS function,
	CASE count(*) FILTER (WHERE result = 'ok') WHEN 11 THEN 'anybody' ELSE
		string_agg(granted, ' / ' ORDER BY length(granted), granted) FILTER (WHERE result = 'ok') END AS granted,
	string_agg(DISTINCT result, ', ') FILTER (WHERE result NOT IN ('ok', 'refused')) AS else,
	bool_and(has_function_privilege('public', function, 'EXECUTE')) AS by_public
FROM tried LEFT JOIN came_to USING (n) GROUP BY n, function ORDER BY n;

-- A trigger that produces does it as who fires it, unless it is told otherwise.
-- Who may not: neither the row is there, nor the message.
SELECT narad.purge_topic('priv_topic');
CREATE TABLE priv_orders (id int);
CREATE FUNCTION priv_produce() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM narad.produce('privileges_schema.priv_topic', to_jsonb(NEW.id));
	RETURN NEW;
END $$;
CREATE TRIGGER produce AFTER INSERT ON priv_orders FOR EACH ROW EXECUTE FUNCTION priv_produce();
REVOKE ALL ON priv_topic FROM regress_narad_user;
GRANT INSERT ON priv_orders TO regress_narad_user;
SET ROLE regress_narad_user;
SELECT pg_temp.attempt('INSERT INTO priv_orders VALUES (1)');
RESET ROLE;
SELECT (SELECT count(*) FROM priv_orders) AS orders, (SELECT count(*) FROM priv_topic) AS messages;
GRANT INSERT ON priv_topic TO regress_narad_user;
SET ROLE regress_narad_user;
INSERT INTO priv_orders VALUES (2);
RESET ROLE;
REVOKE INSERT ON priv_topic FROM regress_narad_user;
ALTER FUNCTION priv_produce() OWNER TO regress_narad_owner;
ALTER FUNCTION priv_produce() SECURITY DEFINER SET search_path = pg_catalog;
SET ROLE regress_narad_user;
INSERT INTO priv_orders VALUES (3);
RESET ROLE;
SELECT value, (SELECT count(*) FROM priv_orders o WHERE to_jsonb(id) = value) AS orders FROM priv_topic ORDER BY msg_offset;
RESET search_path;
DROP SCHEMA privileges_schema CASCADE;
DROP ROLE regress_narad_owner, regress_narad_user;
