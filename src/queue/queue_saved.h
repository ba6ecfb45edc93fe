/*-------------------------------------------------------------------------
 *
 * queue_saved.h
 *	  Saved frontiers: the table narad.saved_frontiers.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_SAVED_H
#define QUEUE_SAVED_H

#include "nodes/pg_list.h"
#include "queue/queue_shard.h"

/*
 * Where a group of this very log was in a partition when it was saved last, or
 * NARAD_INVALID_OFFSET; for who finds the state page damaged.  No narad lock,
 * any lock on the topic.
 */
extern NaradOffset NaradSavedFrontier(Relation rel, NaradRelInfo *info,
									  NaradGroupId group_id, int partition);

/*
 * Makes the groups that a restore has brought, and that do not exist; filled:
 * only if the topic holds all they had settled.  The caller holds
 * RowExclusiveLock on the topic and no narad lock, and has an active snapshot;
 * info is attached, and a copy.
 */
extern void NaradSavedRestore(Relation rel, NaradRelInfo *info,
							  NaradQueueTopic *topic, bool filled);

/* OIDs of all topics that have rows; and did a restore bring rows of one? */
extern List *NaradSavedTopics(void);
extern bool NaradSavedIsForeign(Relation rel);

/*
 * Brings the topic's rows up to date; false if some could not be, since they
 * are locked, or their group was being moved.  As NaradSavedRestore.
 */
extern bool NaradSavedWrite(Relation rel, NaradRelInfo *info,
							NaradQueueTopic *topic);

/* Deletes the rows of a topic, or (name) of one of its groups. */
extern void NaradSavedDelete(Oid relid, const char *name);

#endif							/* QUEUE_SAVED_H */
