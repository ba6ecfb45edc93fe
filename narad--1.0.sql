-- narad--1.0.sql

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION narad" to load this file. \quit

---------------------------------------------------------------------------
-- The access method
---------------------------------------------------------------------------

CREATE FUNCTION narad.tableam_handler(internal)
RETURNS pg_catalog.table_am_handler
AS 'MODULE_PATHNAME', 'narad_tableam_handler'
LANGUAGE C STRICT VOLATILE PARALLEL SAFE;
COMMENT ON FUNCTION narad.tableam_handler(internal)
IS 'handler of the narad table access method';

CREATE ACCESS METHOD narad TYPE TABLE HANDLER narad.tableam_handler;
COMMENT ON ACCESS METHOD narad IS 'append-only log in partitions: the table of a topic';

CREATE TABLE narad.topic_template (
	partition integer,
	msg_offset bigint,
	produced_at timestamp with time zone,
	key text,
	value jsonb,
	headers jsonb
) USING heap;
COMMENT ON TABLE narad.topic_template
IS 'the columns of a topic, for CREATE TABLE ... (LIKE narad.topic_template) USING narad';
COMMENT ON COLUMN narad.topic_template.partition IS 'partition, assigned at append unless given';
COMMENT ON COLUMN narad.topic_template.msg_offset IS 'position in the partition, assigned at append';
COMMENT ON COLUMN narad.topic_template.produced_at IS 'time of the append';
COMMENT ON COLUMN narad.topic_template.key IS 'decides the partition, if not null';
COMMENT ON COLUMN narad.topic_template.value IS 'payload of the message';
COMMENT ON COLUMN narad.topic_template.headers IS 'whatever goes beside the payload';

---------------------------------------------------------------------------
-- Result types
---------------------------------------------------------------------------

CREATE TYPE narad.message_position AS (
	partition integer,
	msg_offset bigint
);
COMMENT ON TYPE narad.message_position IS 'where a produced message lies';

CREATE TYPE narad.once_position AS (
	partition integer,
	msg_offset bigint,
	duplicate boolean
);
COMMENT ON TYPE narad.once_position IS 'where a message of an idempotent producer lies, and whether it was there before';

CREATE TYPE narad.message AS (
	receipt text,
	partition integer,
	msg_offset bigint,
	produced_at timestamp with time zone,
	deliveries integer,
	key text,
	value jsonb,
	headers jsonb
);
COMMENT ON TYPE narad.message IS 'a message leased by narad.consume()';

CREATE TYPE narad.message_bytes AS (
	receipt text,
	partition integer,
	msg_offset bigint,
	produced_at timestamp with time zone,
	deliveries integer,
	key text,
	value bytea,
	headers jsonb
);
COMMENT ON TYPE narad.message_bytes IS 'a message leased by narad.consume_bytes()';

CREATE TYPE narad.log_record AS (
	partition integer,
	msg_offset bigint,
	produced_at timestamp with time zone,
	key text,
	value jsonb,
	headers jsonb
);
COMMENT ON TYPE narad.log_record IS 'a record read by narad.fetch()';

CREATE TYPE narad.log_record_bytes AS (
	partition integer,
	msg_offset bigint,
	produced_at timestamp with time zone,
	key text,
	value bytea,
	headers jsonb
);
COMMENT ON TYPE narad.log_record_bytes IS 'a record read by narad.fetch_bytes()';

---------------------------------------------------------------------------
-- Topics
---------------------------------------------------------------------------

-- NULL is the default.  The number of partitions and the segment size are
-- kept in the topic's file.
CREATE TABLE narad.topic_settings (
	topic regclass PRIMARY KEY,
	retention interval,
	retention_bytes bigint,
	visibility_timeout interval,
	max_deliveries integer,
	dead_letter_topic regclass,
	retry_delay interval,
	retry_backoff double precision,
	ordering text,
	cleanup text,
	dedup_window interval,
	max_in_flight integer,
	max_acked_ahead integer,
	segment_age interval
) USING heap;
COMMENT ON TABLE narad.topic_settings
IS 'settings of topics that differ from the defaults; see the view narad.topics';
SELECT pg_catalog.pg_extension_config_dump('narad.topic_settings', '');

-- Written by the worker; no constraint stands in the way of a restore.
CREATE TABLE narad.saved_frontiers (
	topic regclass,
	consumer_group text,
	topic_id text,
	group_id bigint,
	generation bigint,
	paused boolean,
	frontiers bigint[],
	saved_at timestamp with time zone
) USING heap;
CREATE INDEX saved_frontiers_topic ON narad.saved_frontiers (topic);
COMMENT ON TABLE narad.saved_frontiers
IS 'where consumer groups were when they were saved last: what a dump of the database carries of them';
COMMENT ON COLUMN narad.saved_frontiers.topic IS 'table of the topic';
COMMENT ON COLUMN narad.saved_frontiers.consumer_group IS 'name of the group';
COMMENT ON COLUMN narad.saved_frontiers.topic_id IS 'identity of the log, as in narad.topics; another one came with a restore';
COMMENT ON COLUMN narad.saved_frontiers.group_id IS 'the group''s number in that log';
COMMENT ON COLUMN narad.saved_frontiers.generation IS 'raised when the group is moved';
COMMENT ON COLUMN narad.saved_frontiers.paused IS 'the group was handed out nothing';
COMMENT ON COLUMN narad.saved_frontiers.frontiers IS 'for each partition, from 0 on, the first offset that was not settled';
COMMENT ON COLUMN narad.saved_frontiers.saved_at IS 'when that was so';
SELECT pg_catalog.pg_extension_config_dump('narad.saved_frontiers', '');

-- Not strict: NULL stands for the default.
CREATE FUNCTION narad.create_topic(
	topic text,
	partitions integer DEFAULT 1,
	retention interval DEFAULT '7 days',
	retention_bytes bigint DEFAULT NULL,
	visibility_timeout interval DEFAULT '30 s',
	max_deliveries integer DEFAULT NULL,
	dead_letter_topic text DEFAULT NULL,
	retry_delay interval DEFAULT '0',
	retry_backoff double precision DEFAULT 1,
	ordering text DEFAULT 'none',
	cleanup text DEFAULT 'retain',
	dedup_window interval DEFAULT '5 min',
	max_in_flight integer DEFAULT 1024,
	max_acked_ahead integer DEFAULT 1024,
	segment_size text DEFAULT '16MB',
	segment_age interval DEFAULT '1 day',
	value_type regtype DEFAULT 'jsonb')
RETURNS regclass
AS 'MODULE_PATHNAME', 'narad_create_topic'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION narad.create_topic(text, integer, interval, bigint, interval, integer, text, interval, double precision, text, text, interval, integer, integer, text, interval, regtype)
IS 'create a topic: a table with the access method narad, and its settings';

-- Not strict: NULL leaves a setting alone.
CREATE FUNCTION narad.alter_topic(
	topic regclass,
	partitions integer DEFAULT NULL,
	retention interval DEFAULT NULL,
	retention_bytes bigint DEFAULT NULL,
	visibility_timeout interval DEFAULT NULL,
	max_deliveries integer DEFAULT NULL,
	dead_letter_topic text DEFAULT NULL,
	retry_delay interval DEFAULT NULL,
	retry_backoff double precision DEFAULT NULL,
	ordering text DEFAULT NULL,
	cleanup text DEFAULT NULL,
	dedup_window interval DEFAULT NULL,
	max_in_flight integer DEFAULT NULL,
	max_acked_ahead integer DEFAULT NULL,
	segment_size text DEFAULT NULL,
	segment_age interval DEFAULT NULL,
	value_type regtype DEFAULT NULL,
	reset text[] DEFAULT NULL)
RETURNS void
AS 'MODULE_PATHNAME', 'narad_alter_topic'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION narad.alter_topic(regclass, integer, interval, bigint, interval, integer, text, interval, double precision, text, text, interval, integer, integer, text, interval, regtype, text[])
IS 'change settings of a topic; NULL leaves one alone, reset names those to return to their defaults';

-- Not strict: NULL is an error.
CREATE FUNCTION narad.drop_topic(topic regclass)
RETURNS void
AS 'MODULE_PATHNAME', 'narad_drop_topic'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION narad.drop_topic(regclass) IS 'drop a topic, as DROP TABLE';

-- Not strict: NULL is an error.
CREATE FUNCTION narad.purge_topic(topic regclass)
RETURNS void
AS 'MODULE_PATHNAME', 'narad_purge_topic'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION narad.purge_topic(regclass)
IS 'drop all messages of a topic, as TRUNCATE; offsets continue and groups stay';

---------------------------------------------------------------------------
-- Producing
---------------------------------------------------------------------------

-- Not strict, all of them: key, headers, partition may be NULL, and so may the
-- value.
CREATE FUNCTION narad.produce(
	topic regclass,
	value jsonb,
	key text DEFAULT NULL,
	headers jsonb DEFAULT NULL,
	partition integer DEFAULT NULL,
	deliver_after interval DEFAULT NULL,
	deliver_at timestamp with time zone DEFAULT NULL,
	dedup_id text DEFAULT NULL)
RETURNS SETOF narad.message_position
AS 'MODULE_PATHNAME', 'narad_produce'
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1;
COMMENT ON FUNCTION narad.produce(regclass, jsonb, text, jsonb, integer, interval, timestamp with time zone, text)
IS 'append one message to a topic';

CREATE FUNCTION narad.produce_bytes(
	topic regclass,
	value bytea,
	key text DEFAULT NULL,
	headers jsonb DEFAULT NULL,
	partition integer DEFAULT NULL,
	deliver_after interval DEFAULT NULL,
	deliver_at timestamp with time zone DEFAULT NULL,
	dedup_id text DEFAULT NULL)
RETURNS SETOF narad.message_position
AS 'MODULE_PATHNAME', 'narad_produce_bytes'
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1;
COMMENT ON FUNCTION narad.produce_bytes(regclass, bytea, text, jsonb, integer, interval, timestamp with time zone, text)
IS 'append one message to a topic of bytea or text values';

CREATE FUNCTION narad.produce_batch(
	topic regclass,
	payloads jsonb[],
	keys text[] DEFAULT NULL,
	headers jsonb[] DEFAULT NULL,
	partition integer DEFAULT NULL,
	deliver_after interval DEFAULT NULL,
	deliver_at timestamp with time zone DEFAULT NULL,
	dedup_ids text[] DEFAULT NULL)
RETURNS SETOF narad.message_position
AS 'MODULE_PATHNAME', 'narad_produce_batch'
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 100;
COMMENT ON FUNCTION narad.produce_batch(regclass, jsonb[], text[], jsonb[], integer, interval, timestamp with time zone, text[])
IS 'append messages to a topic; their positions in input order';

CREATE FUNCTION narad.produce_batch_bytes(
	topic regclass,
	payloads bytea[],
	keys text[] DEFAULT NULL,
	headers jsonb[] DEFAULT NULL,
	partition integer DEFAULT NULL,
	deliver_after interval DEFAULT NULL,
	deliver_at timestamp with time zone DEFAULT NULL,
	dedup_ids text[] DEFAULT NULL)
RETURNS SETOF narad.message_position
AS 'MODULE_PATHNAME', 'narad_produce_batch_bytes'
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 100;
COMMENT ON FUNCTION narad.produce_batch_bytes(regclass, bytea[], text[], jsonb[], integer, interval, timestamp with time zone, text[])
IS 'append messages to a topic of bytea or text values; their positions in input order';

CREATE FUNCTION narad.produce_array(
	topic regclass,
	payloads jsonb)
RETURNS SETOF narad.message_position
AS 'MODULE_PATHNAME', 'narad_produce_array'
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 100;
COMMENT ON FUNCTION narad.produce_array(regclass, jsonb)
IS 'append each element of a JSON array to a topic; their positions in input order';

-- Not strict, both of them: value, key, headers and partition may be NULL.
CREATE FUNCTION narad.produce_once(
	topic regclass,
	value jsonb,
	producer_id text,
	sequence bigint,
	epoch integer DEFAULT 0,
	key text DEFAULT NULL,
	headers jsonb DEFAULT NULL,
	partition integer DEFAULT NULL)
RETURNS SETOF narad.once_position
AS 'MODULE_PATHNAME', 'narad_produce_once'
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1;
COMMENT ON FUNCTION narad.produce_once(regclass, jsonb, text, bigint, integer, text, jsonb, integer)
IS 'append a message of an idempotent producer, unless its sequence number was appended before';

CREATE FUNCTION narad.produce_once_bytes(
	topic regclass,
	value bytea,
	producer_id text,
	sequence bigint,
	epoch integer DEFAULT 0,
	key text DEFAULT NULL,
	headers jsonb DEFAULT NULL,
	partition integer DEFAULT NULL)
RETURNS SETOF narad.once_position
AS 'MODULE_PATHNAME', 'narad_produce_once_bytes'
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1;
COMMENT ON FUNCTION narad.produce_once_bytes(regclass, bytea, text, bigint, integer, text, jsonb, integer)
IS 'append a message of an idempotent producer to a topic of bytea or text values, unless its sequence number was appended before';

---------------------------------------------------------------------------
-- Consuming
---------------------------------------------------------------------------

-- Not strict: visibility_timeout, partition, ack, notify may be NULL.
CREATE FUNCTION narad.consume(
	topic regclass,
	max_messages integer DEFAULT 1,
	wait interval DEFAULT '0',
	visibility_timeout interval DEFAULT NULL,
	consumer_group text DEFAULT 'default',
	partition integer DEFAULT NULL,
	ack text[] DEFAULT NULL,
	notify text DEFAULT NULL,
	notify_ttl interval DEFAULT '60 s')
RETURNS SETOF narad.message
AS 'MODULE_PATHNAME', 'narad_consume'
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 10;
COMMENT ON FUNCTION narad.consume(regclass, integer, interval, interval, text, integer, text[], text, interval)
IS 'lease messages of a topic; under READ COMMITTED one may be newer than the statement''s snapshot: join with it in the next statement';

CREATE FUNCTION narad.consume_bytes(
	topic regclass,
	max_messages integer DEFAULT 1,
	wait interval DEFAULT '0',
	visibility_timeout interval DEFAULT NULL,
	consumer_group text DEFAULT 'default',
	partition integer DEFAULT NULL,
	ack text[] DEFAULT NULL,
	notify text DEFAULT NULL,
	notify_ttl interval DEFAULT '60 s')
RETURNS SETOF narad.message_bytes
AS 'MODULE_PATHNAME', 'narad_consume_bytes'
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 10;
COMMENT ON FUNCTION narad.consume_bytes(regclass, integer, interval, interval, text, integer, text[], text, interval)
IS 'lease messages of a topic of bytea or text values';

CREATE PROCEDURE narad.wait(
	topic regclass,
	timeout interval,
	consumer_group text DEFAULT 'default',
	INOUT ready boolean DEFAULT NULL)
LANGUAGE C
AS 'MODULE_PATHNAME', 'narad_wait';
COMMENT ON PROCEDURE narad.wait(regclass, interval, text, boolean)
IS 'commit, then wait without a snapshot until there may be something to consume; consume then';

-- Not strict, all of them: a NULL receipt is an error.
CREATE FUNCTION narad.ack(receipt text)
RETURNS void
AS 'MODULE_PATHNAME', 'narad_ack'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION narad.ack(text)
IS 'settle a leased message, when the transaction commits; takes the text of an array, too';

CREATE FUNCTION narad.ack(receipts text[])
RETURNS void
AS 'MODULE_PATHNAME', 'narad_ack_array'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION narad.ack(text[])
IS 'settle leased messages, all or none, when the transaction commits';

CREATE FUNCTION narad.try_ack(
	receipts text[],
	OUT receipt text,
	OUT accepted boolean,
	OUT reason text)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'narad_try_ack'
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 10;
COMMENT ON FUNCTION narad.try_ack(text[])
IS 'settle those of the messages whose leases are live, and tell which';

CREATE FUNCTION narad.nack(
	receipt text,
	delay interval DEFAULT NULL,
	reason text DEFAULT NULL)
RETURNS void
AS 'MODULE_PATHNAME', 'narad_nack'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION narad.nack(text, interval, text)
IS 'give a leased message back, when the transaction commits; takes the text of an array, too';

CREATE FUNCTION narad.nack(
	receipts text[],
	delay interval DEFAULT NULL,
	reason text DEFAULT NULL)
RETURNS void
AS 'MODULE_PATHNAME', 'narad_nack_array'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION narad.nack(text[], interval, text)
IS 'give leased messages back, all or none, when the transaction commits';

CREATE FUNCTION narad.extend(
	receipt text,
	visibility_timeout interval DEFAULT NULL)
RETURNS timestamp with time zone
AS 'MODULE_PATHNAME', 'narad_extend'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION narad.extend(text, interval)
IS 'let a lease run for a visibility timeout from now, at once; its new expiry';

CREATE FUNCTION narad.extend(
	receipts text[],
	visibility_timeout interval DEFAULT NULL,
	OUT receipt text,
	OUT expires_at timestamp with time zone)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'narad_extend_array'
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 10;
COMMENT ON FUNCTION narad.extend(text[], interval)
IS 'let leases run for a visibility timeout from now, at once; their new expiries';

---------------------------------------------------------------------------
-- Reading as a log
---------------------------------------------------------------------------

-- Not strict, all of them: a NULL argument is an error.
CREATE FUNCTION narad.fetch(
	topic regclass,
	partition integer,
	from_offset bigint,
	max_messages integer DEFAULT 500,
	max_bytes integer DEFAULT 1048576,
	wait interval DEFAULT '0',
	min_bytes integer DEFAULT 1)
RETURNS SETOF narad.log_record
AS 'MODULE_PATHNAME', 'narad_fetch'
LANGUAGE C VOLATILE PARALLEL RESTRICTED ROWS 500;
COMMENT ON FUNCTION narad.fetch(regclass, integer, bigint, integer, integer, interval, integer)
IS 'read committed records of a partition in offset order; changes no state';

CREATE FUNCTION narad.fetch_bytes(
	topic regclass,
	partition integer,
	from_offset bigint,
	max_messages integer DEFAULT 500,
	max_bytes integer DEFAULT 1048576,
	wait interval DEFAULT '0',
	min_bytes integer DEFAULT 1)
RETURNS SETOF narad.log_record_bytes
AS 'MODULE_PATHNAME', 'narad_fetch_bytes'
LANGUAGE C VOLATILE PARALLEL RESTRICTED ROWS 500;
COMMENT ON FUNCTION narad.fetch_bytes(regclass, integer, bigint, integer, integer, interval, integer)
IS 'read committed records of a topic of bytea or text values';

CREATE FUNCTION narad.offsets(
	topic regclass,
	OUT partition integer,
	OUT earliest bigint,
	OUT end_offset bigint,
	OUT last_stable bigint,
	OUT epoch integer)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'narad_offsets'
LANGUAGE C VOLATILE PARALLEL RESTRICTED ROWS 10;
COMMENT ON FUNCTION narad.offsets(regclass)
IS 'bounds of each partition: the earliest offset, the next one to be given, and the one below which nothing may still commit';

---------------------------------------------------------------------------
-- Consumer groups
---------------------------------------------------------------------------

-- Not strict, all of them: a NULL argument is an error.
CREATE FUNCTION narad.create_group(
	topic regclass,
	consumer_group text,
	start_from text DEFAULT 'earliest')
RETURNS void
AS 'MODULE_PATHNAME', 'narad_create_group'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION narad.create_group(regclass, text, text)
IS 'create a consumer group that starts at earliest, latest (the last stable offset), or a timestamp; not undone by rollback';

CREATE FUNCTION narad.drop_group(
	topic regclass,
	consumer_group text)
RETURNS void
AS 'MODULE_PATHNAME', 'narad_drop_group'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION narad.drop_group(regclass, text)
IS 'drop a consumer group; its leases are void; not undone by rollback';

CREATE FUNCTION narad.pause_group(
	topic regclass,
	consumer_group text)
RETURNS void
AS 'MODULE_PATHNAME', 'narad_pause_group'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION narad.pause_group(regclass, text)
IS 'hand out no more messages to a consumer group; not undone by rollback';

CREATE FUNCTION narad.resume_group(
	topic regclass,
	consumer_group text)
RETURNS void
AS 'MODULE_PATHNAME', 'narad_resume_group'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION narad.resume_group(regclass, text)
IS 'end the pause of a consumer group; not undone by rollback';

CREATE FUNCTION narad.seek(
	topic regclass,
	consumer_group text,
	partition integer,
	msg_offset bigint)
RETURNS void
AS 'MODULE_PATHNAME', 'narad_seek'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION narad.seek(regclass, text, integer, bigint)
IS 'move a consumer group: the offset is the next one it is handed out in the partition; its leases there are void; not undone by rollback';

CREATE FUNCTION narad.seek_to_time(
	topic regclass,
	consumer_group text,
	produced_at timestamp with time zone)
RETURNS void
AS 'MODULE_PATHNAME', 'narad_seek_to_time'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION narad.seek_to_time(regclass, text, timestamp with time zone)
IS 'move a consumer group to the first message of each partition that was appended at or after a time; its leases are void; not undone by rollback';

---------------------------------------------------------------------------
-- Looking
---------------------------------------------------------------------------

-- Each function below lists what belongs to topics that its caller may SELECT.
-- Parallel unsafe, since they use subtransactions.
CREATE FUNCTION narad._topics(
	OUT topic regclass,
	OUT topic_id text,
	OUT partitions integer,
	OUT messages bigint,
	OUT bytes bigint,
	OUT value_type regtype,
	OUT retention interval,
	OUT retention_bytes bigint,
	OUT visibility_timeout interval,
	OUT max_deliveries integer,
	OUT dead_letter_topic regclass,
	OUT retry_delay interval,
	OUT retry_backoff double precision,
	OUT ordering text,
	OUT cleanup text,
	OUT dedup_window interval,
	OUT max_in_flight integer,
	OUT max_acked_ahead integer,
	OUT segment_size bigint,
	OUT segment_age interval)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'narad__topics'
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE ROWS 10;
COMMENT ON FUNCTION narad._topics() IS 'rows of the view narad.topics';

CREATE FUNCTION narad._partitions(
	OUT topic regclass,
	OUT partition integer,
	OUT earliest bigint,
	OUT end_offset bigint,
	OUT last_stable bigint,
	OUT epoch integer,
	OUT segments integer,
	OUT bytes bigint,
	OUT corrupt_records bigint)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'narad__partitions'
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE ROWS 10;
COMMENT ON FUNCTION narad._partitions() IS 'rows of the view narad.partitions';

CREATE FUNCTION narad._groups(
	OUT topic regclass,
	OUT consumer_group text,
	OUT partition integer,
	OUT frontier bigint,
	OUT end_offset bigint,
	OUT in_flight integer,
	OUT returned integer,
	OUT scheduled integer,
	OUT acked_ahead_ranges integer,
	OUT unpersisted_ranges bigint,
	OUT lost_to_retention bigint,
	OUT paused boolean,
	OUT dead_lettered bigint,
	OUT dead_letters_waiting integer,
	OUT waiters integer)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'narad__groups'
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE ROWS 10;
COMMENT ON FUNCTION narad._groups() IS 'rows of the view narad.groups';

CREATE FUNCTION narad._leases(
	OUT topic regclass,
	OUT consumer_group text,
	OUT partition integer,
	OUT msg_offset bigint,
	OUT deliveries integer,
	OUT leased_at timestamp with time zone,
	OUT expires_at timestamp with time zone,
	OUT pinned boolean,
	OUT pid integer,
	OUT is_open boolean)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'narad__leases'
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE ROWS 100;
COMMENT ON FUNCTION narad._leases() IS 'rows of the view narad.leases, and whether the transaction of pid is open';

CREATE FUNCTION narad._waiters(
	OUT topic regclass,
	OUT consumer_group text,
	OUT partition integer,
	OUT pid integer,
	OUT kind text,
	OUT since timestamp with time zone,
	OUT deadline timestamp with time zone)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'narad__waiters'
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE ROWS 100;
COMMENT ON FUNCTION narad._waiters() IS 'rows of the view narad.waiters';

CREATE VIEW narad.topics AS
SELECT topic, topic_id, partitions, messages, bytes, value_type, retention,
	retention_bytes, visibility_timeout, max_deliveries, dead_letter_topic,
	retry_delay, retry_backoff, ordering, cleanup, dedup_window, max_in_flight,
	max_acked_ahead, segment_size, segment_age
FROM narad._topics();
COMMENT ON VIEW narad.topics IS 'topics and their settings, defaults included';
COMMENT ON COLUMN narad.topics.topic IS 'table of the topic';
COMMENT ON COLUMN narad.topics.topic_id IS 'identity of the topic''s present log, 16 hexadecimal digits; null before the first use';
COMMENT ON COLUMN narad.topics.partitions IS 'number of partitions';
COMMENT ON COLUMN narad.topics.messages IS 'offsets between the earliest and the end, over all partitions: at least the number of messages';
COMMENT ON COLUMN narad.topics.bytes IS 'size of the file';
COMMENT ON COLUMN narad.topics.value_type IS 'type of the column value';
COMMENT ON COLUMN narad.topics.retention IS 'age beyond which messages may be dropped';
COMMENT ON COLUMN narad.topics.retention_bytes IS 'bytes of newer messages behind which those of a partition may be dropped; null: no limit';
COMMENT ON COLUMN narad.topics.visibility_timeout IS 'how long a lease lives, unless the consumer says';
COMMENT ON COLUMN narad.topics.max_deliveries IS 'deliveries after which a message is given up; null: never';
COMMENT ON COLUMN narad.topics.dead_letter_topic IS 'where messages go that were given up';
COMMENT ON COLUMN narad.topics.retry_delay IS 'how long a returned message waits';
COMMENT ON COLUMN narad.topics.retry_backoff IS 'factor by which that grows with each delivery';
COMMENT ON COLUMN narad.topics.ordering IS 'none, or key: one message per key in flight';
COMMENT ON COLUMN narad.topics.cleanup IS 'retain, or settled: drop what all groups settled';
COMMENT ON COLUMN narad.topics.dedup_window IS 'how long deduplication ids are remembered';
COMMENT ON COLUMN narad.topics.max_in_flight IS 'leases a group may have in a partition';
COMMENT ON COLUMN narad.topics.max_acked_ahead IS 'unsettled messages below the highest settled one that a group may have in a partition';
COMMENT ON COLUMN narad.topics.segment_size IS 'bytes of a segment';
COMMENT ON COLUMN narad.topics.segment_age IS 'age of its first message at which a segment is sealed';

CREATE VIEW narad.partitions AS
SELECT topic, partition, earliest, end_offset, last_stable, epoch, segments,
	bytes, corrupt_records
FROM narad._partitions();
COMMENT ON VIEW narad.partitions IS 'partitions of topics';
COMMENT ON COLUMN narad.partitions.topic IS 'table of the topic';
COMMENT ON COLUMN narad.partitions.partition IS 'number of the partition';
COMMENT ON COLUMN narad.partitions.earliest IS 'first offset kept';
COMMENT ON COLUMN narad.partitions.end_offset IS 'next offset to be given';
COMMENT ON COLUMN narad.partitions.last_stable IS 'offset below which nothing may still commit';
COMMENT ON COLUMN narad.partitions.epoch IS 'raised when the topic is first written to on another server or timeline';
COMMENT ON COLUMN narad.partitions.segments IS 'open and sealed segments';
COMMENT ON COLUMN narad.partitions.bytes IS 'bytes of the file prepared for them';
COMMENT ON COLUMN narad.partitions.corrupt_records IS 'damaged records met since the server started; null on a standby';

CREATE VIEW narad.groups AS
SELECT topic, consumer_group, partition, frontier, end_offset, in_flight,
	acked_ahead_ranges, unpersisted_ranges, scheduled, waiters,
	lost_to_retention, paused, returned, dead_lettered, dead_letters_waiting
FROM narad._groups();
COMMENT ON VIEW narad.groups IS 'consumer groups, one row for each partition';
COMMENT ON COLUMN narad.groups.topic IS 'table of the topic';
COMMENT ON COLUMN narad.groups.consumer_group IS 'name of the group';
COMMENT ON COLUMN narad.groups.partition IS 'number of the partition';
COMMENT ON COLUMN narad.groups.frontier IS 'last offset up to which everything is settled; -1 if nothing is';
COMMENT ON COLUMN narad.groups.end_offset IS 'next offset to be given in the partition';
COMMENT ON COLUMN narad.groups.in_flight IS 'messages leased, those acknowledged by open transactions included';
COMMENT ON COLUMN narad.groups.returned IS 'messages delivered before that are available again; null if the group was not used since the server started';
COMMENT ON COLUMN narad.groups.scheduled IS 'messages met that are not due: held back by a delay of produce, nack or retry_delay';
COMMENT ON COLUMN narad.groups.dead_lettered IS 'messages given up after max_deliveries, moved to the dead-letter topic if there is one';
COMMENT ON COLUMN narad.groups.dead_letters_waiting IS 'messages to be given up that the worker has not moved yet';
COMMENT ON COLUMN narad.groups.acked_ahead_ranges IS 'ranges of settled offsets above the frontier; null if the group was not used since the server started';
COMMENT ON COLUMN narad.groups.unpersisted_ranges IS 'changes since the state page was last written: at least the number of ranges settled that it does not have';
COMMENT ON COLUMN narad.groups.waiters IS 'waiting backends that may be given a message of the partition';
COMMENT ON COLUMN narad.groups.lost_to_retention IS 'offsets that retention dropped before the group had settled them: at least the number of messages';
COMMENT ON COLUMN narad.groups.paused IS 'the group is handed out nothing';

CREATE VIEW narad.leases AS
SELECT l.topic, l.consumer_group, l.partition, l.msg_offset, l.deliveries,
	l.leased_at, l.expires_at, l.pinned, l.pid,
	CASE WHEN l.is_open THEN a.xact_start END AS xact_start
FROM narad._leases() l
	LEFT JOIN pg_catalog.pg_stat_get_activity(NULL) a ON l.is_open AND a.pid OPERATOR(pg_catalog.=) l.pid;
COMMENT ON VIEW narad.leases IS 'live leases, without their receipts';
COMMENT ON COLUMN narad.leases.topic IS 'table of the topic';
COMMENT ON COLUMN narad.leases.consumer_group IS 'name of the group';
COMMENT ON COLUMN narad.leases.partition IS 'number of the partition';
COMMENT ON COLUMN narad.leases.msg_offset IS 'offset of the message';
COMMENT ON COLUMN narad.leases.deliveries IS 'deliveries so far, this one included';
COMMENT ON COLUMN narad.leases.leased_at IS 'when the lease began';
COMMENT ON COLUMN narad.leases.expires_at IS 'when it ends';
COMMENT ON COLUMN narad.leases.pinned IS 'an open transaction acknowledged or gave back the message';
COMMENT ON COLUMN narad.leases.pid IS 'backend that pinned the lease, or that took it';
COMMENT ON COLUMN narad.leases.xact_start IS 'start of that backend''s transaction, if it is the one that did';

CREATE VIEW narad.waiters AS
SELECT topic, consumer_group, partition, pid, kind, since, deadline
FROM narad._waiters();
COMMENT ON VIEW narad.waiters IS 'who waits for messages';
COMMENT ON COLUMN narad.waiters.topic IS 'table of the topic';
COMMENT ON COLUMN narad.waiters.consumer_group IS 'name of the group; null for a reader of the log';
COMMENT ON COLUMN narad.waiters.partition IS 'number of the partition that was named; null: any';
COMMENT ON COLUMN narad.waiters.pid IS 'backend that waits, or that left the token; null: that has ended';
COMMENT ON COLUMN narad.waiters.kind IS 'backend: in consume or CALL wait; reader: in fetch; token: to be notified';
COMMENT ON COLUMN narad.waiters.since IS 'when it began';
COMMENT ON COLUMN narad.waiters.deadline IS 'when it ends';

---------------------------------------------------------------------------
-- Privileges: who may do what to a topic is checked by each function.
---------------------------------------------------------------------------

GRANT USAGE ON SCHEMA narad TO PUBLIC;

REVOKE ALL ON TABLE narad.topic_settings, narad.saved_frontiers FROM PUBLIC;
REVOKE ALL ON TABLE narad.topic_template, narad.topics, narad.partitions,
	narad.groups, narad.leases, narad.waiters FROM PUBLIC;
GRANT SELECT ON TABLE narad.topic_template, narad.topics, narad.partitions,
	narad.groups, narad.leases, narad.waiters TO PUBLIC;

REVOKE ALL ON FUNCTION narad.tableam_handler(internal) FROM PUBLIC;

GRANT EXECUTE ON FUNCTION
	narad.create_topic(text, integer, interval, bigint, interval, integer, text, interval, double precision, text, text, interval, integer, integer, text, interval, regtype),
	narad.alter_topic(regclass, integer, interval, bigint, interval, integer, text, interval, double precision, text, text, interval, integer, integer, text, interval, regtype, text[]),
	narad.drop_topic(regclass),
	narad.purge_topic(regclass),
	narad.produce(regclass, jsonb, text, jsonb, integer, interval, timestamp with time zone, text),
	narad.produce_bytes(regclass, bytea, text, jsonb, integer, interval, timestamp with time zone, text),
	narad.produce_batch(regclass, jsonb[], text[], jsonb[], integer, interval, timestamp with time zone, text[]),
	narad.produce_batch_bytes(regclass, bytea[], text[], jsonb[], integer, interval, timestamp with time zone, text[]),
	narad.produce_array(regclass, jsonb),
	narad.produce_once(regclass, jsonb, text, bigint, integer, text, jsonb, integer),
	narad.produce_once_bytes(regclass, bytea, text, bigint, integer, text, jsonb, integer),
	narad.consume(regclass, integer, interval, interval, text, integer, text[], text, interval),
	narad.consume_bytes(regclass, integer, interval, interval, text, integer, text[], text, interval),
	narad.ack(text),
	narad.ack(text[]),
	narad.try_ack(text[]),
	narad.nack(text, interval, text),
	narad.nack(text[], interval, text),
	narad.extend(text, interval),
	narad.extend(text[], interval),
	narad.fetch(regclass, integer, bigint, integer, integer, interval, integer),
	narad.fetch_bytes(regclass, integer, bigint, integer, integer, interval, integer),
	narad.offsets(regclass),
	narad.create_group(regclass, text, text),
	narad.drop_group(regclass, text),
	narad.pause_group(regclass, text),
	narad.resume_group(regclass, text),
	narad.seek(regclass, text, integer, bigint),
	narad.seek_to_time(regclass, text, timestamp with time zone),
	narad._topics(),
	narad._partitions(),
	narad._groups(),
	narad._leases(),
	narad._waiters()
TO PUBLIC;
GRANT EXECUTE ON PROCEDURE
	narad.wait(regclass, interval, text, boolean)
TO PUBLIC;

---------------------------------------------------------------------------
-- Admin
---------------------------------------------------------------------------

-- Not strict: NULL is an error.
CREATE FUNCTION narad.verify(
	topic regclass,
	OUT severity text,
	OUT partition integer,
	OUT msg_offset bigint,
	OUT block bigint,
	OUT finding text)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'narad_verify'
LANGUAGE C VOLATILE PARALLEL RESTRICTED ROWS 10;
COMMENT ON FUNCTION narad.verify(regclass)
IS 'look at all pages and records of a topic, and at its leases: a row for each damage, and none when all is well';

-- Not strict: NULL stands for all topics.
CREATE FUNCTION narad.apply_retention(
	topic regclass DEFAULT NULL,
	OUT segments_freed integer,
	OUT messages_dropped bigint)
RETURNS record
AS 'MODULE_PATHNAME', 'narad_apply_retention'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION narad.apply_retention(regclass)
IS 'drop now what the settings of a topic, or of all that the caller owns, do not keep; not undone by rollback';

-- Not strict, both of them: a NULL argument is an error.
CREATE FUNCTION narad.offset_for_time(
	topic regclass,
	partition integer,
	produced_at timestamp with time zone)
RETURNS bigint
AS 'MODULE_PATHNAME', 'narad_offset_for_time'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION narad.offset_for_time(regclass, integer, timestamp with time zone)
IS 'first offset of a partition that was appended at or after a time, by committed transactions or others; its end if there is none';

CREATE FUNCTION narad.offset_for_epoch(
	topic regclass,
	partition integer,
	epoch integer)
RETURNS bigint
AS 'MODULE_PATHNAME', 'narad_offset_for_epoch'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION narad.offset_for_epoch(regclass, integer, integer)
IS 'where the largest epoch at or below the given one ends in a partition; null if it holds nothing of such an epoch';

-- As the other functions under views: what its caller may SELECT.
CREATE FUNCTION narad._segments(
	OUT topic regclass,
	OUT partition integer,
	OUT segment_no bigint,
	OUT state text,
	OUT first_offset bigint,
	OUT end_offset bigint,
	OUT first_time timestamp with time zone,
	OUT last_time timestamp with time zone,
	OUT bytes bigint,
	OUT frozen boolean)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'narad__segments'
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE ROWS 100;
COMMENT ON FUNCTION narad._segments() IS 'rows of the view narad.segments';

CREATE VIEW narad.segments AS
SELECT topic, partition, segment_no, state, first_offset, end_offset,
	first_time, last_time, bytes, frozen
FROM narad._segments();
COMMENT ON VIEW narad.segments IS 'segments of the partitions of topics';
COMMENT ON COLUMN narad.segments.topic IS 'table of the topic';
COMMENT ON COLUMN narad.segments.partition IS 'number of the partition';
COMMENT ON COLUMN narad.segments.segment_no IS 'number of the segment in the partition; null for a spare one';
COMMENT ON COLUMN narad.segments.state IS 'open: is appended to; sealed: is full; spare: will be opened next';
COMMENT ON COLUMN narad.segments.first_offset IS 'lowest offset it may hold; null for a spare one';
COMMENT ON COLUMN narad.segments.end_offset IS 'one past the highest; null unless it is sealed';
COMMENT ON COLUMN narad.segments.first_time IS 'when its first record was produced; null unless it is sealed';
COMMENT ON COLUMN narad.segments.last_time IS 'when its last record was produced; null unless it is sealed';
COMMENT ON COLUMN narad.segments.bytes IS 'bytes of the file prepared for it';
COMMENT ON COLUMN narad.segments.frozen IS 'it holds no transaction ids any more';

REVOKE ALL ON TABLE narad.segments FROM PUBLIC;
GRANT SELECT ON TABLE narad.segments TO PUBLIC;
GRANT EXECUTE ON FUNCTION
	narad.verify(regclass),
	narad.apply_retention(regclass),
	narad.offset_for_time(regclass, integer, timestamp with time zone),
	narad.offset_for_epoch(regclass, integer, integer),
	narad._segments()
TO PUBLIC;
