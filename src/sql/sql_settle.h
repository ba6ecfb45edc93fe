/*-------------------------------------------------------------------------
 *
 * sql_settle.h
 *	  Acknowledging an array of receipts.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef SQL_SETTLE_H
#define SQL_SETTLE_H

#include "utils/array.h"

/* All, or ERROR. */
extern void NaradAckAll(ArrayType *receipts, const char *name);

/* Before a sleep in the same call: settles them, where that may be. */
extern bool NaradAckSettleEarly(ArrayType *receipts, const char *name);

#endif							/* SQL_SETTLE_H */
