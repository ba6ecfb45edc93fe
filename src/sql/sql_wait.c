/*-------------------------------------------------------------------------
 *
 * sql_wait.c
 *	  CALL narad.wait, and the function under the view waiters.
 *
 * Owns:		nothing.
 * Invariants:	I8: the caller is told when there may be something for its
 *				group, and is expected to consume then.
 * Locks:		RowExclusiveLock on the topic while it looks.
 * Runs in:		any backend of a primary.
 * On error:	nothing to undo; a wake goes to the next.
 *
 * Called outside a transaction block, the procedure commits first, and waits in
 * a transaction that has neither snapshot nor id nor locks: it keeps no old row
 * alive.  (A transaction there must be, since the server has it that a
 * procedure's caller finds one when it returns.)  Inside a block it waits in
 * place, no longer than narad.max_wait.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/relation.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/rel.h"

#include "queue/queue_await.h"
#include "queue/queue_consume.h"
#include "sql/sql_args.h"

#define ARG_TIMEOUT		1
#define ARG_GROUP		2

#define WAITER_COLUMNS	7

PG_FUNCTION_INFO_V1(narad_wait);
PG_FUNCTION_INFO_V1(narad__waiters);

static void
check_topic(Relation rel, void *arg)
{
	NaradTopicCheckAcl(rel, ACL_SELECT | ACL_UPDATE);
}

static bool
is_ready(Relation rel, void *arg)
{
	return NaradConsumeIsReady(rel, NaradRelInfoCreate(rel, 0, 0),
							   (const char *) arg);
}

static bool
is_atomic(FunctionCallInfo fcinfo)
{
	return fcinfo->context == NULL || !IsA(fcinfo->context, CallContext) ||
		castNode(CallContext, fcinfo->context)->atomic;
}

/*
 * Looks, and waits if there is nothing.
 */
static bool
wait_until_ready(FunctionCallInfo fcinfo, char *group, int64 timeout)
{
	Relation	rel = NaradArgTopic(fcinfo, 0, RowExclusiveLock);
	NaradAwaitArgs await;
	bool		ready;

	check_topic(rel, NULL);
	ready = is_ready(rel, group);
	if (ready || timeout == 0)
	{
		relation_close(rel, RowExclusiveLock);
		return ready;
	}
	await.kind = NARAD_WAIT_CALLER;
	await.group = group;
	await.partition = -1;
	await.wait = timeout;
	await.check = check_topic;
	await.look = is_ready;
	await.arg = group;
	return NaradAwait(rel, &await);
}

/*
 * CALL wait(topic, timeout, consumer_group, INOUT ready)
 */
Datum
narad_wait(PG_FUNCTION_ARGS)
{
	bool		atomic = is_atomic(fcinfo);
	TupleDesc	desc;
	char	   *group;
	int64		timeout;
	bool		isnull = false;
	bool		ready;
	Datum		value;

	NaradArgCheckWritable("wait()");
	group = NaradArgGroupName(fcinfo, ARG_GROUP);
	timeout = atomic ? NaradArgWait(fcinfo, ARG_TIMEOUT, "timeout") :
		NaradArgInterval(fcinfo, ARG_TIMEOUT, "timeout", 0, NARAD_MAX_TIMEOUT);
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");

	if (!atomic)
	{
		(void) SPI_connect_ext(SPI_OPT_NONATOMIC);
		SPI_commit();
	}
	ready = wait_until_ready(fcinfo, group, timeout);
	if (!atomic)
		SPI_finish();

	value = BoolGetDatum(ready);
	return HeapTupleGetDatum(heap_form_tuple(desc, &value, &isnull));
}

/*
 * A row for each waiter and token of a topic that the caller may SELECT from.
 */
Datum
narad__waiters(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	NaradWaiterLook *rows;
	int			nrows;
	int			i;

	InitMaterializedSRF(fcinfo, 0);
	rows = NaradWaitLook(&nrows);
	for (i = 0; i < nrows; i++)
	{
		NaradWaiterLook *row = &rows[i];
		Datum		values[WAITER_COLUMNS];
		bool		isnull[WAITER_COLUMNS] = {false};
		bool		is_missing = false;

		if (pg_class_aclcheck_ext(row->relid, GetUserId(), ACL_SELECT,
								  &is_missing) != ACLCHECK_OK || is_missing)
			continue;
		values[0] = ObjectIdGetDatum(row->relid);
		values[1] = PointerGetDatum(cstring_to_text(row->group));
		isnull[1] = row->group[0] == '\0';
		values[2] = Int32GetDatum(row->partition);
		isnull[2] = row->partition < 0;
		values[3] = Int32GetDatum(row->pid);
		isnull[3] = row->pid == 0;
		values[4] = PointerGetDatum(cstring_to_text(row->kind));
		values[5] = TimestampTzGetDatum(row->since);
		values[6] = TimestampTzGetDatum(row->deadline);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values,
							 isnull);
	}
	return (Datum) 0;
}
