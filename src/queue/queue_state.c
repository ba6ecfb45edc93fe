/*-------------------------------------------------------------------------
 *
 * queue_state.c
 *	  State pages: what is durable of a shard.
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
 * Runs in:    the worker, a backend at PRE_COMMIT or at first use.
 * WAL:        through NaradPagesUpdate: the changed part of each page.
 * On error:   what is on disk is valid at every moment; a page that was
 *             allocated and not linked is lost.  The shard stays dirty.
 *
 * The head page, after the page header:
 *
 *	NaradStateHead		104 bytes
 *	image				image_len bytes, unless it lies in a chain; padded
 *	journal entries		up to pd_lower
 *
 * An image is a sequence of items, each a NaradImageItem and what its kind
 * says.  It speaks of offsets at or above the frontier.  One that does not
 * fit goes to a chain of pages.  There are two chains: the one not in use is
 * written, then the head flips to it in one record, so a crash in between
 * leaves the old image whole, however long they are.
 *
 * A journal entry is a NaradJournalEntry and its ranges.  Entries that find
 * no room on the head page go to a chain of journal pages, each complete in
 * itself; the entries of one transaction may be spread over pages.  Entries
 * whose transaction has ended leave when the image is written: settled in
 * memory before if it committed, so that they are in the image, and on other
 * pages than the head's only after the head was written.  An entry seen
 * twice does no harm.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "port/pg_crc32c.h"
#include "storage/procarray.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "base/base_memory.h"
#include "log/log_meta.h"
#include "queue/queue_dirty.h"
#include "queue/queue_state.h"

#define NARAD_STATE_VERSION 1

/* On disk, at PageGetContents() of the head page. */
typedef struct NaradStateHead
{
	uint32		version;		/* NARAD_STATE_VERSION */
	NaradGroupId group_id;
	uint32		partition;
	uint32		generation;		/* entries of another one are void */
	NaradOffset frontier;		/* everything below it is settled */
	uint64		serial;			/* of the image in the chain in use */
	BlockNumber chains[2];		/* first pages of the image chains, or 0 */
	uint32		chain_in_use;	/* 1 or 2; 0: the image is on this page */
	uint32		image_len;
	uint32		image_crc;		/* CRC-32C of the image */
	BlockNumber journal;		/* first journal page, or 0 */
	NaradOffset handout_mark;	/* reserved */
	uint64		lost_to_retention;	/* reserved */
	uint64		dead_lettered;	/* reserved */
	uint64		reserved[3];
} NaradStateHead;

StaticAssertDecl(sizeof(NaradStateHead) == 104, "state page head");

/* On disk, at PageGetContents() of the other pages; data follows. */
typedef struct NaradStateChain
{
	BlockNumber next;			/* or 0 */
	NaradGroupId group_id;
	uint32		partition;
	uint32		len;			/* bytes of data */
	uint64		serial;			/* of the image; 0 on journal pages */
} NaradStateChain;

StaticAssertDecl(sizeof(NaradStateChain) == 24, "state chain page");

/* Kinds of items of an image. */
#define IMAGE_FULL			1	/* `count` is 0, a uint64 follows: how many
								 * chunks from this one on are full */
#define IMAGE_RANGES		2	/* `count` NaradBitRange follow */
#define IMAGE_BITMAP		3	/* NARAD_CHUNK_BYTES follow */
#define IMAGE_DELIVERIES	4	/* `count` NaradDeliveries follow */

typedef struct NaradImageItem
{
	uint16		kind;
	uint16		count;
	uint32		reserved;
	uint64		chunk;			/* offset >> NARAD_CHUNK_BITS */
} NaradImageItem;

typedef struct NaradBitRange
{
	uint16		first;			/* within the chunk, both inclusive */
	uint16		last;
} NaradBitRange;

/* A message that was handed out before and is not settled. */
typedef struct NaradDeliveries
{
	NaradOffset offset;
	uint32		deliveries;
	uint32		reserved;
} NaradDeliveries;

typedef struct NaradJournalEntry
{
	uint64		xid;			/* FullTransactionId */
	uint32		generation;
	uint32		nranges;
	NaradRange	ranges[FLEXIBLE_ARRAY_MEMBER];
} NaradJournalEntry;

#define ENTRY_SIZE(nranges) \
	(offsetof(NaradJournalEntry, ranges) + (nranges) * sizeof(NaradRange))

#define STATE_SPACE \
	(BLCKSZ - SizeOfPageHeaderData - sizeof(NaradPageSpecialHead))
#define CHAIN_SPACE		(STATE_SPACE - sizeof(NaradStateChain))
/* Larger images go to a chain, to leave room for the journal. */
#define INLINE_LIMIT	4096

/* More ranges than this and a bitmap is smaller. */
#define RANGES_LIMIT	(NARAD_CHUNK_BYTES / sizeof(NaradBitRange) - 1)

#define PageStateHead(page) ((NaradStateHead *) PageGetContents((Page) (page)))
#define PageStateChain(page) \
	((NaradStateChain *) PageGetContents((Page) (page)))

/* Journal entries of a page: from here to pd_lower. */
#define HEAD_JOURNAL_START(head) \
	(sizeof(NaradStateHead) + \
	 ((head)->chain_in_use == 0 ? MAXALIGN((head)->image_len) : 0))

typedef enum StatePageKind
{
	STATE_OURS,
	STATE_EMPTY,				/* never written, or an older group's */
	STATE_GONE,					/* a newer group's: ours was dropped */
	STATE_BAD					/* damaged, or no state page of this place */
} StatePageKind;

/* Whose pages. */
typedef struct StateOwner
{
	NaradTopicId topic_id;
	NaradGroupId group_id;
	uint32		partition;
} StateOwner;

/* ----------------------------------------------------------------
 *		Images
 * ----------------------------------------------------------------
 */

/* Appends to a buffer, or counts only if there is none. */
typedef struct ImageWriter
{
	char	   *data;
	Size		len;
} ImageWriter;

static void
put_bytes(ImageWriter *writer, const void *bytes, Size len)
{
	if (writer->data != NULL)
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
 * The ranges of a chunk at or above `from`; returns how many, and puts them
 * if asked to.
 */
static uint32
chunk_ranges(ImageWriter *writer, const NaradSet *set, NaradOffset from,
			 NaradOffset end, bool put)
{
	NaradOffset at = NaradSetNextMember(set, from);
	uint32		nranges = 0;

	while (at < end)			/* NARAD_INVALID_OFFSET is not */
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
		put_item(writer, IMAGE_RANGES, nranges, chunk->chunk);
		(void) chunk_ranges(writer, set, first, end, true);
		return;
	}
	put_item(writer, IMAGE_BITMAP, 0, chunk->chunk);
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
	if (lease->state == NARAD_LEASE_RETURNED ||
		lease->state == NARAD_LEASE_DELAYED)
		return lease->deliveries >= 1;
	return lease->deliveries >= 2;
}

static void
put_deliveries(ImageWriter *writer, const NaradLeaseTable *leases)
{
	NaradLease *lease = NULL;
	uint32		ncounts = 0;
	uint32		nput = 0;

	while ((lease = NaradLeaseNext(leases, lease)) != NULL)
		ncounts += was_delivered_before(lease);
	while ((lease = NaradLeaseNext(leases, lease)) != NULL)
	{
		NaradDeliveries one = {lease->offset, lease->deliveries, 0};

		if (!was_delivered_before(lease))
			continue;
		if (nput % PG_UINT16_MAX == 0)
			put_item(writer, IMAGE_DELIVERIES,
					 Min(ncounts - nput, PG_UINT16_MAX), 0);
		put_bytes(writer, &one, sizeof(one));
		nput++;
	}
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
			put_item(writer, IMAGE_FULL, 0, chunk->chunk);
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
	uint64		changes;
	bool		dropped;
} StateSnapshot;

/* Memory is got without the shard lock; again if the image grew meanwhile. */
static void
take_snapshot(NaradShard *shard, StateSnapshot *snapshot)
{
	Size		size = 1024;
	ImageWriter writer;

	for (;;)
	{
		snapshot->image = palloc_extended(size, MCXT_ALLOC_HUGE);
		LWLockAcquire(&shard->lock, LW_SHARED);
		writer.data = NULL;
		writer.len = 0;
		put_image(&writer, shard);
		if (writer.len <= size)
			break;
		LWLockRelease(&shard->lock);
		pfree(snapshot->image);
		size = writer.len + writer.len / 4;
	}
	writer.data = snapshot->image;
	writer.len = 0;
	put_image(&writer, shard);
	snapshot->image_len = writer.len;
	snapshot->frontier = shard->frontier;
	snapshot->generation = shard->generation;
	snapshot->changes = shard->changes;
	snapshot->dropped = shard->dropped;
	LWLockRelease(&shard->lock);
}

/* ----------------------------------------------------------------
 *		Pages
 * ----------------------------------------------------------------
 */

static void
get_owner(const NaradShard *shard, StateOwner *owner)
{
	owner->topic_id = shard->topic->topic_id;
	owner->group_id = shard->group->group_id;
	owner->partition = shard->partition;
}

/* A page of kind STATE of this topic and partition? */
static bool
is_state_page(const char *page, const StateOwner *owner)
{
	const NaradPageSpecialHead *special;
	PageHeader	header = (PageHeader) page;

	if (PageIsNew((Page) page) ||
		header->pd_special != BLCKSZ - sizeof(NaradPageSpecialHead) ||
		header->pd_lower < SizeOfPageHeaderData ||
		header->pd_lower > header->pd_special)
		return false;
	special = (const NaradPageSpecialHead *) (page + header->pd_special);
	return special->topic_id == owner->topic_id &&
		special->kind == NARAD_PAGE_STATE &&
		special->partition == owner->partition;
}

/* What a head page is to us. */
static StatePageKind
classify_head(const char *page, const StateOwner *owner)
{
	const NaradStateHead *head = PageStateHead(page);
	Size		used;

	if (PageIsNew((Page) page))
		return STATE_EMPTY;
	if (!is_state_page(page, owner))
		return STATE_BAD;
	used = ((PageHeader) page)->pd_lower - SizeOfPageHeaderData;
	if (used == 0)
		return STATE_EMPTY;
	if (used < sizeof(NaradStateHead) ||
		head->version != NARAD_STATE_VERSION ||
		head->partition != owner->partition || head->chain_in_use > 2 ||
		(head->chain_in_use == 0 && head->image_len > STATE_SPACE) ||
		HEAD_JOURNAL_START(head) > used)
		return STATE_BAD;
	if (head->group_id < owner->group_id)
		return STATE_EMPTY;
	return head->group_id == owner->group_id ? STATE_OURS : STATE_GONE;
}

/* A well-formed chain page of ours? */
static bool
is_our_chain(const char *page, const StateOwner *owner)
{
	const NaradStateChain *chain = PageStateChain(page);

	return is_state_page(page, owner) &&
		chain->group_id == owner->group_id &&
		chain->partition == owner->partition &&
		chain->len <= CHAIN_SPACE &&
		((PageHeader) page)->pd_lower ==
		SizeOfPageHeaderData + sizeof(NaradStateChain) + chain->len;
}

/* Copies a chained page; false unless it is one of ours. */
static bool
copy_chain(Relation rel, BlockNumber block, const StateOwner *owner,
		   char *copy)
{
	return block < RelationGetNumberOfBlocks(rel) &&
		NaradPageCopyChecked(rel, block, copy) && is_our_chain(copy, owner);
}

/* Reads a head page and says what it is. */
static StatePageKind
copy_head(Relation rel, BlockNumber block, const StateOwner *owner,
		  char *copy)
{
	if (!NaradPageCopyChecked(rel, block, copy))
		return STATE_BAD;
	return classify_head(copy, owner);
}

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
write_chain(Relation rel, BlockNumber block, const StateOwner *owner,
			char *image)
{
	NaradPageUpdate update;
	XLogRecPtr	lsn;

	update.buffer = lock_page(rel, block);
	update.image = image;
	update.init = !is_state_page(BufferGetPage(update.buffer), owner);
	lsn = NaradPagesUpdate(rel, &update, 1);
	UnlockReleaseBuffer(update.buffer);
	return lsn;
}

static void
init_chain(char *image, const StateOwner *owner, uint64 serial,
		   const char *data, uint32 len, BlockNumber next)
{
	NaradStateChain *chain = PageStateChain(image);

	NaradMetaImageInit(image, owner->topic_id, NARAD_PAGE_STATE,
					   owner->partition);
	chain->next = next;
	chain->group_id = owner->group_id;
	chain->partition = owner->partition;
	chain->len = len;
	chain->serial = serial;
	memcpy(chain + 1, data, len);
	set_used(image, sizeof(NaradStateChain) + len);
}

/* ----------------------------------------------------------------
 *		Loading
 * ----------------------------------------------------------------
 */

static uint32
crc_of(const char *image, Size len)
{
	pg_crc32c	crc;

	INIT_CRC32C(crc);
	COMP_CRC32C(crc, image, len);
	FIN_CRC32C(crc);
	return crc;
}

/* The image a head page speaks of, palloc'ed; NULL if it is damaged. */
static char *
read_image(Relation rel, const char *page, const StateOwner *owner)
{
	const NaradStateHead *head = PageStateHead(page);
	char	   *image = palloc_extended(Max(head->image_len, 1),
										MCXT_ALLOC_HUGE);
	PGAlignedBlock copy;
	BlockNumber block;
	Size		len = 0;

	if (head->chain_in_use == 0)
	{
		memcpy(image, head + 1, head->image_len);
		len = head->image_len;
	}
	else
	{
		for (block = head->chains[head->chain_in_use - 1];
			 block != 0 && len < head->image_len;
			 block = PageStateChain(copy.data)->next)
		{
			NaradStateChain *chain = PageStateChain(copy.data);

			if (!copy_chain(rel, block, owner, copy.data) ||
				chain->serial != head->serial ||
				chain->len > head->image_len - len || chain->len == 0)
				break;
			memcpy(image + len, chain + 1, chain->len);
			len += chain->len;
		}
	}
	if (len == head->image_len && crc_of(image, len) == head->image_crc)
		return image;
	pfree(image);
	return NULL;
}

/* Adds first..last to a shard that is being loaded. */
static void
load_range(NaradShard *shard, NaradOffset first, NaradOffset last)
{
	if (last < shard->frontier || first > last || last > NARAD_MAX_OFFSET)
		return;
	if (!NaradSetAddRange(&shard->settled, Max(first, shard->frontier), last))
		NaradReportOutOfMemory("settled offsets");
}

static void
load_bitmap(NaradShard *shard, NaradOffset base, const char *data)
{
	uint64		bits[NARAD_CHUNK_BYTES / sizeof(uint64)];
	uint32		first;
	uint32		end;

#define BIT_IS_SET(i) ((bits[(i) / 64] >> ((i) % 64)) & 1)

	memcpy(bits, data, NARAD_CHUNK_BYTES);
	for (first = 0; first < NARAD_CHUNK_SIZE; first = end + 1)
	{
		for (end = first; end < NARAD_CHUNK_SIZE && BIT_IS_SET(end); end++)
			 /* to the range's end */ ;
		if (end > first)
			load_range(shard, base + first, base + end - 1);
	}
}

static void
load_ranges(NaradShard *shard, NaradOffset base, const char *data,
			uint16 count)
{
	uint16		i;

	for (i = 0; i < count; i++)
	{
		NaradBitRange range;

		memcpy(&range, data + i * sizeof(range), sizeof(range));
		load_range(shard, base + range.first, base + range.last);
	}
}

/* A message that comes back: an entry among the returned ones. */
static bool
load_returned(NaradShard *shard, const NaradDeliveries *one)
{
	NaradLease *lease;

	if (one->offset < shard->frontier || one->offset > NARAD_MAX_OFFSET ||
		NaradSetContains(&shard->settled, one->offset) ||
		NaradLeaseFind(&shard->leases, one->offset) != NULL)
		return true;
	if (!NaradShardReserve(shard, one->offset))
		return false;
	lease = NaradLeaseInsert(&shard->leases, one->offset);
	if (lease == NULL)
		return false;
	lease->deliveries = one->deliveries;
	NaradLeaseSetState(&shard->leases, lease, NARAD_LEASE_RETURNED);
	NaradShardCountHole(shard, lease);
	shard->scan_pos = Max(shard->scan_pos, one->offset + 1);
	return true;
}

/* Bytes that follow an item. */
static Size
item_payload(const NaradImageItem *item)
{
	switch (item->kind)
	{
		case IMAGE_FULL:
			return sizeof(uint64);
		case IMAGE_RANGES:
			return item->count * sizeof(NaradBitRange);
		case IMAGE_BITMAP:
			return NARAD_CHUNK_BYTES;
		case IMAGE_DELIVERIES:
			return item->count * sizeof(NaradDeliveries);
	}
	return MaxAllocHugeSize;	/* unknown: the image ends here */
}

static void
load_item(NaradShard *shard, const NaradImageItem *item, const char *data)
{
	NaradOffset base = item->chunk << NARAD_CHUNK_BITS;
	uint64		nchunks;

	switch (item->kind)
	{
		case IMAGE_FULL:
			memcpy(&nchunks, data, sizeof(nchunks));
			load_range(shard, base,
					   base + (nchunks << NARAD_CHUNK_BITS) - 1);
			break;
		case IMAGE_RANGES:
			load_ranges(shard, base, data, item->count);
			break;
		case IMAGE_BITMAP:
			load_bitmap(shard, base, data);
			break;
		default:
			break;
	}
}

/*
 * Goes through an image: what is settled, or (deliveries) what comes back.
 * False if memory ran out for the latter.
 */
static bool
load_image(NaradShard *shard, const char *image, Size len, bool deliveries)
{
	Size		at = 0;
	uint16		i;

	while (len - at >= sizeof(NaradImageItem))
	{
		NaradImageItem item;

		memcpy(&item, image + at, sizeof(item));
		at += sizeof(item);
		if (item_payload(&item) > len - at)
			break;
		if (!deliveries)
			load_item(shard, &item, image + at);
		for (i = 0; deliveries && item.kind == IMAGE_DELIVERIES &&
			 i < item.count; i++)
		{
			NaradDeliveries one;

			memcpy(&one, image + at + i * sizeof(one), sizeof(one));
			if (!load_returned(shard, &one))
				return false;
		}
		at += item_payload(&item);
	}
	return true;
}

/*
 * What lies below scan_pos and is neither settled nor returned was leased, or
 * passed over, before the restart: it waits in `pending`, to be looked at.
 */
static bool
load_pending(NaradShard *shard)
{
	NaradOffset at = NaradSetNextGap(&shard->settled, shard->frontier);
	NaradLease *lease = NULL;

	while (at < shard->scan_pos)
	{
		NaradOffset end = Min(NaradSetNextMember(&shard->settled, at),
							  shard->scan_pos);

		if (!NaradSetAddRange(&shard->pending, at, end - 1))
			return false;
		at = NaradSetNextGap(&shard->settled, end);
	}
	while ((lease = NaradLeaseNext(&shard->leases, lease)) != NULL)
		(void) NaradSetRemove(&shard->pending, lease->offset);
	if (shard->pending.nmembers > 0)
	{
		shard->rechecks[0].first = shard->frontier;
		shard->rechecks[0].last = shard->scan_pos - 1;
		shard->nrechecks = 1;
	}
	return true;
}

/* The next entry of a journal, or NULL; *at moves on. */
static const NaradJournalEntry *
next_entry(const char *page, Size *at)
{
	Size		end = ((PageHeader) page)->pd_lower - SizeOfPageHeaderData;
	const NaradJournalEntry *entry;

	if (*at > end || end - *at < ENTRY_SIZE(0))
		return NULL;
	entry = (const NaradJournalEntry *) (PageGetContents((Page) page) + *at);
	if (entry->nranges > (end - *at - ENTRY_SIZE(0)) / sizeof(NaradRange))
		return NULL;
	*at += ENTRY_SIZE(entry->nranges);
	return entry;
}

typedef enum EntryFate
{
	ENTRY_OPEN,
	ENTRY_COMMITTED,
	ENTRY_VOID
} EntryFate;

/* In progress is asked first: who is not, has his end in the commit log. */
static EntryFate
entry_fate(const NaradJournalEntry *entry, uint32 generation)
{
	TransactionId xid = (TransactionId) entry->xid;

	if (entry->generation != generation)
		return ENTRY_VOID;
	if (TransactionIdIsInProgress(xid))
		return ENTRY_OPEN;
	return TransactionIdDidCommit(xid) ? ENTRY_COMMITTED : ENTRY_VOID;
}

/* Settles what the entries of one page say, if they count. */
static void
load_journal_page(NaradShard *shard, const char *page, Size start,
				  uint32 generation)
{
	const NaradJournalEntry *entry;
	uint32		i;

	while ((entry = next_entry(page, &start)) != NULL)
	{
		if (entry_fate(entry, generation) != ENTRY_COMMITTED)
			continue;
		for (i = 0; i < entry->nranges; i++)
			load_range(shard, entry->ranges[i].first, entry->ranges[i].last);
	}
}

static void
load_journal(Relation rel, NaradShard *shard, const char *page,
			 const StateOwner *owner)
{
	const NaradStateHead *head = PageStateHead(page);
	PGAlignedBlock copy;
	BlockNumber block;

	load_journal_page(shard, page, HEAD_JOURNAL_START(head),
					  head->generation);
	for (block = head->journal; block != 0;
		 block = PageStateChain(copy.data)->next)
	{
		if (!copy_chain(rel, block, owner, copy.data))
		{
			ereport(WARNING,
					(errcode(ERRCODE_DATA_CORRUPTED),
					 errmsg("acknowledgements of group \"%s\" in partition %d of topic \"%s\" are damaged in block %u",
							shard->group->name, shard->partition,
							RelationGetRelationName(rel), block),
					 errdetail("Messages may be delivered again.")));
			break;
		}
		load_journal_page(shard, copy.data, sizeof(NaradStateChain),
						  head->generation);
	}
}

/* A page that is ours: frontier, what is settled above, what comes back. */
static void
load_page(Relation rel, NaradShard *shard, const char *page,
		  const StateOwner *owner)
{
	const NaradStateHead *head = PageStateHead(page);
	char	   *image = read_image(rel, page, owner);

	shard->frontier = Max(shard->frontier, head->frontier);
	shard->generation = head->generation;
	if (image != NULL)
		(void) load_image(shard, image, head->image_len, false);
	else
		ereport(WARNING,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("state of group \"%s\" in partition %d of topic \"%s\" is damaged",
						shard->group->name, shard->partition,
						RelationGetRelationName(rel)),
				 errdetail("Messages after offset %lld are delivered again.",
						   (long long) head->frontier - 1)));
	load_journal(rel, shard, page, owner);

	/* NARAD_INVALID_OFFSET + 1 is 0. */
	shard->frontier = NaradSetNextGap(&shard->settled, shard->frontier);
	shard->settled_end = Max(NaradSetMax(&shard->settled) + 1,
							 shard->frontier);
	NaradSetTrim(&shard->settled, shard->frontier);
	shard->scan_pos = shard->frontier;
	if (image != NULL &&
		(!load_image(shard, image, head->image_len, true) ||
		 !load_pending(shard)))
	{
		/* Short of memory: counts are lost, messages are not. */
		NaradLeaseTableClear(&shard->leases);
		NaradSetClear(&shard->pending);
		shard->nholes = 0;
		shard->nrechecks = 0;
		shard->scan_pos = shard->frontier;
	}
	if (image != NULL)
		pfree(image);
}

/* The earliest offset the partition has. */
static void
start_at_earliest(NaradShard *shard, NaradOffset earliest)
{
	NaradSetClear(&shard->settled);
	NaradSetClear(&shard->pending);
	NaradLeaseTableClear(&shard->leases);
	shard->nholes = 0;
	shard->nrechecks = 0;
	shard->frontier = earliest;
	shard->settled_end = earliest;
	shard->scan_pos = earliest;
}

/*
 * NaradStateLoad
 *
 * Fills a new shard that nobody else sees yet: from its state page, or at the
 * earliest record if there is none, or if it is damaged or belongs to another
 * log.  The caller has the relation locked, and holds no narad lock.  ERROR
 * 53200 when memory is short.
 */
void
NaradStateLoad(Relation rel, NaradRelInfo *info, NaradShard *shard)
{
	NaradLogPartition *part = &info->shared->partitions[shard->partition];
	NaradOffset earliest = pg_atomic_read_u64(&part->start_offset);
	PGAlignedBlock copy;
	BlockNumber block;
	StateOwner	owner;
	StatePageKind kind = STATE_EMPTY;

	get_owner(shard, &owner);
	start_at_earliest(shard, earliest);
	block = NaradStateBlock(rel, info, shard->group->name, owner.group_id,
							shard->partition, false);
	if (block != InvalidBlockNumber)
		kind = copy_head(rel, block, &owner, copy.data);
	if (kind == STATE_OURS)
		load_page(rel, shard, copy.data, &owner);
	else if (kind == STATE_BAD)
		ereport(WARNING,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("state page of group \"%s\" in partition %d of topic \"%s\" is damaged",
						shard->group->name, shard->partition,
						RelationGetRelationName(rel)),
				 errdetail("The group starts at the earliest message of the partition.")));

	/* The end only grows, so reading it last is right. */
	if (shard->frontier > pg_atomic_read_u64(&part->end_offset))
	{
		ereport(LOG,
				(errmsg("frontier of group \"%s\" in partition %d of topic \"%s\" lies beyond the partition's end",
						shard->group->name, shard->partition,
						RelationGetRelationName(rel)),
				 errdetail("The group starts at the earliest message of the partition.")));
		start_at_earliest(shard, earliest);

		/* The page may go back only in a new generation (I6). */
		shard->generation++;
	}
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
	char		kept[STATE_SPACE];	/* entries that stay on the head page */
	Size		kept_len;
	List	   *pages;			/* of FoldedPage: chained journal pages */
} Fold;

/*
 * Settles an entry of a committed transaction in memory.  Its offsets are
 * pinned leases of that transaction, which has not come to its commit
 * callback yet, or settled already.  False if one of them is neither, and
 * there is no memory for it.  Shard lock held exclusively.
 */
static bool
settle_entry(NaradShard *shard, const NaradJournalEntry *entry)
{
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
		}
	}
	return true;
}

/* May the entry leave its page, once memory is written? */
static bool
entry_has_ended(Fold *fold, const NaradJournalEntry *entry)
{
	EntryFate	fate = entry_fate(entry, fold->generation);
	bool		settled = false;

	if (fate != ENTRY_COMMITTED)
		return fate == ENTRY_VOID;
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

	while ((entry = next_entry(page, &start)) != NULL)
	{
		if (entry_has_ended(fold, entry))
			continue;
		memcpy(kept + kept_len, entry, ENTRY_SIZE(entry->nranges));
		kept_len += ENTRY_SIZE(entry->nranges);
	}
	return kept_len;
}

static void
fold_chained_page(Fold *fold, BlockNumber block, const char *copy,
				  const StateOwner *owner)
{
	const NaradStateChain *chain = PageStateChain(copy);
	FoldedPage *folded = palloc(sizeof(FoldedPage));
	char		kept[CHAIN_SPACE];
	Size		kept_len;

	kept_len = fold_entries(fold, copy, sizeof(NaradStateChain), kept);
	folded->block = block;
	folded->changed = kept_len != chain->len;
	init_chain(folded->page.data, owner, 0, kept, kept_len, chain->next);
	fold->pages = lappend(fold->pages, folded);
}

/*
 * Settles in memory what committed transactions have journalled, and prepares
 * what the pages look like without the entries that ended.
 */
static void
fold_journal(Relation rel, Fold *fold, const char *head_page,
			 const StateOwner *owner)
{
	const NaradStateHead *head = PageStateHead(head_page);
	PGAlignedBlock copy;
	BlockNumber block;

	/* Entries of another generation are void, whatever the page's own is. */
	LWLockAcquire(&fold->shard->lock, LW_SHARED);
	fold->generation = fold->shard->generation;
	LWLockRelease(&fold->shard->lock);
	fold->kept_len = fold_entries(fold, head_page, HEAD_JOURNAL_START(head),
								  fold->kept);
	for (block = head->journal; block != 0;
		 block = PageStateChain(copy.data)->next)
	{
		/* A damaged page was told of when it was loaded; it is left. */
		if (!copy_chain(rel, block, owner, copy.data))
			break;
		fold_chained_page(fold, block, copy.data, owner);
	}
}

/* The image is on disk: entries that are in it leave the other pages. */
static void
write_folded_pages(Relation rel, Fold *fold, const StateOwner *owner)
{
	ListCell   *cell;

	foreach(cell, fold->pages)
	{
		FoldedPage *folded = lfirst(cell);

		if (folded->changed)
			(void) write_chain(rel, folded->block, owner, folded->page.data);
	}
}

/* ----------------------------------------------------------------
 *		Writing
 * ----------------------------------------------------------------
 */

/* The blocks of a chain, as far as it is sound. */
static List *
chain_blocks(Relation rel, BlockNumber block, const StateOwner *owner)
{
	List	   *blocks = NIL;
	PGAlignedBlock copy;

	while (block != 0 && copy_chain(rel, block, owner, copy.data))
	{
		blocks = lappend_oid(blocks, block);
		block = PageStateChain(copy.data)->next;
	}
	return blocks;
}

/*
 * Writes an image to the chain that is not in use, and turns the head (not
 * yet written) to it.
 */
static void
write_image_chain(Relation rel, NaradRelInfo *info, const StateOwner *owner,
				  NaradStateHead *head, const char *image)
{
	int			use = head->chain_in_use == 1 ? 2 : 1;
	List	   *blocks = chain_blocks(rel, head->chains[use - 1], owner);
	uint32		left = head->image_len;
	PGAlignedBlock page;
	int			npages = (left + CHAIN_SPACE - 1) / CHAIN_SPACE;
	int			i;

	while (list_length(blocks) < npages)
		blocks = lappend_oid(blocks,
							 NaradMetaPageAllocate(rel, info->shared));
	head->serial++;
	for (i = 0; i < npages; i++)
	{
		uint32		len = Min(left, CHAIN_SPACE);
		BlockNumber next = i + 1 < list_length(blocks) ?
			list_nth_oid(blocks, i + 1) : 0;

		init_chain(page.data, owner, head->serial, image, len, next);
		(void) write_chain(rel, list_nth_oid(blocks, i), owner, page.data);
		image += len;
		left -= len;
	}
	head->chains[use - 1] = linitial_oid(blocks);
	head->chain_in_use = use;
	list_free(blocks);
}

/*
 * Replaces the head page, unless it is no longer what it was: then our group
 * was dropped, and false.
 */
static bool
replace_head(Relation rel, BlockNumber block, const StateOwner *owner,
			 StatePageKind was, char *image, XLogRecPtr *lsn)
{
	NaradPageUpdate update;
	StatePageKind is;
	bool		same;

	update.buffer = lock_page(rel, block);
	update.image = image;
	is = classify_head(BufferGetPage(update.buffer), owner);
	update.init = is != STATE_OURS;

	/* A damaged page was read as zeros now. */
	same = is == was || (was == STATE_BAD && is == STATE_EMPTY);
	if (same)
		*lsn = NaradPagesUpdate(rel, &update, 1);
	UnlockReleaseBuffer(update.buffer);
	return same;
}

/* Fills a head page from what memory and the old page say. */
static void
build_head(Relation rel, NaradRelInfo *info, const StateOwner *owner,
		   const StateSnapshot *snapshot, const NaradStateHead *old,
		   const Fold *fold, char *image)
{
	NaradStateHead *head = PageStateHead(image);
	Size		used;

	NaradMetaImageInit(image, owner->topic_id, NARAD_PAGE_STATE,
					   owner->partition);
	if (old != NULL)
		*head = *old;
	else
		memset(head, 0, sizeof(NaradStateHead));
	head->version = NARAD_STATE_VERSION;
	head->group_id = owner->group_id;
	head->partition = owner->partition;
	head->generation = snapshot->generation;
	head->frontier = snapshot->frontier;
	head->image_len = snapshot->image_len;
	head->image_crc = crc_of(snapshot->image, snapshot->image_len);
	if (snapshot->image_len <= INLINE_LIMIT &&
		sizeof(NaradStateHead) + MAXALIGN(snapshot->image_len) +
		fold->kept_len <= STATE_SPACE)
	{
		head->chain_in_use = 0;
		memset((char *) (head + 1), 0, MAXALIGN(snapshot->image_len));
		memcpy(head + 1, snapshot->image, snapshot->image_len);
	}
	else
		write_image_chain(rel, info, owner, head, snapshot->image);

	used = HEAD_JOURNAL_START(head);
	memcpy((char *) head + used, fold->kept, fold->kept_len);
	set_used(image, used + fold->kept_len);
}

/* The page has what memory had when the snapshot was taken. */
static void
finish_write(NaradShard *shard, const StateSnapshot *snapshot)
{
	LWLockAcquire(&shard->lock, LW_EXCLUSIVE);
	shard->changes_written = snapshot->changes;
	if (shard->changes == snapshot->changes)
		NaradDirtyClear(shard);
	else
		shard->dirty_since = NaradClockNow();
	LWLockRelease(&shard->lock);
}

/* The head page's block, made if need be; io_lock held. */
static BlockNumber
find_head_block(Relation rel, NaradRelInfo *info, NaradShard *shard)
{
	if (shard->head_block == InvalidBlockNumber)
		shard->head_block = NaradStateBlock(rel, info, shard->group->name,
											shard->group->group_id,
											shard->partition, true);
	return shard->head_block;
}

/*
 * Writes memory to the page, folding the journal.  io_lock is held.  False if
 * the group was dropped.
 */
static bool
write_state(Relation rel, NaradRelInfo *info, NaradShard *shard,
			XLogRecPtr *lsn)
{
	PGAlignedBlock old;
	PGAlignedBlock image;
	Fold	   *fold;
	StateSnapshot snapshot;
	StateOwner	owner;
	StatePageKind was;
	BlockNumber block = find_head_block(rel, info, shard);
	bool		written;

	get_owner(shard, &owner);
	if (block == InvalidBlockNumber)
		return false;
	was = copy_head(rel, block, &owner, old.data);
	if (was == STATE_GONE)
		return false;

	fold = palloc0(sizeof(Fold));
	fold->shard = shard;
	if (was == STATE_OURS)
		fold_journal(rel, fold, old.data, &owner);
	take_snapshot(shard, &snapshot);
	written = false;
	if (!snapshot.dropped)
	{
		Assert(was != STATE_OURS ||
			   PageStateHead(old.data)->generation != snapshot.generation ||
			   PageStateHead(old.data)->frontier <= snapshot.frontier);
		build_head(rel, info, &owner, &snapshot,
				   was == STATE_OURS ? PageStateHead(old.data) : NULL, fold,
				   image.data);
		written = replace_head(rel, block, &owner, was, image.data, lsn);
	}
	if (written)
	{
		write_folded_pages(rel, fold, &owner);
		finish_write(shard, &snapshot);
	}
	list_free_deep(fold->pages);
	pfree(fold);
	pfree(snapshot.image);
	return written;
}

/*
 * NaradStateWrite
 *
 * Makes the page as new as memory, if the shard is dirty.  The caller holds
 * RowExclusiveLock on the topic and no narad lock.  Returns the position up
 * to which WAL has to be flushed for it to be durable (InvalidXLogRecPtr:
 * nothing was logged).  May error on I/O or for lack of space; the shard is
 * then still dirty.
 */
XLogRecPtr
NaradStateWrite(Relation rel, NaradRelInfo *info, NaradShard *shard)
{
	XLogRecPtr	lsn = InvalidXLogRecPtr;
	bool		is_dirty;

	LWLockAcquire(&shard->io_lock, LW_EXCLUSIVE);
	LWLockAcquire(&shard->lock, LW_SHARED);
	is_dirty = shard->is_dirty && !shard->dropped;
	LWLockRelease(&shard->lock);
	if (is_dirty)
		(void) write_state(rel, info, shard, &lsn);
	if (!XLogRecPtrIsInvalid(lsn))
		shard->written_lsn = lsn;
	LWLockRelease(&shard->io_lock);
	return lsn;
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

/* Puts as much on a page's image as there is room for. */
static void
put_entry(JournalTask *task, char *image)
{
	PageHeader	header = (PageHeader) image;
	Size		room = header->pd_special - header->pd_lower;
	NaradJournalEntry *entry = (NaradJournalEntry *) (image + header->pd_lower);
	int			nranges;

	if (room < ENTRY_SIZE(1))
		return;
	nranges = Min((Size) task->nranges,
				  (room - ENTRY_SIZE(0)) / sizeof(NaradRange));
	entry->xid = task->xid;
	entry->generation = task->generation;
	entry->nranges = nranges;
	memcpy(entry->ranges, task->ranges, nranges * sizeof(NaradRange));
	header->pd_lower += ENTRY_SIZE(nranges);
	task->ranges += nranges;
	task->nranges -= nranges;
}

/* Puts entries on the head page; false if that is no longer ours. */
static bool
journal_on_head(Relation rel, BlockNumber block, const StateOwner *owner,
				JournalTask *task, BlockNumber *journal)
{
	PGAlignedBlock image;
	NaradPageUpdate update;
	bool		is_ours;

	update.buffer = lock_page(rel, block);
	update.image = image.data;
	update.init = false;
	memcpy(image.data, BufferGetPage(update.buffer), BLCKSZ);
	is_ours = classify_head(image.data, owner) == STATE_OURS;
	if (is_ours)
	{
		*journal = PageStateHead(image.data)->journal;
		put_entry(task, image.data);
		(void) NaradPagesUpdate(rel, &update, 1);
	}
	UnlockReleaseBuffer(update.buffer);
	return is_ours;
}

/* Puts entries on a journal page that exists; its image is given. */
static void
journal_on_chained(Relation rel, BlockNumber block, const StateOwner *owner,
				   JournalTask *task, char *image)
{
	put_entry(task, image);
	PageStateChain(image)->len = ((PageHeader) image)->pd_lower -
		SizeOfPageHeaderData - sizeof(NaradStateChain);
	(void) write_chain(rel, block, owner, image);
}

/*
 * Puts entries on a new journal page, which becomes the first: the head page
 * comes to point to it in the same record.
 */
static bool
journal_on_new(Relation rel, NaradRelInfo *info, BlockNumber head_block,
			   const StateOwner *owner, JournalTask *task)
{
	PGAlignedBlock images[2];
	NaradPageUpdate updates[2];
	BlockNumber block = NaradMetaPageAllocate(rel, info->shared);
	bool		is_ours;

	updates[0].buffer = lock_page(rel, head_block);
	updates[0].image = images[0].data;
	updates[0].init = false;
	memcpy(images[0].data, BufferGetPage(updates[0].buffer), BLCKSZ);
	is_ours = classify_head(images[0].data, owner) == STATE_OURS;
	if (is_ours)
	{
		updates[1].buffer = lock_page(rel, block);
		updates[1].image = images[1].data;
		updates[1].init = true;
		init_chain(images[1].data, owner, 0, NULL, 0,
				   PageStateHead(images[0].data)->journal);
		put_entry(task, images[1].data);
		PageStateChain(images[1].data)->len =
			((PageHeader) images[1].data)->pd_lower -
			SizeOfPageHeaderData - sizeof(NaradStateChain);
		PageStateHead(images[0].data)->journal = block;
		(void) NaradPagesUpdate(rel, updates, 2);
		UnlockReleaseBuffer(updates[1].buffer);
	}
	UnlockReleaseBuffer(updates[0].buffer);
	return is_ours;
}

/* Puts all entries where there is room.  io_lock is held. */
static void
journal_entries(Relation rel, NaradRelInfo *info, BlockNumber head_block,
				const StateOwner *owner, JournalTask *task)
{
	PGAlignedBlock copy;
	BlockNumber block;

	if (!journal_on_head(rel, head_block, owner, task, &block))
		return;
	while (task->nranges > 0 && block != 0 &&
		   copy_chain(rel, block, owner, copy.data))
	{
		BlockNumber next = PageStateChain(copy.data)->next;

		journal_on_chained(rel, block, owner, task, copy.data);
		block = next;
	}
	while (task->nranges > 0)
	{
		if (!journal_on_new(rel, info, head_block, owner, task))
			return;
	}
}

/*
 * Can the head page take the entries as it is?  If not it is written first,
 * which makes a page out of none, drops entries that ended, and brings its
 * generation up to date.
 */
static bool
head_is_ready(Relation rel, BlockNumber block, const StateOwner *owner,
			  const JournalTask *task)
{
	PGAlignedBlock copy;
	PageHeader	header = (PageHeader) copy.data;

	return copy_head(rel, block, owner, copy.data) == STATE_OURS &&
		PageStateHead(copy.data)->generation == task->generation &&
		header->pd_special - header->pd_lower >= ENTRY_SIZE(task->nranges);
}

/*
 * NaradStateJournal
 *
 * Writes down that these offsets of a shard are settled if the current top
 * transaction, which has an id, commits (I5).  Before its commit record;
 * RowExclusiveLock is held, no narad lock.  May error: the transaction then
 * aborts, and the entries are void with it.  Nothing if the group was
 * dropped.
 */
void
NaradStateJournal(Relation rel, NaradRelInfo *info, NaradShard *shard,
				  const NaradRange *ranges, int nranges)
{
	JournalTask task;
	StateOwner	owner;
	BlockNumber block;
	XLogRecPtr	lsn = InvalidXLogRecPtr;
	bool		dropped;

	get_owner(shard, &owner);
	task.xid = U64FromFullTransactionId(GetTopFullTransactionId());
	task.ranges = ranges;
	task.nranges = nranges;

	LWLockAcquire(&shard->io_lock, LW_EXCLUSIVE);
	LWLockAcquire(&shard->lock, LW_SHARED);
	dropped = shard->dropped;
	task.generation = shard->generation;
	LWLockRelease(&shard->lock);
	block = dropped ? InvalidBlockNumber : find_head_block(rel, info, shard);
	if (block != InvalidBlockNumber &&
		(head_is_ready(rel, block, &owner, &task) ||
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
 * group was just made and nobody else has found it; the caller holds the
 * topic lock, and has a transaction id, so that its commit flushes.
 */
void
NaradStateStartAt(Relation rel, NaradRelInfo *info,
				  const NaradGroupEntry *group, int partition,
				  NaradOffset frontier)
{
	StateOwner	owner = {info->topic_id, group->group_id, partition};
	StateSnapshot snapshot = {0};
	Fold	   *fold = palloc0(sizeof(Fold));
	PGAlignedBlock old;
	PGAlignedBlock image;
	BlockNumber block;
	StatePageKind was;
	XLogRecPtr	lsn;

	block = NaradStateBlock(rel, info, group->name, group->group_id,
							partition, true);
	if (block == InvalidBlockNumber)
		elog(ERROR, "group \"%s\" was lost while it was made", group->name);
	was = copy_head(rel, block, &owner, old.data);
	snapshot.image = "";
	snapshot.frontier = frontier;
	snapshot.generation = group->generation;
	build_head(rel, info, &owner, &snapshot, NULL, fold, image.data);
	(void) replace_head(rel, block, &owner, was, image.data, &lsn);
	pfree(fold);
}

/*
 * NaradStatePeek
 *
 * The frontier as it is on the page, which may be behind memory; false if
 * there is no page.  Any lock; info need not be attached, and may be NULL
 * during recovery.
 */
bool
NaradStatePeek(Relation rel, NaradRelInfo *info,
			   const NaradGroupEntry *group, int partition,
			   NaradOffset *frontier)
{
	StateOwner	owner;
	PGAlignedBlock copy;
	BlockNumber block;
	NaradMetaData meta;

	if (!NaradMetaRead(rel, &meta))
		return false;
	owner.topic_id = meta.topic_id;
	owner.group_id = group->group_id;
	owner.partition = partition;
	block = NaradStateBlock(rel, info, group->name, group->group_id,
							partition, false);
	if (block == InvalidBlockNumber ||
		copy_head(rel, block, &owner, copy.data) != STATE_OURS)
		return false;
	*frontier = PageStateHead(copy.data)->frontier;
	return true;
}
