/*-------------------------------------------------------------------------
 *
 * log_vacuum.c
 *	  VACUUM of a topic.
 *
 * Owns:       relpages and reltuples of topics.
 * Locks:      VACUUM's ShareUpdateExclusiveLock, held by the caller.
 * Runs in:    backends and autovacuum workers, on a primary.
 * On error:   nothing to undo.
 *
 * There are no dead rows to remove.  Nothing is frozen, so relfrozenxid and
 * relminmxid are left as they are: records keep the transaction ids that they
 * were written with, and the status of those must stay known.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/multixact.h"
#include "access/transam.h"
#include "commands/progress.h"
#include "commands/vacuum.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "base/base_compat.h"
#include "log/log_producer.h"
#include "log/log_vacuum.h"

/*
 * NaradTupleEstimate
 *
 * How many records the partitions hold, by their offsets: exact but for
 * records of aborted transactions and for jumps of explicit offsets, which
 * are bounded by what the file's pages can hold.
 */
double
NaradTupleEstimate(NaradLogTopic *topic, BlockNumber nblocks)
{
	double		limit = (double) nblocks * NARAD_MAX_ITEMS;
	double		tuples = 0;

	int			npartitions = pg_atomic_read_u32(&topic->npartitions);

	for (int i = 0; i < npartitions; i++)
	{
		NaradLogPartition *part = NaradLogPartitionFind(topic, i);
		uint64		start;
		uint64		end;

		if (part == NULL)
			continue;
		start = pg_atomic_read_u64(&part->start_offset);
		end = pg_atomic_read_u64(&part->end_offset);
		if (end > start)
			tuples += (double) (end - start);
	}
	return Min(tuples, limit);
}

void
naradam_relation_vacuum(Relation rel, VacuumParams *params,
						BufferAccessStrategy strategy)
{
	TimestampTz start = GetCurrentTimestamp();
	BlockNumber nblocks = RelationGetNumberOfBlocks(rel);
	NaradRelInfo *info;
	double		tuples = 0;

	pgstat_progress_start_command(PROGRESS_COMMAND_VACUUM,
								  RelationGetRelid(rel));
	pgstat_progress_update_param(PROGRESS_VACUUM_TOTAL_HEAP_BLKS, nblocks);
	pgstat_progress_update_param(PROGRESS_VACUUM_PHASE,
								 PROGRESS_VACUUM_PHASE_FINAL_CLEANUP);

	/* No producer's entry may outlive what is known of its transaction. */
	(void) NaradProducersSettle(rel, PG_UINT64_MAX);

	info = NaradRelInfoAttach(rel);
	if (info != NULL)
		tuples = NaradTupleEstimate(info->shared, nblocks);
	NaradCompatUpdateRelstats(rel, nblocks, tuples);
	NaradCompatReportVacuum(rel, (PgStat_Counter) tuples, start);
	pgstat_progress_end_command();

	if (params->options & VACOPT_VERBOSE)
		ereport(INFO,
				(errmsg("topic \"%s\": about %.0f records in %u pages",
						RelationGetRelationName(rel), tuples, nblocks)));
}
