/*-------------------------------------------------------------------------
 *
 * narad_shmem.c
 *	  Asks for narad's fixed shared memory and sets it up.
 *
 * Adds up what every module wants, and calls each to set up its part.  The
 * order matters: lock tranches, then the memory area, then all others.
 *
 * Owns:       the two shared memory hooks.
 * Locks:      AddinShmemInitLock, in the startup hook.
 * Runs in:    the postmaster, at start and after a crash restart.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"

#include "base/base_lock.h"
#include "base/base_memory.h"
#include "base/base_start.h"
#include "base/base_stop.h"
#include "log/log_retain.h"
#include "log/log_topic.h"
#include "narad_shmem.h"
#include "queue/queue_shard.h"

static shmem_request_hook_type previous_request_hook;
static shmem_startup_hook_type previous_startup_hook;

static void
request_shmem(void)
{
	Size		size;

	if (previous_request_hook)
		previous_request_hook();

	size = add_size(NaradMemoryShmemSize(), NaradStartShmemSize());
	size = add_size(size, NaradLogTopicShmemSize());
	size = add_size(size, NaradRetainShmemSize());
	size = add_size(size, NaradQueueShmemSize());
#ifdef NARAD_TESTING
	size = add_size(size, NaradStopShmemSize());
#endif
	/* ShmemInitStruct rounds each up to a cache line. */
	size = add_size(size, 10 * PG_CACHE_LINE_SIZE);
	RequestAddinShmemSpace(size);
	NaradLockRequest();
}

static void
startup_shmem(void)
{
	if (previous_startup_hook)
		previous_startup_hook();

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	NaradLockShmemInit();
	NaradMemoryShmemInit();
	NaradStartShmemInit();
	NaradLogTopicShmemInit();
	NaradRetainShmemInit();
	NaradQueueShmemInit();
#ifdef NARAD_TESTING
	NaradStopShmemInit();
#endif
	LWLockRelease(AddinShmemInitLock);
}

/*
 * NaradShmemRegister
 *
 * Installs the hooks.  From _PG_init, while preloading.
 */
void
NaradShmemRegister(void)
{
	previous_request_hook = shmem_request_hook;
	shmem_request_hook = request_shmem;
	previous_startup_hook = shmem_startup_hook;
	shmem_startup_hook = startup_shmem;
}
