/*-------------------------------------------------------------------------
 *
 * queue_freeze.c
 *	  Journal entries that outlive the commit log.
 *
 * A journal entry names the transaction that acked, and counts if that
 * committed.  It usually leaves its page with the next write of the shard; but
 * a group that is not used any more is not written.  So VACUUM, before the
 * server forgets transactions, writes in the place of their ids what became of
 * them.  The page is not folded into an image, which would take a loaded shard,
 * and memory that may not be there.
 *
 * Owns:       the xid of journal entries whose transaction has ended.
 * Invariants: I5: what an entry says stays what its transaction's end says.
 *             A writer of the pages takes a copy and replaces them later, under
 *             the shard's io_lock, and keeps in it the entries that were open
 *             when it began.  Those before the limit have ended before VACUUM
 *             began: so who begins after that keeps none of them, and who began
 *             before holds the io_lock of a shard that is found in memory.
 *             Who loads a shard takes either for the same.
 * Locks:      the io_lock of a shard in memory; under it one buffer at a time.
 * Runs in:    VACUUM, on a primary.
 * WAL:        through NaradPagesUpdate.
 * On error:   what was changed is right.
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
#include "queue/queue_page.h"
#include "queue/queue_state.h"

typedef struct StateFreeze
{
	Relation	rel;
	uint64		limit;
	uint64		oldest;			/* the oldest left */
	uint64		nfrozen;		/* entries changed */
	NaradStateOwner owner;
} StateFreeze;

static bool
has_xid(const NaradJournalEntry *entry)
{
	return entry->xid != NARAD_JOURNAL_VOID &&
		entry->xid != NARAD_JOURNAL_COMMITTED;
}

/*
 * Replaces the ids of a page's entries from a place on, in memory; returns how
 * many.  Those that stay count for `oldest`.
 */
static uint64
freeze_entries(StateFreeze *freeze, char *page, Size at)
{
	const NaradJournalEntry *entry;
	uint64		nfrozen = 0;

	while ((entry = NaradJournalNext(page, &at)) != NULL)
	{
		NaradEntryFate fate = NARAD_ENTRY_OPEN;

		if (!has_xid(entry))
			continue;
		if (entry->xid < freeze->limit)
			fate = NaradJournalFate(entry, entry->generation);
		if (fate == NARAD_ENTRY_OPEN)
		{
			freeze->oldest = Min(freeze->oldest, entry->xid);
			continue;
		}
		unconstify(NaradJournalEntry *, entry)->xid =
			fate == NARAD_ENTRY_COMMITTED ?
			NARAD_JOURNAL_COMMITTED : NARAD_JOURNAL_VOID;
		nfrozen++;
	}
	return nfrozen;
}

/* Where the entries of a page begin; false if it is not ours (any more). */
static bool
find_entries(const StateFreeze *freeze, const char *page, bool is_head,
			 Size *at)
{
	if (is_head)
	{
		if (NaradHeadClassify(page, &freeze->owner) != NARAD_HEAD_OURS)
			return false;
		*at = NARAD_HEAD_JOURNAL_START(NaradPageStateHead(page));
		return true;
	}
	*at = sizeof(NaradStateChain);
	return NaradStateChainCheck(page, &freeze->owner, false);
}

/*
 * One page, of which `copy` is a copy whose entries were frozen already, with
 * some effect: does the same to the page itself.
 */
static void
freeze_page(StateFreeze *freeze, BlockNumber block, bool is_head)
{
	PGAlignedBlock image;
	NaradPageUpdate update;
	Size		at;

	update.buffer = ReadBufferExtended(freeze->rel, MAIN_FORKNUM, block,
									   RBM_ZERO_ON_ERROR, NULL);
	update.image = image.data;
	update.init = false;
	LockBuffer(update.buffer, BUFFER_LOCK_EXCLUSIVE);
	memcpy(image.data, BufferGetPage(update.buffer), BLCKSZ);
	if (find_entries(freeze, image.data, is_head, &at))
	{
		freeze->nfrozen += freeze_entries(freeze, image.data, at);
		(void) NaradPagesUpdate(freeze->rel, &update, 1);
	}
	UnlockReleaseBuffer(update.buffer);
}

/* Looks at a page, and changes it if need be; its successor, or 0. */
static BlockNumber
visit_page(StateFreeze *freeze, BlockNumber block, bool is_head)
{
	PGAlignedBlock copy;
	BlockNumber next;
	Size		at;

	/* A damaged page was told of when it was loaded, or will be. */
	if (block >= RelationGetNumberOfBlocks(freeze->rel) ||
		!NaradPageCopyChecked(freeze->rel, block, copy.data) ||
		!find_entries(freeze, copy.data, is_head, &at))
		return 0;
	next = is_head ? NaradPageStateHead(copy.data)->journal :
		NaradPageStateChain(copy.data)->next;
	if (freeze_entries(freeze, copy.data, at) > 0)
		freeze_page(freeze, block, is_head);
	return next;
}

/* The head page of a group's partition, and its journal pages. */
static void
freeze_state(StateFreeze *freeze, NaradShard *shard, BlockNumber block)
{
	NaradChainWalk walk = {0};
	bool		is_head = true;

	if (shard != NULL)
		LWLockAcquire(&shard->io_lock, LW_EXCLUSIVE);
	while (block != 0 && !NaradChainIsWrong(&walk, block))
	{
		block = visit_page(freeze, block, is_head);
		is_head = false;
	}
	if (shard != NULL)
		LWLockRelease(&shard->io_lock);
}

/*
 * NaradStateFreeze
 *
 * Sees to it that no journal entry of a live group names a transaction before
 * `limit`, none of which is running.  Returns the oldest that is still named,
 * or `oldest` if that is older; adds to *nfrozen how many entries were
 * changed.  The caller holds ShareUpdateExclusiveLock, which keeps out all
 * that RowExclusiveLock does, and no narad lock.
 */
uint64
NaradStateFreeze(Relation rel, NaradTopicId topic_id, uint64 limit,
				 uint64 oldest, uint64 *nfrozen)
{
	StateFreeze freeze = {rel, limit, oldest};
	NaradQueueTopic *topic = NaradQueueTopicFind(topic_id);
	NaradMetaData meta;
	NaradGroupEntry *groups;
	int			ngroups;

	if (!NaradMetaRead(rel, &meta))
		return oldest;
	freeze.owner.topic_id = topic_id;
	groups = NaradGroupList(rel, &ngroups);
	for (int i = 0; i < ngroups; i++)
	{
		NaradGroupId group_id = groups[i].group_id;

		freeze.owner.group_id = group_id;
		for (uint32 partition = 0; partition < meta.npartitions; partition++)
		{
			NaradGroup *group = NULL;
			NaradShard *shard = NULL;
			BlockNumber block;

			CHECK_FOR_INTERRUPTS();
			block = NaradStateBlock(rel, NULL, group_id, partition, false);
			if (block == InvalidBlockNumber)
				continue;
			if (topic != NULL)
				group = NaradGroupById(topic, group_id);
			if (group != NULL)
				shard = NaradShardFind(group, group_id, partition);
			freeze.owner.partition = partition;
			freeze_state(&freeze, shard, block);
		}
	}
	pfree(groups);
	*nfrozen += freeze.nfrozen;
	return freeze.oldest;
}
