/*-------------------------------------------------------------------------
 *
 * queue_retain.c
 *	  Retention as the groups see it.
 *
 * Storage drops segments without asking who has read them, unless the topic's
 * cleanup is 'settled': then everything goes that all groups have settled by
 * what is in the WAL of it, their state pages.  A group counts once it has a
 * page in some partition; where it has none in another, it has settled
 * nothing there.  One that never settled anything counts for nothing, and if
 * no group counts, nothing goes for that reason.  Nor does what has ids that
 * are to be known for a while yet (queue_dedup.c).
 *
 * A group that retention overtakes jumps to the earliest record in one step.
 * What it had not settled below is lost to it: counted on its state page, and
 * logged.  Leases, pins, pending and returned messages below are gone; whoever
 * acks one is told so.  Shards in memory are moved by whoever drops the
 * segments, right after; if he does not come to it, by whoever touches them
 * next, as those that are loaded later are.
 *
 * What is counted are offsets: those of records whose transaction aborted are
 * among them, if nobody had looked at them yet.
 *
 * Owns:       lost, losses of a shard.
 * Invariants: I1: every offset that is dropped unsettled is counted in each
 *			   group that has a position below it.  I6: the frontier moves
 *			   upwards.
 * Locks:      with cleanup 'settled' the topic lock, shared, from looking at
 *			   the groups until the segments are freed: so a group that is
 *			   being made, which chooses its start and is put down under the
 *			   same lock, exclusively, either counts, or starts at what is
 *			   left.  Pages are read under it; that is short, and rare.
 *			   For moving groups the topic lock, and under it one shard lock
 *			   at a time.
 * Runs in:    the worker; any backend, by apply_retention.
 * WAL:        storage's; the state pages are written later.
 * On error:   what was dropped is dropped.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/rel.h"
#include "utils/timestamp.h"

#include "base/base_stop.h"
#include "log/log_meta.h"
#include "log/log_segment.h"
#include "queue/queue_deadletter.h"
#include "queue/queue_dirty.h"
#include "queue/queue_retain.h"
#include "queue/queue_state.h"

/* A shard's losses are logged so often at most. */
#define TELL_AFTER		(60 * USECS_PER_SEC)

/* ---------------------------------------------------------- one shard */

/* Members of the settled set below an offset; trims it. */
static uint64
trim_settled(NaradSet *set, NaradOffset below)
{
	uint64		nbefore = set->nmembers;
	NaradOffset first;

	NaradSetTrim(set, below);

	/* Of a run of full chunks the part in the last one stays. */
	first = NaradSetNextMember(set, 0);
	return nbefore - set->nmembers + (first < below ? below - first : 0);
}

/* How many offsets below `start` are not settled. */
static uint64
count_unsettled(NaradShard *shard, NaradOffset start)
{
	NaradSet   *set = &shard->settled;
	NaradOffset first;
	uint64		nsettled;

	/* What may be left below the frontier does not count. */
	(void) trim_settled(set, shard->frontier);
	first = NaradSetNextMember(set, 0);
	nsettled = trim_settled(set, start);
	if (first < shard->frontier)
		nsettled -= shard->frontier - first;
	return start - shard->frontier - nsettled;
}

/* Removes the entries below an offset: by offsets, or all in a row. */
static void
remove_leases(NaradShard *shard, NaradOffset start)
{
	NaradLeaseTable *leases = &shard->leases;
	NaradLease *lease;
	NaradLease *next;
	NaradOffset offset;

	if (start - shard->frontier <= leases->nentries)
	{
		for (offset = shard->frontier; offset < start; offset++)
		{
			lease = NaradLeaseFind(leases, offset);
			if (lease != NULL)
				NaradShardRemoveLease(shard, lease);
		}
		return;
	}
	for (lease = NaradLeaseNext(leases, NULL); lease != NULL; lease = next)
	{
		next = NaradLeaseNext(leases, lease);
		if (lease->offset < start)
			NaradShardRemoveLease(shard, lease);
	}
}

/* Remembers what was jumped over; the oldest is forgotten for it. */
static void
note_loss(NaradShard *shard, NaradOffset first, NaradOffset last)
{
	NaradRange *losses = shard->losses;

	if (shard->nlosses > 0 && losses[shard->nlosses - 1].last + 1 == first)
	{
		losses[shard->nlosses - 1].last = last;
		return;
	}
	if (shard->nlosses == NARAD_MAX_LOSSES)
	{
		shard->nlosses--;
		memmove(losses, losses + 1, shard->nlosses * sizeof(NaradRange));
	}
	losses[shard->nlosses].first = first;
	losses[shard->nlosses].last = last;
	shard->nlosses++;
}

/*
 * NaradShardOvertake
 *
 * Moves a shard to where its partition begins, if it was before.  Returns how
 * many offsets it lost.  Lock held exclusively; no memory, no error.
 */
uint64
NaradShardOvertake(NaradShard *shard, NaradOffset start)
{
	NaradOffset from = shard->frontier;
	uint64		nlost;

	if (start <= from)
		return 0;
	nlost = count_unsettled(shard, start);
	remove_leases(shard, start);
	NaradSetTrim(&shard->pending, start);
	if (nlost > 0)
	{
		NaradDueTrim(&shard->due, start);
		NaradShardDeadlineChanged(shard);
	}
	NaradDeadLetterDropped(shard, start);
	note_loss(shard, from, start - 1);
	shard->lost += nlost;
	shard->lost_untold += nlost;

	/* It begins at the frontier, so this needs no memory. */
	(void) NaradShardSettleRange(shard, from, start - 1);
	return nlost;
}

/*
 * NaradShardDropBelow
 *
 * The same, with the shard lock taken, if the shard is still the group's.
 */
void
NaradShardDropBelow(NaradShard *shard, NaradGroupId group_id,
					NaradOffset start)
{
	LWLockAcquire(&shard->lock, LW_EXCLUSIVE);
	if (NaradShardIsOf(shard, group_id))
		(void) NaradShardOvertake(shard, start);
	LWLockRelease(&shard->lock);
}

/*
 * NaradShardWasOvertaken
 *
 * Was an offset below the frontier among those that were jumped over?  It may
 * have been settled before.  Lock held.
 */
bool
NaradShardWasOvertaken(const NaradShard *shard, NaradOffset offset)
{
	int			i;

	for (i = 0; i < shard->nlosses; i++)
	{
		if (shard->losses[i].first <= offset &&
			offset <= shard->losses[i].last)
			return true;
	}
	return false;
}

/*
 * NaradRetainReportLoss
 *
 * Tells the operator what a group has lost.  No narad lock held.
 */
void
NaradRetainReportLoss(const char *topic, const char *group, int partition,
					  uint64 nlost)
{
	ereport(LOG,
			(errmsg("retention dropped " UINT64_FORMAT " messages of partition %d of topic \"%s\" that group \"%s\" had not settled",
					nlost, partition, topic, group),
			 errdetail("The group goes on at the earliest message of the partition.")));
}

/* ------------------------------------------------ what groups have settled */

/* What a pass knows of the groups. */
typedef struct SettledPass
{
	Relation	rel;
	const NaradRelInfo *info;
	NaradOffset *settled;		/* by partition */
	bool	   *is_candidate;	/* has something that could be freed */
	bool		any_group;		/* one that counts */
} SettledPass;

/* Has the group a page in a partition that is no candidate? */
static bool
has_page_elsewhere(SettledPass *pass, const NaradGroupEntry *group)
{
	NaradRelInfo info = *pass->info;
	NaradStateFigures page;
	bool		damaged;
	int			i;

	for (i = 0; i < info.npartitions; i++)
	{
		if (!pass->is_candidate[i] &&
			(NaradStatePeek(pass->rel, &info, group, i, &page, &damaged) ||
			 damaged))
			return true;
	}
	return false;
}

/*
 * Brings one group's frontiers into the minimum, if it counts.  A page that
 * is damaged says nothing: nothing is settled there.
 */
static void
take_group(SettledPass *pass, const NaradGroupEntry *group)
{
	NaradRelInfo info = *pass->info;
	int			n = info.npartitions;
	NaradOffset *frontiers = palloc0(n * sizeof(NaradOffset));
	bool		counts = false;
	int			i;

	for (i = 0; i < n; i++)
	{
		NaradStateFigures page;
		bool		damaged;
		bool		found;

		if (!pass->is_candidate[i])
			continue;
		found = NaradStatePeek(pass->rel, &info, group, i, &page, &damaged);
		if (found)
			frontiers[i] = page.frontier;
		counts |= found || damaged;
	}
	if (counts || has_page_elsewhere(pass, group))
	{
		pass->any_group = true;
		for (i = 0; i < n; i++)
			pass->settled[i] = Min(pass->settled[i], frontiers[i]);
	}
	pfree(frontiers);
}

/*
 * By partition, palloc'ed: everything below is settled by all groups that
 * count.  The topic lock is held.
 */
static NaradOffset *
find_settled(Relation rel, const NaradRelInfo *info)
{
	SettledPass pass;
	NaradGroupEntry *groups;
	int			ngroups;
	int			ncandidates = 0;
	int			i;

	pass.rel = rel;
	pass.info = info;
	pass.any_group = false;
	pass.settled = palloc(info->npartitions * sizeof(NaradOffset));
	pass.is_candidate = palloc(info->npartitions * sizeof(bool));
	for (i = 0; i < info->npartitions; i++)
	{
		pass.settled[i] = NARAD_INVALID_OFFSET;
		pass.is_candidate[i] = NaradRetainHasSealed(info->shared, i);
		ncandidates += pass.is_candidate[i];
	}
	if (ncandidates > 0)
	{
		groups = NaradGroupList(rel, &ngroups);
		for (i = 0; i < ngroups; i++)
			take_group(&pass, &groups[i]);
		pfree(groups);
	}
	if (!pass.any_group)
		memset(pass.settled, 0, info->npartitions * sizeof(NaradOffset));
	pfree(pass.is_candidate);
	return pass.settled;
}

/*
 * Frees, with what all groups have settled.  Where there is no memory for the
 * topic, whose lock keeps groups from being made meanwhile, that is left out.
 */
static void
free_settled(Relation rel, NaradRelInfo *info, NaradRetainPolicy *policy,
			 NaradRetainResult *result)
{
	NaradQueueTopic *topic = NaradQueueTopicTryGet(rel, info);
	NaradOffset *settled;

	if (topic == NULL)
	{
		NaradRetainFree(rel, info, policy, result);
		return;
	}
	LWLockAcquire(&topic->lock, LW_SHARED);
	settled = find_settled(rel, info);
	policy->settled = settled;
	NaradRetainFree(rel, info, policy, result);
	LWLockRelease(&topic->lock);
	policy->settled = NULL;
	pfree(settled);
}

/* ------------------------------------------------------ moving the groups */

/* A loss to be logged. */
typedef struct Loss
{
	char		group[NAMEDATALEN];
	int			partition;
	uint64		nlost;
} Loss;

/*
 * Moves a shard, if it is the group's, and returns what is to be logged of
 * its losses, if that is asked for: all that were not, but not too often.
 */
static uint64
overtake_shard(NaradShard *shard, NaradGroupId group_id, NaradOffset start,
			   bool tell)
{
	int64		now = NaradClockNow();
	uint64		untold = 0;

	LWLockAcquire(&shard->lock, LW_EXCLUSIVE);
	if (NaradShardIsOf(shard, group_id))
	{
		(void) NaradShardOvertake(shard, start);
		if (tell && shard->lost_untold > 0 &&
			(shard->lost_told_at == 0 ||
			 now - shard->lost_told_at >= TELL_AFTER))
		{
			untold = shard->lost_untold;
			shard->lost_untold = 0;
			shard->lost_told_at = now;
		}
	}
	LWLockRelease(&shard->lock);
	return untold;
}

/* Moves a group's shards that are in memory; the topic lock is held. */
static List *
overtake_group(NaradLogTopic *topic, NaradGroup *group, bool tell,
			   List *losses)
{
	int			i;

	for (i = 0; i < NaradArrayLength(&group->shards); i++)
	{
		NaradShard *shard = NaradArrayGet(&group->shards, i);
		NaradLogPartition *part = NaradLogPartitionFind(topic, i);
		uint64		nlost;
		Loss	   *loss;

		if (shard == NULL || part == NULL)
			continue;
		nlost = overtake_shard(shard, group->group_id,
							   pg_atomic_read_u64(&part->start_offset), tell);
		if (nlost == 0)
			continue;
		loss = palloc(sizeof(Loss));
		strlcpy(loss->group, group->name, NAMEDATALEN);
		loss->partition = i;
		loss->nlost = nlost;
		losses = lappend(losses, loss);
	}
	return losses;
}

/*
 * Moves all groups that are in memory to where the partitions begin; what that
 * costs them is told now, or the next time.
 */
static void
overtake_groups(Relation rel, const NaradRelInfo *info, bool tell)
{
	NaradQueueTopic *topic = NaradQueueTopicFind(info->topic_id);
	List	   *losses = NIL;
	ListCell   *cell;
	dlist_iter	iter;

	if (topic == NULL)
		return;
	LWLockAcquire(&topic->lock, LW_SHARED);
	dlist_foreach(iter, &topic->groups)
	{
		NaradGroup *group = dlist_container(NaradGroup, node, iter.cur);

		if (!group->dropped)
			losses = overtake_group(info->shared, group, tell, losses);
	}
	LWLockRelease(&topic->lock);
	foreach(cell, losses)
	{
		const Loss *loss = lfirst(cell);

		NaradRetainReportLoss(RelationGetRelationName(rel), loss->group,
							  loss->partition, loss->nlost);
	}
	list_free_deep(losses);
}

/* ---------------------------------------------------------------- the whole */

/* What the settings say. */
static void
fill_policy(const NaradTopicSettings *settings, NaradRetainPolicy *policy)
{
	memset(policy, 0, sizeof(NaradRetainPolicy));
	policy->now = GetCurrentTimestamp();
	policy->segment_age = settings->segment_age;
	policy->retention = settings->retention;
	policy->retention_bytes = settings->retention_bytes;
	policy->dedup_window = settings->dedup_window;
}

/*
 * NaradQueueRetainPeek
 *
 * When there may be something to do for a topic; any lock.
 */
TimestampTz
NaradQueueRetainPeek(Relation rel, NaradRelInfo *info)
{
	NaradTopicSettings settings = *NaradTopicSettingsGet(rel);
	NaradRelInfo own_info = *info;
	NaradRetainPolicy policy;

	fill_policy(&settings, &policy);
	return NaradRetainPeek(rel, &own_info, &policy, settings.cleanup_settled);
}

static void
free_due(Relation rel, NaradRelInfo *info, bool drops_settled,
		 NaradRetainPolicy *policy, NaradRetainResult *result)
{
	if (drops_settled)
		free_settled(rel, info, policy, result);
	else
		NaradRetainFree(rel, info, policy, result);
}

/*
 * NaradQueueRetain
 *
 * Retention of one topic, by its settings.  See queue_retain.h.
 *
 * Sealing takes room on the disk, and perhaps memory.  What can be freed goes
 * before: so a full disk does not keep retention from making room.
 */
void
NaradQueueRetain(Relation rel, const NaradRelInfo *info,
				 NaradRetainResult *result)
{
	NaradTopicSettings settings = *NaradTopicSettingsGet(rel);
	bool		drops_settled = settings.cleanup_settled;
	NaradRelInfo own_info = *info;
	NaradRetainPolicy policy;
	int			nfreed = result->nfreed;

	Assert(info->shared != NULL);
	fill_policy(&settings, &policy);
	pg_atomic_write_u32(&own_info.shared->drops_settled, drops_settled);

	NARAD_STOP("retain-begun");
	free_due(rel, &own_info, drops_settled, &policy, result);
	if (result->nfreed > nfreed)
		overtake_groups(rel, &own_info, false);

	if (NaradRetainRoll(rel, &own_info, &policy, result))
	{
		NARAD_STOP("retain-rolled");
		free_due(rel, &own_info, drops_settled, &policy, result);
	}
	NARAD_STOP("retain-freed");
	if (result->nfreed > nfreed)
		overtake_groups(rel, &own_info, true);
}

/* Does a sealed segment end in (was, frontier]? */
static bool
segment_ends_between(NaradLogPartition *part, NaradOffset was,
					 NaradOffset frontier)
{
	int			last;
	bool		found;

	LWLockAcquire(&part->map_lock, LW_SHARED);
	last = NaradSegmentSearch(part->map, part->nmap, frontier);
	found = last > 0 && part->map[last].first_offset > was;
	LWLockRelease(&part->map_lock);
	return found;
}

/*
 * NaradQueueRetainSettled
 *
 * A group's page in a partition has a new frontier.  See queue_retain.h.
 *
 * Only the page that comes to be past a segment's end asks: if that stays for
 * another reason, each page after it would ask in vain.  It need not be the
 * oldest segment's: a look under way may be about to free that, by what the
 * page said before.  Whatever else it waits for asks by itself: another group's
 * page; a group that is made, or dropped; a time, or the end of a transaction,
 * which the look that is asked for here finds out, and has the worker look
 * again.
 */
void
NaradQueueRetainSettled(const NaradRelInfo *info, int partition,
						NaradOffset was, NaradOffset frontier)
{
	NaradLogPartition *part = NaradLogPartitionFind(info->shared, partition);

	if (part == NULL || pg_atomic_read_u32(&info->shared->drops_settled) == 0)
		return;
	if (segment_ends_between(part, was, frontier))
		NaradRetainWant(info->shared);
}

/*
 * NaradQueueRetainGroups
 *
 * A group was made, or dropped.  See queue_retain.h.
 */
void
NaradQueueRetainGroups(const NaradRelInfo *info)
{
	if (pg_atomic_read_u32(&info->shared->drops_settled) != 0)
		NaradRetainWant(info->shared);
}
