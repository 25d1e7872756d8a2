/* A usage page that came from another node with its processes. */
#include "pages.h"

#include <string.h>

/* Moments of the other node's clock; 0 is none. */
static void set_clock(uint64_t *moment, int64_t clock_ns)
{
    if (*moment)
        *moment = (int64_t)*moment + clock_ns > 0 ? *moment + (uint64_t)clock_ns : 1;
}

static const struct vcuda_arrival *find(const struct vcuda_arrival *processes, uint32_t count, uint32_t pid)
{
    for (uint32_t i = 0; i < count; i++)
        if (processes[i].pid == pid)
            return &processes[i];
    return NULL;
}

/* Free the slot; its counters stay in the totals. */
static void leave_behind(struct vcuda_usage *copy, struct vcuda_process *p)
{
    for (int i = 0; p->owner != VCUDA_OWNER_FREE && i < VCUDA_MAX_GPUS; i++) {
        struct vcuda_gpu_usage *r = &copy->retired[i], *g = &p->gpu[i];
        r->gpu_time_ns += g->gpu_time_ns;
        r->throttled_ns += g->throttled_ns;
        r->launches += g->launches;
        r->refused += g->refused;
    }
    memset(p, 0, sizeof *p);
}

int vcuda_usage_arrive(struct vcuda_usage *copy, uint64_t pidns, const struct vcuda_arrival *processes, uint32_t count,
                       int64_t clock_ns)
{
    int arrived = 0;
    uint8_t taken[VCUDA_MAX_PROCESSES] = {0};
    for (int i = 0; i < VCUDA_MAX_GPUS; i++) {
        set_clock(&copy->bucket[i].refilled_ns, clock_ns);
        set_clock(&copy->bucket[i].busy_until_ns, clock_ns);
        memset(copy->bucket[i].holes, 0, sizeof copy->bucket[i].holes);
    }
    for (int i = 0; i < VCUDA_MAX_PROCESSES; i++) {
        struct vcuda_process *p = &copy->process[i];
        const struct vcuda_arrival *to =
            pages_is_process(p->owner) && p->start_time ? find(processes, count, (uint32_t)p->owner) : NULL;
        uint32_t at = to ? (uint32_t)(to - processes) : 0;
        if (!to || at >= VCUDA_MAX_PROCESSES || taken[at]) {
            leave_behind(copy, p);
            continue;
        }
        taken[at] = 1;
        p->owner = pidns << 32 | to->pid;
        p->start_time = to->start_time;
        for (int g = 0; g < VCUDA_MAX_GPUS; g++) {
            set_clock(&p->gpu[g].last_end_ns, clock_ns);
            set_clock(&p->gpu[g].last_launch_ns, clock_ns);
            /* Turns are numbered by each node's arbiter. */
            p->gpu[g].yielded = 0;
        }
        arrived++;
    }
    return arrived;
}
