/*
 * test_lease.c
 *		I2: the lease table against a naive model, with and without memory.
 */
/* LINK: src/queue/queue_lease.c */
#include "postgres.h"

#include <time.h>

#include "base/base_memory.h"
#include "queue/queue_lease.h"
#include "unit.h"

#define MODEL_SIZE 500

typedef struct ModelEntry
{
	bool		exists;
	NaradLeaseState state;
	bool		has_come_back;
	int64		deadline;
	uint64		returned_at;	/* place in the FIFO */
} ModelEntry;

static int	nallocated = 0;
static int	allowed = PG_INT32_MAX; /* allocations before memory is out */
static ModelEntry model[MODEL_SIZE];
static uint64 returned_clock = 0;

void *
NaradAlloc(Size size)
{
	if (allowed <= 0)
		return NULL;
	allowed--;
	nallocated++;
	return calloc(1, size);
}

void
NaradFree(void *ptr)
{
	if (ptr != NULL)
		nallocated--;
	free(ptr);
}

static bool
same_earliest(const NaradLeaseTable *table)
{
	NaradLease *earliest = NaradLeaseEarliest(table);
	int			expected = -1;

	for (int i = 0; i < MODEL_SIZE; i++)
	{
		if (model[i].exists && (model[i].state == NARAD_LEASE_LEASED ||
								model[i].state == NARAD_LEASE_DELAYED) &&
			(expected < 0 || model[i].deadline < model[expected].deadline))
			expected = i;
	}
	if (expected < 0)
		return earliest == NULL;
	return earliest != NULL && earliest->offset == expected;
}

static bool
same_earliest_dead(const NaradLeaseTable *table)
{
	NaradLease *earliest = NaradLeaseEarliestDead(table);
	int			expected = -1;

	for (int i = 0; i < MODEL_SIZE; i++)
	{
		if (model[i].exists && model[i].state == NARAD_LEASE_DEAD_LETTER &&
			(expected < 0 || model[i].deadline < model[expected].deadline))
			expected = i;
	}
	if (expected < 0)
		return earliest == NULL;
	return earliest != NULL && earliest->offset == expected;
}

static bool
same_returned(const NaradLeaseTable *table)
{
	NaradLease *first = NaradLeaseFirstReturned(table);
	int			expected = -1;

	for (int i = 0; i < MODEL_SIZE; i++)
	{
		if (model[i].exists && model[i].state == NARAD_LEASE_RETURNED &&
			(expected < 0 ||
			 model[i].returned_at < model[expected].returned_at))
			expected = i;
	}
	if (expected < 0)
		return first == NULL;
	return first != NULL && first->offset == expected;
}

static bool
same_entries(const NaradLeaseTable *table)
{
	uint32		nstate[NARAD_LEASE_NSTATES] = {0};
	uint32		nentries = 0;
	uint32		nback = 0;
	uint32		nseen = 0;

	for (int i = 0; i < MODEL_SIZE; i++)
	{
		NaradLease *lease = NaradLeaseFind(table, i);

		if ((lease != NULL) != model[i].exists)
			return false;
		if (lease == NULL)
			continue;
		if (lease->state != model[i].state ||
			lease->has_come_back != model[i].has_come_back)
			return false;
		nstate[model[i].state]++;
		nback += model[i].has_come_back;
		nentries++;
	}
	if (nback != table->ncome_back)
		return false;
	for (NaradLease *lease = NaradLeaseNextComeBack(table, NULL); lease != NULL;
		 lease = NaradLeaseNextComeBack(table, lease))
	{
		if (nback-- == 0 || !model[lease->offset].has_come_back)
			return false;
	}
	if (nback != 0)
		return false;
	for (NaradLease *lease = NaradLeaseNext(table, NULL); lease != NULL;
		 lease = NaradLeaseNext(table, lease))
		nseen++;
	return nseen == nentries && table->nentries == nentries &&
		memcmp(nstate, table->nstate, sizeof(nstate)) == 0;
}

/* One random change to table and model. */
static bool
random_step(NaradLeaseTable *table)
{
	int			offset = next_random() % MODEL_SIZE;
	ModelEntry *entry = &model[offset];
	NaradLease *lease = NaradLeaseFind(table, offset);
	NaradLeaseState state = next_random() % NARAD_LEASE_NSTATES;

	if (lease == NULL)
	{
		lease = NaradLeaseInsert(table, offset);
		if (lease == NULL)
			return allowed == 0;
		if (lease->nonce != 0 || lease->deliveries != 0 || lease->in_heap ||
			lease->offset != offset)
			return false;
		lease->nonce = next_random();
		lease->deadline = next_random() % 1000 * MODEL_SIZE + offset;
		entry->exists = true;
		entry->deadline = lease->deadline;
		entry->state = NARAD_LEASE_LEASED;
		entry->has_come_back = false;
		NaradLeaseSetState(table, lease, NARAD_LEASE_LEASED);
		return true;
	}

	switch (next_random() % 4)
	{
		case 0:
			NaradLeaseRemove(table, lease);
			entry->exists = false;
			return true;
		case 1:
			if (!lease->in_heap)
				return true;
			entry->deadline = next_random() % 1000 * MODEL_SIZE + offset;
			NaradLeaseSetDeadline(table, lease, entry->deadline);
			return true;
		default:
			NaradLeaseSetState(table, lease, state);
			entry->state = state;
			entry->has_come_back |= state != NARAD_LEASE_LEASED &&
				state != NARAD_LEASE_PINNED;
			entry->returned_at = returned_clock++;
			if (next_random() % 8 == 0)
				NaradLeaseSetReason(lease, NaradAlloc(8));
			return lease->in_heap == (state == NARAD_LEASE_LEASED ||
									  state == NARAD_LEASE_DELAYED ||
									  state == NARAD_LEASE_DEAD_LETTER);
	}
}

static void
test_random(const char *name, int memory)
{
	NaradLeaseTable table;
	bool		good = true;

	memset(model, 0, sizeof(model));
	allowed = memory;
	NaradLeaseTableInit(&table);
	for (int i = 0; i < 20000 && good; i++)
	{
		good = random_step(&table);
		if (i % 20 == 0)
			good = good && same_earliest(&table) &&
				same_earliest_dead(&table) && same_returned(&table) &&
				same_entries(&table);
	}
	ok(good, name);
	NaradLeaseTableClear(&table);
	ok(nallocated == 0 && table.nentries == 0, "all memory is freed");
	allowed = PG_INT32_MAX;
}

/* Many entries at once, and then none: what is kept for reuse has a limit. */
static void
test_many(void)
{
	NaradLeaseTable table;
	bool		good = true;

	NaradLeaseTableInit(&table);
	for (NaradOffset i = 0; i < 20000; i++)
	{
		NaradLease *lease = NaradLeaseInsert(&table, i << 20);

		lease->state = NARAD_LEASE_LEASED;
		lease->deadline = (int64) i;
		NaradLeaseSetState(&table, lease, NARAD_LEASE_RETURNED);
	}
	ok(table.nentries == 20000 && table.nbuckets >= 16384, "the table grows");
	for (NaradOffset i = 0; i < 20000; i++)
	{
		NaradLease *lease = NaradLeaseFirstReturned(&table);

		good = good && lease->offset == i << 20;
		NaradLeaseRemove(&table, lease);
	}
	ok(good, "returned first, found first");
	ok(nallocated <= 1 + 1024, "few are kept for reuse");
	NaradLeaseTableClear(&table);
	ok(nallocated == 0, "all memory is freed");
}

static void
test_holder(void)
{
	NaradLeaseTable table;
	NaradLease *lease;

	NaradLeaseTableInit(&table);
	ok(NaradLeaseFind(&table, 1) == NULL &&
	   NaradLeaseEarliest(&table) == NULL &&
	   NaradLeaseFirstReturned(&table) == NULL &&
	   NaradLeaseNext(&table, NULL) == NULL &&
	   NaradLeaseNextComeBack(&table, NULL) == NULL, "an empty table has nothing");
	lease = NaradLeaseInsert(&table, 1);
	lease->nonce = 7;
	lease->deliveries = 3;
	lease->pinner = 8;
	lease->taker_open = true;
	NaradLeaseClearHolder(lease);
	ok(lease->nonce == 0 && lease->pinner == 0 && !lease->taker_open &&
	   lease->deliveries == 3, "deliveries outlive the holder");
	NaradLeaseTableClear(&table);
}

int
main(void)
{
	int64		before;

	seed = (uint64) time(NULL) * 2654435761u | 1;
	printf("# seed %llu\n", (unsigned long long) seed);
	test_random("random changes", PG_INT32_MAX);
	test_random("random changes, little memory", 40);
	test_random("random changes, no memory", 0);
	test_many();
	test_holder();
	before = NaradClockNow();
	ok(before > 0 && NaradClockNow() >= before, "the clock does not go back");
	return done();
}
