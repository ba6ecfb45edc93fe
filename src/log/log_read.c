/*-------------------------------------------------------------------------
 *
 * log_read.c
 *	  Reading a partition by offset, committed as of now.
 *
 * Owns:       NaradReader; two backend-local caches (where a partition was
 *			   read last, and up to where a standby found all transactions
 *			   ended), and the list of damage met by this backend on a
 *			   primary.
 * Invariants: I3.  What became of a record is asked under the share lock of
 *			   its page and kept with the copy of the page; bytes are taken
 *			   from the copy only.
 *			   I7.  A record in progress is PENDING, never stepped over; an
 *			   offset is called dead only if it lay below the partition's end
 *			   before the pages and the map were looked at, so that whatever
 *			   it holds was there to be found.
 *			   I1.  An offset below the partition's start is DROPPED, never
 *			   dead or damaged: before such an answer is given the start is
 *			   looked at, after the pages, for it is raised before their place
 *			   is given away.  A standby looks at the segment's entry.
 *			   I11.  A page that cannot be read costs the offsets between the
 *			   last record before it and the first one after it; a record
 *			   that fails its CRC costs itself.  Pages that do not exist are
 *			   no damage in a segment that is still open.
 * Locks:      one page share lock at a time; the map lock, and the tail lock
 *			   shared for the number of pages in use of the open segment.
 *			   The caller may hold narad locks up to the rank of a shard.
 * Runs in:    backends and workers, on a primary and on a standby, where no
 *			   shared memory is needed: segments are listed from the directory.
 * On error:   nothing to undo; memory is the caller's context's.
 *
 * The order of looking is what makes the answers right: the end of the
 * partition first, then the map of segments, then the number of pages, then
 * the page.  Writers publish in the reverse order.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "storage/predicate.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "log/log_hull.h"
#include "log/log_meta.h"
#include "log/log_page.h"
#include "log/log_read.h"
#include "log/log_record.h"
#include "log/log_segment.h"

/*
 * Records whose status is asked at the first load of a page, unless somebody
 * knows better; doubled then.
 */
#define FIRST_CHUNK		8

/* For whoever asks about the headers of a page only. */
static const NaradItemSpan no_items = {0, 0};

/* Places, and damages, that are remembered from reader to reader. */
#define NHINTS			16
#define MAX_KNOWN		1024
#define MAX_RESOLVED	16384

#define NO_PAGE			PG_UINT32_MAX

struct NaradReader
{
	Relation	rel;
	NaradTopicId topic_id;
	uint32		segment_pages;
	int			partition;
	Snapshot	snapshot;
	bool		show_all;		/* tuples of all records */
	MemoryContext tuples;		/* what has been handed out */
	XLogRecPtr	flush_upto;		/* newest commit among it */

	NaradLogPartition *part;	/* NULL during recovery, and then: */
	NaradSegmentRef *refs;
	int			nrefs;
	NaradOffset end;

	bool		asked;			/* last_offset is the one asked before */
	NaradOffset last_offset;

	bool		have_segment;	/* segment is set */
	NaradSegmentRef segment;
	NaradOffset next_first;		/* where the following segment begins, or
								 * NARAD_INVALID_OFFSET */
	uint32		npages;			/* in use, for certain if npages_exact */
	bool		npages_exact;
	uint32		page_no;		/* last page that served, or NO_PAGE */

	bool		have_page;		/* page is a copy of page_no, ... */
	NaradItemSpan known;		/* ... with these items whole, and their
								 * states set, and the headers of all others */
	int			chunk;
	NaradOffset want;			/* for evaluate_states */
	uint8		states[NARAD_MAX_ITEMS + 1];
	bool		invisible[NARAD_MAX_ITEMS + 1];
	XLogRecPtr	commit_lsn[NARAD_MAX_ITEMS + 1];
	PGAlignedBlock page;
	PGAlignedBlock probe;
};

typedef struct ReadHint
{
	NaradTopicId topic_id;
	int			partition;
	uint32		page_no;
	uint64		sequence;
	uint32		npages;			/* of a sealed segment, which stays as it is;
								 * else 0 */
} ReadHint;

static ReadHint read_hints[NHINTS];

/*
 * Damage that this backend met and logged.  A page that cannot be read is not
 * tried again for a while, as each attempt makes the server complain; then it
 * is, for the trouble may have been the disk's and be over.  Only on a
 * primary: what a standby does not find may be there a moment later.  The
 * sequence keeps a slot apart from its successor.
 */
#define UNREADABLE_PAGE	0		/* in place of an item */
#define LOGGED_PAGE		PG_UINT16_MAX
#define RETRY_AFTER		(10 * USECS_PER_SEC)

typedef struct KnownDamage
{
	NaradTopicId topic_id;
	uint64		sequence;
	BlockNumber block;
	uint32		item;
} KnownDamage;

typedef struct DamageEntry
{
	KnownDamage key;
	TimestampTz met;			/* last time, of an unreadable page */
} DamageEntry;

static HTAB *known_damage = NULL;

/* A standby knows that no transaction is open below a place of a partition. */
typedef struct ResolvedKey
{
	NaradTopicId topic_id;
	uint64		partition;
} ResolvedKey;

typedef struct ResolvedPlace
{
	ResolvedKey key;
	uint64		sequence;
	uint32		page_no;
} ResolvedPlace;

static HTAB *resolved_places = NULL;

#define NRECORDS(page) \
	((int) PageGetMaxOffsetNumber(page) - NaradFirstRecordItem(page) + 1)

static NaradRecordHeader *
record_header(Page page, OffsetNumber item)
{
	return (NaradRecordHeader *) PageGetItem(page, PageGetItemId(page, item));
}

static NaradOffset
item_offset(Page page, OffsetNumber item)
{
	return NaradHeaderOffset(NaradDataPageSpecial(page),
							 record_header(page, item));
}

/* One past the last record that begins on the page, or its base. */
static NaradOffset
page_end_offset(Page page)
{
	if (NRECORDS(page) <= 0)
		return NaradDataPageSpecial(page)->base_offset;
	return item_offset(page, PageGetMaxOffsetNumber(page)) + 1;
}

/* First item whose record is at or past an offset; may be one too far. */
static OffsetNumber
lower_item(Page page, NaradOffset offset)
{
	OffsetNumber low = NaradFirstRecordItem(page);
	OffsetNumber high = PageGetMaxOffsetNumber(page) + 1;

	while (low < high)
	{
		OffsetNumber mid = low + (high - low) / 2;

		if (item_offset(page, mid) < offset)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

/* The entry of a damage, made if `remember` and there is room; or NULL. */
static DamageEntry *
look_up_damage(NaradReader *reader, BlockNumber block, OffsetNumber item,
			   bool remember, bool *found)
{
	KnownDamage key;

	*found = false;
	if (known_damage == NULL)
	{
		HASHCTL		ctl;

		if (!remember)
			return NULL;
		ctl.keysize = sizeof(KnownDamage);
		ctl.entrysize = sizeof(DamageEntry);
		known_damage = hash_create("narad damage", 64, &ctl,
								   HASH_ELEM | HASH_BLOBS);
	}
	memset(&key, 0, sizeof(key));
	key.topic_id = reader->topic_id;
	key.sequence = reader->segment.sequence;
	key.block = block;
	key.item = item;
	if (hash_get_num_entries(known_damage) >= MAX_KNOWN)
		remember = false;
	return hash_search(known_damage, &key, remember ? HASH_ENTER : HASH_FIND,
					   found);
}

/* Remembers that a damage is logged; true if it was known before. */
static bool
damage_is_logged(NaradReader *reader, BlockNumber block, OffsetNumber item)
{
	bool		found;

	(void) look_up_damage(reader, block, item, true, &found);
	return found;
}

/* Could a page not be read a short time ago? */
static bool
page_is_unreadable(NaradReader *reader, BlockNumber block)
{
	DamageEntry *entry;
	bool		found;

	if (known_damage == NULL || reader->part == NULL)
		return false;
	entry = look_up_damage(reader, block, UNREADABLE_PAGE, false, &found);
	return entry != NULL &&
		!TimestampDifferenceExceeds(entry->met, GetCurrentTimestamp(),
									RETRY_AFTER / 1000);
}

static void
remember_unreadable(NaradReader *reader, BlockNumber block)
{
	DamageEntry *entry;
	bool		found;

	if (reader->part == NULL)
		return;
	entry = look_up_damage(reader, block, UNREADABLE_PAGE, true, &found);
	if (entry != NULL)
		entry->met = GetCurrentTimestamp();
}

/*
 * Counts and logs the loss of [first, next): once for a record, or for the
 * first of the pages that cannot be read.
 */
static void
report_damage(NaradReader *reader, BlockNumber block, OffsetNumber item,
			  NaradOffset first, NaradOffset next, uint64 nrecords)
{
	if (reader->part != NULL)
		pg_atomic_fetch_add_u64(&reader->part->corrupt_records, nrecords);
	ereport(LOG,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("skipping damaged records of topic \"%s\", partition %d, offsets " UINT64_FORMAT " to " UINT64_FORMAT,
					RelationGetRelationName(reader->rel), reader->partition,
					first, next - 1),
			 item == LOGGED_PAGE ?
			 errdetail("Block %u cannot be read.", block) :
			 errdetail("The record at (%u,%u) is incomplete, or fails its checksum.",
					   block, item)));
}

/* ---- segments ---- */

static NaradOffset
partition_end(NaradReader *reader)
{
	NaradOffset end;

	if (reader->part == NULL)
		return reader->end;
	end = pg_atomic_read_u64(&reader->part->end_offset);
	/* Pairs with the writer's: what lies below end is on its pages. */
	pg_read_barrier();
	return end;
}

/* NaradSegmentSearch, and where the segment after the one found begins. */
static int
search_refs(const NaradSegmentRef *refs, int nrefs, NaradOffset offset,
			NaradOffset *next_first)
{
	int			found = NaradSegmentSearch(refs, nrefs, offset);

	*next_first = found + 1 < nrefs ? refs[found + 1].first_offset :
		NARAD_INVALID_OFFSET;
	return found;
}

/*
 * Is an offset, for which nothing was found, gone by retention?  Then that is
 * the answer.
 */
static bool
is_dropped(NaradReader *reader, NaradOffset offset, NaradRead *result)
{
	NaradOffset start;

	if (reader->part != NULL)
	{
		pg_read_barrier();
		start = pg_atomic_read_u64(&reader->part->start_offset);
	}
	else
	{
		if (reader->have_segment &&
			NaradSegmentIsThere(reader->rel, &reader->segment))
			return false;
		pfree(reader->refs);
		reader->refs = NaradSegmentList(reader->rel, reader->segment_pages,
										reader->partition, &reader->nrefs);
		start = reader->nrefs > 0 ? reader->refs[0].first_offset : 0;
	}
	if (offset >= start)
		return false;
	result->status = NARAD_READ_DROPPED;
	result->next = start;
	result->extra.flags = 0;
	reader->have_segment = false;
	reader->have_page = false;
	reader->page_no = NO_PAGE;
	return true;
}

/* Sets segment and next_first for an offset; false if none has it. */
static bool
find_segment(NaradReader *reader, NaradOffset offset)
{
	NaradSegmentRef ref;
	int			i;

	if (reader->part != NULL)
	{
		NaradLogPartition *part = reader->part;

		LWLockAcquire(&part->map_lock, LW_SHARED);
		i = search_refs(part->map, part->nmap, offset, &reader->next_first);
		if (i >= 0)
			ref = part->map[i];
		LWLockRelease(&part->map_lock);
	}
	else
	{
		i = search_refs(reader->refs, reader->nrefs, offset,
						&reader->next_first);
		if (i >= 0)
			ref = reader->refs[i];
	}

	if (i < 0)
	{
		reader->have_segment = false;
		return false;
	}
	if (!reader->have_segment || reader->segment.sequence != ref.sequence ||
		reader->segment.first_block != ref.first_block)
	{
		reader->page_no = NO_PAGE;
		reader->npages_exact = false;
		reader->have_page = false;
	}
	reader->segment = ref;
	reader->have_segment = true;
	return true;
}

/*
 * Sets npages of the segment: exactly the pages in use if it is sealed or
 * if the tail can be asked; else those prepared, which need not exist.
 */
static void
find_npages(NaradReader *reader, bool *is_open)
{
	NaradLogPartition *part = reader->part;
	NaradSegmentEntry entry;

	*is_open = false;
	if (part != NULL)
	{
		LWLockAcquire(&part->tail_lock, LW_SHARED);
		if (part->has_open &&
			part->open.sequence == reader->segment.sequence)
		{
			*is_open = true;
			reader->npages = part->next_page;
		}
		LWLockRelease(&part->tail_lock);
		if (*is_open)
			return;
	}

	NaradSegmentReadEntry(reader->rel, &reader->segment, &entry);
	if (entry.partition != reader->segment.partition ||
		entry.sequence != reader->segment.sequence)
		reader->npages = 0;		/* given to another meanwhile */
	else if (entry.state == NARAD_SEGMENT_SEALED)
	{
		reader->npages = entry.pages_used;
		reader->npages_exact = true;
	}
	else if (entry.state == NARAD_SEGMENT_OPEN)
	{
		*is_open = true;
		reader->npages = entry.pages_prepared;
	}
	else
		reader->npages = 0;
	reader->npages = Min(reader->npages, reader->segment.npages);
}

/* ---- pages ---- */

/* Copies a page of the segment, unless that failed just now. */
static NaradPageStatus
copy_page(NaradReader *reader, uint32 page_no, Page copy,
		  NaradPageVisitor visit)
{
	BlockNumber block = reader->segment.first_block + page_no;
	NaradPageStatus status;

	if (page_is_unreadable(reader, block))
		return NARAD_PAGE_DAMAGED;
	status = NaradDataPageCopyWanted(reader->rel, block, reader->topic_id,
									 &reader->segment, copy, visit, reader,
									 visit != NULL ? &reader->known : &no_items);
	if (status == NARAD_PAGE_DAMAGED)
		remember_unreadable(reader, block);
	return status;
}

static NaradPageStatus
probe_page(NaradReader *reader, uint32 page_no)
{
	return copy_page(reader, page_no, (Page) reader->probe.data, NULL);
}

/*
 * With the page share-locked: what became of the records from `want` on, a
 * chunk of them (I3), which are wanted.  Runs of one transaction are asked about
 * once.
 */
static void
evaluate_states(Page page, void *arg)
{
	NaradReader *reader = arg;
	OffsetNumber item = lower_item(page, reader->want);
	OffsetNumber max = PageGetMaxOffsetNumber(page);
	TransactionId last_xmin = InvalidTransactionId;
	uint8		state = NARAD_STATE_DEAD;
	bool		invisible = false;
	XLogRecPtr	lsn = InvalidXLogRecPtr;

	reader->known.from = item;
	reader->known.end = Min(max + 1, item + reader->chunk);
	for (; item < reader->known.end; item++)
	{
		NaradRecordHeader *hdr = record_header(page, item);
		bool		is_frozen = (hdr->flags & NARAD_RECORD_VOLATILE) != 0;

		if (is_frozen || hdr->xmin != last_xmin)
		{
			last_xmin = is_frozen ? InvalidTransactionId : hdr->xmin;
			state = NaradRecordStateNow(hdr);
			invisible = false;
			lsn = InvalidXLogRecPtr;
			if (state == NARAD_STATE_COMMITTED && !is_frozen)
			{
				if (reader->part != NULL)
					lsn = TransactionIdGetCommitLSN(hdr->xmin);
				invisible = reader->snapshot != NULL &&
					XidInMVCCSnapshot(hdr->xmin, reader->snapshot);
			}
		}
		reader->states[item] = state;
		reader->invisible[item] = invisible;
		reader->commit_lsn[item] = lsn;
	}
}

/* Makes `page` a fresh copy of a page, with states from an offset on. */
static NaradPageStatus
load_page(NaradReader *reader, uint32 page_no, NaradOffset offset)
{
	NaradPageStatus status;

	reader->want = offset;
	reader->have_page = false;
	status = copy_page(reader, page_no, (Page) reader->page.data,
					   evaluate_states);
	reader->chunk = Min(reader->chunk * 2, NARAD_MAX_ITEMS);
	if (status == NARAD_PAGE_OK)
	{
		reader->have_page = true;
		reader->page_no = page_no;
	}
	return status;
}

/* True if the copy at hand has a record at or past the offset, none missed. */
static bool
page_covers(NaradReader *reader, NaradOffset offset)
{
	Page		page = (Page) reader->page.data;

	return reader->have_page &&
		NaradDataPageSpecial(page)->base_offset <= offset &&
		offset < page_end_offset(page);
}

/*
 * The last readable page of the segment that begins at or before an offset,
 * or NO_PAGE.  A page that cannot be read is stepped over to the right.
 */
static uint32
search_page(NaradReader *reader, NaradOffset offset)
{
	uint32		low = 0;
	uint32		high = reader->npages;
	uint32		best = NO_PAGE;

	while (low < high)
	{
		uint32		mid = low + (high - low) / 2;
		uint32		at = mid;

		CHECK_FOR_INTERRUPTS();
		while (at < high && probe_page(reader, at) != NARAD_PAGE_OK)
			at++;
		if (at < high &&
			NaradDataPageSpecial(reader->probe.data)->base_offset <= offset)
		{
			best = at;
			low = at + 1;
		}
		else
			high = mid;
	}
	return best;
}

/* Starts where this backend last read the partition, if that was here. */
static void
take_hint(NaradReader *reader)
{
	ReadHint   *hint = &read_hints[reader->partition % NHINTS];

	if (reader->page_no != NO_PAGE ||
		hint->topic_id != reader->topic_id ||
		hint->partition != reader->partition ||
		hint->sequence != reader->segment.sequence)
		return;
	reader->page_no = hint->page_no;
	if (hint->npages > 0)
	{
		reader->npages = hint->npages;
		reader->npages_exact = true;
	}
}

static void
leave_hint(NaradReader *reader)
{
	ReadHint   *hint = &read_hints[reader->partition % NHINTS];

	hint->topic_id = reader->topic_id;
	hint->partition = reader->partition;
	hint->sequence = reader->segment.sequence;
	hint->page_no = reader->page_no;
	hint->npages = reader->npages_exact ? reader->npages : 0;
}

/*
 * Loads the page where a reader that goes forward finds most offsets: the one
 * at hand, if its copy is not at hand, or the next.  False, and nothing is
 * changed, if it is another one.
 */
static bool
load_likely_page(NaradReader *reader, NaradOffset offset)
{
	uint32		at_hand = reader->page_no;
	uint32		likely = reader->have_page ? at_hand + 1 : at_hand;

	if (at_hand == NO_PAGE)
		return false;
	for (; likely <= at_hand + 1 && likely < reader->npages; likely++)
	{
		if (load_page(reader, likely, offset) != NARAD_PAGE_OK ||
			NaradDataPageSpecial(reader->page.data)->base_offset > offset)
			break;
		if (page_covers(reader, offset))
			return true;
	}
	reader->have_page = false;
	reader->page_no = at_hand;
	return false;
}

/*
 * Sets page_no to the page on which an offset may be: the one at hand or the
 * next if the reader goes forward, else by search.
 */
static void
find_page(NaradReader *reader, NaradOffset offset)
{
	for (uint32 i = 0; reader->page_no != NO_PAGE && i < 2; i++)
	{
		uint32		at = reader->page_no + i;
		Page		probe = (Page) reader->probe.data;

		if (at >= reader->npages || probe_page(reader, at) != NARAD_PAGE_OK)
			break;
		if (NaradDataPageSpecial(probe)->base_offset > offset)
		{
			if (i == 1)
				return;			/* a gap between the two */
			break;
		}
		if (offset < page_end_offset(probe) || at + 1 == reader->npages)
		{
			reader->page_no = at;
			return;
		}
	}
	reader->page_no = search_page(reader, offset);
}

/*
 * Answers for an offset that no record of the segment's pages up to page_no
 * has: nothing is there up to the next record.  If that lies behind pages
 * that cannot be read, what was there is lost.
 */
static void
answer_gap(NaradReader *reader, NaradOffset offset, NaradOffset end,
		   bool is_open, NaradRead *result)
{
	uint32		at = reader->page_no == NO_PAGE ? 0 : reader->page_no + 1;
	uint64		nlost = 0;
	uint64		nnew = 0;
	BlockNumber new_block = InvalidBlockNumber;
	NaradOffset next = Min(reader->next_first, end);

	for (; at < reader->npages; at++)
	{
		NaradPageStatus status = probe_page(reader, at);

		CHECK_FOR_INTERRUPTS();
		if (status == NARAD_PAGE_OK)
		{
			NaradOffset base = NaradDataPageSpecial(reader->probe.data)->base_offset;

			if (base > offset)
			{
				next = Min(next, base);
				break;
			}
		}
		/* During recovery pages that exist need not be in use yet. */
		if (status == NARAD_PAGE_DAMAGED ||
			(status == NARAD_PAGE_OTHER &&
			 (!is_open || reader->part != NULL)))
		{
			BlockNumber block = reader->segment.first_block + at;

			nlost++;
			if (!damage_is_logged(reader, block, LOGGED_PAGE) &&
				nnew++ == 0)
				new_block = block;
		}
	}

	if (is_dropped(reader, offset, result))
		return;
	Assert(next > offset);
	result->next = next;
	result->status = nlost > 0 ? NARAD_READ_CORRUPT : NARAD_READ_DEAD;
	if (nnew > 0)
		report_damage(reader, new_block, LOGGED_PAGE, offset, next,
					  Min(next - offset, nnew * NARAD_MAX_ITEMS));
}

/*
 * Brings the page with the first record at or past an offset into `page`,
 * with states.  False if there is none on the page where it would be:
 * the answer is then in *result.
 */
static bool
position_reader(NaradReader *reader, NaradOffset offset, NaradOffset end,
				NaradRead *result)
{
	bool		is_open = false;

	if (!find_segment(reader, offset))
	{
		if (is_dropped(reader, offset, result))
			return false;
		result->status = NARAD_READ_DEAD;
		result->next = Min(reader->next_first, end);
		return false;
	}
	take_hint(reader);
	if (!reader->npages_exact)
		find_npages(reader, &is_open);
	if (reader->page_no != NO_PAGE && reader->page_no >= reader->npages)
		reader->page_no = NO_PAGE;
	if (load_likely_page(reader, offset))
	{
		leave_hint(reader);
		return true;
	}
	find_page(reader, offset);
	if (reader->page_no != NO_PAGE &&
		load_page(reader, reader->page_no, offset) == NARAD_PAGE_OK &&
		page_covers(reader, offset))
	{
		leave_hint(reader);
		return true;
	}
	answer_gap(reader, offset, end, is_open, result);
	return false;
}

/* ---- records ---- */

/* The end of a run of dead records beginning at an item. */
static NaradOffset
dead_run_end(NaradReader *reader, OffsetNumber item)
{
	Page		page = (Page) reader->page.data;

	while (item + 1 < reader->known.end &&
		   reader->states[item + 1] == NARAD_STATE_DEAD)
		item++;
	if (item + 1 < reader->known.end)
		return item_offset(page, item + 1);
	return item_offset(page, item) + 1;
}

/* The tuple of a committed record, or NULL if it is damaged (I11). */
static HeapTuple
read_tuple(NaradReader *reader, OffsetNumber item)
{
	Page		page = (Page) reader->page.data;
	BlockNumber block = reader->segment.first_block + reader->page_no;
	NaradRecordHeader *hdr = record_header(page, item);
	NaradOffset offset = item_offset(page, item);
	int64		time = NaradHeaderTime(NaradDataPageSpecial(page), hdr);
	uint32		len = ItemIdGetLength(PageGetItemId(page, item));
	HeapTuple	tuple = NULL;
	uint32		crc;
	ItemPointerData tid;
	MemoryContext old = MemoryContextSwitchTo(reader->tuples);

	ItemPointerSet(&tid, block, item);
	if (hdr->flags & NARAD_RECORD_LARGE)
	{
		tuple = NaradLargeToTuple(reader->rel, &reader->segment, block, page,
								  item, NULL, &crc);
		if (tuple != NULL && crc != hdr->crc)
		{
			pfree(tuple);
			tuple = NULL;
		}
	}
	else if (NaradRecordCrc((char *) hdr, len, NULL, 0, reader->partition,
							offset, time) == hdr->crc)
		tuple = NaradRecordToTuple((char *) hdr, len, reader->partition,
								   offset, time, &tid,
								   RelationGetRelid(reader->rel));
	MemoryContextSwitchTo(old);
	return tuple;
}

/* What the record has that is no column, if that makes sense. */
static void
read_extra(Page page, OffsetNumber item, NaradRecordExtra *extra)
{
	ItemId		lp = PageGetItemId(page, item);

	if (!NaradRecordExtraGet(PageGetItem(page, lp), ItemIdGetLength(lp), extra))
		extra->flags = 0;
}

/* Answers from an item whose state is known. */
static void
answer_item(NaradReader *reader, OffsetNumber item, NaradRead *result)
{
	Page		page = (Page) reader->page.data;
	BlockNumber block;

	result->next = result->offset + 1;
	if (reader->states[item] != NARAD_STATE_DEAD)
		read_extra(page, item, &result->extra);
	switch ((NaradRecordState) reader->states[item])
	{
		case NARAD_STATE_PENDING:
			result->status = NARAD_READ_PENDING;
			result->xid = record_header(page, item)->xmin;
			if (reader->show_all)
				result->tuple = read_tuple(reader, item);
			return;
		case NARAD_STATE_OWN:
			result->status = NARAD_READ_OWN;
			if (reader->show_all)
				result->tuple = read_tuple(reader, item);
			return;
		case NARAD_STATE_DEAD:
			result->status = NARAD_READ_DEAD;
			result->next = dead_run_end(reader, item);
			return;
		case NARAD_STATE_COMMITTED:
			break;
	}
	if (reader->invisible[item])
	{
		result->status = NARAD_READ_INVISIBLE;
		if (reader->show_all)
			result->tuple = read_tuple(reader, item);
		return;
	}

	result->tuple = read_tuple(reader, item);
	if (result->tuple != NULL)
	{
		result->status = NARAD_READ_OK;
		if (reader->commit_lsn[item] > reader->flush_upto)
			reader->flush_upto = reader->commit_lsn[item];
		return;
	}
	if (is_dropped(reader, result->offset, result))
		return;
	result->status = NARAD_READ_CORRUPT;
	result->extra.flags = 0;
	block = reader->segment.first_block + reader->page_no;
	if (!damage_is_logged(reader, block, item))
		report_damage(reader, block, item, result->offset, result->next, 1);
}

/* ---- bounds without shared memory ---- */

static NaradPageStatus
copy_page_of(Relation rel, NaradTopicId topic_id, const NaradSegmentRef *ref,
			 uint32 page_no, Page copy, NaradPageVisitor visit, void *arg)
{
	return NaradDataPageCopyWanted(rel, ref->first_block + page_no, topic_id,
								   ref, copy, visit, arg, &no_items);
}

/*
 * Pages of a segment that are in use, from its entry and, if it is open,
 * from the pages: those in use come first.
 */
static uint32
count_used_pages(Relation rel, NaradTopicId topic_id,
				 const NaradSegmentRef *ref, const NaradSegmentEntry *entry)
{
	PGAlignedBlock *copy;
	uint32		low = 0;
	uint32		high;

	if (entry->state == NARAD_SEGMENT_SEALED)
		return Min(entry->pages_used, ref->npages);
	copy = palloc(sizeof(PGAlignedBlock));
	high = Min(entry->pages_prepared, ref->npages);
	while (low < high)
	{
		uint32		mid = low + (high - low) / 2;

		if (copy_page_of(rel, topic_id, ref, mid, (Page) copy->data, NULL,
						 NULL) == NARAD_PAGE_OTHER)
			high = mid;
		else
			low = mid + 1;
	}
	pfree(copy);
	return low;
}

/* Where a partition ends, given its last segment. */
static NaradOffset
segment_end_offset(Relation rel, NaradTopicId topic_id,
				   const NaradSegmentRef *ref)
{
	NaradSegmentEntry entry;
	PGAlignedBlock *copy;
	NaradOffset end = ref->first_offset;
	uint32		npages;

	NaradSegmentReadEntry(rel, ref, &entry);
	if (entry.state == NARAD_SEGMENT_SEALED &&
		entry.sequence == ref->sequence)
		return entry.end_offset;
	npages = count_used_pages(rel, topic_id, ref, &entry);
	copy = palloc(sizeof(PGAlignedBlock));
	while (npages-- > 0)
	{
		if (copy_page_of(rel, topic_id, ref, npages, (Page) copy->data, NULL,
						 NULL) != NARAD_PAGE_OK)
			continue;
		end = Max(end, page_end_offset((Page) copy->data));
		break;
	}
	pfree(copy);
	return end;
}

/* Visitor: the first record on the page whose transaction is open. */
static void
find_pending(Page page, void *arg)
{
	NaradOffset *found = arg;
	TransactionId last_xmin = InvalidTransactionId;

	for (OffsetNumber item = NaradFirstRecordItem(page);
		 item <= PageGetMaxOffsetNumber(page); item++)
	{
		NaradRecordHeader *hdr = record_header(page, item);

		if (hdr->xmin == last_xmin ||
			(hdr->flags & NARAD_RECORD_VOLATILE) != 0)
			continue;
		if (NaradRecordStateNow(hdr) == NARAD_STATE_PENDING)
		{
			*found = item_offset(page, item);
			return;
		}
		last_xmin = hdr->xmin;
	}
}

static ResolvedPlace *
get_resolved_place(NaradTopicId topic_id, int partition)
{
	ResolvedKey key = {topic_id, (uint64) partition};
	ResolvedPlace *place;
	bool		found;

	if (resolved_places != NULL &&
		hash_get_num_entries(resolved_places) >= MAX_RESOLVED)
	{
		hash_destroy(resolved_places);
		resolved_places = NULL;
	}
	if (resolved_places == NULL)
	{
		HASHCTL		ctl;

		ctl.keysize = sizeof(ResolvedKey);
		ctl.entrysize = sizeof(ResolvedPlace);
		resolved_places = hash_create("narad resolved places", 64, &ctl,
									  HASH_ELEM | HASH_BLOBS);
	}
	place = hash_search(resolved_places, &key, HASH_ENTER, &found);
	if (!found)
	{
		place->sequence = 0;
		place->page_no = 0;
	}
	return place;
}

/* True if no transaction open now can have a record in the segment. */
static bool
segment_is_resolved(const NaradSegmentEntry *entry)
{
	TransactionId newest = (TransactionId) entry->newest_xid;
	TransactionId xmin = ActiveSnapshotSet() ? GetActiveSnapshot()->xmin :
	InvalidTransactionId;

	if (entry->flags & NARAD_SEGMENT_FROZEN)
		return true;			/* newest may be too old to be compared */
	return entry->state == NARAD_SEGMENT_SEALED &&
		TransactionIdIsNormal(newest) && TransactionIdIsNormal(xmin) &&
		TransactionIdPrecedes(newest, xmin);
}

/*
 * The lowest offset of an open transaction's record, or `end`.  Remembers
 * how far everything had ended: that stays so.
 */
static NaradOffset
find_last_stable(Relation rel, NaradTopicId topic_id,
				 const NaradSegmentRef *refs, int nrefs, NaradOffset end)
{
	ResolvedPlace *place;
	PGAlignedBlock *copy = palloc(sizeof(PGAlignedBlock));
	NaradOffset pending = NARAD_INVALID_OFFSET;

	place = nrefs > 0 ? get_resolved_place(topic_id, refs[0].partition) : NULL;
	for (int i = 0; i < nrefs && pending == NARAD_INVALID_OFFSET; i++)
	{
		NaradSegmentEntry entry;
		uint32		npages;

		if (refs[i].sequence < place->sequence)
			continue;
		NaradSegmentReadEntry(rel, &refs[i], &entry);
		if (entry.sequence != refs[i].sequence || segment_is_resolved(&entry))
			continue;
		npages = count_used_pages(rel, topic_id, &refs[i], &entry);
		for (uint32 at = refs[i].sequence == place->sequence ?
			 place->page_no : 0; at < npages; at++)
		{
			CHECK_FOR_INTERRUPTS();
			(void) copy_page_of(rel, topic_id, &refs[i], at,
								(Page) copy->data, find_pending, &pending);
			place->sequence = refs[i].sequence;
			place->page_no = at;
			if (pending != NARAD_INVALID_OFFSET)
				break;
		}
	}
	pfree(copy);
	return Min(pending, end);
}

/* ---- the interface ---- */

/*
 * NaradReaderBegin
 *
 * A reader of one partition, in the current memory context.  `info` is
 * copied from and need not live on.  The caller keeps the relation open and
 * locked until NaradReaderEnd.
 */
NaradReader *
NaradReaderBegin(Relation rel, NaradRelInfo *info, int partition,
				 Snapshot snapshot)
{
	NaradReader *reader = palloc(sizeof(NaradReader));

	Assert(partition >= 0 && partition < info->npartitions);
	memset(reader, 0, offsetof(NaradReader, states));
	if (info->shared == NULL && !RecoveryInProgress())
		info = NaradRelInfoAttach(rel);
	if (IsolationIsSerializable())
		PredicateLockRelation(rel, GetTransactionSnapshot());
	reader->rel = rel;
	reader->topic_id = info->topic_id;
	reader->segment_pages = info->segment_pages;
	reader->partition = partition;
	reader->snapshot = snapshot;
	reader->page_no = NO_PAGE;
	reader->chunk = FIRST_CHUNK;
	reader->tuples = AllocSetContextCreate(CurrentMemoryContext,
										   "narad reader",
										   ALLOCSET_DEFAULT_SIZES);
	if (info->shared != NULL)
		reader->part = NaradLogPartitionGet(info->shared, partition);
	else
	{
		reader->refs = NaradSegmentList(rel, reader->segment_pages, partition,
										&reader->nrefs);
		if (reader->nrefs > 0)
			reader->end = segment_end_offset(rel, reader->topic_id,
											 &reader->refs[reader->nrefs - 1]);
	}
	return reader;
}

/*
 * NaradReaderRead
 *
 * What is at an offset.  The caller has an active snapshot, and holds no
 * narad lock but such as rank before the tail's.  Errors on cancel, out of
 * memory, and when the storage below fails to read at all; not on damage.
 */
void
NaradReaderRead(NaradReader *reader, NaradOffset offset, NaradRead *result)
{
	NaradOffset end = partition_end(reader);
	Page		page = (Page) reader->page.data;
	OffsetNumber item;

	result->offset = offset;
	result->next = offset;
	result->xid = InvalidTransactionId;
	result->tuple = NULL;
	result->extra.flags = 0;
	result->status = NARAD_READ_END;
	if (offset >= end ||
		(reader->part != NULL && is_dropped(reader, offset, result)))
		return;

	/* Asked again: what was pending may have ended. */
	if (reader->asked && offset <= reader->last_offset)
		reader->have_page = false;
	reader->asked = true;
	reader->last_offset = offset;

	for (int attempt = 0;; attempt++)
	{
		if (!page_covers(reader, offset) &&
			!position_reader(reader, offset, end, result))
			return;
		item = lower_item(page, offset);
		if (item >= reader->known.from && item < reader->known.end)
			break;
		/* Beyond the chunk of states at hand: load the page again. */
		Assert(attempt == 0);
		reader->have_page = false;
	}

	if (item_offset(page, item) > offset)
	{
		result->status = NARAD_READ_DEAD;
		result->next = item_offset(page, item);
		return;
	}
	answer_item(reader, item, result);
}

/*
 * NaradReaderExpect
 *
 * About so many records will be asked for next.  What became of a transaction
 * costs two looks at the commit log, so no more are asked about than are
 * likely to be read.
 */
void
NaradReaderExpect(NaradReader *reader, int nrecords)
{
	if (!reader->asked || reader->chunk < nrecords)
		reader->chunk = Min(Max(nrecords, 1), NARAD_MAX_ITEMS);
}

/*
 * NaradReaderShowAll
 *
 * Tuples of records that are in progress, or not for the snapshot, too.
 */
void
NaradReaderShowAll(NaradReader *reader)
{
	reader->show_all = true;
}

/*
 * NaradReaderReset
 *
 * Frees the tuples handed out so far; the duty to flush remains.
 */
void
NaradReaderReset(NaradReader *reader)
{
	MemoryContextReset(reader->tuples);
}

/*
 * NaradReaderEnd
 *
 * Makes sure that no crash can undo the commit of a record that was handed
 * out, then frees the reader and its tuples.  No lock may be held: this may
 * wait for the disk.
 */
void
NaradReaderEnd(NaradReader *reader)
{
	if (!XLogRecPtrIsInvalid(reader->flush_upto))
		XLogFlush(reader->flush_upto);
	MemoryContextDelete(reader->tuples);
	if (reader->refs != NULL)
		pfree(reader->refs);
	pfree(reader);
}

/*
 * NaradPartitionBounds
 *
 * The earliest retained offset, the next one to be given, and the lowest
 * that an open transaction has.  From shared memory if info has its shared
 * part, else from the directory and the pages, as they are at the moment; the
 * caller then has an active snapshot.
 */
void
NaradPartitionBounds(Relation rel, NaradRelInfo *info, int partition,
					 NaradOffset *earliest, NaradOffset *end,
					 NaradOffset *stable)
{
	NaradSegmentRef *refs;
	NaradMetaData meta;
	NaradTopicId topic_id;
	int			nrefs;

	*earliest = *end = *stable = 0;
	if (info == NULL)
		return;
	Assert(partition >= 0 && partition < info->npartitions);

	if (info->shared != NULL)
	{
		NaradLogPartition *part = NaradLogPartitionFind(info->shared,
														partition);

		if (part == NULL)
			return;
		NaradHullPoll(part);
		*earliest = pg_atomic_read_u64(&part->start_offset);
		*end = pg_atomic_read_u64(&part->end_offset);
		*stable = NaradHullLastStable(part);
		*stable = Min(*stable, *end);
		return;
	}

	topic_id = info->topic_id;
	refs = NaradSegmentList(rel, info->segment_pages, partition, &nrefs);
	if (nrefs == 0)
	{
		/*
		 * None yet; or its only one was freed before we came to it, and
		 * another opened where we had been.
		 */
		pfree(refs);
		refs = NaradSegmentList(rel, info->segment_pages, partition, &nrefs);
	}
	if (nrefs > 0)
	{
		*earliest = refs[0].first_offset;
		*end = segment_end_offset(rel, topic_id, &refs[nrefs - 1]);
	}
	else if (NaradMetaRead(rel, &meta))
	{
		NaradOffset *starts = NaradMetaStartOffsets(rel, &meta);

		*earliest = *end = starts[partition];
		pfree(starts);
	}
	*stable = find_last_stable(rel, topic_id, refs, nrefs, *end);
	pfree(refs);
}
