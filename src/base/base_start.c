/*-------------------------------------------------------------------------
 *
 * base_start.c
 *	  How the server before this one ended.
 *
 * Owns:       one flag in shared memory, made with it.
 * Invariants: the flag says "clean" only if pg_control said so when the server
 *             started, and no WAL was replayed since.  In doubt it does not: a
 *             standby that is promoted, or a backup that is restored, does not
 *             know how its primary ended.
 * Locks:      none: written by the postmaster before there is anybody else,
 *             and by the startup process before anybody reads it.
 * Runs in:    postmaster, startup process; read anywhere.
 * WAL:        none.
 * On error:   a pg_control that cannot be read keeps the server from starting,
 *             as it does without us.
 *
 * Shared memory is made anew when a backend crashed, too: pg_control then says
 * that the server is in production.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_control.h"
#include "common/controldata_utils.h"
#include "miscadmin.h"
#include "storage/shmem.h"

#include "base/base_start.h"

static bool *is_clean;

/*
 * True if the server was stopped, as a primary, before it was started.
 */
bool
NaradStartWasClean(void)
{
	return *is_clean;
}

/*
 * WAL is about to be replayed, so there was no clean stop, or it was another
 * server's.
 */
void
NaradStartReplays(void)
{
	if (is_clean != NULL)
		*is_clean = false;
}

/*
 * Of the flag.
 */
Size
NaradStartShmemSize(void)
{
	return MAXALIGN(sizeof(bool));
}

/*
 * Under AddinShmemInitLock.
 */
void
NaradStartShmemInit(void)
{
	bool		found;
	bool		crc_ok;
	ControlFileData *control;

	is_clean = ShmemInitStruct("Narad start", NaradStartShmemSize(), &found);
	if (found)
		return;
	control = get_controlfile(DataDir, &crc_ok);
	*is_clean = crc_ok && control->state == DB_SHUTDOWNED;
	pfree(control);
}
