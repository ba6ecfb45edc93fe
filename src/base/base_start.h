/*-------------------------------------------------------------------------
 *
 * base_start.h
 *	  How the server before this one ended.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef BASE_START_H
#define BASE_START_H

/* The server was stopped, as a primary, and did not crash. */
extern bool NaradStartWasClean(void);

/* WAL is replayed: in the startup process, as rm_startup. */
extern void NaradStartReplays(void);

extern Size NaradStartShmemSize(void);
extern void NaradStartShmemInit(void);

#endif							/* BASE_START_H */
