/* Tenants, a GPU and the clock, all made up: what the arbiter's decisions lead to, exactly and without waiting. */
#ifndef TESTS_VIRTUAL_GPU_H
#define TESTS_VIRTUAL_GPU_H

#include "round.h"

#define TENANTS_MOST 8

struct tenant {
    struct vcuda_limit limit;
    uint64_t kernel_ns;
    uint64_t burst_ns; /* GPU time that it asks for at a stretch; 0: without end */
    uint64_t pause_ns; /* between bursts */
    uint64_t deep_ns;  /* how much it queues while no turns are given */
    uint64_t begins_ns, ends_ns;
    int synchronous; /* waits for each kernel, then for think_ns */
    uint64_t think_ns;
    uint64_t gap_ns; /* launches once in this time, and waits for nothing */
    /* Lies. */
    uint64_t stuck_ns; /* says to have so much in flight always */
    int always_waiting;
    /* What became of it. */
    uint64_t queued_ns, asked_ns, used_ns, counted_ns /* of it, when it was last forgotten */, resumes_ns, last_end_ns,
        last_launch_ns;
    uint64_t waited_ns, longest_wait_ns;
    int waiting;
    int64_t credit_ns; /* under a cap */
};

struct virtual_gpu {
    struct round round;
    struct tenant tenant[TENANTS_MOST];
    int n, running;
    uint64_t now, next, switching_until, turns_ns /* time in which turns were given */;
    uint32_t lost_percent;    /* of the GPU while several are busy: the driver's slices */
    uint64_t steps, switches; /* how often the GPU went from one tenant to another */
};

void virtual_begin(struct virtual_gpu *v, uint64_t round_ms);
/* A tenant that floods the GPU with kernels of `kernel_ns`; change it before time runs. */
struct tenant *virtual_tenant(struct virtual_gpu *v, uint32_t request, uint32_t limit, uint32_t policy,
                              uint64_t kernel_ns);
void virtual_run(struct virtual_gpu *v, double seconds);
/* Forget what was counted, so that a beginning is not measured. */
void virtual_count(struct virtual_gpu *v);
/* A part of the chapter "rounds". */
void test_turns_wanted(struct virtual_gpu *v);
void test_beside(struct virtual_gpu *v);
/* Percent of the GPU since it was last forgotten. */
double virtual_share(const struct virtual_gpu *v, int tenant);

#endif
