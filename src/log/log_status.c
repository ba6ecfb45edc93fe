/*-------------------------------------------------------------------------
 *
 * log_status.c
 *	  What has become of a transaction, however long ago it was.
 *
 * The server cuts off its commit log once no table needs it any more, which
 * is when VACUUM has advanced the tables' relfrozenxid.  Asking for what was
 * cut off is an error, and a reader may hold a copy, or a view of the
 * directory, from before a segment was frozen.  So whoever asks does so under
 * a lock that keeps the log as it is, and first looks whether the xid is
 * still there.  If it is not, VACUUM has been at all that carries the xid:
 * records of aborted transactions have been marked dead on their pages, and
 * what bears no such mark is committed.
 *
 * 32 bits are enough to tell: a reader has a snapshot that is older than its
 * view of the segment, VACUUM freezes nothing that the snapshot may not see,
 * and the server gives out no more than 2^31 ids past it.
 *
 * Owns:       nothing.
 * Invariants: I3, I5: an xid is looked up only while its status is kept.
 * Locks:      core's XactTruncationLock, shared.
 * Runs in:    any backend, on a primary and on a standby.
 * On error:   nothing to undo.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "storage/lwlock.h"

#include "base/base_compat.h"
#include "log/log_status.h"
#include "log/log_topic.h"

/*
 * NaradStatusLock
 *
 * Until NaradStatusUnlock the status of an xid that is not forgotten can be
 * asked for.  Buffer locks may be held, and narad locks.
 */
void
NaradStatusLock(void)
{
	LWLockAcquire(XactTruncationLock, LW_SHARED);
}

void
NaradStatusUnlock(void)
{
	LWLockRelease(XactTruncationLock);
}

/*
 * NaradStatusIsForgotten
 *
 * True if the commit log no longer has the xid, which is not older than 2^31
 * transactions.
 */
bool
NaradStatusIsForgotten(TransactionId xid)
{
	Assert(LWLockHeldByMe(XactTruncationLock));
	return TransactionIdPrecedes(xid, NaradCompatOldestClogXid());
}

/*
 * NaradStatusIsForgottenFull
 *
 * True if the commit log does not have the xid: any more, or yet, which no
 * sound page can ask for.
 */
bool
NaradStatusIsForgottenFull(uint64 full_xid)
{
	uint64		next = U64FromFullTransactionId(ReadNextFullTransactionId());

	Assert(LWLockHeldByMe(XactTruncationLock));
	return full_xid >= next ||
		full_xid < NaradFullXid(NaradCompatOldestClogXid());
}
