/*-------------------------------------------------------------------------
 *
 * log_status.h
 *	  What has become of a transaction, however long ago it was.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LOG_STATUS_H
#define LOG_STATUS_H

#include "access/transam.h"

/*
 * Keeps the commit log from being cut off, for a few look-ups.  A leaf: but
 * for those of the look-ups themselves, no lock is taken under it.
 */
extern void NaradStatusLock(void);
extern void NaradStatusUnlock(void);

/* Is the status of a transaction no longer kept?  Under the lock. */
extern bool NaradStatusIsForgotten(TransactionId xid);

/* The same of a FullTransactionId; also if that was never given. */
extern bool NaradStatusIsForgottenFull(uint64 full_xid);

#endif							/* LOG_STATUS_H */
