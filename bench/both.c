/*-------------------------------------------------------------------------
 *
 * both.c
 *	  Producers and consumers of one queue, at once.
 *
 *		both SECONDS RATE PRODUCERS CONSUMERS PRODUCE CONSUME SETTLE IDLE
 *
 * Each producer executes PRODUCE, a transaction a message, with a value of 1,000
 * bytes that do not compress and begin with the time before it was sent; RATE
 * messages a second by all of them together, or as fast as they can if it is 0.
 * Each consumer executes CONSUME, whose rows are a value, in binary, and a text
 * that names the message, and then SETTLE with the array of these.  If SETTLE is
 * empty the array goes with the next CONSUME.  One that got no rows does
 * as IDLE says: a number of ms it sleeps, or a channel on which it awaits a
 * notification.  A consumer that waits in CONSUME has an IDLE of 0.
 *
 * Prints messages delivered a second, p50 and p99 from before the producing
 * statement was sent until the row was there, in ms, and how many messages of
 * those produced were not delivered when the time was over.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <pthread.h>
#include <string.h>

#include "client.h"

#define VALUE_LENGTH	1000
#define MAX_CLIENTS		100
#define MAX_NAMES		100000

typedef struct Client
{
	pthread_t	thread;
	PGconn	   *conn;
	int			number;
	long		produced;
	double	   *times;			/* what each delivery took, s */
	size_t		ndelivered;
	size_t		size;			/* of times, in entries */
	char		names[MAX_NAMES];	/* array of the last messages' */
} Client;

static double rate;
static int	nproducers;
static const char *produce;
static const char *consume;
static const char *settle;
static const char *idle;
static double start_time;
static double end_time;
static pthread_barrier_t ready;

/* All clients are prepared; then the time runs. */
static void
await_start(void)
{
	pthread_barrier_wait(&ready);
	pthread_barrier_wait(&ready);
}

static void
fill_with_random(char *value)
{
	FILE	   *random = fopen("/dev/urandom", "r");

	if (random == NULL || fread(value, VALUE_LENGTH, 1, random) != 1)
		abort();
	fclose(random);
}

static void *
producer_main(void *arg)
{
	Client	   *client = arg;
	char		value[VALUE_LENGTH];
	const char *values[1] = {value};
	const int	lengths[1] = {VALUE_LENGTH};
	const int	formats[1] = {1};
	double		t;

	fill_with_random(value);
	prepare(client->conn, "produce", produce);
	await_start();
	for (;;)
	{
		if (rate > 0)
			sleep_until(start_time +
						(client->produced * nproducers + client->number) / rate);
		t = now();
		if (t >= end_time)
			return NULL;
		memcpy(value, &t, sizeof(t));
		PQclear(checked(client->conn,
						PQexecPrepared(client->conn, "produce", 1, values,
									   lengths, formats, 1), produce));
		client->produced++;
	}
}

/* Notes when the rows of a result came, and their names; returns how many. */
static int
note_rows(Client *client, PGresult *res)
{
	double		t = now();
	char	   *end = client->names;
	int			n = PQntuples(res);
	int			i;

	*end++ = '{';
	for (i = 0; i < n; i++)
	{
		double		sent;

		memcpy(&sent, PQgetvalue(res, i, 0), sizeof(sent));
		if (t < end_time)
		{
			if (client->ndelivered == client->size)
			{
				client->size = client->size * 2 + 1000;
				client->times = realloc(client->times,
										client->size * sizeof(double));
			}
			client->times[client->ndelivered++] = t - sent;
		}
		if (end - client->names + PQgetlength(res, i, 1) + 3 > MAX_NAMES)
			abort();
		end += sprintf(end, "%s%s", i > 0 ? "," : "", PQgetvalue(res, i, 1));
	}
	strcpy(end, "}");
	return n;
}

static void
rest(PGconn *conn)
{
	if (isdigit((unsigned char) *idle))
		usleep(atoi(idle) * 1000);
	else
		wait_for_notify(conn, 1000);
}

static void *
consumer_main(void *arg)
{
	Client	   *client = arg;
	PGconn	   *conn = client->conn;
	const char *names = client->names;
	bool		chained = *settle == '\0';

	strcpy(client->names, "{}");
	prepare(conn, "consume", consume);
	if (!chained)
		prepare(conn, "settle", settle);
	if (!isdigit((unsigned char) *idle))
		listen_to(conn, idle);
	await_start();
	while (now() < end_time)
	{
		PGresult   *res;
		int			n;

		res = checked(conn, PQexecPrepared(conn, "consume", chained ? 1 : 0,
										   &names, NULL, NULL, 1), consume);
		n = note_rows(client, res);
		PQclear(res);
		if (n == 0)
			rest(conn);
		else if (!chained)
			PQclear(checked(conn, PQexecPrepared(conn, "settle", 1, &names,
												 NULL, NULL, 1), settle));
	}
	return NULL;
}

static void
report(Client *clients, int nclients, double seconds)
{
	double	   *times;
	long		produced = 0;
	size_t		n = 0;
	int			i;

	for (i = 0; i < nclients; i++)
	{
		produced += clients[i].produced;
		n += clients[i].ndelivered;
	}
	times = malloc((n + 1) * sizeof(double));
	for (i = 0, n = 0; i < nclients; i++)
	{
		memcpy(times + n, clients[i].times,
			   clients[i].ndelivered * sizeof(double));
		n += clients[i].ndelivered;
	}
	printf("%.1f ", n / seconds);
	print_percentiles(times, n);
	printf(" %ld\n", produced - (long) n);
}

int
main(int argc, char **argv)
{
	static Client clients[MAX_CLIENTS];
	double		seconds;
	int			nclients;
	int			i;

	if (argc != 9 ||
		(nclients = atoi(argv[3]) + atoi(argv[4])) > MAX_CLIENTS)
	{
		fprintf(stderr, "usage: both SECONDS RATE PRODUCERS CONSUMERS PRODUCE CONSUME SETTLE IDLE\n");
		return 1;
	}
	seconds = atof(argv[1]);
	rate = atof(argv[2]);
	nproducers = atoi(argv[3]);
	produce = argv[5];
	consume = argv[6];
	settle = argv[7];
	idle = argv[8];
	pthread_barrier_init(&ready, NULL, nclients + 1);
	for (i = 0; i < nclients; i++)
	{
		clients[i].conn = dial();
		clients[i].number = i;
		pthread_create(&clients[i].thread, NULL,
					   i < nproducers ? producer_main : consumer_main,
					   &clients[i]);
	}
	pthread_barrier_wait(&ready);
	start_time = now();
	end_time = start_time + seconds;
	pthread_barrier_wait(&ready);
	for (i = 0; i < nclients; i++)
		pthread_join(clients[i].thread, NULL);
	report(clients, nclients, seconds);
	return 0;
}
