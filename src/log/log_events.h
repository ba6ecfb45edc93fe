/*-------------------------------------------------------------------------
 *
 * log_events.h
 *	  What storage tells the layer above.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LOG_EVENTS_H
#define LOG_EVENTS_H

#include "narad.h"

typedef struct NaradLogEvents
{
	/*
	 * A topic id has gone for good (dropped, truncated, or its creation
	 * rolled back).  In a transaction callback: must not error or allocate.
	 */
	void		(*topic_gone) (Oid database, NaradTopicId topic_id);

	/*
	 * TRUNCATE makes a new file: groups of the old one are carried over by
	 * storage.  Nothing to do for the queue but to know the old id is going.
	 */
} NaradLogEvents;

extern PGDLLIMPORT NaradLogEvents NaradLogEventTable;

#endif							/* LOG_EVENTS_H */
