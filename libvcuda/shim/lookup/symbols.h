/* See symbols.c. Libraries are in the order in which they were loaded. */
#ifndef SHIM_SYMBOLS_H
#define SHIM_SYMBOLS_H

#include <link.h>
#include <stdint.h>

/* `name` as defined by the first library after the one that `address` lies in; NULL: by none. */
void *symbols_next(const void *address, const char *name);
/* 1: `other` lies in a library that was loaded after the one that `address` lies in. */
int symbols_behind(const void *address, const void *other);
/* 1: the library of `handle`, a real one, was loaded into another link namespace than the program's (dlmopen). */
int symbols_elsewhere(void *handle);
/* Return the soname of a library, "" if it has none; by a real handle, or by an address in it. */
const char *symbols_soname(void *handle);
const char *symbols_soname_at(const void *address, const char **path); /* `*path`: the file it was loaded from */

/* Not strcmp: a sanitizer's is the sanitizer's own, and to find what lies behind it we are asked before it works. */
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
