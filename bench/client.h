/*-------------------------------------------------------------------------
 *
 * client.h
 *	  What the clients in C share: the clock, a connection, percentiles.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef BENCH_CLIENT_H
#define BENCH_CLIENT_H

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <libpq-fe.h>

static inline double
now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static inline void
sleep_until(double when)
{
	double		left = when - now();

	if (left > 0)
		usleep((useconds_t) (left * 1e6));
}

static inline void
fail(PGconn *conn, const char *what)
{
	fprintf(stderr, "%s: %s: %s", program_invocation_short_name, what,
			PQerrorMessage(conn));
	exit(1);
}

static inline PGconn *
dial(void)
{
	PGconn	   *conn = PQconnectdb("dbname=postgres");

	if (PQstatus(conn) != CONNECTION_OK)
		fail(conn, "connection");
	return conn;
}

/* The result, which is no error. */
static inline PGresult *
checked(PGconn *conn, PGresult *res, const char *what)
{
	if (PQresultStatus(res) != PGRES_TUPLES_OK &&
		PQresultStatus(res) != PGRES_COMMAND_OK)
		fail(conn, what);
	return res;
}

static inline void
prepare(PGconn *conn, const char *name, const char *text)
{
	PQclear(checked(conn, PQprepare(conn, name, text, 0, NULL), text));
}

static inline void
listen_to(PGconn *conn, const char *channel)
{
	char		text[100];

	snprintf(text, sizeof(text), "LISTEN %s", channel);
	PQclear(checked(conn, PQexec(conn, text), text));
}

/*
 * Waits for a notification, for so many ms at most.  One that came with an
 * earlier result counts, as the row it tells of may have come after it.
 */
static inline void
wait_for_notify(PGconn *conn, int ms)
{
	struct pollfd fd = {PQsocket(conn), POLLIN, 0};
	PGnotify   *notify = PQnotifies(conn);

	if (notify == NULL && poll(&fd, 1, ms) > 0)
	{
		PQconsumeInput(conn);
		notify = PQnotifies(conn);
	}
	for (; notify != NULL; notify = PQnotifies(conn))
		PQfreemem(notify);
}

static inline int
compare_doubles(const void *a, const void *b)
{
	double		x = *(const double *) a;
	double		y = *(const double *) b;

	return (x > y) - (x < y);
}

/* Sorts the n times, in seconds, and prints their p50 and p99 in ms. */
static inline void
print_percentiles(double *times, size_t n)
{
	qsort(times, n, sizeof(double), compare_doubles);
	printf("%.3f %.3f", n ? times[n / 2] * 1000 : 0,
		   n ? times[n * 99 / 100] * 1000 : 0);
}

#endif							/* BENCH_CLIENT_H */
