/*-------------------------------------------------------------------------
 *
 * queue_waiter.h
 *	  Waiters and their lists as they lie in shared memory; for queue_wait.c and
 *	  queue_serve.c only.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_WAITER_H
#define QUEUE_WAITER_H

#include "base/base_lock.h"
#include "common/hashfn.h"
#include "queue/queue_token.h"
#include "queue/queue_wait.h"
#include "storage/latch.h"
#include "storage/proc.h"

#define WAIT_PARTS		256

typedef enum NaradWaiterState
{
	WAITER_IDLE,
	WAITER_WAITING,
	WAITER_SERVED,
	WAITER_GROUP_GONE,
	WAITER_TOPIC_GONE
} NaradWaiterState;

/*
 * One for each backend, by process number.  Written by its owner while idle;
 * then under the lock of its topic's part, but for the atomics.
 */
typedef struct NaradWaiter
{
	pg_atomic_uint32 state;		/* NaradWaiterState */
	pg_atomic_uint64 armed;		/* of a keeper: the group's; else "never" */
	NaradWaitKind kind;
	int			pid;
	Oid			database;
	NaradTopicId topic_id;
	Oid			relid;			/* of a reader */
	NaradGroup *group;			/* NULL: a reader */
	int			partition;		/* -1: any */
	TimestampTz since;
	TimestampTz deadline;
	dlist_node	fifo_node;		/* while waiting; of a reader: until it leaves */
	dlist_node	all_node;		/* while waiting */
	int			served_partition;	/* while served */
	bool		served_chain;
	bool		served_owner;	/* the last time; for what is its own */
	NaradToken *hold;			/* a caller's, until it is served */
	uint64		hold_serial;	/* of that, afterwards */
} NaradWaiter;

/* What all topics of one hash share. */
typedef struct NaradWaitPart
{
	LWLock		lock;
	pg_atomic_uint32 nwatching; /* waiters, tokens, holds; read by anybody */
	dlist_head	groups;			/* NaradGroupWait that are listed */
	dlist_head	readers;
} NaradWaitPart;

typedef union NaradWaitPartPadded
{
	NaradWaitPart part;
	char		pad[TYPEALIGN(PG_CACHE_LINE_SIZE, sizeof(NaradWaitPart))];
} NaradWaitPartPadded;

typedef struct NaradWaitCtl
{
	NaradWaitPartPadded parts[WAIT_PARTS];
	pg_atomic_uint64 last_serial;	/* of holds and tokens */
	NaradWaiter waiters[FLEXIBLE_ARRAY_MEMBER]; /* MaxBackends */
} NaradWaitCtl;

extern PGDLLIMPORT NaradWaitCtl *NaradWaitShared;

static inline NaradWaitPart *
part_of(Oid database, NaradTopicId topic_id)
{
	uint32		hash = hash_combine(murmurhash32((uint32) (topic_id >> 32)),
									murmurhash32((uint32) topic_id));

	return &NaradWaitShared->parts[hash_combine(hash, database) % WAIT_PARTS].part;
}

static inline NaradWaitPart *
part_of_group(const NaradGroup *group)
{
	return part_of(group->topic->database, group->topic->topic_id);
}

static inline NaradGroup *
group_of(NaradGroupWait *wait)
{
	return (NaradGroup *) ((char *) wait - offsetof(NaradGroup, wait));
}

static inline int
procno_of(const NaradWaiter *waiter)
{
	return (int) (waiter - NaradWaitShared->waiters);
}

static inline void
set_latch_of(const NaradWaiter *waiter)
{
	SetLatch(&GetPGProcByNumber(procno_of(waiter))->procLatch);
}

/*
 * Something became available: false if nobody wants to know, else the part is
 * locked exclusively.  The waiter's side: joins, barrier, reads the ring.
 */
static inline bool
lock_if_watched(NaradWaitPart *part)
{
	pg_memory_barrier();
	if (pg_atomic_read_u32(&part->nwatching) == 0)
		return false;
	LWLockAcquire(&part->lock, LW_EXCLUSIVE);
	return true;
}

/*
 * queue_serve.c, under the lock of the part, exclusively.
 */
extern bool NaradServeList(NaradWaitPart *part, NaradGroupWait *wait);
extern void NaradServeUnlist(NaradGroupWait *wait);
extern void NaradServeUnlink(NaradWaiter *waiter);
extern void NaradServeGroup(NaradWaitPart *part, NaradGroup *group,
							int partition, uint64 n, bool chain);
extern void NaradServeEndHold(NaradWaitPart *part, NaradGroupWait *wait,
							  NaradToken *hold);

/* Without it; the relation is locked. */
extern void NaradServeArm(NaradWaitPart *part, NaradGroup *group,
						  NaradGroupId group_id);

#endif							/* QUEUE_WAITER_H */
