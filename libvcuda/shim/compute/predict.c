/* How long will a launch take? As long as the same kernel with about as many blocks took before.
 *
 * A small table without locks: entries are words that are read and written whole; two kernels that fall on the same entry
 * spoil each other's prediction for a while, which costs smoothness, never correctness: what is charged is measured.
 */
#include "meter.h"

/* Sets of a few entries: a training step has hundreds of kernels, and two that displaced one another would never be known. */
#define SETS 2048
#define WAYS 4
/* A kernel never seen: launched, marked and measured by itself; no more than a few such are ever in flight. */
#define UNKNOWN_NS 1000000
/* The first launches of a kernel load code and warm caches; and durations change: measure by itself now and then. */
#define ALONE_FIRST 3
#define ALONE_EVERY 256
/* NCCL has a kernel per operation, type and algorithm: some dozens, loaded when first used. */
#define NEVER_WAITS 512

static struct entry {
    uint64_t key;
    uint32_t nanoseconds; /* 0: not measured yet */
    uint32_t launches;
} entries[SETS * WAYS];

static const void *never_waits[NEVER_WAITS];
static uint32_t never_wait_count;

/* Its entry in the set, or the least used one made its. */
static uint16_t find(uint64_t key)
{
    uint16_t first = (uint16_t)((key >> 48 & (SETS - 1)) * WAYS), least = first;
    for (uint16_t at = first; at < first + WAYS; at++) {
        if (__builtin_expect(__atomic_load_n(&entries[at].key, __ATOMIC_RELAXED) == key, 1))
            return at;
        if (__atomic_load_n(&entries[at].launches, __ATOMIC_RELAXED) <
            __atomic_load_n(&entries[least].launches, __ATOMIC_RELAXED))
            least = at;
    }
    struct entry *e = &entries[least];
    __atomic_store_n(&e->nanoseconds, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&e->launches, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&e->key, key, __ATOMIC_RELAXED);
    return least;
}

/* To one part in eight. A program whose tensors have any size would else never launch the same thing twice, and each launch
 * of something unknown is measured by itself. */
static uint64_t about(uint64_t blocks)
{
    int bits = 63 - __builtin_clzll(blocks | 1), shift = bits > 6 ? bits - 3 : 0;
    return blocks >> shift << shift;
}

uint16_t predict_kernel(const void *kernel, uint64_t blocks, uint64_t *predicted_ns, int *known)
{
    blocks = about(blocks);
    uint64_t key = ((uint64_t)(uintptr_t)kernel ^ blocks << 40 ^ blocks) * 0x9e3779b97f4a7c15ull | 1;
    uint16_t at = find(key);
    struct entry *e = &entries[at];
    uint32_t ns = __atomic_load_n(&e->nanoseconds, __ATOMIC_RELAXED);
    uint32_t launches = __atomic_load_n(&e->launches, __ATOMIC_RELAXED) + 1;
    __atomic_store_n(&e->launches, launches, __ATOMIC_RELAXED);
    *known = ns != 0 && launches > ALONE_FIRST && launches % ALONE_EVERY != 0;
    *predicted_ns = ns ? ns : UNKNOWN_NS;
    return at;
}

static uint32_t clamp(double ns)
{
    return ns < 100 ? 100 : ns > 4e9 ? 4000000000u : (uint32_t)ns;
}

void predict_learn(const struct meter_burst *burst, double measured_ns)
{
    if (!burst->kinds || !burst->predicted_ns || !burst->launches)
        return;
    /* Idle time in it was itself a prediction: learning from that would only confirm what was believed. */
    if (!burst->alone && (double)burst->idle_ns > measured_ns / 20)
        return;
    /* Several kernels: each was off by as much as the burst was. */
    double factor = measured_ns / (double)burst->predicted_ns;
    for (int i = 0; i < burst->kinds; i++) {
        struct entry *e = &entries[burst->kind[i].kernel];
        double old = (double)__atomic_load_n(&e->nanoseconds, __ATOMIC_RELAXED);
        double seen = burst->kinds == 1 ? measured_ns / burst->launches : old * factor;
        int first = __atomic_load_n(&e->launches, __ATOMIC_RELAXED) <= ALONE_FIRST;
        double now = old == 0 || (first && burst->alone) ? measured_ns / burst->launches : (old + seen) / 2;
        /* Whatever disturbs a kernel that is measured by itself makes it seem longer. */
        if (burst->alone && !first && old > 0)
            now = seen < old ? (old + 3 * seen) / 4 : (7 * old + seen) / 8;
        __atomic_store_n(&e->nanoseconds, clamp(now), __ATOMIC_RELAXED);
    }
}

void predict_never_waits(const void *kernel)
{
    if (predict_must_not_wait(kernel))
        return;
    uint32_t at = __atomic_fetch_add(&never_wait_count, 1, __ATOMIC_RELAXED);
    if (at < NEVER_WAITS)
        __atomic_store_n(&never_waits[at], kernel, __ATOMIC_RELEASE);
}

int predict_must_not_wait(const void *kernel)
{
    uint32_t n = __atomic_load_n(&never_wait_count, __ATOMIC_RELAXED);
    for (uint32_t i = 0; i < n && i < NEVER_WAITS; i++)
        if (__atomic_load_n(&never_waits[i], __ATOMIC_ACQUIRE) == kernel)
            return 1;
    return 0;
}
