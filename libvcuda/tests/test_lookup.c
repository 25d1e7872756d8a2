/* However a program finds the driver, it finds the limit. */
#include "harness.h"

#include <stdio.h>
#include <stdlib.h>

/* No answer of any way is the driver's own entry; what it has not is not there. */
static void expect_ours(const struct player *p, int absent)
{
    static const char *const ways[] = {"handle",       "older",           "default",     "next",
                                       "proc_address", "proc_address_v2", "nvml_handle", "nvml_default"};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        char ours[64], theirs[64], gone[64];
        snprintf(ours, sizeof ours, "%s_ours", ways[i]);
        snprintf(theirs, sizeof theirs, "%s_theirs", ways[i]);
        snprintf(gone, sizeof gone, "%s_absent", ways[i]);
        int complete = absent < 0 || i >= 4 || figure_of(p, gone) == absent;
        /* An older driver may lack the second cuGetProcAddress altogether. */
        int some = figure_of(p, ours) > 0 || (absent > 0 && i == 5);
        expect(figure_of(p, theirs) == 0 && some && complete,
               "every entry found by %s is ours: %.0f, absent %.0f, not ours %.0f", ways[i], figure_of(p, ours),
               figure_of(p, gone), figure_of(p, theirs));
    }
}

static void test_every_entry(struct claim *claim)
{
    struct player p;
    play(&p, claim, PRELOADED, "names", NULL);
    finish(&p);
    expect_ours(&p, on_real_gpu ? -1 : 0);
    play(&p, claim, BARE, "names", NULL);
    finish(&p);
    expect(figure_of(&p, "handle_ours") == 0 && figure_of(&p, "handle_theirs") > 0,
           "control: without the library none is");
    if (on_real_gpu)
        return;
    static const char *const older[] = {"11040", "12020"};
    for (size_t i = 0; i < sizeof older / sizeof *older; i++) {
        setenv("GPUCLOUD_SIM_CUDA_VERSION", older[i], 1);
        play(&p, claim, BARE, "names", NULL);
        finish(&p);
        double absent = figure_of(&p, "handle_absent");
        play(&p, claim, PRELOADED, "names", NULL);
        finish(&p);
        unsetenv("GPUCLOUD_SIM_CUDA_VERSION");
        expect(absent > 1, "a driver of CUDA %s lacks %.0f of the entries", older[i], absent);
        expect_ours(&p, (int)absent);
    }
}

static void test_tracers(struct claim *claim)
{
    struct player p;
    preload_behind = "tracer.so";
    play(&p, claim, PRELOADED, "lookup", NULL);
    finish(&p);
    preload_behind = NULL;
    expect(figure_of(&p, "tracer") == 1 && figure_of(&p, "tracer_next") == 2,
           "a tracer preloaded behind us finds what comes after it, not itself: and it is limited (%.0f)",
           figure_of(&p, "tracer_next"));
    preload_before = "tracer.so";
    play(&p, claim, PRELOADED, "linked", NULL);
    finish(&p);
    preload_before = NULL;
    expect(figure_of(&p, "linked") == 2, "a program whose calls a tracer in front of us passes on is limited");
}

static void test_no_driver(struct claim *claim)
{
    struct player p;
    play(&p, claim, PRELOADED, "without_driver", NULL);
    finish(&p);
    expect(figure_of(&p, "cu_init") == 0 && figure_of(&p, "nvml_memory") == 0,
           "where no driver is loaded, none is found");
}

void test_lookup(void)
{
    static const char *const ways[] = {"dlsym_handle",    "dlsym_default",      "dlsym_older",
                                       "dlsym_looked_up", "dlvsym_looked_up",   "dlsym_next",
                                       "proc_address",    "proc_address_first", "proc_address_of_itself"};
    struct claim claim;
    struct player p;
    claim_make(&claim, 2 * GIB, 100);
    play(&p, &claim, PRELOADED, "lookup", NULL);
    finish(&p);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        expect(figure_of(&p, ways[i]) == 2, "6 GiB are refused under a limit of 2 GiB, found by %s", ways[i]);
    expect(figure_of(&p, "next_works") == 1, "RTLD_NEXT still counts from the program");
    expect(figure_of(&p, "unknown_name") == 1 && figure_of(&p, "unhooked_untouched") == 1,
           "names that we do not stand before pass");
    play(&p, &claim, PRELOADED, "linked", NULL);
    finish(&p);
    expect(figure_of(&p, "linked") == 2, "a program linked to libcuda is limited too");
    play(&p, &claim, BARE, "lookup", NULL);
    finish(&p);
    expect(figure_of(&p, "dlsym_handle") == 0, "control: without the library the same allocation is granted");
    play(&p, NULL, PRELOADED, "lookup", NULL);
    finish(&p);
    expect(figure_of(&p, "dlsym_handle") == 0 && figure_of(&p, "proc_address") == 0,
           "without a claim the library is inert");
    test_every_entry(&claim);
    test_tracers(&claim);
    test_no_driver(&claim);
    test_namespaces();
    claim_end(&claim);
}
