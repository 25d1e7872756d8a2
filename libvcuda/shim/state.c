/* The state of this process: its mode, its slot in the usage page, and the limits as it last read them. */
#include "shim.h"

#include "layers.h"

#include <errno.h>
#include <linux/futex.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

struct shim shim = {.hot_epoch = 1, .ns_per_tick = 1ull << 31};

/* Both clocks are precise to about ten nanoseconds, so the rate is right to one part in ten thousand. */
#define CALIBRATE_NS 200000
static pthread_mutex_t attach_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t refresh_mutex = PTHREAD_MUTEX_INITIALIZER;
static char turns_path[PATH_MAX];

uint64_t shim_now(void)
{
    return pages_clock(CLOCK_MONOTONIC);
}

void shim_set_pages(struct vcuda_limits *limits, struct vcuda_usage *usage, const char *turns)
{
    shim.limits = limits;
    shim.usage = usage;
    snprintf(turns_path, sizeof turns_path, "%s", turns);
    shim_find_turns();
}

void shim_find_turns(void)
{
    struct vcuda_turns *turns;
    if (shim.turns || !*turns_path || vcuda_turns_open(turns_path, 0, &turns) != 0)
        return;
    __atomic_store_n(&shim.turns, turns, __ATOMIC_RELEASE);
    shim_cool();
}

void watcher_poke(void)
{
    __atomic_fetch_add(&shim.watcher_pokes, 1, __ATOMIC_RELAXED);
    /* Waking on the shared word also wakes other processes of the claim, which find nothing to do; it is rare
     * enough. */
    if (__atomic_load_n(&shim.watcher_sleeps, __ATOMIC_RELAXED) &&
        __atomic_exchange_n(&shim.watcher_sleeps, 0, __ATOMIC_ACQ_REL))
        syscall(SYS_futex, &shim.limits->gen, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

#ifdef __x86_64__
struct moment {
    uint64_t tick, ns;
};

/* Read both clocks next to each other, several times; return the reading with the shortest interruption. */
static struct moment both_clocks(void)
{
    struct moment best = {0};
    for (uint64_t i = 0, least = UINT64_MAX; i < 8; i++) {
        uint64_t before = __builtin_ia32_rdtsc(), now = shim_now(), after = __builtin_ia32_rdtsc();
        if (after - before < least) {
            least = after - before;
            best = (struct moment){before + least / 2, now};
        }
    }
    return best;
}
#endif

/* Measure the tick rate once, before any other measurement: a later correction would make all lanes' times jump. */
static void calibrate(void)
{
#ifdef __x86_64__
    struct moment begin = both_clocks(), end;
    do
        end = both_clocks();
    while (end.ns - begin.ns < CALIBRATE_NS || end.tick <= begin.tick);
    shim.ns_per_tick = ((end.ns - begin.ns) << 32) / (end.tick - begin.tick);
#endif
}

/* The last reading of both clocks before the process was suspended: it may come back on another machine. */
static uint64_t left_ns, left_ticks;

static void note_leaving(void)
{
    left_ns = shim_now();
    left_ticks = shim_ticks();
}

/* Find the machine's clocks again. CLOCK_MONOTONIC goes on; ticks go on with it, at this machine's rate. */
static void find_clocks(void)
{
    __atomic_store_n(&shim.clock_ahead_ns, pages_clock_ahead(CLOCK_MONOTONIC), __ATOMIC_RELAXED);
    calibrate();
    shim.ticks_before += left_ticks + (shim_now() - left_ns) - shim_ticks();
}

/* A forked child is a separate process: it needs its own slot and watcher, and holds none of the parent's memory. */
static void forget_parent(void)
{
    pthread_mutex_init(&attach_mutex, NULL);
    pthread_mutex_init(&refresh_mutex, NULL);
    shim.self = NULL;
    shim.seen_gen = 0;
    shim.captures = 0;
    shim.queries = 0;
    shim.contexts_made = 0;
    memset(shim.gpu, 0, sizeof shim.gpu);
    shim.accounting = VCUDA_ACCOUNTING_UNKNOWN;
    shim.managed_blocks = 0;
    shim.memory_begun = shim.memory_ended = 0;
    shim.watcher_sleeps = 0;
    shim_callbacks.forget_parent();
}

int shim_mode_slow(void)
{
    pthread_mutex_lock(&attach_mutex);
    if (shim.mode == SHIM_UNKNOWN) {
        int mode = shim_callbacks.choose_mode();
        if (mode == SHIM_ACTIVE)
            pthread_atfork(NULL, NULL, forget_parent);
        __atomic_store_n(&shim.mode, mode, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&attach_mutex);
    return shim.mode;
}

static int is_suspended(const struct vcuda_limit *limit)
{
    return limit->state == VCUDA_SLOT_OPEN && limit->flags & VCUDA_FLAG_SUSPENDED;
}

/* Return the part of the multiprocessors that an MPS server gives this process, in whole percent, rounded up; 0: it is not
 * started as a client of one. The driver reads the same variable when it connects, and cannot change the part later. */
static uint32_t mps_percent(void)
{
    const char *pipe = getenv("CUDA_MPS_PIPE_DIRECTORY"), *text = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
    uint32_t percent = 0;
    if (!pipe || !*pipe || !shim_callbacks.uses_mps())
        return 0;
    for (; text && *text >= '0' && *text <= '9' && percent < 100; text++)
        percent = percent * 10 + (uint32_t)(*text - '0');
    percent += text && *text == '.' && percent < 100;
    /* Anything else is not a part that the driver knows either. */
    return percent && percent <= 100 ? percent : 100;
}

/* A program that begins while the claim is suspended would take the room that the others come back to. */
void shim_wait_for_resumption(void)
{
    for (;;) {
        uint32_t gen = __atomic_load_n(&shim.limits->gen, __ATOMIC_ACQUIRE);
        struct vcuda_limit limit;
        int suspended = 0;
        for (uint32_t i = 0; i < VCUDA_MAX_GPUS; i++)
            suspended |= vcuda_limits_get(shim.limits, i, &limit) == 0 && is_suspended(&limit);
        if (!suspended)
            return;
        syscall(SYS_futex, &shim.limits->gen, FUTEX_WAIT, gen, NULL, NULL, 0);
    }
}

int shim_attach(void)
{
    if (__atomic_load_n(&shim.self, __ATOMIC_ACQUIRE))
        return 1;
    shim_wait_for_resumption();
    pthread_mutex_lock(&attach_mutex);
    if (!shim.self) {
        /* Clear slots of killed processes, which count as used until then. */
        vcuda_usage_reap_dead(shim.usage);
        /* Also clear the slot of a program that this one replaced (exec): it is the same process, but nothing of it is
         * left. */
        uint64_t pidns = pages_pidns(), begun = pages_start_time((uint32_t)getpid());
        if (pidns && begun && begun != PAGES_NOT_KNOWN)
            vcuda_usage_reap(shim.usage, pidns, (uint32_t)getpid(), begun);
        int slot = pages_slot_take(shim.usage);
        if (slot >= 0) {
            calibrate();
            shim.clock_ahead_ns = pages_clock_ahead(CLOCK_MONOTONIC);
            shim.seen_gen = __atomic_load_n(&shim.limits->gen, __ATOMIC_ACQUIRE) - 1;
            __atomic_store_n(&shim.usage->process[slot].mps_percent, mps_percent(), __ATOMIC_RELEASE);
            __atomic_store_n(&shim.self, &shim.usage->process[slot], __ATOMIC_RELEASE);
        }
    }
    pthread_mutex_unlock(&attach_mutex);
    if (!__atomic_load_n(&shim.self, __ATOMIC_ACQUIRE))
        return 0;
    shim_refresh();
    shim_callbacks.start_watcher();
    return 1;
}

/* A query takes about a microsecond; its thread may have to wait for a processor. The agent waits for half a second. */
#define QUERY_NS 20000
#define QUERIES_NS 400000000ull

/* The moment first: whoever sees the process as running again sees it, too. */
static void set_suspended(int suspended)
{
    if (!suspended && shim.suspended)
        __atomic_store_n(&shim.resumed_ns, shim_now(), __ATOMIC_RELEASE);
    __atomic_store_n(&shim.suspended, suspended, __ATOMIC_SEQ_CST);
    uint64_t end = shim_now() + QUERIES_NS;
    while (suspended && __atomic_load_n(&shim.queries, __ATOMIC_SEQ_CST) > 0 && shim_now() < end)
        nanosleep(&(struct timespec){0, QUERY_NS}, NULL);
}

static void refresh(void)
{
    uint32_t gen = __atomic_load_n(&shim.limits->gen, __ATOMIC_ACQUIRE);
    int whole = 1, closed = 0, open = 0, suspended = 0, borrows = 0;
    for (uint32_t i = 0; i < VCUDA_MAX_GPUS; i++) {
        struct vcuda_limit limit;
        struct shim_gpu *gpu = &shim.gpu[i];
        if (vcuda_limits_get(shim.limits, i, &limit) != 0) {
            closed |= __atomic_load_n(&gpu->state, __ATOMIC_RELAXED) == VCUDA_SLOT_CLOSED;
            open += __atomic_load_n(&gpu->state, __ATOMIC_RELAXED) == VCUDA_SLOT_OPEN;
            whole = 0; /* half-written by a killed agent: the last limits stay */
            continue;
        }
        uint32_t alone = vcuda_limit_alone(&limit), before = __atomic_load_n(&gpu->core_limit, __ATOMIC_RELAXED);
        if (before != alone)
            __atomic_store_n(&gpu->dry, 0, __ATOMIC_RELAXED);
        if (alone < before)
            shim_callbacks.lower_credit((int)i, before);
        __atomic_store_n(&gpu->core_limit, alone, __ATOMIC_RELAXED);
        const struct vcuda_process *mine = __atomic_load_n(&shim.self, __ATOMIC_ACQUIRE);
        __atomic_store_n(&gpu->mps_percent, mine && limit.flags & VCUDA_FLAG_MPS ? mine->mps_percent : 0,
                         __ATOMIC_RELAXED);
        __atomic_store_n(&gpu->generation, limit.generation, __ATOMIC_RELAXED);
        __atomic_store_n(&gpu->state, limit.state, __ATOMIC_RELEASE);
        closed |= limit.state == VCUDA_SLOT_CLOSED;
        open += limit.state == VCUDA_SLOT_OPEN;
        suspended |= is_suspended(&limit);
        borrows |= limit.state == VCUDA_SLOT_OPEN && limit.flags & VCUDA_FLAG_BORROWS;
    }
    __atomic_store_n(&shim.borrows, borrows, __ATOMIC_RELAXED);
    __atomic_store_n(&shim.closed, closed, __ATOMIC_RELAXED);
    __atomic_store_n(&shim.gpus_open, open, __ATOMIC_RELAXED);
    /* A suspended process may have come to another machine; its limits there are the first that it sees of it. */
    if (shim.suspended)
        find_clocks();
    if (suspended)
        note_leaving();
    if (whole)
        set_suspended(suspended);
    shim_cool();
    if (whole)
        __atomic_store_n(&shim.seen_gen, gen, __ATOMIC_RELAXED);
    struct vcuda_process *self = __atomic_load_n(&shim.self, __ATOMIC_ACQUIRE);
    if (!self || !whole)
        return;
    for (int i = 0; i < VCUDA_MAX_GPUS; i++)
        __atomic_store_n(&self->gpu[i].observed_generation, __atomic_load_n(&shim.gpu[i].generation, __ATOMIC_RELAXED),
                         __ATOMIC_RELEASE);
    __atomic_store_n(&self->observed_gen, gen, __ATOMIC_RELEASE);
    __atomic_fetch_add(&shim.usage->echo, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &shim.usage->echo, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* One thread at a time: of two, the one that read older limits could write them last, and they would stay. */
void shim_refresh_slow(void)
{
    pthread_mutex_lock(&refresh_mutex);
    if (__atomic_load_n(&shim.limits->gen, __ATOMIC_ACQUIRE) != __atomic_load_n(&shim.seen_gen, __ATOMIC_RELAXED))
        refresh();
    pthread_mutex_unlock(&refresh_mutex);
}
