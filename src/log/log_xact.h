/*-------------------------------------------------------------------------
 *
 * log_xact.h
 *	  The storage layer's part in the end of a transaction.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LOG_XACT_H
#define LOG_XACT_H

/*
 * Callbacks run in the reverse order of their registration, and storage has
 * two things to do: publish what the transaction appended, before the layers
 * above look at it, and forget files, after they did.  So _PG_init calls the
 * first of these before, the second after the layers above registered.
 */
extern void NaradLogXactRegisterFirst(void);
extern void NaradLogXactRegisterLast(void);

/* What is known of a database's files goes if this transaction commits. */
extern void NaradLogDatabaseMoves(Oid database);

#endif							/* LOG_XACT_H */
