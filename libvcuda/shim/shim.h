/* What the parts of libvcuda share inside one process.
 *
 * attach.c   pages, slot, cached limits        watcher.c  the thread that hears changes
 * refusal.c  why CUDA is refused
 * compat.c   limits by environment variables, read by settings.c
 *
 * lookup/    real.c: lookup, with symbols.c
 * hooks/     the entries that programs call
 * memory/    account.c: reserve, sum, refund; which layer accounts    kernel.c: memory as the kernel gives it
 *            overhead.c: contexts, and what NVML sees beyond the account    table.c: pointer -> charge
 * compute/   meter.c: measures GPU time with events    gate.c: decides when a launch may go: credit, turns
 */
#ifndef SHIM_H
#define SHIM_H

#include "pages.h"
#include "real.h"

enum shim_mode {
    SHIM_UNKNOWN,
    SHIM_INERT, /* no claim is named: everything passes through */
    SHIM_ACTIVE,
    SHIM_REFUSED,  /* a claim whose pages cannot be used, or none on a machine that requires one: cuInit fails */
    SHIM_UNUSABLE, /* limits by environment variables that cannot be read or kept: cuInit fails */
};

/* One GPU of the claim as this process last read it. */
struct shim_gpu {
    uint32_t state;      /* enum vcuda_slot_state */
    uint32_t core_limit; /* percent while no turns are given: see vcuda_limit_alone */
    uint64_t generation;
    uint64_t limited_since_ns; /* work begun before had no limit to answer for */
    uint64_t busy_since_ns;    /* when work was launched while nothing was in flight */
    uint64_t turn_used;        /* number of the last turn in which this process launched */
    int dry;                   /* ran out of credit: launches wait for a full quantum */
    uint64_t small_bytes, small_managed_bytes;
    int contexts;               /* these three only where the hooks account */
    uint64_t context_base;      /* what these contexts are known to cost at least */
    uint64_t context_reserved;  /* for contexts being made */
    uint64_t checked_ns, drift; /* where the kernel's calls account: NVML's word against theirs */
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
    int accounting;          /* enum vcuda_accounting; once decided, for good */
    int imported;            /* holds memory of other processes */
    int closed;              /* some slot of the claim is closed */
    int gpus_open;           /* how many are open */
    uint64_t managed_blocks; /* live ones */
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
int shim_uuid_of_device(CUdevice device, uint8_t uuid[16]); /* of a MIG instance its own; 0: the driver does not say */
int shim_slot_of_current(CUcontext *context);
/* The arbiter gives turns on this GPU: see gate.c. */
int gate_gives_turns(int slot);
int gate_has_turn(int slot); /* this claim's is open now */
/* Other claims may have the GPU in between what this process launches. */
int gate_is_contended(int slot);
/* When what this process has in flight should have ended, by prediction. CLOCK_MONOTONIC. */
uint64_t gate_drained_at(int slot);
static inline struct vcuda_gpu_usage *shim_usage(int slot)
{
    return &shim.self->gpu[slot];
}

/* ---- watcher.c ---- */
void watcher_start(void);
void watcher_poke(void);   /* work was launched: look more often */
void watcher_forget(void); /* in a forked child: there is no thread here */

/* ---- account.c ---- */
uint64_t account_used(int slot); /* the claim's memory and overhead on this GPU: the truth, in either accounting */
int account_over(int slot);      /* the sum passes the limit */
/* For the hooks; may ask the driver and NVML. OUT_OF_MEMORY, NOT_PERMITTED. */
CUresult account_reserve(int slot, uint64_t bytes);
/* For the kernel's calls; asks nobody. 0: no room, or a closed slot. */
int account_take(int slot, uint64_t bytes);
/* As much as there is room for, `most` at most. */
uint64_t account_take_room(int slot, uint64_t most);
void account_refund(int slot, uint64_t bytes);
/* What an allocation of this size costs the GPU; small ones share granules, so this moves `*total`, their sum. */
uint64_t account_charge(uint64_t *total, uint64_t bytes, int sign);
static inline int account_by_kernel(void)
{
    return __atomic_load_n(&shim.accounting, __ATOMIC_ACQUIRE) == VCUDA_ACCOUNTING_KERNEL;
}
static inline int account_by_calls(void)
{
    return __atomic_load_n(&shim.accounting, __ATOMIC_ACQUIRE) == VCUDA_ACCOUNTING_CALLS;
}
/* The account is the kernel's calls, or the hooks, from now on; 0: it is the other's already. */
int account_enter_kernel(int slot);
int account_enter_calls(int slot);
/* All that a hook does where the kernel's calls account: a closed slot's error is not out-of-memory. */
CUresult account_closed(void);
static inline CUresult account_pass(void)
{
    shim_refresh();
    return __builtin_expect(__atomic_load_n(&shim.closed, __ATOMIC_RELAXED), 0) ? account_closed() : CUDA_SUCCESS;
}
void account_refresh_pools(int slot);
void account_forget_pools(void);
void account_forget_physical(void);
void account_forget_contexts(void);

/* ---- overhead.c ---- */
CUresult account_context_begin(int slot, uint64_t *reserved);
/* `*cost`: what the context is charged with, to be given back when it goes. */
CUresult account_context_end(int slot, uint64_t reserved, CUresult result, uint64_t *cost);
void account_context_gone(int slot, uint64_t cost);
void overhead_add(int slot, uint64_t bytes);
/* Overhead is what the process uses beyond its known allocations. `pending` of these is reserved but not yet real, by
 * `open_calls` allocations in progress; a reading that any other allocation disturbed is thrown away. */
void overhead_true_up(int slot, uint64_t pending, uint64_t open_calls);
void account_true_up(void);

/* ---- table.c ---- */
struct charge {
    uint64_t key, bytes, charged;
    int slot, managed;
};
extern struct table table_blocks, table_contexts;
int table_put(struct table *table, const struct charge *charge); /* 0: no memory */
int table_take(struct table *table, uint64_t key, struct charge *out);
void table_forget(struct table *table);

uint64_t shim_now(void); /* CLOCK_MONOTONIC */
/* Nanoseconds since whenever, cheap: for distances on the hot path. Calibrated when the process attaches. */
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
