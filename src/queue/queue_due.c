/*-------------------------------------------------------------------------
 *
 * queue_due.c
 *	  Messages of one shard that were produced with a time before which they
 *	  are not delivered: a heap by that time.
 *
 * Owns:       NaradDueHeap and its memory.
 * Invariants: a binary heap: no entry comes before its parent, by time, then
 *             by offset.  Chunks 0 to nchunks - 1 exist; at most one of them
 *             has no entry.
 * Locks:      none; the caller holds the shard lock, exclusively for changes.
 * Runs in:    any backend.
 * On error:   nothing here errors.
 *
 * The entries lie in chunks, so that the heap of a million grows without being
 * copied: twice its memory would not be there.  What an entry stands for is in
 * the log; the heap is made anew from the records by whoever consumes after a
 * restart.  What retention drops goes at once; an entry whose message is settled
 * otherwise before its time is dropped by whoever finds it due.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "base/base_memory.h"
#include "queue/queue_due.h"

static inline NaradDue *
entry(const NaradDueHeap *heap, uint64 i)
{
	return &heap->chunks[i / NARAD_DUE_CHUNK][i % NARAD_DUE_CHUNK];
}

static inline bool
comes_before(const NaradDue *a, const NaradDue *b)
{
	if (a->due != b->due)
		return a->due < b->due;
	return a->offset < b->offset;
}

/*
 * Makes a heap empty that was never used.
 */
void
NaradDueInit(NaradDueHeap *heap)
{
	memset(heap, 0, sizeof(NaradDueHeap));
}

/*
 * Frees all that the heap holds; it is empty afterwards.
 */
void
NaradDueClear(NaradDueHeap *heap)
{
	for (uint32 i = 0; i < heap->nchunks; i++)
		NaradFree(heap->chunks[i]);
	NaradFree(heap->chunks);
	NaradDueInit(heap);
}

/* Room for one more entry; false when out of memory. */
static bool
make_room(NaradDueHeap *heap)
{
	if (heap->nentries < (uint64) heap->nchunks * NARAD_DUE_CHUNK)
		return true;
	if (heap->nchunks == heap->capacity)
	{
		uint32		capacity = Max(8, heap->capacity * 2);
		NaradDue  **chunks = NaradAlloc(sizeof(NaradDue *) * capacity);

		if (chunks == NULL)
			return false;
		if (heap->nchunks > 0)
			memcpy(chunks, heap->chunks, sizeof(NaradDue *) * heap->nchunks);
		NaradFree(heap->chunks);
		heap->chunks = chunks;
		heap->capacity = capacity;
	}
	heap->chunks[heap->nchunks] = NaradAlloc(sizeof(NaradDue) *
											 NARAD_DUE_CHUNK);
	if (heap->chunks[heap->nchunks] == NULL)
		return false;
	heap->nchunks++;
	return true;
}

/*
 * Adds a message.  False, with nothing changed, when out of memory.
 */
bool
NaradDueAdd(NaradDueHeap *heap, TimestampTz due, NaradOffset offset)
{
	NaradDue	added = {due, offset};
	uint64		at;

	if (!make_room(heap))
		return false;
	for (at = heap->nentries++; at > 0; at = (at - 1) / 2)
	{
		NaradDue   *parent = entry(heap, (at - 1) / 2);

		if (!comes_before(&added, parent))
			break;
		*entry(heap, at) = *parent;
	}
	*entry(heap, at) = added;
	return true;
}

/*
 * The message that is due first, or NULL.  Good until the heap changes.
 */
const NaradDue *
NaradDueFirst(const NaradDueHeap *heap)
{
	return heap->nentries > 0 ? entry(heap, 0) : NULL;
}

/*
 * Puts an entry in place of entry `at`, or further down.  What is below that
 * place is a heap.
 */
static void
sift_down(NaradDueHeap *heap, uint64 at, NaradDue moved)
{
	uint64		child;

	for (child = 2 * at + 1; child < heap->nentries; child = 2 * at + 1)
	{
		if (child + 1 < heap->nentries &&
			comes_before(entry(heap, child + 1), entry(heap, child)))
			child++;
		if (!comes_before(entry(heap, child), &moved))
			break;
		*entry(heap, at) = *entry(heap, child);
		at = child;
	}
	*entry(heap, at) = moved;
}

/* Frees chunks without entries, but one, for an add that comes next. */
static void
free_chunks(NaradDueHeap *heap)
{
	if (heap->nentries == 0)
	{
		NaradDueClear(heap);
		return;
	}
	while (heap->nchunks > 1 &&
		   heap->nentries + NARAD_DUE_CHUNK <=
		   (uint64) (heap->nchunks - 1) * NARAD_DUE_CHUNK)
		NaradFree(heap->chunks[--heap->nchunks]);
}

/*
 * Removes the one that is due first; there is one.  Frees memory that is not
 * going to be used soon.
 */
void
NaradDuePop(NaradDueHeap *heap)
{
	NaradDue	last;

	Assert(heap->nentries > 0);
	last = *entry(heap, --heap->nentries);
	if (heap->nentries > 0)
		sift_down(heap, 0, last);
	free_chunks(heap);
}

/*
 * Removes all below an offset, in a time that grows with the number of
 * entries.  Frees memory as NaradDuePop.
 */
void
NaradDueTrim(NaradDueHeap *heap, NaradOffset offset)
{
	uint64		nkept = 0;

	for (uint64 i = 0; i < heap->nentries; i++)
	{
		if (entry(heap, i)->offset >= offset)
			*entry(heap, nkept++) = *entry(heap, i);
	}
	if (nkept == heap->nentries)
		return;
	heap->nentries = nkept;
	for (uint64 i = nkept / 2; i-- > 0;)
		sift_down(heap, i, *entry(heap, i));
	free_chunks(heap);
}
