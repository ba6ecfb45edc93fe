/*-------------------------------------------------------------------------
 *
 * base_memory.c
 *	  Shared memory of narad: one DSA area made in place in a fixed block.
 *
 * Owns:       the block "Narad memory", narad.memory_limit large.
 * Invariants: the area's size limit is its place, so it never makes a
 *             dynamic segment: an address is the same in every process, and
 *             a page never allocated is never touched.
 * Locks:      DSA's own (rank memory), taken and released inside each call; an
 *             atomic counter of what is in use.
 * Runs in:    the postmaster at start, any backend.
 * On error:   NaradAlloc answers NULL; nothing but the first attachment of a
 *             process may raise an error on its own account.
 *
 * Before each piece stands its size, as the area rounds it, so that the sum of
 * what is in use is known.  What may grow without bounds, which is leases,
 * looks at it and stops early, so that there is still room for topics, groups
 * and open transactions (NaradMemoryIsLow).  Deduplication ids stop still
 * earlier (NaradMemoryIsScarce): producers who could take all would keep consumers
 * from taking anything.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "port/atomics.h"
#include "port/pg_bitutils.h"
#include "storage/shmem.h"
#include "utils/memutils.h"

#include "base/base_guc.h"
#include "base/base_lock.h"
#include "base/base_memory.h"

/* Kept free of leases at least. */
#define MIN_RESERVE		((Size) 2 * 1024 * 1024)

/* What stands before each piece. */
typedef struct MemoryHead
{
	uint64		size;			/* charged for it */
} MemoryHead;

#define HEAD_SIZE		MAXALIGN(sizeof(MemoryHead))

typedef struct MemoryCtl
{
	pg_atomic_uint64 in_use;	/* sum of what is charged */
} MemoryCtl;

#define CTL_SIZE		CACHELINEALIGN(sizeof(MemoryCtl))

static MemoryCtl *memory_ctl;
static char *memory_place;
static dsa_area *memory_area;

/* What there is for the area. */
static Size
area_size(void)
{
	return MAXALIGN(mul_size((Size) narad_memory_limit, 1024 * 1024));
}

/*
 * NaradMemoryShmemSize
 *
 * The size of the fixed block.  Settings are final.
 */
Size
NaradMemoryShmemSize(void)
{
	return add_size(CTL_SIZE, area_size());
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
	memory_ctl = ShmemInitStruct("Narad memory", NaradMemoryShmemSize(),
								 &found);
	memory_place = (char *) memory_ctl + CTL_SIZE;
	if (!found)
	{
		dsa_area   *area;

		pg_atomic_init_u64(&memory_ctl->in_use, 0);
		area = dsa_create_in_place(memory_place, area_size(),
								   NaradLockTranche(NARAD_LOCK_MEMORY), NULL);
		dsa_set_size_limit(area, area_size());
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
 * What the area takes for a piece, nearly: whole pages for a large one, else
 * the next of its size classes, of which there are four to eight between one
 * power of two and the next.
 */
static uint64
charged_size(Size size)
{
	Size		granule;

	if (size > 8192)
		return TYPEALIGN(4096, size);
	granule = Max(MAXIMUM_ALIGNOF, pg_nextpower2_64(size) / 8);
	return TYPEALIGN(granule, size);
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
	MemoryHead *head;

	size = HEAD_SIZE + MAXALIGN(size);
	pointer = dsa_allocate_extended(area, size,
									DSA_ALLOC_HUGE | DSA_ALLOC_NO_OOM |
									DSA_ALLOC_ZERO);
	if (!DsaPointerIsValid(pointer))
		return NULL;
	head = dsa_get_address(area, pointer);
	head->size = charged_size(size);
	pg_atomic_fetch_add_u64(&memory_ctl->in_use, head->size);
	return (char *) head + HEAD_SIZE;
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
	MemoryHead *head;

	if (ptr == NULL)
		return;
	head = (MemoryHead *) ((char *) ptr - HEAD_SIZE);
	pg_atomic_fetch_sub_u64(&memory_ctl->in_use, head->size);
	dsa_free(NaradMemoryArea(), (dsa_pointer) ((char *) head - memory_place));
}

/* The settings' lower bound is well above the least reserve. */
static uint64
reserve_of(uint64 limit)
{
	return Max(limit / 10, MIN_RESERVE);
}

/*
 * NaradMemoryIsLow
 *
 * Whether what is left is the reserve: a tenth, or 2 MB if that is more, for
 * all but leases.  Partly used blocks of the area are not counted as used,
 * so the reserve also has to hold these.  No lock, no error.
 */
bool
NaradMemoryIsLow(void)
{
	uint64		limit = area_size();

	return pg_atomic_read_u64(&memory_ctl->in_use) + reserve_of(limit) > limit;
}

/*
 * NaradMemoryIsScarce
 *
 * Whether what is left above the reserve is the eighth that is not for
 * deduplication ids.  No lock, no error.
 */
bool
NaradMemoryIsScarce(void)
{
	uint64		limit = area_size();
	uint64		reserve = reserve_of(limit);

	reserve += (limit - reserve) / 8;
	return pg_atomic_read_u64(&memory_ctl->in_use) + reserve > limit;
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
