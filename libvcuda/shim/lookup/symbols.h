/* See symbols.c. Libraries are in the order in which they were loaded. */
#ifndef SHIM_SYMBOLS_H
#define SHIM_SYMBOLS_H

#include <link.h>
#include <stdint.h>

/* `name` as defined by the first library after the one that `address` lies in; NULL: by none. */
void *symbols_next(const void *address, const char *name);
/* 1: `other` lies in a library that was loaded after the one that `address` lies in. */
int symbols_behind(const void *address, const void *other);

/* Not strcmp: a sanitizer's is the sanitizer's own, and to find what lies behind it we are asked before it works. */
static inline int symbols_same(const char *a, const char *b)
{
    while (*a && *a == *b) {
        a++;
        b++;
    }
    return *a == *b;
}

#endif
