-- I12: a dropped, truncated or re-created topic is never confused with its
-- successor; DDL that keeps the records keeps their offsets.
\set VERBOSITY terse
CREATE TABLE am_ddl (LIKE narad.topic_template) USING narad;
INSERT INTO am_ddl (key, value) SELECT 'k', to_jsonb(i) FROM generate_series(1, 500) i;

-- TRUNCATE goes on where the old file ended
TRUNCATE am_ddl;
SELECT count(*) FROM am_ddl;
INSERT INTO am_ddl (value) VALUES ('1') RETURNING msg_offset;
TRUNCATE am_ddl;
TRUNCATE am_ddl;
INSERT INTO am_ddl (value) VALUES ('2') RETURNING msg_offset;
SELECT msg_offset, value FROM am_ddl;
BEGIN;
TRUNCATE am_ddl;
INSERT INTO am_ddl (value) VALUES ('3') RETURNING msg_offset;
TRUNCATE am_ddl;
INSERT INTO am_ddl (value) VALUES ('4') RETURNING msg_offset;
COMMIT;
SELECT msg_offset, value FROM am_ddl;

-- in the transaction that made it
BEGIN;
CREATE TABLE am_fresh (LIKE narad.topic_template) USING narad;
TRUNCATE am_fresh;
INSERT INTO am_fresh (value) VALUES ('1'), ('2') RETURNING msg_offset;
TRUNCATE am_fresh;
INSERT INTO am_fresh (value) VALUES ('3') RETURNING msg_offset;
SAVEPOINT s;
TRUNCATE am_fresh;
INSERT INTO am_fresh (value) VALUES ('4');
ROLLBACK TO s;
SELECT msg_offset, value FROM am_fresh;
COMMIT;
SELECT msg_offset, value FROM am_fresh;
DROP TABLE am_fresh;

-- dropped and made again
DROP TABLE am_ddl;
CREATE TABLE am_ddl (LIKE narad.topic_template) USING narad;
SELECT count(*) FROM am_ddl;
INSERT INTO am_ddl (key, value) SELECT 'k', to_jsonb(i) FROM generate_series(1, 500) i;
SELECT min(msg_offset), max(msg_offset), count(*) FROM am_ddl;

-- moved to another tablespace and back
SET allow_in_place_tablespaces = true;
CREATE TABLESPACE regress_narad_space LOCATION '';
ALTER TABLE am_ddl SET TABLESPACE regress_narad_space;
SELECT min(msg_offset), max(msg_offset), count(*) FROM am_ddl;
INSERT INTO am_ddl (value) VALUES ('"moved"') RETURNING msg_offset;
BEGIN;
ALTER TABLE am_ddl SET TABLESPACE pg_default;
INSERT INTO am_ddl (value) VALUES ('"undone"') RETURNING msg_offset;
ROLLBACK;
INSERT INTO am_ddl (value) VALUES ('"stayed"');
ALTER TABLE am_ddl SET TABLESPACE pg_default;
SELECT msg_offset > 499 AS late, value FROM am_ddl WHERE msg_offset >= 499;
DROP TABLESPACE regress_narad_space;

-- unlogged
CREATE UNLOGGED TABLE am_unlogged (LIKE narad.topic_template) USING narad;
INSERT INTO am_unlogged (value) SELECT to_jsonb(i) FROM generate_series(1, 1000) i;
SELECT count(*), max(msg_offset) FROM am_unlogged;
SELECT pg_relation_size('am_unlogged', 'init') AS init_size;
TRUNCATE am_unlogged;
INSERT INTO am_unlogged (value) VALUES ('1') RETURNING msg_offset;
DROP TABLE am_unlogged;

-- further columns come and go; records of before keep what they have
ALTER TABLE am_ddl ADD COLUMN a int, ADD COLUMN b text DEFAULT 'fast', ADD COLUMN "Odd name" varchar(10) CHECK ("Odd name" <> 'bad');
SELECT a, b, "Odd name" FROM am_ddl WHERE msg_offset = 0;
INSERT INTO am_ddl (value, a, "Odd name") VALUES ('"new"', 7, 'x') RETURNING a, b, "Odd name";
INSERT INTO am_ddl (value, "Odd name") VALUES ('"new"', 'bad');
SELECT count(*) FROM narad.produce('am_ddl', '"produced"');
ALTER TABLE am_ddl RENAME a TO renamed;
ALTER TABLE am_ddl ALTER "Odd name" TYPE varchar(20), ALTER renamed SET STATISTICS 10, ALTER value SET STORAGE EXTERNAL,
	ALTER value SET COMPRESSION pglz, ALTER b SET DEFAULT 'later', ALTER b SET NOT NULL, ALTER b DROP NOT NULL,
	ALTER key SET DEFAULT 'none', ALTER headers SET DEFAULT '{}', SET (fillfactor = 50, autovacuum_enabled = off),
	REPLICA IDENTITY FULL;
ALTER TABLE am_ddl REPLICA IDENTITY NOTHING;
ALTER TABLE am_ddl REPLICA IDENTITY DEFAULT;
ALTER TABLE am_ddl REPLICA IDENTITY FULL;
INSERT INTO am_ddl (value) VALUES (to_jsonb(repeat('long ', 10000))) RETURNING key, headers, b;
SELECT renamed, b, "Odd name", length(value::text) FROM am_ddl WHERE value::text ~ '"(new|produced|long)' ORDER BY msg_offset;
CREATE DOMAIN am_domain AS int;
CREATE TYPE am_enum AS ENUM ('v');
ALTER TABLE am_ddl ADD COLUMN d am_domain, ADD COLUMN e am_enum DEFAULT 'v';
INSERT INTO am_ddl (value, d) VALUES ('"domain"', 1) RETURNING d, e;
ALTER DOMAIN am_domain ADD CHECK (VALUE > 1);
ALTER DOMAIN am_domain ADD CHECK (VALUE > 0);
INSERT INTO am_ddl (value, d) VALUES ('"domain"', 0);
SET client_min_messages = warning;
DROP DOMAIN am_domain CASCADE;
DROP TYPE am_enum CASCADE;
RESET client_min_messages;
ALTER TABLE am_ddl DROP COLUMN renamed, DROP COLUMN IF EXISTS renamed;
INSERT INTO am_ddl (value) VALUES ('"dropped"') RETURNING b, "Odd name", value;
SELECT b, "Odd name", value FROM am_ddl WHERE value IN ('"new"', '"produced"', '"domain"', '"dropped"') ORDER BY msg_offset;
ALTER TABLE am_ddl ALTER key SET NOT NULL;
CREATE TABLE am_not_null (LIKE narad.topic_template) USING narad;
INSERT INTO am_not_null (key, value) VALUES ('k', '1');
ALTER TABLE am_not_null ALTER key SET NOT NULL;
INSERT INTO am_not_null (value) VALUES ('1');
SELECT count(*) FROM narad.produce('am_not_null', '1');
SELECT * FROM narad.produce('am_not_null', '1', 'k');
SELECT count(*) FROM narad.consume('am_not_null', 9);
DROP TABLE am_not_null;
ALTER TABLE am_ddl ALTER key DROP DEFAULT, ALTER headers DROP DEFAULT, DROP COLUMN b;
COMMENT ON TABLE am_ddl IS 'a topic';
COMMENT ON COLUMN am_ddl.partition IS 'a partition';
SECURITY LABEL ON TABLE am_ddl IS 'none here';
CREATE STATISTICS am_statistics ON key, value FROM am_ddl;
ANALYZE am_ddl;
REINDEX TABLE am_ddl;
REINDEX TABLE CONCURRENTLY am_ddl;
CREATE TABLE am_identity (LIKE narad.topic_template, n int GENERATED ALWAYS AS IDENTITY, twice text GENERATED ALWAYS AS (key || key) STORED) USING narad;
INSERT INTO am_identity (key) VALUES ('a'), ('b') RETURNING n, twice;
SELECT count(*) FROM narad.produce('am_identity', '1', 'c');
TRUNCATE am_identity RESTART IDENTITY CASCADE;
INSERT INTO am_identity (key) VALUES ('d') RETURNING msg_offset, n, twice;
DROP TABLE am_identity;

-- triggers
CREATE TABLE am_log (n int GENERATED ALWAYS AS IDENTITY, line text);
CREATE FUNCTION am_trigger() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO am_log (line) VALUES (concat_ws(' ', TG_NAME, TG_OP, NEW.msg_offset - 1000000 > 0, NEW.key));
	IF TG_WHEN = 'BEFORE' AND TG_LEVEL = 'ROW' THEN
		NEW.key := upper(NEW.key);
	END IF;
	RETURN NEW;
END $$;
CREATE FUNCTION am_transition() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO am_log (line) SELECT concat_ws(' ', TG_NAME, count(*), min(key), count(msg_offset)) FROM new_rows;
	RETURN NULL;
END $$;
CREATE FUNCTION am_statement() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO am_log (line) VALUES (concat_ws(' ', TG_NAME, TG_OP));
	RETURN NULL;
END $$;
CREATE TRIGGER a_before BEFORE INSERT ON am_ddl FOR EACH ROW EXECUTE FUNCTION am_trigger();
CREATE TRIGGER b_after AFTER INSERT ON am_ddl FOR EACH ROW WHEN (NEW.partition = 0 AND NEW.produced_at IS NOT NULL) EXECUTE FUNCTION am_trigger();
CREATE TRIGGER c_rows AFTER INSERT ON am_ddl REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION am_transition();
CREATE CONSTRAINT TRIGGER d_deferred AFTER INSERT ON am_ddl DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION am_trigger();
CREATE TRIGGER e_statement BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON am_ddl FOR EACH STATEMENT EXECUTE FUNCTION am_statement();
CREATE TRIGGER f_row BEFORE UPDATE OR DELETE ON am_ddl FOR EACH ROW EXECUTE FUNCTION am_trigger();
BEGIN;
INSERT INTO am_ddl (key) VALUES ('one'), ('two') RETURNING key;
SELECT count(*) FROM narad.produce('am_ddl', '1', 'three');
INSERT INTO am_log (line) VALUES ('commit');
COMMIT;
SELECT line FROM am_log ORDER BY n;
UPDATE am_ddl SET key = 'x';
DELETE FROM am_ddl;
DELETE FROM am_ddl WHERE false;
ALTER TABLE am_ddl DISABLE TRIGGER ALL;
TRUNCATE am_log;
SELECT count(*) FROM narad.produce('am_ddl', '1', 'quiet');
SELECT line FROM am_log ORDER BY n;
ALTER TABLE am_ddl ENABLE ALWAYS TRIGGER b_after;
SELECT count(*) FROM narad.produce('am_ddl', '1', 'loud');
SELECT line FROM am_log ORDER BY n;
DROP FUNCTION am_trigger, am_transition, am_statement CASCADE;
-- rules
CREATE RULE am_also AS ON INSERT TO am_ddl DO ALSO INSERT INTO am_log (line) VALUES ('rule ' || NEW.key);
CREATE RULE am_never AS ON DELETE TO am_ddl DO INSTEAD NOTHING;
INSERT INTO am_ddl (key) VALUES ('ruled');
DELETE FROM am_ddl;
SELECT line FROM am_log ORDER BY n DESC LIMIT 1;
ALTER TABLE am_ddl DISABLE RULE am_also;
DROP RULE am_also ON am_ddl;
DROP RULE am_never ON am_ddl;
DROP TABLE am_log;

-- row-level security: SQL obeys, functions refuse
CREATE ROLE regress_narad_ddl;
GRANT SELECT, INSERT, UPDATE ON am_ddl TO regress_narad_ddl;
CREATE POLICY am_read ON am_ddl FOR SELECT USING (msg_offset = 0 AND partition = 0);
CREATE POLICY am_write ON am_ddl FOR INSERT WITH CHECK (key = 'mine');
ALTER TABLE am_ddl ENABLE ROW LEVEL SECURITY;
SET ROLE regress_narad_ddl;
SELECT msg_offset, value FROM am_ddl;
INSERT INTO am_ddl (key) VALUES ('mine');
INSERT INTO am_ddl (key) VALUES ('yours');
SELECT count(*) FROM narad.consume('am_ddl');
RESET ROLE;
ALTER TABLE am_ddl DISABLE ROW LEVEL SECURITY;
DROP POLICY am_read ON am_ddl;
DROP POLICY am_write ON am_ddl;

-- copies
CREATE TABLE am_like (LIKE am_ddl INCLUDING ALL) USING narad;
INSERT INTO am_like (key, value) SELECT key, value FROM am_ddl WHERE msg_offset < 3 ORDER BY msg_offset;
CREATE TABLE am_as USING narad AS SELECT partition, msg_offset, produced_at, key, value, headers FROM am_like;
CREATE TABLE am_heap AS TABLE am_like;
SELECT * INTO am_into FROM am_like;
SELECT (SELECT count(*) FROM am_like), (SELECT count(*) FROM am_as), (SELECT count(*) FROM am_heap), (SELECT count(*) FROM am_into);
SELECT msg_offset FROM narad.produce('am_as', '1');
SET default_table_access_method = narad;
CREATE TABLE am_default (LIKE narad.topic_template);
SELECT * INTO am_default_into FROM am_like;
RESET default_table_access_method;
SELECT relname FROM pg_class c JOIN pg_am a ON a.oid = relam WHERE relname ~ '^am_' AND amname = 'narad' ORDER BY 1;
BEGIN;
TRUNCATE am_as;
COPY am_as (key, value) FROM stdin WITH (FREEZE);
frozen	1
\.
ROLLBACK;
BEGIN;
CREATE TABLE am_freeze (LIKE narad.topic_template) USING narad;
COPY am_freeze (key, value) FROM stdin WITH (FREEZE);
frozen	1
\.
COMMIT;
SELECT msg_offset, key FROM am_freeze;
MERGE INTO am_freeze t USING (VALUES ('merged')) v (k) ON t.key = v.k WHEN NOT MATCHED THEN INSERT (key) VALUES (v.k);
INSERT INTO am_freeze (key) VALUES ('conflict') ON CONFLICT DO NOTHING RETURNING msg_offset;
CREATE MATERIALIZED VIEW am_matview AS SELECT key, count(*) FROM am_freeze GROUP BY key;
REFRESH MATERIALIZED VIEW am_matview;
SELECT * FROM am_matview ORDER BY key;
DROP MATERIALIZED VIEW am_matview;
BEGIN;
DECLARE c SCROLL CURSOR WITH HOLD FOR SELECT key FROM am_freeze ORDER BY msg_offset;
FETCH c;
COMMIT;
INSERT INTO am_freeze (key) VALUES ('later');
FETCH ALL FROM c;
FETCH FIRST FROM c;
CLOSE c;
DROP TABLE am_like, am_as, am_heap, am_into, am_default, am_default_into, am_freeze;

-- publications of everything take a topic along, and its messages do not
SET client_min_messages = error;
CREATE PUBLICATION regress_narad_all FOR ALL TABLES;
RESET client_min_messages;
SELECT count(*) FROM narad.produce('am_ddl', '1');
UPDATE am_ddl SET key = 'x';
DROP PUBLICATION regress_narad_all;

SET client_min_messages = error;
CREATE PUBLICATION regress_narad_schema FOR TABLES IN SCHEMA public;
RESET client_min_messages;
SELECT tablename FROM pg_publication_tables WHERE pubname = 'regress_narad_schema' AND tablename = 'am_ddl';
SELECT count(*) FROM narad.produce('am_ddl', '1');
DELETE FROM am_ddl;
DROP PUBLICATION regress_narad_schema;

-- event triggers see a topic made, changed and, where that is refused, not rewritten
CREATE TABLE am_events (n int GENERATED ALWAYS AS IDENTITY, line text);
CREATE FUNCTION am_event() RETURNS event_trigger LANGUAGE plpgsql AS $$
BEGIN
	IF TG_EVENT = 'table_rewrite' THEN
		INSERT INTO am_events (line) VALUES ('rewrite ' || pg_event_trigger_table_rewrite_oid()::regclass);
	ELSE
		INSERT INTO am_events (line) SELECT command_tag || ' ' || object_identity FROM pg_event_trigger_ddl_commands()
		WHERE object_identity ~ 'am_event_topic';
	END IF;
END $$;
CREATE EVENT TRIGGER am_event_end ON ddl_command_end EXECUTE FUNCTION am_event();
CREATE EVENT TRIGGER am_event_rewrite ON table_rewrite EXECUTE FUNCTION am_event();
SELECT narad.create_topic('am_event_topic');
ALTER TABLE am_event_topic ADD COLUMN a int DEFAULT 1;
ALTER TABLE am_event_topic ADD COLUMN r float DEFAULT random();
SELECT count(*) FROM narad.produce('am_event_topic', '1');
ALTER TABLE am_event_topic SET ACCESS METHOD heap;
SELECT line FROM am_events ORDER BY n;
DROP EVENT TRIGGER am_event_end;
DROP EVENT TRIGGER am_event_rewrite;
DROP FUNCTION am_event;
SELECT a, value FROM am_event_topic;
DROP TABLE am_events, am_event_topic;

-- settings, groups, receipts and leases follow name, schema and owner
SELECT narad.create_topic('am_queue', max_in_flight => 5, visibility_timeout => '1 hour');
SELECT count(*) FROM narad.produce_array('am_queue', '[1, 2, 3, 4]');
SELECT receipt FROM narad.consume('am_queue') \gset a_
SELECT receipt FROM narad.consume('am_queue') \gset b_
ALTER TABLE am_queue RENAME TO "Am ""queue""";
CREATE SCHEMA "regress narad";
ALTER TABLE "Am ""queue""" SET SCHEMA "regress narad";
ALTER TABLE "regress narad"."Am ""queue""" OWNER TO regress_narad_ddl;
SELECT narad.ack(:'a_receipt');
GRANT USAGE ON SCHEMA "regress narad" TO regress_narad_ddl;
SET ROLE regress_narad_ddl;
SELECT narad.ack(:'b_receipt');
SELECT max_in_flight, visibility_timeout FROM narad.topics WHERE topic = '"regress narad"."Am ""queue"""'::regclass;
SELECT consumer_group, frontier, in_flight FROM narad.groups WHERE topic = '"regress narad"."Am ""queue"""'::regclass;
SELECT value FROM narad.consume('"regress narad"."Am ""queue"""');
RESET ROLE;
REASSIGN OWNED BY regress_narad_ddl TO CURRENT_USER;
SELECT max_in_flight FROM narad.topics WHERE topic = '"regress narad"."Am ""queue"""'::regclass;
ALTER TABLE "regress narad"."Am ""queue""" OWNER TO regress_narad_ddl;
SELECT count(*) FROM narad.topic_settings WHERE max_in_flight = 5;
DROP OWNED BY regress_narad_ddl;
SELECT count(*) FROM narad.topic_settings WHERE max_in_flight = 5;
DROP ROLE regress_narad_ddl;

-- locks
BEGIN;
LOCK TABLE am_ddl IN ACCESS EXCLUSIVE MODE;
SELECT count(*) FROM narad.produce('am_ddl', '1');
SELECT count(*) FROM narad.consume('am_ddl', 3);
COMMIT;
BEGIN;
LOCK TABLE am_ddl IN SHARE MODE;
SELECT count(*) FROM narad.consume('am_ddl', 3);
COMMIT;

-- to a heap, and dropped by its schema
CREATE TABLE "regress narad".am_leaves (LIKE narad.topic_template) USING narad;
INSERT INTO "regress narad".am_leaves (value) SELECT to_jsonb(i) FROM generate_series(1, 3) i;
ALTER TABLE "regress narad".am_leaves SET ACCESS METHOD heap;
SELECT msg_offset, value FROM "regress narad".am_leaves;
UPDATE "regress narad".am_leaves SET value = '0' WHERE msg_offset = 1;
SELECT narad.create_topic('"regress narad".am_inside', max_in_flight => 5);
SELECT count(*) FROM narad.produce('"regress narad".am_inside', '1');
SELECT count(*) FROM narad.consume('"regress narad".am_inside');
SET client_min_messages = warning;
DROP SCHEMA "regress narad" CASCADE;
RESET client_min_messages;
SELECT count(*) FROM narad.topic_settings WHERE max_in_flight = 5;
DROP TABLE am_ddl;

-- foreign keys from a topic are checked
CREATE TABLE am_parent (id text PRIMARY KEY);
INSERT INTO am_parent VALUES ('yes');
CREATE TABLE am_child (LIKE narad.topic_template, FOREIGN KEY (key) REFERENCES am_parent) USING narad;
INSERT INTO am_child (key) VALUES ('yes');
INSERT INTO am_child (key) VALUES ('no');
DELETE FROM am_parent;
SELECT count(*) FROM narad.produce('am_child', '1', 'yes');
SELECT count(*) FROM narad.produce('am_child', '1', 'no');
CREATE TABLE am_partitions (p int PRIMARY KEY);
INSERT INTO am_partitions VALUES (0);
ALTER TABLE am_child ADD FOREIGN KEY (partition) REFERENCES am_partitions ON DELETE CASCADE;
INSERT INTO am_child (key) VALUES ('yes') RETURNING partition;
DELETE FROM am_partitions;
TRUNCATE am_partitions;
TRUNCATE am_partitions CASCADE;
SELECT count(*) FROM am_child;
INSERT INTO am_child (key) VALUES ('yes');
SELECT count(*) FROM am_child;
DROP TABLE am_child, am_parent, am_partitions;

-- logical size is what the file has
CREATE TABLE am_size (LIKE narad.topic_template) USING narad;
INSERT INTO am_size (value) VALUES ('1');
SELECT pg_relation_size('am_size') > 0 AS has_size, pg_total_relation_size('am_size') = pg_relation_size('am_size') AS no_toast;
DROP TABLE am_size;
