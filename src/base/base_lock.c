/*-------------------------------------------------------------------------
 *
 * base_lock.c
 *	  LWLock tranches of narad.
 *
 * Each rank is a named tranche with one lock that nobody takes: asking for
 * it in the regular way gives the tranche an id and, in every process and
 * every major version, its name in pg_stat_activity.
 *
 * Owns:       the tranche ids.
 * Runs in:    the postmaster at start; any process reads.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "storage/proclist.h"

#include "base/base_lock.h"

static const char *const tranche_names[NARAD_LOCK_COUNT] = {
	[NARAD_LOCK_QUEUE_TOPIC] = "NaradQueueTopic",
	[NARAD_LOCK_STATE_IO] = "NaradStateIO",
	[NARAD_LOCK_SCAN] = "NaradScan",
	[NARAD_LOCK_SHARD] = "NaradShard",
	[NARAD_LOCK_WAIT] = "NaradWait",
	[NARAD_LOCK_DIRTY] = "NaradDirty",
	[NARAD_LOCK_DEAD_LETTER] = "NaradDeadLetter",
	[NARAD_LOCK_GROUPS] = "NaradGroups",
	[NARAD_LOCK_ALLOC] = "NaradAlloc",
	[NARAD_LOCK_TAIL] = "NaradTail",
	[NARAD_LOCK_MAP] = "NaradMap",
	[NARAD_LOCK_HULL] = "NaradHull",
	[NARAD_LOCK_DEDUP] = "NaradDedup",
	[NARAD_LOCK_WORKER] = "NaradWorker",
	[NARAD_LOCK_MEMORY] = "NaradMemory",
	[NARAD_LOCK_HASH] = "NaradHash",
};

static int	tranches[NARAD_LOCK_COUNT];

/*
 * NaradLockRequest
 *
 * Asks for the tranches; from shmem_request_hook.
 */
void
NaradLockRequest(void)
{
	int			rank;

	for (rank = 0; rank < NARAD_LOCK_COUNT; rank++)
		RequestNamedLWLockTranche(tranche_names[rank], 1);
}

/*
 * NaradLockShmemInit
 *
 * Learns their ids; from shmem_startup_hook, before any NaradLockInit.
 */
void
NaradLockShmemInit(void)
{
	int			rank;

	for (rank = 0; rank < NARAD_LOCK_COUNT; rank++)
		tranches[rank] =
			GetNamedLWLockTranche(tranche_names[rank])->lock.tranche;
}

/*
 * NaradLockTranche
 *
 * The tranche id of a rank.
 */
int
NaradLockTranche(NaradLockRank rank)
{
	Assert(rank < NARAD_LOCK_COUNT && tranches[rank] != 0);
	return tranches[rank];
}

/*
 * NaradLockInit
 *
 * Makes a lock of a rank in shared memory.
 */
void
NaradLockInit(LWLock *lock, NaradLockRank rank)
{
	LWLockInitialize(lock, NaradLockTranche(rank));
}

/* A woken process takes a lock within this time, in us. */
#define WAKE_US		50

/*
 * NaradLockLeave
 *
 * Releases a lock that the caller is about to take again, and lets those who wait
 * for it have it before: who was woken needs a moment.  Whether there is anybody
 * is looked up without the lock's mutex, and only a hint.  No error.
 */
void
NaradLockLeave(LWLock *lock)
{
	bool		is_awaited = !proclist_is_empty(&lock->waiters);

	LWLockRelease(lock);
	if (is_awaited)
		pg_usleep(WAKE_US);
}
