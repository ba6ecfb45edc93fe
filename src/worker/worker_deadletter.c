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
 *             runs as the owner of the topic that the message comes from, in a
 *             security-restricted operation, with a search_path that holds
 *             nothing of theirs, and for a limited time.
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
#include "utils/timeout.h"

#include "base/base_stop.h"
#include "log/log_read.h"
#include "log/log_tableam.h"
#include "queue/queue_deadletter.h"
#include "queue/queue_retain.h"
#include "queue/queue_topic.h"
#include "worker/worker_duty.h"

/* Moves before the other duties have their turn. */
#define MOVES_A_ROUND	64

/* An append that takes longer is cancelled. */
#define APPEND_LIMIT_MS	3000

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

/*
 * What was checked when the setting was made may have changed since; the
 * current user is the one who appends.
 */
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
	NaradTopicCheckAcl(move->target, ACL_INSERT);
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
 * Appends as the owner of the topic, whose functions these are, and with no
 * more rights than he has.  A message that could be produced can be moved, by
 * some headers longer.
 */
static void
append_as_owner(const Move *move, HeapTuple tuple)
{
	Datum		row[ROW_COLUMNS];
	bool		isnull[ROW_COLUMNS];
	Oid			user;
	int			context;
	int			guc_level;

	form_row(move, tuple, row, isnull);
	GetUserIdAndSecContext(&user, &context);
	SetUserIdAndSecContext(move->rel->rd_rel->relowner,
						   context | SECURITY_RESTRICTED_OPERATION);
	guc_level = NewGUCNestLevel();
	(void) set_config_option("search_path", "pg_catalog, pg_temp", PGC_SUSET,
							 PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	(void) set_config_option("narad.max_message_size", "256MB", PGC_SUSET,
							 PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);

	enable_timeout_after(STATEMENT_TIMEOUT, APPEND_LIMIT_MS);
	check_target(move);
	NaradDeadLetterAppend(move->target, row, isnull);
	disable_timeout(STATEMENT_TIMEOUT, false);

	AtEOXact_GUC(false, guc_level);
	SetUserIdAndSecContext(user, context);
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
	disable_timeout(STATEMENT_TIMEOUT, false);
	QueryCancelPending = false;
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
	pgstat_report_activity(STATE_RUNNING, "moving dead letters");
	for (i = 0; i < MOVES_A_ROUND && !ShutdownRequestPending; i++)
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

const NaradDuty NaradDeadLetterDuty = {
	"moving dead letters",
	deadletter_run,
	NULL,
	NULL
};
