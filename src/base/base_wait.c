/*-------------------------------------------------------------------------
 *
 * base_wait.c
 *	  What a process that sleeps says that it waits for.
 *
 * Up to PostgreSQL 16 an extension has one wait event for everything, which
 * pg_stat_activity shows as "Extension"; later ones show ours by name.
 *
 * Owns:       the ids of wait events in this process.
 * Runs in:    any process connected to shared memory.
 * On error:   asking for an id may fail for want of memory, before the sleep.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "base/base_compat.h"
#include "base/base_wait.h"

static const char *const event_names[NARAD_EVENT_COUNT] = {
	[NARAD_EVENT_CONSUME] = "NaradConsume",
	[NARAD_EVENT_FETCH] = "NaradFetch",
};

static uint32 event_ids[NARAD_EVENT_COUNT];

/*
 * NaradWaitEventId
 *
 * The number that WaitLatch takes.
 */
uint32
NaradWaitEventId(NaradWaitEvent event)
{
	Assert(event < NARAD_EVENT_COUNT);
	if (event_ids[event] == 0)
		event_ids[event] = NaradCompatWaitEvent(event_names[event]);
	return event_ids[event];
}
