/*-------------------------------------------------------------------------
 *
 * queue_lease.h
 *	  The leases of one shard: by offset, by deadline, and those returned.
 *
 * Plain data: no lock, no error.  Memory from NaradAlloc, and only in
 * NaradLeaseInsert.  What keeps a message's delivery count after its lease
 * ended (returned, delayed) is the same entry, so that returning needs no
 * memory.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_LEASE_H
#define QUEUE_LEASE_H

#include "datatype/timestamp.h"
#include "lib/ilist.h"
#include "lib/pairingheap.h"
#include "narad.h"

typedef enum NaradLeaseState
{
	NARAD_LEASE_LEASED,			/* in the deadline heap */
	NARAD_LEASE_PINNED,			/* an open transaction acked or nacked it */
	NARAD_LEASE_RETURNED,		/* in the FIFO of available ones */
	NARAD_LEASE_DELAYED			/* nacked with delay; in the deadline heap */
} NaradLeaseState;

typedef struct NaradLease
{
	NaradOffset offset;
	uint64		nonce;			/* 0 unless leased or pinned */
	uint8		state;			/* NaradLeaseState; changed by
								 * NaradLeaseSetState only */
	bool		taker_open;		/* the transaction that took it is open */
	bool		taker_aborted;	/* it rolled back while another had it pinned */
	bool		is_hole;		/* counted in the shard's nholes */
	bool		in_heap;		/* LEASED or DELAYED, and its deadline is
								 * known */
	uint32		deliveries;		/* this one included while leased */
	int64		deadline;		/* monotonic us: expiry, or when due */
	TimestampTz leased_at;
	TimestampTz expires_at;		/* wall clock, for showing only */
	int			pid;			/* of the taker */
	int			pinner;			/* pid of the pinning backend, or 0 */
	uint32		pin_action;		/* that backend's: its last action on it */
	struct NaradLease *hash_next;
	pairingheap_node heap_node; /* LEASED, DELAYED */
	dlist_node	fifo_node;		/* RETURNED */
} NaradLease;

typedef struct NaradLeaseTable
{
	NaradLease **buckets;
	uint32		nbuckets;		/* power of two, or 0 */
	uint32		nentries;
	uint32		nstate[4];		/* entries by state */
	pairingheap_node *heap_root;	/* earliest deadline */
	dlist_head	returned;		/* oldest first */
	dlist_head	unused;			/* entries to be reused, by fifo_node */
	uint32		nunused;
} NaradLeaseTable;

extern void NaradLeaseTableInit(NaradLeaseTable *table);
extern void NaradLeaseTableClear(NaradLeaseTable *table);

extern NaradLease *NaradLeaseFind(const NaradLeaseTable *table, NaradOffset offset);

/* A new entry, zeroed but for its offset, LEASED and not in the heap yet: set
 * its deadline and call NaradLeaseSetState.  NULL when out of memory. */
extern NaradLease *NaradLeaseInsert(NaradLeaseTable *table, NaradOffset offset);

/* Out of hash, heap and FIFO. */
extern void NaradLeaseRemove(NaradLeaseTable *table, NaradLease *lease);

/* Moves between heap, FIFO (at its end) and neither; deadline set before. */
extern void NaradLeaseSetState(NaradLeaseTable *table, NaradLease *lease,
							   NaradLeaseState state);

/* No holder any more: what is left is offset and deliveries. */
extern void NaradLeaseClearHolder(NaradLease *lease);

/* A new deadline for one that is in the heap. */
extern void NaradLeaseSetDeadline(NaradLeaseTable *table, NaradLease *lease,
								  int64 deadline);

/* The LEASED or DELAYED entry of the earliest deadline, or NULL. */
extern NaradLease *NaradLeaseEarliest(const NaradLeaseTable *table);
extern NaradLease *NaradLeaseFirstReturned(const NaradLeaseTable *table);

/* Iteration in no order: start with NULL; no change meanwhile. */
extern NaradLease *NaradLeaseNext(const NaradLeaseTable *table, NaradLease *prev);

/* Monotonic clock, microseconds. */
extern int64 NaradClockNow(void);

#endif							/* QUEUE_LEASE_H */
