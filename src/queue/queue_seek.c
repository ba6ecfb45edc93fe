/*-------------------------------------------------------------------------
 *
 * queue_seek.c
 *	  Moving a consumer group to another place.
 *
 * Owns:       the order of the steps; each belongs to somebody else.
 * Invariants: I6: the frontier goes back, or forward over what was not
 *             acknowledged, only with a new generation of the shard.  I4, I5:
 *             leases, pins and journal entries of the old one are void, those
 *             of open transactions included.
 * Locks:      the caller's RowExclusiveLock on the topic; the rest is taken in
 *             NaradStateSeek.
 * Runs in:    any backend of a primary.
 * WAL:        group directory and state pages, flushed at once; the transaction
 *             gets an id, so that its commit waits for standbys.
 * On error:   it acts at once and is not undone by rollback, as nextval:
 *             whatever can be wrong with the arguments is found before, and
 *             every shard is in memory before the first one is moved.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "utils/rel.h"

#include "base/base_stop.h"
#include "log/log_find.h"
#include "log/log_read.h"
#include "queue/queue_dirty.h"
#include "queue/queue_shard.h"
#include "queue/queue_state.h"
#include "queue/queue_topic.h"
#include "queue/queue_xact.h"

/* What is moved. */
typedef struct Seek
{
	Relation	rel;
	NaradRelInfo info;
	NaradQueueTopic *topic;
	NaradGroup *group;
	NaradGroupId group_id;
} Seek;

static void
begin_seek(Seek *seek, Relation rel, NaradRelInfo *info, const char *name)
{
	seek->rel = rel;
	seek->info = *info;
	seek->topic = NaradQueueTopicGet(rel, &seek->info);
	seek->group = NaradGroupGet(rel, &seek->info, seek->topic, name,
								&seek->group_id);
	(void) GetTopTransactionId();
	NaradXactSought();
}

static NaradShard *
get_shard(Seek *seek, int partition)
{
	return NaradShardGet(seek->rel, &seek->info, seek->topic, seek->group,
						 seek->group_id, partition);
}

/* Moves one shard. */
static void
move_shard(Seek *seek, NaradShard *shard, NaradOffset target)
{
	NaradOffset earliest;
	NaradOffset end;
	NaradOffset stable;

	/* Retention may have gone on since the target was chosen. */
	NaradPartitionBounds(seek->rel, &seek->info, shard->partition, &earliest,
						 &end, &stable);
	target = Max(target, earliest);
	if (!NaradStateSeek(seek->rel, &seek->info, shard, seek->group_id, target))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("a consumer group of topic \"%s\" was dropped while it was moved",
						RelationGetRelationName(seek->rel))));
}

/*
 * NaradGroupSeek
 *
 * The next message of the partition that the group is given is the first one
 * at or after the offset; its leases there are void.  The offset lies between
 * the partition's start and its end.  The caller holds RowExclusiveLock on the
 * topic, no narad lock, and has an active snapshot; info is attached.  ERROR
 * 42704 if there is no such group, or no longer, 53200.
 */
void
NaradGroupSeek(Relation rel, NaradRelInfo *info, const char *name,
			   int partition, NaradOffset offset)
{
	Seek		seek;
	NaradShard *shard;

	begin_seek(&seek, rel, info, name);
	shard = get_shard(&seek, partition);
	NARAD_STOP("seek-begun");
	move_shard(&seek, shard, offset);
	NaradDirtyWake(MyDatabaseId);
	NARAD_STOP("seek-done");
}

/*
 * NaradGroupSeekToTime
 *
 * The same in all partitions, to the first message appended at or after a
 * time.
 */
void
NaradGroupSeekToTime(Relation rel, NaradRelInfo *info, const char *name,
					 TimestampTz time)
{
	Seek		seek;
	int			npartitions = info->npartitions;
	NaradShard **shards;
	NaradOffset *targets;
	int			i;

	begin_seek(&seek, rel, info, name);
	shards = palloc(npartitions * sizeof(NaradShard *));
	targets = palloc(npartitions * sizeof(NaradOffset));
	for (i = 0; i < npartitions; i++)
	{
		CHECK_FOR_INTERRUPTS();
		shards[i] = NULL;
		if (NaradLogPartitionFind(seek.info.shared, i) == NULL)
			continue;			/* never used: it has one place only */
		targets[i] = NaradOffsetForTime(rel, &seek.info, i, time);
		shards[i] = get_shard(&seek, i);
	}
	NARAD_STOP("seek-begun");
	for (i = 0; i < npartitions; i++)
	{
		/* Each is flushed, so this may take its time. */
		CHECK_FOR_INTERRUPTS();
		if (shards[i] == NULL)
			continue;
		move_shard(&seek, shards[i], targets[i]);
		NARAD_STOP("seek-done");
	}
	NaradDirtyWake(MyDatabaseId);
	pfree(shards);
	pfree(targets);
}
