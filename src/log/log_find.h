/*-------------------------------------------------------------------------
 *
 * log_find.h
 *	  Offsets of a partition by time and by epoch; extensions since a time.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LOG_FIND_H
#define LOG_FIND_H

#include "log/log_record.h"
#include "log/log_topic.h"
#include "utils/timestamp.h"

/*
 * The offset of the first record that was appended at or after a time,
 * whatever becomes of its transaction; the partition's end if there is none.
 * So whoever reads from there misses nothing of that time or later.
 */
extern NaradOffset NaradOffsetForTime(Relation rel, NaradRelInfo *info,
									  int partition, TimestampTz time);

/*
 * Where the largest epoch at or below the given one ends; false if the
 * partition holds nothing of such an epoch.
 */
extern bool NaradOffsetForEpoch(Relation rel, NaradRelInfo *info,
								int partition, uint32 epoch,
								NaradOffset *offset);

/*
 * Calls back for each record of a partition with an extension that was
 * appended at or after a time, in order, whatever becomes of its transaction.
 * Only headers are looked at: neither CRC nor body.
 */
typedef void (*NaradExtraVisitor) (const NaradRecordExtra *extra,
								   int partition, NaradOffset offset,
								   int64 time, void *arg);
extern void NaradExtrasSince(Relation rel, NaradRelInfo *info, int partition,
							 TimestampTz time, NaradExtraVisitor visit,
							 void *arg);

#endif							/* LOG_FIND_H */
