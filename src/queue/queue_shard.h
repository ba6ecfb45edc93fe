/*-------------------------------------------------------------------------
 *
 * queue_shard.h
 *	  The state of one (topic, group, partition) in shared memory.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_SHARD_H
#define QUEUE_SHARD_H

#include "queue/queue_due.h"
#include "queue/queue_key.h"
#include "queue/queue_lease.h"
#include "queue/queue_set.h"
#include "queue/queue_topic.h"

#define NARAD_MAX_RECHECKS 32
#define NARAD_MAX_LOSSES 8

/*
 * What the topic's settings say about messages that come back.  Each shard has
 * a copy, for those who return a message where no settings can be read:
 * whoever consumes, acks or nacks brings it up to date.
 */
typedef struct NaradRetryPolicy
{
	int64		delay;			/* us */
	double		backoff;
	uint32		max_deliveries; /* 0: no limit */
} NaradRetryPolicy;

/* "No deadline": later than all. */
#define NARAD_NO_DEADLINE	((uint64) PG_INT64_MAX)

/* Constant, or under `lock`, unless said otherwise. */
typedef struct NaradShard
{
	NaradQueueTopic *topic;		/* constant */
	NaradGroup *group;			/* constant: its place, see there */
	int			partition;		/* constant */
	LWLock		lock;
	LWLock		io_lock;		/* one writer of the state pages at a time, or
								 * who loads them; taken before lock, held
								 * over buffer I/O */
	LWLock		scan_lock;		/* one reader of keys at a time, if messages
								 * are ordered by key; taken before lock, held
								 * over buffer I/O */
	NaradGroupId group_id;		/* whose it is or was; changed under both
								 * locks, while dropped */
	bool		dropped;		/* it is nobody's: the group was dropped, or
								 * the shard is being loaded, by who has
								 * io_lock.  Nothing may be done with it, and
								 * it is listed nowhere */
	uint32		generation;		/* the page's, or, before it is written, the
								 * group's when loaded; raised by seek, under
								 * both locks */

	/* What is settled.  I6: frontier only grows within a generation. */
	NaradOffset frontier;		/* all offsets below it are settled */
	NaradSet	settled;		/* at or above frontier; compact */
	NaradOffset settled_end;	/* one past the highest settled offset */

	/*
	 * What is available.  Every offset from frontier to scan_pos is settled,
	 * has an entry in leases, is in `suspects`, is in `pending` (its
	 * transaction was open when looked at, or it was claimed and given back
	 * unread), waits in keys (for its turn, or to be claimed now that it has
	 * it), or waits in due, for its time.
	 */
	NaradOffset scan_pos;		/* at and above: never looked at */
	NaradSet	pending;		/* not compact */
	int			nrechecks;
	NaradRange	rechecks[NARAD_MAX_RECHECKS];	/* where pending ones may be
												 * ready now */
	uint64		ring_pos;		/* of the partition's ring, read so far */
	bool		returned_turn;	/* next choice may be a returned message */
	NaradDueHeap due;			/* produced with a time not reached when
								 * looked at */
	bool		due_told;		/* the first of them is due, and who waits was
								 * told */
	NaradKeyTable keys;			/* empty unless messages are ordered by key */
	uint64		nmade;			/* counts NaradShardMadeAvailable */
	bool		is_dry;			/* a consumer found nothing more, and nothing
								 * became available since but by appends and
								 * by what the ring tells */
	uint32		dry_in_flight;	/* ... with this max_in_flight, */
	uint32		dry_acked_ahead;	/* ... max_acked_ahead, */
	uint32		dry_deliveries; /* ... and max_deliveries */

	/* One stopped for a cap; and, since then, none found it dry ... */
	bool		capped_in_flight;
	bool		capped_ahead;	/* ... nor were there fewer holes than */
	uint32		stopped_ahead;	/* ... its max_acked_ahead */

	/* What may have crashed the server (queue_suspect.c). */
	NaradOffset handout_mark;	/* on the page and flushed: what is below may
								 * have been handed out; grows under io_lock,
								 * and begins anew with a generation */
	NaradSet	suspects;		/* not compact */
	uint64		suspect_out;	/* offset + 1 of the one that is out, or 0 */
	uint32		suspect_deliveries; /* the one it is out for */

	NaradRetryPolicy policy;
	NaradLeaseTable leases;
	uint32		nholes;			/* leases with is_hole: below settled_end and
								 * leased or returned */
	uint32		nopen_holes;	/* of them, returned: to be had with
								 * max_acked_ahead used up */
	uint64		dead_lettered;	/* messages that were given up, ever */
	bool		is_moving;		/* the worker has one pinned: */
	NaradOffset moving;
	pg_atomic_uint64 next_deadline; /* monotonic us: not later than the
									 * earliest; NARAD_NO_DEADLINE; read by
									 * anybody */

	/* What retention dropped before it was settled (queue_retain.c). */
	uint64		lost;			/* offsets, ever; on the state page */
	uint64		lost_untold;	/* of them, not logged yet */
	int64		lost_told_at;	/* monotonic us, or 0 */
	int			nlosses;
	NaradRange	losses[NARAD_MAX_LOSSES];	/* the last times: what was jumped
											 * over, settled or not */

	/* Counters, since the server started. */
	uint64		delivered;
	uint64		acked;
	uint64		expired;
	uint64		capped;			/* consume calls that stopped for a cap */
	uint64		corrupt;		/* offsets settled because they were damaged */

	/* Persistence (queue_state.c). */
	bool		is_dirty;		/* memory is ahead of the page; set under lock */
	uint64		changes;		/* times something was settled or given back */
	uint64		changes_written;	/* value of changes in the last write */
	int64		dirty_since;	/* monotonic us */
	dlist_node	dirty_node;		/* in the database's list while is_dirty; both
								 * change under lock and the dirty lock */
	dlist_node	dead_node;		/* in the list of queue_deadletter.c while
								 * is_dead_listed; both change under lock and
								 * the dead letter lock */
	bool		is_dead_listed;
	int64		dead_due;		/* monotonic us: the first move; same */
	int64		paced_until;	/* monotonic us: its image was so large that
								 * the next is not due before */
	int64		write_after;	/* monotonic us: not to be tried before, since
								 * it failed; dirty lock */
	BlockNumber head_block;		/* state page, or InvalidBlockNumber; io_lock */
	XLogRecPtr	written_lsn;	/* of the last write; io_lock */
} NaradShard;

/*
 * Is it that group's?  True only under one of the locks; without, a hint.
 * Whoever comes by a shard asks this under the lock, before anything else:
 * the group may have been dropped meanwhile, and the shard be another's.
 */
static inline bool
NaradShardIsOf(const NaradShard *shard, NaradGroupId group_id)
{
	return !shard->dropped && shard->group_id == group_id;
}

/*
 * The shard, loaded from its state page (or fresh, at the group's start) if
 * this is its first use.  The caller holds RowExclusiveLock on the topic (an
 * AccessShareLock will do when it exists) and no narad lock.  May error
 * 53200, 42704, or on reading.
 */
extern NaradShard *NaradShardGet(Relation rel, NaradRelInfo *info,
								 NaradQueueTopic *topic, NaradGroup *group,
								 NaradGroupId group_id, int partition);

/* NULL unless in memory. */
extern NaradShard *NaradShardFind(NaradGroup *group, NaradGroupId group_id,
								  int partition);

/* The same by the key that is kept where no lock keeps a shard: NULL unless the
 * relation, which the caller has locked, is still that topic. */
extern NaradShard *NaradShardLookup(const NaradRelInfo *info,
									NaradTopicId topic_id,
									NaradGroupId group_id, int partition);

/* Starts a new generation at an offset that the page has already (seek). */
extern void NaradShardSeek(NaradShard *shard, uint32 generation,
						   NaradOffset frontier);

/* Frees what the shard holds and marks it dropped, or frees it all. */
extern void NaradShardDrop(NaradShard *shard);
extern void NaradShardFree(NaradShard *shard);

/*
 * Settling.  The shard lock is held exclusively.  No memory, no error:
 * NaradShardSettle takes offsets that have an entry in leases (their chunk of
 * the set was reserved at the claim) and removes it; moves the frontier; marks
 * dirty.  NaradShardSettleRange is for dead and damaged offsets that have no
 * entry; false if there was no memory (then they stay pending).
 */
extern bool NaradShardReserve(NaradShard *shard, NaradOffset offset);
extern void NaradShardSettle(NaradShard *shard, NaradOffset offset);
extern bool NaradShardSettleRange(NaradShard *shard, NaradOffset first,
								  NaradOffset last);

/* Keeps the counts of holes right; after each change of a lease's state. */
extern void NaradShardCountHole(NaradShard *shard, NaradLease *lease);

/*
 * So many messages may have become available that were not (returned, given
 * back, the key before them settled); with `chain`, nobody knows how many.
 * Wakes who waits for them.  The shard lock is held exclusively; no memory, no
 * error.
 */
extern void NaradShardMadeAvailable(NaradShard *shard, uint64 n, bool chain);

/*
 * A lease is none any more (pinned, delayed, gone): who stopped for a cap may
 * go on.  Same lock; no memory, no error.
 */
extern void NaradShardCapOpened(NaradShard *shard);

/* One stops for max_acked_ahead, of which this is his: to be told later. */
extern void NaradShardStopAhead(NaradShard *shard, uint32 max_acked_ahead);

/*
 * After whatever may have made the shard's next deadline earlier: publishes it,
 * and wakes who has to sleep shorter.  Same lock; no memory, no error.
 */
extern void NaradShardDeadlineChanged(NaradShard *shard);

/* Takes an entry out of leases, and out of the counts of holes. */
extern void NaradShardRemoveLease(NaradShard *shard, NaradLease *lease);

/* Takes all of them out; tells nobody. */
extern void NaradShardClearLeases(NaradShard *shard);

/* The part of the settings that a shard keeps. */
extern void NaradRetryPolicyGet(const NaradTopicSettings *settings,
								NaradRetryPolicy *policy);

/* Has the message had as many deliveries as the topic allows? */
static inline bool
NaradShardIsExhausted(const NaradShard *shard, const NaradLease *lease)
{
	return shard->policy.max_deliveries > 0 &&
		lease->deliveries >= shard->policy.max_deliveries;
}

/* The whole queue layer, for the wiring at the root. */
extern Size NaradQueueShmemSize(void);
extern void NaradQueueShmemInit(void);
extern void NaradQueueRegister(void);

#endif							/* QUEUE_SHARD_H */
