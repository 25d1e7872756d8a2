/* The arbiter as a process: claims that come and go, deaths, lies, its own death. The tenants speak the pages' protocol but
 * have no GPU (roles_arbiter.c); what is decided in which situation is shown in test_rounds.c. */
#include "harness.h"

#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define TENANTS 3

struct node {
    pid_t arbiter;
    int n;
    struct claim claim[TENANTS];
    struct vcuda_turns *turns[TENANTS];
    struct player player[TENANTS];
};

static struct node node;
static char node_directory[200], node_clock[260];

static pid_t start_arbiter(const char *directory)
{
    char program[600];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 20);
    program[length > 0 ? length : 0] = 0;
    for (int i = 0; i < 2; i++)
        *strrchr(program, '/') = 0;
    strcat(program, "/vcuda-arbiter");
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        execl(program, program, directory, NULL);
        _exit(127);
    }
    return pid;
}

static int end_arbiter(int signal)
{
    int status = 0;
    kill(node.arbiter, signal);
    waitpid(node.arbiter, &status, 0);
    return status;
}

static void set_limit(int i, struct vcuda_limit limit)
{
    struct claim *claim = &node.claim[i];
    memcpy(limit.gpu_uuid, gpu_uuid, 16);
    limit.generation = ++claim->generation;
    limit.memory_bytes = VCUDA_NO_MEMORY_LIMIT;
    vcuda_limits_set(claim->limits, &limit);
}

static void add_claim(uint32_t request, uint32_t core_limit)
{
    char path[400];
    struct claim *claim = &node.claim[node.n];
    uint8_t uid[16] = {(uint8_t)(100 + node.n)};
    memset(claim, 0, sizeof *claim);
    snprintf(claim->directory, sizeof claim->directory, "%s/c%d", node_directory, node.n);
    mkdir(claim->directory, 0700);
    snprintf(path, sizeof path, "%s/limits", claim->directory);
    int error = vcuda_limits_create(path, uid, &claim->limits);
    snprintf(path, sizeof path, "%s/usage", claim->directory);
    error = error ? error : vcuda_usage_create(path, &claim->usage);
    set_limit(node.n, (struct vcuda_limit){.core_request = request, .core_limit = core_limit});
    snprintf(path, sizeof path, "%s/turns", claim->directory);
    node.turns[node.n] = NULL;
    for (int i = 0; i < 100 && !error && vcuda_turns_open(path, 0, &node.turns[node.n]); i++)
        pause_s(0.02);
    if (error || !node.turns[node.n]) {
        fprintf(stderr, "suite: no turns page at %s\n", path);
        exit(2);
    }
    node.n++;
}

static void begin_node(void)
{
    char path[400];
    static const char zeros[4096];
    memset(&node, 0, sizeof node);
    snprintf(node_directory, sizeof node_directory, "%s/vcuda-arbiter-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (!mkdtemp(node_directory))
        exit(2);
    snprintf(node_clock, sizeof node_clock, "%s/.clock", node_directory);
    snprintf(path, sizeof path, "%s/not-a-claim", node_directory);
    mkdir(path, 0700);
    int fd = open(node_clock, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    if (write(fd, zeros, sizeof zeros) < 0)
        exit(2);
    close(fd);
    node.arbiter = start_arbiter(node_directory);
}

static void end_node(void)
{
    char command[500];
    for (int i = 0; i < node.n; i++) {
        if (node.player[i].pid) {
            kill(node.player[i].pid, SIGKILL);
            finish(&node.player[i]);
        }
        claim_end(&node.claim[i]);
        vcuda_turns_unmap(node.turns[i]);
    }
    snprintf(command, sizeof command, "rm -rf %s %s.arbiter.lock", node_directory, node_directory);
    if (system(command) != 0)
        perror(command);
}

static void add_tenant(int i, const char *kernel_us, const char *burst_us, const char *pause_us)
{
    play(&node.player[i], &node.claim[i], BARE, "tenant", node_clock, kernel_us, "120", burst_us, pause_us, NULL);
    wait_for(&node.player[i], "ready");
}

static void stop_tenant(int i)
{
    kill(node.player[i].pid, SIGKILL);
    finish(&node.player[i]);
    node.player[i].pid = 0;
}

static void measure(double seconds, double shares[TENANTS])
{
    struct vcuda_totals before[TENANTS], after[TENANTS];
    for (int i = 0; i < node.n; i++)
        vcuda_usage_totals(node.claim[i].usage, 0, &before[i]);
    double begin = now_s();
    pause_s(seconds);
    double lasted = now_s() - begin;
    for (int i = 0; i < node.n; i++) {
        vcuda_usage_totals(node.claim[i].usage, 0, &after[i]);
        shares[i] = (double)(after[i].gpu_time_ns - before[i].gpu_time_ns) / 1e7 / lasted;
    }
}

/* A busy machine holds tenants up; what falls short is measured again, twice at most. */
static void expect_shares(const char *what, double a, double b, double c)
{
    double shares[TENANTS] = {0}, want[TENANTS] = {a, b, c}, off = 1e9;
    for (int again = 0; again < 3 && off > 2; again++) {
        measure(2, shares);
        off = 0;
        for (int i = 0; i < node.n; i++)
            off = fmax(off, fabs(shares[i] - want[i]));
    }
    expect(off <= 2, "%s: %.1f/%.1f/%.1f for %.0f/%.0f/%.0f", what, shares[0], shares[1], shares[2], a, b, c);
}

static uint64_t ends_of(int i)
{
    return __atomic_load_n(&node.turns[i]->turn[0].ends_ns, __ATOMIC_SEQ_CST);
}

static int all_free(void)
{
    int n = 0;
    for (int i = 0; i < node.n; i++)
        n += ends_of(i) == VCUDA_TURN_FREE;
    return n == node.n;
}

/* Whether this becomes so within some seconds. */
static int becomes(int (*so)(void), double seconds)
{
    double until = now_s() + seconds;
    while (!so() && now_s() < until)
        pause_s(0.005);
    return so();
}

static int contended(void)
{
    return !all_free();
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
    begin_node();
    add_claim(30, 100);
    add_claim(70, 100);
    add_tenant(0, "1000", "0", "0");
    pause_s(0.3);
    expect(all_free(), "a claim that is alone on its GPU needs no turns");
    add_tenant(1, "500", "0", "0");
    expect(becomes(contended, 1), "two that want all of it get turns");
    expect_shares("guarantees of 30 and 70", 30, 70, 0);
    set_limit(0, (struct vcuda_limit){.core_limit = 100, .policy = VCUDA_POLICY_WEIGHTED, .weight = 1});
    set_limit(1, (struct vcuda_limit){.core_limit = 100, .policy = VCUDA_POLICY_WEIGHTED, .weight = 1});
    pause_s(0.1);
    expect_shares("another policy, live: equal weights", 50, 50, 0);
    set_limit(0, (struct vcuda_limit){.core_request = 20, .core_limit = 100});
    set_limit(1, (struct vcuda_limit){.core_request = 30, .core_limit = 100});
    add_claim(50, 100);
    add_tenant(2, "2000", "0", "0");
    pause_s(0.3);
    expect_shares("a third claim comes: 20, 30 and 50", 20, 30, 50);
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
        stop_tenant(0);
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
    end_arbiter(SIGKILL);
    int stale = becomes(first_stale, 3);
    double after = now_s() - begin;
    expect(stale && after < 1.6, "the arbiter is killed: its silence is noticed after %.1f s", after);
    node.arbiter = start_arbiter(node_directory);
    expect(becomes(first_beats, 2) && becomes(contended, 2), "started again, it takes up the claims that it finds");
    pause_s(0.3);
    expect_shares("and their turns", 20, 30, 50);
    pid_t second = start_arbiter(node_directory);
    int status = 0;
    waitpid(second, &status, 0);
    expect(WIFEXITED(status) && WEXITSTATUS(status) == 3, "a second arbiter on the same directory gives up: status %d",
           WEXITSTATUS(status));
    status = end_arbiter(SIGTERM);
    expect(WIFEXITED(status) && WEXITSTATUS(status) == 0 && all_free(),
           "asked to end, it leaves every claim to its own limit");
}

static void test_light_tenants(void)
{
    double shares[TENANTS];
    begin_node();
    add_claim(30, 100);
    add_claim(30, 100);
    add_tenant(0, "1000", "4000", "20000");
    add_tenant(1, "1000", "2000", "12000");
    pause_s(0.5);
    int turns = 0;
    for (int i = 0; i < 100; i++) {
        turns += !all_free();
        pause_s(0.01);
    }
    measure(0.5, shares);
    expect(!turns, "claims that need little together stay without turns: %.1f and %.1f %%", shares[0], shares[1]);
    stop_tenant(0);
    stop_tenant(1);
    end_arbiter(SIGTERM);
    end_node();
}

/* One with forged numbers in all 256 slots, then with a usage page of no length, then with a page of nonsense. */
static void test_liar(void)
{
    char path[400];
    double shares[TENANTS] = {0};
    begin_node();
    add_claim(50, 100);
    add_claim(50, 100);
    add_tenant(1, "1000", "0", "0");
    play(&node.player[0], &node.claim[0], BARE, "liar", node_clock, "120", NULL);
    pause_s(3);
    for (int again = 0; again < 3 && shares[1] < 48; again++)
        measure(1, shares);
    expect(shares[1] >= 48, "beside forged numbers in every slot an honest claim of 50 gets %.1f %%", shares[1]);
    stop_tenant(0);
    snprintf(path, sizeof path, "%s/usage", node.claim[0].directory);
    int cut = truncate(path, 100) == 0;
    pause_s(0.3);
    expect(cut && kill(node.arbiter, 0) == 0 && first_beats(), "a usage page that is cut short does no harm");
    cut = truncate(path, 0) == 0 && truncate(path, VCUDA_USAGE_SIZE) == 0;
    pause_s(0.3);
    expect(cut && kill(node.arbiter, 0) == 0 && first_beats(), "nor one of nonsense");
    expect(unlink(path) == 0 && mkfifo(path, 0600) == 0 && (pause_s(0.3), first_beats()), "nor one that became a FIFO");
    snprintf(path, sizeof path, "rm -r %s", node.claim[1].directory);
    expect(system(path) == 0 && (pause_s(0.4), first_beats()), "nor a claim that is removed in the middle");
    int status = end_arbiter(SIGTERM);
    expect(WIFEXITED(status) && WEXITSTATUS(status) == 0, "and it ends as it should");
    end_node();
}

static void test_idle_cost(void)
{
    begin_node();
    add_claim(50, 100);
    add_claim(50, 100);
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
    end_arbiter(SIGTERM);
    end_node();
}

void test_arbiter(void)
{
    test_sharing();
    test_killed();
    test_own_death();
    end_node();
    test_light_tenants();
    test_liar();
    test_idle_cost();
}
