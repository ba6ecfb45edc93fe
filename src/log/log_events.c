/*-------------------------------------------------------------------------
 *
 * log_events.c
 *	  What storage tells the layer above.
 *
 * Owns:       the table of callbacks; the layer above fills it in _PG_init,
 *             an entry left NULL is not called.
 * Runs in:    any backend.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "log/log_events.h"

NaradLogEvents NaradLogEventTable = {NULL};
