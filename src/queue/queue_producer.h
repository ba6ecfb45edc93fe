/*-------------------------------------------------------------------------
 *
 * queue_producer.h
 *	  Idempotent producers: each sequence number once.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_PRODUCER_H
#define QUEUE_PRODUCER_H

#include "queue/queue_topic.h"

/* One message of a producer. */
typedef struct NaradProducerTurn
{
	const char *id;				/* in: 1 to NARAD_MAX_ID bytes */
	int			id_len;			/* in */
	int32		epoch;			/* in: at least 0 */
	int64		sequence;		/* in: at least 0 */
	bool		is_duplicate;	/* out */
	int			partition;		/* out: of the original; -1 if that went
								 * nowhere, or is not remembered */
	NaradOffset offset;			/* out: same */
} NaradProducerTurn;

/*
 * Decides whether a producer's message is to be appended, and keeps the
 * producer for this transaction: waits for another that has it.  The caller
 * has RowExclusiveLock on the topic and no narad lock.  Errors: NR409, NR412,
 * 40P01, those of reading.  If it is, NaradProducerAdvance must follow in the
 * same (sub)transaction, with where it went (-1: a trigger dropped it).
 */
extern void NaradProducerBegin(Relation rel, NaradProducerTurn *turn);
extern void NaradProducerAdvance(Relation rel, const NaradProducerTurn *turn,
								 int partition, NaradOffset offset);

extern void NaradProducerRegister(void);

#endif							/* QUEUE_PRODUCER_H */
