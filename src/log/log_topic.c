/*-------------------------------------------------------------------------
 *
 * log_topic.c
 *	  The storage layer's shared memory for one topic's file.
 *
 * A topic gets its shared part when it is first appended to, consumed from or
 * looked at in a server run: one pass over the directory, and a look at the
 * last pages of each partition, in local memory; then it is published, unless
 * somebody else was faster.  Before that nobody appends, so what is read is
 * still true when it is published.
 *
 * Tail after a crash: the last record lies within the prepared pages of the
 * open segment, on the last of them that is a data page of this partition and
 * sequence; prepared pages past it are zeros or another segment's of old.  If
 * one of those is damaged, and does not look like a freed segment's, it may have
 * held records: nothing is added to that segment any more, and the next begins
 * at an offset that cannot have been given.  I1, I11.
 *
 * Owns:       the table of NaradLogTopic; rd_amcache of topics.
 * Invariants: I12: an entry is found by file and believed only if its topic
 *             id is the metapage's.  Offsets are never given twice.
 * Locks:      hash lock, nothing under it.
 * Runs in:    any backend; transaction callbacks.
 * On error:   building fails before anything is published.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/subtrans.h"
#include "access/transam.h"
#include "access/twophase.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/storage.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/procarray.h"
#include "storage/shmem.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/resowner.h"

#include "base/base_memory.h"
#include "log/log_events.h"
#include "log/log_hull.h"
#include "log/log_meta.h"
#include "log/log_page.h"
#include "log/log_topic.h"

#define TOPIC_BUCKETS 1024

typedef struct NaradLogTopicCtl
{
	LWLock		lock;			/* rank hash, over the chains */
	pg_atomic_uint32 nmade;		/* topics ever built; numbers their rings */
	NaradLogTopic *buckets[TOPIC_BUCKETS];
} NaradLogTopicCtl;

static NaradLogTopicCtl *TopicCtl;

/* A topic that got another file; the old one goes at commit. */
typedef struct MovedTopic
{
	NaradTopicId topic_id;
	RelFileLocator from;
	RelFileLocator to;
} MovedTopic;

/* This transaction's business with files; see NaradLogFilesMayGo. */
static bool files_may_go;
static RelFileLocator *doomed_files;
static int	ndoomed_files;
static RelFileLocator *topic_files; /* of topics that DDL touched */
static int	ntopic_files;
static MovedTopic *moved_topics;
static int	nmoved_topics;

Size
NaradLogTopicShmemSize(void)
{
	return MAXALIGN(sizeof(NaradLogTopicCtl));
}

void
NaradLogTopicShmemInit(void)
{
	bool		found;

	TopicCtl = ShmemInitStruct("Narad log topics", NaradLogTopicShmemSize(),
							   &found);
	if (!found)
	{
		memset(TopicCtl, 0, sizeof(NaradLogTopicCtl));
		NaradLockInit(&TopicCtl->lock, NARAD_LOCK_HASH);
		pg_atomic_init_u32(&TopicCtl->nmade, 0);
	}
}

/*
 * NaradFullXid
 *
 * A transaction id with its epoch: the one nearest to the present.  What would
 * lie before the first is the first.
 */
uint64
NaradFullXid(TransactionId xid)
{
	uint64		next = U64FromFullTransactionId(ReadNextFullTransactionId());
	int32		distance = (int32) (xid - (TransactionId) next);

	if (distance < 0 && next < FirstNormalTransactionId - (int64) distance)
		return FirstNormalTransactionId;
	return next + distance;
}

/*
 * NaradOldestRunningXid
 *
 * A lower bound of the transactions that may append from now on.
 */
uint64
NaradOldestRunningXid(void)
{
	return NaradFullXid(GetOldestActiveTransactionId());
}

/* ---- building -------------------------------------------------------- */

typedef struct FoundSegment
{
	NaradSegmentRef ref;
	NaradSegmentEntry entry;
} FoundSegment;

/* A record of a transaction that was prepared before the server started. */
typedef struct FoundPending
{
	int			partition;
	TransactionId xid;			/* top-level */
	NaradOffset offset;
} FoundPending;

typedef struct TopicBuild
{
	Relation	rel;
	NaradMetaData meta;
	BlockNumber nblocks;
	FoundSegment *segments;		/* open and sealed, spares at first too */
	int			nsegments;
	int			segments_capacity;
	FoundSegment meta_segment;	/* a META segment with pages left */
	bool		has_meta;
	NaradLogPartition **partitions; /* of those that are in use; plain fields
									 * and atomics only */
	FoundPending *pending;
	int			npending;
	int			pending_capacity;
} TopicBuild;

static void
collect_segment(const NaradSegmentEntry *entry, const NaradSegmentRef *ref,
				void *arg)
{
	TopicBuild *build = arg;
	FoundSegment *found;

	if (entry->state == NARAD_SEGMENT_META)
	{
		if (!build->has_meta && entry->pages_prepared < ref->npages)
		{
			build->has_meta = true;
			build->meta_segment.ref = *ref;
			build->meta_segment.entry = *entry;
		}
		return;
	}
	if (entry->state == NARAD_SEGMENT_SPLIT ||
		entry->partition >= build->meta.npartitions)
		return;
	if (build->nsegments == build->segments_capacity)
	{
		build->segments_capacity *= 2;
		build->segments = repalloc_huge(build->segments,
										(Size) build->segments_capacity *
										sizeof(FoundSegment));
	}
	found = &build->segments[build->nsegments++];
	found->ref = *ref;
	found->entry = *entry;
}

/* By partition; spares after the others; by sequence. */
static int
compare_found(const void *a, const void *b)
{
	const FoundSegment *left = a;
	const FoundSegment *right = b;
	bool		left_spare = left->entry.state == NARAD_SEGMENT_SPARE;
	bool		right_spare = right->entry.state == NARAD_SEGMENT_SPARE;

	if (left->entry.partition != right->entry.partition)
		return left->entry.partition < right->entry.partition ? -1 : 1;
	if (left_spare != right_spare)
		return left_spare ? 1 : -1;
	if (left->entry.sequence != right->entry.sequence)
		return left->entry.sequence < right->entry.sequence ? -1 : 1;
	return 0;
}

/*
 * How many of a segment's first pages are there: extending a file is not
 * WAL-logged, so after a power failure, or on a promoted standby, there may be
 * fewer than were prepared.  Those with records always are.
 */
static uint32
existing_pages(TopicBuild *build, const FoundSegment *segment, uint32 npages)
{
	BlockNumber first = segment->ref.first_block;

	if (first >= build->nblocks)
		return 0;
	return Min(npages, build->nblocks - first);
}

/* Is it a data page of the segment? */
static bool
is_page_of(TopicBuild *build, const FoundSegment *segment, Page page)
{
	NaradDataSpecial *special;

	if (!NaradDataPageIsValid(page, build->meta.topic_id))
		return false;
	special = NaradDataPageSpecial(page);
	return special->head.partition == segment->entry.partition &&
		special->sequence == segment->entry.sequence;
}

/* The offset after the last record that begins on a page, and its time. */
static NaradOffset
page_end(Page page, int64 *time)
{
	NaradDataSpecial *special = NaradDataPageSpecial(page);
	OffsetNumber last = PageGetMaxOffsetNumber(page);
	NaradRecordHeader hdr;

	*time = special->base_time;
	if (last < NaradFirstRecordItem(page))
		return special->base_offset;
	memcpy(&hdr, PageGetItem(page, PageGetItemId(page, last)), sizeof(hdr));
	*time = NaradHeaderTime(special, &hdr);
	return NaradHeaderOffset(special, &hdr) + 1;
}

/*
 * One past the highest offset that a damaged page and those after it, npages
 * together, can have held, if its special space looks sound; else 0.  Only an
 * offset that the inserter brought can be far from the one before, and it then
 * is its page's base.
 */
static NaradOffset
damaged_reach(TopicBuild *build, const FoundSegment *segment,
			  const char *page, uint32 npages)
{
	NaradDataSpecial special;

	if (!NaradDamagedPageSpecial(page, build->meta.topic_id, &special) ||
		special.head.partition != segment->entry.partition ||
		special.sequence != segment->entry.sequence)
		return 0;
	return special.base_offset + (uint64) npages * (NARAD_MAX_DELTA + 1);
}

/*
 * Was a damaged page left by a segment that is gone, by its special space?  Then
 * it never held records of the one it lies in now.  Segments of a partition go
 * from the first on, and the last one stays, so what is gone comes before the
 * first there is.  Nothing else is believed: it may be these bytes that are
 * damaged, and then an offset could be given twice.
 */
static bool
is_left_over(TopicBuild *build, const char *page)
{
	NaradDataSpecial special;
	int			i;

	if (!NaradDamagedPageSpecial(page, build->meta.topic_id, &special))
		return false;
	for (i = 0; i < build->nsegments; i++)
	{
		const FoundSegment *found = &build->segments[i];

		if (found->entry.partition == special.head.partition &&
			found->entry.state != NARAD_SEGMENT_SPARE)
			return special.sequence < found->entry.sequence &&
				special.base_offset < found->entry.first_offset;
	}
	return false;
}

/* Finds the tail of a partition in its open segment. */
static void
recover_tail(TopicBuild *build, NaradLogPartition *part,
			 const FoundSegment *segment)
{
	uint32		prepared = existing_pages(build, segment,
										  segment->entry.pages_prepared);
	NaradOffset end = segment->entry.first_offset;
	NaradOffset reach = 0;
	uint32		damaged = 0;	/* one past the last damaged page */
	PGAlignedBlock copy;
	uint32		page;
	int64		time;

	for (page = prepared; page > 0; page--)
	{
		CHECK_FOR_INTERRUPTS();
		if (!NaradPageCopyChecked(build->rel,
								  segment->ref.first_block + page - 1,
								  copy.data))
		{
			if (is_left_over(build, copy.data))
				continue;
			damaged = Max(damaged, page);
			reach = Max(reach, damaged_reach(build, segment, copy.data,
											 damaged - page + 1));
		}
		else if (is_page_of(build, segment, (Page) copy.data))
		{
			end = Max(end, page_end((Page) copy.data, &time));
			part->last_time = Max(part->last_time, time);
			break;
		}
	}

	part->has_open = true;
	part->open = segment->ref;
	part->open_prepared = prepared;
	part->next_page = Max(page, damaged);	/* readers must meet the damage */
	part->open_epoch = segment->entry.epoch;
	part->newest_xid = U64FromFullTransactionId(ReadNextFullTransactionId());
	part->first_time = part->last_time;
	if (page > 0 &&
		NaradPageCopyChecked(build->rel, segment->ref.first_block, copy.data) &&
		is_page_of(build, segment, (Page) copy.data))
		part->first_time = NaradDataPageSpecial(copy.data)->base_time;

	/* Whether these times were brought, or there are ids, nobody knows. */
	part->has_ids = page > 0;
	part->imported = page > 0 &&
		part->last_time < GetCurrentTimestamp() - NARAD_IMPORT_AGE;
	part->age_from = part->imported ? GetCurrentTimestamp() :
		part->first_time;

	if (damaged > 0)
	{
		NaradOffset skipped = end +
		(uint64) (damaged - page + 1) * (NARAD_MAX_DELTA + 1);

		skipped = Max(skipped, reach);
		part->must_seal = true;
		ereport(LOG,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("end of partition %u of topic \"%s\" is damaged from block %u on",
						segment->entry.partition,
						RelationGetRelationName(build->rel),
						segment->ref.first_block + page),
				 errdetail("Offsets " UINT64_FORMAT " to " UINT64_FORMAT " are skipped.",
						   end, skipped - 1)));
		end = skipped;
	}
	pg_atomic_init_u64(&part->end_offset, end);
}

/* Remembers records of prepared transactions in a segment's first pages. */
static void
find_pending(TopicBuild *build, const FoundSegment *segment, uint32 npages,
			 TransactionId oldest)
{
	PGAlignedBlock copy;
	Page		page = (Page) copy.data;
	uint32		i;

	for (i = 0; i < npages; i++)
	{
		OffsetNumber item;

		CHECK_FOR_INTERRUPTS();
		if (!NaradPageCopyChecked(build->rel, segment->ref.first_block + i,
								  copy.data) ||
			!is_page_of(build, segment, page))
			continue;
		for (item = NaradFirstRecordItem(page);
			 item <= PageGetMaxOffsetNumber(page); item++)
		{
			NaradRecordHeader hdr;
			FoundPending *found;

			memcpy(&hdr, PageGetItem(page, PageGetItemId(page, item)),
				   sizeof(hdr));
			if ((hdr.flags & NARAD_RECORD_VOLATILE) != 0 ||
				!TransactionIdIsNormal(hdr.xmin) ||
				TransactionIdPrecedes(hdr.xmin, oldest) ||
				TransactionIdIsCurrentTransactionId(hdr.xmin) ||
				!TransactionIdIsInProgress(hdr.xmin))
				continue;
			if (build->npending == build->pending_capacity)
			{
				build->pending_capacity = Max(64, build->pending_capacity * 2);
				build->pending = build->pending == NULL ?
					palloc(build->pending_capacity * sizeof(FoundPending)) :
					repalloc_huge(build->pending, (Size) sizeof(FoundPending) *
								  build->pending_capacity);
			}
			found = &build->pending[build->npending++];
			found->partition = segment->entry.partition;
			found->xid = SubTransGetTopmostTransaction(hdr.xmin);
			found->offset = NaradHeaderOffset(NaradDataPageSpecial(page), &hdr);
		}
	}
}

/* One partition from its segments, sorted; those of state spare come last. */
static void
build_partition(TopicBuild *build, NaradLogPartition *part,
				const FoundSegment *segments, int nsegments, NaradOffset base,
				TransactionId oldest)
{
	const FoundSegment *last;
	int			nmap = 0;

	part->last_time = PG_INT64_MIN;
	pg_atomic_init_u64(&part->start_offset, base);
	pg_atomic_init_u64(&part->end_offset, base);

	while (nmap < nsegments && segments[nmap].entry.state != NARAD_SEGMENT_SPARE)
		nmap++;
	if (nmap < nsegments)
	{
		part->has_spare = true;
		part->spare = segments[nmap].ref;
		part->spare_prepared = existing_pages(build, &segments[nmap],
											  segments[nmap].entry.pages_prepared);
		part->spare_oldest_xid = NaradOldestRunningXid();
	}
	part->nmap = nmap;
	if (nmap == 0)
		return;

	last = &segments[nmap - 1];
	part->next_sequence = last->entry.sequence + 1;
	part->last_time = last->entry.last_time;
	pg_atomic_init_u64(&part->start_offset, segments[0].entry.first_offset);
	if (last->entry.state == NARAD_SEGMENT_OPEN)
		recover_tail(build, part, last);
	else
	{
		pg_atomic_init_u64(&part->end_offset, last->entry.end_offset);
	}

	/* A long transaction may have filled a later segment than a young one. */
	if (TransactionIdIsValid(oldest))
	{
		int			i;

		for (i = nmap - 1; i >= 0; i--)
		{
			bool		is_open = segments[i].entry.state == NARAD_SEGMENT_OPEN;

			if (!is_open &&
				segments[i].entry.newest_xid < NaradFullXid(oldest))
				continue;
			find_pending(build, &segments[i],
						 is_open ? part->next_page :
						 existing_pages(build, &segments[i],
										segments[i].entry.pages_used),
						 oldest);
		}
	}
}

/*
 * Reads everything into local memory.  Transactions that were prepared before
 * the server started have no hull; only they can have open records in a topic
 * that is not attached yet (besides our own).
 */
static void
build_local(TopicBuild *build)
{
	NaradOffset *bases;
	TransactionId oldest = InvalidTransactionId;
	int			partition;
	int			next = 0;

	build->nblocks = RelationGetNumberOfBlocks(build->rel);
	build->segments_capacity = 64;
	build->segments = palloc(build->segments_capacity * sizeof(FoundSegment));
	NaradDirectoryWalk(build->rel, build->meta.segment_pages, collect_segment,
					   build);
	qsort(build->segments, build->nsegments, sizeof(FoundSegment),
		  compare_found);
	bases = NaradMetaStartOffsets(build->rel, &build->meta);
	if (max_prepared_xacts > 0)
		oldest = GetOldestActiveTransactionId();

	build->partitions = palloc0(build->meta.npartitions *
								sizeof(NaradLogPartition *));
	for (partition = 0; partition < build->meta.npartitions; partition++)
	{
		int			first = next;

		while (next < build->nsegments &&
			   build->segments[next].entry.partition == partition)
			next++;
		if (next == first && bases[partition] == 0)
			continue;
		build->partitions[partition] = palloc0(sizeof(NaradLogPartition));
		build_partition(build, build->partitions[partition],
						&build->segments[first], next - first,
						bases[partition], oldest);
	}
}

/* ---- shared memory --------------------------------------------------- */

/* Frees a topic that is in no chain, or never was. */
static void
free_topic(NaradLogTopic *topic)
{
	NaradLogPartitionsFree(topic);
	NaradFree(topic);
}

/*
 * Makes the partitions of a topic that nobody else sees yet from what was
 * built; false when out of memory.
 */
static bool
share_partitions(NaradLogTopic *topic, TopicBuild *build)
{
	int			next = 0;
	int			partition;
	int			i;

	if (!NaradArrayReserve(&topic->partitions, build->meta.npartitions))
		return false;
	for (partition = 0; partition < build->meta.npartitions; partition++)
	{
		NaradLogPartition *part;
		uint32		k;

		if (build->partitions[partition] == NULL)
			continue;
		part = NaradLogPartitionMake(topic, build->partitions[partition],
									 partition);
		if (part == NULL)
			return false;
		while (next < build->nsegments &&
			   build->segments[next].entry.partition < partition)
			next++;
		for (k = 0; k < part->nmap; k++)
			part->map[k] = build->segments[next + k].ref;
		NaradArraySet(&topic->partitions, partition, part);
	}
	for (i = 0; i < build->npending; i++)
	{
		FoundPending *found = &build->pending[i];

		if (!NaradHullRestore(NaradLogPartitionFind(topic, found->partition),
							  found->xid, found->offset))
			return false;
	}
	return true;
}

/* The shared topic from what was built; NULL when out of memory. */
static NaradLogTopic *
build_shared(TopicBuild *build)
{
	NaradLogTopic *topic = NaradAlloc(sizeof(NaradLogTopic));

	if (topic == NULL)
		return NULL;
	topic->locator = NaradRelationLocator(build->rel);
	topic->topic_id = build->meta.topic_id;
	topic->database = NaradLocatorDatabase(topic->locator);
	topic->segment_pages = build->meta.segment_pages;
	pg_atomic_init_u32(&topic->npartitions, build->meta.npartitions);
	NaradLockInit(&topic->alloc_lock, NARAD_LOCK_ALLOC);
	NaradLockInit(&topic->groups_lock, NARAD_LOCK_GROUPS);
	pg_atomic_init_u32(&topic->epoch, 0);
	pg_atomic_init_u32(&topic->relid, RelationGetRelid(build->rel));
	pg_atomic_init_u32(&topic->retention_wanted, 0);
	pg_atomic_init_u32(&topic->drops_settled, 0);
	if (build->has_meta)
	{
		topic->meta_block = build->meta_segment.ref.first_block +
			build->meta_segment.entry.pages_prepared;
		topic->meta_left = build->meta_segment.ref.npages -
			build->meta_segment.entry.pages_prepared;
		topic->meta_dir_block = build->meta_segment.ref.dir_block;
		topic->meta_dir_index = build->meta_segment.ref.dir_index;
	}

	/*
	 * A reader may have read the ring of this topic's file before it was
	 * moved: positions of two rings are never close, so that one of the other
	 * is taken for overrun, and all that waits is looked at again.
	 */
	topic->ring_base =
		(uint64) pg_atomic_add_fetch_u32(&TopicCtl->nmade, 1) << 40;

	if (!share_partitions(topic, build))
	{
		free_topic(topic);
		return NULL;
	}
	return topic;
}

static NaradLogTopic **
find_bucket(const RelFileLocator *locator)
{
	uint32		hash = hash_bytes((const unsigned char *) locator,
								  sizeof(RelFileLocator));

	return &TopicCtl->buckets[hash % TOPIC_BUCKETS];
}

/* The link to a file's topic, or to the chain's end.  Under the hash lock. */
static NaradLogTopic **
find_link(const RelFileLocator *locator)
{
	NaradLogTopic **link = find_bucket(locator);

	while (*link != NULL && !RelFileLocatorEquals((*link)->locator, *locator))
		link = &(*link)->next;
	return link;
}

/*
 * Puts a topic into the table and returns the one to be used: the other, if
 * somebody was faster.  One of another topic id is out of date: the file was
 * truncated in place and made anew, or replaced behind the server's back.
 */
static NaradLogTopic *
publish(NaradLogTopic *topic)
{
	NaradLogTopic **link;
	NaradLogTopic *other;
	bool		is_stale = false;

	LWLockAcquire(&TopicCtl->lock, LW_EXCLUSIVE);
	link = find_link(&topic->locator);
	other = *link;
	if (other == NULL || other->topic_id != topic->topic_id)
	{
		is_stale = other != NULL;
		topic->next = is_stale ? other->next : NULL;
		*link = topic;
	}
	LWLockRelease(&TopicCtl->lock);

	if (other == NULL)
		return topic;
	if (is_stale)
	{
		if (NaradLogEventTable.topic_gone != NULL)
			NaradLogEventTable.topic_gone(other->database, other->topic_id);
		free_topic(other);
		return topic;
	}
	free_topic(topic);
	return other;
}

/* The shared part of a topic if there is one, else NULL. */
static NaradLogTopic *
find_shared(Relation rel, NaradTopicId topic_id)
{
	RelFileLocator locator = NaradRelationLocator(rel);
	NaradLogTopic *topic;

	LWLockAcquire(&TopicCtl->lock, LW_SHARED);
	topic = *find_link(&locator);
	LWLockRelease(&TopicCtl->lock);
	return topic != NULL && topic->topic_id == topic_id ? topic : NULL;
}

/*
 * NaradLogTopicWalk
 *
 * Calls back for each topic, under the hash lock, shared.
 */
void
NaradLogTopicWalk(NaradLogTopicVisitor visit, void *arg)
{
	NaradLogTopic *topic;
	int			bucket;

	LWLockAcquire(&TopicCtl->lock, LW_SHARED);
	for (bucket = 0; bucket < TOPIC_BUCKETS; bucket++)
		for (topic = TopicCtl->buckets[bucket]; topic != NULL;
			 topic = topic->next)
			visit(topic, arg);
	LWLockRelease(&TopicCtl->lock);
}

/* The shared part of a topic, built if need be; NULL if memory is short. */
static NaradLogTopic *
attach_topic(Relation rel)
{
	TopicBuild	build = {0};
	NaradLogTopic *topic;
	MemoryContext context;
	MemoryContext old;

	if (TopicCtl == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("topic \"%s\" cannot be used during a binary upgrade",
						RelationGetRelationName(rel))));
	if (!NaradMetaRead(rel, &build.meta))
		elog(ERROR, "topic \"%s\" has lost its metapage",
			 RelationGetRelationName(rel));
	topic = find_shared(rel, build.meta.topic_id);
	if (topic != NULL)
		return topic;

	/* This file, like any, may go with this transaction: look at its end. */
	NaradLogFilesMayGo();

	context = AllocSetContextCreate(CurrentMemoryContext, "narad attach",
									ALLOCSET_DEFAULT_SIZES);
	old = MemoryContextSwitchTo(context);
	build.rel = rel;
	build_local(&build);
	topic = build_shared(&build);
	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
	return topic != NULL ? publish(topic) : NULL;
}

/* ---- what a backend knows -------------------------------------------- */

/*
 * NaradRelInfoGet
 *
 * What this backend knows of a topic; NULL while its file is empty.  The
 * number of partitions is that of now: it may grow while the topic is in use,
 * and on a standby no invalidation tells of that in time.  It never falls, as
 * it would for who read it from the metapage just before memory had it, too.
 * Any lock.
 */
NaradRelInfo *
NaradRelInfoGet(Relation rel)
{
	NaradRelInfo *info = rel->rd_amcache;
	NaradMetaData meta;

	if (info != NULL && info->shared != NULL)
	{
		int			npartitions =
		(int) pg_atomic_read_u32(&info->shared->npartitions);

		info->npartitions = Max(info->npartitions, npartitions);
		return info;
	}
	if (!NaradMetaRead(rel, &meta))
		return NULL;
	info = rel->rd_amcache;
	if (info == NULL)
	{
		info = MemoryContextAllocZero(CacheMemoryContext,
									  sizeof(NaradRelInfo));
		rel->rd_amcache = info;
	}
	info->topic_id = meta.topic_id;
	info->segment_pages = meta.segment_pages;
	info->npartitions = meta.npartitions;
	return info;
}

/*
 * NaradRelInfoLook
 *
 * The same, with the shared part if there is one already; never makes one, so
 * that it works when shared memory is used up.  AccessShareLock, no narad
 * lock.
 */
NaradRelInfo *
NaradRelInfoLook(Relation rel)
{
	NaradRelInfo *info = NaradRelInfoGet(rel);

	if (info != NULL && info->shared == NULL && TopicCtl != NULL &&
		!RecoveryInProgress())
		info->shared = find_shared(rel, info->topic_id);
	return info;
}

/*
 * NaradRelInfoAttach
 *
 * The same with the shared part, which is built if need be; without it during
 * recovery.  AccessShareLock, no narad lock.  May error 53200, and 55000 under
 * binary upgrade, where there is no shared memory.
 */
NaradRelInfo *
NaradRelInfoAttach(Relation rel)
{
	NaradRelInfo *info = NaradRelInfoTryAttach(rel);

	if (info != NULL && info->shared == NULL && !RecoveryInProgress())
		NaradReportOutOfMemory("topics");
	return info;
}

/*
 * NaradRelInfoTryAttach
 *
 * The same, but without the shared part if there is no memory for it.
 */
NaradRelInfo *
NaradRelInfoTryAttach(Relation rel)
{
	NaradRelInfo *info = NaradRelInfoGet(rel);

	if (info != NULL && info->shared == NULL && !RecoveryInProgress())
	{
		NaradLogTopic *topic = attach_topic(rel);

		info = NaradRelInfoGet(rel);
		info->shared = topic;
		if (topic != NULL &&
			pg_atomic_read_u32(&topic->relid) != RelationGetRelid(rel))
			pg_atomic_write_u32(&topic->relid, RelationGetRelid(rel));
	}
	return info;
}

/*
 * NaradLogPartitionMapFind
 *
 * The segment of a sequence number in the map, or NULL.  Map lock.
 */
NaradSegmentRef *
NaradLogPartitionMapFind(NaradLogPartition *part, uint64 sequence)
{
	uint32		low = 0;
	uint32		high = part->nmap;

	while (low < high)
	{
		uint32		mid = low + (high - low) / 2;

		if (part->map[mid].sequence < sequence)
			low = mid + 1;
		else
			high = mid;
	}
	return low < part->nmap && part->map[low].sequence == sequence ?
		&part->map[low] : NULL;
}

/*
 * NaradLogPartitionSetFlags
 *
 * What readers are to know of a segment's entry: sets the flags of a segment
 * in the map, if it is there and has others.  No narad lock of rank tail or
 * later.
 */
void
NaradLogPartitionSetFlags(NaradLogPartition *part, uint64 sequence,
						  uint16 flags)
{
	NaradSegmentRef *ref;
	bool		is_same;

	LWLockAcquire(&part->map_lock, LW_SHARED);
	ref = NaradLogPartitionMapFind(part, sequence);
	is_same = ref == NULL || ref->flags == flags;
	LWLockRelease(&part->map_lock);
	if (is_same)
		return;

	LWLockAcquire(&part->tail_lock, LW_EXCLUSIVE);
	LWLockAcquire(&part->map_lock, LW_EXCLUSIVE);
	ref = NaradLogPartitionMapFind(part, sequence);
	if (ref != NULL)
		ref->flags = flags;
	LWLockRelease(&part->map_lock);
	LWLockRelease(&part->tail_lock);
}

/*
 * NaradRelInfoCreate
 *
 * The same; writes the metapage first if the file is empty.  RowExclusiveLock,
 * no narad lock, not during recovery.
 */
NaradRelInfo *
NaradRelInfoCreate(Relation rel, int npartitions, uint32 segment_pages)
{
	NaradRelInfo *info = rel->rd_amcache;

	if (info != NULL && info->shared != NULL)
		return NaradRelInfoGet(rel);
	if (NaradRelInfoGet(rel) == NULL)
		NaradMetaCreate(rel, npartitions, segment_pages);
	info = NaradRelInfoAttach(rel);
	Assert(info != NULL && info->shared != NULL);
	return info;
}

/*
 * NaradRelInfoForget
 *
 * What this backend knows of rel is out of date: its file was truncated in
 * place.
 */
void
NaradRelInfoForget(Relation rel)
{
	if (rel->rd_amcache != NULL)
	{
		pfree(rel->rd_amcache);
		rel->rd_amcache = NULL;
	}
}

static void
begin_epoch(NaradMetaData *meta, void *arg)
{
	meta->system_identifier = GetSystemIdentifier();
	meta->timeline = GetWALInsertionTimeLine();
	meta->epoch++;
}

/*
 * NaradLogTopicSettleEpoch
 *
 * Makes sure, at a server run's first append, that the topic's epoch is that
 * of this server: another system identifier or timeline than the last append
 * had begins a new one.  Segments opened in an earlier epoch are sealed at
 * their partition's next append.  RowExclusiveLock, no narad lock.
 */
void
NaradLogTopicSettleEpoch(Relation rel, NaradLogTopic *topic)
{
	if (pg_atomic_read_u32(&topic->epoch) != 0)
		return;

	LWLockAcquire(&topic->alloc_lock, LW_EXCLUSIVE);
	if (pg_atomic_read_u32(&topic->epoch) == 0)
	{
		NaradMetaData meta;

		if (!NaradMetaRead(rel, &meta))
			elog(ERROR, "topic \"%s\" has lost its metapage",
				 RelationGetRelationName(rel));
		if (meta.system_identifier != GetSystemIdentifier() ||
			meta.timeline != GetWALInsertionTimeLine())
		{
			NaradMetaModify(rel, begin_epoch, NULL);
			meta.epoch++;
		}
		pg_atomic_write_u32(&topic->epoch, meta.epoch);
	}
	LWLockRelease(&topic->alloc_lock);
}

/* ---- files that go --------------------------------------------------- */

/*
 * NaradLogFilesMayGo
 *
 * A relation may be dropped, truncated, moved or (when its creation is rolled
 * back) undone by this transaction: look at its end.  Also attaches to shared
 * memory, which a callback could not.
 */
void
NaradLogFilesMayGo(void)
{
	files_may_go = true;
	if (TopicCtl != NULL)
		NaradMemoryArea();
}

/*
 * NaradLogTopicFileMayGo
 *
 * The same of one file, known to be a topic's: it was made, or may be dropped,
 * by this transaction.
 */
void
NaradLogTopicFileMayGo(const RelFileLocator *locator)
{
	MemoryContext old;

	if (TopicCtl == NULL)
		return;
	old = MemoryContextSwitchTo(TopTransactionContext);
	if (topic_files == NULL)
		topic_files = palloc(sizeof(RelFileLocator));
	else
		topic_files = repalloc_huge(topic_files, (Size) (ntopic_files + 1) *
									sizeof(RelFileLocator));
	topic_files[ntopic_files++] = *locator;
	MemoryContextSwitchTo(old);
	NaradLogFilesMayGo();
}

/*
 * NaradLogTopicKeep
 *
 * Locks the topic once more in the name of the (sub)transaction.  A function
 * called from a cursor locks in the cursor's name: when a later fetch fails
 * under a savepoint, that lock is gone with the rollback to it, though the
 * transaction remembers what earlier fetches did at its own level.
 */
void
NaradLogTopicKeep(Relation rel)
{
	ResourceOwner owner = CurrentResourceOwner;

	CurrentResourceOwner = CurTransactionResourceOwner;
	LockRelationOid(RelationGetRelid(rel), RowExclusiveLock);
	CurrentResourceOwner = owner;
}

/*
 * NaradLogTopicUnkeep
 *
 * Takes back one NaradLogTopicKeep of the same (sub)transaction, which
 * remembers nothing of the topic for its sake.
 */
void
NaradLogTopicUnkeep(Oid relid)
{
	ResourceOwner owner = CurrentResourceOwner;

	CurrentResourceOwner = CurTransactionResourceOwner;
	UnlockRelationOid(relid, RowExclusiveLock);
	CurrentResourceOwner = owner;
}

/*
 * NaradLogTopicMoved
 *
 * One of the topic's two files goes at this transaction's end, whichever way
 * it ends, and the topic lives on in the other: topic_gone is not called then,
 * unless that goes, too.
 */
void
NaradLogTopicMoved(NaradTopicId topic_id, const RelFileLocator *from,
				   const RelFileLocator *to)
{
	MemoryContext old = MemoryContextSwitchTo(TopTransactionContext);
	MovedTopic *moved;

	if (moved_topics == NULL)
		moved_topics = palloc(sizeof(MovedTopic));
	else
		moved_topics = repalloc(moved_topics, (nmoved_topics + 1) *
								sizeof(MovedTopic));
	moved = &moved_topics[nmoved_topics++];
	moved->topic_id = topic_id;
	moved->from = *from;
	moved->to = *to;
	MemoryContextSwitchTo(old);
	NaradLogFilesMayGo();
}

/*
 * NaradLogTopicReplaced
 *
 * A file was truncated in place: it is another topic now than the one that
 * may have been moved into it before.
 */
void
NaradLogTopicReplaced(const RelFileLocator *file)
{
	int			nkept = 0;

	for (int i = 0; i < nmoved_topics; i++)
	{
		if (!RelFileLocatorEquals(moved_topics[i].to, *file))
			moved_topics[nkept++] = moved_topics[i];
	}
	nmoved_topics = nkept;
}

/*
 * NaradLogCollectFiles
 *
 * Before commit, while memory may still be allocated: which files will go.
 */
void
NaradLogCollectFiles(void)
{
	MemoryContext old;

	if (!files_may_go || TopicCtl == NULL)
		return;
	old = MemoryContextSwitchTo(TopTransactionContext);
	ndoomed_files = smgrGetPendingDeletes(true, &doomed_files);
	MemoryContextSwitchTo(old);
}

/* Is it a file of a topic, of those that the caller's transaction deletes? */
static bool
is_topic_file(const RelFileLocator *locator)
{
	bool		is_known;
	int			i;

	for (i = 0; i < ntopic_files; i++)
		if (RelFileLocatorEquals(topic_files[i], *locator))
			return true;
	LWLockAcquire(&TopicCtl->lock, LW_SHARED);
	is_known = *find_link(locator) != NULL;
	LWLockRelease(&TopicCtl->lock);
	return is_known;
}

/*
 * NaradLogCheckPrepare
 *
 * Refuses to prepare a transaction whose end, either way, deletes a topic's
 * file: no callback would tell us then that its shared part must go.
 */
void
NaradLogCheckPrepare(void)
{
	int			commit;

	if (!files_may_go || TopicCtl == NULL)
		return;
	for (commit = 0; commit < 2; commit++)
	{
		RelFileLocator *files;
		int			nfiles = smgrGetPendingDeletes(commit != 0, &files);
		int			i;

		for (i = 0; i < nfiles; i++)
			if (is_topic_file(&files[i]))
				ereport(ERROR,
						(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
						 errmsg("cannot PREPARE a transaction that has created, truncated, moved or dropped a topic"),
						 errhint("Do this in a transaction of its own.")));
	}
}

static bool
is_among(const RelFileLocator *files, int nfiles, const RelFileLocator *file)
{
	int			i;

	for (i = 0; i < nfiles; i++)
	{
		if (RelFileLocatorEquals(files[i], *file))
			return true;
	}
	return false;
}

/*
 * Does a topic that loses a file have another that stays?  At commit those it
 * was moved to count, at abort those it was moved from.
 */
static bool
has_other_file(NaradTopicId topic_id, const RelFileLocator *files, int nfiles,
			   bool is_commit)
{
	int			i;

	for (i = 0; i < nmoved_topics; i++)
	{
		const MovedTopic *moved = &moved_topics[i];

		if (moved->topic_id == topic_id &&
			!is_among(files, nfiles, is_commit ? &moved->to : &moved->from))
			return true;
	}
	return false;
}

/* A subtransaction aborts: what it moved was not. */
static void
forget_moves(const RelFileLocator *files, int nfiles)
{
	int			nkept = 0;
	int			i;

	for (i = 0; i < nmoved_topics; i++)
	{
		if (!is_among(files, nfiles, &moved_topics[i].to))
			moved_topics[nkept++] = moved_topics[i];
	}
	nmoved_topics = nkept;
}

/*
 * Frees a topic that is in no chain any more; tells the layer above if the
 * topic is gone with the file.
 */
static void
forget_topic(NaradLogTopic *topic, bool is_gone)
{
	if (is_gone && NaradLogEventTable.topic_gone != NULL)
		NaradLogEventTable.topic_gone(topic->database, topic->topic_id);
	free_topic(topic);
}

/*
 * NaradLogForgetFiles
 *
 * Frees the shared part of topics whose files this (sub)transaction's commit
 * or abort deletes.  Nobody else can use them: this transaction had them
 * locked exclusively, or nobody else ever saw them.  From the transaction
 * callbacks; the abort of a subtransaction counts as abort.  I12.
 */
void
NaradLogForgetFiles(bool is_commit)
{
	RelFileLocator *files = doomed_files;
	int			nfiles = ndoomed_files;
	int			i;

	if (!files_may_go || TopicCtl == NULL)
		return;
	if (!is_commit)
		nfiles = smgrGetPendingDeletes(false, &files);

	for (i = 0; i < nfiles; i++)
	{
		NaradLogTopic **link;
		NaradLogTopic *topic;

		LWLockAcquire(&TopicCtl->lock, LW_EXCLUSIVE);
		link = find_link(&files[i]);
		topic = *link;
		if (topic != NULL)
			*link = topic->next;
		LWLockRelease(&TopicCtl->lock);
		if (topic != NULL)
			forget_topic(topic, !has_other_file(topic->topic_id, files,
												nfiles, is_commit));
	}
	if (!is_commit)
		forget_moves(files, nfiles);
}

/*
 * NaradLogForgetDatabase
 *
 * The same for all topics of a database that was dropped, or whose files are
 * others now; is_gone says which.  Nobody is connected to it.
 */
void
NaradLogForgetDatabase(Oid database, bool is_gone)
{
	int			bucket;

	if (TopicCtl == NULL)
		return;
	for (bucket = 0; bucket < TOPIC_BUCKETS; bucket++)
	{
		NaradLogTopic *gone = NULL;
		NaradLogTopic **link;

		LWLockAcquire(&TopicCtl->lock, LW_EXCLUSIVE);
		link = &TopicCtl->buckets[bucket];
		while (*link != NULL)
		{
			NaradLogTopic *topic = *link;

			if (topic->database == database)
			{
				*link = topic->next;
				topic->next = gone;
				gone = topic;
			}
			else
				link = &topic->next;
		}
		LWLockRelease(&TopicCtl->lock);

		while (gone != NULL)
		{
			NaradLogTopic *topic = gone;

			gone = topic->next;
			forget_topic(topic, is_gone);
		}
	}
}

/*
 * NaradLogFilesReset
 *
 * The transaction is over.
 */
void
NaradLogFilesReset(void)
{
	files_may_go = false;
	doomed_files = NULL;
	ndoomed_files = 0;
	topic_files = NULL;
	ntopic_files = 0;
	moved_topics = NULL;
	nmoved_topics = 0;
}
