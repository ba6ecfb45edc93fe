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

-- names, owners, schemas, columns
ALTER TABLE am_ddl RENAME TO am_ddl2;
CREATE SCHEMA regress_narad;
ALTER TABLE am_ddl2 SET SCHEMA regress_narad;
SELECT count(*) FROM regress_narad.am_ddl2;
ALTER TABLE regress_narad.am_ddl2 RENAME COLUMN headers TO meta;
ALTER TABLE regress_narad.am_ddl2 ALTER key SET DEFAULT 'none';
INSERT INTO regress_narad.am_ddl2 (value) VALUES ('9') RETURNING key, meta;
-- without the columns that storage fills in, nothing can be appended
BEGIN;
ALTER TABLE regress_narad.am_ddl2 DROP COLUMN produced_at;
INSERT INTO regress_narad.am_ddl2 (value) VALUES ('9');
ROLLBACK;

-- back to a heap, and a partition of something
CREATE TABLE am_parent (LIKE narad.topic_template) PARTITION BY LIST (key);
CREATE TABLE am_part PARTITION OF am_parent FOR VALUES IN ('a') USING narad;
INSERT INTO am_parent (key, value) VALUES ('a', '1') RETURNING tableoid::regclass, msg_offset;
SELECT tableoid::regclass, msg_offset, value FROM am_parent;
DROP TABLE am_parent;
ALTER TABLE regress_narad.am_ddl2 SET ACCESS METHOD heap;
SELECT count(*), max(msg_offset) >= 499 AS kept FROM regress_narad.am_ddl2;
UPDATE regress_narad.am_ddl2 SET value = '0' WHERE msg_offset = 1;
DROP TABLE regress_narad.am_ddl2;
DROP SCHEMA regress_narad;

-- foreign keys from a topic are checked
CREATE TABLE am_parent (id text PRIMARY KEY);
INSERT INTO am_parent VALUES ('yes');
CREATE TABLE am_child (LIKE narad.topic_template, FOREIGN KEY (key) REFERENCES am_parent) USING narad;
INSERT INTO am_child (key) VALUES ('yes');
INSERT INTO am_child (key) VALUES ('no');
DELETE FROM am_parent;
SELECT count(*) FROM am_child;
DROP TABLE am_child, am_parent;

-- logical size is what the file has
CREATE TABLE am_size (LIKE narad.topic_template) USING narad;
INSERT INTO am_size (value) VALUES ('1');
SELECT pg_relation_size('am_size') > 0 AS has_size, pg_total_relation_size('am_size') = pg_relation_size('am_size') AS no_toast;
DROP TABLE am_size;
