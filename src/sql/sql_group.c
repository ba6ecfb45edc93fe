/*-------------------------------------------------------------------------
 *
 * sql_group.c
 *	  create_group, drop_group, pause_group, resume_group, seek, seek_to_time.
 *
 * Owns:		nothing.
 * Invariants:	only the topic's owner gets past here; to seek, SELECT and
 *				UPDATE will do, as to consume.
 * Locks:		RowExclusiveLock on the topic, kept to the transaction's end.
 * Runs in:		any backend of a primary.
 * On error:	these act at once and are not undone by rollback: whatever can
 *				be wrong with the arguments is found before.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "log/log_read.h"
#include "log/log_tableam.h"
#include "queue/queue_topic.h"
#include "sql/sql_args.h"

PG_FUNCTION_INFO_V1(narad_create_group);
PG_FUNCTION_INFO_V1(narad_drop_group);
PG_FUNCTION_INFO_V1(narad_pause_group);
PG_FUNCTION_INFO_V1(narad_resume_group);
PG_FUNCTION_INFO_V1(narad_seek);
PG_FUNCTION_INFO_V1(narad_seek_to_time);

/*
 * The topic of the first argument, owned by the caller.
 */
static Relation
open_owned(FunctionCallInfo fcinfo, const char *function)
{
	Relation	rel;

	NaradArgCheckWritable(function);
	rel = NaradArgTopic(fcinfo, 0, RowExclusiveLock);
	NaradTopicCheckOwner(rel);
	return rel;
}

/*
 * Where a group starts: a word, or a point in time.
 */
static NaradStartFrom
take_start(FunctionCallInfo fcinfo, TimestampTz *start_time)
{
	char	   *start;

	*start_time = 0;
	NaradArgNotNull(fcinfo, 2, "start_from");
	start = text_to_cstring(PG_GETARG_TEXT_PP(2));
	if (strcmp(start, "earliest") == 0)
		return NARAD_START_EARLIEST;
	if (strcmp(start, "latest") == 0)
		return NARAD_START_LATEST;
	*start_time = DatumGetTimestampTz(DirectFunctionCall3(timestamptz_in,
														  CStringGetDatum(start),
														  ObjectIdGetDatum(InvalidOid),
														  Int32GetDatum(-1)));
	return NARAD_START_TIME;
}

Datum
narad_create_group(PG_FUNCTION_ARGS)
{
	Relation	rel = open_owned(fcinfo, "create_group()");
	char	   *name = NaradArgGroupName(fcinfo, 1);
	TimestampTz start_time;
	NaradStartFrom start = take_start(fcinfo, &start_time);

	if (!NaradGroupCreate(rel, NaradRelInfoCreate(rel, 0, 0), name, start,
						  start_time))
		ereport(NOTICE,
				(errcode(ERRCODE_DUPLICATE_OBJECT),
				 errmsg("consumer group \"%s\" of topic \"%s\" already exists, skipping",
						name, RelationGetRelationName(rel))));
	table_close(rel, NoLock);
	PG_RETURN_VOID();
}

Datum
narad_drop_group(PG_FUNCTION_ARGS)
{
	Relation	rel = open_owned(fcinfo, "drop_group()");
	char	   *name = NaradArgGroupName(fcinfo, 1);

	NaradGroupDrop(rel, NaradRelInfoCreate(rel, 0, 0), name);
	table_close(rel, NoLock);
	PG_RETURN_VOID();
}

static Datum
set_paused(FunctionCallInfo fcinfo, const char *function, bool paused)
{
	Relation	rel = open_owned(fcinfo, function);
	char	   *name = NaradArgGroupName(fcinfo, 1);

	NaradGroupPause(rel, NaradRelInfoCreate(rel, 0, 0), name, paused);
	table_close(rel, NoLock);
	PG_RETURN_VOID();
}

Datum
narad_pause_group(PG_FUNCTION_ARGS)
{
	return set_paused(fcinfo, "pause_group()", true);
}

Datum
narad_resume_group(PG_FUNCTION_ARGS)
{
	return set_paused(fcinfo, "resume_group()", false);
}

/*
 * The topic of the first argument, which the caller may consume from.
 */
static Relation
open_consumable(FunctionCallInfo fcinfo, const char *function)
{
	Relation	rel;

	NaradArgCheckWritable(function);
	rel = NaradArgTopic(fcinfo, 0, RowExclusiveLock);
	NaradTopicCheckAcl(rel, ACL_SELECT | ACL_UPDATE);
	NaradLogTopicKeep(rel);
	return rel;
}

Datum
narad_seek(PG_FUNCTION_ARGS)
{
	Relation	rel = open_consumable(fcinfo, "seek()");
	char	   *name = NaradArgGroupName(fcinfo, 1);
	NaradRelInfo *info;
	NaradOffset earliest;
	NaradOffset end;
	NaradOffset stable;
	int			partition;

	NaradArgNotNull(fcinfo, 2, "partition");
	NaradArgNotNull(fcinfo, 3, "msg_offset");
	partition = NaradArgPartition(fcinfo, 2, rel, NaradTopicPartitions(rel));
	info = NaradRelInfoCreate(rel, 0, 0);
	NaradPartitionBounds(rel, info, partition, &earliest, &end, &stable);
	NaradArgCheckOffset(rel, partition, PG_GETARG_INT64(3), earliest, end);
	NaradGroupSeek(rel, info, name, partition, PG_GETARG_INT64(3));
	table_close(rel, NoLock);
	PG_RETURN_VOID();
}

Datum
narad_seek_to_time(PG_FUNCTION_ARGS)
{
	Relation	rel = open_consumable(fcinfo, "seek_to_time()");
	char	   *name = NaradArgGroupName(fcinfo, 1);

	NaradArgNotNull(fcinfo, 2, "produced_at");
	NaradGroupSeekToTime(rel, NaradRelInfoCreate(rel, 0, 0), name,
						 PG_GETARG_TIMESTAMPTZ(2));
	table_close(rel, NoLock);
	PG_RETURN_VOID();
}
