/*-------------------------------------------------------------------------
 *
 * queue_suspect.h
 *	  Messages that may have crashed the server.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_SUSPECT_H
#define QUEUE_SUSPECT_H

#include "queue/queue_page.h"
#include "queue/queue_shard.h"

/*
 * At loading, once what is settled and the delivery counts are there: makes
 * suspects of what may have been out, if the server crashed.  False without
 * memory.
 */
extern bool NaradSuspectsLoad(NaradShard *shard, const NaradStateHead *head,
							  NaradOffset end);

/* The rest under the shard lock, exclusively; no memory, no error. */

/* The lowest that is available, or NARAD_INVALID_OFFSET. */
extern NaradOffset NaradSuspectNext(NaradShard *shard, int64 now);

/* It was claimed: the only one that is out until its lease ends. */
extern void NaradSuspectOut(NaradShard *shard, const NaradLease *lease);
extern bool NaradSuspectIsOut(const NaradShard *shard, NaradOffset offset);

/* It has survived, or is settled: no suspect any more. */
extern void NaradSuspectClear(NaradShard *shard, NaradOffset offset);

/* Its claim came to nothing; the same, with its lease. */
extern void NaradSuspectNotOut(NaradShard *shard, NaradOffset offset);
extern void NaradSuspectUnclaim(NaradShard *shard, NaradLease *lease);

/* Those with an entry are returned ones, for a shard that is ordered by key. */
extern void NaradSuspectsInLine(NaradShard *shard);
extern void NaradSuspectsApart(NaradShard *shard);

#endif							/* QUEUE_SUSPECT_H */
