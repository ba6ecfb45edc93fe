/*-------------------------------------------------------------------------
 *
 * queue_consume.h
 *	  Taking messages.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_CONSUME_H
#define QUEUE_CONSUME_H

#include "access/htup.h"
#include "queue/queue_receipt.h"
#include "queue/queue_topic.h"

typedef struct NaradConsumeArgs
{
	const char *group;
	int			max_messages;	/* >= 1 */
	int64		visibility_timeout; /* us, > 0 */
	int			partition;		/* -1: any */
	bool		waiting;		/* the caller will sleep if nothing is taken */
} NaradConsumeArgs;

typedef struct NaradMessage
{
	char		receipt[NARAD_RECEIPT_LEN + 1];
	int			partition;
	NaradOffset offset;
	int			deliveries;
	HeapTuple	tuple;			/* a row of the topic; valid during emit only */
} NaradMessage;

typedef void (*NaradMessageEmit) (const NaradMessage *message, void *arg);

/*
 * Leases up to max_messages and hands each to emit.  The caller holds
 * RowExclusiveLock, has checked privileges, and has an active snapshot.
 * Returns how many.  On ERROR all that was taken is given back.
 */
extern int	NaradConsume(Relation rel, NaradRelInfo *info,
						 const NaradConsumeArgs *args, NaradMessageEmit emit,
						 void *arg);

/* Whether one may find something. */
extern bool NaradConsumeIsReady(Relation rel, NaradRelInfo *info,
								const char *group_name);

#endif							/* QUEUE_CONSUME_H */
