/*-------------------------------------------------------------------------
 *
 * queue_retain.h
 *	  Retention as the groups see it.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_RETAIN_H
#define QUEUE_RETAIN_H

#include "log/log_retain.h"
#include "queue/queue_shard.h"

/*
 * Does for a topic what its settings ask for: seals, frees, and moves the
 * groups that were overtaken.  Adds to *result.  The caller holds
 * RowExclusiveLock and no narad lock; info has its shared part.
 */
extern void NaradQueueRetain(Relation rel, const NaradRelInfo *info,
							 NaradRetainResult *result);

/* When there may be something to do: a look at the pages, no shared memory. */
extern TimestampTz NaradQueueRetainPeek(Relation rel, NaradRelInfo *info);

/*
 * A partition begins at `start`: what the shard has below is dropped, in one
 * step.  Returns how many offsets were not settled.  Shard lock held
 * exclusively; no memory, no error.
 */
extern uint64 NaradShardOvertake(NaradShard *shard, NaradOffset start);

/* The same, with the lock taken, if the shard is still the group's. */
extern void NaradShardDropBelow(NaradShard *shard, NaradGroupId group_id,
								NaradOffset start);

/* Was an offset below the frontier jumped over so?  Shard lock held. */
extern bool NaradShardWasOvertaken(const NaradShard *shard,
								   NaradOffset offset);

/* LOG: a group has lost messages.  No narad lock held. */
extern void NaradRetainReportLoss(const char *topic, const char *group,
								  int partition, uint64 nlost);

/* A group's page now says that all below `frontier` is settled, and said so of
 * what is below `was`; 0 if it said nothing.  Retention is told if it waits for
 * that.  No narad lock of rank map or later. */
extern void NaradQueueRetainSettled(const NaradRelInfo *info, int partition,
									NaradOffset was, NaradOffset frontier);

/* There are other groups than before: retention is told if it goes by what they
 * have settled.  No narad lock of rank hash or later. */
extern void NaradQueueRetainGroups(const NaradRelInfo *info);

#endif							/* QUEUE_RETAIN_H */
