/*-------------------------------------------------------------------------
 *
 * worker_utility.h
 *	  Keeps the workers out of the way of statements that need a database for
 *	  themselves.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef WORKER_UTILITY_H
#define WORKER_UTILITY_H

extern void NaradUtilityRegister(void); /* hooks */

#endif							/* WORKER_UTILITY_H */
