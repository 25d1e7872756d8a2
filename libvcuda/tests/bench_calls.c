/* What a call costs: nanoseconds per launch, graph launch, allocation pair. Run with and without the shim, compared by
 * on_gpu.sh. Prints one JSON object; each figure is the least of several rounds, as anything above is disturbance. */
#include "cuda_api.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define ROUNDS 9

static CUfunction spin;
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
    cuda_spin(spin, 1, 0, stream);
}

static void launch_graph(void)
{
    cuda.cuGraphLaunch(graph, stream);
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

static double least(void (*call)(void), int count)
{
    double best = 1e18;
    for (int round = 0; round < ROUNDS; round++) {
        cuda.cuStreamSynchronize(stream);
        double begin = now();
        for (int i = 0; i < count; i++)
            call();
        double each = (now() - begin) / count;
        best = each < best ? each : best;
        cuda.cuStreamSynchronize(stream);
    }
    return best;
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

int main(void)
{
    const char *where = cuda_api_load();
    double begin = now();
    if (where || cuda_api_start(0, &spin, &where) || cuda.cuStreamCreate(&stream, 1))
        return fprintf(stderr, "bench_calls: %s\n", where), 1;
    double start_ms = (now() - begin) / 1e6;
    CUmemoryPool pool;
    uint64_t keep = UINT64_MAX;
    if (!cuda.cuDeviceGetDefaultMemPool(&pool, 0))
        cuda.cuMemPoolSetAttribute(pool, CU_POOL_RELEASE_THRESHOLD, &keep);
    /* Few enough launches that the queue does not fill: a full queue measures the GPU. */
    printf("{\"start_ms\":%.1f,\"launch_ns\":%.1f", start_ms, least(launch, 500));
    if (make_graph())
        printf(",\"graph_launch_ns\":%.1f", least(launch_graph, 200));
    printf(",\"plain_pair_ns\":%.1f,\"small_pair_ns\":%.1f,\"async_pair_ns\":%.1f", least(plain_pair, 200),
           least(small_pair, 2000), least(async_pair, 2000));
    for (int i = 0; i < 10000; i++) {
        CUdeviceptr p;
        cuda.cuMemAlloc_v2(&p, 512);
    }
    printf(",\"small_pair_10000_live_ns\":%.1f}\n", least(small_pair, 2000));
    return 0;
}
