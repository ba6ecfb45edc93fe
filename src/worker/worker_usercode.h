/*-------------------------------------------------------------------------
 *
 * worker_usercode.h
 *	  Code of users in the worker: triggers, defaults, constraints.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef WORKER_USERCODE_H
#define WORKER_USERCODE_H

/*
 * Between the two, in a transaction, code may run as a role: with no more
 * rights than it has, restricted, with a search_path that holds nothing of
 * anybody's.  After limit_ms it is cancelled; after twice that time, or with
 * the first request to stop, the process ends.
 */
extern void NaradUserCodeBegin(Oid role, int limit_ms);
extern void NaradUserCodeEnd(void);

/* Instead of the second, after an error.  Interrupts are held. */
extern void NaradUserCodeFailed(void);

/* Once the transaction has ended: what the code left in the session goes. */
extern void NaradUserCodeForget(void);

/* The worker was asked to stop; for the handler of a signal. */
extern void NaradUserCodeStop(void);

/* In a callback of the exit: does the process end in such code? */
extern bool NaradUserCodeIsRunning(void);

#endif							/* WORKER_USERCODE_H */
