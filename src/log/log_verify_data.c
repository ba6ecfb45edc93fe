/*-------------------------------------------------------------------------
 *
 * log_verify_data.c
 *	  Looking at data pages: every record of every segment.
 *
 * Owns:       nothing; fills ends.
 * Invariants: I3: what became of a record is asked under the share lock of its
 *			   page, and only a record whose transaction committed has to be
 *			   complete.  I11.
 *			   How many pages of an open segment are in use is read before
 *			   they are; where no memory says so (on a standby, or before the
 *			   first use of the topic), those up to the last one that is
 *			   found are.  A finding counts only if the segment is still in
 *			   its place afterwards.
 * Locks:      one buffer share lock at a time; the tail lock, shared, for
 *			   moments.
 * Runs in:    any backend, on a primary and on a standby.
 * WAL:        none.
 * On error:   nothing to undo.
 *
 * A page is first looked at past the buffer pool, where damage has no side
 * effects, and only then read as any reader does.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/rel.h"

#include "log/log_meta.h"
#include "log/log_page.h"
#include "log/log_record.h"
#include "log/log_verify.h"

/* A walk over the segments of one partition, in order. */
typedef struct DataWalk
{
	NaradVerify *verify;
	const NaradVerifySegment *segment;
	BufferAccessStrategy strategy;
	NaradOffset next;			/* no offset from here on may be lower */
	int64		time;			/* nor any time */

	/* The large record that the next page may continue. */
	bool		cont_known;		/* false behind a page that was not read */
	bool		cont_open;
	NaradOffset cont_offset;
	uint32		cont_have;
	uint32		cont_total;

	uint8		states[NARAD_MAX_ITEMS + 1];	/* NaradRecordState of items */
	bool		too_old[NARAD_MAX_ITEMS + 1];	/* xmin should be frozen */
	PGAlignedBlock page;
} DataWalk;

/* An entry of a directory page; false if that cannot be read, or is none. */
static bool
look_at_entry(DataWalk *walk, BlockNumber block, int index,
			  NaradSegmentEntry *entry)
{
	PGAlignedBlock copy;

	if (!NaradPageCopyChecked(walk->verify->rel, block, copy.data) ||
		!NaradVerifyIsKind(walk->verify, copy.data, NARAD_PAGE_DIRECTORY))
		return false;
	*entry = ((const NaradSegmentEntry *)
			  PageGetContents((Page) copy.data))[index];
	return true;
}

/* Is the slot of a segment still split, if that can be read? */
static bool
slot_stays_split(DataWalk *walk, const NaradSegmentRef *ref)
{
	uint32		pages = walk->verify->meta.segment_pages;
	uint32		slot = NaradSlotOfBlock(ref->first_block, pages);
	NaradSegmentEntry entry;

	return !look_at_entry(walk, NaradSlotDirectoryBlock(slot, pages),
						  slot % NARAD_ENTRIES_PER_PAGE, &entry) ||
		entry.state == NARAD_SEGMENT_SPLIT;
}

/*
 * Does the segment still lie where it did, if that can be read?  What described
 * it in a split slot may be a data page by now.
 */
static bool
segment_stays(DataWalk *walk)
{
	const NaradSegmentRef *ref = &walk->segment->ref;
	NaradSegmentEntry found;
	const NaradSegmentEntry *entry = &found;

	if (!look_at_entry(walk, ref->dir_block, ref->dir_index, &found))
		return ref->size_class == NARAD_CLASS_WHOLE ||
			slot_stays_split(walk, ref);
	return (entry->state == NARAD_SEGMENT_OPEN ||
			entry->state == NARAD_SEGMENT_SEALED) &&
		entry->partition == ref->partition &&
		entry->sequence == ref->sequence;
}

/* A finding about the segment at hand; text is complete. */
static void
find(DataWalk *walk, NaradOffset offset, BlockNumber block, const char *text)
{
	if (segment_stays(walk))
		NaradVerifyFind(walk->verify, NARAD_SEVERITY_ERROR,
						walk->segment->ref.partition, offset, block,
						"%s", text);
}

/* ---- records --------------------------------------------------------- */

/* Visitor: what became of the records, under the page's lock. */
static void
ask_states(Page page, void *arg)
{
	DataWalk   *walk = arg;
	TransactionId last_xmin = InvalidTransactionId;
	uint8		state = NARAD_STATE_DEAD;
	bool		too_old = false;

	for (OffsetNumber item = NaradFirstRecordItem(page);
		 item <= PageGetMaxOffsetNumber(page); item++)
	{
		NaradRecordHeader *hdr = (NaradRecordHeader *)
		PageGetItem(page, PageGetItemId(page, item));
		bool		is_frozen = (hdr->flags & NARAD_RECORD_VOLATILE) != 0;

		if (is_frozen || hdr->xmin != last_xmin)
		{
			last_xmin = is_frozen ? InvalidTransactionId : hdr->xmin;
			state = NaradRecordStateNow(hdr);
			too_old = !is_frozen &&
				TransactionIdPrecedes(hdr->xmin, walk->verify->relfrozenxid);
		}
		walk->states[item] = state;
		walk->too_old[item] = too_old;
	}
}

/* The contents of a committed record (I11). */
static void
verify_contents(DataWalk *walk, BlockNumber block, OffsetNumber item,
				NaradOffset offset, int64 time)
{
	Page		page = (Page) walk->page.data;
	ItemId		lp = PageGetItemId(page, item);
	NaradRecordHeader *hdr = (NaradRecordHeader *) PageGetItem(page, lp);
	uint32		crc;

	if (hdr->flags & NARAD_RECORD_LARGE)
	{
		HeapTuple	tuple = NaradLargeToTuple(walk->verify->rel,
											  &walk->segment->ref, block, page,
											  item, walk->strategy, &crc);

		if (tuple == NULL)
		{
			find(walk, offset, block, "large record is not complete");
			return;
		}
		pfree(tuple);
	}
	else
		crc = NaradRecordCrc((char *) hdr, ItemIdGetLength(lp), NULL, 0,
							 walk->segment->ref.partition, offset, time);
	if (crc != hdr->crc)
		find(walk, offset, block, "record fails its checksum");
}

/* Notes that the pages that follow continue a record. */
static void
begin_continuation(DataWalk *walk, BlockNumber block, OffsetNumber item,
				   NaradOffset offset)
{
	Page		page = (Page) walk->page.data;
	ItemId		lp = PageGetItemId(page, item);

	walk->cont_known = true;
	walk->cont_offset = offset;
	walk->cont_have = ItemIdGetLength(lp);
	walk->cont_total = ((NaradLargePart *)
						(PageGetItem(page, lp) +
						 sizeof(NaradRecordHeader)))->total_len;
	walk->cont_open = walk->cont_have < walk->cont_total;
	if (!walk->cont_open || item != PageGetMaxOffsetNumber(page))
		find(walk, offset, block, "large record does not go on behind its page");
}

static void
verify_record(DataWalk *walk, BlockNumber block, OffsetNumber item)
{
	const NaradSegmentEntry *entry = &walk->segment->entry;
	Page		page = (Page) walk->page.data;
	ItemId		lp = PageGetItemId(page, item);
	NaradRecordHeader *hdr = (NaradRecordHeader *) PageGetItem(page, lp);
	NaradOffset offset = NaradHeaderOffset(NaradDataPageSpecial(page), hdr);
	int64		time = NaradHeaderTime(NaradDataPageSpecial(page), hdr);

	if (offset < walk->next || offset > NARAD_MAX_OFFSET)
		find(walk, offset, block, "offset is not above the one before");
	if (time < walk->time)
		find(walk, offset, block, "time is before that of the record before");
	if (entry->state == NARAD_SEGMENT_SEALED && offset >= entry->end_offset)
		find(walk, offset, block, "offset is not below the end of the segment");
	if (entry->state == NARAD_SEGMENT_SEALED && time > entry->last_time)
		find(walk, offset, block, "time is after the last one of the segment");
	walk->next = Max(walk->next, offset + 1);
	walk->time = Max(walk->time, time);

	if (walk->too_old[item])
		find(walk, offset, block, "transaction of record is older than relfrozenxid");
	if ((hdr->flags & NARAD_RECORD_DEAD) != 0 &&
		((hdr->flags & NARAD_RECORD_FROZEN) != 0 ||
		 (entry->flags & NARAD_SEGMENT_ALL_COMMITTED) != 0))
		find(walk, offset, block, "record is marked as dead, and as committed");
	if (NaradRecordHeadLength((char *) hdr, ItemIdGetLength(lp)) == 0)
	{
		find(walk, offset, block, "record header makes no sense");
		return;
	}
	if (hdr->flags & NARAD_RECORD_LARGE)
		begin_continuation(walk, block, item, offset);
	if (walk->states[item] == NARAD_STATE_COMMITTED)
		verify_contents(walk, block, item, offset, time);
}

/* ---- pages ----------------------------------------------------------- */

/* Item 1 of a page that continues a record of the pages before. */
static void
verify_continuation(DataWalk *walk, BlockNumber block)
{
	Page		page = (Page) walk->page.data;
	const NaradDataSpecial *special = NaradDataPageSpecial(page);
	uint32		len = 0;

	if (PageGetMaxOffsetNumber(page) >= FirstOffsetNumber)
		len = ItemIdGetLength(PageGetItemId(page, FirstOffsetNumber));
	if (len == 0 || special->cont_offset >= special->base_offset)
		find(walk, special->cont_offset, block,
			 "page continues a record with nothing, or one that comes later");
	else if (walk->cont_known &&
			 (!walk->cont_open || walk->cont_offset != special->cont_offset ||
			  walk->cont_have != special->cont_pos ||
			  len > walk->cont_total - walk->cont_have))
		find(walk, special->cont_offset, block,
			 "page does not continue the record of the page before");
	else if (walk->cont_known)
	{
		walk->cont_have += len;
		walk->cont_open = walk->cont_have < walk->cont_total;
		return;
	}

	/* Whether it ends here can be told only if something follows. */
	walk->cont_known = PageGetMaxOffsetNumber(page) > FirstOffsetNumber;
	walk->cont_open = false;
}

/* Items are placed downward, each below the one before. */
static void
verify_items(DataWalk *walk, BlockNumber block)
{
	Page		page = (Page) walk->page.data;
	uint32		upper = ((PageHeader) page)->pd_special;

	for (OffsetNumber item = FirstOffsetNumber;
		 item <= PageGetMaxOffsetNumber(page); item++)
	{
		ItemId		lp = PageGetItemId(page, item);

		if (ItemIdGetOffset(lp) + ItemIdGetLength(lp) > upper)
		{
			find(walk, NARAD_INVALID_OFFSET, block, "items of page overlap");
			return;
		}
		upper = ItemIdGetOffset(lp);
	}
}

/* A page of the segment, in walk->page, with states. */
static void
verify_page(DataWalk *walk, BlockNumber block)
{
	Page		page = (Page) walk->page.data;
	const NaradDataSpecial *special = NaradDataPageSpecial(page);

	if (special->base_offset < walk->next)
		find(walk, special->base_offset, block,
			 "page begins at an offset that was there before");
	if (special->base_time < walk->time)
		find(walk, special->base_offset, block,
			 "page begins at a time before the last record's");
	verify_items(walk, block);
	if (special->cont_offset != NARAD_INVALID_OFFSET)
		verify_continuation(walk, block);
	else
	{
		/* A record that was not finished is one whose transaction aborted. */
		walk->cont_known = true;
		walk->cont_open = false;
	}
	for (OffsetNumber item = NaradFirstRecordItem(page);
		 item <= PageGetMaxOffsetNumber(page); item++)
		verify_record(walk, block, item);
}

/* Copies a page of the segment; what is found wrong is in *problem. */
static NaradPageStatus
copy_page(DataWalk *walk, BlockNumber block, const char **problem)
{
	const NaradSegmentRef *ref = &walk->segment->ref;
	NaradVerify *verify = walk->verify;
	NaradPageStatus status;

	*problem = "page fails its checksum or has a damaged header";
	if (!NaradPageCopyChecked(verify->rel, block, walk->page.data))
		return NaradDamagedPageClassify(walk->page.data,
										verify->meta.topic_id, ref);
	*problem = PageIsNew((Page) walk->page.data) ? "page is all zeros" :
		"page is not one of the segment";
	status = NaradDataPageCopy(verify->rel, block, walk->strategy,
							   verify->meta.topic_id, ref, true,
							   (Page) walk->page.data, ask_states, walk);
	if (status == NARAD_PAGE_DAMAGED)
		*problem = "page is no sound data page";
	return status;
}

/*
 * Pages of the segment to look at: those in use, if *exact; else those that
 * may be, of which the ones in use come first.
 */
static uint32
pages_to_verify(DataWalk *walk, bool *exact)
{
	const NaradVerifySegment *segment = walk->segment;
	NaradLogTopic *shared = walk->verify->shared;
	uint32		npages = 0;
	bool		is_open = false;

	*exact = true;
	if (segment->entry.state == NARAD_SEGMENT_SEALED)
		return segment->entry.pages_used;
	if (shared != NULL)
	{
		NaradLogPartition *part = NaradLogPartitionFind(shared,
														segment->ref.partition);

		if (part != NULL)
		{
			LWLockAcquire(&part->tail_lock, LW_SHARED);
			is_open = part->has_open &&
				part->open.sequence == segment->ref.sequence;
			if (is_open)
				npages = part->next_page;
			LWLockRelease(&part->tail_lock);
		}
		if (is_open)
			return npages;
	}
	*exact = false;
	return segment->entry.pages_prepared;
}

/* The pages [from, to) are not what they must be. */
static void
find_bad_run(DataWalk *walk, uint32 from, uint32 to, const char *problem)
{
	BlockNumber first = walk->segment->ref.first_block;

	walk->cont_known = false;
	for (; from < to; from++)
	{
		CHECK_FOR_INTERRUPTS();
		find(walk, walk->next, first + from, problem);
	}
}

static void
verify_segment(DataWalk *walk)
{
	NaradVerify *verify = walk->verify;
	const NaradVerifySegment *segment = walk->segment;
	BlockNumber first = segment->ref.first_block;
	BlockNumber nblocks = RelationGetNumberOfBlocks(verify->rel);
	bool		exact;
	uint32		npages = pages_to_verify(walk, &exact);
	uint32		unused_from = npages;	/* pages not in use, if not exact */
	uint32		page_no;

	if (segment->entry.first_offset < walk->next)
		find(walk, segment->entry.first_offset, first,
			 "segment begins at an offset that was there before");
	for (page_no = 0; page_no < npages && first + page_no < nblocks; page_no++)
	{
		const char *problem;
		NaradPageStatus status;

		CHECK_FOR_INTERRUPTS();
		status = copy_page(walk, first + page_no, &problem);
		if (status == NARAD_PAGE_OTHER && !exact)
		{
			unused_from = Min(unused_from, page_no);
			continue;
		}
		if (status != NARAD_PAGE_OK)
		{
			find_bad_run(walk, page_no, page_no + 1, problem);
			continue;
		}
		if (unused_from < page_no)
			find_bad_run(walk, unused_from, page_no,
						 "page is not one of the segment");
		unused_from = npages;
		verify_page(walk, first + page_no);
	}

	/* Prepared pages may be missing after a power failure, not used ones. */
	if (page_no < npages && exact)
	{
		walk->cont_known = false;
		find(walk, walk->next, first + page_no,
			 "pages of the segment lie past the end of the file");
	}
	if (segment->entry.state == NARAD_SEGMENT_SEALED)
	{
		walk->next = Max(walk->next, segment->entry.end_offset);
		walk->time = Max(walk->time, segment->entry.last_time);
	}
}

/*
 * NaradVerifyData
 *
 * Looks at all pages of all segments, partition by partition.
 */
void
NaradVerifyData(NaradVerify *verify)
{
	DataWalk   *walk = palloc0(sizeof(DataWalk));
	int			partition = -1;
	int			i;

	walk->verify = verify;
	walk->strategy = GetAccessStrategy(BAS_BULKREAD);
	for (i = 0; i < verify->nsegments; i++)
	{
		const NaradVerifySegment *segment = &verify->segments[i];

		if (segment->entry.state == NARAD_SEGMENT_SPARE)
			continue;
		if (segment->entry.partition != partition)
		{
			partition = segment->entry.partition;
			walk->next = 0;
			walk->time = PG_INT64_MIN;
			/* What was before may be gone by retention. */
			walk->cont_known = segment->entry.sequence == 0;
			walk->cont_open = false;
		}
		walk->segment = segment;
		verify_segment(walk);
		verify->ends[partition] = Max(verify->ends[partition],
									  Max(walk->next,
										  segment->entry.first_offset));
	}
	FreeAccessStrategy(walk->strategy);
	pfree(walk);
}
