/*
 * test_receipt.c
 *		I4: a receipt has one text, and nothing else is a receipt.
 */
/* LINK: src/queue/queue_receipt.c */
#include "postgres.h"

#include <time.h>

#include "queue/queue_receipt.h"
#include "unit.h"

/* The system's, replaced: the first nonce of a batch is 0, and not given. */
bool
pg_strong_random(void *buf, size_t len)
{
	uint64	   *words = buf;

	for (size_t i = 0; i < len / sizeof(uint64); i++)
		words[i] = next_random();
	words[len / sizeof(uint64) - 1] = 0;
	return true;
}

static NaradReceipt
random_receipt(void)
{
	NaradReceipt receipt;

	receipt.topic_id = next_random() | 1;
	receipt.group_id = (NaradGroupId) next_random() | 1;
	receipt.partition = next_random() % NARAD_MAX_PARTITIONS;
	receipt.offset = next_random() >> 2;
	receipt.nonce = next_random() | 1;
	return receipt;
}

static bool
same(const NaradReceipt *a, const NaradReceipt *b)
{
	return a->topic_id == b->topic_id && a->group_id == b->group_id &&
		a->partition == b->partition && a->offset == b->offset &&
		a->nonce == b->nonce;
}

static void
test_round_trip(void)
{
	bool		good = true;

	for (int i = 0; i < 100000; i++)
	{
		NaradReceipt receipt = random_receipt();
		NaradReceipt parsed;
		char text[	NARAD_RECEIPT_LEN + 1];

		NaradReceiptFormat(&receipt, text);
		good = good && strlen(text) == NARAD_RECEIPT_LEN &&
			NaradReceiptParse(text, NARAD_RECEIPT_LEN, &parsed) &&
			same(&receipt, &parsed);
	}
	ok(good, "what is formatted is parsed");
}

static void
test_known(void)
{
	NaradReceipt receipt = {0x0102030405060708, 1, 2, 3, 0xff};
	NaradReceipt parsed;
	char text[	NARAD_RECEIPT_LEN + 1];

	NaradReceiptFormat(&receipt, text);
	ok(strcmp(text, "AQECAwQFBgcIAAAAAQAAAAIAAAAAAAAAAwAAAAAAAAD_") == 0,
	   "the text of a known receipt");
	ok(!NaradReceiptParse(text, NARAD_RECEIPT_LEN - 1, &parsed), "too short");
	ok(!NaradReceiptParse("", 0, &parsed), "empty");
	ok(!NaradReceiptParse("AQECAwQFBgcIAAAAAQAAAAIAAAAAAAAAAwAAAAAAAAD_A", 45, &parsed),
	   "too long");
	ok(!NaradReceiptParse("AgECAwQFBgcIAAAAAQAAAAIAAAAAAAAAAwAAAAAAAAD_", 44, &parsed),
	   "another version");
	ok(!NaradReceiptParse("AQECAwQFBgcIAAAAAQAAAAIAAAAAAAAAAwAAAAAAAAD/", 44, &parsed),
	   "the other alphabet");
	ok(!NaradReceiptParse("AQECAwQFBgcIAAAAAQAAAAIAAAAAAAAAAwAAAAAAAAAA", 44, &parsed),
	   "no nonce");
	ok(!NaradReceiptParse("AQECAwQFBgcIAAAAAQABAAAAAAAAAAAAAwAAAAAAAAD_", 44, &parsed),
	   "partition out of range");
}

/* Each single character changed: another receipt or none, never the same. */
static void
test_mutations(void)
{
	bool		good = true;

	for (int i = 0; i < 2000; i++)
	{
		NaradReceipt receipt = random_receipt();
		NaradReceipt parsed;
		char text[	NARAD_RECEIPT_LEN + 1];
		char		again[NARAD_RECEIPT_LEN + 1];

		NaradReceiptFormat(&receipt, text);
		for (int at = 0; at < NARAD_RECEIPT_LEN; at++)
		{
			char		kept = text[at];

			text[		at] = (char) next_random();

			if (text[at] != kept &&
				NaradReceiptParse(text, NARAD_RECEIPT_LEN, &parsed))
			{
				NaradReceiptFormat(&parsed, again);
				good = good && !same(&receipt, &parsed) &&
					memcmp(text, again, NARAD_RECEIPT_LEN) == 0;
			}
			text[		at] = kept;
		}
	}
	ok(good, "a changed receipt is another one, or none");
}

static void
test_garbage(void)
{
	int			nparsed = 0;

	for (int i = 0; i < 100000; i++)
	{
		char text[	NARAD_RECEIPT_LEN];
		NaradReceipt parsed;

		for (int at = 0; at < NARAD_RECEIPT_LEN; at++)
			text[		at] = (char) next_random();

		nparsed += NaradReceiptParse(text, NARAD_RECEIPT_LEN, &parsed);
	}
	ok(nparsed == 0, "random bytes are no receipts");
}

static void
test_nonces(void)
{
	bool		good = true;
	uint64		last = 0;

	for (int i = 0; i < 1000; i++)
	{
		uint64		nonce = NaradNonce();

		good = good && nonce != 0 && nonce != last;
		last = nonce;
	}
	ok(good, "nonces are not 0, and each is given once");
}

int
main(void)
{
	seed = (uint64) time(NULL) * 2654435761u | 1;
	printf("# seed %llu\n", (unsigned long long) seed);
	test_round_trip();
	test_known();
	test_mutations();
	test_garbage();
	test_nonces();
	return done();
}
