/*-------------------------------------------------------------------------
 *
 * base_extend.h
 *	  Making a relation's file longer by many pages at once, filling its holes.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef BASE_EXTEND_H
#define BASE_EXTEND_H

#include "storage/smgr.h"

/*
 * Adds pages [from, to), which read as zeros, to a main fork that ends at or
 * before from; room on the disk is theirs then.  The caller holds the relation
 * extension lock.  Errors as smgrextend: 53100 if the disk is full.
 */
extern void NaradFileExtend(SMgrRelation smgr, BlockNumber from,
							BlockNumber to);

/*
 * Sees to it that pages [from, to) of a main fork, which reaches that far, have
 * room on the disk: holes are filled, and whatever else is there stays as it is.
 * False if the file system cannot.  Errors 53100 if the disk is full.
 */
extern bool NaradFileReserve(SMgrRelation smgr, BlockNumber from,
							 BlockNumber to);

/* Makes a page that exists one of zeros, past the buffer pool. */
extern void NaradFileWriteZeros(SMgrRelation smgr, BlockNumber block);

#endif							/* BASE_EXTEND_H */
