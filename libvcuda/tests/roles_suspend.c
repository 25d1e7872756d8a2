/* Roles of processes that are moved to host memory and back while they work. */
#include "harness.h"
#include "tenant.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

static volatile sig_atomic_t ended;

static void end(int number)
{
    (void)number;
    ended = 1;
}

/* So many short kernels are launched before one is waited for. */
#define SHORT_NS 100000
#define AHEAD 50

/* Hold memory, then launch kernels and wait for them until SIGTERM; every call must succeed. */
static int work(uint64_t mib, uint64_t kernel_ns, int managed)
{
    struct tenant tenant;
    CUdeviceptr block = 0;
    CUresult error = tenant_begin(&tenant);
    signal(SIGTERM, end);
    if (!error && mib)
        error = managed ? cuda.cuMemAllocManaged(&block, mib * MIB, 1) : cuda.cuMemAlloc_v2(&block, mib * MIB);
    say("ready", error);
    double rounds = 0, longest_s = 0;
    while (!error && !ended) {
        double begun = now_s();
        error = cuda_spin(tenant.spin, 1, kernel_ns, tenant.stream);
        if (!error && (kernel_ns >= SHORT_NS || fmod(rounds, AHEAD) == 0))
            error = cuda.cuStreamSynchronize(tenant.stream);
        longest_s = now_s() - begun > longest_s ? now_s() - begun : longest_s;
        if (!rounds++)
            say("works", error);
    }
    say("error", error);
    say("longest_s", longest_s);
    while (!ended)
        pause_s(0.01);
    if (block && !managed)
        error = cuda.cuMemFree_v2(block);
    say("rounds", rounds);
    return error != CUDA_SUCCESS;
}

static unsigned long queries;
static struct tenant polled;

/* Query a stream and two events without a pause, as programs do that wait for them in a thread of its own. */
static void *poll_all(void *nothing)
{
    __typeof__(cuStreamQuery) *stream_query = tenant_find("cuStreamQuery");
    __typeof__(cuEventQuery) *event_query = tenant_find("cuEventQuery");
    __typeof__(cuEventElapsedTime) *elapsed = tenant_find("cuEventElapsedTime");
    __typeof__(cuEventCreate) *create = tenant_find("cuEventCreate");
    __typeof__(cuEventRecord) *record = tenant_find("cuEventRecord");
    __typeof__(cuCtxSetCurrent) *set_current = tenant_find("cuCtxSetCurrent");
    CUevent first = NULL, last = NULL;
    float milliseconds;
    CUresult error = set_current(polled.context);
    error = error ? error : create(&first, 0);
    error = error ? error : create(&last, 0);
    error = error ? error : record(first, polled.stream);
    error = error ? error : record(last, polled.stream);
    while (!error && !ended) {
        CUresult results[] = {stream_query(polled.stream), event_query(last), elapsed(&milliseconds, first, last)};
        for (int i = 0; i < 3; i++)
            error = error || results[i] == CUDA_ERROR_NOT_READY ? error : results[i];
        __atomic_fetch_add(&queries, 3, __ATOMIC_RELAXED);
    }
    say("poll_error", error);
    return nothing;
}

/* Launch and wait until SIGTERM, while another thread queries. */
static int poll_and_work(void)
{
    pthread_t poller;
    CUresult error = tenant_begin(&polled);
    signal(SIGTERM, end);
    if (error || pthread_create(&poller, NULL, poll_all, NULL) != 0)
        return 1;
    while (!__atomic_load_n(&queries, __ATOMIC_RELAXED) && !ended)
        pause_s(0.01);
    say("works", error);
    while (!error && !ended) {
        error = cuda_spin(polled.spin, 1, 1000000, polled.stream);
        error = error ? error : cuda.cuStreamSynchronize(polled.stream);
    }
    pthread_join(poller, NULL);
    say("error", error);
    say("queries", (double)queries);
    return error != CUDA_SUCCESS;
}

int role_suspend(int argc, char **argv)
{
    if (argc == 1 && !strcmp(argv[0], "suspend_poll"))
        return poll_and_work();
    if (argc < 3 || strcmp(argv[0], "suspend_work") != 0)
        return -1;
    return work(strtoull(argv[1], NULL, 10), strtoull(argv[2], NULL, 10), argc > 3);
}
