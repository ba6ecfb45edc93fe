/*-------------------------------------------------------------------------
 *
 * sql_settle.c
 *	  ack, try_ack, nack, extend.
 *
 * Owns:		nothing.
 * Invariants:	I4: a text that is no receipt never reaches the engine, and a
 *				receipt that is not accepted is an error, or a row of try_ack
 *				that says why.
 * Locks:		the engine's.
 * Runs in:		any backend.
 * On error:	a call that settles several messages settles none: all texts
 *				are parsed before the first is used, and what was pinned is
 *				undone with the (sub)transaction.  extend() acts at once; an
 *				error leaves the leases before the bad one extended.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"

#include "queue/queue_settle.h"
#include "queue/queue_xact.h"
#include "sql/sql_args.h"
#include "sql/sql_settle.h"

#define ARG_DELAY	1
#define ARG_REASON	2

/* Receipts of a call, parsed. */
typedef struct ReceiptList
{
	int			nreceipts;
	NaradReceipt *receipts;
	Datum	   *texts;			/* those of an array; else NULL */
} ReceiptList;

PG_FUNCTION_INFO_V1(narad_ack);
PG_FUNCTION_INFO_V1(narad_ack_array);
PG_FUNCTION_INFO_V1(narad_try_ack);
PG_FUNCTION_INFO_V1(narad_nack);
PG_FUNCTION_INFO_V1(narad_nack_array);
PG_FUNCTION_INFO_V1(narad_extend);
PG_FUNCTION_INFO_V1(narad_extend_array);

/* ---------------------------------------------------------------------- */
/* Receipts                                                               */
/* ---------------------------------------------------------------------- */

static void
null_receipt(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
			 errmsg("receipt must not be null")));
}

static bool
parse_receipt(Datum value, NaradReceipt *receipt)
{
	text	   *source = DatumGetTextPP(value);

	return NaradReceiptParse(VARDATA_ANY(source), VARSIZE_ANY_EXHDR(source),
							 receipt);
}

static void
parse_receipt_or_error(Datum value, NaradReceipt *receipt)
{
	if (!parse_receipt(value, receipt))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_TEXT_REPRESENTATION),
				 errmsg("invalid input syntax for receipt: \"%s\"",
						TextDatumGetCString(value))));
}

static void
parse_array(ArrayType *array, const char *name, ReceiptList *list)
{
	NaradArgArray elements;
	int			i;

	NaradArgArrayGet(array, name, &elements);
	list->nreceipts = elements.nelems;
	list->texts = elements.values;
	list->receipts = palloc_extended(Max(elements.nelems, 1) *
									 sizeof(NaradReceipt), MCXT_ALLOC_HUGE);
	for (i = 0; i < elements.nelems; i++)
	{
		if (elements.nulls[i])
			null_receipt();
		parse_receipt_or_error(elements.values[i], &list->receipts[i]);
	}
}

/*
 * The receipts in the text of an array, if it has nothing but receipts and what
 * the server's own text of one puts between them.  False if there is anything
 * else: then array_in has to say what that is.
 */
static bool
parse_plain_array(const char *source, int len, ReceiptList *list)
{
	int			n = len / (NARAD_RECEIPT_LEN + 1);
	const char *at = source + 1;

	/* A brace; receipts, each with a comma or, the last, a brace behind it. */
	if (n == 0 || len != 1 + n * (NARAD_RECEIPT_LEN + 1) ||
		source[len - 1] != '}')
		return false;
	list->nreceipts = n;
	list->texts = NULL;
	list->receipts = palloc_extended(n * sizeof(NaradReceipt),
									 MCXT_ALLOC_HUGE);
	for (int i = 0; i < n; i++, at += NARAD_RECEIPT_LEN + 1)
	{
		if (!NaradReceiptParse(at, NARAD_RECEIPT_LEN, &list->receipts[i]) ||
			(i < n - 1 && at[NARAD_RECEIPT_LEN] != ','))
		{
			pfree(list->receipts);
			return false;
		}
	}
	return true;
}

/*
 * The receipt of an argument of type text.  Drivers that send arrays without
 * a type have them end up here, so the text of an array is taken, too: no
 * receipt begins with a brace.
 */
static void
parse_text(FunctionCallInfo fcinfo, ReceiptList *list)
{
	text	   *source;

	if (PG_ARGISNULL(0))
		null_receipt();
	source = PG_GETARG_TEXT_PP(0);
	if (VARSIZE_ANY_EXHDR(source) > 0 && *VARDATA_ANY(source) == '{')
	{
		Datum		array;

		if (parse_plain_array(VARDATA_ANY(source), VARSIZE_ANY_EXHDR(source),
							  list))
			return;
		array = OidInputFunctionCall(F_ARRAY_IN, text_to_cstring(source),
									 TEXTOID, -1);
		parse_array(DatumGetArrayTypeP(array), "receipts", list);
		return;
	}
	list->nreceipts = 1;
	list->texts = NULL;
	list->receipts = palloc(sizeof(NaradReceipt));
	parse_receipt_or_error(PointerGetDatum(source), list->receipts);
}

static void
parse_array_argument(FunctionCallInfo fcinfo, ReceiptList *list)
{
	NaradArgNotNull(fcinfo, 0, "receipts");
	parse_array(PG_GETARG_ARRAYTYPE_P(0), "receipts", list);
}

/* ---------------------------------------------------------------------- */
/* ack                                                                    */
/* ---------------------------------------------------------------------- */

static void
ack_list(const ReceiptList *list)
{
	NaradSettleTarget target = {0};
	int			i;

	for (i = 0; i < list->nreceipts; i++)
	{
		NaradSettleStatus status;

		CHECK_FOR_INTERRUPTS();
		status = NaradAck(&target, &list->receipts[i]);
		if (status != NARAD_SETTLE_OK)
			NaradSettleReport(status, &list->receipts[i]);
	}
}

/*
 * Acknowledges all receipts of an array; errors if one cannot be, and then
 * the (sub)transaction undoes the others.  The name is the argument's.
 */
void
NaradAckAll(ArrayType *receipts, const char *name)
{
	ReceiptList list;

	parse_array(receipts, name, &list);
	ack_list(&list);
}

/*
 * For a call that acknowledged these, and is going to sleep: settles what can be
 * settled now, and gives up its locks.  False if the transaction has more to it.
 */
bool
NaradAckSettleEarly(ArrayType *receipts, const char *name)
{
	ReceiptList list;

	if (!NaradXactSettleEarly())
		return false;
	parse_array(receipts, name, &list);
	NaradSettleUnlock(list.receipts, list.nreceipts);
	return true;
}

Datum
narad_ack(PG_FUNCTION_ARGS)
{
	ReceiptList list;

	NaradArgCheckWritable("ack()");
	parse_text(fcinfo, &list);
	ack_list(&list);
	PG_RETURN_VOID();
}

Datum
narad_ack_array(PG_FUNCTION_ARGS)
{
	ReceiptList list;

	NaradArgCheckWritable("ack()");
	parse_array_argument(fcinfo, &list);
	ack_list(&list);
	PG_RETURN_VOID();
}

/*
 * A row for each receipt; only a null is an error.
 */
Datum
narad_try_ack(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	NaradSettleTarget target = {0};
	NaradArgArray array;
	int			i;

	NaradArgCheckWritable("try_ack()");
	NaradArgNotNull(fcinfo, 0, "receipts");
	NaradArgArrayGet(PG_GETARG_ARRAYTYPE_P(0), "receipts", &array);
	for (i = 0; i < array.nelems; i++)
	{
		if (array.nulls[i])
			null_receipt();
	}
	InitMaterializedSRF(fcinfo, 0);
	for (i = 0; i < array.nelems; i++)
	{
		NaradReceipt receipt;
		NaradSettleStatus status = NARAD_SETTLE_OK;
		bool		is_receipt;
		Datum		values[3];
		bool		isnull[3] = {false, false, false};

		CHECK_FOR_INTERRUPTS();
		is_receipt = parse_receipt(array.values[i], &receipt);
		if (is_receipt)
			status = NaradAck(&target, &receipt);
		values[0] = array.values[i];
		values[1] = BoolGetDatum(is_receipt && status == NARAD_SETTLE_OK);
		isnull[2] = DatumGetBool(values[1]);
		values[2] = (Datum) 0;
		if (!isnull[2])
			values[2] = CStringGetTextDatum(is_receipt ?
											NaradSettleReason(status) :
											"malformed");
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values,
							 isnull);
	}
	return (Datum) 0;
}

/* ---------------------------------------------------------------------- */
/* nack                                                                   */
/* ---------------------------------------------------------------------- */

/*
 * Without a delay the topic's retry_delay counts.
 */
static void
nack_list(FunctionCallInfo fcinfo, const ReceiptList *list)
{
	NaradSettleTarget target = {0};
	int64		delay = NARAD_RETRY_DELAY;
	char	   *reason = NULL;
	int			i;

	if (!PG_ARGISNULL(ARG_DELAY))
		delay = NaradArgInterval(fcinfo, ARG_DELAY, "delay", 0,
								 NARAD_MAX_TIMEOUT);
	if (!PG_ARGISNULL(ARG_REASON))
		reason = text_to_cstring(PG_GETARG_TEXT_PP(ARG_REASON));
	for (i = 0; i < list->nreceipts; i++)
	{
		NaradSettleStatus status;

		CHECK_FOR_INTERRUPTS();
		status = NaradNack(&target, &list->receipts[i], delay, reason);
		if (status != NARAD_SETTLE_OK)
			NaradSettleReport(status, &list->receipts[i]);
	}
}

Datum
narad_nack(PG_FUNCTION_ARGS)
{
	ReceiptList list;

	NaradArgCheckWritable("nack()");
	parse_text(fcinfo, &list);
	nack_list(fcinfo, &list);
	PG_RETURN_VOID();
}

Datum
narad_nack_array(PG_FUNCTION_ARGS)
{
	ReceiptList list;

	NaradArgCheckWritable("nack()");
	parse_array_argument(fcinfo, &list);
	nack_list(fcinfo, &list);
	PG_RETURN_VOID();
}

/* ---------------------------------------------------------------------- */
/* extend                                                                 */
/* ---------------------------------------------------------------------- */

/*
 * The timeout asked for, or -1 for the topic's.
 */
static int64
extend_timeout(FunctionCallInfo fcinfo)
{
	if (PG_ARGISNULL(1))
		return -1;
	return NaradArgInterval(fcinfo, 1, "visibility_timeout",
							NARAD_MIN_TIMEOUT, NARAD_MAX_TIMEOUT);
}

static TimestampTz
extend_lease(NaradSettleTarget *target, const NaradReceipt *receipt,
			 int64 timeout)
{
	TimestampTz expires_at;
	NaradSettleStatus status = NaradExtend(target, receipt, timeout,
										   &expires_at);

	if (status != NARAD_SETTLE_OK)
		NaradSettleReport(status, receipt);
	return expires_at;
}

Datum
narad_extend(PG_FUNCTION_ARGS)
{
	NaradSettleTarget target = {0};
	NaradReceipt receipt;

	NaradArgCheckWritable("extend()");
	if (PG_ARGISNULL(0))
		null_receipt();
	parse_receipt_or_error(PG_GETARG_DATUM(0), &receipt);
	PG_RETURN_TIMESTAMPTZ(extend_lease(&target, &receipt,
									   extend_timeout(fcinfo)));
}

Datum
narad_extend_array(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	NaradSettleTarget target = {0};
	ReceiptList list;
	int64		timeout;
	int			i;

	NaradArgCheckWritable("extend()");
	parse_array_argument(fcinfo, &list);
	timeout = extend_timeout(fcinfo);
	InitMaterializedSRF(fcinfo, 0);
	for (i = 0; i < list.nreceipts; i++)
	{
		Datum		values[2];
		bool		isnull[2] = {false, false};

		CHECK_FOR_INTERRUPTS();
		values[0] = list.texts[i];
		values[1] = TimestampTzGetDatum(extend_lease(&target, &list.receipts[i],
													 timeout));
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values,
							 isnull);
	}
	return (Datum) 0;
}
