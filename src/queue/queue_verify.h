/*-------------------------------------------------------------------------
 *
 * queue_verify.h
 *	  Looking at all that the queue keeps of a topic, on pages and in memory.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_VERIFY_H
#define QUEUE_VERIFY_H

#include "log/log_verify.h"

/* One state page and those chained to it; for NaradVerify.state. */
extern void NaradVerifyStatePage(NaradVerify *verify,
								 const NaradGroupEntry *group, int partition,
								 BlockNumber block);

/*
 * The topic's shards in memory, if any, once NaradVerifyLog is done.  Not
 * during recovery.
 */
extern void NaradVerifyShards(NaradVerify *verify);

#endif							/* QUEUE_VERIFY_H */
