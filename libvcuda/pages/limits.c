/* The limits page: written by the agent through vcuda_limits_set and friends, read by everyone.
 *
 * There is one writer per page (the agent), so the writing side needs no lock, only the sequence counter that lets readers
 * notice a write in progress. An agent killed in the middle of a write leaves an odd counter; the next write makes it even.
 */
#include "pages.h"

#include "file.h"

#include <errno.h>
#include <linux/futex.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

uint64_t pages_clock(clockid_t clock)
{
    struct timespec ts;
    clock_gettime(clock, &ts);
    return (uint64_t)ts.tv_sec * 1000000000ull + (uint64_t)ts.tv_nsec;
}

int64_t pages_clock_ahead(clockid_t clock)
{
    const char *wanted = clock == CLOCK_BOOTTIME ? "boottime" : "monotonic";
    char line[96], name[16];
    int64_t ahead = 0;
    FILE *file = fopen("/proc/self/timens_offsets", "re");
    while (file && fgets(line, sizeof line, file)) {
        long long seconds, ns;
        if (sscanf(line, "%15s %lld %lld", name, &seconds, &ns) == 3 && strcmp(name, wanted) == 0)
            ahead = (int64_t)seconds * 1000000000 + ns;
    }
    if (file)
        fclose(file);
    return ahead;
}

static int limits_valid(const struct vcuda_limits *page)
{
    return page->magic == VCUDA_LIMITS_MAGIC && page->version == VCUDA_ABI_VERSION && page->size == sizeof *page;
}

int vcuda_limits_open(const char *path, int writable, struct vcuda_limits **page)
{
    void *map;
    int error = page_file_map(path, VCUDA_LIMITS_SIZE, writable, &map);
    if (error)
        return error;
    if (!limits_valid(map)) {
        munmap(map, VCUDA_LIMITS_SIZE);
        return -EBADMSG;
    }
    *page = map;
    return 0;
}

int vcuda_limits_create(const char *path, const uint8_t claim_uid[16], struct vcuda_limits **page)
{
    struct vcuda_limits fresh = {
        .magic = VCUDA_LIMITS_MAGIC,
        .version = VCUDA_ABI_VERSION,
        .size = sizeof fresh,
        .heartbeat_ns = pages_clock(CLOCK_BOOTTIME),
    };
    memcpy(fresh.claim_uid, claim_uid, sizeof fresh.claim_uid);
    int error = page_file_make(path, &fresh, sizeof fresh, 0644);
    if (error && error != -EEXIST)
        return error;
    error = vcuda_limits_open(path, 1, page);
    if (!error && memcmp((*page)->claim_uid, claim_uid, 16) != 0) {
        vcuda_limits_unmap(*page);
        return -EEXIST;
    }
    return error;
}

void vcuda_limits_unmap(struct vcuda_limits *page)
{
    munmap(page, VCUDA_LIMITS_SIZE);
}

static void write_begin(struct vcuda_limit_slot *slot)
{
    uint32_t seq = __atomic_load_n(&slot->seq, __ATOMIC_RELAXED);
    __atomic_store_n(&slot->seq, seq | 1u, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

static void write_end(struct vcuda_limits *page, struct vcuda_limit_slot *slot)
{
    slot->changed_ns = pages_clock(CLOCK_MONOTONIC);
    __atomic_store_n(&slot->seq, (slot->seq | 1u) + 1u, __ATOMIC_RELEASE);
    __atomic_fetch_add(&page->gen, 1u, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &page->gen, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static int find_gpu(const struct vcuda_limits *page, const uint8_t gpu_uuid[16])
{
    for (int i = 0; i < VCUDA_MAX_GPUS; i++)
        if (page->slot[i].state != VCUDA_SLOT_UNUSED && memcmp(page->slot[i].gpu_uuid, gpu_uuid, 16) == 0)
            return i;
    return -ENOENT;
}

static int find_unused(const struct vcuda_limits *page)
{
    for (int i = 0; i < VCUDA_MAX_GPUS; i++)
        if (page->slot[i].state == VCUDA_SLOT_UNUSED)
            return i;
    return -ENOSPC;
}

int vcuda_limits_set(struct vcuda_limits *page, const struct vcuda_limit *limit)
{
    if (limit->core_limit > 100 || limit->core_request > limit->core_limit || limit->ceiling > 100 ||
        !vcuda_policy_name(limit->policy) ||
        (limit->flags & VCUDA_FLAG_BORROWS && limit->memory_request > limit->memory_bytes))
        return -EINVAL;
    int index = find_gpu(page, limit->gpu_uuid);
    if (index < 0)
        index = find_unused(page);
    if (index < 0)
        return index;
    struct vcuda_limit_slot *slot = &page->slot[index];
    write_begin(slot);
    memcpy(slot->gpu_uuid, limit->gpu_uuid, 16);
    memcpy(slot->assignment_uid, limit->assignment_uid, 16);
    slot->generation = limit->generation;
    slot->memory_bytes = limit->memory_bytes;
    slot->core_request = limit->core_request;
    slot->core_limit = limit->core_limit;
    slot->policy = limit->policy;
    slot->weight = limit->weight;
    slot->ceiling = limit->ceiling;
    slot->parts = limit->parts;
    slot->flags = limit->flags;
    slot->memory_request = limit->memory_request;
    slot->host_memory_bytes = limit->host_memory_bytes;
    slot->returning_bytes = limit->returning_bytes;
    slot->state = VCUDA_SLOT_OPEN;
    write_end(page, slot);
    return index;
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

uint32_t vcuda_limit_alone(const struct vcuda_limit *limit)
{
    uint32_t ceiling = limit->ceiling ? limit->ceiling : 100;
    if (limit->core_limit == 0)
        return 0;
    switch ((enum vcuda_policy)limit->policy) {
    case VCUDA_POLICY_BURST:
        break;
    case VCUDA_POLICY_FIXED:
        return least(ceiling, limit->core_request);
    case VCUDA_POLICY_FAIR:
    case VCUDA_POLICY_WEIGHTED:
        return ceiling;
    case VCUDA_POLICY_AVERAGE:
        return least(ceiling, 100 / (limit->parts ? limit->parts : 1));
    case VCUDA_POLICY_PREEMPT:
        return limit->flags & VCUDA_FLAG_BEST_EFFORT ? ceiling : least(ceiling, limit->core_limit);
    case VCUDA_POLICY_NATIVE:
        return 100;
    }
    return least(ceiling, limit->core_limit); /* a damaged page's number, too */
}

const char *vcuda_policy_name(uint32_t policy)
{
    switch ((enum vcuda_policy)policy) {
    case VCUDA_POLICY_BURST:
        return "burst";
    case VCUDA_POLICY_FIXED:
        return "fixed";
    case VCUDA_POLICY_FAIR:
        return "fair";
    case VCUDA_POLICY_WEIGHTED:
        return "weighted";
    case VCUDA_POLICY_AVERAGE:
        return "average";
    case VCUDA_POLICY_PREEMPT:
        return "preempt";
    case VCUDA_POLICY_NATIVE:
        return "native";
    }
    return NULL;
}

int vcuda_limits_close_gpu(struct vcuda_limits *page, const uint8_t gpu_uuid[16], uint64_t generation)
{
    int index = find_gpu(page, gpu_uuid);
    if (index < 0)
        return index;
    struct vcuda_limit_slot *slot = &page->slot[index];
    write_begin(slot);
    slot->generation = generation;
    slot->state = VCUDA_SLOT_CLOSED;
    write_end(page, slot);
    return index;
}

static void write_gpu(struct vcuda_limits *page, int index, const uint8_t gpu_uuid[16])
{
    struct vcuda_limit_slot *slot = &page->slot[index];
    write_begin(slot);
    memcpy(slot->gpu_uuid, gpu_uuid, 16);
    write_end(page, slot);
}

int vcuda_limits_move(struct vcuda_limits *page, const uint8_t from[16], const uint8_t to[16])
{
    int index = find_gpu(page, from), other = find_gpu(page, to);
    if (index < 0)
        return index;
    if (other >= 0)
        write_gpu(page, other, from);
    write_gpu(page, index, to);
    return index;
}

void vcuda_limits_heartbeat(struct vcuda_limits *page)
{
    __atomic_store_n(&page->heartbeat_ns, pages_clock(CLOCK_BOOTTIME), __ATOMIC_RELEASE);
}

int vcuda_limits_get(const struct vcuda_limits *page, uint32_t index, struct vcuda_limit *out)
{
    if (index >= VCUDA_MAX_GPUS)
        return -ERANGE;
    const struct vcuda_limit_slot *slot = &page->slot[index];
    /* A write takes well under a microsecond; a thousand tries outlast any that is really in progress. */
    for (int try = 0; try < 1000; try++) {
        uint32_t before = __atomic_load_n(&slot->seq, __ATOMIC_ACQUIRE);
        if (before & 1u)
            continue;
        struct vcuda_limit_slot copy;
        memcpy(&copy, (const void *)slot, sizeof copy);
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        if (__atomic_load_n(&slot->seq, __ATOMIC_RELAXED) != before)
            continue;
        *out = (struct vcuda_limit){.index = index,
                                    .state = copy.state,
                                    .generation = copy.generation,
                                    .memory_bytes = copy.memory_bytes,
                                    .core_request = copy.core_request,
                                    .core_limit = copy.core_limit,
                                    .policy = copy.policy,
                                    .weight = copy.weight,
                                    .ceiling = copy.ceiling,
                                    .parts = copy.parts,
                                    .flags = copy.flags,
                                    .memory_request = copy.memory_request,
                                    .host_memory_bytes = copy.host_memory_bytes,
                                    .returning_bytes = copy.returning_bytes};
        memcpy(out->gpu_uuid, copy.gpu_uuid, 16);
        memcpy(out->assignment_uid, copy.assignment_uid, 16);
        return 0;
    }
    return -EAGAIN;
}
