/*-------------------------------------------------------------------------
 *
 * queue_key.c
 *	  Order by key: whose turn it is among the messages of a key.
 *
 * Owns:       a shard's NaradKeyTable.
 * Invariants: of the messages of a key that are not settled, and not waiting
 *             for a time they were produced with, one has the turn, and only
 *             that one is handed out.  It keeps the turn until it is settled
 *             once it has been claimed, whatever becomes of its lease; until
 *             then the lowest offset has it.  It is always the first in line.
 *             Below scan_pos the key of everything unsettled is known: a
 *             message is a node here, or in `later`, or it has no key.  So
 *             nothing that is handed out leaves an earlier one of its key
 *             behind.
 *             A node that has not the turn is in no other list of available
 *             messages: not in `pending`, not ready.
 * Locks:      the shard lock, exclusively.  Who reads keys (queue_consume.c)
 *             holds scan_lock, too, from the choice to here.
 * Runs in:    any backend; Release and Unpass in callbacks of commit and
 *             abort: they allocate nothing.
 * On error:   nothing errors.  Without memory a message is not put in line,
 *             and the scan may not step over it.
 *
 * Messages in line are nodes, linked by key, so that settling one makes the
 * next of its key available without reading anything.  So many nodes are kept;
 * beyond, what is in line is a bit in `later`, and the key knows the range in
 * which its own lie.  When its nodes have run out that range is read again,
 * from where it was read to before, by whoever consumes (refill).  Each key
 * that has more in line than the nodes hold so costs one more pass over the
 * range, however long that is; what others wait for is served in between.
 *
 * To the transaction that acked the one with the turn, the next has it: its
 * pins are `passed`, from the first on without a gap.  Commit settles them
 * and makes that true for all, rollback forgets it.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "miscadmin.h"

#include "base/base_memory.h"
#include "queue/queue_shard.h"

#define MIN_BUCKETS		16
#define MAX_BUCKETS		(1 << 24)

/* Nodes of a shard that wait for another's turn to end. */
#define MAX_IN_LINE		16384

/* ------------------------------------------------------- the hash tables */

static inline uint32
bucket_of(uint64 id, uint32 nbuckets)
{
	return (uint32) (murmurhash32((uint32) id ^ (uint32) (id >> 32)) &
					 (nbuckets - 1));
}

static NaradKeyLink *
hash_find(const NaradKeyHash *hash, uint64 id)
{
	NaradKeyLink *link;

	if (hash->nentries == 0)
		return NULL;
	link = hash->buckets[bucket_of(id, hash->nbuckets)];
	while (link != NULL && link->id != id)
		link = link->next;
	return link;
}

/* Doubles the number of chains, if there is memory; false if there are none. */
static bool
hash_grow(NaradKeyHash *hash)
{
	uint32		nbuckets = Max(MIN_BUCKETS, hash->nbuckets * 2);
	NaradKeyLink **buckets;

	if (hash->nentries < hash->nbuckets || hash->nbuckets >= MAX_BUCKETS)
		return true;
	buckets = NaradAlloc(sizeof(NaradKeyLink *) * nbuckets);
	if (buckets == NULL)
		return hash->nbuckets > 0;
	for (uint32 i = 0; i < hash->nbuckets; i++)
	{
		NaradKeyLink *link = hash->buckets[i];

		while (link != NULL)
		{
			NaradKeyLink *next = link->next;
			uint32		bucket = bucket_of(link->id, nbuckets);

			link->next = buckets[bucket];
			buckets[bucket] = link;
			link = next;
		}
	}
	NaradFree(hash->buckets);
	hash->buckets = buckets;
	hash->nbuckets = nbuckets;
	return true;
}

/* There are chains. */
static void
hash_add(NaradKeyHash *hash, NaradKeyLink *link)
{
	uint32		bucket = bucket_of(link->id, hash->nbuckets);

	link->next = hash->buckets[bucket];
	hash->buckets[bucket] = link;
	hash->nentries++;
}

static void
hash_remove(NaradKeyHash *hash, NaradKeyLink *link)
{
	NaradKeyLink **at = &hash->buckets[bucket_of(link->id, hash->nbuckets)];

	while (*at != link)
		at = &(*at)->next;
	*at = link->next;
	hash->nentries--;
}

/* Frees the entries, and the chains. */
static void
hash_clear(NaradKeyHash *hash)
{
	for (uint32 i = 0; i < hash->nbuckets; i++)
	{
		NaradKeyLink *link = hash->buckets[i];

		while (link != NULL)
		{
			NaradKeyLink *next = link->next;

			NaradFree(link);
			link = next;
		}
	}
	NaradFree(hash->buckets);
	memset(hash, 0, sizeof(NaradKeyHash));
}

static NaradKeyNode *
find_node(const NaradKeyTable *table, NaradOffset offset)
{
	return (NaradKeyNode *) hash_find(&table->nodes, offset);
}

static NaradKey *
find_key(const NaradKeyTable *table, uint64 hash)
{
	return (NaradKey *) hash_find(&table->keys, hash);
}

/*
 * NaradKeyTableInit
 *
 * Makes a table empty that was never used.
 */
void
NaradKeyTableInit(NaradKeyTable *table)
{
	memset(table, 0, sizeof(NaradKeyTable));
	dlist_init(&table->passed);
	dlist_init(&table->refill);
	NaradSetInit(&table->later, false);
}

/*
 * NaradKeyTableClear
 *
 * Frees what it holds; it is empty, and not ordered, afterwards.
 */
void
NaradKeyTableClear(NaradKeyTable *table)
{
	hash_clear(&table->keys);
	hash_clear(&table->nodes);
	NaradSetClear(&table->later);
	NaradKeyTableInit(table);
}

/*
 * NaradKeySetOrdered
 *
 * The topic's setting is another than at the last visit, or this is the first
 * one.  Keys are read anew, from the frontier on: so all messages that are
 * neither settled nor leased are looked at once more, delayed ones too.  What
 * is leased then stays so, even if it is more than one of a key.  Who scans
 * may not get to the end; until somebody does, the times of delayed ones are
 * not known, and nobody would be woken for them.  So a waiter goes on (I8).
 */
void
NaradKeySetOrdered(NaradShard *shard, bool ordered)
{
	NaradKeyTableClear(&shard->keys);
	shard->keys.ordered = ordered;
	NaradSetClear(&shard->pending);
	NaradDueClear(&shard->due);
	shard->nrechecks = 0;
	shard->scan_pos = shard->frontier;
	NaradShardMadeAvailable(shard, 1, true);
}

/*
 * NaradKeyHashOf
 *
 * What a key is known by.
 */
uint64
NaradKeyHashOf(const char *key, Size len)
{
	return hash_bytes_extended((const unsigned char *) key, (int) len, 0);
}

/* -------------------------------------------------------------- whose turn */

/* The heap has the greatest first: the lowest offset has to be that. */
static int
compare_ready(const pairingheap_node *a, const pairingheap_node *b, void *arg)
{
	const NaradKey *x = pairingheap_const_container(NaradKey, ready_node, a);
	const NaradKey *y = pairingheap_const_container(NaradKey, ready_node, b);

	if (x->first->link.id != y->first->link.id)
		return x->first->link.id < y->first->link.id ? 1 : -1;
	return 0;
}

static void
make_ready(NaradKeyTable *table, NaradKey *key)
{
	pairingheap heap = {compare_ready, NULL, table->ready_root};

	if (key->is_ready)
		return;
	pairingheap_add(&heap, &key->ready_node);
	table->ready_root = heap.ph_root;
	key->is_ready = true;
}

static void
make_unready(NaradKeyTable *table, NaradKey *key)
{
	pairingheap heap = {compare_ready, NULL, table->ready_root};

	if (!key->is_ready)
		return;
	pairingheap_remove(&heap, &key->ready_node);
	table->ready_root = heap.ph_root;
	key->is_ready = false;
}

static NaradKeyNode *
next_node(const NaradKey *key, NaradKeyNode *node)
{
	if (!dlist_has_next((dlist_head *) &key->nodes, &node->node))
		return NULL;
	return dlist_container(NaradKeyNode, node,
						   dlist_next_node((dlist_head *) &key->nodes,
										   &node->node));
}

static NaradKeyNode *
prev_node(const NaradKey *key, NaradKeyNode *node)
{
	if (!dlist_has_prev((dlist_head *) &key->nodes, &node->node))
		return NULL;
	return dlist_container(NaradKeyNode, node,
						   dlist_prev_node((dlist_head *) &key->nodes,
										   &node->node));
}

/* Is it the next after those that a transaction has passed? */
static bool
follows_passed(const NaradKey *key, NaradKeyNode *node)
{
	return key->passed != NULL && next_node(key, key->passed) == node;
}

/*
 * Whoever acked a node has passed it and, without a gap, those that he acked
 * behind it: in whatever order he did so, and be it before the turn came here.
 */
static void
pass_from(NaradShard *shard, NaradKey *key, NaradKeyNode *node)
{
	while (node != NULL)
	{
		NaradLease *lease = NaradLeaseFind(&shard->leases, node->link.id);

		if (lease == NULL || !lease->is_acked ||
			(key->passed != NULL && key->passer != lease->pinner))
			break;
		if (key->passed == NULL)
			dlist_push_head(&shard->keys.passed, &key->passed_node);
		key->passed = node;
		key->passer = lease->pinner;
		node = next_node(key, node);
	}
}

/*
 * Gives a node the turn, or nobody.  One that has an entry in leases is leased,
 * or is found in the FIFO; any other is ready now.
 */
static void
give_turn(NaradShard *shard, NaradKey *key, NaradKeyNode *node)
{
	NaradKeyTable *table = &shard->keys;

	make_unready(table, key);
	if (key->first != NULL)
		table->nfirst--;
	key->first = node;
	if (node == NULL)
		return;
	table->nfirst++;
	if (NaradLeaseFind(&shard->leases, node->link.id) == NULL)
		make_ready(table, key);
	else if (key->passed == NULL)
		pass_from(shard, key, node);
}

/* Forgets which ones a transaction has passed. */
static void
forget_passed(NaradKey *key)
{
	if (key->passed == NULL)
		return;
	dlist_delete(&key->passed_node);
	key->passed = NULL;
	key->passer = 0;
}

/*
 * A key of which nothing more is known is forgotten.  One that has run out of
 * nodes, to all or to the transaction that passed the last, is refilled.
 */
static void
look_after_key(NaradKeyTable *table, NaradKey *key)
{
	bool		wanted;

	if (dlist_is_empty(&key->nodes) && !key->has_later)
	{
		Assert(key->first == NULL && key->passed == NULL && !key->is_ready);
		if (key->in_refill)
			dlist_delete(&key->refill_node);
		hash_remove(&table->keys, &key->link);
		NaradFree(key);
		return;
	}

	wanted = key->has_later &&
		(dlist_is_empty(&key->nodes) ||
		 (key->passed != NULL && next_node(key, key->passed) == NULL));
	if (wanted == key->in_refill)
		return;
	if (wanted)
		dlist_push_tail(&table->refill, &key->refill_node);
	else
		dlist_delete(&key->refill_node);
	key->in_refill = wanted;
}

/* ----------------------------------------------------------------- reading */

/* A key, made if need be; NULL when out of memory. */
static NaradKey *
get_key(NaradKeyTable *table, uint64 hash)
{
	NaradKey   *key = find_key(table, hash);

	if (key != NULL)
		return key;
	if (!hash_grow(&table->keys))
		return NULL;
	key = NaradAlloc(sizeof(NaradKey));
	if (key == NULL)
		return NULL;
	key->link.id = hash;
	dlist_init(&key->nodes);
	hash_add(&table->keys, &key->link);
	return key;
}

/*
 * Has a message been claimed, now or before?  Not if that was only to look at it:
 * a first claim that nobody has disposed of yet has no deadline.
 */
static bool
is_claimed(const NaradShard *shard, NaradOffset offset)
{
	NaradLease *lease = NaradLeaseFind(&shard->leases, offset);

	return lease != NULL &&
		!(lease->state == NARAD_LEASE_LEASED && lease->deliveries == 1 &&
		  lease->deadline == PG_INT64_MAX);
}

/*
 * The last of those at the head of a key's line that have been claimed: the one
 * with the turn, and what a transaction took that had acked the ones before.
 * NULL if there is none.
 */
static NaradKeyNode *
last_claimed(const NaradShard *shard, NaradKey *key)
{
	NaradKeyNode *last = NULL;
	dlist_iter	iter;

	dlist_foreach(iter, &key->nodes)
	{
		NaradKeyNode *node = dlist_container(NaradKeyNode, node, iter.cur);

		if (!is_claimed(shard, node->link.id))
			break;
		last = node;
	}
	return last;
}

/*
 * A node in its place in line, by offset; but one that comes late, since it was
 * not due, goes behind those that have been claimed.  NULL when out of memory.
 */
static NaradKeyNode *
add_node(NaradShard *shard, NaradKey *key, NaradOffset offset)
{
	NaradKeyTable *table = &shard->keys;
	NaradKeyNode *claimed;
	NaradKeyNode *node;
	dlist_iter	iter;

	if (!hash_grow(&table->nodes))
		return NULL;
	node = NaradAlloc(sizeof(NaradKeyNode));
	if (node == NULL)
		return NULL;
	node->link.id = offset;
	node->key = key;
	hash_add(&table->nodes, &node->link);
	if (dlist_is_empty(&key->nodes) ||
		dlist_tail_element(NaradKeyNode, node,
						   &key->nodes)->link.id < offset)
	{
		dlist_push_tail(&key->nodes, &node->node);
		return node;
	}
	claimed = last_claimed(shard, key);
	dlist_reverse_foreach(iter, &key->nodes)
	{
		NaradKeyNode *before = dlist_container(NaradKeyNode, node, iter.cur);

		if (before == claimed || before->link.id < offset)
		{
			dlist_insert_after(&before->node, &node->node);
			return node;
		}
	}
	dlist_push_head(&key->nodes, &node->node);
	return node;
}

/*
 * A new node, and the turn if it is free, or belongs to a later message that
 * was not claimed yet.  False when out of memory.
 */
static bool
put_in_line(NaradShard *shard, uint64 hash, NaradOffset offset)
{
	NaradKeyTable *table = &shard->keys;
	NaradKey   *key = get_key(table, hash);
	NaradKeyNode *node = key == NULL ? NULL : add_node(shard, key, offset);
	NaradKeyNode *first;

	if (node == NULL)
	{
		if (key != NULL)
			look_after_key(table, key);
		return false;
	}
	first = key->first;
	if (first == NULL)
		give_turn(shard, key, node);
	else if (prev_node(key, node) == NULL)
	{
		(void) NaradSetRemove(&shard->pending, first->link.id);
		give_turn(shard, key, node);
	}
	look_after_key(table, key);
	return true;
}

/* Puts an offset behind the key's nodes.  False when out of memory. */
static bool
put_behind(NaradKeyTable *table, NaradKey *key, NaradOffset offset)
{
	if (!NaradSetReserve(&table->later, offset))
		return false;
	(void) NaradSetAdd(&table->later, offset);
	if (!key->has_later)
	{
		key->later_from = offset;
		key->later_to = offset + 1;
		key->has_later = true;
	}
	key->later_from = Min(key->later_from, offset);
	key->later_to = Max(key->later_to, offset + 1);
	look_after_key(table, key);
	return true;
}

/*
 * NaradKeyEnter
 *
 * The key of an unsettled offset has been read, for the first time or again:
 * is it that message's turn?  If not it is in line afterwards.  Its claim has
 * an entry in leases.  The last of the memory is not for this.
 */
NaradKeyPlace
NaradKeyEnter(NaradShard *shard, uint64 hash, NaradOffset offset)
{
	NaradKeyTable *table = &shard->keys;
	NaradKey   *key;

	if (find_node(table, offset) == NULL)
	{
		if (NaradMemoryIsLow())
			return NARAD_KEY_NO_MEMORY;
		key = find_key(table, hash);
		if (key != NULL &&
			((key->has_later && offset >= key->later_from) ||
			 (!dlist_is_empty(&key->nodes) &&
			  table->nodes.nentries - table->nfirst >= MAX_IN_LINE)))
			return put_behind(table, key, offset) ? NARAD_KEY_BLOCKED :
				NARAD_KEY_NO_MEMORY;
		if (!put_in_line(shard, hash, offset))
			return NARAD_KEY_NO_MEMORY;
	}
	return NaradKeyMayTake(shard, offset) ? NARAD_KEY_FREE :
		NARAD_KEY_BLOCKED;
}

/* ---------------------------------------------------------------- choosing */

/*
 * NaradKeyHasTurn
 *
 * Is it the turn of a message?  Of one without a key it always is, of one that
 * is behind the nodes of its key never.
 */
bool
NaradKeyHasTurn(NaradShard *shard, NaradOffset offset)
{
	NaradKeyNode *node = find_node(&shard->keys, offset);

	if (node == NULL)
		return !NaradSetContains(&shard->keys.later, offset);
	return node->key->first == node;
}

/*
 * NaradKeyMayTake
 *
 * Is it the turn of a message, to this transaction?
 */
bool
NaradKeyMayTake(NaradShard *shard, NaradOffset offset)
{
	NaradKeyNode *node = find_node(&shard->keys, offset);
	NaradKey   *key;

	if (node == NULL || node->key->first == node)
		return NaradKeyHasTurn(shard, offset);
	key = node->key;
	return key->passer == MyProcPid && follows_passed(key, node);
}

/*
 * NaradKeyIsKnown
 *
 * Has the key of an offset been read, and is the offset a node?
 */
bool
NaradKeyIsKnown(NaradShard *shard, NaradOffset offset)
{
	return find_node(&shard->keys, offset) != NULL;
}

/*
 * NaradKeyNextReady
 *
 * The lowest offset that has the turn of its key and is nowhere else to be
 * found, or NARAD_INVALID_OFFSET.
 */
NaradOffset
NaradKeyNextReady(NaradShard *shard)
{
	NaradKeyTable *table = &shard->keys;

	if (table->ready_root == NULL)
		return NARAD_INVALID_OFFSET;
	return pairingheap_container(NaradKey, ready_node,
								 table->ready_root)->first->link.id;
}

/*
 * NaradKeyNextOwn
 *
 * The lowest offset from this one on that has the turn to this transaction
 * only, as it has acked those before it, or NARAD_INVALID_OFFSET.  Looks at a
 * limited number of keys.
 */
NaradOffset
NaradKeyNextOwn(NaradShard *shard, NaradOffset from)
{
	NaradOffset lowest = NARAD_INVALID_OFFSET;
	int			nlooked = 0;
	dlist_iter	iter;

	dlist_foreach(iter, &shard->keys.passed)
	{
		NaradKey   *key = dlist_container(NaradKey, passed_node, iter.cur);
		NaradKeyNode *node;

		if (++nlooked > NARAD_MAX_PASSED)
			break;
		if (key->passer != MyProcPid)
			continue;
		node = next_node(key, key->passed);
		if (node != NULL && node->link.id >= from && node->link.id < lowest &&
			NaradLeaseFind(&shard->leases, node->link.id) == NULL)
			lowest = node->link.id;
	}
	return lowest;
}

/*
 * NaradKeyOwners
 *
 * Whose transactions may have something to take that nobody else has the turn
 * of: process ids, NARAD_MAX_PASSED at most; returns how many.  Not this one.
 */
int
NaradKeyOwners(NaradShard *shard, int *pids)
{
	int			npids = 0;
	int			nlooked = 0;
	dlist_iter	iter;

	dlist_foreach(iter, &shard->keys.passed)
	{
		NaradKey   *key = dlist_container(NaradKey, passed_node, iter.cur);
		NaradKeyNode *node = next_node(key, key->passed);
		NaradLease *lease;

		if (++nlooked > NARAD_MAX_PASSED)
			break;
		if (node == NULL || key->passer == MyProcPid ||
			(npids > 0 && pids[npids - 1] == key->passer))
			continue;
		lease = NaradLeaseFind(&shard->leases, node->link.id);
		if (lease == NULL || lease->state == NARAD_LEASE_RETURNED)
			pids[npids++] = key->passer;
	}
	return npids;
}

/*
 * NaradKeyTaken
 *
 * A message has got an entry in leases: it is ready no more.
 */
void
NaradKeyTaken(NaradShard *shard, NaradOffset offset)
{
	NaradKeyNode *node = find_node(&shard->keys, offset);

	if (node != NULL && node->key->first == node)
		make_unready(&shard->keys, node->key);
}

/*
 * NaradKeyGiveBack
 *
 * A message that was claimed and not looked at has lost its entry in leases:
 * if it has the turn, it is ready again.
 */
void
NaradKeyGiveBack(NaradShard *shard, NaradOffset offset)
{
	NaradKeyNode *node = find_node(&shard->keys, offset);

	if (node != NULL && node->key->first == node)
		make_ready(&shard->keys, node->key);
}

/* ---------------------------------------------------------------- settling */

static void
release_node(NaradShard *shard, NaradKeyNode *node)
{
	NaradKeyTable *table = &shard->keys;
	NaradKey   *key = node->key;
	bool		had_turn = key->first == node;
	bool		was_next = follows_passed(key, node);

	if (key->passed == node && !had_turn && prev_node(key, node) != NULL)
		key->passed = prev_node(key, node);
	else if (key->passed == node)
		forget_passed(key);
	if (had_turn)
		give_turn(shard, key, NULL);
	dlist_delete(&node->node);
	hash_remove(&table->nodes, &node->link);
	NaradFree(node);
	if (had_turn && !dlist_is_empty(&key->nodes))
		give_turn(shard, key, dlist_head_element(NaradKeyNode, node,
												 &key->nodes));
	if (had_turn && (key->first != NULL || key->has_later))
		NaradShardMadeAvailable(shard, 1, false);

	/* What comes behind it has the turn to one transaction, which may sleep. */
	if (was_next)
	{
		pass_from(shard, key, next_node(key, key->passed));
		if (!shard->dropped)
			NaradWaitServeOwners(shard->group, shard->partition,
								 &key->passer, 1);
	}
	look_after_key(table, key);
}

/*
 * NaradKeyRelease
 *
 * An offset was settled, on whatever road: it is the next one's turn.  In
 * callbacks: no memory, no error.
 */
void
NaradKeyRelease(NaradShard *shard, NaradOffset offset)
{
	NaradKeyNode *node = find_node(&shard->keys, offset);

	if (shard->keys.later.nmembers > 0)
		(void) NaradSetRemove(&shard->keys.later, offset);
	if (node != NULL)
		release_node(shard, node);
}

/*
 * NaradKeyReleaseRange
 *
 * The same of first..last.  Looks at the offsets or at all nodes, whichever
 * are fewer.
 */
void
NaradKeyReleaseRange(NaradShard *shard, NaradOffset first, NaradOffset last)
{
	NaradKeyTable *table = &shard->keys;
	NaradOffset offset;

	for (offset = NaradSetNextMember(&table->later, first);
		 offset <= last;
		 offset = NaradSetNextMember(&table->later, offset + 1))
		(void) NaradSetRemove(&table->later, offset);

	if (last - first < table->nodes.nentries)
	{
		for (offset = first; offset <= last; offset++)
			NaradKeyRelease(shard, offset);
		return;
	}
	for (uint32 i = 0; i < table->nodes.nbuckets; i++)
	{
		NaradKeyLink *link = table->nodes.buckets[i];

		while (link != NULL)
		{
			NaradKeyLink *next = link->next;

			if (link->id >= first && link->id <= last)
				release_node(shard, (NaradKeyNode *) link);
			link = next;
		}
	}
}

/*
 * NaradKeyPass
 *
 * This transaction has acked a message, as its lease says: to itself, the next
 * has the turn, if this one had it.
 */
void
NaradKeyPass(NaradShard *shard, NaradOffset offset)
{
	NaradKeyTable *table = &shard->keys;
	NaradKeyNode *node = find_node(table, offset);
	NaradKey   *key;

	if (node == NULL)
		return;
	key = node->key;
	if (key->first == node ? key->passed == NULL : follows_passed(key, node))
		pass_from(shard, key, node);
	look_after_key(table, key);
}

/*
 * NaradKeyUnpass
 *
 * And has taken that back, or nacked it.  In callbacks: no memory, no error.
 */
void
NaradKeyUnpass(NaradShard *shard, NaradOffset offset)
{
	NaradKeyNode *node = find_node(&shard->keys, offset);
	NaradKeyNode *passed;
	NaradKey   *key;

	if (node == NULL || node->key->passer != MyProcPid)
		return;
	key = node->key;
	for (passed = key->passed; passed != node; passed = prev_node(key, passed))
	{
		if (passed == NULL)
			return;
	}
	if (node == key->first || prev_node(key, node) == NULL)
		forget_passed(key);
	else
		key->passed = prev_node(key, node);
	look_after_key(&shard->keys, key);
}

/* ------------------------------------------------------------------ refill */

/*
 * NaradKeyRefillNext
 *
 * The next offsets to be read for a key whose line has run out, and the key;
 * returns how many, 0 if there is no such key.  scan_lock is held, until
 * NaradKeyRefill was called for each.
 */
int
NaradKeyRefillNext(NaradShard *shard, uint64 *hash, NaradOffset *offsets,
				   int max)
{
	NaradKeyTable *table = &shard->keys;

	while (!dlist_is_empty(&table->refill))
	{
		NaradKey   *key = dlist_head_element(NaradKey, refill_node,
											 &table->refill);
		NaradOffset offset = key->later_from;
		int			n = 0;

		while (n < max)
		{
			offset = NaradSetNextMember(&table->later, offset);
			if (offset >= key->later_to)
				break;
			offsets[n++] = offset++;
		}
		if (n > 0)
		{
			*hash = key->link.id;
			return n;
		}
		key->has_later = false;
		look_after_key(table, key);
	}
	return 0;
}

/*
 * NaradKeyRefill
 *
 * An offset that NaradKeyRefillNext told of has been read; is it that key's?
 * False when there is no memory: it is to be read again.
 */
bool
NaradKeyRefill(NaradShard *shard, uint64 hash, NaradOffset offset, bool is_its)
{
	NaradKeyTable *table = &shard->keys;
	NaradKey   *key = find_key(table, hash);

	if (key == NULL || !key->has_later || offset < key->later_from)
		return true;
	if (is_its && NaradSetContains(&table->later, offset))
	{
		NaradLease *lease = NaradLeaseFind(&shard->leases, offset);

		if (!put_in_line(shard, hash, offset))
			return false;
		(void) NaradSetRemove(&table->later, offset);

		/* One that came back is in the FIFO, where consumers have passed it. */
		if (key->first->link.id == offset && lease != NULL &&
			lease->state == NARAD_LEASE_RETURNED)
			NaradShardMadeAvailable(shard, 1, false);
	}
	key->later_from = offset + 1;
	return true;
}
