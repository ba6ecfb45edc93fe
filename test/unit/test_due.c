/*
 * test_due.c
 *		Delayed messages come by time, then by offset, whatever order they went
 *		in; none is lost when there is no memory, nor when others are removed.
 */
/* LINK: src/queue/queue_due.c */
#include "postgres.h"

#include "base/base_memory.h"
#include "queue/queue_due.h"
#include "unit.h"

#define MODEL_SIZE 5000

static int	nallocated = 0;
static int	allowed = PG_INT32_MAX; /* allocations before memory is out */
static NaradDue model[MODEL_SIZE];
static int	nmodel = 0;

void *
NaradAlloc(Size size)
{
	if (nallocated >= allowed)
		return NULL;
	nallocated++;
	return calloc(1, size);
}

void
NaradFree(void *ptr)
{
	if (ptr == NULL)
		return;
	nallocated--;
	free(ptr);
}

/* Index of the one that has to come next. */
static int
first_of_model(void)
{
	int			best = 0;

	for (int i = 1; i < nmodel; i++)
		if (model[i].due < model[best].due ||
			(model[i].due == model[best].due &&
			 model[i].offset < model[best].offset))
			best = i;
	return best;
}

static bool
pop_is_right(NaradDueHeap *heap)
{
	const NaradDue *first = NaradDueFirst(heap);
	int			best;
	bool		right;

	if (nmodel == 0)
		return first == NULL;
	best = first_of_model();
	right = first != NULL && first->due == model[best].due &&
		first->offset == model[best].offset;
	model[best] = model[--nmodel];
	NaradDuePop(heap);
	return right && heap->nentries == nmodel;
}

static void
add(NaradDueHeap *heap, TimestampTz due, NaradOffset offset)
{
	if (!NaradDueAdd(heap, due, offset))
		return;
	model[nmodel].due = due;
	model[nmodel++].offset = offset;
}

/* Removes all below an offset, from the heap and from the model. */
static void
trim(NaradDueHeap *heap, NaradOffset offset)
{
	int			nkept = 0;

	NaradDueTrim(heap, offset);
	for (int i = 0; i < nmodel; i++)
	{
		if (model[i].offset >= offset)
			model[nkept++] = model[i];
	}
	nmodel = nkept;
}

/*
 * Grows and shrinks between empty and full, with few times and many; now and then
 * the lower offsets are gone, few or nearly all.
 */
static void
test_random(uint64 ntimes)
{
	NaradDueHeap heap;
	bool		right = true;

	NaradDueInit(&heap);
	for (int round = 0; round < 4; round++)
	{
		int			bias = round % 2 == 0 ? 75 : 25;

		for (int i = 0; i < 6000; i++)
		{
			if ((int) (next_random() % 100) < bias && nmodel < MODEL_SIZE)
				add(&heap, (TimestampTz) (next_random() % ntimes) - 5,
					next_random());
			else
				right &= pop_is_right(&heap);
			if (next_random() % 1000 == 0)
				trim(&heap, next_random() >> (next_random() % 8));
		}
	}
	while (nmodel > 0)
		right &= pop_is_right(&heap);
	ok(right, "messages come in order");
	ok(NaradDueFirst(&heap) == NULL, "an empty heap has no first");
	add(&heap, 1, 1);
	add(&heap, 2, 2);
	trim(&heap, 3);
	ok(NaradDueFirst(&heap) == NULL, "none of those below an offset stays");
	ok(nallocated == 0, "an empty heap holds no memory");
}

static void
test_memory(void)
{
	NaradDueHeap heap;
	bool		right = true;
	int			refused = 0;

	NaradDueInit(&heap);
	allowed = 3;
	for (int i = 0; i < 2000; i++)
	{
		int			before = nmodel;

		add(&heap, 2000 - i, i);
		refused += nmodel == before;
	}
	ok(refused == 2000 - 2 * NARAD_DUE_CHUNK, "adding fails when memory is out");
	allowed = PG_INT32_MAX;
	while (nmodel > 0)
		right &= pop_is_right(&heap);
	ok(right, "what was added before is there");
	add(&heap, 1, 1);
	NaradDueClear(&heap);
	nmodel = 0;
	ok(nallocated == 0, "clearing frees all");
}

int
main(void)
{
	test_random(10);
	test_random(PG_INT64_MAX);
	test_memory();
	return done();
}
