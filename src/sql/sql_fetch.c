/*-------------------------------------------------------------------------
 *
 * sql_fetch.c
 *	  fetch, fetch_bytes, offsets: a topic as a log.
 *
 * Owns:		nothing; changes nothing.
 * Invariants:	I7: records come in offset order, and none at or above the last
 *				stable offset, below which nothing may still commit.
 * Locks:		AccessShareLock on the topic, given back at the end, and while it
 *				waits.
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

#include "base/base_stop.h"
#include "log/log_meta.h"
#include "log/log_read.h"
#include "log/log_xlog.h"
#include "queue/queue_await.h"
#include "queue/queue_topic.h"
#include "sql/sql_args.h"

#define ARG_PARTITION		1
#define ARG_FROM_OFFSET		2
#define ARG_MAX_MESSAGES	3
#define ARG_MAX_BYTES		4
#define ARG_WAIT			5
#define ARG_MIN_BYTES		6

/* One call. */
typedef struct FetchCall
{
	bool		bytes;			/* fetch_bytes */
	const char *instead;		/* the other function */
	int			partition;
	int			max_messages;
	int			max_bytes;
	int			min_bytes;
	int64		wait;			/* us */
	ReturnSetInfo *rsinfo;

	/* What was read so far. */
	NaradOffset next;
	int			nmessages;
	int64		nbytes;
	bool		full;			/* the next one would exceed max_bytes */
} FetchCall;

PG_FUNCTION_INFO_V1(narad_fetch);
PG_FUNCTION_INFO_V1(narad_fetch_bytes);
PG_FUNCTION_INFO_V1(narad_offsets);

static void
take_arguments(FunctionCallInfo fcinfo, Relation rel, FetchCall *call)
{
	NaradOffset earliest;
	NaradOffset end;
	NaradOffset stable;
	int64		from;

	NaradArgNotNull(fcinfo, ARG_PARTITION, "partition");
	NaradArgNotNull(fcinfo, ARG_FROM_OFFSET, "from_offset");
	call->max_messages = NaradArgCount(fcinfo, ARG_MAX_MESSAGES,
									   "max_messages", 1);
	call->max_bytes = NaradArgCount(fcinfo, ARG_MAX_BYTES, "max_bytes", 0);
	call->wait = NaradArgWait(fcinfo, ARG_WAIT, "wait");
	call->min_bytes = NaradArgCount(fcinfo, ARG_MIN_BYTES, "min_bytes", 0);
	call->partition = NaradArgPartition(fcinfo, ARG_PARTITION, rel,
										NaradTopicPartitions(rel));
	from = PG_GETARG_INT64(ARG_FROM_OFFSET);
	NaradPartitionBounds(rel, NaradTopicInfo(rel), call->partition, &earliest,
						 &end, &stable);
	NaradArgCheckOffset(rel, call->partition, from, earliest, end);
	call->next = from;
}

/*
 * May the caller read, and this way?
 */
static void
check_topic(Relation rel, void *arg)
{
	FetchCall  *call = arg;

	NaradTopicCheckAcl(rel, ACL_SELECT);
	NaradTopicCheckValueType(rel, call->bytes, call->instead);
}

/*
 * NR416, for an offset that was retained when the call began.
 */
static void
report_dropped(Relation rel, int partition, NaradOffset offset)
{
	NaradOffset earliest;
	NaradOffset end;
	NaradOffset stable;

	NaradPartitionBounds(rel, NaradTopicInfo(rel), partition, &earliest, &end,
						 &stable);
	NaradArgCheckOffset(rel, partition, (int64) offset, earliest, end);
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
 * Reads on, up to the last stable offset, as many records as were asked for,
 * and at least one if there is one.
 */
static void
fetch_records(Relation rel, FetchCall *call, NaradOffset stable)
{
	int			natts = RelationGetDescr(rel)->natts;
	Datum	   *values = palloc(natts * sizeof(Datum));
	bool	   *isnull = palloc(natts * sizeof(bool));
	NaradReader *reader;

	reader = NaradReaderBegin(rel, NaradTopicInfo(rel), call->partition, NULL);
	NARAD_STOP("fetch-begun");
	while (call->next < stable && call->nmessages < call->max_messages)
	{
		NaradRead	read;

		CHECK_FOR_INTERRUPTS();
		NaradReaderRead(reader, call->next, &read);
		if (read.status == NARAD_READ_DROPPED)
		{
			/* Overtaken: what was read so far, or nothing any more. */
			if (call->nmessages == 0)
				report_dropped(rel, call->partition, call->next);
			call->full = true;
			break;
		}
		if (read.status == NARAD_READ_OK)
		{
			if (call->nmessages > 0 &&
				call->nbytes + read.tuple->t_len > call->max_bytes)
			{
				call->full = true;
				break;
			}
			call->nbytes += read.tuple->t_len;
			put_record(call->rsinfo, rel, read.tuple, values, isnull);
			NaradReaderReset(reader);
			call->nmessages++;
		}
		else if (read.status != NARAD_READ_DEAD &&
				 read.status != NARAD_READ_CORRUPT)
			break;				/* not stable after all, or the end */
		call->next = read.next;
	}
	NaradReaderEnd(reader);
	pfree(values);
	pfree(isnull);
}

/*
 * Reads what there is; true if that is enough.
 */
static bool
read_on(Relation rel, void *arg)
{
	FetchCall  *call = arg;
	NaradOffset earliest;
	NaradOffset end;
	NaradOffset stable;

	NaradPartitionBounds(rel, NaradTopicInfo(rel), call->partition, &earliest,
						 &end, &stable);
	if (call->nmessages == 0)
		NaradArgCheckOffset(rel, call->partition, (int64) call->next, earliest,
							end);
	else if (call->next < earliest)
		return true;			/* the next call will tell */
	if (call->next < stable)
		fetch_records(rel, call, stable);
	return call->full || call->nmessages >= call->max_messages ||
		call->nbytes >= call->min_bytes ||
		call->nbytes >= call->max_bytes;
}

static Datum
fetch(FunctionCallInfo fcinfo, bool bytes, const char *instead)
{
	Relation	rel = NaradArgTopic(fcinfo, 0, AccessShareLock);
	FetchCall	call = {0};
	NaradAwaitArgs await;

	call.bytes = bytes;
	call.instead = instead;
	check_topic(rel, &call);
	take_arguments(fcinfo, rel, &call);
	InitMaterializedSRF(fcinfo, 0);
	call.rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	if (read_on(rel, &call) || call.wait == 0)
	{
		table_close(rel, AccessShareLock);
		return (Datum) 0;
	}
	await.kind = NARAD_WAIT_READER;
	await.group = NULL;
	await.partition = call.partition;
	await.wait = call.wait;
	await.check = check_topic;
	await.look = read_on;
	await.arg = &call;
	(void) NaradAwait(rel, &await);
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
	NaradXLogFlushOffsets(rel);
	table_close(rel, AccessShareLock);
	return (Datum) 0;
}
