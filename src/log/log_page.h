/*-------------------------------------------------------------------------
 *
 * log_page.h
 *	  Data pages: special space, items, and a reader's private copy.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LOG_PAGE_H
#define LOG_PAGE_H

#include "access/htup.h"
#include "log/log_format.h"
#include "log/log_segment.h"
#include "storage/bufmgr.h"
#include "storage/itemptr.h"

#define NaradDataPageSpecial(page) ((NaradDataSpecial *) PageGetSpecialPointer(page))

/* A fresh data page in memory. */
extern void NaradDataPageInit(Page page, const NaradDataSpecial *special);

/* True if a well-formed data page of this topic. */
extern bool NaradDataPageIsValid(Page page, NaradTopicId topic_id);

/* The special space of a damaged one, if that looks sound and is this topic's. */
extern bool NaradDamagedPageSpecial(const char *page, NaradTopicId topic_id,
									NaradDataSpecial *special);

/* What a page, copied or locked, is to a reader of a segment. */
typedef enum NaradPageStatus
{
	NARAD_PAGE_OK,				/* a data page of the segment asked for */
	NARAD_PAGE_OTHER,			/* never written, or not of that segment */
	NARAD_PAGE_DAMAGED			/* cannot be read, or makes no sense */
} NaradPageStatus;

extern NaradPageStatus NaradDataPageClassify(Page page, NaradTopicId topic_id,
											 const NaradSegmentRef *ref);

/* The same of one that cannot be read, by its special space; never OK. */
extern NaradPageStatus NaradDamagedPageClassify(const char *page,
												NaradTopicId topic_id,
												const NaradSegmentRef *ref);

/* Places an item of two parts at the end; the caller knows that it fits. */
extern OffsetNumber NaradDataPagePut(Page page, const char *head,
									 uint32 head_len, const char *body,
									 uint32 body_len);

/* Free bytes for one more item, its line pointer deducted; 0 when full. */
extern uint32 NaradDataPageFree(Page page);

/* Number of the first item that is a record: 1, or 2 after a continuation. */
#define NaradFirstRecordItem(page) \
	(NaradDataPageSpecial(page)->cont_offset == NARAD_INVALID_OFFSET ? 1 : 2)

#define NaradHeaderOffset(special, hdr) ((special)->base_offset + (hdr)->delta)
#define NaradHeaderTime(special, hdr) \
	((special)->base_time + \
	 (((int64) (hdr)->time_high << 32) | (hdr)->time_low))

/*
 * Pins a block; InvalidBuffer instead of an error if what is on disk is damaged
 * (header or checksum).
 */
extern Buffer NaradReadBufferCareful(Relation rel, BlockNumber block,
									 BufferAccessStrategy strategy);

/*
 * Called with the buffer share-locked, after `copy` has been filled, and
 * under NaradStatusLock: the place to ask about transactions.  In the copy
 * NARAD_RECORD_FROZEN is set on records whose xmin must not be asked about.
 */
typedef void (*NaradPageVisitor) (Page copy, void *arg);

/*
 * Copies a block into memory of the caller (BLCKSZ bytes, MAXALIGNed) and
 * checks that it is a data page of the segment.  If damage_ok, a block that
 * fails its checksum is DAMAGED, not an error, and one that does not exist is
 * OTHER: as far as the file goes it was never written.  One that fails it, but
 * says that it is another segment's, is OTHER in any case.
 */
extern NaradPageStatus NaradDataPageCopy(Relation rel, BlockNumber block,
										 BufferAccessStrategy strategy,
										 NaradTopicId topic_id,
										 const NaradSegmentRef *ref,
										 bool damage_ok, Page copy,
										 NaradPageVisitor visit, void *arg);

/* Some items of a page. */
typedef struct NaradItemSpan
{
	OffsetNumber from;
	OffsetNumber end;			/* not included */
} NaradItemSpan;

/*
 * The same with damage_ok, but of records that are not `wanted` only the header
 * is copied for certain.  `visit` may set which are.
 */
extern NaradPageStatus NaradDataPageCopyWanted(Relation rel, BlockNumber block,
											   NaradTopicId topic_id,
											   const NaradSegmentRef *ref,
											   Page copy,
											   NaradPageVisitor visit,
											   void *arg,
											   const NaradItemSpan *wanted);

/* Visibility of a record by its header, asked under the page's share lock. */
typedef enum NaradRecordState
{
	NARAD_STATE_COMMITTED,
	NARAD_STATE_PENDING,		/* another's transaction is still open */
	NARAD_STATE_OWN,			/* this transaction's own, still open */
	NARAD_STATE_DEAD
} NaradRecordState;

/* As of now.  From a visitor; the caller has an active snapshot. */
extern NaradRecordState NaradRecordStateNow(const NaradRecordHeader *hdr);

/* By a snapshot of any kind (for SNAPSHOT_DIRTY its out fields are set). */
extern bool NaradRecordVisible(const NaradRecordHeader *hdr, Snapshot snapshot);

/*
 * What freezing does to a page: marks items, of which the first ndead are dead
 * and the others visible to all.  Plain memory work; in redo, too.
 */
extern void NaradDataPageFreeze(Page page, const OffsetNumber *items,
								int ndead, int nfrozen);

/*
 * Records of so many bytes go through a ring of buffers: the caller's own, or
 * one of this backend's.
 */
#define NARAD_RING_LENGTH	(32 * BLCKSZ)
extern BufferAccessStrategy NaradLargeStrategy(BufferAccessStrategy own,
											   uint32 length, bool write);

/*
 * The row of a large record that begins at item `item` of the page copy
 * `page` (block `block`, in segment `ref`), reading the pages that follow;
 * palloc'ed.  Sound if *crc is that of the record's header.  NULL if a
 * continuation is missing or damaged.
 */
extern HeapTuple NaradLargeToTuple(Relation rel, const NaradSegmentRef *ref,
								   BlockNumber block, Page page,
								   OffsetNumber item,
								   BufferAccessStrategy strategy, uint32 *crc);

#endif							/* LOG_PAGE_H */
