/*-------------------------------------------------------------------------
 *
 * narad_rmgr.c
 *	  narad's WAL resource manager.
 *
 * All records are the storage layer's: what the queue keeps on its state
 * pages changes by the same META_UPDATE as every page that is not data.
 *
 * Owns:       the registration of resource manager 140, "narad".
 * Runs in:    _PG_init, while shared_preload_libraries are loaded.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog_internal.h"

#include "base/base_start.h"
#include "log/log_xlog.h"
#include "narad_rmgr.h"

static RmgrData narad_rmgr =
{
	.rm_name = NARAD_RMGR_NAME,
	.rm_redo = NaradXLogRedo,
	.rm_desc = NaradXLogDesc,
	.rm_identify = NaradXLogIdentify,
	.rm_startup = NaradStartReplays,
	.rm_mask = NaradXLogMask,
};

/*
 * NaradRmgrRegister
 *
 * Makes the server able to replay narad's records.  From _PG_init only.
 */
void
NaradRmgrRegister(void)
{
	RegisterCustomRmgr(NARAD_RMGR_ID, &narad_rmgr);
}
