/*-------------------------------------------------------------------------
 *
 * queue_group.c
 *	  Consumer groups: found, made, dropped, paused.
 *
 * Owns:       NaradGroup entries in shared memory; the group directory on
 *             disk is storage's (log_meta.h), changed here only.
 * Invariants: a live entry in memory is live on disk: both change under the
 *             topic lock.  Group ids are never given twice in a topic, so a
 *             receipt of a dropped group meets no other (I4).  An entry and
 *             its shards stay entries and shards until the topic is gone, so
 *             whoever has a lock on the relation may keep pointers; but those
 *             of a dropped group serve the next one, and so he keeps the
 *             group id, too, and compares.  Groups made and dropped for ever
 *             take no more memory than the most that lived at once.
 * Locks:      the topic lock, and under it, only when a group is not in
 *             memory or changes, those of storage with reads and writes of
 *             the group directory (the relation extension lock among them).
 *             That holds an LWLock over I/O on purpose: it is rare, short, and
 *             what keeps disk and memory one; an error in it leaves both as
 *             they were.
 * Runs in:    any backend, with the relation locked.
 * WAL:        through log_meta.h.  What a user asks for takes a transaction
 *             id, so that its commit flushes and waits for standbys; it acts
 *             at once and is not undone by rollback, as nextval.
 * On error:   a group is found only once all its start positions are written.
 *             When making it fails, or the server does, there is none, and
 *             its place on disk serves the next.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "base/base_memory.h"
#include "base/base_stop.h"
#include "log/log_find.h"
#include "log/log_meta.h"
#include "log/log_read.h"
#include "log/log_retain.h"
#include "queue/queue_dirty.h"
#include "queue/queue_retain.h"
#include "queue/queue_saved.h"
#include "queue/queue_shard.h"
#include "queue/queue_state.h"
#include "queue/queue_topic.h"

#define DEFAULT_GROUP "default"

/* The live group of a name; the topic lock is held. */
static NaradGroup *
find_group(NaradQueueTopic *topic, const char *name)
{
	dlist_iter	iter;

	dlist_foreach(iter, &topic->groups)
	{
		NaradGroup *group = dlist_container(NaradGroup, node, iter.cur);

		if (!group->dropped && strcmp(group->name, name) == 0)
			return group;
	}
	return NULL;
}

/*
 * A place for a group: a dropped one's, or a new one.  The topic lock is held
 * exclusively; NULL if there is no memory.
 */
static NaradGroup *
find_free_group(NaradQueueTopic *topic)
{
	NaradGroup *group;
	dlist_iter	iter;

	dlist_foreach(iter, &topic->groups)
	{
		group = dlist_container(NaradGroup, node, iter.cur);
		if (group->is_free)
			return group;
	}

	group = NaradAlloc(sizeof(NaradGroup));
	if (group == NULL)
		return NULL;
	group->topic = topic;
	NaradWaitGroupInit(group);
	group->dropped = true;
	group->is_free = true;
	pg_atomic_init_u32(&group->next_partition, 0);
	pg_atomic_init_u32(&group->nseeks, 0);
	dlist_push_tail(&topic->groups, &group->node);
	return group;
}

/*
 * Puts a group of the directory into memory.  The topic lock is held
 * exclusively; NULL if there is no memory.
 */
static NaradGroup *
remember_group(NaradQueueTopic *topic, const NaradGroupEntry *entry)
{
	NaradGroup *group = find_free_group(topic);

	if (group == NULL)
		return NULL;
	group->group_id = entry->group_id;
	memcpy(group->name, entry->name, NAMEDATALEN);
	group->paused = entry->paused != 0;
	group->generation = entry->generation;
	pg_atomic_write_u32(&group->next_partition, 0);
	group->is_free = false;

	/* Who loads a shard looks without the lock: the id first. */
	pg_write_barrier();
	group->dropped = false;
	return group;
}

static void
check_group_name(const char *name)
{
	if (name[0] == '\0')
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("name of a consumer group must not be empty")));
	if (strlen(name) >= NAMEDATALEN)
		ereport(ERROR,
				(errcode(ERRCODE_NAME_TOO_LONG),
				 errmsg("name of a consumer group is too long"),
				 errdetail("It must have fewer than %d bytes.", NAMEDATALEN)));
}

NARAD_NORETURN static void report_missing_group(Relation rel,
												const char *name);

static void
report_missing_group(Relation rel, const char *name)
{
	ereport(ERROR,
			(errcode(ERRCODE_UNDEFINED_OBJECT),
			 errmsg("consumer group \"%s\" of topic \"%s\" does not exist",
					name, RelationGetRelationName(rel)),
			 errhint("Use narad.create_group to create it.")));
}

/* A group was made or changed: the worker saves that. */
static void
group_changed(NaradQueueTopic *topic)
{
	NaradQueueTopicTouch(topic);
	NaradDirtyWake(topic->database);
}

/*
 * Does the group exist on disk?  One that a restore has brought is made first.
 * No narad lock is held.
 */
static bool
group_exists(Relation rel, NaradRelInfo *info, NaradQueueTopic *topic,
			 const char *name)
{
	NaradGroupEntry entry;

	if (NaradGroupFind(rel, name, &entry))
		return true;
	NaradSavedRestore(rel, info, topic, false);
	return NaradGroupFind(rel, name, &entry);
}

/*
 * NaradGroupGet
 *
 * The live group of a name, and its id, from memory or else from the
 * directory.  If it is missing, those are made that a restore has brought; and
 * then the group 'default', at the earliest record.  Another one that is
 * missing is ERROR 42704.  The caller holds RowExclusiveLock on the topic and
 * no narad lock, and has an active snapshot; info is no pointer into the
 * relation's cache entry.  May error 53200.
 */
NaradGroup *
NaradGroupGet(Relation rel, NaradRelInfo *info, NaradQueueTopic *topic,
			  const char *name, NaradGroupId *group_id)
{
	NaradGroupEntry entry;
	NaradGroup *group;
	bool		exists;
	bool		created;

	LWLockAcquire(&topic->lock, LW_SHARED);
	group = find_group(topic, name);
	if (group != NULL)
		*group_id = group->group_id;
	LWLockRelease(&topic->lock);
	if (group != NULL)
		return group;

	check_group_name(name);
	(void) group_exists(rel, info, topic, name);
	LWLockAcquire(&topic->lock, LW_EXCLUSIVE);
	group = find_group(topic, name);
	if (group == NULL)
	{
		exists = NaradGroupFind(rel, name, &entry);
		if (!exists && strcmp(name, DEFAULT_GROUP) == 0)
		{
			NaradGroupMake(rel, info, name, true, &entry, &created);
			exists = true;
			group_changed(topic);
		}
		if (!exists)
		{
			LWLockRelease(&topic->lock);
			report_missing_group(rel, name);
		}
		group = remember_group(topic, &entry);
	}
	if (group != NULL)
		*group_id = group->group_id;
	LWLockRelease(&topic->lock);
	if (group == NULL)
		NaradReportOutOfMemory("a consumer group");
	return group;
}

/*
 * NaradGroupById
 *
 * The live group of an id, if it is in memory; else NULL.
 */
NaradGroup *
NaradGroupById(NaradQueueTopic *topic, NaradGroupId group_id)
{
	NaradGroup *found = NULL;
	dlist_iter	iter;

	LWLockAcquire(&topic->lock, LW_SHARED);
	dlist_foreach(iter, &topic->groups)
	{
		NaradGroup *group = dlist_container(NaradGroup, node, iter.cur);

		if (group->group_id == group_id && !group->dropped)
		{
			found = group;
			break;
		}
	}
	LWLockRelease(&topic->lock);
	return found;
}

/*
 * Where a new group starts in each partition, palloc'ed.  The latest is the
 * first offset at or above which a record may still commit: open transactions
 * have theirs below the end, and the group must not miss them (I1).  A
 * partition that nobody ever used is NARAD_INVALID_OFFSET: its beginning is
 * the latest, and any time, too.  So are those that are added from now on.
 */
static NaradOffset *
find_starts(Relation rel, NaradRelInfo *info, NaradStartFrom start,
			TimestampTz start_time, int *nstarts)
{
	int			npartitions = info->npartitions;
	NaradOffset *starts = palloc(sizeof(NaradOffset) * npartitions);
	int			i;

	for (i = 0; i < npartitions; i++)
	{
		NaradOffset earliest;
		NaradOffset end;
		NaradOffset stable;

		CHECK_FOR_INTERRUPTS();
		if (NaradLogPartitionFind(info->shared, i) == NULL)
			starts[i] = NARAD_INVALID_OFFSET;
		else if (start == NARAD_START_TIME)
			starts[i] = NaradOffsetForTime(rel, info, i, start_time);
		else
		{
			NaradPartitionBounds(rel, info, i, &earliest, &end, &stable);
			starts[i] = Min(stable, end);
		}
	}
	*nstarts = npartitions;
	return starts;
}

/* Where a partition begins; info is attached. */
static NaradOffset
partition_start(NaradRelInfo *info, int partition)
{
	NaradLogPartition *part = NaradLogPartitionFind(info->shared, partition);

	return part == NULL ? 0 : pg_atomic_read_u64(&part->start_offset);
}

/*
 * NaradGroupMakeAt
 *
 * Makes a group that starts at an offset in each of the first nstarts
 * partitions, and, in others and where that is NARAD_INVALID_OFFSET, at the
 * earliest record.  False, and nothing, if there is one of that name.  The caller holds RowExclusiveLock on the topic and no narad
 * lock; not undone by rollback.
 */
bool
NaradGroupMakeAt(Relation rel, NaradRelInfo *info, NaradQueueTopic *topic,
				 const char *name, const NaradOffset *starts, int nstarts,
				 bool paused)
{
	bool		at_once = starts == NULL && !paused;
	NaradGroupEntry entry;
	bool		created;
	int			i;

	(void) GetTopTransactionId();

	/*
	 * Nobody finds the group before its start positions are written.  What
	 * retention has dropped by now is not lost to it; from here on it counts.
	 */
	LWLockAcquire(&topic->lock, LW_EXCLUSIVE);
	NaradGroupMake(rel, info, name, at_once, &entry, &created);
	if (created && !at_once)
	{
		for (i = 0; i < nstarts; i++)
		{
			if (starts[i] == NARAD_INVALID_OFFSET)
				continue;
			NaradStateStartAt(rel, info, &entry, i,
							  Max(starts[i], partition_start(info, i)));
			NARAD_FAIL("group-start");
		}
		entry.paused = paused;
		NaradGroupMakeLive(rel, info, &entry);
	}
	LWLockRelease(&topic->lock);
	if (created)
	{
		group_changed(topic);

		/* If no other counts, what is before its start may go. */
		NaradQueueRetainGroups(info);
	}
	return created;
}

/*
 * NaradGroupCreate
 *
 * Makes a group; false, and nothing changed, if there is one of that name.
 * The caller holds RowExclusiveLock on the topic, no narad lock, and has an
 * active snapshot.
 */
bool
NaradGroupCreate(Relation rel, NaradRelInfo *info, const char *name,
				 NaradStartFrom start, TimestampTz start_time)
{
	NaradRelInfo own = *info;	/* may go with an invalidation */
	NaradQueueTopic *topic = NaradQueueTopicGet(rel, &own);
	NaradOffset *starts = NULL;
	bool		created;
	int			nstarts = 0;

	check_group_name(name);
	if (group_exists(rel, &own, topic, name))
		return false;
	if (start != NARAD_START_EARLIEST)
		starts = find_starts(rel, &own, start, start_time, &nstarts);
	NARAD_STOP("group-starts");
	created = NaradGroupMakeAt(rel, &own, topic, name, starts, nstarts, false);
	if (starts != NULL)
		pfree(starts);
	return created;
}

/*
 * NaradGroupDrop
 *
 * Drops a group, with all that it had settled; its leases are void.  ERROR
 * 42704 if there is none.  The caller holds RowExclusiveLock on the topic and
 * no narad lock.
 */
void
NaradGroupDrop(Relation rel, NaradRelInfo *info, const char *name)
{
	NaradRelInfo own = *info;	/* may go with an invalidation */
	NaradQueueTopic *topic = NaradQueueTopicGet(rel, &own);
	NaradGroupEntry entry;
	NaradGroup *group;
	bool		existed;
	int			i;

	if (!group_exists(rel, &own, topic, name))
		report_missing_group(rel, name);
	(void) GetTopTransactionId();
	NaradSavedDelete(RelationGetRelid(rel), name);
	LWLockAcquire(&topic->lock, LW_EXCLUSIVE);
	existed = NaradGroupRemove(rel, &own, name, &entry);
	group = existed ? find_group(topic, name) : NULL;
	if (group != NULL)
	{
		group->generation++;
		group->dropped = true;
	}
	LWLockRelease(&topic->lock);
	if (!existed)
		report_missing_group(rel, name);
	group_changed(topic);

	/* What only this one had not settled may go. */
	NaradQueueRetainGroups(&own);

	if (group == NULL)
		return;
	NaradWaitGroupGone(group, false);

	/*
	 * Whoever loads a shard looks once more whether the group is there, under
	 * the io_lock that this waits for.  So no shard is left in it when its
	 * place is given to the next: one made from here on is nobody's.
	 */
	for (i = 0; i < NaradArrayLength(&group->shards); i++)
	{
		NaradShard *shard = NaradArrayGet(&group->shards, i);

		if (shard != NULL)
			NaradShardDrop(shard);
	}
	LWLockAcquire(&topic->lock, LW_EXCLUSIVE);
	group->is_free = true;
	LWLockRelease(&topic->lock);
}

/*
 * NaradGroupPause
 *
 * While a group is paused, consume gives it nothing.  ERROR 42704 if there is
 * none.  The caller holds RowExclusiveLock on the topic and no narad lock.
 */
void
NaradGroupPause(Relation rel, NaradRelInfo *info, const char *name,
				bool paused)
{
	NaradRelInfo own = *info;	/* may go with an invalidation */
	NaradQueueTopic *topic = NaradQueueTopicGet(rel, &own);
	NaradGroup *group;
	bool		existed;

	(void) group_exists(rel, &own, topic, name);
	(void) GetTopTransactionId();
	LWLockAcquire(&topic->lock, LW_EXCLUSIVE);
	existed = NaradGroupSetPaused(rel, &own, name, paused);
	group = find_group(topic, name);
	if (existed && group != NULL)
		group->paused = paused;
	LWLockRelease(&topic->lock);
	if (!existed)
		report_missing_group(rel, name);
	if (group != NULL && !paused)
		NaradWaitServeGroup(group);
	group_changed(topic);
}
