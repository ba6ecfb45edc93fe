/*-------------------------------------------------------------------------
 *
 * queue_suspect.c
 *	  Messages that may have crashed the server.
 *
 * Owns:       shard->suspects, and which of them is out.
 * Invariants: a suspect is below the hand-out mark, not settled, and either has
 *             no entry in leases, or one that is SUSPECT, or is the one that is
 *             out.  I1: it is available, one at a time.  I2: it is claimed as
 *             any message is.
 * Locks:      the shard lock, exclusively; none at loading.
 * Runs in:    consumers, and whoever ends a lease, transaction callbacks
 *             included.
 * WAL:        none here: NaradStateMark writes the marks.
 * On error:   loading may lack memory; nothing else fails.
 *
 * A message whose processing takes the server down is at its first delivery
 * again after each crash, for leases and their counts are in memory.  So where
 * a topic limits deliveries, an offset is handed out only below a mark that is
 * on the state page, and flushed; it is moved ahead by many at a time, as a
 * sequence's value is.
 *
 * After a crash what is below the mark and not settled may have been out.  No
 * count is raised for that: most of it is innocent.  But each of these suspects
 * is handed out alone, after a mark of its own was flushed, with the delivery
 * that this is.  (By key, it comes in its turn, and other messages wait, too.)  If the server crashes again the one that was marked has had
 * that delivery; so a message that crashes the server each time comes to its
 * limit.  A suspect whose lease ends in any other way is none any more.
 *
 * The mark names the number of the delivery, not "one more", so that it does
 * no harm when the page has the count already, or is older than that.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "base/base_start.h"
#include "queue/queue_deadletter.h"
#include "queue/queue_dirty.h"
#include "queue/queue_suspect.h"

/* --------------------------------------------------------------- loading */

/* All below the mark that is not settled. */
static bool
load_unsettled(NaradShard *shard, NaradOffset mark)
{
	NaradOffset at = NaradSetNextGap(&shard->settled, shard->frontier);

	while (at < mark)
	{
		NaradOffset end = Min(NaradSetNextMember(&shard->settled, at), mark);

		if (!NaradSetAddRange(&shard->suspects, at, end - 1))
			return false;
		at = NaradSetNextGap(&shard->settled, end);
	}
	return true;
}

/* The one that was out when the server crashed has had that delivery. */
static bool
load_marked(NaradShard *shard, NaradOffset offset, uint32 deliveries)
{
	NaradLease *lease = NaradLeaseFind(&shard->leases, offset);

	if (!NaradSetContains(&shard->suspects, offset))
		return true;
	if (lease == NULL)
	{
		if (!NaradShardReserve(shard, offset))
			return false;
		lease = NaradLeaseInsert(&shard->leases, offset);
		if (lease == NULL)
			return false;
		NaradLeaseSetState(&shard->leases, lease, NARAD_LEASE_RETURNED);
	}
	lease->deliveries = Max(lease->deliveries, deliveries);
	lease->ended = NARAD_END_CRASHED;
	return true;
}

/*
 * Makes suspects of what may have been out when the server crashed, if it did.
 * The shard is being loaded: what is settled, delivery counts and what is
 * pending are there.  False when there is no memory, with some of it done.
 */
bool
NaradSuspectsLoad(NaradShard *shard, const NaradStateHead *head,
				  NaradOffset end)
{
	NaradOffset mark = Min(head->handout_mark, end);
	NaradLease *lease = NULL;

	shard->handout_mark = head->handout_mark;
	if (NaradStartWasClean() || mark <= shard->frontier)
		return true;
	if (!load_unsettled(shard, mark) ||
		(head->suspect != 0 &&
		 !load_marked(shard, head->suspect - 1, head->suspect_deliveries)))
		return false;
	while ((lease = NaradLeaseNext(&shard->leases, lease)) != NULL)
	{
		if (lease->offset >= mark)
			continue;
		NaradLeaseSetState(&shard->leases, lease, NARAD_LEASE_SUSPECT);
		NaradShardCountHole(shard, lease);
	}
	NaradSetTrim(&shard->pending, mark);
	shard->scan_pos = Max(shard->scan_pos, mark);
	return true;
}

/* -------------------------------------------------------------- handing out */

/*
 * The lowest suspect that can be claimed, or NARAD_INVALID_OFFSET.  Those that
 * were settled meanwhile are forgotten, those that have had their last delivery
 * become dead letters.
 */
NaradOffset
NaradSuspectNext(NaradShard *shard, int64 now)
{
	NaradOffset offset = 0;

	for (;;)
	{
		NaradLease *lease;

		offset = NaradSetNextMember(&shard->suspects, offset);
		if (offset == NARAD_INVALID_OFFSET)
			return offset;
		lease = NaradLeaseFind(&shard->leases, offset);
		if (offset < shard->frontier ||
			NaradSetContains(&shard->settled, offset))
			NaradSuspectClear(shard, offset);
		else if (lease == NULL)
			return offset;
		else if (lease->state == NARAD_LEASE_SUSPECT)
		{
			if (!NaradShardIsExhausted(shard, lease))
				return offset;
			NaradSuspectClear(shard, offset);
			NaradDeadLetterAdd(shard, lease, now);
		}
		offset++;				/* else it is out */
	}
}

/*
 * A suspect was claimed, and is to be marked before it is handed out.
 */
void
NaradSuspectOut(NaradShard *shard, const NaradLease *lease)
{
	Assert(shard->suspect_out == 0);
	shard->suspect_out = lease->offset + 1;
	shard->suspect_deliveries = lease->deliveries;
}

/*
 * Is it the one that is out?
 */
bool
NaradSuspectIsOut(const NaradShard *shard, NaradOffset offset)
{
	return shard->suspect_out == offset + 1;
}

/* The next may be claimed; by key, whatever had to wait for this one. */
static void
none_out(NaradShard *shard)
{
	shard->suspect_out = 0;
	NaradShardMadeAvailable(shard, 1, true);
}

/*
 * Its lease has ended, or it is settled: no suspect any more.  Nothing for one
 * that is none.
 */
void
NaradSuspectClear(NaradShard *shard, NaradOffset offset)
{
	if (shard->suspects.nmembers > 0)
		(void) NaradSetRemove(&shard->suspects, offset);
	NaradSuspectNotOut(shard, offset);
}

/*
 * A claim came to nothing: if it was the suspect that is out, it is so no more,
 * and is a suspect still.
 */
void
NaradSuspectNotOut(NaradShard *shard, NaradOffset offset)
{
	if (NaradSuspectIsOut(shard, offset))
		none_out(shard);
}

/* Gives the suspects that have an entry in one state another. */
static void
move_suspects(NaradShard *shard, NaradLeaseState from, NaradLeaseState to)
{
	NaradLease *lease = NULL;

	if (shard->suspects.nmembers == 0 || shard->leases.nstate[from] == 0)
		return;
	while ((lease = NaradLeaseNext(&shard->leases, lease)) != NULL)
	{
		if (lease->state != from ||
			!NaradSetContains(&shard->suspects, lease->offset))
			continue;
		NaradLeaseSetState(&shard->leases, lease, to);
		NaradShardCountHole(shard, lease);
	}
}

/*
 * By key a suspect is claimed in its turn, where other messages that came back
 * are.  What makes it a suspect then is its bit alone.
 */
void
NaradSuspectsInLine(NaradShard *shard)
{
	move_suspects(shard, NARAD_LEASE_SUSPECT, NARAD_LEASE_RETURNED);
}

/*
 * By key no more: suspects are not among those that came back.
 */
void
NaradSuspectsApart(NaradShard *shard)
{
	move_suspects(shard, NARAD_LEASE_RETURNED, NARAD_LEASE_SUSPECT);
}

/*
 * The one that is out was not handed to anybody: it is what it was.  The page
 * may have its mark, and is written anew.
 */
void
NaradSuspectUnclaim(NaradShard *shard, NaradLease *lease)
{
	none_out(shard);
	lease->deliveries--;
	NaradLeaseClearHolder(lease);
	NaradLeaseSetState(&shard->leases, lease, shard->keys.ordered ?
					   NARAD_LEASE_RETURNED : NARAD_LEASE_SUSPECT);
	NaradShardCountHole(shard, lease);
	NaradDirtyMark(shard);
}
