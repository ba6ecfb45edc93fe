/*-------------------------------------------------------------------------
 *
 * queue_xact.h
 *	  What a transaction took and settled, and what becomes of it at its end.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_XACT_H
#define QUEUE_XACT_H

#include "queue/queue_shard.h"

typedef enum NaradActionKind
{
	NARAD_ACTION_TAKE,			/* leased here: returned on rollback */
	NARAD_ACTION_ACK,			/* pinned here: settled at commit */
	NARAD_ACTION_NACK,			/* pinned here: returned at commit */
	NARAD_ACTION_MOVE			/* a dead letter, moved away by the worker:
								 * settled at commit */
} NaradActionKind;

/* Room for n more actions, so that Take and Pin cannot fail. */
extern void NaradXactReserve(int n);

/*
 * The rest under the shard lock, exclusively; the relation is locked till the
 * transaction's end.
 */
extern void NaradXactTake(NaradShard *shard, const NaradLease *lease);

/* delay: nack's, in us, or NARAD_RETRY_DELAY; reason: nack's, from NaradAlloc,
 * taken over, or NULL. */
extern void NaradXactPin(NaradActionKind kind, NaradShard *shard,
						 NaradLease *lease, int64 delay, char *reason);

/* How many actions there are; takes made since can be forgotten, or said to
 * be in the client's hands: before that, a rollback counts no delivery. */
extern int	NaradXactMark(void);
extern void NaradXactForget(int mark);
extern void NaradXactDelivered(int mark);

/* A group was moved (seek), which PREPARE TRANSACTION refuses. */
extern void NaradXactSought(void);

/* Settles what was acked and nacked, if nothing that the transaction does can
 * be atomic with it: for who is going to sleep.  False: nothing is changed. */
extern bool NaradXactSettleEarly(void);

extern void NaradXactRegister(void);

#endif							/* QUEUE_XACT_H */
