/*-------------------------------------------------------------------------
 *
 * sql_view.c
 *	  The functions under the views topics, partitions, segments, groups,
 *	  leases.
 *
 * Owns:		nothing; changes nothing.
 * Invariants:	a topic is shown only to who may SELECT from it; no receipt,
 *				nor the nonce in it, leaves shared memory (I4).  Looking
 *				takes no shared memory: what is not there is read from pages.
 * Locks:		AccessShareLock on one topic at a time; a shard's lock, shared,
 *				for as long as its figures are copied.
 * Runs in:		any backend.  During recovery groups are shown as on their
 *				state pages, and there are no leases.
 * On error:	nothing to undo.  Damage is a warning, and null where it is.
 *
 * These views are what one looks at when something is wrong.  So whatever
 * reads a topic's pages does so in a subtransaction: a topic that cannot be
 * read costs its own figures, and not those of others.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/resowner.h"

#include "log/log_meta.h"
#include "log/log_read.h"
#include "log/log_tableam.h"
#include "log/log_xlog.h"
#include "queue/queue_shard.h"
#include "queue/queue_state.h"
#include "sql/sql_args.h"
#include "sql/sql_topic.h"

#define TOPIC_COLUMNS		20
#define PARTITION_COLUMNS	9
#define SEGMENT_COLUMNS		10
#define GROUP_COLUMNS		15
#define LEASE_COLUMNS		10

/* What a partition's segments come to. */
typedef struct SegmentSums
{
	int			npartitions;
	int		   *nsegments;
	int64	   *bytes;
} SegmentSums;

/* A shard's figures, copied.  -1: not known. */
typedef struct ShardFigures
{
	int64		frontier;		/* one past the last settled */
	int			in_flight;
	int			returned;
	int			scheduled;
	int			acked_ahead_ranges;
	int64		unpersisted;
	int64		dead_lettered;
	int			dead_letters;	/* not moved yet */
	int64		lost;
} ShardFigures;

/* What is read of a topic in steps, each of which may meet damage. */
typedef struct TopicLook
{
	Relation	rel;
	ReturnSetInfo *rsinfo;
	int			next;			/* step */
	int			nsteps;

	int64		nblocks;		/* of the file; -1: not known */
	int			npartitions;	/* -1: not known */
	bool		has_meta;		/* the file is not empty */
	NaradMetaData meta;
	int64		messages;		/* -1: not known */
	SegmentSums sums;
	bool		has_sums;
	int			ngroups;
	NaradGroupEntry *groups;
} TopicLook;

typedef void (*TopicStep) (TopicLook *look, int step);
typedef void (*TopicVisitor) (TopicLook *look);

PG_FUNCTION_INFO_V1(narad__topics);
PG_FUNCTION_INFO_V1(narad__partitions);
PG_FUNCTION_INFO_V1(narad__segments);
PG_FUNCTION_INFO_V1(narad__groups);
PG_FUNCTION_INFO_V1(narad__leases);

/* ---------------------------------------------------------------------- */
/* Which topics                                                           */
/* ---------------------------------------------------------------------- */

/*
 * Is this an error that only says what one topic's file is like?
 */
static bool
is_damage(int sqlerrcode)
{
	return ERRCODE_TO_CATEGORY(sqlerrcode) ==
		ERRCODE_TO_CATEGORY(ERRCODE_INTERNAL_ERROR) ||
		sqlerrcode == ERRCODE_IO_ERROR ||
		sqlerrcode == ERRCODE_UNDEFINED_FILE ||
		sqlerrcode == ERRCODE_FEATURE_NOT_SUPPORTED;
}

static void
warn_of_damage(Relation rel, const ErrorData *error)
{
	ereport(WARNING,
			(errcode(error->sqlerrcode),
			 errmsg("topic \"%s\" cannot be read in full: %s",
					RelationGetRelationName(rel), error->message)));
}

/*
 * Takes steps from look->next on, in a subtransaction, which releases what an
 * error leaves behind.  False, and a warning, if a step meets damage.
 */
static bool
take_steps(TopicLook *look, TopicStep step)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	ErrorData  *volatile error = NULL;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		for (; look->next < look->nsteps; look->next++)
		{
			CHECK_FOR_INTERRUPTS();
			step(look, look->next);
		}
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		if (!is_damage(error->sqlerrcode))
			PG_RE_THROW();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	if (error == NULL)
		return true;
	warn_of_damage(look->rel, error);
	FreeErrorData(error);
	return false;
}

/*
 * Takes all of nsteps steps; for one that meets damage calls `failed`, if
 * given, and goes on.
 */
static void
take_all_steps(TopicLook *look, int nsteps, TopicStep step, TopicStep failed)
{
	look->next = 0;
	look->nsteps = nsteps;
	while (!take_steps(look, step))
	{
		if (failed != NULL)
			failed(look, look->next);
		look->next++;
	}
}

/*
 * What the metapage says: in two steps, since the size of the file may be
 * known though the page is damaged.
 */
static void
read_head(TopicLook *look, int step)
{
	if (step == 0)
		look->nblocks = RelationGetNumberOfBlocks(look->rel);
	else
	{
		look->has_meta = NaradMetaRead(look->rel, &look->meta);
		look->npartitions = NaradTopicPartitions(look->rel);
	}
}

/*
 * Calls back for each topic the current user may SELECT from, open with
 * AccessShareLock.  One that is dropped meanwhile is left out.
 */
static Datum
visit_topics(FunctionCallInfo fcinfo, TopicVisitor visit)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	ListCell   *lc;

	InitMaterializedSRF(fcinfo, 0);
	foreach(lc, NaradQueueTopicList())
	{
		TopicLook	look = {0};
		bool		is_missing = false;

		CHECK_FOR_INTERRUPTS();
		if (pg_class_aclcheck_ext(lfirst_oid(lc), GetUserId(), ACL_SELECT,
								  &is_missing) != ACLCHECK_OK || is_missing)
			continue;
		look.rel = try_relation_open(lfirst_oid(lc), AccessShareLock);
		if (look.rel == NULL)
			continue;
		if (NaradRelIsTopic(look.rel))
		{
			look.rsinfo = rsinfo;
			look.nblocks = look.npartitions = -1;
			take_all_steps(&look, 2, read_head, NULL);
			visit(&look);
		}
		relation_close(look.rel, AccessShareLock);
	}
	return (Datum) 0;
}

static void
put_row(TopicLook *look, Datum *values, bool *isnull)
{
	tuplestore_putvalues(look->rsinfo->setResult, look->rsinfo->setDesc,
						 values, isnull);
}

/*
 * A number, null if it is not known.
 */
static void
put_int64(int64 value, Datum *values, bool *isnull, int column)
{
	values[column] = Int64GetDatum(value);
	isnull[column] = value < 0;
}

static void
put_int32(int value, Datum *values, bool *isnull, int column)
{
	values[column] = Int32GetDatum(value);
	isnull[column] = value < 0;
}

/* ---------------------------------------------------------------------- */
/* topics                                                                 */
/* ---------------------------------------------------------------------- */

/*
 * One partition's part of the sum, which is not known if one of them is not.
 */
static void
count_offsets(TopicLook *look, int step)
{
	NaradOffset earliest;
	NaradOffset end;
	NaradOffset stable;

	NaradPartitionBounds(look->rel, NaradRelInfoLook(look->rel), step,
						 &earliest, &end, &stable);
	if (look->messages >= 0)
		look->messages += end - earliest;
}

static void
forget_messages(TopicLook *look, int step)
{
	look->messages = -1;
}

static void
show_topic(TopicLook *look)
{
	Oid			relid = RelationGetRelid(look->rel);
	int64		segment_size = look->npartitions < 0 ? -1 :
	(int64) BLCKSZ * (look->has_meta ? look->meta.segment_pages :
					  NARAD_DEFAULT_SEGMENT_PAGES);
	Datum		settings[NARAD_SETTING_LAST];
	bool		no_setting[NARAD_SETTING_LAST];
	Datum		values[TOPIC_COLUMNS];
	bool		isnull[TOPIC_COLUMNS] = {false};
	int			column = 0;
	int			i;

	if (look->npartitions < 0)
		look->messages = -1;
	else
		take_all_steps(look, look->npartitions, count_offsets,
					   forget_messages);

	values[column++] = ObjectIdGetDatum(relid);
	isnull[column] = !look->has_meta;
	values[column++] = !look->has_meta ? (Datum) 0 :
		CStringGetTextDatum(psprintf("%016llx",
									 (unsigned long long) look->meta.topic_id));
	put_int32(look->npartitions, values, isnull, column++);
	put_int64(look->messages, values, isnull, column++);
	put_int64(look->nblocks < 0 ? -1 : look->nblocks * BLCKSZ, values, isnull,
			  column++);
	values[column++] =
		ObjectIdGetDatum(TupleDescAttr(RelationGetDescr(look->rel),
									   NARAD_ATTR_VALUE - 1)->atttypid);

	/* The settings in the order of their table, segment_size before age. */
	NaradSettingsEffective(relid, settings, no_setting);
	for (i = NARAD_SETTING_RETENTION; i <= NARAD_SETTING_LAST; i++)
	{
		if (i == NARAD_SETTING_SEGMENT_AGE)
			put_int64(segment_size, values, isnull, column++);
		isnull[column] = no_setting[i - 1];
		values[column++] = settings[i - 1];
	}
	Assert(column == TOPIC_COLUMNS);
	put_row(look, values, isnull);
}

Datum
narad__topics(PG_FUNCTION_ARGS)
{
	return visit_topics(fcinfo, show_topic);
}

/* ---------------------------------------------------------------------- */
/* partitions                                                             */
/* ---------------------------------------------------------------------- */

static void
sum_segment(const NaradSegmentEntry *entry, const NaradSegmentRef *ref,
			void *arg)
{
	SegmentSums *sums = arg;

	if (entry->partition >= sums->npartitions)
		return;
	if (entry->state == NARAD_SEGMENT_OPEN ||
		entry->state == NARAD_SEGMENT_SEALED)
		sums->nsegments[entry->partition]++;
	else if (entry->state != NARAD_SEGMENT_SPARE)
		return;
	sums->bytes[entry->partition] += (int64) entry->pages_prepared * BLCKSZ;
}

static void
sum_segments(TopicLook *look, int step)
{
	if (look->has_meta)
		NaradDirectoryWalk(look->rel, look->meta.segment_pages, sum_segment,
						   &look->sums);
	look->has_sums = true;
}

/*
 * Damaged records met, or -1 where nobody counts them.
 */
static int64
corrupt_records(Relation rel, int partition)
{
	NaradRelInfo *info = NaradRelInfoLook(rel);
	NaradLogPartition *part = NULL;

	if (RecoveryInProgress())
		return -1;
	if (info != NULL && info->shared != NULL)
		part = NaradLogPartitionFind(info->shared, partition);
	return part == NULL ? 0 : pg_atomic_read_u64(&part->corrupt_records);
}

/*
 * A row with what is known without the partition's own pages.
 */
static void
put_partition(TopicLook *look, int partition, int64 earliest, int64 end,
			  int64 stable, int64 ncorrupt)
{
	Datum		values[PARTITION_COLUMNS];
	bool		isnull[PARTITION_COLUMNS] = {false};
	bool		has_sums = look->has_sums && partition >= 0;

	values[0] = ObjectIdGetDatum(RelationGetRelid(look->rel));
	put_int32(partition, values, isnull, 1);
	put_int64(earliest, values, isnull, 2);
	put_int64(end, values, isnull, 3);
	put_int64(stable, values, isnull, 4);
	put_int32(partition < 0 ? -1 : look->has_meta ? (int) look->meta.epoch : 1,
			  values, isnull, 5);
	put_int32(has_sums ? look->sums.nsegments[partition] : -1, values, isnull,
			  6);
	put_int64(has_sums ? look->sums.bytes[partition] : -1, values, isnull, 7);
	put_int64(ncorrupt, values, isnull, 8);
	put_row(look, values, isnull);
}

static void
show_partition(TopicLook *look, int partition)
{
	NaradOffset earliest;
	NaradOffset end;
	NaradOffset stable;

	NaradPartitionBounds(look->rel, NaradRelInfoLook(look->rel), partition,
						 &earliest, &end, &stable);
	put_partition(look, partition, (int64) earliest, (int64) end,
				  (int64) stable, corrupt_records(look->rel, partition));
}

static void
show_damaged_partition(TopicLook *look, int partition)
{
	put_partition(look, partition, -1, -1, -1, -1);
}

/*
 * Without the metapage there is one row that says nothing but the topic.
 */
static void
show_partitions(TopicLook *look)
{
	if (look->npartitions < 0)
	{
		show_damaged_partition(look, -1);
		return;
	}
	look->sums.npartitions = look->npartitions;
	look->sums.nsegments = palloc0(look->npartitions * sizeof(int));
	look->sums.bytes = palloc0(look->npartitions * sizeof(int64));
	take_all_steps(look, 1, sum_segments, NULL);
	take_all_steps(look, look->npartitions, show_partition,
				   show_damaged_partition);
	NaradXLogFlushOffsets(look->rel);
	pfree(look->sums.nsegments);
	pfree(look->sums.bytes);
}

Datum
narad__partitions(PG_FUNCTION_ARGS)
{
	return visit_topics(fcinfo, show_partitions);
}

/* ---------------------------------------------------------------------- */
/* segments                                                               */
/* ---------------------------------------------------------------------- */

/*
 * What an entry does not have yet is null: all but its size for a spare, the
 * end for an open segment.
 */
static void
put_segment(const NaradSegmentEntry *entry, const NaradSegmentRef *ref,
			void *arg)
{
	TopicLook  *look = arg;
	bool		is_spare = entry->state == NARAD_SEGMENT_SPARE;
	bool		is_sealed = entry->state == NARAD_SEGMENT_SEALED;
	Datum		values[SEGMENT_COLUMNS];
	bool		isnull[SEGMENT_COLUMNS] = {false};

	if (!is_spare && !is_sealed && entry->state != NARAD_SEGMENT_OPEN)
		return;
	values[0] = ObjectIdGetDatum(RelationGetRelid(look->rel));
	values[1] = Int32GetDatum(entry->partition);
	values[2] = Int64GetDatum((int64) entry->sequence);
	isnull[2] = is_spare;
	values[3] = CStringGetTextDatum(is_spare ? "spare" :
									is_sealed ? "sealed" : "open");
	values[4] = Int64GetDatum((int64) entry->first_offset);
	isnull[4] = is_spare;
	values[5] = Int64GetDatum((int64) entry->end_offset);
	isnull[5] = !is_sealed;
	values[6] = TimestampTzGetDatum(entry->first_time);
	values[7] = TimestampTzGetDatum(entry->last_time);
	isnull[6] = isnull[7] = !is_sealed || entry->pages_used == 0;
	values[8] = Int64GetDatum((int64) entry->pages_prepared * BLCKSZ);
	values[9] = BoolGetDatum((entry->flags & NARAD_SEGMENT_FROZEN) != 0);
	put_row(look, values, isnull);
}

static void
walk_segments(TopicLook *look, int step)
{
	NaradDirectoryWalk(look->rel, look->meta.segment_pages, put_segment, look);
}

static void
show_segments(TopicLook *look)
{
	if (look->has_meta)
		take_all_steps(look, 1, walk_segments, NULL);
}

Datum
narad__segments(PG_FUNCTION_ARGS)
{
	return visit_topics(fcinfo, show_segments);
}

/* ---------------------------------------------------------------------- */
/* groups                                                                 */
/* ---------------------------------------------------------------------- */

static int
count_ranges(const NaradSet *set)
{
	NaradOffset offset = 0;
	int			nranges = 0;

	while ((offset = NaradSetNextMember(set, offset)) != NARAD_INVALID_OFFSET)
	{
		offset = NaradSetNextGap(set, offset);
		nranges++;
	}
	return nranges;
}

/*
 * False if the shard is not in memory, or serves another group by now.
 */
static bool
copy_figures(NaradShard *shard, NaradGroupId group_id, ShardFigures *figures)
{
	bool		is_ours;

	if (shard == NULL)
		return false;
	LWLockAcquire(&shard->lock, LW_SHARED);
	is_ours = NaradShardIsOf(shard, group_id);
	figures->frontier = (int64) shard->frontier;
	figures->in_flight = shard->leases.nstate[NARAD_LEASE_LEASED] +
		shard->leases.nstate[NARAD_LEASE_PINNED] -
		(shard->is_moving ? 1 : 0);
	figures->returned = shard->leases.nstate[NARAD_LEASE_RETURNED] +
		shard->leases.nstate[NARAD_LEASE_SUSPECT];
	figures->scheduled = shard->leases.nstate[NARAD_LEASE_DELAYED] +
		(int) Min(shard->due.nentries, PG_INT32_MAX / 2);
	figures->acked_ahead_ranges = count_ranges(&shard->settled);
	figures->unpersisted = shard->changes - shard->changes_written;
	figures->dead_lettered = (int64) shard->dead_lettered;
	figures->dead_letters = shard->leases.nstate[NARAD_LEASE_DEAD_LETTER] +
		(shard->is_moving ? 1 : 0);
	figures->lost = (int64) shard->lost;
	LWLockRelease(&shard->lock);
	return is_ours;
}

/*
 * A group that is not in memory: nothing is leased or delayed or unwritten,
 * and what the state page has beyond the frontier is not looked at.  On a
 * standby none of this is known.
 */
static void
peek_figures(Relation rel, const NaradGroupEntry *entry, int partition,
			 ShardFigures *figures)
{
	NaradStateFigures page;

	memset(figures, RecoveryInProgress() ? -1 : 0, sizeof(ShardFigures));
	figures->frontier = -1;
	figures->dead_lettered = figures->lost = 0;
	if (NaradStatePeek(rel, NaradRelInfoLook(rel), entry, partition, &page,
					   NULL))
	{
		figures->frontier = (int64) page.frontier;
		figures->dead_lettered = (int64) page.dead_lettered;
		figures->lost = (int64) page.lost;
		figures->returned = figures->acked_ahead_ranges = -1;
	}
}

/*
 * The group if it is in memory, or NULL.  The lock on the relation keeps what
 * is found.
 */
static NaradGroup *
find_group(NaradTopicId topic_id, NaradGroupId group_id)
{
	NaradQueueTopic *topic;

	if (RecoveryInProgress())
		return NULL;
	topic = NaradQueueTopicFind(topic_id);
	return topic != NULL ? NaradGroupById(topic, group_id) : NULL;
}

/*
 * The same of a shard.
 */
static NaradShard *
find_shard(NaradTopicId topic_id, NaradGroupId group_id, int partition)
{
	NaradGroup *group = find_group(topic_id, group_id);

	return group != NULL ? NaradShardFind(group, group_id, partition) : NULL;
}

static void
put_group(TopicLook *look, const NaradGroupEntry *entry, int partition,
		  int64 end, const ShardFigures *figures)
{
	Datum		values[GROUP_COLUMNS];
	bool		isnull[GROUP_COLUMNS] = {false};
	NaradGroup *group = find_group(look->meta.topic_id, entry->group_id);

	values[0] = ObjectIdGetDatum(RelationGetRelid(look->rel));
	values[1] = CStringGetTextDatum(entry->name);
	values[2] = Int32GetDatum(partition);
	/* -1 says here that nothing is settled. */
	values[3] = Int64GetDatum(figures->frontier - 1);
	isnull[3] = figures->frontier < 0;
	put_int64(end, values, isnull, 4);
	put_int32(figures->in_flight, values, isnull, 5);
	put_int32(figures->returned, values, isnull, 6);
	put_int32(figures->scheduled, values, isnull, 7);
	put_int32(figures->acked_ahead_ranges, values, isnull, 8);
	put_int64(figures->unpersisted, values, isnull, 9);
	put_int64(figures->lost, values, isnull, 10);
	values[11] = BoolGetDatum(entry->paused != 0);
	put_int64(figures->dead_lettered, values, isnull, 12);
	put_int32(figures->dead_letters, values, isnull, 13);
	put_int32(group != NULL ? NaradWaitCount(group, partition) :
			  RecoveryInProgress() ? -1 : 0, values, isnull, 14);
	put_row(look, values, isnull);
}

/*
 * A step is one partition of one group.
 */
static void
show_group_partition(TopicLook *look, int step)
{
	const NaradGroupEntry *entry = &look->groups[step / look->npartitions];
	int			partition = step % look->npartitions;
	NaradShard *shard = find_shard(look->meta.topic_id, entry->group_id,
								   partition);
	ShardFigures figures;
	NaradOffset earliest;
	NaradOffset end;
	NaradOffset stable;

	/* The end is looked at last, so that no frontier is beyond it. */
	if (!copy_figures(shard, entry->group_id, &figures))
		peek_figures(look->rel, entry, partition, &figures);
	NaradPartitionBounds(look->rel, NaradRelInfoLook(look->rel), partition,
						 &earliest, &end, &stable);
	if (figures.frontier < 0)
		figures.frontier = (int64) earliest;
	put_group(look, entry, partition, (int64) end, &figures);
}

/*
 * Pages are damaged: what memory has is shown.
 */
static void
show_damaged_group(TopicLook *look, int step)
{
	const NaradGroupEntry *entry = &look->groups[step / look->npartitions];
	int			partition = step % look->npartitions;
	NaradShard *shard = find_shard(look->meta.topic_id, entry->group_id,
								   partition);
	ShardFigures figures;

	if (!copy_figures(shard, entry->group_id, &figures))
		memset(&figures, -1, sizeof(figures));
	put_group(look, entry, partition, -1, &figures);
}

static void
list_groups(TopicLook *look, int step)
{
	look->groups = NaradGroupList(look->rel, &look->ngroups);
}

static void
show_groups(TopicLook *look)
{
	if (!look->has_meta)
		return;
	take_all_steps(look, 1, list_groups, NULL);
	take_all_steps(look, look->ngroups * look->npartitions,
				   show_group_partition, show_damaged_group);
}

Datum
narad__groups(PG_FUNCTION_ARGS)
{
	return visit_topics(fcinfo, show_groups);
}

/* ---------------------------------------------------------------------- */
/* leases                                                                 */
/* ---------------------------------------------------------------------- */

static bool
is_live(const NaradLease *lease)
{
	return lease->state == NARAD_LEASE_LEASED ||
		lease->state == NARAD_LEASE_PINNED;
}

/*
 * A palloc'ed copy of a shard's live leases.  Memory is got without the lock:
 * if there are more by then, once again.
 */
static NaradLease *
copy_leases(NaradShard *shard, NaradGroupId group_id, int *nleases)
{
	NaradLease *copies = NULL;
	uint32		capacity = 64;
	uint32		needed;

	do
	{
		NaradLease *lease = NULL;

		if (copies != NULL)
		{
			pfree(copies);
			capacity = needed + needed / 8;
		}
		copies = palloc_extended(capacity * sizeof(NaradLease),
								 MCXT_ALLOC_HUGE);
		*nleases = 0;
		LWLockAcquire(&shard->lock, LW_SHARED);
		needed = shard->leases.nstate[NARAD_LEASE_LEASED] +
			shard->leases.nstate[NARAD_LEASE_PINNED];
		if (!NaradShardIsOf(shard, group_id))
			needed = 0;
		while (needed > 0 && needed <= capacity &&
			   (lease = NaradLeaseNext(&shard->leases, lease)) != NULL)
		{
			if (is_live(lease) && *nleases < capacity)
				copies[(*nleases)++] = *lease;
		}
		LWLockRelease(&shard->lock);
	} while (needed > capacity);
	return copies;
}

/*
 * Whose transaction holds a pinned lease is of more interest than who took it.
 */
static void
show_lease(TopicLook *look, const char *group, int partition,
		   const NaradLease *lease)
{
	bool		pinned = lease->state == NARAD_LEASE_PINNED;
	Datum		values[LEASE_COLUMNS];
	bool		isnull[LEASE_COLUMNS] = {false};

	values[0] = ObjectIdGetDatum(RelationGetRelid(look->rel));
	values[1] = CStringGetTextDatum(group);
	values[2] = Int32GetDatum(partition);
	values[3] = Int64GetDatum((int64) lease->offset);
	values[4] = Int32GetDatum(lease->deliveries);
	values[5] = TimestampTzGetDatum(lease->leased_at);
	values[6] = TimestampTzGetDatum(lease->expires_at);
	values[7] = BoolGetDatum(pinned);
	values[8] = Int32GetDatum(pinned ? lease->pinner : lease->pid);
	values[9] = BoolGetDatum(pinned || lease->taker_open);
	put_row(look, values, isnull);
}

static void
show_shard_leases(TopicLook *look, const NaradGroupEntry *entry,
				  NaradShard *shard)
{
	int			nleases;
	NaradLease *leases = copy_leases(shard, entry->group_id, &nleases);
	int			i;

	for (i = 0; i < nleases; i++)
		show_lease(look, entry->name, shard->partition, &leases[i]);
	pfree(leases);
}

static void
show_leases(TopicLook *look)
{
	int			i;

	if (RecoveryInProgress() || !look->has_meta)
		return;
	take_all_steps(look, 1, list_groups, NULL);
	for (i = 0; i < look->ngroups * look->npartitions; i++)
	{
		const NaradGroupEntry *entry = &look->groups[i / look->npartitions];
		NaradShard *shard = find_shard(look->meta.topic_id, entry->group_id,
									   i % look->npartitions);

		CHECK_FOR_INTERRUPTS();
		if (shard != NULL)
			show_shard_leases(look, entry, shard);
	}
}

Datum
narad__leases(PG_FUNCTION_ARGS)
{
	return visit_topics(fcinfo, show_leases);
}
