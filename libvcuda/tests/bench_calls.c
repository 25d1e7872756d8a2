/* What a call costs, to a few nanoseconds: run with and without the shim, turn by turn, and compared by benchmarks/shim.
 *
 * Each figure is told twice: the median over many short loops, which is what a program meets, and the least, which
 * disturbances of the machine do not reach. Loops are shorter than the driver's queue (a full queue measures the GPU), the
 * thread stays on one processor, and everything has been called before it is timed. The kernel has the parameters that a
 * real one has (an elementwise operation: three tensors, two sizes, a factor) and ends at once.
 *
 * Processes differ from one another by more than a launch may cost. So a process with the shim also measures what it adds
 * within the process: a loop of hooked calls and one of the driver's own, in turn.
 */
#include "cuda_api.h"
#include "inside.h"
#include "real.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MOST_ROUNDS 255
#define LIVE 10000
#define REST_NS 6000000

static const char usage[] =
    "usage: bench_calls [--began NS] [--cpu N] [--share N] [--only CALL]\n\n"
    "Prints one JSON object: nanoseconds a call, [median, least] of many short loops, of a kernel launch, a graph "
    "launch\n"
    "and pairs of allocating and freeing; and the time from the start of the process to its first context.\n"
    "With the shim also added_CALL: what it adds to CALL within this process, [median, standard error].\n"
    "  --began NS   CLOCK_MONOTONIC at which this process was started (default: the start of main)\n"
    "  --cpu N      the processor to stay on (default: the one it starts on)\n"
    "  --share N    run one loop in so many\n"
    "  --only CALL  measure one call, in five times as many loops\n";

static const char step_ptx[] = ".version 6.3\n"
                               ".target sm_70\n"
                               ".address_size 64\n"
                               ".visible .entry step(.param .u64 x, .param .u64 y, .param .u64 z, .param .u32 n,\n"
                               "                     .param .u32 m, .param .f32 factor)\n"
                               "{\n"
                               "    ret;\n"
                               "}\n";

static CUfunction step;
static CUstream stream;
static CUgraphExec graph;

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
    cuda.cuLaunchKernel(step, 1, 1, 1, 32, 1, 1, 0, stream, params, NULL);
}

static void launch_graph(void)
{
    cuda.cuGraphLaunch(graph, stream);
}

static void launch_and_wait(void)
{
    launch();
    cuda.cuStreamSynchronize(stream);
}

static void plain_pair(void)
{
    CUdeviceptr p;
    if (!cuda.cuMemAlloc_v2(&p, 2 << 20))
        cuda.cuMemFree_v2(p);
}

static void small_pair(void)
{
    CUdeviceptr p;
    if (!cuda.cuMemAlloc_v2(&p, 512))
        cuda.cuMemFree_v2(p);
}

static void async_pair(void)
{
    CUdeviceptr p;
    if (!cuda.cuMemAllocAsync(&p, 4096, stream))
        cuda.cuMemFreeAsync(p, stream);
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* A limited process has its whole credit again after this, so a loop never waits for credit: only calls are measured. */
static void rest_between_loops(void)
{
    struct timespec ts = {0, REST_NS};
    cuda.cuStreamSynchronize(stream);
    nanosleep(&ts, NULL);
}

/* Nanoseconds a call, the stream empty before. */
static double loop(void (*call)(void), int count)
{
    rest_between_loops();
    for (int i = 0; i < count / 20; i++)
        call();
    double begin = now();
    for (int i = 0; i < count; i++)
        call();
    return (now() - begin) / count;
}

/* Of the loops one in so many is run: enough to see that each call can be measured. */
static int share = 1;
static const char *only; /* the one call that is measured; NULL: all */

static int is_chosen(const char *name)
{
    return !only || !strcmp(only, name);
}

static int rounds_of(int rounds)
{
    rounds = only ? 5 * rounds : (rounds + share - 1) / share;
    return rounds < MOST_ROUNDS ? rounds : MOST_ROUNDS;
}

/* `rounds` loops of `count` calls; the first loop warms up. */
static void measure(const char *name, void (*call)(void), int rounds, int count)
{
    double each[MOST_ROUNDS];
    if (!is_chosen(name))
        return;
    rounds = rounds_of(rounds);
    for (int round = -1; round < rounds; round++) {
        double took = loop(call, count);
        if (round >= 0)
            each[round] = took;
    }
    cuda.cuStreamSynchronize(stream);
    qsort(each, (size_t)rounds, sizeof *each, ascending);
    printf(",\"%s\":[%.1f,%.1f]", name, each[rounds / 2], each[0]);
}

/* The same of hooked calls and of the driver's own in turn: what the hooks add. Nothing without the shim. */
static void compare(const char *name, void (*call)(void), int rounds, int count)
{
    const struct real_cuda *driver = inside_find("real");
    struct cuda_api hooked = cuda, bare = cuda;
    double each[MOST_ROUNDS], sum = 0, squares = 0;
    if (!driver || !driver->cuLaunchKernel || !is_chosen(name))
        return;
    bare.cuLaunchKernel = driver->cuLaunchKernel;
    bare.cuGraphLaunch = driver->cuGraphLaunch;
    bare.cuStreamSynchronize = driver->cuStreamSynchronize;
    rounds = rounds_of(rounds);
    for (int round = -1; round < rounds; round++) {
        double took[2];
        for (int i = 0; i < 2; i++) {
            int is_bare = (i + round) & 1;
            cuda = is_bare ? bare : hooked;
            took[is_bare] = loop(call, count);
        }
        if (round >= 0)
            each[round] = took[0] - took[1];
    }
    cuda = hooked;
    cuda.cuStreamSynchronize(stream);
    qsort(each, (size_t)rounds, sizeof *each, ascending);
    for (int i = 0; i < rounds; i++)
        sum += each[i];
    for (int i = 0; i < rounds; i++)
        squares += (each[i] - sum / rounds) * (each[i] - sum / rounds);
    printf(",\"added_%s\":[%.1f,%.1f]", name, each[rounds / 2], sqrt(squares / rounds / rounds));
}

static int make_graph(void)
{
    CUgraph captured;
    if (cuda.cuStreamBeginCapture_v2(stream, CU_CAPTURE_GLOBAL))
        return 0;
    for (int i = 0; i < 10; i++)
        launch();
    return !cuda.cuStreamEndCapture(stream, &captured) && !cuda.cuGraphInstantiateWithFlags(&graph, captured, 0);
}

static int parse(int argc, char **argv, double *began, int *cpu)
{
    for (int i = 1; i < argc; i += 2) {
        if (!strcmp(argv[i], "--help"))
            return fputs(usage, stdout), 0;
        if (i + 1 < argc && !strcmp(argv[i], "--began"))
            *began = strtod(argv[i + 1], NULL);
        else if (i + 1 < argc && !strcmp(argv[i], "--cpu"))
            *cpu = atoi(argv[i + 1]);
        else if (i + 1 < argc && !strcmp(argv[i], "--share") && atoi(argv[i + 1]) > 0)
            share = atoi(argv[i + 1]);
        else if (i + 1 < argc && !strcmp(argv[i], "--only"))
            only = argv[i + 1];
        else
            return fputs(usage, stderr), 0;
    }
    return 1;
}

static CUresult start(const char **where)
{
    CUmodule module;
    CUresult error = cuda_api_start(0, &step, where);
    if (!error && (*where = "cuModuleLoadData"))
        error = cuda.cuModuleLoadData(&module, step_ptx);
    if (!error && (*where = "cuModuleGetFunction"))
        error = cuda.cuModuleGetFunction(&step, module, "step");
    if (!error && (*where = "cuStreamCreate"))
        error = cuda.cuStreamCreate(&stream, 1);
    return error;
}

static void keep_pool(void)
{
    CUmemoryPool pool;
    uint64_t keep = UINT64_MAX;
    if (!cuda.cuDeviceGetDefaultMemPool(&pool, 0))
        cuda.cuMemPoolSetAttribute(pool, CU_POOL_RELEASE_THRESHOLD, &keep);
}

int main(int argc, char **argv)
{
    double began = now();
    int cpu = sched_getcpu();
    if (!parse(argc, argv, &began, &cpu))
        return 2;
    const char *where = cuda_api_load();
    CUresult error = where ? CUDA_ERROR_NOT_FOUND : start(&where);
    if (error)
        return fprintf(stderr, "bench_calls: %s failed (%d)\n", where, error), 1;
    printf("{\"start_ns\":%.0f", now() - began);
    /* After the start: threads that the driver and the shim have begun keep the other processors. */
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
    keep_pool();
    measure("launch", launch, 101, 500);
    compare("launch", launch, 51, 500);
    measure("launch_and_wait", launch_and_wait, 51, 100);
    compare("launch_and_wait", launch_and_wait, 51, 100);
    if (make_graph()) {
        measure("graph_launch", launch_graph, 51, 60);
        compare("graph_launch", launch_graph, 51, 60);
    }
    measure("malloc_2mib", plain_pair, 41, 50);
    measure("async_pair", async_pair, 51, 1000);
    measure("small_pair", small_pair, 51, 500);
    for (int i = 0; i < LIVE; i++) {
        CUdeviceptr p;
        cuda.cuMemAlloc_v2(&p, 512);
    }
    measure("small_pair_10000_live", small_pair, 51, 500);
    puts("}");
    return 0;
}
