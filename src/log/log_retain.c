/*-------------------------------------------------------------------------
 *
 * log_retain.c
 *	  Retention: sealing what is old, freeing what need not be kept, giving
 *	  the file's end back.
 *
 * What is to be kept comes from the caller as plain values.  Segments are
 * freed whole, from a partition's oldest on, and never its last one: that
 * says where the partition ends and how its next segment is numbered, which
 * so needs no other place, after a crash or on a standby.  An open segment
 * that is old is sealed, and an empty one opened in its stead, so that what a
 * topic at rest holds goes in the end, all of it.
 *
 * A segment may go when no transaction that has a record in it is open, and
 *
 *	- its last record is older than the policy keeps them, or
 *	- what comes after it in its partition is as large as the policy keeps,
 *	  those segments left out in which its last record goes on, or
 *	- everything in it is settled, as far as the caller says, and no
 *	  deduplication id in it is still to be known, or
 *	- there is no record in it that could ever be read.
 *
 * The partition's start in memory is raised first, then entries are freed in
 * the directory, one WAL record for each page of it, and then the map follows.
 * The allocator lock is held over all, so no place is given away that a reader
 * could still find by the map; and who finds a segment's entry freed, or
 * another's page in its place, also sees the start beyond it, and takes nothing
 * that is dropped for dead.
 *
 * Nobody waits for readers: they tell by the sequence on a page, and by the
 * partition's start or the directory's entry read afterwards, what they met.
 *
 * Giving back: the slots behind the last one in use are cut off by core's
 * truncation, if they are a sixteenth of the file or more and
 * AccessExclusiveLock is free.  Spares, and open segments without records,
 * that are in the way are moved before.  A split slot is given up with its last
 * segment, but in a second WAL record, so it may be left without any by a crash
 * or an error in between: who looks for the end frees such slots, wherever they
 * are.
 *
 * Owns:       start_offset, and the beginning of a partition's map.
 * Invariants: I1: what is dropped lies below start_offset, which is how it is
 *			   noticed and counted.  I3, I7: a segment with a record of an open
 *			   transaction is not freed.  I10.
 * Locks:      allocator lock; under it directory buffers, then the tail and
 *			   the map lock for a moment.  AccessExclusiveLock, if it is free,
 *			   for cutting the file.
 * Runs in:    the worker; any backend, by apply_retention.
 * WAL:        META_UPDATE; core's truncation.
 * On error:   what was freed before stays freed.  What could not be freed
 *			   counts as dropped, and is tried again.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "storage/shmem.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "base/base_stop.h"
#include "log/log_append.h"
#include "log/log_events.h"
#include "log/log_hull.h"
#include "log/log_page.h"
#include "log/log_retain.h"

/* Segments freed under one hold of the allocator lock. */
#define FREE_AT_ONCE	64

/* The file is cut for at least this part of it. */
#define GIVE_BACK_PART	16

/*
 * NaradRetainResultInit
 */
void
NaradRetainResultInit(NaradRetainResult *result)
{
	memset(result, 0, sizeof(NaradRetainResult));
	result->next = DT_NOEND;
}

/* When a time is so far past; DT_NOEND beyond all times. */
static TimestampTz
time_after(TimestampTz time, int64 age)
{
	if (time > 0 && age > DT_NOEND - 1 - time)
		return DT_NOEND;
	return time + age;
}

/* When a time must lie before now, to be so far past. */
static TimestampTz
time_before(TimestampTz now, int64 age)
{
	return now < DT_NOBEGIN + 1 + age ? DT_NOBEGIN + 1 : now - age;
}

/*
 * When a sealed segment's last record came.  Where inserters brought times of
 * their own, as a restore does, that is not told by those: what was restored
 * would be dropped at once, before the settings are there.
 */
static TimestampTz
age_from(const NaradSegmentEntry *entry)
{
	return Max(entry->last_time, entry->kept_day * USECS_PER_DAY);
}

/* An open segment is sealed at this age; what it holds is kept as long again. */
static int64
sealing_age(const NaradRetainPolicy *policy)
{
	return Min(policy->segment_age, policy->retention);
}

/* ---- sealing --------------------------------------------------------- */

/*
 * NaradRetainRoll
 *
 * Seals the open segments whose first record is older than segment_age.  See
 * log_retain.h.
 */
bool
NaradRetainRoll(Relation rel, NaradRelInfo *info,
				const NaradRetainPolicy *policy, NaradRetainResult *result)
{
	int64		age = sealing_age(policy);
	TimestampTz before = time_before(policy->now, age);
	bool		rolled = false;
	int			i;

	for (i = 0; i < info->npartitions; i++)
	{
		NaradLogPartition *part = NaradLogPartitionFind(info->shared, i);
		TimestampTz first = DT_NOEND;

		CHECK_FOR_INTERRUPTS();
		if (part == NULL)
			continue;
		rolled |= NaradAppendRoll(rel, info, i, before, false);
		LWLockAcquire(&part->tail_lock, LW_SHARED);
		if (part->has_open && part->next_page > 0)
			first = part->age_from;
		LWLockRelease(&part->tail_lock);
		if (first != DT_NOEND)
			result->next = Min(result->next, time_after(first, age));
	}
	return rolled;
}

/* ---- freeing --------------------------------------------------------- */

/*
 * A partition's oldest segments, but for the last, and the bytes of newer
 * records behind each; how many.  Where a segment's last record goes on, it
 * takes whole segments, and the beginning of one: that one does not count
 * either, whatever else it holds.  Under the allocator lock, so that these
 * stay what they are.
 */
static int
copy_oldest(NaradLogPartition *part, NaradSegmentRef *refs, int64 *nbytes)
{
	int64		npages = 0;		/* of the segments behind the one at hand */
	int64		newer = 0;		/* and of those, what counts for it */
	int			nrefs = 0;
	int			i;

	LWLockAcquire(&part->tail_lock, LW_SHARED);
	LWLockAcquire(&part->map_lock, LW_SHARED);
	if (part->nmap > 1)
		nrefs = Min(part->nmap - 1, FREE_AT_ONCE);
	memcpy(refs, part->map, nrefs * sizeof(NaradSegmentRef));
	for (i = (int) part->nmap - 1; i >= 0; i--)
	{
		const NaradSegmentRef *ref = &part->map[i];
		bool		holds_more = i + 1 == (int) part->nmap ||
		ref[1].first_offset > ref->first_offset;

		if (i < nrefs)
			nbytes[i] = newer * BLCKSZ;

		/* Now for the one before. */
		if (ref->continues && holds_more)
			newer = npages;
		npages += ref->state == NARAD_SEGMENT_SEALED ? ref->pages_used :
			part->next_page;
		if (!ref->continues)
			newer = npages;
	}
	LWLockRelease(&part->map_lock);
	LWLockRelease(&part->tail_lock);
	return nrefs;
}

/*
 * When a segment may go, apart from open transactions; DT_NOBEGIN: whatever
 * the time is.
 */
static TimestampTz
due_at(const NaradRetainPolicy *policy, int partition,
	   const NaradSegmentEntry *entry, int64 newer_bytes)
{
	TimestampTz from = age_from(entry);
	TimestampTz due = time_after(from, policy->retention);

	if ((entry->flags & NARAD_SEGMENT_ALL_DEAD) != 0 ||
		entry->first_offset == entry->end_offset)
		return DT_NOBEGIN;
	if (policy->retention_bytes > 0 && newer_bytes >= policy->retention_bytes)
		return DT_NOBEGIN;
	if (policy->settled == NULL ||
		entry->end_offset > policy->settled[partition])
		return due;
	if ((entry->flags & NARAD_SEGMENT_HAS_IDS) == 0)
		return DT_NOBEGIN;
	return Min(due, time_after(from, policy->dedup_window));
}

/*
 * How many of the oldest segments may go now, under the allocator lock, of those
 * that one directory page describes.  All transactions with a record below
 * `stable` have ended.
 */
static int
count_due(Relation rel, const NaradRetainPolicy *policy, int partition,
		  const NaradSegmentRef *refs, int nrefs, const int64 *newer_bytes,
		  NaradOffset stable, NaradRetainResult *result)
{
	int			n;

	for (n = 0; n < nrefs && refs[n].dir_block == refs[0].dir_block; n++)
	{
		NaradSegmentEntry entry;
		TimestampTz due;

		NaradSegmentReadOwnEntry(rel, &refs[n], &entry);
		if (entry.state != NARAD_SEGMENT_SEALED ||
			entry.partition != partition ||
			entry.sequence != refs[n].sequence)
			break;
		due = due_at(policy, partition, &entry, newer_bytes[n]);
		if (due > policy->now)
		{
			result->next = Min(result->next, due);
			break;
		}
		if (entry.end_offset > stable &&
			entry.end_offset > entry.first_offset)
		{
			result->blocked = true;
			break;
		}
		result->nfreed++;
		result->ndropped += Min(entry.end_offset - entry.first_offset,
								(uint64) entry.pages_used * NARAD_MAX_ITEMS);
	}
	return n;
}

/*
 * Readers come to know that the partition begins behind its n oldest segments,
 * or where it began already: those that a try before could not free may be more.
 * Whoever finds one of these in the map looks at the start afterwards.
 */
static void
raise_start(NaradLogPartition *part, int n)
{
	uint64		start;

	LWLockAcquire(&part->tail_lock, LW_EXCLUSIVE);
	Assert((uint32) n < part->nmap);
	start = Max(pg_atomic_read_u64(&part->start_offset),
				part->map[n].first_offset);
	pg_atomic_write_u64(&part->start_offset, start);
	LWLockRelease(&part->tail_lock);
}

/* They are gone. */
static void
forget_oldest(NaradLogPartition *part, int n)
{
	LWLockAcquire(&part->tail_lock, LW_EXCLUSIVE);
	LWLockAcquire(&part->map_lock, LW_EXCLUSIVE);
	part->nmap -= n;
	memmove(part->map, part->map + n, part->nmap * sizeof(NaradSegmentRef));
	LWLockRelease(&part->map_lock);
	LWLockRelease(&part->tail_lock);
}

/* Some segments were freed: so are slots of which nothing is left. */
static void
free_slots(Relation rel, NaradLogTopic *topic, const NaradSegmentRef *refs,
		   int nrefs)
{
	uint32		last = PG_UINT32_MAX;

	for (int i = 0; i < nrefs; i++)
	{
		uint32		slot = NaradSlotOfBlock(refs[i].first_block,
											topic->segment_pages);

		if (refs[i].size_class != NARAD_CLASS_WHOLE && slot != last)
			NaradSegmentFreeSlot(rel, topic, refs[i].first_block);
		last = slot;
	}
}

/*
 * Frees some of a partition's oldest segments; false if none may go.  They are
 * freed and forgotten together, or an error left them as they were.
 */
static bool
free_oldest(Relation rel, NaradLogTopic *topic, int partition,
			const NaradRetainPolicy *policy, NaradRetainResult *result)
{
	NaradLogPartition *part = NaradLogPartitionFind(topic, partition);
	NaradSegmentRef refs[FREE_AT_ONCE];
	int64		newer_bytes[FREE_AT_ONCE];
	NaradOffset stable;
	int			nrefs;
	int			n;

	/* What is below it stays so: later records come at the end. */
	NaradHullPoll(part);
	stable = NaradHullLastStable(part);

	LWLockAcquire(&topic->alloc_lock, LW_EXCLUSIVE);
	nrefs = copy_oldest(part, refs, newer_bytes);
	n = count_due(rel, policy, partition, refs, nrefs, newer_bytes, stable,
				  result);
	if (n > 0)
	{
		raise_start(part, n);
		NaradSegmentFreeLocked(rel, topic, refs, n);
		NARAD_STOP("retain-entries");
		forget_oldest(part, n);
	}
	LWLockRelease(&topic->alloc_lock);
	free_slots(rel, topic, refs, n);
	return n > 0;
}

/*
 * NaradRetainHasSealed
 *
 * Does a partition have a sealed segment that could be freed?
 */
bool
NaradRetainHasSealed(NaradLogTopic *topic, int partition)
{
	NaradLogPartition *part = NaradLogPartitionFind(topic, partition);
	bool		found;

	if (part == NULL)
		return false;
	LWLockAcquire(&part->map_lock, LW_SHARED);
	found = part->nmap > 1;
	LWLockRelease(&part->map_lock);
	return found;
}

/*
 * NaradRetainFree
 *
 * Frees what the policy does not keep.  See log_retain.h.
 */
void
NaradRetainFree(Relation rel, NaradRelInfo *info,
				const NaradRetainPolicy *policy, NaradRetainResult *result)
{
	int			i;

	for (i = 0; i < info->npartitions; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (!NaradRetainHasSealed(info->shared, i))
			continue;
		while (free_oldest(rel, info->shared, i, policy, result))
			 /* more may be due */ ;
	}
}

/* ---- looking without shared memory ------------------------------------ */

typedef struct PeekState
{
	Relation	rel;
	NaradTopicId topic_id;
	const NaradRetainPolicy *policy;
	bool		drops_settled;
	int			npartitions;
	int64	   *nbytes;			/* by partition; of open ones at most */
	TimestampTz next;
} PeekState;

/* When the first record of an open segment was appended, or DT_NOEND. */
static TimestampTz
first_time(PeekState *peek, const NaradSegmentRef *ref)
{
	PGAlignedBlock copy;

	if (NaradDataPageCopy(peek->rel, ref->first_block, NULL, peek->topic_id,
						  ref, true, (Page) copy.data, NULL,
						  NULL) != NARAD_PAGE_OK)
		return DT_NOEND;
	return NaradDataPageSpecial(copy.data)->base_time;
}

static void
peek_entry(const NaradSegmentEntry *entry, const NaradSegmentRef *ref,
		   void *arg)
{
	PeekState  *peek = arg;
	const NaradRetainPolicy *policy = peek->policy;
	bool		is_sealed = entry->state == NARAD_SEGMENT_SEALED;
	TimestampTz due = DT_NOEND;
	int64	   *nbytes;
	bool		has_others;

	if (entry->partition >= peek->npartitions ||
		(!is_sealed && entry->state != NARAD_SEGMENT_OPEN))
		return;
	nbytes = &peek->nbytes[entry->partition];
	has_others = *nbytes > 0;
	*nbytes += (int64) BLCKSZ * (is_sealed ? entry->pages_used :
								 entry->pages_prepared);
	if (is_sealed)
		due = time_after(age_from(entry), policy->retention);
	else
	{
		due = first_time(peek, ref);
		if (due != DT_NOEND)
			due = time_after(due, sealing_age(policy));
	}
	if ((is_sealed && peek->drops_settled) ||
		((is_sealed || has_others) && policy->retention_bytes > 0 &&
		 *nbytes > policy->retention_bytes))
		due = policy->now;
	peek->next = Min(peek->next, due);
}

/*
 * NaradRetainPeek
 *
 * When there may be something to do.  See log_retain.h.
 */
TimestampTz
NaradRetainPeek(Relation rel, NaradRelInfo *info,
				const NaradRetainPolicy *policy, bool drops_settled)
{
	PeekState	peek;

	peek.rel = rel;
	peek.topic_id = info->topic_id;
	peek.policy = policy;
	peek.drops_settled = drops_settled;
	peek.npartitions = info->npartitions;
	peek.nbytes = palloc0(info->npartitions * sizeof(int64));
	peek.next = DT_NOEND;
	NaradDirectoryWalk(rel, info->segment_pages, peek_entry, &peek);
	pfree(peek.nbytes);
	return peek.next;
}

/* ---- giving back ----------------------------------------------------- */

/* What is at the end of the file. */
typedef struct FileEnd
{
	Relation	rel;
	NaradLogTopic *topic;
	BlockNumber split;			/* the slot looked at, if it is split and no
								 * segment was met in it; or 0 */
	int			npartitions;
	uint32		used;			/* one past the last slot in use ... */
	uint32		fixed;			/* ... by what cannot be moved */
	bool	   *in_the_way;		/* by partition: it has a spare, or an open
								 * segment without records, behind `fixed` of
								 * an earlier look; NULL: not asked */
	uint32		behind;
} FileEnd;

/* Is it an open segment without records? */
static bool
is_empty_open(NaradLogTopic *topic, const NaradSegmentRef *ref)
{
	NaradLogPartition *part = NaradLogPartitionFind(topic, ref->partition);
	bool		is_empty;

	if (part == NULL)
		return false;
	LWLockAcquire(&part->tail_lock, LW_SHARED);
	is_empty = part->has_open && part->next_page == 0 &&
		part->open.first_block == ref->first_block;
	LWLockRelease(&part->tail_lock);
	return is_empty;
}

/* The slot looked at is done with. */
static void
end_slot(FileEnd *end)
{
	if (end->split != 0)
		NaradSegmentFreeSlot(end->rel, end->topic, end->split);
	end->split = 0;
}

/* A split slot's own entry, or one of a segment, those in a split slot behind it. */
static void
look_at_entry(const NaradSegmentEntry *entry, const NaradSegmentRef *ref,
			  void *arg)
{
	FileEnd    *end = arg;
	uint32		slot = NaradSlotOfBlock(ref->first_block,
										end->topic->segment_pages);
	bool		movable = entry->state == NARAD_SEGMENT_SPARE ||
	(entry->state == NARAD_SEGMENT_OPEN &&
	 is_empty_open(end->topic, ref));

	if (end->split != 0 &&
		NaradSlotOfBlock(end->split, end->topic->segment_pages) == slot)
		end->split = 0;
	end_slot(end);
	if (entry->state == NARAD_SEGMENT_SPLIT)
	{
		end->split = ref->first_block;
		return;
	}
	end->used = Max(end->used, slot + 1);
	if (!movable)
		end->fixed = Max(end->fixed, slot + 1);
	if (movable && end->in_the_way != NULL && slot >= end->behind &&
		entry->partition < end->npartitions)
		end->in_the_way[entry->partition] = true;
}

static void
find_end(Relation rel, NaradLogTopic *topic, FileEnd *end)
{
	end->rel = rel;
	end->topic = topic;
	end->split = 0;
	end->used = end->fixed = 0;
	NaradDirectoryWalk(rel, topic->segment_pages, look_at_entry, end);
	end_slot(end);
}

/* Is it worth to cut the file before a slot? */
static bool
is_worth_it(Relation rel, NaradLogTopic *topic, uint32 slot)
{
	BlockNumber nblocks = RelationGetNumberOfBlocks(rel);
	BlockNumber left = NaradSlotFirstBlock(slot, topic->segment_pages);

	return left < nblocks &&
		(uint64) (nblocks - left) * GIVE_BACK_PART >= nblocks;
}

/*
 * Moves an open segment without records, if there is a slot before its own,
 * and gives up a spare.
 */
static void
move_empty(Relation rel, NaradRelInfo *info, int partition)
{
	NaradLogPartition *part = NaradLogPartitionFind(info->shared, partition);
	BlockNumber block = 0;

	if (part == NULL)
		return;
	LWLockAcquire(&part->tail_lock, LW_SHARED);
	if (part->has_open && part->next_page == 0)
		block = part->open.first_block;
	LWLockRelease(&part->tail_lock);
	if (block != 0 && NaradSegmentFreeBefore(rel, info->shared, block))
		(void) NaradAppendRoll(rel, info, partition, DT_NOBEGIN, true);
	NaradAppendDropSpare(rel, info, partition);
}

/*
 * Moves what holds no records and lies behind the first of the slots that
 * could be cut off.
 */
static void
clear_the_way(Relation rel, NaradRelInfo *info, uint32 slot)
{
	NaradLogTopic *topic = info->shared;
	NaradRetainPolicy nothing = {0};
	NaradRetainResult result;
	FileEnd		end = {0};
	int			i;

	end.npartitions = info->npartitions;
	end.in_the_way = palloc0(end.npartitions * sizeof(bool));
	end.behind = slot;
	find_end(rel, topic, &end);
	for (i = 0; i < end.npartitions; i++)
	{
		if (!end.in_the_way[i])
			continue;
		CHECK_FOR_INTERRUPTS();
		move_empty(rel, info, i);
	}
	pfree(end.in_the_way);

	/* The empty segments that were sealed go. */
	nothing.now = DT_NOBEGIN + 1;
	NaradRetainResultInit(&result);
	NaradRetainFree(rel, info, &nothing, &result);
}

/* Cuts the file, if nobody else uses the topic, nor this process. */
static bool
cut_file(Relation rel, NaradLogTopic *topic, bool *again)
{
	FileEnd		end = {0};
	bool		is_cut = false;

	if (rel->rd_refcnt > 1 ||
		!ConditionalLockRelation(rel, AccessExclusiveLock))
	{
		*again = true;
		return false;
	}
	find_end(rel, topic, &end);
	if (is_worth_it(rel, topic, end.used))
	{
		NaradSegmentTruncate(rel, topic, end.used);
		is_cut = true;
	}
	UnlockRelation(rel, AccessExclusiveLock);
	return is_cut;
}

/*
 * NaradRetainGiveBack
 *
 * Gives the end of the file back.  See log_retain.h.
 */
bool
NaradRetainGiveBack(Relation rel, NaradRelInfo *info, bool *again)
{
	NaradLogTopic *topic = info->shared;
	FileEnd		end = {0};

	*again = false;
	find_end(rel, topic, &end);
	if (!is_worth_it(rel, topic, end.fixed))
		return false;
	if (end.used > end.fixed)
		clear_the_way(rel, info, end.fixed);
	NARAD_STOP("retain-cut");
	return cut_file(rel, topic, again);
}

/* ---- telling that there is something to do ---------------------------- */

typedef struct RetainCtl
{
	pg_atomic_uint32 nwanted;	/* times somebody said so */
} RetainCtl;

static RetainCtl *Ctl;

/* Topics to be named at this transaction's commit. */
static NaradTopicId *wanted_topics;
static int	nwanted_topics;

Size
NaradRetainShmemSize(void)
{
	return MAXALIGN(sizeof(RetainCtl));
}

void
NaradRetainShmemInit(void)
{
	bool		found;

	Ctl = ShmemInitStruct("Narad retention", NaradRetainShmemSize(), &found);
	if (!found)
		pg_atomic_init_u32(&Ctl->nwanted, 0);
}

static void
note_wanted(NaradLogTopic *topic)
{
	pg_atomic_write_u32(&topic->retention_wanted, 1);
	pg_atomic_fetch_add_u32(&Ctl->nwanted, 1);
}

/*
 * NaradRetainWant
 *
 * Somebody should look what is to be done for a topic.  No error; may take
 * shared memory, and goes without if there is none.
 */
void
NaradRetainWant(NaradLogTopic *topic)
{
	note_wanted(topic);
	if (NaradLogEventTable.retention_wanted != NULL)
		NaradLogEventTable.retention_wanted(topic->database);
}

/*
 * NaradRetainWantAtCommit
 *
 * The same at the commit of this transaction, which has changed what is to be
 * kept.  What takes memory is done now.
 */
void
NaradRetainWantAtCommit(NaradLogTopic *topic)
{
	MemoryContext old = MemoryContextSwitchTo(TopTransactionContext);

	if (wanted_topics == NULL)
		wanted_topics = palloc(sizeof(NaradTopicId));
	else
		wanted_topics = repalloc(wanted_topics, (nwanted_topics + 1) *
								 sizeof(NaradTopicId));
	wanted_topics[nwanted_topics++] = topic->topic_id;
	MemoryContextSwitchTo(old);
	NaradRetainWant(topic);
}

static void
want_if_named(NaradLogTopic *topic, void *arg)
{
	int			i;

	for (i = 0; i < nwanted_topics; i++)
	{
		if (topic->topic_id == wanted_topics[i])
			note_wanted(topic);
	}
}

/*
 * NaradRetainAtXactEnd
 *
 * From the transaction callbacks: no allocation, no error.
 */
void
NaradRetainAtXactEnd(bool is_commit)
{
	if (nwanted_topics > 0 && is_commit)
	{
		NaradLogTopicWalk(want_if_named, NULL);
		if (NaradLogEventTable.retention_wanted != NULL)
			NaradLogEventTable.retention_wanted(MyDatabaseId);
	}
	wanted_topics = NULL;
	nwanted_topics = 0;
}

/* What NaradRetainTake fills. */
typedef struct TakeState
{
	NaradRetainItem *items;
	int			nitems;
	int			max;
} TakeState;

static void
take_if_wanted(NaradLogTopic *topic, void *arg)
{
	TakeState  *take = arg;

	if (take->nitems == take->max || topic->database != MyDatabaseId ||
		pg_atomic_exchange_u32(&topic->retention_wanted, 0) == 0)
		return;
	take->items[take->nitems].relid = pg_atomic_read_u32(&topic->relid);
	take->items[take->nitems].topic_id = topic->topic_id;
	take->nitems++;
}

/*
 * NaradRetainIsWanted
 *
 * Has anybody said so since this process asked last?
 */
bool
NaradRetainIsWanted(void)
{
	static uint32 seen = 0;
	uint32		nwanted = pg_atomic_read_u32(&Ctl->nwanted);

	if (nwanted == seen)
		return false;
	seen = nwanted;
	return true;
}

/*
 * NaradRetainTake
 *
 * Up to max topics of this database of which that was said; returns how many.
 */
int
NaradRetainTake(NaradRetainItem *items, int max)
{
	TakeState	take = {items, 0, max};

	NaradLogTopicWalk(take_if_wanted, &take);
	return take.nitems;
}
