/*-------------------------------------------------------------------------
 *
 * sql_consume.c
 *	  consume and consume_bytes.
 *
 * Owns:		nothing.
 * Invariants:	what is handed out comes from the engine alone, one row a
 *				lease.
 * Locks:		RowExclusiveLock on the topic, kept to the transaction's end.
 * Runs in:		any backend of a primary.
 * On error:	the engine gives back what was taken, and what `ack` settled
 *				is undone with the (sub)transaction.
 *
 * `ack` comes first, so that what it frees below a cap can be taken in the
 * same call, and so that nothing is taken when it fails.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/rel.h"

#include "queue/queue_consume.h"
#include "sql/sql_args.h"
#include "sql/sql_settle.h"

#define ARG_MAX_MESSAGES	1
#define ARG_WAIT			2
#define ARG_TIMEOUT			3
#define ARG_GROUP			4
#define ARG_PARTITION		5
#define ARG_ACK				6
#define ARG_NOTIFY			7
#define ARG_NOTIFY_TTL		8

#define DEFAULT_NOTIFY_TTL	(60 * USECS_PER_SEC)

/* Columns of narad.message and narad.message_bytes. */
#define MESSAGE_COLUMNS		8

/* Where messages go, and room for a row of the topic. */
typedef struct MessageSink
{
	ReturnSetInfo *rsinfo;
	TupleDesc	desc;			/* of the topic */
	Datum	   *values;
	bool	   *isnull;
} MessageSink;

PG_FUNCTION_INFO_V1(narad_consume);
PG_FUNCTION_INFO_V1(narad_consume_bytes);

/*
 * Adds a message to the result.
 */
static void
emit_message(const NaradMessage *message, void *arg)
{
	MessageSink *sink = arg;
	Datum		values[MESSAGE_COLUMNS];
	bool		isnull[MESSAGE_COLUMNS] = {false};
	text	   *receipt = cstring_to_text(message->receipt);
	int			i;

	heap_deform_tuple(message->tuple, sink->desc, sink->values, sink->isnull);
	values[0] = PointerGetDatum(receipt);
	values[1] = Int32GetDatum(message->partition);
	values[2] = Int64GetDatum((int64) message->offset);
	values[3] = sink->values[NARAD_ATTR_TIME - 1];
	values[4] = Int32GetDatum(message->deliveries);
	for (i = 0; i < 3; i++)
	{
		values[5 + i] = sink->values[NARAD_ATTR_KEY - 1 + i];
		isnull[5 + i] = sink->isnull[NARAD_ATTR_KEY - 1 + i];
	}
	tuplestore_putvalues(sink->rsinfo->setResult, sink->rsinfo->setDesc,
						 values, isnull);
	pfree(receipt);
}

/*
 * Checks the arguments that ask for what does not exist yet.
 */
static void
refuse_arguments(FunctionCallInfo fcinfo)
{
	NaradArgRefuseWait(fcinfo, ARG_WAIT);
	NaradArgRefuse(fcinfo, ARG_NOTIFY, "notify");
	if (NaradArgInterval(fcinfo, ARG_NOTIFY_TTL, "notify_ttl",
						 NARAD_MIN_TIMEOUT,
						 NARAD_MAX_TIMEOUT) != DEFAULT_NOTIFY_TTL)
		NaradArgRefuseValue("notify_ttl");
}

static void
take_arguments(FunctionCallInfo fcinfo, Relation rel, NaradConsumeArgs *args)
{
	args->max_messages = NaradArgCount(fcinfo, ARG_MAX_MESSAGES,
									   "max_messages", 1);
	refuse_arguments(fcinfo);
	if (PG_ARGISNULL(ARG_TIMEOUT))
		args->visibility_timeout =
			NaradTopicSettingsGet(rel)->visibility_timeout;
	else
		args->visibility_timeout =
			NaradArgInterval(fcinfo, ARG_TIMEOUT, "visibility_timeout",
							 NARAD_MIN_TIMEOUT, NARAD_MAX_TIMEOUT);
	args->group = NaradArgGroupName(fcinfo, ARG_GROUP);
	args->partition = NaradArgPartition(fcinfo, ARG_PARTITION, rel,
										NaradTopicPartitions(rel));
}

static Datum
consume(FunctionCallInfo fcinfo, const char *function, bool bytes,
		const char *instead)
{
	Relation	rel;
	NaradConsumeArgs args;
	MessageSink sink;

	NaradArgCheckWritable(function);
	rel = NaradArgTopic(fcinfo, 0, RowExclusiveLock);
	NaradTopicCheckAcl(rel, ACL_SELECT | ACL_UPDATE);
	NaradTopicCheckValueType(rel, bytes, instead);
	take_arguments(fcinfo, rel, &args);
	if (!PG_ARGISNULL(ARG_ACK))
		NaradAckAll(PG_GETARG_ARRAYTYPE_P(ARG_ACK), "ack");

	InitMaterializedSRF(fcinfo, 0);
	sink.rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	sink.desc = RelationGetDescr(rel);
	sink.values = palloc(sink.desc->natts * sizeof(Datum));
	sink.isnull = palloc(sink.desc->natts * sizeof(bool));
	NaradConsume(rel, NaradRelInfoCreate(rel, 0, 0), &args, emit_message,
				 &sink);
	table_close(rel, NoLock);
	return (Datum) 0;
}

Datum
narad_consume(PG_FUNCTION_ARGS)
{
	return consume(fcinfo, "consume()", false, "consume_bytes");
}

Datum
narad_consume_bytes(PG_FUNCTION_ARGS)
{
	return consume(fcinfo, "consume_bytes()", true, "consume");
}
