/*-------------------------------------------------------------------------
 *
 * queue_shard.c
 *	  The state of one (topic, group, partition) in shared memory.
 *
 * Owns:       the life of a NaradShard, its frontier and set of settled
 *             offsets, and the count of holes.
 * Invariants: I6: the frontier only grows within a generation, and everything
 *             below it was settled: acknowledged, or dead or damaged for
 *             good; or it was dropped by retention, and counted (I1).  settled holds what is settled at or above the frontier,
 *             and never the frontier itself.  nholes counts the leases that
 *             lie below the highest settled offset and are leased or
 *             returned: what consumers could close; nopen_holes those of
 *             them that are returned.
 * Locks:      shard->lock for all of it; a shard is put in its place under the
 *             topic lock, and loaded under io_lock; dropping one takes io_lock
 *             first, so that no writer of its state page, and nobody who
 *             loads it, is left when it returns.
 * Runs in:    any backend, the worker.  Settling offsets that were claimed
 *             (NaradShardSettle) neither allocates nor errors: it runs in
 *             commit callbacks.  The claim reserved its room.
 * WAL:        none; queue_state.c writes what changed.
 * On error:   loading may fail: the shard is emptied and stays nobody's.
 *
 * A shard is made empty, as nobody's, and is loaded in its place by whoever
 * uses it first, under io_lock.  Until that is done, and again when its group
 * is dropped, it is marked as dropped: those who have a pointer from before
 * look for that, and for the group id, under the lock, and touch nothing else.
 * So the one who loads needs the lock for its last step alone.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "storage/shmem.h"
#include "utils/rel.h"

#include "base/base_memory.h"
#include "log/log_hull.h"
#include "queue/queue_deadletter.h"
#include "queue/queue_dirty.h"
#include "queue/queue_producer.h"
#include "queue/queue_saved.h"
#include "queue/queue_shard.h"
#include "queue/queue_state.h"
#include "queue/queue_suspect.h"
#include "queue/queue_xact.h"

/* Delayed messages are looked at so often at least, in us. */
#define MAX_WALL_SLEEP	(60 * USECS_PER_SEC)

/* Deadlines that differ by less are the same, in us. */
#define CLOCK_JITTER	500

#define SAME_CHUNK(a, b) ((a) >> NARAD_CHUNK_BITS == (b) >> NARAD_CHUNK_BITS)

/* Frees what it holds, not the shard. */
static void
empty_shard(NaradShard *shard)
{
	NaradSetClear(&shard->settled);
	NaradSetClear(&shard->pending);
	NaradSetClear(&shard->suspects);
	NaradShardClearLeases(shard);
	NaradKeyTableClear(&shard->keys);
	NaradDueClear(&shard->due);
	shard->due_told = false;
	shard->suspect_out = 0;
	shard->nrechecks = 0;
	pg_atomic_write_u64(&shard->next_deadline, NARAD_NO_DEADLINE);
}

/* Puts a shard that is nobody's in a place, unless there is one. */
static NaradShard *
make_shard(NaradQueueTopic *topic, NaradGroup *group, int partition)
{
	NaradShard *made = NaradAllocOrError(sizeof(NaradShard), "a shard");
	NaradShard *shard;
	bool		has_room;

	made->topic = topic;
	made->group = group;
	made->partition = partition;
	made->dropped = true;
	NaradLockInit(&made->lock, NARAD_LOCK_SHARD);
	NaradLockInit(&made->io_lock, NARAD_LOCK_STATE_IO);
	NaradLockInit(&made->scan_lock, NARAD_LOCK_SCAN);
	pg_atomic_init_u64(&made->next_deadline, NARAD_NO_DEADLINE);
	NaradSetInit(&made->settled, true);
	NaradSetInit(&made->pending, false);
	NaradSetInit(&made->suspects, false);
	NaradLeaseTableInit(&made->leases);
	NaradKeyTableInit(&made->keys);
	NaradDueInit(&made->due);

	LWLockAcquire(&topic->lock, LW_EXCLUSIVE);
	shard = NaradArrayGet(&group->shards, partition);
	has_room = NaradArrayReserve(&group->shards, partition + 1);
	if (shard == NULL && has_room)
		NaradArraySet(&group->shards, partition, made);
	LWLockRelease(&topic->lock);
	if (shard == NULL && has_room)
		return made;
	NaradFree(made);
	if (shard == NULL)
		NaradReportOutOfMemory("a shard");
	return shard;
}

/* Does the group still have its place?  Without the topic lock. */
static bool
group_is_there(NaradGroup *group, NaradGroupId group_id)
{
	if (*(volatile bool *) &group->dropped)
		return false;
	pg_read_barrier();
	return *(volatile NaradGroupId *) &group->group_id == group_id;
}

/* What is to be loaded; what was there is gone.  io_lock is held. */
static void
reset_shard(NaradLogPartition *part, NaradShard *shard, NaradGroupId group_id)
{
	Assert(shard->dropped && !shard->is_dirty);
	LWLockAcquire(&shard->lock, LW_EXCLUSIVE);
	empty_shard(shard);
	shard->group_id = group_id;
	shard->generation = shard->group->generation;
	shard->returned_turn = false;
	shard->is_dry = false;
	shard->capped_in_flight = shard->capped_ahead = false;
	shard->delivered = shard->acked = shard->expired = 0;
	shard->capped = shard->corrupt = shard->dead_lettered = 0;
	shard->handout_mark = 0;
	shard->is_moving = false;
	memset(&shard->policy, 0, sizeof(NaradRetryPolicy));
	shard->lost = shard->lost_untold = 0;
	shard->lost_told_at = 0;
	shard->nlosses = 0;
	shard->changes = shard->changes_written = 0;
	shard->paced_until = 0;
	shard->head_block = InvalidBlockNumber;
	shard->written_lsn = InvalidXLogRecPtr;
	shard->ring_pos = NaradRingHead(part);
	LWLockRelease(&shard->lock);
}

/* What became of a shard that was to be loaded. */
typedef enum LoadResult
{
	LOAD_DONE,
	LOAD_GROUP_GONE,
	LOAD_WANTS_SAVED			/* its page is damaged */
} LoadResult;

/*
 * What was loaded becomes the group's, if that is still there.  Overtaken:
 * retention went past the group since its page was written.
 */
static LoadResult
publish_shard(NaradShard *shard, NaradGroupId group_id, bool overtaken)
{
	bool		is_there;

	/* Who drops the group from here on waits for io_lock, and drops this. */
	is_there = group_is_there(shard->group, group_id);
	LWLockAcquire(&shard->lock, LW_EXCLUSIVE);
	if (is_there)
	{
		shard->dropped = false;
		if (overtaken)
			NaradDirtyMark(shard);
	}
	else
		empty_shard(shard);
	LWLockRelease(&shard->lock);
	return is_there ? LOAD_DONE : LOAD_GROUP_GONE;
}

/*
 * Loads a shard that is nobody's and makes it the group's.  `saved` is as for
 * NaradStateLoad.  io_lock is held, until the end of the transaction on error.
 */
static LoadResult
load_shard(Relation rel, NaradRelInfo *info, NaradShard *shard,
		   NaradGroupId group_id, const NaradOffset *saved,
		   NaradStateDamage *damage)
{
	NaradLogPartition *part = NaradLogPartitionGet(info->shared,
												   shard->partition);
	volatile bool loaded = false;

	if (!group_is_there(shard->group, group_id))
		return LOAD_GROUP_GONE;
	reset_shard(part, shard, group_id);
	PG_TRY();
	{
		loaded = NaradStateLoad(rel, info, shard, saved, damage);
	}
	PG_CATCH();
	{
		empty_shard(shard);
		PG_RE_THROW();
	}
	PG_END_TRY();
	return loaded ? publish_shard(shard, group_id, damage->nlost > 0) :
		LOAD_WANTS_SAVED;
}

/* The group's shard, if it is, or can be loaded. */
static LoadResult
get_shard(Relation rel, NaradRelInfo *info, NaradShard *shard,
		  NaradGroupId group_id, const NaradOffset *saved,
		  NaradStateDamage *damage)
{
	LoadResult	result = LOAD_DONE;

	LWLockAcquire(&shard->io_lock, LW_EXCLUSIVE);
	if (!NaradShardIsOf(shard, group_id))
		result = load_shard(rel, info, shard, group_id, saved, damage);
	LWLockRelease(&shard->io_lock);
	return result;
}

/*
 * NaradShardFind
 *
 * The group's shard if it is in memory, else NULL.  The caller has the topic's
 * relation locked, and asks NaradShardIsOf again under the shard lock.
 */
NaradShard *
NaradShardFind(NaradGroup *group, NaradGroupId group_id, int partition)
{
	NaradShard *shard = NaradArrayGet(&group->shards, partition);

	return shard != NULL && NaradShardIsOf(shard, group_id) ? shard : NULL;
}

/*
 * NaradShardLookup
 *
 * The shard of a key that was kept without a lock, if it is in memory and the
 * relation is still the key's topic; else NULL.  The caller has the relation
 * locked, and asks NaradShardIsOf under the shard lock.
 */
NaradShard *
NaradShardLookup(const NaradRelInfo *info, NaradTopicId topic_id,
				 NaradGroupId group_id, int partition)
{
	NaradQueueTopic *topic;
	NaradGroup *group;

	if (info->topic_id != topic_id)
		return NULL;
	topic = NaradQueueTopicFind(topic_id);
	group = topic != NULL ? NaradGroupById(topic, group_id) : NULL;
	if (group == NULL)
		return NULL;
	return NaradShardFind(group, group_id, partition);
}

/*
 * NaradShardGet
 *
 * The shard, loaded from its state page if this is its first use.  The caller
 * holds RowExclusiveLock on the topic, and no narad lock, and asks
 * NaradShardIsOf again under the shard lock.  ERROR 53200 when memory is
 * short, 42704 when the group was dropped meanwhile, or on reading.
 */
NaradShard *
NaradShardGet(Relation rel, NaradRelInfo *info, NaradQueueTopic *topic,
			  NaradGroup *group, NaradGroupId group_id, int partition)
{
	NaradShard *shard = NaradArrayGet(&group->shards, partition);
	NaradStateDamage damage = {0};
	LoadResult	result;

	if (shard == NULL)
		shard = make_shard(topic, group, partition);
	if (NaradShardIsOf(shard, group_id))
		return shard;

	result = get_shard(rel, info, shard, group_id, NULL, &damage);
	if (result == LOAD_WANTS_SAVED)
	{
		NaradRelInfo own = *info;	/* may go with an invalidation */
		NaradOffset saved = NaradSavedFrontier(rel, &own, group_id, partition);

		result = get_shard(rel, &own, shard, group_id, &saved, &damage);
	}
	if (result != LOAD_DONE)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("a consumer group of topic \"%s\" was dropped while it was used",
						RelationGetRelationName(rel))));
	NaradStateReport(rel, &damage);
	return shard;
}

/*
 * NaradShardDrop
 *
 * The group was dropped: nothing more can be done with the shard, and its
 * leases are void.  The shard stays, and is the next group's in this place.
 * Takes io_lock and lock; does not error.
 */
void
NaradShardDrop(NaradShard *shard)
{
	LWLockAcquire(&shard->io_lock, LW_EXCLUSIVE);
	LWLockAcquire(&shard->lock, LW_EXCLUSIVE);
	shard->dropped = true;
	shard->generation++;
	NaradDirtyClear(shard);
	NaradDeadLetterForget(shard);
	empty_shard(shard);
	LWLockRelease(&shard->lock);
	LWLockRelease(&shard->io_lock);
}

/*
 * NaradShardSeek
 *
 * A new generation, which starts at an offset: what was leased, pinned or
 * settled before is forgotten, and whoever still has a lease of the old one
 * finds that its generation is over.  Its page says so already, so memory is
 * not ahead of it.  Takes the lock; io_lock is held; no error, provided that
 * the process is attached to shared memory.
 */
void
NaradShardSeek(NaradShard *shard, uint32 generation, NaradOffset frontier)
{
	bool		ordered;

	LWLockAcquire(&shard->lock, LW_EXCLUSIVE);
	NaradDirtyClear(shard);
	shard->paced_until = 0;
	NaradDeadLetterForget(shard);
	ordered = shard->keys.ordered;
	empty_shard(shard);

	/* Or else the next visitor would empty it again, beside one who scans. */
	shard->keys.ordered = ordered;
	shard->is_moving = false;
	shard->generation = generation;
	shard->frontier = frontier;
	shard->settled_end = frontier;
	shard->scan_pos = frontier;
	shard->handout_mark = 0;
	shard->nlosses = 0;
	shard->returned_turn = false;
	shard->capped_in_flight = shard->capped_ahead = false;
	shard->changes_written = ++shard->changes;
	NaradShardMadeAvailable(shard, 1, true);
	LWLockRelease(&shard->lock);
}

/*
 * NaradShardFree
 *
 * Frees all; nobody has pointers.  In transaction callbacks: no error.
 */
void
NaradShardFree(NaradShard *shard)
{
	LWLockAcquire(&shard->lock, LW_EXCLUSIVE);
	NaradDirtyClear(shard);
	NaradDeadLetterForget(shard);
	LWLockRelease(&shard->lock);
	empty_shard(shard);
	NaradFree(shard);
}

/*
 * NaradRetryPolicyGet
 *
 * The part of the settings that a shard keeps.
 */
void
NaradRetryPolicyGet(const NaradTopicSettings *settings,
					NaradRetryPolicy *policy)
{
	policy->delay = settings->retry_delay;
	policy->backoff = settings->retry_backoff;
	policy->max_deliveries = settings->max_deliveries;
}

/* ----------------------------------------------------------------
 *		What waiters are told
 * ----------------------------------------------------------------
 */

/*
 * NaradShardMadeAvailable
 *
 * Wakes up to n of those who wait for messages of this shard.  Lock held
 * exclusively; no memory, no error.
 */
void
NaradShardMadeAvailable(NaradShard *shard, uint64 n, bool chain)
{
	shard->nmade++;
	shard->is_dry = false;
	if (!shard->dropped)
		NaradWaitServe(shard->group, shard->partition, n, chain);
}

/*
 * The earliest time at which something of the shard becomes due.  A delayed
 * message that is due already (*is_due: there is one) is available; others are
 * by the wall clock, which may be set, so it is looked at again after a minute.
 */
static uint64
next_deadline(NaradShard *shard, bool *is_due)
{
	NaradLease *lease = NaradLeaseEarliest(&shard->leases);
	const NaradDue *delayed = NaradDueFirst(&shard->due);
	uint64		next;

	*is_due = false;
	next = lease != NULL ? (uint64) lease->deadline : NARAD_NO_DEADLINE;
	if (delayed != NULL)
	{
		int64		left = delayed->due - GetCurrentTimestamp();

		if (left > 0)
			next = Min(next, (uint64) (NaradClockNow() +
									   Min(left, MAX_WALL_SLEEP)));
		else
			*is_due = true;
	}
	return next;
}

/*
 * NaradShardDeadlineChanged
 *
 * Publishes the shard's next deadline.  To be called after what may have made
 * it earlier; that it became later is found out when it comes.  A delayed
 * message that is due is no deadline any more: whoever comes by first, be it
 * before the time that was published, wakes who waits for it.  The chain that
 * this begins covers those that become due before it ends.  Lock held
 * exclusively; no memory, no error.
 */
void
NaradShardDeadlineChanged(NaradShard *shard)
{
	bool		is_due;
	uint64		next = next_deadline(shard, &is_due);
	uint64		before = pg_atomic_read_u64(&shard->next_deadline);

	if (is_due && !shard->due_told)
		NaradShardMadeAvailable(shard, 1, true);
	shard->due_told = is_due;

	/* From one clock to the other there is always a difference. */
	if (next == before ||
		((next - before < CLOCK_JITTER || before - next < CLOCK_JITTER) &&
		 before > (uint64) NaradClockNow()))
		return;
	pg_atomic_write_u64(&shard->next_deadline, next);
	if (next != NARAD_NO_DEADLINE && !shard->dropped)
		NaradWaitDeadline(shard->group, (int64) next);
}

/*
 * NaradShardCapOpened
 *
 * A lease is none any more, which makes room for one if consumers stopped for
 * max_in_flight.  Lock held exclusively; no memory, no error.
 */
void
NaradShardCapOpened(NaradShard *shard)
{
	if (shard->capped_in_flight)
		NaradShardMadeAvailable(shard, 1, false);
}

/*
 * NaradShardStopAhead
 *
 * A consumer found no room under its max_acked_ahead, and is to be told when
 * there is.  Settings may be old: the greatest counts.  Lock held exclusively.
 */
void
NaradShardStopAhead(NaradShard *shard, uint32 max_acked_ahead)
{
	shard->stopped_ahead = shard->capped_ahead ?
		Max(shard->stopped_ahead, max_acked_ahead) : max_acked_ahead;
	shard->capped_ahead = true;
}

/* Who stopped for max_acked_ahead may go on, nobody knows how far. */
static void
ahead_has_opened(NaradShard *shard)
{
	if (!shard->capped_ahead)
		return;
	shard->capped_ahead = false;
	NaradShardMadeAvailable(shard, 1, true);
}

/*
 * There is a hole less.  With as many as the cap still, which claims below the
 * highest settled offset may exceed, nobody is told: one who is would find
 * nothing, and if it was a claim of his that came to nothing, tell himself
 * again.
 */
static void
hole_has_closed(NaradShard *shard)
{
	if (shard->nholes < shard->stopped_ahead)
		ahead_has_opened(shard);
}

/* ----------------------------------------------------------------
 *		Settling
 * ----------------------------------------------------------------
 */

/*
 * NaradShardCountHole
 *
 * Brings is_hole, is_open_hole and the counts of them up to date after a change
 * of the lease's state.  Lock held exclusively.
 */
void
NaradShardCountHole(NaradShard *shard, NaradLease *lease)
{
	bool		is_hole;
	bool		is_open_hole;

	is_open_hole = lease->offset < shard->settled_end &&
		lease->state == NARAD_LEASE_RETURNED;
	is_hole = is_open_hole || (lease->offset < shard->settled_end &&
							   lease->state == NARAD_LEASE_LEASED);
	if (is_open_hole && !lease->is_open_hole)
		shard->nopen_holes++;
	else if (!is_open_hole && lease->is_open_hole)
		shard->nopen_holes--;
	lease->is_open_hole = is_open_hole;
	if (is_hole == lease->is_hole)
		return;
	lease->is_hole = is_hole;
	if (is_hole)
		shard->nholes++;
	else
	{
		shard->nholes--;
		hole_has_closed(shard);
	}
}

/*
 * NaradShardRemoveLease
 *
 * Takes an entry out of the table and the count.  Lock held exclusively.
 */
void
NaradShardRemoveLease(NaradShard *shard, NaradLease *lease)
{
	bool		was_hole = lease->is_hole;
	bool		was_leased = lease->state == NARAD_LEASE_LEASED;

	if (was_hole)
		shard->nholes--;
	if (lease->is_open_hole)
		shard->nopen_holes--;
	NaradLeaseRemove(&shard->leases, lease);
	if (was_leased)
		NaradShardCapOpened(shard);
	if (was_hole)
		hole_has_closed(shard);
}

/*
 * NaradShardClearLeases
 *
 * The same with all of them, when what is known of the shard is void; nobody
 * is told.  Lock held exclusively, or nobody else knows the shard.
 */
void
NaradShardClearLeases(NaradShard *shard)
{
	NaradLeaseTableClear(&shard->leases);
	shard->nholes = 0;
	shard->nopen_holes = 0;
}

/*
 * The highest settled offset rises: leases that now lie below it become
 * holes.  Looks at the offsets in between or at all leases, whichever are
 * fewer; each offset is passed once in a shard's life.
 */
static void
raise_settled_end(NaradShard *shard, NaradOffset end)
{
	NaradOffset start = Max(shard->settled_end, shard->frontier);
	NaradLease *lease = NULL;
	NaradOffset offset;

	if (end <= shard->settled_end)
		return;
	shard->settled_end = end;
	ahead_has_opened(shard);
	if (end - Min(start, end) <= shard->leases.nentries)
	{
		for (offset = start; offset < end; offset++)
		{
			lease = NaradLeaseFind(&shard->leases, offset);
			if (lease != NULL)
				NaradShardCountHole(shard, lease);
		}
		return;
	}
	while ((lease = NaradLeaseNext(&shard->leases, lease)) != NULL)
		NaradShardCountHole(shard, lease);
}

/* Everything below `to` is settled: moves on over what is settled there. */
static void
move_frontier(NaradShard *shard, NaradOffset to)
{
	NaradOffset old = shard->frontier;

	Assert(to > old);
	shard->frontier = NaradSetNextGap(&shard->settled, to);

	/*
	 * Trimming costs a look at a chunk's words, so an ack in order does
	 * without while it has passed no member.
	 */
	if (shard->frontier != old + 1 || !SAME_CHUNK(old, shard->frontier))
		NaradSetTrim(&shard->settled, shard->frontier);
	if (shard->scan_pos < shard->frontier)
		shard->scan_pos = shard->frontier;
}

/*
 * NaradShardReserve
 *
 * Room to settle an offset later without memory.  Lock held exclusively.
 */
bool
NaradShardReserve(NaradShard *shard, NaradOffset offset)
{
	return NaradSetReserve(&shard->settled, offset);
}

/*
 * NaradShardSettle
 *
 * Settles an offset that was claimed, and removes its entry in leases; one
 * that is settled already is left alone.  Marks the shard dirty.  Lock held
 * exclusively; no memory, no error.
 */
void
NaradShardSettle(NaradShard *shard, NaradOffset offset)
{
	NaradLease *lease = NaradLeaseFind(&shard->leases, offset);

	if (lease != NULL)
		NaradShardRemoveLease(shard, lease);
	NaradSuspectClear(shard, offset);
	if (offset < shard->frontier ||
		NaradSetContains(&shard->settled, offset))
		return;
	if (offset == shard->frontier)
		move_frontier(shard, offset + 1);
	else
		(void) NaradSetAdd(&shard->settled, offset);
	NaradKeyRelease(shard, offset);
	raise_settled_end(shard, offset + 1);
	NaradDirtyMark(shard);
}

/* Nothing in a range is a member any more. */
static void
forget_members(NaradSet *set, NaradOffset first, NaradOffset last)
{
	NaradOffset offset;

	if (set->nmembers == 0)
		return;
	for (offset = NaradSetNextMember(set, first);
		 offset != NARAD_INVALID_OFFSET && offset <= last;
		 offset = NaradSetNextMember(set, offset + 1))
		(void) NaradSetRemove(set, offset);
}

/*
 * NaradShardSettleRange
 *
 * Settles first..last, which hold nothing or are damaged, and have no entry
 * in leases.  Marks the shard dirty.  False, with nothing or a part of it
 * done, when there is no memory.  Lock held exclusively.
 */
bool
NaradShardSettleRange(NaradShard *shard, NaradOffset first, NaradOffset last)
{
	Assert(first <= last);
	if (last < shard->frontier)
		return true;
	if (first <= shard->frontier)
		move_frontier(shard, last + 1);
	else if (!NaradSetAddRange(&shard->settled, first, last))
		return false;
	forget_members(&shard->pending, first, last);
	forget_members(&shard->suspects, first, last);
	if (shard->suspect_out > first && shard->suspect_out - 1 <= last)
		NaradSuspectNotOut(shard, shard->suspect_out - 1);
	NaradKeyReleaseRange(shard, first, last);
	raise_settled_end(shard, last + 1);
	NaradDirtyMark(shard);
	return true;
}

/* ----------------------------------------------------------------
 *		The queue layer as a whole
 * ----------------------------------------------------------------
 */

/*
 * NaradQueueShmemSize
 *
 * Of the whole layer.
 */
Size
NaradQueueShmemSize(void)
{
	return add_size(add_size(NaradQueueTopicShmemSize(),
							 NaradDirtyShmemSize()),
					add_size(NaradDeadLetterShmemSize(),
							 NaradWaitShmemSize()));
}

/*
 * NaradQueueShmemInit
 *
 * Of the whole layer; under AddinShmemInitLock, after the memory area.
 */
void
NaradQueueShmemInit(void)
{
	NaradQueueTopicShmemInit();
	NaradDirtyShmemInit();
	NaradDeadLetterShmemInit();
	NaradWaitShmemInit();
}

/*
 * NaradQueueRegister
 *
 * Hooks and callbacks of the whole layer; once, in the postmaster.
 */
void
NaradQueueRegister(void)
{
	NaradQueueTopicRegister();
	NaradXactRegister();
	NaradProducerRegister();
	NaradWaitRegister();
}
