/* Entries that few programs call, and that a limit must meet all the same: first versions, contexts for graphics, green
 * contexts, a greater stack, launches of earlier days, fills. On a real GPU only what needs no graphics and no old module. */
#include "harness.h"

#include <signal.h>
#include <stddef.h>

#define LIMIT GIB

static void test_first_versions(struct claim *claim)
{
    static const char *const ways[] = {"plain", "pitch", "array", "array3d"};
    struct player p;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        play(&p, claim, PRELOADED, "legacy_memory", ways[i], NULL);
        finish(&p);
        double got = figure_of(&p, "got"), most = (double)(LIMIT - context_cost);
        expect(figure_of(&p, "error") == 2 && got <= most && got >= most - 192.0 * MIB,
               "%s memory by the first version of its entry ends at the limit: %.0f of %.0f MiB", ways[i], got / MIB,
               most / MIB);
        if (i == 0)
            expect(figure_of(&p, "again") == 0, "what was freed by the first version can be had again");
    }
}

static void test_contexts(struct claim *claim)
{
    static const char *const ways[] = {"v4", "gl", "gl_v2", "vdpau"};
    struct player p;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        play(&p, claim, PRELOADED, "legacy_contexts", ways[i], NULL);
        finish(&p);
        expect(figure_of(&p, "error") == 2 && figure_of(&p, "made") == (double)(LIMIT / context_cost),
               "contexts made by %s end at the limit: %.0f", ways[i], figure_of(&p, "made"));
    }
    play(&p, claim, BARE, "legacy_contexts", "gl", NULL);
    finish(&p);
    expect(figure_of(&p, "made") == 12, "control: without the library they do not");
}

static void test_green(struct claim *claim)
{
    struct player p;
    struct vcuda_totals before, after;
    play(&p, claim, PRELOADED, "green", NULL);
    wait_for(&p, "ready");
    vcuda_usage_totals(claim->usage, 0, &after);
    kill(p.pid, SIGKILL);
    finish(&p);
    vcuda_usage_reap_dead(claim->usage);
    vcuda_usage_totals(claim->usage, 0, &before);
    expect(figure_of(&p, "used") == (double)context_cost, "two green contexts of a GPU cost one context: %.0f MiB",
           figure_of(&p, "used") / MIB);
    expect(after.context_bytes + after.memory_bytes == 0 && before.context_bytes == 0,
           "and nothing when they are gone: %.0f MiB", (double)(after.context_bytes + after.memory_bytes) / MIB);
}

static void test_stack(struct claim *claim)
{
    struct player p;
    play(&p, claim, PRELOADED, "stack", NULL);
    finish(&p);
    expect(figure_of(&p, "huge") == 2 && figure_of(&p, "after_huge") == 0, "a stack beyond the limit is refused: %.0f",
           figure_of(&p, "huge"));
    expect(figure_of(&p, "fits") == 0 && figure_of(&p, "after_fits") == 384.0 * MIB,
           "one that fits is counted: %.0f MiB", figure_of(&p, "after_fits") / MIB);
    play(&p, claim, BARE, "stack", NULL);
    finish(&p);
    expect(figure_of(&p, "huge") == 0, "control: without the library it is granted");
}

static void test_launches(void)
{
    static const char *const ways[] = {"launch", "grid", "grid_async", "several", "fill", "fill_async", "fill_rows"};
    struct claim claim;
    struct player p;
    claim_make(&claim, LIMIT, 30);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        double share = 0;
        for (int attempt = 0; attempt < 3 && share < 24; attempt++) {
            play(&p, &claim, PRELOADED, "legacy_launches", ways[i], NULL);
            finish(&p);
            share = figure_of(&p, "share");
        }
        expect(figure_of(&p, "error") == 0 && share >= 24 && share <= 36, "launches by '%s' are limited: %.0f of 30 %%",
               ways[i], share);
    }
    play(&p, &claim, PRELOADED, "legacy_captures", NULL);
    finish(&p);
    expect(figure_of(&p, "bad") == 0, "captures by other entries are not broken: %.0f", figure_of(&p, "bad"));
    expect(figure_of(&p, "cig") == 801, "an error of the driver stays what it is");
    claim_end(&claim);
}

static void test_accounting(void)
{
    struct claim claim;
    claim_make(&claim, LIMIT, 100);
    test_first_versions(&claim);
    test_contexts(&claim);
    test_green(&claim);
    test_stack(&claim);
    claim_end(&claim);
}

void test_legacy(void)
{
    if (on_real_gpu)
        return;
    test_accounting();
    /* And again where the kernel's calls are what is accounted. */
    simulated_kernel = 1;
    test_accounting();
    simulated_kernel = 0;
    test_launches();
}
