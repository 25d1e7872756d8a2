/* Credit: a limit of p percent gives p nanoseconds of GPU time per hundred nanoseconds of wall time.
 *
 * The bucket lies in the usage page, so the processes of a claim share one limit. Launched work is predicted and
 * counted as in flight. A launch may start while credit minus everything in flight is above zero. The measured time is
 * taken from the credit afterwards, below zero if need be: a kernel of 300 ms at 30 % is followed by 700 ms without
 * launches. Once the bucket was dry, launches wait until it holds a whole quantum (hysteresis), so that the GPU gets
 * work in pieces worth starting.
 *
 * Clients of MPS run beside one another, each on a part of the multiprocessors that it was given when it connected. Their
 * GPU time counts by that part: a client with 30 % of them that is busy all the time has used 30 % of the GPU. So the
 * times of a claim's processes add up, where the times of processes that take turns on the whole GPU are a union; and
 * processes whose parts together are within the limit need no credit. */
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

/* Return the part of the whole GPU that this time of this process is. */
static uint64_t part_of(int slot, uint64_t ns)
{
    uint32_t percent = __atomic_load_n(&shim.gpu[slot].mps_percent, __ATOMIC_RELAXED);
    return percent ? ns * percent / 100 : ns;
}

int credit_is_held_by_parts(int slot, uint32_t limit)
{
    uint32_t sum = 0, n = __atomic_load_n(&shim.usage->slots_used, __ATOMIC_RELAXED);
    if (!__atomic_load_n(&shim.gpu[slot].mps_percent, __ATOMIC_RELAXED))
        return 0;
    for (uint32_t i = 0; i < n && i < VCUDA_MAX_PROCESSES; i++) {
        const struct vcuda_process *p = &shim.usage->process[i];
        uint32_t percent = __atomic_load_n(&p->mps_percent, __ATOMIC_RELAXED);
        if (pages_is_process(__atomic_load_n(&p->owner, __ATOMIC_RELAXED)))
            sum += percent ? percent : 100;
    }
    return sum <= limit;
}

/* Give the credit of the time since the last refill. The process that advances `refilled_ns` gives it; if that process
 * is killed in between, the claim loses some microseconds. */
static void refill(struct vcuda_bucket *bucket, uint32_t limit, int64_t inflight)
{
    uint64_t now = shim_page_now(), last = __atomic_load_n(&bucket->refilled_ns, __ATOMIC_SEQ_CST);
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

/* What was saved under the higher limit would last for long at the lower one: 20 ms of credit are 200 ms at 10 %. One
 * quantum remains, and what pays for work in flight. Work that was launched without a limit is not paid for. */
void credit_lower(int slot, uint32_t before)
{
    struct vcuda_bucket *bucket = &shim.usage->bucket[slot];
    int was_free = before >= 100 || credit_is_held_by_parts(slot, before);
    int64_t inflight = was_free ? 0 : (int64_t)part_of(slot, credit_inflight(slot)), old;
    if (was_free)
        __atomic_store_n(&shim.gpu[slot].limited_since_ns, shim_now(), __ATOMIC_RELAXED);
    refill(bucket, before, inflight);
    old = load(&bucket->credit_ns);
    while (old > QUANTUM_NS + inflight && !__atomic_compare_exchange_n(&bucket->credit_ns, &old, QUANTUM_NS + inflight,
                                                                       0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        ;
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
    int64_t inflight = (int64_t)part_of(slot, all > beside_ns ? all - beside_ns : 0);
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

/* A hole: a time before the frontier that nothing was charged for. Its end, modulo 18 minutes, and its length share a
 * word, so that any process can take from it in one step. */
#define HOLE_END_BITS 40
#define HOLE_UNIT_NS 64
#define HOLE_MOST_NS ((1ull << (64 - HOLE_END_BITS)) * HOLE_UNIT_NS - HOLE_UNIT_NS)

static uint64_t hole_word(uint64_t start_ns, uint64_t end_ns)
{
    uint64_t length = end_ns - start_ns < HOLE_MOST_NS ? end_ns - start_ns : HOLE_MOST_NS;
    return length / HOLE_UNIT_NS << HOLE_END_BITS | (end_ns & ((1ull << HOLE_END_BITS) - 1));
}

/* Find the bounds of a hole whose end is not later than `frontier`. */
static void hole_bounds(uint64_t word, uint64_t frontier, uint64_t *start_ns, uint64_t *end_ns)
{
    uint64_t mask = (1ull << HOLE_END_BITS) - 1;
    *end_ns = frontier - ((frontier - word) & mask);
    *start_ns = *end_ns - (word >> HOLE_END_BITS) * HOLE_UNIT_NS;
}

/* Keep the new hole in the place of a used one, or of the oldest. */
static void add_hole(struct vcuda_bucket *bucket, uint64_t start_ns, uint64_t end_ns)
{
    uint64_t word[VCUDA_HOLES], from, to, earliest = UINT64_MAX;
    unsigned place = 0;
    for (unsigned i = 0; i < VCUDA_HOLES; i++) {
        word[i] = __atomic_load_n(&bucket->holes[i], __ATOMIC_RELAXED);
        hole_bounds(word[i], end_ns, &from, &to);
        to = to > from ? to : 0;
        if (to < earliest) {
            earliest = to;
            place = i;
        }
    }
    __atomic_compare_exchange_n(&bucket->holes[place], &word[place], hole_word(start_ns, end_ns), 0, __ATOMIC_SEQ_CST,
                                __ATOMIC_RELAXED);
}

/* Take up to `wanted_ns` of the hole's time between start and end; return how much it had. The rest of the hole remains
 * on one side: what lies on the other side is lost. */
static uint64_t take_from_hole(uint64_t *hole, uint64_t frontier, uint64_t start_ns, uint64_t end_ns,
                               uint64_t wanted_ns)
{
    uint64_t word = __atomic_load_n(hole, __ATOMIC_SEQ_CST), taken, rest;
    do {
        uint64_t from, to;
        hole_bounds(word, frontier, &from, &to);
        uint64_t begin = from > start_ns ? from : start_ns, end = to < end_ns ? to : end_ns;
        if (end <= begin)
            return 0;
        taken = end - begin < wanted_ns ? end - begin : wanted_ns;
        rest = begin - from > to - begin - taken ? hole_word(from, begin) : hole_word(begin + taken, to);
    } while (!__atomic_compare_exchange_n(hole, &word, rest, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    return taken;
}

/* Charge work that took `spent_ns` between start and end. Streams and processes of the claim overlap, and no moment of
 * the GPU is charged twice. Idle time within the interval may still be charged to other work in it, so `busy_until_ns`
 * advances by the time spent. A short piece of work that ends within a long one is charged first, and leaves a hole
 * before it: the long one, found later, is charged for that. */
void credit_charge(int slot, uint64_t start_ns, uint64_t end_ns, uint64_t spent_ns, int debit)
{
    static struct vcuda_bucket own[VCUDA_MAX_GPUS];
    struct vcuda_bucket *shared = &shim.usage->bucket[slot];
    struct vcuda_bucket *bucket = __atomic_load_n(&shim.gpu[slot].mps_percent, __ATOMIC_RELAXED) ? &own[slot] : shared;
    start_ns = shim_to_page(start_ns);
    end_ns = shim_to_page(end_ns);
    uint64_t frontier = __atomic_load_n(&bucket->busy_until_ns, __ATOMIC_SEQ_CST), begin, spent;
    do {
        begin = frontier > start_ns ? frontier : start_ns;
        spent = end_ns <= begin ? 0 : end_ns - begin < spent_ns ? end_ns - begin : spent_ns;
    } while (spent && !__atomic_compare_exchange_n(&bucket->busy_until_ns, &frontier, begin + spent, 0,
                                                   __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    if (spent && frontier && begin > frontier)
        add_hole(bucket, frontier, begin);
    for (unsigned i = 0; i < VCUDA_HOLES && spent < spent_ns && start_ns < frontier; i++)
        spent += take_from_hole(&bucket->holes[i], frontier, start_ns, end_ns, spent_ns - spent);
    spent = part_of(slot, spent);
    __atomic_fetch_add(&shim_usage(slot)->gpu_time_ns, spent, __ATOMIC_RELAXED);
    if (debit)
        __atomic_fetch_sub(&shared->credit_ns, (int64_t)spent, __ATOMIC_SEQ_CST);
}
