/*-------------------------------------------------------------------------
 *
 * base_lock.h
 *	  LWLock tranches of narad, in the order in which they may be taken.
 *
 * A process may take a lock only while it holds none of the same or a later
 * rank (two exceptions are written where they are used).  The reasons, and
 * the place of heavyweight locks, buffer locks and spinlocks in the order,
 * stand in src/README.md.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef BASE_LOCK_H
#define BASE_LOCK_H

#include "storage/lwlock.h"

typedef enum NaradLockRank
{
	NARAD_LOCK_QUEUE_TOPIC,		/* groups and shard pointers of a topic */
	NARAD_LOCK_STATE_IO,		/* one writer of a shard's state pages */
	NARAD_LOCK_SCAN,			/* reading the keys of a shard's messages */
	NARAD_LOCK_SHARD,			/* leases and frontier of a shard */
	NARAD_LOCK_WAIT,			/* waiters and tokens of some topics */
	NARAD_LOCK_DIRTY,			/* list of shards to be written */
	NARAD_LOCK_DEAD_LETTER,		/* list of shards with dead letters */
	NARAD_LOCK_GROUPS,			/* group directory, state maps on disk */
	NARAD_LOCK_ALLOC,			/* slot allocator of a topic's file */
	NARAD_LOCK_TAIL,			/* tail of a partition */
	NARAD_LOCK_MAP,				/* segment map of a partition */
	NARAD_LOCK_HULL,			/* open transactions of a partition */
	NARAD_LOCK_DEDUP,			/* deduplication ids of a topic, a part */
	NARAD_LOCK_WORKER,			/* table of databases and their workers */
	NARAD_LOCK_MEMORY,			/* inside DSA */
	NARAD_LOCK_HASH,			/* inside dshash */
	NARAD_LOCK_COUNT
} NaradLockRank;

extern void NaradLockRequest(void); /* in shmem_request_hook */
extern void NaradLockShmemInit(void);	/* in shmem_startup_hook */
extern void NaradLockInit(LWLock *lock, NaradLockRank rank);
extern int	NaradLockTranche(NaradLockRank rank);

/* Whoever does much under one lock leaves it after so many steps. */
#define NARAD_LOCK_STEPS	1024

extern void NaradLockLeave(LWLock *lock);

#endif							/* BASE_LOCK_H */
