/*-------------------------------------------------------------------------
 *
 * log_scan.h
 *	  Scans of a topic by the executor: callbacks of the access method.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LOG_SCAN_H
#define LOG_SCAN_H

#include "access/relscan.h"
#include "access/skey.h"
#include "access/tableam.h"
#include "base/base_compat.h"
#include "executor/tuptable.h"
#include "nodes/execnodes.h"

#if NARAD_COMPAT_ANALYZE_STREAM
#include "storage/read_stream.h"
#endif

/* Callbacks are for the table of log_tableam.c, not for other libraries. */
#pragma GCC visibility push(hidden)

/* Scans in log order, or by blocks for parallel ones. */
extern TableScanDesc naradam_scan_begin(Relation rel, Snapshot snapshot,
										int nkeys, ScanKey key,
										ParallelTableScanDesc parallel,
										uint32 flags);
extern void naradam_scan_end(TableScanDesc scan);
extern void naradam_scan_rescan(TableScanDesc scan, ScanKey key,
								bool set_params, bool allow_strat,
								bool allow_sync, bool allow_pagemode);
extern bool naradam_scan_getnextslot(TableScanDesc scan,
									 ScanDirection direction,
									 TupleTableSlot *slot);

extern Size naradam_parallelscan_estimate(Relation rel);
extern Size naradam_parallelscan_initialize(Relation rel,
											ParallelTableScanDesc parallel);

/* By blocks. */
extern bool naradam_scan_sample_next_block(TableScanDesc scan,
										   SampleScanState *state);
extern bool naradam_scan_sample_next_tuple(TableScanDesc scan,
										   SampleScanState *state,
										   TupleTableSlot *slot);
#if NARAD_COMPAT_ANALYZE_STREAM
extern bool naradam_scan_analyze_next_block(TableScanDesc scan,
											ReadStream * stream);
#else
extern bool naradam_scan_analyze_next_block(TableScanDesc scan,
											BlockNumber block,
											BufferAccessStrategy strategy);
#endif
extern bool naradam_scan_analyze_next_tuple(TableScanDesc scan,
											TransactionId oldest_xmin,
											double *liverows, double *deadrows,
											TupleTableSlot *slot);

/* By position in the file. */
extern IndexFetchTableData *naradam_index_fetch_begin(Relation rel);
extern void naradam_index_fetch_reset(IndexFetchTableData *fetch);
extern void naradam_index_fetch_end(IndexFetchTableData *fetch);
extern bool naradam_index_fetch_tuple(IndexFetchTableData *fetch,
									  ItemPointer tid, Snapshot snapshot,
									  TupleTableSlot *slot, bool *call_again,
									  bool *all_dead);
extern bool naradam_tuple_fetch_row_version(Relation rel, ItemPointer tid,
											Snapshot snapshot,
											TupleTableSlot *slot);
extern bool naradam_tuple_tid_valid(TableScanDesc scan, ItemPointer tid);
extern void naradam_tuple_get_latest_tid(TableScanDesc scan, ItemPointer tid);
extern bool naradam_tuple_satisfies_snapshot(Relation rel,
											 TupleTableSlot *slot,
											 Snapshot snapshot);

#pragma GCC visibility pop

#endif							/* LOG_SCAN_H */
