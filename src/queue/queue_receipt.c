/*-------------------------------------------------------------------------
 *
 * queue_receipt.c
 *	  Receipts: what a consumer holds to settle a message.
 *
 * Owns:       the text form of receipts, and each backend's store of nonces.
 * Invariants: I4: a receipt is worth its nonce, 64 bits of a strong random
 *			   source; whoever does not hold it cannot guess it.  A receipt
 *			   has one text: other spellings of the same bytes are refused.
 * Locks:      none.
 * Runs in:    any backend.
 * On error:   only NaradNonce may error (no entropy); call it before a lock
 *			   is taken.
 *
 * The bytes, integers with the most significant byte first:
 *
 *		 0	1 byte		version, RECEIPT_VERSION
 *		 1	8 bytes		topic id
 *		 9	4 bytes		group id
 *		13	4 bytes		partition
 *		17	8 bytes		offset
 *		25	8 bytes		nonce
 *
 * 33 bytes are 44 characters of base64 without padding or spare bits.  The
 * alphabet is that for URLs (RFC 4648, section 5), so that a receipt needs no
 * quoting in arrays, JSON or web addresses.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "port/pg_bswap.h"

#include "queue/queue_receipt.h"

#define RECEIPT_VERSION		1

/* Nonces are drawn so many at a time. */
#define NONCE_BATCH			64

static const char alphabet[] =
"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/* What each character stands for: 0 to 63, or -1. */
static const int8 digit_values[128] = {
	-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,
	-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,
	-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 62, -1, -1,
	52, 53, 54, 55, 56, 57, 58, 59, 60, 61, -1, -1, -1, -1, -1, -1,
	-1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14,
	15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, -1, -1, -1, -1, 63,
	-1, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40,
	41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, -1, -1, -1, -1, -1
};

static uint64 nonces[NONCE_BATCH];
static int	nnonces = 0;

static uint8 *
put_uint32(uint8 *p, uint32 value)
{
	value = pg_hton32(value);
	memcpy(p, &value, sizeof(value));
	return p + sizeof(value);
}

static uint8 *
put_uint64(uint8 *p, uint64 value)
{
	value = pg_hton64(value);
	memcpy(p, &value, sizeof(value));
	return p + sizeof(value);
}

static const uint8 *
get_uint32(const uint8 *p, uint32 *value)
{
	memcpy(value, p, sizeof(*value));
	*value = pg_ntoh32(*value);
	return p + sizeof(*value);
}

static const uint8 *
get_uint64(const uint8 *p, uint64 *value)
{
	memcpy(value, p, sizeof(*value));
	*value = pg_ntoh64(*value);
	return p + sizeof(*value);
}

/* 0 to 63, or -1 for a character outside the alphabet. */
static int
digit_value(char c)
{
	return IS_HIGHBIT_SET(c) ? -1 : digit_values[(unsigned char) c];
}

/*
 * Writes a receipt as NARAD_RECEIPT_LEN characters and a terminator.
 */
void
NaradReceiptFormat(const NaradReceipt *receipt, char *text)
{
	uint8		bytes[NARAD_RECEIPT_BYTES];
	uint8	   *p = bytes;

	*p++ = RECEIPT_VERSION;
	p = put_uint64(p, receipt->topic_id);
	p = put_uint32(p, receipt->group_id);
	p = put_uint32(p, receipt->partition);
	p = put_uint64(p, receipt->offset);
	p = put_uint64(p, receipt->nonce);
	Assert(p == bytes + NARAD_RECEIPT_BYTES);

	for (int i = 0; i < NARAD_RECEIPT_BYTES; i += 3)
	{
		uint32		three;

		three = (bytes[i] << 16) | (bytes[i + 1] << 8) | bytes[i + 2];
		*text ++= alphabet[(three >> 18) & 63];
		*text ++= alphabet[(three >> 12) & 63];
		*text ++= alphabet[(three >> 6) & 63];
		*text ++= alphabet[three & 63];
	}
	*text = '\0';
}

/*
 * Reads a receipt.  False if the text is none: another length or alphabet,
 * another version, or fields that no receipt has.  The text need not be
 * terminated.
 */
bool
NaradReceiptParse(const char *text, int len, NaradReceipt *receipt)
{
	uint8		bytes[NARAD_RECEIPT_BYTES];
	const uint8 *p = bytes;

	if (len != NARAD_RECEIPT_LEN)
		return false;
	for (int i = 0; i < NARAD_RECEIPT_BYTES; i += 3, text +=4)
	{
		int			a = digit_value(text[0]);
		int			b = digit_value(text[1]);
		int			c = digit_value(text[2]);
		int			d = digit_value(text[3]);
		int			three = a * 64 * 64 * 64 + b * 64 * 64 + c * 64 + d;

		/* One of them is -1. */
		if ((a | b | c | d) < 0)
			return false;
		bytes[i] = (uint8) (three >> 16);
		bytes[i + 1] = (uint8) (three >> 8);
		bytes[i + 2] = (uint8) three;
	}

	if (*p++ != RECEIPT_VERSION)
		return false;
	p = get_uint64(p, &receipt->topic_id);
	p = get_uint32(p, &receipt->group_id);
	p = get_uint32(p, &receipt->partition);
	p = get_uint64(p, &receipt->offset);
	p = get_uint64(p, &receipt->nonce);
	return receipt->topic_id != 0 && receipt->group_id != 0 &&
		receipt->partition < NARAD_MAX_PARTITIONS &&
		receipt->offset <= NARAD_MAX_OFFSET && receipt->nonce != 0;
}

/*
 * A random nonce, never 0.  Errors when the system has no entropy; not to be
 * called under a lock.
 */
uint64
NaradNonce(void)
{
	uint64		nonce;

	do
	{
		if (nnonces == 0)
		{
			if (!pg_strong_random(nonces, sizeof(nonces)))
				ereport(ERROR,
						(errcode(ERRCODE_INTERNAL_ERROR),
						 errmsg("could not generate a random receipt")));
			nnonces = NONCE_BATCH;
		}
		nonce = nonces[--nnonces];
		/* Given to one lease only, and not left in memory. */
		nonces[nnonces] = 0;
	} while (nonce == 0);
	return nonce;
}
