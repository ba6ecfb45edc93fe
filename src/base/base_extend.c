/*-------------------------------------------------------------------------
 *
 * base_extend.c
 *	  Making a relation's file longer by many pages at once, filling its holes.
 *
 * From 16 on the storage manager does that, and reserves room on the disk
 * instead of writing zeros where the file system can.  Up to 15 it extends by
 * one page a call, which costs a write of zeros each; so the same is done here
 * past it: it brings the file into being by its first page, and the rest is
 * reserved through a descriptor of our own.  The storage manager asks for the
 * length of a file each time it needs it, and takes a longer one for granted,
 * as other processes make it so.
 *
 * A file with holes comes about where somebody extends it past pages that are
 * not wanted yet.  The storage manager has nothing for filling them but to write
 * zeros, which takes what was there; so that is done past it in all versions.
 *
 * Owns:       nothing.
 * Invariants: I10.  A page that was added has its place on the disk: a full
 *             one is reported here.
 * Locks:      the caller has the relation extension lock.
 * Runs in:    any backend.
 * WAL:        none, as for every extension of a file.
 * On error:   the file may be longer by some pages of zeros.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <unistd.h>

#include "common/relpath.h"
#include "storage/fd.h"

#include "base/base_compat.h"
#include "base/base_extend.h"
#include "base/base_stop.h"

/* A page of zeros, aligned for direct I/O; never written to. */
static NaradIOBlock zero_block;

/* Reserves a part of an open file; the error, or 0. */
static int
reserve(int fd, off_t from, off_t len)
{
#ifdef HAVE_POSIX_FALLOCATE
	int			error;

#ifdef NARAD_TESTING
	if (NaradStopIsArmed("no-reserve"))
		return EOPNOTSUPP;
#endif
	do
		error = posix_fallocate(fd, from, len);
	while (error == EINTR);
	return error;
#else
	return EOPNOTSUPP;
#endif
}

/*
 * Reserves pages [from, to) of one of the files that a fork consists of, which
 * exists.  False if the file system does not know how.
 */
static bool
reserve_pages(SMgrRelation smgr, BlockNumber from, BlockNumber to)
{
	char	   *path = NaradCompatFilePath(smgr);
	BlockNumber number = from / RELSEG_SIZE;
	File		file;
	int			error;

	if (number > 0)
	{
		char	   *whole = path;

		path = psprintf("%s.%u", whole, number);
		pfree(whole);
	}
	file = PathNameOpenFile(path, O_RDWR | PG_BINARY);
	if (file < 0)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not open file \"%s\": %m", path)));
	error = reserve(FileGetRawDesc(file),
					(off_t) (from % RELSEG_SIZE) * BLCKSZ,
					(off_t) (to - from) * BLCKSZ);
	FileClose(file);
	if (error != 0 && error != EINVAL && error != EOPNOTSUPP)
	{
		errno = error;
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not extend file \"%s\": %m", path),
				 error == ENOSPC ? errhint("Check free disk space.") : 0));
	}
	pfree(path);
	return error == 0;
}

/* Where the file ends in which a page lies, or `to`, if that comes before. */
static BlockNumber
end_in_file(BlockNumber block, BlockNumber to)
{
	BlockNumber left = RELSEG_SIZE - block % RELSEG_SIZE;

	return to - block > left ? block + left : to;
}

/*
 * NaradFileReserve
 *
 * Sees to it that pages [from, to) of a main fork, which reaches that far, have
 * room on the disk: holes are filled, and whatever else is there stays as it is.
 * False if the file system cannot; then part of it may be done.  The caller
 * holds the relation extension lock.  Errors 53100 if the disk is full.
 */
bool
NaradFileReserve(SMgrRelation smgr, BlockNumber from, BlockNumber to)
{
	while (from < to)
	{
		BlockNumber end = end_in_file(from, to);

		if (!reserve_pages(smgr, from, end))
			return false;
		from = end;
	}
	return true;
}

#if NARAD_COMPAT_EXTEND_BY_PAGE

/* For fewer pages it is not worth opening the file. */
#define MIN_RESERVED	8

/* Adds pages that lie in one file. */
static void
extend_one_file(SMgrRelation smgr, BlockNumber from, BlockNumber to)
{
	BlockNumber block = from;

	/* This also sees to it that the file is synced. */
	smgrextend(smgr, MAIN_FORKNUM, block++, zero_block.data, false);
	if (to - block >= MIN_RESERVED && reserve_pages(smgr, block, to))
		return;
	while (block < to)
		smgrextend(smgr, MAIN_FORKNUM, block++, zero_block.data, false);
}

/*
 * NaradFileExtend
 *
 * Adds pages [from, to), which read as zeros, to a main fork that ends at or
 * before from.  The caller holds the relation extension lock.  Errors as
 * smgrextend.
 */
void
NaradFileExtend(SMgrRelation smgr, BlockNumber from, BlockNumber to)
{
	while (from < to)
	{
		BlockNumber end = end_in_file(from, to);

		extend_one_file(smgr, from, end);
		from = end;
	}
}

#else

/*
 * NaradFileExtend
 *
 * The same by the storage manager.
 */
void
NaradFileExtend(SMgrRelation smgr, BlockNumber from, BlockNumber to)
{
	if (from < to)
		smgrzeroextend(smgr, MAIN_FORKNUM, from, (int) (to - from), false);
}

#endif							/* NARAD_COMPAT_EXTEND_BY_PAGE */

/*
 * NaradFileWriteZeros
 *
 * Makes a page that exists one of zeros, past the buffer pool.
 */
void
NaradFileWriteZeros(SMgrRelation smgr, BlockNumber block)
{
	smgrwrite(smgr, MAIN_FORKNUM, block, zero_block.data, false);
}
