/*-------------------------------------------------------------------------
 *
 * base_array.c
 *	  An array of pointers in shared memory that grows while others read it.
 *
 * Owns:       nothing; the place is the caller's.
 * Invariants: a slot, once set, stays.  A longer array is made complete before
 *             it takes the place of a shorter one, and that one is kept as
 *             long as the place is: readers hold no lock.  Since the length at
 *             least doubles, all that is kept is less than what is in use.
 * Locks:      readers none; writers one of the caller's, always the same.
 * Runs in:    any backend.
 * On error:   false when out of memory, and nothing has changed.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "base/base_array.h"
#include "base/base_memory.h"

/*
 * NaradArrayReserve
 *
 * Makes the array at least so long; false when out of memory.  Under the
 * writers' lock.
 */
bool
NaradArrayReserve(NaradArray **place, int length)
{
	NaradArray *old = *place;
	NaradArray *array;
	int			old_length = old != NULL ? old->length : 0;

	if (length <= old_length)
		return true;
	length = Max(length, 2 * old_length);
	array = NaradAlloc(offsetof(NaradArray, slots) + length * sizeof(void *));
	if (array == NULL)
		return false;
	array->older = old;
	array->length = length;
	if (old != NULL)
		memcpy(array->slots, old->slots, old_length * sizeof(void *));
	pg_write_barrier();
	*(NaradArray *volatile *) place = array;
	return true;
}

/*
 * NaradArraySet
 *
 * Puts something complete into a slot for which there is room.  Under the
 * writers' lock; plain memory work.
 */
void
NaradArraySet(NaradArray **place, int i, void *ptr)
{
	Assert(*place != NULL && i < (*place)->length);
	pg_write_barrier();
	*(void *volatile *) &(*place)->slots[i] = ptr;
}

/*
 * NaradArrayFree
 *
 * Frees the array, and those it replaced; NULL is allowed.  Never errors in a
 * process that attached to shared memory before.
 */
void
NaradArrayFree(NaradArray *array)
{
	while (array != NULL)
	{
		NaradArray *older = array->older;

		NaradFree(array);
		array = older;
	}
}
