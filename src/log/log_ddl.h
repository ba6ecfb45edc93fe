/*-------------------------------------------------------------------------
 *
 * log_ddl.h
 *	  What DDL does to a topic's file, and what it may not do: callbacks of
 *	  the access method.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LOG_DDL_H
#define LOG_DDL_H

#include "access/multixact.h"
#include "access/tableam.h"
#include "base/base_compat.h"
#include "catalog/pg_attribute.h"
#include "nodes/execnodes.h"

/* Callbacks are for the table of log_tableam.c, not for other libraries. */
#pragma GCC visibility push(hidden)

extern void naradam_set_new_file(Relation rel,
								 const RelFileLocator *newlocator,
								 char persistence, TransactionId *freeze_xid,
								 MultiXactId *minmulti);
extern void naradam_nontransactional_truncate(Relation rel);
extern void naradam_copy_data(Relation rel, const RelFileLocator *newlocator);
extern void naradam_copy_for_cluster(Relation old_table, Relation new_table,
									 Relation old_index, bool use_sort,
									 TransactionId oldest_xmin,
									 TransactionId *xid_cutoff,
									 MultiXactId *multi_cutoff,
									 double *num_tuples,
									 double *tups_vacuumed,
									 double *tups_recently_dead);
extern double naradam_index_build_range_scan(Relation rel, Relation index,
											 IndexInfo *index_info,
											 bool allow_sync, bool anyvisible,
											 bool progress,
											 BlockNumber start_block,
											 BlockNumber nblocks,
											 IndexBuildCallback callback,
											 void *callback_state,
											 TableScanDesc scan);
extern void naradam_index_validate_scan(Relation rel, Relation index,
										IndexInfo *index_info,
										Snapshot snapshot,
										struct ValidateIndexState *state);
extern TransactionId naradam_index_delete_tuples(Relation rel,
												 TM_IndexDeleteOp *delstate);
extern bool naradam_needs_toast_table(Relation rel);
extern void naradam_estimate_size(Relation rel, int32 *attr_widths,
								  BlockNumber *pages, double *tuples,
								  double *allvisfrac);

#pragma GCC visibility pop

/* Errors unless a table has the columns that storage itself relies on. */
extern void NaradCheckPrefixColumns(Relation rel);

/* What log_gate.c refuses. */
extern void NaradCheckStandardColumn(const char *table, Form_pg_attribute att);
extern void NaradRefuseIndex(const char *table);

#endif							/* LOG_DDL_H */
