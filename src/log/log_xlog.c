/*-------------------------------------------------------------------------
 *
 * log_xlog.c
 *	  WAL records of the log: insertion, replay, description, masking.
 *
 * APPEND adds items to one data page; the first append to a page
 * initialises it, so that a fresh page never costs a full-page image.  The
 * pages of a large record are made by one APPEND for many.
 * META_UPDATE changes one byte range on each of a set of pages that are not
 * data.  FREEZE sets flags of records of a data page, FREEZE_SEGMENT those of
 * an entry of the directory.  All rebuild exactly the bytes the primary has, the hole between
 * pd_lower and pd_upper excepted.  Records name every page they touch and
 * need nothing else: no catalog, no setting, no other page.
 *
 * Owns:       the layout of the records.
 * Invariants: replay is idempotent by page LSN, and waits for nothing but
 *             snapshots that do not see what freezing makes visible to all.
 * Locks:      redo: one buffer lock at a time for data, in the order of block
 *             ids for a META_UPDATE.
 * Runs in:    any backend; redo in the startup process.
 * WAL:        APPEND, APPEND+INIT, FREEZE, FREEZE_SEGMENT, META_UPDATE (that
 *             one is inserted by NaradPagesUpdate, log_meta.c); core's
 *             FPI_FOR_HINT, of blocks that go.
 * On error:   a record that does not fit its page is a PANIC in redo.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/bufmask.h"
#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "access/xloginsert.h"
#include "access/xlogutils.h"
#include "catalog/catalog.h"
#include "catalog/pg_control.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/standby.h"

#include "base/base_compat.h"
#include "log/log_page.h"
#include "log/log_xlog.h"

/* Begins the main data of an append, whose first page is given. */
static void
fill_append(xl_narad_append *xlrec, Page page, OffsetNumber first, int nitems)
{
	NaradDataSpecial *special = NaradDataPageSpecial(page);

	memset(xlrec, 0, sizeof(xl_narad_append));
	xlrec->base_offset = special->base_offset;
	xlrec->base_time = special->base_time;
	xlrec->partition = special->head.partition;
	xlrec->nitems = nitems;
	if (first == 1 && special->cont_offset != NARAD_INVALID_OFFSET)
		xlrec->flags |= XLNA_CONTINUATION;
}

/*
 * Registers a page of an append: the lengths of its new items, and their bytes,
 * which end at old_upper.
 */
static void
register_append(Relation rel, uint8 block_id, Buffer buffer, uint16 *lengths,
				int nitems, uint16 old_upper, bool init)
{
	Page		page = BufferGetPage(buffer);
	uint16		upper = ((PageHeader) page)->pd_upper;
	uint8		flags = REGBUF_STANDARD;

	if (init)
		flags |= REGBUF_WILL_INIT;
	if (RelationIsLogicallyLogged(rel))
		flags |= REGBUF_KEEP_DATA;
	XLogRegisterBuffer(block_id, buffer, flags);
	XLogRegisterBufData(block_id, (char *) lengths, nitems * sizeof(uint16));
	if (init)
		XLogRegisterBufData(block_id, PageGetSpecialPointer(page),
							sizeof(NaradDataSpecial));
	XLogRegisterBufData(block_id, (char *) page + upper, old_upper - upper);
}

static XLogRecPtr
insert_append(bool init)
{
	XLogSetRecordFlags(XLOG_INCLUDE_ORIGIN);
	return XLogInsert(NARAD_RMGR_ID, XLOG_NARAD_APPEND |
					  (init ? XLOG_NARAD_INIT_PAGE : 0));
}

/*
 * NaradXLogAppend
 *
 * Logs items first .. last of a data page and sets its LSN.  The caller is in
 * the critical section that placed them, holds the buffer exclusively and has
 * marked it dirty.  With init the page was made in this critical section.
 */
void
NaradXLogAppend(Relation rel, Buffer buffer, OffsetNumber first,
				OffsetNumber last, uint16 old_upper, bool init)
{
	Page		page = BufferGetPage(buffer);
	uint16		lengths[NARAD_MAX_ITEMS];
	xl_narad_append xlrec;
	OffsetNumber item;
	XLogRecPtr	lsn;

	if (!RelationNeedsWAL(rel))
		return;

	fill_append(&xlrec, page, first, last - first + 1);
	for (item = first; item <= last; item++)
		lengths[item - first] = ItemIdGetLength(PageGetItemId(page, item));

	XLogBeginInsert();
	XLogRegisterData((char *) &xlrec, sizeof(xlrec));
	register_append(rel, 0, buffer, lengths, xlrec.nitems, old_upper, init);
	lsn = insert_append(init);
	PageSetLSN(page, lsn);
}

/*
 * NaradXLogAppendReserve
 *
 * Room to register the pages of NaradXLogAppendPages; not in a critical
 * section.
 */
void
NaradXLogAppendReserve(Relation rel)
{
	if (RelationNeedsWAL(rel))
		XLogEnsureRecordSpace(NARAD_APPEND_PAGES - 1,
							  3 * NARAD_APPEND_PAGES + 1);
}

/*
 * NaradXLogAppendPages
 *
 * Logs data pages that were made in this critical section, with one item each,
 * by one record, and sets their LSN.  As NaradXLogAppend otherwise.
 */
void
NaradXLogAppendPages(Relation rel, const Buffer *buffers, int nbuffers)
{
	uint16		lengths[NARAD_APPEND_PAGES];
	xl_narad_append xlrec;
	XLogRecPtr	lsn;
	int			i;

	Assert(nbuffers > 0 && nbuffers <= NARAD_APPEND_PAGES);
	if (!RelationNeedsWAL(rel))
		return;

	fill_append(&xlrec, BufferGetPage(buffers[0]), 1, 1);
	XLogBeginInsert();
	XLogRegisterData((char *) &xlrec, sizeof(xlrec));
	for (i = 0; i < nbuffers; i++)
	{
		Page		page = BufferGetPage(buffers[i]);

		Assert(PageGetMaxOffsetNumber(page) == 1);
		lengths[i] = ItemIdGetLength(PageGetItemId(page, 1));
		register_append(rel, i, buffers[i], &lengths[i], 1,
						((PageHeader) page)->pd_special, true);
	}
	lsn = insert_append(true);
	for (i = 0; i < nbuffers; i++)
		PageSetLSN(BufferGetPage(buffers[i]), lsn);
}

/*
 * NaradXLogFreeze
 *
 * Logs that items of a data page were marked, the first ndead as dead, and
 * sets the page's LSN.  As NaradXLogAppend.
 */
void
NaradXLogFreeze(Relation rel, Buffer buffer, const OffsetNumber *items,
				int ndead, int nfrozen, TransactionId horizon)
{
	xl_narad_freeze xlrec;
	XLogRecPtr	lsn;

	if (!RelationNeedsWAL(rel))
		return;
	xlrec.horizon = horizon;
	xlrec.ndead = ndead;
	xlrec.nfrozen = nfrozen;
	XLogBeginInsert();
	XLogRegisterData((char *) &xlrec, sizeof(xlrec));
	XLogRegisterBuffer(0, buffer, REGBUF_STANDARD);
	XLogRegisterBufData(0, (char *) items,
						(ndead + nfrozen) * sizeof(OffsetNumber));
	lsn = XLogInsert(NARAD_RMGR_ID, XLOG_NARAD_FREEZE);
	PageSetLSN(BufferGetPage(buffer), lsn);
}

/*
 * NaradXLogFreezeSegment
 *
 * The same of an entry of a directory page.
 */
void
NaradXLogFreezeSegment(Relation rel, Buffer buffer, int index, uint16 flags,
					   uint64 oldest_xid, TransactionId horizon)
{
	xl_narad_freeze_segment xlrec;
	XLogRecPtr	lsn;

	if (!RelationNeedsWAL(rel))
		return;
	xlrec.oldest_xid = oldest_xid;
	xlrec.horizon = horizon;
	xlrec.index = index;
	xlrec.flags = flags;
	XLogBeginInsert();
	XLogRegisterData((char *) &xlrec, sizeof(xlrec));
	XLogRegisterBuffer(0, buffer, REGBUF_STANDARD);
	lsn = XLogInsert(NARAD_RMGR_ID, XLOG_NARAD_FREEZE_SEGMENT);
	PageSetLSN(BufferGetPage(buffer), lsn);
}

/*
 * NaradXLogFlushOffsets
 *
 * Flushes all that is in the WAL.  Where that ends with a page, the next record
 * begins behind the header of the next page, up to which nothing can be
 * flushed.
 */
void
NaradXLogFlushOffsets(Relation rel)
{
	XLogRecPtr	upto;
	uint64		header;

	if (!RelationNeedsWAL(rel) || RecoveryInProgress())
		return;
	upto = GetXLogInsertRecPtr();
	header = XLogSegmentOffset(upto, wal_segment_size) < XLOG_BLCKSZ ?
		SizeOfXLogLongPHD : SizeOfXLogShortPHD;
	if (upto % XLOG_BLCKSZ == header)
		upto -= header;
	XLogFlush(upto);
}

/*
 * NaradXLogBlocksGo
 *
 * Names blocks [from, to), which are about to be cut off or to be written over
 * with zeros, in the WAL.  Core's record of the former names none, and zeros are
 * not logged.  Where pg_rewind takes this server back to a moment at which they
 * had records, it has to fetch them from the other server, and it fetches what
 * is named.  To replay these records of core's, without images, is to do
 * nothing.  The caller keeps away whoever could use the blocks.  Returns what
 * has to be flushed before they go; InvalidXLogRecPtr if nothing is logged.
 */
XLogRecPtr
NaradXLogBlocksGo(Relation rel, BlockNumber from, BlockNumber to)
{
	static PGAlignedBlock nothing;	/* without an image nobody looks at it */
	BlockNumber block = from;
	XLogRecPtr	lsn = InvalidXLogRecPtr;

	if (!RelationNeedsWAL(rel))
		return lsn;
	XLogEnsureRecordSpace(XLR_MAX_BLOCK_ID, 0);
	while (block < to)
	{
		RelFileLocator locator = NaradRelationLocator(rel);
		int			id;

		CHECK_FOR_INTERRUPTS();
		XLogBeginInsert();
		for (id = 0; id <= XLR_MAX_BLOCK_ID && block < to; id++)
			XLogRegisterBlock(id, &locator, MAIN_FORKNUM, block++,
							  nothing.data, REGBUF_NO_IMAGE);
		lsn = XLogInsert(RM_XLOG_ID, XLOG_FPI_FOR_HINT);
	}
	return lsn;
}

/* Adds the items of an append record to its page. */
static void
replay_items(Page page, const uint16 *lengths, int nitems, const char *bytes,
			 Size nbytes)
{
	PageHeader	ph = (PageHeader) page;
	uint16		place = ph->pd_upper;
	Size		total = 0;
	int			i;

	for (i = 0; i < nitems; i++)
		total += MAXALIGN(lengths[i]);
	if (total != nbytes ||
		ph->pd_lower + nitems * sizeof(ItemIdData) + total > ph->pd_upper)
		elog(PANIC, "narad append record does not fit its page");

	for (i = 0; i < nitems; i++)
	{
		OffsetNumber item = OffsetNumberNext(PageGetMaxOffsetNumber(page));

		place -= MAXALIGN(lengths[i]);
		ItemIdSetNormal(PageGetItemId(page, item), place, lengths[i]);
		ph->pd_lower += sizeof(ItemIdData);
	}
	memcpy((char *) page + place, bytes, nbytes);
	ph->pd_upper = place;
}

/* Applies what an append has for one of its pages. */
static void
replay_page(Page page, const xl_narad_append *xlrec, const char *data,
			Size len, bool init)
{
	uint16		lengths[NARAD_MAX_ITEMS];
	Size		lengths_size = xlrec->nitems * sizeof(uint16);
	Size		head_size = lengths_size +
	(init ? sizeof(NaradDataSpecial) : 0);

	if (xlrec->nitems > NARAD_MAX_ITEMS || head_size > len)
		elog(PANIC, "invalid narad append record");
	memcpy(lengths, data, lengths_size);
	if (init)
	{
		NaradDataSpecial special;

		memcpy(&special, data + lengths_size, sizeof(special));
		NaradDataPageInit(page, &special);
	}
	replay_items(page, lengths, xlrec->nitems, data + head_size,
				 len - head_size);
}

static void
redo_append(XLogReaderState *record)
{
	xl_narad_append *xlrec = (xl_narad_append *) XLogRecGetData(record);
	bool		init = (XLogRecGetInfo(record) & XLOG_NARAD_INIT_PAGE) != 0;
	int			npages = XLogRecMaxBlockId(record) + 1;

	/* One after the other, as a reader goes. */
	for (int i = 0; i < npages; i++)
	{
		XLogRedoAction action = BLK_NEEDS_REDO;
		Buffer		buffer;

		if (init)
			buffer = XLogInitBufferForRedo(record, i);
		else
			action = XLogReadBufferForRedo(record, i, &buffer);
		if (action == BLK_NEEDS_REDO)
		{
			Size		len;
			char	   *data = XLogRecGetBlockData(record, i, &len);

			replay_page(BufferGetPage(buffer), xlrec, data, len, init);
			PageSetLSN(BufferGetPage(buffer), record->EndRecPtr);
			MarkBufferDirty(buffer);
		}
		if (BufferIsValid(buffer))
			UnlockReleaseBuffer(buffer);
	}
}

/* Applies one block's range to its page. */
static void
replay_range(Page page, const xl_narad_range *range, const char *bytes,
			 Size nbytes, bool init)
{
	PageHeader	ph = (PageHeader) page;

	if (nbytes != (Size) range->length + (init ? range->special_size : 0) ||
		range->offset < SizeOfPageHeaderData ||
		range->offset + range->length > BLCKSZ)
		elog(PANIC, "invalid narad meta update record");
	if (init)
	{
		PageInit(page, BLCKSZ, range->special_size);
		memcpy(PageGetSpecialPointer(page), bytes + range->length,
			   range->special_size);
	}
	memcpy((char *) page + range->offset, bytes, range->length);
	ph->pd_lower = range->lower;
}

static void
redo_meta_update(XLogReaderState *record)
{
	xl_narad_meta_update *xlrec =
	(xl_narad_meta_update *) XLogRecGetData(record);
	Buffer		buffers[XLR_MAX_BLOCK_ID + 1];
	int			nblocks = XLogRecMaxBlockId(record) + 1;
	int			i;

	/* All stay locked until the last is done, as on the primary. */
	for (i = 0; i < nblocks; i++)
	{
		bool		init = (xlrec->init_blocks & (UINT32_C(1) << i)) != 0;
		XLogRedoAction action;

		if (init)
		{
			buffers[i] = XLogInitBufferForRedo(record, i);
			action = BLK_NEEDS_REDO;
		}
		else
			action = XLogReadBufferForRedo(record, i, &buffers[i]);

		if (action == BLK_NEEDS_REDO)
		{
			Page		page = BufferGetPage(buffers[i]);
			Size		len;
			char	   *data = XLogRecGetBlockData(record, i, &len);
			xl_narad_range range;

			if (data == NULL || len < sizeof(range))
				elog(PANIC, "invalid narad meta update record");
			memcpy(&range, data, sizeof(range));
			replay_range(page, &range, data + sizeof(range),
						 len - sizeof(range), init);
			PageSetLSN(page, record->EndRecPtr);
			MarkBufferDirty(buffers[i]);
		}
	}
	for (i = 0; i < nblocks; i++)
		if (BufferIsValid(buffers[i]))
			UnlockReleaseBuffer(buffers[i]);
}

/*
 * On a standby: nobody may be left who does not see as committed what is about
 * to be visible to all.  The one thing that replay waits for.
 */
static void
resolve_conflict(XLogReaderState *record, TransactionId horizon)
{
	RelFileLocator locator;

	if (!InHotStandby)
		return;
	XLogRecGetBlockTag(record, 0, &locator, NULL, NULL);
	NaradCompatResolveConflict(horizon, locator);
}

static void
redo_freeze(XLogReaderState *record)
{
	xl_narad_freeze *xlrec = (xl_narad_freeze *) XLogRecGetData(record);
	Buffer		buffer;

	resolve_conflict(record, xlrec->horizon);
	if (XLogReadBufferForRedo(record, 0, &buffer) == BLK_NEEDS_REDO)
	{
		Page		page = BufferGetPage(buffer);
		OffsetNumber items[NARAD_MAX_ITEMS];
		int			nitems = xlrec->ndead + xlrec->nfrozen;
		Size		len;
		char	   *data = XLogRecGetBlockData(record, 0, &len);

		if (nitems > NARAD_MAX_ITEMS || len != nitems * sizeof(OffsetNumber))
			elog(PANIC, "invalid narad freeze record");
		memcpy(items, data, len);
		for (int i = 0; i < nitems; i++)
			if (items[i] < FirstOffsetNumber ||
				items[i] > PageGetMaxOffsetNumber(page))
				elog(PANIC, "narad freeze record does not fit its page");
		NaradDataPageFreeze(page, items, xlrec->ndead, xlrec->nfrozen);
		PageSetLSN(page, record->EndRecPtr);
		MarkBufferDirty(buffer);
	}
	if (BufferIsValid(buffer))
		UnlockReleaseBuffer(buffer);
}

static void
redo_freeze_segment(XLogReaderState *record)
{
	xl_narad_freeze_segment *xlrec =
	(xl_narad_freeze_segment *) XLogRecGetData(record);
	Buffer		buffer;

	resolve_conflict(record, xlrec->horizon);
	if (XLogReadBufferForRedo(record, 0, &buffer) == BLK_NEEDS_REDO)
	{
		Page		page = BufferGetPage(buffer);
		NaradSegmentEntry *entry =
		(NaradSegmentEntry *) PageGetContents(page) + xlrec->index;

		if (xlrec->index >= NARAD_ENTRIES_PER_PAGE)
			elog(PANIC, "invalid narad freeze record");
		entry->flags = xlrec->flags;
		entry->oldest_xid = xlrec->oldest_xid;
		PageSetLSN(page, record->EndRecPtr);
		MarkBufferDirty(buffer);
	}
	if (BufferIsValid(buffer))
		UnlockReleaseBuffer(buffer);
}

/*
 * NaradXLogRedo
 *
 * Replays one record.  In the startup process: no catalog.
 */
void
NaradXLogRedo(XLogReaderState *record)
{
	uint8		info = XLogRecGetInfo(record) & ~XLR_INFO_MASK;

	switch (info & XLOG_NARAD_KIND_MASK)
	{
		case XLOG_NARAD_APPEND:
			redo_append(record);
			break;
		case XLOG_NARAD_META_UPDATE:
			redo_meta_update(record);
			break;
		case XLOG_NARAD_FREEZE:
			redo_freeze(record);
			break;
		case XLOG_NARAD_FREEZE_SEGMENT:
			redo_freeze_segment(record);
			break;
		default:
			elog(PANIC, "narad redo: unknown op code %u", info);
	}
}

/*
 * NaradXLogDesc
 *
 * Describes a record for pg_walinspect and error contexts.
 */
void
NaradXLogDesc(StringInfo buf, XLogReaderState *record)
{
	uint8		info = XLogRecGetInfo(record) & ~XLR_INFO_MASK;
	char	   *data = XLogRecGetData(record);

	if ((info & XLOG_NARAD_KIND_MASK) == XLOG_NARAD_APPEND)
	{
		xl_narad_append *xlrec = (xl_narad_append *) data;

		appendStringInfo(buf, "partition: %u, base_offset: " UINT64_FORMAT
						 ", npages: %d, nitems: %u, flags: 0x%04X",
						 xlrec->partition, xlrec->base_offset,
						 XLogRecMaxBlockId(record) + 1, xlrec->nitems,
						 xlrec->flags);
	}
	else if ((info & XLOG_NARAD_KIND_MASK) == XLOG_NARAD_META_UPDATE)
	{
		xl_narad_meta_update *xlrec = (xl_narad_meta_update *) data;

		appendStringInfo(buf, "npages: %d, init_blocks: 0x%08X",
						 XLogRecMaxBlockId(record) + 1, xlrec->init_blocks);
	}
	else if ((info & XLOG_NARAD_KIND_MASK) == XLOG_NARAD_FREEZE)
	{
		xl_narad_freeze *xlrec = (xl_narad_freeze *) data;

		appendStringInfo(buf, "horizon: %u, ndead: %u, nfrozen: %u",
						 xlrec->horizon, xlrec->ndead, xlrec->nfrozen);
	}
	else if ((info & XLOG_NARAD_KIND_MASK) == XLOG_NARAD_FREEZE_SEGMENT)
	{
		xl_narad_freeze_segment *xlrec = (xl_narad_freeze_segment *) data;

		appendStringInfo(buf, "horizon: %u, index: %u, flags: 0x%04X, oldest_xid: "
						 UINT64_FORMAT, xlrec->horizon, xlrec->index,
						 xlrec->flags, xlrec->oldest_xid);
	}
}

/*
 * NaradXLogIdentify
 *
 * The name of a kind of record, or NULL.
 */
const char *
NaradXLogIdentify(uint8 info)
{
	switch (info & ~XLR_INFO_MASK)
	{
		case XLOG_NARAD_APPEND:
			return "APPEND";
		case XLOG_NARAD_APPEND | XLOG_NARAD_INIT_PAGE:
			return "APPEND+INIT";
		case XLOG_NARAD_META_UPDATE:
			return "META_UPDATE";
		case XLOG_NARAD_FREEZE:
			return "FREEZE";
		case XLOG_NARAD_FREEZE_SEGMENT:
			return "FREEZE_SEGMENT";
	}
	return NULL;
}

/*
 * NaradXLogMask
 *
 * Hides what replay does not reproduce: LSN, checksum, the hole.
 */
void
NaradXLogMask(char *pagedata, BlockNumber block)
{
	mask_page_lsn_and_checksum(pagedata);
	mask_unused_space(pagedata);
}
