/*-------------------------------------------------------------------------
 *
 * log_freeze.c
 *	  Freezing: records that outlive the commit log.
 *
 * A record names the transaction that wrote it, and the server forgets
 * transactions.  Before it does VACUUM comes by, and sees to it that nobody
 * has to ask any more.  A sealed segment all of whose records are old enough
 * gets a flag in its directory entry; of its pages only those change that hold
 * records of aborted transactions, which are marked dead for good.  From then
 * on VACUUM does not look at its pages.  Where old records share a segment
 * with younger ones, the old ones are marked one by one, if relfrozenxid has
 * to move; the entry then says how old the rest is.
 *
 * The open segment's records are marked, too.  It is not sealed for that: the
 * next one would have to be opened, which takes room on the disk, and many a
 * VACUUM FREEZE would leave as many nearly empty segments.
 *
 * Owns:       flags of records on data pages; flags of sealed entries.
 * Invariants: I3.  The pages first, then the entry, then (in log_vacuum.c)
 *             relfrozenxid, and all in the WAL in that order: whatever a
 *             crash leaves of it is true, and can be done again.  A record is
 *             marked under its page's exclusive lock, so a reader who asks
 *             about xids under the share lock sees the mark, or is done before
 *             the commit log can be cut off.
 *             What is frozen cannot be undone by a crash: commits that were
 *             not waited for are flushed first.
 *             I11.  A segment with a page that cannot be read is not frozen,
 *             for it may hold what should be marked dead.
 * Locks:      one data buffer exclusively; for the open segment's entry the
 *             tail lock, then the directory buffer.
 * Runs in:    VACUUM, on a primary.
 * WAL:        FREEZE, one a page; FREEZE_SEGMENT.
 * On error:   what was done stays.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xlog.h"
#include "commands/vacuum.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/rel.h"

#include "base/base_compat.h"
#include "base/base_stop.h"
#include "log/log_events.h"
#include "log/log_freeze.h"
#include "log/log_hull.h"
#include "log/log_page.h"
#include "log/log_producer.h"
#include "log/log_xlog.h"

/* Pages read between two calls of poll: 4 GB, as core's VACUUM has it. */
#define POLL_PAGES \
	((BlockNumber) (((uint64) 4 * 1024 * 1024 * 1024) / BLCKSZ))

#define NOTHING_LEFT	PG_UINT64_MAX

/* What is to be marked on a page. */
#define MARK_DEAD		0x01
#define MARK_FROZEN		0x02

typedef struct FreezeSegment
{
	NaradSegmentRef ref;
	NaradSegmentEntry entry;
} FreezeSegment;

/* What the pages of one segment hold. */
typedef struct FreezePlan
{
	NaradFreeze *freeze;
	const NaradSegmentRef *ref;
	uint32		npages;
	uint8	   *marks;			/* of each page: MARK_* that it needs */
	uint64		oldest_left;	/* of the records that are too young, or
								 * NOTHING_LEFT */
	TransactionId horizon;		/* newest of those visible to all, or invalid */
	XLogRecPtr	flush_upto;		/* newest commit among these */
	uint64		ncommitted;		/* frozen, before or now */
	uint64		ndead;			/* same */
	uint32		ndamaged;
	BlockNumber damaged_block;	/* the first of them */
	PGAlignedBlock copy;
} FreezePlan;

/* Segments to be frozen, and what the walk over the directory collects. */
typedef struct FreezeList
{
	NaradFreeze *freeze;
	FreezeSegment *segments;
	int			nsegments;
	int			capacity;
} FreezeList;

/* An xid of a record, with its epoch. */
static inline uint64
full_xid(const NaradFreeze *freeze, TransactionId xid)
{
	return freeze->next + (int64) (int32) (xid - (TransactionId) freeze->next);
}

static void
keep_oldest(NaradFreeze *freeze, uint64 oldest)
{
	freeze->oldest = Min(freeze->oldest, oldest);
}

static NaradLogPartition *
partition_of(NaradFreeze *freeze, const NaradSegmentRef *ref)
{
	NaradLogTopic *shared = freeze->info.shared;

	return shared != NULL ?
		NaradLogPartitionFind(shared, ref->partition) : NULL;
}

static void
count_read(NaradFreeze *freeze)
{
	NaradCompatVacuumDelay();
	if (++freeze->npages_read % POLL_PAGES == 0)
		freeze->poll(freeze->arg);
}

/* ---- looking --------------------------------------------------------- */

/*
 * What freezing makes of a record: marks it needs.  0 if it has them, or is
 * too young.  The topic's relfrozenxid keeps the status of xmin.
 */
static uint8
marks_of_record(const NaradFreeze *freeze, const NaradRecordHeader *hdr)
{
	if ((hdr->flags & NARAD_RECORD_VOLATILE) != 0 ||
		!TransactionIdPrecedes(hdr->xmin, freeze->limit))
		return 0;
	return TransactionIdDidCommit(hdr->xmin) ? MARK_FROZEN : MARK_DEAD;
}

/* Adds one record to the plan; false if its xmin cannot be. */
static bool
plan_record(FreezePlan *plan, const NaradRecordHeader *hdr, uint8 *marks)
{
	const NaradFreeze *freeze = plan->freeze;
	uint8		mark;

	if (hdr->flags & NARAD_RECORD_DEAD)
		plan->ndead++;
	else if (hdr->flags & NARAD_RECORD_FROZEN)
		plan->ncommitted++;
	else if (TransactionIdPrecedes(hdr->xmin, freeze->relfrozenxid))
		return false;
	else if (!TransactionIdPrecedes(hdr->xmin, freeze->limit))
		plan->oldest_left = Min(plan->oldest_left,
								full_xid(freeze, hdr->xmin));
	else
	{
		mark = marks_of_record(freeze, hdr);
		*marks |= mark;
		if (mark == MARK_DEAD)
			plan->ndead++;
		else
		{
			plan->ncommitted++;
			plan->flush_upto = Max(plan->flush_upto,
								   TransactionIdGetCommitLSN(hdr->xmin));
			if (!TransactionIdIsValid(plan->horizon) ||
				TransactionIdPrecedes(plan->horizon, hdr->xmin))
				plan->horizon = hdr->xmin;
		}
	}
	return true;
}

static void
plan_page(FreezePlan *plan, uint32 page_no)
{
	NaradFreeze *freeze = plan->freeze;
	BlockNumber block = plan->ref->first_block + page_no;
	Page		page = (Page) plan->copy.data;
	bool		is_sound;

	count_read(freeze);
	is_sound = NaradDataPageCopy(freeze->rel, block, freeze->strategy,
								 freeze->info.topic_id, plan->ref, true, page,
								 NULL, NULL) == NARAD_PAGE_OK;
	for (OffsetNumber item = is_sound ? NaradFirstRecordItem(page) : 1;
		 is_sound && item <= PageGetMaxOffsetNumber(page); item++)
		is_sound = plan_record(plan, (NaradRecordHeader *)
							   PageGetItem(page, PageGetItemId(page, item)),
							   &plan->marks[page_no]);
	if (!is_sound && plan->ndamaged++ == 0)
		plan->damaged_block = block;
}

/* Looks at the first pages of a segment. */
static FreezePlan *
make_plan(NaradFreeze *freeze, const NaradSegmentRef *ref, uint32 npages)
{
	FreezePlan *plan = palloc(sizeof(FreezePlan));

	memset(plan, 0, offsetof(FreezePlan, copy));
	plan->freeze = freeze;
	plan->ref = ref;
	plan->npages = npages;
	plan->marks = palloc_extended(Max(npages, 1),
								  MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	plan->oldest_left = NOTHING_LEFT;
	plan->horizon = InvalidTransactionId;
	plan->flush_upto = InvalidXLogRecPtr;
	for (uint32 page_no = 0; page_no < npages; page_no++)
		plan_page(plan, page_no);
	return plan;
}

static void
free_plan(FreezePlan *plan)
{
	pfree(plan->marks);
	pfree(plan);
}

/* Is the segment gone, or given to another since it was looked at? */
static bool
is_gone(NaradFreeze *freeze, const NaradSegmentRef *ref,
		NaradSegmentEntry *entry)
{
	NaradSegmentReadEntry(freeze->rel, ref, entry);
	return (entry->state != NARAD_SEGMENT_OPEN &&
			entry->state != NARAD_SEGMENT_SEALED) ||
		entry->partition != ref->partition ||
		entry->sequence != ref->sequence;
}

/*
 * A segment with damaged pages is left alone: relfrozenxid cannot pass what it
 * may hold.
 */
static void
leave_damaged(FreezePlan *plan)
{
	NaradFreeze *freeze = plan->freeze;
	NaradSegmentEntry entry;

	if (is_gone(freeze, plan->ref, &entry))
		return;
	keep_oldest(freeze, entry.oldest_xid);
	freeze->ndamaged++;
	ereport(WARNING,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("segment " UINT64_FORMAT " of partition %u of topic \"%s\" is not frozen, as it is damaged",
					plan->ref->sequence, plan->ref->partition,
					RelationGetRelationName(freeze->rel)),
			 errdetail("%u of its pages are damaged, the first being block %u.",
					   plan->ndamaged, plan->damaged_block)));
}

/* ---- marking --------------------------------------------------------- */

/* Marks what needs it on a page; false if that is not there any more. */
static bool
mark_page(FreezePlan *plan, uint32 page_no, uint8 wanted)
{
	NaradFreeze *freeze = plan->freeze;
	OffsetNumber items[NARAD_MAX_ITEMS];
	OffsetNumber frozen[NARAD_MAX_ITEMS];
	TransactionId horizon = InvalidTransactionId;
	int			ndead = 0;
	int			nfrozen = 0;
	Buffer		buffer;
	Page		page;

	buffer = NaradReadBufferCareful(freeze->rel,
									plan->ref->first_block + page_no,
									freeze->strategy);
	if (!BufferIsValid(buffer))
		return false;
	LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
	page = BufferGetPage(buffer);
	if (NaradDataPageClassify(page, freeze->info.topic_id,
							  plan->ref) != NARAD_PAGE_OK)
	{
		UnlockReleaseBuffer(buffer);
		return false;
	}

	for (OffsetNumber item = NaradFirstRecordItem(page);
		 item <= PageGetMaxOffsetNumber(page); item++)
	{
		NaradRecordHeader *hdr = (NaradRecordHeader *)
		PageGetItem(page, PageGetItemId(page, item));
		uint8		mark = marks_of_record(freeze, hdr) & wanted;

		if (mark == MARK_DEAD)
			items[ndead++] = item;
		else if (mark == MARK_FROZEN)
		{
			frozen[nfrozen++] = item;
			if (!TransactionIdIsValid(horizon) ||
				TransactionIdPrecedes(horizon, hdr->xmin))
				horizon = hdr->xmin;
		}
	}
	memcpy(items + ndead, frozen, nfrozen * sizeof(OffsetNumber));

	if (ndead + nfrozen > 0)
	{
		START_CRIT_SECTION();
		NaradDataPageFreeze(page, items, ndead, nfrozen);
		MarkBufferDirty(buffer);
		NaradXLogFreeze(freeze->rel, buffer, items, ndead, nfrozen, horizon);
		END_CRIT_SECTION();
		freeze->ndead += ndead;
		freeze->npages_written++;
	}
	UnlockReleaseBuffer(buffer);
	return true;
}

/*
 * Marks the pages that need it; false if one is not there any more.  Readers
 * take what is frozen for flushed, so commits are, before.
 */
static bool
mark_pages(FreezePlan *plan, uint8 wanted)
{
	if (!XLogRecPtrIsInvalid(plan->flush_upto))
		XLogFlush(plan->flush_upto);
	for (uint32 page_no = 0; page_no < plan->npages; page_no++)
	{
		if ((plan->marks[page_no] & wanted) == 0)
			continue;
		NaradCompatVacuumDelay();
		if (!mark_page(plan, page_no, wanted))
		{
			plan->ndamaged++;
			plan->damaged_block = plan->ref->first_block + page_no;
			return false;
		}
		NARAD_STOP("freeze-page");
	}
	return true;
}

/* ---- segments -------------------------------------------------------- */

/* All its records are old: the flag says so, for good. */
static void
freeze_whole(FreezePlan *plan)
{
	NaradFreeze *freeze = plan->freeze;
	NaradLogPartition *part = partition_of(freeze, plan->ref);
	uint16		flags = NARAD_SEGMENT_FROZEN;
	NaradSegmentEntry entry;

	if (!mark_pages(plan, MARK_DEAD))
	{
		leave_damaged(plan);
		return;
	}
	if (plan->ndead == 0)
		flags |= NARAD_SEGMENT_ALL_COMMITTED;
	else if (plan->ncommitted == 0)
		flags |= NARAD_SEGMENT_ALL_DEAD;
	if (is_gone(freeze, plan->ref, &entry))
		return;
	flags |= entry.flags;

	NARAD_STOP("freeze-segment");
	if (!NaradSegmentFreeze(freeze->rel, plan->ref, flags, entry.oldest_xid,
							plan->horizon))
	{
		if (!is_gone(freeze, plan->ref, &entry))
			keep_oldest(freeze, entry.oldest_xid);
		return;
	}
	if (part != NULL)
		NaradLogPartitionSetFlags(part, plan->ref->sequence, flags);
	freeze->nfrozen++;
}

/*
 * Some are young: the old ones are marked, and the entry says how old the rest
 * is, at most `bound`.  Of an open segment under the tail lock.
 */
static void
freeze_part(FreezePlan *plan, uint64 bound)
{
	NaradFreeze *freeze = plan->freeze;
	NaradLogPartition *part = partition_of(freeze, plan->ref);
	Buffer		directory;

	if (!mark_pages(plan, MARK_DEAD | MARK_FROZEN))
	{
		leave_damaged(plan);
		return;
	}
	bound = Min(bound, plan->oldest_left);

	/* Pinned: nothing is read under the tail lock. */
	directory = ReadBuffer(freeze->rel, plan->ref->dir_block);
	if (part != NULL)
		LWLockAcquire(&part->tail_lock, LW_EXCLUSIVE);
	(void) NaradSegmentFreeze(freeze->rel, plan->ref, 0, bound,
							  InvalidTransactionId);
	if (part != NULL)
		LWLockRelease(&part->tail_lock);
	ReleaseBuffer(directory);
	keep_oldest(freeze, bound);
	freeze->npartial++;
}

static void
freeze_sealed(NaradFreeze *freeze, const FreezeSegment *segment)
{
	FreezePlan *plan;

	if (!freeze->aggressive && segment->entry.newest_xid >= freeze->full_limit)
	{
		keep_oldest(freeze, segment->entry.oldest_xid);
		return;
	}
	plan = make_plan(freeze, &segment->ref, Min(segment->entry.pages_used,
												segment->ref.npages));
	if (plan->ndamaged > 0)
		leave_damaged(plan);
	else if (plan->oldest_left == NOTHING_LEFT)
		freeze_whole(plan);
	else
		freeze_part(plan, NOTHING_LEFT);
	free_plan(plan);
}

/* Is it open?  Then *npages are those in use. */
static bool
is_still_open(NaradLogPartition *part, const NaradSegmentRef *ref,
			  uint32 *npages)
{
	bool		is_open;

	LWLockAcquire(&part->tail_lock, LW_SHARED);
	is_open = part->has_open && part->open.sequence == ref->sequence;
	*npages = part->next_page;
	LWLockRelease(&part->tail_lock);
	return is_open;
}

/*
 * The open segment.  What is appended while it is looked at is of
 * transactions that run by now, or later.
 */
static void
freeze_open(NaradFreeze *freeze, FreezeSegment *segment)
{
	NaradLogPartition *part = partition_of(freeze, &segment->ref);
	uint64		running = NaradOldestRunningXid();
	FreezePlan *plan;
	uint32		npages;

	if (!freeze->aggressive || part == NULL)
	{
		keep_oldest(freeze, segment->entry.oldest_xid);
		freeze->nunattached += freeze->aggressive;
		return;
	}
	if (!is_still_open(part, &segment->ref, &npages))
	{
		/* Sealed meanwhile, or gone. */
		if (!is_gone(freeze, &segment->ref, &segment->entry))
			freeze_sealed(freeze, segment);
		return;
	}
	plan = make_plan(freeze, &segment->ref, npages);
	if (plan->ndamaged > 0)
		leave_damaged(plan);
	else
		freeze_part(plan, running);
	free_plan(plan);
}

/* Visitor: counts, and collects what has something to be frozen. */
static void
collect_segment(const NaradSegmentEntry *entry, const NaradSegmentRef *ref,
				void *arg)
{
	FreezeList *list = arg;
	NaradFreeze *freeze = list->freeze;

	if (entry->state != NARAD_SEGMENT_OPEN &&
		entry->state != NARAD_SEGMENT_SEALED)
		return;
	freeze->nsegments++;
	if (entry->flags & NARAD_SEGMENT_FROZEN)
	{
		NaradLogPartition *part = partition_of(freeze, ref);

		/* Memory may have been short when it was frozen. */
		if (part != NULL)
			NaradLogPartitionSetFlags(part, ref->sequence, entry->flags);
		freeze->nfrozen_before++;
		return;
	}
	if (entry->oldest_xid >= freeze->full_limit)
	{
		keep_oldest(freeze, entry->oldest_xid);
		return;
	}
	if (list->nsegments == list->capacity)
	{
		list->capacity *= 2;
		list->segments = repalloc_huge(list->segments, (Size) list->capacity *
									   sizeof(FreezeSegment));
	}
	list->segments[list->nsegments].ref = *ref;
	list->segments[list->nsegments++].entry = *entry;
}

/*
 * Before the directory is read: what is opened later holds nothing older than
 * what runs now.  Ended transactions that had been prepared are let go, so
 * that no xid in memory outlives its time.
 */
static void
refresh_partitions(NaradFreeze *freeze)
{
	NaradLogTopic *shared = freeze->info.shared;
	uint64		running = NaradOldestRunningXid();
	int			npartitions;

	if (shared == NULL)
		return;
	npartitions = pg_atomic_read_u32(&shared->npartitions);
	for (int i = 0; i < npartitions; i++)
	{
		NaradLogPartition *part = NaradLogPartitionFind(shared, i);

		if (part == NULL)
			continue;
		NaradHullPoll(part);
		LWLockAcquire(&part->tail_lock, LW_EXCLUSIVE);
		if (part->has_spare)
			part->spare_oldest_xid = Max(part->spare_oldest_xid, running);
		LWLockRelease(&part->tail_lock);
	}
}

/*
 * NaradFreezeTopic
 *
 * Freezes what is before the limit, and finds the oldest transaction that is
 * left anywhere in the file.  The caller holds ShareUpdateExclusiveLock and no
 * narad lock.  Errors when a directory page or the group directory is
 * damaged.
 */
void
NaradFreezeTopic(NaradFreeze *freeze)
{
	FreezeList	list;
	uint64		producers;

	refresh_partitions(freeze);
	list.freeze = freeze;
	list.nsegments = 0;
	list.capacity = 64;
	list.segments = palloc(list.capacity * sizeof(FreezeSegment));
	NaradDirectoryWalk(freeze->rel, freeze->info.segment_pages,
					   collect_segment, &list);
	for (int i = 0; i < list.nsegments; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (list.segments[i].entry.state == NARAD_SEGMENT_OPEN)
			freeze_open(freeze, &list.segments[i]);
		else
			freeze_sealed(freeze, &list.segments[i]);
	}
	pfree(list.segments);

	producers = NaradProducersSettle(freeze->rel, freeze->full_limit);
	if (producers != 0)
		keep_oldest(freeze, producers);
	if (NaradLogEventTable.freeze_states != NULL)
		freeze->oldest =
			NaradLogEventTable.freeze_states(freeze->rel,
											 freeze->info.topic_id,
											 freeze->full_limit,
											 freeze->oldest,
											 &freeze->nstates);
}
