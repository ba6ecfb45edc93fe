/*-------------------------------------------------------------------------
 *
 * queue_page.c
 *	  Reading state pages.
 *
 * Owns:       nothing; says what a page is, and what is on it.
 * Invariants: I12: a page is ours only if topic, partition and group are.  An
 *             older group's page is as good as empty; a newer group's says
 *             that ours was dropped.
 * Locks:      one page's share lock at a time, inside NaradPageCopyChecked.
 * Runs in:    any backend, the worker, and on a standby for views.
 * WAL:        none.
 * On error:   a damaged page is an answer, not an error.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "port/pg_crc32c.h"
#include "storage/bufmgr.h"
#include "storage/procarray.h"
#include "utils/rel.h"

#include "log/log_meta.h"
#include "log/log_status.h"
#include "queue/queue_page.h"

/*
 * NaradStateOwnerGet
 *
 * Whose pages a shard has.
 */
void
NaradStateOwnerGet(const NaradShard *shard, NaradStateOwner *owner)
{
	owner->topic_id = shard->topic->topic_id;
	owner->group_id = shard->group_id;
	owner->partition = shard->partition;
}

/*
 * NaradStatePageCheck
 *
 * A sound page of kind STATE of this topic and partition?  One with
 * another pd_upper is none: with what is written past that it would be damaged.
 */
bool
NaradStatePageCheck(const char *page, const NaradStateOwner *owner)
{
	const NaradPageSpecialHead *special;
	PageHeader	header = (PageHeader) page;

	if (PageIsNew((Page) page) ||
		header->pd_special != BLCKSZ - sizeof(NaradPageSpecialHead) ||
		header->pd_upper != header->pd_special ||
		header->pd_lower < SizeOfPageHeaderData ||
		header->pd_lower > header->pd_upper)
		return false;
	special = (const NaradPageSpecialHead *) (page + header->pd_special);
	return special->topic_id == owner->topic_id &&
		special->kind == NARAD_PAGE_STATE &&
		special->partition == owner->partition;
}

/*
 * NaradHeadClassify
 *
 * What a head page is to us.
 */
NaradHeadKind
NaradHeadClassify(const char *page, const NaradStateOwner *owner)
{
	const NaradStateHead *head = NaradPageStateHead(page);
	Size		used;

	if (PageIsNew((Page) page))
		return NARAD_HEAD_EMPTY;
	if (!NaradStatePageCheck(page, owner))
		return NARAD_HEAD_BAD;
	used = ((PageHeader) page)->pd_lower - SizeOfPageHeaderData;
	if (used == 0)
		return NARAD_HEAD_EMPTY;
	if (used < sizeof(NaradStateHead) ||
		head->version != NARAD_STATE_VERSION ||
		head->partition != owner->partition || head->chain_in_use > 2 ||
		(head->chain_in_use == 0 && head->image_len > NARAD_STATE_SPACE) ||
		NARAD_HEAD_JOURNAL_START(head) > used)
		return NARAD_HEAD_BAD;
	if (head->group_id < owner->group_id)
		return NARAD_HEAD_OLDER;
	return head->group_id == owner->group_id ? NARAD_HEAD_OURS : NARAD_HEAD_GONE;
}

/*
 * NaradStateChainCheck
 *
 * A well-formed chain page of ours, or, if that will do, of an older group of
 * our place?
 */
bool
NaradStateChainCheck(const char *page, const NaradStateOwner *owner,
					 bool older)
{
	const NaradStateChain *chain = NaradPageStateChain(page);

	return NaradStatePageCheck(page, owner) &&
		(chain->group_id == owner->group_id ||
		 (older && chain->group_id < owner->group_id)) &&
		chain->partition == owner->partition &&
		((PageHeader) page)->pd_lower >=
		SizeOfPageHeaderData + sizeof(NaradStateChain) &&
		chain->len <= NARAD_CHAIN_SPACE &&
		(chain->serial == 0 || chain->len == NaradStateChainLen(page));
}

/*
 * NaradStateChainLen
 *
 * How many bytes are on a chain page: of an image, or of journal entries.
 */
Size
NaradStateChainLen(const char *page)
{
	return ((PageHeader) page)->pd_lower - SizeOfPageHeaderData -
		sizeof(NaradStateChain);
}

/*
 * NaradStateChainCopy
 *
 * Copies a chained page; false unless it is a sound one of ours, or, if that
 * will do, of an older group that had our head page.
 */
bool
NaradStateChainCopy(Relation rel, BlockNumber block, const NaradStateOwner *owner,
					bool older, char *copy)
{
	return block < RelationGetNumberOfBlocks(rel) &&
		NaradPageCopyChecked(rel, block, copy) &&
		NaradStateChainCheck(copy, owner, older);
}

/*
 * NaradStateHeadCopy
 *
 * Copies a head page, and says what it is; damage included.
 */
NaradHeadKind
NaradStateHeadCopy(Relation rel, BlockNumber block, const NaradStateOwner *owner,
				   char *copy)
{
	if (!NaradPageCopyChecked(rel, block, copy))
		return NARAD_HEAD_BAD;
	return NaradHeadClassify(copy, owner);
}

/*
 * NaradImageCrc
 *
 * CRC-32C of an image.
 */
uint32
NaradImageCrc(const char *image, Size len)
{
	pg_crc32c	crc;

	INIT_CRC32C(crc);
	COMP_CRC32C(crc, image, len);
	FIN_CRC32C(crc);
	return crc;
}

/*
 * NaradJournalNext
 *
 * The entry at *at of a page's contents, after which *at stands; NULL when there
 * is none.
 */
const NaradJournalEntry *
NaradJournalNext(const char *page, Size *at)
{
	Size		end = ((PageHeader) page)->pd_lower - SizeOfPageHeaderData;
	const NaradJournalEntry *entry;

	if (*at > end || end - *at < NARAD_ENTRY_SIZE(0))
		return NULL;
	entry = (const NaradJournalEntry *) (PageGetContents((Page) page) + *at);
	if (entry->nranges > (end - *at - NARAD_ENTRY_SIZE(0)) / sizeof(NaradRange))
		return NULL;
	*at += NARAD_ENTRY_SIZE(entry->nranges);
	return entry;
}

/*
 * NaradJournalFate
 *
 * What has become of the transaction of an entry.  In progress is asked first:
 * who is not, has his end in the commit log.  No LWLock of storage is held.
 *
 * An id that the commit log does not know, any more or yet, stands only on a
 * page that was damaged, or not to be read, when VACUUM came by to replace it.
 * Then the messages are delivered again (I1).
 */
NaradEntryFate
NaradJournalFate(const NaradJournalEntry *entry, uint32 generation)
{
	TransactionId xid = (TransactionId) entry->xid;
	NaradEntryFate fate = NARAD_ENTRY_VOID;

	if (entry->generation != generation || entry->xid == NARAD_JOURNAL_VOID)
		return NARAD_ENTRY_VOID;
	if (entry->xid == NARAD_JOURNAL_COMMITTED)
		return NARAD_ENTRY_COMMITTED;

	NaradStatusLock();
	if (!NaradStatusIsForgottenFull(entry->xid))
	{
		if (TransactionIdIsInProgress(xid))
			fate = NARAD_ENTRY_OPEN;
		else if (TransactionIdDidCommit(xid))
			fate = NARAD_ENTRY_COMMITTED;
	}
	NaradStatusUnlock();
	return fate;
}
