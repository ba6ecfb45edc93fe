/*-------------------------------------------------------------------------
 *
 * queue_settle.h
 *	  ack, nack, extend.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_SETTLE_H
#define QUEUE_SETTLE_H

#include "base/base_compat.h"
#include "datatype/timestamp.h"
#include "queue/queue_receipt.h"
#include "queue/queue_shard.h"

typedef enum NaradSettleStatus
{
	NARAD_SETTLE_OK,
	NARAD_SETTLE_EXPIRED,
	NARAD_SETTLE_LEASED_AGAIN,
	NARAD_SETTLE_SETTLED,
	NARAD_SETTLE_PINNED,		/* by another open transaction */
	NARAD_SETTLE_RETENTION,
	NARAD_SETTLE_TOPIC_CHANGED,
	NARAD_SETTLE_UNKNOWN		/* since a restart */
} NaradSettleStatus;

/*
 * Where the receipts of one call lead: mostly the next to the same shard as the
 * last, so it is found, and the topic locked and its privileges checked, once.
 * All zero at first, and not kept over the call.
 */
typedef struct NaradSettleTarget
{
	NaradReceipt last;			/* that was looked for */
	NaradShard *shard;			/* NULL: none was found yet */
	NaradLogPartition *part;	/* or NULL: never used since the start */
	int64		visibility_timeout; /* us; the topic's */
	NaradRetryPolicy policy;
} NaradSettleTarget;

/*
 * Each finds the topic by the receipt, locks it (RowExclusiveLock, kept to
 * the transaction's end), checks SELECT and UPDATE on it, and pins, or
 * extends.  What is pinned is settled or returned at commit, and is leased as
 * before after a rollback (I5).
 */
extern NaradSettleStatus NaradAck(NaradSettleTarget *target,
								  const NaradReceipt *receipt);

/* Gives up the locks that a call took which acknowledged these: all are settled. */
extern void NaradSettleUnlock(const NaradReceipt *receipts, int n);

/*
 * delay in us, 0: available at commit, NARAD_RETRY_DELAY: by the topic's
 * settings.  The reason, or NULL, is kept for a dead letter if there is memory.
 */
extern NaradSettleStatus NaradNack(NaradSettleTarget *target,
								   const NaradReceipt *receipt, int64 delay,
								   const char *reason);

/* timeout in us, -1: the topic's visibility_timeout. */
extern NaradSettleStatus NaradExtend(NaradSettleTarget *target,
									 const NaradReceipt *receipt, int64 timeout,
									 TimestampTz *expires_at);

/* "expired", "leased_again", "settled", ... */
extern const char *NaradSettleReason(NaradSettleStatus status);

/* ERROR NR410 with a DETAIL for the status. */
NARAD_NORETURN extern void NaradSettleReport(NaradSettleStatus status,
											 const NaradReceipt *receipt);

/*
 * What becomes of a lease that is not settled.  The shard lock is held
 * exclusively; no memory, no error.
 */
/* The delay that the topic's retry_delay and retry_backoff give. */
#define NARAD_RETRY_DELAY (-1)

/* Available again, at once or after a delay in us; or, if that was the last
 * delivery, a dead letter.  ended: what is to be remembered. */
extern void NaradShardReturn(NaradShard *shard, NaradLease *lease,
							 NaradLeaseEnd ended, int64 now, int64 delay);

/* Back as it was before a claim that no client has seen. */
extern void NaradShardUnclaim(NaradShard *shard, NaradLease *lease, int64 now);

/* Leases expired at one touch. */
#define NARAD_MAX_EXPIRED	64

/* Returns up to max entries whose time has come. */
extern void NaradShardExpire(NaradShard *shard, int64 now, int max);
extern void NaradShardExpireLease(NaradShard *shard, NaradLease *lease,
								  int64 now);

/* Monotonic now + delay, and no overflow. */
extern int64 NaradDeadline(int64 now, int64 delay);

#endif							/* QUEUE_SETTLE_H */
