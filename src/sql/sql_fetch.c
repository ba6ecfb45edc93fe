/*-------------------------------------------------------------------------
 *
 * sql_fetch.c
 *	  fetch, fetch_bytes, offsets: a topic as a log.
 *
 * Owns:		nothing; changes nothing.
 * Invariants:	I7: records come in offset order, and none at or above the last
 *				stable offset, below which nothing may still commit.
 * Locks:		AccessShareLock on the topic, given back at the end.
 * Runs in:		any backend, during recovery too.
 * On error:	nothing to undo.
 *
 * Offsets are not dense: the next call starts one past the last record got,
 * and from_offset may be one that no record has.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/rel.h"

#include "log/log_meta.h"
#include "log/log_read.h"
#include "queue/queue_topic.h"
#include "sql/sql_args.h"

#define ARG_PARTITION		1
#define ARG_FROM_OFFSET		2
#define ARG_MAX_MESSAGES	3
#define ARG_MAX_BYTES		4
#define ARG_WAIT			5
#define ARG_MIN_BYTES		6

typedef struct FetchArgs
{
	int			partition;
	NaradOffset from;
	NaradOffset stable;
	int			max_messages;
	int			max_bytes;
} FetchArgs;

PG_FUNCTION_INFO_V1(narad_fetch);
PG_FUNCTION_INFO_V1(narad_fetch_bytes);
PG_FUNCTION_INFO_V1(narad_offsets);

static void
take_arguments(FunctionCallInfo fcinfo, Relation rel, FetchArgs *args)
{
	NaradOffset earliest;
	NaradOffset end;
	int64		from;

	NaradArgNotNull(fcinfo, ARG_PARTITION, "partition");
	NaradArgNotNull(fcinfo, ARG_FROM_OFFSET, "from_offset");
	args->max_messages = NaradArgCount(fcinfo, ARG_MAX_MESSAGES,
									   "max_messages", 1);
	args->max_bytes = NaradArgCount(fcinfo, ARG_MAX_BYTES, "max_bytes", 0);
	NaradArgRefuseWait(fcinfo, ARG_WAIT);
	if (NaradArgCount(fcinfo, ARG_MIN_BYTES, "min_bytes", 0) > 1)
		NaradArgRefuseValue("min_bytes");
	args->partition = NaradArgPartition(fcinfo, ARG_PARTITION, rel,
										NaradTopicPartitions(rel));
	from = PG_GETARG_INT64(ARG_FROM_OFFSET);
	NaradPartitionBounds(rel, NaradTopicInfo(rel), args->partition, &earliest,
						 &end, &args->stable);
	NaradArgCheckOffset(rel, args->partition, from, earliest, end);
	args->from = from;
}

static void
put_record(ReturnSetInfo *rsinfo, Relation rel, HeapTuple tuple,
		   Datum *values, bool *isnull)
{
	/* The record's columns are the topic's first six, in their order. */
	heap_deform_tuple(tuple, RelationGetDescr(rel), values, isnull);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, isnull);
}

/*
 * Reads from an offset on, as many records as were asked for, and at least
 * one if there is one.
 */
static void
fetch_records(Relation rel, const FetchArgs *args, ReturnSetInfo *rsinfo)
{
	int			natts = RelationGetDescr(rel)->natts;
	Datum	   *values = palloc(natts * sizeof(Datum));
	bool	   *isnull = palloc(natts * sizeof(bool));
	NaradReader *reader;
	NaradOffset offset = args->from;
	int64		nbytes = 0;
	int			nmessages = 0;

	reader = NaradReaderBegin(rel, NaradTopicInfo(rel), args->partition, NULL);
	while (offset < args->stable && nmessages < args->max_messages)
	{
		NaradRead	read;

		CHECK_FOR_INTERRUPTS();
		NaradReaderRead(reader, offset, &read);
		if (read.status == NARAD_READ_OK)
		{
			nbytes += read.tuple->t_len;
			if (nmessages > 0 && nbytes > args->max_bytes)
				break;
			put_record(rsinfo, rel, read.tuple, values, isnull);
			NaradReaderReset(reader);
			nmessages++;
		}
		else if (read.status != NARAD_READ_DEAD &&
				 read.status != NARAD_READ_CORRUPT)
			break;				/* not stable after all, or the end */
		offset = read.next;
	}
	NaradReaderEnd(reader);
}

static Datum
fetch(FunctionCallInfo fcinfo, bool bytes, const char *instead)
{
	Relation	rel = NaradArgTopic(fcinfo, 0, AccessShareLock);
	FetchArgs	args;

	NaradTopicCheckAcl(rel, ACL_SELECT);
	NaradTopicCheckValueType(rel, bytes, instead);
	take_arguments(fcinfo, rel, &args);
	InitMaterializedSRF(fcinfo, 0);
	if (args.from < args.stable)
		fetch_records(rel, &args, (ReturnSetInfo *) fcinfo->resultinfo);
	table_close(rel, AccessShareLock);
	return (Datum) 0;
}

Datum
narad_fetch(PG_FUNCTION_ARGS)
{
	return fetch(fcinfo, false, "fetch_bytes");
}

Datum
narad_fetch_bytes(PG_FUNCTION_ARGS)
{
	return fetch(fcinfo, true, "fetch");
}

/*
 * A row of bounds for each partition.
 */
Datum
narad_offsets(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Relation	rel = NaradArgTopic(fcinfo, 0, AccessShareLock);
	NaradMetaData meta;
	int			npartitions;
	int			epoch = 1;
	int			i;

	NaradTopicCheckAcl(rel, ACL_SELECT);
	InitMaterializedSRF(fcinfo, 0);
	npartitions = NaradTopicPartitions(rel);
	if (NaradMetaRead(rel, &meta))
		epoch = meta.epoch;
	for (i = 0; i < npartitions; i++)
	{
		NaradOffset earliest;
		NaradOffset end;
		NaradOffset stable;
		Datum		values[5];
		bool		isnull[5] = {false};

		CHECK_FOR_INTERRUPTS();
		NaradPartitionBounds(rel, NaradRelInfoLook(rel), i, &earliest, &end,
							 &stable);
		values[0] = Int32GetDatum(i);
		values[1] = Int64GetDatum((int64) earliest);
		values[2] = Int64GetDatum((int64) end);
		values[3] = Int64GetDatum((int64) stable);
		values[4] = Int32GetDatum(epoch);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values,
							 isnull);
	}
	table_close(rel, AccessShareLock);
	return (Datum) 0;
}
