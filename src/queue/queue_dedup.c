/*-------------------------------------------------------------------------
 *
 * queue_dedup.c
 *	  Deduplication ids: who produces an id first, and where that went.
 *
 * A message's dedup id is in its record.  A hash of a topic's ids, in shared
 * memory, says where the record of an id may be: it is an index, and the log
 * is what counts.  So a hit is decided by reading the record: by its id, and
 * by what has become of its transaction.  Nothing has to be done at the end
 * of a transaction or subtransaction, however it ends; and an id is known as
 * long as its record is in the log and younger than the topic's window,
 * before and after a restart alike.
 *
 * Before a message is appended, an entry without a position reserves its id,
 * in the name of the (sub)transaction that will append it; when it is in the
 * log the entry gets its position.  Whoever comes by an entry
 *
 *		that is older than the window			steps over it
 *		reserved by an open transaction			waits for that one's end
 *		reserved, and that one has ended		takes it away
 *		whose record has another id				steps over it
 *		whose record is of an open transaction	waits for that one's end
 *		whose record is this transaction's own,
 *		or committed							is a duplicate
 *		whose record is dead, or lost			takes it away
 *
 * and begins again; who finds nothing more reserves.  Both are done under
 * one hold of the stripe's lock, so of two who produce an id at once, one
 * waits for the other.  They wait for a transaction, as those who insert
 * into a unique index do, and so the deadlock detector sees them.
 *
 * The ids of one call are claimed in the order of their hashes, so two calls
 * with the same ids in different orders do not meet in a deadlock.
 *
 * A stripe knows of all records appended since a time, `since`.  When that is
 * not as far back as the window reaches (at the first use after a start; when
 * the window has become longer, or the clock has gone back), the extensions
 * of the window's records are read again.  Entries that are already there are
 * found by their position, so that may be done at any time.
 *
 * Old entries are freed a few at a time by those who come by, all at once when
 * memory is short for the topic's ids, and by the worker, when the first ones
 * must be too old: nobody may come by any more, and others need the memory.
 *
 * Owns:       NaradQueueTopic.dedup, what it points to.
 * Invariants: of the records of one id that committed, or are of one open
 *             transaction, no two are younger than the window.  I12: the hash
 *             is the topic id's, and goes with it.
 * Locks:      a stripe's lock, alone, around memory work and questions about
 *             transactions; the topic's, for setting the pointer.  Who reads
 *             the log to fill the hash has a page lock (heavyweight) on block
 *             0, so that the others wait for him, and can be cancelled.
 * Runs in:    any backend that is not in recovery; NaradDedupForget in the
 *             worker, NaradDedupFree in transaction callbacks.
 * WAL:        none.  Whoever is told of a duplicate has its commit flushed
 *             (NaradReaderEnd).
 * On error:   what was reserved is of a (sub)transaction that fails, and is
 *             taken away by who finds it.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "storage/lmgr.h"
#include "storage/procarray.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "base/base_memory.h"
#include "base/base_stop.h"
#include "log/log_find.h"
#include "log/log_read.h"
#include "queue/queue_dedup.h"
#include "queue/queue_dirty.h"
#include "queue/queue_lease.h"

#define DEDUP_STRIPES	8
#define FIRST_BUCKETS	64

/* Old entries that are freed on the way to a new one. */
#define FREED_ON_THE_WAY 2

/* Those that the worker frees under one hold of the lock. */
#define FREED_AT_ONCE	1000

/*
 * An id that was produced, or is about to be.  Under the stripe's lock; one
 * that is reserved is freed by nobody else while its transaction is open.
 */
typedef struct NaradDedupEntry
{
	struct NaradDedupEntry *next;	/* in its bucket */
	dlist_node	age;			/* in the stripe's, oldest first */
	uint64		hash;
	TimestampTz time;			/* when it was produced; never in the future */
	NaradOffset offset;			/* NARAD_INVALID_OFFSET: reserved */
	int			partition;
	TransactionId xid;			/* (sub)transaction that reserved it */
} NaradDedupEntry;

/* The ids whose hashes have the same bits at the top.  Under its lock. */
typedef struct DedupStripe
{
	LWLock		lock;
	TimestampTz since;			/* all ids since then are here */
	TimestampTz forgot;			/* since the last filling began: all older
								 * ones may have been freed */
	NaradDedupEntry **buckets;
	uint64		nbuckets;		/* a power of 2; 0 before the first entry */
	uint64		nentries;
	dlist_head	ages;
} DedupStripe;

typedef struct NaradDedup
{
	DedupStripe stripes[DEDUP_STRIPES];
} NaradDedup;

/* One call. */
typedef struct DedupCall
{
	Relation	rel;
	NaradQueueTopic *topic;
	NaradTopicId topic_id;
	NaradDedup *dedup;
	int64		window;			/* us */
	TransactionId xid;			/* that reserves; invalid before it must be */
	NaradDedupEntry *spare;		/* memory for the next entry, or NULL */
	NaradDedupClaim **claims;	/* sorted by hash and id */
	int			nclaims;
} DedupCall;

/* Where a record is. */
typedef struct Position
{
	int			partition;
	NaradOffset offset;
} Position;

/* What a look into a stripe came to. */
typedef enum LookResult
{
	LOOK_FILL,					/* the stripe does not know enough */
	LOOK_RESERVED,				/* the claim has an entry now */
	LOOK_NEED_ENTRY,			/* it could have, with an xid and memory */
	LOOK_WAIT,					/* another transaction is producing the id */
	LOOK_OWN,					/* an outer call of ours is */
	LOOK_READ					/* the record at a position decides */
} LookResult;

/* ------------------------------------------------------------- the hash */

/* Hashes of ids; a test can have all of them meet. */
static uint64
hash_id(NaradTopicId topic_id, const char *id, int id_len)
{
#ifdef NARAD_TESTING
	if (NaradStopIsArmed("dedup-same-hash"))
		return 0;
#endif
	return hash_bytes_extended((const unsigned char *) id, id_len, topic_id);
}

static DedupStripe *
stripe_of(NaradDedup *dedup, uint64 hash)
{
	return &dedup->stripes[hash >> 61];
}

static NaradDedupEntry **
bucket_of(DedupStripe *stripe, uint64 hash)
{
	return &stripe->buckets[hash & (stripe->nbuckets - 1)];
}

StaticAssertDecl(DEDUP_STRIPES == 8, "stripes by three bits");

/* Takes an entry out, and frees it.  Stripe lock. */
static void
remove_entry(DedupStripe *stripe, NaradDedupEntry *entry)
{
	NaradDedupEntry **link = bucket_of(stripe, entry->hash);

	while (*link != entry)
		link = &(*link)->next;
	*link = entry->next;
	dlist_delete(&entry->age);
	stripe->nentries--;
	NaradFree(entry);
}

/*
 * Gives a stripe another number of buckets; false, and nothing, if there is no
 * memory.  Stripe lock.
 */
static bool
rehash(DedupStripe *stripe, uint64 nbuckets)
{
	NaradDedupEntry **old = stripe->buckets;
	NaradDedupEntry **buckets;
	dlist_iter	iter;

	buckets = NaradAlloc(nbuckets * sizeof(NaradDedupEntry *));
	if (buckets == NULL)
		return false;

	stripe->buckets = buckets;
	stripe->nbuckets = nbuckets;
	dlist_foreach(iter, &stripe->ages)
	{
		NaradDedupEntry *entry = dlist_container(NaradDedupEntry, age,
												 iter.cur);
		NaradDedupEntry **bucket = bucket_of(stripe, entry->hash);

		entry->next = *bucket;
		*bucket = entry;
	}
	NaradFree(old);
	return true;
}

/*
 * Makes room for one more: if there is no memory for a larger table, chains
 * get longer.  False if there is none for the first.  Stripe lock.
 */
static bool
make_room(DedupStripe *stripe)
{
	if (stripe->nentries < stripe->nbuckets)
		return true;
	if (stripe->nbuckets == 0)
		return rehash(stripe, FIRST_BUCKETS);
	if (!NaradMemoryIsScarce())
		(void) rehash(stripe, stripe->nbuckets * 2);
	return true;
}

/*
 * Gives back what the table has too much.  Stripe lock.
 */
static void
give_up_room(DedupStripe *stripe)
{
	if (stripe->nentries == 0)
	{
		NaradFree(stripe->buckets);
		stripe->buckets = NULL;
		stripe->nbuckets = 0;
	}
	else if (stripe->nbuckets > FIRST_BUCKETS &&
			 stripe->nentries < stripe->nbuckets / 8)
		(void) rehash(stripe, Max(pg_nextpower2_64(stripe->nentries * 2),
								  FIRST_BUCKETS));
}

/* Adds an entry, the youngest.  Stripe lock; there is room. */
static void
add_entry(DedupStripe *stripe, NaradDedupEntry *entry)
{
	NaradDedupEntry **bucket = bucket_of(stripe, entry->hash);

	entry->next = *bucket;
	*bucket = entry;
	dlist_push_tail(&stripe->ages, &entry->age);
	stripe->nentries++;
}

/* Is the (sub)transaction that reserved an entry open? */
static bool
is_being_produced(const NaradDedupEntry *entry)
{
	return TransactionIdIsCurrentTransactionId(entry->xid) ||
		TransactionIdIsInProgress(entry->xid);
}

/* Entries are kept longer than the window, for clocks that are set a bit. */
static int64
slack(int64 window)
{
	return Max(window / 8, USECS_PER_SEC);
}

/*
 * Frees up to max of the oldest entries, as far as they are older than the
 * window.  One from a future that a clock has gone back from counts from now,
 * and one that is being produced stays; both become the youngest.  Stripe
 * lock.
 */
static void
forget_old(DedupStripe *stripe, int64 window, TimestampTz now, uint64 max)
{
	TimestampTz cut = now - window - slack(window);

	for (uint64 left = Min(max, stripe->nentries); left > 0; left--)
	{
		NaradDedupEntry *entry = dlist_head_element(NaradDedupEntry, age,
													&stripe->ages);

		if (entry->time >= cut && entry->time <= now)
			return;
		if (entry->time > now ||
			(entry->offset == NARAD_INVALID_OFFSET &&
			 is_being_produced(entry)))
		{
			entry->time = Min(entry->time, now);
			dlist_delete(&entry->age);
			dlist_push_tail(&stripe->ages, &entry->age);
			continue;
		}
		stripe->forgot = Max(stripe->forgot, entry->time + 1);
		stripe->since = Max(stripe->since, stripe->forgot);
		remove_entry(stripe, entry);
	}
}

/* ------------------------------------------------------------- its memory */

/* The worker is to look for old ids so many us from now, if not before. */
static void
set_ids_due(NaradQueueTopic *topic, int64 from_now)
{
	uint64		due = NaradClockNow() + from_now;
	uint64		before = pg_atomic_read_u64(&topic->ids_due);

	while (before == 0 || before > due)
	{
		if (pg_atomic_compare_exchange_u64(&topic->ids_due, &before, due))
		{
			NaradDirtyWake(topic->database);
			return;
		}
	}
}

/*
 * Memory for an entry: the call's spare.  Ids do not take what leases need.
 * Errors 53200, after all old entries of the topic were freed.
 */
static void
ensure_spare(DedupCall *call)
{
	if (call->spare != NULL)
		return;
	if (!NaradMemoryIsScarce())
		call->spare = NaradAlloc(sizeof(NaradDedupEntry));
	if (call->spare != NULL)
		return;

	for (int i = 0; i < DEDUP_STRIPES; i++)
	{
		DedupStripe *stripe = &call->dedup->stripes[i];

		LWLockAcquire(&stripe->lock, LW_EXCLUSIVE);
		forget_old(stripe, call->window, GetCurrentTimestamp(),
				   PG_UINT64_MAX);
		LWLockRelease(&stripe->lock);
	}
	if (!NaradMemoryIsScarce())
		call->spare = NaradAlloc(sizeof(NaradDedupEntry));
	if (call->spare == NULL)
		NaradReportOutOfMemory("deduplication ids");
}

/* The topic's hash, made if need be.  Errors 53200. */
static NaradDedup *
get_dedup(NaradQueueTopic *topic)
{
	NaradDedup *made;

	LWLockAcquire(&topic->lock, LW_SHARED);
	made = topic->dedup;
	LWLockRelease(&topic->lock);
	if (made != NULL)
		return made;

	made = NaradAllocOrError(sizeof(NaradDedup), "deduplication ids");
	for (int i = 0; i < DEDUP_STRIPES; i++)
	{
		DedupStripe *stripe = &made->stripes[i];

		NaradLockInit(&stripe->lock, NARAD_LOCK_DEDUP);
		stripe->since = DT_NOEND;	/* knows of nothing */
		stripe->forgot = DT_NOBEGIN;
		dlist_init(&stripe->ages);
	}

	LWLockAcquire(&topic->lock, LW_EXCLUSIVE);
	if (topic->dedup == NULL)
	{
		topic->dedup = made;
		made = NULL;
	}
	LWLockRelease(&topic->lock);
	NaradFree(made);
	return topic->dedup;
}

/*
 * When the oldest entry of a stripe, as far as that is known, is too old; or
 * DT_NOEND.
 */
static TimestampTz
oldest_is_due(DedupStripe *stripe, int64 window)
{
	NaradDedupEntry *entry;

	if (dlist_is_empty(&stripe->ages))
		return DT_NOEND;
	entry = dlist_head_element(NaradDedupEntry, age, &stripe->ages);
	return entry->time + window + slack(window);
}

/* Frees the old entries of a stripe; returns when the next one will be old. */
static TimestampTz
forget_stripe(DedupStripe *stripe, int64 window)
{
	uint64		before;
	uint64		after;
	TimestampTz due;

	do
	{
		LWLockAcquire(&stripe->lock, LW_EXCLUSIVE);
		before = stripe->nentries;
		forget_old(stripe, window, GetCurrentTimestamp(), FREED_AT_ONCE);
		after = stripe->nentries;
		if (after == before)
			give_up_room(stripe);
		due = oldest_is_due(stripe, window);
		LWLockRelease(&stripe->lock);
	} while (after < before);
	return due;
}

/*
 * NaradDedupForget
 *
 * Frees the ids of a topic that are older than the window, and sets when that
 * is to be done next.  The caller has the relation locked, and no narad lock.
 * May error before anything is done, for want of local memory.
 */
void
NaradDedupForget(NaradQueueTopic *topic, int64 window)
{
	TimestampTz due = DT_NOEND;
	NaradDedup *dedup;

	/* What is freed under a lock must not attach to shared memory first. */
	(void) NaradMemoryArea();
	LWLockAcquire(&topic->lock, LW_SHARED);
	dedup = topic->dedup;
	LWLockRelease(&topic->lock);
	if (dedup == NULL)
		return;

	/*
	 * Whoever adds an entry that is not seen here does so after this, since
	 * he has the stripe's lock later, and sets a time himself.
	 */
	pg_atomic_write_u64(&topic->ids_due, 0);
	for (int i = 0; i < DEDUP_STRIPES; i++)
	{
		TimestampTz next = forget_stripe(&dedup->stripes[i], window);

		due = Min(due, next);
	}
	if (due != DT_NOEND)
		set_ids_due(topic, Max(due - GetCurrentTimestamp(), slack(window)));
}

/*
 * NaradDedupFree
 *
 * Frees a topic's hash; NULL is allowed.  Nobody else can have a pointer to
 * it.  From transaction callbacks: no error, no allocation.
 */
void
NaradDedupFree(NaradDedup *dedup)
{
	if (dedup == NULL)
		return;
	for (int i = 0; i < DEDUP_STRIPES; i++)
	{
		DedupStripe *stripe = &dedup->stripes[i];
		dlist_mutable_iter iter;

		dlist_foreach_modify(iter, &stripe->ages)
			NaradFree(dlist_container(NaradDedupEntry, age, iter.cur));
		NaradFree(stripe->buckets);
	}
	NaradFree(dedup);
}

/* ------------------------------------------------------------- filling it */

/* Is there an entry of that position?  Stripe lock. */
static bool
has_position(DedupStripe *stripe, uint64 hash, int partition,
			 NaradOffset offset)
{
	NaradDedupEntry *entry;

	if (stripe->nbuckets == 0)
		return false;
	for (entry = *bucket_of(stripe, hash); entry != NULL; entry = entry->next)
		if (entry->hash == hash && entry->partition == partition &&
			entry->offset == offset)
			return true;
	return false;
}

/* A record with an extension, met in the log. */
static void
fill_visitor(const NaradRecordExtra *extra, int partition, NaradOffset offset,
			 int64 time, void *arg)
{
	DedupCall  *call = arg;
	NaradDedupEntry *entry;
	DedupStripe *stripe;
	bool		has_room;
	uint64		hash;

	if ((extra->flags & NARAD_EXT_DEDUP) == 0)
		return;
	ensure_spare(call);
	entry = call->spare;
	hash = hash_id(call->topic_id, extra->id, extra->id_len);
	stripe = stripe_of(call->dedup, hash);

	LWLockAcquire(&stripe->lock, LW_EXCLUSIVE);
	has_room = make_room(stripe);
	if (has_room && !has_position(stripe, hash, partition, offset))
	{
		entry->hash = hash;
		entry->time = Min(time, GetCurrentTimestamp());
		entry->partition = partition;
		entry->offset = offset;
		entry->xid = InvalidTransactionId;
		add_entry(stripe, entry);
		call->spare = NULL;
	}
	LWLockRelease(&stripe->lock);
	if (!has_room)
		NaradReportOutOfMemory("deduplication ids");
}

/* Does every stripe know of all since a time? */
static bool
knows_since(NaradDedup *dedup, TimestampTz time)
{
	bool		knows = true;

	for (int i = 0; i < DEDUP_STRIPES && knows; i++)
	{
		DedupStripe *stripe = &dedup->stripes[i];

		LWLockAcquire(&stripe->lock, LW_SHARED);
		knows = stripe->since <= time;
		LWLockRelease(&stripe->lock);
	}
	return knows;
}

/*
 * Brings the ids of the window into the hash, one process at a time.  What
 * others produce meanwhile has entries of their own; what they forget
 * meanwhile, and is older than `since` then, is not known.
 */
static void
fill(DedupCall *call)
{
	NaradDedup *dedup = call->dedup;
	NaradRelInfo info;
	TimestampTz from;

	LockPage(call->rel, 0, ExclusiveLock);
	from = GetCurrentTimestamp() - call->window;
	if (!knows_since(dedup, from))
	{
		from -= slack(call->window);
		for (int i = 0; i < DEDUP_STRIPES; i++)
		{
			LWLockAcquire(&dedup->stripes[i].lock, LW_EXCLUSIVE);
			dedup->stripes[i].forgot = DT_NOBEGIN;
			LWLockRelease(&dedup->stripes[i].lock);
		}
		NARAD_STOP("dedup-fill");
		info = *NaradRelInfoCreate(call->rel, 0, 0);
		for (int partition = 0; partition < info.npartitions; partition++)
			NaradExtrasSince(call->rel, &info, partition, from, fill_visitor,
							 call);
		for (int i = 0; i < DEDUP_STRIPES; i++)
		{
			DedupStripe *stripe = &dedup->stripes[i];

			LWLockAcquire(&stripe->lock, LW_EXCLUSIVE);
			stripe->since = Max(from, stripe->forgot);
			LWLockRelease(&stripe->lock);
		}
	}
	UnlockPage(call->rel, 0, ExclusiveLock);
}

/* -------------------------------------------------------------- a claim */

static bool
is_rejected(const NaradDedupEntry *entry, const Position *rejected,
			int nrejected)
{
	for (int i = 0; i < nrejected; i++)
		if (rejected[i].partition == entry->partition &&
			rejected[i].offset == entry->offset)
			return true;
	return false;
}

/* Is it reserved by an earlier claim of this call, for another id? */
static bool
is_reserved_here(DedupCall *call, int n, const NaradDedupEntry *entry)
{
	uint64		hash = call->claims[n]->hash;

	while (--n >= 0 && call->claims[n]->hash == hash)
		if (call->claims[n]->entry == entry)
			return true;
	return false;
}

/* Gives the claim the call's spare, reserved.  Stripe lock; there is room. */
static void
reserve(DedupCall *call, DedupStripe *stripe, NaradDedupClaim *claim,
		TimestampTz now)
{
	NaradDedupEntry *entry = call->spare;

	entry->hash = claim->hash;
	entry->time = now;
	entry->offset = NARAD_INVALID_OFFSET;
	entry->partition = -1;
	entry->xid = call->xid;
	add_entry(stripe, entry);
	claim->entry = entry;
	call->spare = NULL;
}

/*
 * Looks for the id of the n-th claim, and reserves it if it is not there.
 * *found: the entry to be read; *xid: whom to wait for.
 */
static LookResult
look(DedupCall *call, int n, const Position *rejected, int nrejected,
	 Position *found, TransactionId *xid)
{
	NaradDedupClaim *claim = call->claims[n];
	DedupStripe *stripe = stripe_of(call->dedup, claim->hash);
	TimestampTz now = GetCurrentTimestamp();
	LookResult	result = LOOK_NEED_ENTRY;
	NaradDedupEntry *entry = NULL;
	NaradDedupEntry *next;

	LWLockAcquire(&stripe->lock, LW_EXCLUSIVE);
	if (stripe->since > now - call->window)
		result = LOOK_FILL;
	else
	{
		forget_old(stripe, call->window, now, FREED_ON_THE_WAY);
		if (stripe->nbuckets > 0)
			entry = *bucket_of(stripe, claim->hash);
	}

	for (; entry != NULL && result == LOOK_NEED_ENTRY; entry = next)
	{
		next = entry->next;
		if (entry->hash != claim->hash)
			continue;
		if (entry->offset != NARAD_INVALID_OFFSET)
		{
			if (now - entry->time >= call->window ||
				is_rejected(entry, rejected, nrejected))
				continue;
			found->partition = entry->partition;
			found->offset = entry->offset;
			result = LOOK_READ;
		}
		else if (is_reserved_here(call, n, entry))
			continue;
		else if (!is_being_produced(entry))
			remove_entry(stripe, entry);
		else
		{
			*xid = entry->xid;
			result = TransactionIdIsCurrentTransactionId(entry->xid) ?
				LOOK_OWN : LOOK_WAIT;
		}
	}

	if (result == LOOK_NEED_ENTRY && call->spare != NULL &&
		TransactionIdIsValid(call->xid) && make_room(stripe))
	{
		reserve(call, stripe, claim, now);
		result = LOOK_RESERVED;
	}
	LWLockRelease(&stripe->lock);
	return result;
}

/* The entry of a position speaks of nothing any more. */
static void
remove_position(DedupCall *call, uint64 hash, const Position *position)
{
	DedupStripe *stripe = stripe_of(call->dedup, hash);
	NaradDedupEntry *entry;

	LWLockAcquire(&stripe->lock, LW_EXCLUSIVE);
	entry = stripe->nbuckets > 0 ? *bucket_of(stripe, hash) : NULL;
	while (entry != NULL &&
		   (entry->hash != hash || entry->partition != position->partition ||
			entry->offset != position->offset))
		entry = entry->next;
	if (entry != NULL)
		remove_entry(stripe, entry);
	LWLockRelease(&stripe->lock);
}

/*
 * Reads the record at a position: what is there, if it is of that id.
 * *same: it is.  PENDING: *xid is whose it is.
 */
static NaradReadStatus
read_position(DedupCall *call, const NaradDedupClaim *claim,
			  const Position *position, bool *same, TransactionId *xid)
{
	NaradRelInfo info = *NaradRelInfoCreate(call->rel, 0, 0);
	NaradReader *reader = NaradReaderBegin(call->rel, &info,
										   position->partition, NULL);
	NaradRead	read;

	NaradReaderRead(reader, position->offset, &read);
	*xid = read.xid;
	*same = (read.extra.flags & NARAD_EXT_DEDUP) != 0 &&
		read.extra.id_len == claim->id_len &&
		memcmp(read.extra.id, claim->id, claim->id_len) == 0;

	/* Only what is answered with has to be flushed, but it makes no odds. */
	NaradReaderEnd(reader);
	return read.status;
}

static void
wait_context(void *arg)
{
	const NaradDedupClaim *claim = arg;

	errcontext("while waiting for the transaction that produced dedup_id \"%s\"",
			   pnstrdup(claim->id, claim->id_len));
}

/* Waits until a (sub)transaction has ended, or its parent in its place. */
static void
wait_for(NaradDedupClaim *claim, TransactionId xid)
{
	ErrorContextCallback context;

	context.callback = wait_context;
	context.arg = claim;
	context.previous = error_context_stack;
	error_context_stack = &context;
	XactLockTableWait(xid, NULL, NULL, XLTW_None);
	error_context_stack = context.previous;
}

static void
report_own(Relation rel, const NaradDedupClaim *claim)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_IN_USE),
			 errmsg("dedup_id \"%s\" is being produced by an outer call",
					pnstrdup(claim->id, claim->id_len)),
			 errdetail("A trigger on topic \"%s\" produces the same message again.",
					   RelationGetRelationName(rel))));
}

/*
 * Gets what is needed to reserve, without a lock.  If it was there already,
 * it was the stripe's first buckets that there was no memory for.
 */
static void
prepare_entry(DedupCall *call)
{
	if (call->spare != NULL && TransactionIdIsValid(call->xid))
		NaradReportOutOfMemory("deduplication ids");
	call->xid = GetCurrentTransactionId();
	ensure_spare(call);
}

/* Decides about the n-th claim. */
static void
claim_one(DedupCall *call, int n)
{
	NaradDedupClaim *claim = call->claims[n];
	Position   *rejected = NULL;
	int			nrejected = 0;

	for (;;)
	{
		Position	found = {-1, NARAD_INVALID_OFFSET};
		TransactionId xid = InvalidTransactionId;
		NaradReadStatus status;
		bool		same;

		CHECK_FOR_INTERRUPTS();
		switch (look(call, n, rejected, nrejected, &found, &xid))
		{
			case LOOK_RESERVED:
				return;
			case LOOK_FILL:
				fill(call);
				continue;
			case LOOK_NEED_ENTRY:
				prepare_entry(call);
				continue;
			case LOOK_WAIT:
				wait_for(claim, xid);
				continue;
			case LOOK_OWN:
				report_own(call->rel, claim);
				continue;
			case LOOK_READ:
				break;
		}

		status = read_position(call, claim, &found, &same, &xid);
		if (status == NARAD_READ_DEAD || status == NARAD_READ_CORRUPT ||
			status == NARAD_READ_DROPPED || status == NARAD_READ_END)
			remove_position(call, claim->hash, &found);
		else if (!same)
		{
			rejected = rejected == NULL ? palloc(sizeof(Position)) :
				repalloc(rejected, (nrejected + 1) * sizeof(Position));
			rejected[nrejected++] = found;
		}
		else if (status == NARAD_READ_PENDING)
			wait_for(claim, xid);
		else
		{
			claim->is_duplicate = true;
			claim->partition = found.partition;
			claim->offset = found.offset;
			return;
		}
	}
}

static int
compare_ids(const NaradDedupClaim *a, const NaradDedupClaim *b)
{
	if (a->hash != b->hash)
		return a->hash < b->hash ? -1 : 1;
	if (a->id_len != b->id_len)
		return a->id_len < b->id_len ? -1 : 1;
	return memcmp(a->id, b->id, a->id_len);
}

/* By hash, id, and place in the array. */
static int
compare_claims(const void *a, const void *b)
{
	const NaradDedupClaim *left = *(NaradDedupClaim *const *) a;
	const NaradDedupClaim *right = *(NaradDedupClaim *const *) b;
	int			order = compare_ids(left, right);

	if (order != 0)
		return order;
	return left < right ? -1 : left > right ? 1 : 0;
}

/* Begins a call: its claims, in the order in which they are decided. */
static DedupCall *
begin_call(Relation rel, NaradDedupClaim *claims, int nclaims)
{
	DedupCall  *call = palloc0(sizeof(DedupCall));
	NaradRelInfo info = *NaradRelInfoCreate(rel, 0, 0);

	call->rel = rel;
	call->topic_id = info.topic_id;
	call->topic = NaradQueueTopicGet(rel, &info);
	call->dedup = get_dedup(call->topic);
	call->window = NaradTopicSettingsGet(rel)->dedup_window;
	call->nclaims = nclaims;
	call->claims = MemoryContextAllocHuge(CurrentMemoryContext,
										  nclaims * sizeof(NaradDedupClaim *));
	for (int i = 0; i < nclaims; i++)
	{
		NaradDedupClaim *claim = &claims[i];

		Assert(claim->id_len >= 1 && claim->id_len <= NARAD_MAX_ID);
		claim->hash = hash_id(call->topic_id, claim->id, claim->id_len);
		claim->is_duplicate = false;
		claim->first = NULL;
		claim->dedup = call->dedup;
		claim->entry = NULL;
		call->claims[i] = claim;
	}
	qsort(call->claims, nclaims, sizeof(NaradDedupClaim *), compare_claims);
	return call;
}

/*
 * NaradDedupClaimAll
 *
 * Decides which of the messages of one call are to be appended; see
 * NaradDedupClaim.  The claims are an array that does not move.
 */
void
NaradDedupClaimAll(Relation rel, NaradDedupClaim *claims, int nclaims)
{
	DedupCall  *call = begin_call(rel, claims, nclaims);

	PG_TRY();
	{
		for (int i = 0; i < nclaims; i++)
		{
			NaradDedupClaim *before = i > 0 ? call->claims[i - 1] : NULL;

			if (before != NULL && compare_ids(before, call->claims[i]) == 0)
				call->claims[i]->first = before->first != NULL ?
					before->first : before;
			else
				claim_one(call, i);
		}
	}
	PG_FINALLY();
	{
		NaradFree(call->spare);
		set_ids_due(call->topic, call->window + slack(call->window));
	}
	PG_END_TRY();
	pfree(call->claims);
	pfree(call);
}

/*
 * NaradDedupPlaced
 *
 * The message of a claim that was to be appended is in the log, there; from
 * now on its record decides.  No error.
 */
void
NaradDedupPlaced(NaradDedupClaim *claim, int partition, NaradOffset offset)
{
	DedupStripe *stripe = stripe_of(claim->dedup, claim->hash);
	NaradDedupEntry *entry = claim->entry;

	LWLockAcquire(&stripe->lock, LW_EXCLUSIVE);
	Assert(entry->offset == NARAD_INVALID_OFFSET);
	entry->partition = partition;
	entry->offset = offset;
	entry->time = GetCurrentTimestamp();
	dlist_delete(&entry->age);
	dlist_push_tail(&stripe->ages, &entry->age);
	LWLockRelease(&stripe->lock);
	claim->entry = NULL;
}

/*
 * NaradDedupDrop
 *
 * The message was not appended after all: a trigger or rule had it so.  The
 * id is free again.  No error.
 */
void
NaradDedupDrop(NaradDedupClaim *claim)
{
	DedupStripe *stripe = stripe_of(claim->dedup, claim->hash);

	LWLockAcquire(&stripe->lock, LW_EXCLUSIVE);
	remove_entry(stripe, claim->entry);
	LWLockRelease(&stripe->lock);
	claim->entry = NULL;
}
