/*-------------------------------------------------------------------------
 *
 * queue_verify.c
 *	  Looking at all that the queue keeps of a topic, on pages and in memory.
 *
 * Owns:       nothing; changes nothing.
 * Invariants: I2: an offset has one entry, and the entries are counted by
 *			   state.  I6: nothing settled lies beyond the partition's end,
 *			   and what is above the frontier is in order.  I11, I12: a page
 *			   that is damaged, or another's, is named.
 *			   The pages of a shard are written one after the other: what
 *			   they say together is wrong only if it is so several times.
 * Locks:      one buffer share lock at a time; a shard's lock, shared, for a
 *			   look at its leases.
 * Runs in:    any backend; what is in memory on a primary only.
 * WAL:        none.
 * On error:   nothing to undo.
 *
 * A state page of zeros is one that was never written, and the group starts
 * at the earliest message; so one that was zeroed cannot be told.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "miscadmin.h"
#include "nodes/pg_list.h"
#include "storage/bufmgr.h"
#include "utils/rel.h"

#include "queue/queue_page.h"
#include "queue/queue_verify.h"

/* Looks before findings count, and microseconds between them. */
#define ATTEMPTS		5
#define PAUSE			20000L

/* One state page and what is chained to it. */
typedef struct StateCheck
{
	NaradVerify *verify;
	const NaradGroupEntry *group;
	NaradStateOwner owner;
	bool		older;			/* an older group's pages will do ... */
	bool		unused;			/* ... and the chain may end in a page that
								 * was never written */
	BlockNumber block;			/* head page, ... */
	PGAlignedBlock head;		/* ... copied */
	PGAlignedBlock copy;		/* a chained page */
	List	   *chained;		/* blocks of the chains */
	NaradOffset end;			/* one past what is settled by the page */
} StateCheck;

static void find(StateCheck *check, NaradOffset offset, BlockNumber block,
				 const char *format,...) pg_attribute_printf(4, 5);

static void
find(StateCheck *check, NaradOffset offset, BlockNumber block,
	 const char *format,...)
{
	char		message[256];
	va_list		args;

	va_start(args, format);
	vsnprintf(message, sizeof(message), format, args);
	va_end(args);
	NaradVerifyFind(check->verify, NARAD_SEVERITY_ERROR,
					check->owner.partition, offset, block,
					"state of group \"%s\": %s", check->group->name, message);
}

/* ---- chains ---------------------------------------------------------- */

/*
 * The next page of a chain, in check->copy; false at its end.  The walk begins as
 * zeros.
 */
static bool
next_chained(StateCheck *check, NaradChainWalk *walk, BlockNumber *block,
			 const char *what)
{
	CHECK_FOR_INTERRUPTS();
	if (*block == 0)
		return false;
	if (*block != InvalidBlockNumber && NaradChainIsWrong(walk, *block))
	{
		find(check, NARAD_INVALID_OFFSET, *block, "%s runs in a circle", what);
		return false;
	}
	if (!NaradStateChainCopy(check->verify->rel, *block, &check->owner,
							 check->older, check->copy.data))
	{
		if (check->unused &&
			(*block >= RelationGetNumberOfBlocks(check->verify->rel) ||
			 PageIsNew((Page) check->copy.data)))
			return false;
		find(check, NARAD_INVALID_OFFSET, *block,
			 "page of %s is damaged, or another's", what);
		return false;
	}
	check->chained = lappend_oid(check->chained, *block);
	*block = NaradPageStateChain(check->copy.data)->next;
	return true;
}

/* A chain of which only the pages matter. */
static void
verify_chain(StateCheck *check, BlockNumber block, const char *what)
{
	NaradChainWalk walk = {0};

	while (next_chained(check, &walk, &block, what))
		 /* that is all */ ;
}

/* ---- images ---------------------------------------------------------- */

/* The image, palloc'ed; NULL, with a finding, if it is not complete. */
static char *
read_image(StateCheck *check)
{
	const NaradStateHead *head = NaradPageStateHead(check->head.data);
	const NaradStateChain *chain = NaradPageStateChain(check->copy.data);
	NaradChainWalk walk = {0};
	BlockNumber block;
	uint32		len = 0;
	char	   *image;

	image = palloc_extended(Max(head->image_len, 1),
							MCXT_ALLOC_HUGE | MCXT_ALLOC_NO_OOM);
	if (image != NULL && head->chain_in_use == 0)
	{
		memcpy(image, head + 1, head->image_len);
		len = head->image_len;
	}
	block = head->chain_in_use == 0 ? 0 : head->chains[head->chain_in_use - 1];
	while (next_chained(check, &walk, &block, "image"))
	{
		/* Pages behind the image's end wait for a longer one. */
		if (image == NULL || check->unused)
			continue;
		if (chain->serial != head->serial ||
			chain->len > head->image_len - len)
			break;
		memcpy(image + len, chain + 1, chain->len);
		len += chain->len;
		check->older = check->unused = len == head->image_len;
	}
	check->older = check->unused = false;
	if (image != NULL && len == head->image_len &&
		NaradImageCrc(image, len) == head->image_crc)
		return image;
	find(check, head->frontier, check->block,
		 "what is settled above the frontier is not complete, or fails its checksum");
	if (image != NULL)
		pfree(image);
	return NULL;
}

/* One item at `data`, of which `left` bytes are there; its size, or 0. */
static Size
verify_item(StateCheck *check, const NaradImageItem *item, const char *data,
			Size left, NaradOffset *next)
{
	NaradOffset base = item->chunk << NARAD_CHUNK_BITS;
	NaradOffset end = base + NARAD_CHUNK_SIZE;
	uint64		nchunks;
	NaradBitRange range;
	Size		size;
	uint32		i;

	if (item->chunk > NARAD_MAX_OFFSET >> NARAD_CHUNK_BITS)
		return 0;
	switch (item->kind)
	{
		case NARAD_IMAGE_FULL:
			size = sizeof(uint64);
			if (left < size || base < *next)
				return 0;
			memcpy(&nchunks, data, size);
			if (nchunks == 0 || nchunks > NARAD_MAX_OFFSET >> NARAD_CHUNK_BITS)
				return 0;
			*next = check->end = base + (nchunks << NARAD_CHUNK_BITS);
			return size;
		case NARAD_IMAGE_RANGES:
			size = item->count * sizeof(range);
			if (left < size || item->count == 0 || base < *next)
				return 0;
			*next = base;
			for (i = 0; i < item->count; i++)
			{
				memcpy(&range, data + i * sizeof(range), sizeof(range));
				if (base + range.first < *next || range.last < range.first ||
					range.last >= NARAD_CHUNK_SIZE)
					return 0;
				*next = check->end = base + range.last + 1;
			}
			*next = end;
			return size;
		case NARAD_IMAGE_BITMAP:
			size = NARAD_CHUNK_BYTES;
			if (left < size || base < *next)
				return 0;
			for (i = 0; i < NARAD_CHUNK_SIZE; i++)
				if (((const unsigned char *) data)[i / 8] & (1 << i % 8))
					check->end = base + i + 1;
			*next = end;
			return size;
		case NARAD_IMAGE_DELIVERIES:
			size = item->count * sizeof(NaradDeliveries);
			return left < size || item->count == 0 ? 0 : size;
	}
	return 0;
}

/* Items parse, and come in order. */
static void
verify_image(StateCheck *check, const char *image, Size len)
{
	const NaradStateHead *head = NaradPageStateHead(check->head.data);
	NaradOffset next = 0;
	Size		at = 0;

	while (at < len)
	{
		NaradImageItem item;
		Size		size = 0;

		if (len - at >= sizeof(item))
		{
			memcpy(&item, image + at, sizeof(item));
			at += sizeof(item);
			size = verify_item(check, &item, image + at, len - at, &next);
		}
		if (size == 0)
		{
			find(check, head->frontier, check->block,
				 "what is settled above the frontier makes no sense");
			return;
		}
		at += size;
	}
}

/* ---- the journal ----------------------------------------------------- */

/* Entries from a place of a page to its end. */
static void
verify_entries(StateCheck *check, const char *page, Size at,
			   BlockNumber block)
{
	const NaradJournalEntry *entry;
	uint32		i;

	while ((entry = NaradJournalNext(page, &at)) != NULL)
	{
		for (i = 0; i < entry->nranges; i++)
			if (entry->ranges[i].first > entry->ranges[i].last ||
				entry->ranges[i].last > NARAD_MAX_OFFSET)
			{
				find(check, entry->ranges[i].first, block,
					 "an acknowledgement makes no sense");
				break;
			}
	}
	if (at != ((PageHeader) page)->pd_lower - SizeOfPageHeaderData)
		find(check, NARAD_INVALID_OFFSET, block,
			 "acknowledgements make no sense");
}

static void
verify_journal(StateCheck *check)
{
	const NaradStateHead *head = NaradPageStateHead(check->head.data);
	NaradChainWalk walk = {0};
	BlockNumber block = head->journal;
	BlockNumber at = block;

	verify_entries(check, check->head.data, NARAD_HEAD_JOURNAL_START(head),
				   check->block);
	while (next_chained(check, &walk, &block, "acknowledgements"))
	{
		verify_entries(check, check->copy.data, sizeof(NaradStateChain), at);
		at = block;
	}
}

/* ---- state pages ----------------------------------------------------- */

/* Nothing may be settled that the partition does not have. */
static void
verify_settled_end(StateCheck *check, NaradOffset settled)
{
	NaradOffset end;

	if (NaradVerifyEnd(check->verify, check->owner.partition, &end) &&
		settled > end)
		find(check, settled, check->block,
			 "offsets are settled that lie past the partition's end, " UINT64_FORMAT,
			 end);
}

/* A head page that is ours, or an older group's. */
static void
verify_head(StateCheck *check)
{
	const NaradStateHead *head = NaradPageStateHead(check->head.data);
	int			unused = head->chain_in_use == 1 ? 1 : 0;

	if (check->older)
	{
		check->unused = true;
		verify_chain(check, head->chains[0], "image");
		verify_chain(check, head->chains[1], "image");
		verify_chain(check, head->journal, "acknowledgements");
	}
	else
	{
		char	   *image = read_image(check);

		check->end = head->frontier;
		if (image != NULL)
		{
			verify_image(check, image, head->image_len);
			pfree(image);
		}
		verify_settled_end(check, Max(check->end, head->frontier));
		verify_journal(check);

		/* The other chain, or both; it may have been an older group's. */
		check->older = check->unused = true;
		verify_chain(check, head->chains[unused], "unused image");
		if (head->chain_in_use == 0)
			verify_chain(check, head->chains[1], "unused image");
	}
	verify_chain(check, head->spare, "unused pages");
}

/* Looks once. */
static void
verify_once(StateCheck *check)
{
	NaradVerify *verify = check->verify;
	NaradHeadKind kind;

	check->owner.topic_id = verify->meta.topic_id;
	check->older = check->unused = false;
	check->chained = NIL;
	kind = NaradStateHeadCopy(verify->rel, check->block, &check->owner,
							  check->head.data);
	switch (kind)
	{
		case NARAD_HEAD_OURS:
			verify_head(check);
			break;
		case NARAD_HEAD_OLDER:
			check->older = true;
			verify_head(check);
			break;
		case NARAD_HEAD_EMPTY:
			break;
		case NARAD_HEAD_GONE:
			if (NaradVerifyGroupStays(verify, check->group))
				find(check, NARAD_INVALID_OFFSET, check->block,
					 "state page belongs to a newer group");
			break;
		case NARAD_HEAD_BAD:
			find(check, NARAD_INVALID_OFFSET, check->block,
				 "state page is damaged, or something else");
			break;
	}
}

/*
 * NaradVerifyStatePage
 *
 * Looks at a state page of a group, and the pages chained to it.  One past
 * the end of the file was never written.
 */
void
NaradVerifyStatePage(NaradVerify *verify, const NaradGroupEntry *group,
					 int partition, BlockNumber block)
{
	StateCheck *check;
	uint64		nfindings = verify->nfindings;
	ListCell   *cell;
	int			attempt;

	if (block >= RelationGetNumberOfBlocks(verify->rel))
		return;
	check = palloc(sizeof(StateCheck));
	check->verify = verify;
	check->group = group;
	check->owner.group_id = group->group_id;
	check->owner.partition = partition;
	check->block = block;
	for (attempt = 1; attempt <= ATTEMPTS; attempt++)
	{
		if (attempt > 1)
		{
			list_free(check->chained);
			pg_usleep(PAUSE);
		}
		verify->quiet = attempt < ATTEMPTS;
		verify->nfindings = nfindings;
		verify_once(check);
		if (verify->nfindings == nfindings)
			break;
	}
	verify->quiet = false;
	foreach(cell, check->chained)
		(void) NaradVerifyUsePage(verify, lfirst_oid(cell), partition,
								  "page chained to a state page");
	list_free(check->chained);
	pfree(check);
}

/* ---- memory ---------------------------------------------------------- */

/* What a shard says, and what it comes to. */
typedef struct ShardCheck
{
	uint32		nstate[NARAD_LEASE_NSTATES];
	uint32		counted[NARAD_LEASE_NSTATES];
	uint32		nholes;
	uint32		nopen_holes;
	uint32		holes_counted;
	uint32		open_holes_counted;
	bool		all_listed;		/* those that have come back are */
	uint64		nsettled;
	uint64		settled_counted;
	bool		settled_in_order;
	NaradOffset stray;			/* a lease of something settled */
	NaradOffset wrong;			/* one that is not what it says */
	NaradOffset frontier;
	NaradOffset scan_pos;
} ShardCheck;

/* Does an entry say of itself what is so? */
static bool
lease_is_right(const NaradShard *shard, const NaradLease *lease)
{
	bool		is_below = lease->offset < shard->settled_end;
	bool		is_returned = lease->state == NARAD_LEASE_RETURNED;
	bool		is_leased = lease->state == NARAD_LEASE_LEASED;
	bool		may_be_new = is_leased || lease->state == NARAD_LEASE_PINNED;

	return lease->is_open_hole == (is_below && is_returned) &&
		lease->is_hole == (is_below && (is_returned || is_leased)) &&
		(lease->has_come_back || (may_be_new && lease->deliveries < 2));
}

static void
count_leases(const NaradShard *shard, ShardCheck *check)
{
	const NaradLeaseTable *leases = &shard->leases;
	NaradLease *lease = NULL;
	uint32		nback = 0;
	uint32		nlisted = 0;

	memcpy(check->nstate, leases->nstate, sizeof(check->nstate));
	while ((lease = NaradLeaseNext(leases, lease)) != NULL)
	{
		check->counted[lease->state]++;
		check->holes_counted += lease->is_hole;
		check->open_holes_counted += lease->is_open_hole;
		nback += lease->has_come_back;
		if (lease->offset < shard->frontier ||
			NaradSetContains(&shard->settled, lease->offset))
			check->stray = lease->offset;
		else if (!lease_is_right(shard, lease))
			check->wrong = lease->offset;
	}
	while ((lease = NaradLeaseNextComeBack(leases, lease)) != NULL)
		nlisted++;
	check->all_listed = nback == leases->ncome_back && nlisted == nback;
	check->nholes = shard->nholes;
	check->nopen_holes = shard->nopen_holes;
}

static void
count_settled(const NaradShard *shard, ShardCheck *check)
{
	const NaradSet *set = &shard->settled;
	uint64		next = 0;
	int			i;

	check->nsettled = set->nmembers;
	check->settled_in_order = true;
	for (i = 0; i < set->nchunks; i++)
	{
		const NaradSetChunk *chunk = &set->chunks[i];

		if (chunk->chunk < next || chunk->nchunks == 0)
			check->settled_in_order = false;
		next = chunk->chunk + chunk->nchunks;
		check->settled_counted += chunk->bits != NULL ? chunk->nset :
			chunk->nchunks << NARAD_CHUNK_BITS;
	}
	if (NaradSetContains(set, shard->frontier))
		check->settled_in_order = false;
}

static void
find_shard(NaradVerify *verify, int partition, NaradOffset offset,
		   const char *name, const char *text)
{
	NaradVerifyFind(verify, NARAD_SEVERITY_ERROR, partition, offset,
					InvalidBlockNumber, "group \"%s\" in memory: %s", name,
					text);
}

static void
verify_shard(NaradVerify *verify, NaradShard *shard)
{
	ShardCheck	check = {0};
	char		name[NAMEDATALEN];
	NaradOffset end;
	int			partition = shard->partition;
	bool		is_live;

	check.stray = check.wrong = NARAD_INVALID_OFFSET;
	LWLockAcquire(&shard->lock, LW_SHARED);
	is_live = !shard->dropped;
	if (is_live)
	{
		strlcpy(name, shard->group->name, NAMEDATALEN);
		check.frontier = shard->frontier;
		check.scan_pos = shard->scan_pos;
		count_leases(shard, &check);
		count_settled(shard, &check);
	}
	LWLockRelease(&shard->lock);
	if (!is_live)
		return;

	if (memcmp(check.nstate, check.counted, sizeof(check.nstate)) != 0 ||
		!check.all_listed)
		find_shard(verify, partition, NARAD_INVALID_OFFSET, name,
				   "leases are counted wrongly");
	if (check.nholes != check.holes_counted ||
		check.nopen_holes != check.open_holes_counted)
		find_shard(verify, partition, NARAD_INVALID_OFFSET, name,
				   "leases below the highest settled offset are counted wrongly");
	if (check.wrong != NARAD_INVALID_OFFSET)
		find_shard(verify, partition, check.wrong, name,
				   "a lease says of itself what is not so");
	if (check.stray != NARAD_INVALID_OFFSET)
		find_shard(verify, partition, check.stray, name,
				   "a settled message is leased");
	if (check.nsettled != check.settled_counted || !check.settled_in_order)
		find_shard(verify, partition, check.frontier, name,
				   "settled offsets are counted wrongly, or not in order");
	if (check.scan_pos < check.frontier)
		find_shard(verify, partition, check.frontier, name,
				   "the frontier is beyond what was looked at");
	if (NaradVerifyEnd(verify, partition, &end) && check.scan_pos > end)
		find_shard(verify, partition, check.scan_pos, name,
				   "the frontier, or what was looked at, is beyond the partition's end");
}

/* The topic's groups; entries stay while the relation is locked. */
static List *
list_groups(NaradQueueTopic *topic)
{
	NaradGroup **groups;
	List	   *result = NIL;
	dlist_iter	iter;
	int			ngroups = 0;
	int			n = 0;

	/* Memory is got without the lock; groups are added at the end. */
	LWLockAcquire(&topic->lock, LW_SHARED);
	dlist_foreach(iter, &topic->groups)
		ngroups++;
	LWLockRelease(&topic->lock);
	groups = palloc((ngroups + 1) * sizeof(NaradGroup *));
	LWLockAcquire(&topic->lock, LW_SHARED);
	dlist_foreach(iter, &topic->groups)
	{
		if (n < ngroups)
			groups[n++] = dlist_container(NaradGroup, node, iter.cur);
	}
	LWLockRelease(&topic->lock);
	while (n > 0)
		result = lcons(groups[--n], result);
	pfree(groups);
	return result;
}

/*
 * NaradVerifyShards
 *
 * Looks at the shards of the topic in memory: that what is counted is what
 * is there.  Makes nothing.
 */
void
NaradVerifyShards(NaradVerify *verify)
{
	NaradQueueTopic *topic;
	ListCell   *cell;
	int			i;

	if (RecoveryInProgress() || verify->shared == NULL)
		return;
	topic = NaradQueueTopicFind(verify->meta.topic_id);
	if (topic == NULL)
		return;
	foreach(cell, list_groups(topic))
	{
		NaradGroup *group = lfirst(cell);

		for (i = 0; i < NaradArrayLength(&group->shards); i++)
		{
			NaradShard *shard = NaradArrayGet(&group->shards, i);

			CHECK_FOR_INTERRUPTS();
			if (shard != NULL)
				verify_shard(verify, shard);
		}
	}
}
