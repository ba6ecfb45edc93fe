/*-------------------------------------------------------------------------
 *
 * queue_token.c
 *	  Wishes to be notified, and what was promised.
 *
 * Owns:       NaradToken, from its being left to its NOTIFY.
 * Invariants: I8: a token is spent once, when a message becomes available and
 *             no waiter takes it; who spends it wakes the worker, which sends
 *             the NOTIFY.  A NOTIFY that fails is sent again.
 * Locks:      that of the group's part (see queue_wait.c, which serves).
 * Runs in:    backends that leave tokens, at their exit, too; the worker.
 *             Tokens are spent in transaction callbacks, which needs no memory:
 *             the token becomes the hold.
 * WAL:        none.
 * On error:   53200 before anything is changed.
 *
 * A token is unique for its group, channel and backend: leaving it again only
 * makes it live longer.
 *
 * When its session ends a token stays: another session may LISTEN on the
 * channel, as behind a pooler, and only the server's own memory of each process
 * knows who does.  But most likely nobody hears it any more.  So it is spent
 * after those of sessions that are there, and gives way to them where a group has
 * as many as it may.  What was promised by it is promised to the next at once.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "utils/timestamp.h"

#include "base/base_memory.h"
#include "queue/queue_settle.h"
#include "queue/queue_shard.h"
#include "queue/queue_token.h"

/* This process has left a token, and does what is to be done at its exit. */
static bool has_left = false;

/*
 * NaradTokenFree
 *
 * Out of its list.  The lock is held.
 */
void
NaradTokenFree(pg_atomic_uint32 *nwatching, NaradToken *token)
{
	dlist_delete(&token->node);
	pg_atomic_fetch_sub_u32(nwatching, 1);
	NaradFree(token);
}

/*
 * NaradTokenExpire
 *
 * Frees the tokens of a group whose time is over.  The lock is held.
 */
void
NaradTokenExpire(pg_atomic_uint32 *nwatching, NaradGroupWait *wait, int64 now)
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &wait->tokens)
	{
		NaradToken *token = dlist_container(NaradToken, node, iter.cur);

		if (token->until > now)
			continue;
		wait->ntokens--;
		NaradTokenFree(nwatching, token);
	}
}

/*
 * NaradTokenFreeAll
 *
 * Frees all tokens and holds of a group that goes.  The lock is held.
 */
void
NaradTokenFreeAll(pg_atomic_uint32 *nwatching, NaradGroupWait *wait)
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &wait->tokens)
		NaradTokenFree(nwatching, dlist_container(NaradToken, node, iter.cur));
	dlist_foreach_modify(iter, &wait->holds)
		NaradTokenFree(nwatching, dlist_container(NaradToken, node, iter.cur));
	wait->ntokens = 0;
	wait->nholds = 0;
}

/* This backend's token for a channel, or NULL.  The lock is held. */
static NaradToken *
find_mine(NaradGroupWait *wait, const char *channel)
{
	dlist_iter	iter;

	dlist_foreach(iter, &wait->tokens)
	{
		NaradToken *token = dlist_container(NaradToken, node, iter.cur);

		if (token->pid == MyProcPid && strcmp(token->channel, channel) == 0)
			return token;
	}
	return NULL;
}

/*
 * A NOTIFY to this backend that is still to be sent, of a promise that is over,
 * is moot: it is here, and has looked.  Where there is no worker to send them,
 * they would pile up.  Of those left by sessions that have ended so many are
 * kept.  The lock is held.
 */
static void
forget_unsent(pg_atomic_uint32 *nwatching, NaradGroupWait *wait,
			  const char *channel)
{
	int			nended = 0;
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &wait->holds)
	{
		NaradToken *token = dlist_container(NaradToken, node, iter.cur);

		if (!token->is_token || token->is_held)
			continue;
		if ((token->pid == 0 && ++nended > NARAD_MAX_TOKENS) ||
			(token->pid == MyProcPid && strcmp(token->channel, channel) == 0))
			NaradTokenFree(nwatching, token);
	}
}

/*
 * Where a group has as many tokens as it may, the last goes if its session has
 * ended.  The lock is held.
 */
static void
make_room(pg_atomic_uint32 *nwatching, NaradGroupWait *wait)
{
	NaradToken *last;

	if (wait->ntokens < NARAD_MAX_TOKENS)
		return;
	last = dlist_tail_element(NaradToken, node, &wait->tokens);
	if (last->pid != 0)
		return;
	wait->ntokens--;
	NaradTokenFree(nwatching, last);
}

static void
abandon_at_exit(int code, Datum arg)
{
	NaradTokenAbandon();
}

/* Before shared memory is detached, which is left then. */
static void
prepare_exit(void)
{
	if (!has_left)
		before_shmem_exit(abandon_at_exit, (Datum) 0);
	has_left = true;
}

static void
fill_token(NaradToken *token, int partition, const char *channel, int64 ttl)
{
	token->is_token = true;
	token->pid = MyProcPid;
	token->partition = partition;
	token->until = NaradDeadline(NaradClockNow(), ttl);
	token->since = GetCurrentTimestamp();
	token->deadline = token->since + ttl;
	strlcpy(token->channel, channel, NAMEDATALEN);
}

/*
 * NaradTokenLeave
 *
 * Leaves a token for a channel in a group, for `ttl` us.  The caller has the
 * relation locked, no narad lock, and looks for messages afterwards.  ERROR
 * 53200 if there is no memory, or the group has as many as it may; 42704 if it
 * was dropped.
 */
void
NaradTokenLeave(NaradGroup *group, NaradGroupId group_id, int partition,
				const char *channel, int64 ttl)
{
	NaradGroupWait *wait = &group->wait;
	NaradToken *made = NaradAllocOrError(sizeof(NaradToken), "a wake token");
	NaradToken *mine;
	pg_atomic_uint32 *nwatching;
	bool		is_there;
	bool		is_first = false;

	prepare_exit();
	fill_token(made, partition, channel, ttl);
	nwatching = NaradWaitLock(group);
	is_there = !group->dropped && group->group_id == group_id;
	if (is_there)
		forget_unsent(nwatching, wait, channel);
	mine = is_there ? find_mine(wait, channel) : NULL;
	if (mine != NULL)
		fill_token(mine, partition, channel, ttl);
	else if (is_there)
	{
		NaradTokenExpire(nwatching, wait, NaradClockNow());
		make_room(nwatching, wait);
		if (wait->ntokens < NARAD_MAX_TOKENS)
		{
			pg_atomic_fetch_add_u32(nwatching, 1);
			is_first = NaradWaitAddToken(group, made);
			made = NULL;
		}
	}
	NaradWaitUnlock(group);

	if (!is_there)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("a consumer group was dropped while it was used")));
	if (made != NULL)
	{
		NaradFree(made);
		if (mine == NULL)
			ereport(ERROR,
					(errcode(ERRCODE_OUT_OF_MEMORY),
					 errmsg("too many wake tokens of a consumer group"),
					 errdetail("A group may have %d of them.",
							   NARAD_MAX_TOKENS)));
	}

	/* Waker: makes available, barrier, looks for tokens. */
	pg_memory_barrier();
	if (is_first)
		NaradWaitArm(group, group_id);
}

/*
 * NaradTokenTakeBack
 *
 * A message was found after all.  One that was spent meanwhile stays so, and its
 * hold ends as if nobody had come.
 */
void
NaradTokenTakeBack(NaradGroup *group, const char *channel)
{
	pg_atomic_uint32 *nwatching = NaradWaitLock(group);
	NaradToken *mine = find_mine(&group->wait, channel);

	if (mine != NULL)
	{
		group->wait.ntokens--;
		NaradTokenFree(nwatching, mine);
	}
	NaradWaitUnlock(group);
}

/* Puts this session's tokens last, and says that its promises are over. */
static bool
abandon_group(NaradGroup *group, pg_atomic_uint32 *nwatching, void *arg)
{
	NaradGroupWait *wait = &group->wait;
	dlist_mutable_iter iter;

	/* Those that were put last are met again. */
	dlist_foreach_modify(iter, &wait->tokens)
	{
		NaradToken *token = dlist_container(NaradToken, node, iter.cur);

		if (token->pid != MyProcPid)
			continue;
		token->pid = 0;
		dlist_delete(&token->node);
		dlist_push_tail(&wait->tokens, &token->node);
	}
	dlist_foreach_modify(iter, &wait->holds)
	{
		NaradToken *hold = dlist_container(NaradToken, node, iter.cur);

		if (!hold->is_token || hold->pid != MyProcPid)
			continue;
		hold->pid = 0;
		hold->until = 0;
	}
	NaradWaitEndDueHolds(group, NaradClockNow());
	return true;
}

/*
 * NaradTokenAbandon
 *
 * This session ends, or becomes another's.  Its tokens, in any group of the
 * database, are spent only after those of others from now on, and what was
 * promised by those that were spent is promised to the next.  No narad lock may
 * be held.  No error, no memory.
 */
void
NaradTokenAbandon(void)
{
	if (has_left)
		NaradWaitForEachGroup(abandon_group, NULL);
}

/* ----------------------------------------------------------------
 *		The worker
 * ----------------------------------------------------------------
 */

typedef struct UnsentList
{
	NaradNotice *notices;
	int			nnotices;
	int			max;
} UnsentList;

static bool
collect_unsent(NaradGroup *group, pg_atomic_uint32 *nwatching, void *arg)
{
	UnsentList *list = arg;
	dlist_iter	iter;

	dlist_foreach(iter, &group->wait.holds)
	{
		NaradToken *token = dlist_container(NaradToken, node, iter.cur);

		if (!token->is_token || token->is_sent)
			continue;
		if (list->nnotices == list->max)
			return false;
		list->notices[list->nnotices].serial = token->serial;
		strlcpy(list->notices[list->nnotices++].channel, token->channel,
				NAMEDATALEN);
	}
	return true;
}

/*
 * NaradTokenUnsent
 *
 * Copies up to max tokens of this database that were spent and whose NOTIFY was
 * not sent.
 */
int
NaradTokenUnsent(NaradNotice *notices, int max)
{
	UnsentList	list = {notices, 0, max};

	NaradWaitForEachGroup(collect_unsent, &list);
	return list.nnotices;
}

static bool
mark_sent(NaradGroup *group, pg_atomic_uint32 *nwatching, void *arg)
{
	UnsentList *list = arg;
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &group->wait.holds)
	{
		NaradToken *token = dlist_container(NaradToken, node, iter.cur);

		for (int i = 0; i < list->nnotices; i++)
		{
			if (list->notices[i].serial != token->serial)
				continue;
			token->is_sent = true;
			if (!token->is_held)
				NaradTokenFree(nwatching, token);
			break;
		}
	}
	return true;
}

/*
 * NaradTokenSent
 *
 * The NOTIFY of these was sent, and committed.
 */
void
NaradTokenSent(const NaradNotice *notices, int nnotices)
{
	UnsentList	list = {unconstify(NaradNotice *, notices), nnotices, nnotices};

	NaradWaitForEachGroup(mark_sent, &list);
}

typedef struct DueList
{
	NaradMinded *groups;
	int			ngroups;
	int			max;
	int64		now;
	int64		next;
} DueList;

static bool
collect_due(NaradGroup *group, pg_atomic_uint32 *nwatching, void *arg)
{
	DueList    *list = arg;
	uint64		armed = pg_atomic_read_u64(&group->wait.armed);

	if (group->wait.keeper >= 0)
		return true;
	if (armed > (uint64) list->now)
	{
		if (armed < (uint64) list->next)
			list->next = (int64) armed;
		return true;
	}
	if (list->ngroups == list->max)
	{
		list->next = list->now;
		return false;
	}
	list->groups[list->ngroups].relid =
		pg_atomic_read_u32(&group->topic->relid);
	list->groups[list->ngroups].topic_id = group->topic->topic_id;
	list->groups[list->ngroups++].group_id = group->group_id;
	return true;
}

/*
 * NaradTokenDue
 *
 * Copies the keys of up to max groups of this database that have tokens or holds
 * but no waiter, and a deadline that has come.  *next is when to ask again, at
 * most what it was.
 */
int
NaradTokenDue(NaradMinded *groups, int max, int64 now, int64 *next)
{
	DueList		list = {groups, 0, max, now, *next};

	NaradWaitForEachGroup(collect_due, &list);
	*next = list.next;
	return list.ngroups;
}
