/* See virtual_gpu.h. Time passes in steps of 20 us. Tenants follow the pages' protocol as libvcuda does: at most 2.5 ms or
 * two kernels in flight in a turn, nothing that would still run at its end. Busy tenants share the GPU equally where nothing
 * keeps them apart; passing it from one to another costs 0.2 ms. */
#include "virtual_gpu.h"

#include <string.h>

#define TICK_NS 20000ull
#define SWITCH_NS 200000ull
#define INFLIGHT_NS 2500000ull
#define CREDIT_MOST_NS (20 * (int64_t)MS)

static uint64_t counted_since;

void virtual_begin(struct virtual_gpu *v, uint64_t round_ms)
{
    memset(v, 0, sizeof *v);
    v->now = v->next = counted_since = 1000000000;
    v->running = -1;
    round_init(&v->round, round_ms * MS);
}

struct tenant *virtual_tenant(struct virtual_gpu *v, uint32_t request, uint32_t limit, uint32_t policy,
                              uint64_t kernel_ns)
{
    struct tenant *t = &v->tenant[v->n++];
    *t = (struct tenant){.limit = {.core_request = request, .core_limit = limit, .policy = policy},
                         .kernel_ns = kernel_ns,
                         .deep_ns = 5 * MS,
                         .ends_ns = UINT64_MAX};
    round_sit(&v->round, t);
    return t;
}

/* As libvcuda's credit does for a limit. */
static int is_capped(const struct tenant *t, const struct seat *s)
{
    return s->ends_ns == VCUDA_TURN_FREE && s->cap && t->credit_ns <= (int64_t)t->queued_ns;
}

static int may_launch(const struct tenant *t, const struct seat *s, uint64_t now)
{
    if (is_capped(t, s))
        return 0;
    uint64_t most = s->ends_ns == VCUDA_TURN_FREE ? t->deep_ns : INFLIGHT_NS;
    most = most < 2 * t->kernel_ns ? 2 * t->kernel_ns : most;
    if (t->queued_ns + t->kernel_ns > (t->synchronous ? t->kernel_ns : most))
        return 0;
    return now < s->ends_ns && (t->queued_ns == 0 || now + t->queued_ns + t->kernel_ns <= s->ends_ns);
}

static void act(struct virtual_gpu *v, struct tenant *t, const struct seat *s)
{
    int asks = v->now >= t->begins_ns && v->now < t->ends_ns && v->now >= t->resumes_ns && t->kernel_ns;
    int held = 0;
    t->credit_ns = lesser(t->credit_ns + share_of(TICK_NS, s->cap ? s->cap : SHARE_WHOLE), CREDIT_MOST_NS);
    while (asks && !(t->synchronous && t->queued_ns)) {
        if (!may_launch(t, s, v->now)) {
            held = v->now >= s->ends_ns || !t->queued_ns || is_capped(t, s);
            break;
        }
        t->queued_ns += t->kernel_ns;
        t->asked_ns += t->kernel_ns;
        t->last_launch_ns = v->now;
        if (t->gap_ns) {
            t->resumes_ns = v->now + t->gap_ns;
            break;
        }
        if (t->burst_ns && t->asked_ns >= t->burst_ns) {
            t->asked_ns = 0;
            t->resumes_ns = UINT64_MAX; /* until the burst has run */
            break;
        }
    }
    t->waiting = held;
    t->waited_ns = held ? t->waited_ns + TICK_NS : 0;
    t->longest_wait_ns = t->waited_ns > t->longest_wait_ns ? t->waited_ns : t->longest_wait_ns;
}

static void finish_work(struct virtual_gpu *v, struct tenant *t, uint64_t spent)
{
    uint64_t before = t->queued_ns;
    t->queued_ns -= spent < before ? spent : before;
    t->used_ns += before - t->queued_ns;
    t->credit_ns -= (int64_t)(before - t->queued_ns);
    if (!t->queued_ns || before / t->kernel_ns != t->queued_ns / t->kernel_ns)
        t->last_end_ns = v->now;
    if (t->queued_ns)
        return;
    if (t->resumes_ns == UINT64_MAX)
        t->resumes_ns = v->now + t->pause_ns;
    else if (t->synchronous)
        t->resumes_ns = v->now + t->think_ns;
}

static void run_gpu(struct virtual_gpu *v)
{
    int busy = 0, last = -1;
    for (int i = 0; i < v->n; i++)
        if (v->tenant[i].queued_ns) {
            busy++;
            last = i;
        }
    if (busy == 1 && v->running != last) {
        v->switching_until = v->now + SWITCH_NS;
        v->running = last;
        v->switches++;
    }
    if (v->now < v->switching_until)
        return;
    for (int i = 0; i < v->n; i++)
        if (v->tenant[i].queued_ns)
            finish_work(v, &v->tenant[i], TICK_NS * (100 - (busy > 1 ? v->lost_percent : 0)) / 100 / (uint64_t)busy);
}

static void arbitrate(struct virtual_gpu *v)
{
    struct round *r = &v->round;
    r->native = 0;
    r->ceiling = SHARE_WHOLE;
    for (int i = 0; i < r->n; i++) {
        struct seat *s = &r->seat[i];
        struct tenant *t = s->claim;
        uint32_t ceiling = t->limit.ceiling ? t->limit.ceiling * 100 : SHARE_WHOLE;
        struct share_terms before = s->terms;
        share_terms_of(&t->limit, &s->terms);
        if (memcmp(&before, &s->terms, sizeof before) != 0)
            round_disturb(r, v->now);
        r->native |= t->limit.policy == VCUDA_POLICY_NATIVE || t->limit.flags & VCUDA_FLAG_NO_TURNS;
        r->ceiling = ceiling < r->ceiling ? ceiling : r->ceiling;
        s->reading = (struct reading){.inflight_ns = t->stuck_ns ? t->stuck_ns : t->queued_ns,
                                      .last_end_ns = t->last_end_ns,
                                      .last_launch_ns = t->last_launch_ns,
                                      .gpu_time_ns = t->used_ns,
                                      .processes = 1,
                                      .waiting = (uint32_t)(t->waiting || t->always_waiting)};
    }
    v->next = round_step(r, v->now);
    v->steps++;
}

void virtual_run(struct virtual_gpu *v, double seconds)
{
    uint64_t until = v->now + (uint64_t)(seconds * 1e9);
    for (; v->now < until; v->now += TICK_NS) {
        for (int i = 0; i < v->round.n; i++)
            act(v, v->round.seat[i].claim, &v->round.seat[i]);
        run_gpu(v);
        if (v->now >= v->next)
            arbitrate(v);
        v->turns_ns += v->round.phase != ROUND_FREE ? TICK_NS : 0;
    }
}

void virtual_count(struct virtual_gpu *v)
{
    for (int i = 0; i < v->n; i++) {
        v->tenant[i].counted_ns = v->tenant[i].used_ns;
        v->tenant[i].longest_wait_ns = 0;
    }
    v->turns_ns = v->steps = v->switches = 0;
    counted_since = v->now;
}

double virtual_share(const struct virtual_gpu *v, int tenant)
{
    const struct tenant *t = &v->tenant[tenant];
    return 100.0 * (double)(t->used_ns - t->counted_ns) / (double)(v->now - counted_since);
}
