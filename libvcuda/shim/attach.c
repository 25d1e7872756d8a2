/* Joining the claim: pages, slot, cached limits, and what a fork changes. */
#include "kernel.h"
#include "shim.h"

#include <errno.h>
#include <linux/futex.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef VCUDA_REQUIRE_FILE
#define VCUDA_REQUIRE_FILE "/etc/gpucloud/require-limits"
#endif
#define MAX_DEVICES 64

#include "compat.h"
#include "meter.h"
#include "refusal.h"

struct shim shim = {.hot_epoch = 1, .ns_per_tick = 1ull << 31};

/* Both clocks are read to some ten nanoseconds, so the rate is right to one part in ten thousand. */
#define CALIBRATE_NS 200000
static pthread_mutex_t attach_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t refresh_mutex = PTHREAD_MUTEX_INITIALIZER;
static int8_t device_slot[MAX_DEVICES]; /* slot + 1; 0: not looked up */

static char turns_path[PATH_MAX];

/* Map the pages of the claim; SHIM_ACTIVE, or SHIM_REFUSED with the reason noted. */
static int open_pages(const char *directory)
{
    char path[PATH_MAX];
    struct vcuda_limits *limits;
    int error = -ENAMETOOLONG;
    if (snprintf(path, sizeof path, "%s/" VCUDA_LIMITS_FILE, directory) < (int)sizeof path)
        error = vcuda_limits_open(path, 0, &limits);
    if (error) {
        refusal_note_page(path, error);
        return SHIM_REFUSED;
    }
    snprintf(path, sizeof path, "%s/" VCUDA_USAGE_FILE, directory);
    error = vcuda_usage_open(path, 1, &shim.usage);
    if (error) {
        vcuda_limits_unmap(limits);
        refusal_note_page(path, error);
        return SHIM_REFUSED;
    }
    shim.limits = limits;
    snprintf(turns_path, sizeof turns_path, "%s/" VCUDA_TURNS_FILE, directory);
    shim_find_turns();
    return SHIM_ACTIVE;
}

void shim_find_turns(void)
{
    struct vcuda_turns *turns;
    if (shim.turns || !*turns_path || vcuda_turns_open(turns_path, 0, &turns) != 0)
        return;
    __atomic_store_n(&shim.turns, turns, __ATOMIC_RELEASE);
    shim_cool();
}

#ifdef __x86_64__
struct moment {
    uint64_t tick, ns;
};

/* Both clocks, read next to each other: of some tries the one that nothing came between. */
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

/* Once, before anything is measured: a rate that is corrected later makes the clock jump, and every lane's time with it. */
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

static void in_child(void);

/* A program that names a claim runs under its limits or not at all: pages are damaged by tenants, too. */
static int choose_mode(void)
{
    const char *directory = getenv(VCUDA_CLAIM_DIR_ENV);
    if (directory && *directory)
        return open_pages(directory);
    if (access(VCUDA_REQUIRE_FILE, F_OK) == 0) {
        refusal_note_required(VCUDA_REQUIRE_FILE);
        return SHIM_REFUSED;
    }
    int mode = compat_prepare(&directory);
    return mode == SHIM_ACTIVE ? open_pages(directory) : mode;
}

int shim_mode_slow(void)
{
    pthread_mutex_lock(&attach_mutex);
    if (shim.mode == SHIM_UNKNOWN) {
        int mode = choose_mode();
        if (mode == SHIM_ACTIVE)
            pthread_atfork(NULL, NULL, in_child);
        __atomic_store_n(&shim.mode, mode, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&attach_mutex);
    return shim.mode;
}

/* A forked child is a process of its own: it needs its own slot and watcher, and holds none of the parent's memory. */
static void in_child(void)
{
    pthread_mutex_init(&attach_mutex, NULL);
    pthread_mutex_init(&refresh_mutex, NULL);
    shim.self = NULL;
    shim.seen_gen = 0;
    shim.captures = 0;
    shim.contexts_made = 0;
    memset(shim.gpu, 0, sizeof shim.gpu);
    memset(device_slot, 0, sizeof device_slot);
    shim.accounting = VCUDA_ACCOUNTING_UNKNOWN;
    shim.managed_blocks = 0;
    shim.memory_begun = shim.memory_ended = 0;
    table_forget(&table_blocks);
    account_forget_pools();
    account_forget_physical();
    account_forget_contexts();
    kernel_forget();
    meter_forget_all();
    watcher_forget();
}

int shim_attach(void)
{
    if (__atomic_load_n(&shim.self, __ATOMIC_ACQUIRE))
        return 1;
    pthread_mutex_lock(&attach_mutex);
    if (!shim.self) {
        /* What a killed predecessor left counts as used until somebody clears it: the next process does. */
        vcuda_usage_reap_dead(shim.usage);
        /* So does a program that replaced itself by another (exec): same process, but nothing of the old one is left. */
        uint64_t pidns = pages_pidns(), begun = pages_start_time((uint32_t)getpid());
        if (pidns && begun && begun != PAGES_NOT_KNOWN)
            vcuda_usage_reap(shim.usage, pidns, (uint32_t)getpid(), begun);
        int slot = pages_slot_take(shim.usage);
        if (slot >= 0) {
            calibrate();
            shim.seen_gen = __atomic_load_n(&shim.limits->gen, __ATOMIC_ACQUIRE) - 1;
            __atomic_store_n(&shim.self, &shim.usage->process[slot], __ATOMIC_RELEASE);
        }
    }
    pthread_mutex_unlock(&attach_mutex);
    if (!__atomic_load_n(&shim.self, __ATOMIC_ACQUIRE))
        return 0;
    shim_refresh();
    watcher_start();
    return 1;
}

static void refresh(void)
{
    uint32_t gen = __atomic_load_n(&shim.limits->gen, __ATOMIC_ACQUIRE);
    int whole = 1, closed = 0, open = 0;
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
        if (alone < 100 && before >= 100)
            __atomic_store_n(&gpu->limited_since_ns, shim_now(), __ATOMIC_RELAXED);
        __atomic_store_n(&gpu->core_limit, alone, __ATOMIC_RELAXED);
        __atomic_store_n(&gpu->generation, limit.generation, __ATOMIC_RELAXED);
        __atomic_store_n(&gpu->state, limit.state, __ATOMIC_RELEASE);
        closed |= limit.state == VCUDA_SLOT_CLOSED;
        open += limit.state == VCUDA_SLOT_OPEN;
    }
    __atomic_store_n(&shim.closed, closed, __ATOMIC_RELAXED);
    __atomic_store_n(&shim.gpus_open, open, __ATOMIC_RELAXED);
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

/* One thread at a time: of two, the one that read older limits could write them last, and nobody would look again. */
void shim_refresh_slow(void)
{
    pthread_mutex_lock(&refresh_mutex);
    if (__atomic_load_n(&shim.limits->gen, __ATOMIC_ACQUIRE) != __atomic_load_n(&shim.seen_gen, __ATOMIC_RELAXED))
        refresh();
    pthread_mutex_unlock(&refresh_mutex);
}

int shim_uuid_of_device(CUdevice device, uint8_t uuid[16])
{
    CUuuid found;
    CUresult result = CUDA_ERROR_NOT_FOUND;
    /* The second version names a MIG instance where the device is one. */
    if (real.cuDeviceGetUuid_v2)
        result = real.cuDeviceGetUuid_v2(&found, device);
    else if (real.cuDeviceGetUuid)
        result = real.cuDeviceGetUuid(&found, device);
    if (!result)
        memcpy(uuid, found.bytes, 16);
    return !result;
}

int shim_slot_of_device(CUdevice device)
{
    if (device < 0 || device >= MAX_DEVICES)
        return -1;
    int known = __atomic_load_n(&device_slot[device], __ATOMIC_RELAXED);
    if (known)
        return known - 1;
    uint8_t uuid[16];
    int named = shim_uuid_of_device(device, uuid);
    for (uint32_t i = 0; named && i < VCUDA_MAX_GPUS; i++) {
        struct vcuda_limit limit;
        if (vcuda_limits_get(shim.limits, i, &limit) == 0 && limit.state != VCUDA_SLOT_UNUSED &&
            memcmp(limit.gpu_uuid, uuid, 16) == 0) {
            __atomic_store_n(&device_slot[device], (int8_t)(i + 1), __ATOMIC_RELAXED);
            return (int)i;
        }
    }
    return -1;
}

int shim_slot_of_current(CUcontext *context)
{
    static _Thread_local struct {
        CUcontext context;
        unsigned epoch;
        int slot;
    } last;
    CUcontext current = NULL;
    if (real.cuCtxGetCurrent(&current) || !current)
        return -2;
    if (context)
        *context = current;
    unsigned epoch = __atomic_load_n(&shim.context_epoch, __ATOMIC_RELAXED);
    if (last.context == current && last.epoch == epoch)
        return last.slot;
    CUdevice device;
    if (real.cuCtxGetDevice(&device))
        return -2;
    int slot = shim_slot_of_device(device);
    if (slot >= 0) {
        last.context = current;
        last.epoch = epoch;
        last.slot = slot;
    }
    return slot;
}
