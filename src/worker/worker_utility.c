/*-------------------------------------------------------------------------
 *
 * worker_utility.c
 *	  Keeps the workers out of the way of statements that need a database for
 *	  themselves, tells storage when its files are moved, and waiters of the
 *	  end of prepared transactions and of clients behind a pooler.
 *
 * DROP DATABASE, ALTER DATABASE ... RENAME or SET TABLESPACE, and CREATE
 * DATABASE with a template fail while anybody is connected to the database.
 * So its worker is asked to stop before, and none is started until after.
 *
 * Owns:       the bars this backend has put up.
 * Invariants: a bar is lifted when the statement ends, whatever its end, the
 *             backend's included.  I12: of files that were moved away nothing
 *             is known when they come back.
 * Locks:      those of queue_dirty.c, one call at a time.  While it waits for
 *             the worker to leave, DROP DATABASE holds its lock on the
 *             database, which the worker never asks for.
 * Runs in:    any backend.
 * WAL:        none.
 * On error:   the statement's error goes on after the bar is lifted.  A worker
 *             that does not leave in time is the statement's own business: it
 *             reports that the database is in use.
 *
 * DROP DATABASE is met in the object access hook, after its checks of
 * privileges; the others have no such hook, and are checked here, so that
 * nobody stops the worker of a database that is not his.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>

#include "access/htup_details.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_database.h"
#include "commands/dbcommands.h"
#include "commands/defrem.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "pgstat.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "tcop/utility.h"
#include "utils/acl.h"
#include "utils/syscache.h"
#include "utils/wait_event.h"

#include "log/log_xact.h"
#include "queue/queue_dirty.h"
#include "queue/queue_token.h"
#include "queue/queue_topic.h"
#include "queue/queue_wait.h"
#include "worker/worker_utility.h"

#define LEAVE_WAIT_MS	5000
#define LEAVE_POLL_MS	10

static ProcessUtility_hook_type previous_utility;
static object_access_hook_type previous_object_access;

/* The database this backend has barred; one statement bars one at most. */
static Oid	barred_database = InvalidOid;

/* The same, if the statement gives it another tablespace. */
static Oid	moving_database = InvalidOid;

static void
lift_bar(void)
{
	Oid			database = barred_database;

	barred_database = InvalidOid;
	moving_database = InvalidOid;
	if (OidIsValid(database))
		NaradDirtyBar(database, false);
}

static void
lift_bar_at_exit(int code, Datum arg)
{
	lift_bar();
}

/* Bars a database and waits, not for ever, until its worker is gone. */
static void
bar_database(Oid database)
{
	static bool registered = false;
	int			waited_ms = 0;
	int			pid;

	if (OidIsValid(barred_database) || !OidIsValid(database))
		return;
	if (!registered)
		before_shmem_exit(lift_bar_at_exit, (Datum) 0);
	registered = true;
	NaradDirtyBar(database, true);
	barred_database = database;

	while ((pid = NaradDirtyWorkerPid(database)) != 0 &&
		   waited_ms < LEAVE_WAIT_MS)
	{
		/* Again and again: one that just started may have missed it. */
		if (waited_ms % 500 == 0)
			(void) kill(pid, SIGTERM);
		(void) WaitLatch(MyLatch,
						 WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 LEAVE_POLL_MS, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
		waited_ms += LEAVE_POLL_MS;
	}
}

/* ----------------------------------------------------------------
 *		Which statements, which database
 * ----------------------------------------------------------------
 */

static bool
may_create_databases(void)
{
	HeapTuple	tuple;
	bool		may = superuser();

	if (may)
		return true;
	tuple = SearchSysCache1(AUTHOID, ObjectIdGetDatum(GetUserId()));
	if (HeapTupleIsValid(tuple))
	{
		may = ((Form_pg_authid) GETSTRUCT(tuple))->rolcreatedb;
		ReleaseSysCache(tuple);
	}
	return may;
}

/* The database of a name, if the user may alter it, or (copy) copy it. */
static Oid
find_database_for(const char *name, bool copy)
{
	Oid			database = get_database_oid(name, true);
	HeapTuple	tuple;
	Form_pg_database form;
	bool		may;

	if (!OidIsValid(database) || (copy && !may_create_databases()))
		return InvalidOid;
	tuple = SearchSysCache1(DATABASEOID, ObjectIdGetDatum(database));
	if (!HeapTupleIsValid(tuple))
		return InvalidOid;
	form = (Form_pg_database) GETSTRUCT(tuple);
	may = (copy && form->datistemplate) ||
		has_privs_of_role(GetUserId(), form->datdba);
	ReleaseSysCache(tuple);
	return may ? database : InvalidOid;
}

static DefElem *
find_option(List *options, const char *name)
{
	ListCell   *cell;

	foreach(cell, options)
	{
		DefElem    *option = lfirst(cell);

		if (strcmp(option->defname, name) == 0)
			return option;
	}
	return NULL;
}

/* The database a statement needs for itself, or InvalidOid. */
static Oid
database_needed(Node *statement)
{
	if (IsA(statement, RenameStmt))
	{
		RenameStmt *rename = (RenameStmt *) statement;

		if (rename->renameType == OBJECT_DATABASE)
			return find_database_for(rename->subname, false);
	}
	else if (IsA(statement, AlterDatabaseStmt))
	{
		AlterDatabaseStmt *alter = (AlterDatabaseStmt *) statement;

		if (find_option(alter->options, "tablespace") != NULL)
			return find_database_for(alter->dbname, false);
	}
	else if (IsA(statement, CreatedbStmt))
	{
		DefElem    *option = find_option(((CreatedbStmt *) statement)->options,
										 "template");

		return find_database_for(option != NULL && option->arg != NULL ?
								 defGetString(option) : "template1", true);
	}
	return InvalidOid;
}

/* ----------------------------------------------------------------
 *		Hooks
 * ----------------------------------------------------------------
 */

/*
 * The statement has succeeded, and its bar is still up: until a dropped
 * database is forgotten, so that no worker is started for it.
 */
static void
statement_done(Node *statement)
{
	if (IsA(statement, DropdbStmt) && OidIsValid(barred_database))
	{
		NaradQueueTopicForgetDatabase(barred_database);
		NaradDirtyForgetDatabase(barred_database);
	}
	lift_bar();
}

static void
run_statement(PlannedStmt *pstmt, const char *query, bool read_only_tree,
			  ProcessUtilityContext context, ParamListInfo params,
			  QueryEnvironment *environment, DestReceiver *dest,
			  QueryCompletion *completion)
{
	if (previous_utility)
		previous_utility(pstmt, query, read_only_tree, context, params,
						 environment, dest, completion);
	else
		standard_ProcessUtility(pstmt, query, read_only_tree, context, params,
								environment, dest, completion);
}

/*
 * A prepared transaction has no callback at its end: who ends it wakes those who
 * may wait for its messages.  With DISCARD ALL a pooler gives the session to
 * another client: the one that left its tokens is gone.  With UNLISTEN * it
 * hears of none, unless that is rolled back, and then it is told last.
 */
static void
tell_of_end(bool ends_prepared, bool ends_listening)
{
	if (ends_prepared)
		NaradWaitServeDatabase();
	if (ends_listening)
		NaradTokenAbandon();
}

/* COMMIT PREPARED or ROLLBACK PREPARED */
static bool
is_end_of_prepared(const Node *statement)
{
	const TransactionStmt *end = (const TransactionStmt *) statement;

	return IsA(statement, TransactionStmt) &&
		(end->kind == TRANS_STMT_COMMIT_PREPARED ||
		 end->kind == TRANS_STMT_ROLLBACK_PREPARED);
}

/* DISCARD ALL or UNLISTEN * */
static bool
is_end_of_listening(const Node *statement)
{
	if (IsA(statement, UnlistenStmt))
		return ((const UnlistenStmt *) statement)->conditionname == NULL;
	return IsA(statement, DiscardStmt) &&
		((const DiscardStmt *) statement)->target == DISCARD_ALL;
}

static void
worker_process_utility(PlannedStmt *pstmt, const char *query,
					   bool read_only_tree, ProcessUtilityContext context,
					   ParamListInfo params, QueryEnvironment *environment,
					   DestReceiver *dest, QueryCompletion *completion)
{
	Node	   *statement = pstmt->utilityStmt;

	if (!IsA(statement, DropdbStmt) && !IsA(statement, RenameStmt) &&
		!IsA(statement, AlterDatabaseStmt) && !IsA(statement, CreatedbStmt))
	{
		/* A CALL that rolled back may have freed the statement. */
		bool		ends_prepared = is_end_of_prepared(statement);
		bool		ends_listening = is_end_of_listening(statement);

		run_statement(pstmt, query, read_only_tree, context, params,
					  environment, dest, completion);
		tell_of_end(ends_prepared, ends_listening);
		return;
	}

	PG_TRY();
	{
		bar_database(database_needed(statement));
		if (IsA(statement, AlterDatabaseStmt))
			moving_database = barred_database;
		run_statement(pstmt, query, read_only_tree, context, params,
					  environment, dest, completion);
	}
	PG_CATCH();
	{
		lift_bar();
		PG_RE_THROW();
	}
	PG_END_TRY();
	statement_done(statement);
}

/*
 * DROP DATABASE, once it is known to be allowed; and ALTER DATABASE ... SET
 * TABLESPACE, when the files were copied: until the commit and longer, nobody
 * can connect to the database, and this runs in no block, so the commit is that
 * of this statement.
 */
static void
worker_object_access(ObjectAccessType access, Oid class_id, Oid object_id,
					 int sub_id, void *arg)
{
	if (previous_object_access)
		previous_object_access(access, class_id, object_id, sub_id, arg);
	if (access == OAT_DROP && class_id == DatabaseRelationId)
		bar_database(object_id);
	if (access == OAT_POST_ALTER && class_id == DatabaseRelationId &&
		object_id == moving_database)
		NaradLogDatabaseMoves(object_id);
}

/*
 * NaradUtilityRegister
 *
 * Puts the hooks in place; once, in the postmaster.
 */
void
NaradUtilityRegister(void)
{
	previous_utility = ProcessUtility_hook;
	ProcessUtility_hook = worker_process_utility;
	previous_object_access = object_access_hook;
	object_access_hook = worker_object_access;
}
