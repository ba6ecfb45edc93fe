/*-------------------------------------------------------------------------
 *
 * log_record.c
 *	  A record's bytes: from a row, to a heap tuple.
 *
 * Owns:       nothing; bytes in, bytes out.
 * Invariants: I11.  The CRC covers everything of a record that never changes:
 *			   attribute count, flags without the volatile ones, all bytes
 *			   after the header (large part, extension, null bitmap, body),
 *			   then partition, offset and time, which stand nowhere in full.
 *			   xmin and cmin are left out, as freezing may change them.  The
 *			   three that are known under the tail lock only come last, so
 *			   that no more than 20 bytes are summed up there.
 * Locks:      none.
 * Runs in:    any backend.
 * On error:   NaradRecordForm errors before anything has been appended.
 *
 * A stored record is a heap tuple whose first 24 bytes of data are not stored
 * (partition, msg_offset, produced_at: fixed width, never null), so that both
 * directions are two copies and no column is looked at.  The body begins at
 * the same alignment in the record as in the tuple: 24 and every head length
 * are multiples of MAXIMUM_ALIGNOF.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/detoast.h"
#include "access/heaptoast.h"
#include "access/htup_details.h"
#include "access/toast_internals.h"
#include "access/tupdesc.h"
#include "port/pg_crc32c.h"
#include "utils/memutils.h"

#include "base/base_guc.h"
#include "log/log_record.h"

/* Rows of up to so many columns are formed without scratch memory. */
#define FORM_LOCAL_ATTRS	16

#define NARAD_RECORD_KNOWN_FLAGS \
	(NARAD_RECORD_HASNULL | NARAD_RECORD_HASVAR | NARAD_RECORD_LARGE | \
	 NARAD_RECORD_EXT | NARAD_RECORD_VOLATILE)

#define NARAD_EXT_KNOWN_FLAGS \
	(NARAD_EXT_DUE | NARAD_EXT_DEDUP | NARAD_EXT_PRODUCER)
#define NARAD_EXT_ID_FLAGS	(NARAD_EXT_DEDUP | NARAD_EXT_PRODUCER)

StaticAssertDecl(NARAD_PREFIX_LEN % MAXIMUM_ALIGNOF == 0,
				 "prefix keeps the alignment of the body");
StaticAssertDecl(SIZEOF_DATUM == 8, "placeholders are passed by value");

/* What the CRC holds of the header. */
static pg_crc32c
crc_begin(uint16 natts, uint16 flags)
{
	uint16		fixed[2];
	pg_crc32c	crc;

	fixed[0] = natts;
	fixed[1] = flags & ~NARAD_RECORD_VOLATILE;
	INIT_CRC32C(crc);
	COMP_CRC32C(crc, fixed, sizeof(fixed));
	return crc;
}

static uint32
crc_end(pg_crc32c crc, int partition, NaradOffset offset, int64 time)
{
	uint32		part = (uint32) partition;

	COMP_CRC32C(crc, &part, sizeof(part));
	COMP_CRC32C(crc, &offset, sizeof(offset));
	COMP_CRC32C(crc, &time, sizeof(time));
	FIN_CRC32C(crc);
	return crc;
}

/* Errors if the values, uncompressed, are more than a message may be. */
static void
check_row_size(TupleDesc desc, Datum *values, bool *isnull)
{
	Size		limit = (Size) narad_max_message_size * 1024;
	Size		size = 0;

	for (int i = NARAD_ATTR_TIME; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);

		if (isnull[i])
			continue;
		if (att->attlen == -1)
			size += toast_raw_datum_size(values[i]) - VARHDRSZ;
		else if (att->attlen == -2)
			size += strlen(DatumGetCString(values[i]));
		else
			size += att->attlen;
	}

	if (size > limit)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("message of %zu bytes exceeds the limit of %zu bytes",
						size, limit),
				 errhint("Increase \"narad.max_message_size\", or store the payload elsewhere.")));
}

/*
 * Replaces values that live elsewhere by their bytes.  What is compressed
 * stays so.
 */
static void
fetch_external(TupleDesc desc, Datum *values, bool *isnull)
{
	for (int i = NARAD_ATTR_TIME; i < desc->natts; i++)
	{
		struct varlena *value;

		if (isnull[i] || TupleDescAttr(desc, i)->attlen != -1)
			continue;
		value = (struct varlena *) DatumGetPointer(values[i]);
		if (VARATT_IS_EXTERNAL(value))
			values[i] = PointerGetDatum(detoast_external_attr(value));
	}
}

/* The longest value that may be compressed and has not been tried, or -1. */
static int
find_compressible(TupleDesc desc, Datum *values, bool *isnull,
				  const bool *tried)
{
	int			best = -1;
	Size		best_size = MAXALIGN(TOAST_POINTER_SIZE);

	for (int i = NARAD_ATTR_TIME; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);
		Size		size;

		if (isnull[i] || tried[i] || att->attlen != -1)
			continue;
		if (att->attstorage != TYPSTORAGE_EXTENDED &&
			att->attstorage != TYPSTORAGE_MAIN)
			continue;
		if (VARATT_IS_COMPRESSED(DatumGetPointer(values[i])))
			continue;
		size = VARSIZE_ANY(DatumGetPointer(values[i]));
		if (size > best_size)
		{
			best = i;
			best_size = size;
		}
	}
	return best;
}

/* Frees a value that is not the caller's, but was made here. */
static void
free_made(Datum value, Datum original)
{
	if (value != original)
		pfree(DatumGetPointer(value));
}

/*
 * Compresses the longest values in line while the row is longer than what
 * heap would compress.  Returns the size of the row's data.
 */
static Size
compress_values(TupleDesc desc, Datum *values, const Datum *originals,
				bool *isnull, Size data_len)
{
	bool	   *tried = palloc0(desc->natts * sizeof(bool));

	while (data_len > TOAST_TUPLE_TARGET)
	{
		int			i = find_compressible(desc, values, isnull, tried);
		Datum		packed;

		if (i < 0)
			break;
		tried[i] = true;
		packed = toast_compress_datum(values[i],
									  TupleDescAttr(desc, i)->attcompression);
		if (DatumGetPointer(packed) == NULL)
			continue;
		free_made(values[i], originals[i]);
		values[i] = packed;
		data_len = heap_compute_data_size(desc, values, isnull);
	}
	pfree(tried);
	return data_len;
}

/* Bytes of an extension with such flags, its id and padding left out. */
static uint32
extension_fixed_length(uint16 flags)
{
	uint32		len = sizeof(NaradExtension);

	if (flags & NARAD_EXT_DUE)
		len += sizeof(int64);
	if (flags & NARAD_EXT_PRODUCER)
		len += sizeof(NaradProducerPart);
	return len;
}

/* Bytes of an extension with its padding; 0 if there is none. */
static Size
extension_size(const NaradRecordExtra *extra)
{
	if (extra == NULL || extra->flags == 0)
		return 0;
	return MAXALIGN(extension_fixed_length(extra->flags) +
					((extra->flags & NARAD_EXT_ID_FLAGS) ? extra->id_len : 0));
}

/* Writes an extension to zeroed bytes. */
static void
fill_extension(char *place, const NaradRecordExtra *extra)
{
	NaradExtension ext = {0};
	char	   *next = place + sizeof(ext);

	Assert((extra->flags & ~NARAD_EXT_KNOWN_FLAGS) == 0);
	Assert((extra->flags & NARAD_EXT_ID_FLAGS) != NARAD_EXT_ID_FLAGS);
	if (extra->flags & NARAD_EXT_DUE)
	{
		memcpy(next, &extra->due, sizeof(extra->due));
		next += sizeof(extra->due);
	}
	if (extra->flags & NARAD_EXT_PRODUCER)
	{
		NaradProducerPart part = {extra->sequence, extra->epoch, 0};

		memcpy(next, &part, sizeof(part));
		next += sizeof(part);
	}
	if (extra->flags & NARAD_EXT_ID_FLAGS)
	{
		Assert(extra->id_len >= 1 && extra->id_len <= NARAD_MAX_ID);
		ext.id_len = extra->id_len;
		memcpy(next, extra->id, extra->id_len);
		next += extra->id_len;
	}
	ext.flags = extra->flags;
	ext.len = next - place;
	memcpy(place, &ext, sizeof(ext));
}

/*
 * Zeroes what heap_fill_tuple leaves alone, as it is stored and summed up:
 * the padding between columns.  All of it, where that costs nothing.
 */
static void
zero_gaps(TupleDesc desc, Datum *values, bool *isnull, char *data, Size len)
{
	Size		at = 0;

	if (len <= NARAD_MAX_SMALL)
	{
		memset(data, 0, len);
		return;
	}
	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);
		char	   *value = DatumGetPointer(values[i]);
		Size		start;

		if (isnull[i])
			continue;
		if (att->attlen == -1 && att->attstorage != TYPSTORAGE_PLAIN &&
			VARATT_CAN_MAKE_SHORT(value))
		{
			at += VARATT_CONVERTED_SHORT_SIZE(value);
			continue;
		}
		start = att_align_datum(at, att->attalign, att->attlen, values[i]);
		memset(data + at, 0, start - at);
		at = att_addlength_datum(start, att->attlen, values[i]);
	}
	Assert(at == len);
}

/*
 * Lays out tuple and head in one area and fills them, all but what
 * NaradRecordFinish adds.
 */
static void
build_record(NaradRecord *record, TupleDesc desc, Datum *values,
			 bool *isnull, bool hasnull, Size data_len,
			 const NaradRecordExtra *extra)
{
	Size		ext_size = extension_size(extra);
	Size		bitmap_len = hasnull ? BITMAPLEN(desc->natts) : 0;
	Size		hoff = MAXALIGN(SizeofHeapTupleHeader + bitmap_len);
	Size		body_len = data_len - NARAD_PREFIX_LEN;
	Size		head_len;
	Size		tuple_size;
	bool		large;
	HeapTuple	tuple;
	HeapTupleHeader td;
	NaradRecordHeader *hdr;
	char	   *next;

	head_len = MAXALIGN(sizeof(NaradRecordHeader) + ext_size + bitmap_len);
	large = head_len + body_len > NARAD_MAX_SMALL;
	if (large)
		head_len = MAXALIGN(sizeof(NaradRecordHeader) +
							sizeof(NaradLargePart) + ext_size + bitmap_len);

	tuple_size = MAXALIGN(HEAPTUPLESIZE + hoff + data_len);
	tuple = (HeapTuple) palloc(tuple_size + head_len);
	memset(tuple, 0, HEAPTUPLESIZE + hoff);
	zero_gaps(desc, values, isnull, (char *) tuple + HEAPTUPLESIZE + hoff,
			  data_len);
	memset((char *) tuple + HEAPTUPLESIZE + hoff + data_len, 0,
		   tuple_size + head_len - (HEAPTUPLESIZE + hoff + data_len));
	td = tuple->t_data = (HeapTupleHeader) ((char *) tuple + HEAPTUPLESIZE);
	tuple->t_len = hoff + data_len;
	ItemPointerSetInvalid(&tuple->t_self);
	tuple->t_tableOid = InvalidOid;
	ItemPointerSetInvalid(&td->t_ctid);
	HeapTupleHeaderSetNatts(td, desc->natts);
	td->t_hoff = hoff;
	heap_fill_tuple(desc, values, isnull, (char *) td + hoff, data_len,
					&td->t_infomask, hasnull ? td->t_bits : NULL);
	Assert((td->t_infomask & HEAP_HASEXTERNAL) == 0);

	hdr = (NaradRecordHeader *) ((char *) tuple + tuple_size);
	hdr->natts = desc->natts;
	hdr->flags = (hasnull ? NARAD_RECORD_HASNULL : 0) |
		((td->t_infomask & HEAP_HASVARWIDTH) ? NARAD_RECORD_HASVAR : 0) |
		(large ? NARAD_RECORD_LARGE : 0) |
		(ext_size > 0 ? NARAD_RECORD_EXT : 0);
	next = (char *) (hdr + 1);
	if (large)
	{
		((NaradLargePart *) next)->total_len = head_len + body_len;
		next += sizeof(NaradLargePart);
	}
	if (ext_size > 0)
		fill_extension(next, extra);
	if (hasnull)
		memcpy(next + ext_size, td->t_bits, bitmap_len);

	record->tuple = tuple;
	record->head = (char *) hdr;
	record->head_len = head_len;
	record->body = (char *) td + hoff + NARAD_PREFIX_LEN;
	record->body_len = body_len;
}

/*
 * NaradRecordForm
 *
 * A record from a row's values, and from what it has that is no column (NULL:
 * nothing); the caller's arrays are left alone, and what extra points to is
 * copied.  The tuple and head are one chunk of memory, freed by
 * pfree(record->tuple).
 * Errors 54000 if the values exceed narad.max_message_size, and whatever
 * fetching a value from elsewhere may raise.  No narad lock may be held.
 */
void
NaradRecordForm(NaradRecord *record, TupleDesc desc, Datum *values,
				bool *isnull, const NaradRecordExtra *extra)
{
	int			natts = desc->natts;
	Datum		local_values[FORM_LOCAL_ATTRS];
	bool		local_isnull[FORM_LOCAL_ATTRS];
	Datum	   *vals = local_values;
	bool	   *nulls = local_isnull;
	bool		hasnull = false;
	Size		data_len;
	pg_crc32c	crc;

	Assert(natts >= NARAD_STANDARD_ATTRS);
	if (natts > FORM_LOCAL_ATTRS)
	{
		vals = palloc(natts * sizeof(Datum));
		nulls = palloc(natts * sizeof(bool));
	}
	memcpy(vals, values, natts * sizeof(Datum));
	memcpy(nulls, isnull, natts * sizeof(bool));
	for (int i = 0; i < NARAD_ATTR_TIME; i++)
	{
		vals[i] = (Datum) 0;
		nulls[i] = false;
	}
	check_row_size(desc, vals, nulls);
	fetch_external(desc, vals, nulls);
	for (int i = NARAD_ATTR_TIME; i < natts; i++)
		hasnull |= nulls[i];

	data_len = heap_compute_data_size(desc, vals, nulls);
	if (data_len > TOAST_TUPLE_TARGET)
		data_len = compress_values(desc, vals, values, nulls, data_len);
	build_record(record, desc, vals, nulls, hasnull, data_len, extra);

	crc = crc_begin(natts, ((NaradRecordHeader *) record->head)->flags);
	COMP_CRC32C(crc, record->head + sizeof(NaradRecordHeader),
				record->head_len - sizeof(NaradRecordHeader));
	COMP_CRC32C(crc, record->body, record->body_len);
	record->crc_state = crc;

	/* They may be as long as the record is. */
	for (int i = NARAD_ATTR_TIME; i < natts; i++)
		if (!nulls[i] && TupleDescAttr(desc, i)->attlen == -1)
			free_made(vals[i], values[i]);

	if (vals != local_values)
	{
		pfree(vals);
		pfree(nulls);
	}
}

/*
 * NaradRecordFinish
 *
 * Completes header and tuple once the position is known; t_self is left to
 * the caller.  Plain memory work: may be called under the tail lock and in a
 * critical section.  The distances to base_offset and base_time fit their
 * fields, as the caller has seen to.
 */
void
NaradRecordFinish(NaradRecord *record, TransactionId xmin, CommandId cmin,
				  int partition, NaradOffset offset, int64 time,
				  NaradOffset base_offset, int64 base_time)
{
	NaradRecordHeader *hdr = (NaradRecordHeader *) record->head;
	HeapTupleHeader td = record->tuple->t_data;
	char	   *prefix = record->body - NARAD_PREFIX_LEN;
	int32		part = partition;
	int64		pos = (int64) offset;
	uint64		elapsed = (uint64) (time - base_time);

	Assert(offset >= base_offset && offset - base_offset <= NARAD_MAX_DELTA);
	Assert(time >= base_time && elapsed <= NARAD_MAX_TIME_DELTA);

	hdr->xmin = xmin;
	hdr->cmin = cmin;
	hdr->time_low = (uint32) elapsed;
	hdr->time_high = (uint16) (elapsed >> 32);
	hdr->delta = (uint16) (offset - base_offset);
	hdr->crc = crc_end(record->crc_state, partition, offset, time);

	memcpy(prefix, &part, sizeof(part));
	memcpy(prefix + 8, &pos, sizeof(pos));
	memcpy(prefix + 16, &time, sizeof(time));
	td->t_infomask |= HEAP_XMAX_INVALID;
	HeapTupleHeaderSetXmin(td, xmin);
	HeapTupleHeaderSetCmin(td, cmin);
	HeapTupleHeaderSetXmax(td, InvalidTransactionId);
}

/*
 * NaradRecordCrc
 *
 * What the header's crc must be.  The record is complete: header to the end
 * of its body, in one piece, or in two (rest may be NULL).
 */
uint32
NaradRecordCrc(const char *record, uint32 len, const char *rest,
			   uint32 rest_len, int partition, NaradOffset offset, int64 time)
{
	const NaradRecordHeader *hdr = (const NaradRecordHeader *) record;
	pg_crc32c	crc = crc_begin(hdr->natts, hdr->flags);

	Assert(len >= sizeof(NaradRecordHeader));
	COMP_CRC32C(crc, record + sizeof(NaradRecordHeader),
				len - sizeof(NaradRecordHeader));
	if (rest_len > 0)
		COMP_CRC32C(crc, rest, rest_len);
	return crc_end(crc, partition, offset, time);
}

/* Where the extension begins, or would. */
static uint32
extension_start(const NaradRecordHeader *hdr)
{
	return sizeof(NaradRecordHeader) +
		((hdr->flags & NARAD_RECORD_LARGE) ? sizeof(NaradLargePart) : 0);
}

/*
 * Reads the head of the extension that begins at pos.  False if it makes no
 * sense within len, or if its parts do not add up.
 */
static bool
read_extension(const char *record, uint32 len, uint32 pos,
			   NaradExtension *ext)
{
	bool		has_id;

	if (pos + sizeof(*ext) > len)
		return false;
	memcpy(ext, record + pos, sizeof(*ext));
	has_id = (ext->flags & NARAD_EXT_ID_FLAGS) != 0;
	return ext->flags != 0 &&
		(ext->flags & ~NARAD_EXT_KNOWN_FLAGS) == 0 &&
		(ext->flags & NARAD_EXT_ID_FLAGS) != NARAD_EXT_ID_FLAGS &&
		has_id == (ext->id_len > 0) &&
		ext->id_len <= NARAD_MAX_ID &&
		ext->len == extension_fixed_length(ext->flags) + ext->id_len &&
		pos + ext->len <= len;
}

/* Where the null bitmap begins, or would; 0 if not within len. */
static uint32
bitmap_start(const char *record, uint32 len)
{
	const NaradRecordHeader *hdr = (const NaradRecordHeader *) record;
	uint32		pos = extension_start(hdr);

	if (hdr->flags & NARAD_RECORD_EXT)
	{
		NaradExtension ext;

		if (!read_extension(record, len, pos, &ext))
			return 0;
		pos += MAXALIGN(ext.len);
	}
	return pos <= len ? pos : 0;
}

/*
 * NaradRecordHeadLength
 *
 * Bytes before the body, or 0 if the header makes no sense in a record (or a
 * large record's first part) of len bytes.  Trusts nothing.
 */
uint32
NaradRecordHeadLength(const char *record, uint32 len)
{
	const NaradRecordHeader *hdr = (const NaradRecordHeader *) record;
	uint32		pos;

	if (len < sizeof(NaradRecordHeader) ||
		hdr->natts < NARAD_STANDARD_ATTRS ||
		hdr->natts > MaxTupleAttributeNumber ||
		(hdr->flags & ~NARAD_RECORD_KNOWN_FLAGS) != 0)
		return 0;
	pos = bitmap_start(record, len);
	if (pos == 0)
		return 0;
	if (hdr->flags & NARAD_RECORD_HASNULL)
		pos += BITMAPLEN(hdr->natts);
	pos = MAXALIGN(pos);
	return pos <= len ? pos : 0;
}

/*
 * NaradRecordHasDedupId
 *
 * Has a record that is to be appended a deduplication id?  Plain memory work.
 */
bool
NaradRecordHasDedupId(const NaradRecord *record)
{
	const NaradRecordHeader *hdr = (const NaradRecordHeader *) record->head;
	NaradExtension ext;

	return (hdr->flags & NARAD_RECORD_EXT) != 0 &&
		read_extension(record->head, record->head_len, extension_start(hdr),
					   &ext) &&
		(ext.flags & NARAD_EXT_DEDUP) != 0;
}

/*
 * NaradRecordExtraGet
 *
 * What a record, or a large record's first part, has that is no column; the
 * id points into it.  False if the extension makes no sense within len bytes.
 * Trusts nothing, and does not look at the CRC.
 */
bool
NaradRecordExtraGet(const char *record, uint32 len, NaradRecordExtra *extra)
{
	const NaradRecordHeader *hdr = (const NaradRecordHeader *) record;
	NaradExtension ext;
	const char *next;

	memset(extra, 0, sizeof(*extra));
	if (len < sizeof(NaradRecordHeader))
		return false;
	if ((hdr->flags & NARAD_RECORD_EXT) == 0)
		return true;
	if (!read_extension(record, len, extension_start(hdr), &ext))
		return false;

	extra->flags = ext.flags;
	next = record + extension_start(hdr) + sizeof(ext);
	if (ext.flags & NARAD_EXT_DUE)
	{
		memcpy(&extra->due, next, sizeof(extra->due));
		next += sizeof(extra->due);
	}
	if (ext.flags & NARAD_EXT_PRODUCER)
	{
		NaradProducerPart part;

		memcpy(&part, next, sizeof(part));
		extra->sequence = part.sequence;
		extra->epoch = part.epoch;
		next += sizeof(part);
	}
	if (ext.id_len > 0)
	{
		extra->id_len = ext.id_len;
		extra->id = next;
	}
	return true;
}

/*
 * NaradTupleBegin
 *
 * The row of a record as a heap tuple in the current memory context, complete
 * but for the body, which the caller brings to *body.  The head's length is
 * what NaradRecordHeadLength said.
 */
HeapTuple
NaradTupleBegin(const char *head, uint32 head_len, uint32 body_len,
				int partition, NaradOffset offset, int64 time,
				ItemPointer tid, Oid relid, char **body)
{
	const NaradRecordHeader *hdr = (const NaradRecordHeader *) head;
	bool		hasnull = (hdr->flags & NARAD_RECORD_HASNULL) != 0;
	Size		bitmap_len = hasnull ? BITMAPLEN(hdr->natts) : 0;
	Size		hoff = MAXALIGN(SizeofHeapTupleHeader + bitmap_len);
	HeapTuple	tuple;
	HeapTupleHeader td;
	char	   *data;
	int32		part = partition;
	int64		pos = (int64) offset;

	tuple = (HeapTuple) palloc(HEAPTUPLESIZE + hoff + NARAD_PREFIX_LEN +
							   body_len);
	td = tuple->t_data = (HeapTupleHeader) ((char *) tuple + HEAPTUPLESIZE);
	memset(td, 0, hoff + NARAD_PREFIX_LEN);
	tuple->t_len = hoff + NARAD_PREFIX_LEN + body_len;
	tuple->t_self = *tid;
	tuple->t_tableOid = relid;
	td->t_ctid = *tid;
	td->t_hoff = hoff;
	HeapTupleHeaderSetNatts(td, hdr->natts);
	td->t_infomask = HEAP_XMAX_INVALID |
		(hasnull ? HEAP_HASNULL : 0) |
		((hdr->flags & NARAD_RECORD_HASVAR) ? HEAP_HASVARWIDTH : 0) |
		((hdr->flags & NARAD_RECORD_FROZEN) ? HEAP_XMIN_FROZEN : 0) |
		((hdr->flags & NARAD_RECORD_DEAD) ? HEAP_XMIN_INVALID : 0);
	HeapTupleHeaderSetXmin(td, hdr->xmin);
	HeapTupleHeaderSetCmin(td, hdr->cmin);
	HeapTupleHeaderSetXmax(td, InvalidTransactionId);
	if (hasnull)
		memcpy(td->t_bits, head + bitmap_start(head, head_len), bitmap_len);

	data = (char *) td + hoff;
	memcpy(data, &part, sizeof(part));
	memcpy(data + 8, &pos, sizeof(pos));
	memcpy(data + 16, &time, sizeof(time));
	*body = data + NARAD_PREFIX_LEN;
	return tuple;
}

/*
 * NaradRecordToTuple
 *
 * The row of a complete record as a heap tuple in the current memory
 * context; NULL if the record is malformed.  The CRC is not looked at: only
 * bytes that passed it may be deformed.
 */
HeapTuple
NaradRecordToTuple(const char *record, uint32 len, int partition,
				   NaradOffset offset, int64 time, ItemPointer tid, Oid relid)
{
	uint32		head_len = NaradRecordHeadLength(record, len);
	HeapTuple	tuple;
	char	   *body;

	if (head_len == 0)
		return NULL;
	tuple = NaradTupleBegin(record, head_len, len - head_len, partition,
							offset, time, tid, relid, &body);
	memcpy(body, record + head_len, len - head_len);
	return tuple;
}
