/* The shortest way of a launch: one that needs no events. It is part of each launch hook, which then jumps into the driver
 * with its arguments where they are. Nine launches of ten of a program without a limit take it.
 *
 * The driver leaves little of ours in the caches and in the branch predictor, so what counts is the number of cache lines
 * and of taken branches, not that of instructions: five lines of data (this thread's words, the first one of its lane, the
 * kernel's prediction, `shim`, and the driver's function), and no call. */
#ifndef SHIM_HOT_H
#define SHIM_HOT_H

#include "lane.h"

#define PREDICT_SETS 2048
#define PREDICT_WAYS 4
/* The first launches of a kernel load code and warm caches, so each is measured by itself, and soon again. */
#define PREDICT_ALONE_FIRST 3
#define PREDICT_SURE_SAMPLES 5
/* If its launches by themselves differ by this part, and by more than what events tell, its arguments decide. */
#define PREDICT_VARIED 4
#define PREDICT_NOISE_NS 300

/* What is known of a kernel with about as many blocks; see predict.c. */
struct predict_entry {
    uint64_t key;
    uint32_t nanoseconds; /* 0: not measured yet */
    uint32_t alone_ns;    /* measured by itself */
    uint32_t launches;
    uint32_t alone_at;  /* launches at which it is measured by itself again */
    uint16_t unit;      /* the time of the last such measurement */
    uint16_t samples;   /* number of those, or the most that there is room for */
    uint32_t spread_ns; /* mean distance of those from alone_ns */
};
/* A set of entries, in two cache lines. */
extern struct predict_entry predict_entries[PREDICT_SETS * PREDICT_WAYS]
    __attribute__((aligned(128), visibility("hidden")));

/* Round to one part in eight. Otherwise a program with tensors of any size would never repeat a launch, and each
 * unknown launch is measured by itself. */
static inline uint64_t predict_about(uint64_t blocks)
{
    int bits = 63 - __builtin_clzll(blocks | 1), shift = bits > 6 ? bits - 3 : 0;
    return blocks >> shift << shift;
}

static inline uint64_t predict_key(const void *kernel, uint64_t blocks)
{
    blocks = predict_about(blocks);
    return ((uint64_t)(uintptr_t)kernel ^ blocks << 40 ^ blocks) * 0x9e3779b97f4a7c15ull | 1;
}

/* Return the key of a kernel that varies: in a program that repeats itself, the same size follows the same kernel. */
static inline uint64_t predict_key_after(uint64_t key, uint64_t before)
{
    return (key ^ before >> 7) * 0xc2b2ae3d27d4eb4full | 1;
}

/* Return the position of the first entry in which a key may be. */
static inline uint16_t predict_set(uint64_t key)
{
    return (uint16_t)((key >> 48 & (PREDICT_SETS - 1)) * PREDICT_WAYS);
}

/* Return the entry of a key, or NULL if there is none. */
static inline __attribute__((always_inline)) struct predict_entry *predict_known(uint64_t key)
{
    struct predict_entry *e = &predict_entries[predict_set(key)];
    for (int way = 0; way < PREDICT_WAYS; way++, e++)
        if (__builtin_expect(__atomic_load_n(&e->key, __ATOMIC_RELAXED) == key, 1))
            return e;
    return NULL;
}

/* Return 1 if the arguments decide how long its launches take, as with a matrix product that always has a block for
 * each processor. */
static inline int predict_varies(const struct predict_entry *e)
{
    return __builtin_expect(__atomic_load_n(&e->spread_ns, __ATOMIC_RELAXED) >
                                __atomic_load_n(&e->alone_ns, __ATOMIC_RELAXED) / PREDICT_VARIED + PREDICT_NOISE_NS,
                            0) &&
           __atomic_load_n(&e->samples, __ATOMIC_RELAXED) >= PREDICT_SURE_SAMPLES;
}

/* Return 1 if this launch goes without events, and count it; 0: nothing has changed, see meter_begin. Two threads that do
 * so in one stream at once may lose one of two launches. */
static inline __attribute__((always_inline)) int hot_skips(CUstream stream, int per_thread, const void *kernel,
                                                           uint64_t blocks)
{
    struct meter_lane *lane = meter_thread.last;
    if (__builtin_expect(!lane || lane->stream != lane_stream(stream, per_thread) ||
                             __atomic_load_n(&lane->epoch, __ATOMIC_RELAXED) !=
                                 __atomic_load_n(&shim.hot_epoch, __ATOMIC_ACQUIRE),
                         0))
        return 0;
    const uint64_t *turn_word = __atomic_load_n(&lane->turn_word, __ATOMIC_RELAXED);
    if (!__atomic_load_n(&lane->skip, __ATOMIC_RELAXED) ||
        __atomic_load_n(turn_word, __ATOMIC_RELAXED) != __atomic_load_n(&lane->turn, __ATOMIC_RELAXED))
        return 0;
    uint64_t key = predict_key(kernel, blocks);
    struct predict_entry *e = predict_known(key);
    if (__builtin_expect(e && predict_varies(e), 0))
        e = predict_known(predict_key_after(key, meter_thread.before));
    if (__builtin_expect(!e, 0))
        return 0;
    uint32_t launches = __atomic_load_n(&e->launches, __ATOMIC_RELAXED) + 1;
    if (launches <= PREDICT_ALONE_FIRST || (int32_t)(launches - __atomic_load_n(&e->alone_at, __ATOMIC_RELAXED)) >= 0 ||
        predict_varies(e))
        return 0;
    uint64_t ns = __atomic_load_n(&e->nanoseconds, __ATOMIC_RELAXED),
             left_ns = __atomic_load_n(&lane->skip_left_ns, __ATOMIC_RELAXED);
    if (__builtin_expect(ns - 1 >= left_ns, 0)) /* also if it was not measured yet */
        return 0;
    __atomic_store_n(&e->launches, launches, __ATOMIC_RELAXED);
    __atomic_store_n(&lane->skip_left_ns, left_ns - ns, __ATOMIC_RELAXED);
    __atomic_store_n(&lane->skipped_ns, __atomic_load_n(&lane->skipped_ns, __ATOMIC_RELAXED) + ns, __ATOMIC_RELAXED);
    __atomic_store_n(&lane->skip, __atomic_load_n(&lane->skip, __ATOMIC_RELAXED) - 1, __ATOMIC_RELAXED);
    meter_thread.before = key;
    return 1;
}

#endif
