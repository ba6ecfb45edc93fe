/*-------------------------------------------------------------------------
 *
 * log_group.c
 *	  The group directory and the state maps: which groups a topic has, and
 *	  where each keeps the state of a partition.
 *
 * Groups lie on a chain of pages from the metapage's root.  Each points to a
 * chain of map pages, and those to the first state page of each partition,
 * whose meaning is the layer above's.  A dropped group's place, map and state
 * pages serve the next new group: a state page tells by the group id on it
 * whose it is, and the layer above takes one of an earlier group as empty.
 *
 * Owns:       pages of kinds GROUPS and STATEMAP; the life of STATE pages,
 *             not what is in them.
 * Invariants: I12: a group id is given once in a topic id.
 * Locks:      to change: relation extension (a page may be needed), then
 *             groups_lock, alloc_lock, then buffers.  To read: one share lock
 *             at a time, so a reader sees each page as of one moment.
 * Runs in:    any backend; reading on a standby, too.
 * WAL:        META_UPDATE; not undone by rollback.
 * On error:   a page allocated and not yet linked is lost.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "log/log_meta.h"
#include "log/log_segment.h"

#define GROUPS_PER_PAGE \
	((BLCKSZ - SizeOfPageHeaderData - sizeof(NaradPageSpecialHead) - \
	  offsetof(NaradGroupsPage, entries)) / sizeof(NaradGroupEntry))

#define GroupsContents(page) \
	((NaradGroupsPage *) PageGetContents((Page) (page)))
#define MapContents(page) \
	((NaradStateMapPage *) PageGetContents((Page) (page)))

/* Where a group's entry lies. */
typedef struct GroupPlace
{
	BlockNumber block;			/* 0: none */
	uint32		index;
	NaradGroupEntry entry;
} GroupPlace;

static void
report_damage(Relation rel, BlockNumber block)
{
	ereport(ERROR,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("groups of topic \"%s\" are damaged in block %u",
					RelationGetRelationName(rel), block)));
}

/* Copies the page of a kind to which a walk comes; errors if it is another. */
static void
copy_kind(Relation rel, const NaradMetaData *meta, NaradChainWalk *walk,
		  BlockNumber block, uint16 kind, char *copy)
{
	NaradPageSpecialHead *head;

	if (NaradChainIsWrong(walk, block))
		report_damage(rel, block);
	NaradPageCopy(rel, block, copy);
	head = NaradPageHead(copy);
	if (head == NULL || head->kind != kind ||
		head->topic_id != meta->topic_id)
		report_damage(rel, block);
}

/* Copies a page of the directory. */
static void
copy_groups(Relation rel, const NaradMetaData *meta, NaradChainWalk *walk,
			BlockNumber block, char *copy)
{
	copy_kind(rel, meta, walk, block, NARAD_PAGE_GROUPS, copy);
	if (GroupsContents(copy)->nentries > GROUPS_PER_PAGE)
		report_damage(rel, block);
}

/* What is looked for in the directory. */
typedef struct GroupKey
{
	const char *name;			/* a live group's, or NULL */
	NaradGroupId group_id;		/* of one that is live or being made; or 0 */
} GroupKey;						/* neither: a place that is free */

/* What was left while it was made is as good as dropped. */
static bool
entry_matches(const NaradGroupEntry *entry, const GroupKey *key)
{
	if (key->name != NULL)
		return entry->state == NARAD_GROUP_LIVE &&
			strcmp(entry->name, key->name) == 0;
	if (key->group_id != 0)
		return entry->state != NARAD_GROUP_DROPPED &&
			entry->group_id == key->group_id;
	return entry->state == NARAD_GROUP_DROPPED ||
		entry->state == NARAD_GROUP_MAKING;
}

/*
 * Looks for a group.  *last is the last page of the chain, and whether it has
 * room.
 */
static bool
find_group(Relation rel, const NaradMetaData *meta, const GroupKey *key,
		   GroupPlace *place, BlockNumber *last, bool *has_room)
{
	PGAlignedBlock copy;
	NaradGroupsPage *page = GroupsContents(copy.data);
	BlockNumber block = meta->groups_root;
	NaradChainWalk walk = {0};

	*last = 0;
	*has_room = false;
	while (block != 0)
	{
		uint32		i;

		copy_groups(rel, meta, &walk, block, copy.data);
		for (i = 0; i < page->nentries; i++)
		{
			NaradGroupEntry *entry = &page->entries[i];

			if (entry_matches(entry, key))
			{
				place->block = block;
				place->index = i;
				place->entry = *entry;
				return true;
			}
		}
		*last = block;
		*has_room = page->nentries < GROUPS_PER_PAGE;
		block = page->next;
	}
	place->block = 0;
	return false;
}

static bool
find_live(Relation rel, const NaradMetaData *meta, const char *name,
		  GroupPlace *place)
{
	GroupKey	key = {name, 0};
	BlockNumber last;
	bool		has_room;

	return find_group(rel, meta, &key, place, &last, &has_room);
}

/* A live group, or one that is being made, by its id. */
static bool
find_by_id(Relation rel, const NaradMetaData *meta, NaradGroupId group_id,
		   GroupPlace *place)
{
	GroupKey	key = {NULL, group_id};
	BlockNumber last;
	bool		has_room;

	return find_group(rel, meta, &key, place, &last, &has_room);
}

/*
 * NaradGroupFind
 *
 * A live group by name.  Any lock; works on a standby.
 */
bool
NaradGroupFind(Relation rel, const char *name, NaradGroupEntry *entry)
{
	NaradMetaData meta;
	GroupPlace	place;

	if (!NaradMetaRead(rel, &meta) || !find_live(rel, &meta, name, &place))
		return false;
	*entry = place.entry;
	return true;
}

/*
 * NaradGroupList
 *
 * palloc'ed: all live groups.  Any lock; works on a standby.
 */
NaradGroupEntry *
NaradGroupList(Relation rel, int *ngroups)
{
	NaradMetaData meta;
	PGAlignedBlock copy;
	NaradGroupsPage *page = GroupsContents(copy.data);
	NaradGroupEntry *groups = palloc(sizeof(NaradGroupEntry));
	NaradChainWalk walk = {0};
	BlockNumber block;

	*ngroups = 0;
	block = NaradMetaRead(rel, &meta) ? meta.groups_root : 0;
	while (block != 0)
	{
		uint32		i;

		copy_groups(rel, &meta, &walk, block, copy.data);
		groups = repalloc(groups, (*ngroups + page->nentries + 1) *
						  sizeof(NaradGroupEntry));
		for (i = 0; i < page->nentries; i++)
			if (page->entries[i].state == NARAD_GROUP_LIVE)
				groups[(*ngroups)++] = page->entries[i];
		block = page->next;
	}
	return groups;
}

/* Begins a change: takes the locks and reads the metapage. */
static void
begin_change(Relation rel, NaradRelInfo *info, NaradMetaData *meta)
{
	LockRelationForExtension(rel, ExclusiveLock);
	LWLockAcquire(&info->shared->groups_lock, LW_EXCLUSIVE);
	if (!NaradMetaRead(rel, meta))
		elog(ERROR, "topic \"%s\" has lost its metapage",
			 RelationGetRelationName(rel));
}

static void
end_change(Relation rel, NaradLogTopic *topic)
{
	LWLockRelease(&topic->groups_lock);
	UnlockRelationForExtension(rel, ExclusiveLock);
}

/* Locks a page and copies it to the image of an update. */
static void
begin_update(Relation rel, BlockNumber block, NaradPageUpdate *update,
			 char *image)
{
	update->buffer = ReadBuffer(rel, block);
	update->image = image;
	update->init = false;
	LockBuffer(update->buffer, BUFFER_LOCK_EXCLUSIVE);
	memcpy(image, BufferGetPage(update->buffer), BLCKSZ);
}

/* Applies and unlocks. */
static void
end_updates(Relation rel, NaradPageUpdate *updates, int nupdates)
{
	int			i;

	NaradPagesUpdate(rel, updates, nupdates);
	for (i = 0; i < nupdates; i++)
		UnlockReleaseBuffer(updates[i].buffer);
}

/* Replaces the entry at a place. */
static void
write_entry(Relation rel, const GroupPlace *place)
{
	PGAlignedBlock image;
	NaradPageUpdate update;

	begin_update(rel, place->block, &update, image.data);
	GroupsContents(image.data)->entries[place->index] = place->entry;
	end_updates(rel, &update, 1);
}

/*
 * Adds an entry at the end of the chain, on a new page if the last has no
 * room, in one WAL record with the metapage (its next_group_id is raised).
 */
static void
append_entry(Relation rel, NaradLogTopic *topic, const NaradGroupEntry *entry,
			 BlockNumber last, bool has_room)
{
	PGAlignedBlock images[3];
	NaradPageUpdate updates[3];
	NaradMetaData *meta = (NaradMetaData *)
	PageGetContents((Page) images[0].data);
	NaradGroupsPage *page;
	BlockNumber block = 0;
	int			n = 0;

	if (!has_room)
		block = NaradMetaPageAllocate(rel, topic);

	begin_update(rel, 0, &updates[n], images[n].data);
	n++;
	meta->next_group_id = entry->group_id + 1;
	if (last != 0)
	{
		begin_update(rel, last, &updates[n], images[n].data);
		n++;
	}
	if (!has_room)
	{
		if (last != 0)
			GroupsContents(images[1].data)->next = block;
		else
			meta->groups_root = block;
		NaradPageUpdateInit(rel, block, &updates[n], images[n].data);
		NaradMetaImageInit(images[n].data, topic->topic_id, NARAD_PAGE_GROUPS,
						   0);
		n++;
	}
	page = GroupsContents(images[n - 1].data);
	page->entries[page->nentries++] = *entry;
	((PageHeader) images[n - 1].data)->pd_lower = SizeOfPageHeaderData +
		offsetof(NaradGroupsPage, entries) +
		page->nentries * sizeof(NaradGroupEntry);
	end_updates(rel, updates, n);
}

/* Raises the metapage's next group id. */
static void
set_next_group_id(NaradMetaData *meta, void *arg)
{
	meta->next_group_id = *(NaradGroupId *) arg + 1;
}

/*
 * NaradGroupMake
 *
 * Makes a group, or finds the live one of that name: *created tells.  Unless
 * it is to be live at once, it waits for NaradGroupMakeLive, and is nothing
 * but a free place if that does not come; so the caller lets only one at a
 * time make groups in a topic.  RowExclusiveLock, info is attached, and no
 * narad lock of rank groups or later is held.
 */
void
NaradGroupMake(Relation rel, NaradRelInfo *info, const char *name, bool live,
			   NaradGroupEntry *entry, bool *created)
{
	NaradLogTopic *topic = info->shared;
	NaradMetaData meta;
	GroupKey	key = {name, 0};
	GroupPlace	place;
	BlockNumber last;
	bool		has_room;

	begin_change(rel, info, &meta);
	*created = !find_group(rel, &meta, &key, &place, &last, &has_room);
	if (*created)
	{
		GroupKey	free_place = {NULL, 0};
		GroupPlace	dropped;
		BlockNumber ignored_last;
		bool		ignored_room;

		memset(&place.entry, 0, sizeof(place.entry));
		place.entry.group_id = meta.next_group_id;
		place.entry.state = live ? NARAD_GROUP_LIVE : NARAD_GROUP_MAKING;
		place.entry.created_at = GetCurrentTimestamp();
		snprintf(place.entry.name, NAMEDATALEN, "%s", name);

		if (find_group(rel, &meta, &free_place, &dropped, &ignored_last,
					   &ignored_room))
		{
			place.block = dropped.block;
			place.index = dropped.index;
			place.entry.map = dropped.entry.map;
			place.entry.generation = dropped.entry.generation + 1;

			/* The id first: lost is better than given twice. */
			NaradMetaModify(rel, set_next_group_id, &place.entry.group_id);
			write_entry(rel, &place);
		}
		else
			append_entry(rel, topic, &place.entry, last, has_room);
	}
	*entry = place.entry;
	end_change(rel, topic);
}

/*
 * NaradGroupMakeLive
 *
 * From now on a group that was made is found by its name; paused or not, as
 * the entry says.  Locks as NaradGroupMake.
 */
void
NaradGroupMakeLive(Relation rel, NaradRelInfo *info, NaradGroupEntry *entry)
{
	NaradMetaData meta;
	GroupPlace	place;

	begin_change(rel, info, &meta);
	if (!find_by_id(rel, &meta, entry->group_id, &place))
		elog(ERROR, "group \"%s\" was lost while it was made", entry->name);
	place.entry.state = NARAD_GROUP_LIVE;
	place.entry.paused = entry->paused;
	write_entry(rel, &place);
	*entry = place.entry;
	end_change(rel, info->shared);
}

/*
 * NaradGroupRemove
 *
 * Marks a live group as dropped and raises its generation; false if there is
 * none.  Locks as NaradGroupMake.
 */
bool
NaradGroupRemove(Relation rel, NaradRelInfo *info, const char *name,
				 NaradGroupEntry *entry)
{
	NaradLogTopic *topic = info->shared;
	NaradMetaData meta;
	GroupPlace	place;
	bool		found;

	begin_change(rel, info, &meta);
	found = find_live(rel, &meta, name, &place);
	if (found)
	{
		place.entry.state = NARAD_GROUP_DROPPED;
		place.entry.generation++;
		write_entry(rel, &place);
		*entry = place.entry;
	}
	end_change(rel, topic);
	return found;
}

/*
 * NaradGroupSetPaused
 *
 * Pauses or resumes a live group; false if there is none.  Locks as
 * NaradGroupMake.
 */
bool
NaradGroupSetPaused(Relation rel, NaradRelInfo *info, const char *name,
					bool paused)
{
	NaradLogTopic *topic = info->shared;
	NaradMetaData meta;
	GroupPlace	place;
	bool		found;

	begin_change(rel, info, &meta);
	found = find_live(rel, &meta, name, &place);
	if (found)
	{
		place.entry.paused = paused;
		write_entry(rel, &place);
	}
	end_change(rel, topic);
	return found;
}

/*
 * NaradGroupRaise
 *
 * Raises the generation of a live group; false if there is none of that id.
 * Locks as NaradGroupMake.
 */
bool
NaradGroupRaise(Relation rel, NaradRelInfo *info, NaradGroupId group_id)
{
	NaradMetaData meta;
	GroupPlace	place;
	bool		found;

	begin_change(rel, info, &meta);
	found = find_by_id(rel, &meta, group_id, &place);
	if (found)
	{
		place.entry.generation++;
		write_entry(rel, &place);
	}
	end_change(rel, info->shared);
	return found;
}

/* The map page on which a partition stands; 0 if the chain ends before. */
static BlockNumber
find_map_page(Relation rel, const NaradMetaData *meta, BlockNumber map,
			  int partition, char *copy, BlockNumber *last)
{
	NaradChainWalk walk = {0};
	uint32		first = 0;

	*last = 0;
	while (map != 0)
	{
		NaradStateMapPage *page = MapContents(copy);

		copy_kind(rel, meta, &walk, map, NARAD_PAGE_STATEMAP, copy);
		if (page->first_partition != first)
			report_damage(rel, map);
		if (partition < page->first_partition + NARAD_MAP_BLOCKS)
			return map;
		first += NARAD_MAP_BLOCKS;
		*last = map;
		map = page->next;
	}
	return 0;
}

/*
 * Adds a map page at the end of a group's chain, linked from the entry or
 * from the page before.
 */
static BlockNumber
append_map_page(Relation rel, NaradLogTopic *topic, GroupPlace *place,
				BlockNumber last)
{
	PGAlignedBlock images[2];
	NaradPageUpdate updates[2];
	BlockNumber block = NaradMetaPageAllocate(rel, topic);
	uint32		first = 0;
	NaradStateMapPage *page = MapContents(images[1].data);

	if (last != 0)
	{
		begin_update(rel, last, &updates[0], images[0].data);
		first = MapContents(images[0].data)->first_partition + NARAD_MAP_BLOCKS;
		MapContents(images[0].data)->next = block;
	}
	else
	{
		begin_update(rel, place->block, &updates[0], images[0].data);
		place->entry.map = block;
		GroupsContents(images[0].data)->entries[place->index].map = block;
	}
	NaradPageUpdateInit(rel, block, &updates[1], images[1].data);
	NaradMetaImageInit(images[1].data, topic->topic_id, NARAD_PAGE_STATEMAP, 0);
	page->first_partition = first;
	((PageHeader) images[1].data)->pd_lower = SizeOfPageHeaderData +
		offsetof(NaradStateMapPage, blocks) +
		NARAD_MAP_BLOCKS * sizeof(BlockNumber);
	end_updates(rel, updates, 2);
	return block;
}

/*
 * Looks a partition's state page up; 0 if there is none.  place is set.
 * False if the group is gone.
 */
static bool
look_up_state(Relation rel, const NaradMetaData *meta, NaradGroupId group_id,
			  int partition, GroupPlace *place, BlockNumber *map,
			  BlockNumber *last_map, BlockNumber *block)
{
	PGAlignedBlock copy;

	*block = 0;
	if (!find_by_id(rel, meta, group_id, place))
		return false;
	*map = find_map_page(rel, meta, place->entry.map, partition, copy.data,
						 last_map);
	if (*map != 0)
		*block = MapContents(copy.data)->blocks[partition % NARAD_MAP_BLOCKS];
	return true;
}

/*
 * Makes the state page of a partition, empty: its place may hold records of
 * old.  In a change.
 */
static BlockNumber
make_state_page(Relation rel, NaradLogTopic *topic, GroupPlace *place,
				int partition, BlockNumber map, BlockNumber last_map)
{
	PGAlignedBlock images[2];
	NaradPageUpdate updates[2];
	BlockNumber block;

	/* The chain may be short by several pages. */
	while (map == 0)
	{
		uint32		first;

		last_map = append_map_page(rel, topic, place, last_map);
		NaradPageCopy(rel, last_map, images[0].data);
		first = MapContents(images[0].data)->first_partition;
		if (partition < first + NARAD_MAP_BLOCKS)
			map = last_map;
	}
	block = NaradMetaPageAllocate(rel, topic);
	begin_update(rel, map, &updates[0], images[0].data);
	MapContents(images[0].data)->blocks[partition % NARAD_MAP_BLOCKS] = block;
	NaradPageUpdateInit(rel, block, &updates[1], images[1].data);
	NaradMetaImageInit(images[1].data, topic->topic_id, NARAD_PAGE_STATE,
					   partition);
	end_updates(rel, updates, 2);
	return block;
}

/*
 * NaradStateBlock
 *
 * First state page of a group's partition, or InvalidBlockNumber: there is
 * none (and not create), or the group of that id is gone.  To create, locks
 * as NaradGroupMake; else any, and info need not be attached.
 */
BlockNumber
NaradStateBlock(Relation rel, NaradRelInfo *info, NaradGroupId group_id,
				int partition, bool create)
{
	NaradMetaData meta;
	GroupPlace	place;
	BlockNumber map;
	BlockNumber last_map;
	BlockNumber block;

	if (!NaradMetaRead(rel, &meta) ||
		!look_up_state(rel, &meta, group_id, partition, &place, &map,
					   &last_map, &block))
		return InvalidBlockNumber;

	if (block == 0 && create)
	{
		NaradLogTopic *topic = info->shared;

		begin_change(rel, info, &meta);
		if (!look_up_state(rel, &meta, group_id, partition, &place, &map,
						   &last_map, &block))
			block = InvalidBlockNumber;
		else if (block == 0)
			block = make_state_page(rel, topic, &place, partition, map,
									last_map);
		end_change(rel, topic);
		return block;
	}

	if (block == 0 || block >= RelationGetNumberOfBlocks(rel))
		return InvalidBlockNumber;
	return block;
}
