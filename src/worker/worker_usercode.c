/*-------------------------------------------------------------------------
 *
 * worker_usercode.c
 *	  Code of users in the worker: triggers, defaults, constraints.
 *
 * Owns:       the bounds of such code: its role, its time, what it leaves.
 * Invariants: code has the rights of the role it was begun for.  It ends within
 *             twice its limit, or when the worker is asked to stop, be it with
 *             the process.  What it set, locked or seeded in the session is
 *             undone before the next transaction begins.
 * Locks:      none; advisory locks that the code took are given up.
 * Runs in:    the worker, around what worker_deadletter.c appends.
 * WAL:        none.
 * On error:   the transaction's abort gives back role and settings.
 *
 * Code can catch a cancel, as often as it likes: so a cancel is a request.  It
 * cannot catch the end of the process.  Other processes die of SIGTERM; the
 * worker is asked to stop by it, so that it can do what must not be lost, and
 * dies of it only here, where it may not come to do that otherwise.  Then its
 * exit does it (worker_main.c).
 *
 * A security-restricted operation keeps code from preparing statements,
 * listening, making temporary tables, leaving cursors open or triggers for the
 * commit.  What is left is undone here: settings, by the nest level; advisory
 * locks of the session; the seed of random().  What extensions keep for a
 * session, such as connections of dblink, lives as long as the worker.  Code
 * that never looks for interrupts, in C or in a loop of PL/Perl, can be ended by
 * nobody, here as in any backend.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>

#include "common/pg_prng.h"
#include "miscadmin.h"
#include "postmaster/interrupt.h"
#include "storage/lock.h"
#include "utils/fmgrprotos.h"
#include "utils/guc.h"
#include "utils/timeout.h"

#include "worker/worker_usercode.h"

static volatile sig_atomic_t is_running = false;
static bool has_run = false;	/* since NaradUserCodeForget */

/* What it was before; of use without an error only. */
static Oid	previous_user;
static int	previous_context;
static int	guc_level;

/* When a cancel was not enough; registered with the first use. */
static TimeoutId end_timeout = MAX_TIMEOUTS;

/*
 * NaradUserCodeStop
 *
 * Ends the process as soon as the code looks for interrupts.  Nothing where
 * none is running.  Async-signal-safe.
 */
void
NaradUserCodeStop(void)
{
	if (!is_running)
		return;
	ProcDiePending = true;
	InterruptPending = true;
}

static void
set_for_code(const char *name, const char *value)
{
	(void) set_config_option(name, value, PGC_SUSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
}

/*
 * NaradUserCodeBegin
 *
 * Code may run as a role from here on, for so long.  In a transaction.
 */
void
NaradUserCodeBegin(Oid role, int limit_ms)
{
	if (end_timeout == MAX_TIMEOUTS)
		end_timeout = RegisterTimeout(USER_TIMEOUT, NaradUserCodeStop);
	GetUserIdAndSecContext(&previous_user, &previous_context);
	SetUserIdAndSecContext(role,
						   previous_context | SECURITY_RESTRICTED_OPERATION);
	guc_level = NewGUCNestLevel();
	set_for_code("search_path", "pg_catalog, pg_temp");
	set_for_code("narad.max_message_size", "256MB");

	has_run = true;
	is_running = true;
	enable_timeout_after(STATEMENT_TIMEOUT, limit_ms);
	enable_timeout_after(end_timeout, 2 * limit_ms);

	/* A request that came before the handler knew. */
	if (ShutdownRequestPending)
		NaradUserCodeStop();
}

/*
 * The code is over.  What came too late to end it is not for others.  The
 * request to stop is remembered elsewhere.
 */
static void
stop_watching(void)
{
	if (!is_running)
		return;
	disable_timeout(STATEMENT_TIMEOUT, false);
	disable_timeout(end_timeout, false);
	is_running = false;
	QueryCancelPending = false;
	ProcDiePending = false;
}

/*
 * NaradUserCodeEnd
 *
 * No more of it, in this transaction or at its commit.
 */
void
NaradUserCodeEnd(void)
{
	stop_watching();
	AtEOXact_GUC(false, guc_level);
	SetUserIdAndSecContext(previous_user, previous_context);
}

/*
 * NaradUserCodeFailed
 *
 * There was an error, in the code or elsewhere.  Interrupts are held, and the
 * transaction is aborted next.
 */
void
NaradUserCodeFailed(void)
{
	stop_watching();
}

/*
 * NaradUserCodeForget
 *
 * Undoes what code may have left in the session.  Outside a transaction.
 */
void
NaradUserCodeForget(void)
{
	if (!has_run)
		return;
	has_run = false;
	LockReleaseSession(USER_LOCKMETHOD);
	(void) DirectFunctionCall1(setseed,
							   Float8GetDatum(2 * pg_prng_double(&pg_global_prng_state) - 1));
}

/*
 * NaradUserCodeIsRunning
 *
 * Also when the process ends in it.
 */
bool
NaradUserCodeIsRunning(void)
{
	return is_running;
}
