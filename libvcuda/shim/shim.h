/* The state of libvcuda in one process; see state.c. layers.h lists the layers of the library. */
#ifndef SHIM_H
#define SHIM_H

#include "pages.h"
#include "driver.h"

enum shim_mode {
    SHIM_UNKNOWN,
    SHIM_INERT, /* no claim is named: every call passes through */
    SHIM_ACTIVE,
    SHIM_REFUSED,  /* a claim whose pages cannot be used, or none on a machine that requires one: cuInit fails */
    SHIM_UNUSABLE, /* limits by environment variables that cannot be read or enforced: cuInit fails */
};

/* One GPU of the claim, as this process last read it. */
struct shim_gpu {
    uint32_t state;       /* enum vcuda_slot_state */
    uint32_t core_limit;  /* percent while no turns are given: see vcuda_limit_alone */
    uint32_t mps_percent; /* part of the multiprocessors that an MPS server gives this process; 0: no server does */
    uint64_t generation;
    uint64_t limited_since_ns; /* work from before this moment is exempt from the limit */
    uint64_t busy_since_ns;    /* when work was launched while nothing was in flight */
    uint64_t turn_used;        /* number of the last turn in which this process launched */
    int dry;                   /* ran out of credit: launches wait for a full quantum */
    uint64_t small_bytes, small_managed_bytes;
    int contexts;               /* this and the next two are used only if the hooks account */
    uint64_t context_base;      /* known least cost of these contexts */
    uint64_t context_reserved;  /* for contexts that are being created */
    uint64_t checked_ns, drift; /* if the kernel's calls account: the last check against NVML, and the difference */
};

extern struct shim {
    int mode;
    struct vcuda_limits *limits;
    struct vcuda_usage *usage;
    struct vcuda_turns *turns;  /* NULL if no arbiter has created the page yet */
    struct vcuda_process *self; /* NULL until attached */
    uint32_t seen_gen;
    int stopping; /* the process is ending: no more calls into the driver */
    int captures; /* stream captures that may be in progress */
    int contexts_made;
    unsigned context_epoch;
    /* Raised by each change after which launches must take the slow path again: limits, contexts, captures, exit. */
    unsigned hot_epoch;
    int borrows;           /* the claim may borrow memory */
    int lends;             /* memory of this process may move: calls that take addresses pass lending/barrier.c */
    uint64_t ns_per_tick;  /* 32.32 fixed point; see shim_ticks */
    uint64_t ticks_before; /* what shim_ticks has to add: the time on machines that the process was carried away from */
    /* CLOCK_MONOTONIC here less the machine's, which all moments in the pages are of: a process that was carried from
     * another machine goes on with that one's clock, in a time namespace. */
    int64_t clock_ahead_ns;
    /* Raised before and after every allocation, so that a reading of NVML can detect a concurrent one. */
    uint64_t memory_begun, memory_ended;
    int accounting;          /* enum vcuda_accounting; never changes once it is decided */
    int imported;            /* holds memory of other processes */
    int closed;              /* some slot of the claim is closed */
    int gpus_open;           /* number of open slots */
    int suspended;           /* the claim's GPU memory is moved to host memory, or is to be */
    int queries;             /* in progress; see shim_begin_query */
    uint64_t resumed_ns;     /* CLOCK_MONOTONIC at which that was last over; 0: it never was */
    uint64_t managed_blocks; /* number of live ones */
    struct shim_gpu gpu[VCUDA_MAX_GPUS];
    uint64_t watcher_pokes; /* raised when work was launched that the watcher must look for */
    int watcher_sleeps;     /* the watcher is in a long sleep and must be woken */
} shim;

/* Decide the mode and map the pages, once. */
int shim_mode_slow(void);
static inline int shim_mode(void)
{
    int mode = __atomic_load_n(&shim.mode, __ATOMIC_ACQUIRE);
    return __builtin_expect(mode != SHIM_UNKNOWN, 1) ? mode : shim_mode_slow();
}
/* Take a slot and start the watcher, once per process; return 0 if all slots are taken. */
int shim_attach(void);
/* Wait while the claim is suspended, or is to be. */
void shim_wait_for_resumption(void);
/* Use these pages from now on; the turns page may not exist yet. */
void shim_set_pages(struct vcuda_limits *limits, struct vcuda_usage *usage, const char *turns);
/* Map the turns page if it exists by now. */
void shim_find_turns(void);
static inline void shim_cool(void)
{
    __atomic_fetch_add(&shim.hot_epoch, 1, __ATOMIC_SEQ_CST);
}
/* Read the limits again if they changed, and echo the generation that is now in force. */
void shim_refresh_slow(void);
static inline void shim_refresh(void)
{
    if (__atomic_load_n(&shim.limits->gen, __ATOMIC_ACQUIRE) != __atomic_load_n(&shim.seen_gen, __ATOMIC_RELAXED))
        shim_refresh_slow();
}
/* Begin to ask the driver for the state or the time of an event or a stream; return 0 if this must wait for the
 * resumption. The driver reads these from memory that it shares with the GPU, and its lock for a checkpoint does not hold
 * such a call: one that comes in between ends the process by SIGSEGV (driver 580). So the process reports that it has seen
 * the suspension only once no query is in progress, and begins none until it is resumed. */
static inline void shim_end_query(void)
{
    __atomic_fetch_sub(&shim.queries, 1, __ATOMIC_SEQ_CST);
}
static inline int shim_begin_query(void)
{
    __atomic_fetch_add(&shim.queries, 1, __ATOMIC_SEQ_CST);
    if (__builtin_expect(!__atomic_load_n(&shim.suspended, __ATOMIC_SEQ_CST), 1))
        return 1;
    shim_end_query();
    return 0;
}
/* Return 1 if the process was suspended at or after that moment: a distance of two events across it means nothing. */
static inline int shim_stood_still_since(uint64_t moment_ns)
{
    return __atomic_load_n(&shim.suspended, __ATOMIC_ACQUIRE) ||
           __atomic_load_n(&shim.resumed_ns, __ATOMIC_ACQUIRE) >= moment_ns;
}
static inline struct vcuda_gpu_usage *shim_usage(int slot)
{
    return &shim.self->gpu[slot];
}

/* Make the watcher look more often for a while, since work was launched. */
void watcher_poke(void);

uint64_t shim_now(void); /* CLOCK_MONOTONIC */
/* The same moment as the pages have it. */
static inline uint64_t shim_to_page(uint64_t moment_ns)
{
    return moment_ns - (uint64_t)__atomic_load_n(&shim.clock_ahead_ns, __ATOMIC_RELAXED);
}
static inline uint64_t shim_page_now(void)
{
    return shim_to_page(shim_now());
}
/* Nanoseconds since an arbitrary moment, cheap: for distances on the hot path. Calibrated when the process attaches. */
static inline uint64_t shim_ticks(void)
{
#ifdef __x86_64__
    return (uint64_t)((unsigned __int128)__builtin_ia32_rdtsc() * shim.ns_per_tick >> 32) + shim.ticks_before;
#else
    return shim_now();
#endif
}

#endif
