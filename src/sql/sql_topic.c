/*-------------------------------------------------------------------------
 *
 * sql_topic.c
 *	  create_topic, alter_topic, drop_topic, purge_topic; the table
 *	  narad.topic_settings.
 *
 * Owns:		rows of narad.topic_settings: only the functions here write
 *				them, and only those of topics that the caller owns.  (A row
 *				is deleted when its topic is dropped, elsewhere.)
 * Invariants:	a column is null where the default holds, so that a default
 *				may change with a later version.  alter_topic with the
 *				values that a topic has writes nothing.
 * Locks:		create_topic has the AccessExclusiveLock of CREATE TABLE;
 *				drop_topic and purge_topic take it after the check of
 *				privileges, by OID, and keep it;
 *				alter_topic takes ShareUpdateExclusiveLock, so that one
 *				session at a time changes a topic's row.
 * Runs in:		any backend.
 * WAL:			by CREATE TABLE and the heap; the topic's metapage by storage.
 * On error:	everything is transactional and goes with the transaction.
 *
 * The table is made and dropped by the SQL commands that do this, as the
 * calling user: so privileges, event triggers, dependencies and log are
 * theirs.  Every name in such a command is qualified, so search_path plays no
 * part.  But the schema of a locked table may still be renamed, and another
 * table get its name; so after DROP TABLE it must be the table given that is
 * gone, or the transaction fails.  TRUNCATE goes by OID altogether.
 *
 * The settings' table cannot be written by its users.  Its rows are changed
 * by CatalogTupleInsert() and CatalogTupleUpdate(), which do what the
 * executor does for a table of such a simple kind, after the check of
 * ownership.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/catalog.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_type.h"
#include "commands/tablecmds.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"
#include "utils/varlena.h"

#include "log/log_meta.h"
#include "log/log_partition.h"
#include "log/log_retain.h"
#include "log/log_tableam.h"
#include "queue/queue_deadletter.h"
#include "queue/queue_topic.h"
#include "sql/sql_args.h"
#include "sql/sql_topic.h"

/* Arguments of both functions that are no columns of the table. */
#define ARG_PARTITIONS			1
#define ARG_SEGMENT_SIZE		14
#define ARG_SEGMENT_AGE			15	/* its column is another number */
#define ARG_VALUE_TYPE			16
#define ARG_ALTER_RESET			17

/*
 * What create_topic or alter_topic was given, by column.  A null value that
 * is given resets the setting.
 */
typedef struct SettingsChange
{
	Datum		values[NARAD_SETTING_LAST];
	bool		isnull[NARAD_SETTING_LAST];
	bool		is_given[NARAD_SETTING_LAST];
} SettingsChange;

/* Names by column, as in the table and in the arguments. */
static const char *const setting_names[NARAD_SETTING_LAST] = {
	"topic", "retention", "retention_bytes", "visibility_timeout",
	"max_deliveries", "dead_letter_topic", "retry_delay", "retry_backoff",
	"ordering", "cleanup", "dedup_window", "max_in_flight",
	"max_acked_ahead", "segment_age"
};

#define DEFAULT_RETENTION			(7 * USECS_PER_DAY)
#define DEFAULT_VISIBILITY_TIMEOUT	(30 * USECS_PER_SEC)
#define DEFAULT_DEDUP_WINDOW		(5 * USECS_PER_MINUTE)
#define DEFAULT_SEGMENT_AGE			USECS_PER_DAY
#define DEFAULT_CAP					1024

/* The longest that a message waits for its next delivery. */
#define MAX_RETRY_DELAY				(12 * USECS_PER_HOUR)

PG_FUNCTION_INFO_V1(narad_create_topic);
PG_FUNCTION_INFO_V1(narad_alter_topic);
PG_FUNCTION_INFO_V1(narad_drop_topic);
PG_FUNCTION_INFO_V1(narad_purge_topic);

/* ---------------------------------------------------------------------- */
/* Rows of narad.topic_settings                                           */
/* ---------------------------------------------------------------------- */

static bool
any_value(const SettingsChange *change)
{
	int			i;

	for (i = 0; i < NARAD_SETTING_LAST; i++)
	{
		if (change->is_given[i] && !change->isnull[i])
			return true;
	}
	return false;
}

static bool
any_given(const SettingsChange *change)
{
	int			i;

	for (i = 0; i < NARAD_SETTING_LAST; i++)
	{
		if (change->is_given[i])
			return true;
	}
	return false;
}

static Relation
open_settings(LOCKMODE lockmode)
{
	Oid			namespace = get_namespace_oid("narad", false);
	Oid			relid = get_relname_relid("topic_settings", namespace);

	if (!OidIsValid(relid))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation \"%s\" does not exist",
						"narad.topic_settings"),
				 errhint("Create the extension narad again.")));
	return table_open(relid, lockmode);
}

/*
 * A copy of a topic's row, or NULL.  The table has one index, its primary key.
 */
static HeapTuple
copy_settings_row(Relation settings, Oid relid)
{
	List	   *indexes = RelationGetIndexList(settings);
	Oid			index = indexes != NIL ? linitial_oid(indexes) : InvalidOid;
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;

	ScanKeyInit(&key, NARAD_SETTING_TOPIC, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(relid));
	scan = systable_beginscan(settings, index, OidIsValid(index), NULL,
							  1, &key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
		tuple = heap_copytuple(tuple);
	systable_endscan(scan);
	list_free(indexes);
	return tuple;
}

/*
 * Forgets what a change would leave as it is.  The caller holds a lock on the
 * topic that keeps others from changing its row.
 */
static void
forget_unchanged(Oid relid, SettingsChange *change)
{
	Relation	settings = open_settings(AccessShareLock);
	TupleDesc	desc = RelationGetDescr(settings);
	HeapTuple	row = copy_settings_row(settings, relid);
	int			i;

	for (i = 0; i < NARAD_SETTING_LAST; i++)
	{
		Form_pg_attribute attr = TupleDescAttr(desc, i);
		bool		isnull = true;
		Datum		value = (Datum) 0;

		if (!change->is_given[i])
			continue;
		if (row != NULL)
			value = heap_getattr(row, i + 1, desc, &isnull);
		if (isnull == change->isnull[i] &&
			(isnull || datum_image_eq(value, change->values[i],
									  attr->attbyval, attr->attlen)))
			change->is_given[i] = false;
	}
	table_close(settings, AccessShareLock);
}

/*
 * Brings a change into the topic's row, which is made if need be.  The caller
 * holds a lock on the topic that keeps others from doing the same.  For a new
 * topic a row of an earlier table of the same OID does not count.
 */
static void
write_settings(Oid relid, SettingsChange *change, bool is_new)
{
	Relation	settings = open_settings(RowExclusiveLock);
	HeapTuple	old = copy_settings_row(settings, relid);

	if (old != NULL && is_new)
	{
		CatalogTupleDelete(settings, &old->t_self);
		old = NULL;
	}
	if (old != NULL)
	{
		HeapTuple	tuple = heap_modify_tuple(old, RelationGetDescr(settings),
											  change->values, change->isnull,
											  change->is_given);

		CatalogTupleUpdate(settings, &old->t_self, tuple);
	}
	else if (!is_new || any_value(change))
	{
		change->values[NARAD_SETTING_TOPIC - 1] = ObjectIdGetDatum(relid);
		change->isnull[NARAD_SETTING_TOPIC - 1] = false;
		CatalogTupleInsert(settings,
						   heap_form_tuple(RelationGetDescr(settings),
										   change->values, change->isnull));
	}
	table_close(settings, RowExclusiveLock);
	CommandCounterIncrement();
	CacheInvalidateRelcacheByRelid(relid);
}

static Datum
interval_datum(int64 microseconds)
{
	Interval   *interval = palloc0(sizeof(Interval));

	interval->day = microseconds / USECS_PER_DAY;
	interval->time = microseconds % USECS_PER_DAY;
	return IntervalPGetDatum(interval);
}

/*
 * The default of a column, null if there is none.
 */
static Datum
default_setting(int column, bool *isnull)
{
	*isnull = false;
	switch (column)
	{
		case NARAD_SETTING_RETENTION:
			return interval_datum(DEFAULT_RETENTION);
		case NARAD_SETTING_VISIBILITY_TIMEOUT:
			return interval_datum(DEFAULT_VISIBILITY_TIMEOUT);
		case NARAD_SETTING_RETRY_DELAY:
			return interval_datum(0);
		case NARAD_SETTING_RETRY_BACKOFF:
			return Float8GetDatum(1.0);
		case NARAD_SETTING_ORDERING:
			return CStringGetTextDatum("none");
		case NARAD_SETTING_CLEANUP:
			return CStringGetTextDatum("retain");
		case NARAD_SETTING_DEDUP_WINDOW:
			return interval_datum(DEFAULT_DEDUP_WINDOW);
		case NARAD_SETTING_MAX_IN_FLIGHT:
		case NARAD_SETTING_MAX_ACKED_AHEAD:
			return Int32GetDatum(DEFAULT_CAP);
		case NARAD_SETTING_SEGMENT_AGE:
			return interval_datum(DEFAULT_SEGMENT_AGE);
		default:
			*isnull = true;
			return (Datum) 0;
	}
}

/*
 * The settings of a topic that are in effect.  The caller holds a lock on the
 * topic.  Results are in the current memory context.
 */
void
NaradSettingsEffective(Oid relid, Datum *values, bool *isnull)
{
	Relation	settings = open_settings(AccessShareLock);
	HeapTuple	tuple = copy_settings_row(settings, relid);
	int			i;

	if (tuple != NULL)
		heap_deform_tuple(tuple, RelationGetDescr(settings), values, isnull);
	else
		memset(isnull, true, NARAD_SETTING_LAST * sizeof(bool));
	for (i = 0; i < NARAD_SETTING_LAST; i++)
	{
		if (isnull[i])
			values[i] = default_setting(i + 1, &isnull[i]);
	}
	table_close(settings, AccessShareLock);
}

/* ---------------------------------------------------------------------- */
/* Arguments that are settings                                            */
/* ---------------------------------------------------------------------- */

/*
 * Notes a value; null if it equals the default.
 */
static void
set_value(SettingsChange *change, int column, Datum value, bool is_default)
{
	change->values[column - 1] = value;
	change->isnull[column - 1] = is_default;
	change->is_given[column - 1] = true;
}

static void
take_interval(FunctionCallInfo fcinfo, SettingsChange *change, int argno,
			  int column, int64 min, int64 max, int64 default_value)
{
	int64		value;

	if (PG_ARGISNULL(argno))
		return;
	value = NaradArgInterval(fcinfo, argno, setting_names[column - 1],
							 min, max);
	set_value(change, column, PG_GETARG_DATUM(argno),
			  value == default_value);
}

static void
take_count(FunctionCallInfo fcinfo, SettingsChange *change, int column)
{
	int			value;

	if (PG_ARGISNULL(column))
		return;
	value = NaradArgCount(fcinfo, column, setting_names[column - 1], 1);
	set_value(change, column, Int32GetDatum(value), value == DEFAULT_CAP);
}

static void
take_retention_bytes(FunctionCallInfo fcinfo, SettingsChange *change)
{
	if (PG_ARGISNULL(NARAD_SETTING_RETENTION_BYTES))
		return;
	if (PG_GETARG_INT64(NARAD_SETTING_RETENTION_BYTES) <= 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"%s\" must be at least %d, not %lld",
						"retention_bytes", 1,
						(long long) PG_GETARG_INT64(NARAD_SETTING_RETENTION_BYTES))));
	set_value(change, NARAD_SETTING_RETENTION_BYTES,
			  PG_GETARG_DATUM(NARAD_SETTING_RETENTION_BYTES), false);
}

/*
 * A choice of two words, of which the first is the default.
 */
static void
take_word(FunctionCallInfo fcinfo, SettingsChange *change, int column,
		  const char *first, const char *second)
{
	char	   *word;

	if (PG_ARGISNULL(column))
		return;
	word = text_to_cstring(PG_GETARG_TEXT_PP(column));
	if (strcmp(word, first) != 0 && strcmp(word, second) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid value for argument \"%s\": \"%s\"",
						setting_names[column - 1], word),
				 errhint("Valid values are \"%s\" and \"%s\".", first,
						 second)));
	set_value(change, column, PG_GETARG_DATUM(column),
			  strcmp(word, first) == 0);
}

static void
take_max_deliveries(FunctionCallInfo fcinfo, SettingsChange *change)
{
	int			value;

	if (PG_ARGISNULL(NARAD_SETTING_MAX_DELIVERIES))
		return;
	value = NaradArgCount(fcinfo, NARAD_SETTING_MAX_DELIVERIES,
						  "max_deliveries", 1);
	set_value(change, NARAD_SETTING_MAX_DELIVERIES, Int32GetDatum(value),
			  false);
}

static void
take_retry_delay(FunctionCallInfo fcinfo, SettingsChange *change)
{
	int64		delay;

	if (PG_ARGISNULL(NARAD_SETTING_RETRY_DELAY))
		return;
	if (!NaradIntervalGet(PG_GETARG_INTERVAL_P(NARAD_SETTING_RETRY_DELAY), 0,
						  MAX_RETRY_DELAY, &delay))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"%s\" is out of range", "retry_delay"),
				 errdetail("It must not be negative, and at most %d hours.",
						   (int) (MAX_RETRY_DELAY / USECS_PER_HOUR))));
	set_value(change, NARAD_SETTING_RETRY_DELAY,
			  PG_GETARG_DATUM(NARAD_SETTING_RETRY_DELAY), delay == 0);
}

static void
take_retry_backoff(FunctionCallInfo fcinfo, SettingsChange *change)
{
	double		factor;

	if (PG_ARGISNULL(NARAD_SETTING_RETRY_BACKOFF))
		return;
	factor = PG_GETARG_FLOAT8(NARAD_SETTING_RETRY_BACKOFF);
	if (isnan(factor) || isinf(factor) || factor < 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"%s\" must be a number of at least 1",
						"retry_backoff")));
	set_value(change, NARAD_SETTING_RETRY_BACKOFF, Float8GetDatum(factor),
			  factor == 1);
}

/*
 * The dead-letter topic of a topic, by the settings' table.
 */
static Oid
dead_letter_topic_of(Relation settings, Oid relid)
{
	HeapTuple	row = copy_settings_row(settings, relid);
	bool		isnull = true;
	Datum		value = (Datum) 0;

	if (row != NULL)
		value = heap_getattr(row, NARAD_SETTING_DEAD_LETTER_TOPIC,
							 RelationGetDescr(settings), &isnull);
	return isnull ? InvalidOid : DatumGetObjectId(value);
}

/*
 * Errors if the dead letters of a topic would come back to it.  Who sets one
 * keeps the others out until his transaction ends, since two together may
 * close a circle that neither sees.
 */
static void
check_circle(Oid relid, Oid target)
{
	Relation	settings = open_settings(ShareUpdateExclusiveLock);
	List	   *seen = NIL;
	Oid			next = target;

	while (OidIsValid(next) && !list_member_oid(seen, next))
	{
		if (next == relid)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("dead letters of topic \"%s\" would come back to it",
							get_rel_name(relid)),
					 next == target ?
					 errdetail("A topic cannot be its own dead-letter topic.") :
					 errdetail("Dead-letter topics must not form a circle.")));
		seen = lappend_oid(seen, next);
		next = dead_letter_topic_of(settings, next);
	}
	list_free(seen);
	table_close(settings, NoLock);
}

/*
 * Where dead letters go: a topic that the caller owns, and the owner of the
 * topic, too, with values of the same type.  It stays locked, so that it is
 * there when the setting is.  The OID is invalid for a topic that is to be made.
 */
static void
take_dead_letter_topic(FunctionCallInfo fcinfo, SettingsChange *change,
					   Oid relid, Oid owner, Oid value_type)
{
	text	   *name;
	Relation	target;

	if (PG_ARGISNULL(NARAD_SETTING_DEAD_LETTER_TOPIC))
		return;
	name = PG_GETARG_TEXT_PP(NARAD_SETTING_DEAD_LETTER_TOPIC);
	target = relation_openrv(makeRangeVarFromNameList(textToQualifiedNameList(name)),
							 AccessShareLock);
	NaradTopicCheck(target);
	NaradTopicCheckOwner(target);
	NaradDeadLetterCheckOwner(owner, target);
	if (NaradTopicSettingsGet(target)->value_type != value_type)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("values of dead-letter topic \"%s\" are of another type",
						RelationGetRelationName(target)),
				 errhint("Use a topic whose values are of type %s.",
						 format_type_be(value_type))));
	if (OidIsValid(relid))
		check_circle(relid, RelationGetRelid(target));
	set_value(change, NARAD_SETTING_DEAD_LETTER_TOPIC,
			  ObjectIdGetDatum(RelationGetRelid(target)), false);
	relation_close(target, NoLock);
}

/*
 * Checks the arguments both functions share, which stand at the numbers of
 * their columns, and notes those that are kept.
 */
static void
take_settings(FunctionCallInfo fcinfo, SettingsChange *change)
{
	memset(change, 0, sizeof(SettingsChange));
	memset(change->isnull, true, sizeof(change->isnull));

	take_interval(fcinfo, change, NARAD_SETTING_RETENTION,
				  NARAD_SETTING_RETENTION, 1000, NARAD_MAX_TIMEOUT * 100,
				  DEFAULT_RETENTION);
	take_retention_bytes(fcinfo, change);
	take_interval(fcinfo, change, ARG_SEGMENT_AGE, NARAD_SETTING_SEGMENT_AGE,
				  1000, NARAD_MAX_TIMEOUT * 100, DEFAULT_SEGMENT_AGE);
	take_word(fcinfo, change, NARAD_SETTING_CLEANUP, "retain", "settled");
	take_interval(fcinfo, change, NARAD_SETTING_VISIBILITY_TIMEOUT,
				  NARAD_SETTING_VISIBILITY_TIMEOUT, NARAD_MIN_TIMEOUT,
				  NARAD_MAX_TIMEOUT, DEFAULT_VISIBILITY_TIMEOUT);
	take_interval(fcinfo, change, NARAD_SETTING_DEDUP_WINDOW,
				  NARAD_SETTING_DEDUP_WINDOW, 1000, NARAD_MAX_TIMEOUT * 100,
				  DEFAULT_DEDUP_WINDOW);
	take_count(fcinfo, change, NARAD_SETTING_MAX_IN_FLIGHT);
	take_count(fcinfo, change, NARAD_SETTING_MAX_ACKED_AHEAD);

	take_max_deliveries(fcinfo, change);
	take_retry_delay(fcinfo, change);
	take_retry_backoff(fcinfo, change);
	take_word(fcinfo, change, NARAD_SETTING_ORDERING, "none", "key");
}

/*
 * Notes the settings named in alter_topic's last argument as reset.
 */
static void
take_reset(FunctionCallInfo fcinfo, SettingsChange *change)
{
	NaradArgArray names;
	int			i;

	if (PG_ARGISNULL(ARG_ALTER_RESET))
		return;
	NaradArgArrayGet(PG_GETARG_ARRAYTYPE_P(ARG_ALTER_RESET), "reset", &names);
	for (i = 0; i < names.nelems; i++)
	{
		char	   *name;
		int			column = NARAD_SETTING_TOPIC;

		if (names.nulls[i])
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("elements of \"%s\" must not be null", "reset")));
		name = TextDatumGetCString(names.values[i]);
		while (++column <= NARAD_SETTING_LAST &&
			   strcmp(name, setting_names[column - 1]) != 0)
			;
		if (column > NARAD_SETTING_LAST)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("there is no setting \"%s\" that could be reset",
							name)));
		if (change->is_given[column - 1] && !change->isnull[column - 1])
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("setting \"%s\" cannot be both given and reset",
							name)));
		set_value(change, column, (Datum) 0, true);
	}
}

/*
 * The number of partitions asked for.
 */
static int
take_partitions(FunctionCallInfo fcinfo)
{
	int			npartitions = NaradArgCount(fcinfo, ARG_PARTITIONS,
											"partitions", 1);

	if (npartitions > NARAD_MAX_PARTITIONS)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"%s\" must be at most %d, not %d",
						"partitions", NARAD_MAX_PARTITIONS, npartitions)));
	return npartitions;
}

/*
 * The size of a segment in pages; fits the file, with so many partitions.
 */
static uint32
take_segment_size(FunctionCallInfo fcinfo, int npartitions)
{
	int64		bytes;

	if (PG_ARGISNULL(ARG_SEGMENT_SIZE))
		return NARAD_DEFAULT_SEGMENT_PAGES;
	bytes = DatumGetInt64(DirectFunctionCall1(pg_size_bytes,
											  PG_GETARG_DATUM(ARG_SEGMENT_SIZE)));
	if (bytes < (int64) NARAD_MIN_SEGMENT_PAGES * BLCKSZ ||
		bytes > (int64) NARAD_MAX_SEGMENT_PAGES * BLCKSZ ||
		bytes % BLCKSZ != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"%s\" is out of range", "segment_size"),
				 errdetail("It must be a multiple of %d bytes from 256kB to 1GB.",
						   BLCKSZ)));
	if ((uint64) npartitions * (bytes / BLCKSZ) > MaxBlockNumber)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%d partitions with segments of %lld bytes do not fit into a table",
						npartitions, (long long) bytes)));
	return bytes / BLCKSZ;
}

static Oid
take_value_type(FunctionCallInfo fcinfo)
{
	Oid			type;

	if (PG_ARGISNULL(ARG_VALUE_TYPE))
		return JSONBOID;
	type = PG_GETARG_OID(ARG_VALUE_TYPE);
	if (type != JSONBOID && type != BYTEAOID && type != TEXTOID)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("values of a topic cannot be of type %s",
						format_type_be(type)),
				 errhint("Valid types are jsonb, bytea and text.")));
	return type;
}

/* ---------------------------------------------------------------------- */
/* Tables                                                                 */
/* ---------------------------------------------------------------------- */

/*
 * Runs a command that gives no rows, as the calling user.
 */
static void
run_command(const char *command)
{
	int			code;

	SPI_connect();
	code = SPI_execute(command, false, 0);
	if (code != SPI_OK_UTILITY)
		elog(ERROR, "unexpected result %d of \"%s\"", code, command);
	SPI_finish();
}

/*
 * Creates the table and returns its OID.  The schema is looked up first and
 * named in the command, so that the table found afterwards is the one made.
 */
static Oid
create_table(text *topic, Oid value_type)
{
	RangeVar   *name = makeRangeVarFromNameList(textToQualifiedNameList(topic));
	Oid			namespace = RangeVarGetCreationNamespace(name);
	char	   *nspname = get_namespace_name(namespace);

	if (nspname == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_SCHEMA),
				 errmsg("schema with OID %u does not exist", namespace)));
	run_command(psprintf("CREATE TABLE %s (partition pg_catalog.int4, "
						 "msg_offset pg_catalog.int8, "
						 "produced_at pg_catalog.timestamptz, "
						 "key pg_catalog.text, value pg_catalog.%s, "
						 "headers pg_catalog.jsonb) USING narad",
						 quote_qualified_identifier(nspname, name->relname),
						 value_type == JSONBOID ? "jsonb" :
						 value_type == TEXTOID ? "text" : "bytea"));
	return get_relname_relid(name->relname, namespace);
}

/* May the current user make a change?  Mode 0 stands for ownership. */
static void
check_may_change(Relation rel, AclMode mode)
{
	if (mode == 0)
		NaradTopicCheckOwner(rel);
	else if (pg_class_aclcheck(RelationGetRelid(rel), GetUserId(),
							   mode) != ACLCHECK_OK)
		aclcheck_error(ACLCHECK_NO_PRIV, OBJECT_TABLE,
					   RelationGetRelationName(rel));
}

/*
 * Opens a topic for a change that nobody else may see half done, if the
 * current user may make it; who may not takes no such lock.  As for the
 * commands, no query in progress may use it.
 */
static Relation
open_exclusively(FunctionCallInfo fcinfo, AclMode mode, const char *command)
{
	Relation	rel = NaradArgTopic(fcinfo, 0, AccessShareLock);

	check_may_change(rel, mode);
	table_close(rel, AccessShareLock);

	/* The right may have been taken away while we waited. */
	rel = NaradArgTopic(fcinfo, 0, AccessExclusiveLock);
	check_may_change(rel, mode);
	CheckTableNotInUse(rel, command);
	return rel;
}

Datum
narad_create_topic(PG_FUNCTION_ARGS)
{
	SettingsChange change;
	int			npartitions;
	uint32		segment_pages;
	Oid			value_type;
	Oid			relid;
	Relation	rel;

	NaradArgCheckWritable("create_topic()");
	NaradArgNotNull(fcinfo, 0, "topic");
	npartitions = take_partitions(fcinfo);
	segment_pages = take_segment_size(fcinfo, npartitions);
	value_type = take_value_type(fcinfo);
	take_settings(fcinfo, &change);
	take_dead_letter_topic(fcinfo, &change, InvalidOid, GetUserId(),
						   value_type);

	relid = create_table(PG_GETARG_TEXT_PP(0), value_type);
	rel = try_table_open(relid, RowExclusiveLock);
	if (rel == NULL || !NaradRelIsTopic(rel))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 rel == NULL ?
				 errmsg("topic \"%s\" was dropped as soon as it was created",
						text_to_cstring(PG_GETARG_TEXT_PP(0))) :
				 errmsg("topic \"%s\" was replaced as soon as it was created",
						text_to_cstring(PG_GETARG_TEXT_PP(0))),
				 errhint("See what the event triggers of this database do.")));
	NaradRelInfoCreate(rel, npartitions, segment_pages);
	table_close(rel, NoLock);
	write_settings(relid, &change, true);
	PG_RETURN_OID(relid);
}

static void
refuse_change(Relation rel, const char *name)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("setting \"%s\" of topic \"%s\" cannot be changed",
					name, RelationGetRelationName(rel)),
			 errhint("Create a new topic.")));
}

/*
 * What a topic is made with: it may be given again, and not changed.
 */
static void
refuse_changes(FunctionCallInfo fcinfo, Relation rel)
{
	if (!PG_ARGISNULL(ARG_SEGMENT_SIZE))
	{
		NaradRelInfo *info = NaradRelInfoGet(rel);

		if (take_segment_size(fcinfo, 1) !=
			(info != NULL ? info->segment_pages : NARAD_DEFAULT_SEGMENT_PAGES))
			refuse_change(rel, "segment_size");
	}
	if (!PG_ARGISNULL(ARG_VALUE_TYPE) &&
		take_value_type(fcinfo) != NaradTopicSettingsGet(rel)->value_type)
		refuse_change(rel, "value_type");
}

/*
 * But for the number of partitions, which may grow; when the transaction
 * commits, since it does not shrink if that is rolled back.
 */
static void
take_growth(FunctionCallInfo fcinfo, Relation rel)
{
	int			present = NaradTopicPartitions(rel);
	NaradRelInfo *info = NaradRelInfoGet(rel);
	int			npartitions;

	if (PG_ARGISNULL(ARG_PARTITIONS))
		return;
	npartitions = take_partitions(fcinfo);
	if (npartitions < present)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the number of partitions of topic \"%s\" cannot be reduced from %d to %d",
						RelationGetRelationName(rel), present, npartitions)));
	if (npartitions == present)
		return;
	NaradMetaCheckPartitions(npartitions,
							 info != NULL ? info->segment_pages :
							 NARAD_DEFAULT_SEGMENT_PAGES);
	NaradLogTopicGrowAtCommit(rel, npartitions);
}

Datum
narad_alter_topic(PG_FUNCTION_ARGS)
{
	SettingsChange change;
	Relation	rel;

	NaradArgCheckWritable("alter_topic()");
	rel = NaradArgTopic(fcinfo, 0, AccessShareLock);
	NaradTopicCheckOwner(rel);
	LockRelation(rel, ShareUpdateExclusiveLock);
	take_settings(fcinfo, &change);
	take_dead_letter_topic(fcinfo, &change, RelationGetRelid(rel),
						   rel->rd_rel->relowner,
						   NaradTopicSettingsGet(rel)->value_type);
	take_reset(fcinfo, &change);
	refuse_changes(fcinfo, rel);
	take_growth(fcinfo, rel);
	forget_unchanged(RelationGetRelid(rel), &change);

	/*
	 * Who consumes from now on is to know: nobody hands out messages by the
	 * old rule after the first has done so by the new one.
	 */
	if (change.is_given[NARAD_SETTING_ORDERING - 1])
		LockRelation(rel, ShareRowExclusiveLock);
	if (any_given(&change))
	{
		NaradRelInfo *info = NaradRelInfoAttach(rel);

		/* Caps may be higher; and something may have to go. */
		if (info != NULL)
		{
			NaradWaitServeAtCommit(info->topic_id);
			NaradRetainWantAtCommit(info->shared);
		}
		write_settings(RelationGetRelid(rel), &change, false);
	}
	table_close(rel, NoLock);
	PG_RETURN_VOID();
}

Datum
narad_drop_topic(PG_FUNCTION_ARGS)
{
	Relation	rel;
	Oid			relid;
	char	   *name;

	NaradArgCheckWritable("drop_topic()");
	rel = open_exclusively(fcinfo, 0, "DROP TABLE");
	relid = RelationGetRelid(rel);
	name = quote_qualified_identifier(get_namespace_name(RelationGetNamespace(rel)),
									  RelationGetRelationName(rel));
	table_close(rel, NoLock);
	run_command(psprintf("DROP TABLE %s", name));
	CommandCounterIncrement();
	if (SearchSysCacheExists1(RELOID, ObjectIdGetDatum(relid)))
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("topic \"%s\" was renamed concurrently", name)));
	PG_RETURN_VOID();
}

Datum
narad_purge_topic(PG_FUNCTION_ARGS)
{
	Relation	rel;
	Oid			relid;
	List	   *logged = NIL;

	NaradArgCheckWritable("purge_topic()");
	rel = open_exclusively(fcinfo, ACL_TRUNCATE, "TRUNCATE");
	relid = RelationGetRelid(rel);
	InvokeObjectTruncateHook(relid);
	if (RelationIsLogicallyLogged(rel))
		logged = list_make1_oid(relid);
	NaradCompatTruncate(list_make1(rel), list_make1_oid(relid), logged);
	table_close(rel, NoLock);
	PG_RETURN_VOID();
}
