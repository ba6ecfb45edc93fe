-- DDL that a topic does not take is refused with 0A000 and a hint, whatever
-- command it comes by, and leaves the topic as it was.
SET client_min_messages = warning;
SELECT narad.create_topic('gate');
ALTER TABLE gate ADD COLUMN extra varchar(5), ADD COLUMN spare int DEFAULT 5;
SELECT narad.create_group('gate', 'default');
CREATE TABLE gate_heap (LIKE narad.topic_template);
CREATE TABLE gate_target (id int PRIMARY KEY, name text UNIQUE);
CREATE FUNCTION gate_trigger() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';

-- Produces, consumes, acknowledges, reads: silent, if all is well.
CREATE PROCEDURE pg_temp.alive(topic regclass) LANGUAGE plpgsql AS $$
DECLARE
	at bigint;
	taken narad.message;
	seen bigint;
BEGIN
	SELECT msg_offset INTO STRICT at FROM narad.produce(topic, '"alive"', 'k');
	COMMIT;
	SELECT * INTO STRICT taken FROM narad.consume(topic, 10);
	PERFORM narad.ack(taken.receipt);
	COMMIT;
	EXECUTE format('SELECT count(*) FROM %s WHERE msg_offset = %s AND value = ''"alive"'' AND key = ''k''', topic, at)
		INTO seen;
	IF taken.msg_offset <> at OR seen <> 1 THEN
		RAISE 'produced %, consumed %, seen %', at, taken.msg_offset, seen;
	END IF;
END $$;
CREATE FUNCTION pg_temp.outcome(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	hint text;
BEGIN
	EXECUTE statement;
	RETURN 'done';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS hint = PG_EXCEPTION_HINT;
	RETURN format('%s %s%s', SQLSTATE, SQLERRM, CASE WHEN hint <> '' THEN ' | ' || hint END);
END $$;
-- Tells what each statement did; the topic must live on.
CREATE PROCEDURE pg_temp.try(statements text[]) LANGUAGE plpgsql AS $$
DECLARE
	statement text;
BEGIN
	FOREACH statement IN ARRAY statements LOOP
		RAISE INFO E'%\n    %', statement, pg_temp.outcome(statement);
		COMMIT;
		CALL pg_temp.alive('gate');
	END LOOP;
END $$;
CALL pg_temp.alive('gate');
\pset tuples_only on

-- the standard columns
CALL pg_temp.try(ARRAY[
	'ALTER TABLE gate DROP COLUMN partition',
	'ALTER TABLE gate DROP COLUMN msg_offset CASCADE',
	'ALTER TABLE public.gate DROP COLUMN IF EXISTS produced_at',
	'ALTER TABLE IF EXISTS ONLY "gate" DROP key',
	'ALTER TABLE gate DROP COLUMN value, ADD COLUMN value2 text',
	'ALTER TABLE gate DROP COLUMN headers',
	'ALTER TABLE gate RENAME COLUMN partition TO part',
	'ALTER TABLE gate RENAME msg_offset TO "offset"',
	'ALTER TABLE gate RENAME produced_at TO at',
	'ALTER TABLE gate RENAME key TO k',
	'ALTER VIEW gate RENAME COLUMN value TO v',
	'ALTER TABLE gate RENAME headers TO h',
	'ALTER TABLE gate ALTER partition TYPE bigint',
	'ALTER TABLE gate ALTER msg_offset TYPE int USING 0',
	'ALTER TABLE gate ALTER produced_at TYPE timestamp',
	'ALTER TABLE gate ALTER key TYPE varchar',
	'ALTER TABLE gate ALTER value TYPE json',
	'ALTER TABLE gate ALTER value TYPE text',
	'ALTER TABLE gate ALTER value TYPE jsonb USING value || ''{}''',
	'ALTER TABLE gate ALTER headers TYPE text',
	'ALTER TABLE gate ALTER partition SET DEFAULT 0',
	'ALTER TABLE gate ALTER msg_offset SET DEFAULT 1',
	'ALTER TABLE gate ALTER produced_at SET DEFAULT now()',
	'ALTER TABLE gate ALTER partition SET NOT NULL',
	'ALTER TABLE gate ALTER msg_offset SET NOT NULL',
	'ALTER TABLE gate ALTER produced_at SET NOT NULL',
	'ALTER TABLE gate ALTER msg_offset ADD GENERATED ALWAYS AS IDENTITY'
]);

-- what is checked or computed before the append
CALL pg_temp.try(ARRAY[
	'ALTER TABLE gate ADD CHECK (partition < 10)',
	'ALTER TABLE gate ADD CONSTRAINT gate_new CHECK (key IS NULL OR msg_offset >= 0) NOT VALID',
	'ALTER TABLE gate ADD CHECK (gate IS NOT NULL)',
	'ALTER TABLE gate ADD COLUMN other int CHECK (produced_at > ''2000-01-01'')',
	'ALTER TABLE gate ADD COLUMN double bigint GENERATED ALWAYS AS (msg_offset * 2) STORED',
	'CREATE POLICY gate_policy ON gate USING (partition = 0)',
	'CREATE POLICY gate_policy ON gate FOR INSERT WITH CHECK (EXISTS (SELECT FROM gate_target WHERE id = msg_offset))',
	'CREATE TABLE gate_2 (LIKE gate, CHECK (msg_offset > 0)) USING narad',
	'CREATE TABLE gate_2 (LIKE gate, double bigint GENERATED ALWAYS AS (msg_offset * 2) STORED) USING narad',
	'CREATE TABLE gate_2 (LIKE gate, PRIMARY KEY (partition, msg_offset)) USING narad',
	'CREATE TABLE gate_2 (partition int DEFAULT 0, msg_offset bigint, produced_at timestamptz, key text, value jsonb, headers jsonb) USING narad',
	'CREATE TABLE gate_2 (partition int, msg_offset bigint, produced_at timestamptz, key text GENERATED ALWAYS AS (''k'') STORED, value jsonb, headers jsonb) USING narad',
	'CREATE TABLE gate_2 (partition int, msg_offset bigint GENERATED ALWAYS AS IDENTITY, produced_at timestamptz, key text, value jsonb, headers jsonb) USING narad'
]);
CREATE POLICY gate_policy ON gate FOR SELECT USING (partition = 0);
CALL pg_temp.try(ARRAY[
	'ALTER POLICY gate_policy ON gate USING (partition = 0 AND msg_offset > 1)',
	'DROP POLICY gate_policy ON gate',
	'CREATE POLICY gate_policy ON gate USING (key <> ''x'')',
	'ALTER POLICY gate_policy ON gate WITH CHECK (produced_at > now())',
	'DROP POLICY gate_policy ON gate'
]);

-- indexes and what needs them
CALL pg_temp.try(ARRAY[
	'CREATE INDEX ON gate (key)',
	'CREATE UNIQUE INDEX IF NOT EXISTS gate_index ON ONLY gate (key)',
	'CREATE INDEX ON gate USING hash (key)',
	'CREATE INDEX ON gate USING brin (msg_offset)',
	'CREATE INDEX ON gate USING gin (value)',
	'ALTER TABLE gate ADD PRIMARY KEY (partition, msg_offset)',
	'ALTER TABLE gate ADD UNIQUE (key)',
	'ALTER TABLE gate ADD EXCLUDE USING btree (key WITH =)',
	'ALTER TABLE gate ADD COLUMN id int UNIQUE',
	'ALTER TABLE gate ADD CONSTRAINT c UNIQUE USING INDEX gate_target_pkey',
	'ALTER TABLE gate REPLICA IDENTITY USING INDEX gate_target_pkey',
	'ALTER TABLE gate CLUSTER ON gate_target_pkey',
	'CLUSTER gate USING gate_target_pkey',
	'CLUSTER gate',
	'INSERT INTO gate (key) VALUES (''k'') ON CONFLICT (key) DO NOTHING',
	'INSERT INTO gate (key) VALUES (''k'') ON CONFLICT (key) DO UPDATE SET key = ''l''',
	'ALTER TABLE gate_target ADD FOREIGN KEY (name) REFERENCES gate (key)',
	'ALTER TABLE gate_target ADD COLUMN ref bigint REFERENCES public."gate" (msg_offset)',
	'CREATE TABLE gate_2 (ref bigint REFERENCES gate)',
	'CREATE TABLE gate_2 (ref text, FOREIGN KEY (ref) REFERENCES gate (key))',
	'CREATE SCHEMA gate_schema CREATE TABLE gate_2 (ref text REFERENCES public.gate (key))'
]);
CREATE INDEX CONCURRENTLY gate_index ON gate (key);
CREATE UNIQUE INDEX CONCURRENTLY gate_index ON gate (key);
SELECT count(*) FROM pg_index WHERE indrelid = 'gate'::regclass;
CALL pg_temp.alive('gate');

-- rewrites
CALL pg_temp.try(ARRAY[
	'ALTER TABLE gate ALTER extra TYPE int USING 1',
	'ALTER TABLE gate ALTER extra TYPE varchar(3)',
	'ALTER TABLE gate ADD COLUMN r float DEFAULT random()',
	'ALTER TABLE gate ADD COLUMN id serial',
	'ALTER TABLE gate ADD COLUMN id int GENERATED ALWAYS AS IDENTITY',
	'ALTER TABLE gate ADD COLUMN g text GENERATED ALWAYS AS (key || ''!'') STORED',
	'ALTER TABLE gate SET UNLOGGED',
	'ALTER TABLE gate SET ACCESS METHOD heap',
	'ALTER TABLE gate_heap SET ACCESS METHOD narad',
	'ALTER TABLE gate_target SET ACCESS METHOD narad'
]);
VACUUM FULL gate;
VACUUM (FULL, ANALYZE) gate_target, gate;
CALL pg_temp.alive('gate');

-- relations to other tables
CREATE TABLE gate_child (LIKE gate);
CREATE TABLE gate_parent (LIKE narad.topic_template);
CREATE TABLE gate_parts (LIKE narad.topic_template) PARTITION BY LIST (key);
CREATE TYPE gate_type AS (partition int, msg_offset bigint, produced_at timestamptz, key text, value jsonb, headers jsonb);
CALL pg_temp.try(ARRAY[
	'ALTER TABLE gate_child INHERIT gate',
	'ALTER TABLE gate NO INHERIT gate_parent',
	'CREATE TABLE gate_2 () INHERITS (gate)',
	'CREATE TABLE gate_2 () INHERITS (gate_parent) USING narad',
	'CREATE TABLE gate_2 PARTITION OF gate_parts FOR VALUES IN (''a'') USING narad',
	'CREATE TABLE gate_2 PARTITION OF gate FOR VALUES IN (''a'')'
]);
CREATE TABLE gate_plain (LIKE narad.topic_template) USING narad;
CALL pg_temp.try(ARRAY[
	'ALTER TABLE gate_plain INHERIT gate_parent',
	'ALTER TABLE gate_parts ATTACH PARTITION gate_plain FOR VALUES IN (''a'')',
	'ALTER TABLE gate_parts ATTACH PARTITION gate_plain DEFAULT'
]);
CALL pg_temp.alive('gate_plain');
CREATE TABLE gate_typed OF gate_type USING narad;
CALL pg_temp.try(ARRAY[
	'ALTER TYPE gate_type DROP ATTRIBUTE produced_at CASCADE',
	'ALTER TYPE gate_type RENAME ATTRIBUTE key TO k CASCADE',
	'ALTER TYPE gate_type ALTER ATTRIBUTE headers TYPE text CASCADE',
	'ALTER TYPE gate_type ADD ATTRIBUTE extra int CASCADE',
	'ALTER TYPE gate_type DROP ATTRIBUTE extra CASCADE'
]);
CALL pg_temp.alive('gate_typed');
DROP TABLE gate_plain, gate_typed, gate_parent, gate_parts, gate_child;
DROP TYPE gate_type;

-- publications, rules, triggers
SET client_min_messages = error;
CREATE PUBLICATION regress_narad_pub FOR TABLE gate_heap;
CALL pg_temp.try(ARRAY[
	'CREATE PUBLICATION regress_narad_pub_2 FOR TABLE gate_heap, gate',
	'ALTER PUBLICATION regress_narad_pub ADD TABLE gate',
	'ALTER PUBLICATION regress_narad_pub SET TABLE ONLY public.gate',
	'CREATE RULE "_RETURN" AS ON SELECT TO gate DO INSTEAD SELECT * FROM gate_heap',
	'CREATE TRIGGER t INSTEAD OF INSERT ON gate FOR EACH ROW EXECUTE FUNCTION gate_trigger()'
]);
SET client_min_messages = warning;
CREATE TABLE gate_empty (LIKE narad.topic_template) USING narad;
CREATE RULE "_RETURN" AS ON SELECT TO gate_empty DO INSTEAD SELECT * FROM gate_heap;
CALL pg_temp.alive('gate_empty');
DROP PUBLICATION regress_narad_pub;

-- what cannot be a topic
CALL pg_temp.try(ARRAY[
	'CREATE TEMP TABLE gate_2 (LIKE narad.topic_template) USING narad',
	'CREATE TABLE pg_temp.gate_2 (LIKE narad.topic_template) USING narad',
	'CREATE MATERIALIZED VIEW gate_2 USING narad AS SELECT * FROM gate',
	'CREATE TABLE gate_2 USING narad AS SELECT 1 AS a'
]);
SET default_table_access_method = narad;
CALL pg_temp.try(ARRAY[
	'CREATE TABLE gate_2 (a int)',
	'CREATE TABLE gate_2 AS SELECT 1 AS a',
	'SELECT 1 AS a INTO gate_2',
	'CREATE TEMP TABLE gate_2 (a int)',
	'CREATE MATERIALIZED VIEW gate_2 AS SELECT 1 AS a',
	'CREATE TABLE gate_2 (a int) USING heap'
]);
RESET default_table_access_method;
DROP TABLE gate_2;
CREATE COLLATION gate_collation (provider = libc, locale = 'C');
CALL pg_temp.try(ARRAY[
	'CREATE TABLE gate_2 (partition int, msg_offset bigint, produced_at timestamptz, key text COLLATE gate_collation, value jsonb, headers jsonb) USING narad',
	'ALTER TABLE gate ALTER key TYPE text COLLATE gate_collation'
]);
DROP COLLATION gate_collation;

-- rows
CALL pg_temp.try(ARRAY[
	'UPDATE gate SET key = ''x''',
	'DELETE FROM gate',
	'SELECT key FROM gate FOR UPDATE',
	'MERGE INTO gate t USING (VALUES (0)) v (n) ON t.msg_offset = v.n WHEN MATCHED THEN UPDATE SET key = ''x''',
	'MERGE INTO gate t USING (VALUES (0)) v (n) ON t.msg_offset = v.n WHEN MATCHED THEN DELETE'
]);
BEGIN;
DECLARE c CURSOR FOR SELECT * FROM gate;
FETCH c \g /dev/null
UPDATE gate SET key = 'x' WHERE CURRENT OF c;
ROLLBACK;
CALL pg_temp.alive('gate');

-- by a role of its own, in a function, undone by a savepoint
CREATE ROLE regress_narad_gate;
GRANT CREATE ON SCHEMA public TO regress_narad_gate;
SET ROLE regress_narad_gate;
CREATE TABLE gate_own (LIKE narad.topic_template) USING narad;
ALTER TABLE gate_own DROP COLUMN key;
ALTER TABLE gate DROP COLUMN key;
CREATE INDEX ON gate (key);
RESET ROLE;
DO $$ BEGIN CREATE INDEX ON gate (key); EXCEPTION WHEN feature_not_supported THEN NULL; END $$;
BEGIN;
CREATE TABLE gate_own_2 (LIKE narad.topic_template) USING narad;
INSERT INTO gate_own_2 (key) VALUES ('a');
SAVEPOINT s;
ALTER TABLE gate_own_2 ADD COLUMN x int, ADD PRIMARY KEY (msg_offset);
ROLLBACK TO s;
ALTER TABLE gate_own_2 ADD COLUMN x int;
INSERT INTO gate_own_2 (key, x) VALUES ('b', 1) RETURNING msg_offset;
COMMIT;
SELECT msg_offset, key, x FROM gate_own_2;
DROP TABLE gate_own, gate_own_2;
DROP OWNED BY regress_narad_gate;
DROP ROLE regress_narad_gate;

-- with groups no topic becomes a heap; without, it does, with its records
SELECT narad.create_topic('gate_out', max_in_flight => 7);
SELECT * FROM narad.produce('gate_out', '1');
SELECT count(*) FROM narad.consume('gate_out');
ALTER TABLE gate_out SET ACCESS METHOD heap;
SELECT count(*) FROM narad.topic_settings WHERE topic = 'gate_out'::regclass;
SELECT narad.drop_group('gate_out', 'default');
ALTER TABLE gate_out SET ACCESS METHOD heap;
SELECT msg_offset, value FROM gate_out;
SELECT count(*) FROM narad.topic_settings WHERE topic = 'gate_out'::regclass;
UPDATE gate_out SET value = '2';
DROP TABLE gate_out;

CALL pg_temp.alive('gate');
SELECT count(*) = 6 AS as_before FROM pg_attribute WHERE attrelid = 'gate'::regclass AND attnum BETWEEN 1 AND 6
	AND NOT attisdropped AND NOT attnotnull AND NOT atthasdef AND attidentity = '' AND attgenerated = '';
DROP TABLE gate, gate_empty, gate_heap, gate_target;
DROP FUNCTION gate_trigger;

-- of the whole database: all but topics
CREATE DATABASE regress_narad_gate;
\set here :DBNAME
\c regress_narad_gate
SET client_min_messages = warning;
CREATE EXTENSION narad;
CREATE TABLE full_heap AS SELECT 1 AS a;
SELECT narad.create_topic('full_topic');
SELECT * FROM narad.produce('full_topic', '1');
SELECT pg_relation_filenode('full_heap') AS heap_before, pg_relation_filenode('full_topic') AS topic_before \gset
VACUUM FULL;
SELECT pg_relation_filenode('full_heap') <> :heap_before AS heap_rewritten,
	pg_relation_filenode('full_topic') = :topic_before AS topic_kept;
BEGIN;
VACUUM FULL;
ROLLBACK;
VACUUM (FULL off);
SELECT count(*) FROM full_topic;
\c :here
DROP DATABASE regress_narad_gate;
