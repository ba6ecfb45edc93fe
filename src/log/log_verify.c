/*-------------------------------------------------------------------------
 *
 * log_verify.c
 *	  Looking at everything in a topic's file: the metapage, the start
 *	  offsets, the group directory and the state maps.
 *
 * log_verify_directory.c looks at the segment directory before, and
 * log_verify_data.c at the data pages.  What is on state pages is the layer
 * above's: it is called for each of them.
 *
 * A page in the buffer pool is taken from there; what is not is read past it,
 * so that looking at damage has no side effects.
 *
 * Owns:       nothing; changes nothing.
 * Invariants: I11: what is damaged is named, one finding for each page or
 *			   record, and the rest is looked at all the same.  What runs at
 *			   the same time gives no finding: pages are bound by counts read
 *			   before them, and what several pages say together is looked at
 *			   again before it is called wrong.
 * Locks:      one buffer share lock at a time; the tail lock, shared, for
 *			   moments.
 * Runs in:    any backend, on a primary and on a standby.
 * WAL:        none.
 * On error:   nothing to undo.  Cancel, out of memory, and failures of the
 *			   disk other than a wrong checksum are errors.
 *
 * Memory: a few bytes for each segment, partition and page that is not data.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "log/log_find.h"
#include "log/log_meta.h"
#include "log/log_producer.h"
#include "log/log_verify.h"

#define GROUPS_PER_PAGE \
	((BLCKSZ - SizeOfPageHeaderData - sizeof(NaradPageSpecialHead) - \
	  offsetof(NaradGroupsPage, entries)) / sizeof(NaradGroupEntry))

/* ---- findings -------------------------------------------------------- */

/*
 * NaradVerifyFind
 *
 * Reports a finding; its text is no sentence and names no topic.
 */
void
NaradVerifyFind(NaradVerify *verify, NaradSeverity severity, int partition,
				NaradOffset offset, BlockNumber block, const char *format,...)
{
	char		message[512];
	va_list		args;

	verify->nfindings++;
	if (verify->quiet)
		return;
	va_start(args, format);
	vsnprintf(message, sizeof(message), format, args);
	va_end(args);
	verify->report(severity, partition, offset, block, message, verify->arg);
}

/*
 * NaradVerifyIsKind
 *
 * Is it a page of the topic and kind, with the common special space?
 */
bool
NaradVerifyIsKind(const NaradVerify *verify, const char *page, uint16 kind)
{
	PageHeader	header = (PageHeader) page;
	const NaradPageSpecialHead *head;

	if (PageIsNew((Page) page) ||
		header->pd_special != BLCKSZ - sizeof(NaradPageSpecialHead) ||
		header->pd_lower < SizeOfPageHeaderData ||
		header->pd_lower > header->pd_upper ||
		header->pd_upper > header->pd_special)
		return false;
	head = (const NaradPageSpecialHead *) (page + header->pd_special);
	return head->topic_id == verify->meta.topic_id && head->kind == kind &&
		head->version == NARAD_FORMAT_VERSION;
}

/*
 * NaradVerifyCopyPage
 *
 * Copies a page; a finding, and false, if it does not exist or is damaged.
 */
bool
NaradVerifyCopyPage(NaradVerify *verify, BlockNumber block, int partition,
					const char *what, char *copy)
{
	CHECK_FOR_INTERRUPTS();
	if (block >= RelationGetNumberOfBlocks(verify->rel))
	{
		NaradVerifyFind(verify, NARAD_SEVERITY_ERROR, partition,
						NARAD_INVALID_OFFSET, block,
						"%s lies past the end of the file", what);
		return false;
	}
	if (NaradPageCopyChecked(verify->rel, block, copy))
		return true;
	NaradVerifyFind(verify, NARAD_SEVERITY_ERROR, partition,
					NARAD_INVALID_OFFSET, block,
					"%s fails its checksum or has a damaged header", what);
	return false;
}

/*
 * NaradVerifyCopyKind
 *
 * The same, and it is of that kind.
 */
bool
NaradVerifyCopyKind(NaradVerify *verify, BlockNumber block, uint16 kind,
					const char *what, char *copy)
{
	if (!NaradVerifyCopyPage(verify, block, -1, what, copy))
		return false;
	if (NaradVerifyIsKind(verify, copy, kind))
		return true;
	NaradVerifyFind(verify, NARAD_SEVERITY_ERROR, -1, NARAD_INVALID_OFFSET,
					block,
					PageIsNew((Page) copy) ? "%s is all zeros" :
					"%s is something else", what);
	return false;
}

/* ---- pages that are not data ----------------------------------------- */

/* Is it in use as a meta page by now, whatever was collected? */
static bool
is_meta_page_now(NaradVerify *verify, BlockNumber block)
{
	NaradSegmentEntry entry;
	BlockNumber first_block;

	return NaradSegmentOfBlock(verify->rel, verify->meta.segment_pages, block,
							   &entry, &first_block) &&
		entry.state == NARAD_SEGMENT_META &&
		block - first_block < entry.pages_prepared;
}

/* The collected segment of meta pages with a block, or NULL. */
static NaradVerifyMeta *
find_meta(NaradVerify *verify, BlockNumber block)
{
	int			low = 0;
	int			high = verify->nmetas;

	while (low < high)
	{
		int			mid = low + (high - low) / 2;
		NaradVerifyMeta *meta = &verify->metas[mid];

		if (block < meta->first_block)
			high = mid;
		else if (block - meta->first_block >= meta->npages)
			low = mid + 1;
		else
			return meta;
	}
	return NULL;
}

/*
 * NaradVerifyUsePage
 *
 * Says that a page is in use.  True, and no finding, if it may be and was not
 * before.  Of segments that are newer than what was collected, only the
 * first is known.
 */
bool
NaradVerifyUsePage(NaradVerify *verify, BlockNumber block, int partition,
				   const char *what)
{
	NaradVerifyMeta *meta = find_meta(verify, block);
	uint32		bit = 0;

	if (meta != NULL)
		bit = UINT32_C(1) << (block - meta->first_block);
	if ((meta == NULL || block - meta->first_block >= meta->nused) &&
		verify->directory_ok && !is_meta_page_now(verify, block))
	{
		NaradVerifyFind(verify, NARAD_SEVERITY_ERROR, partition,
						NARAD_INVALID_OFFSET, block,
						"%s does not lie among the pages set aside for such",
						what);
		return false;
	}
	if (meta != NULL && (meta->met & bit) != 0)
	{
		NaradVerifyFind(verify, NARAD_SEVERITY_ERROR, partition,
						NARAD_INVALID_OFFSET, block,
						"%s is in use for something else, too", what);
		return false;
	}
	if (meta != NULL)
		meta->met |= bit;
	return true;
}

/*
 * NaradVerifyCopyChained
 *
 * Copies the page to which a walk comes, and to which nothing else may point.
 * A circle is seen without what was collected of the directory, too.
 */
bool
NaradVerifyCopyChained(NaradVerify *verify, NaradChainWalk *walk,
					   BlockNumber block, uint16 kind, const char *what,
					   char *copy)
{
	if (!NaradVerifyUsePage(verify, block, -1, what))
		return false;
	if (NaradChainIsWrong(walk, block))
	{
		NaradVerifyFind(verify, NARAD_SEVERITY_ERROR, -1,
						NARAD_INVALID_OFFSET, block,
						"%s is in a circle of such", what);
		return false;
	}
	return NaradVerifyCopyKind(verify, block, kind, what, copy);
}

/* Does a page of a chain hold just so many bytes, from the partition it must? */
static bool
check_extent(NaradVerify *verify, BlockNumber block, const char *page,
			 Size used, uint32 first_partition, uint32 expected)
{
	if (((PageHeader) page)->pd_lower == SizeOfPageHeaderData + used &&
		first_partition == expected)
		return true;
	NaradVerifyFind(verify, NARAD_SEVERITY_ERROR, -1, NARAD_INVALID_OFFSET,
					block,
					"page has %u bytes from partition %u on, instead of %zu from partition %u on",
					((PageHeader) page)->pd_lower -
					(uint32) SizeOfPageHeaderData,
					first_partition, used, expected);
	return false;
}

/*
 * NaradVerifyPartitionExists
 *
 * Is there such a partition, perhaps since a moment ago?
 */
bool
NaradVerifyPartitionExists(const NaradVerify *verify, uint32 partition)
{
	NaradMetaData meta;

	return partition < verify->meta.npartitions ||
		(NaradMetaRead(verify->rel, &meta) && partition < meta.npartitions);
}

/*
 * Where the partitions began.  Those that were added later, and may not be on
 * a page, began at 0.
 */
static void
verify_bases(NaradVerify *verify)
{
	PGAlignedBlock copy;
	NaradBasesPage *page = (NaradBasesPage *)
	PageGetContents((Page) copy.data);
	BlockNumber block = verify->meta.bases_root;
	NaradChainWalk walk = {0};
	uint32		first = 0;
	uint32		i;

	if (block == 0)
		return;
	verify->bases = palloc0(verify->meta.npartitions * sizeof(NaradOffset));
	while (block != 0 &&
		   NaradVerifyCopyChained(verify, &walk, block, NARAD_PAGE_BASES,
								  "page of start offsets", copy.data) &&
		   check_extent(verify, block, copy.data,
						offsetof(NaradBasesPage, bases) +
						NARAD_BASES_PER_PAGE * sizeof(NaradOffset),
						page->first_partition, first))
	{
		for (i = 0; i < NARAD_BASES_PER_PAGE &&
			 first + i < verify->meta.npartitions; i++)
			verify->bases[first + i] = page->bases[i];
		first += NARAD_BASES_PER_PAGE;
		block = page->next;
	}
}

/* No segment may begin before its partition. */
static void
verify_starts(NaradVerify *verify)
{
	int			i;

	for (i = 0; verify->bases != NULL && i < verify->nsegments; i++)
	{
		const NaradVerifySegment *segment = &verify->segments[i];

		if (segment->entry.state != NARAD_SEGMENT_SPARE &&
			segment->entry.first_offset <
			verify->bases[segment->entry.partition])
			NaradVerifyFind(verify, NARAD_SEVERITY_ERROR,
							segment->entry.partition,
							segment->entry.first_offset,
							segment->ref.first_block,
							"segment " UINT64_FORMAT " begins before the partition, at offset " UINT64_FORMAT,
							segment->entry.sequence,
							verify->bases[segment->entry.partition]);
	}
}

/* ---- groups ---------------------------------------------------------- */

/* The state pages of a group, and the maps to them. */
static void
verify_maps(NaradVerify *verify, const NaradGroupEntry *group)
{
	PGAlignedBlock copy;
	NaradStateMapPage *page = (NaradStateMapPage *)
	PageGetContents((Page) copy.data);
	BlockNumber block = group->map;
	NaradChainWalk walk = {0};
	uint32		first = 0;
	uint32		i;

	while (block != 0 &&
		   NaradVerifyCopyChained(verify, &walk, block, NARAD_PAGE_STATEMAP,
								  "map of state pages", copy.data) &&
		   check_extent(verify, block, copy.data,
						offsetof(NaradStateMapPage, blocks) +
						NARAD_MAP_BLOCKS * sizeof(BlockNumber),
						page->first_partition, first))
	{
		for (i = 0; i < NARAD_MAP_BLOCKS; i++)
		{
			if (page->blocks[i] == 0)
				continue;
			if (!NaradVerifyPartitionExists(verify, first + i))
				NaradVerifyFind(verify, NARAD_SEVERITY_ERROR, first + i,
								NARAD_INVALID_OFFSET, block,
								"there is a state page of a partition that does not exist");
			else if (first + i < verify->meta.npartitions &&
					 NaradVerifyUsePage(verify, page->blocks[i], first + i,
										"state page"))
				verify->state(verify, group, first + i, page->blocks[i]);
		}
		first += NARAD_MAP_BLOCKS;
		block = page->next;
	}
}

/*
 * NaradVerifyGroupStays
 *
 * Is the group at hand still what it was when its page was read?
 */
bool
NaradVerifyGroupStays(NaradVerify *verify, const NaradGroupEntry *group)
{
	PGAlignedBlock copy;
	NaradGroupsPage *page = (NaradGroupsPage *)
	PageGetContents((Page) copy.data);
	uint32		i;

	if (!NaradPageCopyChecked(verify->rel, verify->groups_block, copy.data) ||
		!NaradVerifyIsKind(verify, copy.data, NARAD_PAGE_GROUPS))
		return false;
	for (i = 0; i < Min(page->nentries, GROUPS_PER_PAGE); i++)
		if (page->entries[i].group_id == group->group_id)
			return page->entries[i].state == group->state;
	return false;
}

static bool
check_group_entry(NaradVerify *verify, BlockNumber block,
				  const NaradGroupEntry *group)
{
	if (group->group_id != 0 && group->state >= NARAD_GROUP_LIVE &&
		group->state <= NARAD_GROUP_MAKING && group->paused <= 1 &&
		group->name[0] != '\0' &&
		strnlen(group->name, NAMEDATALEN) < NAMEDATALEN)
		return true;
	NaradVerifyFind(verify, NARAD_SEVERITY_ERROR, -1, NARAD_INVALID_OFFSET,
					block, "entry of group %u makes no sense",
					group->group_id);
	return false;
}

static int
compare_ids(const void *a, const void *b)
{
	NaradGroupId left = *(const NaradGroupId *) a;
	NaradGroupId right = *(const NaradGroupId *) b;

	return left < right ? -1 : left > right;
}

/* Each id is given once, and below the next one to be given (I12). */
static void
check_group_ids(NaradVerify *verify, NaradGroupId *ids, int nids)
{
	NaradMetaData meta;
	int			i;

	qsort(ids, nids, sizeof(NaradGroupId), compare_ids);
	for (i = 1; i < nids; i++)
		if (ids[i] == ids[i - 1])
			NaradVerifyFind(verify, NARAD_SEVERITY_ERROR, -1,
							NARAD_INVALID_OFFSET, InvalidBlockNumber,
							"two groups have the id %u", ids[i]);
	if (nids > 0 && NaradMetaRead(verify->rel, &meta) &&
		ids[nids - 1] >= meta.next_group_id)
		NaradVerifyFind(verify, NARAD_SEVERITY_ERROR, -1,
						NARAD_INVALID_OFFSET, 0,
						"a group has the id %u, and the next one to be given is %u",
						ids[nids - 1], meta.next_group_id);
}

static void
verify_groups(NaradVerify *verify)
{
	PGAlignedBlock copy;
	NaradGroupsPage *page = (NaradGroupsPage *)
	PageGetContents((Page) copy.data);
	NaradGroupId *ids = palloc(sizeof(NaradGroupId));
	NaradChainWalk walk = {0};
	NaradMetaData meta;
	BlockNumber block;
	int			nids = 0;
	uint32		i;

	block = NaradMetaRead(verify->rel, &meta) ? meta.groups_root : 0;
	while (block != 0 &&
		   NaradVerifyCopyChained(verify, &walk, block, NARAD_PAGE_GROUPS,
								  "page of the group directory", copy.data))
	{
		if (page->nentries > GROUPS_PER_PAGE ||
			((PageHeader) copy.data)->pd_lower != SizeOfPageHeaderData +
			offsetof(NaradGroupsPage, entries) +
			page->nentries * sizeof(NaradGroupEntry))
		{
			NaradVerifyFind(verify, NARAD_SEVERITY_ERROR, -1,
							NARAD_INVALID_OFFSET, block,
							"page of the group directory has %u entries in %u bytes",
							page->nentries,
							((PageHeader) copy.data)->pd_lower);
			break;
		}
		ids = repalloc(ids, (nids + page->nentries + 1) *
					   sizeof(NaradGroupId));
		verify->groups_block = block;
		for (i = 0; i < page->nentries; i++)
		{
			if (!check_group_entry(verify, block, &page->entries[i]))
				continue;
			ids[nids++] = page->entries[i].group_id;
			verify_maps(verify, &page->entries[i]);
		}
		block = page->next;
	}
	check_group_ids(verify, ids, nids);
	pfree(ids);
}

/* ---- the metapage, and the whole ------------------------------------- */

/* Are all blocks zeros?  After a crash in the making of the topic they are. */
static bool
is_never_written(NaradVerify *verify, BlockNumber *block)
{
	BlockNumber nblocks = RelationGetNumberOfBlocks(verify->rel);
	PGAlignedBlock copy;

	for (*block = 0; *block < nblocks; (*block)++)
	{
		CHECK_FOR_INTERRUPTS();
		if (!NaradPageCopyChecked(verify->rel, *block, copy.data) ||
			!PageIsNew((Page) copy.data))
			return false;
	}
	return true;
}

static bool
meta_find(NaradVerify *verify, const char *text)
{
	NaradVerifyFind(verify, NARAD_SEVERITY_ERROR, -1, NARAD_INVALID_OFFSET, 0,
					"metapage: %s", text);
	return false;
}

/* The metapage's fields.  False if the rest cannot be found by it. */
static bool
check_meta(NaradVerify *verify, const char *page)
{
	const NaradMetaData *meta = &verify->meta;

	if (meta->magic != NARAD_META_MAGIC)
		return meta_find(verify, "the page is something else");
	if (meta->version != NARAD_FORMAT_VERSION)
		return meta_find(verify, "the format version is not known");
	if (!NaradVerifyIsKind(verify, page, NARAD_PAGE_META))
		return meta_find(verify, "special space and contents do not agree");
	if (meta->npartitions < 1 || meta->npartitions > NARAD_MAX_PARTITIONS)
		return meta_find(verify, "the number of partitions is out of range");
	if (meta->segment_pages < NARAD_MIN_SEGMENT_PAGES ||
		meta->segment_pages > NARAD_MAX_SEGMENT_PAGES)
		return meta_find(verify, "the segment size is out of range");
	if (((PageHeader) page)->pd_lower !=
		SizeOfPageHeaderData + sizeof(NaradMetaData))
		(void) meta_find(verify, "the length is wrong");
	if (meta->next_group_id == 0)
		(void) meta_find(verify, "the next group id is 0");
	if (meta->epoch == 0)
		(void) meta_find(verify, "the epoch is 0");
	if (meta->hash_version != 1)
		(void) meta_find(verify, "the version of the hash is not known");
	return true;
}

/* Reads and checks the metapage; false if there is nothing to go by. */
static bool
verify_metapage(NaradVerify *verify)
{
	PGAlignedBlock copy;
	BlockNumber block;

	if (RelationGetNumberOfBlocks(verify->rel) == 0 ||
		!NaradVerifyCopyPage(verify, 0, -1, "metapage", copy.data))
		return false;
	if (PageIsNew((Page) copy.data))
	{
		if (!is_never_written(verify, &block))
			NaradVerifyFind(verify, NARAD_SEVERITY_ERROR, -1,
							NARAD_INVALID_OFFSET, 0,
							"metapage: all zeros, but block %u is not", block);
		return false;
	}
	memcpy(&verify->meta, PageGetContents((Page) copy.data),
		   sizeof(NaradMetaData));
	return check_meta(verify, copy.data);
}

/*
 * NaradVerifyEnd
 *
 * The partition's end, read now; false if damage keeps it from being known.
 */
bool
NaradVerifyEnd(NaradVerify *verify, int partition, NaradOffset *end)
{
	if (verify->shared != NULL)
	{
		NaradLogPartition *part = NaradLogPartitionFind(verify->shared,
														partition);

		*end = part == NULL ? 0 : pg_atomic_read_u64(&part->end_offset);
		return true;
	}
	if (!verify->directory_ok)
		return false;
	if (RecoveryInProgress())
		*end = NaradOffsetForTime(verify->rel, NaradRelInfoGet(verify->rel),
								  partition, DT_NOEND);
	else
		*end = verify->ends[partition];
	return true;
}

/*
 * NaradVerifyLog
 *
 * Verifies the file; findings go to verify->report.  See log_verify.h.
 */
bool
NaradVerifyLog(NaradVerify *verify)
{
	NaradRelInfo *info;

	/* Before the directory is read: VACUUM sets it after what it freezes. */
	verify->relfrozenxid = verify->rel->rd_rel->relfrozenxid;
	if (!verify_metapage(verify))
		return false;
	info = NaradRelInfoLook(verify->rel);
	verify->shared = info != NULL ? info->shared : NULL;
	verify->ends = palloc0(verify->meta.npartitions * sizeof(NaradOffset));
	NaradVerifyDirectory(verify);
	verify_bases(verify);
	verify_starts(verify);
	if (verify->bases != NULL)
		memcpy(verify->ends, verify->bases,
			   verify->meta.npartitions * sizeof(NaradOffset));
	NaradVerifyData(verify);
	verify_groups(verify);
	NaradVerifyProducers(verify);
	return true;
}
