/*
 * The headers of a newer server were configured with a newer C library: what
 * that declares and this one may not.
 */
#include <stddef.h>

extern size_t strlcpy(char *dst, const char *src, size_t size);
extern size_t strlcat(char *dst, const char *src, size_t size);
