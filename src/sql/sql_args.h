/*-------------------------------------------------------------------------
 *
 * sql_args.h
 *	  Arguments of SQL functions: checked, and turned into what C takes.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef SQL_ARGS_H
#define SQL_ARGS_H

#include "fmgr.h"
#include "log/log_topic.h"
#include "utils/array.h"
#include "utils/timestamp.h"

/* The longest visibility timeout or delay, and the shortest timeout. */
#define NARAD_MAX_TIMEOUT	(INT64CONST(365) * USECS_PER_DAY)
#define NARAD_MIN_TIMEOUT	INT64CONST(1000)

/* A one-dimensional array taken apart. */
typedef struct NaradArgArray
{
	int			nelems;
	Datum	   *values;
	bool	   *nulls;
} NaradArgArray;

/* Errors for a standby, a read-only transaction, a parallel worker. */
extern void NaradArgCheckWritable(const char *function);

/* Each errors if the argument is null. */
extern Relation NaradArgTopic(FunctionCallInfo fcinfo, int argno,
							  LOCKMODE lockmode);
extern void NaradArgNotNull(FunctionCallInfo fcinfo, int argno,
							const char *name);
extern int	NaradArgCount(FunctionCallInfo fcinfo, int argno, const char *name,
						  int min);
extern int64 NaradArgInterval(FunctionCallInfo fcinfo, int argno,
							  const char *name, int64 min, int64 max);
extern char *NaradArgGroupName(FunctionCallInfo fcinfo, int argno);

/* -1 if the argument is null. */
extern int	NaradArgPartition(FunctionCallInfo fcinfo, int argno, Relation rel,
							  int npartitions);

/* ERROR NR416 unless the offset is one of the partition's, or its end. */
extern void NaradArgCheckOffset(Relation rel, int partition, int64 offset,
								NaradOffset earliest, NaradOffset end);

/* An argument whose feature does not exist yet: ERROR unless it is null. */
extern void NaradArgRefuse(FunctionCallInfo fcinfo, int argno,
						   const char *name);
extern void NaradArgRefuseValue(const char *name);

/* Microseconds to wait, at most narad.max_wait; ERROR where nobody can. */
extern int64 NaradArgWait(FunctionCallInfo fcinfo, int argno,
						  const char *name);

extern void NaradArgArrayGet(ArrayType *array, const char *name,
							 NaradArgArray *result);

/* Microseconds of an interval; false if that is outside of min .. max. */
extern bool NaradIntervalGet(const Interval *interval, int64 min, int64 max,
							 int64 *result);

extern void NaradTopicCheckOwner(Relation rel);
extern void NaradTopicCheckValueType(Relation rel, bool bytes,
									 const char *instead);

/* As far as this server can have it: NULL if the file is empty. */
extern NaradRelInfo *NaradTopicInfo(Relation rel);
extern int	NaradTopicPartitions(Relation rel);

#endif							/* SQL_ARGS_H */
