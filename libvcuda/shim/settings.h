/* Limits from environment variables: see settings.c. */
#ifndef SHIM_SETTINGS_H
#define SHIM_SETTINGS_H

#include "vcuda_pages.h"

struct setting {
    uint64_t memory_bytes; /* VCUDA_NO_MEMORY_LIMIT: none */
    uint32_t core_request, core_limit;
};

enum { SETTINGS_NONE, SETTINGS_FOUND, SETTINGS_UNREADABLE };
/* Read the settings; index i is the process's i-th visible GPU. If the result is UNREADABLE, `complaint` names the
 * variable and a valid value, in one line. */
int settings_read(struct setting settings[VCUDA_MAX_GPUS], char *complaint, size_t room);

#endif
