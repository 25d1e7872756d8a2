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
    /* A piece is in before its books are. */
    struct vcuda_lending l = lending_of(&claim);
    for (double begin = now_s(); l.movable_bytes != movable && now_s() - begin < 2; l = lending_of(&claim))
        pause_s(0.01);
    uint64_t after = used_by(&claim);
    kill(p.pid, SIGTERM);
    finish(&p);
    expect(made == trips && figure_of(&p, "error") == 0 && movable == 24 * MIB && l.movable_bytes == movable &&
               after == used,
           "the driver's own memory within a move is not movable: %llu MiB, %llu after %lu trips",
           (unsigned long long)(movable / MIB), (unsigned long long)(l.movable_bytes / MIB), made);
    lending_end(&claim);
}

/* What an arbiter said last does not hold for ever. */
static void test_left_alone(void)
{
    lending_begin_pair();
    kill(node.player[1].pid, SIGSTOP); /* else it would follow a last order */
    lending_play_owner(0.2);
    int wanted = becomes(owner_wants, 5);
    double killed = now_s();
    arbiter_end(SIGKILL);
    int ended = finish_within(&node.player[0], 15);
    double waited = now_s() - killed;
    node.player[0].pid = 0;
    expect(wanted && ended && figure_of(&node.player[0], "error") == 2 && waited > 2 && waited < (SANITIZED ? 10 : 6),
           "an arbiter is killed and none follows: an owner waits %.1f s for the next one, no longer", waited);
    node.arbiter = arbiter_start(node_directory);
    kill(node.player[1].pid, SIGCONT);
    pause_s(1);
    lending_play_owner(0.2);
    finish(&node.player[0]);
    node.player[0].pid = 0;
    expect(figure_of(&node.player[0], "error") == 0, "with the next one owners get what is theirs: %.0f ms",
           figure_of(&node.player[0], "took_ms"));
    lending_expect_sound("afterwards");
    lending_end_pair();
}

void test_lent(void)
{
    int before = simulated_kernel;
    simulated_kernel = !on_real_gpu;
    if (!on_real_gpu) {
        test_books();
        test_left_alone();
    }
    simulated_kernel = before;
}
