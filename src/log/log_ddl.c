/*-------------------------------------------------------------------------
 *
 * log_ddl.c
 *	  What DDL does to a topic's file, and what it may not do.
 *
 * Owns:       creation, replacement and move of a topic's file.
 * Invariants: I12.  A new file never gets an old topic id: an empty file has
 *			   none, and TRUNCATE draws a new one; a file that is only moved
 *			   keeps it.
 * Locks:      the caller's AccessExclusiveLock (creation: nobody else sees
 *			   the table).
 * Runs in:    any backend, on a primary; under binary upgrade.
 * WAL:        core's, for files; log_meta.c's for what TRUNCATE carries over.
 * On error:   files made go with the transaction.
 *
 * What a topic cannot be is refused here, where that is chosen: temporary,
 * anything but an ordinary table, without the standard columns, rewritten.
 * What happens to it later is log_gate.c's.
 * An empty file is a valid topic, so that creating one writes nothing, and
 * the init fork of an unlogged topic is empty.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/multixact.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "catalog/storage.h"
#include "catalog/storage_xlog.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/smgr.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "log/log_ddl.h"
#include "log/log_meta.h"
#include "log/log_topic.h"
#include "log/log_vacuum.h"

typedef struct StandardColumn
{
	const char *name;
	Oid			type;			/* InvalidOid: jsonb, bytea or text */
} StandardColumn;

static const StandardColumn standard_columns[NARAD_STANDARD_ATTRS] = {
	{"partition", INT4OID},
	{"msg_offset", INT8OID},
	{"produced_at", TIMESTAMPTZOID},
	{"key", TEXTOID},
	{"value", InvalidOid},
	{"headers", JSONBOID}
};

/* ---- gates ---- */

static bool
is_standard_column(Form_pg_attribute att, const StandardColumn *column)
{
	if (att->attisdropped || strcmp(NameStr(att->attname), column->name) != 0)
		return false;
	if (OidIsValid(column->type))
		return att->atttypid == column->type;
	return att->atttypid == JSONBOID || att->atttypid == BYTEAOID ||
		att->atttypid == TEXTOID;
}

/* The first columns of a table to be created must be a topic's. */
static void
check_standard_columns(Relation rel)
{
	TupleDesc	desc = RelationGetDescr(rel);

	for (int i = 0; i < NARAD_STANDARD_ATTRS; i++)
	{
		if (i >= desc->natts ||
			!is_standard_column(TupleDescAttr(desc, i), &standard_columns[i]))
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("table \"%s\" cannot use access method \"narad\"",
							RelationGetRelationName(rel)),
					 errdetail("Column %d of a topic must be \"%s\" of type %s.",
							   i + 1, standard_columns[i].name,
							   OidIsValid(standard_columns[i].type) ?
							   format_type_be(standard_columns[i].type) :
							   "jsonb, bytea or text"),
					 errhint("Create topics with narad.create_topic, and other tables USING heap.")));
	}
}

/*
 * Before the append the first three are null: nothing may ask for more.  The
 * others are given by whoever produces.  A collation of the user's could take
 * its column along when it is dropped.
 */
static void
check_assigned_column(const char *table, Form_pg_attribute att)
{
	if ((att->attnum <= NARAD_ATTR_TIME && att->attnotnull) ||
		att->attgenerated != '\0' || att->attidentity != '\0')
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("column \"%s\" of topic \"%s\" cannot be constrained or generated",
						NameStr(att->attname), table),
				 att->attnum <= NARAD_ATTR_TIME ?
				 errdetail("Its value is assigned when a record is appended.") :
				 errdetail("Its value is given by the producer."),
				 att->attnum <= NARAD_ATTR_TIME ?
				 errhint("No constraint is needed: it is never null in a record, and partition and offset identify one.") :
				 errhint("Use a further column.")));
	if (att->attcollation >= FirstNormalObjectId)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("column \"%s\" of topic \"%s\" cannot have a user-defined collation",
						NameStr(att->attname), table),
				 errhint("Name the collation in queries.")));
}

/*
 * NaradCheckStandardColumn
 *
 * Errors 0A000 unless a column among the first six of a topic, as it is after
 * an ALTER TABLE, is the standard one of this number.
 */
void
NaradCheckStandardColumn(const char *table, Form_pg_attribute att)
{
	const StandardColumn *column = &standard_columns[att->attnum - 1];

	if (att->attisdropped)
		return;
	if (strcmp(NameStr(att->attname), column->name) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot rename column \"%s\" of topic \"%s\"",
						column->name, table),
				 errhint("Use a view to give it another name.")));
	if (!is_standard_column(att, column))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot change the type of column \"%s\" of topic \"%s\"",
						column->name, table),
				 errhint("Create another topic with narad.create_topic, and copy the records that are wanted.")));
	check_assigned_column(table, att);
}

/*
 * Errors if a table is about to be rewritten into this new one.  Core names
 * such a table after the one it rewrites; relrewrite is not set yet.
 */
static void
check_no_rewrite(Relation rel)
{
	const char *name = RelationGetRelationName(rel);
	const char *digits = name + strlen("pg_temp_");
	HeapTuple	tuple;
	bool		is_topic;

	if (strncmp(name, "pg_temp_", strlen("pg_temp_")) != 0 ||
		*digits == '\0' || strspn(digits, "0123456789") != strlen(digits))
		return;
	tuple = SearchSysCache1(RELOID,
							ObjectIdGetDatum((Oid) strtoul(digits, NULL, 10)));
	if (!HeapTupleIsValid(tuple))
		return;
	is_topic = ((Form_pg_class) GETSTRUCT(tuple))->relam == rel->rd_rel->relam;
	name = pstrdup(NameStr(((Form_pg_class) GETSTRUCT(tuple))->relname));
	ReleaseSysCache(tuple);
	if (is_topic)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot rewrite topic \"%s\"", name),
				 errdetail("Records of a topic are never changed, and keep their offsets."),
				 errhint("Create another topic with narad.create_topic, and copy the records that are wanted.")));
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("cannot turn table \"%s\" into a topic", name),
			 errhint("Create a topic with narad.create_topic, and use INSERT INTO ... SELECT.")));
}

static void
check_may_create(Relation rel, char persistence)
{
	const char *name = RelationGetRelationName(rel);

	if (persistence == RELPERSISTENCE_TEMP)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("temporary table \"%s\" cannot use access method \"narad\"",
						name),
				 errhint("Create an unlogged topic, or the table USING heap.")));
	if (rel->rd_rel->relkind != RELKIND_RELATION)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("relation \"%s\" cannot use access method \"narad\"",
						name),
				 errdetail("Only an ordinary table can be a topic."),
				 errhint("Create topics with narad.create_topic, and this USING heap.")));
	check_no_rewrite(rel);
	check_standard_columns(rel);
	for (int i = 0; i < NARAD_STANDARD_ATTRS; i++)
		check_assigned_column(name, TupleDescAttr(RelationGetDescr(rel), i));
}

/*
 * NaradCheckPrefixColumns
 *
 * Errors unless the first three columns have the types that are stored
 * apart from the row: catalogs may have been changed since the table was
 * made.  Cheap; before each append.
 */
void
NaradCheckPrefixColumns(Relation rel)
{
	TupleDesc	desc = RelationGetDescr(rel);

	for (int i = 0; i < NARAD_ATTR_TIME; i++)
	{
		if (desc->natts < NARAD_STANDARD_ATTRS ||
			TupleDescAttr(desc, i)->attisdropped ||
			TupleDescAttr(desc, i)->atttypid != standard_columns[i].type)
			ereport(ERROR,
					(errcode(ERRCODE_WRONG_OBJECT_TYPE),
					 errmsg("table \"%s\" lacks the columns of a topic",
							RelationGetRelationName(rel)),
					 errdetail("Column %d must be \"%s\" of type %s.",
							   i + 1, standard_columns[i].name,
							   format_type_be(standard_columns[i].type)),
					 errhint("Topics are created with narad.create_topic.")));
	}
}

/* ---- files ---- */

/* An empty init fork, which makes the topic empty after a crash. */
static void
create_init_fork(SMgrRelation srel, const RelFileLocator *locator)
{
	smgrcreate(srel, INIT_FORKNUM, false);
	log_smgrcreate(locator, INIT_FORKNUM);
#if NARAD_COMPAT_SYNC_INIT_FORK
	smgrimmedsync(srel, INIT_FORKNUM);
#endif
}

/*
 * A file for a table just created, or a new one for TRUNCATE; rel still
 * points to the old one then.
 */
void
naradam_set_new_file(Relation rel, const RelFileLocator *newlocator,
					 char persistence, TransactionId *freeze_xid,
					 MultiXactId *minmulti)
{
	bool		is_new = RelFileLocatorEquals(NaradRelationLocator(rel),
											  *newlocator);
	SMgrRelation srel;

	if (is_new && !IsBinaryUpgrade)
		check_may_create(rel, persistence);

	NaradLogTopicFileMayGo(newlocator);
	*freeze_xid = RecentXmin;
	*minmulti = GetOldestMultiXactId();
	srel = RelationCreateStorage(*newlocator, persistence, true);
	if (persistence == RELPERSISTENCE_UNLOGGED)
		create_init_fork(srel, newlocator);
	smgrclose(srel);

	/* I12: the successor of a truncated topic, under an id of its own. */
	if (!is_new && !IsBinaryUpgrade)
		NaradMetaCarryOver(rel, newlocator, persistence);
}

/* TRUNCATE of a file made in the same transaction. */
void
naradam_nontransactional_truncate(Relation rel)
{
	RelFileLocator file = NaradRelationLocator(rel);

	NaradLogFilesMayGo();
	NaradLogTopicReplaced(&file);
	NaradMetaCarryOverInPlace(rel);
}

/* Copies one fork to the new file and logs its creation. */
static void
copy_fork(Relation rel, SMgrRelation dst, const RelFileLocator *newlocator,
		  ForkNumber fork)
{
	smgrcreate(dst, fork, false);
	if (RelationIsPermanent(rel) || fork == INIT_FORKNUM)
		log_smgrcreate(newlocator, fork);
	RelationCopyStorage(RelationGetSmgr(rel), dst, fork,
						rel->rd_rel->relpersistence);
}

/* SET TABLESPACE: the same topic in another file. */
void
naradam_copy_data(Relation rel, const RelFileLocator *newlocator)
{
	NaradRelInfo *info = NaradRelInfoGet(rel);
	NaradTopicId topic_id = info != NULL ? info->topic_id : 0;
	RelFileLocator from = NaradRelationLocator(rel);
	SMgrRelation dst = smgropen(*newlocator, rel->rd_backend);

	/* The copy reads past shared buffers; nobody writes meanwhile. */
	FlushRelationBuffers(rel);
	NaradLogTopicFileMayGo(newlocator);
	RelationCreateStorage(*newlocator, rel->rd_rel->relpersistence, true);
	RelationCopyStorage(RelationGetSmgr(rel), dst, MAIN_FORKNUM,
						rel->rd_rel->relpersistence);
	for (ForkNumber fork = MAIN_FORKNUM + 1; fork <= MAX_FORKNUM; fork++)
	{
		if (smgrexists(RelationGetSmgr(rel), fork))
			copy_fork(rel, dst, newlocator, fork);
	}
	if (topic_id != 0)
		NaradLogTopicMoved(topic_id, &from, newlocator);
	RelationDropStorage(rel);
	smgrclose(dst);
}

/* ---- refusals ---- */

void
naradam_copy_for_cluster(Relation old_table, Relation new_table,
						 Relation old_index, bool use_sort,
						 TransactionId oldest_xmin, TransactionId *xid_cutoff,
						 MultiXactId *multi_cutoff, double *num_tuples,
						 double *tups_vacuumed, double *tups_recently_dead)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("cannot rewrite topic \"%s\"",
					RelationGetRelationName(old_table)),
			 errdetail("Records of a topic are never changed, and keep their offsets."),
			 errhint("Use VACUUM without FULL.")));
}

/*
 * NaradRefuseIndex
 *
 * ERROR 0A000.  By log_gate.c once an index is about to be made; by the
 * callbacks below if it got further.
 */
void
NaradRefuseIndex(const char *table)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("cannot create an index on topic \"%s\"", table),
			 errdetail("Topics have neither indexes nor constraints that need one."),
			 errhint("Read by offset with narad.fetch.")));
}

double
naradam_index_build_range_scan(Relation rel, Relation index,
							   IndexInfo *index_info, bool allow_sync,
							   bool anyvisible, bool progress,
							   BlockNumber start_block, BlockNumber nblocks,
							   IndexBuildCallback callback,
							   void *callback_state, TableScanDesc scan)
{
	NaradRefuseIndex(RelationGetRelationName(rel));
	return 0;					/* keep compiler quiet */
}

void
naradam_index_validate_scan(Relation rel, Relation index,
							IndexInfo *index_info, Snapshot snapshot,
							struct ValidateIndexState *state)
{
	NaradRefuseIndex(RelationGetRelationName(rel));
}

/* No index entry is ever known to be dead: nothing to delete. */
TransactionId
naradam_index_delete_tuples(Relation rel, TM_IndexDeleteOp *delstate)
{
	if (!delstate->bottomup)
		NaradRefuseIndex(RelationGetRelationName(rel));
	delstate->ndeltids = 0;
	return InvalidTransactionId;
}

/* ---- size ---- */

/* Long values are compressed in line and continue over pages. */
bool
naradam_needs_toast_table(Relation rel)
{
	return false;
}

/*
 * For the planner: pages by the file, rows by the partitions' offsets if
 * they are in shared memory, else as for a heap.  The first part never
 * builds the shared memory: this runs for every plan.
 */
void
naradam_estimate_size(Relation rel, int32 *attr_widths, BlockNumber *pages,
					  double *tuples, double *allvisfrac)
{
	NaradRelInfo *info = NaradRelInfoGet(rel);

	table_block_relation_estimate_size(rel, attr_widths, pages, tuples,
									   allvisfrac,
									   sizeof(ItemIdData) +
									   sizeof(NaradRecordHeader),
									   NARAD_PAGE_SPACE);
	*allvisfrac = 0;
	if (info != NULL && info->shared != NULL)
		*tuples = NaradTupleEstimate(info->shared,
									 RelationGetNumberOfBlocks(rel));
}
