/* Making and mapping page files. */
#ifndef VCUDA_PAGES_FILE_H
#define VCUDA_PAGES_FILE_H

#include <stddef.h>
#include <sys/types.h>

/* Put a file with these contents at `path`, whole or not at all. 0, or -errno (-EEXIST: something is there already). */
int page_file_make(const char *path, const void *contents, size_t size, mode_t mode);
/* Map a file that has exactly `size` bytes. 0, or -errno (-EBADMSG: another size, or no plain file). */
int page_file_map(const char *path, size_t size, int writable, void **map);

#endif
