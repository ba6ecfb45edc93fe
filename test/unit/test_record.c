/*
 * test_record.c
 *		I11: what a record has that is no column comes back as it was given,
 *		whatever else the record has; bytes that are no record are refused,
 *		and nothing is read beyond them.
 */
/* LINK: src/log/log_record.c */
#include "postgres.h"

#include <time.h>

#include "access/detoast.h"
#include "access/htup_details.h"
#include "access/toast_internals.h"

#include "base/base_guc.h"
#include "log/log_record.h"
#include "unit.h"

/*
 * The server's, replaced: a row is so many bytes of a pattern, with nulls in
 * every other column if there are any.
 */
int			narad_max_message_size = 4096;
static Size row_len;

Size
heap_compute_data_size(TupleDesc desc, Datum *values, bool *isnull)
{
	return NARAD_PREFIX_LEN + row_len;
}

void
heap_fill_tuple(TupleDesc desc, Datum *values, bool *isnull, char *data,
				Size data_size, uint16 *infomask, bits8 *bit)
{
	for (Size i = 0; i < data_size; i++)
		data[i] = (char) (i * 7 + 1);
	*infomask |= HEAP_HASVARWIDTH;
	if (bit != NULL)
	{
		*infomask |= HEAP_HASNULL;
		memset(bit, 0x55, BITMAPLEN(desc->natts));
	}
}

Size
toast_raw_datum_size(Datum value)
{
	return VARHDRSZ;
}

struct varlena *
detoast_external_attr(struct varlena *attr)
{
	return attr;
}

Datum
toast_compress_datum(Datum value, char cmethod)
{
	return PointerGetDatum(NULL);
}

/* Columns of fixed length, together as long as the row; nfilled not null. */
static TupleDesc
make_desc(int natts, int nfilled)
{
	TupleDesc	desc = palloc0(offsetof(TupleDescData, attrs) +
							   natts * sizeof(FormData_pg_attribute));
	Size		len = NARAD_PREFIX_LEN + row_len;

	desc->natts = natts;
	for (int i = 0; i < natts; i++)
	{
		TupleDescAttr(desc, i)->attlen = len / nfilled +
			(i == 0 ? len % nfilled : 0);
		TupleDescAttr(desc, i)->attalign = TYPALIGN_CHAR;
	}
	return desc;
}

/* What is said of the last record before it is appended. */
static bool has_dedup_id;

/* Forms and completes a record; its bytes in a chunk of exactly their size. */
static char *
make_record(int natts, bool has_null, Size len,
			const NaradRecordExtra *extra, uint32 *size)
{
	TupleDesc	desc;
	Datum	   *values = palloc0(natts * sizeof(Datum));
	bool	   *isnull = palloc0(natts * sizeof(bool));
	NaradRecord record;
	char	   *bytes;

	row_len = len;
	desc = make_desc(natts, has_null ? natts - 1 : natts);
	isnull[natts - 1] = has_null;
	NaradRecordForm(&record, desc, values, isnull, extra);
	has_dedup_id = NaradRecordHasDedupId(&record);
	NaradRecordFinish(&record, 77, 5, 3, 1000, 2000, 990, 1900);
	*size = NaradRecordLength(&record);
	bytes = palloc(*size);
	memcpy(bytes, record.head, record.head_len);
	memcpy(bytes + record.head_len, record.body, record.body_len);
	pfree(record.tuple);
	pfree(desc);
	pfree(values);
	pfree(isnull);
	return bytes;
}

static char id_bytes[NARAD_MAX_ID];

static NaradRecordExtra
make_extra(uint16 flags, int id_len)
{
	NaradRecordExtra extra = {0};

	extra.flags = flags;
	extra.due = INT64CONST(0x0102030405060708);
	extra.sequence = PG_INT64_MAX - 1;
	extra.epoch = PG_INT32_MIN;
	extra.id = id_bytes;
	extra.id_len = id_len;
	return extra;
}

static bool
same_extra(const NaradRecordExtra *given, const NaradRecordExtra *got)
{
	if (given->flags != got->flags)
		return false;
	if ((given->flags & NARAD_EXT_DUE) && given->due != got->due)
		return false;
	if ((given->flags & NARAD_EXT_PRODUCER) &&
		(given->sequence != got->sequence || given->epoch != got->epoch))
		return false;
	return (given->flags & (NARAD_EXT_DEDUP | NARAD_EXT_PRODUCER)) == 0 ||
		(given->id_len == got->id_len &&
		 memcmp(given->id, got->id, got->id_len) == 0);
}

/* Does the row of a record have the bytes it was formed from? */
static bool
row_is_good(const char *record, uint32 size, int natts, bool has_null,
			Size len)
{
	ItemPointerData tid;
	HeapTuple	tuple;
	char	   *data;
	bool		good;

	ItemPointerSet(&tid, 8, 2);
	tuple = NaradRecordToTuple(record, size, 3, 1000, 2000, &tid, 99);
	if (tuple == NULL)
		return false;
	data = (char *) tuple->t_data + tuple->t_data->t_hoff + NARAD_PREFIX_LEN;
	good = HeapTupleHeaderGetNatts(tuple->t_data) == natts &&
		tuple->t_len == tuple->t_data->t_hoff + NARAD_PREFIX_LEN + len &&
		HeapTupleHeaderGetRawXmin(tuple->t_data) == 77 &&
		HeapTupleHasNulls(tuple) == has_null;
	for (Size i = 0; i < len; i++)
		good = good && data[i] == (char) ((i + NARAD_PREFIX_LEN) * 7 + 1);
	if (has_null)
		good = good && tuple->t_data->t_bits[0] == 0x55;
	pfree(tuple);
	return good;
}

static const uint16 all_flags[] = {
	0, NARAD_EXT_DUE, NARAD_EXT_DEDUP, NARAD_EXT_PRODUCER,
	NARAD_EXT_DUE | NARAD_EXT_DEDUP, NARAD_EXT_DUE | NARAD_EXT_PRODUCER
};

static void
test_round_trip(void)
{
	static const int id_lens[] = {1, 7, 8, 9, 36, NARAD_MAX_ID};
	static const Size lens[] = {0, 1, 500, 7900, 8100, 100000};
	bool		extra_good = true;
	bool		row_good = true;
	bool		crc_good = true;
	bool		flags_good = true;
	bool		ids_good = true;

	for (int f = 0; f < lengthof(all_flags); f++)
		for (int i = 0; i < lengthof(id_lens); i++)
			for (int l = 0; l < lengthof(lens); l++)
				for (int n = 0; n < 4; n++)
				{
					int			natts = n < 2 ? 6 : 1500;
					bool		has_null = n % 2 == 1;
					NaradRecordExtra given = make_extra(all_flags[f],
														id_lens[i]);
					NaradRecordExtra got;
					uint32		size;
					char	   *record = make_record(natts, has_null, lens[l],
													 &given, &size);
					NaradRecordHeader *hdr = (NaradRecordHeader *) record;

					flags_good = flags_good &&
						((hdr->flags & NARAD_RECORD_EXT) != 0) ==
						(all_flags[f] != 0) &&
						((hdr->flags & NARAD_RECORD_LARGE) != 0) ==
						(size > NARAD_MAX_SMALL);
					ids_good = ids_good && has_dedup_id ==
						((all_flags[f] & NARAD_EXT_DEDUP) != 0);
					extra_good = extra_good &&
						NaradRecordExtraGet(record, size, &got) &&
						same_extra(&given, &got) &&
						NaradRecordExtraGet(record, Min(size, 2048), &got) &&
						same_extra(&given, &got);
					crc_good = crc_good &&
						NaradRecordCrc(record, size, NULL, 0, 3, 1000, 2000) == hdr->crc;
					row_good = row_good &&
						row_is_good(record, size, natts, has_null, lens[l]);
					pfree(record);
				}
	ok(flags_good, "the header tells of extension and size");
	ok(ids_good, "a record with a dedup id is known before it is appended");
	ok(extra_good, "an extension comes back, from a first part, too");
	ok(crc_good, "the checksum of a record is its header's");
	ok(row_good, "the row comes back beside an extension");
}

/* No extension given, or one without flags: the same bytes. */
static void
test_none(void)
{
	NaradRecordExtra none = make_extra(0, 9);
	uint32		size[2];
	char	   *record[2];

	record[0] = make_record(6, true, 100, NULL, &size[0]);
	record[1] = make_record(6, true, 100, &none, &size[1]);
	ok(size[0] == size[1] && memcmp(record[0], record[1], size[0]) == 0,
	   "no extension costs nothing");
	ok(size[0] == 24 + 8 + 100, "a small record has 24 bytes of header");
	pfree(record[0]);
	pfree(record[1]);
}

/* Each byte of an extension is in the checksum. */
static void
test_crc(void)
{
	NaradRecordExtra extra = make_extra(NARAD_EXT_DUE | NARAD_EXT_PRODUCER, 20);
	uint32		size;
	char	   *record = make_record(6, true, 50, &extra, &size);
	uint32		crc = ((NaradRecordHeader *) record)->crc;
	bool		good = true;

	for (uint32 i = sizeof(NaradRecordHeader); i < size; i++)
	{
		record[i] ^= 0x10;
		good = good && NaradRecordCrc(record, size, NULL, 0, 3, 1000, 2000) != crc;
		record[i] ^= 0x10;
	}
	ok(good, "the checksum covers every byte behind the header");
	pfree(record);
}

/* The head of an extension changed so that its parts do not add up. */
static bool
is_refused(uint16 flags, void (*change) (NaradExtension *ext))
{
	NaradRecordExtra extra = make_extra(flags, 20);
	NaradRecordExtra got;
	uint32		size;
	char	   *record = make_record(6, false, 400, &extra, &size);
	bool		refused;

	change((NaradExtension *) (record + sizeof(NaradRecordHeader)));
	refused = !NaradRecordExtraGet(record, size, &got) &&
		NaradRecordHeadLength(record, size) == 0;
	pfree(record);
	return refused;
}

static void
no_flags(NaradExtension *ext)
{
	ext->flags = 0;
}

static void
unknown_flag(NaradExtension *ext)
{
	ext->flags |= 0x0008;
}

static void
two_ids(NaradExtension *ext)
{
	ext->flags |= NARAD_EXT_DEDUP | NARAD_EXT_PRODUCER;
	ext->len += sizeof(NaradProducerPart);
}

static void
no_id(NaradExtension *ext)
{
	ext->len -= ext->id_len;
	ext->id_len = 0;
}

static void
long_id(NaradExtension *ext)
{
	ext->len += 236;
	ext->id_len += 236;
}

static void
wrong_length(NaradExtension *ext)
{
	ext->len++;
}

static void
id_without_flag(NaradExtension *ext)
{
	ext->flags = NARAD_EXT_DUE;
	ext->len = sizeof(NaradExtension) + 8 + ext->id_len;
}

static void
test_refused(void)
{
	ok(is_refused(NARAD_EXT_DEDUP, no_flags), "refused: no flags");
	ok(is_refused(NARAD_EXT_DEDUP, unknown_flag), "refused: an unknown flag");
	ok(is_refused(NARAD_EXT_DEDUP, two_ids), "refused: two kinds of id");
	ok(is_refused(NARAD_EXT_DEDUP, no_id), "refused: no id");
	ok(is_refused(NARAD_EXT_DEDUP, long_id), "refused: an id of 256 bytes");
	ok(is_refused(NARAD_EXT_PRODUCER, wrong_length),
	   "refused: a length that does not add up");
	ok(is_refused(NARAD_EXT_DEDUP, id_without_flag),
	   "refused: an id of no kind");
}

/*
 * Cut short anywhere, and with bytes changed at random: an answer, and not a
 * byte read beyond the end (the sanitizer watches the exact copies).
 */
static void
test_garbage(void)
{
	int			ngood = 0;

	for (int i = 0; i < 20000; i++)
	{
		NaradRecordExtra extra =
		make_extra(all_flags[next_random() % lengthof(all_flags)],
				   1 + next_random() % NARAD_MAX_ID);
		NaradRecordExtra got;
		uint32		size;
		char	   *record = make_record(6, next_random() % 2 == 0,
										 next_random() % 300, &extra, &size);
		uint32		cut = next_random() % (size + 1);
		char	   *copy = palloc(cut);

		memcpy(copy, record, cut);
		for (int n = next_random() % 4; n > 0 && cut > 0; n--)
			copy[next_random() % Min(cut, 48)] = (char) next_random();
		if (NaradRecordExtraGet(copy, cut, &got))
		{
			ngood++;
			if (got.id_len > 0 &&
				(got.id < copy || got.id + got.id_len > copy + cut))
				ok(false, "an id lies outside of its record");
		}
		if (NaradRecordHeadLength(copy, cut) > cut)
			ok(false, "a head is longer than its record");
		pfree(record);
		pfree(copy);
	}
	ok(ngood > 100 && ngood < 20000,
	   "garbage is read without stepping over its end");
}

int
main(void)
{
	seed = (uint64) time(NULL) * 2654435761u | 1;
	printf("# seed %llu\n", (unsigned long long) seed);
	for (int i = 0; i < NARAD_MAX_ID; i++)
		id_bytes[i] = (char) ('a' + i % 26);
	test_round_trip();
	test_none();
	test_crc();
	test_refused();
	test_garbage();
	return done();
}
