/* Credit: a limit of p percent gives p nanoseconds of GPU time per hundred nanoseconds of wall time.
 *
 * The bucket lies in the usage page, so the processes of a claim share one limit. Launched work is predicted and
 * counted as in flight. A launch may start while credit minus everything in flight is above zero. The measured time is
 * taken from the credit afterwards, below zero if need be: a kernel of 300 ms at 30 % is followed by 700 ms without
 * launches. Once the bucket was dry, launches wait until it holds a whole quantum (hysteresis), so that the GPU gets
 * work in pieces worth starting. */
#include "credit.h"

/* 5 ms: the longest kernel for which a change must be in force within 100 ms; smaller quanta cost idle gaps. */
#define QUANTUM_NS 5000000ll
/* The process that wakes first would take the credit every time, so the process that launched last leaves this much to
 * one that waits. */
#define AFTER_YOU_NS 2500000ll
/* Four quanta: a late wake-up (10 ms and more on a busy machine) must not lose the credit of the meantime. */
#define CREDIT_MAX_NS (4 * QUANTUM_NS)

static int64_t load(const int64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_SEQ_CST);
}

/* Give the credit of the time since the last refill. The process that advances `refilled_ns` gives it; if that process
 * is killed in between, the claim loses some microseconds. */
static void refill(struct vcuda_bucket *bucket, uint32_t limit, int64_t inflight)
{
    uint64_t now = shim_now(), last = __atomic_load_n(&bucket->refilled_ns, __ATOMIC_SEQ_CST);
    if (now <= last ||
        !__atomic_compare_exchange_n(&bucket->refilled_ns, &last, now, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        return;
    int64_t given = (int64_t)((now - last) / 100) * limit;
    if (!last)
        given = QUANTUM_NS;
    int64_t old = load(&bucket->credit_ns), new;
    do {
        new = old + given;
        /* Work in flight is charged later: the credit that pays for it must not be cut off meanwhile. */
        if (new > CREDIT_MAX_NS + inflight)
            new = old > CREDIT_MAX_NS + inflight ? old : CREDIT_MAX_NS + inflight;
    } while (!__atomic_compare_exchange_n(&bucket->credit_ns, &old, new, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
}

uint64_t credit_inflight(int slot)
{
    uint64_t sum = 0;
    uint32_t n = __atomic_load_n(&shim.usage->slots_used, __ATOMIC_RELAXED);
    for (uint32_t i = 0; i < n && i < VCUDA_MAX_PROCESSES; i++) {
        const struct vcuda_process *p = &shim.usage->process[i];
        if (pages_is_process(__atomic_load_n(&p->owner, __ATOMIC_RELAXED)))
            sum += __atomic_load_n(&p->gpu[slot].inflight_ns, __ATOMIC_SEQ_CST);
    }
    return sum;
}

int credit_others_inflight(int slot)
{
    uint32_t n = __atomic_load_n(&shim.usage->slots_used, __ATOMIC_RELAXED);
    for (uint32_t i = 0; i < n && i < VCUDA_MAX_PROCESSES; i++) {
        const struct vcuda_process *p = &shim.usage->process[i];
        if (p != shim.self && __atomic_load_n(&p->gpu[slot].inflight_ns, __ATOMIC_RELAXED) &&
            pages_is_process(__atomic_load_n(&p->owner, __ATOMIC_RELAXED)))
            return 1;
    }
    return 0;
}

/* Return 1 if another process of the claim waits, and has launched nothing for longer than this one. */
static int another_is_first(int slot)
{
    uint64_t own = __atomic_load_n(&shim_usage(slot)->last_launch_ns, __ATOMIC_RELAXED);
    uint32_t n = __atomic_load_n(&shim.usage->slots_used, __ATOMIC_RELAXED);
    for (uint32_t i = 0; i < n && i < VCUDA_MAX_PROCESSES; i++) {
        const struct vcuda_process *p = &shim.usage->process[i];
        if (__atomic_load_n(&p->gpu[slot].waiting, __ATOMIC_RELAXED) &&
            __atomic_load_n(&p->gpu[slot].last_launch_ns, __ATOMIC_RELAXED) < own &&
            pages_is_process(__atomic_load_n(&p->owner, __ATOMIC_RELAXED)))
            return 1;
    }
    return 0;
}

int64_t credit_available(int slot, uint32_t limit, uint64_t beside_ns, int64_t *missing)
{
    struct vcuda_bucket *bucket = &shim.usage->bucket[slot];
    struct shim_gpu *gpu = &shim.gpu[slot];
    uint64_t all = credit_inflight(slot);
    int64_t inflight = (int64_t)(all > beside_ns ? all - beside_ns : 0);
    refill(bucket, limit, inflight);
    int64_t own = load(&bucket->credit_ns), credit = own - inflight;
    int dry = __atomic_load_n(&gpu->dry, __ATOMIC_RELAXED);
    int after = (dry || credit <= 0) && another_is_first(slot);
    int64_t needed = dry && after ? QUANTUM_NS + AFTER_YOU_NS : QUANTUM_NS;
    *missing = needed - credit;
    if (dry ? credit < needed : credit <= 0) {
        /* A bucket is not dry while a long kernel is waited for, unless another process waits for the same credit. */
        if (own <= 0 || inflight <= QUANTUM_NS || after)
            __atomic_store_n(&gpu->dry, 1, __ATOMIC_RELAXED);
        return 0;
    }
    if (dry)
        __atomic_store_n(&gpu->dry, 0, __ATOMIC_RELAXED);
    return credit;
}

/* Charge work that took `spent_ns` between start and end. Streams and processes of the claim overlap, and no moment of
 * the GPU is charged twice. Idle time within the interval may still be charged to other work in it, so `busy_until_ns`
 * advances by the time spent. */
void credit_charge(int slot, uint64_t start_ns, uint64_t end_ns, uint64_t spent_ns, int debit)
{
    struct vcuda_bucket *bucket = &shim.usage->bucket[slot];
    uint64_t frontier = __atomic_load_n(&bucket->busy_until_ns, __ATOMIC_SEQ_CST), begin, spent;
    do {
        if (end_ns <= frontier)
            return;
        begin = frontier > start_ns ? frontier : start_ns;
        spent = end_ns - begin < spent_ns ? end_ns - begin : spent_ns;
    } while (!__atomic_compare_exchange_n(&bucket->busy_until_ns, &frontier, begin + spent, 0, __ATOMIC_SEQ_CST,
                                          __ATOMIC_SEQ_CST));
    __atomic_fetch_add(&shim_usage(slot)->gpu_time_ns, spent, __ATOMIC_RELAXED);
    if (debit)
        __atomic_fetch_sub(&bucket->credit_ns, (int64_t)spent, __ATOMIC_SEQ_CST);
}
