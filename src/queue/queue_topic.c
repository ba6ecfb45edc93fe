/*-------------------------------------------------------------------------
 *
 * queue_topic.c
 *	  Topics as the queue engine sees them.
 *
 * Owns:       the table of topics in shared memory, the backend's cache of
 *             topic settings, the removal of a dropped topic's settings row.
 * Invariants: I12: a topic is found by (database, topic id).  The id is drawn
 *             anew by TRUNCATE, so nothing that was held for an old log meets
 *             its successor.  An entry lives from its first use until its
 *             file is gone, which storage tells at the end of a transaction
 *             that held AccessExclusiveLock: whoever holds any lock on the
 *             relation may keep pointers to topic, groups and shards.
 * Locks:      TopicCtl->lock (rank hash) for the table's chains, held for the
 *             walk of one chain, never over an allocation.
 * Runs in:    any backend, the worker; NaradQueueTopicGone in transaction
 *             callbacks, where it neither allocates nor errors.
 * WAL:        none.
 * On error:   nothing is left behind but a complete entry.
 *
 * The table is a plain array of chains, not a dshash: an entry has to be
 * found and removed in commit and abort callbacks, where attaching to a
 * dshash could fail.
 *
 * Settings are read from narad.topic_settings without SPI, and kept until
 * the topic's relcache entry is invalidated, which alter_topic provokes.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/table.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_am.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "commands/defrem.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/shmem.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/rls.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "base/base_memory.h"
#include "log/log_events.h"
#include "log/log_tableam.h"
#include "queue/queue_dedup.h"
#include "queue/queue_dirty.h"
#include "queue/queue_saved.h"
#include "queue/queue_shard.h"
#include "queue/queue_state.h"
#include "queue/queue_topic.h"

#define TOPIC_BUCKETS 1024

/* So many topic ids that went last are remembered. */
#define GONE_TOPICS 256

/* An entry of the table; `topic` is first. */
typedef struct NaradTopicEntry
{
	NaradQueueTopic topic;
	struct NaradTopicEntry *next;	/* in its chain; TopicCtl->lock */
} NaradTopicEntry;

typedef struct NaradTopicCtl
{
	LWLock		lock;
	NaradTopicEntry *buckets[TOPIC_BUCKETS];
	uint32		ngone;			/* ever; under lock */
	NaradTopicId gone[GONE_TOPICS]; /* a ring; under lock */
} NaradTopicCtl;

static NaradTopicCtl *TopicCtl;

/* Settings of topics, by relation. */
typedef struct NaradSettingsEntry
{
	Oid			relid;			/* key */
	NaradTopicSettings settings;
} NaradSettingsEntry;

static HTAB *settings_cache;
static uint64 settings_invalidations;	/* counts callbacks */

static object_access_hook_type previous_object_access;

/* ----------------------------------------------------------------
 *		Settings
 * ----------------------------------------------------------------
 */

/* Forgets one topic's settings, or all. */
static void
settings_invalidated(Datum arg, Oid relid)
{
	settings_invalidations++;
	if (settings_cache == NULL)
		return;
	if (OidIsValid(relid))
		hash_search(settings_cache, &relid, HASH_REMOVE, NULL);
	else
	{
		HASH_SEQ_STATUS status;
		NaradSettingsEntry *entry;

		hash_seq_init(&status, settings_cache);
		while ((entry = hash_seq_search(&status)) != NULL)
			hash_search(settings_cache, &entry->relid, HASH_REMOVE, NULL);
	}
}

static void
make_settings_cache(void)
{
	HASHCTL		ctl;

	ctl.keysize = sizeof(Oid);
	ctl.entrysize = sizeof(NaradSettingsEntry);
	ctl.hcxt = CacheMemoryContext;
	settings_cache = hash_create("narad topic settings", 32, &ctl,
								 HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

/*
 * NaradExtensionTableOpen
 *
 * A table of the extension, or NULL: the extension is being made or dropped.
 */
Relation
NaradExtensionTableOpen(const char *name, LOCKMODE lockmode)
{
	Oid			schema = get_namespace_oid("narad", true);
	Oid			relid;

	if (!OidIsValid(schema))
		return NULL;
	relid = get_relname_relid(name, schema);
	if (!OidIsValid(relid) || get_rel_relkind(relid) != RELKIND_RELATION)
		return NULL;
	return try_table_open(relid, lockmode);
}

static Relation
open_settings_table(LOCKMODE lockmode)
{
	return NaradExtensionTableOpen("topic_settings", lockmode);
}

/*
 * NaradExtensionTableScan
 *
 * Begins a search for a topic's rows in such a table; by an index that starts
 * with the topic, if there is one.  All rows if there is no topic.
 */
SysScanDesc
NaradExtensionTableScan(Relation table, Oid relid)
{
	AttrNumber	attno = get_attnum(RelationGetRelid(table), "topic");
	List	   *indexes = RelationGetIndexList(table);
	Oid			index = indexes != NIL ? linitial_oid(indexes) : InvalidOid;
	ScanKeyData key;

	if (attno == InvalidAttrNumber)
		elog(ERROR, "table \"%s\" has no column \"topic\"",
			 RelationGetRelationName(table));
	ScanKeyInit(&key, attno, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(relid));
	list_free(indexes);
	if (!OidIsValid(relid))
		return systable_beginscan(table, InvalidOid, false, NULL, 0, NULL);
	return systable_beginscan(table, index, OidIsValid(index), NULL, 1, &key);
}

/* A column of a settings row, by name; false if NULL or not there. */
static bool
settings_column(Relation table, HeapTuple row, const char *name, Oid type,
				Datum *value)
{
	TupleDesc	desc = RelationGetDescr(table);
	AttrNumber	attno = get_attnum(RelationGetRelid(table), name);
	bool		isnull;

	if (attno == InvalidAttrNumber ||
		TupleDescAttr(desc, attno - 1)->atttypid != type)
		return false;
	*value = heap_getattr(row, attno, desc, &isnull);
	return !isnull;
}

/* Months count 30 days.  What is out of bounds is brought to the bound. */
static int64
interval_to_us(const Interval *interval)
{
	double		us = (double) interval->time +
	((double) interval->month * DAYS_PER_MONTH + interval->day) *
	USECS_PER_DAY;

	if (us < 0)
		return 0;
	return us > (double) PG_INT64_MAX / 4 ? PG_INT64_MAX / 4 : (int64) us;
}

static int64
interval_setting(Relation table, HeapTuple row, const char *name,
				 int64 default_us)
{
	Datum		value;

	if (!settings_column(table, row, name, INTERVALOID, &value))
		return default_us;
	return interval_to_us(DatumGetIntervalP(value));
}

static int
count_setting(Relation table, HeapTuple row, const char *name,
			  int default_count)
{
	Datum		value;

	if (!settings_column(table, row, name, INT4OID, &value))
		return default_count;
	return Max(1, DatumGetInt32(value));
}

/* Is it the word? */
static bool
word_setting(Relation table, HeapTuple row, const char *name, const char *word)
{
	Datum		value;

	return settings_column(table, row, name, TEXTOID, &value) &&
		strcmp(TextDatumGetCString(value), word) == 0;
}

/* Brings a topic's row into settings, which hold the defaults. */
static void
take_settings_row(Relation table, HeapTuple row, NaradTopicSettings *settings)
{
	Datum		value;

	settings->retention = interval_setting(table, row, "retention",
										   settings->retention);
	if (settings_column(table, row, "retention_bytes", INT8OID, &value))
		settings->retention_bytes = Max(1, DatumGetInt64(value));
	settings->segment_age = interval_setting(table, row, "segment_age",
											 settings->segment_age);
	settings->visibility_timeout =
		interval_setting(table, row, "visibility_timeout",
						 settings->visibility_timeout);
	settings->retry_delay = interval_setting(table, row, "retry_delay",
											 settings->retry_delay);
	if (settings_column(table, row, "retry_backoff", FLOAT8OID, &value))
		settings->retry_backoff = Max(1.0, DatumGetFloat8(value));
	settings->max_deliveries = count_setting(table, row, "max_deliveries", 0);
	if (settings_column(table, row, "dead_letter_topic", REGCLASSOID, &value))
		settings->dead_letter_topic = DatumGetObjectId(value);
	settings->dedup_window = interval_setting(table, row, "dedup_window",
											  settings->dedup_window);
	settings->ordered = word_setting(table, row, "ordering", "key");
	settings->cleanup_settled = word_setting(table, row, "cleanup", "settled");
	settings->max_in_flight = count_setting(table, row, "max_in_flight",
											settings->max_in_flight);
	settings->max_acked_ahead = count_setting(table, row, "max_acked_ahead",
											  settings->max_acked_ahead);
}

static void
default_settings(NaradTopicSettings *settings)
{
	memset(settings, 0, sizeof(NaradTopicSettings));
	settings->retention = 7 * USECS_PER_DAY;
	settings->segment_age = USECS_PER_DAY;
	settings->visibility_timeout = 30 * USECS_PER_SEC;
	settings->retry_backoff = 1;
	settings->dedup_window = 5 * USECS_PER_MINUTE;
	settings->max_in_flight = 1024;
	settings->max_acked_ahead = 1024;
}

static void
read_settings_row(Oid relid, NaradTopicSettings *settings)
{
	Relation	table = open_settings_table(AccessShareLock);
	SysScanDesc scan;
	HeapTuple	row;

	if (table == NULL)
		return;
	scan = NaradExtensionTableScan(table, relid);
	row = systable_getnext(scan);
	if (HeapTupleIsValid(row))
		take_settings_row(table, row, settings);
	systable_endscan(scan);
	table_close(table, AccessShareLock);
}

/*
 * May produce append without the executor?  Only if the executor would do
 * nothing else with the row.
 */
static bool
is_direct(Relation rel)
{
	TupleDesc	desc = RelationGetDescr(rel);
	int			i;

	if (desc->natts != NARAD_STANDARD_ATTRS || rel->trigdesc != NULL ||
		rel->rd_rules != NULL || rel->rd_rel->relrowsecurity ||
		rel->rd_rel->relispartition)
		return false;
	if (desc->constr != NULL &&
		(desc->constr->num_check > 0 || desc->constr->has_generated_stored))
		return false;
	for (i = NARAD_ATTR_TIME; i < desc->natts; i++)
	{
		if (TupleDescAttr(desc, i)->attnotnull)
			return false;
	}
	return true;
}

/*
 * NaradTopicSettingsGet
 *
 * The engine's settings of a topic.  The caller has the relation locked.  The
 * result is valid until invalidations are processed: until the next lock is
 * taken, relation opened or catalog read.  May error as any catalog read may.
 */
const NaradTopicSettings *
NaradTopicSettingsGet(Relation rel)
{
	Oid			relid = RelationGetRelid(rel);
	NaradTopicSettings settings;
	NaradSettingsEntry *entry;
	uint64		noted;

	if (settings_cache == NULL)
		make_settings_cache();
	entry = hash_search(settings_cache, &relid, HASH_FIND, NULL);
	if (entry != NULL)
		return &entry->settings;

	/* What was read is void if an invalidation came meanwhile. */
	do
	{
		noted = settings_invalidations;
		default_settings(&settings);
		read_settings_row(relid, &settings);
	} while (noted != settings_invalidations);

	settings.value_type =
		TupleDescAttr(RelationGetDescr(rel), NARAD_ATTR_VALUE - 1)->atttypid;
	settings.direct = is_direct(rel);
	entry = hash_search(settings_cache, &relid, HASH_ENTER, NULL);
	entry->settings = settings;
	return &entry->settings;
}

/* ----------------------------------------------------------------
 *		Checks
 * ----------------------------------------------------------------
 */

/*
 * NaradTopicCheck
 *
 * ERROR 42809 unless the relation is a topic.
 */
void
NaradTopicCheck(Relation rel)
{
	if (!NaradRelIsTopic(rel))
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("\"%s\" is not a topic",
						RelationGetRelationName(rel)),
				 errhint("Topics are created with narad.create_topic.")));
}

/*
 * NaradTopicCheckAcl
 *
 * ERROR 42501 unless the current user has all privileges of mode on the
 * topic; ERROR 0A000 if row-level security applies to the user, since the
 * functions would read past it.
 */
void
NaradTopicCheckAcl(Relation rel, AclMode mode)
{
	Oid			relid = RelationGetRelid(rel);

	if (pg_class_aclmask(relid, GetUserId(), mode, ACLMASK_ALL) != mode)
		aclcheck_error(ACLCHECK_NO_PRIV, OBJECT_TABLE,
					   RelationGetRelationName(rel));
	if (rel->rd_rel->relrowsecurity &&
		check_enable_rls(relid, InvalidOid, false) == RLS_ENABLED)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot use topic \"%s\" as a queue under row-level security",
						RelationGetRelationName(rel)),
				 errhint("Use a role to which the policies do not apply.")));
}

/*
 * NaradTopicSettingsForget
 *
 * The settings are read again the next time: for who was told of a change from
 * the callback of its commit, which is before the invalidation is sent.
 */
void
NaradTopicSettingsForget(Oid relid)
{
	settings_invalidated((Datum) 0, relid);
}

/*
 * NaradQueueTopicList
 *
 * OIDs of all tables with our access method.  Nothing is locked: some may be
 * gone by the time they are opened.
 */
List *
NaradQueueTopicList(void)
{
	Oid			am = get_table_am_oid("narad", true);
	List	   *result = NIL;
	Relation	pg_class;
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;

	if (!OidIsValid(am))
		return NIL;
	pg_class = table_open(RelationRelationId, AccessShareLock);
	ScanKeyInit(&key, Anum_pg_class_relam, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(am));
	scan = systable_beginscan(pg_class, InvalidOid, false, NULL, 1, &key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_class form = (Form_pg_class) GETSTRUCT(tuple);

		if (form->relkind == RELKIND_RELATION)
			result = lappend_oid(result, form->oid);
	}
	systable_endscan(scan);
	table_close(pg_class, AccessShareLock);
	return result;
}

/* ----------------------------------------------------------------
 *		Topics in shared memory
 * ----------------------------------------------------------------
 */

static NaradTopicEntry **
topic_bucket(Oid database, NaradTopicId topic_id)
{
	uint32		hash = hash_combine(murmurhash32((uint32) (topic_id >> 32)),
									murmurhash32((uint32) topic_id));

	return &TopicCtl->buckets[hash_combine(hash, database) % TOPIC_BUCKETS];
}

/* TopicCtl->lock is held. */
static NaradTopicEntry *
find_topic(Oid database, NaradTopicId topic_id)
{
	NaradTopicEntry *entry;

	for (entry = *topic_bucket(database, topic_id); entry != NULL;
		 entry = entry->next)
	{
		if (entry->topic.topic_id == topic_id &&
			entry->topic.database == database)
			return entry;
	}
	return NULL;
}

/*
 * NaradQueueTopicFind
 *
 * The topic of this database by its id, or NULL if nobody used it since the
 * server started.  The pointer is good while the caller keeps the relation
 * locked, and has found this id in its file under that lock.
 */
NaradQueueTopic *
NaradQueueTopicFind(NaradTopicId topic_id)
{
	NaradTopicEntry *entry;

	LWLockAcquire(&TopicCtl->lock, LW_SHARED);
	entry = find_topic(MyDatabaseId, topic_id);
	LWLockRelease(&TopicCtl->lock);
	return entry != NULL ? &entry->topic : NULL;
}

/*
 * NaradQueueTopicRelid
 *
 * The relation that had this topic id when it was last opened, or InvalidOid.
 * Needs no lock on it: the caller locks the relation and looks again.  May
 * error 53200 the first time in a backend, which is announced here.
 */
Oid
NaradQueueTopicRelid(NaradTopicId topic_id)
{
	NaradTopicEntry *entry;
	Oid			relid = InvalidOid;

	NaradDirtyAttach();
	LWLockAcquire(&TopicCtl->lock, LW_SHARED);
	entry = find_topic(MyDatabaseId, topic_id);
	if (entry != NULL)
		relid = pg_atomic_read_u32(&entry->topic.relid);
	LWLockRelease(&TopicCtl->lock);
	return relid;
}

/*
 * NaradQueueTopicWasGone
 *
 * Whether a topic id is known to have gone since the server started, by DROP
 * or TRUNCATE; only the last ones are remembered.
 */
bool
NaradQueueTopicWasGone(NaradTopicId topic_id)
{
	bool		found = false;
	uint32		i;

	LWLockAcquire(&TopicCtl->lock, LW_SHARED);
	for (i = 0; i < Min(TopicCtl->ngone, GONE_TOPICS) && !found; i++)
		found = TopicCtl->gone[i] == topic_id;
	LWLockRelease(&TopicCtl->lock);
	return found;
}

/* Makes an entry, unless somebody else was faster; NULL without memory. */
static NaradQueueTopic *
make_topic(Relation rel, const NaradRelInfo *info)
{
	NaradTopicEntry *made = NaradAlloc(sizeof(NaradTopicEntry));
	NaradTopicEntry *entry;
	NaradTopicEntry **bucket = topic_bucket(MyDatabaseId, info->topic_id);

	if (made == NULL)
		return NULL;
	made->topic.database = MyDatabaseId;
	made->topic.topic_id = info->topic_id;
	pg_atomic_init_u32(&made->topic.relid, RelationGetRelid(rel));
	pg_atomic_init_u64(&made->topic.changes, 1);
	pg_atomic_init_u64(&made->topic.changes_saved, 0);
	pg_atomic_init_u64(&made->topic.ids_due, 0);
	NaradLockInit(&made->topic.lock, NARAD_LOCK_QUEUE_TOPIC);
	dlist_init(&made->topic.groups);

	LWLockAcquire(&TopicCtl->lock, LW_EXCLUSIVE);
	entry = find_topic(MyDatabaseId, info->topic_id);
	if (entry == NULL)
	{
		made->next = *bucket;
		*bucket = made;
	}
	LWLockRelease(&TopicCtl->lock);
	if (entry == NULL)
		return &made->topic;
	NaradFree(made);
	return &entry->topic;
}

/*
 * NaradQueueTopicTryGet
 *
 * The topic's entry, made if need be; tells the workers that this database
 * has a topic in use.  NULL without shared memory for it.  The caller has the
 * relation locked, no narad lock, and is not in recovery.
 */
NaradQueueTopic *
NaradQueueTopicTryGet(Relation rel, const NaradRelInfo *info)
{
	NaradQueueTopic *topic;

	NaradDirtyAttach();
	topic = NaradQueueTopicFind(info->topic_id);
	if (topic == NULL)
		topic = make_topic(rel, info);
	if (topic != NULL &&
		pg_atomic_read_u32(&topic->relid) != RelationGetRelid(rel))
		pg_atomic_write_u32(&topic->relid, RelationGetRelid(rel));
	return topic;
}

/*
 * NaradQueueTopicGet
 *
 * The same, with ERROR 53200 in place of NULL.
 */
NaradQueueTopic *
NaradQueueTopicGet(Relation rel, NaradRelInfo *info)
{
	NaradQueueTopic *topic = NaradQueueTopicTryGet(rel, info);

	if (topic == NULL)
		NaradReportOutOfMemory("a topic");
	return topic;
}

/*
 * NaradQueueTopicTouch
 *
 * Something that is saved has changed: a state page was written, or a group.
 */
void
NaradQueueTopicTouch(NaradQueueTopic *topic)
{
	pg_atomic_fetch_add_u64(&topic->changes, 1);
}

static bool
has_changed(NaradQueueTopic *topic)
{
	return topic->database == MyDatabaseId &&
		pg_atomic_read_u64(&topic->changes) !=
		pg_atomic_read_u64(&topic->changes_saved);
}

/*
 * Notes up to max topics of this database with changes that are not saved;
 * returns how many there are.
 */
static int
list_changed(NaradTopicChange *changed, int max)
{
	NaradTopicEntry *entry;
	int			nfound = 0;
	int			i;

	LWLockAcquire(&TopicCtl->lock, LW_SHARED);
	for (i = 0; i < TOPIC_BUCKETS; i++)
	{
		for (entry = TopicCtl->buckets[i]; entry != NULL; entry = entry->next)
		{
			if (!has_changed(&entry->topic))
				continue;
			if (nfound < max)
			{
				changed[nfound].relid =
					pg_atomic_read_u32(&entry->topic.relid);
				changed[nfound].topic_id = entry->topic.topic_id;
				changed[nfound].changes =
					pg_atomic_read_u64(&entry->topic.changes);
			}
			nfound++;
		}
	}
	LWLockRelease(&TopicCtl->lock);
	return nfound;
}

/*
 * NaradQueueTopicAnyChanged
 *
 * Has a topic of this database changes that are not saved?
 */
bool
NaradQueueTopicAnyChanged(void)
{
	return list_changed(NULL, 0) > 0;
}

/*
 * NaradQueueTopicChanged
 *
 * palloc'ed: the topics of this database that have changes which are not
 * saved; those that come meanwhile may be left out.
 */
NaradTopicChange *
NaradQueueTopicChanged(int *nchanged)
{
	int			max = list_changed(NULL, 0);
	NaradTopicChange *changed = palloc(sizeof(NaradTopicChange) * (max + 1));

	*nchanged = list_changed(changed, max);
	*nchanged = Min(*nchanged, max);
	return changed;
}

/*
 * NaradQueueTopicNoteSaved
 *
 * What had changed by then is saved.  The worker alone, with the topic locked.
 */
void
NaradQueueTopicNoteSaved(NaradQueueTopic *topic, uint64 changes)
{
	pg_atomic_write_u64(&topic->changes_saved, changes);
}

/*
 * Is the topic's time come?  Then the next is a second from now, unless the
 * caller comes to set another; else *next is lowered.
 */
static bool
take_ids_due(NaradQueueTopic *topic, int64 now, int64 *next)
{
	uint64		due = pg_atomic_read_u64(&topic->ids_due);

	if (due == 0 || topic->database != MyDatabaseId)
		return false;
	if ((int64) due <= now &&
		pg_atomic_compare_exchange_u64(&topic->ids_due, &due,
									   now + USECS_PER_SEC))
		return true;
	if (due != 0)
		*next = Min(*next, (int64) due);
	return false;
}

/*
 * NaradQueueTopicIdsDue
 *
 * See queue_topic.h.
 */
bool
NaradQueueTopicIdsDue(int64 now, Oid *relid, NaradTopicId *topic_id,
					  int64 *next)
{
	NaradTopicEntry *entry = NULL;
	int			i;

	LWLockAcquire(&TopicCtl->lock, LW_SHARED);
	for (i = 0; i < TOPIC_BUCKETS && entry == NULL; i++)
	{
		for (entry = TopicCtl->buckets[i]; entry != NULL; entry = entry->next)
		{
			if (take_ids_due(&entry->topic, now, next))
				break;
		}
	}
	if (entry != NULL)
	{
		*relid = pg_atomic_read_u32(&entry->topic.relid);
		*topic_id = entry->topic.topic_id;
	}
	LWLockRelease(&TopicCtl->lock);
	return entry != NULL;
}

/* Frees a group with its shards. */
static void
free_group(NaradGroup *group)
{
	int			i;

	NaradWaitGroupGone(group, true);
	for (i = 0; i < NaradArrayLength(&group->shards); i++)
	{
		NaradShard *shard = NaradArrayGet(&group->shards, i);

		if (shard != NULL)
			NaradShardFree(shard);
	}
	NaradArrayFree(group->shards);
	NaradFree(group);
}

/* Frees an entry that is in no chain, with its groups and ids. */
static void
free_topic(NaradTopicEntry *entry)
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &entry->topic.groups)
		free_group(dlist_container(NaradGroup, node, iter.cur));
	NaradDedupFree(entry->topic.dedup);
	NaradFree(entry);
}

/*
 * NaradQueueTopicGone
 *
 * Storage says that a topic id has gone for good: its memory is freed.  In a
 * transaction callback of the one who held AccessExclusiveLock; nobody else
 * has pointers.  No error, no allocation.
 */
void
NaradQueueTopicGone(Oid database, NaradTopicId topic_id)
{
	NaradTopicEntry **link;
	NaradTopicEntry *gone = NULL;

	NaradWaitTopicGone(database, topic_id);
	LWLockAcquire(&TopicCtl->lock, LW_EXCLUSIVE);
	for (link = topic_bucket(database, topic_id); *link != NULL;
		 link = &(*link)->next)
	{
		if ((*link)->topic.topic_id == topic_id &&
			(*link)->topic.database == database)
		{
			gone = *link;
			*link = gone->next;
			TopicCtl->gone[TopicCtl->ngone++ % GONE_TOPICS] = topic_id;
			break;
		}
	}
	LWLockRelease(&TopicCtl->lock);
	if (gone == NULL)
		return;
	free_topic(gone);

	/* Maybe the whole extension goes, and the worker with it. */
	NaradDirtyWake(database);
}

/*
 * NaradQueueTopicForgetDatabase
 *
 * The database was dropped: frees its topics.  Nobody is connected to it.
 */
void
NaradQueueTopicForgetDatabase(Oid database)
{
	NaradTopicEntry *gone = NULL;
	int			i;

	LWLockAcquire(&TopicCtl->lock, LW_EXCLUSIVE);
	for (i = 0; i < TOPIC_BUCKETS; i++)
	{
		NaradTopicEntry **link = &TopicCtl->buckets[i];

		while (*link != NULL)
		{
			NaradTopicEntry *entry = *link;

			if (entry->topic.database == database)
			{
				*link = entry->next;
				entry->next = gone;
				gone = entry;
			}
			else
				link = &entry->next;
		}
	}
	LWLockRelease(&TopicCtl->lock);
	while (gone != NULL)
	{
		NaradTopicEntry *next = gone->next;

		free_topic(gone);
		gone = next;
	}
}

/* ----------------------------------------------------------------
 *		DROP
 * ----------------------------------------------------------------
 */

static void
delete_settings_row(Oid relid)
{
	Relation	table = open_settings_table(RowExclusiveLock);
	SysScanDesc scan;
	HeapTuple	row;

	if (table == NULL)
		return;
	scan = NaradExtensionTableScan(table, relid);
	while (HeapTupleIsValid(row = systable_getnext(scan)))
		CatalogTupleDelete(table, &row->t_self);
	systable_endscan(scan);
	table_close(table, RowExclusiveLock);
}

/* The topics that name a table as their dead-letter topic. */
static List *
dead_letter_sources(Relation table, Oid target)
{
	List	   *sources = NIL;
	AttrNumber	attno = get_attnum(RelationGetRelid(table),
								   "dead_letter_topic");
	SysScanDesc scan;
	ScanKeyData key;
	HeapTuple	row;
	Datum		topic;

	if (attno == InvalidAttrNumber)
		return NIL;
	ScanKeyInit(&key, attno, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(target));
	scan = systable_beginscan(table, InvalidOid, false, NULL, 1, &key);
	while (HeapTupleIsValid(row = systable_getnext(scan)))
	{
		if (settings_column(table, row, "topic", REGCLASSOID, &topic))
			sources = lappend_oid(sources, DatumGetObjectId(topic));
	}
	systable_endscan(scan);
	return sources;
}

/* Unsets the dead-letter topic of a topic, if it still is that one. */
static void
unset_dead_letter_topic(Relation table, Oid relid, Oid target)
{
	TupleDesc	desc = RelationGetDescr(table);
	AttrNumber	attno = get_attnum(RelationGetRelid(table),
								   "dead_letter_topic");
	Datum	   *values = palloc0(desc->natts * sizeof(Datum));
	bool	   *isnull = palloc0(desc->natts * sizeof(bool));
	bool	   *changed = palloc0(desc->natts * sizeof(bool));
	SysScanDesc scan = NaradExtensionTableScan(table, relid);
	HeapTuple	row = systable_getnext(scan);
	Datum		value;

	isnull[attno - 1] = changed[attno - 1] = true;
	if (HeapTupleIsValid(row) &&
		settings_column(table, row, "dead_letter_topic", REGCLASSOID, &value) &&
		DatumGetObjectId(value) == target)
	{
		row = heap_modify_tuple(row, desc, values, isnull, changed);
		CatalogTupleUpdate(table, &row->t_self, row);
		if (SearchSysCacheExists1(RELOID, ObjectIdGetDatum(relid)))
		{
			CacheInvalidateRelcacheByRelid(relid);
			ereport(NOTICE,
					(errmsg("topic \"%s\" has no dead-letter topic any more",
							get_rel_name(relid))));
		}
	}
	systable_endscan(scan);
}

/*
 * A table goes: no topic keeps it as its dead-letter topic, lest another table
 * of that OID take the place.  The lock on such a topic is alter_topic's.
 */
static void
forget_dead_letter_topic(Oid target)
{
	Relation	table = open_settings_table(RowExclusiveLock);
	List	   *sources;
	ListCell   *cell;

	if (table == NULL)
		return;
	sources = dead_letter_sources(table, target);
	foreach(cell, sources)
	{
		LockRelationOid(lfirst_oid(cell), ShareUpdateExclusiveLock);
		unset_dead_letter_topic(table, lfirst_oid(cell), target);
	}
	list_free(sources);
	table_close(table, RowExclusiveLock);
}

/*
 * Is this the OID of a table of access method narad?  *rewrites is the table
 * for whose rewrite it was made, if any.
 */
static bool
relid_is_topic(Oid relid, Oid *rewrites)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	Form_pg_class form;
	bool		is_topic = false;

	*rewrites = InvalidOid;

	if (!HeapTupleIsValid(tuple))
		return false;
	form = (Form_pg_class) GETSTRUCT(tuple);
	if (form->relkind == RELKIND_RELATION && OidIsValid(form->relam))
		is_topic = form->relam == get_table_am_oid("narad", true);
	*rewrites = form->relrewrite;
	ReleaseSysCache(tuple);
	return is_topic;
}

/*
 * A topic that is dropped takes its settings along, and is nobody's
 * dead-letter topic any more.  So does one that becomes
 * an ordinary table by SET ACCESS METHOD: its new file's table is dropped,
 * which by then has the old access method.  (Into or within narad nothing is
 * rewritten.)  Saved frontiers go likewise.  Whoever drops a topic also
 * attaches to shared memory now, since NaradQueueTopicGone must not fail.
 */
static void
topic_object_access(ObjectAccessType access, Oid class_id, Oid object_id,
					int sub_id, void *arg)
{
	Oid			rewrites;

	if (previous_object_access)
		previous_object_access(access, class_id, object_id, sub_id, arg);
	if (access != OAT_DROP || class_id != RelationRelationId || sub_id != 0 ||
		!relid_is_topic(object_id, &rewrites))
		return;
	(void) NaradMemoryArea();
	if (OidIsValid(rewrites))
		object_id = rewrites;
	delete_settings_row(object_id);
	forget_dead_letter_topic(object_id);
	NaradSavedDelete(object_id, NULL);
}

/* ----------------------------------------------------------------
 *		Registration
 * ----------------------------------------------------------------
 */

/*
 * NaradQueueTopicShmemSize
 */
Size
NaradQueueTopicShmemSize(void)
{
	return MAXALIGN(sizeof(NaradTopicCtl));
}

/*
 * NaradQueueTopicShmemInit
 *
 * Under AddinShmemInitLock, after the locks are known.
 */
void
NaradQueueTopicShmemInit(void)
{
	bool		found;

	TopicCtl = ShmemInitStruct("Narad topics", NaradQueueTopicShmemSize(),
							   &found);
	if (!found)
	{
		memset(TopicCtl, 0, sizeof(NaradTopicCtl));
		NaradLockInit(&TopicCtl->lock, NARAD_LOCK_HASH);
	}
}

/*
 * NaradQueueTopicRegister
 *
 * In the postmaster, once.
 */
void
NaradQueueTopicRegister(void)
{
	NaradLogEventTable.topic_gone = NaradQueueTopicGone;
	NaradLogEventTable.records_decided = NaradWaitRecords;
	NaradLogEventTable.retention_wanted = NaradDirtyWant;
	NaradLogEventTable.freeze_states = NaradStateFreeze;
	CacheRegisterRelcacheCallback(settings_invalidated, (Datum) 0);
	previous_object_access = object_access_hook;
	object_access_hook = topic_object_access;
}
