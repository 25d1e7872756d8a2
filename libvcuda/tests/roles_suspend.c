/* Roles of processes that are moved to host memory and back while they work. */
#include "harness.h"
#include "tenant.h"

#include <math.h>
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

int role_suspend(int argc, char **argv)
{
    if (argc < 3 || strcmp(argv[0], "suspend_work") != 0)
        return -1;
    return work(strtoull(argv[1], NULL, 10), strtoull(argv[2], NULL, 10), argc > 3);
}
