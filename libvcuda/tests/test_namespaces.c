/* A driver in a link namespace of its own (dlmopen) is no way around the limit; what other libraries do with one there is not
 * held, and is to be found. */
#include "harness.h"

#include <signal.h>
#include <string.h>

static void test_ways(const struct claim *claim)
{
    static const char *const ways[] = {"soname",       "lazy",     "deep",        "base",   "path", "link",
                                       "proc_address", "existing", "other_dlsym", "linked", "copy", "copy_elsewhere"};
    struct player p;
    play(&p, claim, PRELOADED, "namespaces", NULL);
    finish(&p);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        expect(figure_of(&p, ways[i]) == 2, "6 GiB are refused by a second copy of the driver: %s (%.0f)", ways[i],
               figure_of(&p, ways[i]));
    expect(figure_of(&p, "driver_elsewhere") == 1 && figure_of(&p, "same_context") == 1,
           "it stays in its namespace, and answers as the program's own one does");
    expect(figure_of(&p, "nvml_ours") == 1, "so does NVML");
    expect(figure_of(&p, "untouched") == 1 && figure_of(&p, "no_driver") == 1 && figure_of(&p, "missing") == 1,
           "other libraries are what they were: a copy of their own, their own entries, their own errors");
    play(&p, claim, PRELOADED, "namespace_first", NULL);
    finish(&p);
    expect(figure_of(&p, "first") == 2, "a program without another driver is limited too (%.0f)",
           figure_of(&p, "first"));
    play(&p, claim, BARE, "namespaces", NULL);
    finish(&p);
    expect(figure_of(&p, "soname") == 0 && figure_of(&p, "link") == 0 && figure_of(&p, "existing") == 0,
           "control: without the library the same allocation is granted");
}

/* The library is not in that namespace: what tells of this process is NVML beside the usage page (the agent's audit). */
static void test_inside(const struct claim *claim)
{
    struct vcuda_process_info infos[VCUDA_MAX_PROCESSES];
    struct player p;
    int slots = 0;
    play(&p, claim, PRELOADED, "namespace_inside", "67108864", NULL);
    wait_for(&p, "inside");
    int n = vcuda_usage_processes(claim->usage, infos, VCUDA_MAX_PROCESSES);
    for (int i = 0; i < n; i++)
        slots += infos[i].pid == (uint32_t)p.pid;
    uint64_t bytes = gpu_memory_of(0, p.pid);
    kill(p.pid, SIGKILL);
    finish(&p);
    expect(
        figure_of(&p, "inside") == 0 && !slots && bytes >= 64 * MIB,
        "a library that opens the driver in its own namespace is not held, but shows: NVML has it, the page has not");
}

void test_namespaces(void)
{
    struct claim claim;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return; /* a sanitizer's own library cannot be loaded a second time */
#endif
    claim_make(&claim, 2 * GIB, 100);
    test_ways(&claim);
    test_inside(&claim);
    claim_end(&claim);
}
