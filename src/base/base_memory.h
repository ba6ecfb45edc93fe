/*-------------------------------------------------------------------------
 *
 * base_memory.h
 *	  Shared memory of narad: one DSA area made in place in a fixed block.
 *
 * The area never grows beyond its place (narad.memory_limit), so an address
 * is the same in every process and may be stored in shared memory.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef BASE_MEMORY_H
#define BASE_MEMORY_H

#include "base/base_compat.h"
#include "utils/dsa.h"

extern Size NaradMemoryShmemSize(void);
extern void NaradMemoryShmemInit(void);

/* The area, attached to in this process; may ERROR on first use only. */
extern dsa_area *NaradMemoryArea(void);

/* Zeroed, MAXALIGNed; NULL when the limit is reached. */
extern void *NaradAlloc(Size size);

/* The same, with ERROR 53200 "out of shared memory for <what>" and a hint. */
extern void *NaradAllocOrError(Size size, const char *what);

/* NULL is allowed.  Never errors. */
extern void NaradFree(void *ptr);

/* Only the reserve is left, which is not for leases. */
extern bool NaradMemoryIsLow(void);

/* Before that: there is no more for deduplication ids. */
extern bool NaradMemoryIsScarce(void);

NARAD_NORETURN extern void NaradReportOutOfMemory(const char *what);

#endif							/* BASE_MEMORY_H */
