/*-------------------------------------------------------------------------
 *
 * queue_producer.c
 *	  Idempotent producers: each sequence number once.
 *
 * A transaction that produces for a producer holds a lock on it to its end,
 * so a producer's messages are decided about one transaction after the other,
 * each knowing how the one before it ended.  The lock is a heavyweight one on
 * 47 bits of a hash of the producer's id (a tuple's place in the topic, which
 * nothing else locks): it can be waited for interruptibly, is seen by the
 * deadlock detector, is given up by a rollback to a savepoint before which it
 * was not held, and stays with a prepared transaction.  Producers that share
 * the bits wait for each other without need, and nothing worse.
 *
 * What a transaction has done for its producers is in a list of this
 * backend's; before its commit record (or its PREPARE) the producers' entries
 * are written, under its id, so that they count if and only if it commits
 * (log_producer.c).  Each element is the state of one producer after a
 * nesting level's messages; those nearer to the end of the list are newer, and
 * a rollback to a savepoint takes its own from the end.
 *
 * Within an epoch, sequence numbers follow each other without a gap.  A newer
 * epoch shuts out those who still have an older one, and starts over at any
 * number, as an unknown producer does: what an earlier epoch had is not
 * compared, because a producer that counts from the beginning again would
 * lose its messages without being told.
 *
 * Owns:       the list of advances.
 * Invariants: a sequence number of a producer's epoch is appended by at most
 *             one transaction that commits.  I12: an advance is of a topic
 *             id; if the topic was truncated since, it is void.
 * Locks:      the producer's, to the end of the (sub)transaction; storage
 *             takes its own for the pages.
 * Runs in:    any backend that is not in recovery; the callbacks.
 * WAL:        by log_producer.c.
 * On error:   the transaction or subtransaction fails, and its advances go.
 *             PRE_COMMIT may error; the callbacks behind it do not, and
 *             allocate nothing.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "common/hashfn.h"
#include "storage/lmgr.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "base/base_error.h"
#include "base/base_stop.h"
#include "log/log_producer.h"
#include "log/log_tableam.h"
#include "queue/queue_producer.h"

typedef struct Advance
{
	NaradTopicId topic_id;
	Oid			relid;
	int			nest_level;
	uint64		hash;
	NaradProducerState state;	/* after it */
	int			id_len;
	char		id[NARAD_MAX_ID];
} Advance;

/* In TopTransactionContext. */
static Advance *advances = NULL;
static int	nadvances = 0;
static int	max_advances = 0;

static uint64
hash_producer(const char *id, int id_len)
{
	return hash_bytes_extended((const unsigned char *) id, id_len, 0);
}

/* Keeps a producer for this (sub)transaction, waiting for others. */
static void
lock_producer(Relation rel, uint64 hash)
{
	ItemPointerData place;

	/* An item number of 0 would be none. */
	ItemPointerSet(&place, (BlockNumber) (hash >> 16),
				   (OffsetNumber) (hash | 1));
	LockTuple(rel, &place, ExclusiveLock);
}

/* ---------------------------------------------------------- the advances */

static bool
is_of(const Advance *advance, NaradTopicId topic_id, uint64 hash,
	  const char *id, int id_len)
{
	return advance->hash == hash && advance->topic_id == topic_id &&
		advance->id_len == id_len && memcmp(advance->id, id, id_len) == 0;
}

/* The newest advance of a producer before the n-th, or NULL. */
static Advance *
find_advance(int n, NaradTopicId topic_id, uint64 hash, const char *id,
			 int id_len)
{
	while (--n >= 0)
		if (is_of(&advances[n], topic_id, hash, id, id_len))
			return &advances[n];
	return NULL;
}

static Advance *
add_advance(void)
{
	if (nadvances >= max_advances)
	{
		Size		want = Max(16, (Size) max_advances * 2);

		advances = advances == NULL ?
			MemoryContextAllocHuge(TopTransactionContext,
								   want * sizeof(Advance)) :
			repalloc_huge(advances, want * sizeof(Advance));
		max_advances = (int) want;
	}
	return &advances[nadvances++];
}

/* The state after one more message, which went to a position. */
static void
advance_state(NaradProducerState *state, const NaradProducerTurn *turn,
			  int partition, NaradOffset offset)
{
	if (state->npositions == 0 || state->epoch != turn->epoch)
		memset(state, 0, sizeof(*state));
	else
	{
		memmove(&state->offsets[1], &state->offsets[0],
				sizeof(state->offsets) - sizeof(state->offsets[0]));
		memmove(&state->partitions[1], &state->partitions[0],
				sizeof(state->partitions) - sizeof(state->partitions[0]));
	}
	state->epoch = turn->epoch;
	state->sequence = turn->sequence;
	state->offsets[0] = partition < 0 ? 0 : offset;
	state->partitions[0] = partition;
	state->npositions = Min(state->npositions + 1, NARAD_PRODUCER_POSITIONS);
}

/* ---------------------------------------------------------- the decision */

static void
report_fenced(Relation rel, const NaradProducerTurn *turn,
			  const NaradProducerState *state)
{
	ereport(ERROR,
			(errcode(ERRCODE_NARAD_PRODUCER_FENCED),
			 errmsg("producer \"%s\" of topic \"%s\" has a newer epoch than %d",
					pnstrdup(turn->id, turn->id_len),
					RelationGetRelationName(rel), turn->epoch),
			 errdetail("Its epoch is %d.", state->epoch),
			 errhint("Another instance of the producer has taken over.")));
}

static void
report_gap(Relation rel, const NaradProducerTurn *turn,
		   const NaradProducerState *state)
{
	ereport(ERROR,
			(errcode(ERRCODE_NARAD_SEQUENCE_GAP),
			 errmsg("sequence %lld of producer \"%s\" of topic \"%s\" leaves a gap",
					(long long) turn->sequence,
					pnstrdup(turn->id, turn->id_len),
					RelationGetRelationName(rel)),
			 errdetail("The last sequence of epoch %d is %lld.",
					   state->epoch, (long long) state->sequence)));
}

/* Something that ran between decision and append has used up the number. */
static void
report_overtaken(Relation rel, const NaradProducerTurn *turn)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_IN_USE),
			 errmsg("producer \"%s\" of topic \"%s\" was used while it was producing",
					pnstrdup(turn->id, turn->id_len),
					RelationGetRelationName(rel)),
			 errdetail("A trigger on the topic produces for the same producer.")));
}

/*
 * What is known of the producer: by this transaction's advances, or by its
 * entry.  Whoever is told of a duplicate relies on a commit, which must not
 * be lost then: *lsn.
 */
static void
read_state(Relation rel, NaradTopicId topic_id, uint64 hash,
		   const NaradProducerTurn *turn, NaradProducerState *state,
		   XLogRecPtr *lsn)
{
	Advance    *mine = find_advance(nadvances, topic_id, hash, turn->id,
									turn->id_len);

	*lsn = InvalidXLogRecPtr;
	if (mine != NULL)
		*state = mine->state;
	else
		NaradProducerRead(rel, turn->id, turn->id_len, state, lsn);
}

/*
 * NaradProducerBegin
 *
 * See queue_producer.h.
 */
void
NaradProducerBegin(Relation rel, NaradProducerTurn *turn)
{
	NaradTopicId topic_id = NaradRelInfoCreate(rel, 0, 0)->topic_id;
	uint64		hash = hash_producer(turn->id, turn->id_len);
	NaradProducerState state;
	XLogRecPtr	lsn;
	int64		age;

	Assert(turn->epoch >= 0 && turn->sequence >= 0);
	turn->is_duplicate = false;
	turn->partition = -1;
	turn->offset = NARAD_INVALID_OFFSET;
	lock_producer(rel, hash);
	read_state(rel, topic_id, hash, turn, &state, &lsn);
	if (state.npositions == 0 || turn->epoch > state.epoch)
		return;
	if (turn->epoch < state.epoch)
		report_fenced(rel, turn, &state);
	if (turn->sequence > state.sequence)
	{
		if (turn->sequence - 1 > state.sequence)
			report_gap(rel, turn, &state);
		return;
	}

	turn->is_duplicate = true;
	age = state.sequence - turn->sequence;
	if (age < state.npositions)
	{
		turn->partition = state.partitions[age];
		turn->offset = state.offsets[age];
	}
	if (RelationNeedsWAL(rel) && !XLogRecPtrIsInvalid(lsn))
		XLogFlush(lsn);
}

/*
 * NaradProducerAdvance
 *
 * Notes that a message that was to be appended is.  From here on it counts in
 * this transaction, and for others once that has committed.  Errors 55006 if
 * a trigger has produced for the producer meanwhile.
 */
void
NaradProducerAdvance(Relation rel, const NaradProducerTurn *turn,
					 int partition, NaradOffset offset)
{
	NaradTopicId topic_id = NaradRelInfoCreate(rel, 0, 0)->topic_id;
	uint64		hash = hash_producer(turn->id, turn->id_len);
	int			level = GetCurrentTransactionNestLevel();
	Advance    *advance = find_advance(nadvances, topic_id, hash, turn->id,
									   turn->id_len);
	NaradProducerState state;
	XLogRecPtr	lsn;

	read_state(rel, topic_id, hash, turn, &state, &lsn);
	if (state.npositions > 0 &&
		(state.epoch > turn->epoch ||
		 (state.epoch == turn->epoch && state.sequence >= turn->sequence)))
		report_overtaken(rel, turn);
	advance_state(&state, turn, partition, offset);
	if (advance == NULL || advance->nest_level < level)
	{
		advance = add_advance();
		advance->topic_id = topic_id;
		advance->relid = RelationGetRelid(rel);
		advance->nest_level = level;
		advance->hash = hash;
		advance->id_len = turn->id_len;
		memcpy(advance->id, turn->id, turn->id_len);
	}
	advance->state = state;
}

/* ------------------------------------------------- ends of transactions */

/* Writes an advance to the producer's entry, under this transaction's id. */
static void
write_advance(const Advance *advance, uint64 xid)
{
	Relation	rel;
	NaradRelInfo *found;
	NaradRelInfo info;

	/* Locked since.  Gone, or truncated: there is nothing to remember. */
	rel = try_relation_open(advance->relid, NoLock);
	if (rel == NULL)
		return;
	found = NaradRelIsTopic(rel) ? NaradRelInfoAttach(rel) : NULL;
	if (found != NULL && found->topic_id == advance->topic_id)
	{
		info = *found;
		NaradProducerWrite(rel, &info, advance->id, advance->id_len, xid,
						   &advance->state);
	}
	relation_close(rel, NoLock);
}

/* The last advance of each producer is durable with the commit record. */
static void
write_advances(void)
{
	uint64		xid;

	if (nadvances == 0)
		return;
	xid = U64FromFullTransactionId(GetTopFullTransactionId());
	for (int i = nadvances - 1; i >= 0; i--)
	{
		const Advance *advance = &advances[i];
		bool		is_last = true;

		for (int j = i + 1; j < nadvances && is_last; j++)
			is_last = !is_of(&advances[j], advance->topic_id, advance->hash,
							 advance->id, advance->id_len);
		if (is_last)
			write_advance(advance, xid);
	}
	NARAD_STOP("producer-written");
}

static void
xact_callback(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
		case XACT_EVENT_PRE_PREPARE:
			write_advances();
			break;
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			/* The memory goes with the transaction. */
			advances = NULL;
			nadvances = max_advances = 0;
			break;
		default:
			break;
	}
}

/* Gives a subtransaction's advances to its parent, one for each producer. */
static void
hand_over(int first, int level)
{
	for (int i = first; i < nadvances; i++)
	{
		Advance    *before;

		before = find_advance(i, advances[i].topic_id, advances[i].hash,
							  advances[i].id, advances[i].id_len);
		advances[i].nest_level = level - 1;
		if (before != NULL && before->nest_level == level - 1)
		{
			*before = advances[i];
			advances[i--] = advances[--nadvances];
		}
	}
}

static void
subxact_callback(SubXactEvent event, SubTransactionId my_id,
				 SubTransactionId parent_id, void *arg)
{
	int			level = GetCurrentTransactionNestLevel();
	int			first = nadvances;

	if (event != SUBXACT_EVENT_COMMIT_SUB && event != SUBXACT_EVENT_ABORT_SUB)
		return;
	while (first > 0 && advances[first - 1].nest_level >= level)
		first--;
	if (event == SUBXACT_EVENT_ABORT_SUB)
		nadvances = first;
	else
		hand_over(first, level);
}

/*
 * NaradProducerRegister
 *
 * Once, at load.
 */
void
NaradProducerRegister(void)
{
	RegisterXactCallback(xact_callback, NULL);
	RegisterSubXactCallback(subxact_callback, NULL);
}
