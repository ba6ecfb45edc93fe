/*-------------------------------------------------------------------------
 *
 * log_carry.c
 *	  TRUNCATE: what outlives the records.
 *
 * A truncated topic goes on under a new topic id: each partition's offsets
 * continue where they ended, groups keep name and pause state and start
 * there.  That is written as a small new file: metapage, directory with the
 * first slots split into units of meta pages, and on those the bases (start
 * offsets) and the group directory.
 *
 * The pages go through shared buffers and are logged whole, as an index build
 * logs its own; when the new file needs no WAL (wal_level = minimal, and the
 * file made in this transaction; or unlogged) they are not, and core writes
 * the file out at commit.
 *
 * Owns:       the first pages of a truncated topic's file; pages of kind
 *             BASES.
 * Invariants: offsets of a partition are never given twice, I12.
 * Locks:      the caller's AccessExclusiveLock; buffer locks, one at a time.
 * Runs in:    any backend, in TRUNCATE.
 * WAL:        core's full-page records.
 * On error:   the new file goes with the transaction.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "access/xloginsert.h"
#include "catalog/storage.h"
#include "miscadmin.h"
#include "utils/rel.h"

#include "log/log_meta.h"
#include "log/log_segment.h"

/* What is carried over. */
typedef struct CarryOver
{
	NaradMetaData meta;			/* of the new file */
	NaradOffset *bases;			/* of each partition */
	NaradGroupEntry *groups;
	int			ngroups;
} CarryOver;

/* Where it goes. */
typedef struct CarryTarget
{
	RelFileLocator locator;
	SMgrRelation smgr;
	bool		permanent;
	bool		needs_wal;
} CarryTarget;

#define GROUPS_PER_PAGE \
	((BLCKSZ - SizeOfPageHeaderData - sizeof(NaradPageSpecialHead) - \
	  offsetof(NaradGroupsPage, entries)) / sizeof(NaradGroupEntry))

/* Collects from the old file; false if it is empty. */
static bool
collect(Relation rel, CarryOver *carry)
{
	NaradMetaData old;
	NaradRelInfo *info;
	int			partition;
	int			i;

	if (!NaradMetaRead(rel, &old))
		return false;
	info = NaradRelInfoAttach(rel);
	if (info == NULL)
		return false;

	NaradMetaFill(&carry->meta, old.npartitions, old.segment_pages);
	carry->meta.system_identifier = old.system_identifier;
	carry->meta.timeline = old.timeline;
	carry->meta.epoch = old.epoch;
	carry->meta.hash_version = old.hash_version;

	/* Nobody appends: we hold AccessExclusiveLock. */
	carry->bases = palloc(old.npartitions * sizeof(NaradOffset));
	for (partition = 0; partition < old.npartitions; partition++)
	{
		NaradLogPartition *part = NaradLogPartitionFind(info->shared,
														partition);

		carry->bases[partition] = part == NULL ? 0 :
			pg_atomic_read_u64(&part->end_offset);
	}

	carry->groups = NaradGroupList(rel, &carry->ngroups);
	for (i = 0; i < carry->ngroups; i++)
	{
		NaradGroupEntry *group = &carry->groups[i];

		group->group_id = carry->meta.next_group_id++;
		group->generation = 0;
		group->map = 0;
	}
	return true;
}

/* Writes an image to a block of the target, extending the file to it. */
static void
put_page(CarryTarget *target, BlockNumber block, const char *image)
{
	static NaradIOBlock zeros;	/* never written to */
	Buffer		buffer;

	/* Written even if the file is longer already: it may be a hole there. */
	if (smgrnblocks(target->smgr, MAIN_FORKNUM) <= block)
		smgrextend(target->smgr, MAIN_FORKNUM, block, zeros.data, false);
	else
		smgrwrite(target->smgr, MAIN_FORKNUM, block, zeros.data, false);
	buffer = ReadBufferWithoutRelcache(target->locator, MAIN_FORKNUM, block,
									   RBM_ZERO_AND_LOCK, NULL,
									   target->permanent);
	START_CRIT_SECTION();
	memcpy(BufferGetPage(buffer), image, BLCKSZ);
	MarkBufferDirty(buffer);
	if (target->needs_wal)
		log_newpage_buffer(buffer, true);
	END_CRIT_SECTION();
	UnlockReleaseBuffer(buffer);
}

/* The block of the n-th meta page: in units of split slots from 0 on. */
static BlockNumber
meta_page_block(uint32 n, uint32 segment_pages)
{
	uint32		nunits = NaradSlotUnits(segment_pages);
	uint32		segment = n / NARAD_UNIT_PAGES;

	return NaradSlotFirstBlock(segment / nunits, segment_pages) +
		NaradSlotNthUnit(segment % nunits) * NARAD_UNIT_PAGES +
		n % NARAD_UNIT_PAGES;
}

/* A directory page image of all free entries. */
static NaradSegmentEntry *
init_directory(char *image, NaradTopicId topic_id)
{
	NaradMetaImageInit(image, topic_id, NARAD_PAGE_DIRECTORY, 0);
	((PageHeader) image)->pd_lower = SizeOfPageHeaderData +
		NARAD_ENTRIES_PER_PAGE * sizeof(NaradSegmentEntry);
	return (NaradSegmentEntry *) PageGetContents((Page) image);
}

/*
 * Writes the directory pages of a split slot in which npages meta pages lie;
 * how many.
 */
static uint32
put_slot_directory(CarryTarget *target, const NaradMetaData *meta,
				   uint32 slot, uint32 npages)
{
	BlockNumber slot_block = NaradSlotFirstBlock(slot, meta->segment_pages);
	uint32		nsegments = (npages + NARAD_UNIT_PAGES - 1) / NARAD_UNIT_PAGES;
	PGAlignedBlock image;
	NaradSegmentEntry *entries = NULL;
	NaradUnitPlace place;
	uint32		ndirs = 0;
	uint32		n;

	for (n = 0; n < nsegments; n++)
	{
		NaradUnitLocate(slot_block, NaradSlotNthUnit(n), &place);
		if (place.dir_index == 0)
		{
			entries = init_directory(image.data, meta->topic_id);
			ndirs = place.dir_number + 1;
		}
		entries[place.dir_index].state = NARAD_SEGMENT_META;
		entries[place.dir_index].size_class = NARAD_CLASS_SMALL;
		entries[place.dir_index].pages_prepared =
			Min(npages - n * NARAD_UNIT_PAGES, NARAD_UNIT_PAGES);
		if (place.dir_index == NARAD_ENTRIES_PER_PAGE - 1 ||
			n == nsegments - 1)
			put_page(target, place.dir_block, image.data);
	}
	return ndirs;
}

/* Writes the directory pages that describe npages meta pages. */
static void
put_directory(CarryTarget *target, const NaradMetaData *meta, uint32 npages)
{
	uint32		slot_pages = NaradSlotUnits(meta->segment_pages) *
	NARAD_UNIT_PAGES;
	uint32		nslots = (npages + slot_pages - 1) / slot_pages;
	PGAlignedBlock image;
	NaradSegmentEntry *entries;
	uint32		slot;

	if (nslots > NARAD_ENTRIES_PER_PAGE)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("too many groups to truncate the topic")));
	entries = init_directory(image.data, meta->topic_id);
	for (slot = 0; slot < nslots; slot++)
	{
		entries[slot].state = NARAD_SEGMENT_SPLIT;
		entries[slot].pages_prepared =
			put_slot_directory(target, meta, slot,
							   Min(npages - slot * slot_pages, slot_pages));
	}
	put_page(target, NaradSlotDirectoryBlock(0, meta->segment_pages),
			 image.data);
}

/* Writes the start offsets as meta pages [first, first + npages). */
static void
put_bases(CarryTarget *target, const CarryOver *carry, uint32 first,
		  uint32 npages)
{
	PGAlignedBlock image;
	NaradBasesPage *bases = (NaradBasesPage *)
	PageGetContents((Page) image.data);
	uint32		i;

	for (i = 0; i < npages; i++)
	{
		uint32		partition = i * NARAD_BASES_PER_PAGE;

		NaradMetaImageInit(image.data, carry->meta.topic_id, NARAD_PAGE_BASES,
						   0);
		bases->next = i + 1 < npages ?
			meta_page_block(first + i + 1, carry->meta.segment_pages) : 0;
		bases->first_partition = partition;
		memcpy(bases->bases, &carry->bases[partition],
			   Min(carry->meta.npartitions - partition, NARAD_BASES_PER_PAGE) *
			   sizeof(NaradOffset));
		((PageHeader) image.data)->pd_lower = SizeOfPageHeaderData +
			offsetof(NaradBasesPage, bases) +
			NARAD_BASES_PER_PAGE * sizeof(NaradOffset);
		put_page(target, meta_page_block(first + i, carry->meta.segment_pages),
				 image.data);
	}
}

/* Writes the groups as meta pages [first, first + npages). */
static void
put_groups(CarryTarget *target, const CarryOver *carry, uint32 first,
		   uint32 npages)
{
	PGAlignedBlock image;
	NaradGroupsPage *page = (NaradGroupsPage *)
	PageGetContents((Page) image.data);
	uint32		i;

	for (i = 0; i < npages; i++)
	{
		uint32		start = i * GROUPS_PER_PAGE;

		NaradMetaImageInit(image.data, carry->meta.topic_id, NARAD_PAGE_GROUPS,
						   0);
		page->next = i + 1 < npages ?
			meta_page_block(first + i + 1, carry->meta.segment_pages) : 0;
		page->nentries = Min(carry->ngroups - start, GROUPS_PER_PAGE);
		memcpy(page->entries, &carry->groups[start],
			   page->nentries * sizeof(NaradGroupEntry));
		((PageHeader) image.data)->pd_lower = SizeOfPageHeaderData +
			offsetof(NaradGroupsPage, entries) +
			page->nentries * sizeof(NaradGroupEntry);
		put_page(target, meta_page_block(first + i, carry->meta.segment_pages),
				 image.data);
	}
}

/* Writes the new file's pages. */
static void
put_all(CarryTarget *target, CarryOver *carry)
{
	uint32		nbases = (carry->meta.npartitions + NARAD_BASES_PER_PAGE - 1) /
	NARAD_BASES_PER_PAGE;
	uint32		ngroups = (carry->ngroups + GROUPS_PER_PAGE - 1) /
	GROUPS_PER_PAGE;
	PGAlignedBlock image;

	carry->meta.bases_root = meta_page_block(0, carry->meta.segment_pages);
	if (ngroups > 0)
		carry->meta.groups_root = meta_page_block(nbases,
												  carry->meta.segment_pages);
	NaradMetaImage(image.data, &carry->meta);
	put_page(target, 0, image.data);
	put_directory(target, &carry->meta, nbases + ngroups);
	put_bases(target, carry, 0, nbases);
	put_groups(target, carry, nbases, ngroups);
}

/*
 * NaradMetaCarryOver
 *
 * Writes what is carried over to the new file of rel, which still points to
 * the old one.  The caller holds AccessExclusiveLock and has created the new
 * file with RelationCreateStorage, registering its delete.  Nothing if the
 * old file is empty.
 */
void
NaradMetaCarryOver(Relation rel, const RelFileLocator *newlocator,
				   char persistence)
{
	CarryOver	carry;
	CarryTarget target;

	if (!collect(rel, &carry))
		return;
	target.locator = *newlocator;
	target.smgr = NaradSmgrOpen(*newlocator);
	target.permanent = persistence == RELPERSISTENCE_PERMANENT;

	/* With wal_level = minimal a file made here is synced at commit. */
	target.needs_wal = target.permanent && XLogIsNeeded();
	put_all(&target, &carry);
}

/*
 * NaradMetaCarryOverInPlace
 *
 * Truncates a file that this transaction created and writes to it what is
 * carried over, under a new topic id.  AccessExclusiveLock.
 */
void
NaradMetaCarryOverInPlace(Relation rel)
{
	CarryOver	carry;
	CarryTarget target;
	bool		exists = collect(rel, &carry);

	RelationTruncate(rel, 0);
	NaradRelInfoForget(rel);
	if (!exists)
		return;

	target.locator = NaradRelationLocator(rel);
	target.smgr = RelationGetSmgr(rel);
	target.permanent = rel->rd_rel->relpersistence == RELPERSISTENCE_PERMANENT;
	target.needs_wal = RelationNeedsWAL(rel);
	put_all(&target, &carry);
}
