/*-------------------------------------------------------------------------
 *
 * queue_lease.c
 *	  The leases of one shard: by offset, by deadline, and those returned.
 *
 * Owns:       NaradLeaseTable and its entries, in shared memory.
 * Invariants: I2: an offset has at most one entry, and an entry one nonce.
 *			   An entry is in the hash table for as long as it exists; in the
 *			   heap when LEASED or DELAYED, in one of its own when
 *			   DEAD_LETTER, in the FIFO when RETURNED, in none of them when
 *			   PINNED (a pinned lease cannot expire: I5) or SUSPECT.
 *			   nstate[] counts the entries by state.  An entry that was ever
 *			   in another state than LEASED and PINNED is on the list of those
 *			   that have come back until it is removed: only these can have
 *			   been delivered before.
 * Locks:      none; the caller holds the shard lock, exclusively for changes.
 * Runs in:    any backend, the worker, and transaction callbacks.
 * On error:   nothing here errors.  Only NaradLeaseInsert needs memory, so a
 *			   lease, once there, can always be returned, pinned and removed.
 *
 * The hash table is an array of chains, doubled when there are more entries
 * than chains.  When there is no memory for a larger array the chains grow
 * longer instead.  Entries that are removed are kept for reuse, up to a
 * limit, since each claim needs one.
 *
 * The heap is a pairing heap of the server's; its head is made anew at each
 * operation, as a function's address does not belong in shared memory.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <time.h>

#include "common/hashfn.h"

#include "base/base_memory.h"
#include "queue/queue_lease.h"

#define LEASE_MIN_BUCKETS	16
#define LEASE_MAX_BUCKETS	(1 << 24)
/* Removed entries kept for reuse. */
#define LEASE_MAX_UNUSED	1024

static inline uint32
bucket_of(NaradOffset offset, uint32 nbuckets)
{
	return (uint32) (murmurhash32((uint32) offset ^ (uint32) (offset >> 32)) &
					 (nbuckets - 1));
}

/* The heap has the greatest first: the earliest deadline has to be that. */
static int
compare_deadlines(const pairingheap_node *a, const pairingheap_node *b,
				  void *arg)
{
	const NaradLease *x = pairingheap_const_container(NaradLease, heap_node, a);
	const NaradLease *y = pairingheap_const_container(NaradLease, heap_node, b);

	if (x->deadline != y->deadline)
		return x->deadline < y->deadline ? 1 : -1;
	if (x->offset != y->offset)
		return x->offset < y->offset ? 1 : -1;
	return 0;
}

/* The heap for an entry of this state. */
static pairingheap_node **
heap_of(NaradLeaseTable *table, const NaradLease *lease)
{
	return lease->state == NARAD_LEASE_DEAD_LETTER ?
		&table->dead_root : &table->heap_root;
}

static void
heap_add(NaradLeaseTable *table, NaradLease *lease)
{
	pairingheap_node **root = heap_of(table, lease);
	pairingheap heap = {compare_deadlines, NULL, *root};

	Assert(!lease->in_heap);
	pairingheap_add(&heap, &lease->heap_node);
	*root = heap.ph_root;
	lease->in_heap = true;
}

static void
heap_remove(NaradLeaseTable *table, NaradLease *lease)
{
	pairingheap_node **root = heap_of(table, lease);
	pairingheap heap = {compare_deadlines, NULL, *root};

	if (!lease->in_heap)
		return;
	pairingheap_remove(&heap, &lease->heap_node);
	*root = heap.ph_root;
	lease->in_heap = false;
}

/*
 * Makes a table empty that was never used.
 */
void
NaradLeaseTableInit(NaradLeaseTable *table)
{
	memset(table, 0, sizeof(NaradLeaseTable));
	dlist_init(&table->returned);
	dlist_init(&table->come_back);
	dlist_init(&table->unused);
}

/*
 * Frees all entries and the table's own memory; it is empty afterwards.
 */
void
NaradLeaseTableClear(NaradLeaseTable *table)
{
	for (uint32 i = 0; i < table->nbuckets; i++)
	{
		NaradLease *lease = table->buckets[i];

		while (lease != NULL)
		{
			NaradLease *next = lease->hash_next;

			NaradFree(lease->reason);
			NaradFree(lease);
			lease = next;
		}
	}
	while (!dlist_is_empty(&table->unused))
	{
		dlist_node *node = dlist_pop_head_node(&table->unused);

		NaradFree(dlist_container(NaradLease, fifo_node, node));
	}
	NaradFree(table->buckets);
	NaradLeaseTableInit(table);
}

/*
 * Doubles the number of chains, if there is memory; false if there are none.
 */
static bool
table_grow(NaradLeaseTable *table)
{
	uint32		nbuckets;
	NaradLease **buckets;

	nbuckets = table->nbuckets == 0 ? LEASE_MIN_BUCKETS : table->nbuckets * 2;
	buckets = NaradAlloc(sizeof(NaradLease *) * nbuckets);
	if (buckets == NULL)
		return table->nbuckets > 0;

	for (uint32 i = 0; i < table->nbuckets; i++)
	{
		NaradLease *lease = table->buckets[i];

		while (lease != NULL)
		{
			NaradLease *next = lease->hash_next;
			uint32		bucket = bucket_of(lease->offset, nbuckets);

			lease->hash_next = buckets[bucket];
			buckets[bucket] = lease;
			lease = next;
		}
	}
	NaradFree(table->buckets);
	table->buckets = buckets;
	table->nbuckets = nbuckets;
	return true;
}

/*
 * The entry of an offset, or NULL.
 */
NaradLease *
NaradLeaseFind(const NaradLeaseTable *table, NaradOffset offset)
{
	NaradLease *lease;

	if (table->nbuckets == 0)
		return NULL;
	lease = table->buckets[bucket_of(offset, table->nbuckets)];
	while (lease != NULL && lease->offset != offset)
		lease = lease->hash_next;
	return lease;
}

/*
 * A new entry for an offset that has none: zeroed, LEASED, and not in the heap
 * until its deadline is set and NaradLeaseSetState is called.  NULL when there
 * is no memory.
 */
NaradLease *
NaradLeaseInsert(NaradLeaseTable *table, NaradOffset offset)
{
	NaradLease *lease;
	uint32		bucket;

	Assert(NaradLeaseFind(table, offset) == NULL);
	if (table->nentries >= table->nbuckets &&
		table->nbuckets < LEASE_MAX_BUCKETS && !table_grow(table))
		return NULL;
	if (table->nunused > 0)
	{
		dlist_node *node = dlist_pop_head_node(&table->unused);

		lease = dlist_container(NaradLease, fifo_node, node);
		table->nunused--;
		memset(lease, 0, sizeof(NaradLease));
	}
	else
	{
		lease = NaradAlloc(sizeof(NaradLease));
		if (lease == NULL)
			return NULL;
	}

	lease->offset = offset;
	lease->state = NARAD_LEASE_LEASED;
	bucket = bucket_of(offset, table->nbuckets);
	lease->hash_next = table->buckets[bucket];
	table->buckets[bucket] = lease;
	table->nentries++;
	table->nstate[NARAD_LEASE_LEASED]++;
	return lease;
}

/*
 * Forgets an entry.  Needs no memory; may free some.
 */
void
NaradLeaseRemove(NaradLeaseTable *table, NaradLease *lease)
{
	NaradLease **link;

	link = &table->buckets[bucket_of(lease->offset, table->nbuckets)];
	while (*link != lease)
		link = &(*link)->hash_next;
	*link = lease->hash_next;

	if (lease->state == NARAD_LEASE_RETURNED)
		dlist_delete(&lease->fifo_node);
	if (lease->has_come_back)
	{
		dlist_delete(&lease->back_node);
		table->ncome_back--;
	}
	heap_remove(table, lease);
	table->nstate[lease->state]--;
	table->nentries--;
	NaradLeaseSetReason(lease, NULL);

	if (table->nunused < LEASE_MAX_UNUSED)
	{
		dlist_push_head(&table->unused, &lease->fifo_node);
		table->nunused++;
	}
	else
		NaradFree(lease);
}

/*
 * Moves an entry to a state, which may be its own: into a heap (LEASED,
 * DELAYED, DEAD_LETTER; its deadline is set), to the end of the FIFO
 * (RETURNED) or out of all (SUSPECT, PINNED; the deadline is kept for a
 * rollback).  The shard's count of
 * holes is the caller's to keep.
 */
void
NaradLeaseSetState(NaradLeaseTable *table, NaradLease *lease,
				   NaradLeaseState state)
{
	if (lease->state == NARAD_LEASE_RETURNED)
		dlist_delete(&lease->fifo_node);
	heap_remove(table, lease);

	table->nstate[lease->state]--;
	lease->state = state;
	table->nstate[state]++;

	if (state == NARAD_LEASE_RETURNED)
		dlist_push_tail(&table->returned, &lease->fifo_node);
	else if (state == NARAD_LEASE_LEASED || state == NARAD_LEASE_DELAYED ||
			 state == NARAD_LEASE_DEAD_LETTER)
		heap_add(table, lease);

	if (!lease->has_come_back && state != NARAD_LEASE_LEASED &&
		state != NARAD_LEASE_PINNED)
	{
		dlist_push_tail(&table->come_back, &lease->back_node);
		table->ncome_back++;
		lease->has_come_back = true;
	}
}

/*
 * What is known of an entry's holder is void: its nonce first of all (I4).
 */
void
NaradLeaseClearHolder(NaradLease *lease)
{
	lease->nonce = 0;
	lease->taker_open = false;
	lease->taker_aborted = false;
	lease->is_acked = false;
	lease->pid = 0;
	lease->pinner = 0;
	lease->pin_action = 0;
	lease->expires_at = 0;
}

/*
 * Takes over the text of a nack, which is from NaradAlloc, or NULL; frees the
 * one before.
 */
void
NaradLeaseSetReason(NaradLease *lease, char *reason)
{
	NaradFree(lease->reason);
	lease->reason = reason;
}

/*
 * A new deadline for an entry that is in the heap.
 */
void
NaradLeaseSetDeadline(NaradLeaseTable *table, NaradLease *lease,
					  int64 deadline)
{
	Assert(lease->in_heap);
	heap_remove(table, lease);
	lease->deadline = deadline;
	heap_add(table, lease);
}

/*
 * The LEASED or DELAYED entry whose deadline is first, or NULL.
 */
NaradLease *
NaradLeaseEarliest(const NaradLeaseTable *table)
{
	if (table->heap_root == NULL)
		return NULL;
	return pairingheap_container(NaradLease, heap_node, table->heap_root);
}

/*
 * The DEAD_LETTER entry whose next try is first, or NULL.
 */
NaradLease *
NaradLeaseEarliestDead(const NaradLeaseTable *table)
{
	if (table->dead_root == NULL)
		return NULL;
	return pairingheap_container(NaradLease, heap_node, table->dead_root);
}

/*
 * The entry that was returned first, or NULL.
 */
NaradLease *
NaradLeaseFirstReturned(const NaradLeaseTable *table)
{
	if (table->nstate[NARAD_LEASE_RETURNED] == 0)
		return NULL;
	return dlist_container(NaradLease, fifo_node, table->returned.head.next);
}

/*
 * All entries in no order: the first for NULL, NULL after the last.  The
 * table may not change meanwhile.
 */
NaradLease *
NaradLeaseNext(const NaradLeaseTable *table, NaradLease *prev)
{
	uint32		bucket = 0;

	if (prev != NULL)
	{
		if (prev->hash_next != NULL)
			return prev->hash_next;
		bucket = bucket_of(prev->offset, table->nbuckets) + 1;
	}
	while (bucket < table->nbuckets && table->buckets[bucket] == NULL)
		bucket++;
	return bucket < table->nbuckets ? table->buckets[bucket] : NULL;
}

/*
 * The entries that have come back, in no order: the first for NULL, NULL after
 * the last.  The table may not change meanwhile.
 */
NaradLease *
NaradLeaseNextComeBack(const NaradLeaseTable *table, NaradLease *prev)
{
	const dlist_node *end = &table->come_back.head;
	dlist_node *next = prev == NULL ? end->next : prev->back_node.next;

	return next == end ? NULL :
		dlist_container(NaradLease, back_node, next);
}

/*
 * The monotonic clock, in microseconds: what deadlines are told by, so that
 * setting the machine's clock neither expires leases nor keeps them.
 */
int64
NaradClockNow(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64) now.tv_sec * INT64CONST(1000000) + now.tv_nsec / 1000;
}
