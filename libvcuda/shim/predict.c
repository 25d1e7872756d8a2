/* How long will a launch take? As long as the same kernel with as many blocks took before.
 *
 * A small table without locks: entries are words that are read and written whole; two kernels that fall on the same entry
 * spoil each other's prediction for a while, which costs smoothness, never correctness: what is charged is measured.
 */
#include "meter.h"

#define ENTRIES 8192
/* A kernel never seen: launched, marked and measured by itself; no more than a few such are ever in flight. */
#define UNKNOWN_NS 1000000

static struct entry {
    uint64_t key;
    uint64_t nanoseconds; /* 0: not measured yet */
} entries[ENTRIES];

uint16_t predict_kernel(const void *kernel, uint64_t blocks, uint64_t *predicted_ns, int *known)
{
    uint64_t key = ((uint64_t)(uintptr_t)kernel ^ blocks << 40 ^ blocks) * 0x9e3779b97f4a7c15ull | 1;
    uint16_t at = (uint16_t)(key >> 48 & (ENTRIES - 1));
    struct entry *e = &entries[at];
    if (__atomic_load_n(&e->key, __ATOMIC_RELAXED) != key) {
        __atomic_store_n(&e->nanoseconds, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&e->key, key, __ATOMIC_RELAXED);
    }
    uint64_t ns = __atomic_load_n(&e->nanoseconds, __ATOMIC_RELAXED);
    *known = ns != 0;
    *predicted_ns = ns ? ns : UNKNOWN_NS;
    return at;
}

void predict_learn(const struct meter_burst *burst, double measured_ns)
{
    if (burst->late || !burst->kinds || !burst->predicted_ns)
        return;
    /* Several kernels: each was off by as much as the burst was. */
    double factor = measured_ns / (double)burst->predicted_ns;
    for (int i = 0; i < burst->kinds; i++) {
        struct entry *e = &entries[burst->kind[i].kernel];
        double old = (double)__atomic_load_n(&e->nanoseconds, __ATOMIC_RELAXED);
        double seen = burst->kinds == 1 ? measured_ns / burst->launches : old * factor;
        double now = old == 0 ? measured_ns / burst->launches : (old + seen) / 2;
        __atomic_store_n(&e->nanoseconds, now < 100 ? 100 : (uint64_t)now, __ATOMIC_RELAXED);
    }
}
