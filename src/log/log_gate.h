/*-------------------------------------------------------------------------
 *
 * log_gate.h
 *	  Which DDL a topic does not take.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LOG_GATE_H
#define LOG_GATE_H

extern void NaradGateRegister(void);

#endif							/* LOG_GATE_H */
