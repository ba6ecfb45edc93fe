/*-------------------------------------------------------------------------
 *
 * log_freeze.h
 *	  Freezing: records that outlive the commit log.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LOG_FREEZE_H
#define LOG_FREEZE_H

#include "log/log_topic.h"
#include "storage/bufmgr.h"

typedef struct NaradFreeze
{
	/* Set by the caller. */
	Relation	rel;
	NaradRelInfo info;			/* its shared part may be missing */
	BufferAccessStrategy strategy;
	TransactionId limit;		/* all before it is to be frozen; none of
								 * those is running, or invisible to anybody */
	uint64		full_limit;		/* the same; the first id if it lies before */
	uint64		next;			/* the next id to be given, some time ago */
	TransactionId relfrozenxid; /* nothing before it is left */
	bool		aggressive;		/* also in segments that hold later ones */
	void		(*poll) (void *arg);	/* called now and then */
	void	   *arg;

	/* In: no transaction before it is running.  Out: the oldest that is left. */
	uint64		oldest;

	/* What was found, and done. */
	uint64		nsegments;		/* open and sealed */
	uint64		nfrozen_before; /* of these */
	uint64		nfrozen;
	uint64		npartial;		/* had later records, too */
	uint64		ndamaged;		/* segments left alone for that */
	uint64		nunattached;	/* same, for want of memory */
	uint64		ndead;			/* records marked */
	uint64		nstates;		/* acknowledgements frozen */
	uint64		npages_read;
	uint64		npages_written;
} NaradFreeze;

/*
 * Freezes what is before the limit.  The caller holds ShareUpdateExclusiveLock
 * and no narad lock.  Damage in the data is a WARNING, and what is damaged is
 * left as it is.
 */
extern void NaradFreezeTopic(NaradFreeze *freeze);

#endif							/* LOG_FREEZE_H */
