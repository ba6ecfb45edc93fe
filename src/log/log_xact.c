/*-------------------------------------------------------------------------
 *
 * log_xact.c
 *	  The storage layer's part in the end of a transaction.
 *
 * Order at a commit: core makes the transaction visible; the hulls move to
 * the rings; the layers above look at the rings and wake; the shared parts of
 * files that went are freed.  An abort is the same, with large appends that
 * failed given up first.
 *
 * Owns:       storage's transaction and subtransaction callbacks and its
 *             object access hook.
 * Invariants: I1, I3: nothing is published before the transaction has ended
 *             for everybody.
 * Runs in:    any backend; parallel workers have no part in it.
 * On error:   callbacks of the end neither error nor allocate (an abort may);
 *             those before a commit or a PREPARE may error.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/xact.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_class.h"
#include "catalog/pg_database.h"
#include "utils/lsyscache.h"

#include "log/log_append.h"
#include "log/log_hull.h"
#include "log/log_partition.h"
#include "log/log_retain.h"
#include "log/log_tableam.h"
#include "log/log_topic.h"
#include "log/log_xact.h"

static object_access_hook_type previous_access_hook;

/* The database that this transaction drops: one a command, in no block. */
static Oid	dropped_database;

/* The one whose files it moves, likewise. */
static Oid	moved_database;

/*
 * Runs before the layers above: what was appended is decided now.  Partitions
 * are added before forget_callback collects files, which that may attach.
 */
static void
publish_callback(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			NaradLogGrowAtPreCommit();
			break;
		case XACT_EVENT_PRE_PREPARE:
			NaradLogGrowCheckPrepare();
			break;
		case XACT_EVENT_COMMIT:
			NaradHullAtXactEnd(true);
			NaradLogGrowAtXactEnd();
			break;
		case XACT_EVENT_ABORT:
			NaradAppendAtAbort();
			NaradHullAtXactEnd(false);
			NaradLogGrowAtXactEnd();
			break;
		case XACT_EVENT_PREPARE:
			NaradHullAtPrepare();
			break;
		default:
			break;
	}
}

/* Runs after the layers above: forgets files. */
static void
forget_callback(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			NaradLogCollectFiles();
			return;
		case XACT_EVENT_PRE_PREPARE:
			NaradLogCheckPrepare();
			return;
		case XACT_EVENT_COMMIT:
			NaradRetainAtXactEnd(true);
			NaradLogForgetFiles(true);
			if (OidIsValid(dropped_database))
				NaradLogForgetDatabase(dropped_database, true);
			if (OidIsValid(moved_database))
				NaradLogForgetDatabase(moved_database, false);
			break;
		case XACT_EVENT_ABORT:
			NaradRetainAtXactEnd(false);
			NaradLogForgetFiles(false);
			break;
		case XACT_EVENT_PREPARE:
			NaradRetainAtXactEnd(false);
			break;
		default:
			return;
	}
	NaradLogFilesReset();
	dropped_database = InvalidOid;
	moved_database = InvalidOid;
}

/*
 * The same for a subtransaction.  Its records stay where they are, dead; what
 * it held while appending is given up.  Its relation locks are still held.
 */
static void
publish_sub_callback(SubXactEvent event, SubTransactionId mySubid,
					 SubTransactionId parentSubid, void *arg)
{
	int			level = GetCurrentTransactionNestLevel();

	if (event == SUBXACT_EVENT_ABORT_SUB)
	{
		NaradAppendAtAbort();
		NaradHullAtSubAbort(level);
		NaradLogGrowAtSubEnd(level, false);
	}
	else if (event == SUBXACT_EVENT_COMMIT_SUB)
	{
		NaradHullAtSubCommit(level);
		NaradLogGrowAtSubEnd(level, true);
	}
}

/* Files that a subtransaction created are forgotten. */
static void
forget_sub_callback(SubXactEvent event, SubTransactionId mySubid,
					SubTransactionId parentSubid, void *arg)
{
	if (event == SUBXACT_EVENT_ABORT_SUB)
		NaradLogForgetFiles(false);
}

/*
 * Remembers a topic that is about to be dropped.  It is locked; what is not
 * there (any more), or no table, is none.
 */
static void
watch_topic(Oid relid)
{
	Relation	rel;

	if (get_rel_relkind(relid) != RELKIND_RELATION)
		return;
	rel = try_relation_open(relid, NoLock);
	if (rel == NULL)
		return;
	if (NaradRelIsTopic(rel))
		NaradLogTopicFileMayGo(&NaradRelationLocator(rel));
	relation_close(rel, NoLock);
}

/* Notices drops of relations and databases. */
static void
watch_drops(ObjectAccessType access, Oid classId, Oid objectId, int subId,
			void *arg)
{
	if (previous_access_hook)
		previous_access_hook(access, classId, objectId, subId, arg);

	if (access == OAT_DROP && classId == RelationRelationId && subId == 0)
	{
		NaradLogFilesMayGo();
		watch_topic(objectId);
	}
	else if (access == OAT_DROP && classId == DatabaseRelationId)
	{
		dropped_database = objectId;
		NaradLogFilesMayGo();
	}
}

/*
 * NaradLogDatabaseMoves
 *
 * If this transaction commits, the files of a database are others than before,
 * and may be those of long ago again: what is known of them goes.  The topics
 * stay.  Nobody is connected to the database, nor can be before the commit.
 */
void
NaradLogDatabaseMoves(Oid database)
{
	moved_database = database;
	NaradLogFilesMayGo();
}

/*
 * NaradLogXactRegisterFirst
 *
 * Registers what must run last.
 */
void
NaradLogXactRegisterFirst(void)
{
	RegisterXactCallback(forget_callback, NULL);
	RegisterSubXactCallback(forget_sub_callback, NULL);
	previous_access_hook = object_access_hook;
	object_access_hook = watch_drops;
}

/*
 * NaradLogXactRegisterLast
 *
 * Registers what must run first.
 */
void
NaradLogXactRegisterLast(void)
{
	RegisterXactCallback(publish_callback, NULL);
	RegisterSubXactCallback(publish_sub_callback, NULL);
}
