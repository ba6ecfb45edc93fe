/*-------------------------------------------------------------------------
 *
 * log_find.c
 *	  Offsets of a partition by time and by epoch; extensions since a time.
 *
 * Times do not fall within a partition, and neither do epochs, so both are
 * binary searches: over the partition's segments, whose directory entries
 * have the last time and the epoch, and for a time over the pages of one
 * segment, whose special spaces have the time they count from.  The pages
 * read are O(log n).  On a standby, where no list of segments is in memory,
 * one pass over the directory comes first: a page for each hundred segments.
 *
 * Owns:       nothing.
 * Invariants: I1: a record appended at or after the time, of an open
 *			   transaction too, is never below the offset found, for what is
 *			   looked at is where records lie, and not what became of them.
 *			   I11: pages that cannot be read are stepped over to the next
 *			   that can: what they held is lost anyway.
 * Locks:      one buffer share lock at a time; the map lock and the tail
 *			   lock, shared, for moments.
 * Runs in:    any backend, on a primary and on a standby.
 * WAL:        none.
 * On error:   nothing to undo.  A damaged directory page is XX001.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/rel.h"

#include "log/log_find.h"
#include "log/log_meta.h"
#include "log/log_page.h"

#define NO_PAGE			PG_UINT32_MAX

typedef struct Finder
{
	Relation	rel;
	NaradTopicId topic_id;
	int			partition;
	NaradLogPartition *part;	/* NULL: from the pages alone */
	NaradOffset end;			/* read first of all, if there is part */
	NaradSegmentRef *refs;		/* all segments, in order */
	int			nrefs;
	PGAlignedBlock page;		/* last one probed */
} Finder;

/* A copy of the partition's map; memory is got without the lock. */
static void
copy_map(Finder *finder)
{
	NaradLogPartition *part = finder->part;
	uint32		capacity = 64;

	for (;;)
	{
		finder->refs = palloc_extended(capacity * sizeof(NaradSegmentRef),
									   MCXT_ALLOC_HUGE);
		LWLockAcquire(&part->map_lock, LW_SHARED);
		finder->nrefs = part->nmap;
		if (finder->nrefs <= capacity)
			memcpy(finder->refs, part->map,
				   finder->nrefs * sizeof(NaradSegmentRef));
		LWLockRelease(&part->map_lock);
		if (finder->nrefs <= capacity)
			return;
		pfree(finder->refs);
		capacity = finder->nrefs + 8;
	}
}

static void
begin_finder(Finder *finder, Relation rel, NaradRelInfo *info, int partition)
{
	if (info->shared == NULL && !RecoveryInProgress())
		info = NaradRelInfoAttach(rel);
	Assert(partition >= 0 && partition < info->npartitions);
	finder->rel = rel;
	finder->topic_id = info->topic_id;
	finder->partition = partition;
	finder->part = NULL;
	finder->end = NARAD_INVALID_OFFSET;
	if (info->shared == NULL)
	{
		finder->refs = NaradSegmentList(rel, info->segment_pages, partition,
										&finder->nrefs);
		return;
	}
	finder->part = NaradLogPartitionGet(info->shared, partition);
	finder->end = pg_atomic_read_u64(&finder->part->end_offset);
	/* Pairs with the writer's: the map has what lies below the end. */
	pg_read_barrier();
	copy_map(finder);
}

/* False if the segment's place has been given to another meanwhile. */
static bool
read_segment(Finder *finder, int i, NaradSegmentEntry *entry)
{
	const NaradSegmentRef *ref = &finder->refs[i];

	NaradSegmentReadEntry(finder->rel, ref, entry);
	return (entry->state == NARAD_SEGMENT_OPEN ||
			entry->state == NARAD_SEGMENT_SEALED) &&
		entry->partition == ref->partition &&
		entry->sequence == ref->sequence;
}

/*
 * Pages of a segment that are in use; *exact unless they are those prepared,
 * of which the ones in use come first.
 */
static uint32
used_pages(Finder *finder, int i, bool *exact)
{
	NaradLogPartition *part = finder->part;
	NaradSegmentEntry entry;
	uint32		npages = NO_PAGE;

	*exact = true;
	if (part != NULL)
	{
		LWLockAcquire(&part->tail_lock, LW_SHARED);
		if (part->has_open && part->open.sequence == finder->refs[i].sequence)
			npages = part->next_page;
		LWLockRelease(&part->tail_lock);
		if (npages != NO_PAGE)
			return npages;
	}
	if (!read_segment(finder, i, &entry))
		return 0;
	*exact = entry.state == NARAD_SEGMENT_SEALED;
	npages = *exact ? entry.pages_used : entry.pages_prepared;
	return Min(npages, finder->refs[i].npages);
}

static NaradPageStatus
probe_page(Finder *finder, int i, uint32 page_no)
{
	const NaradSegmentRef *ref = &finder->refs[i];

	return NaradDataPageCopy(finder->rel, ref->first_block + page_no, NULL,
							 finder->topic_id, ref, true,
							 (Page) finder->page.data, NULL, NULL);
}

/*
 * The first readable page from page_no on, below `high`, into `page`; or
 * `high`.
 */
static uint32
next_page(Finder *finder, int i, uint32 page_no, uint32 high, bool exact)
{
	for (; page_no < high; page_no++)
	{
		NaradPageStatus status;

		CHECK_FOR_INTERRUPTS();
		status = probe_page(finder, i, page_no);
		if (status == NARAD_PAGE_OK)
			return page_no;
		if (status == NARAD_PAGE_OTHER && !exact)
			break;				/* not in use, nor are those behind */
	}
	return high;
}

/* The last readable page that begins before a time, or NO_PAGE. */
static uint32
last_page_before(Finder *finder, int i, int64 time, uint32 npages, bool exact)
{
	uint32		low = 0;
	uint32		high = npages;
	uint32		best = NO_PAGE;

	while (low < high)
	{
		uint32		mid = low + (high - low) / 2;
		uint32		at = next_page(finder, i, mid, high, exact);

		if (at < high &&
			NaradDataPageSpecial(finder->page.data)->base_time < time)
		{
			best = at;
			low = at + 1;
		}
		else
			high = mid;
	}
	return best;
}

/*
 * The first record on the page at hand that is at or past a time; false if
 * there is none, and *offset is then one past the last.
 */
static bool
search_items(Finder *finder, int64 time, NaradOffset *offset)
{
	Page		page = (Page) finder->page.data;
	const NaradDataSpecial *special = NaradDataPageSpecial(page);
	OffsetNumber item;

	*offset = special->base_offset;
	for (item = NaradFirstRecordItem(page);
		 item <= PageGetMaxOffsetNumber(page); item++)
	{
		NaradRecordHeader *hdr = (NaradRecordHeader *)
		PageGetItem(page, PageGetItemId(page, item));

		*offset = NaradHeaderOffset(special, hdr);
		if (NaradHeaderTime(special, hdr) >= time)
			return true;
		(*offset)++;
	}
	return false;
}

/* The first record of a segment at or past a time; false if none is there. */
static bool
search_segment(Finder *finder, int i, int64 time, NaradOffset *offset)
{
	bool		exact;
	uint32		npages = used_pages(finder, i, &exact);
	uint32		best = last_page_before(finder, i, time, npages, exact);
	uint32		next = 0;

	if (best != NO_PAGE)
	{
		if (probe_page(finder, i, best) == NARAD_PAGE_OK &&
			search_items(finder, time, offset))
			return true;
		next = best + 1;
	}
	if (next_page(finder, i, next, npages, exact) == npages)
		return false;
	*offset = NaradDataPageSpecial(finder->page.data)->base_offset;
	return true;
}

/* The end of the partition: in memory, or from its last segment. */
static NaradOffset
find_end(Finder *finder)
{
	NaradSegmentEntry entry;
	NaradMetaData meta;
	NaradOffset end = 0;
	uint32		npages;
	uint32		last;
	bool		exact;

	if (finder->part != NULL)
		return finder->end;
	if (finder->nrefs == 0)
	{
		if (NaradMetaRead(finder->rel, &meta))
			end = NaradMetaStartOffsets(finder->rel, &meta)[finder->partition];
		return end;
	}
	if (read_segment(finder, finder->nrefs - 1, &entry) &&
		entry.state == NARAD_SEGMENT_SEALED)
		return entry.end_offset;
	npages = used_pages(finder, finder->nrefs - 1, &exact);
	last = last_page_before(finder, finder->nrefs - 1, PG_INT64_MAX, npages,
							exact);
	if (last == NO_PAGE ||
		probe_page(finder, finder->nrefs - 1, last) != NARAD_PAGE_OK)
		return finder->refs[finder->nrefs - 1].first_offset;
	(void) search_items(finder, PG_INT64_MAX, &end);
	return end;
}

/* The first segment that may have a record at or past a time, or nrefs. */
static int
first_segment_since(Finder *finder, int64 time)
{
	int			low = 0;
	int			high = finder->nrefs;

	while (low < high)
	{
		int			mid = low + (high - low) / 2;
		NaradSegmentEntry entry;

		CHECK_FOR_INTERRUPTS();
		if (!read_segment(finder, mid, &entry) ||
			(entry.state == NARAD_SEGMENT_SEALED && entry.last_time < time))
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

/*
 * NaradOffsetForTime
 *
 * The offset of the first record appended at or after a time, or the
 * partition's end as it was at the call.  The caller keeps the relation
 * locked and holds no narad lock; info is that of a file that is not empty.
 * Errors XX001 when an entry's directory page is damaged.
 */
NaradOffset
NaradOffsetForTime(Relation rel, NaradRelInfo *info, int partition,
				   TimestampTz time)
{
	Finder	   *finder = palloc(sizeof(Finder));
	NaradOffset offset;
	int			low;

	begin_finder(finder, rel, info, partition);
	low = first_segment_since(finder, time);

	/* Damage may have taken what the entry speaks of: then what follows. */
	if (low < finder->nrefs && search_segment(finder, low, time, &offset))
		offset = Min(offset, finder->end);
	else if (low + 1 < finder->nrefs)
		offset = Min(finder->refs[low + 1].first_offset, finder->end);
	else
		offset = find_end(finder);
	pfree(finder->refs);
	pfree(finder);
	return offset;
}

/*
 * NaradOffsetForEpoch
 *
 * The end offset of the largest epoch at or below the given one; false if no
 * segment is of such an epoch.  A segment is of one epoch.  As
 * NaradOffsetForTime.
 */
bool
NaradOffsetForEpoch(Relation rel, NaradRelInfo *info, int partition,
					uint32 epoch, NaradOffset *offset)
{
	Finder	   *finder = palloc(sizeof(Finder));
	bool		found;
	int			low = 0;
	int			high;

	begin_finder(finder, rel, info, partition);
	high = finder->nrefs;
	while (low < high)
	{
		int			mid = low + (high - low) / 2;
		NaradSegmentEntry entry;

		CHECK_FOR_INTERRUPTS();
		if (!read_segment(finder, mid, &entry) || entry.epoch <= epoch)
			low = mid + 1;
		else
			high = mid;
	}
	found = low > 0;
	if (found)
		*offset = low < finder->nrefs ?
			Min(finder->refs[low].first_offset, finder->end) :
			find_end(finder);
	pfree(finder->refs);
	pfree(finder);
	return found;
}

/* Calls back for the extensions on the page at hand. */
static void
visit_page(Finder *finder, int64 time, NaradExtraVisitor visit, void *arg)
{
	Page		page = (Page) finder->page.data;
	const NaradDataSpecial *special = NaradDataPageSpecial(page);

	for (OffsetNumber item = NaradFirstRecordItem(page);
		 item <= PageGetMaxOffsetNumber(page); item++)
	{
		ItemId		lp = PageGetItemId(page, item);
		NaradRecordHeader *hdr = (NaradRecordHeader *) PageGetItem(page, lp);
		NaradRecordExtra extra;

		if ((hdr->flags & NARAD_RECORD_EXT) == 0 ||
			(hdr->flags & NARAD_RECORD_DEAD) != 0 ||
			NaradHeaderTime(special, hdr) < time ||
			!NaradRecordExtraGet((char *) hdr, ItemIdGetLength(lp), &extra))
			continue;
		visit(&extra, finder->partition, NaradHeaderOffset(special, hdr),
			  NaradHeaderTime(special, hdr), arg);
	}
}

/*
 * NaradExtrasSince
 *
 * Calls back for each record with an extension appended at or after a time,
 * up to the partition's end as it was at the call, or further.  What lies on
 * damaged pages is left out (I11).  As NaradOffsetForTime; visit may error.
 */
void
NaradExtrasSince(Relation rel, NaradRelInfo *info, int partition,
				 TimestampTz time, NaradExtraVisitor visit, void *arg)
{
	Finder	   *finder = palloc(sizeof(Finder));

	begin_finder(finder, rel, info, partition);
	for (int i = first_segment_since(finder, time); i < finder->nrefs; i++)
	{
		bool		exact;
		uint32		npages = used_pages(finder, i, &exact);
		uint32		at = last_page_before(finder, i, time, npages, exact);

		if (at == NO_PAGE)
			at = 0;
		while ((at = next_page(finder, i, at, npages, exact)) < npages)
		{
			visit_page(finder, time, visit, arg);
			at++;
		}
	}
	pfree(finder->refs);
	pfree(finder);
}
