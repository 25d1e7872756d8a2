/* Memory, in both accountings: every path ends exactly at the limit and is given back to the byte, the library's account
 * compared with NVML's figure after each step. On a real GPU whichever accounting its driver leads to. */
#include "steps.h"

#include <stdio.h>
#include <string.h>
#include <stdlib.h>

#define RACERS 8
/* The room that is left at the end, less than a context takes, went to a fourth one in every fifth race. */
#define RACES 6

static const char *accounting(void)
{
    return simulated_kernel || on_real_gpu ? "as the kernel gives it" : "as the calls ask for it";
}

/* Give NVML's figure and the watcher time: true once the account is back at `bytes`. */
static int comes_back(const struct claim *claim, pid_t pid, uint64_t bytes, double within)
{
    double end = now_s() + within;
    while (account_of(claim, 0, pid).bytes != bytes)
        if (now_s() > end)
            return 0;
        else
            pause_s(0.02);
    return 1;
}

struct edge {
    const char *way;
    uint64_t contexts, bytes; /* room beyond what a program has at first: so many contexts, and bytes */
};

static void test_edge(const struct edge *edge, int exact)
{
    struct claim claim;
    struct steps s;
    uint64_t first = 0, last = 0, most = 0, real = 0, greatest = 0, limit = 0;
    int differs = 0, count = 0, right = 0;
    claim_make(&claim, VCUDA_NO_MEMORY_LIMIT, 100);
    steps_begin(&s, &claim, "edge", edge->way, NULL);
    while (steps_next(&s)) {
        struct account now = account_of(&claim, 0, s.player.pid);
        differs += account_differs(&now);
        if (!count++) {
            limit = now.bytes + edge->contexts * context_cost + edge->bytes;
            claim_set(&claim, limit, 100);
            first = last = now.bytes;
        }
        greatest = now.bytes > last && now.bytes - last > greatest ? now.bytes - last : greatest;
        most = now.bytes > most ? now.bytes : most;
        real = now.nvml > real ? now.nvml : real;
        last = now.bytes;
        right += figure_of(&s.player, "error") == 2;
        if (figure_of(&s.player, "wrong") < 0)
            continue;
        right += figure_of(&s.player, "wrong") == 0;
        last = comes_back(&claim, s.player.pid, first, exact ? 0 : 2) ? first : last;
    }
    expect(right == 2 && most <= limit && real <= limit && limit - most < greatest && count > 3,
           "%s memory %s ends at the limit: %.0f of %.0f MiB in %d steps", edge->way, accounting(), (double)most / MIB,
           (double)limit / MIB, count);
    /* A real driver keeps graphs' memory after it refused one; NVML shows it too. */
    int comes = last == first || (on_real_gpu && !strcmp(edge->way, "graph"));
    expect(comes && (!exact || !differs), "and is given back to the byte: %.3f MiB stay, %d steps differ from NVML",
           (double)(last - first) / MIB, differs);
    claim_end(&claim);
}

static void test_edges(void)
{
    static const struct edge kernel[] = {
        {"plain", 0, 1000 * MIB},    {"small", 0, 99 * MIB},   {"managed", 0, 600 * MIB}, {"stream", 0, 601 * MIB},
        {"graph", 0, 700 * MIB},     {"stack", 0, 1500 * MIB}, {"context", 3, 10 * MIB},  {"module", 0, 500 * MIB},
        {"physical", 0, 1000 * MIB}, {"array", 0, 300 * MIB}};
    static const struct edge calls[] = {{"plain", 0, 1000 * MIB}, {"small", 0, 99 * MIB},   {"managed", 0, 600 * MIB},
                                        {"stream", 0, 608 * MIB}, {"context", 3, 10 * MIB}, {"physical", 0, 1000 * MIB},
                                        {"array", 0, 300 * MIB}};
    if (simulated_kernel || on_real_gpu)
        for (size_t i = 0; i < sizeof kernel / sizeof *kernel; i++)
            test_edge(&kernel[i], 1);
    else
        for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
            test_edge(&calls[i], 0);
}

static void test_walk(void)
{
    struct claim claim;
    struct steps s;
    int steps = 0, differs = 0, errors = 0;
    uint64_t left = 1;
    claim_make(&claim, 20 * GIB, 100);
    steps_begin(&s, &claim, "walk", NULL, NULL);
    while (steps_next(&s)) {
        struct account now = account_of(&claim, 0, s.player.pid);
        steps++;
        differs += account_differs(&now);
        errors += figure_of(&s.player, "error") != 0;
        left = now.bytes;
    }
    expect(steps > 35 && !errors && !differs && left == 0,
           "every way to take memory: in %d steps the account is NVML's figure, %d times not; %.0f MiB at the end",
           steps, differs, (double)left / MIB);
    claim_end(&claim);
}

/* One process throws dice; a model says after every throw what it must hold, and whether a refusal was right. */
static void test_dice(void)
{
    struct claim claim;
    struct steps s;
    char seed[16], operations[16];
    uint64_t first = 0, limit = 0, last = 0;
    int begun = 0, wrong = 0, refused = 0;
    snprintf(seed, sizeof seed, "%u", test_seed());
    snprintf(operations, sizeof operations, "%lu", test_count(400));
    claim_make(&claim, VCUDA_NO_MEMORY_LIMIT, 100);
    setenv("LOOKS", "1", 1);
    steps_begin(&s, &claim, "dice", seed, operations);
    unsetenv("LOOKS");
    while (steps_next(&s)) {
        struct account now = account_of(&claim, 0, s.player.pid);
        double turned_away = figure_of(&s.player, "refused_bytes");
        wrong += account_differs(&now);
        if (!begun++) {
            first = now.bytes;
            limit = first + 300 * MIB;
            claim_set(&claim, limit, 100);
        } else if (turned_away >= 0) {
            wrong += (double)(now.bytes - first) != figure_of(&s.player, "model") || now.bytes > limit;
            wrong += (double)now.managed != figure_of(&s.player, "model_managed");
            wrong += turned_away > 0 && (double)now.bytes + turned_away <= (double)limit;
            refused += turned_away > 0;
        }
        last = now.bytes;
    }
    expect(!wrong && refused > 0 && last == first,
           "memory %s agrees with a model in %d random operations (%d refused), seed %s: %d times not", accounting(),
           begun, refused, seed, wrong);
    claim_end(&claim);
}

/* By NVML: a page read in a racer's moment of trying shows what is about to go again. */
static uint64_t watch_race(uint64_t before)
{
    uint64_t worst = 0;
    for (double end = now_s() + 2; now_s() < end; pause_s(0.0005)) {
        uint64_t now = gpu_memory_used() - before;
        if (now > worst && now < 1ull << 62)
            worst = now;
    }
    return worst;
}

static void test_racing_dice(void)
{
    struct claim claim;
    struct steps racers[RACERS];
    unsigned dice = test_seed();
    uint64_t limit = RACERS * context_cost + 600 * MIB, before = gpu_memory_used(), sum = 0;
    double refused = 0;
    int wrong = 0;
    char seed[16];
    claim_make(&claim, limit, 100);
    for (int i = 0; i < RACERS; i++) {
        snprintf(seed, sizeof seed, "%u", dice + (unsigned)i);
        steps_begin(&racers[i], &claim, "dice", seed, "20000");
    }
    for (int i = 0; i < RACERS; i++)
        wrong += !steps_next(&racers[i]);
    for (int i = 0; i < RACERS; i++) {
        racers[i].player.length = 0;
        steps_release(&racers[i]);
    }
    uint64_t worst = watch_race(before);
    for (int i = 0; i < RACERS; i++) {
        wrong += !wait_for(&racers[i].player, "wrong") || !wait_for(&racers[i].player, "model_managed");
        refused += figure_of(&racers[i].player, "refused");
        wrong += figure_of(&racers[i].player, "wrong") != 0;
    }
    pause_s(0.1);
    for (int i = 0; i < RACERS; i++) {
        struct account now = account_of(&claim, 0, racers[i].player.pid);
        wrong += account_differs(&now) || (double)now.managed != figure_of(&racers[i].player, "model_managed");
        sum += now.bytes;
    }
    expect(worst <= limit && sum <= limit && refused > 100,
           "eight processes at random, memory %s, stay within %.0f MiB: at most %.0f; %.0f refused", accounting(),
           (double)limit / MIB, (double)worst / MIB, refused);
    expect(!wrong, "and each one's account agrees to the byte at the end, seed %u: %d do not", dice, wrong);
    for (int i = 0; i < RACERS; i++)
        while (steps_next(&racers[i]))
            ;
    claim_end(&claim);
}

static void test_first_context(void)
{
    struct claim claim;
    struct steps s;
    claim_make(&claim, context_cost / 2, 100);
    steps_begin(&s, &claim, "retain", "2", NULL);
    steps_next(&s);
    struct account none = account_of(&claim, 0, s.player.pid);
    double refused = figure_of(&s.player, "error");
    claim_set(&claim, 2 * context_cost, 100);
    steps_next(&s);
    struct account one = account_of(&claim, 0, s.player.pid);
    expect(refused == 2 && none.bytes == 0 && none.nvml == 0,
           "a first context that does not fit is refused, memory %s, and leaves nothing: %.0f MiB", accounting(),
           (double)none.bytes / MIB);
    expect(figure_of(&s.player, "error") == 0 && one.bytes == one.nvml && one.bytes > 0,
           "and is had once the limit is raised, charged once: %.0f MiB", (double)one.bytes / MIB);
    while (steps_next(&s))
        ;
    claim_end(&claim);
}

static void test_racing_contexts(void)
{
    struct claim claim;
    struct steps racers[RACERS];
    uint64_t limit = 3 * context_cost + context_cost / 2, before = gpu_memory_used(), worst = 0, sum = 0;
    int made = 0, wrong = 0;
    claim_make(&claim, limit, 100);
    for (int i = 0; i < RACERS; i++)
        steps_begin(&racers[i], &claim, "retain", "1", NULL);
    for (double end = now_s() + 0.7; now_s() < end; pause_s(0.0005)) {
        uint64_t now = gpu_memory_used() - before;
        worst = now > worst ? now : worst;
    }
    for (int i = 0; i < RACERS; i++) {
        wait_for(&racers[i].player, "step");
        double error = figure_of(&racers[i].player, "error");
        made += error == 0;
        wrong += error != 0 && error != 2;
        sum += account_of(&claim, 0, racers[i].player.pid).bytes;
    }
    expect(worst <= limit && sum <= limit && made >= 1 && made <= 3 && !wrong,
           "eight first contexts at once, memory %s, never pass the limit: %d made, at most %.0f of %.0f MiB",
           accounting(), made, (double)worst / MIB, (double)limit / MIB);
    for (int i = 0; i < RACERS; i++)
        while (steps_next(&racers[i]))
            ;
    claim_end(&claim);
}

static void test_lowered(void)
{
    struct claim claim;
    struct steps s;
    claim_make(&claim, 4 * context_cost + GIB, 100);
    steps_begin(&s, &claim, "hold", NULL, NULL);
    steps_next(&s);
    claim_set(&claim, context_cost + 256 * MIB, 100);
    steps_next(&s);
    expect(figure_of(&s.player, "more") == 2 && figure_of(&s.player, "free") == 0,
           "the limit lowered below the use, memory %s: nothing more is had, and %.0f bytes are free", accounting(),
           figure_of(&s.player, "free"));
    expect(figure_of(&s.player, "given") == 0 && figure_of(&s.player, "again") == 0,
           "what is given back makes room again");
    while (steps_next(&s))
        ;
    claim_end(&claim);
}

static void test_orphans(void)
{
    struct claim claim;
    struct steps s;
    claim_make(&claim, 4 * context_cost + GIB, 100);
    steps_begin(&s, &claim, "orphan", NULL, NULL);
    steps_next(&s);
    uint64_t first = account_of(&claim, 0, s.player.pid).bytes;
    steps_next(&s);
    struct account alone = account_of(&claim, 0, s.player.pid);
    steps_next(&s);
    expect(alone.bytes - first == 64 * MIB && comes_back(&claim, s.player.pid, first, 3),
           "what outlives its pool, memory %s, counts until it is freed: %.0f MiB", accounting(),
           (double)(alone.bytes - first) / MIB);
    while (steps_next(&s))
        ;
    claim_end(&claim);
}

static void test_accounting(void)
{
    test_edges();
    test_dice();
    test_racing_dice();
    test_first_context();
    for (int round = 0; round < RACES; round++)
        test_racing_contexts();
    test_lowered();
    test_orphans();
}

void test_kernel(void)
{
    test_accounting();
    if (on_real_gpu) {
        test_walk();
        return;
    }
    simulated_kernel = 1;
    test_accounting();
    test_walk();
    test_memory();
    test_views();
    test_life();
    test_bugs();
    test_calls();
    simulated_kernel = 0;
}
