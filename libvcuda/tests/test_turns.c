/* Tenants under libvcuda that share a GPU by the arbiter's turns. */
#include "arbiter_node.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

/* libvcuda's threads and the programs' own share this machine's processors with the arbiter: a GPU that stands idle while
 * they wait for a processor is nobody's, so what was used is judged by its parts. */
static void expect_split(const char *what, double a, double b, double c)
{
    double shares[SHARERS] = {0}, want[SHARERS] = {a, b, c}, off = 1e9, sum = 0;
    for (int again = 0; again < 4 && (off > 2 || sum < 90); again++) {
        node_measure(2, shares);
        sum = shares[0] + shares[1] + shares[2];
        off = 0;
        for (int i = 0; i < node.n; i++)
            off = fmax(off, fabs(100 * shares[i] / sum - want[i]));
    }
    expect(off <= 2 && sum >= 80, "%s: %.1f/%.1f/%.1f for %.0f/%.0f/%.0f", what, shares[0], shares[1], shares[2], a, b,
           c);
}

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
    expect_split(sentence, first, 100 - first, 0);
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
    expect_split("three of them", 20, 30, 50);
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
    for (int again = 0; again < 3 && shares[0] < 40; again++)
        node_measure(2, shares);
    expect(shares[0] >= 40 && shares[1] <= 60, "one that waits for each kernel beside one that queues: %.1f/%.1f",
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
    for (int again = 0; again < 3 && shares[0] < 93; again++)
        node_measure(1, shares);
    expect(given && taken && shares[0] >= 93, "the other one killed, it has the GPU to itself: %.1f %%", shares[0]);
    end();
}

/* The arbiter dies: a limit below the whole is held by each process itself, as if there were none. */
static void test_orphans(void)
{
    double shares[SHARERS] = {0};
    begin(30, 70);
    node_set_limit(0, (struct vcuda_limit){.core_request = 30, .core_limit = 30});
    node_set_limit(1, (struct vcuda_limit){.core_request = 40, .core_limit = 40});
    add_load(0, "500000", "0");
    add_load(1, "500000", "0");
    becomes(contended, 2);
    pause_s(1);
    expect_shares("limits below the whole, by turns", 30, 40, 0, 3);
    arbiter_end(SIGKILL);
    pause_s(1.5);
    for (int again = 0; again < 3 && (shares[0] < 26 || shares[1] < 35); again++)
        node_measure(2, shares);
    expect(shares[0] >= 26 && shares[0] <= 33 && shares[1] >= 35 && shares[1] <= 43,
           "and with the arbiter dead, each by itself: %.1f/%.1f", shares[0], shares[1]);
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
}
