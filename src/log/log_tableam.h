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
#include "utils/rel.h"

extern const TableAmRoutine *NaradTableAm(void);

/* True for a table with the access method narad (not a partitioned one). */
extern bool NaradRelIsTopic(Relation rel);

#endif							/* LOG_TABLEAM_H */
