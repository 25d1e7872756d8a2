/* What the loaded library keeps to itself: for measurements that compare it with the bare driver within one process. */
#ifndef TESTS_INSIDE_H
#define TESTS_INSIDE_H

/* Return the address of a symbol of the libvcuda.so in this process, found in its file's symbol table; NULL where the
 * library is not loaded, or stripped. */
void *inside_find(const char *symbol);

#endif
