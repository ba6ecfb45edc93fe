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
#include "utils/relcache.h"

typedef struct NaradLogEvents
{
	/*
	 * A topic id has gone for good (dropped, truncated, or its creation
	 * rolled back).  In a transaction callback: must not error or allocate.
	 */
	void		(*topic_gone) (Oid database, NaradTopicId topic_id);

	/*
	 * Records of a partition, of this database, were decided, and the ring
	 * says so: so many were committed, or some are dead.  In a transaction
	 * callback, or wherever a reader finds a prepared transaction to have
	 * ended; no lock of storage is held.  Must not error or allocate.
	 */
	void		(*records_decided) (NaradTopicId topic_id, int partition,
									uint64 nrecords, bool is_commit);

	/*
	 * Retention has, or may have, something to do for a topic of a database.
	 * No narad lock is held.  Must not error; need not have memory.
	 */
	void		(*retention_wanted) (Oid database);

	/*
	 * VACUUM: on the state pages of the topic, frees all that names a
	 * transaction before a limit (FullTransactionId; none of those is
	 * running) of the need to ask what became of it, and returns the oldest
	 * transaction that is still named, if it is older than `oldest`.  Adds to
	 * *nfrozen how many places were changed.  The caller holds
	 * ShareUpdateExclusiveLock and no narad lock; no memory may be taken from
	 * narad.memory_limit.
	 */
	uint64		(*freeze_states) (Relation rel, NaradTopicId topic_id,
								  uint64 limit, uint64 oldest,
								  uint64 *nfrozen);

	/*
	 * TRUNCATE makes a new file: groups of the old one are carried over by
	 * storage.  Nothing to do for the queue but to know the old id is going.
	 */
} NaradLogEvents;

extern PGDLLIMPORT NaradLogEvents NaradLogEventTable;

#endif							/* LOG_EVENTS_H */
