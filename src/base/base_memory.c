/*-------------------------------------------------------------------------
 *
 * base_memory.c
 *	  Shared memory of narad: one DSA area made in place in a fixed block.
 *
 * Owns:       the block "Narad memory", narad.memory_limit large.
 * Invariants: the area's size limit is its place, so it never makes a
 *             dynamic segment: an address is the same in every process, and
 *             a page never allocated is never touched.
 * Locks:      DSA's own (rank memory), taken and released inside each call.
 * Runs in:    the postmaster at start, any backend.
 * On error:   NaradAlloc answers NULL; nothing but the first attachment of a
 *             process may raise an error on its own account.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "storage/shmem.h"
#include "utils/memutils.h"

#include "base/base_guc.h"
#include "base/base_lock.h"
#include "base/base_memory.h"

static char *memory_place;
static dsa_area *memory_area;

/*
 * NaradMemoryShmemSize
 *
 * The size of the fixed block.  Settings are final.
 */
Size
NaradMemoryShmemSize(void)
{
	return MAXALIGN(mul_size((Size) narad_memory_limit, 1024 * 1024));
}

/*
 * NaradMemoryShmemInit
 *
 * Makes the area, or finds it.  Under AddinShmemInitLock, after
 * NaradLockShmemInit.  Also runs after a crash restart, so every static
 * pointer is set anew.
 */
void
NaradMemoryShmemInit(void)
{
	bool		found;

	memory_area = NULL;
	memory_place = ShmemInitStruct("Narad memory", NaradMemoryShmemSize(),
								   &found);
	if (!found)
	{
		dsa_area   *area;

		area = dsa_create_in_place(memory_place, NaradMemoryShmemSize(),
								   NaradLockTranche(NARAD_LOCK_MEMORY), NULL);
		dsa_set_size_limit(area, NaradMemoryShmemSize());
		dsa_pin(area);

		/* Processes attach for themselves when they need it. */
		dsa_detach(area);
	}
}

/*
 * NaradMemoryArea
 *
 * The area, attached to in this process; may ERROR (out of local memory) the
 * first time.  The area is pinned, so a process that ends need not detach.
 */
dsa_area *
NaradMemoryArea(void)
{
	if (memory_area == NULL)
	{
		MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

		Assert(memory_place != NULL);
		memory_area = dsa_attach_in_place(memory_place, NULL);
		dsa_pin_mapping(memory_area);
		MemoryContextSwitchTo(old);
	}
	return memory_area;
}

/*
 * NaradAlloc
 *
 * Zeroed, MAXALIGNed memory, or NULL when the limit is reached.
 */
void *
NaradAlloc(Size size)
{
	dsa_area   *area = NaradMemoryArea();
	dsa_pointer pointer;

	pointer = dsa_allocate_extended(area, MAXALIGN(size),
									DSA_ALLOC_HUGE | DSA_ALLOC_NO_OOM |
									DSA_ALLOC_ZERO);
	if (!DsaPointerIsValid(pointer))
		return NULL;
	return dsa_get_address(area, pointer);
}

/*
 * NaradAllocOrError
 *
 * The same, with ERROR 53200 when the limit is reached.
 */
void *
NaradAllocOrError(Size size, const char *what)
{
	void	   *ptr = NaradAlloc(size);

	if (ptr == NULL)
		NaradReportOutOfMemory(what);
	return ptr;
}

/*
 * NaradFree
 *
 * Gives memory back; NULL is allowed.  In a process that attached before (see
 * NaradMemoryArea) it cannot fail.  The area consists of its first segment
 * only, where a DSA pointer is the distance from the place.
 */
void
NaradFree(void *ptr)
{
	if (ptr != NULL)
		dsa_free(NaradMemoryArea(), (dsa_pointer) ((char *) ptr - memory_place));
}

/*
 * NaradReportOutOfMemory
 *
 * Raises the error for memory that could not be had.
 */
void
NaradReportOutOfMemory(const char *what)
{
	ereport(ERROR,
			(errcode(ERRCODE_OUT_OF_MEMORY),
			 errmsg("out of shared memory for %s", what),
			 errhint("Increase \"narad.memory_limit\".")));
}
