/* Roles about compute: known loads, graphs, captures. */
#include "cuda_api.h"
#include "harness.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static CUfunction spin;
static CUstream stream;
static CUcontext context;

static int start(void)
{
    const char *where = cuda_api_load();
    return !where && !cuda_api_start(0, &spin, &where) && !cuda.cuStreamCreate(&stream, 1) &&
           !cuda.cuDevicePrimaryCtxRetain(&context, 0);
}

/* Keep up to four kernels in flight, or one with `sync`; say the share of each window of `window` seconds. */
static int load(uint64_t ns, int sync, double seconds, double window)
{
    CUevent marks[4];
    if (!start())
        return 1;
    for (int i = 0; i < 4; i++)
        cuda.cuEventCreate(&marks[i], 2);
    uint64_t launched = 0, counted = 0;
    double begin = now_s(), last = begin;
    CUresult error = CUDA_SUCCESS;
    while (!error && now_s() < begin + seconds) {
        if (launched >= 4)
            error = cuda.cuEventSynchronize(marks[launched % 4]);
        error = error ? error : cuda_spin(spin, 1, ns, stream);
        error = error ? error : cuda.cuEventRecord(marks[launched % 4], stream);
        launched++;
        if (sync)
            error = error ? error : cuda.cuStreamSynchronize(stream);
        uint64_t finished = sync || launched < 4 ? launched : launched - 3;
        double now = now_s();
        if (now - last >= window) {
            printf("at %.6f\nshare %.3f\n", now, 100 * (double)(finished - counted) * (double)ns / 1e9 / (now - last));
            fflush(stdout);
            last = now;
            counted = finished;
        }
    }
    cuda.cuCtxSynchronize();
    printf("error %d\nkernels %llu\noverall %.3f\n", error, (unsigned long long)launched,
           100 * (double)launched * (double)ns / 1e9 / (now_s() - begin));
    return 0;
}

/* The same kernel on two streams at once: the claim's GPU time is the union. */
static int two_streams(uint64_t ns, double seconds)
{
    CUstream other;
    if (!start() || cuda.cuStreamCreate(&other, 1))
        return 1;
    uint64_t rounds = 0;
    double begin = now_s();
    while (now_s() < begin + seconds) {
        cuda_spin(spin, 1, ns, stream);
        cuda_spin(spin, 1, ns, other);
        cuda.cuCtxSynchronize();
        rounds++;
    }
    printf("rounds_share %.3f\n", 100 * (double)rounds * (double)ns / 1e9 / (now_s() - begin));
    return 0;
}

/* Replay a graph of four such kernels, two in flight. */
static int graph_load(uint64_t ns, double seconds)
{
    CUgraph graph;
    CUgraphExec exec;
    CUevent marks[2];
    if (!start() || cuda.cuStreamBeginCapture_v2(stream, CU_CAPTURE_GLOBAL))
        return 1;
    for (int i = 0; i < 4; i++)
        cuda_spin(spin, 1, ns, stream);
    if (cuda.cuStreamEndCapture(stream, &graph) || cuda.cuGraphInstantiateWithFlags(&exec, graph, 0) ||
        cuda.cuEventCreate(&marks[0], 2) || cuda.cuEventCreate(&marks[1], 2))
        return 1;
    int launched = 0;
    CUresult error = CUDA_SUCCESS;
    double begin = now_s();
    for (; !error && now_s() < begin + seconds; launched++) {
        error = launched >= 2 ? cuda.cuEventSynchronize(marks[launched % 2]) : CUDA_SUCCESS;
        error = error ? error : cuda.cuGraphLaunch(exec, stream);
        error = error ? error : cuda.cuEventRecord(marks[launched % 2], stream);
    }
    cuda.cuCtxSynchronize();
    printf("error %d\ngraph_share %.3f\n", error, 400 * launched * (double)ns / 1e9 / (now_s() - begin));
    return 0;
}

static _Atomic int background_ends;

static void *background(void *nothing)
{
    int mode = CU_CAPTURE_RELAXED;
    CUstream own;
    cuda.cuCtxSetCurrent(context);
    /* A thread that knows of the capture says so; the shim must do that for itself. */
    __typeof__(cuThreadExchangeStreamCaptureMode) *exchange =
        (__typeof__(exchange))dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuThreadExchangeStreamCaptureMode");
    exchange(&mode);
    cuda.cuStreamCreate(&own, 1);
    while (!background_ends) {
        cuda_spin(spin, 1, 200000, own);
        cuda.cuStreamSynchronize(own);
    }
    return nothing;
}

/* Capture under GLOBAL mode while another thread launches, is limited and measured; then replay the graph. */
static int capture(void)
{
    CUstream second;
    CUevent fork_event;
    CUgraph graph;
    CUgraphExec exec;
    pthread_t thread;
    if (!start() || cuda.cuStreamCreate(&second, 1) || cuda.cuEventCreate(&fork_event, 2))
        return 1;
    pthread_create(&thread, NULL, background, NULL);
    int bad = 0, made = 0;
    for (int round = 0; round < 20; round++) {
        bad += cuda.cuStreamBeginCapture_v2(stream, CU_CAPTURE_GLOBAL) != 0;
        for (int i = 0; i < 100; i++)
            bad += cuda_spin(spin, 1, 10000, stream) != 0;
        bad += cuda.cuEventRecord(fork_event, stream) || cuda.cuStreamWaitEvent(second, fork_event, 0);
        bad += cuda_spin(spin, 1, 10000, second) != 0;
        bad += cuda.cuEventRecord(fork_event, second) || cuda.cuStreamWaitEvent(stream, fork_event, 0);
        pause_s(0.01);
        CUresult ended = cuda.cuStreamEndCapture(stream, &graph);
        bad += ended != 0;
        made += ended == 0 && cuda.cuGraphInstantiateWithFlags(&exec, graph, 0) == 0;
    }
    background_ends = 1;
    pthread_join(thread, NULL);
    int replayed = 0;
    double begin = now_s();
    for (; made && now_s() < begin + 1.5; replayed++)
        bad += cuda.cuGraphLaunch(exec, stream) || cuda.cuStreamSynchronize(stream);
    printf("bad %d\nmade %d\ngraph_share %.3f\n", bad, made, 100 * replayed * 1.01e-3 / (now_s() - begin));
    return 0;
}

static pthread_barrier_t both;

static void *launch_with_other(void *rounds)
{
    cuda.cuCtxSetCurrent(context);
    for (int i = 0; i < *(int *)rounds; i++) {
        pthread_barrier_wait(&both);
        cuda_spin(spin, 1, 100000, stream);
        pthread_barrier_wait(&both);
    }
    return NULL;
}

/* Two threads launch into one stream at the same moment, and then nothing for a while: how often something stays in flight. */
static int one_stream(int rounds)
{
    struct vcuda_usage *usage;
    struct vcuda_totals totals;
    char path[300];
    pthread_t thread;
    int left = 0;
    snprintf(path, sizeof path, "%s/" VCUDA_USAGE_FILE, getenv(VCUDA_CLAIM_DIR_ENV));
    if (!start() || vcuda_usage_open(path, 0, &usage) || pthread_barrier_init(&both, NULL, 2))
        return 1;
    for (int i = 0; i < 8; i++)
        cuda_spin(spin, 1, 100000, stream);
    pthread_create(&thread, NULL, launch_with_other, &rounds);
    for (int i = 0; i < rounds; i++) {
        pthread_barrier_wait(&both);
        cuda_spin(spin, 1, 100000, stream);
        pthread_barrier_wait(&both);
        cuda.cuStreamSynchronize(stream);
        pause_s(0.02);
        vcuda_usage_totals(usage, 0, &totals);
        left += totals.inflight_ns != 0;
    }
    pthread_join(thread, NULL);
    printf("left %d\n", left);
    return 0;
}

/* Launch the same kernel for so long, waiting for each; how many. */
static uint64_t launch_for(double seconds, uint64_t ns)
{
    uint64_t launched = 0;
    for (double end = now_s() + seconds; now_s() < end; launched++) {
        cuda_spin(spin, 1, ns, stream);
        cuda.cuStreamSynchronize(stream);
    }
    return launched;
}

/* The same kernel with as many blocks takes another time from some moment on; after `seconds` the page is compared. */
static int changed_kernel(uint64_t before_ns, uint64_t after_ns, double seconds)
{
    struct vcuda_usage *usage;
    struct vcuda_totals from, to;
    char path[300];
    snprintf(path, sizeof path, "%s/" VCUDA_USAGE_FILE, getenv(VCUDA_CLAIM_DIR_ENV));
    if (!start() || vcuda_usage_open(path, 0, &usage))
        return 1;
    launch_for(2, before_ns);
    launch_for(seconds, after_ns);
    vcuda_usage_totals(usage, 0, &from);
    double begin = now_s();
    uint64_t launched = launch_for(1.5, after_ns);
    vcuda_usage_totals(usage, 0, &to);
    double ns = (now_s() - begin) * 1e9;
    printf("page %.3f\nown %.3f\n", 100 * (double)(to.gpu_time_ns - from.gpu_time_ns) / ns,
           100 * (double)(launched * after_ns) / ns);
    return 0;
}

/* Under a limit that lets nothing run: a kernel of NCCL's name goes. */
static int collective(void)
{
    CUfunction nccl;
    if (!start() || cuda.cuModuleGetFunction(&nccl, cuda_module, "_Z11ncclSpin_ns"))
        return 1;
    for (int i = 0; i < 50; i++)
        cuda_spin(nccl, 1, 2000000, stream);
    printf("synchronized %d\n", cuda.cuStreamSynchronize(stream));
    fflush(stdout);
    pause_s(0.2);
    return 0;
}

int role_compute(int argc, char **argv)
{
    if (argc && !strcmp(argv[0], "collective"))
        return collective();
    if (argc == 2 && !strcmp(argv[0], "one_stream"))
        return one_stream(atoi(argv[1]));
    if (argc == 5 && !strcmp(argv[0], "load"))
        return load(strtoull(argv[1], NULL, 10), atoi(argv[2]), atof(argv[3]), atof(argv[4]));
    if (argc == 3 && !strcmp(argv[0], "two_streams"))
        return two_streams(strtoull(argv[1], NULL, 10), atof(argv[2]));
    if (argc == 3 && !strcmp(argv[0], "graph_load"))
        return graph_load(strtoull(argv[1], NULL, 10), atof(argv[2]));
    if (argc == 4 && !strcmp(argv[0], "changed_kernel"))
        return changed_kernel(strtoull(argv[1], NULL, 10), strtoull(argv[2], NULL, 10), atof(argv[3]));
    if (argc && !strcmp(argv[0], "capture"))
        return capture();
    return role_bugs(argc, argv);
}
