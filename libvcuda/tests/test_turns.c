/* Tenants under libvcuda that share a GPU by the arbiter's turns. */
#include "arbiter_node.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

static void add_load(int i, const char *kernel_ns, const char *sync)
{
    play(&node.player[i], &node.claim[i], PRELOADED, "load", kernel_ns, sync, "60", "0.05", NULL);
    wait_for(&node.player[i], "share");
}

static void begin(uint32_t first, uint32_t second)
{
    node_begin();
    node_add_claim(first, 100);
    node_add_claim(second, 100);
}

static void end(void)
{
    arbiter_end(SIGTERM);
    node_end();
}

static void test_two(const char *what, const char *kernel_ns, const char *other_ns, uint32_t first)
{
    char sentence[200];
    begin(first, 100 - first);
    add_load(0, kernel_ns, "0");
    add_load(1, other_ns, "0");
    becomes(contended, 2);
    pause_s(1);
    snprintf(sentence, sizeof sentence, "under libvcuda, %s", what);
    expect_shares(sentence, first, 100 - first, 0, 4);
    end();
}

static void test_three(void)
{
    begin(20, 30);
    node_add_claim(50, 100);
    add_load(0, "500000", "0");
    add_load(1, "1000000", "0");
    add_load(2, "2000000", "0");
    becomes(contended, 2);
    pause_s(1);
    expect_shares("three of them", 20, 30, 50, 4);
    end();
}

/* A program that waits for each kernel keeps its turn through the pauses in between. */
static void test_waiting(void)
{
    double shares[SHARERS] = {0};
    begin(50, 50);
    add_load(0, "1000000", "1");
    add_load(1, "1000000", "0");
    becomes(contended, 2);
    pause_s(1);
    for (int again = 0; again < 4 && shares[0] < 0.7 * shares[1] + 1; again++)
        node_measure(2, shares);
    expect(shares[0] >= 0.65 * shares[1] + 1, "one that waits for each kernel beside one that queues: %.1f/%.1f",
           shares[0], shares[1]);
    end();
}

static void test_alone_again(void)
{
    double shares[SHARERS] = {0};
    begin(30, 70);
    add_load(0, "1000000", "0");
    add_load(1, "1000000", "0");
    int given = becomes(contended, 2);
    node_stop(1);
    int taken = becomes(all_free, 3);
    for (int again = 0; again < 4 && shares[0] < 93; again++)
        node_measure(1, shares);
    expect(given && taken && shares[0] >= 75, "the other one killed, it has the GPU to itself: %.1f %%", shares[0]);
    end();
}

/* The arbiter dies: a limit below the whole is held by each process itself, as if there were none. */
static void test_orphans(void)
{
    begin(30, 70);
    node_set_limit(0, (struct vcuda_limit){.core_request = 30, .core_limit = 30});
    node_set_limit(1, (struct vcuda_limit){.core_request = 40, .core_limit = 40});
    add_load(0, "500000", "0");
    add_load(1, "500000", "0");
    becomes(contended, 2);
    pause_s(1);
    expect_shares("limits below the whole, by turns", 30, 40, 0, 4);
    arbiter_end(SIGKILL);
    pause_s(1.5);
    expect_shares("and with the arbiter dead, each by itself", 30, 40, 0, 4);
    node.arbiter = arbiter_start(node_directory);
    end();
}

/* The cap of a claim without turns is its limit while the arbiter lives. */
static void test_cap(void)
{
    double shares[SHARERS] = {0};
    struct vcuda_turns *turns;
    char path[300];
    begin(50, 50);
    arbiter_end(SIGKILL);
    snprintf(path, sizeof path, "%s/turns", node.claim[0].directory);
    if (vcuda_turns_open(path, 1, &turns)) {
        expect(0, "%s can be written", path);
        return;
    }
    struct vcuda_turn *turn = &turns->turn[0];
    uint64_t now = pages_clock(CLOCK_MONOTONIC);
    __atomic_store_n(&turn->ends_ns, VCUDA_TURN_FREE, __ATOMIC_SEQ_CST);
    __atomic_store_n(&turn->cap, 3000, __ATOMIC_SEQ_CST);
    __atomic_store_n(&turn->heartbeat_ns, now + 60000000000ull, __ATOMIC_SEQ_CST); /* as if it lived on */
    add_load(0, "500000", "0");
    pause_s(0.5);
    for (int again = 0; again < 4 && (shares[0] < 27 || shares[0] > 33); again++)
        node_measure(1, shares);
    expect(shares[0] >= 27 && shares[0] <= 33, "a cap of 30 %% without turns is held: %.1f %%", shares[0]);
    __atomic_store_n(&turn->heartbeat_ns, now, __ATOMIC_SEQ_CST);
    pause_s(0.5);
    node_measure(1, shares);
    expect(shares[0] > 60, "that of a dead arbiter is not: %.1f %%", shares[0]);
    vcuda_turns_unmap(turns);
    node.arbiter = arbiter_start(node_directory);
    end();
}

void test_turns(void)
{
    test_two("30/70, kernels of 1 ms", "1000000", "1000000", 30);
    test_two("50/50, kernels of 0.2 and 9.6 ms", "200000", "9600000", 50);
    test_three();
    test_waiting();
    test_alone_again();
    test_orphans();
    test_cap();
}
