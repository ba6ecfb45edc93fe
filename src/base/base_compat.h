/*-------------------------------------------------------------------------
 *
 * base_compat.h
 *	  Differences between the major versions of PostgreSQL.
 *
 * The only file that tests PG_VERSION_NUM.  Written for 15 to 18.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef BASE_COMPAT_H
#define BASE_COMPAT_H

#include "storage/bufpage.h"
#include "storage/proc.h"
#include "storage/smgr.h"
#include "utils/rel.h"
#include "utils/wait_event.h"

#if PG_VERSION_NUM < 150000
#error "narad needs PostgreSQL 15 or later"
#endif

/* Physical identity of a relation. */
#if PG_VERSION_NUM < 160000
typedef RelFileNode RelFileLocator;
#define RelFileLocatorEquals(a, b) RelFileNodeEquals(a, b)
#define NaradRelationLocator(rel) ((rel)->rd_node)
#define NaradLocatorTablespace(locator) ((locator).spcNode)
#define NaradLocatorDatabase(locator) ((locator).dbNode)
#define NaradLocatorNumber(locator) ((locator).relNode)
#else
#define NaradRelationLocator(rel) ((rel)->rd_locator)
#define NaradLocatorTablespace(locator) ((locator).spcOid)
#define NaradLocatorDatabase(locator) ((locator).dbOid)
#define NaradLocatorNumber(locator) ((locator).relNumber)
#endif

/* Blocks handed to the storage manager directly. */
#if PG_VERSION_NUM < 160000
typedef PGAlignedBlock NaradIOBlock;
#else
typedef PGIOAlignedBlock NaradIOBlock;
#endif

/* Files become longer by one page a call of the storage manager up to 15. */
#if PG_VERSION_NUM < 160000
#define NARAD_COMPAT_EXTEND_BY_PAGE 1
#else
#define NARAD_COMPAT_EXTEND_BY_PAGE 0
#endif

/* The path of a main fork, to be freed. */
#if PG_VERSION_NUM < 160000
#define NaradCompatFilePath(smgr) relpath((smgr)->smgr_rnode, MAIN_FORKNUM)
#elif PG_VERSION_NUM < 180000
#define NaradCompatFilePath(smgr) relpath((smgr)->smgr_rlocator, MAIN_FORKNUM)
#else
#define NaradCompatFilePath(smgr) \
	pstrdup(relpath((smgr)->smgr_rlocator, MAIN_FORKNUM).str)
#endif

/* Numbers of processes. */
#if PG_VERSION_NUM < 170000
#define NaradMyProcNumber (MyProc->pgprocno)
#define NaradSmgrOpen(locator) smgropen(locator, InvalidBackendId)
#else
#define NaradMyProcNumber MyProcNumber
#define NaradSmgrOpen(locator) smgropen(locator, INVALID_PROC_NUMBER)
#endif

/* Checks header and checksum of a page read past the buffer manager. */
#if PG_VERSION_NUM < 180000
#define NaradPageIsVerified(page, block) PageIsVerifiedExtended(page, block, 0)
#else
#define NaradPageIsVerified(page, block) PageIsVerified(page, block, 0, NULL)
#endif

/* Goes before the declaration of a function that does not return. */
#if PG_VERSION_NUM < 180000
#define NARAD_NORETURN pg_attribute_noreturn()
#else
#define NARAD_NORETURN pg_noreturn
#endif

/* Ends a buffer's read that raised an error which is not passed on. */
#if PG_VERSION_NUM < 160000
#define NaradCompatAbortBufferIO() AbortBufferIO()
#else
#define NaradCompatAbortBufferIO() ((void) 0)	/* the resource owner does */
#endif

/* Callbacks of a table access method. */
#if PG_VERSION_NUM < 160000
#define narad_compat_set_new_file relation_set_new_filenode
#define NaradCompatUpdateIndexes bool
#else
#define narad_compat_set_new_file relation_set_new_filelocator
#define NaradCompatUpdateIndexes TU_UpdateIndexes
#endif

/* ANALYZE's sampled blocks come by number up to 16, then from a stream. */
#if PG_VERSION_NUM < 170000
#define NARAD_COMPAT_ANALYZE_STREAM 0
#else
#define NARAD_COMPAT_ANALYZE_STREAM 1
#endif

/* Up to 16 an init fork must be synced by whoever makes it. */
#if PG_VERSION_NUM < 170000
#define NARAD_COMPAT_SYNC_INIT_FORK 1
#else
#define NARAD_COMPAT_SYNC_INIT_FORK 0
#endif

/* Whether a role owns a relation. */
#if PG_VERSION_NUM < 160000
#define NaradCompatIsOwner(relid, role) pg_class_ownercheck(relid, role)
#else
#define NaradCompatIsOwner(relid, role) \
	object_ownercheck(RelationRelationId, relid, role)
#endif

/* TRUNCATE of relations that are open and locked, and checked. */
#if PG_VERSION_NUM < 160000
#define NaradCompatTruncate(rels, relids, logged) \
	ExecuteTruncateGuts(rels, relids, logged, DROP_RESTRICT, false)
#else
#define NaradCompatTruncate(rels, relids, logged) \
	ExecuteTruncateGuts(rels, relids, logged, DROP_RESTRICT, false, false)
#endif

/* Wait events by name, from 17 on. */
#if PG_VERSION_NUM < 170000
#define NaradCompatWaitEvent(name) ((void) (name), PG_WAIT_EXTENSION)
#else
#define NaradCompatWaitEvent(name) WaitEventExtensionNew(name)
#endif

/* VACUUM's results.  A topic has no indexes, and no multixact anywhere. */
#if PG_VERSION_NUM < 180000
#define NaradCompatUpdateRelstats(rel, pages, tuples, frozenxid, minmulti, \
								  updated) \
	vac_update_relstats(rel, pages, tuples, 0, false, frozenxid, minmulti, \
						updated, NULL, false)
#define NaradCompatReportVacuum(rel, live, start) \
	((void) (start), \
	 pgstat_report_vacuum(RelationGetRelid(rel), false, live, 0))
#define NaradCompatVacuumDelay() vacuum_delay_point()
#else
#define NaradCompatUpdateRelstats(rel, pages, tuples, frozenxid, minmulti, \
								  updated) \
	vac_update_relstats(rel, pages, tuples, 0, 0, false, frozenxid, \
						minmulti, updated, NULL, false)
#define NaradCompatReportVacuum(rel, live, start) \
	pgstat_report_vacuum(RelationGetRelid(rel), false, live, 0, start)
#define NaradCompatVacuumDelay() vacuum_delay_point(false)
#endif

/* VACUUM's limits: separate values up to 15, then a struct. */
#if PG_VERSION_NUM < 160000
#define NARAD_COMPAT_VACUUM_CUTOFFS 0
#else
#define NARAD_COMPAT_VACUUM_CUTOFFS 1
#endif

/* Is this an autovacuum worker? */
#if PG_VERSION_NUM < 170000
#define NaradCompatIsAutovacuum() IsAutoVacuumWorkerProcess()
#else
#define NaradCompatIsAutovacuum() AmAutoVacuumWorkerProcess()
#endif

/* The oldest transaction whose status is kept, and the next one. */
#if PG_VERSION_NUM < 170000
#define NaradCompatOldestClogXid() (ShmemVariableCache->oldestClogXid)
#define NaradCompatNextXid() (&ShmemVariableCache->nextXid)
#else
#define NaradCompatOldestClogXid() (TransamVariables->oldestClogXid)
#define NaradCompatNextXid() (&TransamVariables->nextXid)
#endif

/* During replay: waits for, or cancels, snapshots that do not see an xid. */
#if PG_VERSION_NUM < 160000
#define NaradCompatResolveConflict(horizon, locator) \
	ResolveRecoveryConflictWithSnapshot(horizon, locator)
#else
#define NaradCompatResolveConflict(horizon, locator) \
	ResolveRecoveryConflictWithSnapshot(horizon, false, locator)
#endif

#endif							/* BASE_COMPAT_H */
