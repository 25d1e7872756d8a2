/* What a timing event costs the thread that records it, by the driver alone: run without the library.
 *
 * A loop of launches, of which every so many is preceded or followed by an event; each call is timed by the processor's
 * counter. Told apart are a launch, a launch right after an event, an event, and these in the first launches after a rest
 * of 6 ms, when the driver's code and data have left the caches. Once more beside a thread that asks every 5 ms for the
 * events that have passed and for their distances, as the library's watcher does. */
#include "cuda_api.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LOOPS 400
#define LAUNCHES 64
#define EVENTS 256
#define MOST (LOOPS * LAUNCHES)

static const char step_ptx[] = ".version 6.3\n"
                               ".target sm_70\n"
                               ".address_size 64\n"
                               ".visible .entry step(.param .u64 x, .param .u64 y, .param .u64 z, .param .u32 n,\n"
                               "                     .param .u32 m, .param .f32 factor)\n"
                               "{\n"
                               "    ret;\n"
                               "}\n";

enum figure { LAUNCH, LAUNCH_AFTER, EVENT, FIRST_LAUNCH, FIRST_LAUNCH_AFTER, FIRST_EVENT, FIGURES };
static const char *const names[FIGURES] = {"launch",       "launch_after_event",       "event",
                                           "first_launch", "first_launch_after_event", "first_event"};

static double samples[FIGURES][MOST];
static int counts[FIGURES];
static CUfunction kernel;
static CUstream stream;
static CUgraphExec graph;
static CUevent events[EVENTS];
static uint64_t recorded; /* number of events that were handed over */
static int stop;
static CUcontext context;

static double now(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec * 1e9 + (double)ts.tv_nsec;
}

static void launch(void)
{
    CUdeviceptr x = 0, y = 0, z = 0;
    unsigned n = 1, m = 1;
    float factor = 1;
    void *params[] = {&x, &y, &z, &n, &m, &factor};
    cuda.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, params, NULL);
}

static void launch_graph(void)
{
    cuda.cuGraphLaunch(graph, stream);
}

static void add(enum figure figure, uint64_t ticks)
{
    if (counts[figure] < MOST)
        samples[figure][counts[figure]++] = (double)ticks;
}

static void record(int first)
{
    uint64_t at = recorded, began = __builtin_ia32_rdtsc();
    cuda.cuEventRecord(events[at % EVENTS], stream);
    add(first ? FIRST_EVENT : EVENT, __builtin_ia32_rdtsc() - began);
    __atomic_store_n(&recorded, at + 1, __ATOMIC_RELEASE);
}

/* One loop: an event before the launches whose number is a multiple of `every`; 0: none. */
static void loop(void (*call)(void), int every, int rest)
{
    struct timespec pause = {0, 6000000};
    cuda.cuStreamSynchronize(stream);
    if (rest)
        nanosleep(&pause, NULL);
    for (int i = 0; i < LAUNCHES; i++) {
        int first = rest && i < 1, after = every && i % every == 0;
        if (after)
            record(first);
        uint64_t began = __builtin_ia32_rdtsc();
        call();
        uint64_t ticks = __builtin_ia32_rdtsc() - began;
        if (first)
            add(after ? FIRST_LAUNCH_AFTER : FIRST_LAUNCH, ticks);
        else
            add(after ? LAUNCH_AFTER : LAUNCH, ticks);
    }
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(const char *name, void (*call)(void), int every, int rest, double ns_per_tick)
{
    memset(counts, 0, sizeof counts);
    for (int i = 0; i < (rest ? LOOPS / 4 : LOOPS); i++)
        loop(call, every, rest);
    printf("{\"loop\":\"%s\",\"every\":%d,\"rest\":%d", name, every, rest);
    for (int figure = 0; figure < FIGURES; figure++) {
        double sum = 0;
        int n = counts[figure];
        if (!n)
            continue;
        qsort(samples[figure], (size_t)n, sizeof(double), ascending);
        for (int i = 0; i < n; i++)
            sum += samples[figure][i];
        printf(",\"%s\":[%.0f,%.0f,%.0f,%.0f]", names[figure], samples[figure][n / 2] * ns_per_tick,
               sum / n * ns_per_tick, samples[figure][n * 99 / 100] * ns_per_tick, samples[figure][0] * ns_per_tick);
    }
    puts("}");
}

/* As the library's watcher does: see shim/compute/retire.c. */
static void *ask(void *nothing)
{
    struct timespec pause = {0, 5000000};
    float milliseconds;
    cuda.cuCtxSetCurrent(context);
    for (uint64_t seen = __atomic_load_n(&recorded, __ATOMIC_ACQUIRE); !__atomic_load_n(&stop, __ATOMIC_ACQUIRE);) {
        while (seen + 1 < __atomic_load_n(&recorded, __ATOMIC_ACQUIRE) && !cuda.cuEventQuery(events[seen % EVENTS])) {
            if (seen)
                cuda.cuEventElapsedTime(&milliseconds, events[(seen - 1) % EVENTS], events[seen % EVENTS]);
            seen++;
        }
        nanosleep(&pause, NULL);
    }
    return nothing;
}

static CUresult start(const char **where)
{
    CUmodule module;
    CUgraph captured;
    CUresult error = cuda_api_start(0, &kernel, where);
    if (!error && (*where = "cuModuleLoadData"))
        error = cuda.cuModuleLoadData(&module, step_ptx);
    if (!error && (*where = "cuModuleGetFunction"))
        error = cuda.cuModuleGetFunction(&kernel, module, "step");
    if (!error && (*where = "cuStreamCreate"))
        error = cuda.cuStreamCreate(&stream, 1);
    for (int i = 0; !error && (*where = "cuEventCreate") && i < EVENTS; i++)
        error = cuda.cuEventCreate(&events[i], 0);
    if (!error && (*where = "cuStreamBeginCapture"))
        error = cuda.cuStreamBeginCapture_v2(stream, CU_CAPTURE_GLOBAL);
    for (int i = 0; !error && i < 10; i++)
        launch();
    if (!error && (*where = "cuStreamEndCapture"))
        error = cuda.cuStreamEndCapture(stream, &captured);
    if (!error && (*where = "cuGraphInstantiate"))
        error = cuda.cuGraphInstantiateWithFlags(&graph, captured, 0);
    if (!error && (*where = "cuDevicePrimaryCtxRetain"))
        error = cuda.cuDevicePrimaryCtxRetain(&context, 0);
    return error;
}

static double calibrate(void)
{
    double began = now();
    uint64_t first = __builtin_ia32_rdtsc();
    while (now() - began < 2e7)
        continue;
    return (now() - began) / (double)(__builtin_ia32_rdtsc() - first);
}

int main(void)
{
    const char *where = cuda_api_load();
    CUresult error = where ? CUDA_ERROR_NOT_FOUND : start(&where);
    pthread_t watcher;
    if (error)
        return fprintf(stderr, "bench_events: %s failed (%d)\n", where, error), 1;
    double ns_per_tick = calibrate();
    cpu_set_t all;
    sched_getaffinity(0, sizeof all, &all);
    for (int beside = 0; beside < 2; beside++) {
        if (beside) {
            sched_setaffinity(0, sizeof all, &all);
            pthread_create(&watcher, NULL, ask, NULL);
        }
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(sched_getcpu(), &one);
        sched_setaffinity(0, sizeof one, &one);
        for (int rest = 0; rest < 2; rest++)
            for (int every = 0; every <= 32; every = every ? every * 2 : 8) {
                measure(beside ? "launch beside a watcher" : "launch", launch, every, rest, ns_per_tick);
                measure(beside ? "graph beside a watcher" : "graph", launch_graph, every, rest, ns_per_tick);
            }
    }
    __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
    pthread_join(watcher, NULL);
    return 0;
}
