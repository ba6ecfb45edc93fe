-- Within the window an id is appended once; who produces it again is told
-- where the first message is, whatever has become of that.
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

-- Lets the clock go on by a bit more than the shortest window.
CREATE PROCEDURE pg_temp.tick() LANGUAGE plpgsql AS $$
DECLARE
	start timestamptz := clock_timestamp();
BEGIN
	WHILE clock_timestamp() < start + interval '2 ms' LOOP
	END LOOP;
END $$;

SELECT narad.create_topic('dedup', partitions => 4);
SELECT * FROM narad.produce('dedup', '1', partition => 2, dedup_id => 'a');
SELECT * FROM narad.produce('dedup', '2', partition => 2, dedup_id => 'a');
-- The id counts in the whole topic, with whatever key or partition.
SELECT * FROM narad.produce('dedup', '3', partition => 3, dedup_id => 'a');
SELECT * FROM narad.produce('dedup', '4', key => 'some', dedup_id => 'a');
SELECT * FROM narad.produce('dedup', '5', partition => 2, dedup_id => 'b');
SELECT * FROM narad.produce('dedup', '6', partition => 2, dedup_id => 'A');
-- Without an id nothing is compared.
SELECT * FROM narad.produce('dedup', '1', partition => 2);
SELECT * FROM narad.produce('dedup', '1', partition => 2, dedup_id => NULL);
SELECT partition, msg_offset, value FROM dedup ORDER BY 1, 2;

-- Consumed and acknowledged: still a duplicate.
SELECT count(narad.ack(receipt)) FROM narad.consume('dedup', 10);
SELECT * FROM narad.produce('dedup', '7', dedup_id => 'a');
SELECT count(*) FROM narad.consume('dedup', 10);

-- In one batch, and against the log; answers in input order.
SELECT * FROM narad.produce_batch('dedup', '{10,11,12,13,14,15}', partition => 1,
	dedup_ids => '{x,a,NULL,x,y,NULL}');
SELECT msg_offset, value FROM dedup WHERE partition = 1 ORDER BY 1;
SELECT * FROM narad.produce_batch('dedup', '{1,2}', partition => 0, dedup_ids => '{x,y}');
SELECT * FROM narad.produce_batch('dedup', '{}', dedup_ids => '{}');
SELECT count(*) FROM dedup WHERE partition = 0;
-- A large batch, twice, the second time backwards.
SELECT count(*), count(DISTINCT (partition, msg_offset)) FROM narad.produce_batch('dedup',
	ARRAY(SELECT to_jsonb(i) FROM generate_series(1, 5000) i), partition => 0,
	dedup_ids => ARRAY(SELECT 'bulk ' || i FROM generate_series(1, 5000) i));
SELECT count(*), count(DISTINCT (p.partition, p.msg_offset)), count(*) FILTER (WHERE d.value = to_jsonb(5001 - n)) AS right_one
FROM narad.produce_batch('dedup',
	ARRAY(SELECT to_jsonb(i) FROM generate_series(5000, 1, -1) i),
	dedup_ids => ARRAY(SELECT 'bulk ' || i FROM generate_series(5000, 1, -1) i)) WITH ORDINALITY AS p(partition, msg_offset, n)
	JOIN dedup d USING (partition, msg_offset);
SELECT count(*) FROM dedup WHERE jsonb_typeof(value) = 'number' AND value::int > 15;

-- The ids themselves.
SELECT pg_temp.attempt('SELECT narad.produce' || a) FROM unnest(ARRAY[
	'(''dedup'', ''1'', dedup_id => '''')', '(''dedup'', ''1'', dedup_id => repeat(''x'', 256))',
	'(''dedup'', ''1'', partition => 0, dedup_id => repeat(''x'', 255))',
	'_batch(''dedup'', ''{1,2}'', dedup_ids => ARRAY[''ok'', ''''])',
	'_batch(''dedup'', ''{1,2}'', dedup_ids => ''{one}'')']) a;
SELECT count(*) FROM narad.produce('dedup', '1', partition => 0, dedup_id => 'ok');
-- With a value that goes over several pages.
SELECT p.msg_offset = q.msg_offset FROM
	narad.produce('dedup', to_jsonb(repeat(md5('1') || md5('2'), 1000)), partition => 0, dedup_id => 'large') p,
	narad.produce('dedup', to_jsonb(repeat(md5('3'), 2000)), partition => 0, dedup_id => 'large') q;

-- In a transaction, its own earlier message counts.
BEGIN;
SELECT * FROM narad.produce('dedup', '1', partition => 3, dedup_id => 'own');
SELECT * FROM narad.produce('dedup', '2', partition => 3, dedup_id => 'own');
ROLLBACK;
-- Rolled back, it does not.
SELECT * FROM narad.produce('dedup', '3', partition => 3, dedup_id => 'own');
-- Nor after a rollback to a savepoint; a released one makes no difference.
BEGIN;
SAVEPOINT s;
SELECT * FROM narad.produce('dedup', '1', partition => 3, dedup_id => 'sub');
ROLLBACK TO s;
SELECT * FROM narad.produce('dedup', '2', partition => 3, dedup_id => 'sub');
SAVEPOINT s;
SELECT * FROM narad.produce('dedup', '3', partition => 3, dedup_id => 'sub released');
RELEASE s;
SELECT * FROM narad.produce('dedup', '4', partition => 3, dedup_id => 'sub released');
COMMIT;
SELECT * FROM narad.produce('dedup', '5', partition => 3, dedup_id => 'sub');
SELECT msg_offset, value FROM dedup WHERE partition = 3 AND msg_offset >= (
	SELECT max(msg_offset) - 4 FROM dedup WHERE partition = 3) AND jsonb_typeof(value) = 'number' AND value::int < 10 ORDER BY 1;
-- An error after it frees it, too.
SELECT pg_temp.attempt('SELECT narad.produce(''dedup'', ''1'', dedup_id => ''failed''), 1 / 0');
SELECT count(*) FROM narad.produce('dedup', '"after"', partition => 3, dedup_id => 'failed');
SELECT value FROM dedup WHERE value = '"after"';

-- The window's end.
SELECT pg_temp.attempt('SELECT narad.alter_topic(''dedup'', dedup_window => ''0'')');
SELECT narad.alter_topic('dedup', dedup_window => '1 ms');
SELECT dedup_window FROM narad.topics WHERE topic = 'dedup'::regclass;
CALL pg_temp.tick();
SELECT * FROM narad.produce('dedup', '"after the window"', partition => 2, dedup_id => 'a');
-- Longer again: what was forgotten is read from the log.
SELECT narad.alter_topic('dedup', reset => '{dedup_window}');
SELECT * FROM narad.produce('dedup', '1', partition => 2, dedup_id => 'b');
SELECT p.msg_offset = q.msg_offset FROM
	narad.produce('dedup', '1', dedup_id => 'bulk 17') p,
	narad.produce('dedup', '1', dedup_id => 'bulk 17') q;
SELECT value FROM dedup JOIN narad.produce('dedup', '1', dedup_id => 'bulk 4711') USING (partition, msg_offset);

SELECT * FROM narad.verify('dedup');
-- purge starts over.
SELECT narad.purge_topic('dedup');
SELECT * FROM narad.produce('dedup', '"purged"', partition => 2, dedup_id => 'a');
SELECT * FROM narad.produce('dedup', '"again"', partition => 3, dedup_id => 'a');
-- Unless it is rolled back.
BEGIN;
TRUNCATE dedup;
SELECT * FROM narad.produce('dedup', '"not kept"', partition => 2, dedup_id => 'a');
SELECT * FROM narad.produce('dedup', '"not kept"', partition => 2, dedup_id => 'not kept');
ROLLBACK;
SELECT * FROM narad.produce('dedup', '"again"', partition => 3, dedup_id => 'a');
SELECT * FROM narad.produce('dedup', '"kept"', partition => 2, dedup_id => 'not kept');
-- Another name and schema change nothing.
CREATE SCHEMA dedup_schema;
ALTER TABLE dedup SET SCHEMA dedup_schema;
ALTER TABLE dedup_schema.dedup RENAME TO other;
SELECT * FROM narad.produce('dedup_schema.other', '"again"', partition => 3, dedup_id => 'a');
DROP SCHEMA dedup_schema CASCADE;
-- Dropped and made anew, it is another topic.
SELECT narad.create_topic('dedup', partitions => 4);
SELECT * FROM narad.produce('dedup', '"new"', partition => 1, dedup_id => 'a');
DROP TABLE dedup;

-- bytea and text.
SELECT narad.create_topic('dedup_text', value_type => 'text');
SELECT * FROM narad.produce_bytes('dedup_text', 'one', dedup_id => '1');
SELECT * FROM narad.produce_bytes('dedup_text', 'two', dedup_id => '1');
SELECT * FROM narad.produce_batch_bytes('dedup_text', '{two,three}', dedup_ids => '{1,2}');
SELECT msg_offset, value FROM dedup_text ORDER BY 1;
DROP TABLE dedup_text;

-- Through the executor: triggers, and what they do.
SELECT narad.create_topic('dedup_trigger');
CREATE TABLE dedup_log (what text);
CREATE FUNCTION dedup_before() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF NEW.value = '"drop"' THEN
		RETURN NULL;
	ELSIF NEW.value = '"nested"' THEN
		INSERT INTO dedup_trigger (value) VALUES ('"from the trigger"');
	ELSIF NEW.value = '"same id"' THEN
		PERFORM narad.produce('dedup_trigger', '"inner"', dedup_id => 'same');
	ELSIF NEW.value = '"other id"' THEN
		PERFORM narad.produce('dedup_trigger', '"inner"', dedup_id => 'other inner');
	END IF;
	RETURN NEW;
END $$;
CREATE FUNCTION dedup_after() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO dedup_log VALUES (NEW.msg_offset || ' ' || NEW.value);
	RETURN NULL;
END $$;
CREATE TRIGGER before BEFORE INSERT ON dedup_trigger FOR EACH ROW EXECUTE FUNCTION dedup_before();
CREATE TRIGGER after AFTER INSERT ON dedup_trigger FOR EACH ROW EXECUTE FUNCTION dedup_after();
SELECT * FROM narad.produce('dedup_trigger', '"plain"', dedup_id => 'p');
SELECT * FROM narad.produce('dedup_trigger', '"plain again"', dedup_id => 'p');
-- The row of the command has the id, not that of the trigger before it.
SELECT * FROM narad.produce('dedup_trigger', '"nested"', dedup_id => 'n');
SELECT * FROM narad.produce('dedup_trigger', '"nested"', dedup_id => 'n');
SELECT * FROM narad.produce('dedup_trigger', '"other id"', dedup_id => 'other');
SELECT * FROM narad.produce_batch('dedup_trigger', '{1,2}', dedup_ids => '{other,other inner}');
-- What a trigger drops has produced nothing: the id stays free.
SELECT * FROM narad.produce_batch('dedup_trigger', '{"\"drop\"","\"dropped with it\""}', dedup_ids => '{d,d}');
SELECT * FROM narad.produce('dedup_trigger', '"not dropped"', dedup_id => 'd');
SELECT pg_temp.attempt('SELECT narad.produce(''dedup_trigger'', ''"same id"'', dedup_id => ''same'')');
SELECT * FROM narad.produce('dedup_trigger', '"same id, at last"', dedup_id => 'same');
SELECT msg_offset, value FROM dedup_trigger ORDER BY 1;
TABLE dedup_log;
-- INSERT and COPY have no id.
INSERT INTO dedup_trigger (value) VALUES ('"inserted"');
SELECT * FROM narad.produce('dedup_trigger', '"new"', dedup_id => 'inserted');
DROP TABLE dedup_trigger, dedup_log;
DROP FUNCTION dedup_before, dedup_after;

-- A rule that sends the row elsewhere leaves the id free.
SELECT narad.create_topic('dedup_rule');
CREATE TABLE dedup_elsewhere (value jsonb);
CREATE RULE away AS ON INSERT TO dedup_rule DO INSTEAD
	INSERT INTO dedup_elsewhere VALUES (NEW.value)
	RETURNING NULL::int, NULL::bigint, NULL::timestamptz, NULL::text, value, NULL::jsonb;
SELECT * FROM narad.produce('dedup_rule', '"away"', dedup_id => 'r');
DROP RULE away ON dedup_rule;
CREATE RULE also AS ON INSERT TO dedup_rule DO ALSO INSERT INTO dedup_elsewhere VALUES (NEW.value);
SELECT * FROM narad.produce('dedup_rule', '"stays"', dedup_id => 'r');
SELECT * FROM narad.produce('dedup_rule', '"stays again"', dedup_id => 'r');
SELECT msg_offset, value FROM dedup_rule ORDER BY 1;
SELECT value FROM dedup_elsewhere ORDER BY 1;
DROP TABLE dedup_rule, dedup_elsewhere;
