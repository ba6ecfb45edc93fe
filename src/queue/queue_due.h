/*-------------------------------------------------------------------------
 *
 * queue_due.h
 *	  Messages of one shard that were produced with a time before which they
 *	  are not delivered: a heap by that time.
 *
 * Plain data: no lock, no error.  16 bytes a message, from NaradAlloc in
 * NaradDueAdd only.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_DUE_H
#define QUEUE_DUE_H

#include "datatype/timestamp.h"
#include "narad.h"

/* Entries in one piece of memory; a power of two. */
#define NARAD_DUE_CHUNK 512

typedef struct NaradDue
{
	TimestampTz due;			/* wall clock */
	NaradOffset offset;
} NaradDue;

typedef struct NaradDueHeap
{
	NaradDue  **chunks;			/* entry i is in chunk i / NARAD_DUE_CHUNK */
	uint32		nchunks;
	uint32		capacity;		/* of chunks */
	uint64		nentries;
} NaradDueHeap;

extern void NaradDueInit(NaradDueHeap *heap);

/* Frees all memory; empty afterwards. */
extern void NaradDueClear(NaradDueHeap *heap);

/* False when out of memory. */
extern bool NaradDueAdd(NaradDueHeap *heap, TimestampTz due,
						NaradOffset offset);

/* The earliest, of equal ones the lowest offset; NULL when empty. */
extern const NaradDue *NaradDueFirst(const NaradDueHeap *heap);

/* Removes it. */
extern void NaradDuePop(NaradDueHeap *heap);

/* Removes all below an offset. */
extern void NaradDueTrim(NaradDueHeap *heap, NaradOffset offset);

#endif							/* QUEUE_DUE_H */
