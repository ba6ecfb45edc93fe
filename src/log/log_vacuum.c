/*-------------------------------------------------------------------------
 *
 * log_vacuum.c
 *	  VACUUM of a topic.
 *
 * There are no dead rows to remove; there is freezing (log_freeze.c).
 *
 * Owns:       relpages, reltuples, relfrozenxid and relminmxid of topics.
 * Invariants: relfrozenxid moves only after all before it has been frozen, in
 *             the WAL, too.  It may be held back by damage, or want of memory,
 *             never by a topic that is merely in use.
 * Locks:      VACUUM's ShareUpdateExclusiveLock, held by the caller.
 * Runs in:    backends and autovacuum workers, on a primary.
 * On error:   what was frozen stays frozen.
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
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/autovacuum.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "base/base_compat.h"
#include "base/base_stop.h"
#include "log/log_freeze.h"
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

/* What VACUUM works by, and found. */
typedef struct TopicVacuum
{
	Relation	rel;
	VacuumParams *params;
	NaradFreeze freeze;
	TransactionId oldest_xmin;	/* no snapshot misses what is before it */
	MultiXactId oldest_multi;
#if NARAD_COMPAT_VACUUM_CUTOFFS
	struct VacuumCutoffs cutoffs;
#endif
	bool		failsafe;		/* no time is left for delays */
	BlockNumber nblocks;
	double		tuples;
	TransactionId frozenxid;	/* what relfrozenxid may become */
	bool		frozenxid_updated;
} TopicVacuum;

/* Settings and options as limits; also whether relfrozenxid has to move. */
static void
set_limits(TopicVacuum *vacuum)
{
	NaradFreeze *freeze = &vacuum->freeze;

#if NARAD_COMPAT_VACUUM_CUTOFFS
	freeze->aggressive = vacuum_get_cutoffs(vacuum->rel, vacuum->params,
											&vacuum->cutoffs);
	vacuum->oldest_xmin = vacuum->cutoffs.OldestXmin;
	vacuum->oldest_multi = vacuum->cutoffs.OldestMxact;
	freeze->limit = vacuum->cutoffs.FreezeLimit;
#else
	VacuumParams *params = vacuum->params;
	MultiXactId cutoff;

	freeze->aggressive =
		vacuum_set_xid_limits(vacuum->rel, params->freeze_min_age,
							  params->freeze_table_age,
							  params->multixact_freeze_min_age,
							  params->multixact_freeze_table_age,
							  &vacuum->oldest_xmin, &vacuum->oldest_multi,
							  &freeze->limit, &cutoff);
#endif
	if (vacuum->params->options & VACOPT_DISABLE_PAGE_SKIPPING)
		freeze->aggressive = true;
	freeze->next = U64FromFullTransactionId(ReadNextFullTransactionId());
	freeze->full_limit = NaradFullXid(freeze->limit);
	freeze->oldest = NaradFullXid(vacuum->oldest_xmin);
	freeze->relfrozenxid = vacuum->rel->rd_rel->relfrozenxid;
}

/*
 * When the server is about to run out of transaction ids VACUUM does not
 * pause any more.  Asked at the start and then now and then.
 */
static void
check_failsafe(void *arg)
{
	TopicVacuum *vacuum = arg;
	bool		is_due;

	if (vacuum->failsafe)
		return;
#if NARAD_COMPAT_VACUUM_CUTOFFS
	is_due = vacuum_xid_failsafe_check(&vacuum->cutoffs);
#else
	is_due = vacuum_xid_failsafe_check(vacuum->rel->rd_rel->relfrozenxid,
									   vacuum->rel->rd_rel->relminmxid);
#endif
	if (!is_due)
		return;
	vacuum->failsafe = true;
	VacuumCostActive = false;
	VacuumCostBalance = 0;
	ereport(WARNING,
			(errmsg("vacuuming topic \"%s\" without cost-based delay as a failsafe",
					RelationGetRelationName(vacuum->rel)),
			 errdetail("The topic's relfrozenxid or relminmxid is too far in the past."),
			 errhint("You might need to consider ways for VACUUM to keep up with the allocation of transaction IDs.")));
}

/* What was done, as VERBOSE and log_autovacuum_min_duration ask for it. */
static void
report_vacuum(const TopicVacuum *vacuum, int level)
{
	const NaradFreeze *freeze = &vacuum->freeze;
	StringInfoData buf;

	initStringInfo(&buf);
	appendStringInfo(&buf, _("segments: " UINT64_FORMAT " in all, " UINT64_FORMAT " frozen before, " UINT64_FORMAT " frozen now, " UINT64_FORMAT " in part\n"),
					 freeze->nsegments, freeze->nfrozen_before,
					 freeze->nfrozen, freeze->npartial);
	appendStringInfo(&buf, _("data pages: " UINT64_FORMAT " read, " UINT64_FORMAT " written\n"),
					 freeze->npages_read, freeze->npages_written);
	appendStringInfo(&buf, _("records of aborted transactions: " UINT64_FORMAT " marked dead\n"),
					 freeze->ndead);
	appendStringInfo(&buf, _("acknowledgements: " UINT64_FORMAT " frozen\n"),
					 freeze->nstates);
	if (vacuum->frozenxid_updated)
		appendStringInfo(&buf, _("new relfrozenxid: %u, which is %d XIDs ahead of previous value"),
						 vacuum->frozenxid,
						 (int32) (vacuum->frozenxid - freeze->relfrozenxid));
	else
		appendStringInfoString(&buf, _("relfrozenxid is unchanged"));
	ereport(level,
			(errmsg("topic \"%s\": about %.0f records in %u pages, " UINT64_FORMAT " of " UINT64_FORMAT " segments frozen",
					RelationGetRelationName(vacuum->rel), vacuum->tuples,
					vacuum->nblocks, freeze->nfrozen_before + freeze->nfrozen,
					freeze->nsegments),
			 errdetail_internal("%s", buf.data)));
	pfree(buf.data);
}

/* Freezes, and warns of what could not be. */
static void
freeze_topic(TopicVacuum *vacuum)
{
	NaradFreeze *freeze = &vacuum->freeze;

	NaradFreezeTopic(freeze);
	if (freeze->nunattached > 0)
		ereport(WARNING,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("open segments of topic \"%s\" are not frozen, for want of shared memory",
						RelationGetRelationName(vacuum->rel)),
				 errhint("Increase \"narad.memory_limit\".")));
	if (freeze->info.shared != NULL)
		vacuum->tuples = NaradTupleEstimate(freeze->info.shared,
											vacuum->nblocks);
	else
		vacuum->tuples = Max(vacuum->rel->rd_rel->reltuples, 0);
}

/*
 * VACUUM freezes, brings statistics up to date, and moves relfrozenxid to the
 * oldest transaction that is left anywhere in the file.
 */
void
naradam_relation_vacuum(Relation rel, VacuumParams *params,
						BufferAccessStrategy strategy)
{
	TopicVacuum vacuum = {.rel = rel,.params = params};
	NaradFreeze *freeze = &vacuum.freeze;
	TimestampTz start = GetCurrentTimestamp();
	NaradRelInfo *info;

	vacuum.nblocks = RelationGetNumberOfBlocks(rel);
	pgstat_progress_start_command(PROGRESS_COMMAND_VACUUM,
								  RelationGetRelid(rel));
	pgstat_progress_update_param(PROGRESS_VACUUM_TOTAL_HEAP_BLKS,
								 vacuum.nblocks);
	pgstat_progress_update_param(PROGRESS_VACUUM_PHASE,
								 PROGRESS_VACUUM_PHASE_SCAN_HEAP);

	set_limits(&vacuum);
	check_failsafe(&vacuum);
	freeze->rel = rel;
	freeze->strategy = strategy;
	freeze->poll = check_failsafe;
	freeze->arg = &vacuum;
	info = NaradRelInfoTryAttach(rel);
	if (info != NULL)
	{
		freeze->info = *info;
		freeze_topic(&vacuum);
	}
	NARAD_STOP("freeze-relfrozenxid");

	pgstat_progress_update_param(PROGRESS_VACUUM_PHASE,
								 PROGRESS_VACUUM_PHASE_FINAL_CLEANUP);
	vacuum.frozenxid = (TransactionId) freeze->oldest;
	NaradCompatUpdateRelstats(rel, vacuum.nblocks, vacuum.tuples,
							  vacuum.frozenxid, vacuum.oldest_multi,
							  &vacuum.frozenxid_updated);
	NaradCompatReportVacuum(rel, (PgStat_Counter) vacuum.tuples, start);
	pgstat_progress_end_command();

	if (params->options & VACOPT_VERBOSE)
		report_vacuum(&vacuum, INFO);
	else if (NaradCompatIsAutovacuum() && params->log_min_duration >= 0 &&
			 (params->log_min_duration == 0 ||
			  TimestampDifferenceExceeds(start, GetCurrentTimestamp(),
										 params->log_min_duration)))
		report_vacuum(&vacuum, LOG);
}
