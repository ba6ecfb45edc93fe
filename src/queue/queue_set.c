/*-------------------------------------------------------------------------
 *
 * queue_set.c
 *	  A set of offsets in shared memory, at most one bit each.
 *
 * Owns:       the memory of a NaradSet: one array of chunk descriptors and a
 *             bitmap of NARAD_CHUNK_BYTES for each chunk that needs one.
 * Invariants: descriptors are sorted by chunk number and disjoint.  One with
 *             bits speaks of one chunk, one without of a run of chunks whose
 *             offsets are all members.  Runs occur in compact sets only, and
 *             two runs are never neighbours.  nmembers is the number of
 *             members.  A chunk with a bitmap and no bit set is a
 *             reservation.
 * Locks:      none here: the set lies in a shard, whose lock the caller holds
 *             (exclusively to change it).  Allocation takes DSA's locks.
 * Runs in:    any process; commit and abort callbacks may call everything but
 *             Reserve and AddRange.
 * WAL:        none; queue_state.c copies a set to its pages.
 * On error:   nothing errors.  What runs out of memory says so by its result
 *             and leaves a valid set.
 *
 * An in-order stream of acks has no chunk at all most of the time, a few
 * stragglers cost a bitmap for each chunk of 32768 offsets that has a gap,
 * and what is full is one descriptor however long it is.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "base/base_memory.h"
#include "port/pg_bitutils.h"
#include "queue/queue_set.h"

#define CHUNK_OF(offset)	((offset) >> NARAD_CHUNK_BITS)
#define CHUNK_FIRST(chunk)	((NaradOffset) (chunk) << NARAD_CHUNK_BITS)
#define BIT_OF(offset)		((uint32) ((offset) & (NARAD_CHUNK_SIZE - 1)))
#define WORD_BITS			64
#define WORDS_PER_CHUNK		(NARAD_CHUNK_SIZE / WORD_BITS)

#define CHUNK_END(c)		((c)->chunk + (c)->nchunks) /* one past */

static inline int
count_bits(uint64 word)
{
	word -= (word >> 1) & UINT64CONST(0x5555555555555555);
	word = (word & UINT64CONST(0x3333333333333333)) +
		((word >> 2) & UINT64CONST(0x3333333333333333));
	word = (word + (word >> 4)) & UINT64CONST(0x0f0f0f0f0f0f0f0f);
	return (int) ((word * UINT64CONST(0x0101010101010101)) >> 56);
}

/* Bits first..last of a word. */
static inline uint64
word_mask(int first, int last)
{
	uint64		upto;

	upto = last == WORD_BITS - 1 ? PG_UINT64_MAX :
		(UINT64CONST(1) << (last + 1)) - 1;
	return upto & ~((UINT64CONST(1) << first) - 1);
}

/* Index of the first descriptor that ends after a chunk number. */
static int
find_chunk(const NaradSet *set, uint64 chunk)
{
	int			low = 0;
	int			high = set->nchunks;

	while (low < high)
	{
		int			mid = low + (high - low) / 2;

		if (CHUNK_END(&set->chunks[mid]) <= chunk)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

/* The descriptor that speaks of an offset, or NULL. */
static NaradSetChunk *
lookup_chunk(const NaradSet *set, NaradOffset offset)
{
	int			i = find_chunk(set, CHUNK_OF(offset));

	if (i < set->nchunks && set->chunks[i].chunk <= CHUNK_OF(offset))
		return &set->chunks[i];
	return NULL;
}

/* Room for one more descriptor. */
static bool
make_room(NaradSet *set)
{
	NaradSetChunk *chunks;
	int			capacity;

	if (set->nchunks < set->capacity)
		return true;
	capacity = Max(4, set->capacity * 2);
	chunks = NaradAlloc(sizeof(NaradSetChunk) * (Size) capacity);
	if (chunks == NULL)
		return false;
	if (set->nchunks > 0)
		memcpy(chunks, set->chunks, sizeof(NaradSetChunk) * set->nchunks);
	NaradFree(set->chunks);
	set->chunks = chunks;
	set->capacity = capacity;
	return true;
}

/* Opens a gap at i; there is room. */
static NaradSetChunk *
insert_chunk(NaradSet *set, int i)
{
	Assert(set->nchunks < set->capacity);
	memmove(&set->chunks[i + 1], &set->chunks[i],
			sizeof(NaradSetChunk) * (set->nchunks - i));
	set->nchunks++;
	return &set->chunks[i];
}

/* Forgets descriptors [i, j); their bitmaps are gone already. */
static void
delete_chunks(NaradSet *set, int i, int j)
{
	memmove(&set->chunks[i], &set->chunks[j],
			sizeof(NaradSetChunk) * (set->nchunks - j));
	set->nchunks -= j - i;
}

/*
 * Chunk i has just become full: in a compact set it gives up its bitmap and
 * joins the runs beside it.
 */
static void
compact_chunk(NaradSet *set, int i)
{
	NaradSetChunk *chunk = &set->chunks[i];

	if (!set->compact || chunk->bits == NULL ||
		chunk->nset < NARAD_CHUNK_SIZE)
		return;
	NaradFree(chunk->bits);
	chunk->bits = NULL;
	chunk->nset = 0;
	if (i + 1 < set->nchunks && set->chunks[i + 1].bits == NULL &&
		set->chunks[i + 1].chunk == CHUNK_END(chunk))
	{
		chunk->nchunks += set->chunks[i + 1].nchunks;
		delete_chunks(set, i + 1, i + 2);
	}
	if (i > 0 && set->chunks[i - 1].bits == NULL &&
		CHUNK_END(&set->chunks[i - 1]) == chunk->chunk)
	{
		set->chunks[i - 1].nchunks += chunk->nchunks;
		delete_chunks(set, i, i + 1);
	}
}

/* Sets bits first..last of a reserved chunk that has a bitmap. */
static void
set_bits(NaradSet *set, int i, uint32 first, uint32 last)
{
	NaradSetChunk *chunk = &set->chunks[i];
	uint32		word;

	for (word = first / WORD_BITS; word <= last / WORD_BITS; word++)
	{
		int			from = word == first / WORD_BITS ? first % WORD_BITS : 0;
		int			to = word == last / WORD_BITS ? last % WORD_BITS :
		WORD_BITS - 1;
		uint64		added = word_mask(from, to) & ~chunk->bits[word];
		int			nadded = count_bits(added);

		chunk->bits[word] |= added;
		chunk->nset += nadded;
		set->nmembers += nadded;
	}
	compact_chunk(set, i);
}

/*
 * Makes chunks first..last one run of a compact set; what was known of them
 * is freed, and runs that touch are joined.
 */
static bool
add_full_chunks(NaradSet *set, uint64 first, uint64 last)
{
	NaradSetChunk *run;
	int			i = find_chunk(set, first);
	int			j = i;
	uint64		start = first;
	uint64		end = last + 1;

	if (!make_room(set))
		return false;

	/* A run that ends where this one begins. */
	if (i > 0 && set->chunks[i - 1].bits == NULL &&
		CHUNK_END(&set->chunks[i - 1]) == first)
		i--;
	for (j = i; j < set->nchunks && set->chunks[j].chunk <= last + 1; j++)
	{
		NaradSetChunk *old = &set->chunks[j];

		if (old->bits != NULL && old->chunk > last)
			break;
		if (old->bits == NULL)
		{
			start = Min(start, old->chunk);
			end = Max(end, CHUNK_END(old));
			set->nmembers -= old->nchunks << NARAD_CHUNK_BITS;
		}
		else
		{
			set->nmembers -= old->nset;
			NaradFree(old->bits);
		}
	}
	if (i == j)
		insert_chunk(set, i);
	else
		delete_chunks(set, i + 1, j);
	run = &set->chunks[i];
	run->chunk = start;
	run->nchunks = end - start;
	run->bits = NULL;
	run->nset = 0;
	set->nmembers += run->nchunks << NARAD_CHUNK_BITS;
	return true;
}

/*
 * Makes an empty set of zeroed or arbitrary memory.
 */
void
NaradSetInit(NaradSet *set, bool compact)
{
	memset(set, 0, sizeof(NaradSet));
	set->compact = compact;
}

/*
 * Frees all that the set holds, reservations too.  Never fails; the set is
 * empty and usable afterwards.
 */
void
NaradSetClear(NaradSet *set)
{
	int			i;

	for (i = 0; i < set->nchunks; i++)
		NaradFree(set->chunks[i].bits);
	NaradFree(set->chunks);
	NaradSetInit(set, set->compact);
}

/*
 * Makes sure that adding an offset needs no memory.  The room stays until
 * the offset is trimmed away; in a set that is not compact, until something
 * is removed: there, reserve and add without a removal in between.  False if
 * there is no memory.
 */
bool
NaradSetReserve(NaradSet *set, NaradOffset offset)
{
	NaradSetChunk *chunk;
	uint64	   *bits;

	if (lookup_chunk(set, offset) != NULL)
		return true;
	if (!make_room(set))
		return false;
	bits = NaradAlloc(NARAD_CHUNK_BYTES);
	if (bits == NULL)
		return false;
	chunk = insert_chunk(set, find_chunk(set, CHUNK_OF(offset)));
	chunk->chunk = CHUNK_OF(offset);
	chunk->nchunks = 1;
	chunk->bits = bits;
	chunk->nset = 0;
	return true;
}

/*
 * Adds an offset for which there is room (NaradSetReserve, or another member
 * in the same chunk).  Needs no memory.  False if it was a member.
 */
bool
NaradSetAdd(NaradSet *set, NaradOffset offset)
{
	NaradSetChunk *chunk = lookup_chunk(set, offset);
	uint32		bit = BIT_OF(offset);

	Assert(chunk != NULL);
	if (chunk->bits == NULL ||
		(chunk->bits[bit / WORD_BITS] & (UINT64CONST(1) << (bit % WORD_BITS))))
		return false;
	set_bits(set, (int) (chunk - set->chunks), bit, bit);
	return true;
}

/*
 * Adds first..last, allocating as it goes.  False, with none or some of them
 * added, when memory runs out.
 */
bool
NaradSetAddRange(NaradSet *set, NaradOffset first, NaradOffset last)
{
	NaradOffset at = first;

	Assert(first <= last && last < NARAD_INVALID_OFFSET);
	while (at <= last)
	{
		uint64		chunk = CHUNK_OF(at);
		NaradOffset chunk_last = CHUNK_FIRST(chunk) + NARAD_CHUNK_SIZE - 1;

		if (set->compact && BIT_OF(at) == 0 && chunk_last <= last)
		{
			uint64		last_full = CHUNK_OF(last + 1) - 1;

			if (!add_full_chunks(set, chunk, last_full))
				return false;
			chunk_last = CHUNK_FIRST(last_full) + NARAD_CHUNK_SIZE - 1;
		}
		else
		{
			int			i;

			if (!NaradSetReserve(set, at))
				return false;
			i = find_chunk(set, chunk);
			if (set->chunks[i].bits != NULL)
				set_bits(set, i, BIT_OF(at), BIT_OF(Min(chunk_last, last)));
		}
		at = chunk_last + 1;
	}
	return true;
}

/*
 * Removes an offset of a set that is not compact; frees the bitmap of a chunk
 * that becomes empty.  False if it was no member.
 */
bool
NaradSetRemove(NaradSet *set, NaradOffset offset)
{
	NaradSetChunk *chunk = lookup_chunk(set, offset);
	uint32		bit = BIT_OF(offset);
	uint64		mask = UINT64CONST(1) << (bit % WORD_BITS);

	Assert(!set->compact);
	if (chunk == NULL || (chunk->bits[bit / WORD_BITS] & mask) == 0)
		return false;
	chunk->bits[bit / WORD_BITS] &= ~mask;
	chunk->nset--;
	set->nmembers--;
	if (chunk->nset == 0)
	{
		int			i = (int) (chunk - set->chunks);

		NaradFree(chunk->bits);
		delete_chunks(set, i, i + 1);
	}
	return true;
}

/*
 * Is the offset a member?
 */
bool
NaradSetContains(const NaradSet *set, NaradOffset offset)
{
	const NaradSetChunk *chunk = lookup_chunk(set, offset);
	uint32		bit = BIT_OF(offset);

	if (chunk == NULL)
		return false;
	if (chunk->bits == NULL)
		return true;
	return (chunk->bits[bit / WORD_BITS] >> (bit % WORD_BITS)) & 1;
}

/*
 * The first bit from `bit` on that is set (or clear, if flip is all ones);
 * NARAD_CHUNK_SIZE if there is none.
 */
static uint32
next_bit(const uint64 *bits, uint32 bit, uint64 flip)
{
	uint32		word = bit / WORD_BITS;
	uint64		rest;

	rest = (bits[word] ^ flip) & word_mask(bit % WORD_BITS, WORD_BITS - 1);
	while (rest == 0)
	{
		if (++word == WORDS_PER_CHUNK)
			return NARAD_CHUNK_SIZE;
		rest = bits[word] ^ flip;
	}
	return word * WORD_BITS + pg_rightmost_one_pos64(rest);
}

/*
 * The smallest member at or above `from`, or NARAD_INVALID_OFFSET.
 */
NaradOffset
NaradSetNextMember(const NaradSet *set, NaradOffset from)
{
	int			i;

	for (i = find_chunk(set, CHUNK_OF(from)); i < set->nchunks; i++)
	{
		const NaradSetChunk *chunk = &set->chunks[i];
		NaradOffset first = CHUNK_FIRST(chunk->chunk);
		uint32		bit;

		if (chunk->bits == NULL)
			return Max(first, from);
		bit = next_bit(chunk->bits, from > first ? BIT_OF(from) : 0, 0);
		if (bit < NARAD_CHUNK_SIZE)
			return first + bit;
	}
	return NARAD_INVALID_OFFSET;
}

/*
 * The smallest offset at or above `from` that is no member.
 */
NaradOffset
NaradSetNextGap(const NaradSet *set, NaradOffset from)
{
	int			i;

	for (i = find_chunk(set, CHUNK_OF(from)); i < set->nchunks; i++)
	{
		const NaradSetChunk *chunk = &set->chunks[i];
		uint32		bit;

		if (chunk->chunk > CHUNK_OF(from))
			break;
		if (chunk->bits != NULL)
		{
			bit = next_bit(chunk->bits, BIT_OF(from), PG_UINT64_MAX);
			if (bit < NARAD_CHUNK_SIZE)
				return CHUNK_FIRST(chunk->chunk) + bit;
		}
		from = CHUNK_FIRST(CHUNK_END(chunk));
	}
	return from;
}

/*
 * Forgets members below an offset and frees chunks that lie wholly below it,
 * reservations too.  (Of a run, members of the chunk in which `below` lies
 * are kept: nobody asks for offsets below what was trimmed.)
 */
void
NaradSetTrim(NaradSet *set, NaradOffset below)
{
	uint64		limit = CHUNK_OF(below);
	int			ngone = find_chunk(set, limit);
	NaradSetChunk *chunk;
	int			i;

	for (i = 0; i < ngone; i++)
	{
		chunk = &set->chunks[i];
		set->nmembers -= chunk->bits != NULL ? chunk->nset :
			chunk->nchunks << NARAD_CHUNK_BITS;
		NaradFree(chunk->bits);
	}
	if (ngone > 0)
		delete_chunks(set, 0, ngone);
	if (set->nchunks == 0 || set->chunks[0].chunk > limit)
		return;

	chunk = &set->chunks[0];
	if (chunk->bits == NULL)
	{
		set->nmembers -= (limit - chunk->chunk) << NARAD_CHUNK_BITS;
		chunk->nchunks -= limit - chunk->chunk;
		chunk->chunk = limit;
		return;
	}
	for (i = 0; i <= (int) (BIT_OF(below) / WORD_BITS); i++)
	{
		uint64		mask = PG_UINT64_MAX;
		int			nset;

		if (i == (int) (BIT_OF(below) / WORD_BITS))
			mask = (UINT64CONST(1) << (BIT_OF(below) % WORD_BITS)) - 1;
		nset = count_bits(chunk->bits[i] & mask);
		chunk->bits[i] &= ~mask;
		chunk->nset -= nset;
		set->nmembers -= nset;
	}
}

/*
 * The largest member, or NARAD_INVALID_OFFSET.
 */
NaradOffset
NaradSetMax(const NaradSet *set)
{
	int			i;
	int			word;

	for (i = set->nchunks - 1; i >= 0; i--)
	{
		const NaradSetChunk *chunk = &set->chunks[i];

		if (chunk->bits == NULL)
			return CHUNK_FIRST(CHUNK_END(chunk)) - 1;
		if (chunk->nset == 0)
			continue;
		for (word = WORDS_PER_CHUNK - 1; chunk->bits[word] == 0; word--)
			 /* there is one */ ;
		return CHUNK_FIRST(chunk->chunk) + (NaradOffset) word * WORD_BITS +
			pg_leftmost_one_pos64(chunk->bits[word]);
	}
	return NARAD_INVALID_OFFSET;
}
