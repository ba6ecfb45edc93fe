-- Values survive: of any size, compressed or not, from other tables' TOAST,
-- with nulls, in columns added and dropped later.
\set VERBOSITY terse
SET timezone = 'UTC';
SET datestyle = 'ISO, YMD';
CREATE TABLE am_bytea (partition int, msg_offset bigint, produced_at timestamptz,
	key text, value bytea, headers jsonb) USING narad;
CREATE TABLE am_text (partition int, msg_offset bigint, produced_at timestamptz,
	key text, value text, headers jsonb, extra numeric, tags text[]) USING narad;

-- sizes around a page, and beyond
CREATE TABLE am_source (n int, value text);
ALTER TABLE am_source ALTER value SET STORAGE EXTERNAL;
INSERT INTO am_source
	SELECT n, (SELECT left(string_agg(md5((n * 31 + j)::text), ''), n) FROM generate_series(1, n / 32 + 1) j)
	FROM unnest(ARRAY[0, 1, 100, 2000, 2040, 2100, 8000, 8044, 8045, 8050, 8051, 8052, 8053, 8054, 8055, 8056, 8057,
		8058, 8059, 8060, 8061, 8062, 8063, 8064, 8065, 8066, 8067, 8068, 8069, 8070, 8071, 8072, 8073, 8074, 8075, 8076,
		8077, 8078, 8079, 8080, 8081, 8082, 8083, 8084, 8085, 8086, 8087, 8088, 8089, 8090, 8091, 8092, 8093, 8094, 8095,
		8096, 8097, 8098, 8099, 8100, 8104, 8108, 8120, 8136, 8160, 8192, 16000, 16192, 16200, 16300, 50000, 500000]) n;
ALTER TABLE am_text ALTER value SET STORAGE EXTERNAL;
INSERT INTO am_text (key, value) SELECT n::text, value FROM am_source ORDER BY n;
SELECT count(*), bool_and(t.value = s.value) FROM am_text t JOIN am_source s ON s.n::text = t.key;
INSERT INTO am_bytea (key, value) SELECT n::text, decode(repeat('00ff', n / 2), 'hex') FROM am_source;
SELECT count(*), bool_and(t.value = decode(repeat('00ff', s.n / 2), 'hex'))
	FROM am_bytea t JOIN am_source s ON s.n::text = t.key;
-- nothing of it depends on the source
DROP TABLE am_source;
SELECT count(*), sum(length(value)) FROM am_text;

-- compression in line
INSERT INTO am_text (key, value) VALUES ('packed', repeat('abc', 100000));
SELECT length(value), pg_column_size(value) < 10000 AS small FROM am_text WHERE key = 'packed';
ALTER TABLE am_text ALTER value SET STORAGE EXTENDED;
INSERT INTO am_text (key, value) VALUES ('packed2', repeat('abc', 100000));
SELECT length(value), pg_column_size(value) < 10000 AS small FROM am_text WHERE key = 'packed2';
INSERT INTO am_text (key, value) SELECT 'repacked', value FROM am_text WHERE key = 'packed2';
SELECT length(value), pg_column_size(value) < 10000 AS small FROM am_text WHERE key = 'repacked';
INSERT INTO am_text (key, value) VALUES (repeat('long key ', 1000), 'x');
SELECT length(key) FROM am_text WHERE value = 'x';

-- nulls, expanded values
INSERT INTO am_text DEFAULT VALUES;
SELECT partition, key, value, headers, extra, tags FROM am_text WHERE key IS NULL;
DO $$
DECLARE
	a text[] := ARRAY['a'];
BEGIN
	FOR i IN 1..3 LOOP
		a := a || i::text;
	END LOOP;
	INSERT INTO am_text (key, tags, extra) VALUES ('expanded', a, 1.50);
END $$;
SELECT tags, extra FROM am_text WHERE key = 'expanded';

-- columns that come and go
ALTER TABLE am_text ADD COLUMN added int DEFAULT 7;
ALTER TABLE am_text ADD COLUMN added_null text;
INSERT INTO am_text (key, added) VALUES ('new', 8);
SELECT key, added, added_null FROM am_text WHERE key IN ('expanded', 'new');
ALTER TABLE am_text DROP COLUMN extra;
INSERT INTO am_text (key, tags) VALUES ('dropped', ARRAY['t']) RETURNING key, tags, added;
SELECT key, tags, added FROM am_text WHERE key IN ('expanded', 'new', 'dropped');
SELECT count(*), sum(length(value)) FROM am_text;

-- the largest message
SET narad.max_message_size = '1kB';
INSERT INTO am_text (key, value) VALUES ('limit', repeat('x', 1015));
INSERT INTO am_text (key, value) VALUES ('limit', repeat('x', 1016));
INSERT INTO am_bytea (value) VALUES (decode(repeat('00', 5000), 'hex'));
RESET narad.max_message_size;
SELECT count(*) FROM am_text WHERE key = 'limit';

-- many large ones, in one statement
INSERT INTO am_bytea (key, value)
	SELECT 'large', (SELECT string_agg(decode(md5((i * 7 + j)::text), 'hex'), '') FROM generate_series(1, 2000) j)
	FROM generate_series(1, 100) i;
SELECT count(*), min(length(value)), max(length(value)), count(DISTINCT md5(value)) FROM am_bytea WHERE key = 'large';

-- constraints on a topic's own columns
ALTER TABLE am_text ADD CONSTRAINT am_check CHECK (added > 0);
INSERT INTO am_text (key, added) VALUES ('bad', 0);
CREATE TABLE am_generated (LIKE narad.topic_template,
	n int GENERATED ALWAYS AS ((value ->> 'n')::int) STORED, created timestamptz DEFAULT '2000-01-01') USING narad;
INSERT INTO am_generated (value) VALUES ('{"n": 5}') RETURNING msg_offset, n, created;

DROP TABLE am_bytea, am_text, am_generated;
