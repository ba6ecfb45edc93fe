/*-------------------------------------------------------------------------
 *
 * narad.h
 *	  Identifiers and limits that all layers of narad share.
 *
 * Include "postgres.h" first.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NARAD_H
#define NARAD_H

/*
 * A topic's identity: 64 random bits, drawn when its metapage is first
 * written and anew at every TRUNCATE.  0 is no topic.
 */
typedef uint64 NaradTopicId;

/*
 * The position of a record in its partition.  Strictly increasing, not
 * dense.  Fits SQL's bigint; NARAD_INVALID_OFFSET is none.
 */
typedef uint64 NaradOffset;

#define NARAD_INVALID_OFFSET	PG_UINT64_MAX
#define NARAD_MAX_OFFSET		(UINT64CONST(1) << 62)

/* Group ids are unique within a topic id and never given twice; 0 is none. */
typedef uint32 NaradGroupId;

#define NARAD_MAX_PARTITIONS	65536

/* Attribute numbers of the standard columns of a topic. */
#define NARAD_ATTR_PARTITION	1	/* int4 */
#define NARAD_ATTR_OFFSET		2	/* int8 */
#define NARAD_ATTR_TIME			3	/* timestamptz */
#define NARAD_ATTR_KEY			4	/* text */
#define NARAD_ATTR_VALUE		5	/* jsonb, bytea or text */
#define NARAD_ATTR_HEADERS		6	/* jsonb */
#define NARAD_STANDARD_ATTRS	6

/* Both ends inclusive. */
typedef struct NaradRange
{
	NaradOffset first;
	NaradOffset last;
} NaradRange;

#endif							/* NARAD_H */
