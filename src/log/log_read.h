/*-------------------------------------------------------------------------
 *
 * log_read.h
 *	  Reading a partition by offset, committed as of now.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LOG_READ_H
#define LOG_READ_H

#include "log/log_record.h"
#include "log/log_topic.h"
#include "utils/snapshot.h"

typedef enum NaradReadStatus
{
	NARAD_READ_OK,				/* tuple is set */
	NARAD_READ_PENDING,			/* its transaction is open; xid is set */
	NARAD_READ_OWN,				/* this transaction's own, uncommitted */
	NARAD_READ_INVISIBLE,		/* committed, but not for the snapshot given */
	NARAD_READ_DEAD,			/* [offset, next) hold nothing, for ever */
	NARAD_READ_CORRUPT,			/* [offset, next) are lost to damage; logged */
	NARAD_READ_DROPPED,			/* [offset, next) are gone by retention */
	NARAD_READ_END				/* at or past the end */
} NaradReadStatus;

typedef struct NaradRead
{
	NaradReadStatus status;
	NaradOffset offset;			/* as asked */
	NaradOffset next;			/* first offset this answer does not speak of:
								 * offset + 1, or more for DEAD, CORRUPT and
								 * DROPPED */
	TransactionId xid;			/* PENDING: as in the record */
	HeapTuple	tuple;			/* OK: in the reader's memory, until the next
								 * call of NaradReaderReset or End.  Of others
								 * see NaradReaderShowAll */
	NaradRecordExtra extra;		/* OK, and, with a CRC nobody has looked at,
								 * PENDING, OWN, INVISIBLE; else no flags. The
								 * id is good until the next call */
} NaradRead;

typedef struct NaradReader NaradReader;

/*
 * Reads one partition.  The caller keeps the relation locked and has an
 * active snapshot.  If `snapshot` is not NULL, committed records that it does
 * not see are INVISIBLE.  Allocates in the current memory context.
 */
extern NaradReader *NaradReaderBegin(Relation rel, NaradRelInfo *info,
									 int partition, Snapshot snapshot);

/*
 * What is at an offset.  Below the partition's start it is DROPPED, also if it
 * got there while it was looked for.  Expects mostly rising offsets.  Takes buffer locks and the map lock; no narad lock of a
 * later rank than shard may be held.  Errors only on cancel or out of
 * memory; damage is CORRUPT, counted, and logged once per page and start.
 */
extern void NaradReaderRead(NaradReader *reader, NaradOffset offset,
							NaradRead *result);

/* About so many records will be asked for next: how far to look ahead. */
extern void NaradReaderExpect(NaradReader *reader, int nrecords);

/*
 * From now on PENDING, OWN and INVISIBLE come with their tuple, too, or NULL if
 * it is damaged: for their key.
 */
extern void NaradReaderShowAll(NaradReader *reader);

/* Frees tuples handed out. */
extern void NaradReaderReset(NaradReader *reader);

/* Flushes WAL up to the commits of all that was read as OK.  Then frees. */
extern void NaradReaderEnd(NaradReader *reader);

/*
 * Bounds of a partition: the earliest retained offset, the end (next to be
 * given), and the last stable one (no record below it may still commit).
 * Works during recovery, and makes no shared memory.  info may be NULL (empty
 * file).
 */
extern void NaradPartitionBounds(Relation rel, NaradRelInfo *info, int partition,
								 NaradOffset *earliest, NaradOffset *end,
								 NaradOffset *stable);

#endif							/* LOG_READ_H */
