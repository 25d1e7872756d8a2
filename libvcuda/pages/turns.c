/* The turns page: written by the arbiter, read by libvcuda. */
#include "pages.h"

#include "file.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static int turns_valid(const struct vcuda_turns *page)
{
    return page->magic == VCUDA_TURNS_MAGIC && page->version == VCUDA_ABI_VERSION && page->size == sizeof *page;
}

int vcuda_turns_open(const char *path, int writable, struct vcuda_turns **page)
{
    void *map;
    int error = page_file_map(path, VCUDA_TURNS_SIZE, writable, &map);
    if (error)
        return error;
    if (!turns_valid(map)) {
        munmap(map, VCUDA_TURNS_SIZE);
        return -EBADMSG;
    }
    *page = map;
    return 0;
}

int vcuda_turns_create(const char *path, struct vcuda_turns **page)
{
    struct vcuda_turns fresh = {.magic = VCUDA_TURNS_MAGIC, .version = VCUDA_ABI_VERSION, .size = sizeof fresh};
    for (int i = 0; i < VCUDA_MAX_GPUS; i++)
        fresh.turn[i].ends_ns = VCUDA_TURN_FREE;
    int error = page_file_make(path, &fresh, sizeof fresh, 0644);
    if (error && error != -EEXIST)
        return error;
    return vcuda_turns_open(path, 1, page);
}

void vcuda_turns_unmap(struct vcuda_turns *page)
{
    munmap(page, VCUDA_TURNS_SIZE);
}

void vcuda_turns_set(struct vcuda_turns *page, uint32_t gpu_index, uint64_t ends_ns, uint64_t starts_ns)
{
    struct vcuda_turn *turn = &page->turn[gpu_index];
    __atomic_store_n(&turn->starts_ns, starts_ns, __ATOMIC_SEQ_CST);
    if (ends_ns && ends_ns != VCUDA_TURN_FREE)
        __atomic_fetch_add(&turn->number, 1, __ATOMIC_SEQ_CST);
    __atomic_store_n(&turn->ends_ns, ends_ns, __ATOMIC_SEQ_CST);
    if (!ends_ns)
        return; /* who launches sees it by itself */
    __atomic_fetch_add(&page->gen, 1u, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &page->gen, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void vcuda_turns_heartbeat(struct vcuda_turns *page)
{
    __atomic_store_n(&page->heartbeat_ns, pages_clock(CLOCK_MONOTONIC), __ATOMIC_RELEASE);
}
