/*-------------------------------------------------------------------------
 *
 * log_append.h
 *	  Adding records to a partition.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LOG_APPEND_H
#define LOG_APPEND_H

#include "access/tupdesc.h"
#include "log/log_record.h"
#include "log/log_topic.h"
#include "storage/bufmgr.h"
#include "storage/itemptr.h"

typedef struct NaradAppendItem
{
	NaradRecord record;			/* in */
	NaradOffset explicit_offset;	/* in: NARAD_INVALID_OFFSET, or the
									 * position to take, at or past the end */
	int64		explicit_time;	/* in: with explicit_offset */
	int			partition;		/* in; used by callers to group */
	NaradOffset offset;			/* out */
	int64		time;			/* out */
	ItemPointerData tid;		/* out */
} NaradAppendItem;

/*
 * Appends n records to one partition, in order, as the current
 * (sub)transaction; one WAL record and one hold of the tail lock a page.
 * Tuples in the records get position, xmin, cmin, t_self.  The caller holds
 * RowExclusiveLock.  Errors before a record is placed: ENOSPC, 53200, 22023
 * (explicit offset below the end); all that was placed is then the aborted
 * transaction's.  strategy: the ring of a bulk load, or NULL.
 */
extern void NaradAppend(Relation rel, NaradRelInfo *info, int partition,
						NaradAppendItem **items, int nitems, CommandId cid,
						BufferAccessStrategy strategy);

/*
 * Seals a partition's open segment, of which the first record came before a
 * time, or (empty) which holds none, and opens the next.  False if it need not
 * be.  Locks and errors as NaradAppend.
 */
extern bool NaradAppendRoll(Relation rel, NaradRelInfo *info, int partition,
							int64 before, bool empty);

/* Gives up a partition's spare, unless somebody is preparing it; same locks. */
extern void NaradAppendDropSpare(Relation rel, NaradRelInfo *info,
								 int partition);

/* The stable hash of the format: key bytes to partition. */
extern int	NaradPartitionForKey(const char *key, int len, int npartitions);

/*
 * A partition for key-less records: sticks to one per backend for a batch of
 * about 64, then moves on.
 */
extern int	NaradPartitionForNone(NaradRelInfo *info, int nrecords);

/* Gives up the gate of a large append that failed; from abort callbacks. */
extern void NaradAppendAtAbort(void);

#endif							/* LOG_APPEND_H */
