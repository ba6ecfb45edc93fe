/*-------------------------------------------------------------------------
 *
 * latency.c
 *	  How long a message takes from its producer to a consumer that waits.
 *
 *		latency WHAT COUNT RATE WAITERS [IDLE]
 *
 * One session produces COUNT messages, RATE a second, each in a transaction of
 * its own; WAITERS sessions wait for them, and IDLE are just there.  WHAT is one of
 *
 *	narad	topic bench_wait, consume(wait), ack => with the next call
 *	listen	table bench_listen, NOTIFY by the producer, LISTEN and SKIP LOCKED by
 *			the consumers, which delete in the transaction that claims
 *	bare	no consumer: INSERT of a row, and SELECT 1, at the same rate
 *	turns	no messages: SELECT 1 by each of WAITERS sessions in turn, at the same
 *			rate: what it costs that a session has slept for so long
 *
 * Prints for each series its name, and p50 and p99 in ms: "delivery" from before
 * the producing statement was sent until the row was there; "after" from its
 * return, which is after the commit, below zero where the row was sooner.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <string.h>

#include "client.h"

#define MAX_WAITERS 1000
#define WARM_ROUNDS 3			/* messages each waiter has had before */

static bool listens;
static int	count;
static int	nwaiters;
static double *sent_at;
static double *returned_at;
static double *received_at;
static int	nready;
static int	nreceived;
static int	nwarm;				/* received before the first that counts */

static PGresult *
execute(PGconn *conn, const char *param)
{
	return checked(conn, PQexecPrepared(conn, "s", param != NULL ? 1 : 0,
										&param, NULL, NULL, 0), "execution");
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

		if (n < 0)
		{
			__sync_fetch_and_add(&nwarm, 1);
			continue;
		}
		received_at[n] = t;
		__sync_fetch_and_add(&nreceived, 1);
	}
}

static void
consume_narad(PGconn *conn)
{
	char		last[200] = "{}";

	prepare(conn, "s", "SELECT value, receipt FROM narad.consume('bench_wait', "
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
consume_listen(PGconn *conn)
{
	listen_to(conn, "bench");
	prepare(conn, "s", "DELETE FROM bench_listen WHERE id IN (SELECT id FROM bench_listen "
			"ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING value");
	__sync_fetch_and_add(&nready, 1);
	while (nreceived < count)
	{
		PGresult   *res = execute(conn, NULL);

		note_rows(res);
		if (PQntuples(res) == 0)
			wait_for_notify(conn, 2000);
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

/*
 * Executes with the number of the message, at the rate.  Before that, so often
 * that each waiter has had a message some times: what a session does for the
 * first time in its life takes longer.
 */
static void
produce(const char *text, bool with_number, double rate)
{
	PGconn	   *conn = dial();
	double		start;
	int			i;

	prepare(conn, "s", text);
	for (i = 0; i < WARM_ROUNDS * (nwaiters > 0 ? nwaiters : 1); i++)
	{
		PQclear(execute(conn, with_number ? "-1" : NULL));
		while (nwaiters > 0 && nwarm <= i)
			usleep(100);
	}
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

/* SELECT 1 by each session in turn, each of which has had some before. */
static void
take_turns(double rate)
{
	PGconn	   *conns[MAX_WAITERS];
	double		start;
	int			i;

	for (i = 0; i < nwaiters; i++)
	{
		conns[i] = dial();
		prepare(conns[i], "s", "SELECT 1");
	}
	for (i = 0; i < WARM_ROUNDS * nwaiters; i++)
		PQclear(execute(conns[i % nwaiters], NULL));
	start = now();
	for (i = 0; i < count; i++)
	{
		sleep_until(start + i / rate);
		sent_at[i] = now();
		PQclear(execute(conns[i % nwaiters], NULL));
		returned_at[i] = now();
	}
	for (i = 0; i < nwaiters; i++)
		PQfinish(conns[i]);
}

static void
print_series(const char *name, const double *from, const double *to)
{
	double	   *times = malloc(count * sizeof(double));
	int			n = 0;
	int			i;

	for (i = 0; i < count; i++)
	{
		if (to[i] != 0)
			times[n++] = to[i] - from[i];
	}
	printf("%s ", name);
	print_percentiles(times, n);
	printf("\n");
	if (n < count)
		fprintf(stderr, "latency: %d of %d did not come\n", count - n, count);
	free(times);
}

int
main(int argc, char **argv)
{
	static pthread_t waiters[MAX_WAITERS];
	pthread_attr_t attr;
	double		rate;
	int			i;

	if (argc < 5 || argc > 6 || (nwaiters = atoi(argv[4])) > MAX_WAITERS)
	{
		fprintf(stderr, "usage: latency narad|listen|bare|turns COUNT RATE WAITERS [IDLE]\n");
		return 1;
	}
	for (i = argc == 6 ? atoi(argv[5]) : 0; i > 0; i--)
	{
		PGconn	   *conn = dial();

		PQclear(checked(conn, PQexec(conn, "SELECT 1"), "SELECT 1"));
	}
	listens = strcmp(argv[1], "listen") == 0;
	count = atoi(argv[2]);
	rate = atof(argv[3]);
	sent_at = calloc(count, sizeof(double));
	returned_at = calloc(count, sizeof(double));
	received_at = calloc(count, sizeof(double));
	if (strcmp(argv[1], "turns") == 0)
	{
		take_turns(rate);
		print_series("select", sent_at, returned_at);
		return 0;
	}
	if (strcmp(argv[1], "bare") == 0)
	{
		nwaiters = 0;
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
