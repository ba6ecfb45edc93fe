/*
 * test_key.c
 *		Order by key against a naive model: of each key one message is out at a
 *		time, the lowest offset first, each once, whatever becomes of the others,
 *		with more in line than are remembered, and with and without memory.
 */
/* LINK: src/queue/queue_key.c src/queue/queue_set.c src/queue/queue_lease.c src/queue/queue_due.c */
#include "postgres.h"

#include "base/base_memory.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "queue/queue_shard.h"
#include "unit.h"

#define MAX_OFFSETS 60000
#define MAX_KEYS	64
#define NO_KEY		(-1)
#define REFILL		64

typedef enum ModelState
{
	UNSEEN,
	KNOWN,						/* scanned: in line, or available */
	OUT,						/* claimed */
	SETTLED
} ModelState;

int			MyProcPid = 1;

static int	nallocated = 0;
static bool memory_fails = false;
static int	nfailing = 0;		/* of ten allocations */
static uint64 navailable = 0;	/* what waiters were told */

static NaradShard shard;
static int	noffsets;
static int	nkeys;
static int	key_of[MAX_OFFSETS];
static ModelState state_of[MAX_OFFSETS];
static int	outs[MAX_OFFSETS];	/* those that are out, */
static int	place_of[MAX_OFFSETS];	/* ... and where each is there */
static int	nout;
static int	nsettled;
static int	nwrong;

static bool
out_of_memory(void)
{
	return memory_fails && next_random() % 10 < (uint64) nfailing;
}

void *
NaradAlloc(Size size)
{
	if (out_of_memory())
		return NULL;
	nallocated++;
	return calloc(1, size);
}

void
NaradFree(void *ptr)
{
	if (ptr != NULL)
		nallocated--;
	free(ptr);
}

bool
NaradMemoryIsLow(void)
{
	return out_of_memory();
}

void
NaradShardMadeAvailable(NaradShard *given, uint64 n, bool chain)
{
	navailable += n;
}

void
NaradWaitServeOwners(NaradGroup *group, int partition, const int *pids,
					 int npids)
{
}

static uint64
hash_of(int key)
{
	return (uint64) key * UINT64CONST(0x9e3779b97f4a7c15) + 1;
}

static void
check(bool right, const char *what, int offset)
{
	if (!right && nwrong++ < 5)
		printf("# %s: offset %d\n", what, offset);
}

/* ----------------------------------------------------------- the consumer */

/* The lowest of a key that is scanned and not settled, or -1. */
static int	lowest[MAX_KEYS];

static int
lowest_of(int key)
{
	while (lowest[key] < noffsets &&
		   (key_of[lowest[key]] != key || state_of[lowest[key]] == SETTLED))
		lowest[key]++;
	return lowest[key] < (int) shard.scan_pos ? lowest[key] : -1;
}

static void
put_out(int offset)
{
	state_of[offset] = OUT;
	place_of[offset] = nout;
	outs[nout++] = offset;
}

static void
call_in(int offset, ModelState state)
{
	int			last = outs[--nout];

	outs[place_of[offset]] = last;
	place_of[last] = place_of[offset];
	state_of[offset] = state;
}

static void
take(int offset)
{
	int			key = key_of[offset];

	check(state_of[offset] == KNOWN, "handed out twice", offset);
	if (key != NO_KEY)
		check(lowest_of(key) == offset, "handed out before its turn", offset);
	put_out(offset);
}

/*
 * Claims an offset: a lease of its own, or the one that came back.  In no heap,
 * which is not what is tested.
 */
static NaradLease *
claim(int offset)
{
	NaradLease *lease = NaradLeaseFind(&shard.leases, offset);

	if (lease == NULL)
		lease = NaradLeaseInsert(&shard.leases, offset);
	if (lease == NULL)
		return NULL;
	NaradLeaseSetState(&shard.leases, lease, NARAD_LEASE_PINNED);
	NaradKeyTaken(&shard, offset);
	return lease;
}

static void
unclaim(NaradLease *lease, bool came_back)
{
	NaradOffset offset = lease->offset;

	if (came_back)
		NaradLeaseSetState(&shard.leases, lease, NARAD_LEASE_RETURNED);
	else
	{
		NaradLeaseRemove(&shard.leases, lease);
		NaradKeyGiveBack(&shard, offset);
	}
}

/* Reads the next offset.  False at the end. */
static bool
scan(void)
{
	int			offset = (int) shard.scan_pos;
	bool		came_back;
	NaradLease *lease;
	NaradKeyPlace place = NARAD_KEY_FREE;

	if (offset >= noffsets)
		return false;
	came_back = NaradLeaseFind(&shard.leases, offset) != NULL;
	lease = claim(offset);
	if (lease == NULL)
		return true;
	if (key_of[offset] != NO_KEY)
		place = NaradKeyEnter(&shard, hash_of(key_of[offset]), offset);
	if (place == NARAD_KEY_NO_MEMORY)
	{
		unclaim(lease, came_back);
		return true;
	}
	shard.scan_pos++;
	state_of[offset] = KNOWN;
	if (place == NARAD_KEY_FREE)
		take(offset);
	else
		unclaim(lease, came_back);
	return true;
}

/* Claims what has the turn.  False if nothing has. */
static bool
take_ready(void)
{
	NaradOffset offset = NaradKeyNextReady(&shard);

	if (offset == NARAD_INVALID_OFFSET)
		return false;
	if (claim(offset) != NULL)
		take(offset);
	return true;
}

/* One that came back, and whose turn it is.  False if there is none among the
 * first. */
static bool
take_returned(uint32 most)
{
	uint32		left = Min(most, shard.leases.nstate[NARAD_LEASE_RETURNED]);

	for (; left > 0; left--)
	{
		NaradLease *lease = NaradLeaseFirstReturned(&shard.leases);

		if (lease->offset < shard.scan_pos &&
			NaradKeyMayTake(&shard, lease->offset))
		{
			(void) claim(lease->offset);
			take(lease->offset);
			return true;
		}
		NaradLeaseSetState(&shard.leases, lease, NARAD_LEASE_RETURNED);
	}
	return false;
}

/* Reads some of what is not remembered.  False if none is wanted. */
static bool
refill(void)
{
	NaradOffset offsets[REFILL];
	uint64		hash;
	int			n = NaradKeyRefillNext(&shard, &hash, offsets, REFILL);

	for (int i = 0; i < n; i++)
	{
		int			key = key_of[offsets[i]];

		if (!NaradKeyRefill(&shard, hash, offsets[i],
							key != NO_KEY && hash_of(key) == hash))
			break;
	}
	return n > 0;
}

/* A random one that is out, or -1. */
static int
pick_out(void)
{
	return nout > 0 ? outs[next_random() % nout] : -1;
}

static void
settle(int offset)
{
	NaradLease *lease = NaradLeaseFind(&shard.leases, offset);

	if (lease != NULL)
		NaradLeaseRemove(&shard.leases, lease);
	if (state_of[offset] == OUT)
		call_in(offset, SETTLED);
	state_of[offset] = SETTLED;
	nsettled++;
	NaradKeyRelease(&shard, offset);
}

/* One of those that came back goes another way, whoever's turn it is. */
static void
settle_returned(void)
{
	NaradLease *lease = NaradLeaseFirstReturned(&shard.leases);

	if (lease == NULL)
		return;
	if (lease->offset < shard.scan_pos)
		settle((int) lease->offset);
	else
		NaradLeaseSetState(&shard.leases, lease, NARAD_LEASE_RETURNED);
}

/* A run of what nobody has claimed turns out dead. */
static void
settle_run(void)
{
	int			first = next_random() % noffsets;
	int			last = first;

	if (first >= (int) shard.scan_pos || state_of[first] != KNOWN ||
		NaradLeaseFind(&shard.leases, first) != NULL)
		return;
	while (last + 1 < (int) shard.scan_pos && last < first + 10 &&
		   state_of[last + 1] == KNOWN &&
		   NaradLeaseFind(&shard.leases, last + 1) == NULL)
		last++;
	for (int i = first; i <= last; i++)
		state_of[i] = SETTLED;
	nsettled += last - first + 1;
	NaradKeyReleaseRange(&shard, first, last);
}

/* A transaction acks what is out and takes the next of the key, then thinks
 * better of it. */
static void
pass_and_undo(int offset)
{
	int			key = key_of[offset];
	NaradOffset next;
	NaradLease *lease = NaradLeaseFind(&shard.leases, offset);

	lease->is_acked = true;
	lease->pinner = MyProcPid;
	NaradKeyPass(&shard, offset);
	next = NaradKeyNextOwn(&shard, 0);
	if (key == NO_KEY)
		check(next == NARAD_INVALID_OFFSET, "passed without a key", offset);
	if (next != NARAD_INVALID_OFFSET)
	{
		check(key_of[next] == key && (int) next > offset &&
			  state_of[next] == KNOWN, "the next of another", (int) next);
		for (int i = offset + 1; i < (int) next; i++)
			check(key_of[i] != key || state_of[i] == SETTLED,
				  "one was passed over", i);
		check(NaradKeyMayTake(&shard, next), "its own has not the turn",
			  (int) next);
		MyProcPid = 2;
		check(!NaradKeyMayTake(&shard, next), "another may take it, too",
			  (int) next);
		MyProcPid = 1;
		lease = claim((int) next);
		if (lease != NULL)
			unclaim(lease, false);
	}
	NaradKeyUnpass(&shard, offset);
	NaradLeaseFind(&shard.leases, offset)->is_acked = false;
	check(NaradKeyNextOwn(&shard, 0) == NARAD_INVALID_OFFSET, "still passed",
		  offset);
}

/* Whose turn it is, is known to all. */
static void
check_turns(void)
{
	for (int key = 0; key < nkeys; key++)
	{
		int			first = lowest_of(key);

		if (first >= 0 && NaradKeyIsKnown(&shard, first))
			check(NaradKeyHasTurn(&shard, first), "the lowest has no turn",
				  first);
	}
}

static void
one_step(void)
{
	int			offset;

	switch (next_random() % 12)
	{
		case 0:
		case 1:
		case 2:
			(void) scan();
			break;
		case 3:
		case 4:
			(void) take_ready();
			break;
		case 5:
			(void) take_returned(64);
			break;
		case 6:
			(void) refill();
			break;
		case 7:
			if (next_random() % 8 == 0)
				settle_run();
			break;
		case 8:
			if (next_random() % 8 == 0)
				settle_returned();
			break;
		default:
			offset = pick_out();
			if (offset < 0)
				break;
			switch (next_random() % 8)
			{
				case 0:
					call_in(offset, KNOWN);
					unclaim(NaradLeaseFind(&shard.leases, offset), true);
					break;
				case 1:
					if (key_of[offset] == NO_KEY)
						break;
					call_in(offset, KNOWN);
					unclaim(NaradLeaseFind(&shard.leases, offset), false);
					break;
				case 2:
					pass_and_undo(offset);
					break;
				default:
					settle(offset);
					break;
			}
			break;
	}
}

/* Everything comes, each message once, however it went before. */
static void
drain(void)
{
	int			offset;

	memory_fails = false;
	for (;;)
	{
		if ((offset = pick_out()) >= 0)
			settle(offset);
		else if (!take_ready() && !take_returned(PG_UINT32_MAX) && !refill() && !scan())
			break;
	}
}

/* How many of ten messages came back before, and have an entry. */
static void
run(int n, int keys, int came_back, int failing, int steps, const char *name)
{
	noffsets = n;
	nkeys = keys;
	nfailing = failing;
	memory_fails = false;
	nsettled = nwrong = nout = 0;
	memset(&shard, 0, sizeof(shard));
	memset(state_of, 0, sizeof(state_of));
	memset(lowest, 0, sizeof(lowest));
	NaradLeaseTableInit(&shard.leases);
	NaradKeyTableInit(&shard.keys);
	NaradSetInit(&shard.pending, false);
	NaradDueInit(&shard.due);
	NaradKeySetOrdered(&shard, true);
	for (int i = 0; i < n; i++)
	{
		NaradLease *lease;

		key_of[i] = next_random() % 10 == 0 ? NO_KEY :
			(int) (next_random() % keys);
		if (next_random() % 10 >= (uint64) came_back)
			continue;
		lease = NaradLeaseInsert(&shard.leases, i);
		NaradLeaseSetState(&shard.leases, lease, NARAD_LEASE_RETURNED);
	}
	memory_fails = failing > 0;
	for (int i = 0; i < steps; i++)
	{
		one_step();
		if (i % 1024 == 0)
			check_turns();
	}
	drain();
	if (nsettled != n)
		printf("# %d of %d were settled\n", nsettled, n);
	ok(nwrong == 0 && nsettled == n, name);
	ok(shard.keys.nodes.nentries == 0 && shard.keys.keys.nentries == 0 &&
	   shard.keys.ready_root == NULL && shard.keys.nfirst == 0 &&
	   shard.keys.later.nmembers == 0, "and nothing is left in line");
	NaradKeyTableClear(&shard.keys);
	NaradLeaseTableClear(&shard.leases);
	ok(nallocated == 0, "nor in memory");
	nallocated = 0;
}

/* What is behind the nodes of its key has not the turn, though nothing else is
 * known of it; and once it is settled it does not come again. */
static void
behind_the_nodes(void)
{
	int			n = 20000;
	NaradLease *lease;

	noffsets = n;
	nkeys = 1;
	memory_fails = false;
	memset(&shard, 0, sizeof(shard));
	memset(state_of, 0, sizeof(state_of));
	memset(key_of, 0, sizeof(key_of));
	memset(lowest, 0, sizeof(lowest));
	nwrong = nsettled = nout = 0;
	NaradLeaseTableInit(&shard.leases);
	NaradKeyTableInit(&shard.keys);
	NaradSetInit(&shard.pending, false);
	NaradDueInit(&shard.due);
	NaradKeySetOrdered(&shard, true);
	for (int i = n - 2; i < n; i++)
	{
		lease = NaradLeaseInsert(&shard.leases, i);
		NaradLeaseSetState(&shard.leases, lease, NARAD_LEASE_RETURNED);
	}
	while (scan())
		 /* all are in line, but for the first, which is out */ ;
	ok(state_of[0] == OUT && shard.keys.later.nmembers > 0,
	   "more in line than are remembered");
	ok(!NaradKeyIsKnown(&shard, n - 1) && !NaradKeyHasTurn(&shard, n - 1) &&
	   !NaradKeyMayTake(&shard, n - 1),
	   "one behind them has not the turn");
	ok(!take_returned(PG_UINT32_MAX), "and is not taken, though it came back");
	settle(n - 2);
	navailable = 0;
	drain();
	ok(nwrong == 0 && nsettled == n, "all come, in order, but what was settled");
	ok(navailable > 0, "and those who wait are told");
	ok(shard.keys.keys.nentries == 0, "the key is forgotten");
	NaradKeyTableClear(&shard.keys);
	NaradLeaseTableClear(&shard.leases);
	ok(nallocated == 0, "and all memory is freed");
	nallocated = 0;
}

int
main(int argc, char **argv)
{
	seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 20260101;
	printf("# seed " UINT64_FORMAT "\n", seed);
	run(1000, 1, 0, 0, 5000, "one key");
	run(2000, 10, 0, 0, 10000, "ten keys");
	run(2000, 60, 2, 0, 10000, "many keys, some came back before");
	run(2000, 10, 2, 2, 20000, "memory is short");
	run(50000, 5, 0, 0, 60000, "more in line than are remembered");
	run(50000, 3, 1, 1, 60000, "the same, with all that makes it hard");
	behind_the_nodes();
	return done();
}
