/* Whether turns are given at all, in made-up time: they are of use only where claims want more than the GPU has, and fill it. */
#include "harness.h"
#include "virtual_gpu.h"

static void test_light(struct virtual_gpu *v)
{
    virtual_begin(v, 50);
    struct tenant *a = virtual_tenant(v, 50, 100, VCUDA_POLICY_BURST, 1000000);
    struct tenant *b = virtual_tenant(v, 50, 100, VCUDA_POLICY_BURST, 1000000);
    a->burst_ns = 5 * MS;
    a->pause_ns = 20 * MS;
    b->burst_ns = 2 * MS;
    b->pause_ns = 9 * MS;
    virtual_run(v, 1);
    virtual_count(v);
    virtual_run(v, 10);
    expect(v->turns_ns == 0, "claims that need %.0f %% together are left alone",
           virtual_share(v, 0) + virtual_share(v, 1));
    expect(v->steps < 1100, "and looked at a hundred times a second");
    b->burst_ns = 0;
    virtual_run(v, 0.3);
    virtual_count(v);
    virtual_run(v, 3);
    expect(v->turns_ns > 2900000000, "until one of them wants everything");
    b->burst_ns = 2 * MS;
    virtual_run(v, 1.5);
    virtual_count(v);
    virtual_run(v, 3);
    expect(v->turns_ns == 0, "and again a second after that");
}

/* Two claims that are told to use 21 % each, at once or in turn, for a second. */
static int clash_begins_turns(int at_once)
{
    struct round r;
    round_init(&r, 50 * MS);
    struct seat *seats[2] = {round_sit(&r, NULL), round_sit(&r, NULL)};
    for (int i = 0; i < 2; i++)
        seats[i]->terms = (struct share_terms){.guarantee = 5000, .limit = 10000, .weight = 1, .demand = 10000};
    for (uint64_t step = 1, now = MS; step < 100 && r.phase == ROUND_FREE; step++, now += 10 * MS) {
        for (uint64_t i = 0; i < 2; i++)
            seats[i]->reading = (struct reading){.inflight_ns = 100000,
                                                 .syncing = at_once || step % 2 == i,
                                                 .last_launch_ns = now,
                                                 .gpu_time_ns = step * 2100000};
        round_step(&r, now);
    }
    return r.phase != ROUND_FREE;
}

/* Two claims that always want to launch, and use so much of each turn, or `later` after ten seconds; the share of the ten
 * seconds after that in which turns are given. Side by side each one's times are stretched by the other's. */
static double turns_given(int percent_used, int later)
{
    struct round r;
    uint64_t now = MS, before, given = 0, used[2] = {0, 0};
    round_init(&r, 50 * MS);
    struct seat *seats[2] = {round_sit(&r, NULL), round_sit(&r, NULL)};
    for (int i = 0; i < 2; i++)
        seats[i]->terms = (struct share_terms){.guarantee = 5000, .limit = 10000, .weight = 1, .demand = 10000};
    while (now < 20000 * MS) {
        int late = now >= 10000 * MS;
        uint64_t percent = (uint64_t)(late ? later : percent_used), beside = percent < 60 ? 50 : 90;
        for (int i = 0; i < 2; i++) {
            int open = seats[i]->ends_ns > now;
            seats[i]->reading = (struct reading){.inflight_ns = open ? 100000 : 0,
                                                 .waiting = r.phase != ROUND_FREE && !open,
                                                 .last_launch_ns = now,
                                                 .last_end_ns = now,
                                                 .gpu_time_ns = used[i]};
        }
        before = now;
        now = round_step(&r, now);
        now = now > before ? now : before + 1000;
        given += late && r.phase != ROUND_FREE ? now - before : 0;
        for (int i = 0; i < 2; i++)
            used[i] += r.phase == ROUND_FREE        ? (now - before) * beside / 100
                       : seats[i]->ends_ns > before ? (now - before) * percent / 100
                                                    : 0;
    }
    return (double)given / (10000.0 * MS);
}

static void test_sparse(void)
{
    double sparse = turns_given(40, 40), dense = turns_given(95, 95), awakened = turns_given(40, 95);
    expect(sparse < 0.1, "turns that everyone leaves mostly idle are given up, and tried again: %.0f %% of the time",
           sparse * 100);
    expect(dense > 0.9, "turns that are used are not: %.0f %%", dense * 100);
    expect(awakened > 0.9, "and they come back when the claims begin to fight for the GPU: %.0f %%", awakened * 100);
}

static void test_clash(void)
{
    expect(clash_begins_turns(1), "claims that the driver keeps switching between get turns, though neither uses much");
    expect(!clash_begins_turns(0), "claims that use as much one after the other do not");
}

void test_turns_wanted(struct virtual_gpu *v)
{
    test_light(v);
    test_clash();
    test_sparse();
}
