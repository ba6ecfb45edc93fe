/*-------------------------------------------------------------------------
 *
 * log_verify.h
 *	  Looking at everything in a topic's file, and telling what is wrong.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LOG_VERIFY_H
#define LOG_VERIFY_H

#include "log/log_meta.h"
#include "log/log_topic.h"

typedef enum NaradSeverity
{
	NARAD_SEVERITY_WARNING,		/* odd, and costs nothing but space */
	NARAD_SEVERITY_ERROR		/* something is lost, or may be */
} NaradSeverity;

/* partition -1, NARAD_INVALID_OFFSET, InvalidBlockNumber: does not apply. */
typedef void (*NaradVerifyReport) (NaradSeverity severity, int partition,
								   NaradOffset offset, BlockNumber block,
								   const char *finding, void *arg);

struct NaradVerify;

/*
 * Called for each state page of each group, dropped ones included (their
 * pages await the next): looks at what storage does not know the meaning of.
 */
typedef void (*NaradVerifyState) (struct NaradVerify *verify,
								  const NaradGroupEntry *group, int partition,
								  BlockNumber block);

/* A segment as its entry says. */
typedef struct NaradVerifySegment
{
	NaradSegmentRef ref;
	NaradSegmentEntry entry;
} NaradVerifySegment;

/* A segment of meta pages, and which of them were met. */
typedef struct NaradVerifyMeta
{
	BlockNumber first_block;
	uint32		nused;
	uint32		npages;			/* at most 32 */
	uint32		met;			/* a bit for each page */
} NaradVerifyMeta;

typedef struct NaradVerify
{
	/* Set by the caller. */
	Relation	rel;
	NaradVerifyReport report;
	void	   *arg;
	NaradVerifyState state;

	/* Then by NaradVerifyLog. */
	NaradMetaData meta;
	TransactionId relfrozenxid; /* nothing older is left unfrozen */
	NaradLogTopic *shared;		/* NULL if there is none */
	bool		quiet;			/* findings are counted only */
	uint64		nfindings;
	bool		directory_ok;	/* every directory page could be read */
	NaradVerifySegment *segments;	/* open, sealed, spare; by partition, the
									 * spares last, and sequence */
	int			nsegments;
	int			capacity;
	NaradVerifyMeta *metas;		/* by block */
	int			nmetas;
	int			metas_capacity;
	NaradOffset *ends;			/* of each partition, as found on its pages */
	NaradOffset *bases;			/* where each began; NULL: at 0 */
	BlockNumber groups_block;	/* of the group at hand */
} NaradVerify;

/*
 * Verifies a topic's file.  Any lock on the relation, and an active snapshot;
 * works on a standby, and makes no shared memory.  What others append, settle
 * and drop meanwhile gives no finding.  Damage is no error but a finding.
 * False if there is no metapage to go by.
 */
extern bool NaradVerifyLog(NaradVerify *verify);

extern void NaradVerifyFind(NaradVerify *verify, NaradSeverity severity,
							int partition, NaradOffset offset,
							BlockNumber block, const char *format,...)
			pg_attribute_printf(6, 7);

/*
 * Says that a page is in use as what is named: a finding if it does not lie
 * in a segment of meta pages, or was met before.  True if it is all right.
 */
extern bool NaradVerifyUsePage(NaradVerify *verify, BlockNumber block,
							   int partition, const char *what);

/* Is there such a partition, perhaps added since the metapage was read? */
extern bool NaradVerifyPartitionExists(const NaradVerify *verify,
									   uint32 partition);

/* Is the group still there as it was read?  False in doubt. */
extern bool NaradVerifyGroupStays(NaradVerify *verify,
								  const NaradGroupEntry *group);

/* The partition's end, not older than the call; false if it is not known. */
extern bool NaradVerifyEnd(NaradVerify *verify, int partition,
						   NaradOffset *end);

/* The parts of it; for log_verify.c. */
extern void NaradVerifyDirectory(NaradVerify *verify);
extern void NaradVerifyData(NaradVerify *verify);

/* Copies a page; a finding, and false, if it does not exist or is damaged. */
extern bool NaradVerifyCopyPage(NaradVerify *verify, BlockNumber block,
								int partition, const char *what, char *copy);

/* The same of a page with the common special space and contents. */
extern bool NaradVerifyCopyKind(NaradVerify *verify, BlockNumber block,
								uint16 kind, const char *what, char *copy);

/* The same of a page of a chain, to which nothing else may point. */
extern bool NaradVerifyCopyChained(NaradVerify *verify, NaradChainWalk *walk,
								   BlockNumber block, uint16 kind,
								   const char *what, char *copy);

/* Is the page, not new, of the topic and kind, with a sound header? */
extern bool NaradVerifyIsKind(const NaradVerify *verify, const char *page,
							  uint16 kind);

#endif							/* LOG_VERIFY_H */
