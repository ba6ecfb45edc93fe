-- I4: whatever is given as a receipt, the answer has a clear SQLSTATE, and no
-- lease is touched but by its own receipt.
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

SELECT narad.create_topic('errors_topic', partitions => 2, visibility_timeout => '1 hour');
SELECT count(*) FROM generate_series(0, 1) p,
	narad.produce_batch('errors_topic', ARRAY(SELECT to_jsonb(i) FROM generate_series(0, 49) i), partition => p);
CREATE TEMP TABLE live AS SELECT * FROM narad.consume('errors_topic', 100);
SELECT count(*), count(DISTINCT receipt) FROM live;

-- Texts that are no receipts.
SELECT pg_temp.attempt(format('SELECT narad.ack(%L)', r)) FROM unnest(ARRAY[
	'', ' ', 'x', '{', '{}', '{"', '}', '{{a},{b}}', '[]', 'NULL', repeat('A', 43), repeat('A', 45), repeat('=', 44),
	repeat('-', 44), repeat('é', 22)]) r;
SELECT length(pg_temp.attempt(format('SELECT narad.ack(%L)', repeat('A', 100000))));
SELECT pg_temp.attempt('SELECT narad.' || a) FROM unnest(ARRAY[
	'ack(NULL::text)', 'ack(NULL::text[])', 'ack(ARRAY[NULL])', 'ack(''{a,NULL}'')', 'ack(''{{a},{b}}''::text[])',
	'try_ack(NULL)', 'try_ack(ARRAY[NULL])', 'try_ack(''{{a},{b}}'')']) a;

-- 10,000 receipts: random texts of any length, random ones that begin as
-- receipts do, and live ones with one to three characters changed, cut
-- short, made longer, or put together from two.
CREATE FUNCTION pg_temp.random_text(n int, alphabet text) RETURNS text LANGUAGE sql AS $$
	SELECT coalesce(string_agg(substr(alphabet, 1 + (random() * (length(alphabet) - 1))::int, 1), ''), '')
	FROM generate_series(1, n)
$$;
CREATE FUNCTION pg_temp.mutate(receipt text, other text, kind int) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	base64 constant text := 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_';
	place int := 1 + (random() * (length(receipt) - 1))::int;
BEGIN
	CASE kind
		WHEN 0 THEN RETURN pg_temp.random_text((random() * 80)::int, base64 || '=+/ {}",\é');
		WHEN 1 THEN RETURN left(receipt, 2) || pg_temp.random_text(42, base64);
		WHEN 2 THEN RETURN overlay(receipt PLACING pg_temp.random_text(1, base64) FROM place FOR 1);
		WHEN 3 THEN RETURN overlay(receipt PLACING pg_temp.random_text(3, base64) FROM least(place, 42) FOR 3);
		WHEN 4 THEN RETURN left(receipt, place - 1);
		WHEN 5 THEN RETURN receipt || pg_temp.random_text(1, base64);
		WHEN 6 THEN RETURN left(receipt, place) || substr(other, place + 1);
		ELSE RETURN upper(receipt);
	END CASE;
END $$;
CREATE TEMP TABLE outcomes (call text, outcome text);
DO $$
DECLARE
	receipts text[] := ARRAY(SELECT receipt FROM live);
	r text;
	other text;
	bad text;
	call text;
	outcome text;
	i int := 0;
BEGIN
	PERFORM setseed(0.25);
	WHILE i < 10000 LOOP
		r := receipts[1 + (random() * 99)::int];
		other := receipts[1 + (random() * 99)::int];
		bad := pg_temp.mutate(r, other, (random() * 7)::int);
		-- A change that changes nothing, and texts of empty arrays, are no test.
		CONTINUE WHEN bad = ANY (receipts) OR bad ~ '^\{[ ]*\}[ ]*$';
		call := (ARRAY['ack', 'nack', 'extend', 'try_ack'])[1 + i / 8 % 4];
		i := i + 1;
		BEGIN
			CASE call
				WHEN 'ack' THEN PERFORM narad.ack(bad);
				WHEN 'nack' THEN PERFORM narad.nack(bad);
				WHEN 'extend' THEN PERFORM narad.extend(bad);
				ELSE
					SELECT reason INTO outcome FROM narad.try_ack(ARRAY[bad]) WHERE NOT accepted;
					outcome := CASE WHEN outcome = 'malformed' THEN 'malformed'
						WHEN outcome IN ('unknown', 'leased_again', 'topic_changed') THEN 'refused'
						ELSE coalesce(outcome, 'accepted') END;
			END CASE;
			IF call <> 'try_ack' THEN
				outcome := 'accepted';
			END IF;
		EXCEPTION WHEN OTHERS THEN
			outcome := SQLSTATE;
		END;
		INSERT INTO outcomes VALUES (call, outcome);
	END LOOP;
END $$;
SELECT count(*) FROM outcomes;
SELECT DISTINCT call, outcome FROM outcomes ORDER BY 1, 2;

-- Nothing was lost, and the true receipts still do what they should.
SELECT count(*), bool_and(NOT pinned), max(deliveries) FROM narad.leases WHERE topic = 'errors_topic'::regclass;
SELECT count(*) FROM narad.consume('errors_topic', 100);
SELECT accepted, count(*) FROM narad.try_ack(ARRAY(SELECT receipt FROM live)) GROUP BY 1;
SELECT partition, frontier, in_flight, returned, scheduled FROM narad.groups WHERE topic = 'errors_topic'::regclass ORDER BY 1;
BEGIN READ ONLY;
SELECT pg_temp.attempt('SELECT narad.' || a) FROM unnest(ARRAY['ack(''x'')', 'ack(''{}''::text[])', 'try_ack(''{}'')',
	'nack(''x'')', 'extend(''x'')', 'create_group(''errors_topic'', ''g'')', 'alter_topic(''errors_topic'')',
	'create_topic(''t'')', 'drop_topic(''errors_topic'')', 'purge_topic(''errors_topic'')']) a;
ROLLBACK;
DROP TABLE errors_topic;
