/*-------------------------------------------------------------------------
 *
 * worker_retention.c
 *	  A duty of the worker: retention of the topics of its database.
 *
 * Owns:       when which topic is looked at, and when its file is cut.
 * Invariants: I10.  None of the engine's depends on it: what is dropped late
 *             is dropped later.
 * Locks:      RowExclusiveLock on one topic at a time, got only if free, and
 *             AccessExclusiveLock for a moment, as well only if free.
 * Runs in:    the worker.
 * WAL:        storage's, for what is sealed, freed and cut; none at rest.
 * On error:   logged; the topic is looked at again after a wait that grows
 *             from one second to a minute, and the others are not held up.
 *
 * A topic is looked at when the worker starts; when a segment of it was
 * opened, so that another may be over a limit; when, with cleanup 'settled', a
 * group's state page comes to say that a segment is done with, or groups are
 * made or dropped; when its settings were changed; and when one of its segments
 * becomes old enough.  The worker sleeps until the first of those times.  With
 * each look old deduplication ids are forgotten, too: the window may have become
 * shorter.
 *
 * The launcher starts a worker in each database after the server's start: so
 * topics are looked at that nobody uses, too.  Of those the directory is
 * read, which takes no shared memory, until something is due.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/lmgr.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "log/log_tableam.h"
#include "queue/queue_lease.h"
#include "queue/queue_retain.h"
#include "worker/worker_duty.h"

#define TAKEN_AT_ONCE	64
#define RETRY_FIRST_US	INT64CONST(1000000)
#define RETRY_LAST_US	INT64CONST(60000000)
#define CUT_AFTER_US	INT64CONST(60000000)	/* once a minute at most */

/* A topic, by its relation; times are monotonic. */
typedef struct WatchedTopic
{
	Oid			relid;			/* key */
	int64		due;			/* when to look at it */
	int64		retry_delay;	/* us; of what could not be done */
	bool		wants_cut;		/* segments were freed since the file was cut,
								 * or that could not be done */
	int64		cut_after;		/* not before */
} WatchedTopic;

static HTAB *watched;
static bool is_listed;			/* all that there were have been entered */

/* Enters a topic, or finds it, to be looked at at once. */
static void
watch(Oid relid)
{
	WatchedTopic *topic;
	bool		found;

	topic = hash_search(watched, &relid, HASH_ENTER, &found);
	if (!found)
	{
		topic->retry_delay = 0;
		topic->wants_cut = true;
		topic->cut_after = 0;
	}
	topic->due = 0;
}

/* Enters all topics. */
static void
list_topics(void)
{
	HASHCTL		ctl;
	ListCell   *cell;

	if (watched == NULL)
	{
		ctl.keysize = sizeof(Oid);
		ctl.entrysize = sizeof(WatchedTopic);
		watched = hash_create("narad retention", 64, &ctl,
							  HASH_ELEM | HASH_BLOBS);
	}
	StartTransactionCommand();
	foreach(cell, NaradQueueTopicList())
		watch(lfirst_oid(cell));
	CommitTransactionCommand();
	is_listed = true;
}

/* Enters those of which somebody said that there may be something to do. */
static void
take_wanted(void)
{
	NaradRetainItem items[TAKEN_AT_ONCE];
	int			nitems;
	int			i;

	if (!NaradRetainIsWanted())
		return;
	do
	{
		nitems = NaradRetainTake(items, TAKEN_AT_ONCE);
		for (i = 0; i < nitems; i++)
			watch(items[i].relid);
	} while (nitems == TAKEN_AT_ONCE);
}

/* The monotonic time of a time by the clock. */
static int64
monotonic_time(TimestampTz when)
{
	TimestampTz now = GetCurrentTimestamp();

	if (when == DT_NOEND)
		return NARAD_DUTY_NEVER;
	return NaradClockNow() + Max(when - now, 0);
}

/* Something could not be done: when to try again. */
static int64
retry_time(WatchedTopic *topic)
{
	topic->retry_delay = topic->retry_delay == 0 ? RETRY_FIRST_US :
		Min(topic->retry_delay * 2, RETRY_LAST_US);
	return NaradClockNow() + topic->retry_delay;
}

/* Cuts the file, if something was freed and it is not too early. */
static void
cut_file(Relation rel, NaradRelInfo *info, WatchedTopic *topic)
{
	int64		now = NaradClockNow();

	if (!topic->wants_cut)
		return;
	if (now >= topic->cut_after &&
		(NaradRetainGiveBack(rel, info, &topic->wants_cut) ||
		 topic->wants_cut))
		topic->cut_after = now + CUT_AFTER_US;
	if (topic->wants_cut)
		topic->due = Min(topic->due, topic->cut_after);
}

/* Retention of a topic that is open, and locked. */
static void
retain_topic(Relation rel, WatchedTopic *topic)
{
	NaradRetainResult result;
	NaradRelInfo info;
	NaradRelInfo *found = NaradRelInfoLook(rel);
	TimestampTz next;
	bool		wants_cut = topic->wants_cut;

	topic->due = NARAD_DUTY_NEVER;
	if (found == NULL)
		return;					/* empty: the first append tells of it */

	/* A commit that changed them may have woken us. */
	NaradTopicSettingsForget(RelationGetRelid(rel));
	if (found->shared == NULL)
	{
		next = NaradQueueRetainPeek(rel, found);
		if (next > GetCurrentTimestamp())
		{
			topic->due = monotonic_time(next);
			return;
		}
	}
	info = *NaradRelInfoAttach(rel);
	NaradWorkerForgetIds(rel, info.topic_id);
	NaradRetainResultInit(&result);

	/* It may have freed something before an error. */
	topic->wants_cut = true;
	NaradQueueRetain(rel, &info, &result);
	topic->due = monotonic_time(result.next);
	topic->wants_cut = wants_cut || result.nfreed > 0;
	if (result.blocked)
	{
		int64		retry = retry_time(topic);

		topic->due = Min(topic->due, retry);
	}
	else
		topic->retry_delay = 0;
	cut_file(rel, &info, topic);
}

/* In a transaction.  False if the relation is no topic any more. */
static bool
look_at_topic(WatchedTopic *topic)
{
	Relation	rel;
	bool		is_topic;

	if (!ConditionalLockRelationOid(topic->relid, RowExclusiveLock))
	{
		topic->due = retry_time(topic);
		return true;
	}
	rel = try_relation_open(topic->relid, NoLock);
	if (rel == NULL)
	{
		UnlockRelationOid(topic->relid, RowExclusiveLock);
		return false;
	}
	is_topic = NaradRelIsTopic(rel);
	if (is_topic)
		retain_topic(rel, topic);
	relation_close(rel, RowExclusiveLock);
	return is_topic;
}

/* Logs the error and leaves the topic for later. */
static void
look_failed(WatchedTopic *topic)
{
	HOLD_INTERRUPTS();
	EmitErrorReport();
	AbortCurrentTransaction();
	FlushErrorState();
	RESUME_INTERRUPTS();
	topic->due = retry_time(topic);
}

static void
try_topic(WatchedTopic *topic)
{
	MemoryContext context = CurrentMemoryContext;
	volatile bool is_topic = true;

	PG_TRY();
	{
		StartTransactionCommand();
		PushActiveSnapshot(GetTransactionSnapshot());
		is_topic = look_at_topic(topic);
		PopActiveSnapshot();
		CommitTransactionCommand();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		look_failed(topic);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	if (!is_topic)
		hash_search(watched, &topic->relid, HASH_REMOVE, NULL);
}

/* The topics that are due, palloc'ed; how many. */
static int
list_due(int64 now, WatchedTopic ***due)
{
	HASH_SEQ_STATUS status;
	WatchedTopic *topic;
	int			ndue = 0;

	*due = palloc((hash_get_num_entries(watched) + 1) *
				  sizeof(WatchedTopic *));
	hash_seq_init(&status, watched);
	while ((topic = hash_seq_search(&status)) != NULL)
	{
		if (topic->due <= now)
			(*due)[ndue++] = topic;
	}
	return ndue;
}

static int64
earliest_due(void)
{
	HASH_SEQ_STATUS status;
	WatchedTopic *topic;
	int64		next = NARAD_DUTY_NEVER;

	hash_seq_init(&status, watched);
	while ((topic = hash_seq_search(&status)) != NULL)
		next = Min(next, topic->due);
	return next;
}

/* Looks at all that are due; returns when the next one is. */
static int64
retention_run(int64 now)
{
	WatchedTopic **due;
	int			ndue;
	int			i;

	if (!is_listed)
		list_topics();
	take_wanted();
	ndue = list_due(now, &due);
	if (ndue > 0)
	{
		pgstat_report_activity(STATE_RUNNING, "retention of topics");
		for (i = 0; i < ndue; i++)
		{
			CHECK_FOR_INTERRUPTS();
			try_topic(due[i]);
		}
		pgstat_report_stat(false);
		pgstat_report_activity(STATE_IDLE, NULL);
	}
	pfree(due);
	return earliest_due();
}

/*
 * NaradRetentionHasTopics
 *
 * Does this worker know of a topic?
 */
bool
NaradRetentionHasTopics(void)
{
	return watched != NULL && hash_get_num_entries(watched) > 0;
}

const NaradDuty NaradRetentionDuty = {
	"retention of topics",
	retention_run,
	NULL,
	NULL
};
