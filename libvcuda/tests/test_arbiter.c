/* The arbiter as a process: claims that come and go, deaths, lies, its own death. The tenants speak the pages' protocol but
 * have no GPU (roles_arbiter.c); what is decided in which situation is shown in test_rounds.c. */
#include "arbiter_node.h"

#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void add_tenant(int i, const char *kernel_us, const char *burst_us, const char *pause_us)
{
    play(&node.player[i], &node.claim[i], BARE, "tenant", node_clock, kernel_us, "120", burst_us, pause_us, NULL);
    wait_for(&node.player[i], "ready");
}

static int first_stale(void)
{
    return pages_clock(CLOCK_MONOTONIC) - __atomic_load_n(&node.turns[0]->heartbeat_ns, __ATOMIC_ACQUIRE) >
           VCUDA_TURNS_STALE_NS;
}

static int first_beats(void)
{
    return !first_stale();
}

static void test_sharing(void)
{
    node_begin();
    node_add_claim(30, 100);
    node_add_claim(70, 100);
    add_tenant(0, "1000", "0", "0");
    pause_s(0.3);
    expect(all_free(), "a claim that is alone on its GPU needs no turns");
    add_tenant(1, "500", "0", "0");
    expect(becomes(contended, 1), "two that want all of it get turns");
    expect_shares("guarantees of 30 and 70", 30, 70, 0, 4);
    node_set_limit(0, (struct vcuda_limit){.core_limit = 100, .policy = VCUDA_POLICY_WEIGHTED, .weight = 1});
    node_set_limit(1, (struct vcuda_limit){.core_limit = 100, .policy = VCUDA_POLICY_WEIGHTED, .weight = 1});
    pause_s(0.1);
    expect_shares("another policy, live: equal weights", 50, 50, 0, 4);
    node_set_limit(0, (struct vcuda_limit){.core_limit = 100, .flags = VCUDA_FLAG_NO_TURNS});
    expect(becomes(all_free, 1), "a claim on a GPU without turns: none are given");
    node_set_limit(0, (struct vcuda_limit){.core_request = 20, .core_limit = 100});
    node_set_limit(1, (struct vcuda_limit){.core_request = 30, .core_limit = 100});
    node_add_claim(50, 100);
    add_tenant(2, "2000", "0", "0");
    pause_s(0.3);
    expect_shares("a third claim comes: 20, 30 and 50", 20, 30, 50, 4);
    uint32_t shares = node.turns[0]->turn[0].share + node.turns[1]->turn[0].share + node.turns[2]->turn[0].share;
    expect(shares > 9990 && shares <= 10000, "the shares shown sum up to all of it: %.2f %%", shares / 100.0);
}

/* The other's turn must begin within tens of milliseconds, whoever is killed when. */
static void test_killed(void)
{
    double worst = 0;
    for (int i = 0; i < 10; i++) {
        double begin = now_s();
        while (!ends_of(0) && now_s() < begin + 1)
            pause_s(0.0005);
        node_stop(0);
        uint64_t number = node.turns[1]->turn[0].number;
        double killed = now_s();
        while (node.turns[1]->turn[0].number == number && now_s() < killed + 2)
            pause_s(0.0005);
        worst = fmax(worst, now_s() - killed);
        add_tenant(0, "1000", "0", "0");
        pause_s(0.15);
    }
    expect(worst < 0.2, "ten holders killed in their turn: another's begins after %.0f ms at most", worst * 1e3);
}

static void test_own_death(void)
{
    double begin = now_s();
    arbiter_end(SIGKILL);
    int stale = becomes(first_stale, 3);
    double after = now_s() - begin;
    expect(stale && after < 1.6, "the arbiter is killed: its silence is noticed after %.1f s", after);
    node.arbiter = arbiter_start(node_directory);
    expect(becomes(first_beats, 2) && becomes(contended, 2), "started again, it takes up the claims that it finds");
    pause_s(0.3);
    expect_shares("and their turns", 20, 30, 50, 4);
    pid_t second = arbiter_start(node_directory);
    int status = 0;
    waitpid(second, &status, 0);
    expect(WIFEXITED(status) && WEXITSTATUS(status) == 3, "a second arbiter on the same directory gives up: status %d",
           WEXITSTATUS(status));
    status = arbiter_end(SIGTERM);
    expect(WIFEXITED(status) && WEXITSTATUS(status) == 0 && all_free(),
           "asked to end, it leaves every claim to its own limit");
}

static void test_light_tenants(void)
{
    double shares[SHARERS];
    node_begin();
    node_add_claim(30, 100);
    node_add_claim(30, 100);
    add_tenant(0, "1000", "4000", "20000");
    add_tenant(1, "1000", "2000", "12000");
    pause_s(0.5);
    int turns = 0;
    for (int i = 0; i < 100; i++) {
        turns += !all_free();
        pause_s(0.01);
    }
    node_measure(0.5, shares);
    expect(!turns, "claims that need little together stay without turns: %.1f and %.1f %%", shares[0], shares[1]);
    node_stop(0);
    node_stop(1);
    arbiter_end(SIGTERM);
    node_end();
}

/* Through some scans, and some beats of its heart. */
static int still_works(void)
{
    uint64_t heard = __atomic_load_n(&node.turns[0]->heartbeat_ns, __ATOMIC_ACQUIRE);
    pause_s(0.5);
    return waitpid(node.arbiter, NULL, WNOHANG) == 0 &&
           __atomic_load_n(&node.turns[0]->heartbeat_ns, __ATOMIC_ACQUIRE) > heard;
}

/* One with forged numbers in all 256 slots; then damage of every other kind. */
static void test_liar(void)
{
    char path[400];
    double shares[SHARERS] = {0};
    node_begin();
    node_add_claim(50, 100);
    node_add_claim(50, 100);
    add_tenant(1, "1000", "0", "0");
    play(&node.player[0], &node.claim[0], BARE, "liar", node_clock, "120", NULL);
    pause_s(3);
    for (int again = 0; again < 5 && shares[1] < 48; again++)
        node_measure(1, shares);
    expect(shares[1] >= 48, "beside forged numbers in every slot an honest claim of 50 gets %.1f %%", shares[1]);
    node_stop(0);
    snprintf(path, sizeof path, "%s/usage", node.claim[0].directory);
    int cut = truncate(path, 100) == 0;
    expect(cut && still_works(), "a usage page that is cut short does no harm");
    cut = truncate(path, 0) == 0 && truncate(path, VCUDA_USAGE_SIZE) == 0;
    expect(cut && still_works(), "nor one of nonsense");
    expect(unlink(path) == 0 && mkfifo(path, 0600) == 0 && still_works(), "nor one that became a FIFO");
    snprintf(path, sizeof path, "%s/limits", node.claim[0].directory);
    cut = truncate(path, 0) == 0;
    snprintf(path, sizeof path, "%s/turns", node.claim[1].directory);
    cut = cut && truncate(path, 0) == 0;
    expect(cut && still_works(), "nor the agent's and its own pages, cut off by a tenant");
    snprintf(path, sizeof path, "rm -r %s", node.claim[1].directory);
    expect(system(path) == 0 && still_works(), "nor a claim that is removed in the middle");
    int status = arbiter_end(SIGTERM);
    expect(WIFEXITED(status) && WEXITSTATUS(status) == 0, "and it ends as it should");
    node_end();
}

static void test_idle_cost(void)
{
    node_begin();
    node_add_claim(50, 100);
    node_add_claim(50, 100);
    pause_s(0.5);
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", node.arbiter);
    unsigned long before = 0, after = 0;
    for (int i = 0; i < 2; i++) {
        unsigned long user = 0, system = 0;
        FILE *file = fopen(path, "re");
        text[fread(text, 1, sizeof text - 1, file)] = 0;
        fclose(file);
        sscanf(strrchr(text, ')'), ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system);
        *(i ? &after : &before) = user + system;
        if (!i)
            pause_s(2);
    }
    expect(after - before <= 4, "with nothing to do it uses %.1f %% of a core", (double)(after - before) / 2);
    arbiter_end(SIGTERM);
    node_end();
}

void test_arbiter(void)
{
    test_sharing();
    test_killed();
    test_own_death();
    node_end();
    test_light_tenants();
    test_liar();
    test_idle_cost();
}
