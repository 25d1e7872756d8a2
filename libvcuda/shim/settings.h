/* Limits by the environment's names: see settings.c. */
#ifndef SHIM_SETTINGS_H
#define SHIM_SETTINGS_H

#include "vcuda_pages.h"

struct setting {
    uint64_t memory_bytes; /* VCUDA_NO_MEMORY_LIMIT: none */
    uint32_t core_request, core_limit;
};

enum { SETTINGS_NONE, SETTINGS_FOUND, SETTINGS_UNREADABLE };
/* Index i: the process's i-th visible GPU. UNREADABLE: `complaint` says which and what would be right, in a line. */
int settings_read(struct setting settings[VCUDA_MAX_GPUS], char *complaint, size_t room);

#endif
