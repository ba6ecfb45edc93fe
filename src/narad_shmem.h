/*-------------------------------------------------------------------------
 *
 * narad_shmem.h
 *	  Asks for narad's fixed shared memory and sets it up.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef NARAD_SHMEM_H
#define NARAD_SHMEM_H

extern void NaradShmemRegister(void);

#endif							/* NARAD_SHMEM_H */
