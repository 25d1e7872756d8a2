/* Claims that run beside the turns of others, in made-up time; and an arbiter that was itself paused. */
#include "harness.h"
#include "virtual_gpu.h"

#include <math.h>

/* A program that launches more slowly than the GPU works: 0.2 ms in each millisecond. */
static struct tenant *light(struct virtual_gpu *v, uint32_t request)
{
    struct tenant *t = virtual_tenant(v, request, 100, VCUDA_POLICY_BURST, 200000);
    t->synchronous = 1;
    t->think_ns = 800000;
    return t;
}

static struct tenant *heavy(struct virtual_gpu *v, uint32_t request)
{
    return virtual_tenant(v, request, 100, VCUDA_POLICY_BURST, 1600000);
}

static void test_let_go(struct virtual_gpu *v)
{
    virtual_begin(v, 50);
    light(v, 30);
    heavy(v, 70);
    virtual_run(v, 2);
    virtual_count(v);
    virtual_run(v, 20);
    expect(virtual_share(v, 0) > 14 && virtual_share(v, 1) > 70,
           "one that needs 20 of its 30 %% runs beside a heavy one: %.1f and %.1f %%", virtual_share(v, 0),
           virtual_share(v, 1));
    virtual_begin(v, 50);
    light(v, 30);
    heavy(v, 20);
    heavy(v, 50);
    virtual_run(v, 2);
    virtual_count(v);
    virtual_run(v, 20);
    expect(virtual_share(v, 0) > 14 && virtual_share(v, 2) > 1.8 * virtual_share(v, 1),
           "and beside two heavy ones, which take turns: %.1f, %.1f and %.1f %%", virtual_share(v, 0),
           virtual_share(v, 1), virtual_share(v, 2));
}

/* A thin claim leaves its turns idle, and needs more than its share. */
static void test_capped(struct virtual_gpu *v)
{
    virtual_begin(v, 50);
    light(v, 10);
    heavy(v, 90);
    virtual_run(v, 2);
    virtual_count(v);
    virtual_run(v, 10);
    expect(fabs(virtual_share(v, 0) - 10) < 1 && virtual_share(v, 1) > 84,
           "one that needs 20 %% of the GPU and leaves its turns idle has its 10 beside a heavy one: %.1f and %.1f %%",
           virtual_share(v, 0), virtual_share(v, 1));
    virtual_begin(v, 50);
    light(v, 10);
    heavy(v, 30);
    heavy(v, 60);
    virtual_run(v, 2);
    virtual_count(v);
    virtual_run(v, 10);
    expect(fabs(virtual_share(v, 0) - 10) < 1 && fabs(virtual_share(v, 2) / virtual_share(v, 1) - 2) < 0.2,
           "and beside two heavy ones, which take turns: %.1f, %.1f and %.1f %%", virtual_share(v, 0),
           virtual_share(v, 1), virtual_share(v, 2));
}

/* The driver's slices cost a fifth while both are busy: neither bears that alone. */
static void test_squeezed(struct virtual_gpu *v)
{
    virtual_begin(v, 50);
    v->lost_percent = 20;
    light(v, 30)->think_ns = 300000;
    heavy(v, 70);
    virtual_run(v, 5);
    virtual_count(v);
    virtual_run(v, 10);
    expect(
        virtual_share(v, 0) > 15 && virtual_share(v, 1) > 0.86 * 70,
        "where slices cost time, a heavy one keeps 88 %% of its share and a thin one gets the rest: %.1f and %.1f %%",
        virtual_share(v, 0), virtual_share(v, 1));
}

/* A third claim comes while no turns are given, and a thin one's program becomes a flood. */
static void test_changes(struct virtual_gpu *v)
{
    virtual_begin(v, 50);
    struct tenant *first = light(v, 20);
    heavy(v, 30);
    struct tenant *third = heavy(v, 50);
    third->begins_ns = v->now + 4000 * MS;
    virtual_run(v, 3);
    virtual_count(v);
    virtual_run(v, 1);
    double thin = virtual_share(v, 0);
    first->synchronous = 0;
    first->kernel_ns = 1600000;
    virtual_run(v, 1.5);
    virtual_count(v);
    virtual_run(v, 5);
    expect(thin > 14 && fabs(virtual_share(v, 0) - 20) < 2 && fabs(virtual_share(v, 1) - 30) < 2 &&
               fabs(virtual_share(v, 2) - 50) < 2,
           "turns begin again once a third one comes and the thin one (%.1f) floods: %.1f, %.1f and %.1f %%", thin,
           virtual_share(v, 0), virtual_share(v, 1), virtual_share(v, 2));
    virtual_begin(v, 50);
    first = light(v, 20);
    heavy(v, 80);
    virtual_run(v, 3);
    first->synchronous = 0;
    first->kernel_ns = 1600000;
    virtual_run(v, 1.5);
    virtual_count(v);
    virtual_run(v, 5);
    expect(fabs(virtual_share(v, 0) - 20) < 1.5 && v->turns_ns > 4900 * MS, "and once it alone floods: %.1f %%",
           virtual_share(v, 0));
    virtual_begin(v, 50);
    first = light(v, 80);
    heavy(v, 20);
    virtual_run(v, 3);
    first->synchronous = 0;
    first->kernel_ns = 1600000;
    virtual_run(v, 1.5);
    virtual_count(v);
    virtual_run(v, 5);
    expect(fabs(virtual_share(v, 0) - 80) < 1.5, "and once one that needed far less than its 80 %% floods: %.1f %%",
           virtual_share(v, 0));
}

/* One that launches once in a millisecond, and is let go, launches once in `gap_ns` from then on. */
static void grow(struct virtual_gpu *v, uint32_t lost_percent, uint64_t gap_ns)
{
    virtual_begin(v, 50);
    v->lost_percent = lost_percent;
    struct tenant *t = heavy(v, 30);
    t->kernel_ns = 200000;
    t->gap_ns = 1000000;
    heavy(v, 70);
    virtual_run(v, 3);
    t->gap_ns = gap_ns;
    virtual_run(v, 2);
    virtual_count(v);
    virtual_run(v, 3);
}

static void test_capped_later(struct virtual_gpu *v)
{
    grow(v, 10, 550000);
    expect(virtual_share(v, 0) > 24 && virtual_share(v, 1) > 0.87 * 70 && v->turns_ns == 0,
           "a light one that harms a heavy one is capped before it is taken back: %.1f and %.1f %%",
           virtual_share(v, 0), virtual_share(v, 1));
    /* It takes too much, and the other one is harmed, in the same windows. */
    grow(v, 5, 500000);
    expect(v->turns_ns == 0, "also if it is found to take too much in the same window: turns for %.0f ms",
           (double)v->turns_ns / 1e6);
}

/* Two heavy ones take turns while a light one runs beside them. */
static void test_harmed_in_turns(struct virtual_gpu *v)
{
    virtual_begin(v, 50);
    v->lost_percent = 15;
    struct tenant *t = heavy(v, 30);
    t->kernel_ns = 200000;
    t->gap_ns = 1000000;
    heavy(v, 35);
    heavy(v, 35);
    virtual_run(v, 3);
    t->gap_ns = 450000;
    virtual_run(v, 4);
    virtual_count(v);
    virtual_run(v, 5);
    double least = 0.88 * 35 - 0.5;
    expect(virtual_share(v, 1) > least && virtual_share(v, 2) > least,
           "two heavy ones in turns keep 88 %% of their shares beside a light one that grew: %.1f, %.1f and %.1f %%",
           virtual_share(v, 0), virtual_share(v, 1), virtual_share(v, 2));
}

/* The cap follows the terms, and what the other one uses. */
static void test_cap_follows(struct virtual_gpu *v)
{
    virtual_begin(v, 50);
    struct tenant *t = light(v, 10), *other = heavy(v, 90);
    virtual_run(v, 2);
    t->limit.core_request = 15;
    other->limit.core_request = 85;
    virtual_run(v, 0.1);
    virtual_count(v);
    virtual_run(v, 1);
    expect(fabs(virtual_share(v, 0) - 15) < 1, "resized to 15 %%, it has them at once: %.1f and %.1f %%",
           virtual_share(v, 0), virtual_share(v, 1));
    other->synchronous = 1;
    other->think_ns = 6400000;
    virtual_run(v, 1);
    virtual_count(v);
    virtual_run(v, 5);
    expect(virtual_share(v, 0) > 16, "and what the other one leaves once it uses a fifth: %.1f and %.1f %%",
           virtual_share(v, 0), virtual_share(v, 1));
}

static void test_taken_back(struct virtual_gpu *v)
{
    virtual_begin(v, 50);
    struct tenant *t = light(v, 30);
    heavy(v, 70);
    virtual_run(v, 3);
    t->synchronous = 0;
    t->kernel_ns = 1600000;
    virtual_run(v, 1.5);
    virtual_count(v);
    virtual_run(v, 5);
    expect(fabs(virtual_share(v, 0) - 30) < 1.5 && fabs(virtual_share(v, 1) - 70) < 1.5,
           "one that was let go and then wants everything is taken back: %.1f and %.1f %%", virtual_share(v, 0),
           virtual_share(v, 1));
}

/* A program that has only begun leaves its turns idle for a moment. */
static void test_begins(struct virtual_gpu *v)
{
    virtual_begin(v, 50);
    struct tenant *begins = virtual_tenant(v, 70, 100, VCUDA_POLICY_BURST, 400000);
    begins->gap_ns = 1 * MS;
    heavy(v, 30);
    virtual_run(v, 0.4);
    begins->gap_ns = 0;
    begins->kernel_ns = 1600000;
    virtual_run(v, 1.6);
    expect(v->turns_ns > 1800 * MS, "one that has only begun is not let go: turns in %.2f of 2 s",
           (double)v->turns_ns / 1e9);
}

/* What was judged light, or sparse, fills the GPU a while later: side by side each has half of it, and nobody is harmed by
 * the measure of the program before. */
static void test_filled(struct virtual_gpu *v)
{
    virtual_begin(v, 50);
    struct tenant *begins = virtual_tenant(v, 70, 100, VCUDA_POLICY_BURST, 400000);
    begins->gap_ns = 1 * MS;
    heavy(v, 30);
    v->lost_percent = 12; /* and floods are charged for the slices between theirs, so that nothing is missing */
    virtual_run(v, 2);
    v->lost_percent = 0;
    begins->gap_ns = 0;
    begins->kernel_ns = 1600000;
    virtual_run(v, 1.5);
    virtual_count(v);
    virtual_run(v, 5);
    expect(fabs(virtual_share(v, 0) - 70) < 1.5 && fabs(virtual_share(v, 1) - 30) < 1.5,
           "one that only began when it was judged has its 70 %% after 1.5 s: %.1f and %.1f %%", virtual_share(v, 0),
           virtual_share(v, 1));
    virtual_begin(v, 50);
    for (int i = 0; i < 2; i++)
        virtual_tenant(v, 50, 100, VCUDA_POLICY_BURST, 400000)->gap_ns = 1 * MS;
    virtual_run(v, 38);
    for (int i = 0; i < 2; i++) {
        v->tenant[i].gap_ns = 0;
        v->tenant[i].kernel_ns = 1600000;
    }
    virtual_run(v, 1.5);
    uint64_t before = v->turns_ns;
    virtual_run(v, 5);
    expect(v->turns_ns - before > 4500 * MS,
           "two of small kernels that become floods have turns after 1.5 s: %.1f of 5 s",
           (double)(v->turns_ns - before) / 1e9);
}

/* For three seconds nobody looked: libvcuda let everyone go after a moment, and one used more than its share. */
static void test_away(struct virtual_gpu *v)
{
    virtual_begin(v, 50);
    heavy(v, 30);
    heavy(v, 70);
    virtual_run(v, 2);
    v->next = v->now + 3000 * MS;
    for (int i = 0; i < 2; i++)
        v->round.seat[i].ends_ns = VCUDA_TURN_FREE;
    virtual_run(v, 3.001);
    virtual_count(v);
    virtual_run(v, 1);
    expect(fabs(virtual_share(v, 0) - 30) < 3, "an arbiter that was away for 3 s forgets debts: %.1f and %.1f %%",
           virtual_share(v, 0), virtual_share(v, 1));
}

/* A guaranteed claim that comes and goes, beside best effort that never stops. */
static void test_watchful(struct virtual_gpu *v)
{
    virtual_begin(v, 50);
    struct tenant *first = heavy(v, 50), *best_effort = heavy(v, 0);
    first->limit.policy = best_effort->limit.policy = VCUDA_POLICY_PREEMPT;
    best_effort->limit.flags = VCUDA_FLAG_BEST_EFFORT;
    first->kernel_ns = 1000000;
    first->burst_ns = 45 * MS;
    first->pause_ns = 2000 * MS;
    virtual_run(v, 3);
    virtual_count(v);
    virtual_run(v, 20);
    expect(first->longest_wait_ns < 6 * MS && virtual_share(v, 1) > 95,
           "preempt: after pauses of 2 s a guaranteed claim waits %.1f ms at most; best effort gets %.1f %%",
           (double)first->longest_wait_ns / 1e6, virtual_share(v, 1));
}

/* A guaranteed service that leaves its turns idle is not let go beside best effort: it would wait for the flood's slices. */
static void test_light_and_guaranteed(struct virtual_gpu *v)
{
    virtual_begin(v, 50);
    struct tenant *service = light(v, 50), *best_effort = heavy(v, 0);
    service->limit.policy = best_effort->limit.policy = VCUDA_POLICY_PREEMPT;
    best_effort->limit.flags = VCUDA_FLAG_BEST_EFFORT;
    virtual_run(v, 3);
    virtual_count(v);
    virtual_run(v, 20);
    expect(v->turns_ns > 19900 * MS && service->longest_wait_ns < 6 * MS && virtual_share(v, 1) > 40,
           "preempt: a guaranteed claim that leaves its turns idle has turns in %.2f of 20 s and waits %.1f ms at "
           "most; best "
           "effort gets %.1f %%",
           (double)v->turns_ns / 1e9, (double)service->longest_wait_ns / 1e6, virtual_share(v, 1));
    /* The policy changes while none has turns. */
    virtual_begin(v, 50);
    service = light(v, 50);
    best_effort = heavy(v, 50);
    virtual_run(v, 3);
    int free = v->round.phase == ROUND_FREE;
    service->limit.policy = best_effort->limit.policy = VCUDA_POLICY_PREEMPT;
    best_effort->limit.core_request = 0;
    best_effort->limit.flags = VCUDA_FLAG_BEST_EFFORT;
    virtual_run(v, 0.1);
    virtual_count(v);
    virtual_run(v, 5);
    expect(free && v->turns_ns > 4950 * MS, "and within 0.1 s of a change to preempt: %.2f of 5 s",
           (double)v->turns_ns / 1e9);
}

void test_beside(struct virtual_gpu *v)
{
    test_let_go(v);
    test_capped(v);
    test_squeezed(v);
    test_changes(v);
    test_capped_later(v);
    test_harmed_in_turns(v);
    test_cap_follows(v);
    test_taken_back(v);
    test_begins(v);
    test_filled(v);
    test_away(v);
    test_watchful(v);
    test_light_and_guaranteed(v);
}
