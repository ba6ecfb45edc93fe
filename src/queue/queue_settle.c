/*-------------------------------------------------------------------------
 *
 * queue_settle.c
 *	  ack, nack, extend; and how a lease that is not settled comes back.
 *
 * Owns:       nothing; changes leases under their shard's lock.
 * Invariants: I4: a receipt settles only while its own lease is live: same
 *			   nonce, deadline not passed, not pinned by another transaction.
 *			   I5: an ack pins at once, and settles at commit.
 *			   I12: the topic is found by its id, and the id is compared again
 *			   with the file once the relation is locked.
 * Locks:      RowExclusiveLock on the topic, kept to the transaction's end;
 *			   then the shard lock, for one look-up.
 * Runs in:    any backend that is not in recovery.
 * WAL:        none here; see queue_xact.c.
 * On error:   nothing has changed.  A receipt that is no longer valid is a
 *			   status, not an error, so that a caller may go on.
 *
 * The path of an ack is: receipt -> relation that has the topic id (shared
 * memory) -> lock on it -> its topic id -> shared topic -> privileges -> group
 * -> shard.  DROP and TRUNCATE take AccessExclusiveLock, so whatever is found
 * after the lock stays until the transaction ends, and need not be looked for
 * again by the same call.  No group, topic or shard is loaded for an ack: a
 * live lease is in memory, or it is not.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "access/relation.h"
#include "access/xact.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "base/base_error.h"
#include "base/base_guc.h"
#include "base/base_memory.h"
#include "base/base_stop.h"
#include "log/log_tableam.h"
#include "queue/queue_deadletter.h"
#include "queue/queue_dirty.h"
#include "queue/queue_retain.h"
#include "queue/queue_settle.h"
#include "queue/queue_suspect.h"
#include "queue/queue_xact.h"

/* Longer than this no lease and no delay is: a hundred years. */
#define MAX_DELAY		(INT64CONST(36525) * USECS_PER_DAY)

/* To this retry_delay grows. */
#define MAX_RETRY_DELAY	(12 * USECS_PER_HOUR)

/* ------------------------------------------------- how leases come back */

/*
 * The monotonic time `delay` us after now.
 */
int64
NaradDeadline(int64 now, int64 delay)
{
	return now + Min(delay, MAX_DELAY);
}

/* What the topic's settings say about the next delivery, in us. */
static int64
retry_delay(const NaradRetryPolicy *policy, uint32 deliveries)
{
	double		delay;

	if (policy->delay == 0 || deliveries == 0)
		return 0;
	delay = (double) policy->delay * pow(policy->backoff, deliveries - 1);
	return delay < (double) MAX_RETRY_DELAY ? (int64) delay : MAX_RETRY_DELAY;
}

/*
 * Makes a leased, pinned or delayed message available again: at once, at the
 * end of the FIFO, or after a delay.  One that has had its last delivery
 * becomes a dead letter instead, at once.  Its delivery count stays, its
 * receipt is void.  The shard lock is held exclusively.
 */
void
NaradShardReturn(NaradShard *shard, NaradLease *lease, NaradLeaseEnd ended,
				 int64 now, int64 delay)
{
	bool		was_leased = lease->state == NARAD_LEASE_LEASED;

	if (delay == NARAD_RETRY_DELAY)
		delay = retry_delay(&shard->policy, lease->deliveries);
	NaradSuspectClear(shard, lease->offset);
	NaradLeaseClearHolder(lease);
	if (ended != NARAD_END_NONE)
		lease->ended = ended;
	if (NaradShardIsExhausted(shard, lease))
	{
		NaradDeadLetterAdd(shard, lease, now);
		if (was_leased)
			NaradShardCapOpened(shard);
		return;
	}
	if (delay > 0)
	{
		lease->deadline = NaradDeadline(now, delay);
		NaradLeaseSetState(&shard->leases, lease, NARAD_LEASE_DELAYED);
		NaradShardDeadlineChanged(shard);
	}
	else
		NaradLeaseSetState(&shard->leases, lease, NARAD_LEASE_RETURNED);
	NaradShardCountHole(shard, lease);
	if (delay <= 0)
		NaradShardMadeAvailable(shard, 1, false);
	else if (was_leased)
		NaradShardCapOpened(shard);
	/* The page holds the delivery counts of retried messages. */
	if (lease->deliveries > 0)
		NaradDirtyMark(shard);
}

/*
 * Undoes a claim that no client has seen: no delivery is counted, and nothing
 * is delayed.  Exclusive shard lock.
 */
void
NaradShardUnclaim(NaradShard *shard, NaradLease *lease, int64 now)
{
	if (NaradSuspectIsOut(shard, lease->offset))
	{
		NaradSuspectUnclaim(shard, lease);
		return;
	}
	if (lease->deliveries > 0)
		lease->deliveries--;
	NaradShardReturn(shard, lease, NARAD_END_NONE, now, 0);
}

/* The deadline of a lease has passed.  Exclusive shard lock. */
void
NaradShardExpireLease(NaradShard *shard, NaradLease *lease, int64 now)
{
	shard->expired++;
	NaradShardReturn(shard, lease, NARAD_END_EXPIRED, now, 0);
}

/*
 * Returns the leases whose deadline has passed and the nacked messages that are
 * due, the earliest first, at most `max`.  Those produced with a delay stay where
 * they are, but who waits is told.  Exclusive shard lock.
 */
void
NaradShardExpire(NaradShard *shard, int64 now, int max)
{
	while (max-- > 0)
	{
		NaradLease *lease = NaradLeaseEarliest(&shard->leases);

		if (lease == NULL || lease->deadline > now)
			break;
		if (lease->state == NARAD_LEASE_LEASED)
			NaradShardExpireLease(shard, lease, now);
		else
			NaradShardReturn(shard, lease, NARAD_END_NONE, now, 0);
	}
	NaradShardDeadlineChanged(shard);
}

/* ---------------------------------------------------- receipt to lease */

/* Do both lead to the same shard? */
static bool
is_same_place(const NaradReceipt *a, const NaradReceipt *b)
{
	return a->topic_id == b->topic_id && a->group_id == b->group_id &&
		a->partition == b->partition;
}

/* What the settings of a topic say, and where one of its partitions is. */
static void
look_at_topic(Relation rel, int partition, NaradSettleTarget *target)
{
	const NaradTopicSettings *settings = NaradTopicSettingsGet(rel);
	NaradRelInfo *info;

	target->visibility_timeout = settings->visibility_timeout;
	NaradRetryPolicyGet(settings, &target->policy);
	info = NaradRelInfoLook(rel);
	target->part = info != NULL && info->shared != NULL ?
		NaradLogPartitionFind(info->shared, partition) : NULL;
}

/*
 * Finds the shard of a receipt and locks its topic.  Errors for want of
 * privileges.  The relation stays locked, and so the shard stays.
 */
static NaradSettleStatus
find_shard(const NaradReceipt *receipt, NaradSettleTarget *target)
{
	Oid			relid;
	NaradQueueTopic *topic = NULL;
	NaradGroup *group;
	NaradRelInfo *info;
	Relation	rel;

	if (target->shard != NULL && is_same_place(&target->last, receipt))
		return NARAD_SETTLE_OK;
	target->shard = NULL;
	relid = NaradQueueTopicRelid(receipt->topic_id);
	if (!OidIsValid(relid))
		return NaradQueueTopicWasGone(receipt->topic_id) ?
			NARAD_SETTLE_TOPIC_CHANGED : NARAD_SETTLE_UNKNOWN;
	rel = try_relation_open(relid, RowExclusiveLock);
	if (rel == NULL)
		return NARAD_SETTLE_TOPIC_CHANGED;

	/* I12: what the lock was waited for may have been a TRUNCATE. */
	info = NaradRelIsTopic(rel) ? NaradRelInfoGet(rel) : NULL;
	if (info != NULL && info->topic_id == receipt->topic_id)
		topic = NaradQueueTopicFind(receipt->topic_id);
	if (topic == NULL)
	{
		relation_close(rel, NoLock);
		return NARAD_SETTLE_TOPIC_CHANGED;
	}

	NaradTopicCheckAcl(rel, ACL_SELECT | ACL_UPDATE);
	if (receipt->partition >= NARAD_MAX_PARTITIONS)
	{
		relation_close(rel, NoLock);
		return NARAD_SETTLE_UNKNOWN;
	}
	NaradLogTopicKeep(rel);
	look_at_topic(rel, (int) receipt->partition, target);
	relation_close(rel, NoLock);

	group = NaradGroupById(topic, receipt->group_id);
	if (group == NULL)
		return NARAD_SETTLE_UNKNOWN;
	target->last = *receipt;
	target->shard = NaradShardFind(group, receipt->group_id,
								   (int) receipt->partition);
	return target->shard != NULL ? NARAD_SETTLE_OK : NARAD_SETTLE_UNKNOWN;
}

/*
 * The lease of a receipt, if this transaction may settle it.  A lease whose
 * time is over is returned here, so that its last moment is the same for all;
 * what retention dropped goes here, too, if its turn has not come yet.
 * Exclusive shard lock.
 */
static NaradSettleStatus
find_lease(const NaradSettleTarget *target, const NaradReceipt *receipt,
		   int64 now, NaradLease **found)
{
	NaradShard *shard = target->shard;
	NaradLease *lease;

	if (!NaradShardIsOf(shard, receipt->group_id))
		return NARAD_SETTLE_UNKNOWN;
	if (target->part != NULL)
		(void) NaradShardOvertake(shard,
								  pg_atomic_read_u64(&target->part->start_offset));
	if (receipt->offset < shard->frontier ||
		NaradSetContains(&shard->settled, receipt->offset))
		return NaradShardWasOvertaken(shard, receipt->offset) ?
			NARAD_SETTLE_RETENTION : NARAD_SETTLE_SETTLED;
	lease = NaradLeaseFind(&shard->leases, receipt->offset);
	if (lease == NULL)
		return NARAD_SETTLE_UNKNOWN;

	/* Nobody holds it, unless it is on its way to the dead letters. */
	if (lease->nonce == 0)
		return NARAD_SETTLE_EXPIRED;

	/* I4 */
	if (lease->nonce != receipt->nonce)
		return NARAD_SETTLE_LEASED_AGAIN;
	if (lease->state == NARAD_LEASE_PINNED)
	{
		if (lease->pinner != MyProcPid)
			return NARAD_SETTLE_PINNED;
	}
	else if (lease->deadline <= now)
	{
		NaradShardExpireLease(shard, lease, now);
		return NARAD_SETTLE_EXPIRED;
	}
	*found = lease;
	return NARAD_SETTLE_OK;
}

/* ------------------------------------------------------ ack, nack, extend */

/*
 * A nack's reason for the dead letter it may lead to; NULL if there can be
 * none, or when memory is short.
 */
static char *
keep_reason(const char *reason, const NaradRetryPolicy *policy)
{
	char	   *kept;
	int			len;

	if (reason == NULL || policy->max_deliveries == 0 || NaradMemoryIsLow())
		return NULL;
	len = pg_mbcliplen(reason, strlen(reason), NARAD_MAX_REASON);
	kept = NaradAlloc(len + 1);
	if (kept != NULL)
		memcpy(kept, reason, len);
	return kept;
}

static NaradSettleStatus
pin_receipt(NaradSettleTarget *target, NaradActionKind kind,
			const NaradReceipt *receipt, int64 delay, const char *reason)
{
	NaradSettleStatus status;
	NaradShard *shard;
	NaradLease *lease = NULL;
	char	   *kept;

	status = find_shard(receipt, target);
	if (status != NARAD_SETTLE_OK)
		return status;
	shard = target->shard;

	if (kind == NARAD_ACTION_ACK && narad_ack_mode == NARAD_ACK_TRANSACTIONAL)
		(void) GetTopTransactionId();
	NaradXactReserve(1);
	NARAD_STOP("ack-found");

	kept = keep_reason(reason, &target->policy);
	LWLockAcquire(&shard->lock, LW_EXCLUSIVE);
	shard->policy = target->policy;
	status = find_lease(target, receipt, NaradClockNow(), &lease);
	if (status == NARAD_SETTLE_OK)
		NaradXactPin(kind, shard, lease, delay, kept);
	LWLockRelease(&shard->lock);
	if (status != NARAD_SETTLE_OK)
		NaradFree(kept);
	return status;
}

/*
 * Acknowledges: the lease is pinned now, and the message settled when the
 * transaction commits (I5).  Locks the topic (RowExclusiveLock) and errors
 * 42501 without SELECT and UPDATE on it.  The caller has refused recovery and
 * read-only transactions, and holds no narad lock.
 */
NaradSettleStatus
NaradAck(NaradSettleTarget *target, const NaradReceipt *receipt)
{
	return pin_receipt(target, NARAD_ACTION_ACK, receipt, 0, NULL);
}

/*
 * As NaradAck, but the message is available again at commit, or `delay` us
 * after it (NARAD_RETRY_DELAY: as the topic's settings say).  The beginning of
 * the reason, which may be NULL, is kept with the message if the topic limits
 * deliveries and there is memory.
 */
NaradSettleStatus
NaradNack(NaradSettleTarget *target, const NaradReceipt *receipt, int64 delay,
		  const char *reason)
{
	return pin_receipt(target, NARAD_ACTION_NACK, receipt, delay, reason);
}

/*
 * Gives up the locks that NaradAck took for the receipts of one call, in that
 * call, after NaradXactSettleEarly: nothing is remembered of their topics.  It
 * locked only for those that lead elsewhere than the one before.
 */
void
NaradSettleUnlock(const NaradReceipt *receipts, int n)
{
	for (int i = 0; i < n; i++)
	{
		Oid			relid;

		if (i > 0 && is_same_place(&receipts[i - 1], &receipts[i]))
			continue;
		relid = NaradQueueTopicRelid(receipts[i].topic_id);
		if (!OidIsValid(relid))
			continue;
		NaradLogTopicUnkeep(relid);
		UnlockRelationOid(relid, RowExclusiveLock);
	}
}

/*
 * Moves the deadline of a live lease to `timeout` us from now (-1: the
 * topic's), at once; a rollback does not undo it.  A lease that this
 * transaction has pinned gets the deadline for the case of a rollback.
 * Otherwise as NaradAck.
 */
NaradSettleStatus
NaradExtend(NaradSettleTarget *target, const NaradReceipt *receipt,
			int64 timeout, TimestampTz *expires_at)
{
	NaradSettleStatus status;
	NaradShard *shard;
	NaradLease *lease = NULL;
	int64		now;

	status = find_shard(receipt, target);
	if (status != NARAD_SETTLE_OK)
		return status;
	shard = target->shard;
	if (timeout < 0)
		timeout = target->visibility_timeout;
	timeout = Min(timeout, MAX_DELAY);

	LWLockAcquire(&shard->lock, LW_EXCLUSIVE);
	now = NaradClockNow();
	status = find_lease(target, receipt, now, &lease);
	if (status == NARAD_SETTLE_OK)
	{
		lease->expires_at = GetCurrentTimestamp() + timeout;
		*expires_at = lease->expires_at;
		if (lease->in_heap)
		{
			NaradLeaseSetDeadline(&shard->leases, lease, now + timeout);
			NaradShardDeadlineChanged(shard);
		}
		else
			lease->deadline = now + timeout;
	}
	LWLockRelease(&shard->lock);
	return status;
}

/* --------------------------------------------------------------- statuses */

/*
 * The word for a status, as try_ack shows it; NULL for NARAD_SETTLE_OK.
 */
const char *
NaradSettleReason(NaradSettleStatus status)
{
	switch (status)
	{
		case NARAD_SETTLE_OK:
			return NULL;
		case NARAD_SETTLE_EXPIRED:
			return "expired";
		case NARAD_SETTLE_LEASED_AGAIN:
			return "leased_again";
		case NARAD_SETTLE_SETTLED:
			return "settled";
		case NARAD_SETTLE_PINNED:
			return "pinned";
		case NARAD_SETTLE_RETENTION:
			return "retention";
		case NARAD_SETTLE_TOPIC_CHANGED:
			return "topic_changed";
		case NARAD_SETTLE_UNKNOWN:
			return "unknown";
	}
	return "unknown";
}

static int
errdetail_for_status(NaradSettleStatus status, const NaradReceipt *receipt)
{
	unsigned long long offset = receipt->offset;
	uint32		partition = receipt->partition;

	switch (status)
	{
		case NARAD_SETTLE_EXPIRED:
			return errdetail("The lease on offset %llu of partition %u has ended.",
							 offset, partition);
		case NARAD_SETTLE_LEASED_AGAIN:
			return errdetail("The lease on offset %llu of partition %u expired and the message was leased again.",
							 offset, partition);
		case NARAD_SETTLE_SETTLED:
			return errdetail("Offset %llu of partition %u is already settled.",
							 offset, partition);
		case NARAD_SETTLE_PINNED:
			return errdetail("Offset %llu of partition %u is being settled by another open transaction.",
							 offset, partition);
		case NARAD_SETTLE_RETENTION:
			return errdetail("Offset %llu of partition %u is no longer retained.",
							 offset, partition);
		case NARAD_SETTLE_TOPIC_CHANGED:
			return errdetail("The topic was dropped, truncated or created again.");
		default:
			return errdetail("The lease on offset %llu of partition %u is unknown since a restart, or its group was moved or dropped, or its topic was dropped.",
							 offset, partition);
	}
}

/*
 * ERROR NR410 that says why a receipt was not accepted.
 */
void
NaradSettleReport(NaradSettleStatus status, const NaradReceipt *receipt)
{
	Assert(status != NARAD_SETTLE_OK);
	ereport(ERROR,
			(errcode(ERRCODE_NARAD_RECEIPT_GONE),
			 errmsg("receipt is no longer valid"),
			 errdetail_for_status(status, receipt)));
}
