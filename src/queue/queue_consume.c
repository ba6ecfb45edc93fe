/*-------------------------------------------------------------------------
 *
 * queue_consume.c
 *	  Taking messages.
 *
 * Owns:       what of a shard says which messages are available: scan_pos,
 *			   pending, rechecks, ring_pos, returned_turn.
 * Invariants: I2: a message is claimed under the shard lock, by an entry of
 *			   its own in the lease table.  I3: what is handed out was read as
 *			   committed.  I6: only what was read as dead or damaged is settled
 *			   here.  I1: an offset that was looked at is settled, has a lease
 *			   entry, or is in `pending`; and a pending one is looked at again
 *			   once its transaction has ended.
 * Locks:      the caller holds RowExclusiveLock on the topic.  The shard lock,
 *			   exclusively, for claiming and again for disposing, never while
 *			   reading.  Under it: the hull lock (ring) and memory.  Where
 *			   messages are ordered by key, scan_lock around all three.
 * Runs in:    any backend that is not in recovery.
 * WAL:        none of its own; NaradReaderEnd flushes the commits of what was
 *			   handed out.
 * On error:   claims are in the transaction's list of actions from the moment
 *			   they exist, so an error anywhere, or the backend's end, returns
 *			   them; no delivery is counted before NaradConsume has returned.
 *
 * Claims are made in groups:
 *
 *		lock	read the ring; choose and claim
 *		unlock	read the records, by offset
 *		lock	dispose of all claims of the group at once
 *		unlock	hand the good ones to the caller
 *
 * While it is claimed a lease has no deadline and a nonce nobody knows: no
 * other process touches it, unless the group is dropped or the topic changes.
 *
 * The choice: a suspect (queue_suspect.c), alone in its batch; else the
 * lowest pending offset that may be ready now (rechecks), then a delayed one
 * that is due, then the lowest offset never looked at.  Messages that came
 * back (expired, nacked, rolled back) form a FIFO, and take at most every
 * second place while there are others.  Within one visit of a shard the choice
 * among pending ones never goes back, and no more of the FIFO is taken than
 * was there at first, so nothing is looked at twice; what cannot be taken now
 * is left for the next call.  By key there is an exception (end_unread).
 *
 * What a record turns out to be, and what becomes of the claim:
 *
 *		committed			leased, with its deadline counted from now
 *		dead, damaged		settled, with the whole run the reader tells of
 *		dropped				lost, with all below the partition's start, when
 *							the shard is moved there
 *		committed, but not
 *		due yet				in the heap of those, by its time
 *		in progress, own	pending, until the ring tells of its end
 *		not for the
 *		snapshot, or the
 *		batch is full		pending with a recheck, as before the claim; or
 *							returned, if it had been delivered before
 *
 * Order by key (queue_key.c).  The key is known when the record is read, and
 * nothing may be handed out before the keys of all that lies below it are.  So
 * in such a shard one process at a time claims and reads, under scan_lock;
 * scan_pos moves with the reading, not with the claim: whatever becomes of who
 * claims, the next one scans from the first offset that was not read.  There
 * the scan does not step over entries in leases (those of a time when messages
 * were not ordered, or before a restart, or of a claim that failed): it learns
 * their keys.  A message whose turn it is not is put in line, its entry
 * removed.
 *
 * The end of a transaction cannot be missed (I1).  Whoever ends it puts its
 * hull in the ring, after it is no longer in progress.  We note the ring's
 * head before we begin to read; when offsets of records that were in progress
 * go into `pending`, under the lock, all that has come into the ring since is
 * applied to them.  What comes later, the shard reads later.  The note is that
 * of the whole visit, since the reader keeps what it found on a page.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "base/base_guc.h"
#include "base/base_memory.h"
#include "base/base_stop.h"
#include "log/log_hull.h"
#include "log/log_read.h"
#include "queue/queue_consume.h"
#include "queue/queue_deadletter.h"
#include "queue/queue_retain.h"
#include "queue/queue_settle.h"
#include "queue/queue_state.h"
#include "queue/queue_suspect.h"
#include "queue/queue_xact.h"

/* Claims made under one hold of the lock. */
#define MAX_CLAIMS		64
/* How much of the FIFO is turned over in search of one that fits a cap. */
#define MAX_TURNED		1024

/* Why no claim was made. */
typedef enum NaradChoice
{
	CHOICE_CLAIMED,
	CHOICE_DRY,					/* nothing there */
	CHOICE_CAPPED,				/* max_in_flight, max_acked_ahead */
	CHOICE_NO_MEMORY
} NaradChoice;

/* A claimed offset, between claim and disposal. */
typedef struct NaradClaim
{
	NaradOffset offset;
	uint64		nonce;
	NaradReadStatus status;		/* NARAD_READ_INVISIBLE: give back */
	NaradOffset next;			/* DEAD, CORRUPT: end of the run */
	bool		recheck;		/* PENDING: no hull covers it */
	bool		is_read;
	bool		is_first;		/* delivery */
	TimestampTz due;			/* OK: when it is, if that is later than the
								 * claim; else 0 */
	bool		is_scanned;		/* by key: it was not below scan_pos */
	bool		is_learned;		/* by key: another's lease, only read */
	bool		has_key;
	uint64		key;			/* its hash */
	int			deliveries;		/* after disposal; 0: not leased */
	HeapTuple	tuple;
} NaradClaim;

/* One NaradConsume call. */
typedef struct NaradConsumer
{
	Relation	rel;
	NaradRelInfo *info;
	const NaradConsumeArgs *args;
	NaradMessageEmit emit;
	void	   *emit_arg;
	NaradQueueTopic *topic;
	NaradGroup *group;
	NaradGroupId group_id;
	Snapshot	snapshot;		/* NULL: committed as of now */
	int64		timeout;		/* us */
	NaradRetryPolicy policy;
	uint32		max_in_flight;
	uint32		max_acked_ahead;
	Size		max_bytes;
	int			ntaken;
	Size		bytes;
	bool		ordered;		/* by key */
	bool		full;			/* the batch is */
	bool		no_memory;
	bool		capped;			/* the last group of claims ended at a cap */
	bool		filled;			/* ... max_in_flight, with claims of its own */
	bool		filled_ahead;	/* ... max_acked_ahead, so */
	uint32		nturned;		/* of the FIFO, moved to its end for the group */
	NaradOffset settled_end;	/* of the shard, when claiming */
	bool		alone;			/* the group is one suspect, */
	bool		single;			/* ... or one message, as there are some */
	bool		due_popped;		/* the first delayed one is another */
	bool		needs_mark;		/* what is leased has to be marked first */
	bool		was_woken;		/* for one message that is not taken yet */
	int			woken_for;		/* ... of this partition; -1: any */
	bool		all_dry;		/* no partition looked at has more */
	int			nnonces;		/* drawn, not used yet */
	uint64		nonces[MAX_CLAIMS];

	/* The visit of one shard. */
	NaradShard *shard;
	NaradLogPartition *part;
	NaradReader *reader;
	uint32		generation;		/* the shard's, when claiming */
	NaradOffset end;			/* of the partition, when claiming */
	NaradOffset look_from;		/* no pending offset below is chosen any more */
	NaradOffset scan;			/* by key: the next to be claimed of those
								 * never looked at */
	bool		scan_ended;		/* by key: one of them could not be read */
	bool		keys_full;		/* by key: no memory to put one in line */
	NaradOffset own_from;		/* by key: what has the turn to this
								 * transaction only was tried below */
	bool		own_again;		/* ... but it may be another now: one of this
								 * group was dead */
	uint32		returned_left;	/* of the FIFO, not looked at yet */
	bool		returned_all;	/* that was all of it */
	uint64		nmade;			/* the shard's, when the visit began */
	bool		suspect_left;	/* one may be claimed */
	bool		leaves_alone;	/* there is what is handed out alone, and this
								 * call has taken something else */
	uint64		ring_noted;		/* before anything was read */
	TimestampTz claimed_at;
	int			mark;			/* actions before the group's claims */
	int			nclaims;
	NaradClaim	claims[MAX_CLAIMS]; /* last: set as they are made */
} NaradConsumer;

/* --------------------------------------------- pending ones and rechecks */

static void
delete_recheck(NaradShard *shard, int i)
{
	memmove(&shard->rechecks[i], &shard->rechecks[i + 1],
			(shard->nrechecks - i - 1) * sizeof(NaradRange));
	shard->nrechecks--;
}

/* Joins the two neighbouring ranges with the smallest distance. */
static void
squeeze_rechecks(NaradShard *shard)
{
	int			best = 0;
	uint64		best_gap = PG_UINT64_MAX;

	for (int i = 0; i + 1 < shard->nrechecks; i++)
	{
		uint64		gap;

		gap = shard->rechecks[i + 1].first - shard->rechecks[i].last;
		if (gap < best_gap)
		{
			best = i;
			best_gap = gap;
		}
	}
	shard->rechecks[best].last = shard->rechecks[best + 1].last;
	delete_recheck(shard, best + 1);
}

/*
 * Says that the pending ones among first..last may be ready.  The list is kept
 * sorted and disjoint; when it is full it is made coarser, which costs reads
 * but loses nothing.
 */
static void
add_recheck(NaradShard *shard, NaradOffset first, NaradOffset last)
{
	NaradRange *ranges = shard->rechecks;
	int			i = 0;

	first = NaradSetNextMember(&shard->pending, first);
	if (first == NARAD_INVALID_OFFSET || first > last)
		return;
	/* Not those that become pending later. */
	last = Min(last, NaradSetMax(&shard->pending));

	/* Take in all that overlap or touch. */
	while (i < shard->nrechecks)
	{
		if (ranges[i].first <= last + 1 && first <= ranges[i].last + 1)
		{
			first = Min(first, ranges[i].first);
			last = Max(last, ranges[i].last);
			delete_recheck(shard, i);
		}
		else
			i++;
	}
	if (shard->nrechecks == NARAD_MAX_RECHECKS)
		squeeze_rechecks(shard);

	/*
	 * Squeezing may have made a range that covers this place: joined with it
	 * then.
	 */
	for (i = 0; i < shard->nrechecks && ranges[i].first <= first; i++)
	{
		if (last <= ranges[i].last)
			return;
	}
	memmove(&ranges[i + 1], &ranges[i],
			(shard->nrechecks - i) * sizeof(NaradRange));
	ranges[i].first = first;
	ranges[i].last = last;
	shard->nrechecks++;
}

/* Reads what the ring has to tell since the shard looked last. */
static void
read_ring(NaradShard *shard, NaradLogPartition *part)
{
	NaradRange	ended[NARAD_RING_SIZE];
	int			nended;

	if (!NaradRingRead(part, &shard->ring_pos, ended, NARAD_RING_SIZE, &nended))
	{
		/* Overrun: any of them may be ready. */
		add_recheck(shard, 0, NARAD_MAX_OFFSET);
		return;
	}
	for (int i = 0; i < nended; i++)
		add_recheck(shard, ended[i].first, ended[i].last);
}

/*
 * The lowest pending offset at or above `from` in a recheck range, or
 * NARAD_INVALID_OFFSET; *where is the range.  Drops ranges that have none.
 */
static NaradOffset
next_recheck(NaradShard *shard, NaradOffset from, int *where)
{
	int			i = 0;

	while (i < shard->nrechecks)
	{
		NaradRange *range = &shard->rechecks[i];
		NaradOffset member;

		member = NaradSetNextMember(&shard->pending, range->first);
		if (member == NARAD_INVALID_OFFSET || member > range->last)
		{
			delete_recheck(shard, i);
			continue;
		}
		if (member < from && from <= range->last)
			member = NaradSetNextMember(&shard->pending, from);
		if (member >= from && member <= range->last)
		{
			*where = i;
			return member;
		}
		i++;
	}
	return NARAD_INVALID_OFFSET;
}

/* Takes an offset out of `pending`, and out of its recheck range. */
static void
leave_pending(NaradShard *shard, NaradOffset offset, int where)
{
	NaradRange	range = shard->rechecks[where];

	(void) NaradSetRemove(&shard->pending, offset);
	delete_recheck(shard, where);
	if (offset > range.first)
		add_recheck(shard, range.first, offset - 1);
	if (offset < range.last)
		add_recheck(shard, offset + 1, range.last);
}

/* --------------------------------------------------------------- choosing */

/*
 * Makes a claim of an entry, new or returned, that is LEASED or about to be.
 * Room for the action was reserved, and for the settled offset, and a nonce
 * drawn.
 */
static void
claim(NaradConsumer *c, NaradLease *lease)
{
	NaradShard *shard = c->shard;
	NaradClaim *claim_made = &c->claims[c->nclaims++];

	lease->nonce = c->nonces[--c->nnonces];
	lease->taker_open = true;
	lease->deliveries++;
	lease->pid = MyProcPid;
	lease->leased_at = c->claimed_at;
	lease->expires_at = c->claimed_at + c->timeout;
	lease->deadline = PG_INT64_MAX;
	NaradLeaseSetState(&shard->leases, lease, NARAD_LEASE_LEASED);
	NaradShardCountHole(shard, lease);
	NaradKeyTaken(shard, lease->offset);
	NaradXactTake(shard, lease);

	memset(claim_made, 0, sizeof(NaradClaim));
	claim_made->offset = lease->offset;
	claim_made->nonce = lease->nonce;
	claim_made->status = NARAD_READ_INVISIBLE;
	claim_made->is_first = lease->deliveries == 1;
}

/*
 * An entry for an offset that has none, with room for it to be settled.  The
 * last of the memory is not for leases: topics, groups and open transactions
 * need it.
 */
static NaradLease *
new_entry(NaradShard *shard, NaradOffset offset)
{
	NaradLease *lease;

	if (NaradMemoryIsLow() || !NaradShardReserve(shard, offset))
		return NULL;
	lease = NaradLeaseInsert(&shard->leases, offset);
	return lease;
}

/* May this offset be handed out, as far as max_acked_ahead is concerned? */
static bool
below_cap(NaradConsumer *c, NaradOffset offset)
{
	return c->shard->nholes < c->max_acked_ahead ||
		offset < c->shard->settled_end;
}

/*
 * No fresh one may.  With claims of its own the group has to wait for what
 * becomes of them (end_filled).
 */
static NaradChoice
stop_ahead(NaradConsumer *c)
{
	if (c->nclaims > 0)
		c->filled_ahead = true;
	else
		NaradShardStopAhead(c->shard, c->max_acked_ahead);
	return CHOICE_CAPPED;
}

/*
 * May a returned message be handed out, as far as its key is concerned?  If
 * that is not known yet, it is the scan's.
 */
static bool
has_turn(NaradConsumer *c, NaradOffset offset)
{
	return !c->ordered ||
		(offset < c->shard->scan_pos && NaradKeyMayTake(c->shard, offset));
}

/*
 * Do all of the returned messages, if any, lie beyond max_acked_ahead?  Then
 * the FIFO has nothing for this call, however much of it was not looked at.
 * The shard lock is held.
 */
static bool
returned_beyond_cap(const NaradConsumer *c)
{
	return c->shard->nholes >= c->max_acked_ahead && c->shard->nopen_holes == 0;
}

/*
 * Is it known what the FIFO has for this call, and is the cap noted that keeps
 * the rest back (next_returned)?  The shard lock is held.
 */
static bool
knows_returned(const NaradConsumer *c)
{
	return c->returned_all || returned_beyond_cap(c);
}

/* How much of the FIFO is looked at.  The shard lock is held. */
static void
measure_returned(NaradConsumer *c)
{
	c->returned_left = c->shard->leases.nstate[NARAD_LEASE_RETURNED];

	/* Who is going to sleep must have looked at all of them. */
	c->returned_all = c->args->waiting ||
		c->returned_left <= Max(MAX_TURNED, c->args->max_messages);
	if (!c->returned_all)
		c->returned_left = Max(MAX_TURNED, c->args->max_messages);
}

/*
 * The first message of the FIFO that may be handed out, if any; those before
 * it that may not are moved to the end.  *capped is set if some are kept back
 * by max_acked_ahead, be they looked at or not: whoever makes room is to know.
 */
static NaradLease *
next_returned(NaradConsumer *c, bool *capped)
{
	NaradShard *shard = c->shard;

	while (c->returned_left > 0)
	{
		NaradLease *lease = NaradLeaseFirstReturned(&shard->leases);

		if (lease == NULL)
			break;
		if (lease->offset < shard->frontier ||
			NaradSetContains(&shard->settled, lease->offset))
		{
			/* Part of a run that was found dead or damaged meanwhile. */
			c->returned_left--;
			NaradShardRemoveLease(shard, lease);
			continue;
		}
		if (NaradShardIsExhausted(shard, lease))
		{
			/* The limit was lowered, or the server restarted. */
			c->returned_left--;
			NaradDeadLetterAdd(shard, lease, NaradClockNow());
			continue;
		}
		if (!has_turn(c, lease->offset))
			 /* it comes when it has */ ;
		else if (below_cap(c, lease->offset))
			return lease;
		else
		{
			*capped = true;
			(void) stop_ahead(c);
		}
		c->returned_left--;
		c->nturned++;
		NaradLeaseSetState(&shard->leases, lease, NARAD_LEASE_RETURNED);
	}
	if (!c->returned_all && returned_beyond_cap(c) &&
		NaradLeaseFirstReturned(&shard->leases) != NULL)
	{
		*capped = true;
		(void) stop_ahead(c);
	}
	return NULL;
}

/*
 * The lowest offset never looked at that is neither settled nor has an entry
 * (of a delivery before a restart), nor is a suspect, which is claimed alone; or
 * NARAD_INVALID_OFFSET.
 */
static NaradOffset
next_unseen(NaradConsumer *c)
{
	NaradShard *shard = c->shard;
	NaradOffset offset = Max(shard->scan_pos, shard->frontier);

	for (;;)
	{
		offset = NaradSetNextGap(&shard->settled, offset);
		if (offset >= c->end)
			break;
		if (NaradLeaseFind(&shard->leases, offset) == NULL &&
			!NaradSetContains(&shard->suspects, offset))
			break;
		offset++;
	}

	/* What was stepped over is settled, has an entry, or is a suspect. */
	shard->scan_pos = Max(shard->scan_pos, Min(offset, c->end));
	return offset < c->end ? offset : NARAD_INVALID_OFFSET;
}

/*
 * Is the first of the delayed messages due?  Those that were settled meanwhile
 * are dropped.
 */
static NaradOffset
next_due(NaradConsumer *c)
{
	NaradShard *shard = c->shard;
	const NaradDue *first;

	while ((first = NaradDueFirst(&shard->due)) != NULL &&
		   first->due <= c->claimed_at)
	{
		if (first->offset >= shard->frontier &&
			!NaradSetContains(&shard->settled, first->offset))
			return first->offset;
		NaradDuePop(&shard->due);
		c->due_popped = true;
	}
	return NARAD_INVALID_OFFSET;
}

/* Claims a delayed message that is due; its key, if any, is to be read. */
static NaradChoice
claim_due(NaradConsumer *c, NaradOffset offset)
{
	NaradLease *lease;

	if (!below_cap(c, offset))
		return stop_ahead(c);
	lease = new_entry(c->shard, offset);
	if (lease == NULL)
		return CHOICE_NO_MEMORY;
	NaradDuePop(&c->shard->due);
	c->due_popped = true;
	claim(c, lease);
	return CHOICE_CLAIMED;
}

/*
 * What comes first is beyond the cap: a delayed one that is due may not be, as
 * its time has nothing to do with its offset.  What was never looked at lies
 * higher still.
 */
static NaradChoice
claim_due_below_cap(NaradConsumer *c)
{
	NaradOffset offset = next_due(c);

	if (offset != NARAD_INVALID_OFFSET && below_cap(c, offset))
		return claim_due(c, offset);
	return stop_ahead(c);
}

/*
 * By key: claims the lowest offset whose key is not known, be it returned; of
 * one that is leased or backing off, only the key is to be read.
 */
static NaradChoice
claim_scanned(NaradConsumer *c)
{
	NaradShard *shard = c->shard;
	NaradLease *lease;
	NaradClaim *scanned = &c->claims[c->nclaims];
	NaradOffset offset;

	/* It would come to the same offset again, and no farther. */
	if (c->keys_full)
		return CHOICE_NO_MEMORY;
	offset = NaradSetNextGap(&shard->settled, Max(c->scan, shard->frontier));
	if (offset >= c->end)
		return CHOICE_DRY;
	lease = NaradLeaseFind(&shard->leases, offset);
	if (lease != NULL && lease->state == NARAD_LEASE_RETURNED &&
		NaradShardIsExhausted(shard, lease))
		NaradDeadLetterAdd(shard, lease, NaradClockNow());
	if (lease != NULL && lease->state != NARAD_LEASE_RETURNED)
	{
		memset(scanned, 0, sizeof(NaradClaim));
		scanned->offset = offset;
		scanned->is_learned = true;
		c->nclaims++;
	}
	else
	{
		if (!below_cap(c, offset))
			return stop_ahead(c);
		if (lease == NULL)
			lease = new_entry(shard, offset);
		else if (!NaradShardReserve(shard, offset))
			lease = NULL;
		if (lease == NULL)
			return CHOICE_NO_MEMORY;
		claim(c, lease);
	}
	scanned->is_scanned = true;
	c->scan = offset + 1;
	c->look_from = offset + 1;
	return CHOICE_CLAIMED;
}

/*
 * By key: claims the lowest offset that has the turn of its key, or may have
 * become readable; else one that has it to this transaction only; else scans.
 */
static NaradChoice
claim_by_key(NaradConsumer *c)
{
	NaradShard *shard = c->shard;
	NaradLease *lease;
	NaradOffset offset;
	NaradOffset own;
	NaradOffset ready = NaradKeyNextReady(shard);
	int			where = -1;

	offset = next_recheck(shard, c->look_from, &where);
	if (ready < offset)
	{
		offset = ready;
		where = -1;
	}
	if (offset == NARAD_INVALID_OFFSET || !below_cap(c, offset))
	{
		own = NaradKeyNextOwn(shard, c->own_from);
		if (offset == NARAD_INVALID_OFFSET || below_cap(c, own))
		{
			offset = own;
			where = -1;
		}
	}
	if (offset == NARAD_INVALID_OFFSET)
	{
		offset = next_due(c);
		return offset != NARAD_INVALID_OFFSET ? claim_due(c, offset) :
			claim_scanned(c);
	}

	if (!below_cap(c, offset))
		return claim_due_below_cap(c);
	lease = new_entry(shard, offset);
	if (lease == NULL)
		return CHOICE_NO_MEMORY;
	if (where >= 0)
	{
		leave_pending(shard, offset, where);
		c->look_from = offset + 1;
	}
	claim(c, lease);
	return CHOICE_CLAIMED;
}

/* Claims a pending offset that may be ready, or one never looked at. */
static NaradChoice
claim_fresh(NaradConsumer *c)
{
	NaradShard *shard = c->shard;
	NaradLease *lease;
	NaradOffset offset;
	int			where = -1;

	if (c->ordered)
		return claim_by_key(c);
	offset = next_recheck(shard, c->look_from, &where);
	if (offset == NARAD_INVALID_OFFSET)
	{
		where = -1;
		offset = next_due(c);
		if (offset != NARAD_INVALID_OFFSET)
			return claim_due(c, offset);
		offset = next_unseen(c);
		if (offset == NARAD_INVALID_OFFSET)
			return CHOICE_DRY;
	}
	if (!below_cap(c, offset))
		return claim_due_below_cap(c);
	lease = new_entry(shard, offset);
	if (lease == NULL)
		return CHOICE_NO_MEMORY;

	if (where >= 0)
		leave_pending(shard, offset, where);
	else
		shard->scan_pos = offset + 1;
	c->look_from = offset + 1;
	claim(c, lease);
	return CHOICE_CLAIMED;
}

/* Claims the first message of the FIFO. */
static NaradChoice
claim_returned(NaradConsumer *c)
{
	bool		capped = false;
	NaradLease *lease = next_returned(c, &capped);

	if (lease == NULL)
		return capped ? CHOICE_CAPPED : CHOICE_DRY;
	if (!NaradShardReserve(c->shard, lease->offset))
		return CHOICE_NO_MEMORY;
	c->returned_left--;
	claim(c, lease);
	return CHOICE_CLAIMED;
}

/*
 * Claims a suspect.  Where deliveries are limited it is the only one that is
 * out, and the only message of its batch.
 */
static NaradChoice
claim_suspect(NaradConsumer *c)
{
	NaradShard *shard = c->shard;
	bool		alone = shard->policy.max_deliveries > 0;
	NaradOffset offset;
	NaradLease *lease;

	if (!c->suspect_left || shard->suspects.nmembers == 0 ||
		(alone && (shard->suspect_out != 0 || c->nclaims + c->ntaken > 0)))
		return CHOICE_DRY;
	offset = NaradSuspectNext(shard, NaradClockNow());
	if (offset == NARAD_INVALID_OFFSET)
		return CHOICE_DRY;
	if (!below_cap(c, offset))
		return stop_ahead(c);
	lease = NaradLeaseFind(&shard->leases, offset);
	if (lease == NULL)
		lease = new_entry(shard, offset);
	if (lease == NULL || !NaradShardReserve(shard, offset))
		return CHOICE_NO_MEMORY;
	claim(c, lease);
	if (alone)
		NaradSuspectOut(shard, lease);
	else
		NaradSuspectClear(shard, offset);
	c->alone = alone;
	return CHOICE_CLAIMED;
}

/* Claims the next message by the order of choice.  Exclusive shard lock. */
static NaradChoice
claim_next(NaradConsumer *c)
{
	NaradShard *shard = c->shard;
	NaradChoice suspect = CHOICE_DRY;
	NaradChoice returned = CHOICE_DRY;
	NaradChoice fresh;

	if (shard->leases.nstate[NARAD_LEASE_LEASED] >= c->max_in_flight)
	{
		c->filled = c->nclaims > 0;
		if (!c->filled)
			shard->capped_in_flight = true;
		return CHOICE_CAPPED;
	}
	if (!c->ordered)
		suspect = claim_suspect(c);
	if (suspect == CHOICE_CLAIMED)
		return suspect;
	if (shard->returned_turn)
	{
		returned = claim_returned(c);
		if (returned == CHOICE_CLAIMED)
		{
			shard->returned_turn = false;
			return returned;
		}
	}
	fresh = claim_fresh(c);
	if (fresh == CHOICE_CLAIMED)
	{
		shard->returned_turn = true;
		return fresh;
	}
	if (!shard->returned_turn)
		returned = claim_returned(c);

	/* Short of memory, nobody knows of what could not be claimed. */
	if (returned != CHOICE_CLAIMED &&
		(fresh == CHOICE_NO_MEMORY || suspect == CHOICE_NO_MEMORY))
		return CHOICE_NO_MEMORY;
	if (returned != CHOICE_DRY)
		return returned;
	return fresh != CHOICE_DRY ? fresh : suspect;
}

/*
 * Is there a suspect that this call cannot take only because a suspect is all
 * of its batch, and this one has something already?  If max_acked_ahead is in
 * its way, too, that is noted for whoever makes room.
 */
static bool
leaves_suspect(NaradConsumer *c)
{
	NaradShard *shard = c->shard;
	NaradOffset offset;

	if (c->ordered || shard->suspects.nmembers == 0 ||
		shard->policy.max_deliveries == 0 || shard->suspect_out != 0 ||
		c->nclaims + c->ntaken == 0)
		return false;
	offset = NaradSuspectNext(shard, NaradClockNow());
	if (offset == NARAD_INVALID_OFFSET)
		return false;
	if (below_cap(c, offset))
		return true;
	(void) stop_ahead(c);
	return false;
}

/*
 * No claim was made for this reason: would another consumer find something?
 * Not what this call has passed already, and is available again since.
 */
static bool
is_dry_for_all(NaradConsumer *c, NaradChoice choice)
{
	NaradShard *shard = c->shard;
	NaradOffset offset;
	int			where;

	if (choice != CHOICE_DRY && choice != CHOICE_CAPPED)
		return false;
	if (choice == CHOICE_CAPPED && shard->capped_in_flight &&
		shard->leases.nstate[NARAD_LEASE_LEASED] >= c->max_in_flight)
		return true;
	if (leaves_suspect(c))
		c->leaves_alone = true;
	if (c->leaves_alone)
		return false;
	if (shard->nmade != c->nmade || !knows_returned(c) ||
		!dlist_is_empty(&shard->keys.refill))
		return false;
	offset = next_due(c);
	if (offset != NARAD_INVALID_OFFSET && below_cap(c, offset))
		return false;
	offset = next_recheck(shard, 0, &where);
	return offset == NARAD_INVALID_OFFSET || !below_cap(c, offset);
}

/*
 * By key suspects come in their turn, as all messages do; while there are any,
 * one message at a time is handed out of the shard, whichever has it, alone.
 */
static bool
one_by_one(const NaradConsumer *c)
{
	return c->ordered && c->shard->policy.max_deliveries > 0 &&
		c->shard->suspects.nmembers > 0;
}

/* That one was claimed: it may be a suspect. */
static void
claim_single(NaradConsumer *c)
{
	NaradOffset offset = c->claims[0].offset;

	c->alone = !c->claims[0].is_learned &&
		NaradSetContains(&c->shard->suspects, offset);
	if (c->alone)
		NaradSuspectOut(c->shard, NaradLeaseFind(&c->shard->leases, offset));
}

/*
 * Claims up to `want` messages of the shard.  False if there are no more than
 * those claimed, for this call.
 */
static bool
claim_group(NaradConsumer *c, int want)
{
	NaradShard *shard = c->shard;
	NaradChoice choice = CHOICE_CLAIMED;

	/* All that may error, before the lock. */
	NaradXactReserve(want);
	while (c->nnonces < want)
		c->nonces[c->nnonces++] = NaradNonce();
	c->claimed_at = GetCurrentTimestamp();
	c->mark = NaradXactMark();
	c->nclaims = 0;
	c->alone = c->single = c->needs_mark = c->due_popped = false;
	c->filled = c->filled_ahead = c->leaves_alone = false;
	c->nturned = 0;

	LWLockAcquire(&shard->lock, LW_EXCLUSIVE);
	if (!NaradShardIsOf(shard, c->group_id))
	{
		LWLockRelease(&shard->lock);
		return false;
	}
	(void) NaradShardOvertake(shard,
							  pg_atomic_read_u64(&c->part->start_offset));
	read_ring(shard, c->part);
	c->end = pg_atomic_read_u64(&c->part->end_offset);
	c->generation = shard->generation;
	c->settled_end = shard->settled_end;
	c->scan = shard->scan_pos;
	c->scan_ended = false;
	c->single = one_by_one(c);
	if (c->single && shard->suspect_out != 0)
		choice = CHOICE_DRY;
	else if (c->single && c->ntaken > 0)
	{
		choice = CHOICE_DRY;
		c->leaves_alone = true;
	}
	else if (c->single)
		want = 1;
	while (c->nclaims < want && choice == CHOICE_CLAIMED && !c->alone)
		choice = claim_next(c);

	/* What was beyond the cap may have been passed over before a claim. */
	if (choice == CHOICE_DRY && c->filled_ahead)
		choice = CHOICE_CAPPED;
	if (c->single && c->nclaims == 1)
		claim_single(c);
	c->capped = choice == CHOICE_CAPPED;
	if (c->capped)
		shard->capped++;
	if (knows_returned(c) && !c->leaves_alone &&
		(choice == CHOICE_DRY ||
		 (c->capped &&
		  shard->leases.nstate[NARAD_LEASE_LEASED] < c->max_in_flight)))
		shard->capped_in_flight = false;
	shard->is_dry = is_dry_for_all(c, choice);
	shard->dry_in_flight = c->max_in_flight;
	shard->dry_acked_ahead = c->max_acked_ahead;
	shard->dry_deliveries = shard->policy.max_deliveries;

	/* Whatever comes of the claims, the next one is to be waited for. */
	if (c->due_popped)
		NaradShardDeadlineChanged(shard);
	LWLockRelease(&shard->lock);

	if (choice == CHOICE_NO_MEMORY)
		c->no_memory = true;
	return choice == CHOICE_CLAIMED;
}

/* ---------------------------------------------------------------- reading */

static int
compare_claims(const void *a, const void *b)
{
	const NaradClaim *x = a;
	const NaradClaim *y = b;

	if (x->offset != y->offset)
		return x->offset < y->offset ? -1 : 1;
	return 0;
}

/* By key: notes the key of a record that was read. */
static void
note_key(NaradConsumer *c, NaradClaim *read, const NaradRead *result)
{
	Datum		value;
	bool		isnull;
	text	   *key;

	if (result->tuple == NULL)
		return;
	value = heap_getattr(result->tuple, NARAD_ATTR_KEY,
						 RelationGetDescr(c->rel), &isnull);
	if (isnull)
		return;
	key = DatumGetTextPP(value);
	read->key = NaradKeyHashOf(VARDATA_ANY(key), VARSIZE_ANY_EXHDR(key));
	read->has_key = true;
	if ((Pointer) key != DatumGetPointer(value))
		pfree(key);
}

/*
 * Reads what was claimed, in the order of offsets, until the batch is full;
 * what was not read is given back later.  No narad lock is held.
 */
static void
read_group(NaradConsumer *c)
{
	int			ngood = 0;
	NaradOffset dead_from = 0;
	NaradOffset dead_to = 0;

	if (c->nclaims > 1)
		qsort(c->claims, c->nclaims, sizeof(NaradClaim), compare_claims);
	for (int i = 0; i < c->nclaims; i++)
	{
		NaradClaim *read = &c->claims[i];
		NaradRead	result;

		CHECK_FOR_INTERRUPTS();
		if (c->full || c->ntaken + ngood >= c->args->max_messages)
			break;
		if (read->offset >= dead_from && read->offset < dead_to)
		{
			/* Inside a run that is known; its first claim speaks for it. */
			read->status = NARAD_READ_DEAD;
			read->next = read->offset + 1;
			read->is_read = true;
			continue;
		}

		NaradReaderRead(c->reader, read->offset, &result);
		read->status = result.status;
		read->next = result.next;
		read->is_read = true;
		if ((result.extra.flags & NARAD_EXT_DUE) &&
			result.extra.due > c->claimed_at && read->is_first)
			read->due = result.extra.due;
		if (c->ordered && read->due == 0)
			note_key(c, read, &result);
		switch (result.status)
		{
			case NARAD_READ_OK:
				if (read->is_learned || read->due != 0)
					break;
				if (c->ntaken + ngood > 0 &&
					c->bytes + result.tuple->t_len > c->max_bytes)
				{
					read->status = NARAD_READ_INVISIBLE;
					c->full = true;
					break;
				}
				read->tuple = result.tuple;
				c->bytes += result.tuple->t_len;
				ngood++;
				break;
			case NARAD_READ_PENDING:
				read->recheck = !NaradHullAdopt(c->part, result.xid,
												read->offset);
				c->no_memory |= read->recheck && c->args->waiting;
				break;
			case NARAD_READ_OWN:
				/* Its hull may be in the ring of a file it was moved from. */
				read->recheck = !NaradHullAdopt(c->part, GetTopTransactionId(),
												read->offset);
				c->no_memory |= read->recheck && c->args->waiting;
				break;
			case NARAD_READ_DEAD:
			case NARAD_READ_CORRUPT:
				dead_from = read->offset;
				dead_to = result.next;
				break;
			default:
				break;
		}
	}
}

/* -------------------------------------------------------------- disposing */

/*
 * Makes available again, as it was before the claim, what this call does not
 * hand out.  With `recheck` it may be chosen by the next call; without, when
 * the ring tells of it.  One that was never delivered goes to `pending`, or,
 * for want of memory, to the FIFO without a delivery.
 */
static void
give_back(NaradShard *shard, NaradLease *lease, bool recheck)
{
	NaradOffset offset = lease->offset;

	if (lease->deliveries == 1 &&
		(offset >= shard->scan_pos || !NaradKeyHasTurn(shard, offset)))
	{
		/* The scan comes by again, or the line of its key gets there. */
		NaradShardRemoveLease(shard, lease);
	}
	else if (lease->deliveries == 1 && !NaradSuspectIsOut(shard, offset) &&
			 NaradSetReserve(&shard->pending, offset))
	{
		(void) NaradSetAdd(&shard->pending, offset);
		NaradShardRemoveLease(shard, lease);
		if (recheck)
			add_recheck(shard, offset, offset);
	}
	else
		NaradShardUnclaim(shard, lease, 0);
}

/*
 * Settles what else lies in a run of dead or damaged offsets: pending ones,
 * suspects that are not out, and those never looked at, in which case the rest
 * of the run is one range.  Without memory they are left to be looked at one by
 * one.  Returns how many.
 */
static uint64
settle_run(NaradConsumer *c, NaradOffset first, NaradOffset next)
{
	NaradShard *shard = c->shard;
	NaradOffset offset = first;
	NaradOffset seen = Max(shard->scan_pos, shard->frontier);
	NaradOffset unseen = seen < first ? next : Max(seen, first + 1);
	uint64		nsettled = 0;

	for (;;)
	{
		offset = NaradSetNextMember(&shard->pending, offset);
		if (offset == NARAD_INVALID_OFFSET || offset >= next)
			break;
		if (!NaradShardSettleRange(shard, offset, offset))
			break;
		nsettled++;
		offset++;
	}
	for (offset = NaradSetNextMember(&shard->suspects, first); offset < next;
		 offset = NaradSetNextMember(&shard->suspects, offset + 1))
	{
		NaradLease *lease = NaradLeaseFind(&shard->leases, offset);

		if (lease == NULL && NaradShardSettleRange(shard, offset, offset))
			nsettled += offset < unseen;
		else if (lease != NULL && lease->state == NARAD_LEASE_SUSPECT)
		{
			/* In no list: once the bit is gone nobody would find it. */
			NaradShardSettle(shard, offset);
			nsettled += offset < unseen;
		}
	}
	if (unseen < next && NaradShardSettleRange(shard, unseen, next - 1))
	{
		nsettled += next - unseen;
		shard->scan_pos = next;
	}
	return nsettled;
}

/*
 * By key: enters the key of an offset that another has in leases, or had: it
 * may be settled by now.  False if it could not be read or remembered.
 */
static bool
learn_key(NaradConsumer *c, const NaradClaim *done)
{
	NaradShard *shard = c->shard;

	if (!done->is_read)
		return false;
	if (done->offset < shard->frontier ||
		NaradSetContains(&shard->settled, done->offset))
		return true;
	if (done->has_key &&
		NaradKeyEnter(shard, done->key, done->offset) == NARAD_KEY_NO_MEMORY)
	{
		c->no_memory = c->keys_full = true;
		return false;
	}
	return true;
}

/*
 * By key: undoes a claim that was not read, or whose message has not the turn,
 * or cannot be put in line for want of memory.
 */
static void
undo_claim(NaradShard *shard, const NaradClaim *done, NaradLease *lease)
{
	NaradOffset offset = lease->offset;

	if (!done->is_scanned && !NaradKeyIsKnown(shard, offset))
	{
		/* It has no key, and was pending. */
		give_back(shard, lease, true);
		return;
	}
	if (lease->deliveries > 1)
		NaradShardUnclaim(shard, lease, 0);
	else
	{
		NaradShardRemoveLease(shard, lease);
		NaradKeyGiveBack(shard, offset);
	}
}

/*
 * By key: one that is its turn to us alone, and cannot be had, would be chosen
 * again.  One that is dead is settled, and the next of its key is to be tried,
 * though others of the group lie beyond.
 */
static void
note_own(NaradConsumer *c, const NaradClaim *done)
{
	if ((done->status == NARAD_READ_OK && done->due == 0) ||
		NaradKeyHasTurn(c->shard, done->offset))
		return;
	if (done->status == NARAD_READ_DEAD || done->status == NARAD_READ_CORRUPT)
		c->own_again = true;
	else
		c->own_from = Max(c->own_from, done->offset + 1);
}

/*
 * By key: is there anything left to be done with a claim, it being the
 * message's turn?  Those that were scanned come by offset; at the first that
 * was not read, or not put in line, the scan ends, and goes on there later.
 */
static bool
dispose_by_key(NaradConsumer *c, NaradClaim *done, NaradLease *lease)
{
	NaradShard *shard = c->shard;
	NaradKeyPlace place = NARAD_KEY_FREE;

	if (done->is_scanned && (c->scan_ended || !done->is_read))
		place = NARAD_KEY_NO_MEMORY;
	else if (done->is_learned)
		place = learn_key(c, done) ? NARAD_KEY_BLOCKED : NARAD_KEY_NO_MEMORY;
	else if (done->has_key)
	{
		place = NaradKeyEnter(shard, done->key, done->offset);
		if (place == NARAD_KEY_NO_MEMORY)
			c->no_memory = c->keys_full = true;
	}

	if (done->is_scanned)
	{
		if (place == NARAD_KEY_NO_MEMORY)
			c->scan_ended = true;
		else
			shard->scan_pos = Max(shard->scan_pos, done->offset + 1);
	}
	if (done->is_learned)
		return false;
	if (place == NARAD_KEY_FREE && done->is_read)
	{
		note_own(c, done);
		return true;
	}
	undo_claim(shard, done, lease);
	return false;
}

/*
 * Puts a message aside until it is due, as if it had not been claimed: nobody
 * can have had it.  Without memory its entry in leases stays, and waits in the
 * heap of those.  One that the scan is still to come by (a suspect, or one
 * that came back, since the scan began anew) is left to that: it would be put
 * aside twice.  Nobody knows its time until then, so who waits looks (I8).
 */
static void
delay_claim(NaradShard *shard, NaradLease *lease, TimestampTz due, int64 now,
			TimestampTz wall_now)
{
	NaradSuspectClear(shard, lease->offset);
	lease->deliveries--;
	if (lease->offset >= shard->scan_pos)
	{
		NaradShardRemoveLease(shard, lease);
		NaradShardMadeAvailable(shard, 1, false);
	}
	else if (NaradDueAdd(&shard->due, due, lease->offset))
		NaradShardRemoveLease(shard, lease);
	else
		NaradShardReturn(shard, lease, NARAD_END_NONE, now,
						 Max(due - wall_now, 1));
}

/* Leases, settles or gives back one claim.  Exclusive shard lock. */
static void
dispose_claim(NaradConsumer *c, NaradClaim *done, int64 now,
			  TimestampTz wall_now)
{
	NaradShard *shard = c->shard;
	NaradLease *lease = NaradLeaseFind(&shard->leases, done->offset);

	/* Gone when the group, or by retention the message, was dropped. */
	if (!done->is_learned && (lease == NULL || lease->nonce != done->nonce))
		return;
	if (c->ordered && !dispose_by_key(c, done, lease))
		return;

	switch (done->status)
	{
		case NARAD_READ_OK:
			if (done->due != 0)
			{
				delay_claim(shard, lease, done->due, now, wall_now);
				break;
			}
			/* The client has all of its time, however long reading took. */
			lease->leased_at = wall_now;
			if (lease->first_leased_at == 0)
				lease->first_leased_at = wall_now;
			lease->expires_at = wall_now + c->timeout;
			NaradLeaseSetDeadline(&shard->leases, lease,
								  NaradDeadline(now, c->timeout));
			done->deliveries = (int) lease->deliveries;
			shard->delivered++;
			NaradXactTake(shard, lease);
			break;
		case NARAD_READ_DEAD:
			NaradShardSettle(shard, done->offset);
			(void) settle_run(c, done->offset, done->next);
			break;
		case NARAD_READ_CORRUPT:
			NaradShardSettle(shard, done->offset);
			shard->corrupt += 1 + settle_run(c, done->offset, done->next);
			break;
		case NARAD_READ_PENDING:
		case NARAD_READ_OWN:
			/* Not committed, so nobody can have had it. */
			NaradSuspectClear(shard, done->offset);
			give_back(shard, lease, done->recheck);
			break;
		case NARAD_READ_INVISIBLE:
		case NARAD_READ_DROPPED:
		case NARAD_READ_END:
			c->suspect_left = c->suspect_left && !c->alone;
			give_back(shard, lease, true);
			break;
	}
}

/*
 * Transactions that ended since the visit began may be those whose records
 * were read as in progress.  When there were too many for the ring, any of
 * the group's may be ready.
 */
static void
recheck_ended(NaradConsumer *c)
{
	NaradRange	ended[NARAD_RING_SIZE];
	uint64		pos = c->ring_noted;
	int			nended;

	if (NaradRingRead(c->part, &pos, ended, NARAD_RING_SIZE, &nended))
	{
		for (int i = 0; i < nended; i++)
			add_recheck(c->shard, ended[i].first, ended[i].last);
		return;
	}
	for (int i = 0; i < c->nclaims; i++)
	{
		if (c->claims[i].status == NARAD_READ_PENDING ||
			c->claims[i].status == NARAD_READ_OWN)
			add_recheck(c->shard, c->claims[i].offset, c->claims[i].offset);
	}
}

/* Has the state page to know of the leases before they are handed out? */
static bool
wants_mark(const NaradConsumer *c)
{
	if (c->shard->policy.max_deliveries == 0)
		return false;
	for (int i = 0; i < c->nclaims; i++)
	{
		if (c->claims[i].deliveries > 0 &&
			(c->alone || c->claims[i].offset >= c->shard->handout_mark))
			return true;
	}
	return false;
}

/*
 * Who was woken for a message while it was claimed here found nothing, and
 * sleeps again: whatever is available again is told anew (I8).  Not what could
 * only be looked at in vain, for want of memory: a waiter errors then.
 */
static void
serve_given_back(NaradConsumer *c)
{
	uint64		ngiven = 0;
	int			where;

	for (int i = 0; i < c->nclaims; i++)
	{
		switch (c->claims[i].status)
		{
			case NARAD_READ_INVISIBLE:
				ngiven++;
				break;
			case NARAD_READ_PENDING:
			case NARAD_READ_OWN:
				if (!c->claims[i].recheck &&
					next_recheck(c->shard, c->claims[i].offset,
								 &where) == c->claims[i].offset)
					ngiven++;
				break;
			default:
				break;
		}
	}
	if (ngiven > 0)
		NaradShardMadeAvailable(c->shard, ngiven, false);
}

/*
 * The group's own claims met a cap.  Only now is it known whether they are
 * leases: if they were counted before, those that come to nothing would wake
 * whoever waits for the cap, and this consumer itself, time and again.  If all
 * of them are and there is room, another made it meanwhile, of which nobody
 * was told.  If some are not, this call looks again, and at those of the FIFO,
 * too, that were beyond the cap: they are before what was given back to it.
 */
static void
end_filled(NaradConsumer *c)
{
	NaradShard *shard = c->shard;
	bool		is_full = false;
	bool		is_ahead = false;

	if (c->filled &&
		shard->leases.nstate[NARAD_LEASE_LEASED] >= c->max_in_flight)
		is_full = shard->capped_in_flight = true;
	if (c->filled_ahead && shard->nholes >= c->max_acked_ahead &&
		shard->settled_end == c->settled_end)
	{
		is_ahead = true;
		NaradShardStopAhead(shard, c->max_acked_ahead);
	}

	/* Behind what ended the group, max_in_flight, nothing was looked at. */
	if (is_full || (is_ahead && !c->filled))
		return;
	for (int i = 0; i < c->nclaims; i++)
	{
		if (c->claims[i].deliveries == 0)
		{
			shard->is_dry = false;
			c->returned_left = Min(c->returned_left + c->nturned,
								   shard->leases.nstate[NARAD_LEASE_RETURNED]);
			return;
		}
	}
	NaradShardMadeAvailable(shard, 1, c->filled_ahead);
}

/*
 * By key: reading stops when the batch is full, and it may not be, since one
 * that counted has not the turn.  So what was given back because of that is
 * chosen from again: of the FIFO only if some of it was, since all of that is
 * looked at.  Each such group puts a message in line, so this ends; without
 * memory for that nothing is chosen again.
 */
static void
end_unread(NaradConsumer *c)
{
	bool		all_taken = true;
	bool		returned = false;

	for (int i = 0; i < c->nclaims; i++)
	{
		if (c->claims[i].tuple != NULL && c->claims[i].deliveries == 0)
		{
			all_taken = false;
			c->bytes -= c->claims[i].tuple->t_len;
		}
	}
	if (all_taken || c->keys_full)
		return;
	c->full = false;
	for (int i = 0; i < c->nclaims; i++)
	{
		NaradClaim *unread = &c->claims[i];

		if (unread->status != NARAD_READ_INVISIBLE)
			continue;
		c->look_from = Min(c->look_from, unread->offset);
		returned |= !unread->is_first && !unread->is_scanned;
	}
	if (returned)
		measure_returned(c);
}

/*
 * Disposes of all claims of the group: only leases remain, and actions for
 * those alone.  Room for them was reserved with the claims.
 */
static void
dispose_group(NaradConsumer *c)
{
	NaradShard *shard = c->shard;
	TimestampTz wall_now = GetCurrentTimestamp();
	int64		now = NaradClockNow();

	LWLockAcquire(&shard->lock, LW_EXCLUSIVE);
	NaradXactForget(c->mark);
	if (NaradShardIsOf(shard, c->group_id) &&
		shard->generation == c->generation)
	{
		(void) NaradShardOvertake(shard,
								  pg_atomic_read_u64(&c->part->start_offset));
		c->own_again = false;
		for (int i = 0; i < c->nclaims; i++)
			dispose_claim(c, &c->claims[i], now, wall_now);
		if (c->own_again)
			c->own_from = 0;
		if (c->ordered)
			end_unread(c);
		if (c->alone && c->claims[0].deliveries == 0)
			NaradSuspectNotOut(shard, c->claims[0].offset);
		recheck_ended(c);
		NaradShardDeadlineChanged(shard);
		serve_given_back(c);
		if (c->filled || c->filled_ahead)
			end_filled(c);
		c->needs_mark = wants_mark(c);
	}
	LWLockRelease(&shard->lock);
}

/* The state page comes to know what is about to be handed out. */
static void
mark_group(NaradConsumer *c)
{
	NaradOffset end = 0;

	if (!c->needs_mark)
		return;
	for (int i = 0; i < c->nclaims; i++)
	{
		if (c->claims[i].deliveries > 0)
			end = Max(end, c->claims[i].offset + 1);
	}
	NaradStateMark(c->rel, c->info, c->shard, c->group_id, c->generation, end);
}

/* Hands the leased ones to the caller. */
static void
emit_group(NaradConsumer *c)
{
	NaradReceipt receipt;

	receipt.topic_id = c->topic->topic_id;
	receipt.group_id = c->group_id;
	receipt.partition = c->shard->partition;
	for (int i = 0; i < c->nclaims; i++)
	{
		NaradClaim *leased = &c->claims[i];
		NaradMessage message;

		if (leased->deliveries == 0)
			continue;
		receipt.offset = leased->offset;
		receipt.nonce = leased->nonce;
		NaradReceiptFormat(&receipt, message.receipt);
		message.partition = c->shard->partition;
		message.offset = leased->offset;
		message.deliveries = leased->deliveries;
		message.tuple = leased->tuple;
		c->emit(&message, c->emit_arg);
		c->ntaken++;
	}
	NaradReaderReset(c->reader);
}

/* ----------------------------------------------------------- the whole call */

/* The reader of the visit. */
static NaradReader *
visit_reader(NaradConsumer *c)
{
	if (c->reader == NULL)
	{
		c->reader = NaradReaderBegin(c->rel, c->info, c->shard->partition,
									 c->snapshot);
		if (c->ordered)
			NaradReaderShowAll(c->reader);
	}
	return c->reader;
}

/*
 * By key: reads some of what is in line and not remembered, for a key whose
 * turn nobody else has.  False if there is no such key.
 */
static bool
refill_line(NaradConsumer *c)
{
	NaradShard *shard = c->shard;
	NaradOffset offsets[MAX_CLAIMS];
	NaradClaim	read[MAX_CLAIMS];
	uint64		key = 0;
	uint32		generation;
	int			noffsets = 0;
	bool		room = true;

	LWLockAcquire(&shard->lock, LW_EXCLUSIVE);
	if (NaradShardIsOf(shard, c->group_id))
		noffsets = NaradKeyRefillNext(shard, &key, offsets, MAX_CLAIMS);
	generation = shard->generation;
	LWLockRelease(&shard->lock);
	if (noffsets == 0)
		return false;

	memset(read, 0, sizeof(read));
	for (int i = 0; i < noffsets; i++)
	{
		NaradRead	result;

		NaradReaderRead(visit_reader(c), offsets[i], &result);
		read[i].status = result.status;
		note_key(c, &read[i], &result);
		NaradReaderReset(c->reader);
	}

	LWLockAcquire(&shard->lock, LW_EXCLUSIVE);
	if (!NaradShardIsOf(shard, c->group_id) ||
		shard->generation != generation)
		noffsets = 0;
	for (int i = 0; i < noffsets && room; i++)
	{
		if (read[i].status == NARAD_READ_DEAD ||
			read[i].status == NARAD_READ_CORRUPT)
			room = NaradShardSettleRange(shard, offsets[i], offsets[i]);
		if (room)
			room = NaradKeyRefill(shard, key, offsets[i],
								  read[i].has_key && read[i].key == key);
	}
	LWLockRelease(&shard->lock);
	c->no_memory |= !room;
	return room;
}

/*
 * What a visit begins with: due leases come back, and the FIFO is measured, so
 * that what is given back into it is not met again.
 */
static void
begin_visit(NaradConsumer *c, int partition)
{
	NaradShard *shard;

	shard = NaradShardGet(c->rel, c->info, c->topic, c->group, c->group_id,
						  partition);
	c->shard = shard;
	c->part = NaradLogPartitionGet(c->info->shared, partition);
	c->look_from = 0;
	c->own_from = 0;
	NaradHullPoll(c->part);
	c->ring_noted = NaradRingHead(c->part);

	c->returned_left = 0;
	c->suspect_left = true;
	c->keys_full = false;
	/* Keys that ran out of line are served, too, when there is more to take. */
	if (c->ordered)
	{
		LWLockAcquire(&shard->scan_lock, LW_EXCLUSIVE);
		(void) refill_line(c);
		LWLockRelease(&shard->scan_lock);
	}
	NARAD_STOP("consume-visit");

	LWLockAcquire(&shard->lock, LW_EXCLUSIVE);
	if (NaradShardIsOf(shard, c->group_id))
	{
		shard->policy = c->policy;
		if (shard->keys.ordered != c->ordered)
		{
			NaradKeySetOrdered(shard, c->ordered);
			c->group->wait.ordered = c->ordered;
			if (!c->ordered)
				NaradSuspectsApart(shard);
		}
		if (c->ordered)
			NaradSuspectsInLine(shard);
		NaradShardExpire(shard, NaradClockNow(), NARAD_MAX_EXPIRED);
		c->nmade = shard->nmade;
		measure_returned(c);
	}
	LWLockRelease(&shard->lock);
}

/*
 * Claims up to `want` messages, reads them and disposes of the claims.  False
 * if there are no more, or none.  By key, nobody else does so meanwhile.
 */
static bool
take_group(NaradConsumer *c, int want)
{
	bool		more;

	if (c->ordered)
		LWLockAcquire(&c->shard->scan_lock, LW_EXCLUSIVE);
	more = claim_group(c, want);
	if (c->nclaims > 0)
	{
		NARAD_STOP("consume-claimed");
		NARAD_FAIL("consume-unread");
		NaradReaderExpect(visit_reader(c), c->nclaims);
		read_group(c);
		NARAD_STOP("consume-read");
		if (!c->args->waiting)
			NARAD_STOP("consume-read-no-wait");
		dispose_group(c);
		/* Other claims may have become possible by these. */
		more |= c->ordered && !c->no_memory && !c->capped;
	}
	else if (c->ordered && !more)
		more = refill_line(c);
	if (c->ordered)
		LWLockRelease(&c->shard->scan_lock);
	return more;
}

/*
 * What was taken of a partition, and that it is dry, ends promises.  The message
 * that this backend itself was woken for was promised to nobody else.
 */
static void
end_holds(NaradConsumer *c, int partition, int ntaken, bool dry)
{
	if (c->was_woken && ntaken > 0 &&
		(c->woken_for < 0 || c->woken_for == partition))
	{
		c->was_woken = false;
		ntaken--;
	}
	c->all_dry &= dry;
	NaradWaitEndHolds(c->group, partition, ntaken, dry);
}

/*
 * By key: what is left is, perhaps, the turn of a transaction that has acked
 * what comes before, and sleeps.  Whoever else was told of it finds nothing,
 * and tells that one.  Who was told so tells nobody in his turn, however often
 * he looks: or else two of them would keep each other awake.  The shard lock
 * is held exclusively.
 */
static void
tell_owners(NaradShard *shard)
{
	int			pids[NARAD_MAX_PASSED];
	int			npids;

	if (dlist_is_empty(&shard->keys.passed) || NaradWaitWokenAsOwner())
		return;
	npids = NaradKeyOwners(shard, pids);
	if (npids > 0)
		NaradWaitServeOwners(shard->group, shard->partition, pids, npids);
}

/* This call has found all there was for it in an ordered shard. */
static void
end_dry_visit(NaradConsumer *c)
{
	LWLockAcquire(&c->shard->lock, LW_EXCLUSIVE);
	if (NaradShardIsOf(c->shard, c->group_id))
		tell_owners(c->shard);
	LWLockRelease(&c->shard->lock);
}

/*
 * Takes what one partition has, until it is dry or capped or the batch full.
 * A group that yields nothing is followed by a larger one, so that a long run
 * of unreadable records is not stepped over one by one.
 */
static void
consume_partition(NaradConsumer *c, int partition)
{
	int			least = 1;		/* claims, however few are wanted */
	bool		more = true;
	bool		dry;
	int			ntaken_before = c->ntaken;

	c->reader = NULL;
	begin_visit(c, partition);
	NARAD_STOP("consume-visited");
	while (more && !c->full && c->ntaken < c->args->max_messages)
	{
		int			ntaken = c->ntaken;
		int			want = Max(c->args->max_messages - ntaken, least);

		CHECK_FOR_INTERRUPTS();
		more = take_group(c, Min(want, MAX_CLAIMS));
		mark_group(c);
		if (c->nclaims > 0)
			emit_group(c);

		/* Claims that came to nothing count against the cap no more. */
		if (c->capped && c->ntaken - ntaken < c->nclaims)
			more = true;
		if ((c->alone || c->single) && c->ntaken > ntaken)
			c->full = true;
		least = c->ntaken == ntaken ? Min(least * 2, MAX_CLAIMS) : 1;
	}

	/* What is handed out is flushed to disk first. */
	if (c->reader != NULL)
		NaradReaderEnd(c->reader);
	dry = !more && !c->full && !c->no_memory && !c->leaves_alone &&
		c->snapshot == NULL;
	if (dry && c->ordered)
		end_dry_visit(c);
	end_holds(c, partition, c->ntaken - ntaken_before, dry);
}

static void
check_partition(NaradConsumer *c)
{
	int			partition = c->args->partition;

	if (partition >= c->info->npartitions || partition < -1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("partition %d of topic \"%s\" does not exist",
						partition, RelationGetRelationName(c->rel)),
				 errdetail("The topic has partitions 0 to %d.",
						   c->info->npartitions - 1)));
}

/*
 * Is there certainly nothing to take in a partition?  Nobody ever used it, or
 * all that it has is settled.  Takes no lock: with many partitions most calls
 * find most of them so.
 */
static bool
has_nothing(NaradConsumer *c, int partition)
{
	NaradLogPartition *part = NaradLogPartitionFind(c->info->shared,
													partition);
	NaradShard *shard;
	NaradOffset end;

	if (part == NULL)
		return true;
	end = pg_atomic_read_u64(&part->end_offset);
	shard = NaradShardFind(c->group, c->group_id, partition);
	return shard != NULL &&
		*(volatile NaradOffset *) &shard->frontier >= end;
}

/*
 * Visits the partitions, from the one after where the last call began; or from
 * that for which this backend was woken.
 */
static void
consume_partitions(NaradConsumer *c)
{
	int			npartitions = c->info->npartitions;
	uint32		start;

	c->was_woken = NaradWaitWoken(&c->woken_for);
	c->all_dry = true;
	if (c->args->partition >= 0)
	{
		consume_partition(c, c->args->partition);
		return;
	}
	if (c->was_woken && c->woken_for >= 0)
		start = c->woken_for;
	else
		start = pg_atomic_fetch_add_u32(&c->group->next_partition, 1);
	for (int i = 0; i < npartitions; i++)
	{
		int			partition = (int) ((start % npartitions + i) % npartitions);

		if (c->full || c->ntaken >= c->args->max_messages)
			return;
		if (!has_nothing(c, partition))
			consume_partition(c, partition);
	}
	if (c->all_dry)
		NaradWaitEndHolds(c->group, -1, 0, true);
}

/*
 * Leases up to max_messages messages for a group and hands each to `emit`,
 * with a receipt; returns how many.  The caller holds RowExclusiveLock on the
 * topic until the transaction's end, has checked privileges and that the
 * transaction may write, and has an active snapshot; `info` has its shared
 * part.  `emit` takes and settles nothing.
 *
 * In READ COMMITTED whatever is committed is taken; otherwise only what the
 * transaction's snapshot sees.  Errors: 42704 for an unknown group, 22023 for
 * a partition, 53200 if nothing could be taken for want of shared memory.
 * After an error all that was taken is given back, and no delivery counted,
 * when the (sub)transaction ends.
 */
int
NaradConsume(Relation rel, NaradRelInfo *info, const NaradConsumeArgs *args,
			 NaradMessageEmit emit, void *arg)
{
	NaradConsumer *c = palloc(sizeof(NaradConsumer));
	NaradRelInfo own_info = *info;
	const NaradTopicSettings *settings;
	int			mark = NaradXactMark();
	int			ntaken;

	Assert(info->shared != NULL && args->max_messages >= 1);

	memset(c, 0, offsetof(NaradConsumer, claims));

	/* Copies: the originals may go with the next invalidation. */
	settings = NaradTopicSettingsGet(rel);
	c->max_in_flight = settings->max_in_flight;
	c->max_acked_ahead = settings->max_acked_ahead;
	NaradRetryPolicyGet(settings, &c->policy);
	c->ordered = settings->ordered;
	c->rel = rel;
	c->info = &own_info;
	c->args = args;
	c->emit = emit;
	c->emit_arg = arg;
	c->timeout = NaradDeadline(0, args->visibility_timeout);
	c->max_bytes = (Size) narad_max_batch_size * 1024;
	if (IsolationUsesXactSnapshot())
		c->snapshot = GetTransactionSnapshot();

	NaradLogTopicKeep(rel);
	c->topic = NaradQueueTopicGet(rel, c->info);
	check_partition(c);
	c->group = NaradGroupGet(rel, c->info, c->topic, args->group,
							 &c->group_id);
	if (!c->group->paused)
		consume_partitions(c);
	if (c->ntaken == 0 && c->no_memory)
		NaradReportOutOfMemory("leases");

	NaradXactDelivered(mark);
	ntaken = c->ntaken;
	if (ntaken == 0)
		NaradLogTopicUnkeep(RelationGetRelid(rel));
	pfree(c);
	return ntaken;
}

/* -------------------------------------------------------------- a mere look */

/* Has a look found the shard dry, with settings that allowed as much? */
static bool
is_known_dry(const NaradShard *shard, const NaradTopicSettings *settings)
{
	return shard->is_dry &&
		(uint32) settings->max_deliveries == shard->dry_deliveries &&
		(uint32) settings->max_in_flight <= shard->dry_in_flight &&
		(uint32) settings->max_acked_ahead <= shard->dry_acked_ahead;
}

/*
 * With max_acked_ahead used up: may there be something below the highest
 * settled offset?
 */
static bool
has_some_below_cap(NaradShard *shard, NaradLogPartition *part,
				   const NaradTopicSettings *settings)
{
	NaradOffset end = pg_atomic_read_u64(&part->end_offset);
	int			where;

	if (!is_known_dry(shard, settings) ||
		Max(shard->scan_pos, shard->frontier) < Min(shard->settled_end, end))
		return true;
	read_ring(shard, part);
	return next_recheck(shard, 0, &where) < shard->settled_end;
}

/* With room under both caps: may there be anything? */
static bool
has_some(NaradShard *shard, NaradLogPartition *part,
		 const NaradTopicSettings *settings)
{
	const NaradDue *delayed = NaradDueFirst(&shard->due);
	NaradOffset end = pg_atomic_read_u64(&part->end_offset);
	int			where;

	if (shard->frontier >= end)
		return false;
	if (shard->scan_pos < end || shard->ring_pos != NaradRingHead(part) ||
		next_recheck(shard, 0, &where) != NARAD_INVALID_OFFSET)
		return true;
	return !is_known_dry(shard, settings) &&
		(shard->leases.nstate[NARAD_LEASE_RETURNED] > 0 ||
		 shard->keys.ready_root != NULL ||
		 (delayed != NULL && delayed->due <= GetCurrentTimestamp()) ||
		 shard->suspects.nmembers > 0 ||
		 !dlist_is_empty(&shard->keys.refill));
}

/*
 * May this shard have something for a consumer?  If a cap is in the way, that
 * is noted for whoever makes room: a consumer that took all there was has met
 * none.
 */
static bool
shard_is_ready(NaradShard *shard, NaradGroupId group_id,
			   NaradLogPartition *part, const NaradTopicSettings *settings)
{
	bool		ready = false;

	LWLockAcquire(&shard->lock, LW_EXCLUSIVE);
	if (NaradShardIsOf(shard, group_id))
	{
		NaradShardExpire(shard, NaradClockNow(), NARAD_MAX_EXPIRED);
		if (shard->leases.nstate[NARAD_LEASE_LEASED] >=
			(uint32) settings->max_in_flight)
			shard->capped_in_flight = true;
		else if (settings->ordered != shard->keys.ordered)
			ready = shard->frontier < pg_atomic_read_u64(&part->end_offset);
		else if (shard->suspect_out != 0 && shard->keys.ordered &&
				 settings->max_deliveries > 0)
			ready = false;		/* one at a time */
		else if (shard->nholes >= (uint32) settings->max_acked_ahead)
		{
			ready = has_some_below_cap(shard, part, settings);
			if (!ready)
				NaradShardStopAhead(shard, settings->max_acked_ahead);
		}
		else
			ready = has_some(shard, part, settings);
		if (!ready)
			tell_owners(shard);
	}
	LWLockRelease(&shard->lock);
	return ready;
}

/*
 * Whether a consume of the group may find something: whether anything was
 * appended, came back, or ended since one found nothing, or the settings allow
 * more; notes the caps that are in the way.  The caller holds
 * RowExclusiveLock on the topic and no narad lock.  Errors as NaradConsume.
 */
bool
NaradConsumeIsReady(Relation rel, NaradRelInfo *info, const char *group_name)
{
	NaradRelInfo own_info = *info;
	NaradTopicSettings settings = *NaradTopicSettingsGet(rel);
	NaradQueueTopic *topic = NaradQueueTopicGet(rel, &own_info);
	NaradGroupId group_id;
	NaradGroup *group = NaradGroupGet(rel, &own_info, topic, group_name,
									  &group_id);

	if (group->paused)
		return false;
	for (int i = 0; i < own_info.npartitions; i++)
	{
		NaradLogPartition *part = NaradLogPartitionFind(own_info.shared, i);
		NaradShard *shard;

		CHECK_FOR_INTERRUPTS();
		if (part == NULL)
			continue;
		shard = NaradShardGet(rel, &own_info, topic, group, group_id, i);
		NaradHullPoll(part);
		if (shard_is_ready(shard, group_id, part, &settings))
			return true;
	}
	return false;
}
