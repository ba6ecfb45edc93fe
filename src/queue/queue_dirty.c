/*-------------------------------------------------------------------------
 *
 * queue_dirty.c
 *	  Which shards wait to be written, database by database, and who writes
 *	  them.
 *
 * Owns:       the list of databases in which topics are used, for each the
 *             list of its dirty shards and the process that writes them, and
 *             the launcher's latch.
 * Invariants: a shard is in the list exactly while shard->is_dirty; both
 *             change under the shard lock and the lock here.  A worker that
 *             dies loses nothing: what it had taken is still listed.  Entries
 *             of databases are reused, never freed.
 * Locks:      DirtyCtl->lock (rank dirty) for all of it, a few instructions
 *             each time; nattached is an atomic.
 * Runs in:    any backend, worker, launcher; NaradDirtyMark and
 *             NaradDirtyClear in transaction callbacks: no error, no memory.
 * WAL:        none.
 * On error:   53200 from NaradDirtyAttach before anything is changed.
 *
 * Who wakes whom: the first dirty shard of a database sets its worker's
 * latch, and the worker then sleeps by the clock until the list is empty.
 * Where there is no worker the launcher's latch is set.  Latches lie in
 * PGPROC slots; one that was reused meanwhile gets a wake it did not need.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/proc.h"
#include "storage/shmem.h"

#include "base/base_guc.h"
#include "base/base_memory.h"
#include "queue/queue_dirty.h"

#define RETRY_FIRST_US	INT64CONST(1000000)
#define RETRY_LAST_US	INT64CONST(60000000)
#define RETRY_FORGET_US	INT64CONST(300000000)	/* of a life without failure */

/* Everything under DirtyCtl->lock unless said otherwise. */
typedef struct NaradDatabase
{
	dlist_node	node;			/* in DirtyCtl->databases */
	Oid			database;		/* InvalidOid: free for another */
	bool		is_wanted;		/* should have a worker; hint without lock */
	bool		is_starting;	/* the launcher has asked for one */
	bool		is_visited;		/* the one there is has looked at everything */
	int			nbars;			/* statements that keep workers away */
	int			worker_pid;		/* 0: none */
	Latch	   *worker_latch;
	pg_atomic_uint32 nwakes;	/* how often that was set */
	int64		retry_at;		/* monotonic us: do not start one before */
	int64		retry_delay;	/* us; doubles with each failure */
	dlist_head	dirty;			/* of NaradShard.dirty_node */
	int			ndirty;
	pg_atomic_uint32 nattached; /* backends that use topics here */
} NaradDatabase;

typedef struct NaradDirtyCtl
{
	LWLock		lock;
	Latch	   *launcher_latch;
	dlist_head	databases;
} NaradDirtyCtl;

static NaradDirtyCtl *DirtyCtl;

/* This backend's database, once it was announced; entries are not freed. */
static NaradDatabase *my_database;

/* The lock is held. */
static NaradDatabase *
find_database(Oid database)
{
	dlist_iter	iter;

	dlist_foreach(iter, &DirtyCtl->databases)
	{
		NaradDatabase *db = dlist_container(NaradDatabase, node, iter.cur);

		if (db->database == database)
			return db;
	}
	return NULL;
}

/* Finds or makes an entry; NULL when out of memory.  The lock is held. */
static NaradDatabase *
make_database(Oid database)
{
	NaradDatabase *db = find_database(database);

	if (db != NULL)
		return db;
	db = find_database(InvalidOid);
	if (db == NULL)
	{
		db = NaradAlloc(sizeof(NaradDatabase));
		if (db == NULL)
			return NULL;
		dlist_init(&db->dirty);
		pg_atomic_init_u32(&db->nattached, 0);
		pg_atomic_init_u32(&db->nwakes, 0);
		dlist_push_tail(&DirtyCtl->databases, &db->node);
	}
	db->database = database;
	return db;
}

static void
wake_launcher(void)
{
	if (DirtyCtl->launcher_latch != NULL)
		SetLatch(DirtyCtl->launcher_latch);
}

/* The lock is held, if only to share. */
static void
wake_worker(NaradDatabase *db)
{
	pg_atomic_fetch_add_u32(&db->nwakes, 1);
	SetLatch(db->worker_latch);
}

/* There is something to do: wakes the worker, or has one started. */
static void
want_worker(NaradDatabase *db)
{
	db->is_wanted = true;
	if (db->worker_latch != NULL)
		wake_worker(db);
	else
		wake_launcher();
}

/* ----------------------------------------------------------------
 *		Dirty shards
 * ----------------------------------------------------------------
 */

/*
 * NaradDirtyMark
 *
 * Says that a shard's memory is ahead of its page.  Shard lock held
 * exclusively.  No error, no memory.
 */
void
NaradDirtyMark(NaradShard *shard)
{
	NaradDatabase *db;

	shard->changes++;
	if (shard->is_dirty || shard->dropped)
		return;
	shard->dirty_since = NaradClockNow();
	LWLockAcquire(&DirtyCtl->lock, LW_EXCLUSIVE);
	db = find_database(shard->topic->database);
	if (db != NULL)
	{
		shard->is_dirty = true;
		shard->write_after = 0;
		dlist_push_tail(&db->dirty, &shard->dirty_node);
		if (db->ndirty++ == 0 || db->worker_latch == NULL)
			want_worker(db);
	}
	LWLockRelease(&DirtyCtl->lock);
}

/*
 * NaradDirtyClear
 *
 * Takes a shard off the list.  Shard lock held exclusively.  No error.
 */
void
NaradDirtyClear(NaradShard *shard)
{
	NaradDatabase *db;

	if (!shard->is_dirty)
		return;
	LWLockAcquire(&DirtyCtl->lock, LW_EXCLUSIVE);
	db = find_database(shard->topic->database);
	Assert(db != NULL && db->ndirty > 0);
	dlist_delete(&shard->dirty_node);
	db->ndirty--;
	shard->is_dirty = false;
	LWLockRelease(&DirtyCtl->lock);
}

/*
 * NaradDirtyPacedUntil
 *
 * When a shard is due, for its pace.
 */
int64
NaradDirtyPacedUntil(const NaradShard *shard)
{
	int64		flush = narad_frontier_flush_interval;
	int64		most = Min(flush / 2, flush - 2 * narad_frontier_write_interval);

	if (!shard->is_dirty)
		return shard->paced_until;
	return Min(shard->paced_until, shard->dirty_since + Max(most, 0) * 1000);
}

/*
 * NaradDirtyTake
 *
 * Copies the keys of up to max of these shards that were listed before a time,
 * and moves them to the end of the list.
 */
int
NaradDirtyTake(NaradDirtyItem *items, int max, int64 before,
			   NaradDirtyWhich which)
{
	NaradDatabase *db;
	int64		now = NaradClockNow();
	int			nitems = 0;
	int			nseen;

	LWLockAcquire(&DirtyCtl->lock, LW_EXCLUSIVE);
	db = find_database(MyDatabaseId);
	for (nseen = db != NULL ? db->ndirty : 0; nseen > 0 && nitems < max;
		 nseen--)
	{
		dlist_node *node = dlist_pop_head_node(&db->dirty);
		NaradShard *shard = dlist_container(NaradShard, dirty_node, node);

		/*
		 * No shard lock: what is read here does not change in the list, but
		 * for dirty_since and paced_until, at the end of a write.
		 */
		dlist_push_tail(&db->dirty, node);
		if (shard->dirty_since >= before ||
			(which == NARAD_DIRTY_DUE && NaradDirtyPacedUntil(shard) > now) ||
			(which != NARAD_DIRTY_ALL && shard->write_after > now))
			continue;
		items[nitems].relid = pg_atomic_read_u32(&shard->topic->relid);
		items[nitems].topic_id = shard->topic->topic_id;
		items[nitems].group_id = shard->group_id;
		items[nitems].partition = shard->partition;
		items[nitems].dirty_since = shard->dirty_since;
		nitems++;
	}
	LWLockRelease(&DirtyCtl->lock);
	return nitems;
}

/*
 * NaradDirtyPostpone
 *
 * Writing a shard failed: it is not handed out again before a time.
 */
void
NaradDirtyPostpone(const NaradDirtyItem *item, int64 until)
{
	NaradDatabase *db;
	dlist_iter	iter;

	LWLockAcquire(&DirtyCtl->lock, LW_EXCLUSIVE);
	db = find_database(MyDatabaseId);
	if (db != NULL)
	{
		dlist_foreach(iter, &db->dirty)
		{
			NaradShard *shard = dlist_container(NaradShard, dirty_node,
												iter.cur);

			if (shard->topic->topic_id == item->topic_id &&
				shard->group_id == item->group_id &&
				shard->partition == item->partition)
			{
				shard->write_after = until;
				break;
			}
		}
	}
	LWLockRelease(&DirtyCtl->lock);
}

/*
 * NaradDirtyCount
 *
 * How many shards of this database are listed.
 */
int
NaradDirtyCount(void)
{
	NaradDatabase *db;
	int			ndirty = 0;

	LWLockAcquire(&DirtyCtl->lock, LW_SHARED);
	db = find_database(MyDatabaseId);
	if (db != NULL)
		ndirty = db->ndirty;
	LWLockRelease(&DirtyCtl->lock);
	return ndirty;
}

/*
 * NaradDirtyWake
 *
 * Wakes a database's worker, if it has one.  No error.
 */
void
NaradDirtyWake(Oid database)
{
	NaradDatabase *db;

	LWLockAcquire(&DirtyCtl->lock, LW_SHARED);
	db = find_database(database);
	if (db != NULL && db->worker_latch != NULL)
		wake_worker(db);
	LWLockRelease(&DirtyCtl->lock);
}

/*
 * NaradDirtyWant
 *
 * There is something for a database's worker to do; has one started if there
 * is none.  Without memory for a new database it is left.  No error.
 */
void
NaradDirtyWant(Oid database)
{
	NaradDatabase *db;

	LWLockAcquire(&DirtyCtl->lock, LW_EXCLUSIVE);
	db = make_database(database);
	if (db != NULL)
		want_worker(db);
	LWLockRelease(&DirtyCtl->lock);
}

/* ----------------------------------------------------------------
 *		Backends
 * ----------------------------------------------------------------
 */

/* Runs after the abort of an open transaction, before the PGPROC goes. */
static void
detach_backend(int code, Datum arg)
{
	if (my_database != NULL)
		pg_atomic_fetch_sub_u32(&my_database->nattached, 1);
	my_database = NULL;
}

/*
 * NaradDirtyAttach
 *
 * Announces that this backend uses topics of its database, so that there is a
 * worker for it; two reads of shared memory when repeated.  ERROR 53200 when
 * there is no memory, the first time.  No narad lock held.
 */
void
NaradDirtyAttach(void)
{
	NaradDatabase *db = my_database;

	if (db != NULL && db->is_wanted)
		return;
	LWLockAcquire(&DirtyCtl->lock, LW_EXCLUSIVE);
	if (db == NULL)
		db = make_database(MyDatabaseId);
	if (db != NULL && !db->is_wanted)
		want_worker(db);
	LWLockRelease(&DirtyCtl->lock);
	if (db == NULL)
		NaradReportOutOfMemory("a database");
	/* The worker waits for those who are counted. */
	if (my_database == NULL && db->worker_pid != MyProcPid)
	{
		on_shmem_exit(detach_backend, (Datum) 0);
		pg_atomic_fetch_add_u32(&db->nattached, 1);
		my_database = db;
	}
}

/*
 * NaradDirtyAttached
 *
 * How many backends of this database have announced themselves and live.
 */
uint32
NaradDirtyAttached(void)
{
	NaradDatabase *db;

	LWLockAcquire(&DirtyCtl->lock, LW_SHARED);
	db = find_database(MyDatabaseId);
	LWLockRelease(&DirtyCtl->lock);
	return db != NULL ? pg_atomic_read_u32(&db->nattached) : 0;
}

/* ----------------------------------------------------------------
 *		Launcher and workers
 * ----------------------------------------------------------------
 */

/*
 * NaradDirtySetLauncher
 *
 * Where to knock when a database wants a worker.  A new launcher knows of no
 * worker that the one before it asked for: if one is still to come, there may
 * be two, and the second leaves again.
 */
void
NaradDirtySetLauncher(Latch *latch)
{
	dlist_iter	iter;

	LWLockAcquire(&DirtyCtl->lock, LW_EXCLUSIVE);
	DirtyCtl->launcher_latch = latch;
	if (latch != NULL)
	{
		dlist_foreach(iter, &DirtyCtl->databases)
			dlist_container(NaradDatabase, node, iter.cur)->is_starting = false;
	}
	LWLockRelease(&DirtyCtl->lock);
}

/*
 * NaradDirtyWanting
 *
 * Up to max databases that want a worker, have none and are not barred; from
 * now on they count as being started.  *next_ms says when a database that
 * failed may be tried again, -1 if there is none.
 */
int
NaradDirtyWanting(Oid *databases, int max, long *next_ms)
{
	int64		now = NaradClockNow();
	int			ndatabases = 0;
	dlist_iter	iter;

	*next_ms = -1;
	LWLockAcquire(&DirtyCtl->lock, LW_EXCLUSIVE);
	dlist_foreach(iter, &DirtyCtl->databases)
	{
		NaradDatabase *db = dlist_container(NaradDatabase, node, iter.cur);

		if (!OidIsValid(db->database) || !db->is_wanted || db->nbars > 0 ||
			db->worker_pid != 0 || db->is_starting)
			continue;
		if (db->retry_at > now || ndatabases == max)
		{
			long		ms = db->retry_at > now ?
			(long) ((db->retry_at - now) / 1000 + 1) : 0;

			if (*next_ms < 0 || ms < *next_ms)
				*next_ms = ms;
			continue;
		}
		db->is_starting = true;
		databases[ndatabases++] = db->database;
	}
	LWLockRelease(&DirtyCtl->lock);
	return ndatabases;
}

/*
 * NaradDirtyBecomeWorker
 *
 * Makes this process the worker of its database; false if there is another
 * one or the database is barred.
 */
bool
NaradDirtyBecomeWorker(void)
{
	NaradDatabase *db;
	bool		accepted = false;

	LWLockAcquire(&DirtyCtl->lock, LW_EXCLUSIVE);
	db = find_database(MyDatabaseId);
	if (db != NULL)
	{
		db->is_starting = false;
		if (db->worker_pid == 0 && db->nbars == 0)
		{
			db->worker_pid = MyProcPid;
			db->worker_latch = MyLatch;
			db->is_visited = false;
			accepted = true;
		}
	}
	LWLockRelease(&DirtyCtl->lock);
	return accepted;
}

/*
 * NaradDirtyWakes
 *
 * How often this database's worker was woken so far.  The latch alone does not
 * tell: whatever waits for something in the meantime, such as a lock or a page
 * that another reads, resets it.
 */
uint32
NaradDirtyWakes(void)
{
	NaradDatabase *db;
	uint32		nwakes = 0;

	LWLockAcquire(&DirtyCtl->lock, LW_SHARED);
	db = find_database(MyDatabaseId);
	if (db != NULL)
		nwakes = pg_atomic_read_u32(&db->nwakes);
	LWLockRelease(&DirtyCtl->lock);
	return nwakes;
}

/*
 * NaradDirtyVisited
 *
 * This worker has looked at everything once; cheap when repeated.
 */
void
NaradDirtyVisited(void)
{
	NaradDatabase *db;

	LWLockAcquire(&DirtyCtl->lock, LW_EXCLUSIVE);
	db = find_database(MyDatabaseId);
	if (db != NULL && db->worker_pid == MyProcPid && !db->is_visited)
	{
		db->is_visited = true;
		wake_launcher();
	}
	LWLockRelease(&DirtyCtl->lock);
}

/*
 * NaradDirtyWasVisited
 *
 * Has the worker of a database looked at everything once, or is there none
 * to be waited for: it left, or failed, or could not be started?
 */
bool
NaradDirtyWasVisited(Oid database)
{
	NaradDatabase *db;
	bool		was_visited;

	LWLockAcquire(&DirtyCtl->lock, LW_SHARED);
	db = find_database(database);
	was_visited = db == NULL || !db->is_wanted || db->nbars > 0 ||
		db->is_visited || db->retry_delay > 0;
	LWLockRelease(&DirtyCtl->lock);
	return was_visited;
}

/*
 * Doubles the wait before the next start, unless that does not count as a
 * failure; one that failed long ago does not count.
 */
static void
back_off(NaradDatabase *db, bool failed)
{
	int64		now = NaradClockNow();

	if (!failed || db->retry_delay == 0 ||
		now - db->retry_at > RETRY_FORGET_US)
		db->retry_delay = RETRY_FIRST_US;
	else
		db->retry_delay = Min(db->retry_delay * 2, RETRY_LAST_US);
	db->retry_at = now + db->retry_delay;
}

/*
 * NaradDirtyLeaveWorker
 *
 * This process is no longer its database's worker.  When it is done, nothing is
 * dirty, and it has heard of all wakes, the database wants none until it is
 * announced again; else another is started in a while.
 */
void
NaradDirtyLeaveWorker(NaradWorkerEnd end, uint32 nwakes)
{
	NaradDatabase *db;

	LWLockAcquire(&DirtyCtl->lock, LW_EXCLUSIVE);
	db = find_database(MyDatabaseId);
	if (db != NULL && db->worker_pid == MyProcPid)
	{
		db->worker_pid = 0;
		db->worker_latch = NULL;
		if (end == NARAD_WORKER_DONE && db->ndirty == 0 &&
			pg_atomic_read_u32(&db->nwakes) == nwakes)
		{
			db->is_wanted = false;
			db->retry_at = db->retry_delay = 0;
		}
		else
			back_off(db, end == NARAD_WORKER_FAILED);
		wake_launcher();
	}
	LWLockRelease(&DirtyCtl->lock);
}

/*
 * NaradDirtyStartFailed
 *
 * A worker that was asked for did not come to life.
 */
void
NaradDirtyStartFailed(Oid database)
{
	NaradDatabase *db;

	LWLockAcquire(&DirtyCtl->lock, LW_EXCLUSIVE);
	db = find_database(database);
	if (db != NULL && db->is_starting)
	{
		db->is_starting = false;
		back_off(db, true);
	}
	LWLockRelease(&DirtyCtl->lock);
}

/*
 * NaradDirtyWorkerPid
 *
 * The process id of a database's worker, or 0.
 */
int
NaradDirtyWorkerPid(Oid database)
{
	NaradDatabase *db;
	int			pid = 0;

	LWLockAcquire(&DirtyCtl->lock, LW_SHARED);
	db = find_database(database);
	if (db != NULL)
		pid = db->worker_pid;
	LWLockRelease(&DirtyCtl->lock);
	return pid;
}

/*
 * NaradDirtyHasWorker
 *
 * Has this database a worker?  One read of shared memory in a backend that
 * has announced itself, and a worker may come or leave at any time.
 */
bool
NaradDirtyHasWorker(void)
{
	if (my_database != NULL)
		return *(volatile int *) &my_database->worker_pid != 0;
	return NaradDirtyWorkerPid(MyDatabaseId) != 0;
}

/*
 * NaradDirtyBar
 *
 * Keeps workers away from a database, or lets them in again; calls nest.
 * Without memory for an entry there is no worker to keep away.
 */
void
NaradDirtyBar(Oid database, bool barred)
{
	NaradDatabase *db;

	LWLockAcquire(&DirtyCtl->lock, LW_EXCLUSIVE);
	db = barred ? make_database(database) : find_database(database);
	if (db != NULL && barred)
		db->nbars++;
	else if (db != NULL && db->nbars > 0)
	{
		db->nbars--;
		db->retry_at = db->retry_delay = 0;
		if (db->is_wanted)
			wake_launcher();
	}
	LWLockRelease(&DirtyCtl->lock);
}

/*
 * NaradDirtyIsBarred
 *
 * Is this database barred?
 */
bool
NaradDirtyIsBarred(void)
{
	NaradDatabase *db;
	bool		barred;

	LWLockAcquire(&DirtyCtl->lock, LW_SHARED);
	db = find_database(MyDatabaseId);
	barred = db != NULL && db->nbars > 0;
	LWLockRelease(&DirtyCtl->lock);
	return barred;
}

/*
 * NaradDirtyForgetDatabase
 *
 * The database was dropped, and its shards were freed before: its entry may
 * serve another one.  Bars are gone with it; lifting one finds nothing.
 */
void
NaradDirtyForgetDatabase(Oid database)
{
	NaradDatabase *db;

	LWLockAcquire(&DirtyCtl->lock, LW_EXCLUSIVE);
	db = find_database(database);
	if (db != NULL && db->ndirty == 0 && db->worker_pid == 0)
	{
		db->database = InvalidOid;
		db->is_wanted = db->is_starting = db->is_visited = false;
		db->nbars = 0;
		db->retry_at = db->retry_delay = 0;
	}
	LWLockRelease(&DirtyCtl->lock);
}

/* ----------------------------------------------------------------
 *		Registration
 * ----------------------------------------------------------------
 */

/*
 * NaradDirtyShmemSize
 */
Size
NaradDirtyShmemSize(void)
{
	return MAXALIGN(sizeof(NaradDirtyCtl));
}

/*
 * NaradDirtyShmemInit
 *
 * Under AddinShmemInitLock, after the locks are known.
 */
void
NaradDirtyShmemInit(void)
{
	bool		found;

	my_database = NULL;
	DirtyCtl = ShmemInitStruct("Narad dirty shards", NaradDirtyShmemSize(),
							   &found);
	if (!found)
	{
		memset(DirtyCtl, 0, sizeof(NaradDirtyCtl));
		NaradLockInit(&DirtyCtl->lock, NARAD_LOCK_DIRTY);
		dlist_init(&DirtyCtl->databases);
	}
}
