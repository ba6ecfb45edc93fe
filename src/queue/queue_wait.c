/*-------------------------------------------------------------------------
 *
 * queue_wait.c
 *	  Who waits for messages, and who is woken for them.
 *
 * Owns:       a waiter's slot for each backend, the FIFOs of groups, their
 *             holds, and which waiter minds a group's deadlines.
 * Invariants: I8: a waiter is woken when a message becomes available to it; no
 *             message waits beside an idle waiter; one message wakes one.
 *             I9: nobody polls, and with nobody waiting a commit reads one
 *             counter.  I12: when a topic or a group goes, its waiters are told
 *             and its lists are left by all, before its memory is freed.
 * Locks:      the lock of a part (rank wait), which is that of a topic, shared
 *             with others by hash; taken under shard locks or none.  Under it
 *             the lock of the list of dirty shards, to wake the worker.
 * Runs in:    any backend and the worker; serving in transaction callbacks, too.
 * WAL:        none.
 * On error:   joining may fail before anything is changed.  A waiter that ends by
 *             an error or with its process hands a wake it was given to the
 *             next (NaradWaitCleanup).  Serving neither errors nor allocates.
 *
 * A wake is a hint: it says "look again", and carries no lease.  So whoever
 * makes something available needs to know nothing of the message, takes no lock
 * of a shard for it and reads no page.  The waiter that was woken runs an
 * ordinary consume.  If that finds nothing, somebody else was faster, and the
 * waiter goes back to the head of its FIFO.
 *
 * A slot's states, all changes but the owner's under the part's lock:
 *
 *		idle -> waiting		joined: in the lists
 *		waiting -> served	popped by whoever serves; a wake is under way, which
 *							must end in a look that finds nothing, or in a
 *							message taken, or be handed on
 *		-> group gone, topic gone
 *							in no list any more; what the slot points to is gone
 *		any -> idle			left, by the owner
 *
 * Why no wake is lost.  The waiter joins, and looks after that.  A committer's
 * transaction is no longer in progress, its hull is in the ring, and after that,
 * with a full barrier between, it looks whether somebody has joined.  So it
 * sees the waiter or the waiter's look sees the records.  What becomes
 * available under a shard lock (returned, given back, below a cap again) needs
 * no barrier: the look takes the same lock.
 *
 * A look may find nothing because another consumer has claimed what is there.
 * Whatever that one gives back, it gives back under the shard lock, and serves
 * again (NaradShardMadeAvailable).
 *
 * A wake given during a look that takes a message is for another message, for
 * all we know: it is handed on.  Where nobody can tell how many messages became
 * available, a wake is a chain: whoever takes one wakes the next.
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

#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "utils/resowner.h"
#include "utils/timestamp.h"

#include "base/base_guc.h"
#include "base/base_lock.h"
#include "base/base_memory.h"
#include "queue/queue_dirty.h"
#include "queue/queue_settle.h"
#include "queue/queue_shard.h"
#include "queue/queue_token.h"
#include "queue/queue_wait.h"

#define WAIT_PARTS		256

/* Topics remembered until commit; with more, all of the database are served. */
#define MAX_AT_COMMIT	16

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

static NaradWaitCtl *WaitCtl;

/* This backend's slot while it is not idle, and the part it is in. */
static NaradWaiter *my_waiter;
static NaradWaitPart *my_part;

/* The wake that made the owner look is one it knows of. */
static bool acting;

static NaradTopicId at_commit[MAX_AT_COMMIT];
static int	nat_commit;			/* more than there is room for: all */

/* ----------------------------------------------------------------
 *		Parts and lists
 * ----------------------------------------------------------------
 */

static NaradWaitPart *
part_of(Oid database, NaradTopicId topic_id)
{
	uint32		hash = hash_combine(murmurhash32((uint32) (topic_id >> 32)),
									murmurhash32((uint32) topic_id));

	return &WaitCtl->parts[hash_combine(hash, database) % WAIT_PARTS].part;
}

static NaradWaitPart *
part_of_group(const NaradGroup *group)
{
	return part_of(group->topic->database, group->topic->topic_id);
}

static NaradGroup *
group_of(NaradGroupWait *wait)
{
	return (NaradGroup *) ((char *) wait - offsetof(NaradGroup, wait));
}

static int
procno_of(const NaradWaiter *waiter)
{
	return (int) (waiter - WaitCtl->waiters);
}

static void
set_latch_of(const NaradWaiter *waiter)
{
	SetLatch(&GetPGProcByNumber(procno_of(waiter))->procLatch);
}

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

/* True if it was not listed: then nothing is known of its deadlines. */
static bool
list_group(NaradWaitPart *part, NaradGroupWait *wait)
{
	if (wait->is_listed)
		return false;
	wait->is_listed = true;
	pg_atomic_write_u64(&wait->armed, NARAD_NO_DEADLINE);
	dlist_push_tail(&part->groups, &wait->node);
	return true;
}

static void
unlist_if_empty(NaradGroupWait *wait)
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
		NaradWaiter *keeper = &WaitCtl->waiters[wait->keeper];

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

/* Out of its group's lists.  The lock is held. */
static void
unlink_waiter(NaradWaiter *waiter)
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
 * Arms the group with the earliest deadline that its shards publish.  What is
 * made earlier from now on is told by who makes it.  The relation is locked.
 */
static void
arm_by_shards(NaradWaitPart *part, NaradGroup *group, NaradGroupId group_id)
{
	uint64		earliest = NARAD_NO_DEADLINE;

	pg_memory_barrier();
	for (int i = 0; i < NaradArrayLength(&group->shards); i++)
	{
		NaradShard *shard = NaradShardFind(group, group_id, i);

		if (shard != NULL)
			earliest = Min(earliest,
						   pg_atomic_read_u64(&shard->next_deadline));
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
	bool		is_first = list_group(part_of_group(group), wait);

	token->serial = pg_atomic_add_fetch_u64(&WaitCtl->last_serial, 1);
	dlist_push_tail(&wait->tokens, &token->node);
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
	arm_by_shards(part_of_group(group), group, group_id);
}

/* Gives one waiter the wake.  The lock is held. */
static void
serve_waiter(NaradWaitPart *part, NaradWaiter *waiter, int partition,
			 bool chain)
{
	unlink_waiter(waiter);
	waiter->served_partition = partition;
	waiter->served_chain = chain;
	if (waiter->hold != NULL)
	{
		waiter->hold_serial = waiter->hold->serial;
		pg_atomic_fetch_add_u32(&part->nwatching, 1);
		put_hold(part, &waiter->group->wait, waiter->hold, partition, chain);
		waiter->hold = NULL;
	}
	pg_atomic_write_u32(&waiter->state, WAITER_SERVED);
	set_latch_of(waiter);
}

/* Spends the oldest token that will do; false if there is none. */
static bool
spend_token(NaradWaitPart *part, NaradGroupWait *wait, int partition,
			bool chain)
{
	int64		now = NaradClockNow();
	dlist_iter	iter;

	dlist_foreach(iter, &wait->tokens)
	{
		NaradToken *token = dlist_container(NaradToken, node, iter.cur);

		if (token->until <= now || (token->partition >= 0 && partition >= 0 &&
									token->partition != partition))
			continue;
		dlist_delete(&token->node);
		wait->ntokens--;
		put_hold(part, wait, token, partition, chain);
		NaradDirtyWake(group_of(wait)->topic->database);
		return true;
	}
	return false;
}

/* Serves up to n: waiters first, then tokens.  The lock is held. */
static void
serve_group(NaradWaitPart *part, NaradGroup *group, int partition, uint64 n,
			bool chain)
{
	NaradGroupWait *wait = &group->wait;
	NaradWaiter *waiter;

	/* Who resumes the group serves it after that. */
	if (group->paused)
		return;
	for (; n > 0 && (waiter = first_waiter(wait, partition)) != NULL; n--)
		serve_waiter(part, waiter, partition, chain);
	for (; n > 0 && wait->ntokens > 0; n--)
	{
		if (!spend_token(part, wait, partition, chain))
			break;
	}
	unlist_if_empty(wait);
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
 * available, but may free what is behind it.  No error, no memory.
 */
void
NaradWaitRecords(NaradTopicId topic_id, int partition, uint64 nrecords,
				 bool is_commit)
{
	NaradWaitPart *part = part_of(MyDatabaseId, topic_id);
	dlist_mutable_iter groups;
	dlist_iter	readers;

	/* The waiter's side: joins, barrier, reads the ring. */
	pg_memory_barrier();
	if (pg_atomic_read_u32(&part->nwatching) == 0)
		return;

	LWLockAcquire(&part->lock, LW_EXCLUSIVE);
	dlist_foreach_modify(groups, &part->groups)
	{
		NaradGroup *group = group_of(dlist_container(NaradGroupWait, node,
													 groups.cur));

		if (is_topic(group, MyDatabaseId, topic_id))
			serve_group(part, group, partition, is_commit ? nrecords : 1,
						!is_commit);
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

	pg_memory_barrier();
	if (pg_atomic_read_u32(&part->nwatching) == 0)
		return;
	LWLockAcquire(&part->lock, LW_EXCLUSIVE);
	if (group->wait.is_listed)
		serve_group(part, group, partition, n, chain);
	LWLockRelease(&part->lock);
}

/* Chains for any partition, and for each that somebody named. */
static void
serve_whole_group(NaradWaitPart *part, NaradGroup *group)
{
	NaradGroupWait *wait = &group->wait;
	dlist_mutable_iter iter;

	if (group->paused)
		return;
	for (int i = 0; i < NARAD_NAMED_LISTS; i++)
	{
		dlist_foreach_modify(iter, &wait->named[i])
		{
			NaradWaiter *waiter = dlist_container(NaradWaiter, fifo_node,
												  iter.cur);

			serve_waiter(part, waiter, waiter->partition, true);
		}
	}
	serve_group(part, group, -1, 1, true);
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

	pg_memory_barrier();
	if (pg_atomic_read_u32(&part->nwatching) == 0)
		return;
	LWLockAcquire(&part->lock, LW_EXCLUSIVE);
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

	pg_memory_barrier();
	if (pg_atomic_read_u32(&part->nwatching) == 0)
		return;
	LWLockAcquire(&part->lock, LW_EXCLUSIVE);
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
		NaradWaitPart *part = &WaitCtl->parts[i].part;
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
 * A hold is over: freed, unless a token's NOTIFY is still to be sent, which is
 * then all it is kept for.  The lock is held.
 */
static void
end_hold(NaradWaitPart *part, NaradGroupWait *wait, NaradToken *hold)
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
 * more.  That ends as many promises as it took messages, or all of them.  The
 * caller has the relation locked, and no narad lock.
 */
void
NaradWaitEndHolds(NaradGroup *group, int partition, int ntaken, bool dry)
{
	NaradWaitPart *part;
	NaradGroupWait *wait = &group->wait;
	bool		chain = false;
	int			left = ntaken;
	dlist_mutable_iter iter;

	if (*(volatile int *) &wait->nholds == 0)
		return;
	part = part_of_group(group);
	LWLockAcquire(&part->lock, LW_EXCLUSIVE);
	dlist_foreach_modify(iter, &wait->holds)
	{
		NaradToken *hold = dlist_container(NaradToken, node, iter.cur);

		if (!hold->is_held || (hold->partition >= 0 && partition >= 0 &&
							   hold->partition != partition))
			continue;
		if (left-- <= 0 && !dry)
			break;
		chain |= hold->chain && ntaken > 0;
		end_hold(part, wait, hold);
	}
	if (chain && wait->is_listed)
		serve_group(part, group, partition, 1, true);
	else
		unlist_if_empty(wait);
	LWLockRelease(&part->lock);
}

/* Nobody came for what was promised: the next is served.  The lock is held. */
static void
expire_holds(NaradWaitPart *part, NaradGroup *group, int64 now)
{
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
		end_hold(part, wait, due);
		serve_group(part, group, partition, 1, chain);
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
		pg_atomic_write_u64(&WaitCtl->waiters[wait->keeper].armed,
							NARAD_NO_DEADLINE);
	NaradTokenExpire(&part->nwatching, wait, now);
	expire_holds(part, group, now);
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
	unlist_if_empty(wait);
	LWLockRelease(&part->lock);
	arm_by_shards(part, group, group_id);
}

/* ----------------------------------------------------------------
 *		Waiting
 * ----------------------------------------------------------------
 */

/* The group's place may be another's by now.  The lock is held. */
static bool
is_group(const NaradGroup *group, NaradGroupId group_id)
{
	return !group->dropped && group->group_id == group_id;
}

static void
push_waiter(NaradWaiter *waiter, NaradGroupWait *wait, bool at_head)
{
	dlist_head *fifo = waiter->partition < 0 ? &wait->fifo :
	&wait->named[waiter->partition % NARAD_NAMED_LISTS];

	if (at_head)
		dlist_push_head(fifo, &waiter->fifo_node);
	else
		dlist_push_tail(fifo, &waiter->fifo_node);
	dlist_push_tail(&wait->all, &waiter->all_node);
	wait->nwaiters++;
	pg_atomic_write_u64(&waiter->armed, NARAD_NO_DEADLINE);
	if (wait->keeper < 0)
	{
		wait->keeper = procno_of(waiter);
		pg_atomic_write_u64(&waiter->armed, pg_atomic_read_u64(&wait->armed));
	}
}

/* What of a slot its owner fills in before others see it. */
static NaradWaiter *
prepare_waiter(NaradWaitKind kind, Oid database, NaradTopicId topic_id,
			   int partition, TimestampTz deadline)
{
	NaradWaiter *waiter = &WaitCtl->waiters[NaradMyProcNumber];

	Assert(pg_atomic_read_u32(&waiter->state) == WAITER_IDLE);
	waiter->kind = kind;
	waiter->pid = MyProcPid;
	waiter->database = database;
	waiter->topic_id = topic_id;
	waiter->group = NULL;
	waiter->partition = partition;
	waiter->since = GetCurrentTimestamp();
	waiter->deadline = deadline;
	waiter->hold_serial = 0;
	if (waiter->hold != NULL)
		NaradFree(waiter->hold);
	waiter->hold = NULL;
	return waiter;
}

/*
 * NaradWaitJoin
 *
 * Makes this backend a waiter of a group, at the end of its FIFO; or again,
 * after a wake that found nothing, at the head.  The caller has the relation
 * locked, no narad lock, and looks for messages afterwards: what it does not
 * find then, it will be woken for.  ERROR 42704 if the group is gone, 53200 if
 * there is no memory for a caller's hold.
 */
void
NaradWaitJoin(NaradWaitKind kind, NaradGroup *group, NaradGroupId group_id,
			  int partition, TimestampTz deadline, bool at_head)
{
	NaradWaitPart *part = part_of_group(group);
	NaradWaiter *waiter = my_waiter;
	uint32		state = WAITER_IDLE;
	bool		is_first = false;
	bool		joined;

	(void) NaradMemoryArea();
	if (waiter == NULL)
	{
		waiter = prepare_waiter(kind, group->topic->database,
								group->topic->topic_id, partition, deadline);
		if (kind == NARAD_WAIT_CALLER)
		{
			waiter->hold = NaradAllocOrError(sizeof(NaradToken), "a waiter");
			waiter->hold->serial =
				pg_atomic_add_fetch_u64(&WaitCtl->last_serial, 1);
		}
	}
	else
		state = pg_atomic_read_u32(&waiter->state);
	Assert(state == WAITER_IDLE || my_part == part);

	LWLockAcquire(&part->lock, LW_EXCLUSIVE);
	if (waiter == my_waiter)
		state = pg_atomic_read_u32(&waiter->state);
	if (state == WAITER_SERVED && !is_group(group, group_id))
		pg_atomic_write_u32(&waiter->state, state = WAITER_GROUP_GONE);
	joined = is_group(group, group_id) &&
		(state == WAITER_IDLE || state == WAITER_SERVED);
	if (joined)
	{
		if (state == WAITER_IDLE)
			pg_atomic_fetch_add_u32(&part->nwatching, 1);
		waiter->group = group;
		is_first = list_group(part, &group->wait);
		push_waiter(waiter, &group->wait, at_head);
		pg_atomic_write_u32(&waiter->state, WAITER_WAITING);
		my_waiter = waiter;
		my_part = part;
		acting = false;
	}
	LWLockRelease(&part->lock);

	/* Gone while it was served: the sleep tells. */
	if (!joined && state == WAITER_IDLE)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("a consumer group was dropped while it was used")));

	/* Waker: makes available, barrier, looks for waiters. */
	pg_memory_barrier();
	if (is_first)
		arm_by_shards(part, group, group_id);
}

/*
 * NaradWaitJoinReader
 *
 * Makes this backend a reader of a partition that waits for its records to be
 * decided; or makes it wait again.  The caller has the relation locked, and
 * looks afterwards.
 */
void
NaradWaitJoinReader(NaradTopicId topic_id, Oid relid, int partition,
					TimestampTz deadline)
{
	NaradWaitPart *part = part_of(MyDatabaseId, topic_id);

	if (my_waiter == NULL)
	{
		NaradWaiter *waiter = prepare_waiter(NARAD_WAIT_READER, MyDatabaseId,
											 topic_id, partition, deadline);

		waiter->relid = relid;
		LWLockAcquire(&part->lock, LW_EXCLUSIVE);
		pg_atomic_fetch_add_u32(&part->nwatching, 1);
		dlist_push_tail(&part->readers, &waiter->fifo_node);
		pg_atomic_write_u32(&waiter->state, WAITER_WAITING);
		my_waiter = waiter;
		my_part = part;
		LWLockRelease(&part->lock);
	}
	else
	{
		uint32		expected = WAITER_SERVED;

		/* Unless the topic is gone. */
		(void) pg_atomic_compare_exchange_u32(&my_waiter->state, &expected,
											  WAITER_WAITING);
	}
	pg_memory_barrier();
}

/*
 * NaradWaitSleep
 *
 * Sleeps until this waiter is served or its topic or group goes, `until`
 * (monotonic us) is reached, or, for a keeper, a deadline of the group.  No lock
 * on the relation need be held.  Errors when cancelled.
 */
NaradWaitEnd
NaradWaitSleep(int64 until, uint32 wait_event)
{
	Assert(my_waiter != NULL);
	for (;;)
	{
		int64		now;
		uint64		armed;
		long		sleep_ms;

		switch (pg_atomic_read_u32(&my_waiter->state))
		{
			case WAITER_SERVED:
				acting = true;
				return NARAD_WAIT_SERVED;
			case WAITER_GROUP_GONE:
				return NARAD_WAIT_GROUP_GONE;
			case WAITER_TOPIC_GONE:
				return NARAD_WAIT_TOPIC_GONE;
			default:
				break;
		}

		now = NaradClockNow();
		if (now >= until)
			return NARAD_WAIT_TIMEOUT;
		armed = pg_atomic_read_u64(&my_waiter->armed);
		if (armed <= (uint64) now)
			return NARAD_WAIT_DUE;
		sleep_ms = (long) ((Min(armed, (uint64) until) - now + 999) / 1000);
		(void) WaitLatch(MyLatch,
						 WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 Min(sleep_ms, INT_MAX), wait_event);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
}

/* A caller's own hold, if it is still there.  The lock is held. */
static void
end_my_hold(NaradWaiter *waiter)
{
	dlist_iter	iter;

	dlist_foreach(iter, &waiter->group->wait.holds)
	{
		NaradToken *hold = dlist_container(NaradToken, node, iter.cur);

		if (hold->serial == waiter->hold_serial && hold->is_held)
		{
			end_hold(my_part, &waiter->group->wait, hold);
			break;
		}
	}
}

/* The wake goes to the next.  The lock is held. */
static void
hand_on(NaradWaiter *waiter)
{
	if (waiter->hold_serial != 0)
		end_my_hold(waiter);
	if (waiter->group->wait.is_listed)
		serve_group(my_part, waiter->group, waiter->served_partition, 1,
					waiter->served_chain);
}

static void
leave(bool took, bool failed)
{
	NaradWaiter *waiter = my_waiter;
	bool		is_reader;

	if (waiter == NULL)
		return;
	is_reader = waiter->kind == NARAD_WAIT_READER;
	LWLockAcquire(&my_part->lock, LW_EXCLUSIVE);
	switch (pg_atomic_read_u32(&waiter->state))
	{
		case WAITER_WAITING:
			if (is_reader)
				dlist_delete(&waiter->fifo_node);
			else
			{
				unlink_waiter(waiter);
				unlist_if_empty(&waiter->group->wait);
			}
			break;
		case WAITER_SERVED:
			if (is_reader)
				dlist_delete(&waiter->fifo_node);
			else if (failed || !acting ||
					 (took && waiter->served_chain &&
					  waiter->kind == NARAD_WAIT_CONSUMER))
				hand_on(waiter);
			break;
		default:
			/* In no list, and the group may be gone. */
			break;
	}
	waiter->group = NULL;
	pg_atomic_write_u32(&waiter->state, WAITER_IDLE);
	pg_atomic_fetch_sub_u32(&my_part->nwatching, 1);
	LWLockRelease(&my_part->lock);

	my_waiter = NULL;
	acting = false;
	if (waiter->hold != NULL)
		NaradFree(waiter->hold);
	waiter->hold = NULL;
}

/*
 * NaradWaitLeave
 *
 * Ends the wait, if there is one.  Who took a message on a wake that was for it
 * has used it up; one that came meanwhile is handed on.
 */
void
NaradWaitLeave(bool took)
{
	leave(took, false);
}

/*
 * NaradWaitCleanup
 *
 * The same after an error, or when the process ends: a wake is handed on.
 */
void
NaradWaitCleanup(int code, Datum arg)
{
	leave(false, true);
}

/* ----------------------------------------------------------------
 *		What goes
 * ----------------------------------------------------------------
 */

/* Those who were served and have not looked yet.  The lock is held. */
static void
tell_served(NaradGroup *group, uint32 state)
{
	for (int i = 0; i < MaxBackends; i++)
	{
		NaradWaiter *waiter = &WaitCtl->waiters[i];

		if (waiter->group == group &&
			pg_atomic_read_u32(&waiter->state) == WAITER_SERVED)
		{
			pg_atomic_write_u32(&waiter->state, state);
			set_latch_of(waiter);
		}
	}
}

/*
 * NaradWaitGroupGone
 *
 * The group was dropped (its mark says so already), or goes with its topic.
 * In transaction callbacks: no error, no allocation.
 */
void
NaradWaitGroupGone(NaradGroup *group, bool topic_gone)
{
	NaradWaitPart *part = part_of_group(group);
	NaradGroupWait *wait = &group->wait;
	uint32		state = topic_gone ? WAITER_TOPIC_GONE : WAITER_GROUP_GONE;

	LWLockAcquire(&part->lock, LW_EXCLUSIVE);
	while (!dlist_is_empty(&wait->all))
	{
		NaradWaiter *waiter = dlist_head_element(NaradWaiter, all_node,
												 &wait->all);

		unlink_waiter(waiter);
		pg_atomic_write_u32(&waiter->state, state);
		set_latch_of(waiter);
	}
	if (pg_atomic_read_u32(&part->nwatching) > 0)
		tell_served(group, state);
	NaradTokenFreeAll(&part->nwatching, wait);
	unlist_if_empty(wait);
	LWLockRelease(&part->lock);
}

/*
 * NaradWaitTopicGone
 *
 * The same for those who read a topic's log.
 */
void
NaradWaitTopicGone(Oid database, NaradTopicId topic_id)
{
	NaradWaitPart *part = part_of(database, topic_id);
	dlist_mutable_iter iter;

	pg_memory_barrier();
	if (pg_atomic_read_u32(&part->nwatching) == 0)
		return;
	LWLockAcquire(&part->lock, LW_EXCLUSIVE);
	dlist_foreach_modify(iter, &part->readers)
	{
		NaradWaiter *reader = dlist_container(NaradWaiter, fifo_node, iter.cur);

		if (reader->topic_id != topic_id || reader->database != database)
			continue;
		dlist_delete(&reader->fifo_node);
		pg_atomic_write_u32(&reader->state, WAITER_TOPIC_GONE);
		set_latch_of(reader);
	}
	LWLockRelease(&part->lock);
}

/* ----------------------------------------------------------------
 *		Views
 * ----------------------------------------------------------------
 */

/*
 * NaradWaitCount
 *
 * Waiters that may be served from a partition of a group.
 */
int
NaradWaitCount(NaradGroup *group, int partition)
{
	NaradWaitPart *part = part_of_group(group);
	NaradGroupWait *wait = &group->wait;
	int			nwaiters = 0;
	dlist_iter	iter;

	LWLockAcquire(&part->lock, LW_SHARED);
	dlist_foreach(iter, &wait->fifo)
		nwaiters++;
	dlist_foreach(iter, &wait->named[partition % NARAD_NAMED_LISTS])
	{
		if (dlist_container(NaradWaiter, fifo_node,
							iter.cur)->partition == partition)
			nwaiters++;
	}
	LWLockRelease(&part->lock);
	return nwaiters;
}

/* A row; grows the array if need be. */
typedef struct WaitLooks
{
	NaradWaiterLook *rows;
	int			nrows;
	int			max_rows;
} WaitLooks;

static void
look_at_waiter(const NaradWaiter *waiter, NaradWaiterLook *row)
{
	row->partition = waiter->partition;
	row->pid = waiter->pid;
	row->kind = waiter->kind == NARAD_WAIT_READER ? "reader" : "backend";
	row->since = waiter->since;
	row->deadline = waiter->deadline;
	row->topic_id = waiter->topic_id;
	row->relid = waiter->relid;
	row->group[0] = '\0';
	if (waiter->group != NULL)
	{
		row->relid = pg_atomic_read_u32(&waiter->group->topic->relid);
		strlcpy(row->group, waiter->group->name, NAMEDATALEN);
	}
}

static void
look_at_token(NaradGroup *group, const NaradToken *token,
			  NaradWaiterLook *row)
{
	row->relid = pg_atomic_read_u32(&group->topic->relid);
	row->topic_id = group->topic->topic_id;
	strlcpy(row->group, group->name, NAMEDATALEN);
	row->partition = token->partition;
	row->pid = token->pid;
	row->kind = "token";
	row->since = token->since;
	row->deadline = token->deadline;
}

/*
 * How many rows a part may have at most: those of waiters are made from the
 * slots.
 */
static int
look_at_tokens(NaradWaitPart *part, WaitLooks *looks)
{
	int			ntokens = 0;
	dlist_iter	groups;
	dlist_iter	iter;

	LWLockAcquire(&part->lock, LW_SHARED);
	dlist_foreach(groups, &part->groups)
	{
		NaradGroup *group = group_of(dlist_container(NaradGroupWait, node,
													 groups.cur));

		if (group->topic->database != MyDatabaseId)
			continue;
		dlist_foreach(iter, &group->wait.tokens)
		{
			if (looks->nrows + ntokens < looks->max_rows)
				look_at_token(group, dlist_container(NaradToken, node, iter.cur),
							  &looks->rows[looks->nrows + ntokens]);
			ntokens++;
		}
	}
	LWLockRelease(&part->lock);
	return ntokens;
}

static void
grow_looks(WaitLooks *looks, int nrows)
{
	if (nrows <= looks->max_rows)
		return;
	looks->max_rows = nrows * 2;
	looks->rows = repalloc_huge(looks->rows,
								looks->max_rows * sizeof(NaradWaiterLook));
}

/*
 * NaradWaitLook
 *
 * The waiters and tokens of this database, palloc'ed; each as it is at some
 * moment.  No narad lock may be held.
 */
NaradWaiterLook *
NaradWaitLook(int *nwaiters)
{
	WaitLooks	looks;

	looks.nrows = 0;
	looks.max_rows = MaxBackends;
	looks.rows = palloc(looks.max_rows * sizeof(NaradWaiterLook));
	for (int i = 0; i < MaxBackends; i++)
	{
		NaradWaiter *waiter = &WaitCtl->waiters[i];
		NaradWaitPart *part;

		if (pg_atomic_read_u32(&waiter->state) == WAITER_IDLE)
			continue;

		/* Read without the lock, so read again under it. */
		part = part_of(waiter->database, waiter->topic_id);
		LWLockAcquire(&part->lock, LW_SHARED);
		if (part == part_of(waiter->database, waiter->topic_id) &&
			waiter->database == MyDatabaseId &&
			pg_atomic_read_u32(&waiter->state) == WAITER_WAITING)
			look_at_waiter(waiter, &looks.rows[looks.nrows++]);
		LWLockRelease(&part->lock);
	}
	for (int i = 0; i < WAIT_PARTS; i++)
	{
		NaradWaitPart *part = &WaitCtl->parts[i].part;
		int			ntokens;

		if (pg_atomic_read_u32(&part->nwatching) == 0)
			continue;
		while ((ntokens = look_at_tokens(part, &looks)) >
			   looks.max_rows - looks.nrows)
			grow_looks(&looks, looks.nrows + ntokens);
		looks.nrows += ntokens;
	}
	*nwaiters = looks.nrows;
	return looks.rows;
}

/* ----------------------------------------------------------------
 *		The worker
 * ----------------------------------------------------------------
 */

/*
 * NaradWaitForEachGroup
 *
 * Calls back for each group of this database that is listed, under the lock of
 * its part, exclusively; until one call says false.  For the worker.
 */
void
NaradWaitForEachGroup(NaradWaitVisitor visit, void *arg)
{
	for (int i = 0; i < WAIT_PARTS; i++)
	{
		NaradWaitPart *part = &WaitCtl->parts[i].part;
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
			unlist_if_empty(&group->wait);
			if (!more)
				break;
		}
		LWLockRelease(&part->lock);
		if (!more)
			break;
	}
}

/* ----------------------------------------------------------------
 *		Registration
 * ----------------------------------------------------------------
 */

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

/*
 * NaradWaitShmemSize
 */
Size
NaradWaitShmemSize(void)
{
	return add_size(offsetof(NaradWaitCtl, waiters),
					mul_size(MaxBackends, sizeof(NaradWaiter)));
}

/*
 * NaradWaitShmemInit
 *
 * Under AddinShmemInitLock, after the locks are known.
 */
void
NaradWaitShmemInit(void)
{
	bool		found;

	my_waiter = NULL;
	WaitCtl = ShmemInitStruct("Narad waiters", NaradWaitShmemSize(), &found);
	if (found)
		return;
	memset(WaitCtl, 0, NaradWaitShmemSize());
	pg_atomic_init_u64(&WaitCtl->last_serial, 0);
	for (int i = 0; i < WAIT_PARTS; i++)
	{
		NaradWaitPart *part = &WaitCtl->parts[i].part;

		NaradLockInit(&part->lock, NARAD_LOCK_WAIT);
		pg_atomic_init_u32(&part->nwatching, 0);
		dlist_init(&part->groups);
		dlist_init(&part->readers);
	}
	for (int i = 0; i < MaxBackends; i++)
	{
		pg_atomic_init_u32(&WaitCtl->waiters[i].state, WAITER_IDLE);
		pg_atomic_init_u64(&WaitCtl->waiters[i].armed, NARAD_NO_DEADLINE);
	}
}
