/*-------------------------------------------------------------------------
 *
 * queue_key.h
 *	  Order by key: whose turn it is among the messages of a key.
 *
 * All functions want the shard's lock, exclusively.  None errors.  A key is
 * known by a hash of 64 bits: two keys that share one are ordered as if they
 * were one, which delays a message and breaks no promise.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_KEY_H
#define QUEUE_KEY_H

#include "lib/ilist.h"
#include "lib/pairingheap.h"
#include "queue/queue_set.h"

struct NaradShard;

/* What both hash tables chain; first in their entries. */
typedef struct NaradKeyLink
{
	uint64		id;
	struct NaradKeyLink *next;
} NaradKeyLink;

typedef struct NaradKeyHash
{
	NaradKeyLink **buckets;
	uint32		nbuckets;		/* power of two, or 0 */
	uint32		nentries;
} NaradKeyHash;

/* A message not settled whose key has been read. */
typedef struct NaradKeyNode
{
	NaradKeyLink link;			/* id is the offset */
	struct NaradKey *key;
	dlist_node	node;			/* in key->nodes */
} NaradKeyNode;

/* A key that has such messages. */
typedef struct NaradKey
{
	NaradKeyLink link;			/* id is the hash */
	dlist_head	nodes;			/* by offset */
	NaradKeyNode *first;		/* whose turn it is; NULL if no nodes */
	bool		is_ready;		/* in the heap: first may be claimed */
	bool		has_later;		/* more of its messages are in `later`, */
	bool		in_refill;		/* ... which are wanted now */
	NaradOffset later_from;		/* they lie from here, ... */
	NaradOffset later_to;		/* ... to before here */
	NaradKeyNode *passed;		/* last of those that an open transaction has
								 * acked from `first` on, or NULL */
	int			passer;			/* pid of its backend */
	pairingheap_node ready_node;
	dlist_node	passed_node;
	dlist_node	refill_node;
} NaradKey;

typedef struct NaradKeyTable
{
	bool		ordered;		/* the topic's setting, as of the last visit */
	NaradKeyHash keys;
	NaradKeyHash nodes;
	uint32		nfirst;			/* keys that have a first */
	pairingheap_node *ready_root;	/* lowest offset on top */
	dlist_head	passed;			/* keys with a passed one, the latest first */
	dlist_head	refill;
	NaradSet	later;			/* blocked, and whose key they have is not
								 * remembered */
} NaradKeyTable;

/* Keys looked at in search of those that a transaction has passed. */
#define NARAD_MAX_PASSED	1024

typedef enum NaradKeyPlace
{
	NARAD_KEY_FREE,				/* it is the message's turn */
	NARAD_KEY_BLOCKED,			/* it has been put in line */
	NARAD_KEY_NO_MEMORY			/* nothing is known of it */
} NaradKeyPlace;

extern void NaradKeyTableInit(NaradKeyTable *table);
extern void NaradKeyTableClear(NaradKeyTable *table);
extern void NaradKeySetOrdered(struct NaradShard *shard, bool ordered);

extern uint64 NaradKeyHashOf(const char *key, Size len);

/* Reading. */
extern NaradKeyPlace NaradKeyEnter(struct NaradShard *shard, uint64 hash,
								   NaradOffset offset);

/* Choosing. */
extern bool NaradKeyHasTurn(struct NaradShard *shard, NaradOffset offset);
extern bool NaradKeyMayTake(struct NaradShard *shard, NaradOffset offset);
extern bool NaradKeyIsKnown(struct NaradShard *shard, NaradOffset offset);
extern NaradOffset NaradKeyNextReady(struct NaradShard *shard);
extern NaradOffset NaradKeyNextOwn(struct NaradShard *shard,
								   NaradOffset from);
extern int	NaradKeyOwners(struct NaradShard *shard, int *pids);
extern void NaradKeyTaken(struct NaradShard *shard, NaradOffset offset);
extern void NaradKeyGiveBack(struct NaradShard *shard, NaradOffset offset);

/* Settling, and pins that are about to. */
extern void NaradKeyRelease(struct NaradShard *shard, NaradOffset offset);
extern void NaradKeyReleaseRange(struct NaradShard *shard, NaradOffset first,
								 NaradOffset last);
extern void NaradKeyPass(struct NaradShard *shard, NaradOffset offset);
extern void NaradKeyUnpass(struct NaradShard *shard, NaradOffset offset);

/* What is in line, but not remembered. */
extern int	NaradKeyRefillNext(struct NaradShard *shard, uint64 *hash,
							   NaradOffset *offsets, int max);
extern bool NaradKeyRefill(struct NaradShard *shard, uint64 hash,
						   NaradOffset offset, bool is_its);

#endif							/* QUEUE_KEY_H */
