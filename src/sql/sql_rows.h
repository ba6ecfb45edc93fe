/*-------------------------------------------------------------------------
 *
 * sql_rows.h
 *	  Results of several rows whose memory is kept.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef SQL_ROWS_H
#define SQL_ROWS_H

#include "fmgr.h"

extern void NaradRowsBegin(FunctionCallInfo fcinfo);

#endif							/* SQL_ROWS_H */
