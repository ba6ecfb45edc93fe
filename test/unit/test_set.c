/* LINK: src/queue/queue_set.c */
/*
 * test_set.c
 *		NaradSet against a plain array of booleans, with random calls, and
 *		with memory that runs out at any allocation.
 *
 * I6 rests on it: what is settled stays settled until it is trimmed.  The
 * seed is printed; give it as the argument to repeat a run.
 */
#include "postgres.h"

#include <time.h>

#include "queue/queue_set.h"
#include "unit.h"

void	   *NaradAlloc(Size size);
void		NaradFree(void *ptr);

#define SPACE (NARAD_CHUNK_SIZE * 6)

static int	allocated = 0;
static int	until_failure = -1;
static bool model[SPACE];

void *
NaradAlloc(Size size)
{
	if (until_failure == 0)
		return NULL;
	if (until_failure > 0)
		until_failure--;
	allocated++;
	return calloc(1, size);
}

void
NaradFree(void *ptr)
{
	if (ptr != NULL)
		allocated--;
	free(ptr);
}

static uint64
draw(uint64 below)
{
	return next_random() % below;
}

/* Near a chunk's edge more often than not. */
static NaradOffset
draw_offset(void)
{
	uint64		edge = draw(7) * NARAD_CHUNK_SIZE;
	uint64		offset = draw(3) == 0 ? draw(SPACE) : edge + draw(300) - 150;

	return offset < SPACE ? offset : draw(SPACE);
}

/* All that can be asked of the set, against the model, from `low` on. */
static bool
same(const NaradSet *set, NaradOffset base, uint64 low)
{
	NaradOffset at = NaradSetNextMember(set, base + low);
	NaradOffset max = NARAD_INVALID_OFFSET;
	uint64		i;

	for (i = low; i < SPACE; i++)
	{
		if (!model[i])
			continue;
		if (at != base + i)
			return false;
		max = base + i;
		at = NaradSetNextMember(set, base + i + 1);
	}
	if (at != NARAD_INVALID_OFFSET || NaradSetMax(set) != max)
		return max == NARAD_INVALID_OFFSET && NaradSetMax(set) < base + low;
	for (i = 0; i < 200; i++)
	{
		uint64		from = low + draw(SPACE - low);
		uint64		gap = from;

		if (NaradSetContains(set, base + from) != model[from])
			return false;
		while (gap < SPACE && model[gap])
			gap++;
		if (NaradSetNextGap(set, base + from) != base + gap)
			return false;
	}
	return true;
}

/* Sorted, disjoint, runs joined, counts right. */
static bool
sound(const NaradSet *set)
{
	uint64		nmembers = 0;
	int			i;
	int			j;

	for (i = 0; i < set->nchunks; i++)
	{
		const NaradSetChunk *c = &set->chunks[i];
		uint32		nset = 0;

		if (i > 0 && set->chunks[i - 1].chunk + set->chunks[i - 1].nchunks >
			c->chunk)
			return false;
		if (c->bits == NULL)
		{
			if (!set->compact || c->nchunks < 1)
				return false;
			if (i > 0 && set->chunks[i - 1].bits == NULL &&
				set->chunks[i - 1].chunk + set->chunks[i - 1].nchunks ==
				c->chunk)
				return false;
			nmembers += c->nchunks * NARAD_CHUNK_SIZE;
			continue;
		}
		for (j = 0; j < NARAD_CHUNK_SIZE; j++)
			nset += (c->bits[j / 64] >> (j % 64)) & 1;
		if (nset != c->nset || c->nchunks != 1 ||
			(set->compact && nset == NARAD_CHUNK_SIZE))
			return false;
		nmembers += nset;
	}
	return nmembers == set->nmembers;
}

static uint64
model_count(uint64 low)
{
	uint64		n = 0;
	uint64		i;

	for (i = low; i < SPACE; i++)
		n += model[i];
	return n;
}

/* One range, maybe with memory that runs out meanwhile. */
static bool
try_range(NaradSet *set, NaradOffset base, uint64 low)
{
	uint64		first = low + draw(SPACE - low);
	uint64		last = draw_offset();
	uint64		i;

	if (draw(2) == 0)
		last = first + draw(40);
	last = Max(first, Min(last, SPACE - 1));
	until_failure = draw(3) == 0 ? (int) draw(3) : -1;
	if (NaradSetAddRange(set, base + first, base + last))
		memset(&model[first], true, last - first + 1);
	else
	{
		/* Some were added: only those asked for. */
		for (i = first; i <= last; i++)
			model[i] |= NaradSetContains(set, base + i);
	}
	until_failure = -1;
	return true;
}

static bool
try_one(NaradSet *set, NaradOffset base, uint64 low)
{
	uint64		offset = draw_offset();

	if (offset < low)
		return true;
	if (!set->compact && draw(2) == 0)
	{
		bool		was = model[offset];

		model[offset] = false;
		return NaradSetRemove(set, base + offset) == was;
	}
	until_failure = draw(10) == 0 ? (int) draw(2) : -1;
	if (NaradSetReserve(set, base + offset))
	{
		bool		was = model[offset];

		until_failure = 0;		/* adding needs no memory */
		if (NaradSetAdd(set, base + offset) == was)
			return false;
		model[offset] = true;
	}
	until_failure = -1;
	return true;
}

static bool
random_run(bool compact, NaradOffset base)
{
	NaradSet	set;
	uint64		low = 0;
	int			step;
	bool		good = true;

	memset(model, 0, sizeof(model));
	NaradSetInit(&set, compact);
	for (step = 0; step < 300 && good; step++)
	{
		uint64		what = draw(20);

		if (what < 4)
			good = try_range(&set, base, low);
		else if (what == 4 && low < SPACE - NARAD_CHUNK_SIZE)
		{
			/* As the frontier does: only to an offset that is no member. */
			low = NaradSetNextGap(&set, base + low + draw(500)) - base;
			if (low >= SPACE)
				break;
			NaradSetTrim(&set, base + low);
			memset(model, 0, low);
		}
		else
			good = try_one(&set, base, low);
		if (good && step % 30 == 0)
			good = same(&set, base, low) && sound(&set) &&
				model_count(low) == set.nmembers;
	}
	NaradSetClear(&set);
	return good && allocated == 0;
}

static void
test_runs(void)
{
	NaradSet	set;

	NaradSetInit(&set, true);
	ok(NaradSetAddRange(&set, 0, UINT64CONST(1) << 40), "a very long range");
	ok(allocated == 2 && set.nchunks == 2, "takes one run and one bitmap");
	ok(NaradSetNextGap(&set, 5) == (UINT64CONST(1) << 40) + 1,
	   "and its gap is found at once");
	NaradSetTrim(&set, UINT64CONST(1) << 39);
	ok(NaradSetNextMember(&set, UINT64CONST(1) << 39) == UINT64CONST(1) << 39,
	   "trimmed in the middle, the rest stays");
	ok(NaradSetReserve(&set, 7 + (UINT64CONST(1) << 39)),
	   "a member needs no room");
	NaradSetClear(&set);
	ok(allocated == 0, "all memory is given back");
}

static void
test_empty(void)
{
	NaradSet	set;

	NaradSetInit(&set, false);
	ok(NaradSetMax(&set) == NARAD_INVALID_OFFSET, "an empty set has no member");
	ok(NaradSetNextGap(&set, 7) == 7, "and a gap everywhere");
	until_failure = 0;
	ok(!NaradSetReserve(&set, 7), "no memory, no reservation");
	until_failure = 1;
	ok(!NaradSetReserve(&set, 7), "not even half of one");
	until_failure = -1;
	ok(NaradSetReserve(&set, 7) && set.nmembers == 0,
	   "a reservation is no member");
	NaradSetTrim(&set, NARAD_CHUNK_SIZE);
	ok(set.nchunks == 0, "and goes when trimmed");
	NaradSetClear(&set);
}

int
main(int argc, char **argv)
{
	int			round;
	bool		good = true;

	seed = argc > 1 ? strtoull(argv[1], NULL, 10) :
		(uint64) time(NULL) * 2654435761 + 1;
	printf("# seed " UINT64_FORMAT "\n", seed);

	test_empty();
	test_runs();
	for (round = 0; round < 40 && good; round++)
		good = random_run(true, draw(2) * (UINT64CONST(1) << 45));
	ok(good, "compact sets do as the model does");
	for (round = 0; round < 40 && good; round++)
		good = random_run(false, draw(2) * (UINT64CONST(1) << 45));
	ok(good, "sets that are not compact do as the model does");
	return done();
}
