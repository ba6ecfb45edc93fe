/*-------------------------------------------------------------------------
 *
 * log_meta.h
 *	  The pages that are not data: metapage, group directory, state maps,
 *	  state pages; and the one way in which they are changed.
 *
 * Copyright (c) 2026, the Narad authors
 *
 *-------------------------------------------------------------------------
 */
#ifndef LOG_META_H
#define LOG_META_H

#include "base/base_compat.h"
#include "log/log_topic.h"
#include "storage/bufmgr.h"

/* False if the file is empty; errors XX001 if block 0 is no metapage. */
extern bool NaradMetaRead(Relation rel, NaradMetaData *meta);

/*
 * Writes block 0 of an empty file (under the relation extension lock; if
 * somebody else was first, nothing).  0 partitions or pages: defaults.
 */
extern void NaradMetaCreate(Relation rel, int npartitions, uint32 segment_pages);

/* ERROR 22023 unless there can be so many partitions. */
extern void NaradMetaCheckPartitions(int npartitions, uint32 segment_pages);

/* Lets `change` edit the metapage's contents under its lock; WAL-logged. */
typedef void (*NaradMetaChange) (NaradMetaData *meta, void *arg);
extern void NaradMetaModify(Relation rel, NaradMetaChange change, void *arg);

/* palloc'ed array of npartitions; zeros when there are none. */
extern NaradOffset *NaradMetaStartOffsets(Relation rel, const NaradMetaData *meta);

/*
 * Changes up to NARAD_UPDATE_MAX_PAGES pages, exclusively locked by the
 * caller, to the images given, in one WAL record that holds the changed part
 * of each (all of it for pages with init: those never had content).  An image
 * is a whole page with honest pd_lower and pd_upper.  Enters a critical
 * section.  Does nothing for images equal to their page.
 */
#define NARAD_UPDATE_MAX_PAGES 32
typedef struct NaradPageUpdate
{
	Buffer		buffer;
	char	   *image;			/* BLCKSZ bytes, MAXALIGNed */
	bool		init;
} NaradPageUpdate;
extern XLogRecPtr NaradPagesUpdate(Relation rel, NaradPageUpdate *updates,
								   int nupdates);

/*
 * The same for bytes that are added at a locked page's pd_lower; the caller has
 * seen that there is room.
 */
extern XLogRecPtr NaradPageAppend(Relation rel, Buffer buffer,
								  const char *bytes, Size len);

/* Locks a page that is made anew, whatever was there; image is filled after. */
extern void NaradPageUpdateInit(Relation rel, BlockNumber block,
								NaradPageUpdate *update, char *image);

/* Metapage contents for a new topic with a fresh topic id. */
extern void NaradMetaFill(NaradMetaData *meta, int npartitions,
						  uint32 segment_pages);

/* A metapage image with these contents. */
extern void NaradMetaImage(char *image, const NaradMetaData *meta);

/* An image with special head of a kind, empty content. */
extern void NaradMetaImageInit(char *image, NaradTopicId topic_id, uint16 kind,
							   uint32 partition);

/* A copied page's special head; NULL if it is new, or can have none. */
extern NaradPageSpecialHead *NaradPageHead(char *page);

/* Reads a page by the buffer manager, under its share lock, into copy. */
extern void NaradPageCopy(Relation rel, BlockNumber block, char *copy);

/*
 * The same, but false instead of an error if the page on disk is damaged
 * (header or checksum).  Uses no buffer for pages that are not cached.
 */
extern bool NaradPageCopyChecked(Relation rel, BlockNumber block, char *copy);

/*
 * A walk along a chain of pages, each of which names the next: zeros when it
 * begins, but for the root, if one of the kind has the first link.
 */
typedef struct NaradChainWalk
{
	BlockNumber root;			/* no page of the chain; or 0 */
	BlockNumber met;			/* one that was met, or 0 */
	uint64		npages;
} NaradChainWalk;

/* The walk comes to a page: true if the link must be wrong. */
extern bool NaradChainIsWrong(NaradChainWalk *walk, BlockNumber block);

/*
 * The first of the existing blocks [from, to) with a page of the topic that is
 * not of the directory; InvalidBlockNumber if there is none.
 */
extern BlockNumber NaradFindUsedBlock(Relation rel, NaradTopicId topic_id,
									  BlockNumber from, BlockNumber to);

/*
 * TRUNCATE.  Writes to the new, empty, just created file of rel (which still
 * points to the old one) what outlives the records: a metapage with a new
 * topic id, each partition's next offset, the groups with their pause state.
 * Nothing if the old file is empty.  The caller holds AccessExclusiveLock and
 * has called RelationCreateStorage (registering the delete) for the new file.
 */
extern void NaradMetaCarryOver(Relation rel, const RelFileLocator *newlocator,
							   char persistence);

/*
 * The same for a file truncated in place (created in this transaction):
 * collects, truncates rel to nothing, writes.
 */
extern void NaradMetaCarryOverInPlace(Relation rel);

/* Group directory.  All but lookup and list take groups_lock and write. */
extern bool NaradGroupFind(Relation rel, const char *name, NaradGroupEntry *entry);

/* palloc'ed array of live groups. */
extern NaradGroupEntry *NaradGroupList(Relation rel, int *ngroups);

/*
 * The existing one if there is one: *created tells.  Not live: nobody finds
 * it by name until NaradGroupMakeLive, and without that it never was; its
 * state pages can be made already.  One maker at a time, which is up to the
 * caller.
 */
extern void NaradGroupMake(Relation rel, NaradRelInfo *info, const char *name,
						   bool live, NaradGroupEntry *entry, bool *created);
extern void NaradGroupMakeLive(Relation rel, NaradRelInfo *info,
							   NaradGroupEntry *entry);

/* False if there is none.  Raises the generation. */
extern bool NaradGroupRemove(Relation rel, NaradRelInfo *info, const char *name,
							 NaradGroupEntry *entry);
extern bool NaradGroupSetPaused(Relation rel, NaradRelInfo *info,
								const char *name, bool paused);

/* Raises a live group's generation; false if there is none of that id. */
extern bool NaradGroupRaise(Relation rel, NaradRelInfo *info,
							NaradGroupId group_id);

/*
 * First state page of a group's partition, or InvalidBlockNumber if none (and
 * not create), or if the group of that id is gone.  A page never used
 * is empty; otherwise it may still hold what an earlier, dropped group left
 * there.
 */
extern BlockNumber NaradStateBlock(Relation rel, NaradRelInfo *info,
								   NaradGroupId group_id, int partition,
								   bool create);

#endif							/* LOG_META_H */
