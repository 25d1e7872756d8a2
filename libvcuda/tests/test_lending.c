/* Memory that steps aside: blocks of a claim that borrows leave for host memory and come back at the same addresses. */
#include "lending_node.h"

#include <limits.h>
#include <linux/futex.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static void test_paths(void)
{
    struct claim claim;
    struct player p;
    lending_begin(&claim, REQUEST, 2 * GIB, GIB);
    play(&p, &claim, PRELOADED, "lend_paths", BLOCK, NULL);
    wait_for(&p, "ready");
    struct vcuda_lending l = lending_of(&claim);
    uint64_t used = used_by(&claim);
    wait_for(&p, "done");
    struct vcuda_lending after = lending_of(&claim);
    uint64_t left = used_by(&claim);
    finish(&p);
    double bytes = atof(BLOCK);
    expect(l.movable_bytes == 12 * MIB && l.host_bytes == 12 * MIB, "two blocks can leave: %llu MiB, places for %llu",
           (unsigned long long)(l.movable_bytes / MIB), (unsigned long long)(l.host_bytes / MIB));
    expect(figure_of(&p, "range") == 0 && figure_of(&p, "range_base") == 1 && figure_of(&p, "range_bytes") == bytes,
           "a block has the size that was asked for: %.0f", figure_of(&p, "range_bytes"));
    expect(figure_of(&p, "attribute") == 0 && figure_of(&p, "type") == 2, "it is memory of a GPU");
    expect(figure_of(&p, "shared") == 801 && figure_of(&p, "retained") == 1,
           "it cannot be shared, and has no handle: %.0f, %.0f", figure_of(&p, "shared"), figure_of(&p, "retained"));
    expect(figure_of(&p, "error") == 0 && figure_of(&p, "wrong") == 0 && figure_of(&p, "filled") == 1 &&
               figure_of(&p, "later") == 0,
           "copies and fills reach it");
    expect(figure_of(&p, "freed") == 0 && figure_of(&p, "freed_later") == 0 && !after.movable_bytes &&
               !after.host_bytes && used - left == 12 * MIB,
           "freed, nothing of it is counted any more: %llu MiB less", (unsigned long long)((used - left) / MIB));
    lending_end(&claim);
}

/* Out and back, while kernels and a captured graph run; the contents are compared at the end. */
static void test_rounds_trips(const char *without, unsigned long trips)
{
    struct claim claim;
    struct player p;
    unsigned long made = 0;
    lending_begin(&claim, REQUEST, 2 * GIB, GIB);
    setenv("GPUCLOUD_SIM_UNMAP_CHECK", "1", 1);
    if (without)
        setenv(without, "1", 1);
    play(&p, &claim, PRELOADED, "lend_hold", "4", BLOCK, "0", "300", "100000", NULL);
    unsetenv("GPUCLOUD_SIM_UNMAP_CHECK");
    if (without)
        unsetenv(without);
    wait_for(&p, "ready");
    uint64_t in = used_by(&claim), out = 0;
    for (; made < trips; made++) {
        lending_order(1, 0);
        if (!lending_out_becomes(&claim, 24 * MIB, 5))
            break;
        /* It counts as out before it is given back. */
        for (double until = now_s() + 1; (out = used_by(&claim)) > in - 24 * MIB && now_s() < until;)
            pause_s(0.0002);
        lending_order(0, 1);
        if (!lending_out_becomes(&claim, 0, 5))
            break;
    }
    struct vcuda_lending l = lending_of(&claim);
    /* It counts what came in after what is out. */
    for (double until = now_s() + 5; l.moved_in_bytes != l.moved_out_bytes && now_s() < until; pause_s(0.01))
        l = lending_of(&claim);
    kill(p.pid, SIGTERM);
    finish(&p);
    expect(made == trips && figure_of(&p, "wrong") == 0 && figure_of(&p, "error") == 0 && figure_of(&p, "freed") == 0,
           "%lu round trips%s: %.0f words wrong, error %.0f, %.0f launches meanwhile", made,
           without ? " with a standstill while it is out" : "", figure_of(&p, "wrong"), figure_of(&p, "error"),
           figure_of(&p, "launched"));
    expect(in - out == 24 * MIB && l.moved_out_bytes == made * 24 * MIB && l.moved_in_bytes == l.moved_out_bytes,
           "the account follows: %llu MiB less while out, %llu of %llu MiB came back",
           (unsigned long long)((in - out) / MIB), (unsigned long long)(l.moved_in_bytes / MIB),
           (unsigned long long)(l.moved_out_bytes / MIB));
    lending_end(&claim);
}

static void test_limits(void)
{
    struct claim claim;
    struct player p;
    lending_begin(&claim, REQUEST, 2 * GIB, GIB);
    play(&p, &claim, PRELOADED, "lend_fixed", "33554432", NULL);
    finish(&p);
    double most = 384.0 * MIB;
    expect(figure_of(&p, "error") == 2 && figure_of(&p, "got") <= most && figure_of(&p, "got") > most - 96.0 * MIB,
           "memory that cannot leave ends at what is promised: %.0f of %.0f MiB", figure_of(&p, "got") / MIB,
           most / MIB);
    play(&p, &claim, PRELOADED, "fill", "plain", "67108864", "8589934592", NULL);
    finish(&p);
    most = 384.0 * MIB + GIB;
    expect(figure_of(&p, "error") == 2 && figure_of(&p, "got") <= most && figure_of(&p, "got") > most - 128.0 * MIB,
           "no more is borrowed than has a place in host memory: %.0f of %.0f MiB", figure_of(&p, "got") / MIB,
           most / MIB);
    lending_set_borrower(&claim, REQUEST, 2 * GIB, 8 * GIB);
    play(&p, &claim, PRELOADED, "fill", "plain", "67108864", "8589934592", NULL);
    finish(&p);
    most = 2.0 * GIB - context_cost;
    expect(figure_of(&p, "error") == 2 && figure_of(&p, "got") <= most && figure_of(&p, "got") > most - 64.0 * MIB,
           "and never more than the limit: %.0f of %.0f MiB", figure_of(&p, "got") / MIB, most / MIB);
    lending_set_borrower(&claim, REQUEST, 2 * GIB, 0);
    play(&p, &claim, PRELOADED, "fill", "plain", "67108864", "8589934592", NULL);
    finish(&p);
    most = 384.0 * MIB;
    expect(figure_of(&p, "error") == 2 && figure_of(&p, "got") <= most && figure_of(&p, "got") > most - 64.0 * MIB,
           "without host memory, what is promised is all: %.0f of %.0f MiB", figure_of(&p, "got") / MIB, most / MIB);
    lending_set_borrower(&claim, REQUEST, 2 * GIB, 8 * GIB);
    lending_turns->memory[0].looked_ns = 1;
    play(&p, &claim, PRELOADED, "fill", "plain", "268435456", "8589934592", NULL);
    finish(&p);
    expect(figure_of(&p, "error") == 2 && figure_of(&p, "got") <= most && figure_of(&p, "got") > most - 256.0 * MIB,
           "nor where no arbiter would ask for it: %.0f of %.0f MiB", figure_of(&p, "got") / MIB, most / MIB);
    vcuda_usage_reap_dead(claim.usage);
    expect(lending_of(&claim).host_bytes == 0 && used_by(&claim) == 0, "nothing stays behind in the books");
    lending_end(&claim);
}

/* ---- An owner, a borrower and an arbiter ---- */

static void test_owner(void)
{
    lending_begin_pair();
    double held = figure_of(&node.player[1], "held");
    uint64_t before = used_by(&node.claim[1]);
    lending_play_owner(1);
    wait_for(&node.player[0], "took_ms");
    uint64_t out = out_of_borrower();
    double took = figure_of(&node.player[0], "took_ms"), bound = 100 + (double)out / GIB / 20 * 1e3;
    expect(held == 0 && before > lending_whole / 4 * 3 && out > lending_whole / 4 &&
               figure_of(&node.player[0], "error") == 0 && (SANITIZED || took < 3 * bound),
           "an owner gets %.1f GiB that were lent: %.0f ms, %.1f GiB left (bound %.0f ms; errors %.0f, %.0f)",
           (double)(lending_whole / 2 - 2 * context_cost) / GIB, took, (double)out / GIB, bound, held,
           figure_of(&node.player[0], "error"));
    expect(out < lending_whole / 8 * 5, "and not much more left than was missing");
    kill(node.player[1].pid, SIGUSR1);
    wait_for(&node.player[1], "grown");
    uint64_t more = out_of_borrower() - out;
    expect(figure_of(&node.player[1], "grown") == 0 && more >= 512 * MIB && more <= 1030 * MIB,
           "the borrower takes more meanwhile; what the GPU has no room for begins in host memory: %llu MiB",
           (unsigned long long)(more / MIB));
    finish(&node.player[0]);
    node.player[0].pid = 0;
    double left = now_s();
    int back = becomes(nothing_out, 20);
    expect(back && now_s() - left > 1, "what left comes back when nothing is wanted: after %.1f s", now_s() - left);
    arbiter_end(SIGKILL);
    node.arbiter = arbiter_start(node_directory);
    lending_expect_sound("afterwards");
    lending_play_owner(0.2);
    finish(&node.player[0]);
    node.player[0].pid = 0;
    expect(figure_of(&node.player[0], "error") == 0 && figure_of(&node.player[0], "took_ms") < 100,
           "with nothing lent it waits for nobody: %.1f ms", figure_of(&node.player[0], "took_ms"));
    lending_end_pair();
}

static void test_kills(void)
{
    lending_begin_pair();
    /* The owner, while it waits for a borrower that captures. */
    lending_hold_fast();
    lending_play_owner(1);
    int wanted = becomes(owner_wants, 5);
    pause_s(0.1);
    node_stop(0);
    lending_let_go();
    pause_s(0.3);
    int back = becomes(nothing_out, 20);
    expect(wanted && back, "an owner is killed while it waits: all of the borrower's is on the GPU again");
    /* The arbiter, while the owner waits. */
    lending_hold_fast();
    lending_play_owner(30);
    wanted = becomes(owner_wants, 5);
    arbiter_end(SIGKILL);
    lending_let_go();
    pause_s(0.2);
    node.arbiter = arbiter_start(node_directory);
    wait_for(&node.player[0], "took_ms");
    expect(wanted && figure_of(&node.player[0], "error") == 0,
           "an arbiter is killed: the next one ends the wait (%.0f ms)", figure_of(&node.player[0], "took_ms"));
    /* The borrower, while some of its memory is out. */
    int out = becomes(something_out, 1);
    node_stop(1);
    vcuda_usage_reap_dead(node.claim[1].usage);
    struct vcuda_lending l = lending_of(&node.claim[1]);
    expect(out && !l.out_bytes && !l.movable_bytes && !l.host_bytes && !used_by(&node.claim[1]),
           "a borrower is killed while memory is out: nothing stays in its books");
    node_stop(0);
    vcuda_usage_reap_dead(node.claim[0].usage);
    l = lending_of(&node.claim[0]);
    expect(!l.wanted_bytes && !used_by(&node.claim[0]), "nor in its owner's");
    /* Without an arbiter the wait ends, too. */
    lending_end_pair();
}

void test_lending(void)
{
    int before = simulated_kernel;
    simulated_kernel = !on_real_gpu;
    test_paths();
    test_rounds_trips(NULL, test_count(SANITIZED ? 100 : 1000));
    if (!on_real_gpu)
        test_rounds_trips("GPUCLOUD_SIM_NO_HOST_NUMA", 50);
    test_limits();
    /* A real GPU is larger than this program may fill: python -m benchmarks.lending does. */
    if (!on_real_gpu) {
        test_owner();
        test_kills();
    }
    simulated_kernel = before;
}
