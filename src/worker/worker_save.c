/*-------------------------------------------------------------------------
 *
 * worker_save.c
 *	  A duty of the worker: copies frontiers to the table that a dump carries.
 *
 * Owns:       when narad.saved_frontiers is written.
 * Invariants: a state page written, a group made, paused, moved or dropped is
 *             in the table within narad.frontier_save_interval, or at the
 *             clean stop.  Where nothing has changed nothing is written, and
 *             no row has more than one new version in that time.
 * Locks:      RowExclusiveLock on one topic at a time, got only if free, and
 *             what queue_saved.c takes.
 * Runs in:    the worker.
 * WAL:        the heap's; committed asynchronously, so nothing waits for the
 *             disk or for a standby.
 * On error:   logged; that topic is left for the next time.
 *
 * The clock runs only while something waits to be saved.
 *
 * When the worker starts, and each time before it saves, it also looks for
 * rows that a restore has brought, and makes their groups, if the restore seems
 * to be done: others, retention among them, should not have to wait for their
 * first consumer to know of them.
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
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "base/base_guc.h"
#include "log/log_tableam.h"
#include "queue/queue_dirty.h"
#include "queue/queue_saved.h"
#include "queue/queue_topic.h"
#include "worker/worker_duty.h"

/* One topic to be looked at. */
typedef struct SaveItem
{
	Oid			relid;
	bool		restore;		/* groups that a restore has brought only */
	NaradTopicId topic_id;		/* else */
	uint64		changes;
} SaveItem;

static int64 waiting_since;		/* monotonic us; 0 while nothing has changed */
static bool has_restored;		/* since this worker started */

static void
begin_transaction(void)
{
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	(void) set_config_option("synchronous_commit", "off", PGC_USERSET,
							 PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0, false);
}

static void
end_transaction(void)
{
	PopActiveSnapshot();
	CommitTransactionCommand();
}

/* The topic is open and locked. */
static void
save_topic(Relation rel, const SaveItem *item)
{
	NaradRelInfo *found = NaradRelInfoAttach(rel);
	NaradRelInfo info;
	NaradQueueTopic *topic;

	if (found == NULL)
		return;					/* empty: whoever uses it first */
	info = *found;
	if (item->restore)
	{
		NaradSavedRestore(rel, &info, NaradQueueTopicGet(rel, &info), true);
		return;
	}
	topic = info.topic_id == item->topic_id ?
		NaradQueueTopicFind(item->topic_id) : NULL;
	if (topic != NULL && NaradSavedWrite(rel, &info, topic))
		NaradQueueTopicNoteSaved(topic, item->changes);
}

/* One that is locked is left for the next time, and so is an unlogged one. */
static void
save_item(const SaveItem *item)
{
	Relation	rel;

	if (!ConditionalLockRelationOid(item->relid, RowExclusiveLock))
		return;
	rel = try_relation_open(item->relid, NoLock);
	if (rel == NULL)
	{
		UnlockRelationOid(item->relid, RowExclusiveLock);
		return;
	}
	if (NaradRelIsTopic(rel) && RelationIsPermanent(rel) &&
		(!item->restore || NaradSavedIsForeign(rel)))
		save_topic(rel, item);
	relation_close(rel, NoLock);
}

/* In a transaction of its own. */
static void
try_save_item(const SaveItem *item)
{
	MemoryContext context = CurrentMemoryContext;

	CHECK_FOR_INTERRUPTS();
	PG_TRY();
	{
		begin_transaction();
		save_item(item);
		end_transaction();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		HOLD_INTERRUPTS();
		EmitErrorReport();
		AbortCurrentTransaction();
		FlushErrorState();
		RESUME_INTERRUPTS();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
}

/* Makes groups that a restore has brought. */
static void
restore_groups(void)
{
	MemoryContext context = CurrentMemoryContext;
	List	   *relids;
	ListCell   *cell;

	begin_transaction();
	MemoryContextSwitchTo(context);
	relids = NaradSavedTopics();
	end_transaction();
	MemoryContextSwitchTo(context);
	foreach(cell, relids)
	{
		SaveItem	item = {lfirst_oid(cell), true};

		try_save_item(&item);
	}
	has_restored = true;
}

/* Saves all that has changed. */
static void
save_changed(void)
{
	NaradTopicChange *changed;
	int			nchanged;
	int			i;

	pgstat_report_activity(STATE_RUNNING, "saving frontiers of topics");
	restore_groups();
	changed = NaradQueueTopicChanged(&nchanged);
	for (i = 0; i < nchanged; i++)
	{
		SaveItem	item = {changed[i].relid, false, changed[i].topic_id,
		changed[i].changes};

		try_save_item(&item);
	}
	pgstat_report_stat(false);
	pgstat_report_activity(STATE_IDLE, NULL);
}

/* Does what is due. */
static int64
save_run(int64 now)
{
	int64		interval = (int64) narad_frontier_save_interval * 1000;

	if (!has_restored)
		restore_groups();
	if (waiting_since == 0 && NaradQueueTopicAnyChanged())
		waiting_since = now;
	if (waiting_since != 0 && waiting_since + interval <= now)
	{
		save_changed();
		waiting_since = NaradQueueTopicAnyChanged() ? NaradClockNow() : 0;
	}
	return waiting_since != 0 ? waiting_since + interval : NARAD_DUTY_NEVER;
}

/* Not where somebody wants the database for himself, and waits. */
static void
save_stop(void)
{
	if (!NaradDirtyIsBarred() && NaradQueueTopicAnyChanged())
		save_changed();
}

const NaradDuty NaradSaveDuty = {
	"saving frontiers",
	save_run,
	NULL,
	save_stop
};
