/*-------------------------------------------------------------------------
 *
 * log_meta.c
 *	  The metapage, and the one way in which pages that are not data change.
 *
 * Whoever changes such a page locks it, makes the new image in memory of its
 * own and calls NaradPagesUpdate, which logs the one byte range in which
 * image and page differ; NaradPageAppend makes the same record of bytes that
 * are added at the end.  So there is a single record and a single redo for
 * metapage, directory, groups, maps, bases and the state pages of the layer
 * above, whose meaning storage does not know.
 *
 * Owns:       block 0; META_UPDATE records.
 * Invariants: I12: a topic id is drawn at random and stands on every page.
 *             An empty file, or one whose block 0 was never written (the
 *             server stopped in between), is a topic that held nothing.  Then
 *             nothing else was written: the metapage is logged first, so if
 *             there is more, it is damaged.
 * Locks:      buffer locks only; making the metapage also takes the relation
 *             extension lock.
 * Runs in:    any backend; reading on a standby, too.
 * WAL:        META_UPDATE.
 * On error:   nothing has changed: errors come before the critical section.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "access/xloginsert.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "log/log_meta.h"
#include "log/log_xlog.h"

/* Blocks behind a metapage of zeros that are looked at. */
#define PROBED_BLOCKS 64

/*
 * NaradMetaImageInit
 *
 * Makes an image with special head of a kind and no content.
 */
void
NaradMetaImageInit(char *image, NaradTopicId topic_id, uint16 kind,
				   uint32 partition)
{
	NaradPageSpecialHead *head;

	PageInit((Page) image, BLCKSZ, sizeof(NaradPageSpecialHead));
	head = (NaradPageSpecialHead *) PageGetSpecialPointer((Page) image);
	head->topic_id = topic_id;
	head->kind = kind;
	head->version = NARAD_FORMAT_VERSION;
	head->partition = partition;
}

/*
 * Finds what must be logged to make image of page; false if nothing.  Bytes
 * at or past the old pd_lower are hole, hence always taken as changed.
 */
static bool
find_changed_range(const char *page, const char *image, bool init,
				   xl_narad_range *range)
{
	uint32		old_lower = ((PageHeader) page)->pd_lower;
	uint32		new_lower = ((PageHeader) image)->pd_lower;
	uint32		start = SizeOfPageHeaderData;
	uint32		end = new_lower;

	if (!init)
	{
		uint32		common = Min(old_lower, new_lower);

		while (start < common && page[start] == image[start])
			start++;
		if (new_lower <= old_lower)
			while (end > start && page[end - 1] == image[end - 1])
				end--;
		if (start == end && new_lower == old_lower)
			return false;
	}
	range->offset = start;
	range->length = end - start;
	range->lower = new_lower;
	range->special_size = init ? BLCKSZ - ((PageHeader) image)->pd_special : 0;
	return true;
}

/* Registers the pages and inserts the record.  In a critical section. */
static XLogRecPtr
insert_meta_update(NaradPageUpdate **changed, xl_narad_range *ranges,
				   int nchanged)
{
	xl_narad_meta_update xlrec = {0};
	int			i;

	XLogBeginInsert();
	for (i = 0; i < nchanged; i++)
		if (changed[i]->init)
			xlrec.init_blocks |= UINT32_C(1) << i;
	XLogRegisterData((char *) &xlrec, sizeof(xlrec));
	for (i = 0; i < nchanged; i++)
	{
		char	   *image = changed[i]->image;

		XLogRegisterBuffer(i, changed[i]->buffer, REGBUF_STANDARD |
						   (changed[i]->init ? REGBUF_WILL_INIT : 0));
		XLogRegisterBufData(i, (char *) &ranges[i], sizeof(xl_narad_range));
		if (ranges[i].length > 0)
			XLogRegisterBufData(i, image + ranges[i].offset,
								ranges[i].length);
		if (changed[i]->init)
			XLogRegisterBufData(i, PageGetSpecialPointer((Page) image),
								ranges[i].special_size);
	}
	return XLogInsert(NARAD_RMGR_ID, XLOG_NARAD_META_UPDATE);
}

/*
 * NaradPagesUpdate
 *
 * Changes up to NARAD_UPDATE_MAX_PAGES pages, exclusively locked by the
 * caller, to the images given; one WAL record.  Buffers are distinct and stay
 * locked.  Without init, special space and pd_upper must not change.  Returns
 * the record's position, or InvalidXLogRecPtr if nothing was logged.
 */
XLogRecPtr
NaradPagesUpdate(Relation rel, NaradPageUpdate *updates, int nupdates)
{
	NaradPageUpdate *changed[NARAD_UPDATE_MAX_PAGES];
	xl_narad_range ranges[NARAD_UPDATE_MAX_PAGES];
	bool		needs_wal = RelationNeedsWAL(rel);
	XLogRecPtr	lsn = InvalidXLogRecPtr;
	int			nchanged = 0;
	int			i;

	Assert(nupdates <= NARAD_UPDATE_MAX_PAGES);
	for (i = 0; i < nupdates; i++)
	{
		if (find_changed_range(BufferGetPage(updates[i].buffer),
							   updates[i].image, updates[i].init,
							   &ranges[nchanged]))
			changed[nchanged++] = &updates[i];
	}
	if (nchanged == 0)
		return lsn;
	if (needs_wal)
		XLogEnsureRecordSpace(nchanged, 3 * nchanged + 1);

	START_CRIT_SECTION();
	for (i = 0; i < nchanged; i++)
	{
		Page		page = BufferGetPage(changed[i]->buffer);

		if (changed[i]->init)
			memcpy(page, changed[i]->image, BLCKSZ);
		else
		{
			memcpy((char *) page + ranges[i].offset,
				   changed[i]->image + ranges[i].offset, ranges[i].length);
			((PageHeader) page)->pd_lower = ranges[i].lower;
		}
		MarkBufferDirty(changed[i]->buffer);
	}
	if (needs_wal)
	{
		lsn = insert_meta_update(changed, ranges, nchanged);
		for (i = 0; i < nchanged; i++)
			PageSetLSN(BufferGetPage(changed[i]->buffer), lsn);
	}
	END_CRIT_SECTION();
	return lsn;
}

/*
 * NaradPageAppend
 *
 * Adds bytes, for which there is room, at the end of the contents of a page that
 * the caller has locked exclusively.  The record is that of NaradPagesUpdate, but
 * nothing has to be copied and compared to make it.
 */
XLogRecPtr
NaradPageAppend(Relation rel, Buffer buffer, const char *bytes, Size len)
{
	Page		page = BufferGetPage(buffer);
	PageHeader	header = (PageHeader) page;
	NaradPageUpdate update = {buffer, (char *) page, false};
	NaradPageUpdate *changed = &update;
	xl_narad_range range = {0};
	XLogRecPtr	lsn = InvalidXLogRecPtr;

	Assert(len <= header->pd_upper - header->pd_lower);
	range.offset = header->pd_lower;
	range.length = len;
	range.lower = header->pd_lower + len;

	START_CRIT_SECTION();
	memcpy((char *) page + range.offset, bytes, len);
	header->pd_lower = range.lower;
	MarkBufferDirty(buffer);
	if (RelationNeedsWAL(rel))
	{
		lsn = insert_meta_update(&changed, &range, 1);
		PageSetLSN(page, lsn);
	}
	END_CRIT_SECTION();
	return lsn;
}

/*
 * NaradPageUpdateInit
 *
 * Locks a page that is made anew, for NaradPagesUpdate, and unlocking after it.
 * What was there is not read, unless it is in the buffer pool: it may be a freed
 * segment's, and damaged.
 */
void
NaradPageUpdateInit(Relation rel, BlockNumber block, NaradPageUpdate *update,
					char *image)
{
	update->buffer = ReadBufferExtended(rel, MAIN_FORKNUM, block,
										RBM_ZERO_AND_LOCK, NULL);
	update->image = image;
	update->init = true;
}

/*
 * NaradPageHead
 *
 * The special head of a page copied; NULL if it is new, or has no such space.
 */
NaradPageSpecialHead *
NaradPageHead(char *page)
{
	uint16		special = ((PageHeader) page)->pd_special;

	if (PageIsNew((Page) page) || special < SizeOfPageHeaderData ||
		special > BLCKSZ - sizeof(NaradPageSpecialHead))
		return NULL;
	return (NaradPageSpecialHead *) (page + special);
}

/*
 * NaradPageCopy
 *
 * A page's bytes as they are under its share lock.  Errors as ReadBuffer.
 */
void
NaradPageCopy(Relation rel, BlockNumber block, char *copy)
{
	Buffer		buffer = ReadBuffer(rel, block);

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	memcpy(copy, BufferGetPage(buffer), BLCKSZ);
	UnlockReleaseBuffer(buffer);
}

/*
 * NaradPageCopyChecked
 *
 * The same, but answers false for a damaged page, with its bytes as they are.
 * A page that is not in the
 * buffer pool is read past it, for an error of ReadBuffer could not be caught
 * without the end of a (sub)transaction.  What is on disk is then as new as
 * what anybody knows; only a read that races with a write can look torn, so
 * a failure counts when it repeats.
 */
bool
NaradPageCopyChecked(Relation rel, BlockNumber block, char *copy)
{
	NaradIOBlock raw;
	int			attempt;

	for (attempt = 0; attempt < 5; attempt++)
	{
		PrefetchBufferResult hint = PrefetchBuffer(rel, MAIN_FORKNUM, block);

		if (BufferIsValid(hint.recent_buffer) &&
			ReadRecentBuffer(NaradRelationLocator(rel), MAIN_FORKNUM, block,
							 hint.recent_buffer))
		{
			LockBuffer(hint.recent_buffer, BUFFER_LOCK_SHARE);
			memcpy(copy, BufferGetPage(hint.recent_buffer), BLCKSZ);
			UnlockReleaseBuffer(hint.recent_buffer);
			return true;
		}
		smgrread(RelationGetSmgr(rel), MAIN_FORKNUM, block, raw.data);
		if (NaradPageIsVerified((Page) raw.data, block))
		{
			memcpy(copy, raw.data, BLCKSZ);
			return true;
		}
		pg_usleep(1000L);
	}
	memcpy(copy, raw.data, BLCKSZ);
	return false;
}

/*
 * NaradFindUsedBlock
 *
 * The first of blocks [from, to) with a page of the topic that is not of the
 * directory.  The blocks exist.  Any lock.
 */
BlockNumber
NaradFindUsedBlock(Relation rel, NaradTopicId topic_id, BlockNumber from,
				   BlockNumber to)
{
	PGAlignedBlock copy;
	BlockNumber block;

	for (block = from; block < to; block++)
	{
		const NaradPageSpecialHead *head;

		CHECK_FOR_INTERRUPTS();
		if (!NaradPageCopyChecked(rel, block, copy.data))
			continue;
		head = NaradPageHead(copy.data);
		if (head != NULL && head->topic_id == topic_id &&
			head->kind != NARAD_PAGE_DIRECTORY)
			return block;
	}
	return InvalidBlockNumber;
}

/* Was anything written behind a metapage of zeros? */
static bool
is_written_behind(Relation rel)
{
	BlockNumber nblocks = RelationGetNumberOfBlocks(rel);
	BlockNumber end = Min(nblocks, PROBED_BLOCKS);
	PGAlignedBlock copy;
	BlockNumber block;

	for (block = 1; block < end; block++)
		if (!NaradPageCopyChecked(rel, block, copy.data) ||
			!PageIsNew((Page) copy.data))
			return true;
	return false;
}

static void
report_damaged_metapage(Relation rel)
{
	ereport(ERROR,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("metapage of topic \"%s\" is damaged",
					RelationGetRelationName(rel))));
}

/*
 * NaradMetaRead
 *
 * The metapage's contents; false if the file is empty.  Any lock.  Errors
 * XX001 if block 0 is something else, or lost; 0A000 if it is of a later
 * format.  I12.
 */
bool
NaradMetaRead(Relation rel, NaradMetaData *meta)
{
	PGAlignedBlock copy;
	NaradPageSpecialHead *head;

	if (RelationGetNumberOfBlocks(rel) == 0)
		return false;
	NaradPageCopy(rel, 0, copy.data);
	if (PageIsNew((Page) copy.data))
	{
		if (!is_written_behind(rel))
			return false;
		/* Perhaps all of it by somebody just now. */
		NaradPageCopy(rel, 0, copy.data);
	}

	head = NaradPageHead(copy.data);
	memcpy(meta, PageGetContents((Page) copy.data), sizeof(NaradMetaData));
	if (head == NULL ||
		PageGetSpecialSize((Page) copy.data) != sizeof(*head) ||
		head->kind != NARAD_PAGE_META || meta->magic != NARAD_META_MAGIC ||
		head->topic_id != meta->topic_id ||
		meta->npartitions < 1 || meta->npartitions > NARAD_MAX_PARTITIONS ||
		meta->segment_pages < NARAD_MIN_SEGMENT_PAGES ||
		meta->segment_pages > NARAD_MAX_SEGMENT_PAGES)
		report_damaged_metapage(rel);
	if (meta->version != NARAD_FORMAT_VERSION)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("topic \"%s\" has format version %u, and only %d is supported",
						RelationGetRelationName(rel), meta->version,
						NARAD_FORMAT_VERSION),
				 errhint("Install the version of narad that wrote it, or a later one.")));
	return true;
}

/*
 * NaradMetaCheckPartitions
 *
 * ERROR 22023 if there are too many, or if a segment of each does not fit into
 * the largest file.
 */
void
NaradMetaCheckPartitions(int npartitions, uint32 segment_pages)
{
	if (npartitions > NARAD_MAX_PARTITIONS)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("number of partitions must be between 1 and %d",
						NARAD_MAX_PARTITIONS)));
	if ((uint64) npartitions * segment_pages > MaxBlockNumber)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%d partitions with segments of %u pages exceed the largest file",
						npartitions, segment_pages),
				 errhint("Use fewer partitions, or smaller segments.")));
}

/*
 * NaradMetaFill
 *
 * Contents for a new topic, with a topic id of 64 strong random bits.
 */
void
NaradMetaFill(NaradMetaData *meta, int npartitions, uint32 segment_pages)
{
	if (npartitions <= 0)
		npartitions = 1;
	if (segment_pages == 0)
		segment_pages = NARAD_DEFAULT_SEGMENT_PAGES;
	segment_pages = Max(segment_pages, NARAD_MIN_SEGMENT_PAGES);
	segment_pages = Min(segment_pages, NARAD_MAX_SEGMENT_PAGES);
	NaradMetaCheckPartitions(npartitions, segment_pages);

	memset(meta, 0, sizeof(NaradMetaData));
	meta->magic = NARAD_META_MAGIC;
	meta->version = NARAD_FORMAT_VERSION;
	do
	{
		if (!pg_strong_random(&meta->topic_id, sizeof(meta->topic_id)))
			ereport(ERROR,
					(errcode(ERRCODE_INTERNAL_ERROR),
					 errmsg("could not generate random topic id")));
	} while (meta->topic_id == 0);
	meta->npartitions = npartitions;
	meta->segment_pages = segment_pages;
	meta->next_group_id = 1;
	meta->system_identifier = GetSystemIdentifier();
	meta->timeline = GetWALInsertionTimeLine();
	meta->epoch = 1;
	meta->hash_version = 1;
}

/*
 * NaradMetaImage
 *
 * A metapage with these contents.
 */
void
NaradMetaImage(char *image, const NaradMetaData *meta)
{
	NaradMetaImageInit(image, meta->topic_id, NARAD_PAGE_META, 0);
	memcpy(PageGetContents((Page) image), meta, sizeof(NaradMetaData));
	((PageHeader) image)->pd_lower = SizeOfPageHeaderData +
		sizeof(NaradMetaData);
}

/*
 * NaradMetaCreate
 *
 * Writes block 0 of an empty file; nothing if somebody else did.  The caller
 * holds RowExclusiveLock and no narad lock.  I12.
 */
void
NaradMetaCreate(Relation rel, int npartitions, uint32 segment_pages)
{
	static NaradIOBlock image;	/* zeros at first, then the page's image */
	NaradMetaData meta;
	Buffer		buffer;

	NaradMetaFill(&meta, npartitions, segment_pages);

	LockRelationForExtension(rel, ExclusiveLock);
	if (smgrnblocks(RelationGetSmgr(rel), MAIN_FORKNUM) == 0)
	{
		memset(image.data, 0, BLCKSZ);
		smgrextend(RelationGetSmgr(rel), MAIN_FORKNUM, 0, image.data, false);
	}
	buffer = ReadBuffer(rel, 0);
	LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
	if (PageIsNew(BufferGetPage(buffer)))
	{
		NaradPageUpdate update = {buffer, image.data, true};

		NaradMetaImage(image.data, &meta);
		NaradPagesUpdate(rel, &update, 1);
	}
	UnlockReleaseBuffer(buffer);
	UnlockRelationForExtension(rel, ExclusiveLock);
}

/*
 * NaradMetaModify
 *
 * Lets `change` edit the contents of the metapage under its exclusive lock.
 * change must not error or allocate.
 */
void
NaradMetaModify(Relation rel, NaradMetaChange change, void *arg)
{
	PGAlignedBlock image;
	Buffer		buffer = ReadBuffer(rel, 0);
	NaradPageUpdate update = {buffer, image.data, false};

	LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
	memcpy(image.data, BufferGetPage(buffer), BLCKSZ);
	change((NaradMetaData *) PageGetContents((Page) image.data), arg);
	NaradPagesUpdate(rel, &update, 1);
	UnlockReleaseBuffer(buffer);
}

/*
 * NaradChainIsWrong
 *
 * Asked of each page of a chain before it is followed.  True if the link leads
 * nowhere, or if the chain runs in a circle: so whoever follows it comes to an
 * end, after a few times as many pages as it has.  Pages of a circle may
 * be met twice before.  (This is Brent's way: the page to be met again is the
 * first, second, fourth, eighth, ...; one of these lies in the circle, and is
 * kept for as long as the circle is.)  The number of the file's blocks would be a
 * bound, too, but one that large files reach only after minutes.
 */
bool
NaradChainIsWrong(NaradChainWalk *walk, BlockNumber block)
{
	if (block == InvalidBlockNumber || block == walk->root ||
		block == walk->met)
		return true;
	if ((walk->npages & (walk->npages - 1)) == 0)
		walk->met = block;
	walk->npages++;
	return false;
}

/*
 * NaradMetaStartOffsets
 *
 * palloc'ed: where each partition began when the file was made; zeros unless
 * the topic was truncated.
 */
NaradOffset *
NaradMetaStartOffsets(Relation rel, const NaradMetaData *meta)
{
	NaradOffset *offsets = palloc0(meta->npartitions * sizeof(NaradOffset));
	BlockNumber block = meta->bases_root;
	uint32		first = 0;
	PGAlignedBlock copy;

	/* Pages come in order, so a damaged link cannot make a circle. */
	while (block != 0)
	{
		NaradBasesPage *bases = (NaradBasesPage *)
		PageGetContents((Page) copy.data);
		NaradPageSpecialHead *head;
		uint32		i;

		NaradPageCopy(rel, block, copy.data);
		head = NaradPageHead(copy.data);
		if (head == NULL || head->kind != NARAD_PAGE_BASES ||
			head->topic_id != meta->topic_id ||
			bases->first_partition != first)
			ereport(ERROR,
					(errcode(ERRCODE_DATA_CORRUPTED),
					 errmsg("start offsets of topic \"%s\" are damaged in block %u",
							RelationGetRelationName(rel), block)));
		for (i = 0; i < NARAD_BASES_PER_PAGE &&
			 first + i < meta->npartitions; i++)
			offsets[first + i] = bases->bases[i];
		first += NARAD_BASES_PER_PAGE;
		block = bases->next;
	}
	return offsets;
}
