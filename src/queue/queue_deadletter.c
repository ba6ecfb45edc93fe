/*-------------------------------------------------------------------------
 *
 * queue_deadletter.c
 *	  Messages that were delivered as often as their topic allows.
 *
 * Owns:       the list of shards that have dead letters, and when a move is
 *             to be tried.
 * Invariants: a message in state DEAD_LETTER is handed out no more, and counts
 *             against no cap.  I1, I5: it leaves by one transaction, which
 *             appends it to the dead-letter topic and settles it here.  A shard
 *             is in the list exactly while it has an entry in that state.
 * Locks:      the shard lock; under it the lock of the list, a few
 *             instructions each time.
 * Runs in:    whoever ends a lease: backends, transaction callbacks, the
 *             worker; moving in the worker only.
 * WAL:        none here: the append, and the journal of acks.
 * On error:   the move is undone in the callback of the abort, and tried again
 *             after a wait.
 *
 * Who ends a lease at the limit only changes the state of the entry, which
 * needs no memory, and wakes the worker.  What becomes of the message, whether
 * there is a topic for it or the limit was raised meanwhile, is decided by the
 * worker, with the settings as they are then.
 *
 * A move that fails is tried again after 1, 2, 4, ... seconds, up to a minute.
 * That holds for the message; the others go on.  A topic whose moves fail one
 * after the other, or take long to fail, is tried less often as a whole, so
 * that the worker gets to its other duties, and the log does not fill.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "storage/shmem.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/datetime.h"
#include "utils/fmgrprotos.h"
#include "utils/json.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "base/base_lock.h"
#include "queue/queue_deadletter.h"
#include "queue/queue_settle.h"
#include "queue/queue_suspect.h"
#include "queue/queue_xact.h"

#define RETRY_FIRST_US	INT64CONST(1000000)
#define RETRY_LAST_US	INT64CONST(60000000)

/* So many failures in a row are the topic's, not the message's. */
#define TOPIC_FAILURES	8

/* And so is one that took so long. */
#define SLOW_FAILURE_US	INT64CONST(500000)

/* Messages whose limit was raised that one claim returns. */
#define MAX_RETURNED	64

typedef struct NaradDeadLetterCtl
{
	LWLock		lock;
	dlist_head	shards;			/* by dead_node; of all databases */
} NaradDeadLetterCtl;

static NaradDeadLetterCtl *DeadLetterCtl;

NaradAppendRow NaradDeadLetterAppend;

/* ------------------------------------------------------------ the list */

/*
 * Brings the list up to date with the shard's entries.  True if the first move
 * is due earlier than before.  Exclusive shard lock.
 */
static bool
list_shard(NaradShard *shard)
{
	NaradLease *first = NaradLeaseEarliestDead(&shard->leases);
	bool		sooner = false;

	LWLockAcquire(&DeadLetterCtl->lock, LW_EXCLUSIVE);
	if (first != NULL)
	{
		sooner = !shard->is_dead_listed || first->deadline < shard->dead_due;
		if (!shard->is_dead_listed)
			dlist_push_tail(&DeadLetterCtl->shards, &shard->dead_node);
		shard->dead_due = first->deadline;
	}
	else if (shard->is_dead_listed)
		dlist_delete(&shard->dead_node);
	shard->is_dead_listed = first != NULL;
	LWLockRelease(&DeadLetterCtl->lock);
	return sooner;
}

/* The entry waits to be moved, until a time at least. */
static void
enlist(NaradShard *shard, NaradLease *lease, int64 when)
{
	lease->deadline = when;
	NaradLeaseSetState(&shard->leases, lease, NARAD_LEASE_DEAD_LETTER);
	NaradShardCountHole(shard, lease);

	/* This also has a worker started, if there is none. */
	NaradDirtyMark(shard);
	if (list_shard(shard))
		NaradDirtyWake(shard->topic->database);
}

/*
 * The lease has ended, and was the last that the message gets.  Its holder is
 * cleared.  Exclusive shard lock; no memory, no error.
 */
void
NaradDeadLetterAdd(NaradShard *shard, NaradLease *lease, int64 now)
{
	NaradSuspectClear(shard, lease->offset);
	lease->failures = 0;
	enlist(shard, lease, now);
}

/*
 * A message has left, for the dead-letter topic or for good.  Exclusive shard
 * lock; in the callback of the commit.
 */
void
NaradDeadLetterMoved(NaradShard *shard)
{
	shard->dead_lettered++;
	shard->is_moving = false;
	LWLockAcquire(&DeadLetterCtl->lock, LW_EXCLUSIVE);
	shard->topic->move_failures = 0;
	shard->topic->moves_after = 0;
	LWLockRelease(&DeadLetterCtl->lock);
}

static int64
back_off(uint32 failures)
{
	return Min(RETRY_FIRST_US << Min(failures - 1, 6), RETRY_LAST_US);
}

/*
 * A move was undone: it is tried again later.  Exclusive shard lock; in the
 * callback of the abort.
 */
void
NaradDeadLetterFailed(NaradShard *shard, NaradLease *lease, int64 now)
{
	NaradQueueTopic *topic = shard->topic;

	shard->is_moving = false;
	lease->failures = Min(lease->failures + 1, PG_UINT8_MAX);
	LWLockAcquire(&DeadLetterCtl->lock, LW_EXCLUSIVE);
	topic->move_failures++;
	if (topic->move_failures >= TOPIC_FAILURES ||
		now - topic->move_began > SLOW_FAILURE_US)
		topic->moves_after = now + back_off(topic->move_failures);
	LWLockRelease(&DeadLetterCtl->lock);
	enlist(shard, lease, now + back_off(lease->failures));
}

/*
 * Entries below an offset were removed: retention has dropped the messages.
 * A move that is under way meets no entry at its end.  Exclusive shard lock; no
 * error.
 */
void
NaradDeadLetterDropped(NaradShard *shard, NaradOffset start)
{
	if (shard->is_moving && shard->moving < start)
		shard->is_moving = false;
	if (shard->is_dead_listed)
		(void) list_shard(shard);
}

/*
 * The shard's entries go.  Exclusive shard lock; no error.
 */
void
NaradDeadLetterForget(NaradShard *shard)
{
	LWLockAcquire(&DeadLetterCtl->lock, LW_EXCLUSIVE);
	if (shard->is_dead_listed)
		dlist_delete(&shard->dead_node);
	shard->is_dead_listed = false;
	LWLockRelease(&DeadLetterCtl->lock);
}

/* ---------------------------------------------------------- the worker */

/*
 * The key of a shard of this database that has a dead letter to be moved now;
 * shards take turns.  False if there is none; then *next is lowered to when
 * there may be one.
 */
bool
NaradDeadLetterNext(NaradDirtyItem *item, int64 now, int64 *next)
{
	dlist_iter	iter;
	NaradShard *found = NULL;

	LWLockAcquire(&DeadLetterCtl->lock, LW_EXCLUSIVE);
	dlist_foreach(iter, &DeadLetterCtl->shards)
	{
		NaradShard *shard = dlist_container(NaradShard, dead_node, iter.cur);
		int64		due = Max(shard->dead_due, shard->topic->moves_after);

		if (shard->topic->database != MyDatabaseId)
			continue;
		if (due <= now)
		{
			found = shard;
			break;
		}
		*next = Min(*next, due);
	}
	if (found != NULL)
	{
		/* No shard lock: what is read here does not change in the list. */
		dlist_delete(&found->dead_node);
		dlist_push_tail(&DeadLetterCtl->shards, &found->dead_node);
		memset(item, 0, sizeof(NaradDirtyItem));
		item->relid = pg_atomic_read_u32(&found->topic->relid);
		item->topic_id = found->topic->topic_id;
		item->group_id = found->group_id;
		item->partition = found->partition;
	}
	LWLockRelease(&DeadLetterCtl->lock);
	return found != NULL;
}

/*
 * No move of a topic before a time.  The caller need not have it locked.
 */
void
NaradDeadLetterPostpone(NaradTopicId topic_id, int64 until)
{
	dlist_iter	iter;

	LWLockAcquire(&DeadLetterCtl->lock, LW_EXCLUSIVE);
	dlist_foreach(iter, &DeadLetterCtl->shards)
	{
		NaradShard *shard = dlist_container(NaradShard, dead_node, iter.cur);

		if (shard->topic->database == MyDatabaseId &&
			shard->topic->topic_id == topic_id)
			shard->topic->moves_after = until;
	}
	LWLockRelease(&DeadLetterCtl->lock);
}

/* The first that is due and still is to be moved; returns the others. */
static NaradLease *
next_due(NaradShard *shard, int64 now)
{
	int			nreturned = 0;
	NaradLease *lease;

	while ((lease = NaradLeaseEarliestDead(&shard->leases)) != NULL &&
		   lease->deadline <= now)
	{
		if (NaradShardIsExhausted(shard, lease))
			return lease;
		if (nreturned++ == MAX_RETURNED)
			break;
		NaradShardReturn(shard, lease, NARAD_END_NONE, now, 0);
	}
	return NULL;
}

static void
describe(const NaradShard *shard, const NaradLease *lease,
		 NaradDeadLetter *letter)
{
	strlcpy(letter->group, shard->group->name, NAMEDATALEN);
	letter->partition = shard->partition;
	letter->offset = lease->offset;
	letter->deliveries = lease->deliveries;
	letter->ended = lease->ended;
	strlcpy(letter->reason, lease->reason != NULL ? lease->reason : "",
			sizeof(letter->reason));
	letter->first_leased_at = lease->first_leased_at;
	letter->leased_at = lease->leased_at;
}

/*
 * Pins a dead letter of the group that is due, so that it is settled when the
 * current transaction commits, and waits for another try when it does not.
 * The caller has RowExclusiveLock on the topic, the settings in effect, and no
 * narad lock.  False if none is due.
 */
bool
NaradDeadLetterClaim(NaradShard *shard, NaradGroupId group_id,
					 const NaradTopicSettings *settings,
					 NaradDeadLetter *letter)
{
	NaradRetryPolicy policy;
	NaradLease *lease = NULL;
	int64		now;

	NaradRetryPolicyGet(settings, &policy);
	NaradXactReserve(1);
	LWLockAcquire(&shard->lock, LW_EXCLUSIVE);
	now = NaradClockNow();
	if (NaradShardIsOf(shard, group_id))
	{
		shard->policy = policy;
		lease = next_due(shard, now);
		if (lease != NULL)
		{
			describe(shard, lease, letter);
			shard->is_moving = true;
			shard->moving = lease->offset;
			NaradXactPin(NARAD_ACTION_MOVE, shard, lease, 0, NULL);
		}
		(void) list_shard(shard);
	}
	LWLockRelease(&shard->lock);
	if (lease == NULL)
		return false;

	LWLockAcquire(&DeadLetterCtl->lock, LW_EXCLUSIVE);
	shard->topic->move_began = now;
	LWLockRelease(&DeadLetterCtl->lock);
	return true;
}

/*
 * Dead letters are appended as the owner of the dead-letter topic: errors with
 * 42501 unless the owner of the topic they come from has that role's
 * privileges.
 */
void
NaradDeadLetterCheckOwner(Oid owner, Relation target)
{
	Oid			role = target->rd_rel->relowner;

	if (has_privs_of_role(owner, role))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("owner of the topic does not have the privileges of the owner of dead-letter topic \"%s\"",
					RelationGetRelationName(target)),
			 errdetail("Dead letters are appended as role \"%s\", of which role \"%s\" is no member.",
					   GetUserNameFromId(role, false),
					   GetUserNameFromId(owner, false))));
}

/*
 * Nothing can be read at the offset of one that was claimed: it is settled, as
 * consume does with what is damaged.
 */
void
NaradDeadLetterLost(NaradShard *shard, NaradGroupId group_id,
					const NaradDeadLetter *letter)
{
	NaradLease *lease;

	/* The group may have been dropped or moved meanwhile. */
	LWLockAcquire(&shard->lock, LW_EXCLUSIVE);
	lease = NaradLeaseFind(&shard->leases, letter->offset);
	if (NaradShardIsOf(shard, group_id) && lease != NULL &&
		lease->state == NARAD_LEASE_PINNED && lease->pinner == MyProcPid)
	{
		shard->corrupt++;
		shard->is_moving = false;
		NaradShardSettle(shard, letter->offset);
	}
	LWLockRelease(&shard->lock);
}

/* ------------------------------------------------------------- headers */

static const char *
end_name(NaradLeaseEnd ended)
{
	switch (ended)
	{
		case NARAD_END_EXPIRED:
			return "expired";
		case NARAD_END_NACKED:
			return "nacked";
		case NARAD_END_ROLLED_BACK:
			return "rolled back";
		case NARAD_END_CRASHED:
			return "server crashed";
		default:
			return "unknown";
	}
}

/* ISO 8601, in UTC. */
static void
append_time(StringInfo json, const char *name, TimestampTz time)
{
	char		iso[MAXDATELEN + 1];
	int			utc = 0;

	if (time == 0)
		return;
	JsonEncodeDateTime(iso, TimestampTzGetDatum(time), TIMESTAMPTZOID, &utc);
	appendStringInfo(json, ", \"%s\": \"%s\"", name, iso);
}

/* Where the message comes from and what became of it there, as JSON. */
static char *
origin_json(Relation rel, const NaradDeadLetter *letter,
			TimestampTz produced_at)
{
	StringInfoData json;
	char	   *schema = get_namespace_name(RelationGetNamespace(rel));

	initStringInfo(&json);
	appendStringInfoString(&json, "{\"narad-origin-topic\": ");
	escape_json(&json, quote_qualified_identifier(schema,
												  RelationGetRelationName(rel)));
	appendStringInfo(&json, ", \"narad-origin-partition\": %d"
					 ", \"narad-origin-offset\": %lld"
					 ", \"narad-origin-group\": ",
					 letter->partition, (long long) letter->offset);
	escape_json(&json, letter->group);
	appendStringInfo(&json, ", \"narad-deliveries\": %u"
					 ", \"narad-ended\": \"%s\"",
					 letter->deliveries, end_name(letter->ended));
	if (letter->reason[0] != '\0')
	{
		appendStringInfoString(&json, ", \"narad-reason\": ");
		escape_json(&json, letter->reason);
	}
	append_time(&json, "narad-produced-at", produced_at);
	append_time(&json, "narad-first-delivered-at", letter->first_leased_at);
	append_time(&json, "narad-last-delivered-at", letter->leased_at);
	appendStringInfoChar(&json, '}');
	return json.data;
}

/*
 * The headers of a dead letter: those that the message had, and ours, which
 * take the place of those of an earlier move.  Headers that are no object come
 * to stand under "narad-headers".
 */
Datum
NaradDeadLetterHeaders(Relation rel, const NaradDeadLetter *letter,
					   TimestampTz produced_at, Datum headers,
					   bool no_headers)
{
	Datum		origin;

	origin = DirectFunctionCall1(jsonb_in,
								 CStringGetDatum(origin_json(rel, letter,
															 produced_at)));
	if (no_headers)
		return origin;
	if (!JB_ROOT_IS_OBJECT(DatumGetJsonbP(headers)))
		headers = DirectFunctionCall1(jsonb_in,
									  CStringGetDatum(psprintf("{\"narad-headers\": %s}",
															   JsonbToCString(NULL, &DatumGetJsonbP(headers)->root, 0))));
	return DirectFunctionCall2(jsonb_concat, headers, origin);
}

/* -------------------------------------------------------- registration */

/*
 * Of the list.
 */
Size
NaradDeadLetterShmemSize(void)
{
	return MAXALIGN(sizeof(NaradDeadLetterCtl));
}

/*
 * Under AddinShmemInitLock, after the locks are known.
 */
void
NaradDeadLetterShmemInit(void)
{
	bool		found;

	DeadLetterCtl = ShmemInitStruct("Narad dead letters",
									NaradDeadLetterShmemSize(), &found);
	if (found)
		return;
	memset(DeadLetterCtl, 0, sizeof(NaradDeadLetterCtl));
	NaradLockInit(&DeadLetterCtl->lock, NARAD_LOCK_DEAD_LETTER);
	dlist_init(&DeadLetterCtl->shards);
}
