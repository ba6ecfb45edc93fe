/*-------------------------------------------------------------------------
 *
 * sql_produce.c
 *	  produce, produce_batch, produce_array, produce_once and the forms for
 *	  bytes.
 *
 * Owns:		nothing.
 * Invariants:	a user's triggers, constraints, generated and extra columns
 *				and rules are never stepped over: a topic that has any of
 *				them is written to by INSERT.
 * Locks:		RowExclusiveLock on the topic, kept to the transaction's end.
 * Runs in:		any backend.
 * WAL:			by storage.
 * On error:	what was appended is of an aborted transaction.
 *
 * All forms make an array of rows, append it, and give back the positions in
 * the order of the array.  On the direct path records are formed first (which
 * may read and lock other tables, to fetch long values from there), then
 * given partitions and appended partition by partition.
 *
 * Rows with a dedup id are claimed before; duplicates are not appended, and
 * answered with the position of the first one.  produce_once asks for its
 * producer's turn before, and notes where the message went.
 *
 * RETURNING would need SELECT on its columns, which a producer need not have.
 * So the access method tells where the row went, and SPI whether it went
 * anywhere: a trigger may suppress it.  Only where rules rewrite the command
 * is RETURNING used, since nobody but them knows what a row has become.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "funcapi.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/predicate.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "base/base_memory.h"
#include "log/log_append.h"
#include "log/log_tableam.h"
#include "queue/queue_dedup.h"
#include "queue/queue_producer.h"
#include "queue/queue_topic.h"
#include "sql/sql_args.h"
#include "sql/sql_produce.h"

/* Arguments of produce and produce_batch. */
#define ARG_VALUE			1
#define ARG_KEY				2
#define ARG_HEADERS			3
#define ARG_PARTITION		4
#define ARG_DELIVER_AFTER	5
#define ARG_DELIVER_AT		6
#define ARG_DEDUP_ID		7

/* Arguments of produce_once. */
#define ARG_ONCE_PRODUCER	2
#define ARG_ONCE_SEQUENCE	3
#define ARG_ONCE_EPOCH		4
#define ARG_ONCE_KEY		5
#define ARG_ONCE_HEADERS	6
#define ARG_ONCE_PARTITION	7

/* No delay is longer than this: a hundred years. */
#define MAX_DELIVERY_DELAY	(INT64CONST(36525) * USECS_PER_DAY)

/* Key-less records of a batch go to one partition by so many. */
#define KEYLESS_RUN			64

/* What a row brings: the columns key, value, headers. */
#define ROW_KEY				0
#define ROW_VALUE			1
#define ROW_HEADERS			2
#define ROW_COLUMNS			3

typedef struct ProduceRow
{
	Datum		values[ROW_COLUMNS];
	bool		isnull[ROW_COLUMNS];
	NaradRecordExtra extra;		/* what it has that is no column */
	NaradDedupClaim *claim;		/* of its dedup id, or NULL */
	bool		is_placed;		/* out: a trigger or rule may drop a row */
	bool		is_duplicate;	/* out: of produce_once */
	int			partition;		/* out */
	int64		offset;			/* out */
} ProduceRow;

PG_FUNCTION_INFO_V1(narad_produce);
PG_FUNCTION_INFO_V1(narad_produce_bytes);
PG_FUNCTION_INFO_V1(narad_produce_batch);
PG_FUNCTION_INFO_V1(narad_produce_batch_bytes);
PG_FUNCTION_INFO_V1(narad_produce_array);
PG_FUNCTION_INFO_V1(narad_produce_once);
PG_FUNCTION_INFO_V1(narad_produce_once_bytes);

/* ---------------------------------------------------------------------- */
/* The direct path                                                        */
/* ---------------------------------------------------------------------- */

static void
form_records(Relation rel, ProduceRow **rows, int nrows,
			 NaradAppendItem *items)
{
	Datum		values[NARAD_STANDARD_ATTRS];
	bool		isnull[NARAD_STANDARD_ATTRS];
	int			i;

	memset(values, 0, sizeof(values));
	memset(isnull, true, sizeof(isnull));
	for (i = 0; i < nrows; i++)
	{
		CHECK_FOR_INTERRUPTS();
		memcpy(values + NARAD_ATTR_KEY - 1, rows[i]->values,
			   sizeof(rows[i]->values));
		memcpy(isnull + NARAD_ATTR_KEY - 1, rows[i]->isnull,
			   sizeof(rows[i]->isnull));
		NaradRecordForm(&items[i].record, RelationGetDescr(rel), values,
						isnull, &rows[i]->extra);
		items[i].explicit_offset = NARAD_INVALID_OFFSET;
	}
}

/*
 * Gives each record its partition: the one named, or its key's, or any.
 */
static void
choose_partitions(NaradRelInfo *info, ProduceRow **rows, int nrows,
				  NaradAppendItem *items, int named)
{
	int			npartitions = info->npartitions;
	int			nkeyless = 0;
	int			keyless = 0;
	int			i;

	for (i = 0; i < nrows; i++)
	{
		if (named >= 0)
			items[i].partition = named;
		else if (!rows[i]->isnull[ROW_KEY])
		{
			text	   *key = DatumGetTextPP(rows[i]->values[ROW_KEY]);

			items[i].partition = NaradPartitionForKey(VARDATA_ANY(key),
													  VARSIZE_ANY_EXHDR(key),
													  npartitions);
		}
		else
		{
			if (nkeyless++ % KEYLESS_RUN == 0)
				keyless = NaradPartitionForNone(info,
												Min(nrows - i, KEYLESS_RUN));
			items[i].partition = keyless;
		}
	}
}

static int
compare_items(const void *a, const void *b)
{
	const NaradAppendItem *left = *(NaradAppendItem *const *) a;
	const NaradAppendItem *right = *(NaradAppendItem *const *) b;

	if (left->partition != right->partition)
		return left->partition < right->partition ? -1 : 1;
	return left < right ? -1 : left > right ? 1 : 0;
}

/*
 * Appends partition by partition, in input order within each.  The topic's
 * info is fetched anew each time, since an append may process invalidations.
 */
static void
append_items(Relation rel, NaradAppendItem *items, int nitems)
{
	NaradAppendItem **sorted = palloc(nitems * sizeof(NaradAppendItem *));
	CommandId	cid = GetCurrentCommandId(true);
	int			first;
	int			next;
	int			i;

	for (i = 0; i < nitems; i++)
		sorted[i] = &items[i];
	qsort(sorted, nitems, sizeof(NaradAppendItem *), compare_items);
	for (first = 0; first < nitems; first = next)
	{
		int			partition = sorted[first]->partition;

		for (next = first + 1; next < nitems; next++)
		{
			if (sorted[next]->partition != partition)
				break;
		}
		NaradAppend(rel, NaradRelInfoCreate(rel, 0, 0), partition,
					sorted + first, next - first, cid, NULL);
	}
	pfree(sorted);
}

/*
 * Notes where a row went.
 */
static void
place_row(ProduceRow *row, int partition, NaradOffset offset)
{
	row->is_placed = true;
	row->partition = partition;
	row->offset = (int64) offset;
}

static void
produce_direct(Relation rel, ProduceRow **rows, int nrows, int partition)
{
	NaradAppendItem *items;
	int			i;

	items = palloc_extended(nrows * sizeof(NaradAppendItem),
							MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	form_records(rel, rows, nrows, items);
	choose_partitions(NaradRelInfoCreate(rel, 0, 0), rows, nrows, items,
					  partition);
	CheckForSerializableConflictIn(rel, NULL, InvalidBlockNumber);
	append_items(rel, items, nrows);
	pgstat_count_heap_insert(rel, nrows);
	for (i = 0; i < nrows; i++)
	{
		place_row(rows[i], items[i].partition, items[i].offset);
		if (rows[i]->claim != NULL)
			NaradDedupPlaced(rows[i]->claim, items[i].partition,
							 items[i].offset);
	}
}

/* ---------------------------------------------------------------------- */
/* Through the executor                                                   */
/* ---------------------------------------------------------------------- */

static const char *
column_name(Relation rel, int attnum)
{
	return quote_identifier(NameStr(TupleDescAttr(RelationGetDescr(rel),
												  attnum - 1)->attname));
}

/*
 * INSERT of partition, key, value, headers, returning the position or not.
 */
static SPIPlanPtr
prepare_insert(Relation rel, bool returning)
{
	Oid			types[1 + ROW_COLUMNS];
	char	   *command;
	SPIPlanPtr	plan;

	types[0] = INT4OID;
	types[1 + ROW_KEY] = TEXTOID;
	types[1 + ROW_VALUE] = TupleDescAttr(RelationGetDescr(rel),
										 NARAD_ATTR_VALUE - 1)->atttypid;
	types[1 + ROW_HEADERS] = JSONBOID;
	command = psprintf("INSERT INTO %s (%s, %s, %s, %s) VALUES ($1, $2, $3, $4)%s",
					   quote_qualified_identifier(get_namespace_name(RelationGetNamespace(rel)),
												  RelationGetRelationName(rel)),
					   column_name(rel, NARAD_ATTR_PARTITION),
					   column_name(rel, NARAD_ATTR_KEY),
					   column_name(rel, NARAD_ATTR_VALUE),
					   column_name(rel, NARAD_ATTR_HEADERS),
					   returning ?
					   psprintf(" RETURNING %s, %s",
								column_name(rel, NARAD_ATTR_PARTITION),
								column_name(rel, NARAD_ATTR_OFFSET)) : "");
	plan = SPI_prepare(command, 1 + ROW_COLUMNS, types);
	if (plan == NULL)
		elog(ERROR, "could not prepare \"%s\": %s", command,
			 SPI_result_code_string(SPI_result));
	return plan;
}

/*
 * The position in the row that was returned, if any.
 */
static void
take_returned(ProduceRow *row)
{
	bool		no_partition = true;
	bool		no_offset = true;

	if (SPI_processed > 0 && SPI_tuptable != NULL)
	{
		HeapTuple	tuple = SPI_tuptable->vals[0];
		TupleDesc	desc = SPI_tuptable->tupdesc;

		row->partition = DatumGetInt32(SPI_getbinval(tuple, desc, 1,
													 &no_partition));
		row->offset = DatumGetInt64(SPI_getbinval(tuple, desc, 2,
												  &no_offset));
	}
	row->is_placed = !no_partition && !no_offset;
}

/*
 * One row; a trigger or rule may have it that nothing is inserted.
 */
static void
insert_row(SPIPlanPtr plan, ProduceRow *row, int partition,
		   NaradInsertWatch *watch)
{
	Datum		values[1 + ROW_COLUMNS];
	char		nulls[1 + ROW_COLUMNS];
	int			code;
	int			i;

	values[0] = Int32GetDatum(partition);
	nulls[0] = partition < 0 ? 'n' : ' ';
	for (i = 0; i < ROW_COLUMNS; i++)
	{
		values[1 + i] = row->values[i];
		nulls[1 + i] = row->isnull[i] ? 'n' : ' ';
	}

	/* The command's number, which tells its row from those of triggers. */
	CommandCounterIncrement();
	watch->seen = false;
	watch->extra = &row->extra;
	watch->extra_cid = GetCurrentCommandId(false);
	code = SPI_execute_plan(plan, values, nulls, false, 0);
	watch->extra = NULL;
	if (code < 0)
		elog(ERROR, "could not insert: %s", SPI_result_code_string(code));
	if (code == SPI_OK_INSERT_RETURNING)
		take_returned(row);
	else if (code == SPI_OK_INSERT && SPI_processed > 0 && watch->seen)
		place_row(row, watch->partition, watch->offset);
	SPI_freetuptable(SPI_tuptable);
}

/*
 * The dedup id of a row that was inserted, or not, is known from now on, or
 * not.
 */
static void
end_claim(ProduceRow *row, const NaradInsertWatch *watch)
{
	if (row->claim == NULL)
		return;
	if (watch->seen && watch->cid == watch->extra_cid)
		NaradDedupPlaced(row->claim, watch->partition, watch->offset);
	else
		NaradDedupDrop(row->claim);
}

static void
produce_by_insert(Relation rel, ProduceRow **rows, int nrows, int partition)
{
	NaradInsertWatch watch = {RelationGetRelid(rel)};
	NaradInsertWatch *before;
	SPIPlanPtr	plan;
	int			i;

	SPI_connect();
	plan = prepare_insert(rel, rel->rd_rules != NULL);
	before = NaradInsertWatchSet(&watch);
	PG_TRY();
	{
		for (i = 0; i < nrows; i++)
		{
			CHECK_FOR_INTERRUPTS();
			insert_row(plan, rows[i], partition, &watch);
			end_claim(rows[i], &watch);
		}
	}
	PG_FINALLY();
	{
		NaradInsertWatchSet(before);
	}
	PG_END_TRY();
	SPI_finish();
}

/* ---------------------------------------------------------------------- */
/* What the forms share                                                   */
/* ---------------------------------------------------------------------- */

/*
 * Opens the topic for writing.
 */
static Relation
open_for_produce(FunctionCallInfo fcinfo, const char *function, bool bytes,
				 const char *instead)
{
	Relation	rel;

	NaradArgCheckWritable(function);
	rel = NaradArgTopic(fcinfo, 0, RowExclusiveLock);
	NaradTopicCheckAcl(rel, ACL_INSERT);
	NaradTopicCheckValueType(rel, bytes, instead);
	return rel;
}

/*
 * When deliver_after or deliver_at says that messages are due; 0: at once.
 */
static TimestampTz
take_due_time(FunctionCallInfo fcinfo)
{
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz due = now;

	if (!PG_ARGISNULL(ARG_DELIVER_AFTER) && !PG_ARGISNULL(ARG_DELIVER_AT))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("arguments \"%s\" and \"%s\" cannot both be given",
						"deliver_after", "deliver_at")));
	if (!PG_ARGISNULL(ARG_DELIVER_AFTER))
		due = now + NaradArgInterval(fcinfo, ARG_DELIVER_AFTER,
									 "deliver_after", 0, MAX_DELIVERY_DELAY);
	else if (!PG_ARGISNULL(ARG_DELIVER_AT))
		due = PG_GETARG_TIMESTAMPTZ(ARG_DELIVER_AT);
	if (TIMESTAMP_NOT_FINITE(due) || due > now + MAX_DELIVERY_DELAY)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"%s\" is out of range", "deliver_at"),
				 errdetail("It must be finite, and at most %lld days from now.",
						   (long long) (MAX_DELIVERY_DELAY / USECS_PER_DAY))));
	return due > now ? due : 0;
}

/*
 * Delays the rows, if so asked.  Whoever consumes them needs memory for each,
 * so more of them are refused when it has become scarce.
 */
static void
delay_rows(FunctionCallInfo fcinfo, ProduceRow *rows, int nrows)
{
	TimestampTz due = take_due_time(fcinfo);
	int			i;

	if (due == 0 || nrows == 0)
		return;
	if (NaradMemoryIsLow())
		NaradReportOutOfMemory("delayed messages");
	for (i = 0; i < nrows; i++)
	{
		rows[i].extra.flags |= NARAD_EXT_DUE;
		rows[i].extra.due = due;
	}
}

/*
 * The bytes of a text topic's values are text of the database's encoding.
 * Keys are detoasted here, where other tables may still be locked.
 */
static void
check_rows(Relation rel, ProduceRow *rows, int nrows)
{
	bool		is_text = NaradTopicSettingsGet(rel)->value_type == TEXTOID;
	int			i;

	for (i = 0; i < nrows; i++)
	{
		ProduceRow *row = &rows[i];

		if (!row->isnull[ROW_KEY])
			row->values[ROW_KEY] =
				PointerGetDatum(DatumGetTextPP(row->values[ROW_KEY]));
		if (is_text && !row->isnull[ROW_VALUE])
		{
			text	   *value = DatumGetTextPP(row->values[ROW_VALUE]);

			pg_verify_mbstr(GetDatabaseEncoding(), VARDATA_ANY(value),
							VARSIZE_ANY_EXHDR(value), false);
			row->values[ROW_VALUE] = PointerGetDatum(value);
		}
	}
}

/*
 * Claims the dedup ids of those rows that have one.
 */
static void
claim_ids(Relation rel, ProduceRow *rows, int nrows)
{
	NaradDedupClaim *claims;
	int			nclaims = 0;
	int			i;

	for (i = 0; i < nrows; i++)
		nclaims += (rows[i].extra.flags & NARAD_EXT_DEDUP) != 0;
	if (nclaims == 0)
		return;
	claims = palloc_extended(nclaims * sizeof(NaradDedupClaim),
							 MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	nclaims = 0;
	for (i = 0; i < nrows; i++)
	{
		if ((rows[i].extra.flags & NARAD_EXT_DEDUP) == 0)
			continue;
		rows[i].claim = &claims[nclaims++];
		rows[i].claim->id = rows[i].extra.id;
		rows[i].claim->id_len = rows[i].extra.id_len;
		rows[i].claim->arg = &rows[i];
	}
	NaradDedupClaimAll(rel, claims, nclaims);
}

/*
 * The rows that are no duplicates, in order; *nchosen of them.
 */
static ProduceRow **
choose_rows(ProduceRow *rows, int nrows, int *nchosen)
{
	ProduceRow **chosen = palloc_extended(nrows * sizeof(ProduceRow *),
										  MCXT_ALLOC_HUGE);
	int			i;

	*nchosen = 0;
	for (i = 0; i < nrows; i++)
	{
		NaradDedupClaim *claim = rows[i].claim;

		if (claim == NULL || (!claim->is_duplicate && claim->first == NULL))
			chosen[(*nchosen)++] = &rows[i];
	}
	return chosen;
}

/*
 * Duplicates are answered with where the first one is.
 */
static void
place_duplicates(ProduceRow *rows, int nrows)
{
	int			i;

	for (i = 0; i < nrows; i++)
	{
		NaradDedupClaim *claim = rows[i].claim;
		ProduceRow *first;

		if (claim != NULL && claim->first != NULL)
		{
			first = claim->first->arg;
			if (claim->first->is_duplicate)
				place_row(&rows[i], claim->first->partition,
						  claim->first->offset);
			else if (first->is_placed)
				place_row(&rows[i], first->partition, first->offset);
		}
		else if (claim != NULL && claim->is_duplicate)
			place_row(&rows[i], claim->partition, claim->offset);
	}
}

static void
produce_rows(Relation rel, ProduceRow *rows, int nrows, int partition)
{
	ProduceRow **chosen;
	int			nchosen;

	if (nrows == 0)
		return;
	check_rows(rel, rows, nrows);
	claim_ids(rel, rows, nrows);
	chosen = choose_rows(rows, nrows, &nchosen);
	if (nchosen == 0)
		;
	else if (NaradTopicSettingsGet(rel)->direct)
		produce_direct(rel, chosen, nchosen, partition);
	else
		produce_by_insert(rel, chosen, nchosen, partition);
	place_duplicates(rows, nrows);
	pfree(chosen);
}

/*
 * One row for the layers below, as the current user; a trigger or rule may
 * drop it.  The caller has RowExclusiveLock and has checked privileges.
 */
void
NaradProduceRow(Relation rel, Datum *values, bool *isnull)
{
	ProduceRow	row = {{0}};

	memcpy(row.values, values, sizeof(row.values));
	memcpy(row.isnull, isnull, sizeof(row.isnull));
	produce_rows(rel, &row, 1, -1);
}

static void
row_values(const ProduceRow *row, Datum *values, bool *isnull)
{
	values[0] = Int32GetDatum(row->partition);
	values[1] = Int64GetDatum(row->offset);
	isnull[0] = isnull[1] = !row->is_placed;
}

/*
 * The positions as the function's result, in input order.
 */
static void
return_rows(FunctionCallInfo fcinfo, const ProduceRow *rows, int nrows)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	int			i;

	InitMaterializedSRF(fcinfo, 0);
	for (i = 0; i < nrows; i++)
	{
		Datum		values[2];
		bool		isnull[2];

		row_values(&rows[i], values, isnull);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values,
							 isnull);
	}
}

/*
 * Gives a row an id, of a kind, that is an argument or an element of one.
 */
static void
take_id(ProduceRow *row, uint16 kind, Datum value, const char *argument)
{
	text	   *id = DatumGetTextPP(value);
	int			len = VARSIZE_ANY_EXHDR(id);

	if (len < 1 || len > NARAD_MAX_ID)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("id of %d bytes in argument \"%s\" is too %s",
						len, argument, len < 1 ? "short" : "long"),
				 errdetail("An id has 1 to %d bytes.", NARAD_MAX_ID)));
	row->extra.flags |= kind;
	row->extra.id = VARDATA_ANY(id);
	row->extra.id_len = len;
}

/* ---------------------------------------------------------------------- */
/* One message                                                            */
/* ---------------------------------------------------------------------- */

/*
 * A number of at least 0.
 */
static int64
take_number(FunctionCallInfo fcinfo, int argno, const char *name)
{
	int64		value;

	NaradArgNotNull(fcinfo, argno, name);
	value = argno == ARG_ONCE_EPOCH ? PG_GETARG_INT32(argno) :
		PG_GETARG_INT64(argno);
	if (value < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"%s\" must be at least %d, not %lld",
						name, 0, (long long) value)));
	return value;
}

/*
 * A row from the arguments at these places.
 */
static void
take_row(FunctionCallInfo fcinfo, int key, int value, int headers,
		 ProduceRow *row)
{
	int			argnos[ROW_COLUMNS];
	int			i;

	argnos[ROW_KEY] = key;
	argnos[ROW_VALUE] = value;
	argnos[ROW_HEADERS] = headers;
	memset(row, 0, sizeof(ProduceRow));
	for (i = 0; i < ROW_COLUMNS; i++)
	{
		row->isnull[i] = PG_ARGISNULL(argnos[i]);
		row->values[i] = row->isnull[i] ? (Datum) 0 :
			PG_GETARG_DATUM(argnos[i]);
	}
}

/*
 * Appends the message of a call's arguments; the row is left in *row.
 */
static void
produce_arguments(FunctionCallInfo fcinfo, bool bytes, ProduceRow *row)
{
	Relation	rel;
	int			partition;

	rel = open_for_produce(fcinfo,
						   bytes ? "produce_bytes()" : "produce()", bytes,
						   bytes ? "produce" : "produce_bytes");
	partition = NaradArgPartition(fcinfo, ARG_PARTITION, rel,
								  NaradTopicPartitions(rel));

	take_row(fcinfo, ARG_KEY, ARG_VALUE, ARG_HEADERS, row);
	if (!PG_ARGISNULL(ARG_DEDUP_ID))
		take_id(row, NARAD_EXT_DEDUP, PG_GETARG_DATUM(ARG_DEDUP_ID),
				"dedup_id");
	delay_rows(fcinfo, row, 1);
	produce_rows(rel, row, 1, partition);
	table_close(rel, NoLock);
}

/*
 * Appends the message of a call of produce_once, unless it was before; the
 * row is left in *row.
 */
static void
produce_once_arguments(FunctionCallInfo fcinfo, bool bytes, ProduceRow *row)
{
	NaradProducerTurn turn = {0};
	Relation	rel;
	int			partition;

	rel = open_for_produce(fcinfo,
						   bytes ? "produce_once_bytes()" : "produce_once()",
						   bytes,
						   bytes ? "produce_once" : "produce_once_bytes");
	NaradArgNotNull(fcinfo, ARG_ONCE_PRODUCER, "producer_id");
	turn.sequence = take_number(fcinfo, ARG_ONCE_SEQUENCE, "sequence");
	turn.epoch = (int32) take_number(fcinfo, ARG_ONCE_EPOCH, "epoch");
	partition = NaradArgPartition(fcinfo, ARG_ONCE_PARTITION, rel,
								  NaradTopicPartitions(rel));
	take_row(fcinfo, ARG_ONCE_KEY, ARG_VALUE, ARG_ONCE_HEADERS, row);
	take_id(row, NARAD_EXT_PRODUCER, PG_GETARG_DATUM(ARG_ONCE_PRODUCER),
			"producer_id");
	row->extra.sequence = turn.sequence;
	row->extra.epoch = turn.epoch;
	turn.id = row->extra.id;
	turn.id_len = row->extra.id_len;

	NaradProducerBegin(rel, &turn);
	row->is_duplicate = turn.is_duplicate;
	if (!turn.is_duplicate)
	{
		produce_rows(rel, row, 1, partition);
		NaradProducerAdvance(rel, &turn, row->is_placed ? row->partition : -1,
							 (NaradOffset) row->offset);
	}
	else if (turn.partition >= 0)
		place_row(row, turn.partition, turn.offset);
	table_close(rel, NoLock);
}

/*
 * A set of one row, given by value: that is cheaper than a tuplestore.
 */
static Datum
produce_one(FunctionCallInfo fcinfo,
			void (*produce) (FunctionCallInfo, bool, ProduceRow *), bool bytes)
{
	FuncCallContext *funcctx;
	ProduceRow *row;
	Datum		values[3];
	bool		isnull[3];

	if (SRF_IS_FIRSTCALL())
	{
		MemoryContext oldcontext;

		funcctx = SRF_FIRSTCALL_INIT();
		oldcontext = MemoryContextSwitchTo(funcctx->multi_call_memory_ctx);
		if (get_call_result_type(fcinfo, NULL,
								 &funcctx->tuple_desc) != TYPEFUNC_COMPOSITE)
			elog(ERROR, "return type must be a row type");
		BlessTupleDesc(funcctx->tuple_desc);
		funcctx->user_fctx = palloc(sizeof(ProduceRow));
		MemoryContextSwitchTo(oldcontext);
		produce(fcinfo, bytes, funcctx->user_fctx);
	}

	funcctx = SRF_PERCALL_SETUP();
	if (funcctx->call_cntr > 0)
		SRF_RETURN_DONE(funcctx);
	row = funcctx->user_fctx;
	row_values(row, values, isnull);
	values[2] = BoolGetDatum(row->is_duplicate);
	isnull[2] = false;
	SRF_RETURN_NEXT(funcctx,
					HeapTupleGetDatum(heap_form_tuple(funcctx->tuple_desc,
													  values, isnull)));
}

Datum
narad_produce(PG_FUNCTION_ARGS)
{
	return produce_one(fcinfo, produce_arguments, false);
}

Datum
narad_produce_bytes(PG_FUNCTION_ARGS)
{
	return produce_one(fcinfo, produce_arguments, true);
}

Datum
narad_produce_once(PG_FUNCTION_ARGS)
{
	return produce_one(fcinfo, produce_once_arguments, false);
}

Datum
narad_produce_once_bytes(PG_FUNCTION_ARGS)
{
	return produce_one(fcinfo, produce_once_arguments, true);
}

/* ---------------------------------------------------------------------- */
/* Batches                                                                */
/* ---------------------------------------------------------------------- */

/*
 * Takes an array argument apart that is null, or as long as the payloads;
 * false if it is null.
 */
static bool
take_array(FunctionCallInfo fcinfo, int argno, const char *name, int nrows,
		   NaradArgArray *array)
{
	if (PG_ARGISNULL(argno))
		return false;
	NaradArgArrayGet(PG_GETARG_ARRAYTYPE_P(argno), name, array);
	if (array->nelems != nrows)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("array \"%s\" has %d elements, but \"payloads\" has %d",
						name, array->nelems, nrows)));
	return true;
}

/*
 * Puts an array argument into a column.
 */
static void
take_column(FunctionCallInfo fcinfo, int argno, const char *name, int column,
			ProduceRow *rows, int nrows)
{
	NaradArgArray array;
	bool		is_given = take_array(fcinfo, argno, name, nrows, &array);
	int			i;

	for (i = 0; i < nrows; i++)
	{
		rows[i].values[column] = is_given ? array.values[i] : (Datum) 0;
		rows[i].isnull[column] = is_given ? array.nulls[i] : true;
	}
}

/*
 * Gives each message its dedup id, if it has one.
 */
static void
take_dedup_ids(FunctionCallInfo fcinfo, ProduceRow *rows, int nrows)
{
	NaradArgArray array;
	int			i;

	if (!take_array(fcinfo, ARG_DEDUP_ID, "dedup_ids", nrows, &array))
		return;
	for (i = 0; i < nrows; i++)
	{
		if (!array.nulls[i])
			take_id(&rows[i], NARAD_EXT_DEDUP, array.values[i], "dedup_ids");
	}
}

static ProduceRow *
allocate_rows(int nrows)
{
	return palloc_extended(Max(nrows, 1) * sizeof(ProduceRow),
						   MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
}

static Datum
produce_batch(FunctionCallInfo fcinfo, bool bytes)
{
	ArrayType  *payloads;
	Relation	rel;
	ProduceRow *rows;
	int			nrows;
	int			partition;

	rel = open_for_produce(fcinfo,
						   bytes ? "produce_batch_bytes()" : "produce_batch()",
						   bytes,
						   bytes ? "produce_batch" : "produce_batch_bytes");
	NaradArgNotNull(fcinfo, ARG_VALUE, "payloads");
	partition = NaradArgPartition(fcinfo, ARG_PARTITION, rel,
								  NaradTopicPartitions(rel));

	payloads = PG_GETARG_ARRAYTYPE_P(ARG_VALUE);
	nrows = ArrayGetNItems(ARR_NDIM(payloads), ARR_DIMS(payloads));
	rows = allocate_rows(nrows);
	take_column(fcinfo, ARG_VALUE, "payloads", ROW_VALUE, rows, nrows);
	take_column(fcinfo, ARG_KEY, "keys", ROW_KEY, rows, nrows);
	take_column(fcinfo, ARG_HEADERS, "headers", ROW_HEADERS, rows, nrows);
	take_dedup_ids(fcinfo, rows, nrows);
	delay_rows(fcinfo, rows, nrows);
	produce_rows(rel, rows, nrows, partition);
	table_close(rel, NoLock);
	return_rows(fcinfo, rows, nrows);
	return (Datum) 0;
}

Datum
narad_produce_batch(PG_FUNCTION_ARGS)
{
	return produce_batch(fcinfo, false);
}

Datum
narad_produce_batch_bytes(PG_FUNCTION_ARGS)
{
	return produce_batch(fcinfo, true);
}

/*
 * One message for each element of a JSON array.
 */
Datum
narad_produce_array(PG_FUNCTION_ARGS)
{
	Relation	rel = open_for_produce(fcinfo, "produce_array()", false,
									   "produce_batch_bytes");
	Jsonb	   *payloads;
	ProduceRow *rows;
	int			nrows;
	int			i;

	NaradArgNotNull(fcinfo, ARG_VALUE, "payloads");
	payloads = PG_GETARG_JSONB_P(ARG_VALUE);
	if (!JB_ROOT_IS_ARRAY(payloads) || JB_ROOT_IS_SCALAR(payloads))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"%s\" must be a JSON array", "payloads")));
	nrows = JB_ROOT_COUNT(payloads);
	rows = allocate_rows(nrows);
	for (i = 0; i < nrows; i++)
	{
		JsonbValue *element = getIthJsonbValueFromContainer(&payloads->root,
															i);

		rows[i].values[ROW_VALUE] =
			JsonbPGetDatum(JsonbValueToJsonb(element));
		rows[i].isnull[ROW_KEY] = rows[i].isnull[ROW_HEADERS] = true;
	}
	produce_rows(rel, rows, nrows, -1);
	table_close(rel, NoLock);
	return_rows(fcinfo, rows, nrows);
	return (Datum) 0;
}
