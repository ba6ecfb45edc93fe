/*-------------------------------------------------------------------------
 *
 * queue_dirty.h
 *	  Which shards wait to be written, database by database, and the latches
 *	  of those who write them.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_DIRTY_H
#define QUEUE_DIRTY_H

#include "queue/queue_shard.h"
#include "storage/latch.h"

/*
 * Memory is ahead of the page: counts in shard->changes, and lists the shard
 * unless it is listed.  Shard lock held exclusively.  No error, no memory;
 * wakes the worker, or the launcher if there is none.
 */
extern void NaradDirtyMark(NaradShard *shard);

/* The page has caught up, or the shard goes away.  Same lock. */
extern void NaradDirtyClear(NaradShard *shard);

/* What the worker takes: keys, since it holds no lock that keeps a shard. */
typedef struct NaradDirtyItem
{
	Oid			relid;
	NaradTopicId topic_id;
	NaradGroupId group_id;
	int			partition;
	int64		dirty_since;	/* monotonic us */
} NaradDirtyItem;

/* Which shards are taken. */
typedef enum NaradDirtyWhich
{
	NARAD_DIRTY_DUE,			/* neither paced nor postponed */
	NARAD_DIRTY_PACED_TOO,
	NARAD_DIRTY_ALL				/* postponed ones, too */
} NaradDirtyWhich;

/*
 * Copies up to max keys of this database's list, of those shards that were listed
 * before `before` (monotonic us); returns how many.  They stay listed, at the
 * end, until NaradDirtyClear.
 */
extern int	NaradDirtyTake(NaradDirtyItem *items, int max, int64 before,
						   NaradDirtyWhich which);

/*
 * A shard whose image was large is not due before a time (monotonic us), but
 * early enough for its flush: half the flush interval after the first change,
 * or two rounds of writes before it is over.  Shard lock held.
 */
extern int64 NaradDirtyPacedUntil(const NaradShard *shard);

/* Writing a shard failed: it is not due before a time.  No lock held. */
extern void NaradDirtyPostpone(const NaradDirtyItem *item, int64 until);
extern int	NaradDirtyCount(void);	/* of this database */

/* Wakes a database's worker, if it has one, to look around. */
extern void NaradDirtyWake(Oid database);
extern uint32 NaradDirtyWakes(void);	/* how often, this database's */

/* The same, or has one started.  No error. */
extern void NaradDirtyWant(Oid database);

/*
 * Backends announce their database, so that it gets a worker; cheap when
 * repeated.  May error 53200.  NaradDirtyAttached counts them.
 */
extern void NaradDirtyAttach(void);
extern uint32 NaradDirtyAttached(void);

/* Launcher and worker side. */
extern void NaradDirtySetLauncher(Latch *latch);	/* NULL: gone */

/* Databases that need a worker and have none; marks them as being started.
 * *next_ms: when to ask again, or -1. */
extern int	NaradDirtyWanting(Oid *databases, int max, long *next_ms);

/* This process is the worker of its database; false if there is another, or
 * the database is barred. */
extern bool NaradDirtyBecomeWorker(void);

/* It has looked at everything once.  The launcher asks whether that is so, or
 * there is no worker to wait for. */
extern void NaradDirtyVisited(void);
extern bool NaradDirtyWasVisited(Oid database);

/* How one ends, and when there is another. */
typedef enum NaradWorkerEnd
{
	NARAD_WORKER_FAILED,		/* after a wait that grows */
	NARAD_WORKER_RENEWED,		/* after a moment */
	NARAD_WORKER_DONE			/* when somebody announces the database again */
} NaradWorkerEnd;

/* This process no longer is the worker. */
extern void NaradDirtyLeaveWorker(NaradWorkerEnd end, uint32 nwakes);
extern void NaradDirtyStartFailed(Oid database);	/* asks again later */
extern int	NaradDirtyWorkerPid(Oid database);	/* 0 if none */
extern bool NaradDirtyHasWorker(void);	/* this database */

/* While barred, no worker is started for the database (DROP DATABASE ...). */
extern void NaradDirtyBar(Oid database, bool barred);
extern bool NaradDirtyIsBarred(void);	/* this database */
extern void NaradDirtyForgetDatabase(Oid database);

extern Size NaradDirtyShmemSize(void);
extern void NaradDirtyShmemInit(void);

#endif							/* QUEUE_DIRTY_H */
