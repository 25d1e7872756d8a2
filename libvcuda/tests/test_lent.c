/* Memory that steps aside: what a review of it found. */
#include "lending_node.h"

#include <signal.h>
#include <stdlib.h>

/* The driver takes and gives back memory of its own with each piece: none of it can leave. */
static void test_books(void)
{
    struct claim claim;
    struct player p;
    unsigned long made = 0, trips = test_count(20);
    lending_begin(&claim, REQUEST, 2 * GIB, GIB);
    setenv("GPUCLOUD_SIM_TABLES", "2097152", 1);
    play(&p, &claim, PRELOADED, "lend_hold", "4", BLOCK, "0", "300", "100000", NULL);
    unsetenv("GPUCLOUD_SIM_TABLES");
    wait_for(&p, "ready");
    uint64_t movable = lending_of(&claim).movable_bytes, used = used_by(&claim);
    for (; made < trips; made++) {
        lending_order(1, 0);
        if (!lending_out_becomes(&claim, 24 * MIB, 5))
            break;
        lending_order(0, 1);
        if (!lending_out_becomes(&claim, 0, 5))
            break;
    }
    struct vcuda_lending l = lending_of(&claim);
    uint64_t after = used_by(&claim);
    kill(p.pid, SIGTERM);
    finish(&p);
    expect(made == trips && figure_of(&p, "error") == 0 && movable == 24 * MIB && l.movable_bytes == movable &&
               after == used,
           "the driver's own memory within a move is not movable: %llu MiB, %llu after %lu trips",
           (unsigned long long)(movable / MIB), (unsigned long long)(l.movable_bytes / MIB), made);
    lending_end(&claim);
}

void test_lent(void)
{
    int before = simulated_kernel;
    simulated_kernel = !on_real_gpu;
    if (!on_real_gpu)
        test_books();
    simulated_kernel = before;
}
