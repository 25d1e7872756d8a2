/* Best-effort work that is handed to the GPU before its turn, beside a guaranteed claim that must not wait. */
#include "arbiter_node.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>

/* A driver that cannot wait for a word. */
#define CANNOT "cuStreamWaitValue32_v2:1+=801"
/* A launch that takes 0.3 s. */
#define LATE "cuLaunchCooperativeKernel:1=300000us"

static void set_policy(int i, uint32_t request, uint32_t flags)
{
    node_set_limit(i, (struct vcuda_limit){
                          .core_request = request, .core_limit = 100, .policy = VCUDA_POLICY_PREEMPT, .flags = flags});
}

/* A guaranteed claim with a service whose requests take three kernels of so many nanoseconds, and a best-effort claim. */
static void begin(const char *request_ns)
{
    node_begin();
    node_add_claim(50, 100);
    node_add_claim(0, 100);
    set_policy(0, 50, 0);
    set_policy(1, 0, VCUDA_FLAG_BEST_EFFORT);
    play(&node.player[0], &node.claim[0], PRELOADED, "ahead_serve", "60", request_ns, NULL);
    wait_for(&node.player[0], "ready");
}

static void end(void)
{
    arbiter_end(SIGTERM);
    node_end();
}

/* Return the share of a program whose host pauses for 3.5 ms after each 4 ms of work, with these faults of the driver. */
static double share_of_fits(const char *faults)
{
    double best = 0, shares[SHARERS];
    if (faults)
        setenv("GPUCLOUD_SIM_FAULTS", faults, 1);
    play(&node.player[1], &node.claim[1], PRELOADED, "ahead_fits", "60", "100000", "40", "0.0035", NULL);
    unsetenv("GPUCLOUD_SIM_FAULTS");
    wait_for(&node.player[1], "ready");
    becomes(contended, 2);
    pause_s(0.5);
    for (int again = 0; again < 3; again++) {
        node_measure(1, shares);
        best = fmax(best, shares[1]);
    }
    node_stop(1);
    return best;
}

static void test_fits(void)
{
    begin("0");
    double with = share_of_fits(NULL);
    if (on_real_gpu) {
        expect(with > 75, "a program whose host works in fits keeps the GPU busy for %.1f %%", with);
        end();
        return;
    }
    double without = share_of_fits(CANNOT);
    expect(SANITIZED || with > without + 12,
           "a program whose host works in fits keeps the GPU busy for %.1f %%; %.1f where nothing can be handed over "
           "ahead",
           with, without);
    end();
}

/* What is queued does not delay the others: only what may run does. */
static void test_requests(void)
{
    begin("300000");
    node_stop(0);
    play(&node.player[1], &node.claim[1], PRELOADED, "ahead_fits", "60", "100000", "40", "0.0001", NULL);
    wait_for(&node.player[1], "ready");
    play(&node.player[0], &node.claim[0], PRELOADED, "ahead_serve", "3", "300000", NULL);
    finish(&node.player[0]);
    node.player[0].pid = 0;
    double mean = figure_of(&node.player[0], "mean_ms");
    double longest = figure_of(&node.player[0], "longest_ms");
    expect(mean > 0.8 && mean < (SANITIZED ? 100 : 8) && longest < 900,
           "requests of 0.9 ms beside it take %.2f ms in the mean, %.2f at most", mean, longest);
    end();
}

static void test_threads(void)
{
    begin("100000");
    play(&node.player[1], &node.claim[1], PRELOADED, "ahead_threads", "4", NULL);
    int ended = finish_within(&node.player[1], 30);
    node.player[1].pid = 0;
    expect(ended && figure_of(&node.player[1], "least") > 100,
           "three threads that launch into one stream go on: %.0f launches a second at least",
           figure_of(&node.player[1], "least"));
    play(&node.player[1], &node.claim[1], PRELOADED, "ahead_order", "2", NULL);
    ended = finish_within(&node.player[1], 30);
    node.player[1].pid = 0;
    expect(ended && figure_of(&node.player[1], "steps") > 20 && figure_of(&node.player[1], "wrong") == 0,
           "streams that wait for each other keep their order: %.0f steps, %.0f wrong",
           figure_of(&node.player[1], "steps"), figure_of(&node.player[1], "wrong"));
    end();
}

/* Two processes of the claim, each of which would fill the GPU. */
static void test_two_processes(void)
{
    struct player other = {0};
    begin("0");
    play(&node.player[1], &node.claim[1], PRELOADED, "ahead_fits", "4", "100000", "40", "0.0001", NULL);
    play(&other, &node.claim[1], PRELOADED, "ahead_fits", "4", "100000", "40", "0.0001", NULL);
    finish(&node.player[1]);
    finish(&other);
    node.player[1].pid = 0;
    double one = figure_of(&node.player[1], "fits"), two = figure_of(&other, "fits");
    expect(fmin(one, two) > 0.25 * (one + two), "two processes of the claim share it: %.0f and %.0f fits", one, two);
    end();
}

/* A burst that is let go while it waits for one that may not run would hold up everybody. */
static void test_braid(void)
{
    begin("300000");
    node_stop(0);
    play(&node.player[1], &node.claim[1], PRELOADED, "ahead_braid", "4", NULL);
    wait_for(&node.player[1], "ready");
    play(&node.player[0], &node.claim[0], PRELOADED, "ahead_serve", "3", "300000", NULL);
    finish(&node.player[0]);
    node.player[0].pid = 0;
    int ended = finish_within(&node.player[1], 20);
    node.player[1].pid = 0;
    double longest = figure_of(&node.player[0], "longest_ms"), rounds = figure_of(&node.player[1], "rounds");
    expect(ended && rounds > 500 && longest < 500,
           "streams that wait for each other in turn: %.0f rounds; requests beside them take %.1f ms at most", rounds,
           longest);
    end();
}

/* A launch that was let in before turns began comes behind work that is held. */
static void test_behind(void)
{
    if (on_real_gpu)
        return;
    begin("0");
    set_policy(1, 50, 0);
    setenv("GPUCLOUD_SIM_FAULTS", LATE, 1);
    play(&node.player[1], &node.claim[1], PRELOADED, "ahead_behind", NULL);
    unsetenv("GPUCLOUD_SIM_FAULTS");
    wait_for(&node.player[1], "ready");
    pause_s(0.04);
    int before = all_free();
    set_policy(1, 0, VCUDA_FLAG_BEST_EFFORT);
    int ended = finish_within(&node.player[1], 5);
    node.player[1].pid = 0;
    expect(before && ended && figure_of(&node.player[1], "synchronized") == 0,
           "work in flight that waits for held work does not keep its turn from it");
    end();
}

static int in_flight(void)
{
    struct vcuda_process_info infos[VCUDA_MAX_PROCESSES];
    struct vcuda_gpu_usage used;
    int count = vcuda_usage_processes(node.claim[1].usage, infos, VCUDA_MAX_PROCESSES);
    for (int i = 0; i < count; i++)
        if (!vcuda_usage_process_gpu(node.claim[1].usage, infos[i].slot, 0, &used) && used.inflight_ns)
            return 1;
    return 0;
}

static int drained(void)
{
    return !in_flight();
}

/* A program may end, or end what its work lies in, while work of it may not run yet. */
static void test_ends(void)
{
    static const char *const ways[] = {"exit", "stream", "context", "reset", "fork"};
    begin("1000000");
    for (unsigned i = 0; i < sizeof ways / sizeof *ways; i++) {
        play(&node.player[1], &node.claim[1], PRELOADED, "ahead_stop", ways[i], NULL);
        int ended = finish_within(&node.player[1], 20);
        node.player[1].pid = 0;
        double took = figure_of(&node.player[1], "took");
        expect(ended && took >= 0 && took < 5 && becomes(drained, 2), "%s with work that may not run yet: %.2f s",
               ways[i], took);
    }
    end();
}

/* Nothing stays behind when nobody lets it go any more. */
static void test_orphans(void)
{
    double shares[SHARERS] = {0};
    begin("0");
    play(&node.player[1], &node.claim[1], PRELOADED, "ahead_fits", "60", "100000", "40", "0.001", NULL);
    wait_for(&node.player[1], "ready");
    becomes(contended, 2);
    pause_s(0.5);
    node_set_limit(1, (struct vcuda_limit){.core_request = 50, .core_limit = 100, .policy = VCUDA_POLICY_BURST});
    set_policy(0, 50, 0);
    node_measure(1.5, shares);
    expect(shares[1] > 25, "it goes on when it is no longer best effort: %.1f %%", shares[1]);
    set_policy(1, 0, VCUDA_FLAG_BEST_EFFORT);
    pause_s(0.5);
    arbiter_end(SIGKILL);
    pause_s(0.5);
    node_measure(1.5, shares);
    expect(shares[1] > 25, "and when the arbiter is dead: %.1f %%", shares[1]);
    node.arbiter = arbiter_start(node_directory);
    end();
}

void test_ahead(void)
{
    test_fits();
    test_requests();
    test_threads();
    test_braid();
    test_two_processes();
    test_behind();
    test_ends();
    test_orphans();
}
