/*-------------------------------------------------------------------------
 *
 * queue_dedup.h
 *	  Deduplication ids: who produces an id first, and where that went.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_DEDUP_H
#define QUEUE_DEDUP_H

#include "queue/queue_topic.h"

struct NaradDedup;
struct NaradDedupEntry;

/*
 * One message with a dedup id, on its way into the log.  After
 * NaradDedupClaimAll it is one of three: a duplicate of what is in the log
 * (partition and offset are set); a duplicate of an earlier one of the same
 * call (first is set); or to be appended, and then NaradDedupPlaced or
 * NaradDedupDrop has to be called for it, unless the transaction fails.
 */
typedef struct NaradDedupClaim
{
	const char *id;				/* in: 1 to NARAD_MAX_ID bytes */
	int			id_len;			/* in */
	void	   *arg;			/* in: the caller's */
	bool		is_duplicate;	/* out */
	int			partition;		/* out: of the message that was first */
	NaradOffset offset;			/* out: same */
	struct NaradDedupClaim *first;	/* out: the one of the same id before, in
									 * this call; or NULL */

	/* Private. */
	struct NaradDedup *dedup;
	uint64		hash;
	struct NaradDedupEntry *entry;
} NaradDedupClaim;

/*
 * Decides about the ids of one call.  The caller has RowExclusiveLock on the
 * topic, keeps the relation open until all are placed or dropped, has an
 * active snapshot, and holds no narad lock.  Waits for other transactions
 * that produced the same ids; the order of the claims does not matter.
 * Errors: 53200, 55006 (an outer call of this transaction is producing the
 * same id), 40P01, whatever reading the log may raise.
 */
extern void NaradDedupClaimAll(Relation rel, NaradDedupClaim *claims,
							   int nclaims);

/* Where a message went that was to be appended; or that it went nowhere. */
extern void NaradDedupPlaced(NaradDedupClaim *claim, int partition,
							 NaradOffset offset);
extern void NaradDedupDrop(NaradDedupClaim *claim);

/* Frees ids that are older than the window (us), and sets topic->ids_due. */
extern void NaradDedupForget(NaradQueueTopic *topic, int64 window);

/* The topic is gone: no error, no allocation. */
extern void NaradDedupFree(struct NaradDedup *dedup);

#endif							/* QUEUE_DEDUP_H */
