/*-------------------------------------------------------------------------
 *
 * queue_wait.h
 *	  Who waits for messages, and who is woken for them.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_WAIT_H
#define QUEUE_WAIT_H

#include "datatype/timestamp.h"
#include "lib/ilist.h"
#include "narad.h"
#include "port/atomics.h"

struct NaradGroup;
struct NaradQueueTopic;

/* Waiters that named a partition lie in one of so many lists. */
#define NARAD_NAMED_LISTS	16

/*
 * What of a group has to do with waiting.  Zeroed and initialised by
 * NaradWaitGroupInit; all under the lock of its part (queue_wait.c).
 */
typedef struct NaradGroupWait
{
	bool		is_listed;		/* in its part's list: somebody waits, or has
								 * a token or a hold */
	dlist_node	node;			/* there */
	dlist_head	fifo;			/* waiters for any partition */
	dlist_head	named[NARAD_NAMED_LISTS];	/* those that named one */
	dlist_head	all;			/* both kinds, the last that joined at the end */
	int			nwaiters;
	bool		ordered;		/* messages are ordered by key: a hint,
								 * written without the lock */
	int			keeper;			/* the waiter that minds the deadlines, as its
								 * process number, or -1 */
	dlist_head	tokens;			/* NaradToken: not spent */
	int			ntokens;
	dlist_head	holds;			/* NaradToken: what was promised */
	int			nholds;			/* read without the lock as a hint */

	/*
	 * While listed: no deadline of the group is earlier.  Lowered under the
	 * lock, read by anybody.
	 */
	pg_atomic_uint64 armed;		/* monotonic us */
} NaradGroupWait;

typedef enum NaradWaitKind
{
	NARAD_WAIT_CONSUMER,		/* consume: looks and takes when woken */
	NARAD_WAIT_CALLER,			/* CALL narad.wait: takes nothing */
	NARAD_WAIT_READER			/* fetch: of no group */
} NaradWaitKind;

typedef enum NaradWaitEnd
{
	NARAD_WAIT_SERVED,			/* look again */
	NARAD_WAIT_DUE,				/* a deadline of the group has come: call
								 * NaradWaitMind */
	NARAD_WAIT_TIMEOUT,
	NARAD_WAIT_GROUP_GONE,
	NARAD_WAIT_TOPIC_GONE		/* dropped or truncated */
} NaradWaitEnd;

/* A row of narad.waiters. */
typedef struct NaradWaiterLook
{
	Oid			relid;
	NaradTopicId topic_id;
	char		group[NAMEDATALEN]; /* empty: of none */
	int			partition;		/* -1: any */
	int			pid;
	const char *kind;
	TimestampTz since;
	TimestampTz deadline;
} NaradWaiterLook;

/*
 * The waiter's side: Join; look; Sleep; look; ... Leave.  Looking comes after
 * joining, so that nothing is missed.  One wait at a time in a backend.
 */
extern void NaradWaitJoin(NaradWaitKind kind, struct NaradGroup *group,
						  NaradGroupId group_id, int partition,
						  TimestampTz deadline, bool at_head);
extern void NaradWaitJoinReader(NaradTopicId topic_id, Oid relid,
								int partition, TimestampTz deadline);
extern NaradWaitEnd NaradWaitSleep(int64 until, uint32 wait_event);
extern bool NaradWaitWoken(int *partition);
extern bool NaradWaitWokenAsOwner(void);
extern void NaradWaitLeave(bool took);
extern void NaradWaitCleanup(int code, Datum arg);	/* for
													 * PG_ENSURE_ERROR_CLEANUP */

/* Ends what is due in a group; for its keeper, with the relation locked. */
extern void NaradWaitMind(struct NaradGroup *group, NaradGroupId group_id);

/*
 * The waker's side.  No memory, no error; may be called under a shard lock,
 * and in the callbacks of a transaction's end.
 */

/* A transaction's records, or some of them, were decided. */
extern void NaradWaitRecords(NaradTopicId topic_id, int partition,
							 uint64 nrecords, bool is_commit);

/* Up to n messages of a partition may have become available to a group; with
 * `chain`, nobody knows how many: whoever takes one wakes the next. */
extern void NaradWaitServe(struct NaradGroup *group, int partition, uint64 n,
						   bool chain);

/* What only the transactions of these processes may take. */
extern void NaradWaitServeOwners(struct NaradGroup *group, int partition,
								 const int *pids, int npids);

/* Any number in any partition: resume, seek, caps that were raised. */
extern void NaradWaitServeGroup(struct NaradGroup *group);
extern void NaradWaitServeTopic(Oid database, NaradTopicId topic_id);

/* The same for all topics of this database, and for readers, too. */
extern void NaradWaitServeDatabase(void);

/* The same, once the current transaction has committed. */
extern void NaradWaitServeAtCommit(NaradTopicId topic_id);

/* The group has a deadline at `when`, monotonic us. */
extern void NaradWaitDeadline(struct NaradGroup *group, int64 when);

/* What was promised of a partition (-1: of any) was taken by a consume call, or
 * is not there (dry). */
extern void NaradWaitEndHolds(struct NaradGroup *group, int partition,
							  int ntaken, bool dry);

/* Ends of groups and topics: waiters are woken, tokens freed. */
extern void NaradWaitGroupInit(struct NaradGroup *group);
extern void NaradWaitGroupGone(struct NaradGroup *group, bool topic_gone);
extern void NaradWaitTopicGone(Oid database, NaradTopicId topic_id);

/* For views.  The result is palloc'ed. */
extern NaradWaiterLook *NaradWaitLook(int *nwaiters);
extern int	NaradWaitCount(struct NaradGroup *group, int partition);

extern Size NaradWaitShmemSize(void);
extern void NaradWaitShmemInit(void);
extern void NaradWaitRegister(void);	/* callback */

#endif							/* QUEUE_WAIT_H */
