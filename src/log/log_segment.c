/*-------------------------------------------------------------------------
 *
 * log_segment.c
 *	  The segment directory: where slots lie, who has them.
 *
 * The file is an array of slots with a directory page before every D of
 * them.  A slot is one whole segment, or is split into sub-slots of a smaller
 * class; sub-slot 0 then holds directory pages for the others.  Everything
 * about a place is computable from its number, so finding the entry of a
 * block costs one or two page reads.
 *
 * Owns:       directory pages; the allocator's hints in NaradLogTopic.
 * Invariants: I10: slots are allocated lowest first.  A directory page that
 *             was never written describes free slots.  Entries of open and
 *             spare segments change under the partition's tail lock only,
 *             free ones under the allocator's.
 * Locks:      relation extension, then alloc_lock, then directory buffers in
 *             block order.  Readers: one share lock at a time.
 * Runs in:    any backend; reading on a standby, too.
 * WAL:        META_UPDATE.
 * On error:   a slot reserved for a partition that died stays its spare.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/rel.h"

#include "base/base_compat.h"
#include "log/log_meta.h"
#include "log/log_segment.h"
#include "log/log_topic.h"

#define DIRECTORY_LOWER \
	(SizeOfPageHeaderData + NARAD_ENTRIES_PER_PAGE * sizeof(NaradSegmentEntry))

#define DirectoryEntries(page) \
	((NaradSegmentEntry *) PageGetContents((Page) (page)))

/* Blocks of a directory page and its slots. */
static inline uint64
group_blocks(uint32 segment_pages)
{
	return 1 + (uint64) NARAD_ENTRIES_PER_PAGE * segment_pages;
}

/*
 * NaradSlotDirectoryBlock
 *
 * The block of the directory page that describes a slot; InvalidBlockNumber
 * past the largest file.
 */
BlockNumber
NaradSlotDirectoryBlock(uint32 slot, uint32 segment_pages)
{
	uint64		block = 1 + (uint64) (slot / NARAD_ENTRIES_PER_PAGE) *
	group_blocks(segment_pages);

	return block > MaxBlockNumber ? InvalidBlockNumber : (BlockNumber) block;
}

/*
 * NaradSlotFirstBlock
 *
 * The first block of a slot; InvalidBlockNumber if the slot does not fit into
 * the largest file.
 */
BlockNumber
NaradSlotFirstBlock(uint32 slot, uint32 segment_pages)
{
	uint64		block = 2 + (uint64) (slot / NARAD_ENTRIES_PER_PAGE) *
	group_blocks(segment_pages) +
	(uint64) (slot % NARAD_ENTRIES_PER_PAGE) * segment_pages;

	if (block + segment_pages - 1 > MaxBlockNumber)
		return InvalidBlockNumber;
	return (BlockNumber) block;
}

/*
 * NaradClassPages
 *
 * Pages of a segment of a class.
 */
uint32
NaradClassPages(int size_class, uint32 segment_pages)
{
	switch (size_class)
	{
		case NARAD_CLASS_SMALL:
			return NARAD_SMALL_PAGES;
		case NARAD_CLASS_MEDIUM:
			return NARAD_MEDIUM_PAGES;
		default:
			return segment_pages;
	}
}

/*
 * NaradClassSubslots
 *
 * Usable sub-slots, numbered 1 to the result, of a slot split by a class:
 * what fits, and what the directory pages in sub-slot 0 can describe.
 */
uint32
NaradClassSubslots(int size_class, uint32 segment_pages)
{
	uint32		pages = NaradClassPages(size_class, segment_pages);

	return Min(segment_pages / pages - 1, pages * NARAD_ENTRIES_PER_PAGE);
}

/*
 * NaradClassFor
 *
 * The class of a partition's segment of a sequence number; a large record may
 * need more pages.  More than segment_pages is the caller's to refuse.
 */
int
NaradClassFor(uint64 sequence, uint32 need_pages, uint32 segment_pages)
{
	int			size_class;

	if (sequence < 2)
		size_class = NARAD_CLASS_SMALL;
	else if (sequence < 4)
		size_class = NARAD_CLASS_MEDIUM;
	else
		size_class = NARAD_CLASS_WHOLE;

	while (size_class < NARAD_CLASS_WHOLE &&
		   (need_pages > NaradClassPages(size_class, segment_pages) ||
			(size_class == NARAD_CLASS_MEDIUM &&
			 segment_pages < 4 * NARAD_MEDIUM_PAGES)))
		size_class++;
	return size_class;
}

/* True if the page describes slots; false if it was never written. */
static bool
check_directory(Relation rel, BlockNumber block, Page page)
{
	NaradPageSpecialHead *head;

	if (PageIsNew(page))
		return false;
	head = (NaradPageSpecialHead *) PageGetSpecialPointer(page);
	if (PageGetSpecialSize(page) != sizeof(NaradPageSpecialHead) ||
		head->kind != NARAD_PAGE_DIRECTORY ||
		((PageHeader) page)->pd_lower != DIRECTORY_LOWER)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("segment directory of topic \"%s\" is damaged in block %u",
						RelationGetRelationName(rel), block)));
	return true;
}

/* Reads one entry; false if its page does not exist or was never written. */
static bool
read_entry(Relation rel, BlockNumber nblocks, BlockNumber block, int index,
		   NaradSegmentEntry *entry)
{
	Buffer		buffer;
	bool		exists;

	if (block >= nblocks)
		return false;
	buffer = ReadBuffer(rel, block);
	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	exists = check_directory(rel, block, BufferGetPage(buffer));
	if (exists)
		*entry = DirectoryEntries(BufferGetPage(buffer))[index];
	UnlockReleaseBuffer(buffer);
	return exists;
}

static void
fill_ref(NaradSegmentRef *ref, const NaradSegmentEntry *entry,
		 BlockNumber first_block, uint32 npages, BlockNumber dir_block,
		 int dir_index)
{
	ref->sequence = entry->sequence;
	ref->first_offset = entry->first_offset;
	ref->partition = entry->partition;
	ref->first_block = first_block;
	ref->npages = npages;
	ref->dir_block = dir_block;
	ref->dir_index = dir_index;
	ref->state = entry->state;
	ref->size_class = entry->size_class;
}

/* Where sub-slot `sub` (from 1) of a split slot is described, and lies. */
static void
locate_subslot(BlockNumber slot_block, uint32 sub, uint32 class_pages,
			   BlockNumber *dir_block, int *dir_index, BlockNumber *block)
{
	*dir_block = slot_block + (sub - 1) / NARAD_ENTRIES_PER_PAGE;
	*dir_index = (sub - 1) % NARAD_ENTRIES_PER_PAGE;
	*block = slot_block + sub * class_pages;
}

/*
 * NaradSegmentOfBlock
 *
 * The entry of the segment in which a block lies.  False for the metapage,
 * directory pages, free slots and blocks past what is described.
 */
bool
NaradSegmentOfBlock(Relation rel, uint32 segment_pages, BlockNumber block,
					NaradSegmentEntry *entry, BlockNumber *first_block)
{
	BlockNumber nblocks = RelationGetNumberOfBlocks(rel);
	BlockNumber slot_block;
	BlockNumber dir_block;
	uint64		place;
	uint32		slot;
	int			dir_index;

	if (block == 0)
		return false;
	place = (block - 1) % group_blocks(segment_pages);
	if (place == 0)
		return false;
	slot = (uint32) ((block - 1) / group_blocks(segment_pages)) *
		NARAD_ENTRIES_PER_PAGE + (uint32) ((place - 1) / segment_pages);
	slot_block = NaradSlotFirstBlock(slot, segment_pages);
	if (slot_block == InvalidBlockNumber ||
		!read_entry(rel, nblocks, NaradSlotDirectoryBlock(slot, segment_pages),
					slot % NARAD_ENTRIES_PER_PAGE, entry))
		return false;

	if (entry->state == NARAD_SEGMENT_SPLIT)
	{
		int			size_class = entry->size_class;
		uint32		pages = NaradClassPages(size_class, segment_pages);
		uint32		sub = (block - slot_block) / pages;

		if (sub == 0 || sub > NaradClassSubslots(size_class, segment_pages))
			return false;
		locate_subslot(slot_block, sub, pages, &dir_block, &dir_index,
					   &slot_block);
		if (!read_entry(rel, nblocks, dir_block, dir_index, entry))
			return false;
	}
	if (first_block != NULL)
		*first_block = slot_block;
	return entry->state != NARAD_SEGMENT_FREE;
}

/* The sub-slots of one split slot, for NaradDirectoryWalk. */
static void
walk_split_slot(Relation rel, uint32 segment_pages, BlockNumber nblocks,
				BlockNumber slot_block, int size_class, char *copy,
				NaradDirectoryVisitor visit, void *arg)
{
	uint32		pages = NaradClassPages(size_class, segment_pages);
	uint32		nsubs = NaradClassSubslots(size_class, segment_pages);
	BlockNumber copied = InvalidBlockNumber;
	bool		exists = false;
	uint32		sub;

	for (sub = 1; sub <= nsubs; sub++)
	{
		BlockNumber dir_block;
		BlockNumber block;
		int			dir_index;
		NaradSegmentEntry *entry;
		NaradSegmentRef ref;

		locate_subslot(slot_block, sub, pages, &dir_block, &dir_index, &block);
		if (dir_block >= nblocks)
			break;
		if (dir_block != copied)
		{
			NaradPageCopy(rel, dir_block, copy);
			exists = check_directory(rel, dir_block, (Page) copy);
			copied = dir_block;
		}
		entry = &DirectoryEntries(copy)[dir_index];
		if (!exists || entry->state == NARAD_SEGMENT_FREE)
			continue;
		fill_ref(&ref, entry, block, pages, dir_block, dir_index);
		visit(entry, &ref, arg);
	}
}

/*
 * NaradDirectoryWalk
 *
 * Calls back for each entry that is not free, in slot order; those of a split
 * slot after the split entry.  No lock is held in the callback, which may
 * error.  Any relation lock.
 */
void
NaradDirectoryWalk(Relation rel, uint32 segment_pages,
				   NaradDirectoryVisitor visit, void *arg)
{
	BlockNumber nblocks = RelationGetNumberOfBlocks(rel);
	char	   *copy = palloc(2 * BLCKSZ);
	uint32		first;

	for (first = 0;; first += NARAD_ENTRIES_PER_PAGE)
	{
		BlockNumber dir_block = NaradSlotDirectoryBlock(first, segment_pages);
		int			i;

		if (dir_block >= nblocks)
			break;
		CHECK_FOR_INTERRUPTS();
		NaradPageCopy(rel, dir_block, copy);
		if (!check_directory(rel, dir_block, (Page) copy))
			continue;
		for (i = 0; i < NARAD_ENTRIES_PER_PAGE; i++)
		{
			NaradSegmentEntry *entry = &DirectoryEntries(copy)[i];
			NaradSegmentRef ref;

			if (entry->state == NARAD_SEGMENT_FREE)
				continue;
			fill_ref(&ref, entry, NaradSlotFirstBlock(first + i, segment_pages),
					 segment_pages, dir_block, i);
			visit(entry, &ref, arg);
			if (entry->state == NARAD_SEGMENT_SPLIT)
				walk_split_slot(rel, segment_pages, nblocks, ref.first_block,
								entry->size_class, copy + BLCKSZ, visit, arg);
		}
	}
	pfree(copy);
}

typedef struct SegmentListState
{
	int			partition;		/* -1: all */
	NaradSegmentRef *refs;
	int			nrefs;
	int			capacity;
} SegmentListState;

static void
collect_segment(const NaradSegmentEntry *entry, const NaradSegmentRef *ref,
				void *arg)
{
	SegmentListState *list = arg;

	if ((entry->state != NARAD_SEGMENT_OPEN &&
		 entry->state != NARAD_SEGMENT_SEALED) ||
		(list->partition >= 0 && entry->partition != list->partition))
		return;
	if (list->nrefs == list->capacity)
	{
		list->capacity *= 2;
		list->refs = repalloc_huge(list->refs, (Size) list->capacity *
								   sizeof(NaradSegmentRef));
	}
	list->refs[list->nrefs++] = *ref;
}

static int
compare_refs(const void *a, const void *b)
{
	const NaradSegmentRef *left = a;
	const NaradSegmentRef *right = b;

	if (left->partition != right->partition)
		return left->partition < right->partition ? -1 : 1;
	if (left->sequence != right->sequence)
		return left->sequence < right->sequence ? -1 : 1;
	return 0;
}

/*
 * NaradSegmentList
 *
 * palloc'ed: open and sealed segments of a partition (-1: of all) by
 * partition and sequence.  From the pages alone.
 */
NaradSegmentRef *
NaradSegmentList(Relation rel, uint32 segment_pages, int partition,
				 int *nsegments)
{
	SegmentListState list;

	list.partition = partition;
	list.nrefs = 0;
	list.capacity = 32;
	list.refs = palloc(list.capacity * sizeof(NaradSegmentRef));
	NaradDirectoryWalk(rel, segment_pages, collect_segment, &list);
	qsort(list.refs, list.nrefs, sizeof(NaradSegmentRef), compare_refs);
	*nsegments = list.nrefs;
	return list.refs;
}

/*
 * NaradSegmentReadEntry
 *
 * One entry, from its page.  Errors XX001 if the page is gone.
 */
void
NaradSegmentReadEntry(Relation rel, const NaradSegmentRef *ref,
					  NaradSegmentEntry *entry)
{
	if (!read_entry(rel, RelationGetNumberOfBlocks(rel), ref->dir_block,
					ref->dir_index, entry))
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("segment directory of topic \"%s\" is damaged in block %u",
						RelationGetRelationName(rel), ref->dir_block)));
}

/*
 * NaradSegmentWriteEntries
 *
 * Replaces one or two entries in one WAL record, making their directory pages
 * if they were never written.  The caller holds the lock that protects these
 * entries.  Errors only on reading a page.
 */
void
NaradSegmentWriteEntries(Relation rel, NaradTopicId topic_id,
						 NaradEntryChange *changes, int nchanges)
{
	static PGAlignedBlock images[2];
	NaradPageUpdate updates[2];
	int			nupdates = 0;
	int			i;

	Assert(nchanges == 1 || nchanges == 2);

	/* Buffer locks go by block number. */
	if (nchanges == 2 &&
		changes[0].ref->dir_block > changes[1].ref->dir_block)
	{
		NaradEntryChange swap = changes[0];

		changes[0] = changes[1];
		changes[1] = swap;
	}

	for (i = 0; i < nchanges; i++)
	{
		const NaradSegmentRef *ref = changes[i].ref;

		if (i == 0 || ref->dir_block != changes[0].ref->dir_block)
		{
			NaradPageUpdate *update = &updates[nupdates];
			Buffer		buffer = ReadBuffer(rel, ref->dir_block);
			Page		page = BufferGetPage(buffer);

			LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
			update->buffer = buffer;
			update->image = images[nupdates].data;
			update->init = !check_directory(rel, ref->dir_block, page);
			if (update->init)
			{
				NaradMetaImageInit(update->image, topic_id,
								   NARAD_PAGE_DIRECTORY, 0);
				((PageHeader) update->image)->pd_lower = DIRECTORY_LOWER;
			}
			else
				memcpy(update->image, page, BLCKSZ);
			nupdates++;
		}
		DirectoryEntries(updates[nupdates - 1].image)[ref->dir_index] =
			changes[i].entry;
	}

	NaradPagesUpdate(rel, updates, nupdates);
	for (i = 0; i < nupdates; i++)
		UnlockReleaseBuffer(updates[i].buffer);
}

/* Zeros for a page on disk.  Aligned for direct I/O; never written to. */
static NaradIOBlock zero_block;

/* Makes a block, and thus all before it, part of the file; extension lock. */
static void
ensure_block(Relation rel, BlockNumber block)
{
	SMgrRelation smgr = RelationGetSmgr(rel);

	if (smgrnblocks(smgr, MAIN_FORKNUM) <= block)
		smgrextend(smgr, MAIN_FORKNUM, block, zero_block.data, false);
}

/*
 * NaradBlockEnsure
 *
 * The same for others.  A page that the directory or a map names may not
 * exist when it was never written: extending a file is not WAL-logged, so a
 * power failure, or a standby, does not know of it.
 */
void
NaradBlockEnsure(Relation rel, BlockNumber block)
{
	if (block < RelationGetNumberOfBlocks(rel))
		return;
	LockRelationForExtension(rel, ExclusiveLock);
	ensure_block(rel, block);
	UnlockRelationForExtension(rel, ExclusiveLock);
}

/*
 * NaradSegmentPreparePages
 *
 * Makes pages [from, to) of a segment exist on disk as zeros: written, not
 * left as a hole of the file, so that a full disk is reported here.  They are
 * brought into the buffer pool, too, without reading them.  The pages must
 * never have been used by this segment.  Takes the extension lock.
 */
void
NaradSegmentPreparePages(Relation rel, BlockNumber first_block, uint32 from,
						 uint32 to)
{
	SMgrRelation smgr;
	BlockNumber nblocks;
	BlockNumber block;

	LockRelationForExtension(rel, ExclusiveLock);
	smgr = RelationGetSmgr(rel);
	nblocks = smgrnblocks(smgr, MAIN_FORKNUM);
	for (block = first_block + from; block < first_block + to; block++)
	{
		if (block < nblocks)
			smgrwrite(smgr, MAIN_FORKNUM, block, zero_block.data, false);
		else
			smgrextend(smgr, MAIN_FORKNUM, block, zero_block.data, false);
	}
	UnlockRelationForExtension(rel, ExclusiveLock);

	for (block = first_block + from; block < first_block + to; block++)
		UnlockReleaseBuffer(ReadBufferExtended(rel, MAIN_FORKNUM, block,
											   RBM_ZERO_AND_LOCK, NULL));
}

/* Sets one entry; extension and allocator lock are held. */
static void
set_entry(Relation rel, NaradLogTopic *topic, const NaradSegmentRef *ref,
		  const NaradSegmentEntry *entry)
{
	NaradEntryChange change;

	change.ref = ref;
	change.entry = *entry;
	ensure_block(rel, ref->dir_block);
	NaradSegmentWriteEntries(rel, topic->topic_id, &change, 1);
}

/* Reads a slot's entry; false past the last directory page written. */
static bool
read_slot(Relation rel, uint32 segment_pages, uint32 slot,
		  NaradSegmentEntry *entry)
{
	return read_entry(rel, RelationGetNumberOfBlocks(rel),
					  NaradSlotDirectoryBlock(slot, segment_pages),
					  slot % NARAD_ENTRIES_PER_PAGE, entry);
}

/* The lowest free slot.  Under the allocator lock. */
static uint32
find_free_slot(Relation rel, NaradLogTopic *topic)
{
	uint32		slot;

	for (slot = topic->free_hint;; slot++)
	{
		NaradSegmentEntry entry;

		if (NaradSlotFirstBlock(slot, topic->segment_pages) ==
			InvalidBlockNumber)
			ereport(ERROR,
					(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
					 errmsg("topic \"%s\" has reached the largest size of a relation",
							RelationGetRelationName(rel))));
		if (!read_slot(rel, topic->segment_pages, slot, &entry) ||
			entry.state == NARAD_SEGMENT_FREE)
			break;
	}
	topic->free_hint = slot;
	return slot;
}

static void
slot_ref(NaradLogTopic *topic, uint32 slot, const NaradSegmentEntry *entry,
		 NaradSegmentRef *ref)
{
	fill_ref(ref, entry, NaradSlotFirstBlock(slot, topic->segment_pages),
			 topic->segment_pages,
			 NaradSlotDirectoryBlock(slot, topic->segment_pages),
			 slot % NARAD_ENTRIES_PER_PAGE);
}

/*
 * Divides a free slot into sub-slots of a class.  Their directory pages are
 * written before the slot says that it is split.
 */
static void
split_slot(Relation rel, NaradLogTopic *topic, uint32 slot, int size_class)
{
	uint32		nsubs = NaradClassSubslots(size_class, topic->segment_pages);
	uint32		ndirs = (nsubs + NARAD_ENTRIES_PER_PAGE - 1) /
	NARAD_ENTRIES_PER_PAGE;
	NaradSegmentEntry entry = {0};
	NaradSegmentRef ref;
	PGAlignedBlock image;
	uint32		i;

	entry.state = NARAD_SEGMENT_SPLIT;
	entry.size_class = size_class;
	slot_ref(topic, slot, &entry, &ref);

	NaradSegmentPreparePages(rel, ref.first_block, 0, ndirs);
	NaradMetaImageInit(image.data, topic->topic_id, NARAD_PAGE_DIRECTORY, 0);
	((PageHeader) image.data)->pd_lower = DIRECTORY_LOWER;
	for (i = 0; i < ndirs; i++)
	{
		Buffer		buffer = ReadBuffer(rel, ref.first_block + i);
		NaradPageUpdate update = {buffer, image.data, true};

		LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
		NaradPagesUpdate(rel, &update, 1);
		UnlockReleaseBuffer(buffer);
	}
	set_entry(rel, topic, &ref, &entry);
	topic->free_hint = slot + 1;
}

/* A free sub-slot of a split slot; false if it is full. */
static bool
find_free_subslot(Relation rel, NaradLogTopic *topic, uint32 slot,
				  int size_class, NaradSegmentRef *ref)
{
	uint32		pages = NaradClassPages(size_class, topic->segment_pages);
	uint32		nsubs = NaradClassSubslots(size_class, topic->segment_pages);
	BlockNumber slot_block = NaradSlotFirstBlock(slot, topic->segment_pages);
	BlockNumber nblocks = RelationGetNumberOfBlocks(rel);
	uint32		sub;

	for (sub = 1; sub <= nsubs; sub++)
	{
		BlockNumber dir_block;
		BlockNumber block;
		int			dir_index;
		NaradSegmentEntry entry = {0};

		locate_subslot(slot_block, sub, pages, &dir_block, &dir_index, &block);
		if (!read_entry(rel, nblocks, dir_block, dir_index, &entry) ||
			entry.state == NARAD_SEGMENT_FREE)
		{
			fill_ref(ref, &entry, block, pages, dir_block, dir_index);
			return true;
		}
	}
	return false;
}

/* Finds the lowest free sub-slot of a class, splitting a slot if need be. */
static void
find_subslot(Relation rel, NaradLogTopic *topic, int size_class,
			 NaradSegmentRef *ref)
{
	NaradSegmentEntry entry;
	uint32		slot;

	for (slot = topic->split_hint[size_class];
		 read_slot(rel, topic->segment_pages, slot, &entry); slot++)
	{
		if (entry.state == NARAD_SEGMENT_SPLIT &&
			entry.size_class == size_class &&
			find_free_subslot(rel, topic, slot, size_class, ref))
		{
			topic->split_hint[size_class] = slot;
			return;
		}
	}

	slot = find_free_slot(rel, topic);
	split_slot(rel, topic, slot, size_class);
	topic->split_hint[size_class] = slot;
	if (!find_free_subslot(rel, topic, slot, size_class, ref))
		elog(ERROR, "new split slot %u has no free place", slot);
}

/* NaradSegmentAllocate, with the extension and the allocator lock held. */
static void
allocate_locked(Relation rel, NaradLogTopic *topic, int size_class,
				int partition, bool meta, NaradSegmentRef *ref)
{
	NaradSegmentEntry entry = {0};
	uint32		slot = 0;

	if (size_class == NARAD_CLASS_WHOLE)
	{
		slot = find_free_slot(rel, topic);
		slot_ref(topic, slot, &entry, ref);
	}
	else
		find_subslot(rel, topic, size_class, ref);

	entry.state = meta ? NARAD_SEGMENT_META : NARAD_SEGMENT_SPARE;
	entry.size_class = size_class;
	entry.partition = partition;
	set_entry(rel, topic, ref, &entry);

	if (size_class == NARAD_CLASS_WHOLE)
		topic->free_hint = slot + 1;
	ref->state = entry.state;
	ref->size_class = size_class;
	ref->partition = partition;
}

/*
 * NaradSegmentAllocate
 *
 * Reserves the lowest free place of a class as a partition's spare, or as a
 * segment of meta pages; WAL-logged.  RowExclusiveLock on the topic; no narad
 * lock of rank alloc or later.  A groups_lock may be held if the extension
 * lock was taken before it.  Errors: ENOSPC, 54000.
 */
void
NaradSegmentAllocate(Relation rel, NaradLogTopic *topic, int size_class,
					 int partition, bool meta, NaradSegmentRef *ref)
{
	LockRelationForExtension(rel, ExclusiveLock);
	LWLockAcquire(&topic->alloc_lock, LW_EXCLUSIVE);
	allocate_locked(rel, topic, size_class, partition, meta, ref);
	LWLockRelease(&topic->alloc_lock);
	UnlockRelationForExtension(rel, ExclusiveLock);
}

/*
 * NaradSegmentFree
 *
 * Gives back a spare that holds nothing.  Locks as NaradSegmentAllocate.
 */
void
NaradSegmentFree(Relation rel, NaradLogTopic *topic, const NaradSegmentRef *ref)
{
	NaradSegmentEntry entry = {0};
	uint64		blocks = group_blocks(topic->segment_pages);
	uint32		slot;

	slot = (uint32) ((ref->first_block - 1) / blocks) * NARAD_ENTRIES_PER_PAGE +
		(uint32) (((ref->first_block - 1) % blocks - 1) / topic->segment_pages);

	LockRelationForExtension(rel, ExclusiveLock);
	LWLockAcquire(&topic->alloc_lock, LW_EXCLUSIVE);
	set_entry(rel, topic, ref, &entry);
	if (ref->size_class == NARAD_CLASS_WHOLE)
		topic->free_hint = Min(topic->free_hint, slot);
	else
		topic->split_hint[ref->size_class] =
			Min(topic->split_hint[ref->size_class], slot);
	LWLockRelease(&topic->alloc_lock);
	UnlockRelationForExtension(rel, ExclusiveLock);
}

/*
 * NaradMetaPageAllocate
 *
 * A fresh zeroed page for whatever is not data; its block number.  Locks as
 * NaradSegmentAllocate.  If the caller's use of it is not logged before a
 * crash, the page is lost until the topic is truncated.
 */
BlockNumber
NaradMetaPageAllocate(Relation rel, NaradLogTopic *topic)
{
	NaradSegmentRef ref;
	NaradSegmentEntry entry;
	BlockNumber block;

	LockRelationForExtension(rel, ExclusiveLock);
	LWLockAcquire(&topic->alloc_lock, LW_EXCLUSIVE);
	if (topic->meta_left == 0)
	{
		allocate_locked(rel, topic, NARAD_CLASS_SMALL, 0, true, &ref);
		NaradSegmentPreparePages(rel, ref.first_block, 0, ref.npages);
		topic->meta_block = ref.first_block;
		topic->meta_left = ref.npages;
		topic->meta_dir_block = ref.dir_block;
		topic->meta_dir_index = ref.dir_index;
	}
	memset(&ref, 0, sizeof(ref));
	ref.dir_block = topic->meta_dir_block;
	ref.dir_index = topic->meta_dir_index;
	NaradSegmentReadEntry(rel, &ref, &entry);
	Assert(entry.state == NARAD_SEGMENT_META);
	entry.pages_prepared++;
	set_entry(rel, topic, &ref, &entry);
	block = topic->meta_block++;
	topic->meta_left--;
	ensure_block(rel, block);
	LWLockRelease(&topic->alloc_lock);
	UnlockRelationForExtension(rel, ExclusiveLock);
	return block;
}
