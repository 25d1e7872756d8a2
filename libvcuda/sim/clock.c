/* GPU time: see node.h. */
#include "node.h"

#include "costs.h"
#include "pages.h"

#include <errno.h>
#include <sys/prctl.h>
#include <time.h>

uint64_t sim_now(void)
{
    /* Of the machine, in every time namespace: all processes of the node share it. */
    static int64_t ahead;
    static uint32_t asked;
    uint32_t now = __atomic_load_n(&sim_saved.returns, __ATOMIC_ACQUIRE) + 1;
    if (__builtin_expect(__atomic_load_n(&asked, __ATOMIC_ACQUIRE) != now, 0)) {
        __atomic_store_n(&ahead, pages_clock_ahead(CLOCK_MONOTONIC), __ATOMIC_RELAXED);
        __atomic_store_n(&asked, now, __ATOMIC_RELEASE);
    }
    return pages_clock(CLOCK_MONOTONIC) - (uint64_t)__atomic_load_n(&ahead, __ATOMIC_RELAXED);
}

static int has_work(const struct sim_client *c)
{
    return c->pid && c->demand_ns > c->service_ns;
}

/* The next client with work after the current one; -1 when the GPU is idle. */
static int next_client(const struct sim_gpu *gpu)
{
    for (uint32_t step = 1; step <= SIM_MAX_CLIENTS; step++) {
        uint32_t i = (gpu->current + step) % SIM_MAX_CLIENTS;
        if (has_work(&gpu->client[i]))
            return (int)i;
    }
    return -1;
}

/* Note that the client had the GPU; a stretch that continues the last one lengthens it. */
static void note(struct sim_client *c, uint64_t wall, uint64_t length)
{
    struct sim_stretch *last = &c->stretch[(c->stretches + SIM_STRETCHES - 1) % SIM_STRETCHES];
    if (c->stretches && last->wall_ns + last->length_ns == wall) {
        last->length_ns += length;
    } else {
        c->stretch[c->stretches % SIM_STRETCHES] = (struct sim_stretch){wall, c->service_ns, length};
        c->stretches++;
    }
    c->service_ns += length;
}

static void run_until(struct sim_gpu *gpu, uint64_t now)
{
    while (gpu->advanced_ns < now) {
        struct sim_client *c = &gpu->client[gpu->current % SIM_MAX_CLIENTS];
        if (!has_work(c) || gpu->slice_left_ns == 0) {
            int next = next_client(gpu);
            if (next < 0) {
                gpu->advanced_ns = now;
                return;
            }
            if ((uint32_t)next != gpu->current)
                gpu->switch_left_ns = gpu->switch_ns;
            gpu->current = (uint32_t)next;
            gpu->slice_left_ns = SIM_SLICE_NS;
            c = &gpu->client[next];
        }
        if (gpu->switch_left_ns) {
            uint64_t pass = now - gpu->advanced_ns;
            pass = pass < gpu->switch_left_ns ? pass : gpu->switch_left_ns;
            gpu->switch_left_ns -= pass;
            gpu->advanced_ns += pass;
            continue;
        }
        uint64_t run = now - gpu->advanced_ns;
        if (run > gpu->slice_left_ns)
            run = gpu->slice_left_ns;
        if (run > c->demand_ns - c->service_ns)
            run = c->demand_ns - c->service_ns;
        note(c, gpu->advanced_ns, run);
        gpu->busy_ns += run;
        gpu->slice_left_ns -= run;
        gpu->advanced_ns += run;
    }
}

static uint64_t lock(struct sim_gpu *gpu)
{
    if (pthread_mutex_lock(&gpu->mutex) == EOWNERDEAD)
        pthread_mutex_consistent(&gpu->mutex);
    return sim_now();
}

static void advance(struct sim_gpu *gpu, uint64_t now)
{
    run_until(gpu, now);
    sim_take_samples(gpu, now);
}

void sim_lock_only(struct sim_gpu *gpu)
{
    advance(gpu, lock(gpu));
}

void sim_lock(struct sim_gpu *gpu)
{
    uint64_t now = lock(gpu);
    /* A killed process's queued work goes with it: look for the dead now and then. */
    if (now - gpu->checked_ns > 50000000ull)
        sim_clear_dead(gpu);
    advance(gpu, now);
}

void sim_unlock(struct sim_gpu *gpu)
{
    pthread_mutex_unlock(&gpu->mutex);
}

uint64_t sim_wall_of(const struct sim_client *c, uint64_t mark)
{
    if (c->service_ns < mark)
        return 0;
    uint64_t oldest = c->stretches > SIM_STRETCHES ? c->stretches - SIM_STRETCHES : 0;
    for (uint64_t i = c->stretches; i-- > oldest;) {
        const struct sim_stretch *s = &c->stretch[i % SIM_STRETCHES];
        if (s->service_ns < mark)
            return s->wall_ns + (mark - s->service_ns);
    }
    return c->stretch[oldest % SIM_STRETCHES].wall_ns;
}

static int is_alone(const struct sim_gpu *gpu, const struct sim_client *self)
{
    for (int i = 0; i < SIM_MAX_CLIENTS; i++)
        if (&gpu->client[i] != self && has_work(&gpu->client[i]))
            return 0;
    return 1;
}

void sim_wait(struct sim_gpu *gpu, struct sim_client *client, uint64_t mark)
{
    static _Thread_local int precise;
    if (!precise)
        precise = prctl(PR_SET_TIMERSLACK, 1000ul, 0, 0, 0) == 0;
    for (;;) {
        sim_lock(gpu);
        uint64_t left = mark > client->service_ns ? mark - client->service_ns : 0;
        int alone = is_alone(gpu, client);
        sim_unlock(gpu);
        if (!left)
            return;
        if (alone && left <= sim_costs()->spin_ns) {
            sim_spin_until(sim_now() + left);
            continue;
        }
        if (!alone && left > SIM_SLICE_NS / 2)
            left = SIM_SLICE_NS / 2;
        struct timespec ts = {(time_t)(left / 1000000000ull), (long)(left % 1000000000ull)};
        clock_nanosleep(CLOCK_MONOTONIC, 0, &ts, NULL);
    }
}
