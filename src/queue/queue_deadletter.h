/*-------------------------------------------------------------------------
 *
 * queue_deadletter.h
 *	  Messages that were delivered as often as their topic allows.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_DEADLETTER_H
#define QUEUE_DEADLETTER_H

#include "queue/queue_dirty.h"
#include "queue/queue_shard.h"

/* Bytes of a nack's reason that are kept. */
#define NARAD_MAX_REASON 200

/* A message on its way; what is known of its deliveries. */
typedef struct NaradDeadLetter
{
	char		group[NAMEDATALEN];
	int			partition;
	NaradOffset offset;
	uint32		deliveries;
	NaradLeaseEnd ended;		/* how the last one did */
	char		reason[NARAD_MAX_REASON + 1];	/* empty: none */
	TimestampTz first_leased_at;	/* 0: not known */
	TimestampTz leased_at;		/* same */
} NaradDeadLetter;

/*
 * What becomes of a lease.  The shard lock is held exclusively; no memory, no
 * error.
 */
extern void NaradDeadLetterAdd(NaradShard *shard, NaradLease *lease, int64 now);
extern void NaradDeadLetterMoved(NaradShard *shard);
extern void NaradDeadLetterFailed(NaradShard *shard, NaradLease *lease,
								  int64 now);
extern void NaradDeadLetterForget(NaradShard *shard);
extern void NaradDeadLetterDropped(NaradShard *shard, NaradOffset start);

/*
 * For the worker: a shard of this database that has one to be moved now; false
 * if there is none, and *next says when there may be.
 */
extern bool NaradDeadLetterNext(NaradDirtyItem *item, int64 now, int64 *next);

/* Not now: the topic could not be got at. */
extern void NaradDeadLetterPostpone(NaradTopicId topic_id, int64 until);

/*
 * Pins one that is due, for the current transaction: settled if that commits.
 * False if there is none.  Messages that may be delivered again, by the
 * settings as they are now, are returned.
 */
extern bool NaradDeadLetterClaim(NaradShard *shard, NaradGroupId group_id,
								 const NaradTopicSettings *settings,
								 NaradDeadLetter *letter);

/* 42501 unless the owner of a topic may have its dead letters moved there. */
extern void NaradDeadLetterCheckOwner(Oid owner, Relation target);

/* The message itself is gone: settled without a move. */
extern void NaradDeadLetterLost(NaradShard *shard, NaradGroupId group_id,
								const NaradDeadLetter *letter);

/* The headers of a dead letter, jsonb: its own, and where it comes from. */
extern Datum NaradDeadLetterHeaders(Relation rel, const NaradDeadLetter *letter,
									TimestampTz produced_at, Datum headers,
									bool no_headers);

/*
 * The door to the layer above: appends a row with these values of key, value
 * and headers to a topic, as produce() does.
 */
typedef void (*NaradAppendRow) (Relation rel, Datum *values, bool *isnull);
extern NaradAppendRow NaradDeadLetterAppend;

extern Size NaradDeadLetterShmemSize(void);
extern void NaradDeadLetterShmemInit(void);

#endif							/* QUEUE_DEADLETTER_H */
