/*-------------------------------------------------------------------------
 *
 * queue_receipt.h
 *	  Receipts: what a consumer holds to settle a message.
 *
 * Text of fixed length, base64 of a version byte and the fields in network
 * byte order; opaque to clients.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_RECEIPT_H
#define QUEUE_RECEIPT_H

#include "narad.h"

#define NARAD_RECEIPT_BYTES 33	/* 1 + 8 + 4 + 4 + 8 + 8 */
#define NARAD_RECEIPT_LEN	44	/* characters, without a terminator */

typedef struct NaradReceipt
{
	NaradTopicId topic_id;
	NaradGroupId group_id;
	uint32		partition;
	NaradOffset offset;
	uint64		nonce;			/* never 0 */
} NaradReceipt;

/* Writes NARAD_RECEIPT_LEN characters and a terminator. */
extern void NaradReceiptFormat(const NaradReceipt *receipt, char *text);

/* False if it is none; len need not be right; canonical text only. */
extern bool NaradReceiptParse(const char *text, int len, NaradReceipt *receipt);

/* A random nonce; strong source, drawn in batches.  May error (no entropy). */
extern uint64 NaradNonce(void);

#endif							/* QUEUE_RECEIPT_H */
