/*-------------------------------------------------------------------------
 *
 * base_stop.c
 *	  Named points at which a test can hold a process.
 *
 * A session arms a point by name; whichever session comes to NARAD_STOP of that
 * name then waits, interruptibly, until the point is released.  Arming lasts
 * until the release, so any number of sessions may be held.  Our worker and
 * autovacuum come to the same places when it suits them, and would be held
 * instead of the session that a test is about: they are held only if the point
 * was armed for any process.  Compiled with NARAD_TESTING only; otherwise this
 * file is empty.
 *
 * Owns:       the table of armed points.
 * Locks:      a spinlock over the table; the condition variable outside it.
 * Runs in:    any backend.
 * On error:   a held process that is cancelled leaves the wait and its count.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#ifdef NARAD_TESTING

#include "fmgr.h"
#include "miscadmin.h"
#include "storage/condition_variable.h"
#include "storage/shmem.h"
#include "storage/spin.h"
#include "utils/builtins.h"
#include "utils/wait_event.h"

#include "base/base_stop.h"

#define STOP_POINTS 16

typedef struct StopPoint
{
	char		name[NAMEDATALEN];	/* empty: unused */
	uint32		serial;			/* of the arming */
	bool		any_process;	/* not sessions only */
	int			nwaiting;
} StopPoint;

typedef struct NaradStopCtl
{
	slock_t		mutex;			/* over the points */
	ConditionVariable cv;		/* broadcast at every release */
	uint32		narmed;			/* armings so far */
	StopPoint	points[STOP_POINTS];
} NaradStopCtl;

static NaradStopCtl *StopCtl;

PG_FUNCTION_INFO_V1(narad_stop_arm);
PG_FUNCTION_INFO_V1(narad_stop_arm_any);
PG_FUNCTION_INFO_V1(narad_stop_release);
PG_FUNCTION_INFO_V1(narad_stop_waiting);

Size
NaradStopShmemSize(void)
{
	return MAXALIGN(sizeof(NaradStopCtl));
}

void
NaradStopShmemInit(void)
{
	bool		found;

	StopCtl = ShmemInitStruct("Narad stop points", NaradStopShmemSize(),
							  &found);
	if (!found)
	{
		memset(StopCtl, 0, sizeof(NaradStopCtl));
		SpinLockInit(&StopCtl->mutex);
		ConditionVariableInit(&StopCtl->cv);
	}
}

/* The armed point of a name, or NULL.  Under the spinlock. */
static StopPoint *
find_point(const char *name)
{
	int			i;

	for (i = 0; i < STOP_POINTS; i++)
		if (strcmp(StopCtl->points[i].name, name) == 0)
			return &StopCtl->points[i];
	return NULL;
}

/* Joins those who wait at a point, if it is armed for this process. */
static bool
begin_waiting(const char *name, uint32 *serial)
{
	StopPoint  *point;
	bool		is_armed;

	SpinLockAcquire(&StopCtl->mutex);
	point = find_point(name);
	is_armed = point != NULL &&
		(point->any_process || MyBackendType == B_BACKEND);
	if (is_armed)
	{
		point->nwaiting++;
		*serial = point->serial;
	}
	SpinLockRelease(&StopCtl->mutex);
	return is_armed;
}

/*
 * Changes the count of those who wait; false if the point was released since,
 * be it armed again.
 */
static bool
count_waiting(const char *name, uint32 serial, int change)
{
	StopPoint  *point;
	bool		is_armed;

	SpinLockAcquire(&StopCtl->mutex);
	point = find_point(name);
	is_armed = point != NULL && point->serial == serial;
	if (is_armed)
		point->nwaiting += change;
	SpinLockRelease(&StopCtl->mutex);
	return is_armed;
}

/*
 * NaradStopIsArmed
 *
 * For what is done in another way while a test has the point armed.
 */
bool
NaradStopIsArmed(const char *name)
{
	bool		is_armed;

	SpinLockAcquire(&StopCtl->mutex);
	is_armed = find_point(name) != NULL;
	SpinLockRelease(&StopCtl->mutex);
	return is_armed;
}

/*
 * NaradStop
 *
 * Waits while the point is armed.  Never in a critical section.  With an LWLock
 * held it cannot be cancelled.
 */
void
NaradStop(const char *name)
{
	uint32		serial;

	if (!begin_waiting(name, &serial))
		return;

	PG_TRY();
	{
		ConditionVariablePrepareToSleep(&StopCtl->cv);
		while (count_waiting(name, serial, 0))
			ConditionVariableSleep(&StopCtl->cv, PG_WAIT_EXTENSION);
		ConditionVariableCancelSleep();
	}
	PG_CATCH();
	{
		count_waiting(name, serial, -1);
		PG_RE_THROW();
	}
	PG_END_TRY();
}

/*
 * NaradFail
 *
 * Errors while the point is armed.
 */
void
NaradFail(const char *name)
{
	if (NaradStopIsArmed(name))
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("test point \"%s\" fails", name)));
}

/* Arms a point; one that is armed may come to be so for more. */
static void
arm(const char *name, bool any_process)
{
	StopPoint  *point;

	if (strlen(name) == 0 || strlen(name) >= NAMEDATALEN)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid name of a stop point: \"%s\"", name)));
	SpinLockAcquire(&StopCtl->mutex);
	point = find_point(name);
	if (point == NULL)
	{
		point = find_point("");
		if (point != NULL)
		{
			memcpy(point->name, name, strlen(name) + 1);
			point->serial = ++StopCtl->narmed;
			point->any_process = false;
			point->nwaiting = 0;
		}
	}
	if (point != NULL)
		point->any_process |= any_process;
	SpinLockRelease(&StopCtl->mutex);
	if (point == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("too many stop points are armed")));
}

/* narad.stop_arm(text): for sessions */
Datum
narad_stop_arm(PG_FUNCTION_ARGS)
{
	arm(text_to_cstring(PG_GETARG_TEXT_PP(0)), false);
	PG_RETURN_VOID();
}

/* narad.stop_arm_any(text): for any process */
Datum
narad_stop_arm_any(PG_FUNCTION_ARGS)
{
	arm(text_to_cstring(PG_GETARG_TEXT_PP(0)), true);
	PG_RETURN_VOID();
}

/* narad.stop_release(text) */
Datum
narad_stop_release(PG_FUNCTION_ARGS)
{
	char	   *name = text_to_cstring(PG_GETARG_TEXT_PP(0));
	StopPoint  *point;

	SpinLockAcquire(&StopCtl->mutex);
	point = find_point(name);
	if (point != NULL)
		memset(point, 0, sizeof(StopPoint));
	SpinLockRelease(&StopCtl->mutex);
	ConditionVariableBroadcast(&StopCtl->cv);
	PG_RETURN_VOID();
}

/* narad.stop_waiting(text) returns int: processes held at the point */
Datum
narad_stop_waiting(PG_FUNCTION_ARGS)
{
	char	   *name = text_to_cstring(PG_GETARG_TEXT_PP(0));
	StopPoint  *point;
	int			nwaiting = 0;

	SpinLockAcquire(&StopCtl->mutex);
	point = find_point(name);
	if (point != NULL)
		nwaiting = point->nwaiting;
	SpinLockRelease(&StopCtl->mutex);
	PG_RETURN_INT32(nwaiting);
}

#endif							/* NARAD_TESTING */
