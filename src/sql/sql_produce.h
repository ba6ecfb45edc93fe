/*-------------------------------------------------------------------------
 *
 * sql_produce.h
 *	  Producing, for what is not an SQL function.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef SQL_PRODUCE_H
#define SQL_PRODUCE_H

#include "utils/rel.h"

/*
 * Appends a row with these values of key, value and headers, as produce()
 * does: past the executor, or by INSERT.  RowExclusiveLock is held, privileges
 * were checked, and there is an active snapshot.
 */
extern void NaradProduceRow(Relation rel, Datum *values, bool *isnull);

#endif							/* SQL_PRODUCE_H */
