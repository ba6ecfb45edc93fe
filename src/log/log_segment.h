/*-------------------------------------------------------------------------
 *
 * log_segment.h
 *	  The segment directory: where slots lie, who has them.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LOG_SEGMENT_H
#define LOG_SEGMENT_H

#include "log/log_format.h"
#include "storage/bufmgr.h"
#include "utils/relcache.h"

struct NaradLogTopic;

/* What a reader or writer needs to know of one open or sealed segment. */
typedef struct NaradSegmentRef
{
	uint64		sequence;
	NaradOffset first_offset;
	uint32		partition;
	BlockNumber first_block;
	uint32		npages;			/* of the segment, used or not */
	BlockNumber dir_block;		/* its entry's directory page ... */
	uint16		dir_index;		/* ... and place there */
	uint8		state;			/* as read; may be newer on disk */
	uint8		size_class;
	uint16		flags;			/* same */
	bool		continues;		/* begins in the middle of a large record */
	uint32		pages_used;		/* sealed */
	uint32		pages_recycled; /* whole slots: that have room */
} NaradSegmentRef;

/* Arithmetic; segment_pages is the topic's S. */
extern BlockNumber NaradSlotDirectoryBlock(uint32 slot, uint32 segment_pages);
extern BlockNumber NaradSlotFirstBlock(uint32 slot, uint32 segment_pages);
extern uint32 NaradClassPages(int size_class, uint32 segment_pages);

/* Class of a partition's segment, given how many it had, and pages needed. */
extern int	NaradClassFor(uint64 sequence, uint32 need_pages, uint32 segment_pages);

/* Units of a split slot that can hold segments, and the nth (from 0). */
extern uint32 NaradSlotUnits(uint32 segment_pages);
extern uint32 NaradSlotNthUnit(uint32 n);

/* Where a unit is described, and lies. */
typedef struct NaradUnitPlace
{
	BlockNumber block;			/* its first */
	BlockNumber dir_block;
	uint16		dir_index;
	uint32		dir_number;		/* of dir_block, counted within the slot */
} NaradUnitPlace;
extern void NaradUnitLocate(BlockNumber slot_block, uint32 unit,
							NaradUnitPlace *place);

/*
 * The directory entry of the segment in which a block lies.  False for the
 * metapage, directory pages, free slots and blocks past what is described.
 * first_block may be NULL.
 */
extern bool NaradSegmentOfBlock(Relation rel, uint32 segment_pages,
								BlockNumber block, NaradSegmentEntry *entry,
								BlockNumber *first_block);

/*
 * Walks the whole directory, calling back for each entry that is not free
 * (those of split slots after the split entry itself) in slot order.
 */
typedef void (*NaradDirectoryVisitor) (const NaradSegmentEntry *entry,
									   const NaradSegmentRef *ref, void *arg);
extern void NaradDirectoryWalk(Relation rel, uint32 segment_pages,
							   NaradDirectoryVisitor visit, void *arg);

/*
 * All open and sealed segments of a partition (-1: of all), palloc'ed, sorted
 * by partition and sequence.  From the pages alone: works on a standby.
 */
extern NaradSegmentRef *NaradSegmentList(Relation rel, uint32 segment_pages,
										 int partition, int *nsegments);

/*
 * Which of a partition's segments, in their order, is the last that begins at or
 * before an offset; -1 if none does.
 */
extern int	NaradSegmentSearch(const NaradSegmentRef *refs, int nrefs,
							   NaradOffset offset);

/*
 * Makes *ref the next segment of its partition; false if there is none (yet),
 * or it is gone.  From memory if the topic is attached, else from the pages.
 */
extern bool NaradSegmentNext(Relation rel, NaradSegmentRef *ref);

/*
 * What the directory says now of a segment's place, whoever has it by now;
 * and the same for whoever keeps others from changing it.
 */
extern void NaradSegmentReadEntry(Relation rel, const NaradSegmentRef *ref,
								  NaradSegmentEntry *entry);
extern void NaradSegmentReadOwnEntry(Relation rel, const NaradSegmentRef *ref,
									 NaradSegmentEntry *entry);

/* Is the segment, open or sealed, still in its place?  Any lock. */
extern bool NaradSegmentIsThere(Relation rel, const NaradSegmentRef *ref);

/*
 * Reserves the lowest free place of a class as NARAD_SEGMENT_SPARE for a
 * partition (NARAD_SEGMENT_META when meta, small class), WAL-logged; extends
 * the file for directory pages.  Takes the allocator lock; caller holds
 * RowExclusiveLock on the topic and no narad lock of that rank or later.
 */
extern void NaradSegmentAllocate(Relation rel, struct NaradLogTopic *topic,
								 int size_class, int partition, bool meta,
								 NaradSegmentRef *ref);

/*
 * Frees a spare that is not wanted, or segments that one directory page describes:
 * all or, after an error, none.  The first locks as NaradSegmentAllocate; for the
 * second the allocator lock is held, and keeps their places from being used.
 */
extern void NaradSegmentFree(Relation rel, struct NaradLogTopic *topic,
							 const NaradSegmentRef *ref);
extern void NaradSegmentFreeLocked(Relation rel, struct NaradLogTopic *topic,
								   const NaradSegmentRef *refs, int nrefs);

/*
 * Frees the slot of a block if it is split and has no segments: due after each of
 * the above.  As NaradSegmentAllocate.
 */
extern void NaradSegmentFreeSlot(Relation rel, struct NaradLogTopic *topic,
								 BlockNumber block);

/* Is a whole slot free that lies before a block?  As NaradSegmentAllocate. */
extern bool NaradSegmentFreeBefore(Relation rel, struct NaradLogTopic *topic,
								   BlockNumber block);

/*
 * Gives the file's end back to the file system, if every slot from one on is
 * free.  The caller holds AccessExclusiveLock on the topic.
 */
extern void NaradSegmentTruncate(Relation rel, struct NaradLogTopic *topic,
								 uint32 slot);
extern uint32 NaradSlotOfBlock(BlockNumber block, uint32 segment_pages);

/*
 * Replaces up to two entries, WAL-logged in one record.  The caller keeps
 * others from changing them (the tail lock, or the allocator's).
 */
typedef struct NaradEntryChange
{
	const NaradSegmentRef *ref;
	NaradSegmentEntry entry;
} NaradEntryChange;
extern void NaradSegmentWriteEntries(Relation rel, NaradTopicId topic_id,
									 NaradEntryChange *changes, int nchanges);

/*
 * Freezing: adds flags to an entry, and a lower bound of the xids left, WAL-logged
 * with the newest xid (or InvalidTransactionId) that others must see as
 * committed from now on.  False if the segment is no longer there.  Of an
 * entry that is not sealed the caller holds the tail lock.
 */
extern bool NaradSegmentFreeze(Relation rel, const NaradSegmentRef *ref,
							   uint16 flags, uint64 oldest_xid,
							   TransactionId horizon);

/*
 * A page for what is not data; its block number.  Whoever takes it logs it as a
 * whole: its place may have held records.
 */
extern BlockNumber NaradMetaPageAllocate(Relation rel, struct NaradLogTopic *topic);

/*
 * Makes pages [from, to) of a segment exist on disk, with room of their own,
 * which the `recycled` first ones have; ENOSPC is reported here.  What is on
 * them means nothing.  Does not touch the entry.  May be cancelled unless an
 * LWLock is held.
 */
extern void NaradSegmentPreparePages(Relation rel, BlockNumber first_block,
									 uint32 recycled, uint32 from, uint32 to);

/* Has buffers ready for the first of pages that were just prepared. */
extern void NaradSegmentWarmPages(Relation rel, BlockNumber first_block,
								  uint32 from, uint32 to,
								  BufferAccessStrategy strategy);

#endif							/* LOG_SEGMENT_H */
