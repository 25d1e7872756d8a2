/* What the library costs a program that allocates and frees all the time with cudaMallocAsync, measured within one process.
 *
 * Each step frees one of the kept blocks, allocates another one of a random size and launches a kernel on it. After every
 * 16 steps the program waits for an event, as a training loop does; after every 64 it waits for the GPU and returns the
 * pool's memory to it (torch.cuda.empty_cache()). Windows of such steps alternate between modes: the driver's own functions
 * with the library inert, the same with the library's account of the kernel's calls only, one kind of hooked call at a
 * time, and all of them. Each window begins and ends without any block, so nothing that was charged is freed unseen.
 *
 * The kernel ends at once: the program must be slower than the GPU, or the GPU would hide what the library costs. */
#include "cuda_api.h"
#include "inside.h"
#include "real.h"
#include "shim.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define KEPT 32
#define EMPTY_EVERY 64
#define WAIT_EVERY 16
#define DEPTH 4
#define STEPS 1024
#define MOST_ROUNDS 401
#define MIB 1048576u

static const char usage[] =
    "usage: bench_churn [--rounds N] [--cpu N]\n\n"
    "Prints one JSON object: nanoseconds a step of the bare driver, [median, least]; and for each mode what it adds to "
    "a\n"
    "step, [median, its standard error]; and the same for each kind of call: alloc, free, launch, wait, empty.\n"
    "Needs the library with a claim; without it, only the bare figures are printed.\n";

static const char step_ptx[] = ".version 6.3\n"
                               ".target sm_70\n"
                               ".address_size 64\n"
                               ".visible .entry step(.param .u64 x, .param .u64 n, .param .u32 value)\n"
                               "{\n"
                               "    ret;\n"
                               "}\n";

enum call { ALLOC, FREE, LAUNCH, WAIT, EMPTY, CALLS };
static const char *const call_names[CALLS] = {"alloc", "free", "launch", "wait", "empty"};

enum mode { BARE, KERNEL, WITH_ALLOC, WITH_LAUNCH, WITH_WAIT, ALL, MODES };
static const char *const mode_names[MODES] = {"bare", "kernel", "alloc", "launch", "wait", "all"};

static struct window {
    double step, call[CALLS]; /* ns a step; of that in each kind of call */
} windows[MODES][MOST_ROUNDS];

static CUfunction step_kernel;
static CUstream stream;
static CUmemoryPool pool;
static CUevent marks[DEPTH];
static unsigned seed = 1;
static CUdeviceptr kept[KEPT];
static uint64_t ticks[CALLS];

static double now(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec * 1e9 + (double)ts.tv_nsec;
}

static uint64_t tick(void)
{
    return __builtin_ia32_rdtsc();
}

static void wait_and_empty(void)
{
    cuda.cuCtxSynchronize();
    cuda.cuMemPoolTrimTo(pool, 0);
}

static void one_step(unsigned number)
{
    unsigned at = (unsigned)rand_r(&seed) % KEPT, bytes = (unsigned)rand_r(&seed) % (32 * MIB) + 1, value = 1;
    uint64_t size = bytes, began = tick(), freed, allocated;
    if (kept[at])
        cuda.cuMemFreeAsync(kept[at], stream);
    freed = tick();
    if (cuda.cuMemAllocAsync(&kept[at], bytes, stream))
        kept[at] = 0;
    allocated = tick();
    void *params[] = {&kept[at], &size, &value};
    cuda.cuLaunchKernel(step_kernel, 1 + bytes / MIB, 1, 1, 128, 1, 1, 0, stream, params, NULL);
    uint64_t launched = tick();
    ticks[FREE] += freed - began;
    ticks[ALLOC] += allocated - freed;
    ticks[LAUNCH] += launched - allocated;
    if (number % WAIT_EVERY == 0) {
        CUevent mark = marks[number / WAIT_EVERY % DEPTH];
        began = tick();
        cuda.cuEventSynchronize(mark);
        ticks[WAIT] += tick() - began;
        cuda.cuEventRecord(mark, stream);
    }
    if (number % EMPTY_EVERY == 0) {
        began = tick();
        wait_and_empty();
        ticks[EMPTY] += tick() - began;
    }
}

static void free_all(void)
{
    for (int i = 0; i < KEPT; i++) {
        if (kept[i])
            cuda.cuMemFreeAsync(kept[i], stream);
        kept[i] = 0;
    }
    wait_and_empty();
}

static void use(enum mode mode, const struct cuda_api *hooked, const struct real_cuda *driver, struct shim *library)
{
    int active = mode != BARE;
    cuda = *hooked;
    if (!driver)
        return;
    if (mode != ALL && mode != WITH_ALLOC) {
        cuda.cuMemAllocAsync = driver->cuMemAllocAsync;
        cuda.cuMemFreeAsync = driver->cuMemFreeAsync;
    }
    if (mode != ALL && mode != WITH_LAUNCH)
        cuda.cuLaunchKernel = driver->cuLaunchKernel;
    if (mode != ALL && mode != WITH_WAIT) {
        cuda.cuCtxSynchronize = driver->cuCtxSynchronize;
        cuda.cuEventSynchronize = driver->cuEventSynchronize;
        cuda.cuMemPoolTrimTo = driver->cuMemPoolTrimTo;
    }
    __atomic_store_n(&library->mode, active ? SHIM_ACTIVE : SHIM_INERT, __ATOMIC_SEQ_CST);
    __atomic_fetch_add(&library->hot_epoch, 1, __ATOMIC_SEQ_CST);
}

/* Every window makes the same steps, so that the modes allocate the same sizes in the same order. */
static struct window run(double ns_per_tick)
{
    struct window found;
    seed = 1;
    for (unsigned i = 1; i <= STEPS / 4; i++)
        one_step(i);
    memset(ticks, 0, sizeof ticks);
    double began = now();
    for (unsigned i = 1; i <= STEPS; i++)
        one_step(i);
    found.step = (now() - began) / STEPS;
    for (int call = 0; call < CALLS; call++)
        found.call[call] = (double)ticks[call] * ns_per_tick / STEPS;
    free_all();
    return found;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double field(const struct window *w, int call)
{
    return call < 0 ? w->step : w->call[call];
}

/* Print [median, its standard error] of what a mode adds to a step, or to its calls of one kind. The error is that of
 * normal differences with the same median deviation: single windows of a busy machine take several times as long. */
static void print_added(enum mode mode, int call, int rounds)
{
    double each[MOST_ROUNDS], apart[MOST_ROUNDS];
    for (int i = 0; i < rounds; i++)
        each[i] = field(&windows[mode][i], call) - field(&windows[BARE][i], call);
    qsort(each, (size_t)rounds, sizeof *each, ascending);
    for (int i = 0; i < rounds; i++)
        apart[i] = fabs(each[i] - each[rounds / 2]);
    qsort(apart, (size_t)rounds, sizeof *apart, ascending);
    printf("[%.1f,%.1f]", each[rounds / 2], 1.2533 * 1.4826 * apart[rounds / 2] / sqrt(rounds));
}

static void print_bare(int rounds)
{
    double each[MOST_ROUNDS];
    for (int call = -1; call < CALLS; call++) {
        for (int i = 0; i < rounds; i++)
            each[i] = field(&windows[BARE][i], call);
        qsort(each, (size_t)rounds, sizeof *each, ascending);
        printf("%s\"%s\":[%.1f,%.1f]", call < 0 ? "{\"bare\":{" : ",", call < 0 ? "step" : call_names[call],
               each[rounds / 2], each[0]);
    }
    printf("}");
}

static CUresult start(const char **where)
{
    CUmodule module;
    CUresult error = cuda_api_start(0, &step_kernel, where);
    uint64_t keep = UINT64_MAX;
    if (!error && (*where = "cuModuleLoadData"))
        error = cuda.cuModuleLoadData(&module, step_ptx);
    if (!error && (*where = "cuModuleGetFunction"))
        error = cuda.cuModuleGetFunction(&step_kernel, module, "step");
    if (!error && (*where = "cuStreamCreate"))
        error = cuda.cuStreamCreate(&stream, 1);
    for (int i = 0; !error && (*where = "cuEventCreate") && i < DEPTH; i++)
        error = cuda.cuEventCreate(&marks[i], 2);
    if (!error && (*where = "cuDeviceGetDefaultMemPool"))
        error = cuda.cuDeviceGetDefaultMemPool(&pool, 0);
    if (!error && (*where = "cuMemPoolSetAttribute"))
        error = cuda.cuMemPoolSetAttribute(pool, CU_POOL_RELEASE_THRESHOLD, &keep);
    return error;
}

/* Return the length of a tick. */
static double calibrate(void)
{
    double began = now();
    uint64_t first = tick();
    while (now() - began < 2e7)
        continue;
    return (now() - began) / (double)(tick() - first);
}

int main(int argc, char **argv)
{
    int rounds = 41, cpu = -1;
    for (int i = 1; i < argc; i += 2) {
        if (i + 1 == argc || (strcmp(argv[i], "--rounds") && strcmp(argv[i], "--cpu")))
            return fputs(usage, strcmp(argv[i], "--help") ? stderr : stdout), strcmp(argv[i], "--help") ? 2 : 0;
        *(strcmp(argv[i], "--cpu") ? &rounds : &cpu) = atoi(argv[i + 1]);
    }
    rounds = rounds < 1 ? 1 : rounds > MOST_ROUNDS ? MOST_ROUNDS : rounds;
    const char *where = cuda_api_load();
    CUresult error = where ? CUDA_ERROR_NOT_FOUND : start(&where);
    if (error)
        return fprintf(stderr, "bench_churn: %s failed (%d)\n", where, error), 1;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu < 0 ? sched_getcpu() : cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
    struct cuda_api hooked = cuda;
    const struct real_cuda *driver = inside_find("real");
    struct shim *library = inside_find("shim");
    int modes = driver && driver->cuLaunchKernel && library && library->self ? MODES : 1;
    double ns_per_tick = calibrate();
    for (int round = -1; round < rounds; round++)
        for (int i = 0; i < modes; i++) {
            enum mode mode = (enum mode)(round % 2 ? i : modes - 1 - i);
            use(mode, &hooked, modes > 1 ? driver : NULL, library);
            struct window found = run(ns_per_tick);
            if (round >= 0)
                windows[mode][round] = found;
        }
    print_bare(rounds);
    for (int mode = KERNEL; mode < modes; mode++) {
        printf(",\"%s\":{\"step\":", mode_names[mode]);
        print_added((enum mode)mode, -1, rounds);
        for (int call = 0; call < CALLS; call++) {
            printf(",\"%s\":", call_names[call]);
            print_added((enum mode)mode, call, rounds);
        }
        printf("}");
    }
    puts("}");
    return 0;
}
