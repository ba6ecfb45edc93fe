/*-------------------------------------------------------------------------
 *
 * worker_main.c
 *	  The worker of one database: its loop and the table of its duties.
 *
 * Owns:       when a duty runs, and when the worker leaves.
 * Invariants: none of the engine's depends on it: everything that the worker
 *             does, somebody else can do, or it can be done later.
 * Locks:      none of its own; those of its duties.
 * Runs in:    the worker; one latch, one timeout, none while no duty wants
 *             one.  Then it has no transaction, no snapshot, and writes no WAL.
 * WAL:        that of its duties.
 * On error:   logged; the duty is tried again after a wait that grows from one
 *             second to a minute; the others are not held up by it.
 *
 * SIGTERM is a request to stop, not to die: duties then do what must not be
 * lost.  Only in code that users wrote the process dies of it, since that may
 * never come to an end (worker_usercode.c); then the exit has them do that.  If
 * it was that code's time which was over, the worker makes room for another,
 * which does everything else before it runs such code again.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_database.h"
#include "commands/extension.h"
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
#include "utils/wait_event.h"

#include "base/base_guc.h"
#include "queue/queue_dirty.h"
#include "queue/queue_lease.h"
#include "worker/worker_duty.h"
#include "worker/worker_launcher.h"
#include "worker/worker_usercode.h"

#define FAILURE_FIRST_US	INT64CONST(1000000)
#define FAILURE_LAST_US		INT64CONST(60000000)

/* In the order in which they run. */
static const NaradDuty *const duties[] = {
	&NaradNotifyDuty,
	&NaradFrontierDuty,
	&NaradSaveDuty,				/* after the pages are written */
	&NaradRetentionDuty,
	&NaradDedupDuty,
	&NaradDeadLetterDuty,		/* last, as the process may end in it */
};

/* What is known of each. */
typedef struct DutyState
{
	int64		failure_delay;	/* us; 0 while all goes well */
	int64		not_before;		/* monotonic us, since it failed */
} DutyState;

static DutyState duty_states[lengthof(duties)];
static MemoryContext duty_context;
static NaradWorkerEnd worker_end = NARAD_WORKER_FAILED;

/* Wakes before the last round of duties began. */
static uint32 wakes_heard;

static void
worker_exit(int code, Datum arg)
{
	NaradDirtyLeaveWorker(worker_end, wakes_heard);
}

/* SIGTERM */
static void
shutdown_requested(SIGNAL_ARGS)
{
	int			save_errno = errno;

	ShutdownRequestPending = true;
	NaradUserCodeStop();
	SetLatch(MyLatch);
	errno = save_errno;
}

/*
 * NaradWorkerSleep
 *
 * Sleeps until woken or so many milliseconds have passed; -1: for ever.
 */
void
NaradWorkerSleep(long sleep_ms)
{
	(void) WaitLatch(MyLatch,
					 WL_LATCH_SET | WL_EXIT_ON_PM_DEATH |
					 (sleep_ms >= 0 ? WL_TIMEOUT : 0),
					 sleep_ms, PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
	if (ConfigReloadPending)
	{
		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
	}
}

/* Logs a duty's error and leaves it for later. */
static void
duty_failed(DutyState *state)
{
	HOLD_INTERRUPTS();
	EmitErrorReport();
	AbortCurrentTransaction();
	FlushErrorState();
	RESUME_INTERRUPTS();
	state->failure_delay = state->failure_delay == 0 ? FAILURE_FIRST_US :
		Min(state->failure_delay * 2, FAILURE_LAST_US);
	state->not_before = NaradClockNow() + state->failure_delay;
}

/* Runs one duty, or its stop.  Returns when it wants to run next. */
static int64
run_duty(int i, bool stop)
{
	DutyState  *state = &duty_states[i];
	volatile int64 next = NARAD_DUTY_NEVER;
	int64		now = NaradClockNow();

	if (!stop && now < state->not_before)
		return state->not_before;
	MemoryContextSwitchTo(duty_context);
	PG_TRY();
	{
		if (stop)
			duties[i]->stop();
		else
			next = duties[i]->run(now);
		state->failure_delay = 0;
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(duty_context);
		duty_failed(state);
		next = state->not_before;
	}
	PG_END_TRY();
	MemoryContextSwitchTo(duty_context);
	MemoryContextReset(duty_context);
	return next;
}

/* Runs all that is due; returns when the first is due again. */
static int64
run_duties(void)
{
	int64		next = NARAD_DUTY_NEVER;
	int			i;

	for (i = 0; i < lengthof(duties); i++)
	{
		/* Not in the macro, which would run it twice. */
		int64		when = run_duty(i, false);

		next = Min(next, when);
	}
	return next;
}

static bool
is_busy(void)
{
	int			i;

	for (i = 0; i < lengthof(duties); i++)
	{
		if (duties[i]->is_busy != NULL && duties[i]->is_busy())
			return true;
	}
	return false;
}

/* Is the extension still there?  Asked when woken with nothing to do. */
static bool
extension_exists(void)
{
	bool		exists;

	StartTransactionCommand();
	exists = OidIsValid(get_extension_oid("narad", true));
	CommitTransactionCommand();
	return exists;
}

/*
 * Is there anything to stay for?  In a database that was only visited, since
 * the server started, there may be no topic.
 */
static bool
is_needed(void)
{
	return (NaradRetentionHasTopics() || NaradDirtyAttached() > 0) &&
		extension_exists();
}

static long
milliseconds_until(int64 when)
{
	int64		now = NaradClockNow();

	if (when == NARAD_DUTY_NEVER)
		return -1;
	return when <= now ? 0 : (long) Min((when - now + 999) / 1000, INT_MAX);
}

/* What must not be lost. */
static void
stop_duties(void)
{
	int			i;

	for (i = 0; i < lengthof(duties); i++)
	{
		if (duties[i]->stop != NULL)
			(void) run_duty(i, true);
	}
}

/*
 * The process ends, maybe in code that users wrote.  Nothing can be caught any
 * more: an error here would end this function, and the exit go on.
 */
static void
exit_from_code(int code, Datum arg)
{
	if (!NaradUserCodeIsRunning())
		return;
	NaradUserCodeFailed();
	AbortOutOfAnyTransaction();
	if (!ShutdownRequestPending)
	{
		NaradDeadLetterHung();
		worker_end = NARAD_WORKER_RENEWED;
	}
	stop_duties();
}

/*
 * Until there is a reason to leave.  Who wakes the worker while it is at its
 * duties has it look at all of them again.
 */
static void
worker_loop(void)
{
	while (!ShutdownRequestPending)
	{
		int64		next;
		bool		is_woken;

		wakes_heard = NaradDirtyWakes();
		next = run_duties();
		NaradDirtyVisited();
		is_woken = NaradDirtyWakes() != wakes_heard;
		if (!is_woken && !is_busy() && !is_needed())
		{
			worker_end = NARAD_WORKER_DONE;
			return;
		}
		if (ConfigReloadPending || is_woken)
			next = NaradClockNow();
		if (!ShutdownRequestPending)
			NaradWorkerSleep(milliseconds_until(next));
	}
	stop_duties();
}

/*
 * What the database's sessions are given by default is not for the worker, as
 * it is not for autovacuum: it has to write, adds nothing to the conflicts of
 * serializable transactions, and limits its waits itself.
 */
static void
set_defaults(void)
{
	SetConfigOption("default_transaction_isolation", "read committed",
					PGC_SUSET, PGC_S_OVERRIDE);
	SetConfigOption("default_transaction_read_only", "off", PGC_SUSET,
					PGC_S_OVERRIDE);
	SetConfigOption("lock_timeout", "0", PGC_SUSET, PGC_S_OVERRIDE);
	if (GetConfigOption("transaction_timeout", true, false) != NULL)
		SetConfigOption("transaction_timeout", "0", PGC_SUSET,
						PGC_S_OVERRIDE);
}

/*
 * NaradWorkerMain
 *
 * The worker process of the database whose OID is the argument.
 */
void
NaradWorkerMain(Datum arg)
{
	Oid			database = DatumGetObjectId(arg);

	pqsignal(SIGTERM, shutdown_requested);
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	BackgroundWorkerUnblockSignals();

	/* What was acked has to be written where nobody may connect any more. */
	BackgroundWorkerInitializeConnectionByOid(database, InvalidOid,
											  BGWORKER_BYPASS_ALLOWCONN);

	set_defaults();
	if (!NaradDirtyBecomeWorker())
		proc_exit(0);
	before_shmem_exit(worker_exit, (Datum) 0);
	before_shmem_exit(exit_from_code, (Datum) 0);	/* runs first */
	pgstat_report_appname("narad worker");
	pgstat_report_activity(STATE_IDLE, NULL);
	duty_context = AllocSetContextCreate(TopMemoryContext, "narad duty",
										 ALLOCSET_DEFAULT_SIZES);
	worker_loop();
	proc_exit(0);
}
