/*-------------------------------------------------------------------------
 *
 * log_retain.h
 *	  Retention: sealing what is old, freeing what need not be kept, giving
 *	  the file's end back.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LOG_RETAIN_H
#define LOG_RETAIN_H

#include "datatype/timestamp.h"
#include "log/log_topic.h"

/* What is to be kept.  Times are in microseconds. */
typedef struct NaradRetainPolicy
{
	TimestampTz now;
	int64		segment_age;	/* open segments older than that, or than: */
	int64		retention;		/* are sealed; sealed ones may go */
	int64		retention_bytes;	/* and what is behind so many newer bytes
									 * of its partition; 0: no limit */
	const NaradOffset *settled; /* by partition: what ends at or below may go;
								 * NULL: nothing for that reason ... */
	int64		dedup_window;	/* ... but what has ids not before that */
} NaradRetainPolicy;

typedef struct NaradRetainResult
{
	int			nfreed;			/* segments */
	int64		ndropped;		/* offsets in them, records at most */
	bool		blocked;		/* an open transaction keeps some that were
								 * due */
	TimestampTz next;			/* when only time is wanting for more,
								 * DT_NOEND: never */
} NaradRetainResult;

/* A result to which nothing has been added. */
extern void NaradRetainResultInit(NaradRetainResult *result);

/*
 * All of these: the caller holds RowExclusiveLock, info is attached.
 *
 * Seals open segments that are old; result->next is brought forward.  True if
 * there was one.  No narad lock.  Errors as an append, as which it needs memory
 * and disk: so what can be freed is freed before.
 */
extern bool NaradRetainRoll(Relation rel, NaradRelInfo *info,
							const NaradRetainPolicy *policy,
							NaradRetainResult *result);

/*
 * Frees sealed segments, from the oldest, that the policy does not keep.
 * Needs no memory; no narad lock of rank alloc or later.
 */
extern void NaradRetainFree(Relation rel, NaradRelInfo *info,
							const NaradRetainPolicy *policy,
							NaradRetainResult *result);

/*
 * When there may be something to do for a topic, from its pages alone: any
 * lock, and info need not be attached.  Never later than there is.
 */
extern TimestampTz NaradRetainPeek(Relation rel, NaradRelInfo *info,
								   const NaradRetainPolicy *policy,
								   bool drops_settled);

/* Does a partition have a sealed segment, so that one could be freed? */
extern bool NaradRetainHasSealed(NaradLogTopic *topic, int partition);

/*
 * Gives the end of the file back if that is a sixteenth of it or more, and
 * nobody else is using the topic.  What holds no records is moved out of the
 * way.  *again: it is worth trying later.  True if the file was cut.
 */
extern bool NaradRetainGiveBack(Relation rel, NaradRelInfo *info, bool *again);

/* Somebody should look whether there is something to do for a topic: it is
 * noted, and the layer above told.  No narad lock of rank hash or later. */
extern void NaradRetainWant(NaradLogTopic *topic);

/* The same at the commit of the current transaction; the topic is locked. */
extern void NaradRetainWantAtCommit(NaradLogTopic *topic);
extern void NaradRetainAtXactEnd(bool is_commit);

/* Topics of this database for which that was said, since they were taken. */
typedef struct NaradRetainItem
{
	Oid			relid;			/* as last opened */
	NaradTopicId topic_id;
} NaradRetainItem;
extern bool NaradRetainIsWanted(void);	/* cheap; of any database */
extern int	NaradRetainTake(NaradRetainItem *items, int max);

extern Size NaradRetainShmemSize(void);
extern void NaradRetainShmemInit(void);

#endif							/* LOG_RETAIN_H */
