/*-------------------------------------------------------------------------
 *
 * log_tableam.h
 *	  The table access method.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LOG_TABLEAM_H
#define LOG_TABLEAM_H

#include "access/tableam.h"
#include "log/log_record.h"
#include "utils/rel.h"

extern const TableAmRoutine *NaradTableAm(void);

/*
 * Tells who asks for it where one INSERT put its row, and gives the row what
 * it cannot bring: an extension.  Triggers may insert into the same topic, but
 * do so in later commands: of all rows that go into the relation while the
 * watch is set, that of the lowest command counts.
 */
typedef struct NaradInsertWatch
{
	Oid			relid;			/* in */
	const NaradRecordExtra *extra;	/* in: or NULL */
	CommandId	extra_cid;		/* in: for the first row of that command */
	bool		seen;			/* out: the rest is set */
	CommandId	cid;
	int			partition;
	NaradOffset offset;
} NaradInsertWatch;

/*
 * Sets the watch, or none if NULL; returns the one before, which the caller
 * sets again, also on error.
 */
extern NaradInsertWatch *NaradInsertWatchSet(NaradInsertWatch *watch);

/* True for a table with the access method narad (not a partitioned one). */
extern bool NaradRelIsTopic(Relation rel);

#endif							/* LOG_TABLEAM_H */
