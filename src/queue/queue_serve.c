/*-------------------------------------------------------------------------
 *
 * queue_serve.c
 *	  Who is woken for what became available, and who minds deadlines.
 *
 * Owns:       the FIFOs of groups, their holds, and which waiter minds a group's
 *             deadlines.
 * Invariants: I8: one message wakes one; who named the partition comes first, then
 *             who has waited longest, then who left a token.
 * Locks:      see queue_wait.c, which also says why no wake is lost.
 * Runs in:    any backend and the worker; serving in transaction callbacks, too.
 * WAL:        none.
 * On error:   serving neither errors nor allocates.
 *
 * Deadlines.  One waiter of each group, the keeper, sleeps no longer than to the
 * group's next deadline (`armed`), and then returns what is due, which serves.
 * Who makes an earlier deadline lowers `armed` and wakes the keeper.  The one
 * that joined last is the keeper, since it will be served last.  A group with
 * tokens only is minded by the worker.
 *
 * A wake that takes no message (CALL narad.wait, a token) puts a hold on the
 * group: a promise to somebody who is expected to consume.  It hides the message
 * from nobody.  It ends when a consume call takes something there, or finds
 * nothing there, else after narad.hold_time: then the next is served.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/resowner.h"

#include "base/base_guc.h"
#include "queue/queue_dirty.h"
#include "queue/queue_settle.h"
#include "queue/queue_shard.h"
#include "queue/queue_waiter.h"

/* Topics remembered until commit; with more, all of the database are served. */
#define MAX_AT_COMMIT	16

static NaradTopicId at_commit[MAX_AT_COMMIT];
static int	nat_commit;			/* more than there is room for: all */

/* ----------------------------------------------------------------
 *		Parts and lists
 * ----------------------------------------------------------------
 */

/*
 * NaradWaitLock, NaradWaitUnlock
 *
 * For queue_token.c: the lock of a group's part, exclusively.  Locking returns
 * the part's counter.
 */
pg_atomic_uint32 *
NaradWaitLock(NaradGroup *group)
{
	NaradWaitPart *part = part_of_group(group);

	LWLockAcquire(&part->lock, LW_EXCLUSIVE);
	return &part->nwatching;
}

void
NaradWaitUnlock(NaradGroup *group)
{
	LWLockRelease(&part_of_group(group)->lock);
}

/*
 * NaradWaitGroupInit
 *
 * An empty group that is listed nowhere.
 */
void
NaradWaitGroupInit(NaradGroup *group)
{
	NaradGroupWait *wait = &group->wait;

	memset(wait, 0, sizeof(NaradGroupWait));
	dlist_init(&wait->fifo);
	for (int i = 0; i < NARAD_NAMED_LISTS; i++)
		dlist_init(&wait->named[i]);
	dlist_init(&wait->all);
	dlist_init(&wait->tokens);
	dlist_init(&wait->holds);
	wait->keeper = -1;
	pg_atomic_init_u64(&wait->armed, NARAD_NO_DEADLINE);
}

/*
 * NaradServeList
 *
 * Lists a group in its part.  True if it was not: then nothing is known of its
 * deadlines, and NaradServeArm is to be called once the lock is released.
 */
bool
NaradServeList(NaradWaitPart *part, NaradGroupWait *wait)
{
	if (wait->is_listed)
		return false;
	wait->is_listed = true;
	pg_atomic_write_u64(&wait->armed, NARAD_NO_DEADLINE);
	dlist_push_tail(&part->groups, &wait->node);
	return true;
}

/*
 * NaradServeUnlist
 *
 * Takes a group off the list if nobody waits there any more.
 */
void
NaradServeUnlist(NaradGroupWait *wait)
{
	if (!wait->is_listed || wait->nwaiters > 0 ||
		!dlist_is_empty(&wait->tokens) || !dlist_is_empty(&wait->holds))
		return;
	wait->is_listed = false;
	dlist_delete(&wait->node);
}

/* ----------------------------------------------------------------
 *		Deadlines and their keeper
 * ----------------------------------------------------------------
 */

/* Lowers `armed`, and tells who sleeps by it.  The lock is held. */
static void
arm_group(NaradGroupWait *wait, int64 when)
{
	if (!wait->is_listed || (uint64) when >= pg_atomic_read_u64(&wait->armed))
		return;
	pg_atomic_write_u64(&wait->armed, (uint64) when);
	if (wait->keeper >= 0)
	{
		NaradWaiter *keeper = &NaradWaitShared->waiters[wait->keeper];

		pg_atomic_write_u64(&keeper->armed, (uint64) when);
		set_latch_of(keeper);
	}
	else
		NaradDirtyWake(group_of(wait)->topic->database);
}

/* The lock is held, and there is no keeper. */
static void
choose_keeper(NaradGroupWait *wait)
{
	uint64		armed = pg_atomic_read_u64(&wait->armed);
	NaradWaiter *keeper;

	Assert(wait->keeper < 0);
	if (wait->nwaiters == 0)
	{
		/* The worker minds tokens and holds. */
		if (!dlist_is_empty(&wait->tokens) || !dlist_is_empty(&wait->holds))
			NaradDirtyWake(group_of(wait)->topic->database);
		return;
	}
	keeper = dlist_tail_element(NaradWaiter, all_node, &wait->all);
	wait->keeper = procno_of(keeper);
	pg_atomic_write_u64(&keeper->armed, armed);
	if (armed != NARAD_NO_DEADLINE)
		set_latch_of(keeper);
}

/*
 * NaradServeUnlink
 *
 * Takes a waiter out of its group's lists; if he was the keeper, another is.
 */
void
NaradServeUnlink(NaradWaiter *waiter)
{
	NaradGroupWait *wait = &waiter->group->wait;

	dlist_delete(&waiter->fifo_node);
	dlist_delete(&waiter->all_node);
	wait->nwaiters--;
	pg_atomic_write_u64(&waiter->armed, NARAD_NO_DEADLINE);
	if (wait->keeper == procno_of(waiter))
	{
		wait->keeper = -1;
		choose_keeper(wait);
	}
}

/*
 * NaradWaitDeadline
 *
 * Says that a group has a deadline at `when` (monotonic us).  The caller has
 * made it readable in the shard, and holds the shard lock.  No error.
 */
void
NaradWaitDeadline(NaradGroup *group, int64 when)
{
	NaradWaitPart *part = part_of_group(group);

	/* Who begins to mind: lists the group, barrier, reads the shards. */
	pg_memory_barrier();
	if (pg_atomic_read_u32(&part->nwatching) == 0 ||
		(uint64) when >= pg_atomic_read_u64(&group->wait.armed))
		return;
	LWLockAcquire(&part->lock, LW_EXCLUSIVE);
	arm_group(&group->wait, when);
	LWLockRelease(&part->lock);
}

/*
 * NaradServeArm
 *
 * Arms the group with the earliest deadline that its shards publish.  What is
 * made earlier from now on is told by who makes it.  The relation is locked.
 */
void
NaradServeArm(NaradWaitPart *part, NaradGroup *group, NaradGroupId group_id)
{
	uint64		earliest = NARAD_NO_DEADLINE;

	pg_memory_barrier();
	for (int i = 0; i < NaradArrayLength(&group->shards); i++)
	{
		NaradShard *shard = NaradShardFind(group, group_id, i);

		if (shard != NULL)
		{
			/* Read once: Min() could compare one value and give another. */
			uint64		deadline = pg_atomic_read_u64(&shard->next_deadline);

			earliest = Min(earliest, deadline);
		}
	}
	if (earliest == NARAD_NO_DEADLINE)
		return;
	LWLockAcquire(&part->lock, LW_EXCLUSIVE);
	arm_group(&group->wait, (int64) earliest);
	LWLockRelease(&part->lock);
}

/* ----------------------------------------------------------------
 *		Serving
 * ----------------------------------------------------------------
 */

/*
 * Who is first for a message of a partition: those who named it come before
 * the others; -1: of the others.  The lock is held.
 */
static NaradWaiter *
first_waiter(NaradGroupWait *wait, int partition)
{
	dlist_iter	iter;

	if (partition >= 0)
	{
		dlist_foreach(iter, &wait->named[partition % NARAD_NAMED_LISTS])
		{
			NaradWaiter *waiter = dlist_container(NaradWaiter, fifo_node,
												  iter.cur);

			if (waiter->partition == partition)
				return waiter;
		}
	}
	if (dlist_is_empty(&wait->fifo))
		return NULL;
	return dlist_head_element(NaradWaiter, fifo_node, &wait->fifo);
}

/* A promise to somebody who will consume.  The lock is held. */
static void
put_hold(NaradWaitPart *part, NaradGroupWait *wait, NaradToken *hold,
		 int partition, bool chain)
{
	hold->is_held = true;
	hold->partition = partition;
	hold->chain = chain;
	hold->until = NaradClockNow() + (int64) narad_hold_time * 1000;
	dlist_push_tail(&wait->holds, &hold->node);
	wait->nholds++;
	arm_group(wait, hold->until);
}

/* Behind those of other sessions, before those whose session has ended. */
static void
push_token(NaradGroupWait *wait, NaradToken *token)
{
	dlist_iter	iter;

	dlist_reverse_foreach(iter, &wait->tokens)
	{
		if (dlist_container(NaradToken, node, iter.cur)->pid == 0)
			continue;
		dlist_insert_after(iter.cur, &token->node);
		return;
	}
	dlist_push_head(&wait->tokens, &token->node);
}

/*
 * NaradWaitAddToken
 *
 * For queue_token.c, under the lock: a token that is in no list yet.  True if
 * the group was not listed: then NaradWaitArm is to be called.
 */
bool
NaradWaitAddToken(NaradGroup *group, NaradToken *token)
{
	NaradGroupWait *wait = &group->wait;
	bool		is_first = NaradServeList(part_of_group(group), wait);

	token->serial = pg_atomic_add_fetch_u64(&NaradWaitShared->last_serial, 1);
	push_token(wait, token);
	wait->ntokens++;
	arm_group(wait, token->until);
	return is_first;
}

/*
 * NaradWaitArm
 *
 * Arms a group that was just listed; the relation is locked.
 */
void
NaradWaitArm(NaradGroup *group, NaradGroupId group_id)
{
	NaradServeArm(part_of_group(group), group, group_id);
}

/*
 * Gives one waiter the wake; `owner`: for what nobody else may take.  The lock
 * is held.
 */
static void
serve_waiter(NaradWaitPart *part, NaradWaiter *waiter, int partition,
			 bool chain, bool owner)
{
	NaradServeUnlink(waiter);
	waiter->served_partition = partition;
	waiter->served_chain = chain;
	waiter->served_owner = owner;
	if (waiter->hold != NULL)
	{
		waiter->hold_serial = waiter->hold->serial;
		pg_atomic_fetch_add_u32(&part->nwatching, 1);
		put_hold(part, &waiter->group->wait, waiter->hold, partition, chain);
		waiter->hold = NULL;
	}
	pg_write_barrier();			/* who reads the state may read the others */
	pg_atomic_write_u32(&waiter->state, WAITER_SERVED);
	set_latch_of(waiter);
}

static void
spend_token(NaradWaitPart *part, NaradGroupWait *wait, NaradToken *token,
			int partition, bool chain)
{
	dlist_delete(&token->node);
	wait->ntokens--;
	put_hold(part, wait, token, partition, chain);
	NaradDirtyWake(group_of(wait)->topic->database);
}

/*
 * The first token that will do for a partition, or NULL; -1: that of somebody
 * who named none.  Those whose session has ended lie behind the others, so one
 * that nobody may hear of delays nobody.  The lock is held.
 */
static NaradToken *
first_token(NaradGroupWait *wait, int partition)
{
	int64		now = NaradClockNow();
	dlist_iter	iter;

	dlist_foreach(iter, &wait->tokens)
	{
		NaradToken *token = dlist_container(NaradToken, node, iter.cur);

		if (token->until > now &&
			(token->partition < 0 || token->partition == partition))
			return token;
	}
	return NULL;
}

/*
 * NaradServeGroup
 *
 * Serves up to n: waiters first, then tokens.  The lock is held.  No error, no
 * memory.
 */
void
NaradServeGroup(NaradWaitPart *part, NaradGroup *group, int partition, uint64 n,
				bool chain)
{
	NaradGroupWait *wait = &group->wait;
	NaradWaiter *waiter;
	NaradToken *token;

	/* Who resumes the group serves it after that. */
	if (group->paused)
		return;
	for (; n > 0 && (waiter = first_waiter(wait, partition)) != NULL; n--)
		serve_waiter(part, waiter, partition, chain, false);
	for (; n > 0 && wait->ntokens > 0 &&
		 (token = first_token(wait, partition)) != NULL; n--)
		spend_token(part, wait, token, partition, chain);
	NaradServeUnlist(wait);
}

/* Readers all look again, each for himself.  The lock is held. */
static void
serve_reader(NaradWaiter *reader)
{
	pg_atomic_write_u32(&reader->state, WAITER_SERVED);
	set_latch_of(reader);
}

static bool
is_topic(const NaradGroup *group, Oid database, NaradTopicId topic_id)
{
	return group->topic->topic_id == topic_id &&
		group->topic->database == database;
}

/*
 * NaradWaitRecords
 *
 * So many records of a partition of this database were decided: by a commit,
 * or by an abort.  The caller has them in the ring.  Groups are served as they
 * are now; readers all look again, each for himself.  An abort makes no record
 * available, but, where messages are ordered by key, may free those behind it.
 * No error, no memory.
 */
void
NaradWaitRecords(NaradTopicId topic_id, int partition, uint64 nrecords,
				 bool is_commit)
{
	NaradWaitPart *part = part_of(MyDatabaseId, topic_id);
	dlist_mutable_iter groups;
	dlist_iter	readers;

	if (!lock_if_watched(part))
		return;
	dlist_foreach_modify(groups, &part->groups)
	{
		NaradGroup *group = group_of(dlist_container(NaradGroupWait, node,
													 groups.cur));

		if (!is_topic(group, MyDatabaseId, topic_id))
			continue;
		if (is_commit)
			NaradServeGroup(part, group, partition, nrecords, false);
		else if (group->wait.ordered)
			NaradServeGroup(part, group, partition, 1, true);
	}
	dlist_foreach(readers, &part->readers)
	{
		NaradWaiter *reader = dlist_container(NaradWaiter, fifo_node,
											  readers.cur);

		if (reader->topic_id != topic_id || reader->partition != partition ||
			reader->database != MyDatabaseId)
			continue;
		serve_reader(reader);
	}
	LWLockRelease(&part->lock);
}

/*
 * NaradWaitServe
 *
 * Wakes up to n waiters of a group, or spends tokens, for messages of a
 * partition that may have become available.  The caller has the relation
 * locked, and a shard lock or none.  No error, no memory.
 */
void
NaradWaitServe(NaradGroup *group, int partition, uint64 n, bool chain)
{
	NaradWaitPart *part = part_of_group(group);

	if (!lock_if_watched(part))
		return;
	if (group->wait.is_listed)
		NaradServeGroup(part, group, partition, n, chain);
	LWLockRelease(&part->lock);
}

static bool
is_among(int pid, const int *pids, int npids)
{
	for (int i = 0; i < npids; i++)
	{
		if (pids[i] == pid)
			return true;
	}
	return false;
}

/*
 * NaradWaitServeOwners
 *
 * Wakes those of these processes that sleep in a consume of the partition: each
 * may have something there that nobody else may take.  As NaradWaitServe.
 */
void
NaradWaitServeOwners(NaradGroup *group, int partition, const int *pids,
					 int npids)
{
	NaradWaitPart *part = part_of_group(group);
	NaradGroupWait *wait = &group->wait;
	dlist_mutable_iter iter;

	if (!lock_if_watched(part))
		return;
	if (wait->is_listed && !group->paused)
	{
		dlist_foreach_modify(iter, &wait->all)
		{
			NaradWaiter *waiter = dlist_container(NaradWaiter, all_node,
												  iter.cur);

			if (waiter->kind != NARAD_WAIT_CONSUMER ||
				(waiter->partition >= 0 && waiter->partition != partition) ||
				!is_among(waiter->pid, pids, npids))
				continue;
			serve_waiter(part, waiter, partition, false, true);
		}
		NaradServeUnlist(wait);
	}
	LWLockRelease(&part->lock);
}

/* Chains for any partition, and for each that somebody named. */
static void
serve_whole_group(NaradWaitPart *part, NaradGroup *group)
{
	NaradGroupWait *wait = &group->wait;
	int64		now = NaradClockNow();
	dlist_mutable_iter iter;

	if (group->paused)
		return;
	for (int i = 0; i < NARAD_NAMED_LISTS; i++)
	{
		dlist_foreach_modify(iter, &wait->named[i])
		{
			NaradWaiter *waiter = dlist_container(NaradWaiter, fifo_node,
												  iter.cur);

			serve_waiter(part, waiter, waiter->partition, true, false);
		}
	}
	dlist_foreach_modify(iter, &wait->tokens)
	{
		NaradToken *token = dlist_container(NaradToken, node, iter.cur);

		if (token->partition >= 0 && token->until > now)
			spend_token(part, wait, token, token->partition, true);
	}
	NaradServeGroup(part, group, -1, 1, true);
}

/*
 * NaradWaitServeGroup
 *
 * Any number of messages may have become available anywhere.  As
 * NaradWaitServe.
 */
void
NaradWaitServeGroup(NaradGroup *group)
{
	NaradWaitPart *part = part_of_group(group);

	if (!lock_if_watched(part))
		return;
	if (group->wait.is_listed)
		serve_whole_group(part, group);
	LWLockRelease(&part->lock);
}

/*
 * NaradWaitServeTopic
 *
 * The same for all groups of a topic.
 */
void
NaradWaitServeTopic(Oid database, NaradTopicId topic_id)
{
	NaradWaitPart *part = part_of(database, topic_id);
	dlist_mutable_iter iter;

	if (!lock_if_watched(part))
		return;
	dlist_foreach_modify(iter, &part->groups)
	{
		NaradGroup *group = group_of(dlist_container(NaradGroupWait, node,
													 iter.cur));

		if (is_topic(group, database, topic_id))
			serve_whole_group(part, group);
	}
	LWLockRelease(&part->lock);
}

/*
 * NaradWaitServeAtCommit
 *
 * NaradWaitServeTopic once this transaction has committed, for a change that
 * others see only then.
 */
void
NaradWaitServeAtCommit(NaradTopicId topic_id)
{
	if (nat_commit < MAX_AT_COMMIT)
		at_commit[nat_commit] = topic_id;
	nat_commit = Min(nat_commit + 1, MAX_AT_COMMIT + 1);
}

/*
 * NaradWaitServeDatabase
 *
 * Something may have become available in any topic of this database: a prepared
 * transaction has ended, which only who looks at its records can tell.  No lock
 * on a relation is needed.
 */
void
NaradWaitServeDatabase(void)
{
	pg_memory_barrier();
	for (int i = 0; i < WAIT_PARTS; i++)
	{
		NaradWaitPart *part = &NaradWaitShared->parts[i].part;
		dlist_mutable_iter groups;
		dlist_iter	readers;

		if (pg_atomic_read_u32(&part->nwatching) == 0)
			continue;
		LWLockAcquire(&part->lock, LW_EXCLUSIVE);
		dlist_foreach_modify(groups, &part->groups)
		{
			NaradGroup *group = group_of(dlist_container(NaradGroupWait, node,
														 groups.cur));

			if (group->topic->database == MyDatabaseId)
				serve_whole_group(part, group);
		}
		dlist_foreach(readers, &part->readers)
		{
			NaradWaiter *reader = dlist_container(NaradWaiter, fifo_node,
												  readers.cur);

			if (reader->database == MyDatabaseId)
				serve_reader(reader);
		}
		LWLockRelease(&part->lock);
	}
}

/*
 * Does what NaradWaitServeAtCommit promised.  Not in the transaction's callback:
 * invalidations are sent after that, and who is woken has to see the change.
 * They are sent when locks have been released.
 */
static void
serve_at_commit(ResourceReleasePhase phase, bool is_commit, bool is_top,
				void *arg)
{
	if (nat_commit == 0 || phase != RESOURCE_RELEASE_AFTER_LOCKS || !is_top)
		return;
	if (is_commit && nat_commit > MAX_AT_COMMIT)
		NaradWaitServeDatabase();
	else if (is_commit)
	{
		for (int i = 0; i < nat_commit; i++)
			NaradWaitServeTopic(MyDatabaseId, at_commit[i]);
	}
	nat_commit = 0;
}

/* ----------------------------------------------------------------
 *		Holds
 * ----------------------------------------------------------------
 */

/*
 * NaradServeEndHold
 *
 * A hold is over: freed, unless a token's NOTIFY is still to be sent, which is
 * then all it is kept for.  The lock is held.
 */
void
NaradServeEndHold(NaradWaitPart *part, NaradGroupWait *wait, NaradToken *hold)
{
	Assert(hold->is_held);
	hold->is_held = false;
	wait->nholds--;
	if (!hold->is_token || hold->is_sent)
		NaradTokenFree(&part->nwatching, hold);
}

/*
 * NaradWaitEndHolds
 *
 * A consume call took so many messages of a partition, and (dry) there are no
 * more.  That ends as many promises as it took messages, of the partition or of
 * any, or all of the partition.  Those of any partition it ends by finding them
 * all dry, which it says with -1.  The caller has the relation locked, and no
 * narad lock.
 */
void
NaradWaitEndHolds(NaradGroup *group, int partition, int ntaken, bool dry)
{
	NaradWaitPart *part;
	NaradGroupWait *wait = &group->wait;
	bool		chain = false;
	bool		chain_anywhere = false;
	int			left = ntaken;
	dlist_mutable_iter iter;

	if (*(volatile int *) &wait->nholds == 0 || (ntaken <= 0 && !dry))
		return;
	part = part_of_group(group);
	LWLockAcquire(&part->lock, LW_EXCLUSIVE);
	dlist_foreach_modify(iter, &wait->holds)
	{
		NaradToken *hold = dlist_container(NaradToken, node, iter.cur);
		bool		is_here = hold->partition == partition;

		if (left <= 0 && !dry)
			break;
		if (!hold->is_held || (hold->partition >= 0 && !is_here) ||
			(left <= 0 && !(dry && is_here)))
			continue;
		left--;
		if (hold->chain && ntaken > 0 && hold->partition < 0)
			chain_anywhere = true;
		else if (hold->chain && ntaken > 0)
			chain = true;
		NaradServeEndHold(part, wait, hold);
	}
	if (chain_anywhere)
		NaradServeGroup(part, group, -1, 1, true);
	if (chain)
		NaradServeGroup(part, group, partition, 1, true);
	NaradServeUnlist(wait);
	LWLockRelease(&part->lock);
}

/*
 * NaradWaitEndDueHolds
 *
 * Nobody came for what was promised: the next is served.  The lock is held.  No
 * error, no memory.
 */
void
NaradWaitEndDueHolds(NaradGroup *group, int64 now)
{
	NaradWaitPart *part = part_of_group(group);
	NaradGroupWait *wait = &group->wait;

	for (;;)
	{
		NaradToken *due = NULL;
		dlist_iter	iter;
		int			partition;
		bool		chain;

		dlist_foreach(iter, &wait->holds)
		{
			NaradToken *hold = dlist_container(NaradToken, node, iter.cur);

			if (hold->is_held && hold->until <= now)
			{
				due = hold;
				break;
			}
		}
		if (due == NULL)
			break;
		partition = due->partition;
		chain = due->chain;
		NaradServeEndHold(part, wait, due);
		NaradServeGroup(part, group, partition, 1, chain);
	}
}

/* The next time at which tokens or holds want something.  The lock is held. */
static uint64
next_token_time(NaradGroupWait *wait)
{
	uint64		next = NARAD_NO_DEADLINE;
	dlist_iter	iter;

	dlist_foreach(iter, &wait->holds)
	{
		NaradToken *hold = dlist_container(NaradToken, node, iter.cur);

		if (hold->is_held)
			next = Min(next, (uint64) hold->until);
	}
	dlist_foreach(iter, &wait->tokens)
		next = Min(next, (uint64) dlist_container(NaradToken, node,
												  iter.cur)->until);
	return next;
}

/*
 * NaradWaitMind
 *
 * Returns what is due in a group's shards, ends tokens and holds that are over,
 * and arms the group for the next time.  For the group's keeper, or the worker
 * where there is none; the relation is locked, no narad lock is held.
 */
void
NaradWaitMind(NaradGroup *group, NaradGroupId group_id)
{
	NaradWaitPart *part = part_of_group(group);
	NaradGroupWait *wait = &group->wait;
	int64		now = NaradClockNow();

	LWLockAcquire(&part->lock, LW_EXCLUSIVE);
	if (group->group_id != group_id || !wait->is_listed)
	{
		LWLockRelease(&part->lock);
		return;
	}
	pg_atomic_write_u64(&wait->armed, NARAD_NO_DEADLINE);
	if (wait->keeper >= 0)
		pg_atomic_write_u64(&NaradWaitShared->waiters[wait->keeper].armed,
							NARAD_NO_DEADLINE);
	NaradTokenExpire(&part->nwatching, wait, now);
	NaradWaitEndDueHolds(group, now);
	LWLockRelease(&part->lock);

	for (int i = 0; i < NaradArrayLength(&group->shards); i++)
	{
		NaradShard *shard = NaradShardFind(group, group_id, i);

		if (shard == NULL ||
			pg_atomic_read_u64(&shard->next_deadline) > (uint64) now)
			continue;
		LWLockAcquire(&shard->lock, LW_EXCLUSIVE);
		if (NaradShardIsOf(shard, group_id))
			NaradShardExpire(shard, now, NARAD_MAX_EXPIRED);
		LWLockRelease(&shard->lock);
	}

	LWLockAcquire(&part->lock, LW_EXCLUSIVE);
	if (wait->is_listed)
	{
		uint64		next = next_token_time(wait);

		if (next != NARAD_NO_DEADLINE)
			arm_group(wait, (int64) next);
	}
	NaradServeUnlist(wait);
	LWLockRelease(&part->lock);
	NaradServeArm(part, group, group_id);
}

/* ----------------------------------------------------------------
 *		The worker
 * ----------------------------------------------------------------
 */

/*
 * NaradWaitForEachGroup
 *
 * Calls back for each group of this database that is listed, under the lock of
 * its part, exclusively; until one call says false.  For the worker, and for a
 * session that ends.
 */
void
NaradWaitForEachGroup(NaradWaitVisitor visit, void *arg)
{
	for (int i = 0; i < WAIT_PARTS; i++)
	{
		NaradWaitPart *part = &NaradWaitShared->parts[i].part;
		dlist_mutable_iter iter;
		bool		more = true;

		if (pg_atomic_read_u32(&part->nwatching) == 0)
			continue;
		LWLockAcquire(&part->lock, LW_EXCLUSIVE);
		dlist_foreach_modify(iter, &part->groups)
		{
			NaradGroup *group = group_of(dlist_container(NaradGroupWait, node,
														 iter.cur));

			if (group->topic->database != MyDatabaseId)
				continue;
			more = visit(group, &part->nwatching, arg);
			NaradServeUnlist(&group->wait);
			if (!more)
				break;
		}
		LWLockRelease(&part->lock);
		if (!more)
			break;
	}
}

/*
 * NaradWaitRegister
 *
 * In the postmaster, once.
 */
void
NaradWaitRegister(void)
{
	RegisterResourceReleaseCallback(serve_at_commit, NULL);
}
