/*-------------------------------------------------------------------------
 *
 * queue_xact.c
 *	  What a transaction took and settled, and what becomes of it at its end.
 *
 * Owns:       the backend's list of actions, from its first take or ack to
 *			   the end of the top transaction.
 * Invariants: I5: an ack takes effect if and only if its transaction commits,
 *			   and pins the lease until then.  I4: an action touches a lease
 *			   only when the nonce is still the one it was made with.
 * Locks:      shard locks, one at a time, each given up now and then, since
 *			   the list may be long; no other lock is held.  The
 *			   transaction holds RowExclusiveLock on each topic in the list,
 *			   until after the callbacks: so topics, groups and shards stay.
 *			   What a rolled back subtransaction locked is released after its
 *			   actions are gone.
 * Runs in:    any backend; the callbacks also at a FATAL exit.
 * WAL:        at PRE_COMMIT through queue_state.c: the journal of acks.
 * On error:   Reserve and PRE_COMMIT may error, and the transaction aborts.
 *			   The callbacks of commit and abort neither allocate nor error.
 *
 * The list is a stack: each action carries the nesting level it belongs to; a
 * subtransaction that commits hands its own to its parent, one that aborts
 * undoes its own, which are the last, and pops them.
 *
 * A lease may be pinned more than once in a transaction (ack, then nack under
 * a savepoint).  The last word wins: the lease names the last action on it,
 * and each action the one before it, so that undoing one brings back the
 * other.
 *
 *					commit					rollback
 *		TAKE		stays leased			returned; no delivery is counted
 *											if the consume call failed
 *		ACK			settled					leased as before, or returned if
 *		NACK		returned or delayed		its taker rolled back meanwhile
 *		MOVE		settled					a dead letter again, to be tried later
 *
 * At a rollback pins are undone before takes: what this transaction both took
 * and acked is first a plain lease again, and then returned.
 *
 * Commit is published in this order: the journal entry and the commit record
 * are in WAL; then the transaction is no longer in progress; then, here, the
 * shard is settled.  Whoever folds the journal between the last two settles
 * the offsets himself, and we find no lease.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "base/base_guc.h"
#include "base/base_lock.h"
#include "base/base_memory.h"
#include "base/base_stop.h"
#include "log/log_tableam.h"
#include "queue/queue_deadletter.h"
#include "queue/queue_dirty.h"
#include "queue/queue_settle.h"
#include "queue/queue_state.h"
#include "queue/queue_xact.h"

/*
 * A lease gets so long after a rollback to savepoint, if its time is over.  Also
 * when all of the transaction is rolled back with the savepoint open: the
 * server undoes that first, and nobody can tell yet what follows.
 */
#define SAVEPOINT_GRACE		(5 * INT64CONST(1000000))

/* A list larger than this is not kept for the next transaction. */
#define MAX_KEPT_ACTIONS	4096

#define NO_ACTION			PG_UINT32_MAX

typedef struct NaradAction
{
	NaradShard *shard;
	NaradOffset offset;
	uint64		nonce;
	int64		delay;			/* NACK: us, or NARAD_RETRY_DELAY */
	char	   *reason;			/* NACK: from NaradAlloc, or NULL */
	NaradGroupId group_id;		/* the shard's, when made */
	uint32		generation;		/* same */
	uint32		prev;			/* the pin before this one on the same lease */
	int			nest_level;
	uint8		kind;			/* NaradActionKind */
	bool		superseded;		/* there is a later pin on the lease */
	bool		delivered;		/* TAKE: the consume call has ended well */
} NaradAction;

/* For PRE_COMMIT: an ack that takes effect. */
typedef struct NaradAckedOffset
{
	NaradShard *shard;
	NaradGroupId group_id;
	uint32		generation;
	NaradOffset offset;
} NaradAckedOffset;

static NaradAction *actions = NULL;
static int	nactions = 0;
static int	max_actions = 0;

/* This transaction called seek, be it in a subtransaction that is undone. */
static bool has_sought = false;

/* ------------------------------------------------------- making the list */

/*
 * Makes room for n more actions, and for what the callbacks of commit and
 * abort do: they free shared memory, so this process attaches to it now.  May
 * error for want of memory; call it before a lock is taken.
 */
void
NaradXactReserve(int n)
{
	Size		want = (Size) nactions + n;

	(void) NaradMemoryArea();
	if (want <= max_actions)
		return;
	want = Max(want, Max(64, (Size) max_actions * 2));
	want = Min(want, PG_INT32_MAX);
	if (actions == NULL)
		actions = MemoryContextAllocHuge(TopMemoryContext,
										 want * sizeof(NaradAction));
	else
		actions = repalloc_huge(actions, want * sizeof(NaradAction));
	max_actions = (int) want;
}

static NaradAction *
add_action(NaradActionKind kind, NaradShard *shard, const NaradLease *lease)
{
	NaradAction *action = &actions[nactions];

	Assert(nactions < max_actions);
	memset(action, 0, sizeof(NaradAction));
	action->kind = kind;
	action->shard = shard;
	action->offset = lease->offset;
	action->nonce = lease->nonce;
	action->group_id = shard->group_id;
	action->generation = shard->generation;
	action->nest_level = GetCurrentTransactionNestLevel();
	action->prev = NO_ACTION;
	nactions++;
	return action;
}

/*
 * Remembers that this transaction took a lease.  Room was reserved.  Until
 * NaradXactDelivered says otherwise, a rollback takes back the delivery too.
 */
void
NaradXactTake(NaradShard *shard, const NaradLease *lease)
{
	add_action(NARAD_ACTION_TAKE, shard, lease);
}

/*
 * What this transaction has acked is settled to itself, as far as the order by
 * key is concerned; what it has nacked is not.
 */
static void
pass_key(const NaradAction *action, NaradLease *lease)
{
	lease->is_acked = action->kind == NARAD_ACTION_ACK;
	if (lease->is_acked)
		NaradKeyPass(action->shard, action->offset);
	else
		NaradKeyUnpass(action->shard, action->offset);
}

/*
 * Pins a live lease, or one this transaction has pinned already, as acked or
 * nacked; or a dead letter, as on its way.  Saying the same twice is nothing.
 * The reason is ours from here on.  Room for one action was reserved; the
 * shard lock is held exclusively.
 */
void
NaradXactPin(NaradActionKind kind, NaradShard *shard, NaradLease *lease,
			 int64 delay, char *reason)
{
	NaradAction *action;
	uint32		prev = NO_ACTION;

	if (lease->state == NARAD_LEASE_PINNED)
	{
		Assert(lease->pinner == MyProcPid && lease->pin_action < nactions);
		prev = lease->pin_action;
		if (actions[prev].kind == kind && actions[prev].delay == delay &&
			actions[prev].reason == NULL && reason == NULL)
			return;
		actions[prev].superseded = true;
	}

	action = add_action(kind, shard, lease);
	action->delay = delay;
	action->reason = reason;
	action->prev = prev;
	lease->pinner = MyProcPid;
	lease->pin_action = nactions - 1;
	if (prev == NO_ACTION)
	{
		NaradLeaseSetState(&shard->leases, lease, NARAD_LEASE_PINNED);
		NaradShardCountHole(shard, lease);
		NaradShardCapOpened(shard);
	}
	pass_key(action, lease);
}

/*
 * The place of the next action.
 */
int
NaradXactMark(void)
{
	return nactions;
}

/*
 * Forgets the takes made since a mark, without undoing them.
 */
void
NaradXactForget(int mark)
{
	Assert(mark <= nactions);
#ifdef USE_ASSERT_CHECKING
	for (int i = mark; i < nactions; i++)
		Assert(actions[i].kind == NARAD_ACTION_TAKE);
#endif
	nactions = mark;
}

/*
 * The messages taken since a mark go to the client: from now on they count as
 * delivered, whatever becomes of the transaction.
 */
void
NaradXactDelivered(int mark)
{
	for (int i = mark; i < nactions; i++)
		actions[i].delivered = true;
}

/*
 * This transaction has moved a group.
 */
void
NaradXactSought(void)
{
	has_sought = true;
}

static void
reset_actions(void)
{
	nactions = 0;
	has_sought = false;
	if (max_actions > MAX_KEPT_ACTIONS)
	{
		pfree(actions);
		actions = NULL;
		max_actions = 0;
	}
}

/* ------------------------------------------------------------ its effects */

/* The shard whose lock is held. */
typedef struct ShardHold
{
	NaradShard *shard;			/* or NULL */
	int			ndone;			/* actions since the lock was taken */
	int64		now;			/* monotonic us: when it was */
} ShardHold;

/*
 * Holds the lock of a shard for the next action; of NULL, none.  However long the
 * list is, others come in between: each action by itself leaves the shard as
 * it may be.
 */
static void
hold_shard(ShardHold *hold, NaradShard *wanted)
{
	if (hold->shard == wanted && hold->ndone < NARAD_LOCK_STEPS)
	{
		hold->ndone++;
		return;
	}
	if (hold->shard != NULL && hold->shard == wanted)
	{
		NaradLockLeave(&wanted->lock);
		NARAD_STOP("actions-between");
	}
	else if (hold->shard != NULL)
		LWLockRelease(&hold->shard->lock);
	if (wanted != NULL)
		LWLockAcquire(&wanted->lock, LW_EXCLUSIVE);
	hold->shard = wanted;
	hold->ndone = 1;
	hold->now = NaradClockNow();
}

/*
 * The lease that an action was made on, or NULL when that is gone: expired,
 * settled by a fold of the journal, or its group dropped, and the shard perhaps
 * another's.
 */
static NaradLease *
action_lease(const NaradAction *action)
{
	NaradShard *shard = action->shard;
	NaradLease *lease;

	if (!NaradShardIsOf(shard, action->group_id) ||
		shard->generation != action->generation)
		return NULL;
	lease = NaradLeaseFind(&shard->leases, action->offset);
	if (lease == NULL || lease->nonce != action->nonce)
		return NULL;
	return lease;
}

/* Is this action the one that holds the pin of the lease? */
static bool
holds_pin(const NaradAction *action, const NaradLease *lease)
{
	return lease->state == NARAD_LEASE_PINNED &&
		lease->pinner == MyProcPid &&
		lease->pin_action == action - actions;
}

/* The last word on a pinned lease, with its transaction committed. */
static void
commit_pin(NaradAction *action, NaradLease *lease, int64 now)
{
	NaradShard *shard = action->shard;

	switch (action->kind)
	{
		case NARAD_ACTION_ACK:
			shard->acked++;
			NaradShardSettle(shard, action->offset);
			break;
		case NARAD_ACTION_MOVE:
			NaradDeadLetterMoved(shard);
			NaradShardSettle(shard, action->offset);
			break;
		default:
			if (action->reason != NULL)
				NaradLeaseSetReason(lease, action->reason);
			action->reason = NULL;
			NaradShardReturn(shard, lease, NARAD_END_NACKED, now,
							 action->delay);
			break;
	}
}

static void
commit_action(NaradAction *action, int64 now)
{
	NaradLease *lease = action_lease(action);

	if (lease != NULL && action->kind == NARAD_ACTION_TAKE)
		lease->taker_open = false;
	else if (lease != NULL && holds_pin(action, lease))
		commit_pin(action, lease, now);
	NaradFree(action->reason);
	action->reason = NULL;
}

/*
 * Takes back an ack or nack.  The lease is then pinned by the action before
 * it, or leased with its old deadline (after a rollback to savepoint at least
 * the grace), or, when whoever took it has rolled back meanwhile, returned.
 * One that this transaction took, which ends, is returned by undo_take, in its
 * turn; until then its time is not over, be it past its deadline, or be that in
 * the middle of a long list, for nobody else could have had it.
 */
static void
undo_pin(const NaradAction *action, int64 now, bool is_sub)
{
	NaradShard *shard = action->shard;
	NaradLease *lease = action_lease(action);

	if (action->prev != NO_ACTION)
		actions[action->prev].superseded = false;
	if (lease == NULL || !holds_pin(action, lease))
		return;
	if (action->prev != NO_ACTION)
	{
		lease->pin_action = action->prev;
		pass_key(&actions[action->prev], lease);
		return;
	}

	NaradKeyUnpass(shard, action->offset);
	lease->is_acked = false;
	lease->pinner = 0;
	lease->pin_action = 0;
	if (action->kind == NARAD_ACTION_MOVE)
	{
		NaradDeadLetterFailed(shard, lease, now);
		return;
	}
	if (lease->taker_aborted)
	{
		NaradShardReturn(shard, lease, NARAD_END_ROLLED_BACK, now,
						 NARAD_RETRY_DELAY);
		return;
	}
	if (is_sub ? lease->deadline <= now :
		lease->taker_open && lease->pid == MyProcPid &&
		lease->deadline <= now + SAVEPOINT_GRACE)
	{
		lease->deadline = now + SAVEPOINT_GRACE;
		lease->expires_at = GetCurrentTimestamp() + SAVEPOINT_GRACE;
	}
	NaradLeaseSetState(&shard->leases, lease, NARAD_LEASE_LEASED);
	NaradShardCountHole(shard, lease);
	NaradShardDeadlineChanged(shard);
}

/*
 * Gives back a lease, as by a nack without a delay; or, when no client has seen
 * the message, as if it had not been taken; or, when it is over and nobody came
 * by since, as whoever came by would have.  When another transaction has it
 * pinned, that one's end decides: settled, or returned for us.
 */
static void
undo_take(const NaradAction *action, int64 now)
{
	NaradLease *lease = action_lease(action);

	if (lease == NULL)
		return;
	if (lease->state == NARAD_LEASE_PINNED)
	{
		lease->taker_open = false;
		lease->taker_aborted = true;
		return;
	}
	Assert(lease->state == NARAD_LEASE_LEASED);
	if (!action->delivered)
		NaradShardUnclaim(action->shard, lease, now);
	else if (lease->deadline <= now)
		NaradShardExpireLease(action->shard, lease, now);
	else
		NaradShardReturn(action->shard, lease, NARAD_END_ROLLED_BACK, now,
						 NARAD_RETRY_DELAY);
}

/*
 * Undoes the actions from `first` on, and forgets them: pins from the last to
 * the first, then takes in the order in which they were made.
 */
static void
undo_actions(int first, bool is_sub)
{
	ShardHold	hold = {NULL};

	if (first >= nactions)
		return;
	for (int i = nactions - 1; i >= first; i--)
	{
		if (actions[i].kind == NARAD_ACTION_TAKE)
			continue;
		hold_shard(&hold, actions[i].shard);
		undo_pin(&actions[i], hold.now, is_sub);
		NaradFree(actions[i].reason);
	}
	for (int i = first; i < nactions; i++)
	{
		if (actions[i].kind != NARAD_ACTION_TAKE)
			continue;
		hold_shard(&hold, actions[i].shard);
		undo_take(&actions[i], hold.now);
	}
	hold_shard(&hold, NULL);
	nactions = first;
}

/* I5: what was acked is settled, now that the transaction has committed. */
static void
commit_actions(void)
{
	ShardHold	hold = {NULL};

	if (nactions == 0)
		return;
	NARAD_STOP("commit-settle");
	for (int i = 0; i < nactions; i++)
	{
		hold_shard(&hold, actions[i].shard);
		commit_action(&actions[i], hold.now);
	}
	hold_shard(&hold, NULL);
}

/* ------------------------------------------------------------- PRE_COMMIT */

static int
compare_acked(const void *a, const void *b)
{
	const NaradAckedOffset *x = a;
	const NaradAckedOffset *y = b;

	if (x->shard != y->shard)
		return x->shard < y->shard ? -1 : 1;
	if (x->group_id != y->group_id)
		return x->group_id < y->group_id ? -1 : 1;
	if (x->generation != y->generation)
		return x->generation < y->generation ? -1 : 1;
	if (x->offset != y->offset)
		return x->offset < y->offset ? -1 : 1;
	return 0;
}

/* The acks that take effect, by shard, group, generation and offset;
 * palloc'ed. */
static NaradAckedOffset *
collect_acked(int *nacked)
{
	NaradAckedOffset *acked;

	*nacked = 0;
	acked = MemoryContextAllocHuge(CurrentMemoryContext,
								   nactions * sizeof(NaradAckedOffset));
	for (int i = 0; i < nactions; i++)
	{
		if ((actions[i].kind != NARAD_ACTION_ACK &&
			 actions[i].kind != NARAD_ACTION_MOVE) || actions[i].superseded)
			continue;
		acked[*nacked].shard = actions[i].shard;
		acked[*nacked].group_id = actions[i].group_id;
		acked[*nacked].generation = actions[i].generation;
		acked[*nacked].offset = actions[i].offset;
		(*nacked)++;
	}
	qsort(acked, *nacked, sizeof(NaradAckedOffset), compare_acked);
	return acked;
}

/* Neighbouring offsets as ranges; in the place of `ranges`, n at most. */
static int
make_ranges(const NaradAckedOffset *acked, int n, NaradRange *ranges)
{
	int			nranges = 0;

	for (int i = 0; i < n; i++)
	{
		if (nranges > 0 && ranges[nranges - 1].last + 1 == acked[i].offset)
			ranges[nranges - 1].last++;
		else
		{
			ranges[nranges].first = acked[i].offset;
			ranges[nranges].last = acked[i].offset;
			nranges++;
		}
	}
	return nranges;
}

/*
 * Is the worker stuck, and does not write the shard's page?  Then who settles
 * writes it himself, so that plain acks are not lost for that.
 */
static bool
write_is_late(NaradShard *shard, NaradGroupId group_id)
{
	bool		late;

	LWLockAcquire(&shard->lock, LW_SHARED);
	late = NaradShardIsOf(shard, group_id) && shard->is_dirty &&
		NaradClockNow() - Max(shard->dirty_since, NaradDirtyPacedUntil(shard)) >
		2 * (int64) narad_frontier_write_interval * 1000;
	LWLockRelease(&shard->lock);
	return late;
}

/*
 * Makes what this transaction acked in one shard durable with its commit; or,
 * when there is nothing to be atomic with, helps out a worker that is late.
 */
static void
persist_shard(const NaradAckedOffset *acked, int nacked, bool journal)
{
	NaradShard *shard = acked->shard;
	NaradGroupId group_id = acked->group_id;
	Relation	rel;
	NaradRelInfo *found;
	NaradRelInfo info;

	if (!journal && !write_is_late(shard, group_id))
		return;

	/* Locked since the ack.  Gone, or another topic: the ack is void. */
	rel = try_relation_open(pg_atomic_read_u32(&shard->topic->relid), NoLock);
	if (rel == NULL)
		return;
	found = NaradRelIsTopic(rel) ? NaradRelInfoAttach(rel) : NULL;
	if (found == NULL || found->topic_id != shard->topic->topic_id)
	{
		relation_close(rel, NoLock);
		return;
	}
	info = *found;

	if (journal)
	{
		NaradRange *ranges;
		int			nranges;

		ranges = MemoryContextAllocHuge(CurrentMemoryContext,
										nacked * sizeof(NaradRange));
		nranges = make_ranges(acked, nacked, ranges);
		NaradStateJournal(rel, &info, shard, group_id, acked->generation,
						  ranges, nranges);
		pfree(ranges);
	}
	else
	{
		XLogRecPtr	lsn = NaradStateWrite(rel, &info, shard, group_id);

		if (!XLogRecPtrIsInvalid(lsn))
			XLogSetAsyncXactLSN(lsn);
	}
	relation_close(rel, NoLock);
}

/*
 * Are acks to be journalled?  Where there is no worker to write them later,
 * all are, unless the user said never; for which a transaction id is taken.
 * A dead letter leaves here if and only if it arrives there, whatever the user
 * said.
 */
static bool
wants_journal(void)
{
	if (actions[0].kind == NARAD_ACTION_MOVE)
		return TransactionIdIsValid(GetTopTransactionIdIfAny());
	if (narad_ack_mode == NARAD_ACK_DEFERRED)
		return false;
	if (narad_ack_mode == NARAD_ACK_AUTO && !NaradDirtyHasWorker())
		(void) GetTopTransactionId();
	return TransactionIdIsValid(GetTopTransactionIdIfAny());
}

/*
 * I5: with a transaction id, the acks are journalled before the commit record
 * and so are durable with it and void without it.
 */
static void
precommit_actions(void)
{
	NaradAckedOffset *acked;
	int			nacked;
	bool		journal;

	if (nactions == 0)
		return;
	acked = collect_acked(&nacked);
	journal = nacked > 0 && wants_journal();
	for (int from = 0, to; from < nacked; from = to)
	{
		for (to = from + 1; to < nacked; to++)
		{
			if (acked[to].shard != acked[from].shard ||
				acked[to].group_id != acked[from].group_id ||
				acked[to].generation != acked[from].generation)
				break;
		}
		persist_shard(acked + from, to - from, journal);
	}
	pfree(acked);
	if (journal)
		NARAD_STOP("commit-journalled");
}

/*
 * Settles acks and nacks before the end of the transaction, and forgets them.
 * Only outside a transaction block, at the top level and without a transaction
 * id: so nothing was written that they could be atomic with.  And only where a
 * worker writes the page later.  The caller knows that no command will follow,
 * and gives up the locks that the acks took.  May error as PRE_COMMIT may.
 */
bool
NaradXactSettleEarly(void)
{
	ShardHold	hold = {NULL};
	int			nkept = 0;

	if (nactions == 0 || IsTransactionBlock() ||
		GetCurrentTransactionNestLevel() > 1 ||
		TransactionIdIsValid(GetTopTransactionIdIfAny()) ||
		!NaradDirtyHasWorker())
		return false;
	precommit_actions();
	for (int i = 0; i < nactions; i++)
	{
		if (actions[i].kind == NARAD_ACTION_TAKE)
			continue;
		hold_shard(&hold, actions[i].shard);
		commit_action(&actions[i], hold.now);
	}
	hold_shard(&hold, NULL);

	/* No lease names an action any more. */
	for (int i = 0; i < nactions; i++)
	{
		if (actions[i].kind == NARAD_ACTION_TAKE)
			actions[nkept++] = actions[i];
	}
	nactions = nkept;
	return true;
}

/*
 * PREPARE TRANSACTION ends what only this backend knows.  Takes may be left to
 * their expiry; an ack would have to be carried over, and is refused.
 */
static void
preprepare_actions(void)
{
	if (has_sought)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot PREPARE a transaction that has moved a consumer group"),
				 errhint("Call narad.seek in a transaction of its own.")));
	for (int i = 0; i < nactions; i++)
	{
		if (actions[i].kind != NARAD_ACTION_TAKE)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("cannot PREPARE a transaction that has acknowledged or nacked messages"),
					 errhint("Acknowledge the messages in a transaction of their own.")));
	}
}

/* -------------------------------------------------------------- callbacks */

static void
xact_callback(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			precommit_actions();
			break;
		case XACT_EVENT_PRE_PREPARE:
			preprepare_actions();
			break;
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_PREPARE:
			/* A prepared transaction has takes only: they stay leased. */
			commit_actions();
			reset_actions();
			break;
		case XACT_EVENT_ABORT:
			undo_actions(0, false);
			reset_actions();
			break;
		default:
			/* Parallel workers take and settle nothing. */
			break;
	}
}

static void
subxact_callback(SubXactEvent event, SubTransactionId my_id,
				 SubTransactionId parent_id, void *arg)
{
	int			level;
	int			first = nactions;

	if (nactions == 0 || (event != SUBXACT_EVENT_COMMIT_SUB &&
						  event != SUBXACT_EVENT_ABORT_SUB))
		return;
	level = GetCurrentTransactionNestLevel();
	while (first > 0 && actions[first - 1].nest_level >= level)
		first--;

	if (event == SUBXACT_EVENT_ABORT_SUB)
		undo_actions(first, true);
	else
	{
		for (int i = first; i < nactions; i++)
			actions[i].nest_level = level - 1;
	}
}

/*
 * Once, at load.  Callbacks run from the last registered to the first: ours
 * have to be called before storage forgets the files of dropped topics, and
 * with them the shards.
 */
void
NaradXactRegister(void)
{
	RegisterXactCallback(xact_callback, NULL);
	RegisterSubXactCallback(subxact_callback, NULL);
}
