/*-------------------------------------------------------------------------
 *
 * queue_page.h
 *	  What is on a state page, and reading one.
 *
 * Only the files queue_state.c (writing), queue_load.c (loading) and
 * queue_freeze.c look into state pages.
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
 * twice does no harm.  Journal pages at the front of the chain that have
 * become empty go to a chain of spare ones.
 *
 * The page of an older, dropped group in our place is as good as empty, but
 * the pages chained to it are ours from then on.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_PAGE_H
#define QUEUE_PAGE_H

#include "log/log_format.h"
#include "queue/queue_shard.h"

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
	NaradOffset handout_mark;	/* what is below may have been handed out; 0
								 * where deliveries are not limited */
	uint64		lost_to_retention;	/* offsets dropped before they were
									 * settled, at most */
	uint64		dead_lettered;	/* messages that were given up */
	BlockNumber spare;			/* first unused journal page, or 0 */
	uint32		suspect_deliveries; /* of the suspect: the one it was out for */
	uint64		suspect;		/* offset + 1 of the suspect that is out, or 0 */
	uint64		reserved;
} NaradStateHead;

StaticAssertDecl(sizeof(NaradStateHead) == 104, "state page head");

/* On disk, at PageGetContents() of the other pages; data follows. */
typedef struct NaradStateChain
{
	BlockNumber next;			/* or 0 */
	NaradGroupId group_id;
	uint32		partition;
	uint32		len;			/* bytes of an image; 0 on journal pages, to
								 * which entries are added */
	uint64		serial;			/* of the image; 0 on journal pages */
} NaradStateChain;

StaticAssertDecl(sizeof(NaradStateChain) == 24, "state chain page");

/* Kinds of items of an image. */
#define NARAD_IMAGE_FULL			1	/* `count` is 0, a uint64 follows: how
										 * many chunks from this one on are
										 * full */
#define NARAD_IMAGE_RANGES		2	/* `count` NaradBitRange follow */
#define NARAD_IMAGE_BITMAP		3	/* NARAD_CHUNK_BYTES follow */
#define NARAD_IMAGE_DELIVERIES	4	/* `count` NaradDeliveries follow */

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
	uint64		xid;			/* FullTransactionId, or NARAD_JOURNAL_* */
	uint32		generation;
	uint32		nranges;
	NaradRange	ranges[FLEXIBLE_ARRAY_MEMBER];
} NaradJournalEntry;

/* In place of an xid that is too old to be asked about; see queue_freeze.c. */
#define NARAD_JOURNAL_VOID		UINT64CONST(0)	/* it aborted */
#define NARAD_JOURNAL_COMMITTED UINT64CONST(2)	/* it committed */

#define NARAD_ENTRY_SIZE(nranges) \
	(offsetof(NaradJournalEntry, ranges) + (nranges) * sizeof(NaradRange))

#define NARAD_STATE_SPACE \
	(BLCKSZ - SizeOfPageHeaderData - sizeof(NaradPageSpecialHead))
#define NARAD_CHAIN_SPACE		(NARAD_STATE_SPACE - sizeof(NaradStateChain))
#define NaradPageStateHead(page) ((NaradStateHead *) PageGetContents((Page) (page)))
#define NaradPageStateChain(page) \
	((NaradStateChain *) PageGetContents((Page) (page)))

/* Journal entries of a page: from here to pd_lower. */
#define NARAD_HEAD_JOURNAL_START(head) \
	(sizeof(NaradStateHead) + \
	 ((head)->chain_in_use == 0 ? MAXALIGN((head)->image_len) : 0))

typedef enum NaradHeadKind
{
	NARAD_HEAD_OURS,
	NARAD_HEAD_EMPTY,			/* never written */
	NARAD_HEAD_OLDER,			/* an older group's, which was dropped */
	NARAD_HEAD_GONE,			/* a newer group's: ours was dropped */
	NARAD_HEAD_BAD				/* damaged, or no state page of this place */
} NaradHeadKind;

/* Whose pages. */
typedef struct NaradStateOwner
{
	NaradTopicId topic_id;
	NaradGroupId group_id;
	uint32		partition;
} NaradStateOwner;

typedef enum NaradEntryFate
{
	NARAD_ENTRY_OPEN,
	NARAD_ENTRY_COMMITTED,
	NARAD_ENTRY_VOID
} NaradEntryFate;

extern void NaradStateOwnerGet(const NaradShard *shard, NaradStateOwner *owner);

/* A page of kind STATE of this topic and partition? */
extern bool NaradStatePageCheck(const char *page, const NaradStateOwner *owner);
extern NaradHeadKind NaradHeadClassify(const char *page,
									   const NaradStateOwner *owner);

/* Reads a head page, and says what it is. */
extern NaradHeadKind NaradStateHeadCopy(Relation rel, BlockNumber block,
										const NaradStateOwner *owner,
										char *copy);

/* Reads a chained page; false unless it is one of ours, or (older) was an
 * older group's. */
extern bool NaradStateChainCopy(Relation rel, BlockNumber block,
								const NaradStateOwner *owner, bool older,
								char *copy);

/* The same of a page that is copied, or locked. */
extern Size NaradStateChainLen(const char *page);
extern bool NaradStateChainCheck(const char *page,
								 const NaradStateOwner *owner, bool older);
extern uint32 NaradImageCrc(const char *image, Size len);

/* The entry at *at of a page's contents, or NULL; *at moves on. */
extern const NaradJournalEntry *NaradJournalNext(const char *page, Size *at);
extern NaradEntryFate NaradJournalFate(const NaradJournalEntry *entry,
									   uint32 generation);

#endif							/* QUEUE_PAGE_H */
