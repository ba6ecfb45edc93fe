/*-------------------------------------------------------------------------
 *
 * narad.c
 *	  Loading of the library: who registers what, in which order.
 *
 * Runs in:    the postmaster, from shared_preload_libraries.
 * On error:   loaded in any other way it refuses (55000): a backend that
 *             wrote WAL nobody can replay would be worse.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"

#include "base/base_guc.h"
#include "log/log_gate.h"
#include "log/log_xact.h"
#include "narad_rmgr.h"
#include "narad_shmem.h"
#include "queue/queue_deadletter.h"
#include "queue/queue_shard.h"
#include "sql/sql_produce.h"
#include "worker/worker_launcher.h"

PG_MODULE_MAGIC;

extern PGDLLEXPORT void _PG_init(void);

/*
 * _PG_init
 *
 * Transaction callbacks run in the reverse order of their registration: see
 * log_xact.h for why storage comes first and last.
 */
void
_PG_init(void)
{
	if (!process_shared_preload_libraries_in_progress)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("narad must be loaded via \"shared_preload_libraries\""),
				 errhint("Add narad to \"shared_preload_libraries\" and restart the server.")));

	NaradGucRegister();
	NaradRmgrRegister();
	if (IsBinaryUpgrade)
		return;

	NaradGateRegister();
	NaradShmemRegister();
	NaradLogXactRegisterFirst();
	NaradQueueRegister();
	NaradDeadLetterAppend = NaradProduceRow;
	NaradLogXactRegisterLast();
	NaradLauncherRegister();
}
