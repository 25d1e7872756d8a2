/* Roles about work that is handed to the GPU before its turn. */
#include "harness.h"
#include "tenant.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct tenant tenant;

/* Use the GPU now and then; say how long such a request takes. */
static int serve(double seconds, uint64_t ns)
{
    double begin = now_s(), longest = 0, sum = 0;
    int n = 0;
    if (tenant_begin(&tenant))
        return 1;
    say("ready", 1);
    while (now_s() < begin + seconds) {
        pause_s(0.02);
        double came = now_s();
        for (int step = 0; step < 3 && ns; step++) {
            cuda_spin(tenant.spin, 1, ns, tenant.stream);
            cuda.cuStreamSynchronize(tenant.stream);
        }
        sum += now_s() - came;
        longest = fmax(longest, now_s() - came);
        n++;
    }
    say("mean_ms", 1e3 * sum / n);
    say("longest_ms", 1e3 * longest);
    return 0;
}

/* Launch `launches` kernels at once, pause, and so on; at most two such fits ahead of the GPU. */
static int fits(double seconds, uint64_t ns, int launches, double pause)
{
    CUevent marks[2];
    double begin = now_s();
    if (tenant_begin(&tenant) || cuda.cuEventCreate(&marks[0], 2) || cuda.cuEventCreate(&marks[1], 2))
        return 1;
    say("ready", 1);
    CUresult error = CUDA_SUCCESS;
    long fit = 0;
    for (; !error && now_s() < begin + seconds; fit++) {
        error = fit < 2 ? CUDA_SUCCESS : cuda.cuEventSynchronize(marks[fit % 2]);
        for (int i = 0; i < launches && !error; i++)
            error = cuda_spin(tenant.spin, 1, ns, tenant.stream);
        error = error ? error : cuda.cuEventRecord(marks[fit % 2], tenant.stream);
        pause_s(pause);
    }
    cuda.cuCtxSynchronize();
    say("error", error);
    say("fits", (double)fit);
    return 0;
}

static _Atomic int running = 1;
static _Atomic long launched;

static void *launch_into_one(void *nothing)
{
    cuda.cuCtxSetCurrent(tenant.context);
    for (int i = 1; running; i++) {
        cuda_spin(tenant.spin, 1, 20000 + 1000 * (uint64_t)(i % 7), tenant.stream);
        launched++;
        if (i % 50 == 0)
            cuda.cuStreamSynchronize(tenant.stream);
    }
    return nothing;
}

/* Launch into one stream from three threads; say each second how much. */
static int threads(int seconds)
{
    pthread_t thread[3];
    if (tenant_begin(&tenant))
        return 1;
    for (int i = 0; i < 3; i++)
        pthread_create(&thread[i], NULL, launch_into_one, NULL);
    say("ready", 1);
    long before = 0;
    double least = 1e9;
    for (int i = 0; i < seconds; i++) {
        pause_s(1);
        least = fmin(least, (double)(launched - before));
        before = launched;
    }
    running = 0;
    for (int i = 0; i < 3; i++)
        pthread_join(thread[i], NULL);
    say("least", least);
    return 0;
}

/* Streams that wait for each other in turn, in short kernels and without a wait of the host: bursts of one lie behind those of
 * the other. Say how many rounds. */
static int braid(double seconds)
{
    CUstream other;
    CUevent forth, back;
    double begin = now_s();
    int rounds = 0;
    if (tenant_begin(&tenant) || cuda.cuStreamCreate(&other, 1) || cuda.cuEventCreate(&forth, 2) ||
        cuda.cuEventCreate(&back, 2))
        return 1;
    say("ready", 1);
    for (; now_s() < begin + seconds; rounds++) {
        cuda_spin(tenant.spin, 1, 10000, tenant.stream);
        cuda.cuEventRecord(forth, tenant.stream);
        cuda.cuStreamWaitEvent(other, forth, 0);
        cuda_spin(tenant.spin, 1, 12000, other);
        cuda.cuEventRecord(back, other);
        cuda.cuStreamWaitEvent(tenant.stream, back, 0);
        cuda_spin(tenant.spin, 1, 14000, tenant.stream);
        if (rounds % 50 == 49)
            cuda.cuCtxSynchronize();
    }
    cuda.cuCtxSynchronize();
    say("rounds", rounds);
    return 0;
}

static CUstream behind_stream;

static void *launch_late(void *nothing)
{
    uint64_t ns = 20000;
    void *parameters[] = {&ns};
    cuda.cuCtxSetCurrent(tenant.context);
    cuda.cuLaunchCooperativeKernel(tenant.spin, 2, 1, 1, 1, 1, 1, 0, behind_stream, parameters);
    return nothing;
}

/* A launch takes 0.3 s in the driver (GPUCLOUD_SIM_FAULTS). Turns begin meanwhile, and its stream waits for one in which
 * work is held. */
static int behind(void)
{
    pthread_t thread;
    CUevent event;
    if (tenant_begin(&tenant) || cuda.cuStreamCreate(&behind_stream, 1) || cuda.cuEventCreate(&event, 2))
        return 1;
    for (int i = 0; i < 50; i++)
        cuda_spin(tenant.spin, 1, 100000, tenant.stream);
    cuda.cuStreamSynchronize(tenant.stream);
    say("ready", 1);
    pthread_create(&thread, NULL, launch_late, NULL);
    pause_s(0.2);
    for (int i = 0; i < 10; i++)
        cuda_spin(tenant.spin, 1, 100000, tenant.stream);
    cuda.cuEventRecord(event, tenant.stream);
    cuda.cuStreamWaitEvent(behind_stream, event, 0);
    pthread_join(thread, NULL);
    say("synchronized", cuda.cuCtxSynchronize());
    return 0;
}

/* Two streams in which each step waits for the other one's; say how many steps were out of order. */
static int order(double seconds)
{
    CUstream other;
    CUevent first, second;
    int wrong = 0, steps = 0;
    double begin = now_s();
    if (tenant_begin(&tenant) || cuda.cuStreamCreate(&other, 1) || cuda.cuEventCreate(&first, 0) ||
        cuda.cuEventCreate(&second, 0))
        return 1;
    say("ready", 1);
    for (; now_s() < begin + seconds; steps++) {
        float ms = 0;
        for (int i = 0; i < 5; i++)
            cuda_spin(tenant.spin, 1, 100000, tenant.stream);
        cuda.cuEventRecord(first, tenant.stream);
        cuda.cuStreamWaitEvent(other, first, 0);
        for (int i = 0; i < 5; i++)
            cuda_spin(tenant.spin, 1, 100000, other);
        cuda.cuEventRecord(second, other);
        wrong += cuda.cuEventQuery(second) == CUDA_SUCCESS && cuda.cuEventQuery(first) != CUDA_SUCCESS;
        wrong += cuda.cuEventSynchronize(second) != CUDA_SUCCESS ||
                 cuda.cuEventElapsedTime(&ms, first, second) != CUDA_SUCCESS;
        wrong += ms < 0.49f;
    }
    say("steps", steps);
    say("wrong", wrong);
    return 0;
}

/* Launch much, and end in the middle of it. */
static int stop(const char *how)
{
    CUcontext own;
    CUstream stream;
    if (tenant_begin(&tenant))
        return 1;
    for (int i = 0; i < 8; i++)
        cuda_spin(tenant.spin, 1, 200000, tenant.stream);
    cuda.cuStreamSynchronize(tenant.stream);
    if (!strcmp(how, "context") && (cuda.cuCtxCreate_v2(&own, 0, 0) || cuda.cuStreamCreate(&stream, 1)))
        return 1;
    stream = strcmp(how, "context") ? tenant.stream : stream;
    say("ready", 1);
    double until = now_s() + 0.5;
    while (now_s() < until)
        cuda_spin(tenant.spin, 1, 200000, stream);
    double begin = now_s();
    if (!strcmp(how, "context"))
        cuda.cuCtxDestroy_v2(own);
    if (!strcmp(how, "stream"))
        cuda.cuStreamDestroy_v2(stream);
    if (!strcmp(how, "reset"))
        ((CUresult(*)(CUdevice))tenant_find("cuDevicePrimaryCtxReset_v2"))(0);
    if (!strcmp(how, "fork") && fork() == 0)
        _exit(0);
    say("took", now_s() - begin);
    return 0;
}

int role_ahead(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[0], "ahead_serve"))
        return serve(atof(argv[1]), strtoull(argv[2], NULL, 10));
    if (argc == 5 && !strcmp(argv[0], "ahead_fits"))
        return fits(atof(argv[1]), strtoull(argv[2], NULL, 10), atoi(argv[3]), atof(argv[4]));
    if (argc == 2 && !strcmp(argv[0], "ahead_threads"))
        return threads(atoi(argv[1]));
    if (argc == 2 && !strcmp(argv[0], "ahead_braid"))
        return braid(atof(argv[1]));
    if (argc && !strcmp(argv[0], "ahead_behind"))
        return behind();
    if (argc == 2 && !strcmp(argv[0], "ahead_order"))
        return order(atof(argv[1]));
    if (argc == 2 && !strcmp(argv[0], "ahead_stop"))
        return stop(argv[1]);
    return -1;
}
