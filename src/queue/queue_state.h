/*-------------------------------------------------------------------------
 *
 * queue_state.h
 *	  State pages: the durable frontier, settled offsets, delivery counts and
 *	  the journal of acks of open transactions.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_STATE_H
#define QUEUE_STATE_H

#include "queue/queue_shard.h"

/* What was wrong with a state page; told when no lock is held. */
typedef struct NaradStateDamage
{
	char		group[NAMEDATALEN];
	int			partition;
	bool		head;			/* the page; started at the earliest ... */
	bool		saved;			/* ... or where it was saved */
	bool		image;			/* what was settled above the frontier */
	NaradOffset frontier;		/* then, or with saved */
	BlockNumber journal_block;	/* a journal page, or 0 */
	bool		beyond_end;		/* another log's; started at the earliest */
	uint64		nlost;			/* not damage: dropped by retention */
} NaradStateDamage;

/* queue_load.c: fills an empty shard's frontier, settled set, delivery
 * counts; under its io_lock.  *damage: zeroes before.  False: the page is
 *damaged, and `saved` is wanted, which tells the saved frontier or
 * NARAD_INVALID_OFFSET. */
extern bool NaradStateLoad(Relation rel, NaradRelInfo *info, NaradShard *shard,
						   const NaradOffset *saved,
						   NaradStateDamage *damage);
extern void NaradStateReport(Relation rel, const NaradStateDamage *damage);

/*
 * Writes the union of memory and page, folding ended journal entries; nothing
 * if the shard is no longer the group's.  The caller holds RowExclusiveLock on
 * the topic and no narad lock.  Returns the LSN to flush for it to be durable
 * (InvalidXLogRecPtr: nothing to do).
 */
extern XLogRecPtr NaradStateWrite(Relation rel, NaradRelInfo *info,
								  NaradShard *shard, NaradGroupId group_id);

/*
 * Raises the hand-out mark to `end` and beyond, if it is below, and notes which
 * suspect is out; flushed on return.  Before what was claimed in a generation is
 * handed out; nothing if that is over.
 */
extern void NaradStateMark(Relation rel, NaradRelInfo *info, NaradShard *shard,
						   NaradGroupId group_id, uint32 generation,
						   NaradOffset end);

/*
 * Journals that the current top transaction settles these offsets: I5.  At
 * PRE_COMMIT, RowExclusiveLock held; may error (the transaction then aborts).
 * Sorted, disjoint ranges.  Nothing if the shard is no longer the group's, or
 * of another generation.
 */
extern void NaradStateJournal(Relation rel, NaradRelInfo *info,
							  NaradShard *shard, NaradGroupId group_id,
							  uint32 generation, const NaradRange *ranges,
							  int nranges);

/* Starts a new generation at an offset, on the page and in memory. */
extern bool NaradStateSeek(Relation rel, NaradRelInfo *info,
						   NaradShard *shard, NaradGroupId group_id,
						   NaradOffset target);

/* A first state page that says: start at this offset (create_group). */
extern void NaradStateStartAt(Relation rel, NaradRelInfo *info,
							  const NaradGroupEntry *group, int partition,
							  NaradOffset frontier);

/*
 * queue_freeze.c, for NaradLogEventTable: no journal entry of a transaction
 * before a limit has to be asked about any more.
 */
extern uint64 NaradStateFreeze(Relation rel, NaradTopicId topic_id,
							   uint64 limit, uint64 oldest, uint64 *nfrozen);

/* What a page says without its image: WAL-logged state. */
typedef struct NaradStateFigures
{
	NaradOffset frontier;
	uint64		dead_lettered;
	uint64		lost;			/* to retention */
} NaradStateFigures;

/* Figures as on the page; for views, standbys, retention.  False if there is no
 * page; it may be *damaged (NULL: not asked). */
extern bool NaradStatePeek(Relation rel, NaradRelInfo *info,
						   const NaradGroupEntry *group, int partition,
						   NaradStateFigures *figures, bool *damaged);

#endif							/* QUEUE_STATE_H */
