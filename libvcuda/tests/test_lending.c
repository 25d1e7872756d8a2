/* Memory that steps aside: blocks of a claim that borrows leave for host memory and come back at the same addresses. */
#include "arbiter_node.h"

#include <limits.h>
#include <linux/futex.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define REQUEST (context_cost + 384 * MIB)
#define BLOCK "4194308" /* more than two granules, and not a multiple of one */

static struct vcuda_turns *turns;

static void set_borrower(struct claim *claim, uint64_t request, uint64_t limit, uint64_t host)
{
    struct vcuda_limit terms = {.assignment_uid = {7},
                                .generation = ++claim->generation,
                                .memory_bytes = limit,
                                .memory_request = request,
                                .host_memory_bytes = host,
                                .core_limit = 100,
                                .flags = VCUDA_FLAG_BORROWS | VCUDA_FLAG_BEST_EFFORT};
    memcpy(terms.gpu_uuid, gpu_uuid, 16);
    vcuda_limits_set(claim->limits, &terms);
}

/* A claim whose orders this program gives. */
static void begin(struct claim *claim, uint64_t request, uint64_t limit, uint64_t host)
{
    char path[400];
    claim_make(claim, limit, 100);
    set_borrower(claim, request, limit, host);
    snprintf(path, sizeof path, "%s/turns", claim->directory);
    if (vcuda_turns_create(path, &turns))
        exit(2);
    turns->memory[0].known = 1;
    turns->memory[0].looked_ns = UINT64_MAX / 2; /* as an arbiter that never sleeps */
}

static void end(struct claim *claim)
{
    vcuda_turns_unmap(turns);
    claim_end(claim);
}

static struct vcuda_lending lending_of(const struct claim *claim)
{
    struct vcuda_lending l;
    vcuda_usage_lending(claim->usage, 0, &l);
    return l;
}

static uint64_t used_by(const struct claim *claim)
{
    struct vcuda_totals t;
    vcuda_usage_totals(claim->usage, 0, &t);
    return t.memory_bytes + t.context_bytes;
}

static void order(uint64_t give, uint32_t back)
{
    struct vcuda_memory_turn *turn = &turns->memory[0];
    __atomic_store_n(&turn->give_bytes, give, __ATOMIC_SEQ_CST);
    __atomic_store_n(&turn->back, back, __ATOMIC_SEQ_CST);
    __atomic_fetch_add(&turn->number, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &turn->number, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Wait until this many bytes are out; return 0 if that does not become so. */
static int out_becomes(const struct claim *claim, uint64_t bytes, double seconds)
{
    double until = now_s() + seconds;
    while (lending_of(claim).out_bytes != bytes && now_s() < until)
        pause_s(0.0002);
    return lending_of(claim).out_bytes == bytes;
}

static void test_paths(void)
{
    struct claim claim;
    struct player p;
    begin(&claim, REQUEST, 2 * GIB, GIB);
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
    end(&claim);
}

/* Out and back, while kernels and a captured graph run; the contents are compared at the end. */
static void test_rounds_trips(const char *without, unsigned long trips)
{
    struct claim claim;
    struct player p;
    unsigned long made = 0;
    begin(&claim, REQUEST, 2 * GIB, GIB);
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
        order(1, 0);
        if (!out_becomes(&claim, 24 * MIB, 5))
            break;
        /* It counts as out before it is given back. */
        for (double until = now_s() + 1; (out = used_by(&claim)) > in - 24 * MIB && now_s() < until;)
            pause_s(0.0002);
        order(0, 1);
        if (!out_becomes(&claim, 0, 5))
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
    end(&claim);
}

static void test_limits(void)
{
    struct claim claim;
    struct player p;
    begin(&claim, REQUEST, 2 * GIB, GIB);
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
    set_borrower(&claim, REQUEST, 2 * GIB, 8 * GIB);
    play(&p, &claim, PRELOADED, "fill", "plain", "67108864", "8589934592", NULL);
    finish(&p);
    most = 2.0 * GIB - context_cost;
    expect(figure_of(&p, "error") == 2 && figure_of(&p, "got") <= most && figure_of(&p, "got") > most - 64.0 * MIB,
           "and never more than the limit: %.0f of %.0f MiB", figure_of(&p, "got") / MIB, most / MIB);
    set_borrower(&claim, REQUEST, 2 * GIB, 0);
    play(&p, &claim, PRELOADED, "fill", "plain", "67108864", "8589934592", NULL);
    finish(&p);
    most = 384.0 * MIB;
    expect(figure_of(&p, "error") == 2 && figure_of(&p, "got") <= most && figure_of(&p, "got") > most - 64.0 * MIB,
           "without host memory, what is promised is all: %.0f of %.0f MiB", figure_of(&p, "got") / MIB, most / MIB);
    set_borrower(&claim, REQUEST, 2 * GIB, 8 * GIB);
    turns->memory[0].looked_ns = 1;
    play(&p, &claim, PRELOADED, "fill", "plain", "268435456", "8589934592", NULL);
    finish(&p);
    expect(figure_of(&p, "error") == 2 && figure_of(&p, "got") <= most && figure_of(&p, "got") > most - 256.0 * MIB,
           "nor where no arbiter would ask for it: %.0f of %.0f MiB", figure_of(&p, "got") / MIB, most / MIB);
    vcuda_usage_reap_dead(claim.usage);
    expect(lending_of(&claim).host_bytes == 0 && used_by(&claim) == 0, "nothing stays behind in the books");
    end(&claim);
}

/* ---- An owner, a borrower and an arbiter ---- */

static uint64_t whole; /* of the GPU */

static char *text_of(uint64_t bytes)
{
    static char text[4][24];
    static int i;
    snprintf(text[++i % 4], 24, "%llu", (unsigned long long)bytes);
    return text[i % 4];
}

/* Claim 0 owns half of the GPU; claim 1 borrows, and has all but an eighth of the GPU. */
static void begin_pair(void)
{
    node_begin();
    whole = 24 * GIB;
    for (int i = 0; i < 2; i++)
        node_add_claim(i ? 0 : 50, 100);
    struct vcuda_limit owner = {.generation = 2, .memory_bytes = whole / 2, .core_request = 50, .core_limit = 100};
    memcpy(owner.gpu_uuid, gpu_uuid, 16);
    vcuda_limits_set(node.claim[0].limits, &owner);
    set_borrower(&node.claim[1], GIB, whole, whole);
    pause_s(1.3); /* the arbiter knows it, and goes on looking */
    play(&node.player[1], &node.claim[1], PRELOADED, "lend_hold", "4", BLOCK, text_of(whole / 8 * 7 - 600 * MIB), "300",
         "100000", NULL);
    wait_for(&node.player[1], "ready");
}

static void end_pair(void)
{
    kill(node.arbiter, 0) ? 0 : arbiter_end(SIGTERM);
    node_end();
}

static uint64_t out_of_borrower(void)
{
    return lending_of(&node.claim[1]).out_bytes;
}

static int nothing_out(void)
{
    return out_of_borrower() == 0;
}

static int something_out(void)
{
    return out_of_borrower() != 0;
}

static int owner_wants(void)
{
    return lending_of(&node.claim[0]).wanted_bytes != 0;
}

static void play_owner(double seconds)
{
    char text[24];
    snprintf(text, sizeof text, "%.1f", seconds);
    play(&node.player[0], &node.claim[0], PRELOADED, "lend_take", text_of(whole / 2 - 2 * context_cost), text, NULL);
}

/* End the borrower and judge it. */
static void expect_sound_borrower(const char *after)
{
    kill(node.player[1].pid, SIGTERM);
    int ended = finish_within(&node.player[1], 30);
    node.player[1].pid = 0;
    expect(ended && figure_of(&node.player[1], "wrong") == 0 && figure_of(&node.player[1], "error") == 0 &&
               figure_of(&node.player[1], "freed") == 0,
           "%s, the borrower goes on with its contents: %.0f wrong, error %.0f", after,
           figure_of(&node.player[1], "wrong"), figure_of(&node.player[1], "error"));
}

static void test_owner(void)
{
    begin_pair();
    double held = figure_of(&node.player[1], "held");
    uint64_t before = used_by(&node.claim[1]);
    play_owner(1);
    wait_for(&node.player[0], "took_ms");
    uint64_t out = out_of_borrower();
    double took = figure_of(&node.player[0], "took_ms"), bound = 100 + (double)out / GIB / 20 * 1e3;
    expect(held == 0 && before > whole / 4 * 3 && out > whole / 4 && figure_of(&node.player[0], "error") == 0 &&
               (SANITIZED || took < 3 * bound),
           "an owner gets %.1f GiB that were lent: %.0f ms, %.1f GiB left (bound %.0f ms; errors %.0f, %.0f)",
           (double)(whole / 2 - 2 * context_cost) / GIB, took, (double)out / GIB, bound, held,
           figure_of(&node.player[0], "error"));
    expect(out < whole / 8 * 5, "and not much more left than was missing");
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
    expect_sound_borrower("afterwards");
    play_owner(0.2);
    finish(&node.player[0]);
    node.player[0].pid = 0;
    expect(figure_of(&node.player[0], "error") == 0 && figure_of(&node.player[0], "took_ms") < 100,
           "with nothing lent it waits for nobody: %.1f ms", figure_of(&node.player[0], "took_ms"));
    end_pair();
}

static void test_kills(void)
{
    begin_pair();
    /* The owner, while it waits for a borrower that is stopped. */
    kill(node.player[1].pid, SIGSTOP);
    play_owner(1);
    int wanted = becomes(owner_wants, 5);
    pause_s(0.1);
    node_stop(0);
    kill(node.player[1].pid, SIGCONT);
    pause_s(0.3);
    int back = becomes(nothing_out, 20);
    expect(wanted && back, "an owner is killed while it waits: all of the borrower's is on the GPU again");
    /* The arbiter, while the owner waits. */
    kill(node.player[1].pid, SIGSTOP);
    play_owner(30);
    wanted = becomes(owner_wants, 5);
    arbiter_end(SIGKILL);
    kill(node.player[1].pid, SIGCONT);
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
    end_pair();
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
