/*-------------------------------------------------------------------------
 *
 * sql_topic.h
 *	  The table narad.topic_settings.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef SQL_TOPIC_H
#define SQL_TOPIC_H

/* Columns of narad.topic_settings. */
typedef enum NaradSettingColumn
{
	NARAD_SETTING_TOPIC = 1,
	NARAD_SETTING_RETENTION,
	NARAD_SETTING_RETENTION_BYTES,
	NARAD_SETTING_VISIBILITY_TIMEOUT,
	NARAD_SETTING_MAX_DELIVERIES,
	NARAD_SETTING_DEAD_LETTER_TOPIC,
	NARAD_SETTING_RETRY_DELAY,
	NARAD_SETTING_RETRY_BACKOFF,
	NARAD_SETTING_ORDERING,
	NARAD_SETTING_CLEANUP,
	NARAD_SETTING_DEDUP_WINDOW,
	NARAD_SETTING_MAX_IN_FLIGHT,
	NARAD_SETTING_MAX_ACKED_AHEAD,
	NARAD_SETTING_SEGMENT_AGE,
	NARAD_SETTING_LAST = NARAD_SETTING_SEGMENT_AGE
} NaradSettingColumn;

/*
 * The settings in effect: those of the topic's row, and defaults for the
 * rest.  Arrays of NARAD_SETTING_LAST, a column's value at its number - 1.
 */
extern void NaradSettingsEffective(Oid relid, Datum *values, bool *isnull);

#endif							/* SQL_TOPIC_H */
