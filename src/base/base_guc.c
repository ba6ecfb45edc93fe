/*-------------------------------------------------------------------------
 *
 * base_guc.c
 *	  Settings.
 *
 * Owns:       every variable named narad.*.
 * Runs in:    the postmaster when the library is preloaded; read anywhere.
 * On error:   a name registered twice stops the server from starting.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/guc.h"

#include "base/base_guc.h"

int			narad_ack_mode = NARAD_ACK_AUTO;
int			narad_frontier_flush_interval = 1000;
int			narad_frontier_save_interval = 5 * 60 * 1000;
int			narad_frontier_write_interval = 100;
int			narad_hold_time = 1000;
int			narad_max_batch_size = 4096;
int			narad_max_message_size = 4096;
int			narad_max_wait = 60000;
int			narad_memory_limit = 64;

static const struct config_enum_entry ack_mode_options[] = {
	{"auto", NARAD_ACK_AUTO, false},
	{"transactional", NARAD_ACK_TRANSACTIONAL, false},
	{"deferred", NARAD_ACK_DEFERRED, false},
	{NULL, 0, false}
};

/* How acknowledgements become durable. */
static void
register_ack_settings(void)
{
	DefineCustomEnumVariable("narad.ack_mode",
							 "Selects how an acknowledgement becomes durable.",
							 "\"auto\" makes it durable with the transaction if that writes, "
							 "else within \"narad.frontier_flush_interval\".  "
							 "\"transactional\" always does the former, "
							 "\"deferred\" always the latter.",
							 &narad_ack_mode, NARAD_ACK_AUTO,
							 ack_mode_options,
							 PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("narad.frontier_flush_interval",
							"Sets the time after which an acknowledgement is durable.",
							"A crash may undo acknowledgements made outside of writing "
							"transactions within this time before it; "
							"their messages are delivered again.",
							&narad_frontier_flush_interval, 1000, 10, 60000,
							PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("narad.frontier_save_interval",
							"Sets the time between copies of changed frontiers for dumps.",
							"So old is at most what a dump knows of consumer groups.",
							&narad_frontier_save_interval, 5 * 60 * 1000, 100,
							24 * 60 * 60 * 1000,
							PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("narad.frontier_write_interval",
							"Sets the time between writes of changed frontiers.",
							"The worker of a database writes what consumers have "
							"acknowledged to the write-ahead log so often; "
							"less often while there is very much to write.",
							&narad_frontier_write_interval, 100, 10, 10000,
							PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);
}

/* Waiting. */
static void
register_wait_settings(void)
{
	DefineCustomIntVariable("narad.hold_time",
							"Sets the time a woken consumer is given to come.",
							"Who was woken without being given a message, by "
							"\"CALL narad.wait\" or NOTIFY, and does not consume within "
							"this time, is passed over, and the next one is woken.",
							&narad_hold_time, 1000, 10, 60000,
							PGC_SIGHUP, GUC_UNIT_MS, NULL, NULL, NULL);
	DefineCustomIntVariable("narad.max_wait",
							"Sets the longest time a call may wait for messages.",
							"Longer waits are cut to this.  \"CALL narad.wait\" outside a "
							"transaction block may wait longer.",
							&narad_max_wait, 60000, 0, 60 * 60 * 1000,
							PGC_SUSET, GUC_UNIT_MS, NULL, NULL, NULL);
}

/* What a call may take. */
static void
register_limit_settings(void)
{
	DefineCustomIntVariable("narad.max_batch_size",
							"Sets the size at which a batch of messages is full.",
							"A call that returns messages stops before their values "
							"exceed this, but returns at least one.",
							&narad_max_batch_size, 4096, 64, 256 * 1024,
							PGC_USERSET, GUC_UNIT_KB, NULL, NULL, NULL);
	DefineCustomIntVariable("narad.max_message_size",
							"Sets the size of the longest message that may be produced.",
							"It applies to the columns of a message before compression.  "
							"Messages already stored stay readable when it is lowered.",
							&narad_max_message_size, 4096, 1, 256 * 1024,
							PGC_SUSET, GUC_UNIT_KB, NULL, NULL, NULL);
	DefineCustomIntVariable("narad.memory_limit",
							"Sets the amount of shared memory for topics, groups and leases.",
							"It is reserved when the server starts, and never exceeded.",
							&narad_memory_limit, 64, 8, 64 * 1024,
							PGC_POSTMASTER, GUC_UNIT_MB, NULL, NULL, NULL);
}

/*
 * NaradGucRegister
 *
 * Defines all settings; called once, from _PG_init.
 */
void
NaradGucRegister(void)
{
	register_ack_settings();
	register_limit_settings();
	register_wait_settings();
	MarkGUCPrefixReserved("narad");
}
