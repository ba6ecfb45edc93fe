/*-------------------------------------------------------------------------
 *
 * worker_deadletter.c
 *	  A duty of the worker: moves dead letters to where their topic says.
 *
 * Owns:       the transaction of a move.
 * Invariants: I1, I5: the append to the dead-letter topic and the settling here
 *             are one transaction, and its journal entry is logged before its
 *             commit record.  So a message is in one place, whenever the server
 *             stops.
 * Locks:      RowExclusiveLock on the topic and on its dead-letter topic, both
 *             got only if free: the worker waits for nobody.
 * Runs in:    the worker.  The append, which may run functions that users made,
 *             runs as the owner of the dead-letter topic, whose functions these
 *             are, within the bounds of worker_usercode.c.
 * WAL:        of the append; the journal of acks.
 * On error:   logged, with the position of the message; it is tried again
 *             after a wait.
 *
 * One message is one transaction, so that one that fails takes no other along.
 * It commits asynchronously: as both sides are in it, a crash undoes both or
 * neither, and nobody was told.  So neither the disk nor a standby is waited
 * for.
 *
 * Without a dead-letter topic, or if it is no topic any more, the message is
 * settled and counted.
 *
 * Who owns the dead-letter topic chooses the code that runs, so it runs with his
 * rights: the owner of the topic that the message comes from, who may be
 * anybody, would lend him his.  In turn that owner has to have the other's
 * privileges, at each move, since nobody else may write there in his name.
 *
 * A move that could not be cancelled, and ended the worker, puts off all of its
 * topic for so long that the next workers get to their duties.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/relation.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/interrupt.h"
#include "storage/lmgr.h"
#include "utils/guc.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "base/base_stop.h"
#include "log/log_read.h"
#include "log/log_tableam.h"
#include "queue/queue_deadletter.h"
#include "queue/queue_retain.h"
#include "queue/queue_topic.h"
#include "worker/worker_duty.h"
#include "worker/worker_usercode.h"

/* Moves before the other duties have their turn, and how long they may take. */
#define MOVES_A_ROUND	64
#define ROUND_US		INT64CONST(200000)

/* An append that takes longer is cancelled. */
#define APPEND_LIMIT_MS	3000

/* A topic waits so long whose move was not to be cancelled. */
#define HUNG_WAIT_MINUTES	10

/* A topic that is locked is left alone so long. */
#define LOCKED_WAIT_US	INT64CONST(200000)

/* One that could not be looked at. */
#define FAILURE_WAIT_US	INT64CONST(5000000)

/* What a row of any topic has: columns 4 to 6. */
#define ROW_COLUMNS	3

typedef struct Move
{
	Relation	rel;
	NaradRelInfo info;
	NaradTopicSettings settings;
	Relation	target;			/* the dead-letter topic, or NULL */
	NaradDeadLetter letter;
	bool		claimed;		/* letter is set, and pinned */
} Move;

/* Of whose messages one was appended last. */
static NaradTopicId moving_topic;

/* For the log: which message it was. */
static void
move_context(void *arg)
{
	const Move *move = arg;

	errcontext("moving offset %llu of partition %d of topic \"%s\", group \"%s\", to its dead-letter topic",
			   (unsigned long long) move->letter.offset,
			   move->letter.partition, RelationGetRelationName(move->rel),
			   move->letter.group);
}

/* ------------------------------------------------------------ the append */

/* What was checked when the setting was made may have changed since. */
static void
check_target(const Move *move)
{
	Oid			type = NaradTopicSettingsGet(move->target)->value_type;

	if (RelationGetRelid(move->target) == RelationGetRelid(move->rel))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("topic \"%s\" is its own dead-letter topic",
						RelationGetRelationName(move->rel))));
	if (type != move->settings.value_type)
		ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("dead-letter topic \"%s\" has values of another type than topic \"%s\"",
						RelationGetRelationName(move->target),
						RelationGetRelationName(move->rel))));
	NaradDeadLetterCheckOwner(move->rel->rd_rel->relowner, move->target);
}

/* Key, value and headers of the dead letter. */
static void
form_row(const Move *move, HeapTuple tuple, Datum *row, bool *isnull)
{
	TupleDesc	desc = RelationGetDescr(move->rel);
	Datum	   *values = palloc(desc->natts * sizeof(Datum));
	bool	   *nulls = palloc(desc->natts * sizeof(bool));
	TimestampTz produced_at;

	heap_deform_tuple(tuple, desc, values, nulls);
	produced_at = DatumGetTimestampTz(values[NARAD_ATTR_TIME - 1]);
	row[0] = values[NARAD_ATTR_KEY - 1];
	isnull[0] = nulls[NARAD_ATTR_KEY - 1];
	row[1] = values[NARAD_ATTR_VALUE - 1];
	isnull[1] = nulls[NARAD_ATTR_VALUE - 1];
	row[2] = NaradDeadLetterHeaders(move->rel, &move->letter, produced_at,
									values[NARAD_ATTR_HEADERS - 1],
									nulls[NARAD_ATTR_HEADERS - 1]);
	isnull[2] = false;
}

/*
 * Appends as the owner of the dead-letter topic.  A message that could be
 * produced can be moved, by some headers longer.
 */
static void
append_as_owner(const Move *move, HeapTuple tuple)
{
	Datum		row[ROW_COLUMNS];
	bool		isnull[ROW_COLUMNS];

	check_target(move);
	form_row(move, tuple, row, isnull);
	moving_topic = move->info.topic_id;
	NaradUserCodeBegin(move->target->rd_rel->relowner, APPEND_LIMIT_MS);
	NaradTopicCheckAcl(move->target, ACL_INSERT);
	NaradDeadLetterAppend(move->target, row, isnull);
	NaradUserCodeEnd();
}

/* -------------------------------------------------------------- one move */

/* Moves the message that was claimed, or settles it where it is. */
static void
move_letter(Move *move, NaradShard *shard, NaradGroupId group_id)
{
	NaradReader *reader;
	NaradRead	read;

	reader = NaradReaderBegin(move->rel, &move->info, move->letter.partition,
							  NULL);
	NaradReaderRead(reader, move->letter.offset, &read);
	NARAD_STOP("move-claimed");
	if (read.status == NARAD_READ_DROPPED)
		NaradShardDropBelow(shard, group_id, read.next);
	else if (read.status != NARAD_READ_OK)
		NaradDeadLetterLost(shard, group_id, &move->letter);
	else if (move->target != NULL)
		append_as_owner(move, read.tuple);
	else if (OidIsValid(move->settings.dead_letter_topic))
		ereport(LOG,
				(errmsg("dead-letter topic of topic \"%s\" does not exist, offset %llu of partition %d is dropped",
						RelationGetRelationName(move->rel),
						(unsigned long long) move->letter.offset,
						move->letter.partition)));
	NaradReaderEnd(reader);
	NARAD_STOP("move-appended");
}

/*
 * Opens the dead-letter topic, if there is one; false if it is locked.
 */
static bool
open_target(Move *move)
{
	Oid			relid = move->settings.dead_letter_topic;

	move->target = NULL;
	if (!OidIsValid(relid))
		return true;
	if (!ConditionalLockRelationOid(relid, RowExclusiveLock))
		return false;
	move->target = try_relation_open(relid, NoLock);
	if (move->target != NULL && !NaradRelIsTopic(move->target))
	{
		relation_close(move->target, NoLock);
		move->target = NULL;
	}
	return true;
}

/* The rest, with the topic open.  False if the other one is locked. */
static bool
move_from_topic(Move *move, const NaradDirtyItem *item, NaradShard *shard)
{
	ErrorContextCallback callback;

	/* A copy: the original may go with the next invalidation. */
	move->settings = *NaradTopicSettingsGet(move->rel);
	if (!open_target(move))
		return false;
	if (NaradDeadLetterClaim(shard, item->group_id, &move->settings,
							 &move->letter))
	{
		move->claimed = true;
		callback.callback = move_context;
		callback.arg = move;
		callback.previous = error_context_stack;
		error_context_stack = &callback;
		move_letter(move, shard, item->group_id);
		error_context_stack = callback.previous;
	}
	if (move->target != NULL)
		relation_close(move->target, NoLock);
	return true;
}

/*
 * Moves one message of a shard, in the current transaction, which keeps the
 * locks.  False if a topic is locked, or gone.
 */
static bool
move_one(Move *move, const NaradDirtyItem *item)
{
	NaradRelInfo *found;
	NaradShard *shard = NULL;
	bool		done = false;

	if (!ConditionalLockRelationOid(item->relid, RowExclusiveLock))
		return false;
	move->rel = try_relation_open(item->relid, NoLock);
	if (move->rel == NULL)
		return false;
	found = NaradRelIsTopic(move->rel) ? NaradRelInfoAttach(move->rel) : NULL;
	if (found != NULL)
	{
		/* A copy: the relation's may go with an invalidation. */
		move->info = *found;
		shard = NaradShardLookup(&move->info, item->topic_id, item->group_id,
								 item->partition);
	}
	if (shard != NULL)
		done = move_from_topic(move, item, shard);
	relation_close(move->rel, NoLock);
	return done;
}

/* Logs the error; the abort has given the message back, if it had come so far. */
static void
move_failed(const NaradDirtyItem *item, bool claimed)
{
	HOLD_INTERRUPTS();
	NaradUserCodeFailed();
	EmitErrorReport();
	AbortCurrentTransaction();
	FlushErrorState();
	RESUME_INTERRUPTS();
	if (!claimed)
		NaradDeadLetterPostpone(item->topic_id,
								NaradClockNow() + FAILURE_WAIT_US);
}

/* Moves one message of a shard, in a transaction of its own. */
static void
try_move(const NaradDirtyItem *item)
{
	MemoryContext context = CurrentMemoryContext;
	Move	   *volatile move = palloc0(sizeof(Move));

	PG_TRY();
	{
		SetCurrentStatementStartTimestamp();
		StartTransactionCommand();
		PushActiveSnapshot(GetTransactionSnapshot());
		(void) set_config_option("synchronous_commit", "off", PGC_USERSET,
								 PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0,
								 false);
		if (!move_one(move, item))
			NaradDeadLetterPostpone(item->topic_id,
									NaradClockNow() + LOCKED_WAIT_US);
		PopActiveSnapshot();
		CommitTransactionCommand();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		move_failed(item, move->claimed);
	}
	PG_END_TRY();
	NaradUserCodeForget();
	MemoryContextSwitchTo(context);
	pfree(move);
}

/* --------------------------------------------------------------- the duty */

static int64
deadletter_run(int64 now)
{
	int64		next = NARAD_DUTY_NEVER;
	NaradDirtyItem item;
	int			i;

	if (!NaradDeadLetterNext(&item, now, &next))
		return next;
	next = now;					/* not moved yet */
	pgstat_report_activity(STATE_RUNNING, "moving dead letters");
	for (i = 0; i < MOVES_A_ROUND && !ShutdownRequestPending &&
		 NaradClockNow() - now < ROUND_US; i++)
	{
		CHECK_FOR_INTERRUPTS();
		try_move(&item);
		next = NARAD_DUTY_NEVER;
		if (!NaradDeadLetterNext(&item, NaradClockNow(), &next))
			break;
		next = NaradClockNow();
	}
	pgstat_report_stat(false);
	pgstat_report_activity(STATE_IDLE, NULL);
	return next;
}

/*
 * NaradDeadLetterHung
 *
 * The process ends in code that was run by a move, and its transaction was
 * aborted: that topic's moves are left alone for a while.
 */
void
NaradDeadLetterHung(void)
{
	NaradDeadLetterPostpone(moving_topic, NaradClockNow() +
							HUNG_WAIT_MINUTES * INT64CONST(60000000));
	ereport(LOG,
			(errmsg("worker ends in functions of a dead-letter topic"),
			 errdetail("Moves from the same topic are tried again in %d minutes.",
					   HUNG_WAIT_MINUTES)));
}

const NaradDuty NaradDeadLetterDuty = {
	"moving dead letters",
	deadletter_run,
	NULL,
	NULL
};
