/* What the parts of libvcuda share inside one process.
 *
 * attach.c   pages, slot, cached limits         account.c  memory: reserve, sum, refund
 * watcher.c  the thread that hears changes       table.c    pointer -> charge
 * meter.c    measures GPU time with events       gate.c     decides when a launch may go: credit, turns
 * real.c     lookup; hooks_*.c                   the entries that programs call
 */
#ifndef SHIM_H
#define SHIM_H

#include "pages.h"
#include "real.h"

enum shim_mode {
    SHIM_UNKNOWN,
    SHIM_INERT, /* no claim, or no valid page: everything passes through */
    SHIM_ACTIVE,
    SHIM_REFUSED, /* no valid page on a machine that requires one: cuInit fails */
};

/* One GPU of the claim as this process last read it. */
struct shim_gpu {
    uint32_t state;      /* enum vcuda_slot_state */
    uint32_t core_limit; /* percent while no turns are given: see vcuda_limit_alone */
    uint64_t generation;
    uint64_t limited_since_ns; /* work begun before had no limit to answer for */
    uint64_t turn_used;        /* number of the last turn in which this process launched */
    int dry;                   /* ran out of credit: launches wait for a full quantum */
    uint64_t small_bytes;
    int contexts;
    uint64_t context_base; /* what these contexts are known to cost at least */
};

extern struct shim {
    int mode;
    struct vcuda_limits *limits;
    struct vcuda_usage *usage;
    struct vcuda_turns *turns;  /* NULL where no arbiter has made the page yet */
    struct vcuda_process *self; /* NULL until attached */
    uint32_t seen_gen;
    int stopping; /* the process is ending: no more calls into the driver */
    int captures; /* stream captures that may be in progress */
    int contexts_made;
    unsigned context_epoch;
    /* Raised by whatever makes launches take the slow path again: limits, contexts, captures, the end. */
    unsigned hot_epoch;
    uint64_t ns_per_tick; /* 32.32 fixed point; see shim_ticks */
    /* Raised before and after every allocation, so that a reading of NVML can tell that none disturbed it. */
    uint64_t memory_begun, memory_ended;
    struct shim_gpu gpu[VCUDA_MAX_GPUS];
} shim;

/* Decides the mode and maps the pages, once. */
int shim_mode_slow(void);
static inline int shim_mode(void)
{
    int mode = __atomic_load_n(&shim.mode, __ATOMIC_ACQUIRE);
    return __builtin_expect(mode != SHIM_UNKNOWN, 1) ? mode : shim_mode_slow();
}
/* Take a slot and start the watcher, once per process; 0 where all slots are taken. */
int shim_attach(void);
/* Map the turns page if there is one by now. */
void shim_find_turns(void);
static inline void shim_cool(void)
{
    __atomic_fetch_add(&shim.hot_epoch, 1, __ATOMIC_SEQ_CST);
}
/* Re-read the limits where they changed, and echo what was acted on. */
void shim_refresh_slow(void);
static inline void shim_refresh(void)
{
    if (__atomic_load_n(&shim.limits->gen, __ATOMIC_ACQUIRE) != __atomic_load_n(&shim.seen_gen, __ATOMIC_RELAXED))
        shim_refresh_slow();
}
/* The slot of a CUDA device, or of the current context's device; -1: no slot, -2: no context. */
int shim_slot_of_device(CUdevice device);
int shim_slot_of_current(CUcontext *context);
/* Compare the cheap clock with the true one, over some milliseconds that pass anyway. */
void shim_calibrate(void);
/* The arbiter gives turns on this GPU: see gate.c. */
int gate_gives_turns(int slot);
static inline struct vcuda_gpu_usage *shim_usage(int slot)
{
    return &shim.self->gpu[slot];
}

/* ---- watcher.c ---- */
void watcher_start(void);
void watcher_poke(void);   /* work was launched: look more often */
void watcher_forget(void); /* in a forked child: there is no thread here */

/* ---- account.c: every function is a no-op that succeeds unless the mode is active ---- */
uint64_t account_used(int slot);                    /* the claim's memory and overhead on this GPU */
CUresult account_reserve(int slot, uint64_t bytes); /* OUT_OF_MEMORY, NOT_PERMITTED */
void account_refund(int slot, uint64_t bytes);
int account_over(int slot); /* the sum passes the limit */
/* What an allocation of this size costs the GPU; small ones share granules, so this moves the small total. */
uint64_t account_charge(int slot, uint64_t bytes, int sign);
void account_refresh_pools(int slot);
void account_forget_pools(void);
CUresult account_context_begin(int slot, uint64_t *reserved);
CUresult account_context_end(int slot, uint64_t reserved, CUresult result);
void account_context_gone(int slot);
void account_true_up(void);

/* ---- table.c ---- */
struct charge {
    uint64_t key, bytes, charged;
    int slot;
};
int table_put(const struct charge *charge); /* 0: no memory */
int table_take(uint64_t key, struct charge *out);
void table_forget(void);

uint64_t shim_now(void); /* CLOCK_MONOTONIC */
/* Nanoseconds since whenever, cheap: for distances on the hot path. A factor of two off until calibrated. */
static inline uint64_t shim_ticks(void)
{
#ifdef __x86_64__
    return (uint64_t)((unsigned __int128)__builtin_ia32_rdtsc() * shim.ns_per_tick >> 32);
#else
    return shim_now();
#endif
}

/* ---- nvml_read.c ---- */
int64_t nvml_process_bytes(int slot); /* -1: NVML does not know this process */
int64_t nvml_device_bytes(int slot);
int nvml_slot_of(nvmlDevice_t device); /* -1: no limit applies to this GPU or part of one */

#endif
