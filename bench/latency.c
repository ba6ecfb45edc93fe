/*-------------------------------------------------------------------------
 *
 * latency.c
 *	  How long a message takes from its producer to a consumer that waits.
 *
 *		latency WHAT COUNT RATE WAITERS
 *
 * One session produces COUNT messages, RATE a second, each in a transaction of
 * its own; WAITERS sessions wait for them.  WHAT is one of
 *
 *	narad	topic bench_wait, consume(wait), ack => with the next call
 *	listen	table bench_listen, NOTIFY by the producer, LISTEN and SKIP LOCKED by
 *			the consumers, which delete in the transaction that claims
 *	bare	no consumer: INSERT of a row, and SELECT 1, at the same rate
 *
 * Prints for each series its name, and p50 and p99 in ms: "delivery" from before
 * the producing statement was sent until the row was there; "after" from its
 * return, which is after the commit, below zero where the row was sooner.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <libpq-fe.h>

#define MAX_WAITERS 1000

static bool listens;
static int	count;
static int	nwaiters;
static double *sent_at;
static double *returned_at;
static double *received_at;
static int	nready;
static int	nreceived;

static double
now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static void
sleep_until(double when)
{
	double		left = when - now();

	if (left > 0)
		usleep((useconds_t) (left * 1e6));
}

static void
fail(PGconn *conn, const char *what)
{
	fprintf(stderr, "latency: %s: %s", what, PQerrorMessage(conn));
	exit(1);
}

static PGconn *
dial(void)
{
	PGconn	   *conn = PQconnectdb("dbname=postgres");

	if (PQstatus(conn) != CONNECTION_OK)
		fail(conn, "connection");
	return conn;
}

static void
prepare(PGconn *conn, const char *text)
{
	PGresult   *res = PQprepare(conn, "s", text, 0, NULL);

	if (PQresultStatus(res) != PGRES_COMMAND_OK)
		fail(conn, text);
	PQclear(res);
}

static PGresult *
execute(PGconn *conn, const char *param)
{
	PGresult   *res = PQexecPrepared(conn, "s", param != NULL ? 1 : 0, &param,
									 NULL, NULL, 0);

	if (PQresultStatus(res) != PGRES_TUPLES_OK &&
		PQresultStatus(res) != PGRES_COMMAND_OK)
		fail(conn, "execution");
	return res;
}

/* Notes when the rows of a result came; column 0 is the number in it. */
static void
note_rows(PGresult *res)
{
	double		t = now();
	int			i;

	for (i = 0; i < PQntuples(res); i++)
	{
		int			n = atoi(PQgetvalue(res, i, 0));

		/* Not the one before the first, of which the plan was made. */
		if (n < 0)
			continue;
		received_at[n] = t;
		__sync_fetch_and_add(&nreceived, 1);
	}
}

static void
consume_narad(PGconn *conn)
{
	char		last[200] = "{}";

	prepare(conn, "SELECT value, receipt FROM narad.consume('bench_wait', "
			"wait => '60 s', ack => $1::text[])");
	__sync_fetch_and_add(&nready, 1);
	while (nreceived < count)
	{
		PGresult   *res = execute(conn, last);

		note_rows(res);
		if (PQntuples(res) > 0)
			snprintf(last, sizeof(last), "{%s}", PQgetvalue(res, 0, 1));
		else
			strcpy(last, "{}");
		PQclear(res);
	}
}

static void
wait_for_notify(PGconn *conn)
{
	struct pollfd fd = {PQsocket(conn), POLLIN, 0};
	PGnotify   *notify;
	bool		was_notified = false;

	while (!was_notified && nreceived < count)
	{
		while ((notify = PQnotifies(conn)) != NULL)
		{
			PQfreemem(notify);
			was_notified = true;
		}
		if (!was_notified && poll(&fd, 1, 2000) > 0)
			PQconsumeInput(conn);
	}
}

static void
consume_listen(PGconn *conn)
{
	PQclear(PQexec(conn, "LISTEN bench"));
	prepare(conn, "DELETE FROM bench_listen WHERE id IN (SELECT id FROM bench_listen "
			"ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING value");
	__sync_fetch_and_add(&nready, 1);
	while (nreceived < count)
	{
		PGresult   *res = execute(conn, NULL);

		note_rows(res);
		if (PQntuples(res) == 0)
			wait_for_notify(conn);
		PQclear(res);
	}
}

static void *
waiter_main(void *arg)
{
	PGconn	   *conn = dial();

	if (listens)
		consume_listen(conn);
	else
		consume_narad(conn);
	PQfinish(conn);
	return NULL;
}

/* Executes with the number of the message, at the rate. */
static void
produce(const char *text, bool with_number, double rate)
{
	PGconn	   *conn = dial();
	double		start;
	int			i;

	prepare(conn, text);
	PQclear(execute(conn, with_number ? "-1" : NULL));	/* the plan is made */
	start = now();
	for (i = 0; i < count; i++)
	{
		char		number[20];

		sleep_until(start + i / rate);
		snprintf(number, sizeof(number), "%d", i);
		sent_at[i] = now();
		PQclear(execute(conn, with_number ? number : NULL));
		returned_at[i] = now();
	}
	PQfinish(conn);
}

static int
compare_doubles(const void *a, const void *b)
{
	double		x = *(const double *) a;
	double		y = *(const double *) b;

	return (x > y) - (x < y);
}

static void
print_series(const char *name, const double *from, const double *to)
{
	double	   *ms = malloc(count * sizeof(double));
	int			n = 0;
	int			i;

	for (i = 0; i < count; i++)
	{
		if (to[i] != 0)
			ms[n++] = (to[i] - from[i]) * 1000;
	}
	qsort(ms, n, sizeof(double), compare_doubles);
	printf("%s %.3f %.3f\n", name, n ? ms[n / 2] : 0, n ? ms[n * 99 / 100] : 0);
	if (n < count)
		fprintf(stderr, "latency: %d of %d did not come\n", count - n, count);
	free(ms);
}

int
main(int argc, char **argv)
{
	static pthread_t waiters[MAX_WAITERS];
	pthread_attr_t attr;
	double		rate;
	int			i;

	if (argc != 5 || (nwaiters = atoi(argv[4])) > MAX_WAITERS)
	{
		fprintf(stderr, "usage: latency narad|listen|bare COUNT RATE WAITERS\n");
		return 1;
	}
	listens = strcmp(argv[1], "listen") == 0;
	count = atoi(argv[2]);
	rate = atof(argv[3]);
	sent_at = calloc(count, sizeof(double));
	returned_at = calloc(count, sizeof(double));
	received_at = calloc(count, sizeof(double));
	if (strcmp(argv[1], "bare") == 0)
	{
		produce("INSERT INTO bench_bare VALUES ($1::int)", true, rate);
		print_series("commit", sent_at, returned_at);
		produce("SELECT 1", false, rate);
		print_series("select", sent_at, returned_at);
		return 0;
	}
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, 256 * 1024);
	for (i = 0; i < nwaiters; i++)
		pthread_create(&waiters[i], &attr, waiter_main, NULL);
	while (nready < nwaiters)
		usleep(10000);
	sleep(1);
	produce(listens ?
			"WITH m AS (INSERT INTO bench_listen (value) VALUES ($1::int)) "
			"SELECT pg_notify('bench', '')" :
			"SELECT count(*) FROM narad.produce('bench_wait', to_jsonb($1::int))",
			true, rate);
	for (i = 0; i < 50 && nreceived < count; i++)
		usleep(100000);
	print_series("delivery", sent_at, received_at);
	print_series("after", returned_at, received_at);
	return 0;
}
