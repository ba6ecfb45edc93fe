/*-------------------------------------------------------------------------
 *
 * sql_consume.c
 *	  consume and consume_bytes.
 *
 * Owns:		nothing.
 * Invariants:	what is handed out comes from the engine alone, one row a
 *				lease.
 * Locks:		RowExclusiveLock on the topic, kept to the transaction's end if
 *				something was taken; none while it waits.
 * Runs in:		any backend of a primary.
 * On error:	the engine gives back what was taken, and what `ack` settled
 *				is undone with the (sub)transaction.
 *
 * `ack` comes first, so that what it frees below a cap can be taken in the
 * same call, and so that nothing is taken when it fails.
 *
 * A token is left, as a waiter joins, before the look that proves it needed.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "executor/execdesc.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "tcop/pquery.h"
#include "utils/builtins.h"
#include "utils/rel.h"

#include "queue/queue_await.h"
#include "queue/queue_consume.h"
#include "queue/queue_token.h"
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

/* One call. */
typedef struct ConsumeCall
{
	bool		bytes;			/* consume_bytes */
	const char *instead;		/* the other function */
	NaradConsumeArgs args;
	int64		wait;			/* us */
	char	   *channel;		/* NULL: no token wanted */
	int64		notify_ttl;		/* us */
	MessageSink sink;
} ConsumeCall;

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
 * The channel of `notify`, as NOTIFY takes it; NULL if there is none.
 */
static char *
take_channel(FunctionCallInfo fcinfo)
{
	char	   *channel;

	if (PG_ARGISNULL(ARG_NOTIFY))
		return NULL;
	channel = text_to_cstring(PG_GETARG_TEXT_PP(ARG_NOTIFY));
	if (channel[0] == '\0' || strlen(channel) >= NAMEDATALEN)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid name of a channel: \"%s\"", channel),
				 errdetail("A name has 1 to %d bytes.", NAMEDATALEN - 1)));
	return channel;
}

static void
take_arguments(FunctionCallInfo fcinfo, Relation rel, ConsumeCall *call)
{
	NaradConsumeArgs *args = &call->args;

	args->max_messages = NaradArgCount(fcinfo, ARG_MAX_MESSAGES,
									   "max_messages", 1);
	call->wait = NaradArgWait(fcinfo, ARG_WAIT, "wait");
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
	call->channel = take_channel(fcinfo);
	call->notify_ttl = NaradArgInterval(fcinfo, ARG_NOTIFY_TTL, "notify_ttl",
										NARAD_MIN_TIMEOUT, NARAD_MAX_TIMEOUT);
	args->waiting = call->wait > 0 || call->channel != NULL;
}

/*
 * May the caller consume, and this way?
 */
static void
check_topic(Relation rel, void *arg)
{
	ConsumeCall *call = arg;

	NaradTopicCheckAcl(rel, ACL_SELECT | ACL_UPDATE);
	NaradTopicCheckValueType(rel, call->bytes, call->instead);
}

/*
 * Takes what there is; true if there was something.
 */
static bool
take_messages(Relation rel, void *arg)
{
	ConsumeCall *call = arg;
	MessageSink *sink = &call->sink;

	/* The relation was opened anew, and may have more columns. */
	sink->desc = RelationGetDescr(rel);
	sink->values = palloc(sink->desc->natts * sizeof(Datum));
	sink->isnull = palloc(sink->desc->natts * sizeof(bool));
	return NaradConsume(rel, NaradRelInfoCreate(rel, 0, 0), &call->args,
						emit_message, sink) > 0;
}

/*
 * Waits for messages; true if some were taken.  The relation is closed.
 */
static bool
wait_for_messages(Relation rel, ConsumeCall *call)
{
	NaradAwaitArgs await;

	await.kind = NARAD_WAIT_CONSUMER;
	await.group = call->args.group;
	await.partition = call->args.partition;
	await.wait = call->wait;
	await.check = check_topic;
	await.look = take_messages;
	await.arg = call;
	return NaradAwait(rel, &await);
}

/*
 * Is the call a part of a client's own SELECT, and not of a function, a DO
 * block, or a statement that writes?  In all of these something may follow that
 * fails, and that its acknowledgements must not outlive.  The server has no
 * word for it: in functions of SQL another executor runs than the portal's, in
 * those of other languages SPI is connected, and otherwise says so.
 */
static bool
is_clients_select(const ReturnSetInfo *rsinfo)
{
	return ActivePortal != NULL &&
		ActivePortal->strategy == PORTAL_ONE_SELECT &&
		ActivePortal->queryDesc != NULL &&
		ActivePortal->queryDesc->estate == rsinfo->econtext->ecxt_estate &&
		SPI_unregister_relation("") == SPI_ERROR_UNCONNECTED;
}

/*
 * The call is going to sleep: what it acknowledges is settled now, if the
 * transaction consists of nothing else.  It then ends with the statement, even
 * if the client has sent more to follow in a pipeline; but not if the client
 * asked for so few of its rows that there may be more of them.
 */
static void
settle_early(FunctionCallInfo fcinfo)
{
	if (PG_ARGISNULL(ARG_ACK) || (MyXactFlags & XACT_FLAGS_PIPELINING) != 0 ||
		!is_clients_select((ReturnSetInfo *) fcinfo->resultinfo))
		return;
	if (NaradAckSettleEarly(PG_GETARG_ARRAYTYPE_P(ARG_ACK), "ack"))
		MyXactFlags |= XACT_FLAGS_NEEDIMMEDIATECOMMIT;
}

/*
 * Leaves a token, and looks once more.
 */
static void
leave_token(Relation rel, ConsumeCall *call)
{
	NaradRelInfo info = *NaradRelInfoCreate(rel, 0, 0);
	NaradQueueTopic *topic = NaradQueueTopicGet(rel, &info);
	NaradGroupId group_id;
	NaradGroup *group = NaradGroupGet(rel, &info, topic, call->args.group,
									  &group_id);

	NaradTokenLeave(group, group_id, call->args.partition, call->channel,
					call->notify_ttl);
	if (take_messages(rel, call))
		NaradTokenTakeBack(group, call->channel);
}

static Datum
consume(FunctionCallInfo fcinfo, const char *function, bool bytes,
		const char *instead)
{
	Relation	rel;
	ConsumeCall call;

	call.bytes = bytes;
	call.instead = instead;
	NaradArgCheckWritable(function);
	rel = NaradArgTopic(fcinfo, 0, RowExclusiveLock);
	check_topic(rel, &call);
	take_arguments(fcinfo, rel, &call);
	if (!PG_ARGISNULL(ARG_ACK))
		NaradAckAll(PG_GETARG_ARRAYTYPE_P(ARG_ACK), "ack");

	InitMaterializedSRF(fcinfo, 0);
	call.sink.rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	if (take_messages(rel, &call))
	{
		table_close(rel, NoLock);
		return (Datum) 0;
	}
	if (call.wait > 0)
	{
		settle_early(fcinfo);
		if (wait_for_messages(rel, &call) || call.channel == NULL)
			return (Datum) 0;
		rel = NaradArgTopic(fcinfo, 0, RowExclusiveLock);
		check_topic(rel, &call);
	}
	if (call.channel != NULL)
		leave_token(rel, &call);
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
