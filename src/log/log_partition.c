/*-------------------------------------------------------------------------
 *
 * log_partition.c
 *	  The partitions of a topic in shared memory.
 *
 * A partition that nobody used yet is not there: it has no segment, and
 * starts and ends at offset 0.  So a topic of thousands of partitions takes
 * memory for those that are in use, and whoever looks for one with something
 * in it looks at an array of pointers.
 *
 * More partitions are two changes under alloc_lock: the metapage's count, in
 * the WAL, and then memory's.  Whoever chose a partition by the smaller count
 * is right, too.  alter_topic has that done right before its transaction
 * commits, so that a rollback adds none; but from then on they stay, even if
 * the transaction fails, for others may have used them.
 *
 * Owns:       NaradLogTopic.partitions and what it points to, npartitions, and
 *             that of the metapage; how a partition begins; what this
 *             transaction will add.
 * Invariants: a partition never moves, and goes only with its topic: hulls and
 *             readers have pointers.  It is there before the first record in
 *             it is (I1).  There are never fewer than there were, on disk or
 *             in memory, and no more in memory than on disk.
 * Locks:      alloc_lock, for making one and for adding some.  Readers none.
 * Runs in:    any backend; freeing in transaction callbacks.
 * WAL:        META_UPDATE, for the count.
 * On error:   53200, 54000, or a failure to read block 0, before anything has
 *             changed.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/xact.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "base/base_memory.h"
#include "base/base_stop.h"
#include "log/log_hull.h"
#include "log/log_meta.h"
#include "log/log_partition.h"
#include "log/log_tableam.h"
#include "log/log_topic.h"

/* Partitions to be added when this transaction commits. */
typedef struct PendingGrowth
{
	struct PendingGrowth *next;
	Oid			relid;
	int			npartitions;
	int			nest_level;		/* of the (sub)transaction that asked */
} PendingGrowth;

static PendingGrowth *pending_growths;	/* in TopTransactionContext */

/* A partition that holds nothing and begins at offset 0. */
static void
init_empty(NaradLogPartition *local)
{
	memset(local, 0, sizeof(NaradLogPartition));
	local->last_time = PG_INT64_MIN;
	pg_atomic_init_u64(&local->start_offset, 0);
	pg_atomic_init_u64(&local->end_offset, 0);
}

/*
 * NaradLogPartitionMake
 *
 * Makes a partition from one with plain fields and atomics, with room in its
 * map for nmap segments and some more; NULL when out of memory.  Nobody sees
 * it yet.  One with a spare needs a map, too: a spare that has pages is opened
 * as it is (log_append.c makes room when it makes its pages).
 */
NaradLogPartition *
NaradLogPartitionMake(NaradLogTopic *topic, const NaradLogPartition *local,
					  int partition)
{
	NaradLogPartition *part = NaradAlloc(sizeof(NaradLogPartition));

	if (part == NULL)
		return NULL;
	memcpy(part, local, sizeof(NaradLogPartition));
	part->partition = partition;
	part->topic_id = topic->topic_id;
	NaradLockInit(&part->tail_lock, NARAD_LOCK_TAIL);
	NaradLockInit(&part->map_lock, NARAD_LOCK_MAP);
	NaradLockInit(&part->hull_lock, NARAD_LOCK_HULL);
	ConditionVariableInit(&part->gate_cv);
	pg_atomic_init_u32(&part->tail_block,
					   part->next_page > 0 && !part->must_seal ?
					   part->open.first_block + part->next_page - 1 :
					   InvalidBlockNumber);
	pg_atomic_init_u32(&part->tail_buffer, InvalidBuffer);
	pg_atomic_init_u64(&part->corrupt_records, 0);
	pg_atomic_init_u64(&part->ring_head, topic->ring_base);
	pg_atomic_init_u32(&part->nownerless, 0);
	dlist_init(&part->hulls);

	if (part->nmap > 0 || part->has_spare)
	{
		part->map_capacity = part->nmap + 8;
		part->map = NaradAlloc(part->map_capacity * sizeof(NaradSegmentRef));
		if (part->map == NULL)
		{
			NaradFree(part);
			return NULL;
		}
	}
	return part;
}

/*
 * NaradLogPartitionGet
 *
 * A partition, made if it is used for the first time.  The caller has the
 * relation locked, and no narad lock of rank alloc or later.  ERROR 53200.
 */
NaradLogPartition *
NaradLogPartitionGet(NaradLogTopic *topic, int partition)
{
	NaradLogPartition *part = NaradLogPartitionFind(topic, partition);

	if (part != NULL)
		return part;

	/* Who has the number from the metapage may be ahead of memory till here. */
	LWLockAcquire(&topic->alloc_lock, LW_EXCLUSIVE);
	Assert(partition >= 0 &&
		   partition < (int) pg_atomic_read_u32(&topic->npartitions));
	part = NaradLogPartitionFind(topic, partition);
	if (part == NULL)
	{
		NaradLogPartition local;

		init_empty(&local);
		part = NaradLogPartitionMake(topic, &local, partition);
		if (part != NULL)
			NaradArraySet(&topic->partitions, partition, part);
	}
	LWLockRelease(&topic->alloc_lock);
	if (part == NULL)
		NaradReportOutOfMemory("partitions");
	return part;
}

/*
 * NaradLogPartitionsFree
 *
 * Frees the partitions of a topic that is in no chain, or never was.  In
 * transaction callbacks: no error.
 */
void
NaradLogPartitionsFree(NaradLogTopic *topic)
{
	int			i;

	for (i = 0; i < NaradArrayLength(&topic->partitions); i++)
	{
		NaradLogPartition *part = NaradLogPartitionFind(topic, i);

		if (part == NULL)
			continue;
		NaradHullForgetPartition(part);
		NaradFree(part->map);
		NaradFree(part);
	}
	NaradArrayFree(topic->partitions);
}

/* ---- adding partitions ----------------------------------------------- */

static void
set_npartitions(NaradMetaData *meta, void *arg)
{
	meta->npartitions = Max(meta->npartitions, *(uint32 *) arg);
}

/*
 * NaradLogTopicGrow
 *
 * Sees to it that a topic has at least so many partitions; at once, and
 * rollback does not take it back.  The caller holds RowExclusiveLock or more,
 * and no narad lock.  ERROR 22023 if that is more than there can be, 53200.
 */
void
NaradLogTopicGrow(Relation rel, int npartitions)
{
	NaradRelInfo *info = NaradRelInfoCreate(rel, npartitions, 0);
	NaradLogTopic *topic = info->shared;
	uint32		wanted = npartitions;
	bool		has_room = true;

	if (info->npartitions >= npartitions)
		return;
	NaradMetaCheckPartitions(npartitions, info->segment_pages);
	LWLockAcquire(&topic->alloc_lock, LW_EXCLUSIVE);
	if (pg_atomic_read_u32(&topic->npartitions) < wanted)
		has_room = NaradArrayReserve(&topic->partitions, npartitions);
	if (has_room && pg_atomic_read_u32(&topic->npartitions) < wanted)
	{
		NaradMetaModify(rel, set_npartitions, &wanted);
		NARAD_STOP("growing");
		pg_atomic_write_u32(&topic->npartitions, wanted);
	}
	LWLockRelease(&topic->alloc_lock);
	if (!has_room)
		NaradReportOutOfMemory("partitions");
}

/*
 * NaradLogTopicGrowAtCommit
 *
 * The same when this transaction commits, unless the current subtransaction is
 * rolled back.  The caller holds ShareUpdateExclusiveLock or more until then.
 */
void
NaradLogTopicGrowAtCommit(Relation rel, int npartitions)
{
	PendingGrowth *pending;

	/* So that the commit is flushed, and waits for standbys. */
	(void) GetTopTransactionId();
	pending = MemoryContextAlloc(TopTransactionContext, sizeof(PendingGrowth));
	pending->relid = RelationGetRelid(rel);
	pending->npartitions = npartitions;
	pending->nest_level = GetCurrentTransactionNestLevel();
	pending->next = pending_growths;
	pending_growths = pending;
}

/*
 * NaradLogGrowAtPreCommit
 *
 * Adds what was asked for.  From the transaction callback; errors abort the
 * transaction.  The lock that was taken when it was asked for may have gone
 * with a cursor, so it is taken again; a topic that is gone needs none.
 */
void
NaradLogGrowAtPreCommit(void)
{
	for (PendingGrowth *pending = pending_growths; pending != NULL;
		 pending = pending->next)
	{
		Relation	rel = try_relation_open(pending->relid,
											ShareUpdateExclusiveLock);

		if (rel == NULL)
			continue;
		if (NaradRelIsTopic(rel))
			NaradLogTopicGrow(rel, pending->npartitions);
		relation_close(rel, NoLock);
	}
	if (pending_growths != NULL)
	{
		NARAD_STOP("grown");
		NARAD_FAIL("grown-fails");
	}
}

/*
 * NaradLogGrowCheckPrepare
 *
 * Before PREPARE: partitions are not added long before the commit.
 */
void
NaradLogGrowCheckPrepare(void)
{
	if (pending_growths != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot PREPARE a transaction that has added partitions to a topic"),
				 errhint("Do this in a transaction of its own.")));
}

/*
 * NaradLogGrowAtXactEnd
 *
 * The transaction is over: nothing is to be added any more.
 */
void
NaradLogGrowAtXactEnd(void)
{
	pending_growths = NULL;
}

/*
 * NaradLogGrowAtSubEnd
 *
 * What a subtransaction asked for is its parent's, or is forgotten.  From the
 * callback, with its nesting level.  No allocation, no error.
 */
void
NaradLogGrowAtSubEnd(int level, bool is_commit)
{
	PendingGrowth **link = &pending_growths;

	while (*link != NULL)
	{
		PendingGrowth *pending = *link;

		if (pending->nest_level >= level && !is_commit)
			*link = pending->next;
		else
		{
			if (is_commit)
				pending->nest_level = Min(pending->nest_level, level - 1);
			link = &pending->next;
		}
	}
}
