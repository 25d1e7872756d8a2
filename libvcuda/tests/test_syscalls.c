/* No system call on the way of a launch: counted, not believed. Only the launching thread's calls are; what the library's own
 * thread does meanwhile delays nobody. */
#include "harness.h"

#include <stdio.h>

#define LAUNCHES "20000"

static double syscalls_of_launches(const struct claim *claim, int preloaded, const char *pause_us, double *last)
{
    struct player p;
    play(&p, claim, preloaded, "counts_syscalls", LAUNCHES, pause_us, NULL);
    int ended = finish_within(&p, 60);
    *last = figure_of(&p, "last");
    return ended ? figure_of(&p, "calls") : -1e9;
}

void test_syscalls(void)
{
    static const struct {
        uint32_t core;
        const char *pause_us, *about;
    } cases[] = {{100, "2", "without a limit of compute"}, {90, "4", "well below a limit of 90 %"}};
    double last;
    if (on_real_gpu)
        return; /* the driver's own calls would count */
    double bare = syscalls_of_launches(NULL, BARE, "2", &last);
    expect(bare == 0, "control: the simulated driver launches " LAUNCHES " times with %.0f system calls (last %.0f)",
           bare, last);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct claim claim;
        claim_make(&claim, 2 * GIB, cases[i].core);
        /* A busy machine may hold the measuring thread up until credit must be waited for: that is tried again. */
        double calls = 1;
        for (int try = 0; calls != 0 && try < 5; try++)
            calls = syscalls_of_launches(&claim, PRELOADED, cases[i].pause_us, &last);
        expect(calls == 0, LAUNCHES " launches %s: %.0f system calls by the launching thread (last %.0f)",
               cases[i].about, calls, last);
        claim_end(&claim);
    }
}
