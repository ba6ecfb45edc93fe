/*-------------------------------------------------------------------------
 *
 * worker_frontier.c
 *	  A duty of the worker: keeps state pages close to memory.
 *
 * Owns:       when a dirty shard is written and when that is flushed.
 * Invariants: none of the engine's depends on it.  What it keeps is the
 *             promise of time: a plain ack is on its page within
 *             narad.frontier_write_interval, unless that has a large image and
 *             was written lately, and flushed within
 *             narad.frontier_flush_interval, both counted from its commit;
 *             after a clean stop no acked message is delivered again.
 * Locks:      RowExclusiveLock on one topic at a time, got only if free: a
 *             topic that is locked is left for the next round, so nobody waits
 *             for the worker and it waits for nobody.
 * Runs in:    the worker.
 * WAL:        state pages, through queue_state.c.
 * On error:   a shard that cannot be written is logged and tried again with
 *             growing waits; the others are not held up by it.
 *
 * At the clean stop, with backends of this database still leaving (they get
 * the signal at the same time in a fast shutdown), it waits for them a moment,
 * since each may still settle what it acked, then writes and flushes
 * everything, topics that are locked as soon as they are not, if that is within
 * another moment.
 *
 * A dirty shard whose topic is gone though nobody said so, however that came
 * about, is met here, and then the topic is forgotten, lest it be tried for
 * ever: whoever has pointers to a topic's shards found the topic's id in the
 * file of its relation, under a lock he still holds.  So once the worker has
 * the lock, which conflicts with every way to take the file away, and the
 * relation is gone or has another id, nobody has any, and nobody can get one.
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
#include "pgstat.h"
#include "postmaster/interrupt.h"
#include "storage/lmgr.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "base/base_guc.h"
#include "log/log_tableam.h"
#include "queue/queue_dirty.h"
#include "queue/queue_state.h"
#include "queue/queue_topic.h"
#include "worker/worker_duty.h"

#define ITEMS_A_ROUND	64
#define STOP_WAIT_MS	2000	/* for backends to leave */
#define STOP_POLL_MS	20
#define FAILURE_FIRST_US	INT64CONST(1000000)
#define FAILURE_LAST_US		INT64CONST(60000000)

/* What this worker wrote and did not flush yet. */
static XLogRecPtr unflushed_lsn = InvalidXLogRecPtr;
static int64 unflushed_since;	/* monotonic us: the oldest change in it */

static int64 next_write;		/* monotonic us; 0 while nothing is dirty */
static int64 failure_delay;		/* us; 0 while all goes well */

/*
 * What was written has changes from `since` on.  The WAL writer is told, too:
 * this process may be terminated before it comes to flush.
 */
static void
note_unflushed(XLogRecPtr lsn, int64 since)
{
	if (XLogRecPtrIsInvalid(lsn))
		return;
	if (XLogRecPtrIsInvalid(unflushed_lsn) || since < unflushed_since)
		unflushed_since = since;
	unflushed_lsn = Max(unflushed_lsn, lsn);
	XLogSetAsyncXactLSN(lsn);
}

/* Writes one shard, in a transaction.  False if the topic is locked. */
static bool
write_item(const NaradDirtyItem *item)
{
	Relation	rel;
	NaradRelInfo *found;
	NaradRelInfo info;
	NaradShard *shard = NULL;

	if (!ConditionalLockRelationOid(item->relid, RowExclusiveLock))
		return false;
	rel = try_relation_open(item->relid, NoLock);
	if (rel == NULL)
	{
		NaradQueueTopicGone(MyDatabaseId, item->topic_id);
		UnlockRelationOid(item->relid, RowExclusiveLock);
		return false;
	}
	found = NaradRelIsTopic(rel) ? NaradRelInfoAttach(rel) : NULL;
	if (found != NULL)
	{
		/* A copy: the relation's may go with an invalidation. */
		info = *found;
		shard = NaradShardLookup(&info, item->topic_id, item->group_id,
								 item->partition);
	}
	if (shard != NULL)
		note_unflushed(NaradStateWrite(rel, &info, shard, item->group_id),
					   item->dirty_since);
	else if (found == NULL || info.topic_id != item->topic_id)
		NaradQueueTopicGone(MyDatabaseId, item->topic_id);
	relation_close(rel, RowExclusiveLock);
	return true;
}

/* Logs the error and leaves the shard for later. */
static void
write_failed(const NaradDirtyItem *item)
{
	HOLD_INTERRUPTS();
	EmitErrorReport();
	AbortCurrentTransaction();
	FlushErrorState();
	RESUME_INTERRUPTS();
	failure_delay = failure_delay == 0 ? FAILURE_FIRST_US :
		Min(failure_delay * 2, FAILURE_LAST_US);
	NaradDirtyPostpone(item, NaradClockNow() + failure_delay);
}

static bool
try_write_item(const NaradDirtyItem *item)
{
	MemoryContext context = CurrentMemoryContext;
	volatile bool written = false;

	PG_TRY();
	{
		StartTransactionCommand();
		written = write_item(item);
		CommitTransactionCommand();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		write_failed(item);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	return written;
}

/* Writes those that were dirty when the round began, once each. */
static void
write_dirty_shards(NaradDirtyWhich which)
{
	NaradDirtyItem items[ITEMS_A_ROUND];
	int64		start = NaradClockNow();
	int			left = NaradDirtyCount();

	pgstat_report_activity(STATE_RUNNING, "writing state of topics");
	while (left > 0)
	{
		int			nitems;
		int			i;

		nitems = NaradDirtyTake(items, Min(left, ITEMS_A_ROUND), start,
								which);
		if (nitems == 0)
			break;
		for (i = 0; i < nitems; i++)
		{
			CHECK_FOR_INTERRUPTS();
			if (try_write_item(&items[i]) && failure_delay > 0)
				failure_delay /= 2;
		}
		left -= nitems;
	}
	pgstat_report_stat(false);
	pgstat_report_activity(STATE_IDLE, NULL);
}

static void
flush_written(void)
{
	if (XLogRecPtrIsInvalid(unflushed_lsn))
		return;
	XLogFlush(unflushed_lsn);
	unflushed_lsn = InvalidXLogRecPtr;
}

/* Does what is due. */
static int64
frontier_run(int64 now)
{
	int64		interval = (int64) Min(narad_frontier_write_interval,
									   narad_frontier_flush_interval) * 1000;
	int64		flush = NARAD_DUTY_NEVER;

	if (next_write != 0 && next_write <= now)
	{
		write_dirty_shards(NARAD_DIRTY_DUE);
		next_write = 0;
	}
	if (!XLogRecPtrIsInvalid(unflushed_lsn))
	{
		flush = unflushed_since +
			(int64) narad_frontier_flush_interval * 1000;
		if (flush <= NaradClockNow())
		{
			flush_written();
			flush = NARAD_DUTY_NEVER;
		}
	}
	if (next_write == 0 && NaradDirtyCount() > 0)
		next_write = NaradClockNow() + interval;
	return next_write != 0 ? Min(next_write, flush) : flush;
}

static bool
frontier_is_busy(void)
{
	return next_write != 0 || !XLogRecPtrIsInvalid(unflushed_lsn);
}

/*
 * What backends settle while they leave is written, too.  Where somebody wants
 * the database for himself, or only the worker leaves, nobody is waited for:
 * without a worker acks are journalled.  What could not be written,
 * its topic being locked, is tried for a while; what failed before, once more.
 */
static void
frontier_stop(void)
{
	int64		until = NaradClockNow() + STOP_WAIT_MS * INT64CONST(1000);

	while (ShutdownRequestPending && NaradDirtyAttached() > 0 &&
		   !NaradDirtyIsBarred() && NaradClockNow() < until)
		NaradWorkerSleep(STOP_POLL_MS);

	/* What failed before comes last: at the exit an error ends this. */
	write_dirty_shards(NARAD_DIRTY_PACED_TOO);
	write_dirty_shards(NARAD_DIRTY_ALL);
	until = NaradClockNow() + STOP_WAIT_MS * INT64CONST(1000);
	while (NaradDirtyCount() > 0 && NaradClockNow() < until)
	{
		NaradWorkerSleep(STOP_POLL_MS);
		write_dirty_shards(NARAD_DIRTY_PACED_TOO);
	}
	flush_written();
}

const NaradDuty NaradFrontierDuty = {
	"writing the state of topics",
	frontier_run,
	frontier_is_busy,
	frontier_stop
};
