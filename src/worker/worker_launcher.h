/*-------------------------------------------------------------------------
 *
 * worker_launcher.h
 *	  Background workers: registration.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef WORKER_LAUNCHER_H
#define WORKER_LAUNCHER_H

#include "base/base_compat.h"

/* Static launcher, utility hook, hook for dropped databases. */
extern void NaradLauncherRegister(void);

/* Entry points, looked up by name. */
NARAD_NORETURN extern PGDLLEXPORT void NaradLauncherMain(Datum arg);
NARAD_NORETURN extern PGDLLEXPORT void NaradWorkerMain(Datum arg);

#endif							/* WORKER_LAUNCHER_H */
