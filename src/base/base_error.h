/*-------------------------------------------------------------------------
 *
 * base_error.h
 *	  SQLSTATEs of narad's own.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef BASE_ERROR_H
#define BASE_ERROR_H

#include "utils/elog.h"

#define ERRCODE_NARAD_PRODUCER_FENCED		MAKE_SQLSTATE('N','R','4','0','9')
#define ERRCODE_NARAD_RECEIPT_GONE			MAKE_SQLSTATE('N','R','4','1','0')
#define ERRCODE_NARAD_SEQUENCE_GAP			MAKE_SQLSTATE('N','R','4','1','2')
#define ERRCODE_NARAD_OFFSET_OUT_OF_RANGE	MAKE_SQLSTATE('N','R','4','1','6')

#endif							/* BASE_ERROR_H */
