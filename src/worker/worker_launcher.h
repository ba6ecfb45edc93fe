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

/* Static launcher, utility hook, hook for dropped databases. */
extern void NaradLauncherRegister(void);

/* Entry points, looked up by name. */
extern PGDLLEXPORT void NaradLauncherMain(Datum arg) pg_attribute_noreturn();
extern PGDLLEXPORT void NaradWorkerMain(Datum arg) pg_attribute_noreturn();

#endif							/* WORKER_LAUNCHER_H */
