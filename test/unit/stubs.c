/*
 * stubs.c
 *		What a source of narad needs from the server when it is linked alone.
 *
 * Linked into every unit test.  Weak, so that a test may bring its own.  An
 * error ends the test program: a test of a refusal defines errfinish() itself.
 */
#include "postgres.h"

#include <signal.h>

#include "lib/pairingheap.h"

#define WEAK __attribute__((weak))

WEAK void
ExceptionalCondition(const char *conditionName, const char *errorType,
					 const char *fileName, int lineNumber)
{
	fprintf(stderr, "not ok - assertion failed: %s, %s:%d\n",
			conditionName, fileName, lineNumber);
	abort();
}

WEAK bool
errstart(int elevel, const char *domain)
{
	return elevel >= ERROR;
}

WEAK bool
errstart_cold(int elevel, const char *domain)
{
	return errstart(elevel, domain);
}

WEAK void
errfinish(const char *filename, int lineno, const char *funcname)
{
	fprintf(stderr, "not ok - error raised at %s:%d\n", filename, lineno);
	abort();
}

WEAK int
errcode(int sqlerrcode)
{
	return 0;
}

WEAK int
errmsg(const char *fmt,...)
{
	return 0;
}

WEAK int
errmsg_internal(const char *fmt,...)
{
	return 0;
}

WEAK int
errdetail(const char *fmt,...)
{
	return 0;
}

WEAK int
errhint(const char *fmt,...)
{
	return 0;
}

WEAK void
ProcessInterrupts(void)
{
}

WEAK volatile sig_atomic_t InterruptPending = false;

/*
 * The server's pairing heap, replaced by a sorted list: what is tested is its
 * use.
 */
WEAK void
pairingheap_add(pairingheap *heap, pairingheap_node *node)
{
	pairingheap_node **link = &heap->ph_root;

	while (*link != NULL && heap->ph_compare(*link, node, NULL) >= 0)
		link = &(*link)->next_sibling;
	node->next_sibling = *link;
	*link = node;
}

WEAK void
pairingheap_remove(pairingheap *heap, pairingheap_node *node)
{
	pairingheap_node **link = &heap->ph_root;

	while (*link != node)
		link = &(*link)->next_sibling;
	*link = node->next_sibling;
}
