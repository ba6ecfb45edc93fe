/*-------------------------------------------------------------------------
 *
 * queue_token.h
 *	  Wishes to be notified, and what was promised.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_TOKEN_H
#define QUEUE_TOKEN_H

#include "queue/queue_topic.h"

#define NARAD_MAX_TOKENS	1024	/* of a group */

/*
 * A token, in its group's list of tokens until it is spent; then, as a hold, in
 * the list of holds.  A hold that CALL narad.wait leaves behind was never a
 * token.  All under the lock of the group's part.
 */
typedef struct NaradToken
{
	dlist_node	node;
	uint64		serial;
	bool		is_token;
	bool		is_held;		/* a promise that is not kept yet */
	bool		is_sent;		/* the NOTIFY of a token that was spent */
	bool		chain;			/* nobody knows how many messages there are */
	int			pid;			/* 0: its session has ended */
	int			partition;		/* the one named; once spent, where the
								 * message is; or -1 */
	int64		until;			/* monotonic us */
	TimestampTz since;
	TimestampTz deadline;
	char		channel[NAMEDATALEN];
} NaradToken;

/* What the worker sends. */
typedef struct NaradNotice
{
	uint64		serial;
	char		channel[NAMEDATALEN];
} NaradNotice;

/* What the worker minds: a group, by its key. */
typedef struct NaradMinded
{
	Oid			relid;
	NaradTopicId topic_id;
	NaradGroupId group_id;
} NaradMinded;

/* Leaves a token of this backend; look for messages afterwards.  Then it may be
 * taken back. */
extern void NaradTokenLeave(NaradGroup *group, NaradGroupId group_id,
							int partition, const char *channel, int64 ttl);
extern void NaradTokenTakeBack(NaradGroup *group, const char *channel);

/* This session ends, or is given to somebody else: its tokens come last. */
extern void NaradTokenAbandon(void);

/* For queue_wait.c, under the lock; they count in nwatching. */
extern void NaradTokenFree(pg_atomic_uint32 *nwatching, NaradToken *token);
extern void NaradTokenExpire(pg_atomic_uint32 *nwatching, NaradGroupWait *wait,
							 int64 now);
extern void NaradTokenFreeAll(pg_atomic_uint32 *nwatching,
							  NaradGroupWait *wait);

/* For the worker: what is to be sent, and that it was. */
extern int	NaradTokenUnsent(NaradNotice *notices, int max);
extern void NaradTokenSent(const NaradNotice *notices, int nnotices);

/* Groups without a keeper that have tokens or holds: those that are due, and
 * when the next one is. */
extern int	NaradTokenDue(NaradMinded *groups, int max, int64 now,
						  int64 *next);

/* queue_wait.c, for queue_token.c only. */
typedef bool (*NaradWaitVisitor) (NaradGroup *group,
								  pg_atomic_uint32 *nwatching, void *arg);

extern pg_atomic_uint32 *NaradWaitLock(NaradGroup *group);
extern void NaradWaitUnlock(NaradGroup *group);
extern bool NaradWaitAddToken(NaradGroup *group, NaradToken *token);
extern void NaradWaitArm(NaradGroup *group, NaradGroupId group_id);
extern void NaradWaitEndDueHolds(NaradGroup *group, int64 now);
extern void NaradWaitForEachGroup(NaradWaitVisitor visit, void *arg);

#endif							/* QUEUE_TOKEN_H */
