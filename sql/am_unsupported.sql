-- What a topic cannot do is refused with a reason and does no damage.
CREATE TABLE am_unsupported (LIKE narad.topic_template) USING narad;
INSERT INTO am_unsupported (key, value) VALUES ('a', '1'), ('b', '2');

UPDATE am_unsupported SET value = '3';
DELETE FROM am_unsupported;
SELECT msg_offset FROM am_unsupported FOR UPDATE;
SELECT msg_offset FROM am_unsupported FOR SHARE;
SELECT msg_offset FROM am_unsupported FOR KEY SHARE SKIP LOCKED;
MERGE INTO am_unsupported t USING (VALUES (0)) v (n) ON t.msg_offset = v.n
	WHEN MATCHED THEN DELETE;
BEGIN;
DECLARE c CURSOR FOR SELECT * FROM am_unsupported;
FETCH c \g /dev/null
DELETE FROM am_unsupported WHERE CURRENT OF c;
ROLLBACK;
-- nothing matches, nothing to refuse
UPDATE am_unsupported SET value = '3' WHERE key = 'none';
DELETE FROM am_unsupported WHERE key = 'none';

CREATE INDEX ON am_unsupported (key);
CREATE INDEX ON am_unsupported USING hash (key);
CREATE INDEX ON am_unsupported USING brin (msg_offset);
CREATE INDEX ON am_unsupported USING gin (value);
ALTER TABLE am_unsupported ADD PRIMARY KEY (partition, msg_offset);
ALTER TABLE am_unsupported ADD UNIQUE (key);
INSERT INTO am_unsupported (key) VALUES ('a') ON CONFLICT (key) DO NOTHING;
CLUSTER am_unsupported USING none;
VACUUM FULL am_unsupported;
ALTER TABLE am_unsupported ALTER headers TYPE text;
ALTER TABLE am_unsupported ADD COLUMN r float DEFAULT random();
ALTER TABLE am_unsupported SET UNLOGGED;

-- what cannot be a topic
CREATE TEMP TABLE am_temp (LIKE narad.topic_template) USING narad;
CREATE TABLE am_no_columns () USING narad;
CREATE TABLE am_other_columns (a int) USING narad;
CREATE TABLE am_few_columns (partition int, msg_offset bigint, produced_at timestamptz, key text) USING narad;
CREATE TABLE am_wrong_type (partition int, msg_offset int, produced_at timestamptz, key text, value jsonb, headers jsonb) USING narad;
CREATE TABLE am_wrong_value (partition int, msg_offset bigint, produced_at timestamptz, key text, value json, headers jsonb) USING narad;
CREATE TABLE am_not_null (partition int NOT NULL, msg_offset bigint, produced_at timestamptz, key text, value jsonb, headers jsonb) USING narad;
CREATE TABLE am_generated (partition int, msg_offset bigint GENERATED ALWAYS AS (1) STORED, produced_at timestamptz, key text, value jsonb, headers jsonb) USING narad;
CREATE MATERIALIZED VIEW am_matview USING narad AS SELECT * FROM am_unsupported;
CREATE TABLE am_ctas USING narad AS SELECT 1 AS a;

-- heap to topic, by rewriting
CREATE TABLE am_heap (LIKE narad.topic_template);
INSERT INTO am_heap (value) VALUES ('1');
ALTER TABLE am_heap SET ACCESS METHOD narad;
DROP TABLE am_heap;

-- no damage
INSERT INTO am_unsupported (key, value) VALUES ('c', '3');
SELECT msg_offset, key, value FROM am_unsupported;
SELECT count(*) FROM pg_index WHERE indrelid = 'am_unsupported'::regclass;
DROP TABLE am_unsupported;
