/*-------------------------------------------------------------------------
 *
 * base_wait.h
 *	  What a process that sleeps says that it waits for.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef BASE_WAIT_H
#define BASE_WAIT_H

typedef enum NaradWaitEvent
{
	NARAD_EVENT_CONSUME,		/* consume(), CALL wait() */
	NARAD_EVENT_FETCH,			/* fetch() */
	NARAD_EVENT_COUNT
} NaradWaitEvent;

/* Its number, for WaitLatch. */
extern uint32 NaradWaitEventId(NaradWaitEvent event);

#endif							/* BASE_WAIT_H */
