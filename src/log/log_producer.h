/*-------------------------------------------------------------------------
 *
 * log_producer.h
 *	  Producer pages: how far each idempotent producer has come.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LOG_PRODUCER_H
#define LOG_PRODUCER_H

#include "log/log_topic.h"

struct NaradVerify;

/*
 * What is known of a producer: nothing if npositions is 0, else that its
 * state counts.  *lsn is where WAL must be flushed to before somebody is
 * told.  Any lock; the caller keeps the producer's transactions from ending
 * or beginning meanwhile.  Waits for one that is prepared, if need be.
 */
extern void NaradProducerRead(Relation rel, const char *id, int id_len,
							  NaradProducerState *state, XLogRecPtr *lsn);

/*
 * Writes what will be known of a producer once the transaction has committed
 * whose FullTransactionId is given.  RowExclusiveLock, info is attached, no
 * narad lock of rank groups or later; one caller at a time for a producer.
 */
extern void NaradProducerWrite(Relation rel, NaradRelInfo *info,
							   const char *id, int id_len, uint64 xid,
							   const NaradProducerState *state);

/*
 * Decides all entries whose transaction has ended, if it is older than
 * `cutoff` (a FullTransactionId), so that its id is not asked about again.
 * Returns the oldest id that is left, or 0.  ShareUpdateExclusiveLock or more.
 */
extern uint64 NaradProducersSettle(Relation rel, uint64 cutoff);

/* For log_verify.c. */
extern void NaradVerifyProducers(struct NaradVerify *verify);

#endif							/* LOG_PRODUCER_H */
