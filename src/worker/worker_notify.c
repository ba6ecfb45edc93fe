/*-------------------------------------------------------------------------
 *
 * worker_notify.c
 *	  A duty of the worker: sends the NOTIFY of tokens that were spent, and
 *	  minds the deadlines of groups that have tokens but no waiter.
 *
 * Owns:       when a NOTIFY is sent.
 * Invariants: I8: a token that was spent is told of, again and again until that
 *             succeeds; a producer never sends a NOTIFY.  I9: nothing is done
 *             before it is due.
 * Locks:      AccessShareLock on one topic at a time, got only if free: a topic
 *             that is locked is tried again a little later.
 * Runs in:    the worker.
 * WAL:        the commit records of the transactions that send, not flushed.
 * On error:   the duty is tried again: nothing is marked as sent before the
 *             transaction that sent it has committed.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/xact.h"
#include "commands/async.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/lmgr.h"
#include "utils/guc.h"
#include "utils/rel.h"

#include "base/base_stop.h"
#include "log/log_tableam.h"
#include "queue/queue_token.h"
#include "queue/queue_topic.h"
#include "worker/worker_duty.h"

#define NOTICES_A_ROUND	64
#define GROUPS_A_ROUND	64
#define LOCKED_RETRY_US	INT64CONST(10000)

/* Sends what is to be sent: one transaction a round, committed asynchronously. */
static void
send_notices(void)
{
	NaradNotice notices[NOTICES_A_ROUND];
	int			nnotices;

	while ((nnotices = NaradTokenUnsent(notices, NOTICES_A_ROUND)) > 0)
	{
		int			i;

		CHECK_FOR_INTERRUPTS();
		StartTransactionCommand();
		(void) set_config_option("synchronous_commit", "off", PGC_USERSET,
								 PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0,
								 false);
		for (i = 0; i < nnotices; i++)
			Async_Notify(notices[i].channel, "");
		NARAD_FAIL("notify-commit");	/* as if the server's queue were full */
		CommitTransactionCommand();
		NaradTokenSent(notices, nnotices);
	}
}

/* Minds one group, unless its topic is locked. */
static void
mind_group(const NaradMinded *minded)
{
	Relation	rel;
	NaradRelInfo *info;
	NaradQueueTopic *topic = NULL;
	NaradGroup *group = NULL;

	if (!ConditionalLockRelationOid(minded->relid, AccessShareLock))
		return;
	rel = try_relation_open(minded->relid, NoLock);
	if (rel == NULL)
	{
		UnlockRelationOid(minded->relid, AccessShareLock);
		return;
	}
	info = NaradRelIsTopic(rel) ? NaradRelInfoAttach(rel) : NULL;
	if (info != NULL && info->topic_id == minded->topic_id)
		topic = NaradQueueTopicFind(minded->topic_id);
	if (topic != NULL)
		group = NaradGroupById(topic, minded->group_id);
	if (group != NULL)
		NaradWaitMind(group, minded->group_id);
	relation_close(rel, AccessShareLock);
}

/* Minds what is due; returns when the next is. */
static int64
mind_groups(int64 now)
{
	NaradMinded groups[GROUPS_A_ROUND];
	int64		next = NARAD_DUTY_NEVER;
	int			ngroups = NaradTokenDue(groups, GROUPS_A_ROUND, now, &next);
	int			i;

	if (ngroups == 0)
		return next;
	StartTransactionCommand();
	for (i = 0; i < ngroups; i++)
		mind_group(&groups[i]);
	CommitTransactionCommand();

	/* What was minded has a new deadline; what was locked has not. */
	next = NARAD_DUTY_NEVER;
	(void) NaradTokenDue(groups, 0, now, &next);
	return Max(next, now + LOCKED_RETRY_US);
}

/* Does what is due. */
static int64
notify_run(int64 now)
{
	int64		next = mind_groups(now);

	send_notices();
	return next;
}

const NaradDuty NaradNotifyDuty = {
	"sending notifications",
	notify_run,
	NULL,
	NULL
};
