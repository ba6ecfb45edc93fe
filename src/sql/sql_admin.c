/*-------------------------------------------------------------------------
 *
 * sql_admin.c
 *	  verify: what is wrong with a topic; offset_for_time, offset_for_epoch;
 *	  apply_retention.
 *
 * Owns:		nothing.
 * Invariants:	I11: damage is a row, and no error.
 * Locks:		AccessShareLock on the topic, for apply_retention
 *				RowExclusiveLock, given back at the end.
 * Runs in:		any backend, and all but apply_retention during recovery too.
 * On error:	nothing to undo; what retention dropped is dropped, whatever
 *				becomes of the transaction.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "log/log_find.h"
#include "log/log_tableam.h"
#include "log/log_xlog.h"
#include "queue/queue_retain.h"
#include "queue/queue_topic.h"
#include "queue/queue_verify.h"
#include "sql/sql_args.h"

#define FINDING_COLUMNS		5

PG_FUNCTION_INFO_V1(narad_verify);
PG_FUNCTION_INFO_V1(narad_offset_for_time);
PG_FUNCTION_INFO_V1(narad_offset_for_epoch);
PG_FUNCTION_INFO_V1(narad_apply_retention);

/*
 * A row for a finding.
 */
static void
put_finding(NaradSeverity severity, int partition, NaradOffset offset,
			BlockNumber block, const char *finding, void *arg)
{
	ReturnSetInfo *rsinfo = arg;
	Datum		values[FINDING_COLUMNS];
	bool		isnull[FINDING_COLUMNS] = {false};

	values[0] = CStringGetTextDatum(severity == NARAD_SEVERITY_ERROR ?
									"error" : "warning");
	values[1] = Int32GetDatum(partition);
	isnull[1] = partition < 0;
	values[2] = Int64GetDatum((int64) offset);
	isnull[2] = offset == NARAD_INVALID_OFFSET;
	values[3] = Int64GetDatum((int64) block);
	isnull[3] = block == InvalidBlockNumber;
	values[4] = CStringGetTextDatum(finding);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, isnull);
	pfree(DatumGetPointer(values[0]));
	pfree(DatumGetPointer(values[4]));
}

Datum
narad_verify(PG_FUNCTION_ARGS)
{
	Relation	rel = NaradArgTopic(fcinfo, 0, AccessShareLock);
	NaradVerify verify = {0};

	NaradTopicCheckOwner(rel);
	InitMaterializedSRF(fcinfo, 0);
	verify.rel = rel;
	verify.report = put_finding;
	verify.arg = fcinfo->resultinfo;
	verify.state = NaradVerifyStatePage;
	if (NaradVerifyLog(&verify))
		NaradVerifyShards(&verify);
	table_close(rel, AccessShareLock);
	return (Datum) 0;
}

/*
 * The topic of the first argument, and the partition of the second, for the
 * functions that look for an offset.
 */
static Relation
open_partition(FunctionCallInfo fcinfo, int *partition)
{
	Relation	rel = NaradArgTopic(fcinfo, 0, AccessShareLock);

	NaradTopicCheckAcl(rel, ACL_SELECT);
	NaradArgNotNull(fcinfo, 1, "partition");
	*partition = NaradArgPartition(fcinfo, 1, rel, NaradTopicPartitions(rel));
	return rel;
}

Datum
narad_offset_for_time(PG_FUNCTION_ARGS)
{
	int			partition;
	Relation	rel = open_partition(fcinfo, &partition);
	NaradOffset offset = 0;
	NaradRelInfo *info;

	NaradArgNotNull(fcinfo, 2, "produced_at");
	info = NaradTopicInfo(rel);
	if (info != NULL)
		offset = NaradOffsetForTime(rel, info, partition,
									PG_GETARG_TIMESTAMPTZ(2));
	NaradXLogFlushOffsets(rel);
	table_close(rel, AccessShareLock);
	PG_RETURN_INT64((int64) offset);
}

Datum
narad_offset_for_epoch(PG_FUNCTION_ARGS)
{
	int			partition;
	Relation	rel = open_partition(fcinfo, &partition);
	int			epoch = NaradArgCount(fcinfo, 2, "epoch", 0);
	NaradOffset offset = 0;
	NaradRelInfo *info = NaradTopicInfo(rel);
	bool		found;

	found = info != NULL &&
		NaradOffsetForEpoch(rel, info, partition, epoch, &offset);
	NaradXLogFlushOffsets(rel);
	table_close(rel, AccessShareLock);
	if (!found)
		PG_RETURN_NULL();
	PG_RETURN_INT64((int64) offset);
}

/*
 * Retention of one topic, and its file cut if that is worth it.
 */
static void
retain_topic(Relation rel, NaradRetainResult *result)
{
	NaradRelInfo *found = NaradRelInfoAttach(rel);
	NaradRelInfo info;
	bool		again;

	if (found == NULL)
		return;
	info = *found;
	NaradQueueRetain(rel, &info, result);
	(void) NaradRetainGiveBack(rel, &info, &again);
}

/*
 * The same, of a topic that is open with AccessShareLock.
 */
static void
lock_and_retain(Relation rel, NaradRetainResult *result)
{
	LockRelation(rel, RowExclusiveLock);
	retain_topic(rel, result);
	UnlockRelation(rel, RowExclusiveLock);
}

/*
 * The same of all topics of the current user.
 */
static void
retain_own_topics(NaradRetainResult *result)
{
	ListCell   *lc;

	foreach(lc, NaradQueueTopicList())
	{
		Relation	rel = try_relation_open(lfirst_oid(lc), AccessShareLock);

		CHECK_FOR_INTERRUPTS();
		if (rel == NULL)
			continue;
		if (NaradRelIsTopic(rel) &&
			has_privs_of_role(GetUserId(), rel->rd_rel->relowner))
			lock_and_retain(rel, result);
		relation_close(rel, AccessShareLock);
	}
}

Datum
narad_apply_retention(PG_FUNCTION_ARGS)
{
	NaradRetainResult result;
	TupleDesc	desc;
	Datum		values[2];
	bool		isnull[2] = {false};

	NaradArgCheckWritable("apply_retention()");
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	NaradRetainResultInit(&result);
	if (PG_ARGISNULL(0))
		retain_own_topics(&result);
	else
	{
		Relation	rel = NaradArgTopic(fcinfo, 0, AccessShareLock);

		NaradTopicCheckOwner(rel);
		lock_and_retain(rel, &result);
		table_close(rel, AccessShareLock);
	}
	values[0] = Int32GetDatum(result.nfreed);
	values[1] = Int64GetDatum(result.ndropped);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc),
													  values, isnull)));
}
