/* See symbols.c. Libraries are in the order in which they were loaded. */
#ifndef SHIM_SYMBOLS_H
#define SHIM_SYMBOLS_H

#include <link.h>
#include <stdint.h>

/* Return `name` as defined by the first library after the one that contains `address`; NULL: none. */
void *symbols_next(const void *address, const char *name);
/* Return 1 if the library of `other` was loaded after the one that contains `address`. */
int symbols_behind(const void *address, const void *other);
/* Return 1 if the library of `handle`, a real one, was loaded into a link namespace other than the program's
 * (dlmopen). */
int symbols_elsewhere(void *handle);
/* Return the soname of a library, "" if it has none; by a real handle, or by an address in it. */
const char *symbols_soname(void *handle);
const char *symbols_soname_at(const void *address, const char **path); /* `*path`: the file it was loaded from */

/* Not strcmp: a sanitizer replaces it, and calls our lookup for the original before its own set-up is complete. */
static inline int symbols_same(const char *a, const char *b)
{
    while (*a && *a == *b) {
        a++;
        b++;
    }
    return *a == *b;
}

static inline int symbols_begins(const char *name, const char *start)
{
    while (*start && *name == *start) {
        name++;
        start++;
    }
    return !*start;
}

#endif
