/*-------------------------------------------------------------------------
 *
 * fail_io.c
 *	  A disk that is full, or broken, on demand: a library for LD_PRELOAD.
 *
 * Calls that would extend or write a file fail while a control file exists,
 * whose name is in FAIL_IO.  It holds rules, one a line, of which the first
 * counts that fits: the number of the error, what is to fail ("extend": what
 * would make the file longer; "room": that, and what would fill a hole of it;
 * "write": all; "reserve": fallocate alone), and a part of the names of the
 * files concerned.
 *
 * A test that needs it compiles it (cc -shared -fPIC), and starts a server
 * under it.  Linux only.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

/* Reads the control file past the functions below; 0 if there is none. */
static int
read_control(char *line, size_t size)
{
	const char *name = getenv("FAIL_IO");
	ssize_t		len;
	int			fd;

	if (name == NULL || access(name, R_OK) != 0)
		return 0;
	fd = open(name, O_RDONLY);
	if (fd < 0)
		return 0;
	len = read(fd, line, size - 1);
	close(fd);
	if (len <= 0)
		return 0;
	line[len] = '\0';
	return 1;
}

/* Is it a file whose name has this part? */
static int
is_named(int fd, const char *part)
{
	char		link[64];
	char		path[PATH_MAX];
	ssize_t		len;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	len = readlink(link, path, sizeof(path) - 1);
	if (len <= 0)
		return 0;
	path[len] = '\0';
	return strstr(path, part) != NULL;
}

static int
is_longer(int fd, off_t end)
{
	struct stat st;

	return fstat(fd, &st) == 0 && end > st.st_size;
}

/* Is there a hole?  The server does not go by a file's position. */
static int
has_hole(int fd, off_t at, off_t end)
{
	off_t		hole = lseek(fd, at, SEEK_HOLE);

	return hole >= 0 && hole < end;
}

static int
is_of_kind(const char *kind, int fd, off_t at, off_t end, int reserve)
{
	if (strcmp(kind, "reserve") == 0)
		return reserve;
	if (strcmp(kind, "extend") == 0)
		return is_longer(fd, end);
	if (strcmp(kind, "room") == 0)
		return is_longer(fd, end) || has_hole(fd, at, end);
	return strcmp(kind, "write") == 0;
}

/*
 * The error with which a call fails that would write from `at` to `end` of a
 * file, or reserve room for that, or 0.  errno is left alone.
 */
static int
failure(int fd, off_t at, off_t end, int reserve)
{
	char		rules[1024];
	char	   *rule;
	char	   *rest;
	char		kind[16];
	char		part[256];
	int			error;
	int			saved = errno;
	int			result = 0;

	if (read_control(rules, sizeof(rules)))
	{
		for (rule = strtok_r(rules, "\n", &rest); rule != NULL && result == 0;
			 rule = strtok_r(NULL, "\n", &rest))
		{
			if (sscanf(rule, "%d %15s %255s", &error, kind, part) == 3 &&
				is_named(fd, part) && is_of_kind(kind, fd, at, end, reserve))
				result = error;
		}
	}
	errno = saved;
	return result;
}

#define REAL(type, name) \
	static type real; \
	if (real == NULL) \
		real = (type) dlsym(RTLD_NEXT, name)

#define FAIL_IF_TOLD(fd, at, end, reserve) \
	do { \
		int			error_ = failure(fd, at, end, reserve); \
		if (error_ != 0) \
		{ \
			errno = error_; \
			return -1; \
		} \
	} while (0)

typedef ssize_t (*pwrite_type) (int, const void *, size_t, off_t);
typedef ssize_t (*pwritev_type) (int, const struct iovec *, int, off_t);
typedef int (*ftruncate_type) (int, off_t);
typedef int (*fallocate_type) (int, int, off_t, off_t);
typedef int (*posix_fallocate_type) (int, off_t, off_t);

static off_t
iov_length(const struct iovec *iov, int count)
{
	off_t		length = 0;

	for (int i = 0; i < count; i++)
		length += iov[i].iov_len;
	return length;
}

ssize_t
pwrite(int fd, const void *data, size_t len, off_t at)
{
	REAL(pwrite_type, "pwrite");
	FAIL_IF_TOLD(fd, at, at + (off_t) len, 0);
	return real(fd, data, len, at);
}

ssize_t
pwrite64(int fd, const void *data, size_t len, off64_t at)
{
	REAL(pwrite_type, "pwrite64");
	FAIL_IF_TOLD(fd, at, at + (off_t) len, 0);
	return real(fd, data, len, at);
}

ssize_t
pwritev(int fd, const struct iovec *iov, int count, off_t at)
{
	REAL(pwritev_type, "pwritev");
	FAIL_IF_TOLD(fd, at, at + iov_length(iov, count), 0);
	return real(fd, iov, count, at);
}

ssize_t
pwritev64(int fd, const struct iovec *iov, int count, off64_t at)
{
	REAL(pwritev_type, "pwritev64");
	FAIL_IF_TOLD(fd, at, at + iov_length(iov, count), 0);
	return real(fd, iov, count, at);
}

int
ftruncate(int fd, off_t len)
{
	REAL(ftruncate_type, "ftruncate");
	FAIL_IF_TOLD(fd, len, len, 0);
	return real(fd, len);
}

int
ftruncate64(int fd, off64_t len)
{
	REAL(ftruncate_type, "ftruncate64");
	FAIL_IF_TOLD(fd, len, len, 0);
	return real(fd, len);
}

int
fallocate(int fd, int mode, off_t at, off_t len)
{
	REAL(fallocate_type, "fallocate");
	FAIL_IF_TOLD(fd, at, at + len, 1);
	return real(fd, mode, at, len);
}

int
fallocate64(int fd, int mode, off64_t at, off64_t len)
{
	REAL(fallocate_type, "fallocate64");
	FAIL_IF_TOLD(fd, at, at + len, 1);
	return real(fd, mode, at, len);
}

/* These return the error. */
int
posix_fallocate(int fd, off_t at, off_t len)
{
	REAL(posix_fallocate_type, "posix_fallocate");
	int			error = failure(fd, at, at + len, 1);

	return error != 0 ? error : real(fd, at, len);
}

int
posix_fallocate64(int fd, off64_t at, off64_t len)
{
	REAL(posix_fallocate_type, "posix_fallocate64");
	int			error = failure(fd, at, at + len, 1);

	return error != 0 ? error : real(fd, at, len);
}
