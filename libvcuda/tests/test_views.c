/* What programs see: the limit as the GPU's size, the claim's use as its use, the claim's processes as all there are. */
#include "harness.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#define LIMIT (2 * GIB)

static void test_memory_shown(void)
{
    struct claim claim;
    struct player p;
    claim_make(&claim, LIMIT, 100);
    play(&p, &claim, PRELOADED, "fill", "plain", "104857600", "314572800", NULL);
    finish(&p);
    expect(figure_of(&p, "total") == (double)LIMIT, "cuMemGetInfo's total is the limit");
    double before = figure_of(&p, "free_before"), cost = (double)LIMIT - before;
    expect(cost >= (double)context_cost && cost < (double)context_cost + 64.0 * MIB,
           "what is free at first is the limit less the context: %.0f MiB", cost / MIB);
    double after = figure_of(&p, "free_after");
    expect(before - after == 300.0 * MIB, "300 MiB more are in use after 300 MiB were taken");
    play(&p, &claim, PRELOADED, "nvml", NULL);
    finish(&p);
    expect(figure_of(&p, "device_total") == (double)LIMIT, "cuDeviceTotalMem is the limit");
    expect(figure_of(&p, "nvml_total") == (double)LIMIT && figure_of(&p, "nvml_total_v2") == (double)LIMIT,
           "NVML's memory shows the limit");
    expect(figure_of(&p, "nvml_used") == figure_of(&p, "cuda_used"), "NVML and CUDA agree on what is used");
    claim_end(&claim);
}

static void expect_list(const struct player *p, const char *label, double count)
{
    char name[4][32];
    static const char *const parts[] = {"result", "count", "asked", "beyond"};
    for (int i = 0; i < 4; i++)
        snprintf(name[i], sizeof name[i], "%s_%s", label, parts[i]);
    expect(figure_of(p, name[0]) == 0 && figure_of(p, name[1]) == count && figure_of(p, name[2]) == 1 &&
               figure_of(p, name[3]) == 1,
           "the list %s holds %.0f processes: %.0f", label, count, figure_of(p, name[1]));
}

/* Two processes of one claim and one of another: each claim sees its own. */
static void test_processes_shown(void)
{
    struct claim claim, other;
    struct player sibling, stranger, p;
    claim_make(&claim, LIMIT, 100);
    claim_make(&other, LIMIT, 100);
    setenv("STAY", "1", 1);
    play(&sibling, &claim, PRELOADED, "fill", "plain", "67108864", "67108864", NULL);
    play(&stranger, &other, PRELOADED, "fill", "plain", "67108864", "67108864", NULL);
    unsetenv("STAY");
    wait_for(&sibling, "filled");
    wait_for(&stranger, "filled");
    play(&p, &claim, PRELOADED, "processes", NULL);
    finish(&p);
    expect_list(&p, "v1", 2);
    expect_list(&p, "v2", 2);
    expect_list(&p, "v3", 2);
    expect_list(&p, "graphics", 0);
    expect_list(&p, "mps", 0);
    expect(on_real_gpu || figure_of(&p, "details_count") == 2, "and so does the detailed list: %.0f",
           figure_of(&p, "details_count"));
    double own = (double)(context_cost + 100 * MIB), seen = figure_of(&p, "v3_own");
    expect(seen >= own && seen < own + 8.0 * MIB && figure_of(&p, "v1_own") == seen,
           "a process is listed with what it is charged: %.0f MiB", seen / MIB);
    kill(sibling.pid, SIGKILL);
    finish(&sibling);
    play(&p, &claim, PRELOADED, "processes", NULL);
    finish(&p);
    expect_list(&p, "v3", 1);
    play(&p, NULL, BARE, "processes", NULL);
    finish(&p);
    expect(figure_of(&p, "v3_count") >= 2, "control: without the library the stranger is seen too");
    kill(stranger.pid, SIGKILL);
    finish(&stranger);
    claim_end(&claim);
    claim_end(&other);
}

static void test_utilisation_shown(void)
{
    struct claim claim;
    struct player p, load;
    double first = -1, later = -1;
    claim_make(&claim, LIMIT, 30);
    /* A busy machine may hold a share down; then it is measured again. */
    for (int attempt = 0; attempt < 3 && (first < 24 || later < 24); attempt++) {
        play(&load, NULL, BARE, "busy", "1.6", NULL);
        play(&p, &claim, PRELOADED, "busy", "1.2", NULL);
        finish(&p);
        finish(&load);
        first = figure_of(&p, "first");
        later = figure_of(&p, "later");
    }
    expect(first >= 24 && first <= 36 && later >= 24 && later <= 36,
           "utilisation is the claim's use, beside a stranger's: %.0f, later %.0f of 30 %%", first, later);
    expect(figure_of(&p, "samples_foreign") == 0, "samples of other tenants' processes are not shown");
    expect(figure_of(&load, "later") > 50, "control: without the library the whole GPU's is shown: %.0f %%",
           figure_of(&load, "later"));
    claim_end(&claim);
}

/* An instance of a divided GPU has a slot of its own, named by its own UUID. */
static void test_every_gpu_an_instance(void)
{
    struct claim claim;
    struct player p;
    if (on_real_gpu)
        return;
    setenv("GPUCLOUD_SIM_MIG", "1", 1);
    claim_make(&claim, LIMIT, 30);
    play(&p, &claim, PRELOADED, "fill", "plain", "67108864", "8589934592", NULL);
    finish(&p);
    expect(figure_of(&p, "error") == 2 && figure_of(&p, "got") <= (double)(LIMIT - context_cost) &&
               figure_of(&p, "got") > 0,
           "memory of a MIG instance ends at its limit: %.0f MiB", figure_of(&p, "got") / MIB);
    play(&p, &claim, PRELOADED, "nvml", NULL);
    finish(&p);
    expect(figure_of(&p, "nvml_total") == (double)LIMIT && figure_of(&p, "nvml_used") == figure_of(&p, "cuda_used"),
           "NVML shows the instance's limit and use");
    play(&p, &claim, PRELOADED, "processes", NULL);
    finish(&p);
    expect_list(&p, "v3", 1);
    double later = -1;
    for (int attempt = 0; attempt < 3 && later < 24; attempt++) {
        play(&p, &claim, PRELOADED, "busy", "1.2", NULL);
        finish(&p);
        later = figure_of(&p, "later");
    }
    unsetenv("GPUCLOUD_SIM_MIG");
    expect(later >= 24 && later <= 36, "a share of the instance is kept: %.0f of 30 %%", later);
    claim_end(&claim);
}

void test_views(void)
{
    test_memory_shown();
    test_processes_shown();
    test_utilisation_shown();
    test_every_gpu_an_instance();
}
