/*-------------------------------------------------------------------------
 *
 * log_gate.c
 *	  Which DDL a topic does not take.
 *
 * Owns:       the refusals that no callback of the access method can make:
 *			   indexes, inheritance, publications, what makes of a standard
 *			   column something else, expressions over columns that are null
 *			   until the append, the way out of a topic that has groups.
 * Invariants: a topic's first six columns are the standard ones, for good.
 *			   Nothing that is computed or checked before the append refers to
 *			   the three columns that the append assigns.
 * Locks:      none of its own; the command's lock on the table.
 * Runs in:    any backend, on a primary.  Not under binary upgrade, when the
 *			   old catalogs are rebuilt as they were.
 * WAL:        none.
 * On error:   the command fails with its transaction.  CREATE INDEX
 *			   CONCURRENTLY is met in its first transaction, and leaves nothing.
 *
 * The gate stands in the object access hook: there the catalog rows have
 * been written by whatever command it was (ALTER TABLE, DROP TYPE ...
 * CASCADE, an extension's script, a function), and are looked at by OID, with
 * SnapshotSelf, since they are of the command in progress.  It asks what the
 * topic is now, not what was typed.  Other tables pay a catalog look-up a
 * command; what is no DDL pays a switch.
 *
 * Only two things are met in the statement, since later is too late: VACUUM
 * FULL of a whole database leaves topics out, and a foreign key that references
 * a topic, which core refuses for want of a unique index, gets our reasons.
 * Rewrites are refused in log_ddl.c, where the new file would be made.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_am.h"
#include "catalog/pg_attrdef.h"
#include "catalog/pg_class.h"
#include "catalog/pg_constraint.h"
#include "catalog/pg_index.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_policy.h"
#include "catalog/pg_publication.h"
#include "catalog/pg_publication_rel.h"
#include "catalog/pg_rewrite.h"
#include "commands/defrem.h"
#include "nodes/makefuncs.h"
#include "nodes/parsenodes.h"
#include "optimizer/optimizer.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "log/log_ddl.h"
#include "log/log_gate.h"
#include "log/log_meta.h"
#include "log/log_tableam.h"

static ProcessUtility_hook_type previous_utility;
static object_access_hook_type previous_object_access;

/* ----------------------------------------------------------------
 *		Catalogs
 * ----------------------------------------------------------------
 */

/* Whatever the access method is called. */
static bool
is_narad_am(Oid am)
{
	HeapTuple	tuple;
	Oid			handler;
	char		type;

	if (!OidIsValid(am) || am == HEAP_TABLE_AM_OID)
		return false;
	tuple = SearchSysCache1(AMOID, ObjectIdGetDatum(am));
	if (!HeapTupleIsValid(tuple))
		return false;
	handler = ((Form_pg_am) GETSTRUCT(tuple))->amhandler;
	type = ((Form_pg_am) GETSTRUCT(tuple))->amtype;
	ReleaseSysCache(tuple);
	return type == AMTYPE_TABLE && GetTableAmRoutine(handler) == NaradTableAm();
}

static bool
is_topic(Oid relid)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	Oid			am = InvalidOid;

	if (!HeapTupleIsValid(tuple))
		return false;
	if (((Form_pg_class) GETSTRUCT(tuple))->relkind == RELKIND_RELATION)
		am = ((Form_pg_class) GETSTRUCT(tuple))->relam;
	ReleaseSysCache(tuple);
	return is_narad_am(am);
}

/* A copy of the row as it is in this very command, or NULL. */
static HeapTuple
fetch_by_keys(Relation catalog, Oid index, int nkeys, ScanKey keys)
{
	SysScanDesc scan = systable_beginscan(catalog, index, true, SnapshotSelf,
										  nkeys, keys);
	HeapTuple	row = systable_getnext(scan);

	if (HeapTupleIsValid(row))
		row = heap_copytuple(row);
	systable_endscan(scan);
	return row;
}

static HeapTuple
fetch_row(Relation catalog, Oid index, AttrNumber attno, Oid oid)
{
	ScanKeyData key;

	ScanKeyInit(&key, attno, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(oid));
	return fetch_by_keys(catalog, index, 1, &key);
}

/* The same of a row that is of a column. */
static HeapTuple
fetch_column_row(Relation catalog, Oid index, AttrNumber relid_attno,
				 Oid relid, AttrNumber attnum_attno, int attnum)
{
	ScanKeyData keys[2];

	ScanKeyInit(&keys[0], relid_attno, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(relid));
	ScanKeyInit(&keys[1], attnum_attno, BTEqualStrategyNumber, F_INT2EQ,
				Int16GetDatum(attnum));
	return fetch_by_keys(catalog, index, 2, keys);
}

/*
 * Does an expression over a topic, as catalogs store it, use one of the first
 * three columns, or the whole row?
 */
static bool
uses_assigned_column(Relation catalog, HeapTuple row, AttrNumber attno)
{
	bool		isnull;
	Datum		stored = heap_getattr(row, attno, RelationGetDescr(catalog),
									  &isnull);
	Node	   *expression;
	ListCell   *cell;

	if (isnull)
		return false;
	expression = stringToNode(TextDatumGetCString(stored));
	foreach(cell, pull_vars_of_level(expression, 0))
	{
		Var		   *var = lfirst(cell);

		if (IsA(var, Var) && var->varattno >= 0 &&
			var->varattno <= NARAD_ATTR_TIME)
			return true;
	}
	return false;
}

/* ----------------------------------------------------------------
 *		Columns
 * ----------------------------------------------------------------
 */

/* A standard column of a topic was changed: is it still one? */
static void
check_altered_column(Oid relid, int attnum)
{
	Relation	catalog;
	HeapTuple	row;

	if (attnum <= 0 || attnum > NARAD_STANDARD_ATTRS || !is_topic(relid))
		return;
	catalog = table_open(AttributeRelationId, AccessShareLock);
	row = fetch_column_row(catalog, AttributeRelidNumIndexId,
						   Anum_pg_attribute_attrelid, relid,
						   Anum_pg_attribute_attnum, attnum);
	if (HeapTupleIsValid(row))
		NaradCheckStandardColumn(get_rel_name(relid),
								 (Form_pg_attribute) GETSTRUCT(row));
	table_close(catalog, AccessShareLock);
}

static void
check_dropped_column(Oid relid, int attnum)
{
	if (attnum <= 0 || attnum > NARAD_STANDARD_ATTRS || !is_topic(relid))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("cannot drop column \"%s\" of topic \"%s\"",
					get_attname(relid, attnum, false), get_rel_name(relid)),
			 errhint("Columns that were added to a topic can be dropped.")));
}

/* A default, or what a generated column is computed from. */
static void
check_default(Oid relid, int attnum)
{
	Relation	catalog;
	HeapTuple	row;

	if (!is_topic(relid))
		return;
	if (attnum <= NARAD_ATTR_TIME)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("column \"%s\" of topic \"%s\" cannot have a default",
						get_attname(relid, attnum, false),
						get_rel_name(relid)),
				 errdetail("Its value is assigned when a record is appended."),
				 errhint("Other columns can have defaults.")));
	catalog = table_open(AttrDefaultRelationId, AccessShareLock);
	row = fetch_column_row(catalog, AttrDefaultIndexId,
						   Anum_pg_attrdef_adrelid, relid,
						   Anum_pg_attrdef_adnum, attnum);
	if (HeapTupleIsValid(row) &&
		uses_assigned_column(catalog, row, Anum_pg_attrdef_adbin))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("generated column \"%s\" of topic \"%s\" cannot use the columns \"partition\", \"msg_offset\" and \"produced_at\"",
						get_attname(relid, attnum, false),
						get_rel_name(relid)),
				 errdetail("They are assigned when a record is appended, after columns are generated."),
				 errhint("Use a view.")));
	table_close(catalog, AccessShareLock);
}

/* ----------------------------------------------------------------
 *		Constraints, policies, rules
 * ----------------------------------------------------------------
 */

static void
check_constraint(Oid oid)
{
	Relation	catalog = table_open(ConstraintRelationId, AccessShareLock);
	HeapTuple	row = fetch_row(catalog, ConstraintOidIndexId,
								Anum_pg_constraint_oid, oid);
	Form_pg_constraint form;

	if (HeapTupleIsValid(row))
	{
		form = (Form_pg_constraint) GETSTRUCT(row);
		if (form->contype == CONSTRAINT_CHECK && is_topic(form->conrelid) &&
			uses_assigned_column(catalog, row, Anum_pg_constraint_conbin))
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("check constraint \"%s\" of topic \"%s\" cannot use the columns \"partition\", \"msg_offset\" and \"produced_at\"",
							NameStr(form->conname),
							get_rel_name(form->conrelid)),
					 errdetail("They are assigned when a record is appended, after it is checked."),
					 errhint("Check other columns, or use an AFTER ROW trigger.")));
	}
	table_close(catalog, AccessShareLock);
}

/* What a policy lets be read may depend on any column. */
static void
check_policy(Oid oid)
{
	Relation	catalog = table_open(PolicyRelationId, AccessShareLock);
	HeapTuple	row = fetch_row(catalog, PolicyOidIndexId, Anum_pg_policy_oid,
								oid);
	Form_pg_policy form;
	bool		checks;			/* rows by its USING, for want of WITH CHECK */

	if (HeapTupleIsValid(row) &&
		is_topic(((Form_pg_policy) GETSTRUCT(row))->polrelid))
	{
		form = (Form_pg_policy) GETSTRUCT(row);
		checks = form->polcmd == '*' &&
			heap_attisnull(row, Anum_pg_policy_polwithcheck,
						   RelationGetDescr(catalog));
		if (uses_assigned_column(catalog, row, Anum_pg_policy_polwithcheck) ||
			(checks &&
			 uses_assigned_column(catalog, row, Anum_pg_policy_polqual)))
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("check of policy \"%s\" on topic \"%s\" cannot use the columns \"partition\", \"msg_offset\" and \"produced_at\"",
							NameStr(form->polname),
							get_rel_name(form->polrelid)),
					 errdetail("They are assigned when a record is appended, after it is checked."),
					 errhint("Policies FOR SELECT can use them.")));
	}
	table_close(catalog, AccessShareLock);
}

/* ON SELECT would turn the table into a view, up to PostgreSQL 15. */
static void
check_rule(Oid oid)
{
	Relation	catalog = table_open(RewriteRelationId, AccessShareLock);
	HeapTuple	row = fetch_row(catalog, RewriteOidIndexId,
								Anum_pg_rewrite_oid, oid);
	Form_pg_rewrite form;

	if (HeapTupleIsValid(row))
	{
		form = (Form_pg_rewrite) GETSTRUCT(row);
		if (form->ev_type == '0' + CMD_SELECT && is_topic(form->ev_class))
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("topic \"%s\" cannot have a rule ON SELECT",
							get_rel_name(form->ev_class)),
					 errhint("Create a view.")));
	}
	table_close(catalog, AccessShareLock);
}

/* ----------------------------------------------------------------
 *		Relations to others
 * ----------------------------------------------------------------
 */

static void
check_new_index(Oid oid)
{
	Relation	catalog = table_open(IndexRelationId, AccessShareLock);
	HeapTuple	row = fetch_row(catalog, IndexRelidIndexId,
								Anum_pg_index_indexrelid, oid);

	if (HeapTupleIsValid(row) &&
		is_topic(((Form_pg_index) GETSTRUCT(row))->indrelid))
		NaradRefuseIndex(get_rel_name(((Form_pg_index) GETSTRUCT(row))->indrelid));
	table_close(catalog, AccessShareLock);
}

/* A topic becomes another kind of table, by SET ACCESS METHOD. */
static void
check_leaving(Oid relid)
{
	Relation	rel;
	int			ngroups;

	if (!is_topic(relid))
		return;
	rel = table_open(relid, AccessExclusiveLock);
	(void) NaradGroupList(rel, &ngroups);
	if (ngroups > 0)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot change the access method of topic \"%s\", which has consumer groups",
						RelationGetRelationName(rel)),
				 errdetail_plural("%d group would be lost.",
								  "%d groups would be lost.",
								  ngroups, ngroups),
				 errhint("Drop them with narad.drop_group, or copy the records to another table.")));
	table_close(rel, NoLock);
}

/* Any new relation: only indexes, and what is made for a rewrite, matter. */
static void
check_new_relation(Oid oid)
{
	Relation	catalog = table_open(RelationRelationId, AccessShareLock);
	HeapTuple	row = fetch_row(catalog, ClassOidIndexId, Anum_pg_class_oid,
								oid);

	if (HeapTupleIsValid(row))
	{
		Form_pg_class form = (Form_pg_class) GETSTRUCT(row);

		if (form->relkind == RELKIND_INDEX)
			check_new_index(oid);
		else if (OidIsValid(form->relrewrite))
			check_leaving(form->relrewrite);
		heap_freetuple(row);
	}
	table_close(catalog, AccessShareLock);
}

static void
check_inheritance(Oid child, Oid parent)
{
	if (is_topic(child))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("topic \"%s\" cannot be a partition or inherit from a table",
						get_rel_name(child)),
				 errhint("Use a view over both, or USING heap for a partition.")));
	if (is_topic(parent))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("topic \"%s\" cannot be inherited from",
						get_rel_name(parent)),
				 errhint("Use CREATE TABLE ... (LIKE ...) for a table with the same columns.")));
}

static void
check_published(Oid relid)
{
	if (is_topic(relid))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot add topic \"%s\" to a publication",
						get_rel_name(relid)),
				 errdetail("Topics are not decoded for logical replication."),
				 errhint("Read it with narad.fetch, or use physical replication.")));
}

/* ALTER PUBLICATION tells of one table; CREATE PUBLICATION of itself only. */
static void
check_publication(Oid oid, bool is_whole)
{
	Relation	catalog = table_open(PublicationRelRelationId,
									 AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	row;

	ScanKeyInit(&key, is_whole ? Anum_pg_publication_rel_prpubid :
				Anum_pg_publication_rel_oid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(oid));
	scan = systable_beginscan(catalog,
							  is_whole ? PublicationRelPrpubidIndexId :
							  PublicationRelObjectIndexId,
							  true, SnapshotSelf, 1, &key);
	while (HeapTupleIsValid(row = systable_getnext(scan)))
		check_published(((Form_pg_publication_rel) GETSTRUCT(row))->prrelid);
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
}

/* ----------------------------------------------------------------
 *		Object access hook
 * ----------------------------------------------------------------
 */

static void
object_created(Oid class_id, Oid oid, int sub_id)
{
	switch (class_id)
	{
		case RelationRelationId:
			if (sub_id == 0)
				check_new_relation(oid);
			break;
		case AttrDefaultRelationId:
			check_default(oid, sub_id);
			break;
		case ConstraintRelationId:
			check_constraint(oid);
			break;
		case PolicyRelationId:
			check_policy(oid);
			break;
		case RewriteRelationId:
			check_rule(oid);
			break;
		case PublicationRelationId:
			check_publication(oid, true);
			break;
		case PublicationRelRelationId:
			check_publication(oid, false);
			break;
	}
}

static void
object_altered(Oid class_id, Oid oid, int sub_id,
			   const ObjectAccessPostAlter *alter)
{
	if (class_id == RelationRelationId)
		check_altered_column(oid, sub_id);
	else if (class_id == PolicyRelationId)
		check_policy(oid);
	else if (class_id == InheritsRelationId)
		check_inheritance(oid, alter->auxiliary_id);
}

static void
gate_object_access(ObjectAccessType access, Oid class_id, Oid object_id,
				   int sub_id, void *arg)
{
	if (previous_object_access)
		previous_object_access(access, class_id, object_id, sub_id, arg);
	if (access == OAT_POST_CREATE)
		object_created(class_id, object_id, sub_id);
	else if (access == OAT_POST_ALTER)
		object_altered(class_id, object_id, sub_id, arg);
	else if (access == OAT_DROP && class_id == RelationRelationId)
		check_dropped_column(object_id, sub_id);
}

/* ----------------------------------------------------------------
 *		Statements
 * ----------------------------------------------------------------
 */

static bool
is_vacuum_full_of_all(const VacuumStmt *vacuum)
{
	ListCell   *cell;

	if (!vacuum->is_vacuumcmd || vacuum->rels != NIL)
		return false;
	foreach(cell, vacuum->options)
	{
		DefElem    *option = lfirst(cell);

		if (strcmp(option->defname, "full") == 0)
			return defGetBoolean(option);
	}
	return false;
}

/*
 * All tables that VACUUM would take if none is named, but for topics.  Lives
 * in the portal's memory: VACUUM commits as it goes.
 */
static List *
list_all_but_topics(void)
{
	Relation	catalog = table_open(RelationRelationId, AccessShareLock);
	SysScanDesc scan = systable_beginscan(catalog, InvalidOid, false, NULL, 0,
										  NULL);
	List	   *rels = NIL;
	HeapTuple	row;

	while (HeapTupleIsValid(row = systable_getnext(scan)))
	{
		Form_pg_class form = (Form_pg_class) GETSTRUCT(row);
		MemoryContext old;

		if (form->relkind != RELKIND_RELATION &&
			form->relkind != RELKIND_MATVIEW &&
			form->relkind != RELKIND_PARTITIONED_TABLE)
			continue;
		if (form->relkind == RELKIND_RELATION && is_narad_am(form->relam))
		{
			ereport(WARNING,
					(errmsg("skipping \"%s\" --- VACUUM FULL cannot rewrite a topic",
							NameStr(form->relname))));
			continue;
		}
		old = MemoryContextSwitchTo(PortalContext);
		rels = lappend(rels, makeVacuumRelation(NULL, form->oid, NIL));
		MemoryContextSwitchTo(old);
	}
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
	return rels;
}

static PlannedStmt *
without_topics(PlannedStmt *pstmt)
{
	MemoryContext old = MemoryContextSwitchTo(PortalContext);
	PlannedStmt *changed = copyObject(pstmt);

	MemoryContextSwitchTo(old);
	((VacuumStmt *) changed->utilityStmt)->rels = list_all_but_topics();
	return changed;
}

static void
check_foreign_key(const Constraint *constraint)
{
	Oid			relid;

	if (!IsA(constraint, Constraint) ||
		constraint->contype != CONSTR_FOREIGN || constraint->pktable == NULL)
		return;
	relid = RangeVarGetRelid(constraint->pktable, NoLock, true);
	if (OidIsValid(relid) && is_topic(relid))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot reference topic \"%s\" by a foreign key",
						get_rel_name(relid)),
				 errdetail("Topics have neither indexes nor constraints that need one."),
				 errhint("Copy what is to be referenced into a table.")));
}

/* Columns and constraints of a table to be made, or one to be added. */
static void
check_element(Node *element)
{
	ListCell   *cell;

	if (element == NULL)
		return;
	if (IsA(element, Constraint))
		check_foreign_key((Constraint *) element);
	else if (IsA(element, ColumnDef))
	{
		foreach(cell, ((ColumnDef *) element)->constraints)
			check_foreign_key(lfirst(cell));
	}
}

static void
check_statement(Node *statement)
{
	ListCell   *cell;

	if (IsA(statement, CreateStmt))
	{
		foreach(cell, ((CreateStmt *) statement)->tableElts)
			check_element(lfirst(cell));
	}
	else if (IsA(statement, AlterTableStmt))
	{
		foreach(cell, ((AlterTableStmt *) statement)->cmds)
			check_element(((AlterTableCmd *) lfirst(cell))->def);
	}
}

static void
gate_process_utility(PlannedStmt *pstmt, const char *query,
					 bool read_only_tree, ProcessUtilityContext context,
					 ParamListInfo params, QueryEnvironment *environment,
					 DestReceiver *dest, QueryCompletion *completion)
{
	check_statement(pstmt->utilityStmt);
	if (IsA(pstmt->utilityStmt, VacuumStmt) &&
		is_vacuum_full_of_all((VacuumStmt *) pstmt->utilityStmt))
		pstmt = without_topics(pstmt);

	if (previous_utility)
		previous_utility(pstmt, query, read_only_tree, context, params,
						 environment, dest, completion);
	else
		standard_ProcessUtility(pstmt, query, read_only_tree, context, params,
								environment, dest, completion);
}

/* ----------------------------------------------------------------
 *		Registration
 * ----------------------------------------------------------------
 */

/*
 * NaradGateRegister
 *
 * Puts the hooks in place; once, in the postmaster, but not under binary
 * upgrade.
 */
void
NaradGateRegister(void)
{
	previous_object_access = object_access_hook;
	object_access_hook = gate_object_access;
	previous_utility = ProcessUtility_hook;
	ProcessUtility_hook = gate_process_utility;
}
