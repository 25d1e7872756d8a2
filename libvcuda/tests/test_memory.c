/* Memory: each path, racing processes, killed holders, limits that move. */
#include "harness.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#define LIMIT (2 * GIB)
#define RACERS 8

static void test_way(struct claim *claim, const char *way)
{
    struct player p;
    play(&p, claim, PRELOADED, "fill", way, "67108864", "8589934592", NULL);
    finish(&p);
    double got = figure_of(&p, "got"), most = (double)(LIMIT - context_cost);
    /* Of what the context leaves, all but less than one block (pools: two of theirs). */
    double least = most - 64.0 * MIB * (strcmp(way, "pitch") ? 2 : 3);
    expect(figure_of(&p, "error") == 2 && got <= most && got >= least,
           "%s memory ends at the limit: %.0f of %.0f MiB, error %.0f", way, got / MIB, most / MIB,
           figure_of(&p, "error"));
}

static void test_ways(void)
{
    static const char *const ways[] = {"plain", "managed", "pitch", "async", "async_ptsz", "pool", "vmm", "array"};
    struct claim claim;
    struct player p;
    claim_make(&claim, LIMIT, 100);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        test_way(&claim, ways[i]);
    play(&p, &claim, PRELOADED, "fill", "plain", "67108864", "8589934592", NULL);
    finish(&p);
    expect(figure_of(&p, "again") == 0, "what was freed can be had again");
    play(&p, &claim, PRELOADED, "fill", "plain", "1000", "1000000", NULL);
    finish(&p);
    double taken = figure_of(&p, "free_before") - figure_of(&p, "free_after");
    expect(figure_of(&p, "error") == 0 && taken <= 2.0 * MIB, "a thousand small blocks share granules: %.1f MiB",
           taken / MIB);
    play(&p, &claim, BARE, "fill", "plain", "67108864", "4294967296", NULL);
    finish(&p);
    expect(figure_of(&p, "got") == 4.0 * GIB, "control: without the library 4 GiB are granted");
    claim_end(&claim);
}

static uint64_t used(const struct claim *claim)
{
    struct vcuda_totals t;
    vcuda_usage_totals(claim->usage, 0, &t);
    return t.memory_bytes + t.context_bytes;
}

/* By NVML, not by the page: a page read in a racer's moment of trying shows an addition that is about to go again. A real
 * driver reads one process after the other, and a block that moves meanwhile would count twice: there the racers are
 * stopped for the reading. (The simulated one reads all at once, under a lock that a stopped process might hold.) */
static uint64_t memory_used_at_once(const struct player racers[RACERS])
{
    if (!on_real_gpu)
        return gpu_memory_used();
    for (int i = 0; i < RACERS; i++)
        kill(racers[i].pid, SIGSTOP);
    pause_s(0.05); /* what the kernel had begun ends */
    uint64_t used = gpu_memory_used();
    for (int i = 0; i < RACERS; i++)
        kill(racers[i].pid, SIGCONT);
    pause_s(0.01);
    return used;
}

static void test_race(void)
{
    struct claim claim;
    struct player racers[RACERS];
    uint64_t limit = RACERS * context_cost + 600 * MIB, worst = 0;
    char seed[16], go[300];
    claim_make(&claim, limit, 100);
    uint64_t before = gpu_memory_used();
    for (int i = 0; i < RACERS; i++) {
        snprintf(seed, sizeof seed, "%d", i + 1);
        play(&racers[i], &claim, PRELOADED, "race", seed, "1.5", NULL);
    }
    for (int i = 0; i < RACERS; i++)
        wait_for(&racers[i], "ready");
    snprintf(go, sizeof go, "%s/go", claim.directory);
    fclose(fopen(go, "w"));
    for (double end = now_s() + 1.5; now_s() < end; pause_s(0.0005)) {
        uint64_t now = memory_used_at_once(racers) - before;
        if (now > worst && now < 1ull << 62)
            worst = now;
    }
    double refused = 0, granted = 0;
    for (int i = 0; i < RACERS; i++) {
        finish(&racers[i]);
        refused += figure_of(&racers[i], "refused");
        granted += figure_of(&racers[i], "granted");
    }
    expect(worst <= limit && worst > limit - 300 * MIB, "eight racing processes stay within %.0f MiB: at most %.0f",
           (double)limit / MIB, (double)worst / MIB);
    expect(refused > 100 && granted > 100, "and the race was one: %.0f granted, %.0f refused", granted, refused);
    vcuda_usage_reap_dead(claim.usage);
    expect(used(&claim) == 0, "when all have ended nothing is counted");
    claim_end(&claim);
}

static void test_killed_holder(void)
{
    struct claim claim;
    struct player holder, next;
    claim_make(&claim, LIMIT, 100);
    setenv("STAY", "1", 1);
    play(&holder, &claim, PRELOADED, "fill", "plain", "67108864", "8589934592", NULL);
    unsetenv("STAY");
    wait_for(&holder, "filled");
    play(&next, &claim, PRELOADED, "fill", "plain", "67108864", "8589934592", NULL);
    finish(&next);
    expect(figure_of(&next, "got") <= 0, "while one process holds all, another of the claim gets nothing");
    kill(holder.pid, SIGKILL);
    finish(&holder);
    play(&next, &claim, PRELOADED, "fill", "plain", "67108864", "8589934592", NULL);
    finish(&next);
    expect(figure_of(&next, "got") >= (double)(LIMIT - context_cost - 64 * MIB),
           "a killed holder's memory is free again");
    claim_end(&claim);
}

static int last_result_becomes(struct player *p, int want, double within)
{
    for (double end = now_s() + within; now_s() < end;) {
        p->length = 0;
        p->text[0] = 0;
        if (!wait_for(p, "result"))
            return 0;
        if ((int)figure_of(p, "result") == want)
            return 1;
    }
    return 0;
}

static void test_moved_limit(void)
{
    struct claim claim;
    struct player p;
    claim_make(&claim, LIMIT, 100);
    play(&p, &claim, PRELOADED, "retry", "1073741824", "4", NULL);
    wait_for(&p, "ready");
    expect(last_result_becomes(&p, 0, 1), "1 GiB is granted under 2 GiB");
    claim_set(&claim, context_cost + 256 * MIB, 100);
    expect(last_result_becomes(&p, 2, 0.5), "the limit is lowered: the next allocation is out of memory");
    claim_set(&claim, LIMIT, 100);
    expect(last_result_becomes(&p, 0, 0.5), "the limit is raised: the next allocation is granted");
    vcuda_limits_close_gpu(claim.limits, gpu_uuid, ++claim.generation);
    expect(last_result_becomes(&p, 800, 0.5), "the slot is closed: allocations are not permitted");
    kill(p.pid, SIGTERM);
    finish(&p);
    claim_end(&claim);
}

void test_memory(void)
{
    test_ways();
    test_race();
    test_killed_holder();
    test_moved_limit();
}
