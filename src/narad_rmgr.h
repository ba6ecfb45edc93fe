/*-------------------------------------------------------------------------
 *
 * narad_rmgr.h
 *	  narad's WAL resource manager.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NARAD_RMGR_H
#define NARAD_RMGR_H

extern void NaradRmgrRegister(void);

#endif							/* NARAD_RMGR_H */
