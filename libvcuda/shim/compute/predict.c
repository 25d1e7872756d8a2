/* Prediction of a launch: the time that the same kernel with about as many blocks took before.
 *
 * There are two kinds of evidence. A launch measured by itself is exact, but rare. A burst of several launches during
 * which the GPU never ran dry is exact in sum: its deviation is shared among its kernels, *from their predictions at
 * the time of the launch*, mostly among those with varying durations. Corrections start from there, not from the
 * present prediction: a dozen bursts are out at once, and each of them would repeat the same correction. A burst with
 * gaps is no evidence: its gaps were found by predictions, and would confirm them.
 *
 * If launches of a kernel with the same number of blocks differ, the previous launch tells them apart: in a program
 * that repeats itself the same size follows the same kernel.
 *
 * A small table without locks: entries are words that are read and written whole. Two kernels that fall on the same
 * entry spoil each other's prediction for a while, which costs smoothness, never correctness: measured time is
 * charged. */
#include "hot.h"

/* The prediction for a kernel never seen: it is launched, marked and measured by itself; only a few are ever in
 * flight. */
#define UNKNOWN_NS 1000000
/* Durations change, so a kernel is measured by itself now and then for ever. */
#define ALONE_EVERY 256
/* Where bursts are measured rarely (burst.c), no sooner than after 34 to 67 ms, counted in units of 34: each measurement
 * costs the program about 10 us. Not every few seconds: one is off by as much as a fifth, and the first ones, one right
 * after the other, all too low. */
#define RARE_UNITS 2
#define UNIT_SHIFT 25
#define RARE_LOOK 64 /* launches between two looks at the clock */
/* One measurement moves a prediction by this part. A disturbed one (by an interrupt, a page fault, a foreign slice) is
 * longer, never shorter: so at most twice the prediction is believed at once. */
#define WEIGHT_ALONE 0.25
/* If the launches of a kernel differ by this part of their time, the mean of many is used. */
#define STEADY 0.1
#define WEIGHT_VARIED (1.0 / 16)
/* Among the first few samples, those far from the least are not believed; the rest is averaged. */
#define NEAR 1.5
/* A vague measurement is repeated after as many launches as a quarter of those so far, within these bounds. A kernel of a
 * few microseconds may never give another one: repeated after 16 launches each time, its measurements cost a program that
 * allocates and fills memory a twentieth of its rate. */
#define SOON 16
#define SOON_MOST ALONE_EVERY
#define WEIGHT_BURST 0.25
/* Launches until a kernel is measured by itself after a burst of its launches alone. */
#define PURE_LAUNCHES 8
#define ALONE_AFTER_PURE (8 * ALONE_EVERY)
/* A kernel that always took the same time by itself may still be off by this part. */
#define UNSURE 0.02
#define MOST_UP 2.0
/* While other claims have the GPU in between, a longer time is weak evidence. */
#define WEIGHT_UP_CONTENDED (1.0 / 32)
/* Bursts of several kernels give their sum only, so a prediction stays within this factor of the time measured
 * alone. */
#define MOST_FROM_ALONE 4
/* NCCL has a kernel per operation, type and algorithm: some dozens, loaded when first used. */
#define COLLECTIVES 512

struct predict_entry predict_entries[PREDICT_SETS * PREDICT_WAYS] __attribute__((aligned(128)));

static const void *collectives[COLLECTIVES];
static uint32_t collective_count;

/* Return the key's entry in its set, or replace the least used one. */
static uint16_t find(uint64_t key)
{
    uint16_t first = predict_set(key), least = first;
    for (uint16_t at = first; at < first + PREDICT_WAYS; at++) {
        if (__builtin_expect(__atomic_load_n(&predict_entries[at].key, __ATOMIC_RELAXED) == key, 1))
            return at;
        if (__atomic_load_n(&predict_entries[at].launches, __ATOMIC_RELAXED) <
            __atomic_load_n(&predict_entries[least].launches, __ATOMIC_RELAXED))
            least = at;
    }
    struct predict_entry *e = &predict_entries[least];
    __atomic_store_n(&e->nanoseconds, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&e->alone_ns, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&e->launches, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&e->samples, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&e->spread_ns, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&e->alone_at, 2 * PREDICT_ALONE_FIRST, __ATOMIC_RELAXED);
    __atomic_store_n(&e->key, key, __ATOMIC_RELAXED);
    return least;
}

static uint16_t unit_now(void)
{
    return (uint16_t)(shim_now() >> UNIT_SHIFT);
}

/* Choose the next measurement at no fixed distance: a program that repeats itself in step with it would always be
 * measured at the same place. */
static void measure_again(struct predict_entry *e, uint32_t launches)
{
    uint32_t thrown = (launches ^ (uint32_t)e->key) * 2654435761u >> 24;
    uint32_t distance = ALONE_EVERY / 2 + thrown % ALONE_EVERY;
    __atomic_store_n(&e->alone_at, launches + (launches < distance ? launches : distance), __ATOMIC_RELAXED);
    __atomic_store_n(&e->unit, unit_now(), __ATOMIC_RELAXED);
}

/* Return 1 if the kernel is due for a measurement by itself. */
static int is_due(struct predict_entry *e, uint32_t launches, int rare)
{
    if ((int32_t)(launches - __atomic_load_n(&e->alone_at, __ATOMIC_RELAXED)) < 0)
        return 0;
    if (!rare || (uint16_t)(unit_now() - __atomic_load_n(&e->unit, __ATOMIC_RELAXED)) >= RARE_UNITS)
        return 1;
    __atomic_store_n(&e->alone_at, launches + RARE_LOOK, __ATOMIC_RELAXED);
    return 0;
}

uint16_t predict_kernel(const void *kernel, uint64_t blocks, int rare, uint64_t *predicted_ns, int *known)
{
    uint64_t key = predict_key(kernel, blocks), before = meter_thread.before;
    uint16_t at = find(key);
    if (__builtin_expect(predict_varies(&predict_entries[at]), 0))
        at = find((key ^ before >> 7) * 0xc2b2ae3d27d4eb4full | 1);
    meter_thread.before = key;
    struct predict_entry *e = &predict_entries[at];
    uint32_t ns = __atomic_load_n(&e->nanoseconds, __ATOMIC_RELAXED);
    uint32_t launches = __atomic_load_n(&e->launches, __ATOMIC_RELAXED) + 1;
    __atomic_store_n(&e->launches, launches, __ATOMIC_RELAXED);
    *predicted_ns = ns ? ns : UNKNOWN_NS;
    *known = ns != 0 && launches > PREDICT_ALONE_FIRST;
    if (__builtin_expect(is_due(e, launches, rare), 0)) {
        *known = 0;
        measure_again(e, launches);
    }
    return at;
}

static double clamp(double ns, double least, double most)
{
    return ns < least ? least : ns > most ? most : ns;
}

static void set(uint32_t *word, double ns)
{
    __atomic_store_n(word, (uint32_t)clamp(ns, 100, 4e9), __ATOMIC_RELAXED);
}

static double load(const uint32_t *word)
{
    return (double)__atomic_load_n(word, __ATOMIC_RELAXED);
}

static void learn_alone(struct predict_entry *e, double seen, int contended)
{
    double old = load(&e->nanoseconds), alone = load(&e->alone_ns), spread = load(&e->spread_ns);
    uint16_t samples = __atomic_load_n(&e->samples, __ATOMIC_RELAXED);
    __atomic_store_n(&e->samples, samples < UINT16_MAX ? samples + 1 : samples, __ATOMIC_RELAXED);
    int early = samples < PREDICT_SURE_SAMPLES;
    if (old == 0 || (early && seen * NEAR < alone)) {
        set(&e->alone_ns, seen);
        set(&e->nanoseconds, seen);
        return;
    }
    double weight = early ? 1.0 / (samples + 1) : spread < STEADY * alone ? WEIGHT_ALONE : WEIGHT_VARIED;
    if (contended && seen > alone) {
        weight = WEIGHT_UP_CONTENDED;
    } else {
        double apart = clamp(seen > alone ? seen - alone : alone - seen, 0, MOST_UP * alone);
        set(&e->spread_ns, spread + weight * (apart - spread));
    }
    if (early && seen > NEAR * alone)
        return;
    double most = spread > alone / 2 ? alone + MOST_UP * spread : MOST_UP * alone;
    set(&e->alone_ns, alone + weight * (clamp(seen, 0, most) - alone));
    set(&e->nanoseconds, old + weight * (clamp(seen, 0, most > MOST_UP * old ? most : MOST_UP * old) - old));
}

/* Return the squared distance of its launches from the prediction. */
static double variance(const struct predict_entry *e)
{
    double apart = load(&e->spread_ns) + UNSURE * load(&e->alone_ns);
    return apart * apart;
}

/* Share a burst's deviation among its kernels. Kernels with launches that differ, because arguments set the size of
 * their work, get most of it; a kernel that always takes the same time is not corrected for its neighbours. */
static void learn_together(const struct meter_burst *burst, double busy_ns)
{
    double predicted = (double)burst->predicted_ns, sum = 0;
    double off = clamp(busy_ns, predicted / MOST_UP / MOST_UP, predicted * MOST_UP) - predicted;
    uint32_t known = 0;
    for (int i = 0; i < burst->kinds; i++) {
        sum += variance(&predict_entries[burst->kind[i].kernel]) * burst->kind[i].count;
        known += burst->kind[i].count;
    }
    /* Kinds that had no room are taken to be as certain as the others. */
    sum *= known ? (double)burst->launches / known : 1;
    for (int i = 0; i < burst->kinds && sum > 0; i++) {
        struct predict_entry *e = &predict_entries[burst->kind[i].kernel];
        double old = load(&e->nanoseconds), alone = load(&e->alone_ns);
        double seen = (double)burst->kind[i].predicted_ns / burst->kind[i].count + off * variance(e) / sum;
        if (old > 0 && alone > 0)
            set(&e->nanoseconds,
                clamp(old + WEIGHT_BURST * (seen - old), alone / MOST_FROM_ALONE, alone * MOST_FROM_ALONE));
    }
}

int predict_is_pure(const struct meter_burst *burst)
{
    return burst->kinds == 1 && burst->kind[0].count == burst->launches;
}

uint32_t predict_longest_ns(const struct meter_burst *burst)
{
    uint32_t longest = 0;
    for (int i = 0; i < burst->kinds; i++) {
        const struct predict_entry *e = &predict_entries[burst->kind[i].kernel];
        uint32_t ns = __atomic_load_n(&e->nanoseconds, __ATOMIC_RELAXED);
        /* The first measurement may contain the loading of the module, or the turns of others. */
        if (ns > longest && __atomic_load_n(&e->samples, __ATOMIC_RELAXED) > 1)
            longest = ns;
    }
    return longest;
}

static void measure_soon(struct predict_entry *e)
{
    uint32_t launches = __atomic_load_n(&e->launches, __ATOMIC_RELAXED);
    uint32_t distance = launches / 4 < SOON ? SOON : launches / 4 < SOON_MOST ? launches / 4 : SOON_MOST;
    __atomic_store_n(&e->alone_at, launches + distance, __ATOMIC_RELAXED);
}

void predict_learn(const struct meter_burst *burst, const struct duration *took)
{
    if (!burst->kinds || !burst->predicted_ns || !burst->launches)
        return;
    struct predict_entry *e = &predict_entries[burst->kind[0].kernel];
    if (burst->alone && burst->launches == 1) {
        if (!took->vague || (took->busy_ns > 0 && !__atomic_load_n(&e->nanoseconds, __ATOMIC_RELAXED)))
            learn_alone(e, took->busy_ns, burst->contended);
        else
            measure_soon(e);
    } else if (took->single) {
        if (!took->vague)
            learn_alone(e, took->busy_ns, burst->contended);
    } else if (took->backlogged && !burst->contended) {
        learn_together(burst, took->busy_ns);
        /* As good a measurement as one by itself, and of what the kernel takes behind others. */
        if (predict_is_pure(burst) && burst->launches >= PURE_LAUNCHES)
            __atomic_store_n(&e->alone_at, __atomic_load_n(&e->launches, __ATOMIC_RELAXED) + ALONE_AFTER_PURE,
                             __ATOMIC_RELAXED);
    }
}

void predict_note_collective(const void *kernel)
{
    if (predict_is_collective(kernel))
        return;
    uint32_t at = __atomic_fetch_add(&collective_count, 1, __ATOMIC_RELAXED);
    if (at < COLLECTIVES)
        __atomic_store_n(&collectives[at], kernel, __ATOMIC_RELEASE);
}

int predict_is_collective(const void *kernel)
{
    uint32_t n = __atomic_load_n(&collective_count, __ATOMIC_RELAXED);
    for (uint32_t i = 0; i < n && i < COLLECTIVES; i++)
        if (__atomic_load_n(&collectives[i], __ATOMIC_ACQUIRE) == kernel)
            return 1;
    return 0;
}
