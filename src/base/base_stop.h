/*-------------------------------------------------------------------------
 *
 * base_stop.h
 *	  Named points at which a test can hold a process.
 *
 * With NARAD_TESTING, NARAD_STOP("name") waits while a session has armed the
 * point of that name: with narad_test.stop_arm() sessions, and with
 * stop_arm_any() the worker and autovacuum as well, until stop_release().
 * Otherwise it is nothing.  Never inside a critical section, and never while an
 * LWLock is held.
 *
 * NaradStopIsArmed("name") only asks, in any process, and exists with
 * NARAD_TESTING only.
 *
 * NARAD_FAIL("name") is an error instead while the point is armed, in any
 * process, and may stand wherever an error may be raised.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef BASE_STOP_H
#define BASE_STOP_H

#ifdef NARAD_TESTING
extern void NaradStop(const char *name);
extern void NaradFail(const char *name);
extern bool NaradStopIsArmed(const char *name);
extern Size NaradStopShmemSize(void);
extern void NaradStopShmemInit(void);
#define NARAD_STOP(name) NaradStop(name)
#define NARAD_FAIL(name) NaradFail(name)
#else
#define NARAD_STOP(name) ((void) 0)
#define NARAD_FAIL(name) ((void) 0)
#endif

#endif							/* BASE_STOP_H */
