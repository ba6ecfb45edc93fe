/*-------------------------------------------------------------------------
 *
 * sql_args.c
 *	  Arguments of SQL functions: checked, and turned into what C takes.
 *
 * Owns:		nothing.
 * Invariants:	what passes here is in the range that the layers below take
 *				without a check of their own.
 * Locks:		NaradArgTopic() takes the lock it is given, which is kept to
 *				the end of the transaction by callers that change something.
 * Runs in:		any backend.
 * On error:	nothing has been done yet.  Bad values are 22023, null ones
 *				22004, features that do not exist yet 0A000.
 *
 * Functions of the extension are not strict, since most have arguments that
 * may be null; so each argument that may not be is checked here.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "tcop/utility.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "base/base_error.h"
#include "base/base_guc.h"
#include "base/base_malloc.h"
#include "queue/queue_topic.h"
#include "sql/sql_args.h"

/*
 * Errors (25006, or 25000 in a parallel worker) where no message can be
 * produced, taken or settled.  The function is named in the message.
 */
void
NaradArgCheckWritable(const char *function)
{
	PreventCommandDuringRecovery(function);
	PreventCommandIfReadOnly(function);
	PreventCommandIfParallelMode(function);
}

/*
 * Errors with 22004 if an argument is null.
 */
void
NaradArgNotNull(FunctionCallInfo fcinfo, int argno, const char *name)
{
	if (PG_ARGISNULL(argno))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("argument \"%s\" must not be null", name)));
}

/*
 * Opens the topic given as a regclass, with the lock.  Errors: 42P01 if there
 * is no such relation, 42809 if it is no topic.
 */
Relation
NaradArgTopic(FunctionCallInfo fcinfo, int argno, LOCKMODE lockmode)
{
	Oid			relid;
	Relation	rel;

	NaradArgNotNull(fcinfo, argno, "topic");
	relid = PG_GETARG_OID(argno);
	rel = OidIsValid(relid) ? try_relation_open(relid, lockmode) : NULL;
	if (rel == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation with OID %u does not exist", relid)));
	NaradTopicCheck(rel);
	NaradMallocKeep();
	return rel;
}

/*
 * An integer of at least min.
 */
int
NaradArgCount(FunctionCallInfo fcinfo, int argno, const char *name, int min)
{
	int			value;

	NaradArgNotNull(fcinfo, argno, name);
	value = PG_GETARG_INT32(argno);
	if (value < min)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"%s\" must be at least %d, not %d",
						name, min, value)));
	return value;
}

/*
 * The length of an interval, days being 24 hours and months 30 days.  The
 * estimate in floating point keeps far-away values, infinite ones among them,
 * from overflowing.
 */
bool
NaradIntervalGet(const Interval *interval, int64 min, int64 max, int64 *result)
{
	double		estimate;

	estimate = (double) interval->month * DAYS_PER_MONTH * USECS_PER_DAY +
		(double) interval->day * USECS_PER_DAY + (double) interval->time;
	if (estimate < -(double) NARAD_MAX_TIMEOUT * 1000 ||
		estimate > (double) NARAD_MAX_TIMEOUT * 1000)
		return false;
	*result = (interval->month * (int64) DAYS_PER_MONTH + interval->day) *
		USECS_PER_DAY + interval->time;
	return *result >= min && *result <= max;
}

/*
 * An interval between min and max, in microseconds.
 */
int64
NaradArgInterval(FunctionCallInfo fcinfo, int argno, const char *name,
				 int64 min, int64 max)
{
	int64		result;

	NaradArgNotNull(fcinfo, argno, name);
	if (!NaradIntervalGet(PG_GETARG_INTERVAL_P(argno), min, max, &result))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"%s\" is out of range", name),
				 min > 0 ?
				 errdetail("It must be at least %lld ms and at most %lld days.",
						   (long long) (min / 1000),
						   (long long) (max / USECS_PER_DAY)) :
				 errdetail("It must not be negative, and at most %lld days.",
						   (long long) (max / USECS_PER_DAY))));
	return result;
}

/*
 * A name for a consumer group.
 */
char *
NaradArgGroupName(FunctionCallInfo fcinfo, int argno)
{
	char	   *name;

	NaradArgNotNull(fcinfo, argno, "consumer_group");
	name = text_to_cstring(PG_GETARG_TEXT_PP(argno));
	if (name[0] == '\0' || strlen(name) >= NAMEDATALEN)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid name of a consumer group: \"%s\"", name),
				 errdetail("A name has 1 to %d bytes.", NAMEDATALEN - 1)));
	return name;
}

/*
 * The number of a partition that exists, or -1 if the argument is null.
 */
int
NaradArgPartition(FunctionCallInfo fcinfo, int argno, Relation rel,
				  int npartitions)
{
	int			partition;

	if (PG_ARGISNULL(argno))
		return -1;
	partition = PG_GETARG_INT32(argno);
	if (partition < 0 || partition >= npartitions)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("partition %d of topic \"%s\" does not exist",
						partition, RelationGetRelationName(rel)),
				 errdetail("The topic has partitions 0 to %d.",
						   npartitions - 1)));
	return partition;
}

/*
 * Errors with 0A000: a value was given that asks for what does not exist yet.
 */
void
NaradArgRefuseValue(const char *name)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("argument \"%s\" is not supported yet", name),
			 errhint("Leave \"%s\" at its default.", name)));
}

/*
 * The same, for an argument whose default is null.
 */
void
NaradArgRefuse(FunctionCallInfo fcinfo, int argno, const char *name)
{
	if (!PG_ARGISNULL(argno))
		NaradArgRefuseValue(name);
}

/*
 * How long to wait, in microseconds; cut to narad.max_wait.  A transaction
 * whose snapshot stays would wait for what it can never see: 25001.
 */
int64
NaradArgWait(FunctionCallInfo fcinfo, int argno, const char *name)
{
	int64		wait = NaradArgInterval(fcinfo, argno, name, 0,
										NARAD_MAX_TIMEOUT);
	int64		max_wait = (int64) narad_max_wait * 1000;

	if (wait == 0)
		return 0;
	if (IsolationUsesXactSnapshot())
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("cannot wait in a transaction of isolation level REPEATABLE READ or SERIALIZABLE"),
				 errdetail("Its snapshot does not see what is committed meanwhile.")));
	if (wait > max_wait)
		ereport(NOTICE,
				(errmsg("wait is cut to %d ms", narad_max_wait),
				 errdetail("This is what \"narad.max_wait\" allows."),
				 errhint("CALL narad.wait outside a transaction block may wait longer.")));
	return Min(wait, max_wait);
}

/*
 * Takes an array apart.  Errors with 22023 unless it has one dimension (or is
 * empty).
 */
void
NaradArgArrayGet(ArrayType *array, const char *name, NaradArgArray *result)
{
	int16		typlen;
	bool		typbyval;
	char		typalign;

	if (ARR_NDIM(array) > 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"%s\" must be a one-dimensional array",
						name)));
	get_typlenbyvalalign(ARR_ELEMTYPE(array), &typlen, &typbyval, &typalign);
	deconstruct_array(array, ARR_ELEMTYPE(array), typlen, typbyval, typalign,
					  &result->values, &result->nulls, &result->nelems);
}

/*
 * Errors with 42501 unless the current user owns the topic.
 */
void
NaradTopicCheckOwner(Relation rel)
{
	if (!has_privs_of_role(GetUserId(), rel->rd_rel->relowner))
		aclcheck_error(ACLCHECK_NOT_OWNER, OBJECT_TABLE,
					   RelationGetRelationName(rel));
}

/*
 * Errors with 42809 if the topic's values are jsonb and bytes are asked for,
 * or the other way round; the hint names the function to use instead.
 */
void
NaradTopicCheckValueType(Relation rel, bool bytes, const char *instead)
{
	Oid			type = NaradTopicSettingsGet(rel)->value_type;

	if ((type == JSONBOID) == bytes)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("values of topic \"%s\" are of type %s",
						RelationGetRelationName(rel),
						type == JSONBOID ? "jsonb" :
						type == TEXTOID ? "text" : "bytea"),
				 errhint("Use narad.%s() for this topic.", instead)));
}

/*
 * What is known of the topic: with shared memory, but in recovery.  NULL if
 * nothing was ever written to it.  The result lives in the relation's cache
 * entry; fetch it again after anything that may process invalidations.
 */
NaradRelInfo *
NaradTopicInfo(Relation rel)
{
	return RecoveryInProgress() ? NaradRelInfoGet(rel) : NaradRelInfoAttach(rel);
}

/*
 * The number of partitions; a topic never written to has one.
 */
int
NaradTopicPartitions(Relation rel)
{
	NaradRelInfo *info = NaradRelInfoGet(rel);

	return info != NULL ? info->npartitions : 1;
}

/*
 * Errors with NR416 unless an offset is between the partition's bounds.  The
 * end itself is fine: nothing is there yet.
 */
void
NaradArgCheckOffset(Relation rel, int partition, int64 offset,
					NaradOffset earliest, NaradOffset end)
{
	if (offset >= 0 && offset >= earliest && offset <= end)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_NARAD_OFFSET_OUT_OF_RANGE),
			 offset < 0 || offset > end ?
			 errmsg("offset %lld is outside of partition %d of topic \"%s\"",
					(long long) offset, partition,
					RelationGetRelationName(rel)) :
			 errmsg("offset %lld of partition %d of topic \"%s\" is no longer retained",
					(long long) offset, partition,
					RelationGetRelationName(rel)),
			 errdetail("The earliest offset is %llu, and the next one to be given is %llu.",
					   (unsigned long long) earliest,
					   (unsigned long long) end)));
}
