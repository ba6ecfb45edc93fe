/*-------------------------------------------------------------------------
 *
 * worker_duty.h
 *	  What the worker of a database does, by the clock or when it is woken.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef WORKER_DUTY_H
#define WORKER_DUTY_H

#include "log/log_topic.h"
#include "utils/relcache.h"

/* When a duty wants to run that has nothing to do: not before a wake. */
#define NARAD_DUTY_NEVER PG_INT64_MAX

/*
 * Duties run one after the other, in the order of the table in worker_main.c,
 * after every wake and whenever the time of one has come: so `run` first asks,
 * cheaply, whether there is anything to do.  It is called outside a
 * transaction, in a memory context that is reset afterwards, and may run as
 * many transactions as it needs.  An error is logged and the duty tried again
 * later, with growing waits; the others go on.
 */
typedef struct NaradDuty
{
	const char *name;			/* for the log */

	/*
	 * Does what is due at `now`; returns when to run next at the latest
	 * (monotonic us), or NARAD_DUTY_NEVER.
	 */
	int64		(*run) (int64 now);

	/* Is something left that keeps the worker from leaving?  NULL: no. */
	bool		(*is_busy) (void);

	/* The clean stop: what must not be lost.  NULL: nothing. */
	void		(*stop) (void);
} NaradDuty;

extern const NaradDuty NaradFrontierDuty;	/* worker_frontier.c */
extern const NaradDuty NaradDeadLetterDuty; /* worker_deadletter.c */

/* The exit has aborted a move in whose code the process ends. */
extern void NaradDeadLetterHung(void);

extern const NaradDuty NaradNotifyDuty; /* worker_notify.c */
extern const NaradDuty NaradRetentionDuty;	/* worker_retention.c */
extern const NaradDuty NaradDedupDuty;	/* worker_dedup.c */

/* What the last of these does for a topic that is open and locked. */
extern void NaradWorkerForgetIds(Relation rel, NaradTopicId topic_id);

/* Is there a topic in this database, as far as the worker has heard? */
extern bool NaradRetentionHasTopics(void);
extern const NaradDuty NaradSaveDuty;	/* worker_save.c */

/* Sleeps until woken or so many milliseconds have passed (-1: for ever);
 * for duties at the clean stop.  May not return (interrupts). */
extern void NaradWorkerSleep(long sleep_ms);

#endif							/* WORKER_DUTY_H */
