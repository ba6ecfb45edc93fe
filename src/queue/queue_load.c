/*-------------------------------------------------------------------------
 *
 * queue_load.c
 *	  Loading a shard from its state page.
 *
 * Owns:       a shard that is nobody's yet (marked as dropped).
 * Invariants: I5: a journal entry counts if and only if its transaction
 *             committed.  I1: in doubt the shard starts earlier: without a
 *             page, with a damaged one (where it was saved, if it was), or
 *             with one that belongs to another log.  One that retention has
 *             overtaken jumps to the earliest record, and what it loses is
 *             counted.
 * Locks:      the shard's io_lock is held by the caller; its lock is not
 *             needed, since nobody else touches such a shard.
 * Runs in:    any backend, at the first use of a shard.
 * WAL:        none.
 * On error:   53200, and the caller empties the shard.  Delivery counts are
 *             given up when memory is too short for them alone.  Damage is
 *             noted, and told (NaradStateReport) once no lock is held.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/memutils.h"
#include "utils/rel.h"

#include "base/base_memory.h"
#include "log/log_meta.h"
#include "queue/queue_page.h"
#include "queue/queue_retain.h"
#include "queue/queue_state.h"
#include "queue/queue_suspect.h"

/* The image a head page speaks of, palloc'ed; NULL if it is damaged. */
static char *
read_image(Relation rel, const char *page, const NaradStateOwner *owner)
{
	const NaradStateHead *head = NaradPageStateHead(page);
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
			 block = NaradPageStateChain(copy.data)->next)
		{
			NaradStateChain *chain = NaradPageStateChain(copy.data);

			if (!NaradStateChainCopy(rel, block, owner, false, copy.data) ||
				chain->serial != head->serial ||
				chain->len > head->image_len - len || chain->len == 0)
				break;
			memcpy(image + len, chain + 1, chain->len);
			len += chain->len;
		}
	}
	if (len == head->image_len && NaradImageCrc(image, len) == head->image_crc)
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
		case NARAD_IMAGE_FULL:
			return sizeof(uint64);
		case NARAD_IMAGE_RANGES:
			return item->count * sizeof(NaradBitRange);
		case NARAD_IMAGE_BITMAP:
			return NARAD_CHUNK_BYTES;
		case NARAD_IMAGE_DELIVERIES:
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
		case NARAD_IMAGE_FULL:
			memcpy(&nchunks, data, sizeof(nchunks));
			load_range(shard, base,
					   base + (nchunks << NARAD_CHUNK_BITS) - 1);
			break;
		case NARAD_IMAGE_RANGES:
			load_ranges(shard, base, data, item->count);
			break;
		case NARAD_IMAGE_BITMAP:
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
		for (i = 0; deliveries && item.kind == NARAD_IMAGE_DELIVERIES &&
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

/* Settles what the entries of one page say, if they count. */
static void
load_journal_page(NaradShard *shard, const char *page, Size start,
				  uint32 generation)
{
	const NaradJournalEntry *entry;
	uint32		i;

	while ((entry = NaradJournalNext(page, &start)) != NULL)
	{
		if (NaradJournalFate(entry, generation) != NARAD_ENTRY_COMMITTED)
			continue;
		for (i = 0; i < entry->nranges; i++)
			load_range(shard, entry->ranges[i].first, entry->ranges[i].last);
	}
}

static void
load_journal(Relation rel, NaradShard *shard, const char *page,
			 const NaradStateOwner *owner, NaradStateDamage *damage)
{
	const NaradStateHead *head = NaradPageStateHead(page);
	PGAlignedBlock copy;
	NaradChainWalk walk = {0};
	BlockNumber block;

	load_journal_page(shard, page, NARAD_HEAD_JOURNAL_START(head),
					  head->generation);
	for (block = head->journal; block != 0;
		 block = NaradPageStateChain(copy.data)->next)
	{
		if (NaradChainIsWrong(&walk, block) ||
			!NaradStateChainCopy(rel, block, owner, false, copy.data))
		{
			damage->journal_block = block;
			break;
		}
		load_journal_page(shard, copy.data, sizeof(NaradStateChain),
						  head->generation);
	}
}

/* A page that is ours: frontier, what is settled above, what comes back. */
static void
load_page(Relation rel, NaradShard *shard, const char *page,
		  const NaradStateOwner *owner, NaradOffset end,
		  NaradStateDamage *damage)
{
	const NaradStateHead *head = NaradPageStateHead(page);
	char	   *image = read_image(rel, page, owner);

	shard->frontier = head->frontier;
	shard->lost = head->lost_to_retention;
	shard->generation = head->generation;
	shard->dead_lettered = head->dead_lettered;
	if (image != NULL)
		(void) load_image(shard, image, head->image_len, false);
	else
	{
		damage->image = true;
		damage->frontier = head->frontier;
	}
	load_journal(rel, shard, page, owner, damage);

	/* NARAD_INVALID_OFFSET + 1 is 0. */
	shard->frontier = NaradSetNextGap(&shard->settled, shard->frontier);
	shard->settled_end = Max(NaradSetMax(&shard->settled) + 1,
							 shard->frontier);
	NaradSetTrim(&shard->settled, shard->frontier);
	shard->scan_pos = shard->frontier;
	if ((image != NULL &&
		 (!load_image(shard, image, head->image_len, true) ||
		  !load_pending(shard))) ||
		!NaradSuspectsLoad(shard, head, end))
	{
		/* Short of memory: counts are lost, messages are not. */
		NaradShardClearLeases(shard);
		NaradSetClear(&shard->pending);
		NaradSetClear(&shard->suspects);
		shard->nrechecks = 0;
		shard->scan_pos = shard->frontier;
	}
	if (image != NULL)
		pfree(image);
}

/* Nothing is known but that all below an offset is settled. */
static void
start_at(NaradShard *shard, NaradOffset offset)
{
	NaradSetClear(&shard->settled);
	NaradSetClear(&shard->pending);
	NaradSetClear(&shard->suspects);
	shard->handout_mark = 0;
	NaradShardClearLeases(shard);
	shard->nrechecks = 0;
	shard->frontier = offset;
	shard->settled_end = offset;
	shard->scan_pos = offset;
}

/*
 * NaradStateLoad
 *
 * Fills an empty shard that is nobody's yet: from its state page, or at the
 * earliest record if there is none, or if it belongs to another log.  If it
 * is damaged the saved frontier is wanted, which cannot be read under a lock:
 * unless it is given, false, and nothing is done.  It is where the group
 * starts then; NARAD_INVALID_OFFSET: there is none, and it starts at the
 * earliest record.  *damage, zeroes before, has what is to be told.  The
 * caller has the relation and the shard's io_lock.  ERROR 53200 when memory is
 * short.
 */
bool
NaradStateLoad(Relation rel, NaradRelInfo *info, NaradShard *shard,
			   const NaradOffset *saved, NaradStateDamage *damage)
{
	NaradLogPartition *part = NaradLogPartitionGet(info->shared,
												   shard->partition);
	NaradOffset earliest = pg_atomic_read_u64(&part->start_offset);
	PGAlignedBlock copy;
	BlockNumber block;
	NaradStateOwner owner;
	NaradHeadKind kind = NARAD_HEAD_EMPTY;

	NaradStateOwnerGet(shard, &owner);
	start_at(shard, earliest);
	strlcpy(damage->group, shard->group->name, NAMEDATALEN);
	damage->partition = shard->partition;
	block = NaradStateBlock(rel, info, owner.group_id, shard->partition,
							false);
	if (block != InvalidBlockNumber)
		kind = NaradStateHeadCopy(rel, block, &owner, copy.data);
	if (kind == NARAD_HEAD_OURS)
	{
		load_page(rel, shard, copy.data, &owner,
				  pg_atomic_read_u64(&part->end_offset), damage);
		damage->nlost = NaradShardOvertake(shard, earliest);
		shard->lost_untold = 0; /* by NaradStateReport it is */
	}
	else if (kind == NARAD_HEAD_BAD)
	{
		if (saved == NULL)
			return false;
		damage->head = true;
		damage->saved = *saved != NARAD_INVALID_OFFSET;
		if (damage->saved)
			start_at(shard, Max(*saved, earliest));
		damage->frontier = shard->frontier;
	}

	/* The end only grows, so reading it last is right. */
	if (shard->frontier > pg_atomic_read_u64(&part->end_offset))
	{
		damage->beyond_end = true;
		start_at(shard, earliest);

		/* The page may go back only in a new generation (I6). */
		shard->generation++;
	}
	return true;
}

/*
 * NaradStateReport
 *
 * Tells what was found damaged, or lost, at loading.  No narad lock is held.
 */
void
NaradStateReport(Relation rel, const NaradStateDamage *damage)
{
	const char *topic = RelationGetRelationName(rel);

	if (damage->head)
		ereport(WARNING,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("state page of group \"%s\" in partition %d of topic \"%s\" is damaged",
						damage->group, damage->partition, topic),
				 damage->saved ?
				 errdetail("The group starts at its saved frontier, offset %lld.",
						   (long long) damage->frontier) :
				 errdetail("The group starts at the earliest message of the partition.")));
	if (damage->image)
		ereport(WARNING,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("state of group \"%s\" in partition %d of topic \"%s\" is damaged",
						damage->group, damage->partition, topic),
				 errdetail("Messages after offset %lld are delivered again.",
						   (long long) damage->frontier - 1)));
	if (damage->journal_block != 0)
		ereport(WARNING,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("acknowledgements of group \"%s\" in partition %d of topic \"%s\" are damaged in block %u",
						damage->group, damage->partition, topic,
						damage->journal_block),
				 errdetail("Messages may be delivered again.")));
	if (damage->beyond_end)
		ereport(LOG,
				(errmsg("frontier of group \"%s\" in partition %d of topic \"%s\" lies beyond the partition's end",
						damage->group, damage->partition, topic),
				 errdetail("The group starts at the earliest message of the partition.")));
	if (damage->nlost > 0)
		NaradRetainReportLoss(topic, damage->group, damage->partition,
							  damage->nlost);
}
