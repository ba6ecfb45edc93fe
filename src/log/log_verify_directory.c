/*-------------------------------------------------------------------------
 *
 * log_verify_directory.c
 *	  Looking at the segment directory: every page of it, every entry, and
 *	  what the entries say together.
 *
 * Owns:       nothing; fills segments, metas and directory_ok.
 * Invariants: entries of one walk may be of different moments, while segments
 *			   are opened, sealed and freed.  So a walk with findings is
 *			   thrown away and repeated, and only what is still found by the
 *			   last is told.
 * Locks:      one buffer share lock at a time.
 * Runs in:    any backend, on a primary and on a standby.
 * WAL:        none.
 * On error:   nothing to undo.
 *
 * Of a directory page that cannot be read the entries are not known: what
 * depends on all being known is then not looked at (directory_ok).
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
#include "log/log_verify.h"

#define DIRECTORY_LOWER \
	(SizeOfPageHeaderData + NARAD_ENTRIES_PER_PAGE * sizeof(NaradSegmentEntry))

#define DirectoryEntries(page) \
	((NaradSegmentEntry *) PageGetContents((Page) (page)))

/* Walks before findings count, and microseconds between them. */
#define ATTEMPTS		4
#define PAUSE			20000L

/* Copies a directory page; false, with findings, if it is none. */
static bool
copy_directory(NaradVerify *verify, BlockNumber block, char *copy)
{
	if (NaradVerifyCopyKind(verify, block, NARAD_PAGE_DIRECTORY,
							"directory page", copy))
	{
		if (((PageHeader) copy)->pd_lower == DIRECTORY_LOWER)
			return true;
		NaradVerifyFind(verify, NARAD_SEVERITY_ERROR, -1,
						NARAD_INVALID_OFFSET, block,
						"directory page has the wrong length");
	}
	verify->directory_ok = false;
	return false;
}

static void
add_meta(NaradVerify *verify, const NaradSegmentEntry *entry,
		 const NaradSegmentRef *ref)
{
	NaradVerifyMeta *meta;

	if (ref->npages > 32)
	{
		NaradVerifyFind(verify, NARAD_SEVERITY_ERROR, -1,
						NARAD_INVALID_OFFSET, ref->first_block,
						"segment of meta pages is too large");
		return;
	}
	if (verify->nmetas == verify->metas_capacity)
	{
		verify->metas_capacity *= 2;
		verify->metas = repalloc_huge(verify->metas,
									  (Size) verify->metas_capacity *
									  sizeof(NaradVerifyMeta));
	}
	meta = &verify->metas[verify->nmetas++];
	meta->first_block = ref->first_block;
	meta->nused = entry->pages_prepared;
	meta->npages = ref->npages;
	meta->met = 0;
}

/* What is wrong with an entry that is not free, taken alone; or NULL. */
static const char *
entry_problem(NaradVerify *verify, const NaradSegmentEntry *entry,
			  const NaradSegmentRef *ref)
{
	uint16		frozen = entry->flags & NARAD_SEGMENT_FREEZE_FLAGS;

	if (entry->state != NARAD_SEGMENT_SPARE &&
		entry->state != NARAD_SEGMENT_OPEN &&
		entry->state != NARAD_SEGMENT_SEALED &&
		entry->state != NARAD_SEGMENT_META)
		return "state is not known";
	if (entry->flags & ~NARAD_SEGMENT_KNOWN_FLAGS)
		return "flags are not known";
	if ((entry->flags & NARAD_SEGMENT_HAS_IDS) &&
		entry->state != NARAD_SEGMENT_SEALED)
		return "flags are those of a sealed one";
	if (frozen != 0 && entry->state != NARAD_SEGMENT_SEALED)
		return "it is frozen, but not sealed";
	if (frozen != 0 && (frozen & NARAD_SEGMENT_FROZEN) == 0)
		return "flags need that of being frozen";
	if ((entry->flags & NARAD_SEGMENT_ALL_COMMITTED) &&
		(entry->flags & NARAD_SEGMENT_ALL_DEAD))
		return "flags contradict each other";
	if (entry->pages_prepared > ref->npages)
		return "more pages are prepared than it has";
	if (entry->recycled_units * NARAD_UNIT_PAGES > ref->npages)
		return "more pages are recycled than it has";
	if (entry->state == NARAD_SEGMENT_META)
		return NULL;
	if (!NaradVerifyPartitionExists(verify, entry->partition))
		return "partition does not exist";
	if (entry->state == NARAD_SEGMENT_SPARE)
		return NULL;
	if (entry->first_offset > NARAD_MAX_OFFSET + 1)
		return "first offset is out of range";
	if (entry->epoch == 0)
		return "epoch is 0";
	if (entry->state == NARAD_SEGMENT_OPEN)
		return NULL;
	if (entry->end_offset < entry->first_offset ||
		entry->end_offset > NARAD_MAX_OFFSET + 1)
		return "end offset is out of range";
	if (entry->pages_used > ref->npages)
		return "more pages are used than it has";
	if (entry->pages_used > 0 && entry->first_time > entry->last_time)
		return "times are in the wrong order";
	return NULL;
}

/* Takes an entry that is not free to the list it belongs to. */
static void
add_segment(NaradVerify *verify, const NaradSegmentEntry *entry,
			BlockNumber first_block, uint32 npages, BlockNumber dir_block,
			int dir_index)
{
	NaradVerifySegment *segment;
	NaradSegmentRef ref;
	const char *problem;

	memset(&ref, 0, sizeof(ref));
	ref.sequence = entry->sequence;
	ref.first_offset = entry->first_offset;
	ref.partition = entry->partition;
	ref.first_block = first_block;
	ref.npages = npages;
	ref.dir_block = dir_block;
	ref.dir_index = dir_index;
	ref.state = entry->state;
	ref.size_class = entry->size_class;
	ref.flags = entry->flags;

	problem = entry_problem(verify, entry, &ref);
	if (problem != NULL)
	{
		NaradVerifyFind(verify, NARAD_SEVERITY_ERROR, -1,
						NARAD_INVALID_OFFSET, dir_block,
						"entry %d of directory page: %s", dir_index, problem);
		return;
	}
	if (entry->state == NARAD_SEGMENT_META)
	{
		add_meta(verify, entry, &ref);
		return;
	}
	if (entry->partition >= verify->meta.npartitions)
		return;					/* was added since */
	if (verify->nsegments == verify->capacity)
	{
		verify->capacity *= 2;
		verify->segments = repalloc_huge(verify->segments,
										 (Size) verify->capacity *
										 sizeof(NaradVerifySegment));
	}
	segment = &verify->segments[verify->nsegments++];
	segment->ref = ref;
	segment->entry = *entry;
}

/* ---- split slots ----------------------------------------------------- */

/* A walk over the units of a split slot. */
typedef struct UnitWalk
{
	BlockNumber slot_block;
	uint32		nunits;
	uint32		ndirs;			/* directory pages written */
	BlockNumber copied;			/* which of them is in copy */
	bool		is_sound;
	uint32		ncovered;		/* following units of the segment at hand */
	BlockNumber covered_by;
	PGAlignedBlock copy;
} UnitWalk;

#define IsDirectoryUnit(unit) ((unit) % NARAD_DIRECTORY_PERIOD == 0)

/* Does a segment of so many units fit in at a unit? */
static bool
run_fits(const UnitWalk *walk, uint32 unit, uint32 nunits)
{
	uint32		i;

	if (unit + nunits > walk->nunits)
		return false;
	for (i = 1; i < nunits; i++)
		if (IsDirectoryUnit(unit + i))
			return false;
	return true;
}

/* Looks at the entry of one unit. */
static void
verify_unit(NaradVerify *verify, UnitWalk *walk, uint32 unit,
			const NaradUnitPlace *place)
{
	NaradSegmentEntry *entry =
	&DirectoryEntries(walk->copy.data)[place->dir_index];
	uint32		npages;

	if (walk->ncovered > 0)
	{
		walk->ncovered--;
		if (entry->state != NARAD_SEGMENT_FREE)
			NaradVerifyFind(verify, NARAD_SEVERITY_ERROR, -1,
							NARAD_INVALID_OFFSET, place->dir_block,
							"entry %u of directory page: block %u belongs to the segment at block %u, too",
							place->dir_index, place->block, walk->covered_by);
		return;
	}
	if (entry->state == NARAD_SEGMENT_FREE)
		return;
	npages = NaradClassPages(entry->size_class, verify->meta.segment_pages);
	if (entry->size_class >= NARAD_CLASS_WHOLE ||
		!run_fits(walk, unit, npages / NARAD_UNIT_PAGES))
	{
		NaradVerifyFind(verify, NARAD_SEVERITY_ERROR, -1,
						NARAD_INVALID_OFFSET, place->dir_block,
						"entry %u of directory page: a segment of class %u does not fit there",
						place->dir_index, entry->size_class);
		return;
	}
	walk->ncovered = npages / NARAD_UNIT_PAGES - 1;
	walk->covered_by = place->block;
	add_segment(verify, entry, place->block, npages, place->dir_block,
				place->dir_index);
}

static void
verify_split_slot(NaradVerify *verify, const NaradSegmentEntry *slot,
				  BlockNumber slot_block, BlockNumber dir_block, int dir_index)
{
	UnitWalk	walk;
	NaradUnitPlace place;
	uint32		unit;

	walk.slot_block = slot_block;
	walk.nunits = verify->meta.segment_pages / NARAD_UNIT_PAGES;
	walk.ndirs = slot->pages_prepared;
	walk.copied = InvalidBlockNumber;
	walk.is_sound = false;
	walk.ncovered = 0;
	walk.covered_by = InvalidBlockNumber;

	place.dir_number = 0;
	for (unit = 1; unit < walk.nunits; unit++)
	{
		if (IsDirectoryUnit(unit))
			continue;
		NaradUnitLocate(slot_block, unit, &place);
		if (place.dir_number >= walk.ndirs)
			return;
		if (place.dir_block != walk.copied)
		{
			walk.is_sound = copy_directory(verify, place.dir_block,
										   walk.copy.data);
			walk.copied = place.dir_block;
		}
		if (walk.is_sound)
			verify_unit(verify, &walk, unit, &place);
		else if (walk.ncovered > 0)
			walk.ncovered--;
	}
	if (walk.ndirs > place.dir_number + 1)
		NaradVerifyFind(verify, NARAD_SEVERITY_ERROR, -1,
						NARAD_INVALID_OFFSET, dir_block,
						"entry %d of directory page: a split slot cannot have %u directory pages",
						dir_index, walk.ndirs);
}

/* ---- the directory --------------------------------------------------- */

/*
 * A directory page that was never written: then nothing behind it was either,
 * but for the first directory page of a slot that was about to be split.
 */
static void
verify_unwritten(NaradVerify *verify, BlockNumber dir_block, BlockNumber end)
{
	BlockNumber block = NaradFindUsedBlock(verify->rel, verify->meta.topic_id,
										   dir_block + 1, end);

	if (block == InvalidBlockNumber)
		return;
	verify->directory_ok = false;
	NaradVerifyFind(verify, NARAD_SEVERITY_ERROR, -1, NARAD_INVALID_OFFSET,
					dir_block,
					"directory page is all zeros, but block %u behind it is in use",
					block);
}

static void
verify_slots(NaradVerify *verify, BlockNumber dir_block, uint32 first,
			 const char *copy)
{
	uint32		pages = verify->meta.segment_pages;
	int			i;

	for (i = 0; i < NARAD_ENTRIES_PER_PAGE; i++)
	{
		NaradSegmentEntry *entry = &DirectoryEntries(copy)[i];
		BlockNumber slot_block = NaradSlotFirstBlock(first + i, pages);

		if (entry->state == NARAD_SEGMENT_FREE)
			continue;
		if (slot_block == InvalidBlockNumber ||
			(entry->state != NARAD_SEGMENT_SPLIT &&
			 entry->size_class != NARAD_CLASS_WHOLE))
			NaradVerifyFind(verify, NARAD_SEVERITY_ERROR, -1,
							NARAD_INVALID_OFFSET, dir_block,
							"entry %d of directory page: a segment of class %u does not fit there",
							i, entry->size_class);
		else if (entry->state == NARAD_SEGMENT_SPLIT)
			verify_split_slot(verify, entry, slot_block, dir_block, i);
		else
			add_segment(verify, entry, slot_block, pages, dir_block, i);
	}
}

/* One walk over all of it. */
static void
walk_directory(NaradVerify *verify)
{
	uint32		pages = verify->meta.segment_pages;
	PGAlignedBlock copy;
	uint32		first;

	verify->nsegments = verify->nmetas = 0;
	verify->directory_ok = true;
	for (first = 0;; first += NARAD_ENTRIES_PER_PAGE)
	{
		BlockNumber nblocks = RelationGetNumberOfBlocks(verify->rel);
		BlockNumber dir_block = NaradSlotDirectoryBlock(first, pages);
		BlockNumber next = NaradSlotDirectoryBlock(first +
												   NARAD_ENTRIES_PER_PAGE,
												   pages);

		if (dir_block >= nblocks)
			break;
		CHECK_FOR_INTERRUPTS();
		if (NaradPageCopyChecked(verify->rel, dir_block, copy.data) &&
			PageIsNew((Page) copy.data))
			verify_unwritten(verify, dir_block, Min(nblocks, next));
		else if (copy_directory(verify, dir_block, copy.data))
			verify_slots(verify, dir_block, first, copy.data);
		if (next == InvalidBlockNumber)
			break;
	}
}

/* ---- what entries say together --------------------------------------- */

static int
compare_segments(const void *a, const void *b)
{
	const NaradSegmentEntry *left = &((const NaradVerifySegment *) a)->entry;
	const NaradSegmentEntry *right = &((const NaradVerifySegment *) b)->entry;
	bool		left_spare = left->state == NARAD_SEGMENT_SPARE;
	bool		right_spare = right->state == NARAD_SEGMENT_SPARE;

	if (left->partition != right->partition)
		return left->partition < right->partition ? -1 : 1;
	if (left_spare != right_spare)
		return left_spare ? 1 : -1;
	if (left->sequence != right->sequence)
		return left->sequence < right->sequence ? -1 : 1;
	return 0;
}

static int
compare_metas(const void *a, const void *b)
{
	BlockNumber left = ((const NaradVerifyMeta *) a)->first_block;
	BlockNumber right = ((const NaradVerifyMeta *) b)->first_block;

	return left < right ? -1 : left > right;
}

/* A segment and the one after it in its partition. */
static void
verify_successor(NaradVerify *verify, const NaradVerifySegment *segment,
				 const NaradVerifySegment *next)
{
	const NaradSegmentEntry *a = &segment->entry;
	const NaradSegmentEntry *b = &next->entry;
	int			partition = a->partition;

	if (a->sequence == b->sequence)
		NaradVerifyFind(verify, NARAD_SEVERITY_ERROR, partition,
						b->first_offset, next->ref.first_block,
						"segment " UINT64_FORMAT " is at block %u, too",
						a->sequence, segment->ref.first_block);
	else if (a->state != NARAD_SEGMENT_SEALED)
		NaradVerifyFind(verify, NARAD_SEVERITY_ERROR, partition,
						a->first_offset, segment->ref.first_block,
						"segment " UINT64_FORMAT " is open, but not the last",
						a->sequence);
	else if (a->sequence + 1 != b->sequence)
	{
		if (verify->directory_ok)
			NaradVerifyFind(verify, NARAD_SEVERITY_ERROR, partition,
							a->end_offset, InvalidBlockNumber,
							"segments " UINT64_FORMAT " to " UINT64_FORMAT " are missing",
							a->sequence + 1, b->sequence - 1);
	}
	else if (a->end_offset != b->first_offset)
		NaradVerifyFind(verify, NARAD_SEVERITY_ERROR, partition,
						b->first_offset, next->ref.first_block,
						"segment " UINT64_FORMAT " begins at another offset than the one before ends, " UINT64_FORMAT,
						b->sequence, a->end_offset);
	else if (a->epoch > b->epoch)
		NaradVerifyFind(verify, NARAD_SEVERITY_ERROR, partition,
						b->first_offset, next->ref.first_block,
						"segment " UINT64_FORMAT " is of epoch %u, and the one before of %u",
						b->sequence, b->epoch, a->epoch);
	else if (b->state == NARAD_SEGMENT_SEALED && a->last_time > b->last_time)
		NaradVerifyFind(verify, NARAD_SEVERITY_ERROR, partition,
						b->first_offset, next->ref.first_block,
						"segment " UINT64_FORMAT " ends at an earlier time than the one before",
						b->sequence);
}

static void
verify_chains(NaradVerify *verify)
{
	NaradMetaData meta;
	int			i;

	if (!NaradMetaRead(verify->rel, &meta))
		meta = verify->meta;
	for (i = 0; i < verify->nsegments; i++)
	{
		const NaradVerifySegment *segment = &verify->segments[i];
		const NaradVerifySegment *next = segment + 1;
		bool		is_spare = segment->entry.state == NARAD_SEGMENT_SPARE;

		if (!is_spare && segment->entry.epoch > meta.epoch)
			NaradVerifyFind(verify, NARAD_SEVERITY_ERROR,
							segment->entry.partition,
							segment->entry.first_offset,
							segment->ref.first_block,
							"segment " UINT64_FORMAT " is of epoch %u, and the topic of %u",
							segment->entry.sequence, segment->entry.epoch,
							meta.epoch);
		if (i + 1 == verify->nsegments ||
			next->entry.partition != segment->entry.partition)
			continue;
		if (is_spare)
			NaradVerifyFind(verify, NARAD_SEVERITY_WARNING,
							segment->entry.partition, NARAD_INVALID_OFFSET,
							next->ref.first_block,
							"the segment at block %u is reserved for this partition, too",
							segment->ref.first_block);
		else if (next->entry.state != NARAD_SEGMENT_SPARE)
			verify_successor(verify, segment, next);
	}
}

/*
 * NaradVerifyDirectory
 *
 * Looks at the segment directory, and fills in what the others go by.
 */
void
NaradVerifyDirectory(NaradVerify *verify)
{
	uint64		nfindings = verify->nfindings;
	int			attempt;

	verify->capacity = 64;
	verify->segments = palloc(verify->capacity * sizeof(NaradVerifySegment));
	verify->metas_capacity = 64;
	verify->metas = palloc(verify->metas_capacity * sizeof(NaradVerifyMeta));
	for (attempt = 1; attempt <= ATTEMPTS; attempt++)
	{
		if (attempt > 1)
			pg_usleep(PAUSE);
		verify->quiet = attempt < ATTEMPTS;
		verify->nfindings = nfindings;
		walk_directory(verify);
		qsort(verify->segments, verify->nsegments, sizeof(NaradVerifySegment),
			  compare_segments);
		qsort(verify->metas, verify->nmetas, sizeof(NaradVerifyMeta),
			  compare_metas);
		verify_chains(verify);
		if (verify->nfindings == nfindings)
			break;
	}
	verify->quiet = false;
}
