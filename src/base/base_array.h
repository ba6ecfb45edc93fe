/*-------------------------------------------------------------------------
 *
 * base_array.h
 *	  An array of pointers in shared memory that grows while others read it.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef BASE_ARRAY_H
#define BASE_ARRAY_H

#include "port/atomics.h"

typedef struct NaradArray
{
	struct NaradArray *older;	/* shorter ones, which readers may be in */
	int			length;			/* constant */
	void	   *slots[FLEXIBLE_ARRAY_MEMBER];
} NaradArray;

/*
 * What is in a slot, or NULL.  No lock: what was set before the caller learnt
 * of it is there.
 */
static inline void *
NaradArrayGet(NaradArray *const *place, int i)
{
	NaradArray *array = *(NaradArray *const volatile *) place;
	void	   *ptr;

	if (array == NULL)
		return NULL;
	pg_read_barrier();			/* pairs with both writers' */
	if (i >= array->length)
		return NULL;
	ptr = *(void *volatile *) &array->slots[i];
	pg_read_barrier();
	return ptr;
}

/* How many slots there are, set or not.  The same. */
static inline int
NaradArrayLength(NaradArray *const *place)
{
	NaradArray *array = *(NaradArray *const volatile *) place;

	if (array == NULL)
		return 0;
	pg_read_barrier();
	return array->length;
}

/* Writers: one at a time, which is up to the caller. */
extern bool NaradArrayReserve(NaradArray **place, int length);
extern void NaradArraySet(NaradArray **place, int i, void *ptr);

/* Nobody else knows of the array any more.  Not what is in the slots. */
extern void NaradArrayFree(NaradArray *array);

#endif							/* BASE_ARRAY_H */
