/* Reading of usage pages with pread: if its tenant truncates a page, the read is short, while access to a mapping would
 * kill the arbiter. */
#include "claims.h"

#include <string.h>
#include <unistd.h>

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Return how many slots to read; 0 if this is no usage page. */
uint32_t claim_slots(const struct claim *claim)
{
    struct {
        uint64_t magic;
        uint32_t version, size, slots_used;
    } head;
    int fd = __atomic_load_n(&claim->usage_fd, __ATOMIC_ACQUIRE);
    if (fd < 0 || pread(fd, &head, sizeof head, 0) != (ssize_t)sizeof head)
        return 0;
    if (head.magic != VCUDA_USAGE_MAGIC || head.version != VCUDA_ABI_VERSION || head.size != VCUDA_USAGE_SIZE)
        return 0;
    return (uint32_t)least(head.slots_used, VCUDA_MAX_PROCESSES);
}

static off_t slot_offset(uint32_t slot)
{
    return (off_t)(offsetof(struct vcuda_usage, process) + slot * sizeof(struct vcuda_process));
}

int claim_slot(const struct claim *claim, uint32_t slot, uint64_t *owner, uint64_t *start_time)
{
    uint64_t words[2];
    if (pread(claim->usage_fd, words, sizeof words, slot_offset(slot)) != (ssize_t)sizeof words)
        return 0;
    *owner = words[0];
    *start_time = words[1];
    return pages_is_process(words[0]) && words[1] != 0;
}

/* Return 0 instead of a time that lies in the future, as it is forged. */
static uint64_t past(uint64_t time, uint64_t now)
{
    return time <= now ? time : 0;
}

static void add(struct reading *sum, const struct vcuda_gpu_usage *use, uint64_t turn, int stopped)
{
    uint64_t now = pages_clock(CLOCK_MONOTONIC);
    uint64_t end = past(use->last_end_ns, now), launch = past(use->last_launch_ns, now);
    /* A stopped process launches nothing, and does not see the end of what it has launched. */
    sum->inflight_ns += stopped ? 0 : least(use->inflight_ns, READING_MOST_NS);
    sum->last_end_ns = end > sum->last_end_ns ? end : sum->last_end_ns;
    sum->last_launch_ns = launch > sum->last_launch_ns ? launch : sum->last_launch_ns;
    sum->gpu_time_ns += use->gpu_time_ns;
    sum->outside_ns += use->outside_ns;
    sum->processes++;
    sum->waiting += use->waiting != 0 && !stopped;
    sum->syncing += use->syncing != 0 && !stopped;
    sum->yielded |= use->yielded == turn;
}

/* All processes of a suspended claim stand still. */
static int is_suspended(const struct claim *claim, uint32_t gpu_index)
{
    struct vcuda_limit limit;
    return !vcuda_limits_get(claim->limits, gpu_index, &limit) && limit.flags & VCUDA_FLAG_SUSPENDED;
}

void claim_read(const struct claim *claim, uint32_t gpu_index, struct reading *out)
{
    /* From the beginning of the slot to the end of this GPU's numbers. */
    size_t size = offsetof(struct vcuda_process, gpu) + (gpu_index + 1) * sizeof(struct vcuda_gpu_usage);
    struct vcuda_process process;
    uint64_t turn = __atomic_load_n(&claim->turns->turn[gpu_index].number, __ATOMIC_RELAXED);
    int suspended = is_suspended(claim, gpu_index);
    *out = (struct reading){0};
    for (uint32_t i = 0, n = claim_slots(claim); i < n; i++) {
        if (pread(claim->usage_fd, &process, size, slot_offset(i)) != (ssize_t)size)
            return;
        if (!pages_is_process(process.owner) || !process.start_time)
            continue;
        if (__atomic_load_n(&claim->watched[i].dead, __ATOMIC_ACQUIRE) != process.owner)
            add(out, &process.gpu[gpu_index], turn,
                suspended || __atomic_load_n(&claim->watched[i].stopped, __ATOMIC_ACQUIRE));
    }
}

/* More than any GPU has, and little enough that sums of forged numbers do not overflow. */
#define MOST_BYTES (1ull << 46)

static void add_memory(struct memory_reading *sum, const struct vcuda_process *p, uint32_t gpu_index, uint32_t order,
                       int suspended, int stopped)
{
    const struct vcuda_gpu_usage *use = &p->gpu[gpu_index];
    sum->used_bytes += least(use->memory_bytes, MOST_BYTES) + least(use->context_bytes, MOST_BYTES);
    if (suspended) /* none of it is on the GPU */
        return;
    if (p->wanted_slot == gpu_index && !stopped) /* else it does not try again to allocate */
        sum->wanted_bytes += least(p->wanted_bytes, MOST_BYTES);
    if (p->lending_slot != gpu_index)
        return;
    sum->movable_bytes += least(p->movable_bytes, MOST_BYTES);
    sum->out_bytes += least(p->out_bytes, MOST_BYTES);
    sum->moved_bytes += p->moved_out_bytes;
    sum->pending += p->movable_bytes && p->orders_done != order;
}

void claim_read_memory(const struct claim *claim, uint32_t gpu_index, uint32_t order, struct memory_reading *out)
{
    size_t size = offsetof(struct vcuda_process, gpu) + (gpu_index + 1) * sizeof(struct vcuda_gpu_usage);
    struct vcuda_process process;
    int suspended = is_suspended(claim, gpu_index);
    *out = (struct memory_reading){0};
    for (uint32_t i = 0, n = claim_slots(claim); i < n; i++) {
        if (pread(claim->usage_fd, &process, size, slot_offset(i)) != (ssize_t)size)
            return;
        if (pages_is_process(process.owner) && process.start_time &&
            __atomic_load_n(&claim->watched[i].dead, __ATOMIC_ACQUIRE) != process.owner)
            add_memory(out, &process, gpu_index, order, suspended,
                       (int)__atomic_load_n(&claim->watched[i].stopped, __ATOMIC_ACQUIRE));
    }
}
