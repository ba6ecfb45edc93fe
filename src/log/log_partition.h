/*-------------------------------------------------------------------------
 *
 * log_partition.h
 *	  Adding partitions to a topic.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LOG_PARTITION_H
#define LOG_PARTITION_H

#include "utils/relcache.h"

/* At once, and for good. */
extern void NaradLogTopicGrow(Relation rel, int npartitions);

/* When the current (sub)transaction and those around it commit. */
extern void NaradLogTopicGrowAtCommit(Relation rel, int npartitions);

/* From the storage layer's transaction callbacks. */
extern void NaradLogGrowAtPreCommit(void);
extern void NaradLogGrowCheckPrepare(void);
extern void NaradLogGrowAtXactEnd(void);
extern void NaradLogGrowAtSubEnd(int level, bool is_commit);

#endif							/* LOG_PARTITION_H */
