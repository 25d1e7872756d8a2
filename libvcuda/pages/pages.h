/* Functions that the pages library shares with libvcuda beyond the public ABI. */
#ifndef VCUDA_PAGES_INTERNAL_H
#define VCUDA_PAGES_INTERNAL_H

#include "vcuda_pages.h"

#include <time.h>

#define VCUDA_OWNER_FREE 0ull
/* In `owner`: the slot is being cleared by the process named; no pid is so great. */
#define VCUDA_OWNER_CLEARER (1ull << 31)

static inline int pages_is_process(uint64_t owner)
{
    return owner != VCUDA_OWNER_FREE && !(owner & VCUDA_OWNER_CLEARER);
}

uint64_t pages_clock(clockid_t clock);
/* Nanoseconds by which CLOCK_MONOTONIC or CLOCK_BOOTTIME is ahead of the machine's in the caller's time namespace; 0
 * outside of one. */
int64_t pages_clock_ahead(clockid_t clock);
/* Inode of the caller's pid namespace; 0 where /proc does not say. */
uint64_t pages_pidns(void);
/* Start time of a process of the caller's pid namespace, in ticks of the machine's clock; 0 where there is none such, or it is dead (a zombie);
 * PAGES_NOT_KNOWN where that cannot be found out (no file descriptor is left, say). */
#define PAGES_NOT_KNOWN UINT64_MAX
uint64_t pages_start_time(uint32_t pid);
/* Take a slot for the calling process. Returns the index, or -ENOSPC. */
int pages_slot_take(struct vcuda_usage *page);

#endif
