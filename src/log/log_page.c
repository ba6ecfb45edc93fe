/*-------------------------------------------------------------------------
 *
 * log_page.c
 *	  Data pages: special space, items, a reader's private copy, and what a
 *	  record's header says about who may see it.
 *
 * Owns:       the layout of items on a data page.
 * Invariants: I3.  A transaction in progress is told from one that committed
 *			   by asking "in progress?" before "committed?": one that ends
 *			   between the two questions is then seen as pending, never as
 *			   aborted.  The current transaction is asked about first, as it
 *			   is in progress, too.
 *			   I11.  A block that cannot be read is an answer, not an error,
 *			   to whoever asks so.
 *			   Nobody uses a record's bytes after the share lock of its page
 *			   is gone, unless from a copy: a slot may be given to another
 *			   partition at any time.
 *			   An xmin is looked up only while its status is kept; whoever
 *			   is frozen bears the flag, or lies in a segment that does.
 * Locks:      copying takes one buffer share lock, and under it
 *			   NaradStatusLock.
 * Runs in:    any backend, on a primary and a standby; NaradDataPageInit and
 *			   NaradDataPagePut in redo as well.
 * On error:   copying leaves no pin behind.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "storage/procarray.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"

#include "base/base_compat.h"
#include "log/log_meta.h"
#include "log/log_page.h"
#include "log/log_record.h"
#include "log/log_status.h"

/* Pages with more items are copied whole, as that costs less than picking. */
#define MAX_PICKED_ITEMS	16

/*
 * NaradDataPageInit
 *
 * Makes BLCKSZ bytes an empty data page with the special space given, head
 * included.
 */
void
NaradDataPageInit(Page page, const NaradDataSpecial *special)
{
	PageInit(page, BLCKSZ, sizeof(NaradDataSpecial));
	memcpy(PageGetSpecialPointer(page), special, sizeof(NaradDataSpecial));
}

/*
 * NaradDataPageIsValid
 *
 * True if the page, of a copy or share-locked, is a data page of the topic
 * whose item pointers may be followed.  Trusts nothing.
 */
bool
NaradDataPageIsValid(Page page, NaradTopicId topic_id)
{
	PageHeader	ph = (PageHeader) page;
	const NaradDataSpecial *special;
	int			nitems;

	if (PageIsNew(page) ||
		ph->pd_special != BLCKSZ - sizeof(NaradDataSpecial) ||
		ph->pd_lower < SizeOfPageHeaderData ||
		ph->pd_lower > ph->pd_upper || ph->pd_upper > ph->pd_special)
		return false;

	special = (const NaradDataSpecial *) ((char *) page + ph->pd_special);
	if (special->head.topic_id != topic_id ||
		special->head.kind != NARAD_PAGE_DATA ||
		special->head.version != NARAD_FORMAT_VERSION)
		return false;

	nitems = PageGetMaxOffsetNumber(page);
	if (nitems > NARAD_MAX_ITEMS)
		return false;
	for (OffsetNumber item = FirstOffsetNumber; item <= nitems; item++)
	{
		ItemId		lp = PageGetItemId(page, item);

		if (!ItemIdIsNormal(lp) || ItemIdGetOffset(lp) < ph->pd_upper ||
			ItemIdGetOffset(lp) != MAXALIGN(ItemIdGetOffset(lp)) ||
			ItemIdGetOffset(lp) + ItemIdGetLength(lp) > ph->pd_special)
			return false;
		if (!(item == FirstOffsetNumber &&
			  special->cont_offset != NARAD_INVALID_OFFSET) &&
			ItemIdGetLength(lp) < sizeof(NaradRecordHeader))
			return false;
	}
	return true;
}

/*
 * NaradDamagedPageSpecial
 *
 * Copies the special space of a page that cannot be read; false unless it looks
 * sound.
 */
bool
NaradDamagedPageSpecial(const char *page, NaradTopicId topic_id,
						NaradDataSpecial *special)
{
	memcpy(special, page + BLCKSZ - sizeof(NaradDataSpecial),
		   sizeof(NaradDataSpecial));
	return special->head.topic_id == topic_id &&
		special->head.kind == NARAD_PAGE_DATA &&
		special->head.version == NARAD_FORMAT_VERSION &&
		special->base_offset <= NARAD_MAX_OFFSET;
}

/*
 * NaradDataPagePut
 *
 * Adds an item made of two parts, and returns its number.  The caller knows
 * that it fits (NaradDataPageFree) and holds the page exclusively.  Plain
 * memory work: may be called in a critical section.
 */
OffsetNumber
NaradDataPagePut(Page page, const char *head, uint32 head_len,
				 const char *body, uint32 body_len)
{
	PageHeader	ph = (PageHeader) page;
	OffsetNumber item = OffsetNumberNext(PageGetMaxOffsetNumber(page));
	uint32		len = head_len + body_len;
	uint16		upper = ph->pd_upper - MAXALIGN(len);
	char	   *place = (char *) page + upper;

	Assert(item <= NARAD_MAX_ITEMS);
	Assert(ph->pd_lower + sizeof(ItemIdData) <= upper);

	memcpy(place, head, head_len);
	if (body_len > 0)
		memcpy(place + head_len, body, body_len);
	memset(place + len, 0, MAXALIGN(len) - len);
	ItemIdSetNormal(PageGetItemId(page, item), upper, len);
	ph->pd_lower += sizeof(ItemIdData);
	ph->pd_upper = upper;
	return item;
}

/*
 * NaradDataPageFree
 *
 * The longest item that still fits, or 0.
 */
uint32
NaradDataPageFree(Page page)
{
	PageHeader	ph = (PageHeader) page;
	int			space = (int) ph->pd_upper - (int) ph->pd_lower -
	(int) sizeof(ItemIdData);

	if (space <= 0 || PageGetMaxOffsetNumber(page) >= NARAD_MAX_ITEMS)
		return 0;
	return MAXALIGN_DOWN(space);
}

/*
 * NaradDataPageFreeze
 *
 * Marks items: the first ndead as dead for good, nfrozen others as visible to
 * all.  The caller holds the page exclusively.  Plain memory work: may be
 * called in a critical section.
 */
void
NaradDataPageFreeze(Page page, const OffsetNumber *items, int ndead,
					int nfrozen)
{
	for (int i = 0; i < ndead + nfrozen; i++)
	{
		NaradRecordHeader *hdr = (NaradRecordHeader *)
		PageGetItem(page, PageGetItemId(page, items[i]));

		hdr->flags |= i < ndead ? NARAD_RECORD_DEAD : NARAD_RECORD_FROZEN;
	}
}

/*
 * Did it commit?  If its status is no longer kept: freezing would have marked
 * its records, had it not.  Under NaradStatusLock.
 */
static bool
did_commit(TransactionId xmin)
{
	return NaradStatusIsForgotten(xmin) || TransactionIdDidCommit(xmin);
}

/*
 * NaradRecordStateNow
 *
 * What has become of a record's transaction by now.  Called from a visitor of
 * NaradDataPageCopy, or under NaradStatusLock for a record copied so.  The
 * caller has an active snapshot.
 */
NaradRecordState
NaradRecordStateNow(const NaradRecordHeader *hdr)
{
	if (hdr->flags & NARAD_RECORD_DEAD)
		return NARAD_STATE_DEAD;
	if (hdr->flags & NARAD_RECORD_FROZEN)
		return NARAD_STATE_COMMITTED;
	if (TransactionIdIsCurrentTransactionId(hdr->xmin))
		return NARAD_STATE_OWN;
	if (TransactionIdIsInProgress(hdr->xmin))
		return NARAD_STATE_PENDING;
	return did_commit(hdr->xmin) ? NARAD_STATE_COMMITTED : NARAD_STATE_DEAD;
}

static bool
visible_to_mvcc(const NaradRecordHeader *hdr, Snapshot snapshot)
{
	if (TransactionIdIsCurrentTransactionId(hdr->xmin))
		return hdr->cmin < snapshot->curcid;
	if (XidInMVCCSnapshot(hdr->xmin, snapshot))
		return false;
	return did_commit(hdr->xmin);
}

static bool
visible_to_dirty(const NaradRecordHeader *hdr, Snapshot snapshot)
{
	switch (NaradRecordStateNow(hdr))
	{
		case NARAD_STATE_PENDING:
			snapshot->xmin = hdr->xmin;
			return true;
		case NARAD_STATE_DEAD:
			return false;
		default:
			return true;
	}
}

/*
 * NaradRecordVisible
 *
 * Whether a snapshot of any kind sees the record.  Records are never updated
 * or deleted, so xmin alone decides.  Called as NaradRecordStateNow is.
 */
bool
NaradRecordVisible(const NaradRecordHeader *hdr, Snapshot snapshot)
{
	if (snapshot->snapshot_type == SNAPSHOT_DIRTY)
	{
		/* Always reset: callers wait for whatever is left in them. */
		snapshot->xmin = snapshot->xmax = InvalidTransactionId;
		snapshot->speculativeToken = 0;
	}
	if (snapshot->snapshot_type == SNAPSHOT_ANY)
		return true;
	if (hdr->flags & NARAD_RECORD_DEAD)
		return false;
	if (hdr->flags & NARAD_RECORD_FROZEN)
		return true;

	switch (snapshot->snapshot_type)
	{
		case SNAPSHOT_MVCC:
			return visible_to_mvcc(hdr, snapshot);
		case SNAPSHOT_DIRTY:
			return visible_to_dirty(hdr, snapshot);
		case SNAPSHOT_SELF:
			{
				NaradRecordState state = NaradRecordStateNow(hdr);

				return state == NARAD_STATE_COMMITTED ||
					state == NARAD_STATE_OWN;
			}
		case SNAPSHOT_NON_VACUUMABLE:
			return NaradRecordStateNow(hdr) != NARAD_STATE_DEAD;
		default:
			elog(ERROR, "unexpected snapshot type %d in a topic",
				 (int) snapshot->snapshot_type);
	}
	return false;				/* keep compiler quiet */
}

/*
 * Is the block part of the file?  A topic's file shrinks under
 * AccessExclusiveLock only, and whoever then locks it learns of it, so what the
 * storage manager last knew is enough for a yes.
 */
static bool
block_exists(Relation rel, BlockNumber block)
{
	BlockNumber known = RelationGetSmgr(rel)->smgr_cached_nblocks[MAIN_FORKNUM];

	return (known != InvalidBlockNumber && block < known) ||
		block < RelationGetNumberOfBlocks(rel);
}

/* A resource owner for one read.  Consumers spend their time here: kept. */
static ResourceOwner page_read_owner;

static pg_noinline ResourceOwner
take_read_owner(ResourceOwner parent)
{
	ResourceOwner owner = page_read_owner;

	if (owner == NULL)
		return ResourceOwnerCreate(parent, "narad page read");
	page_read_owner = NULL;
	ResourceOwnerNewParent(owner, parent);
	return owner;
}

/*
 * NaradReadBufferCareful
 *
 * Pins a block, or returns InvalidBuffer if it fails its checksum or has an
 * impossible header.
 *
 * Such a failure is raised when the buffer is pinned and marked as being
 * read.  Both marks must go, as no abort follows that would clear them: the
 * read runs under a resource owner of its own, released on failure.  No
 * LWLock is held at that point by the buffer manager, which is why only this
 * error code is caught: others may come from writing out a victim.  Raising
 * an error clears the counts that hold off interrupts, and the caller may be
 * holding LWLocks: they are put back.
 *
 * The owner is a child of the caller's meanwhile, so that an error passed on,
 * or a FATAL exit, releases what it holds.
 */
Buffer
NaradReadBufferCareful(Relation rel, BlockNumber block,
					   BufferAccessStrategy strategy)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner outer = CurrentResourceOwner;
	ResourceOwner owner = take_read_owner(outer);
	uint32		interrupt_holdoff = InterruptHoldoffCount;
	uint32		cancel_holdoff = QueryCancelHoldoffCount;
	volatile Buffer buffer = InvalidBuffer;

	CurrentResourceOwner = owner;
	PG_TRY();
	{
		buffer = ReadBufferExtended(rel, MAIN_FORKNUM, block, RBM_NORMAL,
									strategy);
		/* Hand the pin over to the caller's owner. */
		CurrentResourceOwner = outer;
		IncrBufferRefCount(buffer);
		CurrentResourceOwner = owner;
		ReleaseBuffer(buffer);
		CurrentResourceOwner = outer;
	}
	PG_CATCH();
	{
		CurrentResourceOwner = outer;
		if (geterrcode() != ERRCODE_DATA_CORRUPTED)
			PG_RE_THROW();
		MemoryContextSwitchTo(context);
		FlushErrorState();
		InterruptHoldoffCount = interrupt_holdoff;
		QueryCancelHoldoffCount = cancel_holdoff;
		NaradCompatAbortBufferIO();
		ResourceOwnerRelease(owner, RESOURCE_RELEASE_BEFORE_LOCKS, false, false);
		ResourceOwnerRelease(owner, RESOURCE_RELEASE_LOCKS, false, false);
		ResourceOwnerRelease(owner, RESOURCE_RELEASE_AFTER_LOCKS, false, false);
		CurrentResourceOwner = outer;
		ResourceOwnerDelete(owner);
		return InvalidBuffer;
	}
	PG_END_TRY();

	ResourceOwnerNewParent(owner, NULL);
	page_read_owner = owner;
	return buffer;
}

/*
 * NaradDataPageClassify
 *
 * What a locked or copied page is to a reader of a segment.  Trusts nothing.
 */
NaradPageStatus
NaradDataPageClassify(Page page, NaradTopicId topic_id,
					  const NaradSegmentRef *ref)
{
	const NaradDataSpecial *special;

	if (PageIsNew(page))
		return NARAD_PAGE_OTHER;
	if (PageGetSpecialSize(page) < sizeof(NaradPageSpecialHead))
		return NARAD_PAGE_DAMAGED;
	special = NaradDataPageSpecial(page);
	if (special->head.topic_id != topic_id ||
		special->head.kind != NARAD_PAGE_DATA)
		return NARAD_PAGE_OTHER;
	if (!NaradDataPageIsValid(page, topic_id))
		return NARAD_PAGE_DAMAGED;
	if (special->head.partition != ref->partition ||
		special->sequence != ref->sequence)
		return NARAD_PAGE_OTHER;
	return NARAD_PAGE_OK;
}

/*
 * NaradDamagedPageClassify
 *
 * What a page that cannot be read is to a reader of a segment: another's if its
 * special space says so, for what lies under pages that were prepared may be of
 * segments that are gone.  Where the page must be the reader's, that is damage
 * just as well.
 */
NaradPageStatus
NaradDamagedPageClassify(const char *page, NaradTopicId topic_id,
						 const NaradSegmentRef *ref)
{
	NaradDataSpecial special;

	if (NaradDamagedPageSpecial(page, topic_id, &special) &&
		(special.head.partition != ref->partition ||
		 special.sequence < ref->sequence))
		return NARAD_PAGE_OTHER;
	return NARAD_PAGE_DAMAGED;
}

/* The same of a block that could not be pinned. */
static NaradPageStatus
classify_damaged(Relation rel, BlockNumber block, NaradTopicId topic_id,
				 const NaradSegmentRef *ref)
{
	PGAlignedBlock copy;

	/* It may be sound by now, which nobody was promised to be told. */
	if (block >= RelationGetNumberOfBlocks(rel) ||
		NaradPageCopyChecked(rel, block, copy.data))
		return NARAD_PAGE_DAMAGED;
	return NaradDamagedPageClassify(copy.data, topic_id, ref);
}

/*
 * Sets the flag in a copy on records that are frozen without bearing it: of a
 * frozen segment, or, where the reader's view of the directory is from before
 * it was, those whose xmin is forgotten.  The share lock of the page is held:
 * had VACUUM found one of them dead, it would be marked by now.  Under
 * NaradStatusLock.  True if there is one of the latter.
 */
static bool
mark_frozen(Page copy, bool all)
{
	bool		has_forgotten = false;

	for (OffsetNumber item = NaradFirstRecordItem(copy);
		 item <= PageGetMaxOffsetNumber(copy); item++)
	{
		NaradRecordHeader *hdr = (NaradRecordHeader *)
		PageGetItem(copy, PageGetItemId(copy, item));

		if ((hdr->flags & NARAD_RECORD_VOLATILE) != 0)
			continue;
		if (!all && !NaradStatusIsForgotten(hdr->xmin))
			continue;
		hdr->flags |= NARAD_RECORD_FROZEN;
		has_forgotten |= !all;
	}
	return has_forgotten;
}

/*
 * Copies what tells which records a sound page has: line pointers, special
 * space, and the header of each record.
 */
static void
copy_heads(Page page, Page copy)
{
	PageHeader	header = (PageHeader) page;

	memcpy(copy, page, header->pd_lower);
	memcpy((char *) copy + header->pd_special,
		   (char *) page + header->pd_special, BLCKSZ - header->pd_special);
	for (OffsetNumber item = NaradFirstRecordItem(page);
		 item <= PageGetMaxOffsetNumber(page); item++)
	{
		uint32		at = ItemIdGetOffset(PageGetItemId(page, item));

		memcpy((char *) copy + at, (char *) page + at,
			   sizeof(NaradRecordHeader));
	}
}

/* Completes some of the records of such a copy. */
static void
copy_bodies(Page page, Page copy, const NaradItemSpan *span)
{
	for (OffsetNumber item = span->from; item < span->end; item++)
	{
		ItemId		lp = PageGetItemId(copy, item);
		uint32		at = ItemIdGetOffset(lp) + sizeof(NaradRecordHeader);

		memcpy((char *) copy + at, (char *) page + at,
			   ItemIdGetLength(lp) - sizeof(NaradRecordHeader));
	}
}

/* The whole of it all, whoever asks; `wanted` is NULL, or set by `visit`. */
static NaradPageStatus
copy_block(Relation rel, BlockNumber block, BufferAccessStrategy strategy,
		   NaradTopicId topic_id, const NaradSegmentRef *ref, bool damage_ok,
		   Page copy, NaradPageVisitor visit, void *arg,
		   const NaradItemSpan *wanted)
{
	Buffer		buffer;
	Page		page;
	NaradPageStatus status;
	bool		picks;
	bool		has_forgotten = false;

	if (damage_ok && !block_exists(rel, block))
		return NARAD_PAGE_OTHER;
	buffer = NaradReadBufferCareful(rel, block, strategy);
	if (!BufferIsValid(buffer))
	{
		status = classify_damaged(rel, block, topic_id, ref);
		if (status == NARAD_PAGE_OTHER || damage_ok)
			return status;
		/* Raises the error. */
		buffer = ReadBufferExtended(rel, MAIN_FORKNUM, block, RBM_NORMAL,
									strategy);
	}

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	page = BufferGetPage(buffer);
	status = NaradDataPageClassify(page, topic_id, ref);
	picks = wanted != NULL && status == NARAD_PAGE_OK &&
		PageGetMaxOffsetNumber(page) <= MAX_PICKED_ITEMS;
	if (picks)
		copy_heads(page, copy);
	else
		memcpy(copy, page, BLCKSZ);
	if (status == NARAD_PAGE_OK && visit != NULL)
	{
		NaradStatusLock();
		has_forgotten =
			mark_frozen(copy, (ref->flags & NARAD_SEGMENT_FROZEN) != 0);
		visit(copy, arg);
		NaradStatusUnlock();
	}
	if (picks)
		copy_bodies(page, copy, wanted);
	UnlockReleaseBuffer(buffer);
	if (has_forgotten && !NaradSegmentIsThere(rel, ref))
		return NARAD_PAGE_OTHER;
	return status;
}

/*
 * NaradDataPageCopy
 *
 * Copies a block and says what it is to a reader of that segment.  `visit`,
 * if not NULL, is called for a page that is OK while its share lock and
 * NaradStatusLock are held: the place to ask about transactions.  In the copy,
 * and there only, each record that must not be asked about then has its flag
 * of being frozen.  ref was read after the reader's snapshot was taken.
 *
 * Errors of reading are raised unless damage_ok, and then too if they are not
 * about the block's contents; but what cannot be read and is another segment's
 * by its special space is OTHER.  With damage_ok a block past the end of the
 * file is OTHER: pages are prepared without WAL, so a standby, or a server
 * promoted or crashed, may lack them.
 *
 * VACUUM was not at a segment that retention had freed before.  So if a page was
 * read by what VACUUM must have done, and the segment is gone, it is OTHER, too,
 * whatever `visit` found.
 */
NaradPageStatus
NaradDataPageCopy(Relation rel, BlockNumber block,
				  BufferAccessStrategy strategy, NaradTopicId topic_id,
				  const NaradSegmentRef *ref, bool damage_ok, Page copy,
				  NaradPageVisitor visit, void *arg)
{
	return copy_block(rel, block, strategy, topic_id, ref, damage_ok, copy,
					  visit, arg, NULL);
}

/*
 * NaradDataPageCopyWanted
 *
 * The same with damage_ok, for whoever needs few of a page's records: a page that
 * is OK is copied with the headers of all of them, but bytes behind the header
 * may be there only of those that are `wanted`, which `visit` may set.  Where
 * messages are large this is a fraction of the page.
 */
NaradPageStatus
NaradDataPageCopyWanted(Relation rel, BlockNumber block, NaradTopicId topic_id,
						const NaradSegmentRef *ref, Page copy,
						NaradPageVisitor visit, void *arg,
						const NaradItemSpan *wanted)
{
	return copy_block(rel, block, NULL, topic_id, ref, true, copy, visit, arg,
					  wanted);
}

/* ---- large records --------------------------------------------------- */

/* Rings of buffers of this backend, to read and to write with. */
static BufferAccessStrategy large_rings[2];

/*
 * NaradLargeStrategy
 *
 * How to take buffers for the pages of a record of so many bytes, if the caller
 * has no way of its own: a very large one goes through a ring, not to push as
 * many pages of others out of the pool.  The ring is the backend's, so that
 * the next record uses the same buffers.
 */
BufferAccessStrategy
NaradLargeStrategy(BufferAccessStrategy own, uint32 length, bool write)
{
	if (own != NULL || length < NARAD_RING_LENGTH)
		return own;
	if (large_rings[write] == NULL)
	{
		MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

		large_rings[write] = GetAccessStrategy(write ? BAS_BULKWRITE :
											   BAS_BULKREAD);
		MemoryContextSwitchTo(old);
	}
	return large_rings[write];
}

/*
 * A walk over the pages that a large record goes on to.
 */
typedef struct LargeWalk
{
	Relation	rel;
	BufferAccessStrategy strategy;
	NaradTopicId topic_id;
	NaradOffset offset;			/* of the record */
	NaradSegmentRef segment;	/* at hand */
	BlockNumber block;			/* last page read */
	char	   *dest;			/* of the next byte */
	uint32		have;			/* bytes of the record that are there ... */
	uint32		total;			/* ... and that there are */
} LargeWalk;

/* Takes what a page has of the record; false if that is not what comes next. */
static bool
take_part(LargeWalk *walk, Page page)
{
	const NaradDataSpecial *special = NaradDataPageSpecial(page);
	ItemId		lp;
	uint32		len;

	if (special->cont_offset != walk->offset ||
		special->cont_pos != walk->have ||
		PageGetMaxOffsetNumber(page) < FirstOffsetNumber)
		return false;
	lp = PageGetItemId(page, FirstOffsetNumber);
	len = ItemIdGetLength(lp);
	if (len == 0 || len > walk->total - walk->have)
		return false;
	memcpy(walk->dest, PageGetItem(page, lp), len);
	walk->dest += len;
	walk->have += len;
	return true;
}

/*
 * Takes what a block of the segment at hand has of the record, as
 * NaradDataPageCopy would read it.  DAMAGED, too, if it goes on with something
 * else.
 */
static NaradPageStatus
read_part(LargeWalk *walk, BlockNumber block)
{
	NaradPageStatus status;
	Buffer		buffer;
	Page		page;

	walk->block = block;
	if (!block_exists(walk->rel, block))
		return NARAD_PAGE_OTHER;
	buffer = NaradReadBufferCareful(walk->rel, block, walk->strategy);
	if (!BufferIsValid(buffer))
		return classify_damaged(walk->rel, block, walk->topic_id,
								&walk->segment);

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	page = BufferGetPage(buffer);
	status = NaradDataPageClassify(page, walk->topic_id, &walk->segment);
	if (status == NARAD_PAGE_OK && !take_part(walk, page))
		status = NARAD_PAGE_DAMAGED;
	UnlockReleaseBuffer(buffer);
	return status;
}

/*
 * Takes the next part of the record: from the next page of the segment, or the
 * first of the following one.  A segment is not always full when the next is
 * begun, and one that nothing was written to is legal.  False if the part is
 * not there.
 */
static bool
read_next_part(LargeWalk *walk)
{
	NaradSegmentRef *segment = &walk->segment;
	NaradPageStatus status = NARAD_PAGE_OTHER;

	CHECK_FOR_INTERRUPTS();
	if (walk->block + 1 < segment->first_block + segment->npages)
		status = read_part(walk, walk->block + 1);
	while (status == NARAD_PAGE_OTHER && NaradSegmentNext(walk->rel, segment))
	{
		CHECK_FOR_INTERRUPTS();
		status = read_part(walk, segment->first_block);
	}
	return status == NARAD_PAGE_OK;
}

/* The length a large record says it has, or 0 if that cannot be. */
static uint32
large_length(const char *part, uint32 part_len)
{
	uint32		total;

	if (part_len < sizeof(NaradRecordHeader) + sizeof(NaradLargePart))
		return 0;
	total = ((const NaradLargePart *)
			 (part + sizeof(NaradRecordHeader)))->total_len;
	if (total <= part_len || total > NARAD_MAX_RECORD)
		return 0;
	return total;
}

/*
 * NaradLargeToTuple
 *
 * The row of a large record, in the current memory context, given a copy of
 * the page on which it begins; *crc is what its header's must be for it to be
 * sound.  Walks the pages and segments that follow, and never jumps by length;
 * the record's bytes are brought to their place in the tuple, and nowhere
 * else.  NULL if the header makes no sense, or a part is missing, damaged, or
 * continues something else: legal if the record's transaction aborted, damage
 * if it committed.  May be cancelled.
 */
HeapTuple
NaradLargeToTuple(Relation rel, const NaradSegmentRef *ref, BlockNumber block,
				  Page page, OffsetNumber item, BufferAccessStrategy strategy,
				  uint32 *crc)
{
	const NaradDataSpecial *special = NaradDataPageSpecial(page);
	ItemId		lp = PageGetItemId(page, item);
	char	   *part = PageGetItem(page, lp);
	uint32		part_len = ItemIdGetLength(lp);
	uint32		head_len = NaradRecordHeadLength(part, part_len);
	uint32		total = large_length(part, part_len);
	NaradOffset offset = NaradHeaderOffset(special, (NaradRecordHeader *) part);
	int64		time = NaradHeaderTime(special, (NaradRecordHeader *) part);
	ItemPointerData tid;
	HeapTuple	tuple;
	char	   *body;
	LargeWalk	walk;

	if (head_len == 0 || total == 0)
		return NULL;
	ItemPointerSet(&tid, block, item);
	tuple = NaradTupleBegin(part, head_len, total - head_len, ref->partition,
							offset, time, &tid, RelationGetRelid(rel), &body);
	memcpy(body, part + head_len, part_len - head_len);

	walk.rel = rel;
	walk.strategy = NaradLargeStrategy(strategy, total, false);
	walk.topic_id = special->head.topic_id;
	walk.offset = offset;
	walk.segment = *ref;
	walk.block = block;
	walk.dest = body + (part_len - head_len);
	walk.have = part_len;
	walk.total = total;
	while (walk.have < total)
	{
		if (!read_next_part(&walk))
		{
			pfree(tuple);
			return NULL;
		}
	}
	*crc = NaradRecordCrc(part, head_len, body, total - head_len,
						  ref->partition, offset, time);
	return tuple;
}
