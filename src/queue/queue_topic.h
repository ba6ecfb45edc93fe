/*-------------------------------------------------------------------------
 *
 * queue_topic.h
 *	  Topics and groups as the queue engine sees them: settings, shared
 *	  memory, privileges.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_TOPIC_H
#define QUEUE_TOPIC_H

#include "datatype/timestamp.h"
#include "lib/ilist.h"
#include "log/log_topic.h"
#include "nodes/pg_list.h"
#include "port/atomics.h"
#include "queue/queue_wait.h"
#include "utils/acl.h"

struct NaradDedup;
struct NaradShard;

/*
 * The settings of narad.topic_settings, or their defaults where the topic has
 * none.  Times are in microseconds, a month counting 30 days.  Backend-local,
 * cached until the relation's relcache entry is invalidated.
 */
typedef struct NaradTopicSettings
{
	int64		retention;
	int64		retention_bytes;	/* of a partition; 0: no limit */
	int64		segment_age;
	int64		visibility_timeout;
	int64		retry_delay;
	double		retry_backoff;	/* >= 1 */
	int			max_deliveries; /* 0: no limit */
	Oid			dead_letter_topic;	/* InvalidOid: none.  May have been
									 * dropped */
	int64		dedup_window;
	bool		ordered;		/* ordering is 'key' */
	bool		cleanup_settled;	/* cleanup is 'settled' */
	int			max_in_flight;
	int			max_acked_ahead;
	Oid			value_type;		/* JSONBOID, BYTEAOID, TEXTOID: of the column */
	bool		direct;			/* produce may append without the executor:
								 * standard columns only, no triggers, checks,
								 * generated columns, rules */
} NaradTopicSettings;

/*
 * A group, or a place that served one that was dropped and awaits the next.
 * So whoever keeps a pointer keeps the group id with it, and compares that
 * with the shard's, under the shard's lock (NaradShardIsOf).
 */
typedef struct NaradGroup
{
	dlist_node	node;			/* in topic->groups; topic lock */
	struct NaradQueueTopic *topic;	/* constant */

	/*
	 * Written under the topic lock; a new group is not there before every
	 * shard has left the old one, each under its io_lock.
	 */
	NaradGroupId group_id;
	char		name[NAMEDATALEN];
	bool		paused;
	bool		dropped;		/* no group any more, or not yet */
	bool		is_free;		/* and all its shards have left it */
	uint32		generation;
	pg_atomic_uint32 next_partition;	/* where the next consume starts */
	pg_atomic_uint32 nseeks;	/* counted under the io_lock of the shard that
								 * is moved */
	NaradArray *shards;			/* by partition, each set once, under topic
								 * lock; live ones or not */
	NaradGroupWait wait;		/* under the lock of its part */
} NaradGroup;

/* One per (database, topic id) in use since the server started. */
typedef struct NaradQueueTopic
{
	Oid			database;		/* constant */
	NaradTopicId topic_id;		/* constant */
	pg_atomic_uint32 relid;		/* refreshed by whoever opens it */
	LWLock		lock;
	dlist_head	groups;			/* under lock; entries live until topic_gone */
	struct NaradDedup *dedup;	/* set once, under lock; NULL before the first
								 * dedup id (queue_dedup.c) */
	pg_atomic_uint64 ids_due;	/* monotonic us: when the worker looks for ids
								 * that are too old; 0: there are none */

	/* Moves of dead letters; under the lock of queue_deadletter.c. */
	int64		moves_after;	/* monotonic us: no move before */
	int64		move_began;		/* same: the last one */
	uint32		move_failures;	/* in a row */

	/*
	 * For saved frontiers: state pages written, groups changed; the worker
	 * notes how many of them are saved.
	 */
	pg_atomic_uint64 changes;
	pg_atomic_uint64 changes_saved;
} NaradQueueTopic;

/* A topic whose frontiers are to be saved. */
typedef struct NaradTopicChange
{
	Oid			relid;
	NaradTopicId topic_id;
	uint64		changes;
} NaradTopicChange;

/* The caller has the relation locked (any lock).  Valid until the next
 * chance of invalidation. */
extern const NaradTopicSettings *NaradTopicSettingsGet(Relation rel);

/* What is cached of them may be old. */
extern void NaradTopicSettingsForget(Oid relid);

/* OIDs of all topics of the database; nothing is locked. */
extern List *NaradQueueTopicList(void);

/* ERROR 42809 "... is not a topic" unless the relation is one (AM narad). */
extern void NaradTopicCheck(Relation rel);

/* ERROR 42501 unless the current user has all of mode; 0A000/42501 when
 * row-level security applies to the caller. */
extern void NaradTopicCheckAcl(Relation rel, AclMode mode);

/*
 * The shared topic, made if need be.  As long as the caller keeps the
 * relation locked, it and its groups and shards stay valid.  Not in recovery.
 */
extern NaradQueueTopic *NaradQueueTopicGet(Relation rel, NaradRelInfo *info);

/* The same; NULL instead of an error when there is no memory for it. */
extern NaradQueueTopic *NaradQueueTopicTryGet(Relation rel,
											  const NaradRelInfo *info);

/*
 * The relation of a topic id of this database, or InvalidOid if none is known
 * since the server started.  The caller then locks the relation and looks the
 * topic up again, with NaradQueueTopicFind.
 */
extern Oid	NaradQueueTopicRelid(NaradTopicId topic_id);
extern NaradQueueTopic *NaradQueueTopicFind(NaradTopicId topic_id);

/* Something about the topic is to be saved.  No lock; no error. */
extern void NaradQueueTopicTouch(NaradQueueTopic *topic);

/* Topics of this database of which something is to be saved: any? Which?
 * (palloc'ed); and that it is saved. */
extern bool NaradQueueTopicAnyChanged(void);
extern NaradTopicChange *NaradQueueTopicChanged(int *nchanged);
extern void NaradQueueTopicNoteSaved(NaradQueueTopic *topic, uint64 changes);

/*
 * A topic of this database with deduplication ids that may be too old at a
 * monotonic time: it is the caller's to look at, and is named again in a
 * second if he does not.  False if there is none; *next is lowered to when there
 * may be one.
 */
extern bool NaradQueueTopicIdsDue(int64 now, Oid *relid,
								  NaradTopicId *topic_id, int64 *next);

/* Known to have been dropped or truncated, not too long ago. */
extern bool NaradQueueTopicWasGone(NaradTopicId topic_id);

/* A live group by name, and its id: from memory, or from the group directory;
 * the group 'default' is created if missing; another missing one: ERROR
 * 42704. */
extern NaradGroup *NaradGroupGet(Relation rel, NaradRelInfo *info,
								 NaradQueueTopic *topic, const char *name,
								 NaradGroupId *group_id);

/* In memory only; NULL if unknown or dropped. */
extern NaradGroup *NaradGroupById(NaradQueueTopic *topic, NaradGroupId group_id);

typedef enum NaradStartFrom
{
	NARAD_START_EARLIEST,
	NARAD_START_LATEST,
	NARAD_START_TIME
} NaradStartFrom;

/* A table of the extension, by name; NULL while the extension is made or
 * dropped.  A search for a topic's rows in it, or (InvalidOid) for all. */
extern Relation NaradExtensionTableOpen(const char *name, LOCKMODE lockmode);
extern struct SysScanDescData *NaradExtensionTableScan(Relation table,
													   Oid relid);

/* Makes a group that starts at an offset of each partition, or at the earliest
 * record if that is NARAD_INVALID_OFFSET; false, and nothing, if there is one
 * of that name. */
extern bool NaradGroupMakeAt(Relation rel, NaradRelInfo *info,
							 NaradQueueTopic *topic, const char *name,
							 const NaradOffset *starts, int nstarts,
							 bool paused);

/* create_group: nothing if it exists (false).  Not undone by rollback. */
extern bool NaradGroupCreate(Relation rel, NaradRelInfo *info, const char *name,
							 NaradStartFrom start, TimestampTz start_time);

/* drop_group: ERROR 42704 if missing.  Live leases are void. */
extern void NaradGroupDrop(Relation rel, NaradRelInfo *info, const char *name);
extern void NaradGroupPause(Relation rel, NaradRelInfo *info, const char *name,
							bool paused);

/* queue_seek.c: moves a group; not undone by rollback. */
extern void NaradGroupSeek(Relation rel, NaradRelInfo *info, const char *name,
						   int partition, NaradOffset offset);
extern void NaradGroupSeekToTime(Relation rel, NaradRelInfo *info,
								 const char *name, TimestampTz time);

/* For NaradLogEventTable. */
extern void NaradQueueTopicGone(Oid database, NaradTopicId topic_id);

/* The database was dropped, with all its topics. */
extern void NaradQueueTopicForgetDatabase(Oid database);

extern Size NaradQueueTopicShmemSize(void);
extern void NaradQueueTopicShmemInit(void);
extern void NaradQueueTopicRegister(void);	/* relcache callback, log events */

#endif							/* QUEUE_TOPIC_H */
