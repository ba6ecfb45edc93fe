/*
 * unit.h
 *		The few lines a unit test needs: ok(), done() and random numbers.
 */
#ifndef UNIT_H
#define UNIT_H

static int	unit_count = 0;
static int	unit_failed = 0;

/* One test: prints "ok N - name" or "not ok N - name". */
#define ok(cond, name) \
	unit_ok((cond), (name), __FILE__, __LINE__)

static inline bool
unit_ok(bool cond, const char *name, const char *file, int line)
{
	printf("%sok %d - %s\n", cond ? "" : "not ", ++unit_count, name);
	if (!cond)
	{
		printf("# at %s:%d\n", file, line);
		unit_failed++;
	}
	fflush(stdout);
	return cond;
}

/* Random numbers that a seed makes the same again; any seed but 0. */
static uint64 seed = 88172645463325252;

static inline uint64
next_random(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return seed;
}

/* main() ends with "return done();". */
static inline int
done(void)
{
	printf("1..%d\n", unit_count);
	return unit_failed == 0 && unit_count > 0 ? 0 : 1;
}

#endif							/* UNIT_H */
