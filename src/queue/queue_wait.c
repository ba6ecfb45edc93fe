/*-------------------------------------------------------------------------
 *
 * queue_wait.c
 *	  Waiting for messages: joining, sleeping, leaving.
 *
 * Owns:       a waiter's slot for each backend, and the parts of shared memory in
 *             which waiters are listed; queue_serve.c does the listing.
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
 * There are never more messages of a partition available than wakes for it
 * under way, while anybody sleeps who could take them.  So who was woken looks
 * there first: taking what another was told of elsewhere, while his own message
 * is there, would leave that to nobody.
 *
 * A wake given during a look that takes a message is for another message, for
 * all we know: it is handed on.  Where nobody can tell how many messages became
 * available, a wake is a chain: whoever takes one wakes the next.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/shmem.h"
#include "utils/timestamp.h"

#include "base/base_memory.h"
#include "queue/queue_lease.h"
#include "queue/queue_shard.h"
#include "queue/queue_waiter.h"

NaradWaitCtl *NaradWaitShared;

/* This backend's slot while it is not idle, and the part it is in. */
static NaradWaiter *my_waiter;
static NaradWaitPart *my_part;

/* The wake that made the owner look is one it knows of. */
static bool acting;

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
	NaradWaiter *waiter = &NaradWaitShared->waiters[NaradMyProcNumber];

	Assert(pg_atomic_read_u32(&waiter->state) == WAITER_IDLE);
	waiter->kind = kind;
	waiter->pid = MyProcPid;
	waiter->database = database;
	waiter->topic_id = topic_id;
	waiter->group = NULL;
	waiter->partition = partition;
	waiter->since = GetCurrentTimestamp();
	waiter->deadline = deadline;
	waiter->served_owner = false;
	waiter->hold_serial = 0;
	if (waiter->hold != NULL)
		NaradFree(waiter->hold);
	waiter->hold = NULL;
	return waiter;
}

/* What the next wake of a caller leaves behind. */
static NaradToken *
make_hold(void)
{
	NaradToken *hold = NaradAllocOrError(sizeof(NaradToken), "a waiter");

	hold->serial = pg_atomic_add_fetch_u64(&NaradWaitShared->last_serial, 1);
	return hold;
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
			NaradServeEndHold(my_part, &waiter->group->wait, hold);
			break;
		}
	}
	waiter->hold_serial = 0;
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
		waiter = prepare_waiter(kind, group->topic->database,
								group->topic->topic_id, partition, deadline);
	else
		state = pg_atomic_read_u32(&waiter->state);
	if (kind == NARAD_WAIT_CALLER && waiter->hold == NULL)
		waiter->hold = make_hold();
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
		else if (waiter->hold_serial != 0)
			end_my_hold(waiter);
		waiter->group = group;
		is_first = NaradServeList(part, &group->wait);
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
		NaradServeArm(part, group, group_id);
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
				pg_read_barrier();
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

/*
 * NaradWaitWoken
 *
 * Does this backend look because it was woken, and for which partition
 * (-1: any)?  Who was woken looks there first: so the message that is left to
 * another is one of which another was told.
 */
bool
NaradWaitWoken(int *partition)
{
	if (acting)
		*partition = my_waiter->served_partition;
	return acting;
}

/*
 * NaradWaitWokenAsOwner
 *
 * Was this waiter's last wake, be it looks ago, for what nobody else may take?
 */
bool
NaradWaitWokenAsOwner(void)
{
	return my_waiter != NULL && my_waiter->kind == NARAD_WAIT_CONSUMER &&
		my_waiter->served_owner;
}

/*
 * The wake goes to the next, unless only this one could have used it.  The lock
 * is held.
 */
static void
hand_on(NaradWaiter *waiter)
{
	if (waiter->served_owner)
		return;
	if (waiter->hold_serial != 0)
		end_my_hold(waiter);
	if (waiter->group->wait.is_listed)
		NaradServeGroup(my_part, waiter->group, waiter->served_partition, 1,
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
				NaradServeUnlink(waiter);
				NaradServeUnlist(&waiter->group->wait);
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
		NaradWaiter *waiter = &NaradWaitShared->waiters[i];

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

		NaradServeUnlink(waiter);
		pg_atomic_write_u32(&waiter->state, state);
		set_latch_of(waiter);
	}
	if (pg_atomic_read_u32(&part->nwatching) > 0)
		tell_served(group, state);
	NaradTokenFreeAll(&part->nwatching, wait);
	NaradServeUnlist(wait);
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

	if (!lock_if_watched(part))
		return;
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
		NaradWaiter *waiter = &NaradWaitShared->waiters[i];
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
		NaradWaitPart *part = &NaradWaitShared->parts[i].part;
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
 *		Registration
 * ----------------------------------------------------------------
 */

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
	NaradWaitShared = ShmemInitStruct("Narad waiters", NaradWaitShmemSize(), &found);
	if (found)
		return;
	memset(NaradWaitShared, 0, NaradWaitShmemSize());
	pg_atomic_init_u64(&NaradWaitShared->last_serial, 0);
	for (int i = 0; i < WAIT_PARTS; i++)
	{
		NaradWaitPart *part = &NaradWaitShared->parts[i].part;

		NaradLockInit(&part->lock, NARAD_LOCK_WAIT);
		pg_atomic_init_u32(&part->nwatching, 0);
		dlist_init(&part->groups);
		dlist_init(&part->readers);
	}
	for (int i = 0; i < MaxBackends; i++)
	{
		pg_atomic_init_u32(&NaradWaitShared->waiters[i].state, WAITER_IDLE);
		pg_atomic_init_u64(&NaradWaitShared->waiters[i].armed, NARAD_NO_DEADLINE);
	}
}
