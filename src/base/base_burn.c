/*-------------------------------------------------------------------------
 *
 * base_burn.c
 *	  Transaction ids used up fast, for tests of wraparound.
 *
 * Takes ids like any transaction where the server's logs of transactions begin
 * a page, so that these are extended as ever, and steps over those in between.
 * Compiled with NARAD_TESTING only; otherwise this file is empty.
 *
 * Owns:       nothing.
 * Locks:      XidGenLock.
 * Runs in:    any backend, on a primary.
 * On error:   some ids are used up.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#ifdef NARAD_TESTING

#include "access/transam.h"
#include "access/xact.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/lwlock.h"

#include "base/base_compat.h"

/* No log of transactions has fewer of them on a page, nor unaligned ones. */
#define PAGE_XACTS	512

/* Ids that begin and end a page are taken in earnest. */
#define PAGE_MARGIN	2

PG_FUNCTION_INFO_V1(narad_burn_xids);

/* Steps to the end of the page that the next id lies on; how many were used. */
static uint64
step_over_page(void)
{
	uint64		nsteps = 0;
	uint32		place;

	LWLockAcquire(XidGenLock, LW_EXCLUSIVE);
	place = XidFromFullTransactionId(*NaradCompatNextXid()) % PAGE_XACTS;
	if (XidFromFullTransactionId(*NaradCompatNextXid()) > PAGE_XACTS &&
		place >= PAGE_MARGIN && place < PAGE_XACTS - PAGE_MARGIN)
	{
		nsteps = PAGE_XACTS - PAGE_MARGIN - place;
		NaradCompatNextXid()->value += nsteps;
	}
	LWLockRelease(XidGenLock);
	return nsteps;
}

/*
 * Uses up about that many transaction ids, as subtransactions of the caller's
 * transaction that ended at once.
 */
Datum
narad_burn_xids(PG_FUNCTION_ARGS)
{
	int64		count = PG_GETARG_INT64(0);
	int64		nused = 0;

	(void) GetTopTransactionId();
	while (nused < count)
	{
		CHECK_FOR_INTERRUPTS();
		(void) GetNewTransactionId(true);
		nused += 1 + step_over_page();
	}
	PG_RETURN_INT64(nused);
}

#endif							/* NARAD_TESTING */
