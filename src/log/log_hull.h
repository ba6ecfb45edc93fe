/*-------------------------------------------------------------------------
 *
 * log_hull.h
 *	  Which offsets open transactions have appended, and which ended lately.
 *
 * A hint for whoever stepped over a record in progress: the tuple header is
 * the truth.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LOG_HULL_H
#define LOG_HULL_H

#include "log/log_topic.h"

/*
 * The hull of the current top transaction in a partition, made if need be
 * (needs a top xid; may error 53200; before any narad lock is taken).
 */
extern NaradHull *NaradHullReserve(Relation rel, NaradLogPartition *part);

/* Under the tail lock, before end_offset is advanced. */
extern void NaradHullExtend(NaradHull *hull, NaradOffset first, NaradOffset last);

/* From the transaction callback; no allocation, no error. */
extern void NaradHullAtXactEnd(bool is_commit);
extern void NaradHullAtPrepare(void);

/* The same of subtransactions, with their nesting level. */
extern void NaradHullAtSubCommit(int level);
extern void NaradHullAtSubAbort(int level);

/* Frees all hulls of a partition that goes with its file. */
extern void NaradHullForgetPartition(NaradLogPartition *part);

/*
 * Makes an ownerless hull known to be open, from attaching only (nobody else
 * sees the partition yet); merged with one of the same xid.  False: memory.
 */
extern bool NaradHullRestore(NaradLogPartition *part, TransactionId xid,
							 NaradOffset offset);

/*
 * For readers.  The ring holds the hulls of ended transactions in the order
 * of their end; a reader remembers a position, at first NaradRingHead().
 * NaradRingRead copies up to max entries from *pos and advances it; false if
 * entries at *pos were overwritten: then *pos is set to the head, and the
 * reader must look at all it has waiting.
 */
extern uint64 NaradRingHead(NaradLogPartition *part);
extern bool NaradRingRead(NaradLogPartition *part, uint64 *pos,
						  NaradRange *out, int max, int *nout);

/*
 * Says that an offset's record was seen in progress under xid (as in the
 * record, maybe a subtransaction's): if no open hull covers it, an ownerless
 * one is made.  False when out of memory: look again later.
 */
extern bool NaradHullAdopt(NaradLogPartition *part, TransactionId xid,
						   NaradOffset offset);

/* Ends ownerless hulls whose transaction has ended.  Cheap when none. */
extern void NaradHullPoll(NaradLogPartition *part);

/* Lowest offset of an open hull, or the end offset (read before). */
extern NaradOffset NaradHullLastStable(NaradLogPartition *part);

#endif							/* LOG_HULL_H */
