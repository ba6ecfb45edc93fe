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
	NARAD_LEASE_DELAYED,		/* back with a delay; in the deadline heap */
	NARAD_LEASE_DEAD_LETTER,	/* out of deliveries, to be moved away; in the
								 * heap of those, by the time of the next try */
	NARAD_LEASE_SUSPECT			/* was out, or may have been, when the server
								 * crashed; available, one at a time */
} NaradLeaseState;

#define NARAD_LEASE_NSTATES 6

/* How a message's last lease ended. */
typedef enum NaradLeaseEnd
{
	NARAD_END_NONE,				/* it has had none, or nobody knows */
	NARAD_END_EXPIRED,
	NARAD_END_NACKED,
	NARAD_END_ROLLED_BACK,		/* or its backend died */
	NARAD_END_CRASHED			/* with the server */
} NaradLeaseEnd;

typedef struct NaradLease
{
	NaradOffset offset;
	uint64		nonce;			/* 0 unless leased or pinned */
	uint8		state;			/* NaradLeaseState; changed by
								 * NaradLeaseSetState only */
	bool		taker_open;		/* the transaction that took it is open */
	bool		taker_aborted;	/* it rolled back while another had it pinned */
	bool		is_acked;		/* pinned, and the last word on it is an ack */
	bool		is_hole;		/* counted in the shard's nholes */
	bool		is_open_hole;	/* ... and in its nopen_holes */
	bool		in_heap;		/* LEASED, DELAYED or DEAD_LETTER, and its
								 * deadline is known */
	uint8		ended;			/* NaradLeaseEnd of the delivery before this
								 * one, or of the last */
	uint8		failures;		/* moves to the dead-letter topic that failed */
	bool		has_come_back;	/* was ever in another state than LEASED and
								 * PINNED */
	uint32		deliveries;		/* this one included while leased */
	int64		deadline;		/* monotonic us: expiry, or when due */
	TimestampTz first_leased_at;	/* since the server started */
	TimestampTz leased_at;		/* the last time, once it has ended */
	TimestampTz expires_at;		/* wall clock, for showing only */
	int			pid;			/* of the taker */
	int			pinner;			/* pid of the pinning backend, or 0 */
	uint32		pin_action;		/* that backend's: its last action on it */
	char	   *reason;			/* the last nack's, or NULL; from NaradAlloc */
	struct NaradLease *hash_next;
	pairingheap_node heap_node; /* LEASED, DELAYED, DEAD_LETTER */
	dlist_node	fifo_node;		/* RETURNED */
	dlist_node	back_node;		/* has_come_back */
} NaradLease;

typedef struct NaradLeaseTable
{
	NaradLease **buckets;
	uint32		nbuckets;		/* power of two, or 0 */
	uint32		nentries;
	uint32		nstate[NARAD_LEASE_NSTATES];	/* entries by state */
	pairingheap_node *heap_root;	/* earliest deadline */
	pairingheap_node *dead_root;	/* of the DEAD_LETTER ones */
	dlist_head	returned;		/* oldest first */
	dlist_head	come_back;		/* those with has_come_back, by back_node */
	uint32		ncome_back;
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

/* Moves between heaps, FIFO (at its end) and none; deadline set before. */
extern void NaradLeaseSetState(NaradLeaseTable *table, NaradLease *lease,
							   NaradLeaseState state);

/* No holder any more: what is left is the offset and what became of its
 * deliveries. */
extern void NaradLeaseClearHolder(NaradLease *lease);

/* Takes over a text from NaradAlloc, or NULL, in place of the one before. */
extern void NaradLeaseSetReason(NaradLease *lease, char *reason);

/* A new deadline for one that is in the heap. */
extern void NaradLeaseSetDeadline(NaradLeaseTable *table, NaradLease *lease,
								  int64 deadline);

/* The LEASED or DELAYED entry of the earliest deadline, or NULL. */
extern NaradLease *NaradLeaseEarliest(const NaradLeaseTable *table);

/* The DEAD_LETTER entry that is to be tried first, or NULL. */
extern NaradLease *NaradLeaseEarliestDead(const NaradLeaseTable *table);
extern NaradLease *NaradLeaseFirstReturned(const NaradLeaseTable *table);

/* Iteration in no order: start with NULL; no change meanwhile. */
extern NaradLease *NaradLeaseNext(const NaradLeaseTable *table, NaradLease *prev);

/* The same over the entries with has_come_back: however many others are leased. */
extern NaradLease *NaradLeaseNextComeBack(const NaradLeaseTable *table,
										  NaradLease *prev);

/* Monotonic clock, microseconds. */
extern int64 NaradClockNow(void);

#endif							/* QUEUE_LEASE_H */
