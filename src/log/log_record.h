/*-------------------------------------------------------------------------
 *
 * log_record.h
 *	  A record's bytes: from a row, to a heap tuple.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LOG_RECORD_H
#define LOG_RECORD_H

#include "access/htup.h"
#include "access/tupdesc.h"
#include "log/log_format.h"

/*
 * What a record has that is no column: its extension, taken apart.  Without
 * flags there is none.
 */
typedef struct NaradRecordExtra
{
	uint16		flags;			/* NARAD_EXT_*; what follows is set by them */
	uint16		id_len;			/* DEDUP, PRODUCER: 1 .. NARAD_MAX_ID */
	int32		epoch;			/* PRODUCER */
	int64		sequence;		/* PRODUCER */
	int64		due;			/* DUE: TimestampTz */
	const char *id;				/* DEDUP, PRODUCER: not terminated */
} NaradRecordExtra;

/*
 * A record ready to be appended: `head` is header, large part, extension and
 * null bitmap, padded; the body follows it on the page.  `body` points into
 * `tuple`.  crc_state has all of the CRC but partition, offset and time.
 */
typedef struct NaradRecord
{
	HeapTuple	tuple;			/* all columns; the first three not null, to
								 * be patched when the position is known */
	char	   *head;
	uint32		head_len;
	char	   *body;
	uint32		body_len;
	uint32		crc_state;
} NaradRecord;

#define NaradRecordLength(r) ((r)->head_len + (r)->body_len)
#define NaradRecordIsLarge(r) (NaradRecordLength(r) > NARAD_MAX_SMALL)

/* Has it a deduplication id? */
extern bool NaradRecordHasDedupId(const NaradRecord *record);

/*
 * Forms a record from values in the current memory context.  The first three
 * columns are ignored.  External values are fetched, expanded ones
 * flattened, long ones compressed when that saves space.  Errors 54000 when
 * the values exceed narad.max_message_size.  No catalog access.  extra: what
 * else it is to have, or NULL.
 */
extern void NaradRecordForm(NaradRecord *record, TupleDesc desc,
							Datum *values, bool *isnull,
							const NaradRecordExtra *extra);

/* Completes header and tuple.  Under the tail lock: no error, no palloc. */
extern void NaradRecordFinish(NaradRecord *record, TransactionId xmin,
							  CommandId cmin, int partition,
							  NaradOffset offset, int64 time,
							  NaradOffset base_offset, int64 base_time);

/*
 * The CRC over partition, offset, time, attribute count, bitmap and body of
 * a complete record; compare with its header's.  It may lie in two pieces,
 * of which the first has the header.
 */
extern uint32 NaradRecordCrc(const char *record, uint32 len,
							 const char *rest, uint32 rest_len, int partition,
							 NaradOffset offset, int64 time);

/* Bytes before the body, or 0 if the header makes no sense within len. */
extern uint32 NaradRecordHeadLength(const char *record, uint32 len);

/*
 * Takes the extension apart of a record, or of a large record's first part;
 * the id points into it.  False if it makes no sense within len.
 */
extern bool NaradRecordExtraGet(const char *record, uint32 len,
								NaradRecordExtra *extra);

/*
 * The heap tuple of a complete record, palloc'ed: xmin, cmin, frozen and dead
 * bits set; t_self and t_tableOid as given.  NULL if the record is malformed.
 */
extern HeapTuple NaradRecordToTuple(const char *record, uint32 len,
									int partition, NaradOffset offset,
									int64 time, ItemPointer tid, Oid relid);

/*
 * The same without its body, for which there is room at *body, given a
 * record's head.
 */
extern HeapTuple NaradTupleBegin(const char *head, uint32 head_len,
								 uint32 body_len, int partition,
								 NaradOffset offset, int64 time,
								 ItemPointer tid, Oid relid, char **body);

#endif							/* LOG_RECORD_H */
