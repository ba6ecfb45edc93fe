/*-------------------------------------------------------------------------
 *
 * queue_await.h
 *	  Waiting until a look at a topic finds something.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_AWAIT_H
#define QUEUE_AWAIT_H

#include "queue/queue_wait.h"
#include "utils/relcache.h"

typedef struct NaradAwaitArgs
{
	NaradWaitKind kind;
	const char *group;			/* not of a reader */
	int			partition;		/* -1: any */
	int64		wait;			/* us, > 0 */

	/* Checks privileges again; errors.  The topic was locked anew. */
	void		(*check) (Relation rel, void *arg);

	/* True ends the wait.  What it locks beyond the relation stays locked. */
	bool		(*look) (Relation rel, void *arg);
	void	   *arg;
} NaradAwaitArgs;

/*
 * Waits, with the topic unlocked, until a look finds something; false if the
 * time is over or the topic was truncated.  The relation is open and locked
 * (AccessShareLock for a reader, else RowExclusiveLock); it is closed here, and
 * stays locked if a consumer's look found something.
 */
extern bool NaradAwait(Relation rel, const NaradAwaitArgs *args);

#endif							/* QUEUE_AWAIT_H */
