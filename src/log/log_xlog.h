/*-------------------------------------------------------------------------
 *
 * log_xlog.h
 *	  WAL records of the log, their insertion and replay.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LOG_XLOG_H
#define LOG_XLOG_H

#include "access/xlogreader.h"
#include "lib/stringinfo.h"
#include "log/log_format.h"
#include "storage/block.h"
#include "storage/buf.h"
#include "utils/relcache.h"

/* Must never change: WAL already written names it. */
#define NARAD_RMGR_ID			140
#define NARAD_RMGR_NAME			"narad"

/* Kinds, in the high four bits of xl_info.  The others are reserved. */
#define XLOG_NARAD_APPEND		0x00
#define XLOG_NARAD_META_UPDATE	0x10
#define XLOG_NARAD_FREEZE		0x20
#define XLOG_NARAD_FREEZE_SEGMENT 0x30
#define XLOG_NARAD_KIND_MASK	0x70
#define XLOG_NARAD_INIT_PAGE	0x80	/* of an append: a fresh page */

/*
 * APPEND: items at the end of one data page; with INIT_PAGE of up to
 * NARAD_APPEND_PAGES fresh ones, as many on each.
 *
 * Each block's data: uint16 lengths[nitems]; with INIT_PAGE the special space;
 * then the bytes of the page from the new pd_upper to the old one.
 */
typedef struct xl_narad_append
{
	NaradOffset base_offset;	/* of the first page */
	int64		base_time;		/* of the first page */
	uint32		partition;
	uint16		nitems;			/* on each page */
	uint16		flags;			/* XLNA_* */
} xl_narad_append;

/* Pages of one record. */
#define NARAD_APPEND_PAGES		32

/* The first item is a continuation of a large record. */
#define XLNA_CONTINUATION		0x0001

/*
 * META_UPDATE: one changed byte range on each of up to 32 pages.
 *
 * Each block's data: xl_narad_range and the bytes; for a block whose bit is
 * set in init_blocks the bytes are the page's content up to pd_lower, then
 * its special space.
 */
typedef struct xl_narad_meta_update
{
	uint32		init_blocks;	/* bit per block id */
} xl_narad_meta_update;

typedef struct xl_narad_range
{
	uint16		offset;			/* of the first byte on the page */
	uint16		length;
	uint16		lower;			/* new pd_lower */
	uint16		special_size;	/* with init */
} xl_narad_range;

/*
 * FREEZE: marks records of one data page.
 *
 * Block 0's data: OffsetNumber items[ndead + nfrozen], the dead ones first.
 *
 * FREEZE_SEGMENT: sets flags and oldest_xid of one entry of a directory page.
 *
 * What is frozen is visible to everybody: so replay first waits for, or
 * cancels, snapshots on the standby that do not see the horizon as committed.
 */
typedef struct xl_narad_freeze
{
	TransactionId horizon;		/* newest xid of those frozen, or 0 */
	uint16		ndead;
	uint16		nfrozen;
} xl_narad_freeze;

typedef struct xl_narad_freeze_segment
{
	uint64		oldest_xid;		/* FullTransactionId */
	TransactionId horizon;		/* as above */
	uint16		index;			/* of the entry */
	uint16		flags;			/* its new ones */
} xl_narad_freeze_segment;

/*
 * Logs items first .. last, just placed at the end of a data page by the
 * critical section the caller is in, and sets the page's LSN.  old_upper is
 * pd_upper before them.  For relations that need no WAL: nothing.
 */
extern void NaradXLogAppend(Relation rel, Buffer buffer, OffsetNumber first,
							OffsetNumber last, uint16 old_upper, bool init);

/*
 * The same of up to NARAD_APPEND_PAGES fresh pages with one item each.  The
 * caller has called NaradXLogAppendReserve, outside its critical section.
 */
extern void NaradXLogAppendPages(Relation rel, const Buffer *buffers,
								 int nbuffers);
extern void NaradXLogAppendReserve(Relation rel);

/* The same for what freezing has just done to a page. */
extern void NaradXLogFreeze(Relation rel, Buffer buffer,
							const OffsetNumber *items, int ndead, int nfrozen,
							TransactionId horizon);
extern void NaradXLogFreezeSegment(Relation rel, Buffer buffer, int index,
								   uint16 flags, uint64 oldest_xid,
								   TransactionId horizon);

/*
 * Makes sure that no crash gives an offset again that is about to be told, be
 * it of a record of an open transaction, or the next one to be given.  No LWLock
 * may be held: this may wait for the disk.
 */
extern void NaradXLogFlushOffsets(Relation rel);

/* Names blocks [from, to), about to be cut off, for pg_rewind. */
extern XLogRecPtr NaradXLogBlocksGo(Relation rel, BlockNumber from,
									BlockNumber to);

extern void NaradXLogRedo(XLogReaderState *record);
extern void NaradXLogDesc(StringInfo buf, XLogReaderState *record);
extern const char *NaradXLogIdentify(uint8 info);
extern void NaradXLogMask(char *pagedata, BlockNumber block);

#endif							/* LOG_XLOG_H */
