/*-------------------------------------------------------------------------
 *
 * log_scan.c
 *	  Scans of a topic by the executor: sequential, parallel, sample,
 *	  ANALYZE, and fetching a row by its TID.
 *
 * Owns:       NaradScanDesc.
 * Invariants: I11.  A scan raises the usual error for a page that is damaged,
 *			   and for a record that is and should be visible; ANALYZE steps
 *			   over such records.  A page without records of its segment is
 *			   damaged if others say that it was written: the entry of a
 *			   sealed segment, or in an open one the page behind it.
 *			   I12.  Only pages of this file's topic id count.
 *			   A page is data only if its partition and sequence are those of
 *			   the segment it lies in, from the list of segments made when the
 *			   scan begins; ANALYZE and fetches by TID read the entry.  Either
 *			   way it is read after the snapshot was taken: a slot that is
 *			   given to another segment later holds nothing the snapshot sees.
 *			   So free, recycled and never used slots need no other care.
 *			   Scans by block know no block past the end of the file, and
 *			   those in log order ask for it.
 *			   A listed segment may be freed by retention.  Its entry is read
 *			   again before each page is, so that nobody asks for the status
 *			   of transactions whose records nobody keeps any more, and after
 *			   a page that is not the segment's.  The scan then goes on
 *			   without it, and says so once.
 * Locks:      one buffer share lock at a time; no narad lock, no shared
 *			   memory: the same on a standby.
 * Runs in:    any backend, parallel workers included.
 * On error:   nothing but memory and a reference to the relation is held.
 *
 * Each page is copied, and the visibility of its records found out, under
 * one hold of the share lock; rows are then formed from the copy, in memory
 * of the slot.  A scan holds no pin between calls.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/subtrans.h"
#include "access/transam.h"
#include "access/tsmapi.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/bufmgr.h"
#include "storage/predicate.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "base/base_stop.h"
#include "log/log_page.h"
#include "log/log_record.h"
#include "log/log_scan.h"
#include "log/log_status.h"
#include "log/log_topic.h"

typedef struct NaradScanDesc
{
	TableScanDescData base;		/* must be first */

	bool		is_empty;		/* no metapage when the scan began */
	NaradTopicId topic_id;
	uint32		segment_pages;
	BlockNumber nblocks;		/* when the scan began */
	bool		told_of_loss;
	BufferAccessStrategy strategy;
	ParallelBlockTableScanWorkerData *worker;	/* parallel scans */
	bool		inited;			/* a position in the scan is set */

	/*
	 * All segments, but for ANALYZE: by log order, or by block where the scan
	 * goes by block.  Scans in log order: the one that is being read.
	 */
	NaradSegmentRef *refs;
	int			nrefs;
	int			ref;
	int64		page_no;
	uint32		npages;

	BlockNumber sample_block;	/* sample scans */

	/* Scans by block: the segment met last; npages is 0 before the first. */
	NaradSegmentRef block_ref;
	bool		block_ref_has_rows;

	/* The page at hand, if have_page, and whether its records are wanted. */
	bool		have_page;
	NaradSegmentRef page_ref;
	BlockNumber block;
	int			item;
	int			nitems;
	bool		wanted[NARAD_MAX_ITEMS + 1];
	PGAlignedBlock page;
} NaradScanDesc;

/* What participants of a parallel scan share. */
typedef struct NaradParallelScan
{
	ParallelBlockTableScanDescData base;	/* must be first */
	pg_atomic_uint32 told_of_loss;
} NaradParallelScan;

/* ---- visibility, under the page's share lock ---- */

static void
check_conflict_out(Relation rel, const NaradRecordHeader *hdr,
				   Snapshot snapshot)
{
	TransactionId xid = hdr->xmin;

	if ((hdr->flags & NARAD_RECORD_VOLATILE) ||
		NaradRecordStateNow(hdr) == NARAD_STATE_DEAD)
		return;
	xid = SubTransGetTopmostTransaction(xid);
	if (TransactionIdPrecedes(xid, TransactionXmin))
		return;
	CheckForSerializableConflictOut(rel, xid, snapshot);
}

static NaradRecordHeader *
page_record(Page page, OffsetNumber item)
{
	return (NaradRecordHeader *) PageGetItem(page, PageGetItemId(page, item));
}

/* Visitor: which records of the page the scan's snapshot sees. */
static void
find_visible(Page page, void *arg)
{
	NaradScanDesc *scan = arg;
	Relation	rel = scan->base.rs_rd;
	Snapshot	snapshot = scan->base.rs_snapshot;
	bool		check = CheckForSerializableConflictOutNeeded(rel, snapshot);

	for (OffsetNumber item = NaradFirstRecordItem(page);
		 item <= PageGetMaxOffsetNumber(page); item++)
	{
		NaradRecordHeader *hdr = page_record(page, item);

		scan->wanted[item] = NaradRecordVisible(hdr, snapshot);
		if (check && !scan->wanted[item])
			check_conflict_out(rel, hdr, snapshot);
	}
}

/*
 * Visitor: which records count for statistics.  As in heap, rows of other
 * open transactions are left out, this transaction's are in.
 */
static void
find_live(Page page, void *arg)
{
	NaradScanDesc *scan = arg;

	for (OffsetNumber item = NaradFirstRecordItem(page);
		 item <= PageGetMaxOffsetNumber(page); item++)
	{
		NaradRecordState state = NaradRecordStateNow(page_record(page, item));

		scan->wanted[item] = state == NARAD_STATE_COMMITTED ||
			state == NARAD_STATE_OWN;
	}
}

/* ---- pages ---- */

static void
raise_damaged_page(Relation rel, BlockNumber block)
{
	ereport(ERROR,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("invalid data page in block %u of topic \"%s\"",
					block, RelationGetRelationName(rel))));
}

/* Is the place still the segment's?  If so, the entry as it is now. */
static bool
read_same_segment(Relation rel, uint32 segment_pages,
				  const NaradSegmentRef *ref, BlockNumber block,
				  NaradSegmentEntry *entry)
{
	BlockNumber first_block;

	return NaradSegmentOfBlock(rel, segment_pages, block, entry,
							   &first_block) &&
		(entry->state == NARAD_SEGMENT_OPEN ||
		 entry->state == NARAD_SEGMENT_SEALED) &&
		entry->partition == ref->partition &&
		entry->sequence == ref->sequence;
}

/*
 * Raises an error for a page found to be none of its segment, if it must be
 * one: below the pages used of a sealed segment, or in front of a page that
 * is.  It is looked at once more after that is known, and then the entry, for
 * pages are overwritten when their place has been given away.
 */
static void
check_other_page(Relation rel, NaradTopicId topic_id, uint32 segment_pages,
				 const NaradSegmentRef *ref, BlockNumber block,
				 BufferAccessStrategy strategy)
{
	NaradSegmentEntry entry;
	PGAlignedBlock copy;
	bool		is_written;

	if (ref->state == NARAD_SEGMENT_SEALED)
		is_written = read_same_segment(rel, segment_pages, ref, block,
									   &entry) &&
			entry.state == NARAD_SEGMENT_SEALED &&
			block - ref->first_block < entry.pages_used;
	else
		is_written = block + 1 < ref->first_block + ref->npages &&
			NaradDataPageCopy(rel, block + 1, strategy, topic_id, ref, true,
							  (Page) copy.data, NULL, NULL) == NARAD_PAGE_OK;
	if (is_written &&
		NaradDataPageCopy(rel, block, strategy, topic_id, ref, false,
						  (Page) copy.data, NULL, NULL) != NARAD_PAGE_OK &&
		read_same_segment(rel, segment_pages, ref, block, &entry))
		raise_damaged_page(rel, block);
}

/*
 * Retention has freed a segment that the snapshot may have seen records of:
 * the scan goes on behind it.
 */
static void
lose_segment(NaradScanDesc *scan, const NaradSegmentRef *ref)
{
	NaradParallelScan *parallel = (NaradParallelScan *) scan->base.rs_parallel;
	bool		told = scan->told_of_loss;

	scan->npages = 0;
	scan->block_ref_has_rows = false;
	scan->told_of_loss = true;
	if (parallel != NULL)
		told = pg_atomic_exchange_u32(&parallel->told_of_loss, 1) != 0;
	if (told || (scan->base.rs_flags & SO_TYPE_ANALYZE) != 0)
		return;
	ereport(WARNING,
			(errcode(ERRCODE_WARNING),
			 errmsg("retention has dropped records of topic \"%s\" that the query would have read",
					RelationGetRelationName(scan->base.rs_rd)),
			 errdetail("Partition %u, from offset " UINT64_FORMAT " on.",
					   ref->partition, ref->first_offset)));
}

/* Makes a block of a segment the page at hand; false if it holds no rows. */
static bool
load_segment_page(NaradScanDesc *scan, const NaradSegmentRef *ref,
				  BlockNumber block, NaradPageVisitor visit)
{
	Relation	rel = scan->base.rs_rd;
	Page		page = (Page) scan->page.data;
	NaradPageStatus status;

	CHECK_FOR_INTERRUPTS();
	scan->have_page = false;
	scan->nitems = 0;
	memset(scan->wanted, 0, sizeof(scan->wanted));
	if (scan->refs != NULL && !NaradSegmentIsThere(rel, ref))
	{
		lose_segment(scan, ref);
		return false;
	}
	NARAD_STOP("scan-page");
	status = NaradDataPageCopy(rel, block, scan->strategy, scan->topic_id,
							   ref, false, page, visit, scan);
	if (status == NARAD_PAGE_DAMAGED)
		raise_damaged_page(rel, block);
	if (status != NARAD_PAGE_OK)
	{
		check_other_page(rel, scan->topic_id, scan->segment_pages, ref, block,
						 scan->strategy);
		if (scan->refs != NULL && !NaradSegmentIsThere(rel, ref))
			lose_segment(scan, ref);
		return false;
	}
	scan->page_ref = *ref;
	scan->block = block;
	scan->nitems = PageGetMaxOffsetNumber(page);
	scan->have_page = true;
	return true;
}

/*
 * The segment in which a block lies, and whether it may hold rows.  For a
 * block of none ref->npages is 0.
 */
static bool
find_block_segment(Relation rel, uint32 segment_pages, BlockNumber block,
				   NaradSegmentRef *ref)
{
	NaradSegmentEntry entry;

	memset(ref, 0, sizeof(*ref));
	if (!NaradSegmentOfBlock(rel, segment_pages, block, &entry,
							 &ref->first_block))
		return false;
	ref->partition = entry.partition;
	ref->sequence = entry.sequence;
	ref->state = entry.state;
	ref->flags = entry.flags;
	ref->size_class = entry.size_class;
	ref->npages = NaradClassPages(entry.size_class, segment_pages);
	if (entry.size_class == NARAD_CLASS_WHOLE)
	{
		uint32		slot = NaradSlotOfBlock(block, segment_pages);

		ref->dir_block = NaradSlotDirectoryBlock(slot, segment_pages);
		ref->dir_index = slot % NARAD_ENTRIES_PER_PAGE;
	}
	return entry.state == NARAD_SEGMENT_OPEN ||
		entry.state == NARAD_SEGMENT_SEALED;
}

/* The same, from the list of segments by block. */
static bool
find_listed_segment(NaradScanDesc *scan, BlockNumber block,
					NaradSegmentRef *ref)
{
	int			low = 0;
	int			high = scan->nrefs;

	while (low < high)
	{
		int			mid = low + (high - low) / 2;

		if (scan->refs[mid].first_block <= block)
			low = mid + 1;
		else
			high = mid;
	}
	if (low > 0 && block - scan->refs[low - 1].first_block <
		scan->refs[low - 1].npages)
	{
		*ref = scan->refs[low - 1];
		return true;
	}
	memset(ref, 0, sizeof(*ref));
	return false;
}

/* As load_segment_page for any block of the file. */
static bool
load_block(NaradScanDesc *scan, BlockNumber block, NaradPageVisitor visit)
{
	NaradSegmentRef *ref = &scan->block_ref;

	scan->have_page = false;
	scan->nitems = 0;
	if (block < ref->first_block || block - ref->first_block >= ref->npages)
		scan->block_ref_has_rows = scan->refs != NULL ?
			find_listed_segment(scan, block, ref) :
			find_block_segment(scan->base.rs_rd, scan->segment_pages, block,
							   ref);
	return scan->block_ref_has_rows &&
		load_segment_page(scan, ref, block, visit);
}

/* ---- rows ---- */

static void
raise_damaged_record(Relation rel, int partition, NaradOffset offset,
					 bool is_complete, uint32 stored, uint32 computed)
{
	if (!is_complete)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("missing continuation in topic \"%s\", partition %d, offset " UINT64_FORMAT,
						RelationGetRelationName(rel), partition, offset)));
	ereport(ERROR,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("checksum mismatch in topic \"%s\", partition %d, offset " UINT64_FORMAT,
					RelationGetRelationName(rel), partition, offset),
			 errdetail("Stored %08X, computed %08X.", stored, computed)));
}

/*
 * Did a record of a copy commit, whose page is no longer locked?
 */
static bool
has_committed(const NaradRecordHeader *hdr)
{
	NaradRecordState state;

	NaradStatusLock();
	state = NaradRecordStateNow(hdr);
	NaradStatusUnlock();
	return state == NARAD_STATE_COMMITTED;
}

/* Does a dirty snapshot see such a record?  Its answer is left in it. */
static bool
is_seen_dirty(const NaradRecordHeader *hdr, Snapshot snapshot)
{
	bool		is_seen;

	NaradStatusLock();
	is_seen = NaradRecordVisible(hdr, snapshot);
	NaradStatusUnlock();
	return is_seen;
}

/*
 * The row of an item of a page copy, in the current memory context.  NULL if
 * it is not all there and need not be, or is damaged and damage_ok.
 */
static HeapTuple
form_row(Relation rel, const NaradSegmentRef *ref, BlockNumber block,
		 Page page, OffsetNumber item, BufferAccessStrategy strategy,
		 bool damage_ok)
{
	NaradRecordHeader *hdr = page_record(page, item);
	NaradDataSpecial *special = NaradDataPageSpecial(page);
	NaradOffset offset = NaradHeaderOffset(special, hdr);
	int64		time = NaradHeaderTime(special, hdr);
	uint32		len = ItemIdGetLength(PageGetItemId(page, item));
	uint32		crc;
	ItemPointerData tid;
	HeapTuple	tuple = NULL;
	NaradSegmentEntry entry;

	if (hdr->flags & NARAD_RECORD_LARGE)
	{
		tuple = NaradLargeToTuple(rel, ref, block, page, item, strategy, &crc);
		if (tuple == NULL)
		{
			/*
			 * Legal, unless its transaction committed, and its pages have not
			 * been given away meanwhile.
			 */
			if (!damage_ok && has_committed(hdr) &&
				read_same_segment(rel, NaradRelInfoGet(rel)->segment_pages,
								  ref, block, &entry))
				raise_damaged_record(rel, ref->partition, offset, false, 0, 0);
			return NULL;
		}
		if (crc != hdr->crc)
		{
			pfree(tuple);
			tuple = NULL;
		}
	}
	else
	{
		ItemPointerSet(&tid, block, item);
		crc = NaradRecordCrc((char *) hdr, len, NULL, 0, ref->partition,
							 offset, time);
		if (crc == hdr->crc)
			tuple = NaradRecordToTuple((char *) hdr, len, ref->partition,
									   offset, time, &tid,
									   RelationGetRelid(rel));
	}
	if (tuple == NULL && !damage_ok)
		raise_damaged_record(rel, ref->partition, offset, true, hdr->crc, crc);
	return tuple;
}

/* Stores a row, formed in the slot's memory, of the page at hand. */
static bool
store_row(Relation rel, const NaradSegmentRef *ref, BlockNumber block,
		  Page page, OffsetNumber item, BufferAccessStrategy strategy,
		  bool damage_ok, TupleTableSlot *slot)
{
	MemoryContext old = MemoryContextSwitchTo(slot->tts_mcxt);
	HeapTuple	tuple = form_row(rel, ref, block, page, item, strategy,
								 damage_ok);

	MemoryContextSwitchTo(old);
	if (tuple == NULL)
		return false;
	ExecForceStoreHeapTuple(tuple, slot, true);
	ItemPointerSet(&slot->tts_tid, block, item);
	slot->tts_tableOid = RelationGetRelid(rel);
	return true;
}

static bool
store_item(NaradScanDesc *scan, OffsetNumber item, bool damage_ok,
		   TupleTableSlot *slot)
{
	return store_row(scan->base.rs_rd, &scan->page_ref, scan->block,
					 (Page) scan->page.data, item, scan->strategy, damage_ok,
					 slot);
}

static bool
keys_match(TableScanDesc scan, TupleTableSlot *slot)
{
	for (int i = 0; i < scan->rs_nkeys; i++)
	{
		ScanKey		key = &scan->rs_key[i];
		Datum		value;
		bool		isnull;

		if (key->sk_flags & SK_ISNULL)
			return false;
		value = slot_getattr(slot, key->sk_attno, &isnull);
		if (isnull || !DatumGetBool(FunctionCall2Coll(&key->sk_func,
													  key->sk_collation,
													  value,
													  key->sk_argument)))
			return false;
	}
	return true;
}

/* ---- begin, end, rescan ---- */

static void
init_strategy(NaradScanDesc *scan)
{
	if ((scan->base.rs_flags & SO_ALLOW_STRAT) &&
		scan->nblocks > NBuffers / 4)
	{
		if (scan->strategy == NULL)
			scan->strategy = GetAccessStrategy(BAS_BULKREAD);
	}
	else if (scan->strategy != NULL)
	{
		FreeAccessStrategy(scan->strategy);
		scan->strategy = NULL;
	}
}

static int
compare_blocks(const void *a, const void *b)
{
	BlockNumber left = ((const NaradSegmentRef *) a)->first_block;
	BlockNumber right = ((const NaradSegmentRef *) b)->first_block;

	return left < right ? -1 : left > right;
}

/* Finds out what there is to scan: once at begin and at each rescan. */
static void
init_scan(NaradScanDesc *scan, ScanKey key)
{
	Relation	rel = scan->base.rs_rd;
	MemoryContext old = MemoryContextSwitchTo(GetMemoryChunkContext(scan));
	NaradRelInfo *info = NaradRelInfoGet(rel);

	scan->is_empty = info == NULL;
	if (info != NULL)
	{
		scan->topic_id = info->topic_id;
		scan->segment_pages = info->segment_pages;
	}
	if (scan->base.rs_parallel != NULL)
		scan->nblocks = ((ParallelBlockTableScanDesc)
						 scan->base.rs_parallel)->phs_nblocks;
	else
		scan->nblocks = RelationGetNumberOfBlocks(rel);
	init_strategy(scan);

	if (scan->refs != NULL)
		pfree(scan->refs);
	scan->refs = NULL;
	scan->nrefs = 0;
	if (!scan->is_empty &&
		(scan->base.rs_flags & (SO_TYPE_SEQSCAN | SO_TYPE_SAMPLESCAN)))
	{
		scan->refs = NaradSegmentList(rel, scan->segment_pages, -1,
									  &scan->nrefs);
		if (scan->base.rs_parallel != NULL ||
			(scan->base.rs_flags & SO_TYPE_SAMPLESCAN))
			qsort(scan->refs, scan->nrefs, sizeof(NaradSegmentRef),
				  compare_blocks);
	}
	MemoryContextSwitchTo(old);

	scan->inited = false;
	scan->have_page = false;
	scan->nitems = 0;
	scan->sample_block = InvalidBlockNumber;
	scan->block_ref.npages = 0;
	if (key != NULL && scan->base.rs_nkeys > 0)
		memcpy(scan->base.rs_key, key,
			   scan->base.rs_nkeys * sizeof(ScanKeyData));
	if (scan->base.rs_flags & SO_TYPE_SEQSCAN)
		pgstat_count_heap_scan(rel);
}

TableScanDesc
naradam_scan_begin(Relation rel, Snapshot snapshot, int nkeys, ScanKey key,
				   ParallelTableScanDesc parallel, uint32 flags)
{
	NaradScanDesc *scan = palloc(sizeof(NaradScanDesc));

	RelationIncrementReferenceCount(rel);
	memset(scan, 0, offsetof(NaradScanDesc, wanted));
	scan->base.rs_rd = rel;
	scan->base.rs_snapshot = snapshot;
	scan->base.rs_nkeys = nkeys;
	scan->base.rs_flags = flags;
	scan->base.rs_parallel = parallel;
	if (nkeys > 0)
		scan->base.rs_key = palloc(nkeys * sizeof(ScanKeyData));
	if (parallel != NULL)
		scan->worker = palloc0(sizeof(ParallelBlockTableScanWorkerData));

	/* New records anywhere in the topic conflict with having read it. */
	if (flags & (SO_TYPE_SEQSCAN | SO_TYPE_SAMPLESCAN))
		PredicateLockRelation(rel, snapshot);
	init_scan(scan, key);
	return (TableScanDesc) scan;
}

void
naradam_scan_end(TableScanDesc sscan)
{
	NaradScanDesc *scan = (NaradScanDesc *) sscan;

	RelationDecrementReferenceCount(sscan->rs_rd);
	if (sscan->rs_key != NULL)
		pfree(sscan->rs_key);
	if (scan->refs != NULL)
		pfree(scan->refs);
	if (scan->worker != NULL)
		pfree(scan->worker);
	if (scan->strategy != NULL)
		FreeAccessStrategy(scan->strategy);
	if (sscan->rs_flags & SO_TEMP_SNAPSHOT)
		UnregisterSnapshot(sscan->rs_snapshot);
	pfree(scan);
}

Size
naradam_parallelscan_estimate(Relation rel)
{
	return sizeof(NaradParallelScan);
}

Size
naradam_parallelscan_initialize(Relation rel, ParallelTableScanDesc parallel)
{
	(void) table_block_parallelscan_initialize(rel, parallel);
	pg_atomic_init_u32(&((NaradParallelScan *) parallel)->told_of_loss, 0);
	return sizeof(NaradParallelScan);
}

/* Records come in log order: synchronized scans are ignored. */
void
naradam_scan_rescan(TableScanDesc sscan, ScanKey key, bool set_params,
					bool allow_strat, bool allow_sync, bool allow_pagemode)
{
	if (set_params)
	{
		if (allow_strat)
			sscan->rs_flags |= SO_ALLOW_STRAT;
		else
			sscan->rs_flags &= ~SO_ALLOW_STRAT;
	}
	init_scan((NaradScanDesc *) sscan, key);
}

/* ---- sequential scans ---- */

/* Pages of the current segment that may be in use. */
static uint32
count_segment_pages(NaradScanDesc *scan)
{
	NaradSegmentRef *ref = &scan->refs[scan->ref];
	NaradSegmentEntry entry;

	NaradSegmentReadEntry(scan->base.rs_rd, ref, &entry);
	if ((entry.state != NARAD_SEGMENT_OPEN &&
		 entry.state != NARAD_SEGMENT_SEALED) ||
		entry.partition != ref->partition || entry.sequence != ref->sequence)
	{
		lose_segment(scan, ref);
		return 0;
	}
	ref->state = entry.state;
	ref->flags = entry.flags;
	if (entry.state == NARAD_SEGMENT_SEALED)
		return Min(entry.pages_used, ref->npages);
	else
	{
		/* Prepared pages may have been lost, or not come to a standby. */
		BlockNumber nblocks = RelationGetNumberOfBlocks(scan->base.rs_rd);

		if (nblocks <= ref->first_block)
			return 0;
		return Min(Min(entry.pages_prepared, ref->npages),
				   nblocks - ref->first_block);
	}
}

/* The next page with rows in log order, in either direction. */
static bool
advance_in_log(NaradScanDesc *scan, bool forward)
{
	if (!scan->inited)
	{
		scan->ref = forward ? -1 : scan->nrefs;
		scan->page_no = forward ? 0 : -1;
		scan->npages = 0;
		scan->inited = true;
	}
	else
		scan->page_no += forward ? 1 : -1;

	for (;;)
	{
		while (scan->page_no >= 0 && scan->page_no < scan->npages)
		{
			NaradSegmentRef *ref = &scan->refs[scan->ref];

			if (load_segment_page(scan, ref, ref->first_block + scan->page_no,
								  find_visible))
				return true;
			scan->page_no += forward ? 1 : -1;
		}
		scan->ref += forward ? 1 : -1;
		if (scan->ref < 0 || scan->ref >= scan->nrefs)
			return false;
		scan->npages = count_segment_pages(scan);
		scan->page_no = forward ? 0 : (int64) scan->npages - 1;
	}
}

/* The next page with rows that this participant of a parallel scan gets. */
static bool
advance_in_parallel(NaradScanDesc *scan)
{
	Relation	rel = scan->base.rs_rd;
	ParallelBlockTableScanDesc parallel =
	(ParallelBlockTableScanDesc) scan->base.rs_parallel;

	if (!scan->inited)
	{
		table_block_parallelscan_startblock_init(rel, scan->worker, parallel);
		scan->inited = true;
	}
	for (;;)
	{
		BlockNumber block = table_block_parallelscan_nextpage(rel,
															  scan->worker,
															  parallel);

		if (block == InvalidBlockNumber)
			return false;
		if (load_block(scan, block, find_visible))
			return true;
	}
}

/*
 * The row at an item of the page at hand, if the scan wants it.  A dirty
 * snapshot's answer about this row, and no other, is left in it.
 */
static bool
take_item(NaradScanDesc *scan, OffsetNumber item, TupleTableSlot *slot)
{
	Snapshot	snapshot = scan->base.rs_snapshot;

	if (!scan->wanted[item])
		return false;
	if (snapshot->snapshot_type == SNAPSHOT_DIRTY &&
		!is_seen_dirty(page_record((Page) scan->page.data, item), snapshot))
		return false;
	return store_item(scan, item, false, slot) &&
		keys_match(&scan->base, slot);
}

bool
naradam_scan_getnextslot(TableScanDesc sscan, ScanDirection direction,
						 TupleTableSlot *slot)
{
	NaradScanDesc *scan = (NaradScanDesc *) sscan;
	bool		forward = ScanDirectionIsForward(direction);

	Assert(forward || sscan->rs_parallel == NULL);
	while (!scan->is_empty)
	{
		if (!scan->have_page)
		{
			if (!(sscan->rs_parallel != NULL ? advance_in_parallel(scan) :
				  advance_in_log(scan, forward)))
				break;
			scan->item = forward ? 0 : scan->nitems + 1;
		}
		scan->item += forward ? 1 : -1;
		if (scan->item < 1 || scan->item > scan->nitems)
			scan->have_page = false;
		else if (take_item(scan, scan->item, slot))
		{
			pgstat_count_heap_getnext(sscan->rs_rd);
			return true;
		}
	}

	/* As in heap: the other direction, or this one again, starts afresh. */
	if (sscan->rs_parallel == NULL)
		scan->inited = false;
	scan->have_page = false;
	ExecClearTuple(slot);
	return false;
}

/* ---- sample scans ---- */

bool
naradam_scan_sample_next_block(TableScanDesc sscan, SampleScanState *state)
{
	NaradScanDesc *scan = (NaradScanDesc *) sscan;
	TsmRoutine *tsm = state->tsmroutine;

	if (scan->is_empty || scan->nblocks == 0)
		return false;
	if (tsm->NextSampleBlock)
		scan->sample_block = tsm->NextSampleBlock(state, scan->nblocks);
	else if (scan->sample_block == InvalidBlockNumber)
		scan->sample_block = 0;
	else if (++scan->sample_block >= scan->nblocks)
		scan->sample_block = InvalidBlockNumber;
	if (scan->sample_block == InvalidBlockNumber)
		return false;

	/* A block without rows is sampled, too: as an empty one. */
	(void) load_block(scan, scan->sample_block, find_visible);
	return true;
}

bool
naradam_scan_sample_next_tuple(TableScanDesc sscan, SampleScanState *state,
							   TupleTableSlot *slot)
{
	NaradScanDesc *scan = (NaradScanDesc *) sscan;

	for (;;)
	{
		OffsetNumber item;

		CHECK_FOR_INTERRUPTS();
		item = state->tsmroutine->NextSampleTuple(state, scan->sample_block,
												  scan->nitems);
		if (!OffsetNumberIsValid(item))
			break;
		if (take_item(scan, item, slot))
		{
			pgstat_count_heap_getnext(sscan->rs_rd);
			return true;
		}
	}
	ExecClearTuple(slot);
	return false;
}

/* ---- ANALYZE ---- */

#if NARAD_COMPAT_ANALYZE_STREAM
/* False ends the sample: goes on to the next block that holds rows. */
bool
naradam_scan_analyze_next_block(TableScanDesc sscan, ReadStream * stream)
{
	NaradScanDesc *scan = (NaradScanDesc *) sscan;
	Buffer		buffer;

	while (BufferIsValid(buffer = read_stream_next_buffer(stream, NULL)))
	{
		BlockNumber block = BufferGetBlockNumber(buffer);

		ReleaseBuffer(buffer);
		scan->item = 0;
		if (!scan->is_empty && load_block(scan, block, find_live))
			return true;
	}
	return false;
}
#else
bool
naradam_scan_analyze_next_block(TableScanDesc sscan, BlockNumber block,
								BufferAccessStrategy strategy)
{
	NaradScanDesc *scan = (NaradScanDesc *) sscan;

	scan->item = 0;
	return !scan->is_empty && load_block(scan, block, find_live);
}
#endif

/*
 * Records of aborted transactions are not reported as dead rows: no vacuum
 * would remove them, and autovacuum would try for ever.
 */
bool
naradam_scan_analyze_next_tuple(TableScanDesc sscan,
								TransactionId oldest_xmin, double *liverows,
								double *deadrows, TupleTableSlot *slot)
{
	NaradScanDesc *scan = (NaradScanDesc *) sscan;

	while (++scan->item <= scan->nitems)
	{
		if (scan->wanted[scan->item] &&
			store_item(scan, scan->item, true, slot))
		{
			*liverows += 1;
			return true;
		}
	}
	ExecClearTuple(slot);
	return false;
}

/* ---- rows by TID ---- */

typedef struct FetchArg
{
	Relation	rel;
	Snapshot	snapshot;
	OffsetNumber item;
	bool		visible;
} FetchArg;

/* Visitor: whether the snapshot sees one record. */
static void
find_one_visible(Page page, void *arg)
{
	FetchArg   *fetch = arg;
	NaradRecordHeader *hdr;

	if (fetch->item < NaradFirstRecordItem(page) ||
		fetch->item > PageGetMaxOffsetNumber(page))
		return;
	hdr = page_record(page, fetch->item);
	fetch->visible = NaradRecordVisible(hdr, fetch->snapshot);
	if (!fetch->visible &&
		CheckForSerializableConflictOutNeeded(fetch->rel, fetch->snapshot))
		check_conflict_out(fetch->rel, hdr, fetch->snapshot);
}

/*
 * Stores the row at a TID, if the snapshot sees one there; slot may be NULL
 * to ask only.  Any TID is allowed: one that points nowhere holds no row.
 */
static bool
fetch_row(Relation rel, ItemPointer tid, Snapshot snapshot,
		  TupleTableSlot *slot)
{
	BlockNumber block = ItemPointerGetBlockNumberNoCheck(tid);
	NaradRelInfo *info;
	NaradTopicId topic_id;
	uint32		segment_pages;
	NaradSegmentRef ref;
	PGAlignedBlock copy;
	FetchArg	arg = {rel, snapshot};
	NaradPageStatus status;

	arg.item = ItemPointerGetOffsetNumberNoCheck(tid);
	if (block >= RelationGetNumberOfBlocks(rel) ||
		(info = NaradRelInfoGet(rel)) == NULL)
		return false;
	topic_id = info->topic_id;
	segment_pages = info->segment_pages;
	if (!find_block_segment(rel, segment_pages, block, &ref))
		return false;
	status = NaradDataPageCopy(rel, block, NULL, topic_id, &ref, false,
							   (Page) copy.data, find_one_visible, &arg);
	if (status == NARAD_PAGE_DAMAGED)
		raise_damaged_page(rel, block);
	if (status != NARAD_PAGE_OK)
		check_other_page(rel, topic_id, segment_pages, &ref, block, NULL);
	if (status != NARAD_PAGE_OK || !arg.visible)
		return false;
	if (slot == NULL)
		return true;
	pgstat_count_heap_fetch(rel);
	return store_row(rel, &ref, block, (Page) copy.data, arg.item, NULL,
					 false, slot);
}

bool
naradam_tuple_fetch_row_version(Relation rel, ItemPointer tid,
								Snapshot snapshot, TupleTableSlot *slot)
{
	/* There is no lock finer than the topic. */
	if (IsMVCCSnapshot(snapshot))
		PredicateLockRelation(rel, snapshot);
	return fetch_row(rel, tid, snapshot, slot);
}

bool
naradam_tuple_tid_valid(TableScanDesc scan, ItemPointer tid)
{
	return ItemPointerIsValid(tid) &&
		ItemPointerGetBlockNumber(tid) < ((NaradScanDesc *) scan)->nblocks;
}

/* Records are never updated: each is its own latest version. */
void
naradam_tuple_get_latest_tid(TableScanDesc scan, ItemPointer tid)
{
}

/*
 * Asked about a row that a slot was filled with from this topic: the page
 * knows best.
 */
bool
naradam_tuple_satisfies_snapshot(Relation rel, TupleTableSlot *slot,
								 Snapshot snapshot)
{
	return fetch_row(rel, &slot->tts_tid, snapshot, NULL);
}

/* Topics have no indexes; these serve whoever fetches rows by TID so. */
IndexFetchTableData *
naradam_index_fetch_begin(Relation rel)
{
	IndexFetchTableData *fetch = palloc0(sizeof(IndexFetchTableData));

	fetch->rel = rel;
	return fetch;
}

void
naradam_index_fetch_reset(IndexFetchTableData *fetch)
{
}

void
naradam_index_fetch_end(IndexFetchTableData *fetch)
{
	pfree(fetch);
}

bool
naradam_index_fetch_tuple(IndexFetchTableData *fetch, ItemPointer tid,
						  Snapshot snapshot, TupleTableSlot *slot,
						  bool *call_again, bool *all_dead)
{
	*call_again = false;
	if (all_dead != NULL)
		*all_dead = false;
	return fetch_row(fetch->rel, tid, snapshot, slot);
}
