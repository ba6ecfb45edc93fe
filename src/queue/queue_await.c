/*-------------------------------------------------------------------------
 *
 * queue_await.c
 *	  Waiting until a look at a topic finds something.
 *
 * Owns:       when a waiting call looks, sleeps, locks and unlocks.
 * Invariants: I8: each sleep follows a look that was made after joining.  I12:
 *             after each sleep the relation is locked anew, and what is there
 *             is compared with the topic that was waited for.
 * Locks:      the relation's, while it looks; none of its own while asleep.  Locks
 *             are counted, so only what was taken here is given up: where the
 *             transaction has used the topic before, it stays locked.
 * Runs in:    any backend; readers during recovery, too.
 * WAL:        none.
 * On error:   the wait ends, and a wake that was given goes to the next; the same
 *             if the process ends (PG_ENSURE_ERROR_CLEANUP).
 *
 * During recovery nobody tells a reader of a commit: he looks again after 10 ms,
 * then 20, 40, 80, 100.  So does one in a read-only transaction whose topic was
 * never written to, and thus has no id to wait for.
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
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "base/base_compat.h"
#include "base/base_stop.h"
#include "base/base_wait.h"
#include "log/log_tableam.h"
#include "queue/queue_await.h"
#include "queue/queue_lease.h"
#include "queue/queue_topic.h"

#define NAP_FIRST_MS	10
#define NAP_LAST_MS		100

/* One NaradAwait call. */
typedef struct Await
{
	const NaradAwaitArgs *args;
	Relation	rel;			/* NULL: closed */
	Oid			relid;
	char	   *name;			/* of the topic, for messages */
	LOCKMODE	lockmode;
	int64		until;			/* monotonic us */
	TimestampTz deadline;
	NaradTopicId topic_id;		/* 0: none yet */
	NaradGroup *group;			/* NULL: not joined yet */
	NaradGroupId group_id;
	int			nap_ms;			/* of a reader that nobody wakes */
} Await;

static void
close_topic(Await *a)
{
	relation_close(a->rel, a->lockmode);
	a->rel = NULL;
}

NARAD_NORETURN static void report_group_gone(const Await *a);

static void
report_group_gone(const Await *a)
{
	ereport(ERROR,
			(errcode(ERRCODE_UNDEFINED_OBJECT),
			 errmsg("consumer group \"%s\" of topic \"%s\" was dropped while it was waited for",
					a->args->group, a->name)));
}

/*
 * Locks and opens the topic again.  False if it is another one by now; ERROR
 * 42P01 if it is gone.
 */
static bool
open_topic(Await *a)
{
	NaradRelInfo *info;

	a->rel = try_relation_open(a->relid, a->lockmode);
	if (a->rel == NULL || !NaradRelIsTopic(a->rel))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("topic \"%s\" was dropped while it was waited for",
						a->name)));
	info = NaradRelInfoGet(a->rel);
	if (a->topic_id != 0 && (info == NULL || info->topic_id != a->topic_id))
	{
		close_topic(a);
		return false;
	}
	a->args->check(a->rel, a->args->arg);
	return true;
}

/*
 * Joins the readers of the partition.  An empty file gets its first page for
 * that, if it may be written.
 */
static void
join_readers(Await *a)
{
	NaradRelInfo *info;

	if (RecoveryInProgress())
		return;
	info = NaradRelInfoAttach(a->rel);
	if (info == NULL && !XactReadOnly)
	{
		LockRelationOid(a->relid, RowExclusiveLock);
		info = NaradRelInfoCreate(a->rel, 0, 0);
		a->topic_id = info->topic_id;
		UnlockRelationOid(a->relid, RowExclusiveLock);
	}
	else if (info != NULL)
		a->topic_id = info->topic_id;
	if (a->topic_id != 0)
		NaradWaitJoinReader(a->topic_id, a->relid, a->args->partition,
							a->deadline);
}

/* Joins the group's waiters, or joins again. */
static void
join_group(Await *a)
{
	NaradRelInfo info = *NaradRelInfoCreate(a->rel, 0, 0);
	NaradQueueTopic *topic = NaradQueueTopicGet(a->rel, &info);
	NaradGroupId group_id;
	NaradGroup *group = NaradGroupGet(a->rel, &info, topic, a->args->group,
									  &group_id);
	bool		again = a->group != NULL;

	if (again && (group != a->group || group_id != a->group_id))
		report_group_gone(a);
	a->topic_id = info.topic_id;
	a->group = group;
	a->group_id = group_id;
	NaradWaitJoin(a->args->kind, group, group_id, a->args->partition,
				  a->deadline, again);
}

/* Sleeps a while, longer each time: nobody will wake us. */
static NaradWaitEnd
nap(Await *a)
{
	int64		left = a->until - NaradClockNow();

	if (left <= 0)
		return NARAD_WAIT_TIMEOUT;
	(void) WaitLatch(MyLatch,
					 WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					 Min(a->nap_ms, (left + 999) / 1000),
					 NaradWaitEventId(NARAD_EVENT_FETCH));
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
	a->nap_ms = Min(a->nap_ms * 2, NAP_LAST_MS);
	return NARAD_WAIT_SERVED;
}

/*
 * Sleeps until it is worth looking again; the topic is then locked, and the same.
 * False when the wait is over.  A keeper minds his group's deadlines meanwhile.
 */
static bool
sleep_until_served(Await *a)
{
	bool		is_reader = a->args->kind == NARAD_WAIT_READER;
	bool		is_told = !is_reader ||
	(a->topic_id != 0 && !RecoveryInProgress());

	for (;;)
	{
		NaradWaitEnd end;

		close_topic(a);
		NARAD_STOP("wait-asleep");

		/* Nothing keeps old rows alive but what the caller's query does. */
		InvalidateCatalogSnapshotConditionally();
		end = is_told ?
			NaradWaitSleep(a->until,
						   NaradWaitEventId(is_reader ? NARAD_EVENT_FETCH :
											NARAD_EVENT_CONSUME)) : nap(a);
		if (end == NARAD_WAIT_TIMEOUT)
			return false;
		NARAD_STOP("wait-woken");
		if (a->args->partition >= 0)
			NARAD_STOP("wait-woken-named");
		if (!open_topic(a) || end == NARAD_WAIT_TOPIC_GONE)
			return false;
		if (end == NARAD_WAIT_GROUP_GONE)
			report_group_gone(a);
		if (end == NARAD_WAIT_SERVED)
			return true;
		NaradWaitMind(a->group, a->group_id);
	}
}

/*
 * Looks, sleeps, looks.  A look follows each joining; the first after a sleep
 * is made before joining again, since it mostly finds something.
 */
static bool
await_find(Await *a)
{
	const NaradAwaitArgs *args = a->args;

	NARAD_STOP("wait-begin");
	for (;;)
	{
		if (args->kind == NARAD_WAIT_READER)
			join_readers(a);
		else
			join_group(a);
		NARAD_STOP("wait-joined");
		if (args->look(a->rel, args->arg))
			return true;
		if (!sleep_until_served(a))
			return false;
		if (args->kind == NARAD_WAIT_READER)
			continue;
		if (args->look(a->rel, args->arg))
			return true;
		if (NaradClockNow() >= a->until)
			return false;
	}
}

/*
 * NaradAwait
 *
 * See queue_await.h.  Errors: those of the look and the check; 42P01 and 42704
 * when the topic or the group is dropped; when cancelled.
 */
bool
NaradAwait(Relation rel, const NaradAwaitArgs *args)
{
	Await		a = {0};
	bool		found = false;

	Assert(args->wait > 0);
	a.args = args;
	a.rel = rel;
	a.relid = RelationGetRelid(rel);
	a.name = pstrdup(RelationGetRelationName(rel));
	a.lockmode = args->kind == NARAD_WAIT_READER ? AccessShareLock :
		RowExclusiveLock;
	a.until = NaradClockNow() + args->wait;
	a.deadline = GetCurrentTimestamp() + args->wait;
	a.nap_ms = NAP_FIRST_MS;

	PG_ENSURE_ERROR_CLEANUP(NaradWaitCleanup, (Datum) 0);
	{
		found = await_find(&a);
		NaradWaitLeave(found);
	}
	PG_END_ENSURE_ERROR_CLEANUP(NaradWaitCleanup, (Datum) 0);

	if (a.rel != NULL)
		relation_close(a.rel, found && args->kind == NARAD_WAIT_CONSUMER ?
					   NoLock : a.lockmode);
	pfree(a.name);
	return found;
}
