/*-------------------------------------------------------------------------
 *
 * log_segment.c
 *	  The segment directory: where slots lie, who has them.
 *
 * The file is an array of slots with a directory page before every D of
 * them.  A slot is one whole segment, or is split into units, of which the
 * first holds directory pages for the others.  Everything about a place is
 * computable from its number, so finding the entry of a block costs one or
 * two page reads; in a split slot the entry may stand up to seven units
 * before the block's own.
 *
 * A partition's segments grow with what it holds: four of one unit, four of
 * two, four of four, then of eight, until it has had about a slot's worth;
 * then whole slots.  So what is reserved and not used yet stays below a third
 * of what is used, in files of any size.
 *
 * Owns:       directory pages; the allocator's hints in NaradLogTopic.
 * Invariants: I10: slots and units are allocated lowest first.  A directory
 *             page that was never written describes free places; it is a
 *             damaged one if a place that it describes is in use, or if the
 *             slot's entry counts it as written (I12).  Entries of
 *             open and spare segments change under the partition's tail lock
 *             only, free ones under the allocator's.  A page has room on the
 *             disk before it is used, also where the file is longer already:
 *             extending it past pages nobody has prepared leaves holes.  What
 *             is on it may be a freed segment's, sound or damaged.
 * Locks:      relation extension, then alloc_lock, then directory buffers in
 *             block order.  Readers: one share lock at a time.
 * Runs in:    any backend; reading on a standby, too.
 * WAL:        META_UPDATE; FREEZE_SEGMENT.
 * On error:   a slot reserved for a partition that died stays its spare.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/storage.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/rel.h"

#include "base/base_compat.h"
#include "base/base_extend.h"
#include "base/base_stop.h"
#include "log/log_meta.h"
#include "log/log_segment.h"
#include "log/log_topic.h"
#include "log/log_xlog.h"

#define DIRECTORY_LOWER \
	(SizeOfPageHeaderData + NARAD_ENTRIES_PER_PAGE * sizeof(NaradSegmentEntry))

#define DirectoryEntries(page) \
	((NaradSegmentEntry *) PageGetContents((Page) (page)))

/* Segments of a partition of each class below MEDIUM. */
#define SEGMENTS_PER_CLASS 4

/* Pages prepared between two looks at interrupts. */
#define PREPARE_RUN 256

/* Pages for which buffers are taken ahead. */
#define WARM_RUN 64

#define IsDirectoryUnit(unit) ((unit) % NARAD_DIRECTORY_PERIOD == 0)

static inline uint32
class_units(int size_class)
{
	return UINT32_C(1) << size_class;
}

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
 * NaradSlotOfBlock
 *
 * The slot in which a block lies, or, for a directory page, the first one it
 * describes.  Not for the metapage.
 */
uint32
NaradSlotOfBlock(BlockNumber block, uint32 segment_pages)
{
	uint64		blocks = group_blocks(segment_pages);
	uint64		place = (block - 1) % blocks;

	return (uint32) ((block - 1) / blocks) * NARAD_ENTRIES_PER_PAGE +
		(place == 0 ? 0 : (uint32) ((place - 1) / segment_pages));
}

/*
 * NaradClassPages
 *
 * Pages of a segment of a class.
 */
uint32
NaradClassPages(int size_class, uint32 segment_pages)
{
	return size_class >= NARAD_CLASS_WHOLE ? segment_pages :
		class_units(size_class) * NARAD_UNIT_PAGES;
}

/*
 * NaradClassFor
 *
 * The class of a partition's segment of a sequence number.  A large record
 * wants more pages, up to segment_pages, so that it lies in few segments.  Of
 * the first slot, a unit is left for meta pages.
 */
int
NaradClassFor(uint64 sequence, uint32 need_pages, uint32 segment_pages)
{
	uint32		nunits = segment_pages / NARAD_UNIT_PAGES;
	uint64		nbefore = 0;	/* units of the segments before */
	int			size_class = NARAD_CLASS_SMALL;

	while (size_class < NARAD_CLASS_MEDIUM && sequence >= SEGMENTS_PER_CLASS)
	{
		nbefore += SEGMENTS_PER_CLASS * class_units(size_class);
		sequence -= SEGMENTS_PER_CLASS;
		size_class++;
	}
	nbefore += sequence * class_units(size_class);
	if (nbefore + class_units(size_class) + 1 > NaradSlotUnits(segment_pages))
		size_class = NARAD_CLASS_WHOLE;

	while (size_class < NARAD_CLASS_WHOLE &&
		   (need_pages > NaradClassPages(size_class, segment_pages) ||
			class_units(size_class) >= nunits))
		size_class++;
	return size_class;
}

/*
 * NaradSlotUnits
 *
 * Units of a split slot that can hold segments.
 */
uint32
NaradSlotUnits(uint32 segment_pages)
{
	uint32		nunits = segment_pages / NARAD_UNIT_PAGES;

	return nunits - (nunits + NARAD_DIRECTORY_PERIOD - 1) /
		NARAD_DIRECTORY_PERIOD;
}

/*
 * NaradSlotNthUnit
 *
 * The nth of them, from 0.
 */
uint32
NaradSlotNthUnit(uint32 n)
{
	return n + 1 + n / (NARAD_DIRECTORY_PERIOD - 1);
}

/*
 * NaradUnitLocate
 *
 * Where a unit of a split slot is described, and lies.  Not for directory
 * units.
 */
void
NaradUnitLocate(BlockNumber slot_block, uint32 unit, NaradUnitPlace *place)
{
	uint32		dir_unit = unit - unit % NARAD_DIRECTORY_PERIOD;
	uint32		n = unit - dir_unit - 1;
	uint32		page = n / NARAD_ENTRIES_PER_PAGE;

	Assert(!IsDirectoryUnit(unit));
	place->block = slot_block + unit * NARAD_UNIT_PAGES;
	place->dir_block = slot_block + dir_unit * NARAD_UNIT_PAGES + page;
	place->dir_index = n % NARAD_ENTRIES_PER_PAGE;
	place->dir_number = dir_unit / NARAD_DIRECTORY_PERIOD * NARAD_UNIT_PAGES +
		page;
}

static void
report_damaged_directory(Relation rel, BlockNumber block)
{
	ereport(ERROR,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("segment directory of topic \"%s\" is damaged in block %u",
					RelationGetRelationName(rel), block)));
}

/* Is it a sound page of the directory? */
static bool
is_directory(Page page)
{
	NaradPageSpecialHead *head = NaradPageHead((char *) page);

	return head != NULL &&
		PageGetSpecialSize(page) == sizeof(NaradPageSpecialHead) &&
		head->kind == NARAD_PAGE_DIRECTORY &&
		((PageHeader) page)->pd_lower == DIRECTORY_LOWER;
}

/* True if the page describes slots; false if it was never written. */
static bool
check_directory(Relation rel, BlockNumber block, Page page)
{
	if (PageIsNew(page))
		return false;
	if (!is_directory(page))
		report_damaged_directory(rel, block);
	return true;
}

/* Copies a directory page of units, if it is one. */
static bool
copy_units_if_sound(Relation rel, BlockNumber block, char *copy)
{
	return block < RelationGetNumberOfBlocks(rel) &&
		NaradPageCopyChecked(rel, block, copy) && is_directory((Page) copy);
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

/*
 * A directory page of slots that holds zeros: is a place behind it in use?
 * Taking a place is logged before anything is written there, so only the first
 * directory page of a slot that was about to be split can be.
 */
static bool
is_used_behind(Relation rel, BlockNumber dir_block, uint32 segment_pages)
{
	NaradRelInfo *info = NaradRelInfoGet(rel);
	uint64		nblocks = RelationGetNumberOfBlocks(rel);
	uint64		end = Min(nblocks, dir_block + group_blocks(segment_pages));

	return info != NULL &&
		NaradFindUsedBlock(rel, info->topic_id, dir_block + 1,
						   (BlockNumber) end) != InvalidBlockNumber;
}

/*
 * Reads a slot's entry; false past the last directory page written.  Errors
 * XX001 if that page is lost.
 */
static bool
read_slot(Relation rel, uint32 segment_pages, uint32 slot,
		  NaradSegmentEntry *entry)
{
	BlockNumber block = NaradSlotDirectoryBlock(slot, segment_pages);
	int			index = slot % NARAD_ENTRIES_PER_PAGE;

	if (read_entry(rel, RelationGetNumberOfBlocks(rel), block, index, entry))
		return true;
	if (block >= RelationGetNumberOfBlocks(rel) ||
		!is_used_behind(rel, block, segment_pages))
		return false;
	/* Perhaps all of it by somebody just now. */
	if (!read_entry(rel, RelationGetNumberOfBlocks(rel), block, index, entry))
		report_damaged_directory(rel, block);
	return true;
}

/* Copies a directory page of slots.  As read_slot. */
static bool
copy_slots(Relation rel, uint32 segment_pages, BlockNumber block, char *copy)
{
	NaradPageCopy(rel, block, copy);
	if (check_directory(rel, block, (Page) copy))
		return true;
	if (!is_used_behind(rel, block, segment_pages))
		return false;
	NaradPageCopy(rel, block, copy);
	if (!check_directory(rel, block, (Page) copy))
		report_damaged_directory(rel, block);
	return true;
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
	ref->flags = entry->flags;
	ref->continues = (entry->flags & NARAD_SEGMENT_CONTINUES) != 0;
	ref->pages_used = entry->pages_used;
	ref->pages_recycled = entry->recycled_units * NARAD_UNIT_PAGES;
}

/*
 * Copies a directory page of a split slot; false if the slot is not split any
 * more: then something else may lie there.  Errors XX001 if it still is, and
 * the page is no directory page.
 */
static bool
copy_units(Relation rel, uint32 segment_pages, BlockNumber slot_block,
		   const NaradUnitPlace *place, char *copy)
{
	uint32		slot = NaradSlotOfBlock(slot_block, segment_pages);
	NaradSegmentEntry entry;

	if (copy_units_if_sound(rel, place->dir_block, copy))
		return true;
	if (!read_slot(rel, segment_pages, slot, &entry) ||
		entry.state != NARAD_SEGMENT_SPLIT ||
		entry.pages_prepared <= place->dir_number)
		return false;
	/* Perhaps it was split anew just now. */
	if (!copy_units_if_sound(rel, place->dir_block, copy))
		report_damaged_directory(rel, place->dir_block);
	return true;
}

/*
 * The entry that covers a unit of a split slot with so many directory pages:
 * its own, or that of a longer segment that begins before it.
 */
static bool
read_covering_entry(Relation rel, uint32 segment_pages, BlockNumber slot_block,
					uint32 ndirs, uint32 unit, NaradSegmentEntry *entry,
					BlockNumber *first_block)
{
	PGAlignedBlock copy;
	BlockNumber copied = InvalidBlockNumber;
	uint32		back;

	for (back = 0; back < class_units(NARAD_CLASS_MEDIUM) &&
		 !IsDirectoryUnit(unit - back); back++)
	{
		NaradUnitPlace place;

		NaradUnitLocate(slot_block, unit - back, &place);
		if (place.dir_number >= ndirs)
			continue;
		if (place.dir_block != copied &&
			!copy_units(rel, segment_pages, slot_block, &place, copy.data))
			return false;
		copied = place.dir_block;
		*entry = DirectoryEntries(copy.data)[place.dir_index];
		if (entry->state != NARAD_SEGMENT_FREE)
		{
			*first_block = place.block;
			return entry->size_class < NARAD_CLASS_WHOLE &&
				class_units(entry->size_class) > back;
		}
	}
	return false;
}

/*
 * NaradSegmentOfBlock
 *
 * The entry of the segment in which a block lies.  False for the metapage,
 * directory pages, free slots and blocks past what is described.  Errors
 * XX001 if a directory page is damaged.
 */
bool
NaradSegmentOfBlock(Relation rel, uint32 segment_pages, BlockNumber block,
					NaradSegmentEntry *entry, BlockNumber *first_block)
{
	BlockNumber slot_block;
	uint64		place;
	uint32		slot;

	if (block == 0)
		return false;
	place = (block - 1) % group_blocks(segment_pages);
	if (place == 0)
		return false;
	slot = (uint32) ((block - 1) / group_blocks(segment_pages)) *
		NARAD_ENTRIES_PER_PAGE + (uint32) ((place - 1) / segment_pages);
	slot_block = NaradSlotFirstBlock(slot, segment_pages);
	if (slot_block == InvalidBlockNumber ||
		!read_slot(rel, segment_pages, slot, entry))
		return false;

	if (entry->state == NARAD_SEGMENT_SPLIT)
	{
		uint32		unit = (block - slot_block) / NARAD_UNIT_PAGES;

		if (unit >= segment_pages / NARAD_UNIT_PAGES ||
			!read_covering_entry(rel, segment_pages, slot_block,
								 entry->pages_prepared, unit, entry,
								 &slot_block))
			return false;
	}
	if (first_block != NULL)
		*first_block = slot_block;
	return entry->state != NARAD_SEGMENT_FREE;
}

/*
 * A walk over the units of a split slot, by copies of its directory pages.
 */
typedef struct UnitWalk
{
	Relation	rel;
	uint32		segment_pages;
	BlockNumber slot_block;
	uint32		ndirs;			/* directory pages written */
	BlockNumber copied;			/* which of them is in copy */
	char	   *copy;
} UnitWalk;

static void
begin_unit_walk(UnitWalk *walk, Relation rel, uint32 segment_pages,
				BlockNumber slot_block, uint32 ndirs, char *copy)
{
	walk->rel = rel;
	walk->segment_pages = segment_pages;
	walk->slot_block = slot_block;
	walk->ndirs = ndirs;
	walk->copied = InvalidBlockNumber;
	walk->copy = copy;
}

/*
 * A unit's entry, with its place, or NULL if it is free, as all are of a slot
 * that is not split any more.
 */
static NaradSegmentEntry *
walk_unit(UnitWalk *walk, uint32 unit, NaradUnitPlace *place)
{
	NaradSegmentEntry *entry;

	NaradUnitLocate(walk->slot_block, unit, place);
	if (place->dir_number >= walk->ndirs)
		return NULL;
	if (place->dir_block != walk->copied)
	{
		if (!copy_units(walk->rel, walk->segment_pages, walk->slot_block,
						place, walk->copy))
		{
			walk->ndirs = 0;
			return NULL;
		}
		walk->copied = place->dir_block;
	}
	entry = &DirectoryEntries(walk->copy)[place->dir_index];
	if (entry->state == NARAD_SEGMENT_FREE)
		return NULL;
	if (entry->size_class >= NARAD_CLASS_WHOLE)
		report_damaged_directory(walk->rel, place->dir_block);
	return entry;
}

/* The segments of one split slot, for NaradDirectoryWalk. */
static void
walk_split_slot(UnitWalk *walk, NaradDirectoryVisitor visit, void *arg)
{
	uint32		nunits = walk->segment_pages / NARAD_UNIT_PAGES;
	uint32		unit = 1;

	while (unit < nunits)
	{
		NaradSegmentEntry *entry = NULL;
		NaradUnitPlace place;
		NaradSegmentRef ref;

		if (!IsDirectoryUnit(unit))
		{
			entry = walk_unit(walk, unit, &place);
			if (place.dir_number >= walk->ndirs)
				break;
		}
		if (entry == NULL)
		{
			unit++;
			continue;
		}
		fill_ref(&ref, entry, place.block,
				 NaradClassPages(entry->size_class, walk->segment_pages),
				 place.dir_block, place.dir_index);
		unit += class_units(entry->size_class);
		visit(entry, &ref, arg);
	}
}

/*
 * NaradDirectoryWalk
 *
 * Calls back for each entry that is not free, in slot order; those of a split
 * slot after the split entry.  No lock is held in the callback, which may
 * error.  Any relation lock.  Errors XX001 if a directory page is damaged.
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
		if (!copy_slots(rel, segment_pages, dir_block, copy))
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
			{
				UnitWalk	walk;

				begin_unit_walk(&walk, rel, segment_pages, ref.first_block,
								entry->pages_prepared, copy + BLCKSZ);
				walk_split_slot(&walk, visit, arg);
			}
		}
		NARAD_STOP("directory-page");
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
 * The first segment of a list of one partition whose predecessor is missing, or
 * NULL.
 */
static const NaradSegmentRef *
find_gap(const SegmentListState *list)
{
	for (int i = 1; i < list->nrefs && list->partition >= 0; i++)
	{
		const NaradSegmentRef *ref = &list->refs[i];

		if (ref[-1].sequence + 1 != ref->sequence)
			return ref;
	}
	return NULL;
}

/*
 * NaradSegmentList
 *
 * palloc'ed: open and sealed segments of a partition (-1: of all) by
 * partition and sequence.  From the pages alone.
 *
 * Segments are opened while the pages are read, one after the other: the first
 * of two perhaps where the walk had been, and the second where it had not.  So a
 * list with a gap is made again, unless it is the same one: that is damage.  Of
 * all partitions only scans list them, whose snapshots see none of those.
 */
NaradSegmentRef *
NaradSegmentList(Relation rel, uint32 segment_pages, int partition,
				 int *nsegments)
{
	SegmentListState list;
	const NaradSegmentRef *gap;
	uint64		last_gap = 0;

	list.partition = partition;
	list.capacity = 32;
	list.refs = palloc(list.capacity * sizeof(NaradSegmentRef));
	for (;;)
	{
		list.nrefs = 0;
		NaradDirectoryWalk(rel, segment_pages, collect_segment, &list);
		qsort(list.refs, list.nrefs, sizeof(NaradSegmentRef), compare_refs);
		gap = find_gap(&list);
		if (gap == NULL || gap->sequence == last_gap)
			break;
		last_gap = gap->sequence;
	}
	*nsegments = list.nrefs;
	return list.refs;
}

/*
 * NaradSegmentSearch
 *
 * Which of a partition's segments, in their order, is the last that begins at or
 * before an offset; -1 if none does.
 */
int
NaradSegmentSearch(const NaradSegmentRef *refs, int nrefs, NaradOffset offset)
{
	int			low = 0;
	int			high = nrefs;

	while (low < high)
	{
		int			mid = low + (high - low) / 2;

		if (refs[mid].first_offset <= offset)
			low = mid + 1;
		else
			high = mid;
	}
	return low - 1;
}

/* The segment of a sequence number in a partition's map. */
static bool
copy_from_map(NaradLogPartition *part, uint64 sequence, NaradSegmentRef *ref)
{
	const NaradSegmentRef *found;

	LWLockAcquire(&part->map_lock, LW_SHARED);
	found = NaradLogPartitionMapFind(part, sequence);
	if (found != NULL)
		*ref = *found;
	LWLockRelease(&part->map_lock);
	return found != NULL;
}

/*
 * NaradSegmentNext
 *
 * Makes *ref the next segment of its partition; false if there is none.  Any
 * relation lock; the map lock is taken.
 */
bool
NaradSegmentNext(Relation rel, NaradSegmentRef *ref)
{
	NaradRelInfo *info = NaradRelInfoLook(rel);
	uint64		sequence = ref->sequence + 1;
	NaradSegmentRef *refs;
	bool		found = false;
	int			nrefs;
	int			i;

	if (info == NULL)
		return false;
	if (info->shared != NULL)
	{
		NaradLogPartition *part = NaradLogPartitionFind(info->shared,
														ref->partition);

		return part != NULL && copy_from_map(part, sequence, ref);
	}

	refs = NaradSegmentList(rel, info->segment_pages, ref->partition, &nrefs);
	for (i = 0; i < nrefs && !found; i++)
	{
		found = refs[i].sequence == sequence;
		if (found)
			*ref = refs[i];
	}
	pfree(refs);
	return found;
}

/* The same of a unit.  Its slot's entry is read first. */
static void
read_unit(Relation rel, const NaradSegmentRef *ref, NaradSegmentEntry *entry)
{
	uint32		segment_pages = NaradRelInfoGet(rel)->segment_pages;
	uint32		slot = NaradSlotOfBlock(ref->first_block, segment_pages);
	BlockNumber slot_block = NaradSlotFirstBlock(slot, segment_pages);
	PGAlignedBlock copy;
	NaradUnitPlace place;
	NaradSegmentEntry slot_entry;

	memset(entry, 0, sizeof(NaradSegmentEntry));
	NaradUnitLocate(slot_block,
					(ref->first_block - slot_block) / NARAD_UNIT_PAGES,
					&place);
	if (read_slot(rel, segment_pages, slot, &slot_entry) &&
		slot_entry.state == NARAD_SEGMENT_SPLIT &&
		slot_entry.pages_prepared > place.dir_number &&
		copy_units(rel, segment_pages, slot_block, &place, copy.data))
		*entry = DirectoryEntries(copy.data)[place.dir_index];
}

/*
 * NaradSegmentReadEntry
 *
 * What the directory says now of a segment's place.  If that lay in a split
 * slot that is none any more, it is free: what described it may be anything
 * by now.  Errors XX001 if the page is gone.
 */
void
NaradSegmentReadEntry(Relation rel, const NaradSegmentRef *ref,
					  NaradSegmentEntry *entry)
{
	if (ref->size_class != NARAD_CLASS_WHOLE)
		read_unit(rel, ref, entry);
	else
		NaradSegmentReadOwnEntry(rel, ref, entry);
}

/*
 * NaradSegmentReadOwnEntry
 *
 * The same in one read, of a segment that stays in its place: the caller holds
 * a lock for that, or its slot is not split.  Errors as that.
 */
void
NaradSegmentReadOwnEntry(Relation rel, const NaradSegmentRef *ref,
						 NaradSegmentEntry *entry)
{
	if (!read_entry(rel, RelationGetNumberOfBlocks(rel), ref->dir_block,
					ref->dir_index, entry))
		report_damaged_directory(rel, ref->dir_block);
}

/*
 * NaradSegmentIsThere
 *
 * Is the segment, open or sealed, still in its place, by the directory?
 * Errors as NaradSegmentReadEntry.
 */
bool
NaradSegmentIsThere(Relation rel, const NaradSegmentRef *ref)
{
	NaradSegmentEntry entry;

	NaradSegmentReadEntry(rel, ref, &entry);
	return (entry.state == NARAD_SEGMENT_OPEN ||
			entry.state == NARAD_SEGMENT_SEALED) &&
		entry.partition == ref->partition && entry.sequence == ref->sequence;
}

/*
 * NaradSegmentWriteEntries, which may also make a directory page that was never
 * written.
 */
static void
write_entries(Relation rel, NaradTopicId topic_id, NaradEntryChange *changes,
			  int nchanges, bool may_init)
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
			if (update->init && !may_init)
				report_damaged_directory(rel, ref->dir_block);
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

/*
 * NaradSegmentWriteEntries
 *
 * Replaces one or two entries in one WAL record.  The caller holds the lock
 * that protects these entries.  Errors only on reading a page, and XX001 if
 * one is damaged.
 */
void
NaradSegmentWriteEntries(Relation rel, NaradTopicId topic_id,
						 NaradEntryChange *changes, int nchanges)
{
	write_entries(rel, topic_id, changes, nchanges, false);
}

/*
 * NaradSegmentFreeze
 *
 * Adds to an entry's flags, and sets its oldest_xid, if it still is the
 * segment's, open or sealed; false if not.  The entry is changed under its page's lock, so of a
 * sealed one nothing else needs to be held; of one that may be open the tail
 * lock, as whoever changes it then writes it whole.  A page that is none of
 * the directory, any more, has no entry.  Errors only on reading it.
 */
bool
NaradSegmentFreeze(Relation rel, const NaradSegmentRef *ref, uint16 flags,
				   uint64 oldest_xid, TransactionId horizon)
{
	Buffer		buffer = ReadBuffer(rel, ref->dir_block);
	Page		page = BufferGetPage(buffer);
	NaradSegmentEntry *entry = &DirectoryEntries(page)[ref->dir_index];
	bool		is_there;

	LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
	is_there = is_directory(page) &&
		(entry->state == NARAD_SEGMENT_OPEN ||
		 entry->state == NARAD_SEGMENT_SEALED) &&
		entry->partition == ref->partition && entry->sequence == ref->sequence;
	if (is_there)
	{
		START_CRIT_SECTION();
		entry->flags |= flags;
		entry->oldest_xid = oldest_xid;
		MarkBufferDirty(buffer);
		NaradXLogFreezeSegment(rel, buffer, ref->dir_index, entry->flags,
							   oldest_xid, horizon);
		END_CRIT_SECTION();
	}
	UnlockReleaseBuffer(buffer);
	return is_there;
}

/*
 * Writes zeros over blocks [from, to), where a file's holes can be filled in no
 * other way, or the disk is too full for it.  What lies there may be needed
 * again: by pg_rewind, which fetches what is named; and after a crash, unless
 * the WAL by which it was freed is on disk.
 */
static void
write_zeros(Relation rel, BlockNumber from, BlockNumber to)
{
	XLogFlush(NaradXLogBlocksGo(rel, from, to));
	for (BlockNumber block = from; block < to; block++)
		NaradFileWriteZeros(RelationGetSmgr(rel), block);
}

/*
 * Makes blocks [from, to) exist with room on the disk, extending the file if
 * need be.  Those before `recycled` have room, if they exist.
 */
static void
make_blocks(Relation rel, BlockNumber recycled, BlockNumber from,
			BlockNumber to)
{
	BlockNumber first = Max(from, recycled);
	BlockNumber nblocks;
	BlockNumber end;

	NARAD_FAIL("write-zeros");	/* as if the disk were full */
	LockRelationForExtension(rel, ExclusiveLock);
	nblocks = smgrnblocks(RelationGetSmgr(rel), MAIN_FORKNUM);
	end = Min(nblocks, to);
	if (first < end && !NaradFileReserve(RelationGetSmgr(rel), first, end))
		write_zeros(rel, first, end);
	NaradFileExtend(RelationGetSmgr(rel), Max(from, nblocks), to);
	UnlockRelationForExtension(rel, ExclusiveLock);
}

/*
 * NaradSegmentPreparePages
 *
 * Makes pages [from, to) of a segment exist on disk: with room of their own,
 * not as a hole of the file, so that a full disk is reported here.  What other
 * segments wrote there may stay; the sequence on it tells that it is nothing.
 * Those of its `recycled` first pages that exist are known to have room.
 * The pages must never have been used by this segment.  Takes the extension
 * lock for a run at a time, and may be cancelled in between, unless an LWLock
 * is held.
 */
void
NaradSegmentPreparePages(Relation rel, BlockNumber first_block,
						 uint32 recycled, uint32 from, uint32 to)
{
	uint32		page;

	for (page = from; page < to; page += PREPARE_RUN)
	{
		CHECK_FOR_INTERRUPTS();
		make_blocks(rel, first_block + recycled, first_block + page,
					first_block + Min(page + PREPARE_RUN, to));
	}
}

/*
 * NaradSegmentWarmPages
 *
 * Brings pages that were just prepared into the buffer pool without reading
 * them: the first run of them, as the next one will be needed much later.
 */
void
NaradSegmentWarmPages(Relation rel, BlockNumber first_block, uint32 from,
					  uint32 to, BufferAccessStrategy strategy)
{
	uint32		page;

	for (page = from; page < Min(from + WARM_RUN, to); page++)
		UnlockReleaseBuffer(ReadBufferExtended(rel, MAIN_FORKNUM,
											   first_block + page,
											   RBM_ZERO_AND_LOCK, strategy));
}

/* Both, for pages that are not data. */
static void
prepare_meta_pages(Relation rel, BlockNumber first_block, uint32 npages)
{
	NaradSegmentPreparePages(rel, first_block, 0, 0, npages);
	NaradSegmentWarmPages(rel, first_block, 0, npages, NULL);
}

/*
 * Sets one entry; the allocator lock is held, and the extension lock if the page
 * may be a new one.
 */
static void
set_entry(Relation rel, NaradLogTopic *topic, const NaradSegmentRef *ref,
		  const NaradSegmentEntry *entry)
{
	NaradEntryChange change;
	NaradSegmentEntry old;

	change.ref = ref;
	change.entry = *entry;
	if (!read_entry(rel, RelationGetNumberOfBlocks(rel), ref->dir_block,
					ref->dir_index, &old))
		prepare_meta_pages(rel, ref->dir_block, 1);
	write_entries(rel, topic->topic_id, &change, 1, true);
}

/* The lowest free slot, and its recycled_units.  Under the allocator lock. */
static uint32
find_free_slot(Relation rel, NaradLogTopic *topic, uint16 *recycled)
{
	uint32		slot;

	*recycled = 0;
	for (slot = topic->free_hint;; slot++)
	{
		NaradSegmentEntry entry;

		if (NaradSlotFirstBlock(slot, topic->segment_pages) ==
			InvalidBlockNumber)
			ereport(ERROR,
					(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
					 errmsg("topic \"%s\" has reached the largest size of a relation",
							RelationGetRelationName(rel))));
		if (!read_slot(rel, topic->segment_pages, slot, &entry))
			break;
		if (entry.state == NARAD_SEGMENT_FREE)
		{
			*recycled = entry.recycled_units;
			break;
		}
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
 * Writes the next directory page of a split slot, and says so in the slot's
 * entry; with the first the slot becomes split.
 */
static void
add_directory_page(Relation rel, NaradLogTopic *topic, uint32 slot,
				   NaradSegmentEntry *entry)
{
	uint32		n = entry->pages_prepared;
	BlockNumber block = NaradSlotFirstBlock(slot, topic->segment_pages) +
	n / NARAD_UNIT_PAGES * NARAD_DIRECTORY_PERIOD * NARAD_UNIT_PAGES +
	n % NARAD_UNIT_PAGES;
	PGAlignedBlock image;
	NaradPageUpdate update;
	NaradSegmentRef ref;

	prepare_meta_pages(rel, block, 1);
	NaradMetaImageInit(image.data, topic->topic_id, NARAD_PAGE_DIRECTORY, 0);
	((PageHeader) image.data)->pd_lower = DIRECTORY_LOWER;
	NaradPageUpdateInit(rel, block, &update, image.data);
	NaradPagesUpdate(rel, &update, 1);
	UnlockReleaseBuffer(update.buffer);

	entry->state = NARAD_SEGMENT_SPLIT;
	entry->pages_prepared++;
	slot_ref(topic, slot, entry, &ref);
	set_entry(rel, topic, &ref, entry);
}

/*
 * The lowest run of free units in a split slot from a unit on, at which no
 * segment or the slot begins; 0 if there is none.
 */
static uint32
find_free_run(Relation rel, NaradLogTopic *topic, uint32 slot, uint32 ndirs,
			  uint32 from, uint32 need)
{
	uint32		nunits = topic->segment_pages / NARAD_UNIT_PAGES;
	uint32		nfree = 0;
	uint32		unit = from;
	PGAlignedBlock copy;
	UnitWalk	walk;

	begin_unit_walk(&walk, rel, topic->segment_pages,
					NaradSlotFirstBlock(slot, topic->segment_pages), ndirs,
					copy.data);
	while (unit < nunits)
	{
		NaradUnitPlace place;
		NaradSegmentEntry *entry;

		if (IsDirectoryUnit(unit))
		{
			nfree = 0;
			unit++;
			continue;
		}
		entry = walk_unit(&walk, unit, &place);
		if (entry != NULL)
		{
			nfree = 0;
			unit += class_units(entry->size_class);
		}
		else if (++nfree == need)
			return unit - need + 1;
		else
			unit++;
	}
	return 0;
}

/*
 * Finds the lowest free place for a class in split slots, splitting one more
 * if need be, and sees to it that its directory page exists.
 */
static void
find_units(Relation rel, NaradLogTopic *topic, int size_class,
		   NaradSegmentRef *ref)
{
	NaradSegmentEntry entry;
	NaradSegmentEntry empty = {0};
	NaradUnitPlace place;
	uint32		unit = 0;
	uint32		from = Max(topic->unit_hint[size_class], 1);
	uint16		recycled;
	uint32		slot;

	for (slot = topic->split_hint[size_class];
		 read_slot(rel, topic->segment_pages, slot, &entry); slot++)
	{
		if (entry.state == NARAD_SEGMENT_SPLIT)
			unit = find_free_run(rel, topic, slot, entry.pages_prepared, from,
								 class_units(size_class));
		if (unit != 0)
			break;
		from = 1;
	}
	if (unit == 0)
	{
		slot = find_free_slot(rel, topic, &recycled);
		memset(&entry, 0, sizeof(entry));
		add_directory_page(rel, topic, slot, &entry);
		topic->free_hint = slot + 1;
		unit = 1;
	}

	NaradUnitLocate(NaradSlotFirstBlock(slot, topic->segment_pages), unit,
					&place);
	while (entry.pages_prepared <= place.dir_number)
		add_directory_page(rel, topic, slot, &entry);
	fill_ref(ref, &empty, place.block,
			 NaradClassPages(size_class, topic->segment_pages),
			 place.dir_block, place.dir_index);
	topic->split_hint[size_class] = slot;
	topic->unit_hint[size_class] = unit;
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
		slot = find_free_slot(rel, topic, &entry.recycled_units);
		slot_ref(topic, slot, &entry, ref);
	}
	else
		find_units(rel, topic, size_class, ref);

	entry.state = meta ? NARAD_SEGMENT_META : NARAD_SEGMENT_SPARE;
	entry.size_class = size_class;
	entry.partition = partition;
	set_entry(rel, topic, ref, &entry);

	if (size_class == NARAD_CLASS_WHOLE)
		topic->free_hint = slot + 1;
	else
		topic->unit_hint[size_class] += class_units(size_class);
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

/* Something in a slot is free again: it is among the first to be taken. */
static void
lower_hints(NaradLogTopic *topic, uint32 slot, bool is_whole)
{
	int			i;

	if (is_whole)
	{
		topic->free_hint = Min(topic->free_hint, slot);
		return;
	}
	for (i = 0; i < NARAD_CLASS_WHOLE; i++)
	{
		/* Free units may now be part of a longer run of them. */
		if (slot > topic->split_hint[i])
			continue;
		topic->split_hint[i] = slot;
		topic->unit_hint[i] = 1;
	}
}

/*
 * Frees segments that one directory page describes.  They must be what they
 * are said to be.  The allocator lock is held.
 */
static void
free_on_page(Relation rel, NaradLogTopic *topic, const NaradSegmentRef *refs,
			 int nrefs)
{
	PGAlignedBlock image;
	NaradPageUpdate update = {0};
	int			i;

	update.buffer = ReadBuffer(rel, refs[0].dir_block);
	update.image = image.data;
	LockBuffer(update.buffer, BUFFER_LOCK_EXCLUSIVE);
	memcpy(image.data, BufferGetPage(update.buffer), BLCKSZ);
	if (!check_directory(rel, refs[0].dir_block, (Page) image.data))
		report_damaged_directory(rel, refs[0].dir_block);
	for (i = 0; i < nrefs; i++)
	{
		NaradSegmentEntry *entry =
		&DirectoryEntries(image.data)[refs[i].dir_index];
		uint16		recycled = Max(entry->recycled_units,
								   entry->pages_used / NARAD_UNIT_PAGES);

		if (entry->state != refs[i].state ||
			entry->partition != refs[i].partition ||
			entry->sequence != refs[i].sequence)
			report_damaged_directory(rel, refs[0].dir_block);
		memset(entry, 0, sizeof(NaradSegmentEntry));
		if (refs[i].size_class == NARAD_CLASS_WHOLE)
			entry->recycled_units = recycled;
	}
	NaradPagesUpdate(rel, &update, 1);
	UnlockReleaseBuffer(update.buffer);
}

/* Is there a segment in a split slot? */
static bool
slot_has_segments(Relation rel, NaradLogTopic *topic, uint32 slot,
				  uint32 ndirs)
{
	uint32		nunits = topic->segment_pages / NARAD_UNIT_PAGES;
	PGAlignedBlock copy;
	UnitWalk	walk;
	uint32		unit;

	begin_unit_walk(&walk, rel, topic->segment_pages,
					NaradSlotFirstBlock(slot, topic->segment_pages), ndirs,
					copy.data);
	for (unit = 1; unit < nunits; unit++)
	{
		NaradUnitPlace place;

		if (IsDirectoryUnit(unit))
			continue;
		if (walk_unit(&walk, unit, &place) != NULL)
			return true;
		if (place.dir_number >= ndirs)
			break;
	}
	return false;
}

/* Makes a split slot without segments a free one. */
static void
free_split_slot(Relation rel, NaradLogTopic *topic, uint32 slot)
{
	NaradSegmentEntry entry;
	NaradSegmentEntry empty = {0};
	NaradSegmentRef ref;

	if (!read_slot(rel, topic->segment_pages, slot, &entry) ||
		entry.state != NARAD_SEGMENT_SPLIT ||
		slot_has_segments(rel, topic, slot, entry.pages_prepared))
		return;
	NARAD_FAIL("free-split-slot");
	slot_ref(topic, slot, &empty, &ref);
	set_entry(rel, topic, &ref, &empty);
	lower_hints(topic, slot, true);
}

/*
 * NaradSegmentFreeLocked
 *
 * Frees segments that one directory page describes: all of them or, after an
 * error, none.  Slots in which they were the last ones stay split.  The
 * allocator lock is held, and nobody else changes the entries.
 */
void
NaradSegmentFreeLocked(Relation rel, NaradLogTopic *topic,
					   const NaradSegmentRef *refs, int nrefs)
{
	int			i;

	free_on_page(rel, topic, refs, nrefs);
	for (i = 0; i < nrefs; i++)
		lower_hints(topic, NaradSlotOfBlock(refs[i].first_block,
											topic->segment_pages),
					refs[i].size_class == NARAD_CLASS_WHOLE);
}

/*
 * NaradSegmentFree
 *
 * Gives back a spare that holds nothing.  As NaradSegmentFreeLocked otherwise;
 * locks as NaradSegmentAllocate.
 */
void
NaradSegmentFree(Relation rel, NaradLogTopic *topic, const NaradSegmentRef *ref)
{
	NARAD_FAIL("free-spare");
	LWLockAcquire(&topic->alloc_lock, LW_EXCLUSIVE);
	NaradSegmentFreeLocked(rel, topic, ref, 1);
	LWLockRelease(&topic->alloc_lock);
}

/*
 * NaradSegmentFreeSlot
 *
 * Makes the slot of a block a free one if it is split and has no segments.
 * Locks as NaradSegmentAllocate.
 */
void
NaradSegmentFreeSlot(Relation rel, NaradLogTopic *topic, BlockNumber block)
{
	LWLockAcquire(&topic->alloc_lock, LW_EXCLUSIVE);
	free_split_slot(rel, topic, NaradSlotOfBlock(block,
												 topic->segment_pages));
	LWLockRelease(&topic->alloc_lock);
}

/*
 * NaradSegmentFreeBefore
 *
 * Is a whole slot free that lies before a block?  Locks as
 * NaradSegmentAllocate.
 */
bool
NaradSegmentFreeBefore(Relation rel, NaradLogTopic *topic, BlockNumber block)
{
	uint16		recycled;
	uint32		slot;

	LWLockAcquire(&topic->alloc_lock, LW_EXCLUSIVE);
	slot = find_free_slot(rel, topic, &recycled);
	LWLockRelease(&topic->alloc_lock);
	return slot < NaradSlotOfBlock(block, topic->segment_pages);
}

/*
 * NaradSegmentTruncate
 *
 * Cuts the file before a slot, as it and all slots behind are free.  What
 * their entries say of recycled pages is forgotten first: those places will be
 * holes when the file grows past them again.  The caller holds
 * AccessExclusiveLock, so nobody else has a page, or an idea of the file's
 * length.
 */
void
NaradSegmentTruncate(Relation rel, NaradLogTopic *topic, uint32 slot)
{
	uint32		first = slot % NARAD_ENTRIES_PER_PAGE;
	BlockNumber end = first != 0 ?
	NaradSlotFirstBlock(slot, topic->segment_pages) :
	NaradSlotDirectoryBlock(slot, topic->segment_pages);

	if (first != 0)
	{
		BlockNumber block = NaradSlotDirectoryBlock(slot,
													topic->segment_pages);
		PGAlignedBlock image;
		NaradPageUpdate update = {0};

		update.buffer = ReadBuffer(rel, block);
		update.image = image.data;
		LockBuffer(update.buffer, BUFFER_LOCK_EXCLUSIVE);
		memcpy(image.data, BufferGetPage(update.buffer), BLCKSZ);
		if (check_directory(rel, block, (Page) image.data))
		{
			memset(&DirectoryEntries(image.data)[first], 0,
				   (NARAD_ENTRIES_PER_PAGE - first) *
				   sizeof(NaradSegmentEntry));
			NaradPagesUpdate(rel, &update, 1);
		}
		UnlockReleaseBuffer(update.buffer);
	}
	(void) NaradXLogBlocksGo(rel, end, RelationGetNumberOfBlocks(rel));
	RelationTruncate(rel, end);
}

/*
 * NaradMetaPageAllocate
 *
 * A page for whatever is not data; its block number.  Its place may have held
 * records before, so the caller logs all of it.  Locks as
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
		topic->meta_block = ref.first_block;
		topic->meta_left = ref.npages;
		topic->meta_dir_block = ref.dir_block;
		topic->meta_dir_index = ref.dir_index;
		topic->meta_prepared = false;
	}
	if (!topic->meta_prepared)
	{
		/* Remembered first: on a full disk the next try goes on from here. */
		prepare_meta_pages(rel, topic->meta_block, topic->meta_left);
		topic->meta_prepared = true;
	}
	memset(&ref, 0, sizeof(ref));
	ref.first_block = topic->meta_block;
	ref.dir_block = topic->meta_dir_block;
	ref.dir_index = topic->meta_dir_index;
	if (!read_entry(rel, RelationGetNumberOfBlocks(rel), ref.dir_block,
					ref.dir_index, &entry))
		report_damaged_directory(rel, ref.dir_block);
	Assert(entry.state == NARAD_SEGMENT_META);
	entry.pages_prepared++;
	set_entry(rel, topic, &ref, &entry);
	block = topic->meta_block++;
	topic->meta_left--;
	LWLockRelease(&topic->alloc_lock);
	UnlockRelationForExtension(rel, ExclusiveLock);
	return block;
}
