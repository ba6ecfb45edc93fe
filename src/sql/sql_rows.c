/*-------------------------------------------------------------------------
 *
 * sql_rows.c
 *	  Results of several rows whose memory is kept.
 *
 * Owns:       the memory of a backend's result of consume or fetch.
 * Invariants: one query at a time has it, until the end of that query;
 *             others get memory of their own.
 * Locks:      none.
 * Runs in:    any backend.
 * On error:   the end of the query, as it goes, gives the memory back.
 *
 * A consumer asks for the same again and again.  A tuplestore in the query's
 * memory costs it, each time, memory from the operating system, its zeroing
 * and its return: as much as reading the messages.  So a backend keeps one
 * block of memory.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "funcapi.h"
#include "miscadmin.h"
#include "nodes/execnodes.h"
#include "utils/memutils.h"
#include "utils/tuplestore.h"

#include "sql/sql_rows.h"

/* What is kept, and so the largest result that costs no more. */
#define KEPT_SIZE	(256 * 1024)

/* The memory, and the one of the query that has it; or NULL. */
static MemoryContext kept = NULL;
static MemoryContext holder = NULL;

/* The query ends, and with it the tuplestores that it had here. */
static void
give_back(void *arg)
{
	holder = NULL;
	MemoryContextReset(kept);
}

/* Takes the memory for a query; false if another one has it. */
static bool
take(MemoryContext query)
{
	MemoryContextCallback *callback;

	if (holder != NULL)
		return holder == query;
	if (kept == NULL)
		kept = GenerationContextCreate(TopMemoryContext, "narad rows",
									   KEPT_SIZE, KEPT_SIZE, KEPT_SIZE);
	callback = MemoryContextAlloc(query, sizeof(MemoryContextCallback));
	callback->func = give_back;
	callback->arg = NULL;
	MemoryContextRegisterResetCallback(query, callback);
	holder = query;
	return true;
}

/*
 * NaradRowsBegin
 *
 * InitMaterializedSRF, with the tuplestore in the memory that is kept if that
 * is free.  Errors as that.
 */
void
NaradRowsBegin(FunctionCallInfo fcinfo)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	TupleDesc	desc;
	MemoryContext old;

	if (rsinfo == NULL || !IsA(rsinfo, ReturnSetInfo) ||
		(rsinfo->allowedModes & SFRM_Materialize) == 0 ||
		!take(rsinfo->econtext->ecxt_per_query_memory))
	{
		InitMaterializedSRF(fcinfo, 0);
		return;
	}
	old = MemoryContextSwitchTo(kept);
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	rsinfo->returnMode = SFRM_Materialize;
	rsinfo->setResult =
		tuplestore_begin_heap((rsinfo->allowedModes &
							   SFRM_Materialize_Random) != 0,
							  false, work_mem);
	rsinfo->setDesc = desc;
	MemoryContextSwitchTo(old);
}
