/*-------------------------------------------------------------------------
 *
 * worker_dedup.c
 *	  A duty of the worker: forgets deduplication ids that are too old.
 *
 * Owns:       nothing; each topic says when it is to be looked at.
 * Invariants: none of the engine's depends on it: an id that is too old counts
 *             for nothing, but takes memory that others may need.
 * Locks:      RowExclusiveLock on one topic at a time, got only if free.
 * Runs in:    the worker.
 * WAL:        none.
 * On error:   logged; the topic is looked at again in a second.
 *
 * Whoever produces with an id frees some old ones on his way.  The worker is for
 * the time when nobody does any more; then it comes once, and sleeps.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "log/log_tableam.h"
#include "queue/queue_dedup.h"
#include "queue/queue_lease.h"
#include "queue/queue_topic.h"
#include "worker/worker_duty.h"

/*
 * NaradWorkerForgetIds
 *
 * Forgets the ids of a topic that is open and locked, by its settings.
 */
void
NaradWorkerForgetIds(Relation rel, NaradTopicId topic_id)
{
	NaradQueueTopic *topic = NaradQueueTopicFind(topic_id);

	if (topic != NULL)
		NaradDedupForget(topic, NaradTopicSettingsGet(rel)->dedup_window);
}

/* In a transaction.  What is locked is left for later. */
static void
look_at_topic(Oid relid, NaradTopicId topic_id)
{
	NaradRelInfo *found;
	Relation	rel;

	if (!ConditionalLockRelationOid(relid, RowExclusiveLock))
		return;
	rel = try_relation_open(relid, NoLock);
	if (rel == NULL)
	{
		UnlockRelationOid(relid, RowExclusiveLock);
		return;
	}
	found = NaradRelIsTopic(rel) ? NaradRelInfoLook(rel) : NULL;
	if (found != NULL && found->topic_id == topic_id)
		NaradWorkerForgetIds(rel, topic_id);
	relation_close(rel, RowExclusiveLock);
}

static int64
dedup_run(int64 now)
{
	int64		next = NARAD_DUTY_NEVER;
	NaradTopicId topic_id;
	Oid			relid;

	while (NaradQueueTopicIdsDue(now, &relid, &topic_id, &next))
	{
		CHECK_FOR_INTERRUPTS();
		StartTransactionCommand();
		PushActiveSnapshot(GetTransactionSnapshot());
		look_at_topic(relid, topic_id);
		PopActiveSnapshot();
		CommitTransactionCommand();
		next = NARAD_DUTY_NEVER;
	}
	return next;
}

const NaradDuty NaradDedupDuty = {
	"forgetting deduplication ids",
	dedup_run,
	NULL,
	NULL
};
