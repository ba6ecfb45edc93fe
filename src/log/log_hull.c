/*-------------------------------------------------------------------------
 *
 * log_hull.c
 *	  Which offsets open transactions have appended, and which ended lately.
 *
 * A transaction has one hull in each partition it appends to: from its first
 * to its last offset there.  When it ends, the hull moves to the partition's
 * ring of ended ones, from which readers learn what to look at again.  All
 * of it is a hint: whether a record counts is told by its header alone.
 *
 * A hull is an address in the topic's shared memory, and what keeps the topic
 * is the relation lock that was taken before the append.  A rollback to a
 * savepoint gives that lock up, if it was taken since: so a hull belongs to
 * the nesting level at which it was made, and ends with it, while the lock is
 * still held.  One that was made before also covers what is rolled back.
 *
 * A prepared transaction, or one prepared before the server last started,
 * has no callback at its end: its hull is ownerless, and readers poll it.
 *
 * Owns:       hulls and ring of a partition; the list of this backend's.
 * Invariants: I7.  A hull covers an offset before end_offset does, and is
 *             removed only after the transaction, or the subtransaction that
 *             made it, has ended for everybody.  A backend has a hull only in
 *             partitions of relations that it has locked.
 * Locks:      takes hull_lock alone; the transaction status is asked for
 *             without it.
 * Runs in:    any backend, its transaction callbacks.
 * On error:   only making a hull may fail, before a record is placed.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xact.h"
#include "common/hashfn.h"
#include "storage/procarray.h"

#include "base/base_memory.h"
#include "log/log_events.h"
#include "log/log_hull.h"

/* This backend's hulls, and those met last by hash of their partition. */
#define HULL_CACHE_SIZE 256

static NaradHull *my_hulls;
static NaradHull *hull_cache[HULL_CACHE_SIZE];

static inline uint32
cache_slot(NaradLogPartition *part)
{
	return murmurhash32((uint32) ((uintptr_t) part >> 4)) % HULL_CACHE_SIZE;
}

/*
 * NaradHullReserve
 *
 * The current top transaction's hull in a partition, made if need be.  Needs
 * a top xid.  No narad lock may be held.  Errors 53200.
 */
NaradHull *
NaradHullReserve(Relation rel, NaradLogPartition *part)
{
	uint32		slot = cache_slot(part);
	NaradHull  *hull = hull_cache[slot];

	if (hull != NULL && hull->part == part)
		return hull;
	for (hull = my_hulls; hull != NULL; hull = hull->next_mine)
		if (hull->part == part)
			break;

	if (hull == NULL)
	{
		NaradLogTopicKeep(rel);
		hull = NaradAllocOrError(sizeof(NaradHull), "open transactions");
		hull->part = part;
		hull->xid = GetTopTransactionId();
		hull->nest_level = GetCurrentTransactionNestLevel();
		hull->ownerless = false;
		hull->first = hull->last = NARAD_INVALID_OFFSET;

		LWLockAcquire(&part->hull_lock, LW_EXCLUSIVE);
		dlist_push_tail(&part->hulls, &hull->node);
		LWLockRelease(&part->hull_lock);

		hull->next_mine = my_hulls;
		my_hulls = hull;
	}
	hull_cache[slot] = hull;
	return hull;
}

/*
 * NaradHullExtend
 *
 * Covers offsets about to be given.  Under the tail lock, before end_offset
 * is advanced; may be called in a critical section.
 */
void
NaradHullExtend(NaradHull *hull, NaradOffset first, NaradOffset last)
{
	LWLock	   *lock = &hull->part->hull_lock;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	if (hull->first == NARAD_INVALID_OFFSET)
		hull->first = first;
	hull->last = last;
	hull->nrecords += last - first + 1;
	LWLockRelease(lock);
}

/* The layer above is told of what the ring has now. */
static void
tell_decided(NaradLogPartition *part, uint64 nrecords, bool is_commit)
{
	if (nrecords > 0 && NaradLogEventTable.records_decided != NULL)
		NaradLogEventTable.records_decided(part->topic_id, part->partition,
										   nrecords, is_commit);
}

/* Takes a hull out and puts it on the ring.  Under the hull lock. */
static void
end_hull(NaradLogPartition *part, NaradHull *hull)
{
	dlist_delete(&hull->node);
	if (hull->ownerless)
		pg_atomic_write_u32(&part->nownerless,
							pg_atomic_read_u32(&part->nownerless) - 1);
	if (hull->first != NARAD_INVALID_OFFSET)
	{
		uint64		head = pg_atomic_read_u64(&part->ring_head);

		part->ring[head % NARAD_RING_SIZE].first = hull->first;
		part->ring[head % NARAD_RING_SIZE].last = hull->last;
		pg_atomic_write_u64(&part->ring_head, head + 1);
	}
}

/* The cache names live hulls only. */
static void
forget_cache(void)
{
	memset(hull_cache, 0, sizeof(hull_cache));
}

/* Ends the hulls made at a nesting level or deeper. */
static void
end_mine(int level, bool is_commit)
{
	NaradHull **link = &my_hulls;

	while (*link != NULL)
	{
		NaradHull  *hull = *link;
		NaradLogPartition *part = hull->part;

		if (hull->nest_level < level)
		{
			link = &hull->next_mine;
			continue;
		}
		*link = hull->next_mine;
		LWLockAcquire(&part->hull_lock, LW_EXCLUSIVE);
		end_hull(part, hull);
		LWLockRelease(&part->hull_lock);
		tell_decided(part, hull->nrecords, is_commit);
		NaradFree(hull);
	}
	forget_cache();
}

/*
 * NaradHullAtXactEnd
 *
 * Publishes the end of this transaction's appends.  From the transaction
 * callback, that is after ProcArrayEndTransaction: whoever reads the ring
 * finds the records decided.  No allocation, no error.
 */
void
NaradHullAtXactEnd(bool is_commit)
{
	if (my_hulls != NULL)
		end_mine(0, is_commit);
}

/*
 * NaradHullAtSubCommit
 *
 * Gives the hulls of a subtransaction to its parent, as its locks are.
 */
void
NaradHullAtSubCommit(int level)
{
	for (NaradHull *hull = my_hulls; hull != NULL; hull = hull->next_mine)
		hull->nest_level = Min(hull->nest_level, level - 1);
}

/*
 * NaradHullAtSubAbort
 *
 * Ends the hulls made in a subtransaction that is rolled back: all records
 * under them are dead, and its locks, which keep the topics, are about to go.
 * From the callback, when its xid is no longer in progress.  No allocation, no
 * error.
 */
void
NaradHullAtSubAbort(int level)
{
	if (my_hulls != NULL)
		end_mine(level, false);
}

/*
 * NaradHullAtPrepare
 *
 * Leaves this transaction's hulls to the readers.  From the transaction
 * callback; no allocation, no error.
 */
void
NaradHullAtPrepare(void)
{
	NaradHull  *hull;
	NaradHull  *next;

	for (hull = my_hulls; hull != NULL; hull = next)
	{
		NaradLogPartition *part = hull->part;

		next = hull->next_mine;
		LWLockAcquire(&part->hull_lock, LW_EXCLUSIVE);
		hull->ownerless = true;
		pg_atomic_write_u32(&part->nownerless,
							pg_atomic_read_u32(&part->nownerless) + 1);
		LWLockRelease(&part->hull_lock);
	}
	my_hulls = NULL;
	forget_cache();
}

/*
 * NaradHullForgetPartition
 *
 * Frees all hulls of a partition whose file goes: the caller's transaction
 * has, or had, the only access to it.
 */
void
NaradHullForgetPartition(NaradLogPartition *part)
{
	NaradHull **link = &my_hulls;

	while (*link != NULL)
	{
		if ((*link)->part == part)
			*link = (*link)->next_mine;
		else
			link = &(*link)->next_mine;
	}
	forget_cache();

	for (;;)
	{
		NaradHull  *hull = NULL;

		LWLockAcquire(&part->hull_lock, LW_EXCLUSIVE);
		if (!dlist_is_empty(&part->hulls))
			hull = dlist_container(NaradHull, node,
								   dlist_pop_head_node(&part->hulls));
		LWLockRelease(&part->hull_lock);
		if (hull == NULL)
			break;
		NaradFree(hull);
	}
}

/*
 * NaradRingHead
 *
 * The position of a reader that has seen all that ended so far.
 */
uint64
NaradRingHead(NaradLogPartition *part)
{
	return pg_atomic_read_u64(&part->ring_head);
}

/*
 * NaradRingRead
 *
 * Copies up to max entries from *pos on and advances it.  False if entries
 * were overwritten: *pos is then the head.
 */
bool
NaradRingRead(NaradLogPartition *part, uint64 *pos, NaradRange *out, int max,
			  int *nout)
{
	uint64		head;
	bool		complete = true;

	*nout = 0;
	if (pg_atomic_read_u64(&part->ring_head) == *pos)
		return true;

	LWLockAcquire(&part->hull_lock, LW_SHARED);
	head = pg_atomic_read_u64(&part->ring_head);
	if (head - *pos > NARAD_RING_SIZE)
	{
		*pos = head;
		complete = false;
	}
	while (*pos < head && *nout < max)
		out[(*nout)++] = part->ring[(*pos)++ % NARAD_RING_SIZE];
	LWLockRelease(&part->hull_lock);
	return complete;
}

/* Adds an ownerless hull.  Under the hull lock. */
static void
add_ownerless(NaradLogPartition *part, NaradHull *hull, TransactionId xid,
			  NaradOffset offset)
{
	hull->part = part;
	hull->xid = xid;
	hull->ownerless = true;
	hull->first = hull->last = offset;
	dlist_push_tail(&part->hulls, &hull->node);
	pg_atomic_write_u32(&part->nownerless,
						pg_atomic_read_u32(&part->nownerless) + 1);
}

/*
 * NaradHullAdopt
 *
 * A reader saw the record at offset in progress under xid: if no open hull
 * covers it, an ownerless one is made.  A hull of another transaction that
 * happens to cover it is enough: its end makes the reader look again, and
 * come back here.  False when out of memory.
 */
bool
NaradHullAdopt(NaradLogPartition *part, TransactionId xid, NaradOffset offset)
{
	NaradHull  *spare = NULL;
	bool		covered;
	int			pass;

	/* The second pass, if need be, comes with memory allocated unlocked. */
	for (pass = 0; pass < 2; pass++)
	{
		dlist_iter	iter;

		covered = false;
		LWLockAcquire(&part->hull_lock, LW_EXCLUSIVE);
		dlist_foreach(iter, &part->hulls)
		{
			NaradHull  *hull = dlist_container(NaradHull, node, iter.cur);

			if (hull->first != NARAD_INVALID_OFFSET &&
				hull->first <= offset && offset <= hull->last)
			{
				covered = true;
				break;
			}
		}
		if (!covered && spare != NULL)
		{
			add_ownerless(part, spare, xid, offset);
			spare = NULL;
			covered = true;
		}
		LWLockRelease(&part->hull_lock);
		if (covered)
			break;
		spare = NaradAlloc(sizeof(NaradHull));
		if (spare == NULL)
			return false;
	}
	NaradFree(spare);
	return true;
}

/*
 * NaradHullRestore
 *
 * While a topic is being attached: a record of a transaction prepared before
 * the server started.  Nobody else sees the partition yet.
 */
bool
NaradHullRestore(NaradLogPartition *part, TransactionId xid, NaradOffset offset)
{
	dlist_iter	iter;
	NaradHull  *hull;

	dlist_foreach(iter, &part->hulls)
	{
		hull = dlist_container(NaradHull, node, iter.cur);
		if (TransactionIdEquals(hull->xid, xid))
		{
			hull->first = Min(hull->first, offset);
			hull->last = Max(hull->last, offset);
			return true;
		}
	}
	hull = NaradAlloc(sizeof(NaradHull));
	if (hull == NULL)
		return false;
	add_ownerless(part, hull, xid, offset);
	return true;
}

#define POLL_BATCH 32

/* The transactions of ownerless hulls, but for the first `skip`. */
static int
copy_ownerless(NaradLogPartition *part, int skip, TransactionId *xids)
{
	int			nxids = 0;
	dlist_iter	iter;

	LWLockAcquire(&part->hull_lock, LW_SHARED);
	dlist_foreach(iter, &part->hulls)
	{
		NaradHull  *hull = dlist_container(NaradHull, node, iter.cur);

		if (!hull->ownerless || skip-- > 0)
			continue;
		xids[nxids++] = hull->xid;
		if (nxids == POLL_BATCH)
			break;
	}
	LWLockRelease(&part->hull_lock);
	return nxids;
}

/* Ends all ownerless hulls of a transaction; whether it committed, who looks
 * will see. */
static void
end_ownerless(NaradLogPartition *part, TransactionId xid)
{
	NaradHull  *ended;

	do
	{
		dlist_mutable_iter iter;
		uint64		nrecords = 0;

		ended = NULL;
		LWLockAcquire(&part->hull_lock, LW_EXCLUSIVE);
		dlist_foreach_modify(iter, &part->hulls)
		{
			NaradHull  *hull = dlist_container(NaradHull, node, iter.cur);

			if (hull->ownerless && hull->xid == xid)
			{
				end_hull(part, hull);
				nrecords = Max(hull->nrecords, 1);
				ended = hull;
				break;
			}
		}
		LWLockRelease(&part->hull_lock);
		tell_decided(part, nrecords, true);
		NaradFree(ended);
	} while (ended != NULL);
}

/*
 * NaradHullPoll
 *
 * Ends ownerless hulls whose transaction has ended; cheap when there are
 * none.  Takes ProcArrayLock, no narad lock of rank hull may be held.
 */
void
NaradHullPoll(NaradLogPartition *part)
{
	int			skip = 0;

	while (pg_atomic_read_u32(&part->nownerless) > (uint32) skip)
	{
		TransactionId xids[POLL_BATCH];
		int			nxids = copy_ownerless(part, skip, xids);

		if (nxids == 0)
			break;
		for (int i = 0; i < nxids; i++)
		{
			if (TransactionIdIsInProgress(xids[i]))
				skip++;
			else
				end_ownerless(part, xids[i]);
		}
	}
}

/*
 * NaradHullLastStable
 *
 * The lowest offset of an open hull, or the end offset.  The end is read
 * first: a record below it was covered before (I7).
 */
NaradOffset
NaradHullLastStable(NaradLogPartition *part)
{
	NaradOffset stable = pg_atomic_read_u64(&part->end_offset);
	dlist_iter	iter;

	LWLockAcquire(&part->hull_lock, LW_SHARED);
	dlist_foreach(iter, &part->hulls)
	{
		NaradHull  *hull = dlist_container(NaradHull, node, iter.cur);

		if (hull->first < stable)
			stable = hull->first;
	}
	LWLockRelease(&part->hull_lock);
	return stable;
}
