/*-------------------------------------------------------------------------
 *
 * queue_state.c
 *	  Writing state pages: what is durable of a shard.
 *
 * Owns:       the contents of state pages: one head page for each group and
 *             partition that ever had something to write, and the pages
 *             chained to it.  Storage finds the head page and logs changes.
 * Invariants: I5: an ack of a transaction with an id is a journal entry that
 *             carries the id, logged before the commit record; it counts if
 *             and only if that id committed.  I6: what a page says is settled
 *             only grows within a generation: an image is written from
 *             memory, which was loaded from the page, and takes the place of
 *             journal entries only after their offsets are in it.  I12: a page
 *             names topic, group and partition, and is written only while
 *             these are ours or an older group's.
 * Locks:      shard->io_lock, over everything, so a shard's pages have one
 *             writer; under it the shard lock for moments, without I/O, and
 *             storage's locks and buffers.
 * Runs in:    the worker, a backend at PRE_COMMIT.
 * WAL:        through NaradPagesUpdate and NaradPageAppend: the changed part of
 *             each page.
 * On error:   what is on disk is valid at every moment; a page that was
 *             allocated and not linked is lost.  The shard stays dirty.
 *
 * What is on the pages stands in queue_page.h.  An image that does not fit on
 * the head page goes to a chain of pages.  There are two chains: the one not
 * in use is written, then the head turns to it in one record, so a crash in
 * between leaves the old image whole, however long they are.
 *
 * Journal entries whose transaction has ended leave when the image is
 * written: settled in memory before if it committed, so that they are in the
 * image, and on other pages than the head's only after the head was written.
 * An entry seen twice does no harm.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "storage/bufmgr.h"
#include "utils/rel.h"

#include "base/base_lock.h"
#include "base/base_memory.h"
#include "base/base_stop.h"
#include "log/log_meta.h"
#include "queue/queue_dirty.h"
#include "queue/queue_page.h"
#include "queue/queue_retain.h"
#include "queue/queue_state.h"

/* Larger images go to a chain, to leave room for the journal. */
#define INLINE_LIMIT	4096

/* So far the hand-out mark is raised beyond what is needed. */
#define HANDOUT_AHEAD	1024

/*
 * An image is written, and logged, as a whole whenever anything of it changes: as
 * of a million messages that have come back, while they are consumed again.  So
 * it is written at this rate at most, if that is early enough for its flush.
 */
#define IMAGE_BYTES_PER_US	2

/* More ranges than this and a bitmap is smaller. */
#define RANGES_LIMIT	(NARAD_CHUNK_BYTES / sizeof(NaradBitRange) - 1)

/* ----------------------------------------------------------------
 *		Images
 * ----------------------------------------------------------------
 */

/* Appends to a buffer that is large enough: see image_bound. */
typedef struct ImageWriter
{
	char	   *data;
	Size		len;
} ImageWriter;

static void
put_bytes(ImageWriter *writer, const void *bytes, Size len)
{
	memcpy(writer->data + writer->len, bytes, len);
	writer->len += len;
}

static void
put_item(ImageWriter *writer, uint16 kind, uint16 count, uint64 chunk)
{
	NaradImageItem item = {kind, count, 0, chunk};

	put_bytes(writer, &item, sizeof(item));
}

/*
 * The ranges of a chunk at or above `from`; returns how many, or more than
 * RANGES_LIMIT if there are more, and puts them if asked to.
 */
static uint32
chunk_ranges(ImageWriter *writer, const NaradSet *set, NaradOffset from,
			 NaradOffset end, bool put)
{
	NaradOffset at = NaradSetNextMember(set, from);
	uint32		nranges = 0;

	/* NARAD_INVALID_OFFSET is not below the end. */
	while (at < end && nranges <= RANGES_LIMIT)
	{
		NaradOffset gap = Min(NaradSetNextGap(set, at), end);
		NaradBitRange range;

		range.first = at & (NARAD_CHUNK_SIZE - 1);
		range.last = (gap - 1) & (NARAD_CHUNK_SIZE - 1);
		if (put)
			put_bytes(writer, &range, sizeof(range));
		nranges++;
		if (gap == end)
			break;
		at = NaradSetNextMember(set, gap);
	}
	return nranges;
}

/* One chunk that has a bitmap, as ranges or as it is. */
static void
put_chunk(ImageWriter *writer, const NaradSet *set,
		  const NaradSetChunk *chunk, NaradOffset frontier)
{
	NaradOffset first = chunk->chunk << NARAD_CHUNK_BITS;
	NaradOffset end = first + NARAD_CHUNK_SIZE;
	uint32		nranges;

	first = Max(first, frontier);
	nranges = chunk_ranges(writer, set, first, end, false);
	if (nranges == 0)
		return;
	if (nranges <= RANGES_LIMIT)
	{
		put_item(writer, NARAD_IMAGE_RANGES, nranges, chunk->chunk);
		(void) chunk_ranges(writer, set, first, end, true);
		return;
	}
	put_item(writer, NARAD_IMAGE_BITMAP, 0, chunk->chunk);
	put_bytes(writer, chunk->bits, NARAD_CHUNK_BYTES);
}

/*
 * Is the delivery count worth writing?  A first delivery that is under way is
 * not: it is lost with its lease, and the message delivered for the first
 * time again.
 */
static bool
was_delivered_before(const NaradLease *lease)
{
	if (lease->state == NARAD_LEASE_LEASED ||
		lease->state == NARAD_LEASE_PINNED)
		return lease->deliveries >= 2;
	return lease->deliveries >= 1;
}

/*
 * Its count: a claim that was not read yet has no deadline, and nobody can have
 * seen it.
 */
static uint32
deliveries_of(const NaradLease *lease)
{
	if (lease->state == NARAD_LEASE_LEASED &&
		lease->deadline == PG_INT64_MAX)
		return lease->deliveries - 1;
	return lease->deliveries;
}

static void
put_deliveries(ImageWriter *writer, const NaradLeaseTable *leases)
{
	NaradLease *lease = NULL;
	uint32		ncounts = 0;
	uint32		nput = 0;

	while ((lease = NaradLeaseNextComeBack(leases, lease)) != NULL)
		ncounts += was_delivered_before(lease);
	while ((lease = NaradLeaseNextComeBack(leases, lease)) != NULL)
	{
		NaradDeliveries one = {lease->offset, deliveries_of(lease), 0};

		if (!was_delivered_before(lease))
			continue;
		if (nput % PG_UINT16_MAX == 0)
			put_item(writer, NARAD_IMAGE_DELIVERIES,
					 Min(ncounts - nput, PG_UINT16_MAX), 0);
		put_bytes(writer, &one, sizeof(one));
		nput++;
	}
}

/*
 * What the shard's image can take at most: a bitmap for each chunk, and all
 * counts there can be.  Its lock is held.
 */
static Size
image_bound(const NaradShard *shard)
{
	Size		ncounts = shard->leases.ncome_back;

	return shard->settled.nchunks * (sizeof(NaradImageItem) + NARAD_CHUNK_BYTES) +
		(ncounts / PG_UINT16_MAX + 1) * sizeof(NaradImageItem) +
		ncounts * sizeof(NaradDeliveries);
}

/* The shard's image; its lock is held. */
static void
put_image(ImageWriter *writer, const NaradShard *shard)
{
	const NaradSet *set = &shard->settled;
	int			i;

	for (i = 0; i < set->nchunks; i++)
	{
		const NaradSetChunk *chunk = &set->chunks[i];

		if (chunk->bits != NULL)
			put_chunk(writer, set, chunk, shard->frontier);
		else
		{
			put_item(writer, NARAD_IMAGE_FULL, 0, chunk->chunk);
			put_bytes(writer, &chunk->nchunks, sizeof(uint64));
		}
	}
	put_deliveries(writer, &shard->leases);
}

/* What a write takes from memory, all at one moment. */
typedef struct StateSnapshot
{
	char	   *image;			/* palloc'ed */
	uint32		image_len;
	NaradOffset frontier;
	uint32		generation;
	uint64		dead_lettered;
	uint64		lost;			/* to retention */
	NaradOffset handout_mark;
	uint64		suspect;
	uint32		suspect_deliveries;
	uint64		changes;
	int64		taken_at;		/* monotonic us */
	bool		dropped;
} StateSnapshot;

/* Memory is got without the shard lock; again while it is not enough. */
static void
take_snapshot(NaradShard *shard, StateSnapshot *snapshot)
{
	Size		size = 3 * NARAD_CHUNK_BYTES;
	Size		bound;
	ImageWriter writer;

	for (;;)
	{
		snapshot->image = palloc_extended(size, MCXT_ALLOC_HUGE);
		LWLockAcquire(&shard->lock, LW_SHARED);
		bound = image_bound(shard);
		if (bound <= size)
			break;
		LWLockRelease(&shard->lock);
		pfree(snapshot->image);
		size = bound + bound / 4;
	}
	writer.data = snapshot->image;
	writer.len = 0;
	put_image(&writer, shard);
	Assert(writer.len <= bound);
	snapshot->image_len = writer.len;
	snapshot->frontier = shard->frontier;
	snapshot->generation = shard->generation;
	snapshot->dead_lettered = shard->dead_lettered;
	snapshot->lost = shard->lost;
	snapshot->handout_mark = shard->handout_mark;
	snapshot->suspect = shard->suspect_out;
	snapshot->suspect_deliveries = shard->suspect_deliveries;
	snapshot->changes = shard->changes;
	snapshot->taken_at = NaradClockNow();
	snapshot->dropped = shard->dropped;
	LWLockRelease(&shard->lock);
}

/* ----------------------------------------------------------------
 *		Pages
 * ----------------------------------------------------------------
 */

/* Locks a page to change it; one that is damaged is read as zeros. */
static Buffer
lock_page(Relation rel, BlockNumber block)
{
	Buffer		buffer;

	buffer = ReadBufferExtended(rel, MAIN_FORKNUM, block, RBM_ZERO_ON_ERROR,
								NULL);
	LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
	return buffer;
}

static void
set_used(char *image, Size used)
{
	((PageHeader) image)->pd_lower = SizeOfPageHeaderData + used;
}

/* Replaces a chained page, which nobody else writes. */
static XLogRecPtr
write_chain(Relation rel, BlockNumber block, const NaradStateOwner *owner,
			char *image)
{
	NaradPageUpdate update;
	XLogRecPtr	lsn;

	update.buffer = lock_page(rel, block);
	update.image = image;
	update.init = !NaradStatePageCheck(BufferGetPage(update.buffer), owner);
	lsn = NaradPagesUpdate(rel, &update, 1);
	UnlockReleaseBuffer(update.buffer);
	return lsn;
}

static void
init_chain(char *image, const NaradStateOwner *owner, uint64 serial,
		   const char *data, uint32 len, BlockNumber next)
{
	NaradStateChain *chain = NaradPageStateChain(image);

	NaradMetaImageInit(image, owner->topic_id, NARAD_PAGE_STATE,
					   owner->partition);
	chain->next = next;
	chain->group_id = owner->group_id;
	chain->partition = owner->partition;
	chain->len = serial != 0 ? len : 0;
	chain->serial = serial;
	memcpy(chain + 1, data, len);
	set_used(image, sizeof(NaradStateChain) + len);
}

/* ----------------------------------------------------------------
 *		Folding the journal
 * ----------------------------------------------------------------
 */

/* A journal page without the entries that have ended. */
typedef struct FoldedPage
{
	BlockNumber block;
	bool		changed;
	PGAlignedBlock page;
} FoldedPage;

/* What a write does with the journal. */
typedef struct Fold
{
	NaradShard *shard;
	uint32		generation;
	char		kept[NARAD_STATE_SPACE];	/* entries that stay on the head
											 * page */
	Size		kept_len;
	List	   *pages;			/* of FoldedPage: chained journal pages */
} Fold;

/*
 * Settles an entry of a committed transaction in memory.  Its offsets are
 * pinned leases of that transaction, which has not come to its commit
 * callback yet or is in it, or settled already.  False if one of them is neither
 * and there is no memory for it, or the group was dropped.  Shard lock held
 * exclusively, and left now and then; with io_lock, so the generation stays.
 */
static bool
settle_entry(NaradShard *shard, const NaradJournalEntry *entry)
{
	int			ndone = 0;
	uint32		i;

	for (i = 0; i < entry->nranges; i++)
	{
		NaradOffset at = Max(entry->ranges[i].first, shard->frontier);

		while ((at = NaradSetNextGap(&shard->settled, at)) <=
			   entry->ranges[i].last)
		{
			if (NaradLeaseFind(&shard->leases, at) != NULL)
				NaradShardSettle(shard, at);
			else if (!NaradShardSettleRange(shard, at, at))
				return false;
			at++;
			if (++ndone % NARAD_LOCK_STEPS == 0)
			{
				NaradLockLeave(&shard->lock);
				LWLockAcquire(&shard->lock, LW_EXCLUSIVE);
				if (shard->dropped)
					return false;
				at = Max(at, shard->frontier);
			}
		}
	}
	return true;
}

/* May the entry leave its page, once memory is written? */
static bool
entry_has_ended(Fold *fold, const NaradJournalEntry *entry)
{
	NaradEntryFate fate = NaradJournalFate(entry, fold->generation);
	bool		settled = false;

	if (fate != NARAD_ENTRY_COMMITTED)
		return fate == NARAD_ENTRY_VOID;
	LWLockAcquire(&fold->shard->lock, LW_EXCLUSIVE);
	if (!fold->shard->dropped)
		settled = settle_entry(fold->shard, entry);
	LWLockRelease(&fold->shard->lock);
	return settled;
}

/* Copies the entries that stay to `kept`; returns their length. */
static Size
fold_entries(Fold *fold, const char *page, Size start, char *kept)
{
	const NaradJournalEntry *entry;
	Size		kept_len = 0;

	while ((entry = NaradJournalNext(page, &start)) != NULL)
	{
		if (entry_has_ended(fold, entry))
			continue;
		memcpy(kept + kept_len, entry, NARAD_ENTRY_SIZE(entry->nranges));
		kept_len += NARAD_ENTRY_SIZE(entry->nranges);
	}
	return kept_len;
}

static void
fold_chained_page(Fold *fold, BlockNumber block, const char *copy,
				  const NaradStateOwner *owner)
{
	const NaradStateChain *chain = NaradPageStateChain(copy);
	FoldedPage *folded = palloc(sizeof(FoldedPage));
	char		kept[NARAD_CHAIN_SPACE];
	Size		kept_len;

	kept_len = fold_entries(fold, copy, sizeof(NaradStateChain), kept);
	folded->block = block;
	folded->changed = kept_len != NaradStateChainLen(copy);
	init_chain(folded->page.data, owner, 0, kept, kept_len, chain->next);
	fold->pages = lappend(fold->pages, folded);
}

/*
 * Settles in memory what committed transactions have journalled, and prepares
 * what the pages look like without the entries that ended.  Entries of another
 * generation than the one given are void, whatever the page's own is.
 */
static void
fold_journal(Relation rel, Fold *fold, const char *head_page,
			 const NaradStateOwner *owner, uint32 generation)
{
	const NaradStateHead *head = NaradPageStateHead(head_page);
	PGAlignedBlock copy;
	NaradChainWalk walk = {0};
	BlockNumber block;

	fold->generation = generation;
	fold->kept_len = fold_entries(fold, head_page, NARAD_HEAD_JOURNAL_START(head),
								  fold->kept);
	for (block = head->journal; block != 0;
		 block = NaradPageStateChain(copy.data)->next)
	{
		/* A damaged page was told of when it was loaded; it is left. */
		if (NaradChainIsWrong(&walk, block) ||
			!NaradStateChainCopy(rel, block, owner, false, copy.data))
			break;
		fold_chained_page(fold, block, copy.data, owner);
	}
}

/* The image is on disk: entries that are in it leave the other pages. */
static void
write_folded_pages(Relation rel, Fold *fold, const NaradStateOwner *owner)
{
	ListCell   *cell;

	foreach(cell, fold->pages)
	{
		FoldedPage *folded = lfirst(cell);

		if (folded->changed)
			(void) write_chain(rel, folded->block, owner, folded->page.data);
	}
}

/*
 * Journal pages at the front of the chain that hold nothing any more become
 * spare ones, in one record; so nobody reads them in vain.
 */
static void
release_empty_pages(Relation rel, const Fold *fold, BlockNumber head_block,
					const NaradStateOwner *owner)
{
	FoldedPage *first = NULL;
	FoldedPage *last = NULL;
	NaradPageUpdate updates[2];
	PGAlignedBlock image;
	NaradStateHead *head = NaradPageStateHead(image.data);
	NaradStateChain *chain;
	ListCell   *cell;

	foreach(cell, fold->pages)
	{
		FoldedPage *folded = lfirst(cell);

		if (NaradStateChainLen(folded->page.data) > 0)
			break;
		if (first == NULL)
			first = folded;
		last = folded;
	}
	if (last == NULL)
		return;

	updates[0].buffer = lock_page(rel, head_block);
	updates[0].image = image.data;
	updates[0].init = false;
	memcpy(image.data, BufferGetPage(updates[0].buffer), BLCKSZ);
	if (NaradHeadClassify(image.data, owner) == NARAD_HEAD_OURS)
	{
		updates[1].buffer = lock_page(rel, last->block);
		updates[1].image = last->page.data;
		updates[1].init = !NaradStatePageCheck(BufferGetPage(updates[1].buffer),
											   owner);
		chain = NaradPageStateChain(last->page.data);
		head->journal = chain->next;
		chain->next = head->spare;
		head->spare = first->block;
		(void) NaradPagesUpdate(rel, updates, 2);
		UnlockReleaseBuffer(updates[1].buffer);
	}
	UnlockReleaseBuffer(updates[0].buffer);
}

/* ----------------------------------------------------------------
 *		Writing
 * ----------------------------------------------------------------
 */

/*
 * The blocks of a chain, as far as it is sound; an older group's, too.  None of
 * one that runs in a circle, as each would be used for several pages.
 */
static List *
chain_blocks(Relation rel, BlockNumber block, const NaradStateOwner *owner)
{
	List	   *blocks = NIL;
	NaradChainWalk walk = {0};
	PGAlignedBlock copy;

	while (block != 0 &&
		   NaradStateChainCopy(rel, block, owner, true, copy.data))
	{
		if (NaradChainIsWrong(&walk, block))
		{
			list_free(blocks);
			return NIL;
		}
		blocks = lappend_oid(blocks, block);
		block = NaradPageStateChain(copy.data)->next;
	}
	return blocks;
}

/*
 * Writes an image to the chain that is not in use, and turns the head (not
 * yet written) to it.  From the last page to the first: so whatever a page links
 * to is written, where a crash in between leaves the chain longer, too.
 */
static void
write_image_chain(Relation rel, NaradRelInfo *info, const NaradStateOwner *owner,
				  NaradStateHead *head, const char *image)
{
	int			use = head->chain_in_use == 1 ? 2 : 1;
	List	   *blocks = chain_blocks(rel, head->chains[use - 1], owner);
	PGAlignedBlock page;
	int			npages = (head->image_len + NARAD_CHAIN_SPACE - 1) /
	NARAD_CHAIN_SPACE;
	int			i;

	while (list_length(blocks) < npages)
		blocks = lappend_oid(blocks,
							 NaradMetaPageAllocate(rel, info->shared));
	head->serial++;
	for (i = npages - 1; i >= 0; i--)
	{
		uint32		from = i * NARAD_CHAIN_SPACE;
		BlockNumber next = i + 1 < list_length(blocks) ?
		list_nth_oid(blocks, i + 1) : 0;

		init_chain(page.data, owner, head->serial, image + from,
				   Min(head->image_len - from, NARAD_CHAIN_SPACE), next);
		(void) write_chain(rel, list_nth_oid(blocks, i), owner, page.data);
	}
	head->chains[use - 1] = linitial_oid(blocks);
	head->chain_in_use = use;
	list_free(blocks);
}

/*
 * Takes over the pages of an older group: its image chains, and its journal
 * pages as spare ones.  The last of these is linked to those that were spare
 * already; done twice, after a crash, that must not make a circle.
 */
static void
inherit_pages(Relation rel, const NaradStateOwner *owner,
			  const NaradStateHead *old, NaradStateHead *head)
{
	List	   *journal = chain_blocks(rel, old->journal, owner);
	PGAlignedBlock page;

	head->serial = old->serial;
	head->chains[0] = old->chains[0];
	head->chains[1] = old->chains[1];
	head->spare = journal != NIL ? old->journal : old->spare;
	if (journal != NIL && old->spare != 0 &&
		!list_member_oid(journal, old->spare) &&
		NaradStateChainCopy(rel, llast_oid(journal), owner, true, page.data))
	{
		NaradPageStateChain(page.data)->next = old->spare;
		(void) write_chain(rel, llast_oid(journal), owner, page.data);
	}
	list_free(journal);
}

/*
 * Replaces the head page, unless it is no longer what it was: then our group
 * was dropped, and false.
 */
static bool
replace_head(Relation rel, BlockNumber block, const NaradStateOwner *owner,
			 NaradHeadKind was, char *image, XLogRecPtr *lsn)
{
	NaradPageUpdate update;
	NaradHeadKind is;
	bool		same;

	update.buffer = lock_page(rel, block);
	update.image = image;
	is = NaradHeadClassify(BufferGetPage(update.buffer), owner);
	update.init = is != NARAD_HEAD_OURS && is != NARAD_HEAD_OLDER;

	/* A damaged page was read as zeros now. */
	same = is == was || (was == NARAD_HEAD_BAD && is == NARAD_HEAD_EMPTY);
	if (same)
		*lsn = NaradPagesUpdate(rel, &update, 1);
	UnlockReleaseBuffer(update.buffer);
	return same;
}

/* Fills a head page from what memory and the old page, of a kind, say. */
static void
build_head(Relation rel, NaradRelInfo *info, const NaradStateOwner *owner,
		   const StateSnapshot *snapshot, NaradHeadKind was,
		   const char *old_page, const Fold *fold, char *image)
{
	const NaradStateHead *old = NaradPageStateHead(old_page);
	NaradStateHead *head = NaradPageStateHead(image);
	NaradOffset mark = snapshot->handout_mark;
	Size		used;

	/* What was handed out in an older generation does not count in this. */
	if (was == NARAD_HEAD_OURS && old->generation == snapshot->generation)
		mark = Max(mark, old->handout_mark);

	NaradMetaImageInit(image, owner->topic_id, NARAD_PAGE_STATE,
					   owner->partition);
	memset(head, 0, sizeof(NaradStateHead));
	if (was == NARAD_HEAD_OURS)
		*head = *old;
	else if (was == NARAD_HEAD_OLDER)
		inherit_pages(rel, owner, old, head);
	head->version = NARAD_STATE_VERSION;
	head->group_id = owner->group_id;
	head->partition = owner->partition;
	head->generation = snapshot->generation;
	head->frontier = snapshot->frontier;
	head->dead_lettered = snapshot->dead_lettered;
	head->lost_to_retention = snapshot->lost;
	head->handout_mark = mark;
	head->suspect = snapshot->suspect;
	head->suspect_deliveries = snapshot->suspect_deliveries;
	head->image_len = snapshot->image_len;
	head->image_crc = NaradImageCrc(snapshot->image, snapshot->image_len);
	if (snapshot->image_len <= INLINE_LIMIT &&
		sizeof(NaradStateHead) + MAXALIGN(snapshot->image_len) +
		fold->kept_len <= NARAD_STATE_SPACE)
	{
		head->chain_in_use = 0;
		memset((char *) (head + 1), 0, MAXALIGN(snapshot->image_len));
		memcpy(head + 1, snapshot->image, snapshot->image_len);
	}
	else
		write_image_chain(rel, info, owner, head, snapshot->image);

	used = NARAD_HEAD_JOURNAL_START(head);
	memcpy((char *) head + used, fold->kept, fold->kept_len);
	set_used(image, used + fold->kept_len);
}

/* The page has what memory had when the snapshot was taken. */
static void
finish_write(NaradShard *shard, const StateSnapshot *snapshot)
{
	NaradQueueTopicTouch(shard->topic);
	LWLockAcquire(&shard->lock, LW_EXCLUSIVE);
	shard->changes_written = snapshot->changes;
	shard->paced_until = snapshot->taken_at +
		snapshot->image_len / IMAGE_BYTES_PER_US;
	if (shard->changes == snapshot->changes)
		NaradDirtyClear(shard);
	else
		shard->dirty_since = snapshot->taken_at;
	LWLockRelease(&shard->lock);
}

/* The head page's block, made if need be; io_lock held. */
static BlockNumber
find_head_block(Relation rel, NaradRelInfo *info, NaradShard *shard)
{
	if (shard->head_block == InvalidBlockNumber)
		shard->head_block = NaradStateBlock(rel, info, shard->group_id,
											shard->partition, true);
	return shard->head_block;
}

/* What a write found, and what it does. */
typedef struct StateWrite
{
	Relation	rel;
	NaradRelInfo *info;
	NaradStateOwner owner;
	BlockNumber block;			/* head page, ... */
	NaradHeadKind was;			/* ... what it was, ... */
	PGAlignedBlock old;			/* ... and a copy */
	Fold	   *fold;
} StateWrite;

/*
 * Finds and reads the head page, which is made if need be.  io_lock is held.
 * False if the group was dropped.
 */
static bool
begin_write(StateWrite *w, Relation rel, NaradRelInfo *info, NaradShard *shard)
{
	w->rel = rel;
	w->info = info;
	w->block = find_head_block(rel, info, shard);
	NaradStateOwnerGet(shard, &w->owner);
	if (w->block == InvalidBlockNumber)
		return false;
	w->was = NaradStateHeadCopy(rel, w->block, &w->owner, w->old.data);
	if (w->was == NARAD_HEAD_GONE)
		return false;
	w->fold = palloc0(sizeof(Fold));
	w->fold->shard = shard;
	return true;
}

/* Puts a snapshot on the head page.  False if the group was dropped. */
static bool
put_snapshot(StateWrite *w, const StateSnapshot *snapshot, XLogRecPtr *lsn)
{
	PGAlignedBlock image;

	Assert(w->was != NARAD_HEAD_OURS ||
		   NaradPageStateHead(w->old.data)->generation != snapshot->generation ||
		   NaradPageStateHead(w->old.data)->frontier <= snapshot->frontier);
	build_head(w->rel, w->info, &w->owner, snapshot, w->was, w->old.data,
			   w->fold, image.data);
	return replace_head(w->rel, w->block, &w->owner, w->was, image.data, lsn);
}

/*
 * The page says that what is below the frontier is settled; of what it said that
 * before counts only if it was our group's.
 */
static void
tell_retention(const StateWrite *w, int partition, NaradOffset frontier)
{
	NaradOffset was = w->was == NARAD_HEAD_OURS ?
	NaradPageStateHead(w->old.data)->frontier : 0;

	NaradQueueRetainSettled(w->info, partition, was, frontier);
}

/* The head page is written: what it made superfluous goes. */
static void
clean_journal(StateWrite *w)
{
	write_folded_pages(w->rel, w->fold, &w->owner);
	release_empty_pages(w->rel, w->fold, w->block, &w->owner);
}

static void
end_write(StateWrite *w)
{
	list_free_deep(w->fold->pages);
	pfree(w->fold);
}

/*
 * Writes memory to the page, folding the journal.  io_lock is held.  False if
 * the group was dropped.
 */
static bool
write_state(Relation rel, NaradRelInfo *info, NaradShard *shard,
			XLogRecPtr *lsn)
{
	StateWrite	w;
	StateSnapshot snapshot;
	bool		written;

	if (!begin_write(&w, rel, info, shard))
		return false;
	if (w.was == NARAD_HEAD_OURS)
		fold_journal(rel, w.fold, w.old.data, &w.owner, shard->generation);
	take_snapshot(shard, &snapshot);
	written = !snapshot.dropped && put_snapshot(&w, &snapshot, lsn);
	if (written)
	{
		clean_journal(&w);
		finish_write(shard, &snapshot);
		tell_retention(&w, shard->partition, snapshot.frontier);
	}
	end_write(&w);
	pfree(snapshot.image);
	return written;
}

/*
 * NaradStateWrite
 *
 * Makes the page as new as memory, if the shard is dirty and still the
 * group's.  The caller holds RowExclusiveLock on the topic and no narad lock.  Returns the position up
 * to which WAL has to be flushed for it to be durable (InvalidXLogRecPtr:
 * nothing was logged).  May error on I/O or for lack of space; the shard is
 * then still dirty.
 */
XLogRecPtr
NaradStateWrite(Relation rel, NaradRelInfo *info, NaradShard *shard,
				NaradGroupId group_id)
{
	XLogRecPtr	lsn = InvalidXLogRecPtr;
	bool		is_dirty;

	LWLockAcquire(&shard->io_lock, LW_EXCLUSIVE);
	LWLockAcquire(&shard->lock, LW_SHARED);
	is_dirty = shard->is_dirty && NaradShardIsOf(shard, group_id);
	LWLockRelease(&shard->lock);
	if (is_dirty)
		(void) write_state(rel, info, shard, &lsn);
	if (!XLogRecPtrIsInvalid(lsn))
		shard->written_lsn = lsn;
	LWLockRelease(&shard->io_lock);
	return lsn;
}

/*
 * Puts marks on a head page that is ours, and flushes them; false if it is
 * not.  io_lock is held.
 */
static bool
put_marks(Relation rel, BlockNumber block, const NaradStateOwner *owner,
		  NaradOffset handout_mark, uint64 suspect, uint32 deliveries)
{
	PGAlignedBlock image;
	NaradStateHead *head = NaradPageStateHead(image.data);
	NaradPageUpdate update;
	XLogRecPtr	lsn = InvalidXLogRecPtr;
	bool		is_ours;

	update.buffer = lock_page(rel, block);
	update.image = image.data;
	update.init = false;
	memcpy(image.data, BufferGetPage(update.buffer), BLCKSZ);
	is_ours = NaradHeadClassify(image.data, owner) == NARAD_HEAD_OURS;
	if (is_ours)
	{
		head->handout_mark = handout_mark;
		head->suspect = suspect;
		head->suspect_deliveries = deliveries;
		lsn = NaradPagesUpdate(rel, &update, 1);
	}
	UnlockReleaseBuffer(update.buffer);
	if (!XLogRecPtrIsInvalid(lsn))
		XLogFlush(lsn);
	return is_ours;
}

/*
 * NaradStateMark
 *
 * What was claimed below `end` in a generation is about to be handed out, and
 * the shard's suspect, if one is out: whoever loads the shard after a crash
 * will know.  The mark is raised far ahead, so that few calls have anything to
 * do.  Nothing if the shard was moved meanwhile, since the claims are void.  The
 * caller holds RowExclusiveLock on the topic and no narad lock.  May error on
 * I/O or for lack of space; nothing may then be handed out.
 */
void
NaradStateMark(Relation rel, NaradRelInfo *info, NaradShard *shard,
			   NaradGroupId group_id, uint32 generation, NaradOffset end)
{
	NaradStateOwner owner;
	NaradOffset mark;
	uint64		suspect;
	uint32		deliveries;
	BlockNumber block = InvalidBlockNumber;
	XLogRecPtr	lsn;
	bool		is_ours;

	LWLockAcquire(&shard->io_lock, LW_EXCLUSIVE);
	LWLockAcquire(&shard->lock, LW_SHARED);
	is_ours = NaradShardIsOf(shard, group_id) &&
		shard->generation == generation;
	mark = shard->handout_mark;
	suspect = shard->suspect_out;
	deliveries = shard->suspect_deliveries;
	LWLockRelease(&shard->lock);

	/* Somebody else may have raised it while io_lock was waited for. */
	if (is_ours && (end > mark || suspect != 0))
		block = find_head_block(rel, info, shard);
	if (block != InvalidBlockNumber)
	{
		if (end > mark)
			mark = end + HANDOUT_AHEAD;
		NaradStateOwnerGet(shard, &owner);
		if (put_marks(rel, block, &owner, mark, suspect, deliveries) ||
			(write_state(rel, info, shard, &lsn) &&
			 put_marks(rel, block, &owner, mark, suspect, deliveries)))
		{
			LWLockAcquire(&shard->lock, LW_EXCLUSIVE);
			shard->handout_mark = mark;
			LWLockRelease(&shard->lock);
		}
	}
	LWLockRelease(&shard->io_lock);
}

/*
 * NaradStateSeek
 *
 * Moves a shard: all below the target is settled from now on, and nothing
 * above; leases, pins and journal entries are void.  First on the page, in one
 * record, which is flushed, then, with no error in between, in memory; so a
 * crash, or an error here, finds the one state or the other, and no crash takes
 * back a place from which somebody was given a message: the transaction may be
 * open still, or be rolled back, which flushes nothing.  The caller holds
 * RowExclusiveLock on the topic, no narad lock, and has a transaction id, so that
 * its commit waits for standbys.  False, and nothing done, if the group was
 * dropped.
 *
 * Before all that the group's generation is raised in the directory, since
 * frontiers saved until now (queue_saved.c) must not count any more.  Who
 * saves them has io_lock, too, and so meets either all of this or nothing.
 */
bool
NaradStateSeek(Relation rel, NaradRelInfo *info, NaradShard *shard,
			   NaradGroupId group_id, NaradOffset target)
{
	StateWrite	w;
	StateSnapshot snapshot = {0};
	XLogRecPtr	lsn = InvalidXLogRecPtr;
	bool		is_ours;
	bool		written = false;

	/* Emptying the shard frees shared memory, and must not fail. */
	(void) NaradMemoryArea();
	LWLockAcquire(&shard->io_lock, LW_EXCLUSIVE);
	LWLockAcquire(&shard->lock, LW_SHARED);
	is_ours = NaradShardIsOf(shard, group_id);
	snapshot.generation = shard->generation + 1;
	snapshot.dead_lettered = shard->dead_lettered;
	snapshot.lost = shard->lost;
	LWLockRelease(&shard->lock);
	snapshot.image = "";
	snapshot.frontier = target;
	if (is_ours && NaradGroupRaise(rel, info, group_id) &&
		begin_write(&w, rel, info, shard))
	{
		pg_atomic_fetch_add_u32(&shard->group->nseeks, 1);
		NARAD_FAIL("seek-raised");
		if (w.was == NARAD_HEAD_OURS)
			fold_journal(rel, w.fold, w.old.data, &w.owner,
						 snapshot.generation);
		written = put_snapshot(&w, &snapshot, &lsn);
		if (written)
		{
			if (!XLogRecPtrIsInvalid(lsn))
				XLogFlush(lsn);
			NaradShardSeek(shard, snapshot.generation, target);
			NaradQueueTopicTouch(shard->topic);
			shard->written_lsn = lsn;
			clean_journal(&w);
			tell_retention(&w, shard->partition, target);
		}
		end_write(&w);
	}
	LWLockRelease(&shard->io_lock);
	return written;
}

/* ----------------------------------------------------------------
 *		Journal
 * ----------------------------------------------------------------
 */

/* What is still to be journalled. */
typedef struct JournalTask
{
	uint64		xid;
	uint32		generation;
	const NaradRange *ranges;
	int			nranges;
} JournalTask;

static Size
page_room(const char *page)
{
	return ((PageHeader) page)->pd_special - ((PageHeader) page)->pd_lower;
}

/* Makes an entry of the next ranges; returns its size. */
static Size
make_entry(JournalTask *task, int nranges, NaradJournalEntry *entry)
{
	entry->xid = task->xid;
	entry->generation = task->generation;
	entry->nranges = nranges;
	memcpy(entry->ranges, task->ranges, nranges * sizeof(NaradRange));
	task->ranges += nranges;
	task->nranges -= nranges;
	return NARAD_ENTRY_SIZE(nranges);
}

/* How many of the ranges that are still to come have room on a page. */
static int
ranges_that_fit(const JournalTask *task, const char *page)
{
	Size		room = page_room(page);

	if (room < NARAD_ENTRY_SIZE(1))
		return 0;
	return Min((Size) task->nranges,
			   (room - NARAD_ENTRY_SIZE(0)) / sizeof(NaradRange));
}

/* Adds an entry to a page that is locked, of as much as has room. */
static void
append_entry(Relation rel, Buffer buffer, JournalTask *task)
{
	PGAlignedBlock entry;
	int			nranges = ranges_that_fit(task, BufferGetPage(buffer));
	Size		len;

	if (nranges == 0)
		return;
	len = make_entry(task, nranges, (NaradJournalEntry *) entry.data);
	(void) NaradPageAppend(rel, buffer, entry.data, len);
}

/* The same on the image of a page. */
static void
put_entry(JournalTask *task, char *image)
{
	PageHeader	header = (PageHeader) image;

	header->pd_lower += make_entry(task, ranges_that_fit(task, image),
								   (NaradJournalEntry *)
								   (image + header->pd_lower));
}

/* Puts entries on the head page; false if that is no longer ours. */
static bool
journal_on_head(Relation rel, BlockNumber block, const NaradStateOwner *owner,
				JournalTask *task, BlockNumber *journal)
{
	Buffer		buffer = lock_page(rel, block);
	const char *page = BufferGetPage(buffer);
	bool		is_ours = NaradHeadClassify(page, owner) == NARAD_HEAD_OURS;

	if (is_ours)
	{
		*journal = NaradPageStateHead(page)->journal;
		append_entry(rel, buffer, task);
	}
	UnlockReleaseBuffer(buffer);
	return is_ours;
}

/* Puts entries on a journal page that exists, if it is sound. */
static void
journal_on_chained(Relation rel, BlockNumber block, const NaradStateOwner *owner,
				   JournalTask *task)
{
	Buffer		buffer;

	if (block >= RelationGetNumberOfBlocks(rel))
		return;
	buffer = lock_page(rel, block);
	if (NaradStateChainCheck(BufferGetPage(buffer), owner, false))
		append_entry(rel, buffer, task);
	UnlockReleaseBuffer(buffer);
}

/*
 * A page for the journal's chain: a spare one, or a new one.  Spare ones of our
 * group hold nothing; one that does is in use, and its chain runs in a circle.
 */
static BlockNumber
find_journal_page(Relation rel, NaradRelInfo *info, BlockNumber head_block,
				  const NaradStateOwner *owner, BlockNumber *spare_left)
{
	PGAlignedBlock copy;
	NaradStateChain *chain = NaradPageStateChain(copy.data);
	BlockNumber block = 0;

	*spare_left = 0;
	if (NaradStateHeadCopy(rel, head_block, owner, copy.data) ==
		NARAD_HEAD_OURS)
		block = NaradPageStateHead(copy.data)->spare;
	if (block == 0 ||
		!NaradStateChainCopy(rel, block, owner, true, copy.data) ||
		(chain->group_id == owner->group_id &&
		 NaradStateChainLen(copy.data) > 0))
		return NaradMetaPageAllocate(rel, info->shared);
	*spare_left = chain->next;
	return block;
}

/*
 * Puts entries on a page that joins the journal's chain as the first: the
 * head page comes to point to it in the same record.
 */
static bool
journal_on_new(Relation rel, NaradRelInfo *info, BlockNumber head_block,
			   const NaradStateOwner *owner, JournalTask *task)
{
	PGAlignedBlock images[2];
	NaradPageUpdate updates[2];
	BlockNumber spare_left;
	BlockNumber block = find_journal_page(rel, info, head_block, owner,
										  &spare_left);
	bool		is_ours;

	updates[0].buffer = lock_page(rel, head_block);
	updates[0].image = images[0].data;
	updates[0].init = false;
	memcpy(images[0].data, BufferGetPage(updates[0].buffer), BLCKSZ);
	is_ours = NaradHeadClassify(images[0].data, owner) == NARAD_HEAD_OURS;
	if (is_ours)
	{
		updates[1].buffer = lock_page(rel, block);
		updates[1].image = images[1].data;
		updates[1].init =
			!NaradStatePageCheck(BufferGetPage(updates[1].buffer), owner);
		init_chain(images[1].data, owner, 0, NULL, 0,
				   NaradPageStateHead(images[0].data)->journal);
		put_entry(task, images[1].data);
		NaradPageStateHead(images[0].data)->journal = block;
		NaradPageStateHead(images[0].data)->spare = spare_left;
		(void) NaradPagesUpdate(rel, updates, 2);
		UnlockReleaseBuffer(updates[1].buffer);
	}
	UnlockReleaseBuffer(updates[0].buffer);
	return is_ours;
}

/*
 * Puts all entries where there is room: on the head page, the first one of the
 * chain, which is the last that joined it, and others.  io_lock is held.
 */
static void
journal_entries(Relation rel, NaradRelInfo *info, BlockNumber head_block,
				const NaradStateOwner *owner, JournalTask *task)
{
	BlockNumber block;

	if (!journal_on_head(rel, head_block, owner, task, &block))
		return;
	if (task->nranges > 0 && block != 0)
		journal_on_chained(rel, block, owner, task);
	while (task->nranges > 0)
	{
		if (!journal_on_new(rel, info, head_block, owner, task))
			return;
	}
}

/*
 * Puts one entry on the head page, if that can take it as it is.  If not, the page
 * is to be written first, which makes a page out of none, drops entries that
 * ended, and brings its generation up to date.  Every commit comes here, so
 * nothing is copied but the entry.  io_lock is held.  *is_current: nothing but room
 * is wanting.
 */
static bool
journal_in_place(Relation rel, BlockNumber block, const NaradStateOwner *owner,
				 JournalTask *task, bool *is_current)
{
	Buffer		buffer = lock_page(rel, block);
	const char *page = BufferGetPage(buffer);
	bool		is_ready;

	*is_current = NaradHeadClassify(page, owner) == NARAD_HEAD_OURS &&
		NaradPageStateHead(page)->generation == task->generation;
	is_ready = *is_current && ranges_that_fit(task, page) == task->nranges;
	if (is_ready)
		append_entry(rel, buffer, task);
	UnlockReleaseBuffer(buffer);
	return is_ready;
}

/*
 * NaradStateJournal
 *
 * Writes down that these offsets of a shard are settled if the current top
 * transaction, which has an id, commits (I5).  Before its commit record;
 * RowExclusiveLock is held, no narad lock.  May error: the transaction then
 * aborts, and the entries are void with it.  Nothing if the group was
 * dropped, or is of another generation by now.
 */
void
NaradStateJournal(Relation rel, NaradRelInfo *info, NaradShard *shard,
				  NaradGroupId group_id, uint32 generation,
				  const NaradRange *ranges, int nranges)
{
	JournalTask task;
	NaradStateOwner owner;
	BlockNumber block;
	XLogRecPtr	lsn = InvalidXLogRecPtr;
	int64		paced_until;
	bool		is_void;
	bool		is_current;

	task.xid = U64FromFullTransactionId(GetTopFullTransactionId());
	task.generation = generation;
	task.ranges = ranges;
	task.nranges = nranges;

	LWLockAcquire(&shard->io_lock, LW_EXCLUSIVE);
	LWLockAcquire(&shard->lock, LW_SHARED);
	is_void = !NaradShardIsOf(shard, group_id) ||
		shard->generation != generation;
	paced_until = NaradDirtyPacedUntil(shard);
	LWLockRelease(&shard->lock);
	NaradStateOwnerGet(shard, &owner);
	block = is_void ? InvalidBlockNumber : find_head_block(rel, info, shard);

	/* Rather many pages of entries than a large image for each that is full. */
	if (block != InvalidBlockNumber &&
		!journal_in_place(rel, block, &owner, &task, &is_current) &&
		((is_current && paced_until > NaradClockNow()) ||
		 write_state(rel, info, shard, &lsn)))
		journal_entries(rel, info, block, &owner, &task);
	LWLockRelease(&shard->io_lock);
}

/* ----------------------------------------------------------------
 *		First pages, views
 * ----------------------------------------------------------------
 */

/*
 * NaradStateStartAt
 *
 * A first state page that says where a new group starts in a partition.  The
 * group is being made and nobody else can find it; the caller holds the topic
 * lock, and has a transaction id, so that its commit flushes.
 */
void
NaradStateStartAt(Relation rel, NaradRelInfo *info,
				  const NaradGroupEntry *group, int partition,
				  NaradOffset frontier)
{
	NaradStateOwner owner = {info->topic_id, group->group_id, partition};
	StateSnapshot snapshot = {0};
	Fold	   *fold = palloc0(sizeof(Fold));
	PGAlignedBlock old;
	PGAlignedBlock image;
	BlockNumber block;
	NaradHeadKind was;
	XLogRecPtr	lsn;

	block = NaradStateBlock(rel, info, group->group_id, partition, true);
	if (block == InvalidBlockNumber)
		elog(ERROR, "group \"%s\" was lost while it was made", group->name);
	was = NaradStateHeadCopy(rel, block, &owner, old.data);
	snapshot.image = "";
	snapshot.frontier = frontier;
	snapshot.generation = group->generation;
	build_head(rel, info, &owner, &snapshot, was, old.data, fold, image.data);
	if (!replace_head(rel, block, &owner, was, image.data, &lsn))
		elog(ERROR, "state page of group \"%s\" was changed while it was made",
			 group->name);
	pfree(fold);
}

/*
 * NaradStatePeek
 *
 * Figures as they are on the page, which may be behind memory; false if there
 * is no page.  Any lock; info need not be attached, and may be NULL during
 * recovery.
 */
bool
NaradStatePeek(Relation rel, NaradRelInfo *info,
			   const NaradGroupEntry *group, int partition,
			   NaradStateFigures *figures, bool *damaged)
{
	NaradStateOwner owner;
	NaradHeadKind kind;
	PGAlignedBlock copy;
	BlockNumber block;
	NaradMetaData meta;

	if (damaged != NULL)
		*damaged = false;
	if (!NaradMetaRead(rel, &meta))
		return false;
	owner.topic_id = meta.topic_id;
	owner.group_id = group->group_id;
	owner.partition = partition;
	block = NaradStateBlock(rel, info, group->group_id, partition, false);
	if (block == InvalidBlockNumber)
		return false;
	kind = NaradStateHeadCopy(rel, block, &owner, copy.data);
	if (damaged != NULL)
		*damaged = kind == NARAD_HEAD_BAD;
	if (kind != NARAD_HEAD_OURS)
		return false;
	figures->frontier = NaradPageStateHead(copy.data)->frontier;
	figures->dead_lettered = NaradPageStateHead(copy.data)->dead_lettered;
	figures->lost = NaradPageStateHead(copy.data)->lost_to_retention;
	return true;
}
