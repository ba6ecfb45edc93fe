/*-------------------------------------------------------------------------
 *
 * log_producer.c
 *	  Producer pages: how far each idempotent producer has come.
 *
 * The entry of a producer holds two states: the one that counts, and the one
 * that will if a transaction commits, with that transaction's id.  It is
 * written before the commit record, so it is durable with it and void without
 * it; what has become of the transaction is asked when the entry is looked at
 * next.  As only one transaction at a time can have a producer, which the
 * layer above sees to, one such state is enough.
 *
 * Producers are found by a hash of their id: a root page points to 64 chains
 * of pages, on each of which lie some 35 entries.  So a look-up among 10,000
 * producers reads the root and up to five pages; the first 64 producers may
 * take a page each.  Entries are never removed; TRUNCATE starts over.
 *
 * Owns:       pages of kind PRODUCERS; the metapage's producers_root.
 * Invariants: an entry says of a transaction that has ended what would have
 *             been said had it never begun, or had it been the only one.
 *             A page that is linked has been initialised: both are one record.
 * Locks:      one buffer lock at a time but for linking.  Pages are added
 *             under the relation extension lock and groups_lock.
 * Runs in:    any backend.
 * WAL:        META_UPDATE.
 * On error:   nothing has changed, or a page is left empty in its chain.
 *             I11: a damaged page is XX001 for the producers of its chain.
 *             VACUUM steps over it, and so an entry on it, should it ever be
 *             read again, may name a transaction that nobody knows: XX001.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xact.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/procarray.h"
#include "utils/rel.h"

#include "log/log_meta.h"
#include "log/log_producer.h"
#include "log/log_segment.h"
#include "log/log_status.h"
#include "log/log_verify.h"

#define RootContents(page) \
	((NaradProducersRoot *) PageGetContents((Page) (page)))
#define PageContents(page) \
	((NaradProducersPage *) PageGetContents((Page) (page)))

/* Where the entries of a page begin. */
#define FIRST_ENTRY \
	(MAXALIGN(SizeOfPageHeaderData) + sizeof(NaradProducersPage))

/* What becomes of an entry's transaction. */
typedef enum XidFate
{
	XID_OPEN,
	XID_COMMITTED,
	XID_ABORTED,
	XID_FORGOTTEN				/* the commit log does not have it */
} XidFate;

static int
chain_of(const char *id, int id_len)
{
	return hash_bytes((const unsigned char *) id, id_len) %
		NARAD_PRODUCER_CHAINS;
}

static uint16
entry_length(int id_len)
{
	return MAXALIGN(offsetof(NaradProducerEntry, id) + id_len);
}

/* The entry at a place of a page; NULL at the end, or if it makes no sense. */
static NaradProducerEntry *
entry_at(char *page, uint32 pos)
{
	uint32		lower = ((PageHeader) page)->pd_lower;
	NaradProducerEntry *entry = (NaradProducerEntry *) (page + pos);

	if (pos + offsetof(NaradProducerEntry, id) > lower ||
		entry->id_len < 1 || entry->id_len > NARAD_MAX_ID ||
		entry->len != entry_length(entry->id_len) || pos + entry->len > lower)
		return NULL;
	return entry;
}

/* The entry of a producer on a page, or NULL. */
static NaradProducerEntry *
find_on_page(char *page, const char *id, int id_len)
{
	NaradProducerEntry *entry;

	for (uint32 pos = FIRST_ENTRY; (entry = entry_at(page, pos)) != NULL;
		 pos += entry->len)
		if (entry->id_len == id_len && memcmp(entry->id, id, id_len) == 0)
			return entry;
	return NULL;
}

/* In progress is asked first, since who is neither has aborted only then. */
static XidFate
xid_fate(uint64 full_xid)
{
	TransactionId xid = (TransactionId) full_xid;
	XidFate		fate;

	NaradStatusLock();
	if (NaradStatusIsForgottenFull(full_xid))
		fate = XID_FORGOTTEN;
	else if (TransactionIdIsCurrentTransactionId(xid) ||
			 TransactionIdIsInProgress(xid))
		fate = XID_OPEN;
	else
		fate = TransactionIdDidCommit(xid) ? XID_COMMITTED : XID_ABORTED;
	NaradStatusUnlock();
	return fate;
}

/* Decides an entry by what became of its transaction. */
static void
settle_entry(NaradProducerEntry *entry, XidFate fate)
{
	if (fate == XID_COMMITTED)
		entry->settled = entry->next;
	memset(&entry->next, 0, sizeof(entry->next));
	entry->xid = 0;
}

/* Is the page one of producers? */
static bool
is_producers_page(NaradTopicId topic_id, char *page)
{
	NaradPageSpecialHead *head = NaradPageHead(page);

	return head != NULL && head->kind == NARAD_PAGE_PRODUCERS &&
		head->topic_id == topic_id;
}

static void
report_damage(Relation rel, BlockNumber block)
{
	ereport(ERROR,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("producers of topic \"%s\" are damaged in block %u",
					RelationGetRelationName(rel), block)));
}

/* Errors XX001 unless it is. */
static void
check_page(Relation rel, NaradTopicId topic_id, BlockNumber block, char *page)
{
	if (!is_producers_page(topic_id, page))
		report_damage(rel, block);
}

/* Goes on to a page of a chain, or 0; errors XX001 if it goes in a circle. */
static BlockNumber
go_to(Relation rel, NaradChainWalk *walk, BlockNumber block)
{
	if (block != 0 && NaradChainIsWrong(walk, block))
		report_damage(rel, block);
	return block;
}

/* Begins a walk: the first page of a chain, or 0. */
static BlockNumber
first_page(Relation rel, const NaradMetaData *meta, int chain,
		   NaradChainWalk *walk)
{
	PGAlignedBlock copy;

	memset(walk, 0, sizeof(*walk));
	walk->root = meta->producers_root;
	if (meta->producers_root == 0)
		return 0;
	NaradPageCopy(rel, meta->producers_root, copy.data);
	check_page(rel, meta->topic_id, meta->producers_root, copy.data);
	return go_to(rel, walk, RootContents(copy.data)->chains[chain]);
}

/* What a page says of a producer. */
typedef struct PageAnswer
{
	bool		found;
	bool		is_forgotten;	/* found, and nothing is known of its state */
	TransactionId open_xid;		/* to be waited for, or invalid */
	NaradProducerState state;
	XLogRecPtr	lsn;			/* of the page, or of a commit after it */
	BlockNumber next;			/* page of the chain */
} PageAnswer;

/*
 * Looks for a producer on a page.  What has become of its transaction is asked
 * under the page's lock, as VACUUM takes that before the server forgets it.
 */
static void
ask_page(Relation rel, NaradTopicId topic_id, BlockNumber block,
		 const char *id, int id_len, PageAnswer *answer)
{
	Buffer		buffer = ReadBuffer(rel, block);
	char	   *page = (char *) BufferGetPage(buffer);
	NaradProducerEntry *entry;

	memset(answer, 0, sizeof(*answer));
	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	check_page(rel, topic_id, block, page);
	answer->next = PageContents(page)->next;
	answer->lsn = PageGetLSN((Page) page);
	entry = find_on_page(page, id, id_len);
	if (entry != NULL)
	{
		TransactionId xid = (TransactionId) entry->xid;
		XidFate		fate = entry->xid == 0 ? XID_ABORTED :
		xid_fate(entry->xid);

		answer->found = true;
		answer->state = entry->settled;
		answer->is_forgotten = fate == XID_FORGOTTEN;
		if (fate == XID_OPEN)
			answer->open_xid = xid;
		else if (fate == XID_COMMITTED)
		{
			answer->state = entry->next;
			answer->lsn = Max(answer->lsn, TransactionIdGetCommitLSN(xid));
		}
	}
	UnlockReleaseBuffer(buffer);
}

static void
report_forgotten(Relation rel, const char *id, int id_len)
{
	ereport(ERROR,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("what producer \"%s\" of topic \"%s\" did last is not known any more",
					pnstrdup(id, id_len), RelationGetRelationName(rel)),
			 errdetail("Its page could not be read when VACUUM came by."),
			 errhint("Use another producer id.")));
}

/*
 * NaradProducerRead
 *
 * See log_producer.h.
 */
void
NaradProducerRead(Relation rel, const char *id, int id_len,
				  NaradProducerState *state, XLogRecPtr *lsn)
{
	NaradMetaData meta;
	NaradChainWalk walk;
	BlockNumber block;

	memset(state, 0, sizeof(*state));
	*lsn = InvalidXLogRecPtr;
	if (!NaradMetaRead(rel, &meta))
		return;
	block = first_page(rel, &meta, chain_of(id, id_len), &walk);
	while (block != 0)
	{
		PageAnswer	answer;

		CHECK_FOR_INTERRUPTS();
		ask_page(rel, meta.topic_id, block, id, id_len, &answer);
		if (answer.is_forgotten)
			report_forgotten(rel, id, id_len);
		else if (TransactionIdIsValid(answer.open_xid))
			XactLockTableWait(answer.open_xid, NULL, NULL, XLTW_None);
		else if (answer.found)
		{
			*state = answer.state;
			*lsn = answer.lsn;
			return;
		}
		else
			block = go_to(rel, &walk, answer.next);
	}
}

/* Locks a page and copies it to the image of an update. */
static void
begin_update(Relation rel, BlockNumber block, NaradPageUpdate *update,
			 char *image)
{
	update->buffer = ReadBuffer(rel, block);
	update->image = image;
	update->init = false;
	LockBuffer(update->buffer, BUFFER_LOCK_EXCLUSIVE);
	memcpy(image, BufferGetPage(update->buffer), BLCKSZ);
}

static void
end_updates(Relation rel, NaradPageUpdate *updates, int nupdates)
{
	NaradPagesUpdate(rel, updates, nupdates);
	for (int i = 0; i < nupdates; i++)
		UnlockReleaseBuffer(updates[i].buffer);
}

/* Adds an entry at the end of a page; false if there is no room. */
static bool
add_entry(char *image, const char *id, int id_len, uint64 xid,
		  const NaradProducerState *state)
{
	PageHeader	ph = (PageHeader) image;
	uint16		len = entry_length(id_len);
	NaradProducerEntry *entry = (NaradProducerEntry *) (image + ph->pd_lower);

	if (ph->pd_lower + len > ph->pd_upper)
		return false;
	memset(entry, 0, len);
	entry->len = len;
	entry->id_len = id_len;
	entry->xid = xid;
	entry->next = *state;
	memcpy(entry->id, id, id_len);
	ph->pd_lower += len;
	return true;
}

/*
 * Writes to the producer's entry, or adds one on the last page of its chain.
 * False if that has no room, or there is none.
 */
static bool
write_in_chain(Relation rel, const NaradMetaData *meta, const char *id,
			   int id_len, uint64 xid, const NaradProducerState *state)
{
	NaradChainWalk walk;
	BlockNumber block = first_page(rel, meta, chain_of(id, id_len), &walk);
	PGAlignedBlock image;
	NaradPageUpdate update;

	while (block != 0)
	{
		NaradProducerEntry *entry;
		BlockNumber next;
		bool		done = false;

		begin_update(rel, block, &update, image.data);
		check_page(rel, meta->topic_id, block, image.data);
		entry = find_on_page(image.data, id, id_len);
		next = PageContents(image.data)->next;
		if (entry != NULL)
		{
			if (entry->xid != 0 && entry->xid != xid)
			{
				XidFate		fate = xid_fate(entry->xid);

				Assert(fate != XID_OPEN);
				settle_entry(entry, fate);
			}
			entry->xid = xid;
			entry->next = *state;
			done = true;
		}
		else if (next == 0)
			done = add_entry(image.data, id, id_len, xid, state);

		if (done)
			end_updates(rel, &update, 1);
		else
			UnlockReleaseBuffer(update.buffer);
		if (done)
			return true;
		block = go_to(rel, &walk, next);
	}
	return false;
}

/* An empty producers page, or the root. */
static void
init_image(NaradPageUpdate *update, NaradTopicId topic_id, Size contents)
{
	NaradMetaImageInit(update->image, topic_id, NARAD_PAGE_PRODUCERS, 0);
	((PageHeader) update->image)->pd_lower =
		MAXALIGN(SizeOfPageHeaderData) + contents;
}

/* Makes the root page, linked from the metapage.  In a change. */
static void
make_root(Relation rel, NaradLogTopic *topic)
{
	PGAlignedBlock images[2];
	NaradPageUpdate updates[2];
	BlockNumber block = NaradMetaPageAllocate(rel, topic);

	begin_update(rel, 0, &updates[0], images[0].data);
	((NaradMetaData *) PageGetContents((Page) images[0].data))->producers_root =
		block;
	NaradPageUpdateInit(rel, block, &updates[1], images[1].data);
	init_image(&updates[1], topic->topic_id, sizeof(NaradProducersRoot));
	end_updates(rel, updates, 2);
}

/*
 * Adds a page at the end of a chain, linked from the root or the page before,
 * unless the last one has room.  In a change.
 */
static void
extend_chain(Relation rel, NaradLogTopic *topic, const NaradMetaData *meta,
			 int chain, uint16 len)
{
	PGAlignedBlock images[2];
	NaradPageUpdate updates[2];
	BlockNumber last = 0;
	NaradChainWalk walk;
	BlockNumber block = first_page(rel, meta, chain, &walk);

	while (block != 0)
	{
		PageHeader	ph = (PageHeader) images[0].data;

		NaradPageCopy(rel, block, images[0].data);
		check_page(rel, meta->topic_id, block, images[0].data);
		last = block;
		block = go_to(rel, &walk, PageContents(images[0].data)->next);
		if (block == 0 && ph->pd_lower + len <= ph->pd_upper)
			return;
	}

	block = NaradMetaPageAllocate(rel, topic);
	if (last == 0)
	{
		begin_update(rel, meta->producers_root, &updates[0], images[0].data);
		RootContents(images[0].data)->chains[chain] = block;
	}
	else
	{
		begin_update(rel, last, &updates[0], images[0].data);
		PageContents(images[0].data)->next = block;
	}
	NaradPageUpdateInit(rel, block, &updates[1], images[1].data);
	init_image(&updates[1], topic->topic_id, sizeof(NaradProducersPage));
	end_updates(rel, updates, 2);
}

/*
 * NaradProducerWrite
 *
 * See log_producer.h.  Errors as making a page does: 53100, on reading.
 */
void
NaradProducerWrite(Relation rel, NaradRelInfo *info, const char *id,
				   int id_len, uint64 xid, const NaradProducerState *state)
{
	NaradLogTopic *topic = info->shared;
	NaradMetaData meta;

	for (;;)
	{
		if (!NaradMetaRead(rel, &meta))
			elog(ERROR, "topic \"%s\" has lost its metapage",
				 RelationGetRelationName(rel));
		if (write_in_chain(rel, &meta, id, id_len, xid, state))
			return;

		LockRelationForExtension(rel, ExclusiveLock);
		LWLockAcquire(&topic->groups_lock, LW_EXCLUSIVE);
		(void) NaradMetaRead(rel, &meta);
		if (meta.producers_root == 0)
			make_root(rel, topic);
		else
			extend_chain(rel, topic, &meta, chain_of(id, id_len),
						 entry_length(id_len));
		LWLockRelease(&topic->groups_lock);
		UnlockRelationForExtension(rel, ExclusiveLock);
	}
}

/*
 * Copies the page to which a walk of VACUUM comes, which does not fail for one
 * that is damaged: then false, and a WARNING.
 */
static bool
copy_sound_page(Relation rel, NaradTopicId topic_id, NaradChainWalk *walk,
				BlockNumber block, char *copy)
{
	if (!NaradChainIsWrong(walk, block) &&
		block < RelationGetNumberOfBlocks(rel) &&
		NaradPageCopyChecked(rel, block, copy) &&
		is_producers_page(topic_id, copy))
		return true;
	ereport(WARNING,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("producers of topic \"%s\" are damaged in block %u",
					RelationGetRelationName(rel), block)));
	return false;
}

/* Settles one page; *oldest: of what is left.  Returns the next page, or 0. */
static BlockNumber
settle_page(Relation rel, NaradTopicId topic_id, NaradChainWalk *walk,
			BlockNumber block, uint64 cutoff, uint64 *oldest)
{
	PGAlignedBlock image;
	NaradPageUpdate update;
	NaradProducerEntry *entry;

	if (!copy_sound_page(rel, topic_id, walk, block, image.data))
		return 0;
	begin_update(rel, block, &update, image.data);
	check_page(rel, topic_id, block, image.data);
	for (uint32 pos = FIRST_ENTRY; (entry = entry_at(image.data, pos)) != NULL;
		 pos += entry->len)
	{
		XidFate		fate;

		if (entry->xid == 0)
			continue;
		fate = entry->xid < cutoff ? xid_fate(entry->xid) : XID_OPEN;
		if (fate == XID_FORGOTTEN)
			continue;
		if (fate != XID_OPEN)
			settle_entry(entry, fate);
		else if (*oldest == 0 || entry->xid < *oldest)
			*oldest = entry->xid;
	}
	end_updates(rel, &update, 1);
	return PageContents(image.data)->next;
}

/*
 * NaradProducersSettle
 *
 * See log_producer.h.  For VACUUM, before relfrozenxid is advanced: an entry's
 * id must not outlive what the server knows of it.  What is left is open, and
 * so no older than the oldest transaction that runs or is prepared; or it lies
 * where it cannot be read.
 */
uint64
NaradProducersSettle(Relation rel, uint64 cutoff)
{
	PGAlignedBlock root;
	NaradMetaData meta;
	NaradChainWalk to_root = {0};
	uint64		oldest = 0;

	if (!NaradMetaRead(rel, &meta) || meta.producers_root == 0 ||
		!copy_sound_page(rel, meta.topic_id, &to_root, meta.producers_root,
						 root.data))
		return 0;
	for (int chain = 0; chain < NARAD_PRODUCER_CHAINS; chain++)
	{
		BlockNumber block = RootContents(root.data)->chains[chain];
		NaradChainWalk walk = {meta.producers_root};

		while (block != 0)
		{
			CHECK_FOR_INTERRUPTS();
			block = settle_page(rel, meta.topic_id, &walk, block, cutoff,
								&oldest);
		}
	}
	return oldest;
}

/* ---- looking at them ------------------------------------------------- */

static bool
state_is_sound(const NaradProducerState *state)
{
	if (state->npositions > NARAD_PRODUCER_POSITIONS ||
		(state->npositions > 0 && (state->sequence < 0 || state->epoch < 0)))
		return false;
	for (uint32 i = 0; i < state->npositions; i++)
		if (state->partitions[i] < -1 ||
			state->partitions[i] >= NARAD_MAX_PARTITIONS)
			return false;
	return true;
}

/* The entries of a page, which fill it up to its end. */
static void
verify_entries(NaradVerify *verify, BlockNumber block, int chain, char *page)
{
	NaradProducerEntry *entry;
	uint32		pos;

	for (pos = FIRST_ENTRY; (entry = entry_at(page, pos)) != NULL;
		 pos += entry->len)
	{
		if (chain_of(entry->id, entry->id_len) != chain ||
			(entry->xid == 0) != (entry->next.npositions == 0) ||
			!state_is_sound(&entry->settled) ||
			!state_is_sound(&entry->next))
			NaradVerifyFind(verify, NARAD_SEVERITY_ERROR, -1,
							NARAD_INVALID_OFFSET, block,
							"entry of producer \"%.*s\" makes no sense",
							(int) entry->id_len, entry->id);
	}
	if (pos != ((PageHeader) page)->pd_lower)
		NaradVerifyFind(verify, NARAD_SEVERITY_ERROR, -1,
						NARAD_INVALID_OFFSET, block,
						"entries of producers end in the middle");
}

/*
 * NaradVerifyProducers
 *
 * Verifies the producer pages.  As NaradVerifyLog.
 */
void
NaradVerifyProducers(NaradVerify *verify)
{
	PGAlignedBlock root;
	PGAlignedBlock copy;
	NaradMetaData meta;

	if (!NaradMetaRead(verify->rel, &meta) || meta.producers_root == 0)
		return;
	if (!NaradVerifyUsePage(verify, meta.producers_root, -1,
							"root of the producers") ||
		!NaradVerifyCopyKind(verify, meta.producers_root,
							 NARAD_PAGE_PRODUCERS, "root of the producers",
							 root.data))
		return;
	for (int chain = 0; chain < NARAD_PRODUCER_CHAINS; chain++)
	{
		BlockNumber block = RootContents(root.data)->chains[chain];
		NaradChainWalk walk = {meta.producers_root};

		while (block != 0 &&
			   NaradVerifyCopyChained(verify, &walk, block,
									  NARAD_PAGE_PRODUCERS,
									  "page of producers", copy.data))
		{
			verify_entries(verify, block, chain, copy.data);
			block = PageContents(copy.data)->next;
		}
	}
}
