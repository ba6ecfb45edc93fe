/*-------------------------------------------------------------------------
 *
 * queue_saved.c
 *	  Saved frontiers: what a dump of the database carries of groups.
 *
 * Owns:       rows of narad.saved_frontiers: one for each topic and group that
 *             the worker has saved.  pg_dump takes them along, and a restore
 *             brings them into another database.
 * Invariants: I1: a row counts only where it cannot lead past a message that
 *             was not settled; what else it says is given up for an earlier
 *             position.  I12: whose row it is, is told by the topic id.
 * Locks:      the caller's lock on the topic; AccessShareLock or
 *             RowExclusiveLock on the table; row locks, got by the worker only
 *             if free.  No narad lock around any of it.
 * Runs in:    the worker (writing); any backend of a primary.
 * WAL:        the heap's.
 * On error:   the rows go with the transaction; a group that was made stays.
 *
 * A row has the topic id, the group's id and generation, its pause state, and
 * for each partition the first offset that was not settled.  There are two
 * kinds, and two uses:
 *
 * The topic id is that of the topic: the row is of this very log.  State pages
 * say more, so it is for damaged ones: the group starts where it was saved, if
 * the row names the group's id and generation.  A seek raises the latter
 * before it moves anything, so what was saved before a seek never counts after
 * it.
 *
 * It is another one: the row came with a restore.  (Or it is of the log before
 * a TRUNCATE, whose groups were carried over, and is replaced by the next
 * save.  TRUNCATE deletes no rows, since pg_restore truncates tables, too.)
 * Then the group is made, if there is none of its name, at what was saved, but
 * no later than at the first message that was produced after it was saved.
 * Restored messages keep their times, so this changes nothing where the topic
 * holds what was dumped; and where it does not, since its messages were left
 * out, or lost, and others are in their place, these are not taken for
 * settled.  A partition of which the row knows nothing begins at its earliest
 * message.
 *
 * Such groups are made when somebody asks for a group that is missing.  The
 * worker makes them, too, when it starts and before it saves, but does not
 * know whether a restore is under way; so it makes only those whose topic holds
 * all that they had settled.  From then on they are like all others, and the
 * next save replaces their rows.
 *
 * Nothing keeps rows unique: those of a restore may meet one that the worker
 * has written for a group of the same name, and must not fail for that.  Of
 * several the one saved first counts, and the next save leaves one.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "log/log_find.h"
#include "log/log_meta.h"
#include "log/log_partition.h"
#include "log/log_read.h"
#include "log/log_tableam.h"
#include "queue/queue_saved.h"
#include "queue/queue_state.h"

/* Columns of the table. */
#define SAVED_TOPIC			1
#define SAVED_GROUP			2
#define SAVED_TOPIC_ID		3
#define SAVED_GROUP_ID		4
#define SAVED_GENERATION	5
#define SAVED_PAUSED		6
#define SAVED_FRONTIERS		7
#define SAVED_AT			8
#define SAVED_COLUMNS		8

#define TOPIC_ID_LEN		16	/* hexadecimal digits */

/* A row, palloc'ed; what cannot be made sense of is left at zero. */
typedef struct SavedRow
{
	ItemPointerData tid;
	Oid			relid;
	char	   *name;
	char	   *topic_id;
	int64		group_id;
	int64		generation;
	bool		paused;
	int			npartitions;
	int64	   *frontiers;
	TimestampTz saved_at;
} SavedRow;

/* ----------------------------------------------------------------
 *		Reading
 * ----------------------------------------------------------------
 */

/* The table, or NULL: the extension is being made or dropped. */
static Relation
open_saved(LOCKMODE lockmode)
{
	Relation	table = NaradExtensionTableOpen("saved_frontiers", lockmode);

	if (table != NULL && RelationGetDescr(table)->natts < SAVED_COLUMNS)
		elog(ERROR, "table \"%s\" has %d columns", RelationGetRelationName(table),
			 RelationGetDescr(table)->natts);
	return table;
}

static void
take_frontiers(SavedRow *row, Datum value)
{
	ArrayType  *array = DatumGetArrayTypePCopy(value);

	if (ARR_NDIM(array) != 1 || ARR_HASNULL(array) ||
		ARR_ELEMTYPE(array) != INT8OID)
		return;
	row->npartitions = ARR_DIMS(array)[0];
	row->frontiers = (int64 *) ARR_DATA_PTR(array);
}

static SavedRow *
take_row(Relation table, HeapTuple tuple)
{
	Datum		values[SAVED_COLUMNS];
	bool		isnull[SAVED_COLUMNS];
	SavedRow   *row = palloc0(sizeof(SavedRow));
	int			i;

	for (i = 0; i < SAVED_COLUMNS; i++)
		values[i] = heap_getattr(tuple, i + 1, RelationGetDescr(table),
								 &isnull[i]);
	row->tid = tuple->t_self;
	row->relid = isnull[SAVED_TOPIC - 1] ? InvalidOid :
		DatumGetObjectId(values[SAVED_TOPIC - 1]);
	row->name = isnull[SAVED_GROUP - 1] ? pstrdup("") :
		TextDatumGetCString(values[SAVED_GROUP - 1]);
	row->topic_id = isnull[SAVED_TOPIC_ID - 1] ? pstrdup("") :
		TextDatumGetCString(values[SAVED_TOPIC_ID - 1]);
	row->group_id = isnull[SAVED_GROUP_ID - 1] ? 0 :
		DatumGetInt64(values[SAVED_GROUP_ID - 1]);
	row->generation = isnull[SAVED_GENERATION - 1] ? -1 :
		DatumGetInt64(values[SAVED_GENERATION - 1]);
	row->paused = !isnull[SAVED_PAUSED - 1] &&
		DatumGetBool(values[SAVED_PAUSED - 1]);
	row->saved_at = isnull[SAVED_AT - 1] ? DT_NOBEGIN :
		DatumGetTimestampTz(values[SAVED_AT - 1]);
	if (!isnull[SAVED_FRONTIERS - 1])
		take_frontiers(row, values[SAVED_FRONTIERS - 1]);
	return row;
}

static int
compare_rows(const ListCell *a, const ListCell *b)
{
	const SavedRow *x = lfirst(a);
	const SavedRow *y = lfirst(b);

	if (x->saved_at == y->saved_at)
		return 0;
	return x->saved_at < y->saved_at ? -1 : 1;
}

/* The rows of a topic, or all (InvalidOid), those saved first first. */
static List *
read_rows(Relation table, Oid relid)
{
	SysScanDesc scan = NaradExtensionTableScan(table, relid);
	HeapTuple	tuple;
	List	   *rows = NIL;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
		rows = lappend(rows, take_row(table, tuple));
	systable_endscan(scan);
	list_sort(rows, compare_rows);
	return rows;
}

static bool
row_is_of(const SavedRow *row, NaradTopicId topic_id)
{
	char		id[TOPIC_ID_LEN + 1];

	snprintf(id, sizeof(id), "%016llx", (unsigned long long) topic_id);
	return strcmp(row->topic_id, id) == 0;
}

/*
 * NaradSavedFrontier
 *
 * Where a live group of this very log was saved last in a partition, or
 * NARAD_INVALID_OFFSET.  Any lock on the topic, no narad lock.
 */
NaradOffset
NaradSavedFrontier(Relation rel, NaradRelInfo *info, NaradGroupId group_id,
				   int partition)
{
	Relation	table = open_saved(AccessShareLock);
	NaradTopicId topic_id = info->topic_id;
	NaradOffset frontier = NARAD_INVALID_OFFSET;
	NaradGroupEntry *groups;
	int			ngroups;
	ListCell   *cell;
	int			i;

	if (table == NULL)
		return NARAD_INVALID_OFFSET;
	groups = NaradGroupList(rel, &ngroups);
	for (i = 0; i < ngroups && groups[i].group_id != group_id; i++)
		 /* to the group */ ;
	foreach(cell, i < ngroups ? read_rows(table, RelationGetRelid(rel)) : NIL)
	{
		SavedRow   *row = lfirst(cell);

		if (row_is_of(row, topic_id) && row->group_id == group_id &&
			row->generation == groups[i].generation &&
			partition < row->npartitions && row->frontiers[partition] >= 0)
			frontier = Min(frontier, (NaradOffset) row->frontiers[partition]);
	}
	pfree(groups);
	table_close(table, AccessShareLock);
	return frontier;
}

/* The earliest offset a partition has, and its end. */
static NaradOffset
first_offset(Relation rel, NaradRelInfo *info, int partition,
			 NaradOffset *end)
{
	NaradOffset earliest;
	NaradOffset stable;

	NaradPartitionBounds(rel, info, partition, &earliest, end, &stable);
	return earliest;
}

/* ----------------------------------------------------------------
 *		After a restore
 * ----------------------------------------------------------------
 */

/* Where a group that a row speaks of starts in a partition. */
static NaradOffset
restored_start(Relation rel, NaradRelInfo *info, const SavedRow *row,
			   int partition)
{
	NaradOffset end;
	NaradOffset earliest = first_offset(rel, info, partition, &end);
	NaradOffset newer;

	if (NaradLogPartitionFind(info->shared, partition) == NULL)
		return NARAD_INVALID_OFFSET;	/* nobody ever used it */
	if (partition >= row->npartitions || row->frontiers[partition] < 0)
		return earliest;
	newer = NaradOffsetForTime(rel, info, partition, row->saved_at);
	return Max(earliest, Min((NaradOffset) row->frontiers[partition], newer));
}

/* Does the topic hold all that the row speaks of? */
static bool
topic_is_filled(Relation rel, NaradRelInfo *info, const SavedRow *row)
{
	int			i;

	for (i = 0; i < row->npartitions; i++)
	{
		NaradOffset end = 0;

		if (i < info->npartitions)
			(void) first_offset(rel, info, i, &end);
		if (row->frontiers[i] > (int64) end)
			return false;
	}
	return true;
}

/*
 * A topic is restored with the partitions that had messages; the row knows how
 * many there were.
 */
static void
restore_partitions(Relation rel, NaradRelInfo *info, const SavedRow *row)
{
	if (row->npartitions <= info->npartitions ||
		row->npartitions > NARAD_MAX_PARTITIONS)
		return;
	NaradLogTopicGrow(rel, row->npartitions);
	*info = *NaradRelInfoCreate(rel, 0, 0);
}

static void
restore_group(Relation rel, NaradRelInfo *info, NaradQueueTopic *topic,
			  const SavedRow *row)
{
	NaradOffset *starts = palloc(sizeof(NaradOffset) * info->npartitions);
	int			i;

	for (i = 0; i < info->npartitions; i++)
	{
		CHECK_FOR_INTERRUPTS();
		starts[i] = restored_start(rel, info, row, i);
	}
	if (NaradGroupMakeAt(rel, info, topic, row->name, starts,
						 info->npartitions, row->paused))
		ereport(LOG,
				(errmsg("consumer group \"%s\" of topic \"%s\" is restored from its saved frontier",
						row->name, RelationGetRelationName(rel))));
	pfree(starts);
}

/*
 * NaradSavedRestore
 *
 * Makes the groups of which a restore has brought rows and that do not exist,
 * where they were saved; `filled`: only if the topic holds all they had
 * settled, for who does not know whether the restore is done.  The caller holds RowExclusiveLock on the topic and
 * no narad lock, and has an active snapshot; info is attached, and does not
 * go with an invalidation.
 */
void
NaradSavedRestore(Relation rel, NaradRelInfo *info, NaradQueueTopic *topic,
				  bool filled)
{
	Relation	table = open_saved(AccessShareLock);
	ListCell   *cell;

	if (table == NULL)
		return;
	foreach(cell, read_rows(table, RelationGetRelid(rel)))
	{
		SavedRow   *row = lfirst(cell);
		NaradGroupEntry entry;

		if (row_is_of(row, info->topic_id) || row->name[0] == '\0' ||
			strlen(row->name) >= NAMEDATALEN ||
			NaradGroupFind(rel, row->name, &entry) ||
			(filled && !topic_is_filled(rel, info, row)))
			continue;
		restore_partitions(rel, info, row);
		restore_group(rel, info, topic, row);
	}
	table_close(table, AccessShareLock);
}

/*
 * NaradSavedTopics
 *
 * OIDs of all that has rows.  No lock on them.
 */
List *
NaradSavedTopics(void)
{
	Relation	table = open_saved(AccessShareLock);
	List	   *relids = NIL;
	ListCell   *cell;

	if (table == NULL)
		return NIL;
	foreach(cell, read_rows(table, InvalidOid))
	{
		SavedRow   *row = lfirst(cell);

		if (OidIsValid(row->relid))
			relids = list_append_unique_oid(relids, row->relid);
	}
	table_close(table, AccessShareLock);
	return relids;
}

/*
 * NaradSavedIsForeign
 *
 * Are there rows of a topic that came with a restore?  Makes nothing in shared
 * memory.  Any lock on the topic.
 */
bool
NaradSavedIsForeign(Relation rel)
{
	Relation	table = open_saved(AccessShareLock);
	bool		foreign = false;
	NaradMetaData meta;
	bool		has_meta;
	ListCell   *cell;

	if (table == NULL)
		return false;
	has_meta = NaradMetaRead(rel, &meta);
	foreach(cell, read_rows(table, RelationGetRelid(rel)))
	{
		if (!has_meta || !row_is_of(lfirst(cell), meta.topic_id))
			foreign = true;
	}
	table_close(table, AccessShareLock);
	return foreign;
}

/* ----------------------------------------------------------------
 *		Saving
 * ----------------------------------------------------------------
 */

/* The group as it is, to be saved. */
typedef struct Saving
{
	Relation	rel;
	NaradRelInfo *info;
	const NaradGroupEntry *entry;
	NaradGroup *group;			/* NULL: not in memory */
	uint32		nseeks;
	int64	   *frontiers;
} Saving;

/* A shard's frontier; false if a seek came between. */
static bool
take_shard_frontier(const Saving *saving, NaradShard *shard, int partition,
					bool *found)
{
	bool		same;

	LWLockAcquire(&shard->io_lock, LW_SHARED);
	same = pg_atomic_read_u32(&saving->group->nseeks) == saving->nseeks;
	LWLockAcquire(&shard->lock, LW_SHARED);
	*found = NaradShardIsOf(shard, saving->entry->group_id);
	if (*found)
		saving->frontiers[partition] = (int64) shard->frontier;
	LWLockRelease(&shard->lock);
	LWLockRelease(&shard->io_lock);
	return same;
}

/*
 * One partition's frontier: memory's, or the page's if it is not in memory,
 * or, without a page, the partition's start.  False if a seek came between, or
 * the page is damaged.
 */
static bool
take_frontier(const Saving *saving, int partition)
{
	NaradShard *shard = NULL;
	NaradStateFigures figures;
	NaradOffset end;
	bool		damaged;
	bool		found = false;

	if (saving->group != NULL)
		shard = NaradShardFind(saving->group, saving->entry->group_id,
							   partition);
	if (shard != NULL &&
		!take_shard_frontier(saving, shard, partition, &found))
		return false;
	if (found)
		return true;
	if (!NaradStatePeek(saving->rel, saving->info, saving->entry, partition,
						&figures, &damaged))
		figures.frontier = first_offset(saving->rel, saving->info, partition,
										&end);
	if (damaged)
		return false;			/* what was saved before is worth more */
	saving->frontiers[partition] = (int64) figures.frontier;
	return true;
}

/*
 * All partitions' frontiers.  The count of seeks is read first, then comes the
 * group's entry, with its generation, then the frontiers.  A seek that begins
 * meanwhile raises the generation on disk, then the count, then moves the
 * shard, all under its io_lock: so either the count or the generation tells.
 * A shard that is not in memory is loaded before it is moved, after we have
 * looked, and then the count at the end tells, or the generation is raised
 * after all of this, and what is saved does not count.
 */
static bool
take_frontiers_of(Saving *saving)
{
	int			npartitions = saving->info->npartitions;
	int			i;

	saving->frontiers = palloc(sizeof(int64) * npartitions);
	for (i = 0; i < npartitions; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (!take_frontier(saving, i))
			return false;
	}
	return saving->group == NULL ||
		pg_atomic_read_u32(&saving->group->nseeks) == saving->nseeks;
}

/* Does the row say what is to be saved? */
static bool
row_is_current(const SavedRow *row, const Saving *saving)
{
	const NaradGroupEntry *entry = saving->entry;

	return row_is_of(row, saving->info->topic_id) &&
		row->group_id == entry->group_id &&
		row->generation == entry->generation &&
		row->paused == (entry->paused != 0) &&
		row->npartitions == saving->info->npartitions &&
		memcmp(row->frontiers, saving->frontiers,
			   sizeof(int64) * row->npartitions) == 0;
}

static HeapTuple
form_row(Relation table, const Saving *saving)
{
	int			npartitions = saving->info->npartitions;
	Datum	   *elements = palloc(sizeof(Datum) * npartitions);
	char		topic_id[TOPIC_ID_LEN + 1];
	Datum		values[SAVED_COLUMNS];
	bool		isnull[SAVED_COLUMNS] = {false};
	int			i;

	for (i = 0; i < npartitions; i++)
		elements[i] = Int64GetDatum(saving->frontiers[i]);
	snprintf(topic_id, sizeof(topic_id), "%016llx",
			 (unsigned long long) saving->info->topic_id);
	values[SAVED_TOPIC - 1] =
		ObjectIdGetDatum(RelationGetRelid(saving->rel));
	values[SAVED_GROUP - 1] = CStringGetTextDatum(saving->entry->name);
	values[SAVED_TOPIC_ID - 1] = CStringGetTextDatum(topic_id);
	values[SAVED_GROUP_ID - 1] = Int64GetDatum(saving->entry->group_id);
	values[SAVED_GENERATION - 1] = Int64GetDatum(saving->entry->generation);
	values[SAVED_PAUSED - 1] = BoolGetDatum(saving->entry->paused != 0);
	values[SAVED_FRONTIERS - 1] =
		PointerGetDatum(construct_array(elements, npartitions, INT8OID,
										sizeof(int64), FLOAT8PASSBYVAL,
										TYPALIGN_DOUBLE));
	values[SAVED_AT - 1] = TimestampTzGetDatum(GetCurrentTimestamp());
	return heap_form_tuple(RelationGetDescr(table), values, isnull);
}

/* Locks a row if nobody else has; false if it is locked, or no longer so. */
static bool
lock_row(Relation table, SavedRow *row)
{
	HeapTupleData tuple;
	TM_FailureData failure;
	TM_Result	result;
	Buffer		buffer;

	tuple.t_self = row->tid;
	result = heap_lock_tuple(table, &tuple, GetCurrentCommandId(true),
							 LockTupleExclusive, LockWaitSkip, false,
							 &buffer, &failure);
	if (BufferIsValid(buffer))
		ReleaseBuffer(buffer);
	return result == TM_Ok;
}

static bool
delete_row(Relation table, SavedRow *row)
{
	if (!lock_row(table, row))
		return false;
	CatalogTupleDelete(table, &row->tid);
	return true;
}

/*
 * Saves one group: nothing if its row says so already.  Further rows of its
 * name go.  False if a row is locked.
 */
static bool
save_group(Relation table, List *rows, const Saving *saving)
{
	SavedRow   *found = NULL;
	bool		done = true;
	ListCell   *cell;

	foreach(cell, rows)
	{
		SavedRow   *row = lfirst(cell);

		if (strcmp(row->name, saving->entry->name) != 0)
			continue;
		if (found == NULL)
			found = row;
		else
			done &= delete_row(table, row);
	}
	if (found == NULL)
		CatalogTupleInsert(table, form_row(table, saving));
	else if (!row_is_current(found, saving))
	{
		if (!lock_row(table, found))
			return false;
		CatalogTupleUpdate(table, &found->tid, form_row(table, saving));
	}
	return done;
}

/*
 * Saves a group that was listed.  False if it could not be this time.
 *
 * Its entry is read again, after the count of seeks.  A group that is not in
 * memory comes there before it is moved, so one that still is not, once its
 * entry was read, has in that the generation of before.
 */
static bool
try_save_group(Relation table, List *rows, Saving *saving,
			   NaradQueueTopic *topic, const NaradGroupEntry *listed)
{
	NaradGroupEntry entry;

	saving->group = NaradGroupById(topic, listed->group_id);
	if (saving->group != NULL)
		saving->nseeks = pg_atomic_read_u32(&saving->group->nseeks);
	if (!NaradGroupFind(saving->rel, listed->name, &entry) ||
		entry.group_id != listed->group_id)
		return false;
	if (saving->group == NULL &&
		NaradGroupById(topic, listed->group_id) != NULL)
		return false;
	saving->entry = &entry;
	return take_frontiers_of(saving) && save_group(table, rows, saving);
}

/* Rows of groups that are gone: dropped in a transaction rolled back. */
static bool
delete_stale_rows(Relation table, List *rows, NaradTopicId topic_id,
				  const NaradGroupEntry *groups, int ngroups)
{
	bool		done = true;
	ListCell   *cell;

	foreach(cell, rows)
	{
		SavedRow   *row = lfirst(cell);
		int			i;

		if (!row_is_of(row, topic_id))
			continue;
		for (i = 0; i < ngroups && strcmp(row->name, groups[i].name) != 0; i++)
			 /* to the group */ ;
		if (i == ngroups)
			done &= delete_row(table, row);
	}
	return done;
}

/*
 * NaradSavedWrite
 *
 * Brings the rows of a topic up to date, and makes groups that a restore has
 * brought.  Locks and info as for NaradSavedRestore.  Writes nothing where
 * nothing has changed.  False if something is left to be saved: a row is
 * locked by a transaction that is still open, or a group was moved meanwhile.
 */
bool
NaradSavedWrite(Relation rel, NaradRelInfo *info, NaradQueueTopic *topic)
{
	Saving		saving = {0};
	bool		done = true;
	Relation	table;
	NaradGroupEntry *groups;
	int			ngroups;
	List	   *rows;
	int			i;

	saving.rel = rel;
	saving.info = info;
	NaradSavedRestore(rel, info, topic, true);
	table = open_saved(RowExclusiveLock);
	if (table == NULL)
		return true;
	groups = NaradGroupList(rel, &ngroups);
	rows = read_rows(table, RelationGetRelid(rel));
	for (i = 0; i < ngroups; i++)
		done &= try_save_group(table, rows, &saving, topic, &groups[i]);
	done &= delete_stale_rows(table, rows, info->topic_id, groups, ngroups);
	table_close(table, RowExclusiveLock);
	return done;
}

/* ----------------------------------------------------------------
 *		Deleting
 * ----------------------------------------------------------------
 */

/* Deletes a row; false if somebody has changed it meanwhile. */
static bool
delete_or_wait(Relation table, SavedRow *row)
{
	TM_FailureData failure;
	TM_Result	result;

	result = heap_delete(table, &row->tid, GetCurrentCommandId(true),
						 InvalidSnapshot, true, &failure, false);

	/* Self-modified: this command has deleted it already. */
	return result == TM_Ok || result == TM_SelfModified;
}

/*
 * NaradSavedDelete
 *
 * Deletes the rows of a topic, or of one of its groups, in the transaction
 * that drops it.  Waits for others who change them.  No narad
 * lock.
 */
void
NaradSavedDelete(Oid relid, const char *name)
{
	Relation	table = open_saved(RowExclusiveLock);
	bool		again = table != NULL;

	while (again)
	{
		ListCell   *cell;

		CHECK_FOR_INTERRUPTS();
		again = false;
		foreach(cell, read_rows(table, relid))
		{
			SavedRow   *row = lfirst(cell);

			if (name == NULL || strcmp(row->name, name) == 0)
				again |= !delete_or_wait(table, row);
		}
	}
	if (table != NULL)
		table_close(table, RowExclusiveLock);
}
