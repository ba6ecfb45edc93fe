/*-------------------------------------------------------------------------
 *
 * log_append.c
 *	  Adding records to a partition.
 *
 * A record is formed before it comes here.  Under the partition's tail lock
 * it gets its offset and time and is copied to the last page, as many of a
 * batch at once as fit, with one WAL record a page.  Space is prepared
 * ahead, outside the lock: a run of pages that have room of their own, so that
 * a full disk is the producer's error, and at 3/4 of a segment the next one
 * ('spare'); one process a partition does so at a time.  When a segment is
 * full, sealing it and opening the spare is one change of the directory.
 *
 * A large record goes over several pages, and over as many segments as it
 * takes, with the tail lock held for some pages at a time; it holds the
 * partition's gate meanwhile, on which others wait without the tail lock,
 * interruptibly.
 *
 * Pages that will be needed under the tail lock, the last one, the next one,
 * and those of the directory when a segment is full, are pinned before: if
 * under the lock another one turns out to be needed, the lock is given up and
 * that one pinned.  So nobody reads, or writes out a page that is in the way,
 * under the lock, but for a next page that others took three times.
 *
 * Who loads much in one transaction has the WAL writer flush behind it.  Else
 * it would stand still, for the flush of a page of its ring that it has to
 * write out, or of all at its commit.
 *
 * If the last page turns out to be damaged, nothing is added to its segment
 * any more: the next one goes on at the end that memory knows exactly.
 *
 * Owns:       the tail of each partition; nobody else adds to a data page, and
 *             what freezing does to one leaves all else on it as it is.
 * Invariants: I1, I3, I7, I12.  Offsets strictly increase in the order of
 *             WAL records.  Memory says no more than what is in the WAL
 *             buffers: it changes after XLogInsert, in the same critical
 *             section.  end_offset is advanced last, after the hull.  Unused
 *             pages from next_page to open_prepared exist on disk.  I11: a
 *             damaged last page stops nobody.
 * Locks:      gate; tail lock; then directory buffers or data buffers (many,
 *             in block order, for a large record), map or hull lock.  The
 *             extension and allocator lock only without the tail lock.
 * Runs in:    any backend, never a parallel worker.
 * WAL:        APPEND, one a page, or one for many pages of a large record;
 *             META_UPDATE for prepared runs and segments.
 * On error:   what was placed is the aborted transaction's, dead; gate and
 *             preparing are given up by NaradAppendAtAbort.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "base/base_memory.h"
#include "base/base_stop.h"
#include "log/log_append.h"
#include "log/log_hull.h"
#include "log/log_page.h"
#include "log/log_retain.h"
#include "log/log_segment.h"
#include "log/log_xlog.h"

/* Records without a key before a backend moves on to the next partition. */
#define NONE_BATCH 64

/*
 * How far a backend goes ahead of what is flushed, in bytes of WAL, before it
 * asks for more.  Less than that is flushed by its commit as fast, and sooner
 * than behind a flush that is under way.
 */
#define WAL_AHEAD (2 * 1024 * 1024)

/* One call of NaradAppend. */
typedef struct AppendState
{
	Relation	rel;
	BufferAccessStrategy strategy;	/* for data pages: a ring, or NULL */
	NaradLogTopic *topic;
	NaradLogPartition *part;
	NaradHull  *hull;
	TransactionId xid;			/* of the current subtransaction */
	uint64		full_xid;
	CommandId	cid;
	int64		clock_behind;	/* us that the clock lags the last record */

	/* Pinned without the tail lock, to be used under it. */
	Buffer		tail_pin;		/* the last page */
	Buffer		new_pin;		/* the page to be begun next */
	Buffer		dir_pins[2];	/* directory pages of the spare, and of the
								 * segment to be sealed */
	int			new_misses;		/* how often new_pin was another page */

	/* The same, of the next parts of a large record. */
	bool		is_large;		/* pages are begun as parts of one */
	Buffer		part_pins[NARAD_APPEND_PAGES];	/* consecutive */
	int			npart_pins;

	bool		begun;			/* a segment: retention is to be told */
	bool		gave_up;		/* to be reported: the last page is damaged */
	BlockNumber damaged_block;
} AppendState;

/* What must be done without the tail lock before the append can go on. */
typedef struct AppendNeed
{
	bool		segment;		/* a ready spare, of at least ... */
	uint32		segment_pages;	/* ... so many pages, which will be needed;
								 * set before the try */
	bool		lower;			/* no spare behind a free slot */
	uint32		prepared;		/* pages of the open segment that must exist */
	bool		new_page;		/* a pin on this block: */
	int			nparts;			/* pins on so many from this block on: */
	BlockNumber new_block;
	bool		directory;		/* pins on these: */
	BlockNumber dir_blocks[2];
} AppendNeed;

/* What this backend holds beyond LWLocks. */
static NaradLogPartition *my_gate;
static NaradLogPartition *my_preparing;

/*
 * Pages to prepare at once for large records.  Not all of a very large one:
 * whoever looks for the tail after a restart reads what was prepared.
 */
#define LARGE_RUN 256

/* ---- waiting --------------------------------------------------------- */

static bool
blocked_by_gate(NaradLogPartition *part)
{
	return part->gate_owner != 0 &&
		part->gate_owner != NaradMyProcNumber + 1;
}

static bool
blocked_by_preparer(NaradLogPartition *part)
{
	return part->preparing;
}

/* Sleeps, interruptibly, until a condition of the tail has ended. */
static void
wait_while(NaradLogPartition *part, bool (*is_blocked) (NaradLogPartition *))
{
	ConditionVariablePrepareToSleep(&part->gate_cv);
	for (;;)
	{
		bool		blocked;

		LWLockAcquire(&part->tail_lock, LW_SHARED);
		blocked = is_blocked(part);
		LWLockRelease(&part->tail_lock);
		if (!blocked)
			break;
		ConditionVariableSleep(&part->gate_cv, PG_WAIT_EXTENSION);
	}
	ConditionVariableCancelSleep();
}

static void
take_gate(NaradLogPartition *part)
{
	for (;;)
	{
		LWLockAcquire(&part->tail_lock, LW_EXCLUSIVE);
		if (part->gate_owner == 0)
		{
			part->gate_owner = NaradMyProcNumber + 1;
			part->gate_end = 0;
			my_gate = part;
			LWLockRelease(&part->tail_lock);
			return;
		}
		LWLockRelease(&part->tail_lock);
		wait_while(part, blocked_by_gate);
	}
}

/* Gives the gate up.  Tail lock held; the caller broadcasts without it. */
static void
leave_gate(NaradLogPartition *part)
{
	Assert(my_gate == part);
	part->gate_owner = 0;
	part->gate_end = 0;
	my_gate = NULL;
}

/* Others may prepare. */
static void
end_preparing(NaradLogPartition *part)
{
	LWLockAcquire(&part->tail_lock, LW_EXCLUSIVE);
	part->preparing = false;
	my_preparing = NULL;
	LWLockRelease(&part->tail_lock);
	ConditionVariableBroadcast(&part->gate_cv);
}

/*
 * NaradAppendAtAbort
 *
 * Gives up what an append that failed held: the offset of a large record that
 * is not complete is used up.  From the callbacks of transactions' and
 * subtransactions' abort; no error, no allocation.
 */
void
NaradAppendAtAbort(void)
{
	NaradLogPartition *part;

	if (my_gate != NULL)
	{
		part = my_gate;
		LWLockAcquire(&part->tail_lock, LW_EXCLUSIVE);
		if (part->gate_end > pg_atomic_read_u64(&part->end_offset))
			pg_atomic_write_u64(&part->end_offset, part->gate_end);
		leave_gate(part);
		LWLockRelease(&part->tail_lock);
		ConditionVariableBroadcast(&part->gate_cv);
	}
	if (my_preparing != NULL)
		end_preparing(my_preparing);
}

/* ---- preparing space ------------------------------------------------- */

/* Pages to prepare at once when so many are. */
static uint32
run_length(const NaradSegmentRef *segment, uint32 prepared)
{
	uint32		run = prepared < 64 ? 16 : 64;

	return Min(run, segment->npages - prepared);
}

/* Can something still be added to the open segment?  Tail lock. */
static bool
segment_is_usable(AppendState *state)
{
	NaradLogPartition *part = state->part;

	return part->has_open && !part->must_seal &&
		part->open_epoch == pg_atomic_read_u32(&state->topic->epoch);
}

/* Is it time to reserve the next segment?  Tail lock. */
static bool
wants_spare(NaradLogPartition *part)
{
	return part->has_open &&
		(uint64) part->next_page * 4 >= (uint64) part->open.npages * 3 &&
		(!part->has_spare || part->spare_prepared == 0);
}

/* Has the last prepared run been entered?  Tail lock. */
static bool
wants_run(NaradLogPartition *part)
{
	return part->has_open && part->open_prepared < part->open.npages &&
		part->next_page + run_length(&part->open, part->open_prepared) >
		part->open_prepared;
}

/* Room for one more segment in the map.  Only the preparer changes it. */
static void
ensure_map_room(NaradLogPartition *part)
{
	uint32		capacity = part->map_capacity;
	NaradSegmentRef *map;
	NaradSegmentRef *old;

	if (part->nmap + 2 <= capacity)
		return;
	capacity = Max(4, 2 * capacity);
	map = NaradAllocOrError(capacity * sizeof(NaradSegmentRef), "segments");
	LWLockAcquire(&part->tail_lock, LW_EXCLUSIVE);
	LWLockAcquire(&part->map_lock, LW_EXCLUSIVE);
	old = part->map;
	if (part->nmap > 0)
		memcpy(map, old, part->nmap * sizeof(NaradSegmentRef));
	part->map = map;
	part->map_capacity = capacity;
	LWLockRelease(&part->map_lock);
	LWLockRelease(&part->tail_lock);
	NaradFree(old);
}

/* Sets pages_prepared of an entry, whose page is pinned.  Tail lock. */
static void
write_prepared(AppendState *state, const NaradSegmentRef *ref, uint32 prepared)
{
	NaradEntryChange change;

	change.ref = ref;
	NaradSegmentReadOwnEntry(state->rel, ref, &change.entry);
	if (change.entry.pages_prepared < prepared)
	{
		change.entry.pages_prepared = prepared;
		NaradSegmentWriteEntries(state->rel, state->topic->topic_id, &change,
								 1);
	}
}

/*
 * Gives a partition's spare back; false if somebody opened it before.  The caller
 * prepares pages of the partition, so nobody else changes what is the spare, and
 * nobody opens one without pages.  If it cannot be freed, it stays the spare.
 */
static bool
free_spare(Relation rel, NaradLogTopic *topic, NaradLogPartition *part,
		   const NaradSegmentRef *spare)
{
	bool		is_ours;

	LWLockAcquire(&part->tail_lock, LW_EXCLUSIVE);
	is_ours = part->has_spare && part->spare.first_block == spare->first_block;
	if (is_ours)
		part->spare_prepared = 0;
	LWLockRelease(&part->tail_lock);
	if (!is_ours)
		return false;

	NaradSegmentFree(rel, topic, spare);
	LWLockAcquire(&part->tail_lock, LW_EXCLUSIVE);
	part->has_spare = false;
	LWLockRelease(&part->tail_lock);
	NaradSegmentFreeSlot(rel, topic, spare->first_block);
	return true;
}

/*
 * Makes pages [from, to) of a segment.  Who appends a large record takes
 * buffers for them when it comes to them.
 */
static void
prepare_pages(AppendState *state, const NaradSegmentRef *segment,
			  uint32 from, uint32 to)
{
	NaradSegmentPreparePages(state->rel, segment->first_block,
							 segment->pages_recycled, from, to);
	if (!state->is_large)
		NaradSegmentWarmPages(state->rel, segment->first_block, from, to,
							  state->strategy);
}

/*
 * Reserves a spare as it is needed, if there is none such, and makes its
 * first run.  It is remembered before the run is made: when the disk is full,
 * the next try goes on from there.
 */
static void
prepare_spare(AppendState *state, const AppendNeed *need)
{
	NaradLogPartition *part = state->part;
	NaradSegmentRef spare;
	bool		has_spare;
	bool		has_pages;
	bool		unwanted;
	uint64		sequence;
	uint32		run;
	Buffer		directory;

	LWLockAcquire(&part->tail_lock, LW_EXCLUSIVE);
	spare = part->spare;
	has_spare = part->has_spare;
	has_pages = part->spare_prepared > 0;
	sequence = part->next_sequence;
	LWLockRelease(&part->tail_lock);

	unwanted = has_spare &&
		(spare.npages < need->segment_pages ||
		 (need->lower && spare.size_class == NARAD_CLASS_WHOLE &&
		  NaradSegmentFreeBefore(state->rel, state->topic,
								 spare.first_block)));
	if (unwanted && free_spare(state->rel, state->topic, part, &spare))
		has_spare = false;
	if (!has_spare)
	{
		int			size_class = NaradClassFor(sequence, need->segment_pages,
											   state->topic->segment_pages);

		NaradSegmentAllocate(state->rel, state->topic, size_class,
							 part->partition, false, &spare);
		LWLockAcquire(&part->tail_lock, LW_EXCLUSIVE);
		part->spare = spare;
		part->spare_prepared = 0;
		part->has_spare = true;
		LWLockRelease(&part->tail_lock);
	}
	else if (has_pages)
		return;

	/* Nobody opens it before it has pages, so it is still the spare. */
	ensure_map_room(part);
	run = run_length(&spare, 0);
	if (state->is_large)
		run = Min(Max(run, Min(need->segment_pages, LARGE_RUN)), spare.npages);
	prepare_pages(state, &spare, 0, run);
	directory = ReadBuffer(state->rel, spare.dir_block);
	LWLockAcquire(&part->tail_lock, LW_EXCLUSIVE);
	part->spare_oldest_xid = NaradOldestRunningXid();
	write_prepared(state, &spare, run);
	part->spare_prepared = run;
	LWLockRelease(&part->tail_lock);
	ReleaseBuffer(directory);
}

/* Prepares pages of the open segment: the next run, or up to `need`. */
static void
prepare_run(AppendState *state, uint32 need)
{
	NaradLogPartition *part = state->part;
	NaradSegmentRef open;
	uint32		from;
	uint32		to;
	uint32		run;
	Buffer		directory;

	LWLockAcquire(&part->tail_lock, LW_SHARED);
	open = part->open;
	from = part->open_prepared;
	if (!part->has_open || from >= open.npages ||
		(from >= need && !wants_run(part)))
	{
		LWLockRelease(&part->tail_lock);
		return;
	}
	LWLockRelease(&part->tail_lock);

	run = state->is_large ? LARGE_RUN : run_length(&open, from);
	to = Min(Max(from + run, need), open.npages);
	prepare_pages(state, &open, from, to);

	/* Unless the segment was sealed meanwhile. */
	directory = ReadBuffer(state->rel, open.dir_block);
	LWLockAcquire(&part->tail_lock, LW_EXCLUSIVE);
	if (part->has_open && part->open.sequence == open.sequence)
	{
		write_prepared(state, &open, to);
		part->open_prepared = to;
	}
	LWLockRelease(&part->tail_lock);
	ReleaseBuffer(directory);
}

/* Has the WAL writer flush what we have placed, if that is much. */
static void
flush_behind(AppendState *state)
{
	if (RelationNeedsWAL(state->rel) &&
		XactLastRecEnd > GetFlushRecPtr(NULL) + WAL_AHEAD)
		XLogSetAsyncXactLSN(XactLastRecEnd);
}

/*
 * Does what is needed, and what is due anyway; without the tail lock.  If
 * somebody else is at it: waits for that, and the caller looks again.
 */
static void
prepare(AppendState *state, const AppendNeed *need)
{
	NaradLogPartition *part = state->part;
	bool		make_spare;

	LWLockAcquire(&part->tail_lock, LW_EXCLUSIVE);
	if (part->preparing)
	{
		LWLockRelease(&part->tail_lock);
		if (need->segment || need->prepared > 0)
			wait_while(part, blocked_by_preparer);
		return;
	}
	part->preparing = true;
	my_preparing = part;
	make_spare = need->segment || wants_spare(part);
	LWLockRelease(&part->tail_lock);

	NARAD_STOP("append-prepare");
	if (make_spare)
		prepare_spare(state, need);
	prepare_run(state, need->prepared);

	end_preparing(part);
	flush_behind(state);
	NARAD_STOP("append-prepared");
}

/* ---- pins ------------------------------------------------------------ */

static void
unpin(Buffer *pin)
{
	if (BufferIsValid(*pin))
		ReleaseBuffer(*pin);
	*pin = InvalidBuffer;
}

static bool
is_pinned(Buffer pin, BlockNumber block)
{
	return BufferIsValid(pin) && BufferGetBlockNumber(pin) == block;
}

static void
release_part_pins(AppendState *state)
{
	while (state->npart_pins > 0)
		unpin(&state->part_pins[--state->npart_pins]);
}

static void
release_pins(AppendState *state)
{
	release_part_pins(state);
	unpin(&state->tail_pin);
	unpin(&state->new_pin);
	unpin(&state->dir_pins[0]);
	unpin(&state->dir_pins[1]);
	state->new_misses = 0;
}

/* Nothing is to be added to the open segment any more.  Tail lock. */
static void
give_up_segment(AppendState *state, BlockNumber block)
{
	state->part->must_seal = true;
	pg_atomic_write_u32(&state->part->tail_block, InvalidBlockNumber);
	state->gave_up = true;
	state->damaged_block = block;
}

static void
report_damaged_tail(AppendState *state)
{
	if (!state->gave_up)
		return;
	state->gave_up = false;
	ereport(LOG,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("last page of partition %d of topic \"%s\", block %u, is damaged",
					state->part->partition,
					RelationGetRelationName(state->rel),
					state->damaged_block),
			 errdetail("A new segment is begun.")));
}

/* Pins the last page by where it was seen last: no reading, no waiting. */
static bool
pin_recent_tail(AppendState *state, BlockNumber block)
{
	Buffer		hint = pg_atomic_read_u32(&state->part->tail_buffer);

	if (!BufferIsValid(hint) ||
		!ReadRecentBuffer(NaradRelationLocator(state->rel), MAIN_FORKNUM,
						  block, hint))
		return false;
	state->tail_pin = hint;
	return true;
}

/*
 * Pins the page expected to be the last one, reading it if need be, without
 * the tail lock.  If it cannot be read, sees to it that nobody needs it.
 */
static void
pin_tail(AppendState *state)
{
	NaradLogPartition *part = state->part;
	BlockNumber block = pg_atomic_read_u32(&part->tail_block);

	if (is_pinned(state->tail_pin, block))
		return;
	unpin(&state->tail_pin);
	if (block == InvalidBlockNumber || pin_recent_tail(state, block))
		return;
	state->tail_pin = NaradReadBufferCareful(state->rel, block,
											 state->strategy);
	if (BufferIsValid(state->tail_pin))
		return;

	LWLockAcquire(&part->tail_lock, LW_EXCLUSIVE);
	if (pg_atomic_read_u32(&part->tail_block) == block)
		give_up_segment(state, block);
	LWLockRelease(&part->tail_lock);
	report_damaged_tail(state);
}

/*
 * Pins a page to be begun.  What is on it does not matter; if it cannot even
 * be read, it is begun without.
 */
static void
pin_new_page(AppendState *state, BlockNumber block)
{
	if (is_pinned(state->new_pin, block))
		return;
	unpin(&state->new_pin);
	state->new_pin = NaradReadBufferCareful(state->rel, block,
											state->strategy);
	state->new_misses++;
}

/*
 * Pins pages for the next parts of a large record.  Nobody else can have begun
 * them, for want of the gate, so they need not be read.
 */
static void
pin_part_pages(AppendState *state, BlockNumber block, int npages)
{
	release_part_pins(state);
	while (state->npart_pins < npages)
	{
		Buffer		buffer = ReadBufferExtended(state->rel, MAIN_FORKNUM,
												block + state->npart_pins,
												RBM_ZERO_AND_LOCK,
												state->strategy);

		LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
		state->part_pins[state->npart_pins++] = buffer;
	}
}

/* Pins what turned out to be needed under the tail lock. */
static void
pin_needed(AppendState *state, const AppendNeed *need)
{
	int			i;

	if (need->new_page)
		pin_new_page(state, need->new_block);
	if (need->nparts > 0)
		pin_part_pages(state, need->new_block, need->nparts);
	for (i = 0; need->directory && i < 2; i++)
	{
		unpin(&state->dir_pins[i]);
		if (need->dir_blocks[i] != InvalidBlockNumber)
			state->dir_pins[i] = ReadBuffer(state->rel, need->dir_blocks[i]);
	}
}

/* Are the pages pinned that open_next_segment changes?  Tail lock. */
static bool
directory_is_pinned(AppendState *state, AppendNeed *need)
{
	NaradLogPartition *part = state->part;

	if (is_pinned(state->dir_pins[0], part->spare.dir_block) &&
		(!part->has_open ||
		 is_pinned(state->dir_pins[1], part->open.dir_block)))
		return true;
	need->directory = true;
	need->dir_blocks[0] = part->spare.dir_block;
	need->dir_blocks[1] = part->has_open ? part->open.dir_block :
		InvalidBlockNumber;
	return false;
}

/* ---- opening a segment ----------------------------------------------- */

/*
 * The lowest offset that the next segment may hold.  In the middle of a large
 * record that is the one after it: a record belongs to the segment in which it
 * begins, however many follow that only continue it.  Tail lock.
 */
static NaradOffset
next_first_offset(NaradLogPartition *part)
{
	return Max(pg_atomic_read_u64(&part->end_offset), part->gate_end);
}

/* The open segment's entry, sealed as it is now.  Tail lock. */
static void
seal_entry(AppendState *state, NaradSegmentEntry *entry)
{
	NaradLogPartition *part = state->part;

	NaradSegmentReadOwnEntry(state->rel, &part->open, entry);
	entry->state = NARAD_SEGMENT_SEALED;
	entry->end_offset = next_first_offset(part);
	entry->first_time = part->first_time;
	entry->last_time = part->last_time;
	entry->newest_xid = part->newest_xid;
	entry->pages_used = part->next_page;
	if (part->has_ids)
		entry->flags |= NARAD_SEGMENT_HAS_IDS;
	if (part->imported)
		entry->kept_day = (uint16)
			Max(GetCurrentTimestamp() / USECS_PER_DAY + 1, 0);
}

/* The spare's entry once it is open.  Tail lock. */
static void
open_entry(AppendState *state, NaradSegmentEntry *entry)
{
	NaradLogPartition *part = state->part;

	memset(entry, 0, sizeof(NaradSegmentEntry));
	entry->state = NARAD_SEGMENT_OPEN;
	entry->size_class = part->spare.size_class;
	if (part->gate_end > pg_atomic_read_u64(&part->end_offset))
		entry->flags = NARAD_SEGMENT_CONTINUES;
	entry->partition = part->partition;
	entry->sequence = part->next_sequence;
	entry->first_offset = next_first_offset(part);
	entry->last_time = part->last_time;
	entry->oldest_xid = part->spare_oldest_xid;
	entry->pages_prepared = part->spare_prepared;
	entry->epoch = pg_atomic_read_u32(&state->topic->epoch);
	entry->recycled_units = part->spare.pages_recycled / NARAD_UNIT_PAGES;
}

/*
 * Seals the open segment, if any, and opens the spare, which is ready, as are
 * the pins on their directory pages.  The sealed segment's time range is that
 * of its records; without any it is the partition's last time.  Tail lock.
 */
static void
open_next_segment(AppendState *state)
{
	NaradLogPartition *part = state->part;
	NaradEntryChange changes[2];
	NaradSegmentRef spare = part->spare;
	NaradSegmentRef old = part->open;
	NaradSegmentEntry entry;
	int			nchanges = 0;

	Assert(part->has_spare && part->spare_prepared > 0);
	Assert(part->nmap < part->map_capacity);

	open_entry(state, &entry);
	changes[nchanges].ref = &spare;
	changes[nchanges++].entry = entry;
	if (part->has_open)
	{
		changes[nchanges].ref = &old;
		seal_entry(state, &changes[nchanges++].entry);
	}
	NaradSegmentWriteEntries(state->rel, state->topic->topic_id, changes,
							 nchanges);

	/* Logged; from here on nothing can fail. */
	spare.state = NARAD_SEGMENT_OPEN;
	spare.continues = (entry.flags & NARAD_SEGMENT_CONTINUES) != 0;
	spare.sequence = entry.sequence;
	spare.first_offset = entry.first_offset;
	LWLockAcquire(&part->map_lock, LW_EXCLUSIVE);
	if (part->has_open)
	{
		part->map[part->nmap - 1].state = NARAD_SEGMENT_SEALED;
		part->map[part->nmap - 1].pages_used = part->next_page;
	}
	part->map[part->nmap++] = spare;
	LWLockRelease(&part->map_lock);

	/* Its last page may be given away before the new one has a first. */
	pg_atomic_write_u32(&part->tail_block, InvalidBlockNumber);
	part->open = spare;
	part->open_prepared = part->spare_prepared;
	part->open_epoch = entry.epoch;
	part->next_page = 0;
	part->next_sequence = entry.sequence + 1;
	part->newest_xid = 0;
	part->first_time = part->last_time;
	part->must_seal = false;
	part->imported = false;
	part->has_ids = false;
	part->has_open = true;
	part->has_spare = false;
	part->spare_prepared = 0;
}

/* ---- one page -------------------------------------------------------- */

/* The time of a record placed now: never below the last one's.  Tail lock. */
static int64
record_time(AppendState *state, const NaradAppendItem *item, int64 now)
{
	int64		last = state->part->last_time;

	if (item->explicit_offset != NARAD_INVALID_OFFSET &&
		!TIMESTAMP_NOT_FINITE(item->explicit_time))
	{
		if (Max(item->explicit_time, last) < now - NARAD_IMPORT_AGE)
			state->part->imported = true;
		return Max(item->explicit_time, last);
	}
	if (last > now)
	{
		state->clock_behind = Max(state->clock_behind, last - now);
		return last;
	}
	return now;
}

static bool
explicit_offset_is_valid(const NaradAppendItem *item, NaradOffset end)
{
	return item->explicit_offset == NARAD_INVALID_OFFSET ||
		(item->explicit_offset >= end &&
		 item->explicit_offset <= NARAD_MAX_OFFSET);
}

static void
report_explicit_offset(AppendState *state, const NaradAppendItem *item,
					   NaradOffset end)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("offset " UINT64_FORMAT " cannot be given in partition %d of topic \"%s\"",
					item->explicit_offset, state->part->partition,
					RelationGetRelationName(state->rel)),
			 errdetail("The next offset is " UINT64_FORMAT ", the highest possible one " UINT64_FORMAT ".",
					   end, NARAD_MAX_OFFSET),
			 errhint("Leave msg_offset out, or null, to have it assigned.")));
}

/* A fresh data page's special space. */
static void
fill_special(AppendState *state, NaradDataSpecial *special,
			 NaradOffset base_offset, int64 base_time)
{
	memset(special, 0, sizeof(NaradDataSpecial));
	special->head.topic_id = state->topic->topic_id;
	special->head.kind = NARAD_PAGE_DATA;
	special->head.version = NARAD_FORMAT_VERSION;
	special->head.partition = state->part->partition;
	special->sequence = state->part->open.sequence;
	special->base_offset = base_offset;
	special->base_time = base_time;
	special->cont_offset = NARAD_INVALID_OFFSET;
}

/* Can a page with these bases hold a record of this offset and time? */
static bool
fits_bases(const NaradDataSpecial *special, NaradOffset offset, int64 time)
{
	return offset - special->base_offset <= NARAD_MAX_DELTA &&
		time >= special->base_time &&
		(uint64) time - (uint64) special->base_time <= NARAD_MAX_TIME_DELTA;
}

/*
 * Chooses how many of the items go to a page, and gives them offset and time.
 * For a fresh page (page NULL) special gets its bases from the first; else it
 * is the page's.  0 if the page cannot take the first one, -1 if its explicit
 * offset is not acceptable.  Tail lock; nothing is changed yet.
 */
static int
plan_page(AppendState *state, Page page, NaradDataSpecial *special,
		  NaradAppendItem **items, int nitems)
{
	NaradLogPartition *part = state->part;
	NaradOffset next = pg_atomic_read_u64(&part->end_offset);
	int64		now = GetCurrentTimestamp();
	int64		time = part->last_time;
	int			on_page = 0;
	Size		room = NARAD_PAGE_SPACE;
	int			n;

	if (page != NULL)
	{
		on_page = PageGetMaxOffsetNumber(page);
		room = ((PageHeader) page)->pd_upper - ((PageHeader) page)->pd_lower;
	}
	for (n = 0; n < nitems && on_page + n < NARAD_MAX_ITEMS; n++)
	{
		NaradAppendItem *item = items[n];
		Size		cost = MAXALIGN(NaradRecordLength(&item->record)) +
		sizeof(ItemIdData);

		if (NaradRecordIsLarge(&item->record) || cost > room)
			break;
		if (!explicit_offset_is_valid(item, next))
			return n == 0 ? -1 : n;
		item->offset = item->explicit_offset == NARAD_INVALID_OFFSET ?
			next : item->explicit_offset;
		item->time = Max(record_time(state, item, now), time);
		if (page == NULL && n == 0)
			fill_special(state, special, item->offset, item->time);
		if (!fits_bases(special, item->offset, item->time))
			break;
		room -= cost;
		next = item->offset + 1;
		time = item->time;
	}
	return n;
}

/*
 * Memory's side of a page written, in the critical section of its WAL record.
 * Tail lock.
 */
static void
advance_tail(AppendState *state, Buffer buffer, bool init, int64 time)
{
	NaradLogPartition *part = state->part;

	if (init)
	{
		if (part->next_page == 0)
		{
			part->first_time = time;
			part->age_from = GetCurrentTimestamp();
			state->begun = true;
		}
		part->next_page++;
		pg_atomic_write_u32(&part->tail_buffer, buffer);
		pg_atomic_write_u32(&part->tail_block, BufferGetBlockNumber(buffer));
	}
	part->newest_xid = Max(part->newest_xid, state->full_xid);
}

/*
 * Places what fits of the items on a page, locked exclusively.  Returns what
 * plan_page does.  Tail lock.
 */
static int
fill_page(AppendState *state, Buffer buffer, bool init,
		  NaradAppendItem **items, int nitems)
{
	NaradLogPartition *part = state->part;
	BlockNumber block = BufferGetBlockNumber(buffer);
	Page		page = BufferGetPage(buffer);
	NaradDataSpecial special;
	OffsetNumber first;
	uint16		old_upper;
	int			n;
	int			i;

	if (!init)
		special = *NaradDataPageSpecial(page);
	n = plan_page(state, init ? NULL : page, &special, items, nitems);
	if (n <= 0)
		return n;
	for (i = 0; i < n; i++)
		NaradRecordFinish(&items[i]->record, state->xid, state->cid,
						  part->partition, items[i]->offset, items[i]->time,
						  special.base_offset, special.base_time);
	NaradHullExtend(state->hull, items[0]->offset, items[n - 1]->offset);
	for (i = 0; i < n && !part->has_ids; i++)
		part->has_ids = NaradRecordHasDedupId(&items[i]->record);

	START_CRIT_SECTION();
	if (init)
		NaradDataPageInit(page, &special);
	old_upper = ((PageHeader) page)->pd_upper;
	first = OffsetNumberNext(PageGetMaxOffsetNumber(page));
	for (i = 0; i < n; i++)
	{
		NaradRecord *record = &items[i]->record;
		OffsetNumber number = NaradDataPagePut(page, record->head,
											   record->head_len, record->body,
											   record->body_len);

		ItemPointerSet(&items[i]->tid, block, number);
		record->tuple->t_self = items[i]->tid;
	}
	MarkBufferDirty(buffer);
	NaradXLogAppend(state->rel, buffer, first, first + n - 1, old_upper, init);

	advance_tail(state, buffer, init, items[0]->time);
	part->last_time = items[n - 1]->time;
	pg_write_barrier();
	pg_atomic_write_u64(&part->end_offset, items[n - 1]->offset + 1);
	END_CRIT_SECTION();
	return n;
}

/* Is it the page it should be?  A page of zeros has no bad checksum. */
static bool
is_page_of_open(AppendState *state, Page page)
{
	PageHeader	ph = (PageHeader) page;
	const NaradDataSpecial *special;

	if (ph->pd_special != BLCKSZ - sizeof(NaradDataSpecial) ||
		ph->pd_lower < SizeOfPageHeaderData ||
		ph->pd_lower > ph->pd_upper || ph->pd_upper > ph->pd_special)
		return false;
	special = NaradDataPageSpecial(page);
	return special->head.topic_id == state->topic->topic_id &&
		special->head.kind == NARAD_PAGE_DATA &&
		special->head.partition == state->part->partition &&
		special->sequence == state->part->open.sequence;
}

/*
 * The last page of the open segment, which has one, locked; it was pinned
 * before, or is pinned now if it is in memory.  InvalidBuffer if it is
 * neither, or if it is damaged: then the segment is given up.  Tail lock.
 */
static Buffer
lock_tail_page(AppendState *state)
{
	NaradLogPartition *part = state->part;
	BlockNumber block = part->open.first_block + part->next_page - 1;

	Assert(part->next_page > 0);
	if (!is_pinned(state->tail_pin, block))
	{
		/* Somebody else began a page just now. */
		unpin(&state->tail_pin);
		if (!pin_recent_tail(state, block))
			return InvalidBuffer;
	}
	LockBuffer(state->tail_pin, BUFFER_LOCK_EXCLUSIVE);
	if (!is_page_of_open(state, BufferGetPage(state->tail_pin)))
	{
		LockBuffer(state->tail_pin, BUFFER_LOCK_UNLOCK);
		give_up_segment(state, block);
		return InvalidBuffer;
	}
	pg_atomic_write_u32(&part->tail_buffer, state->tail_pin);
	return state->tail_pin;
}

/*
 * The next page of the open segment, to be initialised, locked; the pin goes
 * to the caller.  InvalidBuffer if it is not pinned, unless that happened
 * three times.  Tail lock.
 */
static Buffer
lock_new_page(AppendState *state, AppendNeed *need)
{
	NaradLogPartition *part = state->part;
	BlockNumber block = part->open.first_block + part->next_page;
	Buffer		buffer = state->new_pin;

	Assert(part->next_page < part->open_prepared);
	if (is_pinned(buffer, block))
	{
		state->new_pin = InvalidBuffer;
		LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
		return buffer;
	}
	if (state->new_misses < 3)
	{
		need->new_page = true;
		need->new_block = block;
		return InvalidBuffer;
	}
	return ReadBufferExtended(state->rel, MAIN_FORKNUM, block,
							  RBM_ZERO_AND_LOCK, state->strategy);
}

/*
 * Sees to it that the open segment has a page to begin, opening the spare if
 * need be, which has the pages needed.  Tail lock.  False if something has to
 * be prepared or pinned first.
 */
static bool
page_is_available(AppendState *state, AppendNeed *need)
{
	NaradLogPartition *part = state->part;

	if (!segment_is_usable(state) || part->next_page >= part->open.npages)
	{
		if (!part->has_spare || part->spare_prepared == 0 ||
			part->spare.npages < need->segment_pages)
		{
			need->segment = true;
			return false;
		}
		if (!directory_is_pinned(state, need))
			return false;
		open_next_segment(state);
	}
	if (part->next_page >= part->open_prepared)
	{
		need->prepared = part->next_page + 1;
		return false;
	}
	return true;
}

/*
 * Places what fits of the items on the current or a new page.  Returns how
 * many, 0 if something has to be prepared or pinned first, -1 as plan_page.
 * Tail lock held.
 */
static int
append_locked(AppendState *state, NaradAppendItem **items, int nitems,
			  AppendNeed *need)
{
	NaradLogPartition *part = state->part;
	Buffer		buffer;
	int			n = 0;

	if (segment_is_usable(state) && part->next_page > 0)
	{
		buffer = lock_tail_page(state);
		if (BufferIsValid(buffer))
		{
			n = fill_page(state, buffer, false, items, nitems);
			LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
		}
		else if (!part->must_seal)
			return 0;
	}

	if (n == 0 && page_is_available(state, need))
	{
		buffer = lock_new_page(state, need);
		if (BufferIsValid(buffer))
		{
			n = fill_page(state, buffer, true, items, nitems);
			UnlockReleaseBuffer(buffer);
		}
	}
	return n;
}

/* Appends one page's worth of the items, in order; returns how many. */
static int
append_page(AppendState *state, NaradAppendItem **items, int nitems)
{
	NaradLogPartition *part = state->part;

	for (;;)
	{
		AppendNeed	need = {0};
		NaradOffset end;
		bool		is_due;
		int			n;

		pin_tail(state);
		LWLockAcquire(&part->tail_lock, LW_EXCLUSIVE);
		if (blocked_by_gate(part))
		{
			LWLockRelease(&part->tail_lock);
			release_pins(state);
			wait_while(part, blocked_by_gate);
			continue;
		}
		n = append_locked(state, items, nitems, &need);
		end = pg_atomic_read_u64(&part->end_offset);
		is_due = !part->preparing && (wants_spare(part) || wants_run(part));
		LWLockRelease(&part->tail_lock);

		report_damaged_tail(state);
		if (n != 0)
			release_pins(state);
		if (n < 0)
			report_explicit_offset(state, items[0], end);
		pin_needed(state, &need);
		if (is_due || need.segment || need.prepared > 0)
			prepare(state, &need);
		if (n > 0)
			return n;
		CHECK_FOR_INTERRUPTS();
	}
}

/* ---- large records --------------------------------------------------- */

/* Gives a large record offset and time, not for good.  Gate and tail lock. */
static void
plan_large(AppendState *state, NaradAppendItem *item)
{
	NaradOffset end = pg_atomic_read_u64(&state->part->end_offset);

	if (!explicit_offset_is_valid(item, end))
	{
		LWLockRelease(&state->part->tail_lock);
		report_explicit_offset(state, item, end);
	}
	item->offset = item->explicit_offset == NARAD_INVALID_OFFSET ?
		end : item->explicit_offset;
	item->time = record_time(state, item, GetCurrentTimestamp());
}

/* Its header is completed for its first page.  Gate and tail lock. */
static void
begin_large(AppendState *state, NaradAppendItem *item,
			const NaradDataSpecial *special)
{
	NaradRecordFinish(&item->record, state->xid, state->cid,
					  state->part->partition, item->offset, item->time,
					  special->base_offset, special->base_time);
	NaradHullExtend(state->hull, item->offset, item->offset);
	state->part->gate_end = item->offset + 1;
	state->part->has_ids |= NaradRecordHasDedupId(&item->record);
}

/*
 * Places bytes [pos, pos + len) of a record as the page's next item.  In a
 * critical section.
 */
static void
put_part(NaradAppendItem *item, uint32 pos, uint32 len, Buffer buffer)
{
	NaradRecord *record = &item->record;
	Page		page = BufferGetPage(buffer);

	if (pos > 0)
		NaradDataPagePut(page, record->body + (pos - record->head_len), len,
						 NULL, 0);
	else
	{
		OffsetNumber number = NaradDataPagePut(page, record->head,
											   record->head_len, record->body,
											   len - record->head_len);

		ItemPointerSet(&item->tid, BufferGetBlockNumber(buffer), number);
		record->tuple->t_self = item->tid;
	}
	MarkBufferDirty(buffer);
}

/*
 * The current page for the first part of a large record, locked, if it can be
 * read and at least a quarter of it is free; else InvalidBuffer.  The head of
 * a record is never divided.  The pin goes to the caller.  Tail lock.
 */
static Buffer
lock_page_for_first_part(AppendState *state, NaradAppendItem *item)
{
	Buffer		buffer;
	Page		page;

	if (!segment_is_usable(state) || state->part->next_page == 0)
		return InvalidBuffer;
	buffer = lock_tail_page(state);
	if (!BufferIsValid(buffer))
		return InvalidBuffer;
	state->tail_pin = InvalidBuffer;
	page = BufferGetPage(buffer);
	if (NaradDataPageFree(page) >= Max(BLCKSZ / 4, item->record.head_len) &&
		fits_bases(NaradDataPageSpecial(page), item->offset, item->time))
		return buffer;
	UnlockReleaseBuffer(buffer);
	return InvalidBuffer;
}

/*
 * Fills the current page with the first part of a large record, if that is
 * worth while; returns how long the part is.  Gate held.
 */
static uint32
append_first_part(AppendState *state, NaradAppendItem *item)
{
	NaradLogPartition *part = state->part;
	uint32		len = 0;
	Buffer		buffer;

	pin_tail(state);
	LWLockAcquire(&part->tail_lock, LW_EXCLUSIVE);
	plan_large(state, item);
	buffer = lock_page_for_first_part(state, item);
	if (BufferIsValid(buffer))
	{
		Page		page = BufferGetPage(buffer);
		OffsetNumber number = OffsetNumberNext(PageGetMaxOffsetNumber(page));
		uint16		old_upper = ((PageHeader) page)->pd_upper;

		len = NaradDataPageFree(page);
		Assert(len < NaradRecordLength(&item->record));
		begin_large(state, item, NaradDataPageSpecial(page));
		START_CRIT_SECTION();
		put_part(item, 0, len, buffer);
		NaradXLogAppend(state->rel, buffer, number, number, old_upper, false);
		advance_tail(state, buffer, false, item->time);
		part->last_time = item->time;
		END_CRIT_SECTION();
		UnlockReleaseBuffer(buffer);
	}
	LWLockRelease(&part->tail_lock);
	report_damaged_tail(state);
	return len;
}

/* How many pages to write at once: not more than our share of the buffers. */
static uint32
parts_at_once(void)
{
	return Max(1, Min(NARAD_APPEND_PAGES, NBuffers / MaxBackends));
}

/*
 * Are the next pages pinned, npages of them at most?  Opens the spare if need
 * be.  False if something has to be prepared or pinned first.  Gate and tail
 * lock.
 */
static bool
parts_are_pinned(AppendState *state, uint32 npages, AppendNeed *need)
{
	NaradLogPartition *part = state->part;
	BlockNumber block;

	if (!page_is_available(state, need))
		return false;
	block = part->open.first_block + part->next_page;
	if (state->npart_pins > 0 && is_pinned(state->part_pins[0], block))
		return true;
	need->nparts = Min(Min(npages, parts_at_once()),
					   part->open_prepared - part->next_page);
	need->new_block = block;
	return false;
}

/*
 * Writes the parts from byte pos on to the fresh pages that are pinned, and
 * returns how long they are together.  With the first part of a record its
 * offset is given, with the last it becomes readable.  Gate and tail lock.
 */
static uint32
write_parts(AppendState *state, NaradAppendItem *item, uint32 pos)
{
	NaradLogPartition *part = state->part;
	uint32		total = NaradRecordLength(&item->record);
	uint32		at = pos;
	int			npages = state->npart_pins;
	NaradDataSpecial special;

	if (pos == 0)
	{
		plan_large(state, item);
		fill_special(state, &special, item->offset, item->time);
		begin_large(state, item, &special);
	}
	for (int i = 0; i < npages; i++)
		LockBuffer(state->part_pins[i], BUFFER_LOCK_EXCLUSIVE);

	START_CRIT_SECTION();
	for (int i = 0; i < npages; i++)
	{
		Buffer		buffer = state->part_pins[i];
		uint32		len = Min(NARAD_MAX_SMALL, total - at);

		if (at > 0)
		{
			fill_special(state, &special, item->offset + 1, item->time);
			special.cont_offset = item->offset;
			special.cont_pos = at;
		}
		NaradDataPageInit(BufferGetPage(buffer), &special);
		put_part(item, at, len, buffer);
		at += len;
	}
	NaradXLogAppendPages(state->rel, state->part_pins, npages);

	for (int i = 0; i < npages; i++)
		advance_tail(state, state->part_pins[i], true, item->time);
	part->last_time = item->time;
	if (at == total)
	{
		pg_write_barrier();
		pg_atomic_write_u64(&part->end_offset, item->offset + 1);
	}
	END_CRIT_SECTION();

	for (int i = 0; i < npages; i++)
		LockBuffer(state->part_pins[i], BUFFER_LOCK_UNLOCK);
	return at - pos;
}

/*
 * Appends parts of a large record, from byte pos on, as soon as there are
 * pages for them: as many as go into one WAL record.  Returns how long they
 * are.  A spare that would take less of the rest than a segment can is
 * exchanged.  The gate keeps others from appending, but not from preparing.
 */
static uint32
append_parts(AppendState *state, NaradAppendItem *item, uint32 pos)
{
	NaradLogPartition *part = state->part;
	uint32		rest = NaradRecordLength(&item->record) - pos;
	uint32		npages = (rest + NARAD_MAX_SMALL - 1) / NARAD_MAX_SMALL;

	for (;;)
	{
		AppendNeed	need = {0};
		uint32		len = 0;
		bool		is_due;

		need.segment_pages = Min(npages, state->topic->segment_pages);
		LWLockAcquire(&part->tail_lock, LW_EXCLUSIVE);
		if (parts_are_pinned(state, npages, &need))
			len = write_parts(state, item, pos);
		is_due = !part->preparing && (wants_spare(part) || wants_run(part));
		if (len == rest)
			leave_gate(part);
		LWLockRelease(&part->tail_lock);

		if (len > 0)
			release_part_pins(state);
		pin_needed(state, &need);
		if (is_due || need.segment || need.prepared > 0)
			prepare(state, &need);
		if (len > 0)
			return len;
		CHECK_FOR_INTERRUPTS();
	}
}

/*
 * Appends one large record.  Whoever waits for the gate goes on when its last
 * part is there.
 */
static void
append_large(AppendState *state, NaradAppendItem *item)
{
	NaradLogPartition *part = state->part;
	BufferAccessStrategy strategy = state->strategy;
	uint32		total = NaradRecordLength(&item->record);
	uint32		pos;

	state->strategy = NaradLargeStrategy(strategy, total, true);
	state->is_large = true;
	NaradXLogAppendReserve(state->rel);
	take_gate(part);
	pos = append_first_part(state, item);
	for (;;)
	{
		uint64		sequence = part->open.sequence;

		if (pos > 0)
			NARAD_STOP("append-large-part");
		CHECK_FOR_INTERRUPTS();
		pos += append_parts(state, item, pos);
		if (pos == total)
			break;
		if (part->open.sequence != sequence)
			NARAD_STOP("append-large-segment");
	}
	ConditionVariableBroadcast(&part->gate_cv);
	release_pins(state);
	state->is_large = false;
	state->strategy = strategy;
}

/* ---- the door -------------------------------------------------------- */

/* The current subtransaction's id with its epoch; asked for once each. */
static uint64
full_xid_of(TransactionId xid)
{
	static TransactionId last_xid = InvalidTransactionId;
	static uint64 last_full_xid = 0;

	if (xid != last_xid)
	{
		last_full_xid = NaradFullXid(xid);
		last_xid = xid;
	}
	return last_full_xid;
}

/* Tells the operator, once an hour a backend, of a clock that is behind. */
static void
report_clock(AppendState *state)
{
	static TimestampTz last_report = 0;
	TimestampTz now;

	if (state->clock_behind < USECS_PER_HOUR)
		return;
	now = GetCurrentTimestamp();
	if (last_report != 0 && now - last_report < USECS_PER_HOUR &&
		now >= last_report)
		return;
	last_report = now;
	ereport(LOG,
			(errmsg("system clock is " INT64_FORMAT " seconds behind the last record of partition %d of topic \"%s\"",
					state->clock_behind / USECS_PER_SEC,
					state->part->partition,
					RelationGetRelationName(state->rel)),
			 errdetail("New records get the time of that one.")));
}

/*
 * NaradAppend
 *
 * Appends records to one partition, in order, as the current
 * (sub)transaction.  info is attached.  The caller holds RowExclusiveLock and
 * no narad lock.  May wait for a large append of another transaction, but not
 * for its end.  Errors: 53100 (disk full), 53200, 54000, 0A000, 22023.
 */
void
NaradAppend(Relation rel, NaradRelInfo *info, int partition,
			NaradAppendItem **items, int nitems, CommandId cid,
			BufferAccessStrategy strategy)
{
	AppendState state = {0};
	int			done = 0;

	Assert(info->shared != NULL);
	Assert(partition >= 0 && partition < info->npartitions);
	if (nitems == 0)
		return;

	state.rel = rel;
	state.topic = info->shared;
	state.part = NaradLogPartitionGet(state.topic, partition);
	state.cid = cid;
	state.strategy = strategy;
	NaradLogTopicSettleEpoch(rel, state.topic);
	state.xid = GetCurrentTransactionId();
	state.full_xid = full_xid_of(state.xid);
	state.hull = NaradHullReserve(rel, state.part);

	while (done < nitems)
	{
		CHECK_FOR_INTERRUPTS();
		if (NaradRecordIsLarge(&items[done]->record))
			append_large(&state, items[done++]);
		else
			done += append_page(&state, items + done, nitems - done);
	}
	report_clock(&state);
	if (state.begun)
		NaradRetainWant(state.topic);
}

/* ---- rolling --------------------------------------------------------- */

/*
 * Is the open segment to be sealed though it is not full?  One with records
 * if the first came so long ago; one without, which stands in the way of
 * giving the file's end back, if that is asked for.  Never in the middle of a
 * large record.  Tail lock.
 */
static bool
roll_is_due(const NaradLogPartition *part, int64 before, bool empty)
{
	if (!part->has_open || part->gate_owner != 0)
		return false;
	return part->next_page > 0 ? part->age_from <= before : empty;
}

/*
 * NaradAppendRoll
 *
 * Seals a partition's open segment, if its first record came before a time, or
 * (empty) it holds none, and opens the next one, at the lowest free place,
 * which then says where the partition ends.  False if there is no reason to.
 * info is attached; RowExclusiveLock, no narad lock.  Errors as NaradAppend.
 */
bool
NaradAppendRoll(Relation rel, NaradRelInfo *info, int partition, int64 before,
				bool empty)
{
	AppendState state = {0};
	AppendNeed	lower = {0};
	NaradLogPartition *part = NaradLogPartitionFind(info->shared, partition);
	bool		is_due;
	bool		rolled = false;

	if (part == NULL)
		return false;
	LWLockAcquire(&part->tail_lock, LW_SHARED);
	is_due = roll_is_due(part, before, empty);
	LWLockRelease(&part->tail_lock);
	if (!is_due)
		return false;

	state.rel = rel;
	state.topic = info->shared;
	state.part = part;
	NaradLogTopicSettleEpoch(rel, state.topic);
	lower.segment = lower.lower = true;
	prepare(&state, &lower);
	while (is_due && !rolled)
	{
		AppendNeed	need = {0};

		CHECK_FOR_INTERRUPTS();
		LWLockAcquire(&part->tail_lock, LW_EXCLUSIVE);
		is_due = roll_is_due(part, before, empty);
		if (is_due && (!part->has_spare || part->spare_prepared == 0))
			need.segment = true;
		else if (is_due && directory_is_pinned(&state, &need))
		{
			open_next_segment(&state);
			rolled = true;
		}
		LWLockRelease(&part->tail_lock);
		pin_needed(&state, &need);
		if (need.segment)
			prepare(&state, &need);
	}
	release_pins(&state);
	return rolled;
}

/*
 * NaradAppendDropSpare
 *
 * Gives a partition's spare back, if it has one and nobody prepares it just
 * now.  info is attached; RowExclusiveLock, no narad lock.
 */
void
NaradAppendDropSpare(Relation rel, NaradRelInfo *info, int partition)
{
	NaradLogPartition *part = NaradLogPartitionFind(info->shared, partition);
	NaradSegmentRef spare;

	if (part == NULL)
		return;
	LWLockAcquire(&part->tail_lock, LW_EXCLUSIVE);
	if (part->preparing || !part->has_spare)
	{
		LWLockRelease(&part->tail_lock);
		return;
	}
	part->preparing = true;
	my_preparing = part;
	spare = part->spare;
	LWLockRelease(&part->tail_lock);

	(void) free_spare(rel, info->shared, part, &spare);
	end_preparing(part);
}

/*
 * NaradPartitionForKey
 *
 * The partition of a key: hash_any of its bytes, modulo the number of
 * partitions.  Part of the format (NaradMetaData.hash_version 1).
 */
int
NaradPartitionForKey(const char *key, int len, int npartitions)
{
	return hash_bytes((const unsigned char *) key, len) % (uint32) npartitions;
}

/*
 * NaradPartitionForNone
 *
 * A partition for records without a key: the same for about NONE_BATCH of
 * this backend's, then the next.  Backends start apart.
 */
int
NaradPartitionForNone(NaradRelInfo *info, int nrecords)
{
	static NaradTopicId topic_id;
	static uint32 partition;
	static int	used;

	if (topic_id != info->topic_id)
	{
		topic_id = info->topic_id;
		partition = hash_bytes_uint32((uint32) MyProcPid);
		used = 0;
	}
	else if (used >= NONE_BATCH)
	{
		partition++;
		used = 0;
	}
	used += nrecords;
	return partition % (uint32) info->npartitions;
}
