/*-------------------------------------------------------------------------
 *
 * log_topic.h
 *	  The storage layer's shared memory for one topic's file.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LOG_TOPIC_H
#define LOG_TOPIC_H

#include "base/base_array.h"
#include "base/base_compat.h"
#include "base/base_lock.h"
#include "lib/ilist.h"
#include "log/log_segment.h"
#include "port/atomics.h"
#include "storage/condition_variable.h"
#include "utils/relcache.h"

#define NARAD_RING_SIZE 64

/* A record whose time is so far behind the clock was not produced now. */
#define NARAD_IMPORT_AGE USECS_PER_DAY

/*
 * The offsets one open transaction has appended to one partition, from the
 * first to the last; others' may lie between.
 */
typedef struct NaradHull
{
	dlist_node	node;			/* in NaradLogPartition.hulls; hull lock */
	struct NaradLogPartition *part; /* constant while in use */
	struct NaradHull *next_mine;	/* of the owner's; owner only */
	TransactionId xid;			/* top-level; constant while in use */
	int			nest_level;		/* that it was made at, or given to by a
								 * subtransaction's commit; owner only */
	bool		ownerless;		/* prepared, or adopted by a reader: nobody's
								 * callback will end it; hull lock */
	NaradOffset first;			/* NARAD_INVALID_OFFSET before the first
								 * append; writer: owner under tail and hull
								 * lock; readers: hull lock */
	NaradOffset last;			/* same */
	uint64		nrecords;		/* appended; owner only */
} NaradHull;

typedef struct NaradLogPartition
{
	int			partition;		/* constant */
	NaradTopicId topic_id;		/* constant */
	LWLock		tail_lock;
	LWLock		map_lock;
	LWLock		hull_lock;

	/* Large appends: written under tail_lock; the CV is for those who wait. */
	int			gate_owner;		/* pgprocno + 1 of the holder, or 0 */
	NaradOffset gate_end;		/* end offset once the holder is done or gone */
	ConditionVariable gate_cv;	/* also when `preparing` is cleared */

	/* The tail: all under tail_lock. */
	bool		has_open;
	bool		has_spare;
	bool		preparing;		/* somebody prepares pages or a spare */
	bool		must_seal;		/* nothing may be added to open: its tail was
								 * found damaged, or it is of an older epoch */
	NaradSegmentRef open;
	NaradSegmentRef spare;
	uint32		open_prepared;	/* pages of the open segment that exist */
	uint32		spare_prepared;
	uint32		next_page;		/* first page of open never written to */
	uint64		next_sequence;	/* of the segment to be opened next */
	int64		last_time;		/* produced_at of the last record, or
								 * PG_INT64_MIN */
	int64		first_time;		/* of the open segment's first record ... */
	int64		age_from;		/* ... and when that came, by the clock */
	bool		imported;		/* the open segment has, or may have, times
								 * that inserters brought */
	bool		has_ids;		/* same, and deduplication ids */
	uint64		newest_xid;		/* FullTransactionId, of the open segment */
	uint64		spare_oldest_xid;	/* lower bound for the spare, once opened */
	uint32		open_epoch;		/* of the open segment */

	/* Written under tail_lock, read by anybody. */
	pg_atomic_uint32 tail_block;	/* last data page written of the open
									 * segment, or InvalidBlockNumber */
	pg_atomic_uint32 tail_buffer;	/* where it was last seen in the buffer
									 * pool, or InvalidBuffer: a hint */
	pg_atomic_uint64 end_offset;	/* next offset to be given */
	pg_atomic_uint64 start_offset;	/* earliest retained */
	pg_atomic_uint64 corrupt_records;	/* met since start */

	/* Segments by sequence, under map_lock (writers hold tail_lock too). */
	NaradSegmentRef *map;
	uint32		nmap;
	uint32		map_capacity;

	/* Open transactions and those that ended, under hull_lock. */
	dlist_head	hulls;
	pg_atomic_uint32 nownerless;	/* ownerless hulls; read by anybody */
	pg_atomic_uint64 ring_head; /* entries ever put; read by anybody */
	NaradRange	ring[NARAD_RING_SIZE];
} NaradLogPartition;

/*
 * One per file of a topic that somebody appended to, consumed from or looked
 * at since the server started.  Found by RelFileLocator; freed when the file
 * is dropped by a committed or aborted transaction.  Constant but for the
 * partitions and the allocator's fields.
 */
typedef struct NaradLogTopic
{
	RelFileLocator locator;
	struct NaradLogTopic *next; /* in its bucket; hash lock */
	NaradTopicId topic_id;
	Oid			database;
	uint32		segment_pages;
	uint64		ring_base;		/* where the partitions' rings begin */
	LWLock		alloc_lock;
	LWLock		groups_lock;	/* group directory and state maps on disk */
	pg_atomic_uint32 epoch;		/* 0 until this server run's first append;
								 * written under alloc_lock */
	pg_atomic_uint32 relid;		/* refreshed by whoever attaches it */
	pg_atomic_uint32 retention_wanted;	/* log_retain.c */
	pg_atomic_uint32 drops_settled; /* cleanup is 'settled', when retention
									 * looked last */

	/* Allocator, under alloc_lock: nothing below the hints is free. */
	uint32		free_hint;		/* slot */
	uint32		split_hint[NARAD_CLASS_WHOLE];	/* split slot, by class ... */
	uint32		unit_hint[NARAD_CLASS_WHOLE];	/* ... and unit there */
	BlockNumber meta_block;		/* next page of the META segment in use, or 0 */
	uint32		meta_left;		/* pages left there */
	bool		meta_prepared;	/* they are known to exist */
	BlockNumber meta_dir_block; /* its entry */
	uint16		meta_dir_index;

	/*
	 * Written under alloc_lock, read by anybody.  A partition is made when it
	 * is first used: one that is not there holds nothing, and starts and ends
	 * at offset 0.
	 */
	pg_atomic_uint32 npartitions;	/* only grows */
	NaradArray *partitions;
} NaradLogTopic;

/*
 * What this backend knows of a topic's relation; lives in rd_amcache, so use
 * it before anything that may process invalidations, and fetch it again.
 * Exists only once the metapage does.
 */
typedef struct NaradRelInfo
{
	NaradTopicId topic_id;
	uint32		segment_pages;
	int			npartitions;	/* when the info was asked for */
	NaradLogTopic *shared;		/* NULL during recovery, or not yet attached */
} NaradRelInfo;

/*
 * NULL while the file is empty.  Reads block 0, unless the shared part is
 * attached.  Any lock.
 */
extern NaradRelInfo *NaradRelInfoGet(Relation rel);

/*
 * The same with the shared part attached (built by one pass over the
 * directory if need be); writes the metapage first if the file is empty, with
 * the partition count and segment size given (0: defaults).  The caller holds
 * RowExclusiveLock; not during recovery.  May error 53200.
 */
extern NaradRelInfo *NaradRelInfoCreate(Relation rel, int npartitions,
										uint32 segment_pages);

/* With the shared part only if somebody made it already. */
extern NaradRelInfo *NaradRelInfoLook(Relation rel);

/* Attached, if the file is not empty; else NULL.  AccessShareLock will do. */
extern NaradRelInfo *NaradRelInfoAttach(Relation rel);

/*
 * The same; without the shared part, instead of an error, when there is no
 * memory for it.
 */
extern NaradRelInfo *NaradRelInfoTryAttach(Relation rel);

/* The segment of a sequence number in a partition's map, or NULL.  Map lock. */
extern NaradSegmentRef *NaradLogPartitionMapFind(NaradLogPartition *part,
												 uint64 sequence);

/* Sets the flags of a segment, if it is there, in a partition's map. */
extern void NaradLogPartitionSetFlags(NaradLogPartition *part,
									  uint64 sequence, uint16 flags);

/*
 * A partition of an attached topic: made if need be (may error 53200; takes
 * alloc_lock), or NULL if nobody used it.  Pointers are good while the
 * relation is locked.
 */
extern NaradLogPartition *NaradLogPartitionGet(NaradLogTopic *topic,
											   int partition);
static inline NaradLogPartition *
NaradLogPartitionFind(NaradLogTopic *topic, int partition)
{
	return (NaradLogPartition *) NaradArrayGet(&topic->partitions, partition);
}

/* While a topic is being attached, from one with plain fields and atomics. */
extern NaradLogPartition *NaradLogPartitionMake(NaradLogTopic *topic,
												const NaradLogPartition *local,
												int partition);

/* Frees all; no error.  Nobody else has pointers. */
extern void NaradLogPartitionsFree(NaradLogTopic *topic);

/* Calls back for each topic in shared memory, under the lock of their table:
 * a few instructions, no other lock. */
typedef void (*NaradLogTopicVisitor) (NaradLogTopic *topic, void *arg);
extern void NaradLogTopicWalk(NaradLogTopicVisitor visit, void *arg);

extern void NaradLogTopicShmemInit(void);	/* once the memory area exists */
extern Size NaradLogTopicShmemSize(void);

/* What this backend knows of rel is out of date. */
extern void NaradRelInfoForget(Relation rel);

/*
 * Makes sure that the topic's epoch is that of this server, once a server run
 * before the first append.  RowExclusiveLock, no narad lock.
 */
extern void NaradLogTopicSettleEpoch(Relation rel, NaradLogTopic *topic);

/* A transaction id, not 2^31 from now, with its epoch: as U64 has it. */
extern uint64 NaradFullXid(TransactionId xid);

/* The same of the oldest transaction running in the server. */
extern uint64 NaradOldestRunningXid(void);

/*
 * Keeps RowExclusiveLock until the end of the current subtransaction, whatever
 * portal took it first: for whoever remembers a pointer that long.
 */
extern void NaradLogTopicKeep(Relation rel);

/* Takes back one NaradLogTopicKeep of the same nesting level. */
extern void NaradLogTopicUnkeep(Oid relid);

/* Files may be dropped in this transaction: look at its end. */
extern void NaradLogFilesMayGo(void);

/* The same of one file, of a topic that is created, dropped or replaced. */
extern void NaradLogTopicFileMayGo(const RelFileLocator *locator);

/* Before PREPARE: errors 0A000 if a topic's file goes at either end. */
extern void NaradLogCheckPrepare(void);

/* One of two files goes, and its topic lives on in the other (SET
 * TABLESPACE), unless that goes, too. */
extern void NaradLogTopicMoved(NaradTopicId topic_id,
							   const RelFileLocator *from,
							   const RelFileLocator *to);

/* A file was truncated in place. */
extern void NaradLogTopicReplaced(const RelFileLocator *file);

/* From the storage layer's transaction callbacks. */
extern void NaradLogCollectFiles(void); /* before commit */
extern void NaradLogForgetFiles(bool is_commit);
extern void NaradLogForgetDatabase(Oid database, bool is_gone);
extern void NaradLogFilesReset(void);

#endif							/* LOG_TOPIC_H */
