/*-------------------------------------------------------------------------
 *
 * base_malloc.h
 *	  Memory that a backend frees and soon wants again.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef BASE_MALLOC_H
#define BASE_MALLOC_H

extern void NaradMallocKeep(void);

#endif							/* BASE_MALLOC_H */
