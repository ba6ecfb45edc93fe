/*-------------------------------------------------------------------------
 *
 * log_tableam.c
 *	  The table access method: inserting rows, and the table of callbacks.
 *
 * Owns:       the TableAmRoutine.
 * Invariants: rows are in shared buffers before an insert returns, in the
 *			   order in which they came as far as they go to one partition;
 *			   the slots then hold the values assigned.
 * Locks:      the caller's RowExclusiveLock; those of NaradAppend.
 * Runs in:    any backend on a primary; not in parallel workers.
 * On error:   what was appended before is the aborted transaction's.
 *
 * Which partition: the one the row names, else by the hash of its key, else
 * one that the backend sticks to for a batch.  A row that names partition
 * and offset keeps its position, which is how a topic is restored from a
 * dump, and if there is no such partition, it is added; a logical replication worker applies rows in the order of commits,
 * so its positions are assigned anew.
 *
 * Rows are formed before anything is asked of the relation's cached
 * information: fetching a value may process invalidations.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/hio.h"
#include "access/htup_details.h"
#include "access/parallel.h"
#include "access/xact.h"
#include "catalog/pg_class.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "replication/logicalworker.h"
#include "storage/predicate.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "base/base_compat.h"
#include "base/base_malloc.h"
#include "log/log_append.h"
#include "log/log_ddl.h"
#include "log/log_partition.h"
#include "log/log_record.h"
#include "log/log_scan.h"
#include "log/log_tableam.h"
#include "log/log_topic.h"
#include "log/log_vacuum.h"

PG_FUNCTION_INFO_V1(narad_tableam_handler);

/* Where a row wants to go, if it does not say. */
#define PARTITION_BY_KEY	(-1)

static NaradInsertWatch *insert_watch;

static const TupleTableSlotOps *
naradam_slot_callbacks(Relation rel)
{
	return &TTSOpsHeapTuple;
}

/* ---- inserting ---- */

static void
check_may_insert(Relation rel)
{
	if (IsParallelWorker())
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_TRANSACTION_STATE),
				 errmsg("cannot insert tuples in a parallel worker")));
	if (OidIsValid(rel->rd_rel->relrewrite))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot rewrite a table into a topic"),
				 errhint("Create a topic with narad.create_topic, and use INSERT INTO ... SELECT.")));
	NaradCheckPrefixColumns(rel);
}

static void
check_explicit_position(Relation rel, int partition, int64 offset,
						bool has_time, int64 time)
{
	if (!NaradCompatIsOwner(RelationGetRelid(rel), GetUserId()))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be owner of topic \"%s\" to insert records at given offsets",
						RelationGetRelationName(rel)),
				 errhint("Leave \"msg_offset\" out, so that it is assigned.")));
	if (partition >= NARAD_MAX_PARTITIONS)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("partition %d is out of range", partition),
				 errhint("Partitions are from 0 to %d.",
						 NARAD_MAX_PARTITIONS - 1)));
	if (offset < 0 || offset > (int64) NARAD_MAX_OFFSET)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("offset " INT64_FORMAT " is out of range", offset),
				 errhint("Offsets are from 0 to " UINT64_FORMAT ".",
						 NARAD_MAX_OFFSET)));
	if (has_time && TIMESTAMP_NOT_FINITE(time))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("time of a record must be finite")));
}

/* The extension for a row of a command, or NULL; given once. */
static const NaradRecordExtra *
take_watch_extra(Relation rel, CommandId cid)
{
	const NaradRecordExtra *extra;

	if (insert_watch == NULL || insert_watch->relid != RelationGetRelid(rel) ||
		insert_watch->extra == NULL || insert_watch->extra_cid != cid)
		return NULL;
	extra = insert_watch->extra;
	insert_watch->extra = NULL;
	return extra;
}

/* Takes what the row says about its position, and forms its record. */
static void
prepare_item(Relation rel, TupleTableSlot *slot, CommandId cid,
			 NaradAppendItem *item)
{
	Datum	   *values = slot->tts_values;
	bool	   *isnull = slot->tts_isnull;
	bool		has_partition;
	bool		has_offset;
	bool		has_time;
	MemoryContext old = CurrentMemoryContext;

	slot_getallattrs(slot);
	has_partition = !isnull[NARAD_ATTR_PARTITION - 1] && !IsLogicalWorker();
	has_offset = !isnull[NARAD_ATTR_OFFSET - 1] && !IsLogicalWorker();
	has_time = !isnull[NARAD_ATTR_TIME - 1];

	item->partition = PARTITION_BY_KEY;
	item->explicit_offset = NARAD_INVALID_OFFSET;
	item->explicit_time = 0;
	if (has_partition)
	{
		item->partition = DatumGetInt32(values[NARAD_ATTR_PARTITION - 1]);
		if (item->partition < 0)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("partition %d of topic \"%s\" does not exist",
							item->partition, RelationGetRelationName(rel))));
	}
	if (has_offset)
	{
		int64		offset = DatumGetInt64(values[NARAD_ATTR_OFFSET - 1]);
		int64		time = has_time ?
		DatumGetTimestampTz(values[NARAD_ATTR_TIME - 1]) :
		GetCurrentTimestamp();

		if (!has_partition)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("offset given without a partition"),
					 errhint("Give both \"partition\" and \"msg_offset\", or leave \"msg_offset\" out.")));
		check_explicit_position(rel, item->partition, offset, has_time, time);
		item->explicit_offset = (NaradOffset) offset;
		item->explicit_time = time;
	}

	/* The slot is to have the tuple: see write_back. */
	if (TTS_IS_HEAPTUPLE(slot))
		old = MemoryContextSwitchTo(slot->tts_mcxt);
	NaradRecordForm(&item->record, RelationGetDescr(rel), values, isnull,
					take_watch_extra(rel, cid));
	MemoryContextSwitchTo(old);
}

/*
 * A topic that is restored gets the partitions that its rows were in, at once.
 * Who only names a partition has to name one that is there.
 */
static NaradRelInfo *
grow_for_items(Relation rel, const NaradAppendItem *items, int nitems)
{
	int			npartitions = 0;

	for (int i = 0; i < nitems; i++)
	{
		if (items[i].explicit_offset != NARAD_INVALID_OFFSET)
			npartitions = Max(npartitions, items[i].partition + 1);
	}
	if (npartitions > 0)
		NaradLogTopicGrow(rel, npartitions);
	return NaradRelInfoCreate(rel, 0, 0);
}

/*
 * The partition that an item goes to.  The key is taken from the record,
 * where it is in line.
 */
static int
choose_partition(Relation rel, NaradRelInfo *info, NaradAppendItem *item)
{
	Datum		value;
	bool		isnull;
	text	   *key;

	if (item->partition >= info->npartitions)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("partition %d of topic \"%s\" does not exist",
						item->partition, RelationGetRelationName(rel)),
				 errdetail("The topic has partitions 0 to %d.",
						   info->npartitions - 1)));
	if (item->partition != PARTITION_BY_KEY)
		return item->partition;
	if (info->npartitions == 1)
		return 0;

	value = heap_getattr(item->record.tuple, NARAD_ATTR_KEY,
						 RelationGetDescr(rel), &isnull);
	if (isnull)
		return NaradPartitionForNone(info, 1);
	key = DatumGetTextPP(value);
	return NaradPartitionForKey(VARDATA_ANY(key), VARSIZE_ANY_EXHDR(key),
								info->npartitions);
}

static int
compare_items(const void *a, const void *b)
{
	const NaradAppendItem *x = *(NaradAppendItem *const *) a;
	const NaradAppendItem *y = *(NaradAppendItem *const *) b;

	if (x->partition != y->partition)
		return x->partition < y->partition ? -1 : 1;
	return x < y ? -1 : (x > y ? 1 : 0);
}

/* Appends all, partition by partition, those of one in the order they came. */
static void
append_items(Relation rel, NaradAppendItem **items, int nitems, CommandId cid,
			 BufferAccessStrategy strategy)
{
	int			first = 0;

	for (int i = 1; i < nitems; i++)
	{
		if (items[i]->partition != items[0]->partition)
		{
			qsort(items, nitems, sizeof(items[0]), compare_items);
			break;
		}
	}
	while (first < nitems)
	{
		int			partition = items[first]->partition;
		int			next = first + 1;

		while (next < nitems && items[next]->partition == partition)
			next++;
		/* Asked for each time: an append may process invalidations. */
		NaradAppend(rel, NaradRelInfoCreate(rel, 0, 0), partition,
					items + first, next - first, cid, strategy);
		first = next;
	}
}

/*
 * Makes a slot hold the row as it was appended.  One with values only gets
 * the three; one that holds a tuple gets another, system columns included: the
 * very one that was appended, if it can, for that may be long.
 */
static void
write_back(Relation rel, TupleTableSlot *slot, NaradAppendItem *item)
{
	if (TTS_IS_VIRTUAL(slot))
	{
		Datum	   *values = slot->tts_values;

		values[NARAD_ATTR_PARTITION - 1] = Int32GetDatum(item->partition);
		values[NARAD_ATTR_OFFSET - 1] = Int64GetDatum((int64) item->offset);
		values[NARAD_ATTR_TIME - 1] = TimestampTzGetDatum(item->time);
		for (int i = 0; i < NARAD_ATTR_TIME; i++)
			slot->tts_isnull[i] = false;
	}
	else if (TTS_IS_HEAPTUPLE(slot))
	{
		item->record.tuple->t_tableOid = RelationGetRelid(rel);
		ExecForceStoreHeapTuple(item->record.tuple, slot, true);
	}
	else
	{
		MemoryContext old = MemoryContextSwitchTo(slot->tts_mcxt);
		HeapTuple	tuple = heap_copytuple(item->record.tuple);

		MemoryContextSwitchTo(old);
		tuple->t_tableOid = RelationGetRelid(rel);
		ExecForceStoreHeapTuple(tuple, slot, true);
	}
	slot->tts_tid = item->tid;
	slot->tts_tableOid = RelationGetRelid(rel);
}

/* Tells the watch of a row, unless it has one of an earlier command. */
static void
tell_watch(Relation rel, const NaradAppendItem *item, CommandId cid)
{
	NaradInsertWatch *watch = insert_watch;

	if (watch == NULL || watch->relid != RelationGetRelid(rel) ||
		(watch->seen && watch->cid <= cid))
		return;
	watch->seen = true;
	watch->cid = cid;
	watch->partition = item->partition;
	watch->offset = item->offset;
}

/*
 * NaradInsertWatchSet
 *
 * Sets the watch and returns the one before.  Whoever sets one that is on his
 * stack takes it back before he returns, by an error, too.
 */
NaradInsertWatch *
NaradInsertWatchSet(NaradInsertWatch *watch)
{
	NaradInsertWatch *before = insert_watch;

	insert_watch = watch;
	return before;
}

/*
 * Inserts rows.  Everything made on the way is in a context of its own:
 * callers insert any number of rows in one.
 */
static void
naradam_multi_insert(Relation rel, TupleTableSlot **slots, int nslots,
					 CommandId cid, int options, struct BulkInsertStateData *bistate)
{
	MemoryContext work;
	MemoryContext old;
	NaradAppendItem *items;
	NaradAppendItem **order;
	NaradRelInfo *info;

	check_may_insert(rel);
	CheckForSerializableConflictIn(rel, NULL, InvalidBlockNumber);
	NaradMallocKeep();

	work = AllocSetContextCreate(CurrentMemoryContext, "narad insert",
								 ALLOCSET_DEFAULT_SIZES);
	old = MemoryContextSwitchTo(work);
	items = palloc(nslots * sizeof(NaradAppendItem));
	order = palloc(nslots * sizeof(NaradAppendItem *));
	for (int i = 0; i < nslots; i++)
	{
		prepare_item(rel, slots[i], cid, &items[i]);
		order[i] = &items[i];
	}

	info = grow_for_items(rel, items, nslots);
	for (int i = 0; i < nslots; i++)
		items[i].partition = choose_partition(rel, info, &items[i]);
	append_items(rel, order, nslots, cid, bistate ? bistate->strategy : NULL);

	for (int i = 0; i < nslots; i++)
	{
		write_back(rel, slots[i], &items[i]);
		tell_watch(rel, &items[i], cid);
	}
	MemoryContextSwitchTo(old);
	MemoryContextDelete(work);

	/* Again, now that a reader could have read past these rows. */
	CheckForSerializableConflictIn(rel, NULL, InvalidBlockNumber);
	pgstat_count_heap_insert(rel, nslots);
}

static void
naradam_tuple_insert(Relation rel, TupleTableSlot *slot, CommandId cid,
					 int options, struct BulkInsertStateData *bistate)
{
	naradam_multi_insert(rel, &slot, 1, cid, options, bistate);
}

/* ---- what is never done to a record ---- */

static void
refuse_conflict_clause(Relation rel)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("ON CONFLICT with an arbiter is not supported on topic \"%s\"",
					RelationGetRelationName(rel)),
			 errdetail("Topics have no unique indexes.")));
}

static void
naradam_tuple_insert_speculative(Relation rel, TupleTableSlot *slot,
								 CommandId cid, int options,
								 struct BulkInsertStateData *bistate, uint32 token)
{
	refuse_conflict_clause(rel);
}

static void
naradam_tuple_complete_speculative(Relation rel, TupleTableSlot *slot,
								   uint32 token, bool succeeded)
{
	refuse_conflict_clause(rel);
}

static TM_Result
naradam_tuple_delete(Relation rel, ItemPointer tid, CommandId cid,
					 Snapshot snapshot, Snapshot crosscheck, bool wait,
					 TM_FailureData *tmfd, bool changing_part)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("cannot delete from topic \"%s\"",
					RelationGetRelationName(rel)),
			 errdetail("Records of a topic are never changed."),
			 errhint("Settle messages with narad.ack, or use TRUNCATE to remove all.")));
	return TM_Ok;				/* keep compiler quiet */
}

static TM_Result
naradam_tuple_update(Relation rel, ItemPointer otid, TupleTableSlot *slot,
					 CommandId cid, Snapshot snapshot, Snapshot crosscheck,
					 bool wait, TM_FailureData *tmfd, LockTupleMode *lockmode,
					 NaradCompatUpdateIndexes * update_indexes)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("cannot update topic \"%s\"",
					RelationGetRelationName(rel)),
			 errdetail("Records of a topic are never changed."),
			 errhint("Produce a new record instead.")));
	return TM_Ok;				/* keep compiler quiet */
}

/*
 * Nothing can be locked against what never happens.  FOR KEY SHARE is what
 * foreign keys ask for, and is granted as it stands: the record stays.  This
 * is also the way in which a subscription comes to update or delete.
 */
static TM_Result
naradam_tuple_lock(Relation rel, ItemPointer tid, Snapshot snapshot,
				   TupleTableSlot *slot, CommandId cid, LockTupleMode mode,
				   LockWaitPolicy wait_policy, uint8 flags,
				   TM_FailureData *tmfd)
{
	if (mode == LockTupleKeyShare)
	{
		tmfd->traversed = false;
		return naradam_tuple_fetch_row_version(rel, tid, snapshot, slot) ?
			TM_Ok : TM_Deleted;
	}
	if (IsLogicalWorker())
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot apply an update or delete to topic \"%s\"",
						RelationGetRelationName(rel)),
				 errhint("Publish inserts only: WITH (publish = 'insert').")));
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("cannot lock records of topic \"%s\"",
					RelationGetRelationName(rel)),
			 errdetail("Records of a topic are never changed."),
			 errhint("Lease messages with narad.consume.")));
	return TM_Ok;				/* keep compiler quiet */
}

/* ---- the table ---- */

static const TableAmRoutine naradam_methods = {
	.type = T_TableAmRoutine,

	.slot_callbacks = naradam_slot_callbacks,

	.scan_begin = naradam_scan_begin,
	.scan_end = naradam_scan_end,
	.scan_rescan = naradam_scan_rescan,
	.scan_getnextslot = naradam_scan_getnextslot,

	.parallelscan_estimate = naradam_parallelscan_estimate,
	.parallelscan_initialize = naradam_parallelscan_initialize,
	.parallelscan_reinitialize = table_block_parallelscan_reinitialize,

	.index_fetch_begin = naradam_index_fetch_begin,
	.index_fetch_reset = naradam_index_fetch_reset,
	.index_fetch_end = naradam_index_fetch_end,
	.index_fetch_tuple = naradam_index_fetch_tuple,

	.tuple_fetch_row_version = naradam_tuple_fetch_row_version,
	.tuple_tid_valid = naradam_tuple_tid_valid,
	.tuple_get_latest_tid = naradam_tuple_get_latest_tid,
	.tuple_satisfies_snapshot = naradam_tuple_satisfies_snapshot,
	.index_delete_tuples = naradam_index_delete_tuples,

	.tuple_insert = naradam_tuple_insert,
	.tuple_insert_speculative = naradam_tuple_insert_speculative,
	.tuple_complete_speculative = naradam_tuple_complete_speculative,
	.multi_insert = naradam_multi_insert,
	.tuple_delete = naradam_tuple_delete,
	.tuple_update = naradam_tuple_update,
	.tuple_lock = naradam_tuple_lock,

	.narad_compat_set_new_file = naradam_set_new_file,
	.relation_nontransactional_truncate = naradam_nontransactional_truncate,
	.relation_copy_data = naradam_copy_data,
	.relation_copy_for_cluster = naradam_copy_for_cluster,
	.relation_vacuum = naradam_relation_vacuum,
	.scan_analyze_next_block = naradam_scan_analyze_next_block,
	.scan_analyze_next_tuple = naradam_scan_analyze_next_tuple,
	.index_build_range_scan = naradam_index_build_range_scan,
	.index_validate_scan = naradam_index_validate_scan,

	.relation_size = table_block_relation_size,
	.relation_needs_toast_table = naradam_needs_toast_table,
	.relation_estimate_size = naradam_estimate_size,

	.scan_sample_next_block = naradam_scan_sample_next_block,
	.scan_sample_next_tuple = naradam_scan_sample_next_tuple
};

/*
 * NaradTableAm
 *
 * The one table of callbacks; by its address topics are told from others.
 */
const TableAmRoutine *
NaradTableAm(void)
{
	return &naradam_methods;
}

/*
 * NaradRelIsTopic
 *
 * Whether an open relation is a topic.
 */
bool
NaradRelIsTopic(Relation rel)
{
	return rel->rd_rel->relkind == RELKIND_RELATION &&
		rel->rd_tableam == &naradam_methods;
}

Datum
narad_tableam_handler(PG_FUNCTION_ARGS)
{
	PG_RETURN_POINTER(&naradam_methods);
}
