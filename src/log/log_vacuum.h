/*-------------------------------------------------------------------------
 *
 * log_vacuum.h
 *	  VACUUM of a topic, and how many rows it is taken to have.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LOG_VACUUM_H
#define LOG_VACUUM_H

#include "commands/vacuum.h"
#include "log/log_topic.h"
#include "storage/bufmgr.h"

/* Callbacks are for the table of log_tableam.c, not for other libraries. */
#pragma GCC visibility push(hidden)

extern void naradam_relation_vacuum(Relation rel, VacuumParams *params,
									BufferAccessStrategy strategy);

#pragma GCC visibility pop

/* Offsets in use in a file of nblocks, from shared memory. */
extern double NaradTupleEstimate(NaradLogTopic *topic, BlockNumber nblocks);

#endif							/* LOG_VACUUM_H */
