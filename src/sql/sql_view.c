/*-------------------------------------------------------------------------
 *
 * sql_view.c
 *	  The functions under the views topics, partitions, groups, leases.
 *
 * Owns:		nothing; changes nothing.
 * Invariants:	a topic is shown only to who may SELECT from it; no receipt,
 *				nor the nonce in it, leaves shared memory (I4).
 * Locks:		AccessShareLock on one topic at a time; a shard's lock, shared,
 *				for as long as its figures are copied.
 * Runs in:		any backend.  During recovery groups are shown as on their
 *				state pages, and there are no leases.
 * On error:	nothing to undo.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/xlog.h"
#include "catalog/pg_class.h"
#include "commands/defrem.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"

#include "log/log_meta.h"
#include "log/log_read.h"
#include "log/log_tableam.h"
#include "queue/queue_shard.h"
#include "queue/queue_state.h"
#include "sql/sql_args.h"
#include "sql/sql_topic.h"

#define TOPIC_COLUMNS		20
#define PARTITION_COLUMNS	9
#define GROUP_COLUMNS		11
#define LEASE_COLUMNS		10

/* What a partition's segments come to. */
typedef struct SegmentSums
{
	int			npartitions;
	int		   *nsegments;
	int64	   *bytes;
} SegmentSums;

/* A shard's figures, copied. */
typedef struct ShardFigures
{
	NaradOffset frontier;
	int			in_flight;
	int			returned;
	int			scheduled;
	int			acked_ahead_ranges;
	int64		unpersisted;
} ShardFigures;

typedef void (*TopicVisitor) (Relation rel, ReturnSetInfo *rsinfo);

PG_FUNCTION_INFO_V1(narad__topics);
PG_FUNCTION_INFO_V1(narad__partitions);
PG_FUNCTION_INFO_V1(narad__groups);
PG_FUNCTION_INFO_V1(narad__leases);

/* ---------------------------------------------------------------------- */
/* Which topics                                                           */
/* ---------------------------------------------------------------------- */

/*
 * OIDs of all tables with our access method.
 */
static List *
list_topics(void)
{
	Oid			am = get_table_am_oid("narad", true);
	List	   *result = NIL;
	Relation	pg_class;
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;

	pg_class = table_open(RelationRelationId, AccessShareLock);
	ScanKeyInit(&key, Anum_pg_class_relam, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(am));
	scan = systable_beginscan(pg_class, InvalidOid, false, NULL, 1, &key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_class form = (Form_pg_class) GETSTRUCT(tuple);

		if (form->relkind == RELKIND_RELATION)
			result = lappend_oid(result, form->oid);
	}
	systable_endscan(scan);
	table_close(pg_class, AccessShareLock);
	return result;
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
	foreach(lc, list_topics())
	{
		bool		is_missing = false;
		Relation	rel;

		CHECK_FOR_INTERRUPTS();
		if (pg_class_aclcheck_ext(lfirst_oid(lc), GetUserId(), ACL_SELECT,
								  &is_missing) != ACLCHECK_OK || is_missing)
			continue;
		rel = try_relation_open(lfirst_oid(lc), AccessShareLock);
		if (rel == NULL)
			continue;
		if (NaradRelIsTopic(rel))
			visit(rel, rsinfo);
		relation_close(rel, AccessShareLock);
	}
	return (Datum) 0;
}

/* ---------------------------------------------------------------------- */
/* topics                                                                 */
/* ---------------------------------------------------------------------- */

static int64
count_offsets(Relation rel, int npartitions)
{
	int64		result = 0;
	int			i;

	for (i = 0; i < npartitions; i++)
	{
		NaradOffset earliest;
		NaradOffset end;
		NaradOffset stable;

		NaradPartitionBounds(rel, NaradTopicInfo(rel), i, &earliest, &end,
							 &stable);
		result += end - earliest;
	}
	return result;
}

static void
show_topic(Relation rel, ReturnSetInfo *rsinfo)
{
	NaradRelInfo *info = NaradTopicInfo(rel);
	int			npartitions = info != NULL ? info->npartitions : 1;
	uint32		segment_pages = info != NULL ? info->segment_pages :
	NARAD_DEFAULT_SEGMENT_PAGES;
	Datum		settings[NARAD_SETTING_LAST];
	bool		no_setting[NARAD_SETTING_LAST];
	Datum		values[TOPIC_COLUMNS];
	bool		isnull[TOPIC_COLUMNS] = {false};
	int			column = 0;
	int			i;

	values[column++] = ObjectIdGetDatum(RelationGetRelid(rel));
	isnull[column] = info == NULL;
	values[column++] = info == NULL ? (Datum) 0 :
		CStringGetTextDatum(psprintf("%016llx",
									 (unsigned long long) info->topic_id));
	values[column++] = Int32GetDatum(npartitions);
	values[column++] = Int64GetDatum(count_offsets(rel, npartitions));
	values[column++] = Int64GetDatum((int64) RelationGetNumberOfBlocks(rel) *
									 BLCKSZ);
	values[column++] =
		ObjectIdGetDatum(TupleDescAttr(RelationGetDescr(rel),
									   NARAD_ATTR_VALUE - 1)->atttypid);

	/* The settings in the order of their table, segment_size before age. */
	NaradSettingsEffective(RelationGetRelid(rel), settings, no_setting);
	for (i = NARAD_SETTING_RETENTION; i <= NARAD_SETTING_LAST; i++)
	{
		if (i == NARAD_SETTING_SEGMENT_AGE)
			values[column++] = Int64GetDatum((int64) segment_pages * BLCKSZ);
		isnull[column] = no_setting[i - 1];
		values[column++] = settings[i - 1];
	}
	Assert(column == TOPIC_COLUMNS);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, isnull);
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

/*
 * Damaged records met, or -1 where that is not counted.
 */
static int64
corrupt_records(NaradRelInfo *info, int partition)
{
	if (info == NULL)
		return 0;
	if (info->shared == NULL)
		return -1;
	return pg_atomic_read_u64(&info->shared->partitions[partition].corrupt_records);
}

static void
show_partition(Relation rel, ReturnSetInfo *rsinfo, int partition, int epoch,
			   const SegmentSums *sums)
{
	NaradRelInfo *info = NaradTopicInfo(rel);
	int64		ncorrupt = corrupt_records(info, partition);
	NaradOffset earliest;
	NaradOffset end;
	NaradOffset stable;
	Datum		values[PARTITION_COLUMNS];
	bool		isnull[PARTITION_COLUMNS] = {false};

	NaradPartitionBounds(rel, info, partition, &earliest, &end, &stable);
	values[0] = ObjectIdGetDatum(RelationGetRelid(rel));
	values[1] = Int32GetDatum(partition);
	values[2] = Int64GetDatum((int64) earliest);
	values[3] = Int64GetDatum((int64) end);
	values[4] = Int64GetDatum((int64) stable);
	values[5] = Int32GetDatum(epoch);
	values[6] = Int32GetDatum(sums->nsegments[partition]);
	values[7] = Int64GetDatum(sums->bytes[partition]);
	values[8] = Int64GetDatum(ncorrupt);
	isnull[8] = ncorrupt < 0;
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, isnull);
}

static void
show_partitions(Relation rel, ReturnSetInfo *rsinfo)
{
	NaradMetaData meta;
	SegmentSums sums;
	int			epoch = 1;
	int			i;

	sums.npartitions = NaradTopicPartitions(rel);
	sums.nsegments = palloc0(sums.npartitions * sizeof(int));
	sums.bytes = palloc0(sums.npartitions * sizeof(int64));
	if (NaradMetaRead(rel, &meta))
	{
		epoch = meta.epoch;
		NaradDirectoryWalk(rel, meta.segment_pages, sum_segment, &sums);
	}
	for (i = 0; i < sums.npartitions; i++)
		show_partition(rel, rsinfo, i, epoch, &sums);
	pfree(sums.nsegments);
	pfree(sums.bytes);
}

Datum
narad__partitions(PG_FUNCTION_ARGS)
{
	return visit_topics(fcinfo, show_partitions);
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

static void
copy_figures(NaradShard *shard, ShardFigures *figures)
{
	LWLockAcquire(&shard->lock, LW_SHARED);
	figures->frontier = shard->frontier;
	figures->in_flight = shard->leases.nstate[NARAD_LEASE_LEASED] +
		shard->leases.nstate[NARAD_LEASE_PINNED];
	figures->returned = shard->leases.nstate[NARAD_LEASE_RETURNED];
	figures->scheduled = shard->leases.nstate[NARAD_LEASE_DELAYED];
	figures->acked_ahead_ranges = count_ranges(&shard->settled);
	figures->unpersisted = shard->changes - shard->changes_written;
	LWLockRelease(&shard->lock);
}

/*
 * The shard if it is in memory, or NULL.  The lock on the relation keeps what
 * is found.
 */
static NaradShard *
find_shard(NaradRelInfo *info, NaradGroupId group_id, int partition)
{
	NaradQueueTopic *topic;
	NaradGroup *group;

	if (RecoveryInProgress())
		return NULL;
	topic = NaradQueueTopicFind(info->topic_id);
	group = topic != NULL ? NaradGroupById(topic, group_id) : NULL;
	return group != NULL ? NaradShardFind(group, partition) : NULL;
}

static void
show_group_partition(Relation rel, ReturnSetInfo *rsinfo,
					 const NaradGroupEntry *entry, int partition)
{
	NaradRelInfo *info = NaradTopicInfo(rel);
	NaradShard *shard = find_shard(info, entry->group_id, partition);
	ShardFigures figures = {0};
	NaradOffset earliest;
	NaradOffset end;
	NaradOffset stable;
	Datum		values[GROUP_COLUMNS];
	bool		isnull[GROUP_COLUMNS] = {false};

	NaradPartitionBounds(rel, info, partition, &earliest, &end, &stable);
	if (shard != NULL)
		copy_figures(shard, &figures);
	else if (!NaradStatePeek(rel, NaradTopicInfo(rel), entry, partition,
							 &figures.frontier))
		figures.frontier = earliest;

	values[0] = ObjectIdGetDatum(RelationGetRelid(rel));
	values[1] = CStringGetTextDatum(entry->name);
	values[2] = Int32GetDatum(partition);
	values[3] = Int64GetDatum((int64) figures.frontier - 1);
	values[4] = Int64GetDatum((int64) end);
	values[5] = Int32GetDatum(figures.in_flight);
	values[6] = Int32GetDatum(figures.returned);
	values[7] = Int32GetDatum(figures.scheduled);
	values[8] = Int32GetDatum(figures.acked_ahead_ranges);
	values[9] = Int64GetDatum(figures.unpersisted);
	values[10] = BoolGetDatum(entry->paused != 0);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, isnull);
}

static void
show_groups(Relation rel, ReturnSetInfo *rsinfo)
{
	NaradGroupEntry *entries;
	int			ngroups;
	int			npartitions;
	int			i;
	int			j;

	if (NaradTopicInfo(rel) == NULL)
		return;
	npartitions = NaradTopicPartitions(rel);
	entries = NaradGroupList(rel, &ngroups);
	for (i = 0; i < ngroups; i++)
	{
		for (j = 0; j < npartitions; j++)
		{
			CHECK_FOR_INTERRUPTS();
			show_group_partition(rel, rsinfo, &entries[i], j);
		}
	}
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
copy_leases(NaradShard *shard, int *nleases)
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
		while (needed <= capacity &&
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
show_lease(Relation rel, ReturnSetInfo *rsinfo, const char *group,
		   int partition, const NaradLease *lease)
{
	bool		pinned = lease->state == NARAD_LEASE_PINNED;
	Datum		values[LEASE_COLUMNS];
	bool		isnull[LEASE_COLUMNS] = {false};

	values[0] = ObjectIdGetDatum(RelationGetRelid(rel));
	values[1] = CStringGetTextDatum(group);
	values[2] = Int32GetDatum(partition);
	values[3] = Int64GetDatum((int64) lease->offset);
	values[4] = Int32GetDatum(lease->deliveries);
	values[5] = TimestampTzGetDatum(lease->leased_at);
	values[6] = TimestampTzGetDatum(lease->expires_at);
	values[7] = BoolGetDatum(pinned);
	values[8] = Int32GetDatum(pinned ? lease->pinner : lease->pid);
	values[9] = BoolGetDatum(pinned || lease->taker_open);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, isnull);
}

static void
show_shard_leases(Relation rel, ReturnSetInfo *rsinfo, const char *group,
				  NaradShard *shard)
{
	int			nleases;
	NaradLease *leases = copy_leases(shard, &nleases);
	int			i;

	for (i = 0; i < nleases; i++)
		show_lease(rel, rsinfo, group, shard->partition, &leases[i]);
	pfree(leases);
}

static void
show_leases(Relation rel, ReturnSetInfo *rsinfo)
{
	NaradGroupEntry *entries;
	int			ngroups;
	int			npartitions;
	int			i;
	int			j;

	if (RecoveryInProgress() || NaradTopicInfo(rel) == NULL)
		return;
	npartitions = NaradTopicPartitions(rel);
	entries = NaradGroupList(rel, &ngroups);
	for (i = 0; i < ngroups; i++)
	{
		for (j = 0; j < npartitions; j++)
		{
			NaradShard *shard = find_shard(NaradTopicInfo(rel),
										   entries[i].group_id, j);

			CHECK_FOR_INTERRUPTS();
			if (shard != NULL)
				show_shard_leases(rel, rsinfo, entries[i].name, shard);
		}
	}
}

Datum
narad__leases(PG_FUNCTION_ARGS)
{
	return visit_topics(fcinfo, show_leases);
}
