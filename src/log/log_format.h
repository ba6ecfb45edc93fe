/*-------------------------------------------------------------------------
 *
 * log_format.h
 *	  What is on disk: every structure, magic number and version.
 *
 * All integers are in the machine's byte order, as everywhere in a
 * PostgreSQL data directory.  Reserved fields are written as zero and are
 * not looked at.  src/log/README.md describes the same byte by byte and says
 * why; a change here is a change of NARAD_FORMAT_VERSION.
 *
 * The file:
 *
 *	block 0				metapage
 *	block 1				directory page of slots 0 .. D-1
 *	blocks 2 ..			slots 0 .. D-1, S blocks each
 *	then				directory page of slots D .. 2D-1, those slots, ...
 *
 * with D = NARAD_ENTRIES_PER_PAGE and S = NaradMetaData.segment_pages.  A
 * slot is one segment of S pages, or it is split into units of
 * NARAD_UNIT_PAGES.  Unit 0 then holds directory pages with an entry for each
 * of the NARAD_DIRECTORY_PERIOD - 1 units that follow; in slots so large that
 * there are more, unit NARAD_DIRECTORY_PERIOD goes on in the same way, and so
 * on.  A segment in a split slot takes 1, 2, 4 or 8 units, none of them a
 * directory unit.  The entry of its first unit describes it; those of the
 * units behind stay zero.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LOG_FORMAT_H
#define LOG_FORMAT_H

#include "access/transam.h"
#include "datatype/timestamp.h"
#include "storage/block.h"
#include "storage/bufpage.h"
#include "narad.h"

#define NARAD_FORMAT_VERSION	1
#define NARAD_META_MAGIC		0x4e415244	/* "NARD" */

/* What a page is; NaradPageSpecialHead.kind.  0 is no page of ours. */
#define NARAD_PAGE_META			0x4e01
#define NARAD_PAGE_DIRECTORY	0x4e02
#define NARAD_PAGE_DATA			0x4e03
#define NARAD_PAGE_GROUPS		0x4e04
#define NARAD_PAGE_STATEMAP		0x4e05
#define NARAD_PAGE_STATE		0x4e06
#define NARAD_PAGE_BASES		0x4e07
#define NARAD_PAGE_PRODUCERS	0x4e08

/* The special space of every page begins so. */
typedef struct NaradPageSpecialHead
{
	NaradTopicId topic_id;		/* must equal the metapage's */
	uint16		kind;			/* NARAD_PAGE_* */
	uint16		version;		/* NARAD_FORMAT_VERSION */
	uint32		partition;		/* data, state pages; else 0 */
} NaradPageSpecialHead;

StaticAssertDecl(sizeof(NaradPageSpecialHead) == 16, "page special head");

/* Special space of a data page. */
typedef struct NaradDataSpecial
{
	NaradPageSpecialHead head;
	uint64		sequence;		/* of the segment, within the partition */
	NaradOffset base_offset;	/* of the first record that begins here, or
								 * would begin here */
	int64		base_time;		/* TimestampTz the records' times count from */
	NaradOffset cont_offset;	/* record whose continuation is item 1, or
								 * NARAD_INVALID_OFFSET */
	uint32		cont_pos;		/* byte of that record at which item 1 begins */
	uint32		reserved;
} NaradDataSpecial;

StaticAssertDecl(sizeof(NaradDataSpecial) == 56, "data page special");

/* Contents of block 0, at PageGetContents(). */
typedef struct NaradMetaData
{
	uint32		magic;			/* NARAD_META_MAGIC */
	uint32		version;		/* NARAD_FORMAT_VERSION */
	NaradTopicId topic_id;
	uint32		npartitions;	/* 1 .. NARAD_MAX_PARTITIONS */
	uint32		segment_pages;	/* S */
	uint32		next_group_id;	/* the next one to give; starts at 1 */
	BlockNumber groups_root;	/* first group directory page, or 0 */
	BlockNumber bases_root;		/* first page of partition start offsets, or
								 * 0: all start at 0 */
	BlockNumber producers_root; /* root of the producer pages, or 0 */
	uint64		system_identifier;	/* of the server of the last append */
	uint32		timeline;		/* its timeline then */
	uint32		epoch;			/* starts at 1 */
	uint32		flags;			/* reserved, 0 */
	uint32		hash_version;	/* of key to partition: 1 = hash_any */
	uint64		reserved[8];
} NaradMetaData;

StaticAssertDecl(sizeof(NaradMetaData) == 128, "metapage contents");

/* States of a segment directory entry.  An all-zero entry is free. */
#define NARAD_SEGMENT_FREE		0
#define NARAD_SEGMENT_SPARE		1	/* reserved for its partition, holds
									 * nothing */
#define NARAD_SEGMENT_OPEN		2
#define NARAD_SEGMENT_SEALED	3
#define NARAD_SEGMENT_META		4	/* pages_prepared of its pages are in use */
#define NARAD_SEGMENT_SPLIT		5	/* divided into units; pages_prepared of
									 * its directory pages have been written */

/*
 * Flags of an entry.  FROZEN: no xmin in the segment is to be asked about;
 * records that are not marked dead are visible to all.  Set with it, and of
 * sealed ones only: none of its records is dead, or (ALL_DEAD) all are.
 * CONTINUES: it was opened in the middle of a large record.  HAS_IDS, of sealed
 * ones: there are, or may be, records with deduplication ids in it.
 */
#define NARAD_SEGMENT_ALL_COMMITTED 0x01
#define NARAD_SEGMENT_FROZEN		0x02
#define NARAD_SEGMENT_ALL_DEAD		0x04
#define NARAD_SEGMENT_CONTINUES		0x08
#define NARAD_SEGMENT_HAS_IDS		0x10
#define NARAD_SEGMENT_FREEZE_FLAGS \
	(NARAD_SEGMENT_ALL_COMMITTED | NARAD_SEGMENT_FROZEN | \
	 NARAD_SEGMENT_ALL_DEAD)
#define NARAD_SEGMENT_KNOWN_FLAGS \
	(NARAD_SEGMENT_FREEZE_FLAGS | NARAD_SEGMENT_CONTINUES | \
	 NARAD_SEGMENT_HAS_IDS)

/* Size classes of segments: class n is 2^n units of a split slot, but ... */
#define NARAD_CLASS_SMALL		0
#define NARAD_CLASS_MEDIUM		3
#define NARAD_CLASS_WHOLE		4	/* ... segment_pages, a slot of its own */
#define NARAD_UNIT_PAGES		8

#define NARAD_MIN_SEGMENT_PAGES (256 * 1024 / BLCKSZ)
#define NARAD_MAX_SEGMENT_PAGES (1024 * 1024 / BLCKSZ * 1024)
#define NARAD_DEFAULT_SEGMENT_PAGES (16 * 1024 * 1024 / BLCKSZ)

typedef struct NaradSegmentEntry
{
	uint8		state;			/* NARAD_SEGMENT_* */
	uint8		size_class;		/* NARAD_CLASS_*; not of split */
	uint16		flags;			/* NARAD_SEGMENT_*, of sealed ones */
	uint32		partition;		/* spare, open, sealed */
	uint64		sequence;		/* open, sealed: 0, 1, 2 ... in the partition */
	NaradOffset first_offset;	/* open, sealed: lowest offset it may hold */
	NaradOffset end_offset;		/* sealed: one past the highest */
	int64		first_time;		/* sealed: produced_at of its first record */
	int64		last_time;		/* sealed: and of its last; open: of the last
								 * one before it, or PG_INT64_MIN */
	uint64		oldest_xid;		/* FullTransactionId: lower bound of all that
								 * are not frozen */
	uint64		newest_xid;		/* FullTransactionId: sealed: upper bound */
	uint32		pages_prepared; /* pages that exist on disk; META: in use;
								 * SPLIT: directory pages written */
	uint32		pages_used;		/* sealed: pages that hold records */
	uint32		epoch;			/* metapage's when it was opened */
	uint16		recycled_units; /* whole slots: so many first units have room,
								 * as segments before used them; free ones too */
	uint16		kept_day;		/* sealed: not 0: holds times that inserters
								 * brought; its age counts from this day on,
								 * since 2000-01-01 UTC */
} NaradSegmentEntry;

StaticAssertDecl(sizeof(NaradSegmentEntry) == 80, "segment entry");

/* D: entries at PageGetContents() of a directory page. */
#define NARAD_ENTRIES_PER_PAGE	100

/* Every so many units of a split slot, one is of directory pages. */
#define NARAD_DIRECTORY_PERIOD	(1 + NARAD_UNIT_PAGES * NARAD_ENTRIES_PER_PAGE)

StaticAssertDecl(SizeOfPageHeaderData + sizeof(NaradPageSpecialHead) +
				 NARAD_ENTRIES_PER_PAGE * sizeof(NaradSegmentEntry) <= BLCKSZ,
				 "directory page");

/*
 * A record: an item of a data page.
 *
 *	header				24 bytes
 *	large part			NARAD_RECORD_LARGE: NaradLargePart, 8 bytes
 *	extension			NARAD_RECORD_EXT: NaradExtension and what its flags
 *						say, then padding to MAXALIGN
 *	null bitmap			NARAD_RECORD_HASNULL: as a heap tuple's, then padding
 *						to MAXALIGN
 *	body				the heap tuple's data without its first 24 bytes
 *						(partition, msg_offset, produced_at), to the item's end
 *
 * A large record's bytes go on in item 1 of the following pages of its
 * segment, and of the segments that follow in its partition
 * (NaradDataSpecial.cont_offset), until total_len bytes are there.  Its head,
 * which is all before the body, lies on its first page.
 */
typedef struct NaradRecordHeader
{
	TransactionId xmin;
	CommandId	cmin;
	uint32		crc;			/* CRC-32C, see NaradRecordCrc */
	uint32		time_low;		/* produced_at - base_time, 48 bits */
	uint16		time_high;
	uint16		delta;			/* offset - base_offset */
	uint16		natts;			/* attributes stored */
	uint16		flags;			/* NARAD_RECORD_* */
} NaradRecordHeader;

StaticAssertDecl(sizeof(NaradRecordHeader) == 24, "record header");

#define NARAD_RECORD_HASNULL	0x0001
#define NARAD_RECORD_HASVAR		0x0002	/* HEAP_HASVARWIDTH */
#define NARAD_RECORD_LARGE		0x0004
#define NARAD_RECORD_EXT		0x0008	/* has an extension */
#define NARAD_RECORD_DEAD		0x0010	/* set by freezing: aborted for good */
#define NARAD_RECORD_FROZEN		0x0020	/* set by freezing: visible to all */
/* Freezing may set these at any time; the CRC leaves them out. */
#define NARAD_RECORD_VOLATILE	(NARAD_RECORD_DEAD | NARAD_RECORD_FROZEN)

typedef struct NaradLargePart
{
	uint32		total_len;		/* of the record, header included */
	uint32		reserved;
} NaradLargePart;

/*
 * An extension: what a record has that is no column.  The head is followed by
 *
 *	8 bytes				NARAD_EXT_DUE: int64, TimestampTz before which the
 *						record is not delivered
 *	16 bytes			NARAD_EXT_PRODUCER: NaradProducerPart
 *	id_len bytes		NARAD_EXT_DEDUP or NARAD_EXT_PRODUCER: the id, text in
 *						the encoding of the database, not terminated
 */
typedef struct NaradExtension
{
	uint16		len;			/* of all of it, but for the padding */
	uint16		flags;			/* NARAD_EXT_* */
	uint16		id_len;			/* 1 .. NARAD_MAX_ID; 0 without an id */
	uint16		reserved;
} NaradExtension;

StaticAssertDecl(sizeof(NaradExtension) == 8, "record extension");

typedef struct NaradProducerPart
{
	int64		sequence;
	int32		epoch;
	uint32		reserved;
} NaradProducerPart;

StaticAssertDecl(sizeof(NaradProducerPart) == 16, "producer part");

#define NARAD_EXT_DUE			0x0001
#define NARAD_EXT_DEDUP			0x0002	/* id is a dedup_id; or ... */
#define NARAD_EXT_PRODUCER		0x0004	/* ... a producer_id */

#define NARAD_MAX_ID			255 /* bytes of a dedup or producer id */

/*
 * No record is longer, whatever its length says: narad.max_message_size is
 * 256 MB at most, which leaves room for headers and padding.
 */
#define NARAD_MAX_RECORD		(272 * 1024 * 1024)

#define NARAD_PREFIX_LEN		24	/* of tuple data, not stored */
#define NARAD_MAX_DELTA			PG_UINT16_MAX
#define NARAD_MAX_TIME_DELTA	((INT64CONST(1) << 48) - 1)
#define NARAD_MAX_ITEMS			291 /* TIDs stay below MaxHeapTuplesPerPage */

/* Bytes for items and line pointers on a data page. */
#define NARAD_PAGE_SPACE \
	(BLCKSZ - SizeOfPageHeaderData - sizeof(NaradDataSpecial))
/* The largest record that is not a large record. */
#define NARAD_MAX_SMALL \
	MAXALIGN_DOWN(NARAD_PAGE_SPACE - sizeof(ItemIdData))

/* Group directory page: as many as fit, at PageGetContents(). */
typedef struct NaradGroupEntry
{
	NaradGroupId group_id;		/* 0: never used */
	uint8		state;			/* NARAD_GROUP_* */
	uint8		paused;
	uint16		reserved;
	uint32		generation;		/* raised by seek and drop */
	BlockNumber map;			/* first state map page, or 0 */
	int64		created_at;		/* TimestampTz */
	char		name[NAMEDATALEN];
} NaradGroupEntry;

StaticAssertDecl(sizeof(NaradGroupEntry) == 24 + NAMEDATALEN, "group entry");

#define NARAD_GROUP_LIVE		1
#define NARAD_GROUP_DROPPED		2	/* its map and pages await a new group */
#define NARAD_GROUP_MAKING		3	/* not live yet; a leftover is as dropped */

typedef struct NaradGroupsPage
{
	BlockNumber next;			/* next group directory page, or 0 */
	uint32		nentries;
	NaradGroupEntry entries[FLEXIBLE_ARRAY_MEMBER];
} NaradGroupsPage;

/* State map page: partition -> first state page of the group, 0 = none. */
typedef struct NaradStateMapPage
{
	BlockNumber next;
	uint32		first_partition;
	BlockNumber blocks[FLEXIBLE_ARRAY_MEMBER];
} NaradStateMapPage;

#define NARAD_MAP_BLOCKS		2000

/* Start offsets of partitions after a TRUNCATE. */
typedef struct NaradBasesPage
{
	BlockNumber next;
	uint32		first_partition;
	NaradOffset bases[FLEXIBLE_ARRAY_MEMBER];
} NaradBasesPage;

#define NARAD_BASES_PER_PAGE	1000

/*
 * Producer pages: a root, and chains of pages with entries one behind the
 * other, up to pd_lower.  An entry lies in the chain of its id's hash
 * (hash_any, modulo NARAD_PRODUCER_CHAINS), and stays where it is.
 */
#define NARAD_PRODUCER_CHAINS	64
#define NARAD_PRODUCER_POSITIONS 5

typedef struct NaradProducersRoot
{
	BlockNumber chains[NARAD_PRODUCER_CHAINS];	/* first pages, or 0 */
} NaradProducersRoot;

typedef struct NaradProducersPage
{
	BlockNumber next;			/* of its chain, or 0 */
	uint32		reserved;
} NaradProducersPage;

/* How far a producer had come; npositions 0: it has not begun. */
typedef struct NaradProducerState
{
	int64		sequence;		/* the last one */
	int32		epoch;
	uint32		npositions;		/* 0 .. NARAD_PRODUCER_POSITIONS */
	NaradOffset offsets[NARAD_PRODUCER_POSITIONS];	/* of the last sequence,
													 * the one before, ... */
	int32		partitions[NARAD_PRODUCER_POSITIONS];	/* -1: appended nowhere */
	uint32		reserved;
} NaradProducerState;

StaticAssertDecl(sizeof(NaradProducerState) == 80, "producer state");

typedef struct NaradProducerEntry
{
	uint16		len;			/* of the entry, MAXALIGNed */
	uint16		id_len;			/* 1 .. NARAD_MAX_ID */
	uint32		reserved;
	uint64		xid;			/* FullTransactionId, top-level; or 0 */
	NaradProducerState settled; /* without that transaction ... */
	NaradProducerState next;	/* ... and if it committed */
	char		id[FLEXIBLE_ARRAY_MEMBER];
} NaradProducerEntry;

StaticAssertDecl(offsetof(NaradProducerEntry, id) == 176, "producer entry");

#endif							/* LOG_FORMAT_H */
