/*-------------------------------------------------------------------------
 *
 * sql_produce.c
 *	  produce, produce_batch, produce_array and the forms for bytes.
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

#include "log/log_append.h"
#include "log/log_tableam.h"
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
	bool		is_placed;		/* out: a trigger or rule may drop a row */
	int			partition;		/* out */
	int64		offset;			/* out */
} ProduceRow;

PG_FUNCTION_INFO_V1(narad_produce);
PG_FUNCTION_INFO_V1(narad_produce_bytes);
PG_FUNCTION_INFO_V1(narad_produce_batch);
PG_FUNCTION_INFO_V1(narad_produce_batch_bytes);
PG_FUNCTION_INFO_V1(narad_produce_array);

/* ---------------------------------------------------------------------- */
/* The direct path                                                        */
/* ---------------------------------------------------------------------- */

static void
form_records(Relation rel, ProduceRow *rows, int nrows, NaradAppendItem *items)
{
	Datum		values[NARAD_STANDARD_ATTRS];
	bool		isnull[NARAD_STANDARD_ATTRS];
	int			i;

	memset(values, 0, sizeof(values));
	memset(isnull, true, sizeof(isnull));
	for (i = 0; i < nrows; i++)
	{
		CHECK_FOR_INTERRUPTS();
		memcpy(values + NARAD_ATTR_KEY - 1, rows[i].values,
			   sizeof(rows[i].values));
		memcpy(isnull + NARAD_ATTR_KEY - 1, rows[i].isnull,
			   sizeof(rows[i].isnull));
		NaradRecordForm(&items[i].record, RelationGetDescr(rel), values,
						isnull, NULL);
		items[i].explicit_offset = NARAD_INVALID_OFFSET;
	}
}

/*
 * Gives each record its partition: the one named, or its key's, or any.
 */
static void
choose_partitions(NaradRelInfo *info, ProduceRow *rows, int nrows,
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
		else if (!rows[i].isnull[ROW_KEY])
		{
			text	   *key = DatumGetTextPP(rows[i].values[ROW_KEY]);

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

static void
produce_direct(Relation rel, ProduceRow *rows, int nrows, int partition)
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
		rows[i].is_placed = true;
		rows[i].partition = items[i].partition;
		rows[i].offset = items[i].offset;
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
		   const NaradInsertWatch *watch)
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
	code = SPI_execute_plan(plan, values, nulls, false, 0);
	if (code < 0)
		elog(ERROR, "could not insert: %s", SPI_result_code_string(code));
	if (code == SPI_OK_INSERT_RETURNING)
		take_returned(row);
	else if (code == SPI_OK_INSERT && SPI_processed > 0 && watch->seen)
	{
		row->partition = watch->partition;
		row->offset = (int64) watch->offset;
		row->is_placed = true;
	}
	SPI_freetuptable(SPI_tuptable);
}

static void
produce_by_insert(Relation rel, ProduceRow *rows, int nrows, int partition)
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
			watch.seen = false;
			insert_row(plan, &rows[i], partition, &watch);
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
 * Opens the topic for writing and refuses what does not exist yet.
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
	if (PG_NARGS() > ARG_DEDUP_ID)
	{
		NaradArgRefuse(fcinfo, ARG_DELIVER_AFTER, "deliver_after");
		NaradArgRefuse(fcinfo, ARG_DELIVER_AT, "deliver_at");
	}
	return rel;
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

static void
produce_rows(Relation rel, ProduceRow *rows, int nrows, int partition)
{
	if (nrows == 0)
		return;
	check_rows(rel, rows, nrows);
	if (NaradTopicSettingsGet(rel)->direct)
		produce_direct(rel, rows, nrows, partition);
	else
		produce_by_insert(rel, rows, nrows, partition);
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

/* ---------------------------------------------------------------------- */
/* One message                                                            */
/* ---------------------------------------------------------------------- */

/*
 * Appends the message of a call's arguments; the row is left in *row.
 */
static void
produce_arguments(FunctionCallInfo fcinfo, bool bytes, ProduceRow *row)
{
	Relation	rel;
	int			partition;
	int			i;

	rel = open_for_produce(fcinfo,
						   bytes ? "produce_bytes()" : "produce()", bytes,
						   bytes ? "produce" : "produce_bytes");
	NaradArgRefuse(fcinfo, ARG_DEDUP_ID, "dedup_id");
	partition = NaradArgPartition(fcinfo, ARG_PARTITION, rel,
								  NaradTopicPartitions(rel));

	memset(row, 0, sizeof(ProduceRow));
	for (i = 0; i < ROW_COLUMNS; i++)
	{
		int			argno = i == ROW_KEY ? ARG_KEY :
		i == ROW_VALUE ? ARG_VALUE : ARG_HEADERS;

		row->isnull[i] = PG_ARGISNULL(argno);
		row->values[i] = row->isnull[i] ? (Datum) 0 : PG_GETARG_DATUM(argno);
	}
	produce_rows(rel, row, 1, partition);
	table_close(rel, NoLock);
}

/*
 * A set of one row, given by value: that is cheaper than a tuplestore.
 */
static Datum
produce_one(FunctionCallInfo fcinfo, bool bytes)
{
	FuncCallContext *funcctx;
	Datum		values[2];
	bool		isnull[2];

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
		produce_arguments(fcinfo, bytes, funcctx->user_fctx);
	}

	funcctx = SRF_PERCALL_SETUP();
	if (funcctx->call_cntr > 0)
		SRF_RETURN_DONE(funcctx);
	row_values(funcctx->user_fctx, values, isnull);
	SRF_RETURN_NEXT(funcctx,
					HeapTupleGetDatum(heap_form_tuple(funcctx->tuple_desc,
													  values, isnull)));
}

Datum
narad_produce(PG_FUNCTION_ARGS)
{
	return produce_one(fcinfo, false);
}

Datum
narad_produce_bytes(PG_FUNCTION_ARGS)
{
	return produce_one(fcinfo, true);
}

/* ---------------------------------------------------------------------- */
/* Batches                                                                */
/* ---------------------------------------------------------------------- */

/*
 * Puts an array argument, null or as long as the payloads, into a column.
 */
static void
take_column(FunctionCallInfo fcinfo, int argno, const char *name, int column,
			ProduceRow *rows, int nrows)
{
	NaradArgArray array;
	int			i;

	if (PG_ARGISNULL(argno))
	{
		for (i = 0; i < nrows; i++)
			rows[i].isnull[column] = true;
		return;
	}
	NaradArgArrayGet(PG_GETARG_ARRAYTYPE_P(argno), name, &array);
	if (array.nelems != nrows)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("array \"%s\" has %d elements, but \"payloads\" has %d",
						name, array.nelems, nrows)));
	for (i = 0; i < nrows; i++)
	{
		rows[i].values[column] = array.values[i];
		rows[i].isnull[column] = array.nulls[i];
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
	NaradArgRefuse(fcinfo, ARG_DEDUP_ID, "dedup_ids");
	partition = NaradArgPartition(fcinfo, ARG_PARTITION, rel,
								  NaradTopicPartitions(rel));

	payloads = PG_GETARG_ARRAYTYPE_P(ARG_VALUE);
	nrows = ArrayGetNItems(ARR_NDIM(payloads), ARR_DIMS(payloads));
	rows = allocate_rows(nrows);
	take_column(fcinfo, ARG_VALUE, "payloads", ROW_VALUE, rows, nrows);
	take_column(fcinfo, ARG_KEY, "keys", ROW_KEY, rows, nrows);
	take_column(fcinfo, ARG_HEADERS, "headers", ROW_HEADERS, rows, nrows);
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
