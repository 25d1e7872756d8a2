/* Forks within a claim. */
#include "harness.h"

static void test_fork(void)
{
    struct claim claim;
    struct player p;
    struct vcuda_totals t;
    claim_make(&claim, 2 * GIB + 2 * context_cost, 100);
    play(&p, &claim, PRELOADED, "forks", NULL);
    int both = wait_for(&p, "parent_ready") && wait_for(&p, "child_ready");
    vcuda_usage_totals(claim.usage, 0, &t);
    uint64_t used = t.memory_bytes + t.context_bytes - 2 * context_cost;
    expect(both && t.processes == 2 && used == 48 * MIB, "a forked child has a slot of its own: %u slots, %.0f MiB",
           t.processes, (double)used / MIB);
    finish(&p);
    expect(figure_of(&p, "child_big") == 2 && figure_of(&p, "child_small") == 0, "and the claim's limit");
    expect(figure_of(&p, "late_child") == 0 && figure_of(&p, "child_status") == 0,
           "a child forked too late gets the driver's error only");
    claim_end(&claim);
}

void test_life(void)
{
    test_fork();
}
