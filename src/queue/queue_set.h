/*-------------------------------------------------------------------------
 *
 * queue_set.h
 *	  A set of offsets in shared memory, at most one bit each.
 *
 * Plain data: no lock, no error.  Memory from NaradAlloc.  Offsets are kept
 * in chunks of 2^15: a bitmap, or, in a compact set, a run of full chunks
 * that takes no bitmap.  Nothing but Reserve and AddRange allocates.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_SET_H
#define QUEUE_SET_H

#include "narad.h"

#define NARAD_CHUNK_BITS	15
#define NARAD_CHUNK_SIZE	(1 << NARAD_CHUNK_BITS) /* offsets */
#define NARAD_CHUNK_BYTES	(NARAD_CHUNK_SIZE / 8)

typedef struct NaradSetChunk
{
	uint64		chunk;			/* first offset >> NARAD_CHUNK_BITS */
	uint64		nchunks;		/* 1, or more for a run of full ones */
	uint64	   *bits;			/* NULL: all of them are full */
	uint32		nset;			/* bits set, if there are bits */
} NaradSetChunk;

typedef struct NaradSet
{
	NaradSetChunk *chunks;		/* sorted, disjoint */
	int			nchunks;
	int			capacity;
	bool		compact;		/* full chunks lose their bitmap; then nothing
								 * may be removed but by Trim */
	uint64		nmembers;
} NaradSet;

extern void NaradSetInit(NaradSet *set, bool compact);

/* Frees all memory; empty afterwards. */
extern void NaradSetClear(NaradSet *set);

/* Makes room so that adding this offset needs no memory; false if none. */
extern bool NaradSetReserve(NaradSet *set, NaradOffset offset);

/* Adds a reserved offset; false if it was a member. */
extern bool NaradSetAdd(NaradSet *set, NaradOffset offset);

/* Reserve and add first..last; false, with none or some added, if no memory. */
extern bool NaradSetAddRange(NaradSet *set, NaradOffset first, NaradOffset last);

/* Not in compact sets; false if it was no member. */
extern bool NaradSetRemove(NaradSet *set, NaradOffset offset);
extern bool NaradSetContains(const NaradSet *set, NaradOffset offset);

/* Smallest member >= from, or NARAD_INVALID_OFFSET. */
extern NaradOffset NaradSetNextMember(const NaradSet *set, NaradOffset from);

/* Smallest non-member >= from. */
extern NaradOffset NaradSetNextGap(const NaradSet *set, NaradOffset from);

/* Forgets members below an offset and frees their chunks. */
extern void NaradSetTrim(NaradSet *set, NaradOffset below);

/* Largest member, or NARAD_INVALID_OFFSET. */
extern NaradOffset NaradSetMax(const NaradSet *set);

#endif							/* QUEUE_SET_H */
