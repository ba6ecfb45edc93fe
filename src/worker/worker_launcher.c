/*-------------------------------------------------------------------------
 *
 * worker_launcher.c
 *	  Starts one worker for each database in which topics are used.
 *
 * Owns:       the launcher process and the handles of the workers it asked
 *             for.
 * Invariants: none of the engine's depends on it: without launcher or worker
 *             consumers go on, and write their shards' pages themselves.
 * Locks:      those of queue_dirty.c, one call at a time.
 * Runs in:    the launcher; it is connected to no database, and sleeps on
 *             its latch, without a timeout unless a start failed.  Only to
 *             find the databases it has transactions, when it starts.
 * WAL:        none.
 * On error:   the launcher exits and the postmaster starts it again.
 *
 * After its own start it visits the databases that can be connected to and are
 * no templates, one after the other: each gets a worker, which looks at the
 * topics there, since time passes for those, too, that nobody uses.  A worker
 * that finds none leaves.
 *
 * A worker that cannot be had (max_worker_processes) is one WARNING, and is
 * asked for again with growing waits.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_database.h"
#include "libpq/pqsignal.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/wait_event.h"

#include "queue/queue_dirty.h"
#include "worker/worker_launcher.h"
#include "worker/worker_utility.h"

#define RESTART_SECONDS	5
#define STARTS_A_ROUND	16

/* A worker that was asked for; in TopMemoryContext. */
typedef struct StartedWorker
{
	dlist_node	node;
	Oid			database;
	BackgroundWorkerHandle *handle;
} StartedWorker;

static dlist_head started_workers;
static bool told_of_no_slot = false;

static Oid	visiting = InvalidOid;	/* the database that is visited */
static bool visits_done = false;

static void
launcher_exit(int code, Datum arg)
{
	NaradDirtySetLauncher(NULL);
}

/* Asks the postmaster for a worker; false if it has no slot for it. */
static bool
start_worker(Oid database)
{
	BackgroundWorker worker;
	BackgroundWorkerHandle *handle;
	StartedWorker *started;
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

	memset(&worker, 0, sizeof(worker));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS |
		BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	snprintf(worker.bgw_library_name, BGW_MAXLEN, "narad");
	snprintf(worker.bgw_function_name, BGW_MAXLEN, "NaradWorkerMain");
	snprintf(worker.bgw_name, BGW_MAXLEN, "narad worker for database %u",
			 database);
	snprintf(worker.bgw_type, BGW_MAXLEN, "narad worker");
	worker.bgw_main_arg = ObjectIdGetDatum(database);
	worker.bgw_notify_pid = MyProcPid;

	if (!RegisterDynamicBackgroundWorker(&worker, &handle))
	{
		MemoryContextSwitchTo(old);
		return false;
	}
	started = palloc(sizeof(StartedWorker));
	started->database = database;
	started->handle = handle;
	dlist_push_tail(&started_workers, &started->node);
	MemoryContextSwitchTo(old);
	return true;
}

/* Forgets workers that ended; one that never came to life failed to start. */
static void
reap_workers(void)
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &started_workers)
	{
		StartedWorker *started = dlist_container(StartedWorker, node,
												 iter.cur);
		pid_t		pid;

		if (GetBackgroundWorkerPid(started->handle, &pid) != BGWH_STOPPED)
			continue;
		NaradDirtyStartFailed(started->database);
		dlist_delete(&started->node);
		pfree(started->handle);
		pfree(started);
	}
}

/* The first database to be visited with an OID above one; InvalidOid: none. */
static Oid
next_database(Oid after)
{
	Oid			next = InvalidOid;
	Relation	rel;
	TableScanDesc scan;
	HeapTuple	tuple;

	StartTransactionCommand();
	(void) GetTransactionSnapshot();
	rel = table_open(DatabaseRelationId, AccessShareLock);
	scan = table_beginscan_catalog(rel, 0, NULL);
	while (HeapTupleIsValid(tuple = heap_getnext(scan, ForwardScanDirection)))
	{
		Form_pg_database form = (Form_pg_database) GETSTRUCT(tuple);

		if (form->datallowconn && !form->datistemplate && form->oid > after &&
			(!OidIsValid(next) || form->oid < next))
			next = form->oid;
	}
	table_endscan(scan);
	table_close(rel, AccessShareLock);
	CommitTransactionCommand();
	return next;
}

/* Goes on with the visits: once a database was visited, to the next. */
static void
visit_databases(void)
{
	while (!visits_done && (!OidIsValid(visiting) ||
							NaradDirtyWasVisited(visiting)))
	{
		visiting = next_database(visiting);
		visits_done = !OidIsValid(visiting);
		if (!visits_done)
			NaradDirtyWant(visiting);
	}
}

/* Starts what is wanted; returns how long to sleep in ms, or -1. */
static long
start_wanted_workers(void)
{
	Oid			databases[STARTS_A_ROUND];
	long		sleep_ms;
	int			ndatabases;
	int			i;

	ndatabases = NaradDirtyWanting(databases, STARTS_A_ROUND, &sleep_ms);
	for (i = 0; i < ndatabases; i++)
	{
		if (start_worker(databases[i]))
		{
			told_of_no_slot = false;
			continue;
		}
		NaradDirtyStartFailed(databases[i]);
		if (sleep_ms < 0 || sleep_ms > 1000)
			sleep_ms = 1000;
		if (!told_of_no_slot)
			ereport(WARNING,
					(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
					 errmsg("no background worker slot is left for narad"),
					 errdetail("Consumers write their own state until one is free."),
					 errhint("Increase \"max_worker_processes\".")));
		told_of_no_slot = true;
	}
	return sleep_ms;
}

/*
 * NaradLauncherMain
 *
 * The launcher process.
 */
void
NaradLauncherMain(Datum arg)
{
	pqsignal(SIGTERM, die);
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);

	dlist_init(&started_workers);
	before_shmem_exit(launcher_exit, (Datum) 0);
	NaradDirtySetLauncher(MyLatch);

	for (;;)
	{
		long		sleep_ms;

		CHECK_FOR_INTERRUPTS();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
		}
		reap_workers();
		visit_databases();
		sleep_ms = start_wanted_workers();
		(void) WaitLatch(MyLatch,
						 WL_LATCH_SET | WL_EXIT_ON_PM_DEATH |
						 (sleep_ms >= 0 ? WL_TIMEOUT : 0),
						 sleep_ms, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
	}
}

/*
 * NaradLauncherRegister
 *
 * Registers the static launcher and the hooks; in the postmaster, while
 * shared_preload_libraries are loaded.
 */
void
NaradLauncherRegister(void)
{
	BackgroundWorker worker;

	memset(&worker, 0, sizeof(worker));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS |
		BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = RESTART_SECONDS;
	snprintf(worker.bgw_library_name, BGW_MAXLEN, "narad");
	snprintf(worker.bgw_function_name, BGW_MAXLEN, "NaradLauncherMain");
	snprintf(worker.bgw_name, BGW_MAXLEN, "narad launcher");
	snprintf(worker.bgw_type, BGW_MAXLEN, "narad launcher");
	RegisterBackgroundWorker(&worker);
	NaradUtilityRegister();
}
