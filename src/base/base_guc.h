/*-------------------------------------------------------------------------
 *
 * base_guc.h
 *	  Settings.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef BASE_GUC_H
#define BASE_GUC_H

typedef enum NaradAckMode
{
	NARAD_ACK_AUTO,				/* journal when the transaction has an xid */
	NARAD_ACK_TRANSACTIONAL,	/* take an xid at the call, always journal */
	NARAD_ACK_DEFERRED			/* never journal */
} NaradAckMode;

extern PGDLLIMPORT int narad_ack_mode;
extern PGDLLIMPORT int narad_frontier_flush_interval;	/* ms */
extern PGDLLIMPORT int narad_frontier_save_interval;	/* ms */
extern PGDLLIMPORT int narad_frontier_write_interval;	/* ms */
extern PGDLLIMPORT int narad_hold_time; /* ms */
extern PGDLLIMPORT int narad_max_batch_size;	/* kB */
extern PGDLLIMPORT int narad_max_message_size;	/* kB */
extern PGDLLIMPORT int narad_max_wait;	/* ms */
extern PGDLLIMPORT int narad_memory_limit;	/* MB */

extern void NaradGucRegister(void);

#endif							/* BASE_GUC_H */
