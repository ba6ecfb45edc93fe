/*-------------------------------------------------------------------------
 *
 * stream.c
 *	  Consumers of a Redis stream.
 *
 *		stream SOCKET load MESSAGES
 *		stream SOCKET plain|chained BATCH CLIENTS SECONDS
 *
 * plain: XREADGROUP, then XACK.  chained: the XACK of a batch goes out with the
 * next XREADGROUP.  Each client is a thread with a connection of its own.
 * Prints messages a second.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <hiredis/hiredis.h>

#define MAX_BATCH	1000
#define MAX_CLIENTS 64

typedef struct Client
{
	pthread_t	thread;
	int			number;
	long		taken;
} Client;

static const char *socket_path;
static bool chained;
static int	batch;
static double end_time;

static double
now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static void
fail(const char *what)
{
	fprintf(stderr, "stream: %s\n", what);
	exit(1);
}

static redisContext *
dial(void)
{
	redisContext *c = redisConnectUnix(socket_path);

	if (c == NULL || c->err)
		fail("no connection");
	return c;
}

static redisReply *
get_reply(redisContext *c)
{
	void	   *reply;

	if (redisGetReply(c, &reply) != REDIS_OK ||
		((redisReply *) reply)->type == REDIS_REPLY_ERROR)
		fail("error reply");
	return reply;
}

/* A thousand values that do not compress, over and over. */
static void
load(long messages)
{
	redisContext *c = dial();
	static char values[1000][1000];
	FILE	   *random = fopen("/dev/urandom", "r");
	long		i;

	if (random == NULL || fread(values, sizeof(values), 1, random) != 1)
		fail("no random bytes");
	fclose(random);
	for (i = 0; i < messages; i++)
	{
		redisAppendCommand(c, "XADD bench * v %b", values[i % 1000],
						   (size_t) 1000);
		if (i % 500 == 499 || i == messages - 1)
		{
			long		n;

			for (n = i % 500; n >= 0; n--)
				freeReplyObject(get_reply(c));
		}
	}
	redisFree(c);
}

static void
append_read(redisContext *c, int number)
{
	redisAppendCommand(c, "XREADGROUP GROUP g c%d COUNT %d STREAMS bench >",
					   number, batch);
}

/* Appends the XACK of the messages in a reply; returns how many there are. */
static long
append_ack(redisContext *c, redisReply *reply)
{
	const char *argv[MAX_BATCH + 3] = {"XACK", "bench", "g"};
	size_t		i;
	redisReply *messages;

	if (reply->type == REDIS_REPLY_NIL)
		fail("the stream is empty");
	messages = reply->element[0]->element[1];
	for (i = 0; i < messages->elements; i++)
		argv[i + 3] = messages->element[i]->element[0]->str;
	redisAppendCommandArgv(c, messages->elements + 3, argv, NULL);
	return messages->elements;
}

static void *
consume(void *arg)
{
	Client	   *client = arg;
	redisContext *c = dial();
	redisReply *reply;

	append_read(c, client->number);
	for (;;)
	{
		long		n;

		reply = get_reply(c);
		n = append_ack(c, reply);
		freeReplyObject(reply);
		if (chained)
			append_read(c, client->number);
		freeReplyObject(get_reply(c));
		client->taken += n;
		if (now() >= end_time)
			break;
		if (!chained)
			append_read(c, client->number);
	}
	return NULL;
}

int
main(int argc, char **argv)
{
	static Client clients[MAX_CLIENTS];
	int			nclients;
	double		seconds;
	long		taken = 0;
	int			i;

	if (argc < 4)
		fail("usage: stream SOCKET load MESSAGES | plain|chained BATCH CLIENTS SECONDS");
	socket_path = argv[1];
	if (strcmp(argv[2], "load") == 0)
	{
		load(atol(argv[3]));
		return 0;
	}
	if (argc != 6)
		fail("usage");
	chained = strcmp(argv[2], "chained") == 0;
	batch = atoi(argv[3]);
	nclients = atoi(argv[4]);
	seconds = atof(argv[5]);
	if (batch > MAX_BATCH || nclients > MAX_CLIENTS)
		fail("too many");
	end_time = now() + seconds;
	for (i = 0; i < nclients; i++)
	{
		clients[i].number = i;
		pthread_create(&clients[i].thread, NULL, consume, &clients[i]);
	}
	for (i = 0; i < nclients; i++)
	{
		pthread_join(clients[i].thread, NULL);
		taken += clients[i].taken;
	}
	printf("%.0f\n", taken / seconds);
	return 0;
}
