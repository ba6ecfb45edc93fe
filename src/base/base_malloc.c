/*-------------------------------------------------------------------------
 *
 * base_malloc.c
 *	  Memory that a backend frees and soon wants again.
 *
 * Owns:       how much of it the C library keeps for the process.
 * Invariants: none.
 * Locks:      none.
 * Runs in:    a backend that calls a function of narad's with a topic, or
 *             inserts into one.
 * On error:   cannot fail.
 *
 * A consumer asks for the same again and again: a batch of a hundred kilobytes,
 * or a message of a megabyte, each of which is copied a few times on its way to
 * the client.  glibc begins by returning memory to the system as soon as 128 kB
 * at the end of its heap are free, so each call had its memory from there anew,
 * zeroed page by page: that cost more than reading the messages.  Here the
 * process is told to keep some.
 *
 * Whoever sets glibc's variables in the server's environment knows better; and
 * other C libraries go their own ways.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "base/base_malloc.h"

/* What may be kept: a message of 1 MB with its copies, its text among them. */
#define KEPT_SIZE	(16 * 1024 * 1024)

#ifdef __GLIBC__
static bool
is_set_by_administrator(void)
{
	return getenv("MALLOC_TRIM_THRESHOLD_") != NULL ||
		getenv("MALLOC_MMAP_THRESHOLD_") != NULL ||
		getenv("GLIBC_TUNABLES") != NULL;
}
#endif

/*
 * From now on this process keeps up to KEPT_SIZE that is free at the end of its
 * heap.
 */
void
NaradMallocKeep(void)
{
#ifdef __GLIBC__
	static bool done = false;

	if (done)
		return;
	done = true;
	if (is_set_by_administrator())
		return;
	(void) mallopt(M_TRIM_THRESHOLD, KEPT_SIZE);
	(void) mallopt(M_MMAP_THRESHOLD, KEPT_SIZE);
#endif
}
