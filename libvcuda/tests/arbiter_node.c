/* See arbiter_node.h. */
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

struct node node;
char node_directory[200], node_clock[260];

pid_t arbiter_start(const char *directory)
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

int arbiter_end(int signal)
{
    int status = 0;
    kill(node.arbiter, signal);
    waitpid(node.arbiter, &status, 0);
    return status;
}

void node_set_limit(int i, struct vcuda_limit limit)
{
    struct claim *claim = &node.claim[i];
    memcpy(limit.gpu_uuid, gpu_uuid, 16);
    limit.generation = ++claim->generation;
    limit.memory_bytes = VCUDA_NO_MEMORY_LIMIT;
    vcuda_limits_set(claim->limits, &limit);
}

void node_add_claim(uint32_t request, uint32_t core_limit)
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
    node_set_limit(node.n, (struct vcuda_limit){.core_request = request, .core_limit = core_limit});
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

void node_begin(void)
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
    node.arbiter = arbiter_start(node_directory);
}

void node_end(void)
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

void node_stop(int i)
{
    kill(node.player[i].pid, SIGKILL);
    finish(&node.player[i]);
    node.player[i].pid = 0;
}

void node_measure(double seconds, double shares[SHARERS])
{
    struct vcuda_totals before[SHARERS], after[SHARERS];
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

/* Of this machine's processors, what the host gives to others, in clock ticks; all of theirs in `all`. */
static double stolen_ticks(double *all)
{
    double tick[8] = {0};
    FILE *file = fopen("/proc/stat", "re");
    if (!file || fscanf(file, "cpu %lf %lf %lf %lf %lf %lf %lf %lf", &tick[0], &tick[1], &tick[2], &tick[3], &tick[4],
                        &tick[5], &tick[6], &tick[7]) != 8)
        memset(tick, 0, sizeof tick);
    if (file)
        fclose(file);
    *all = 0;
    for (int i = 0; i < 8; i++)
        *all += tick[i];
    return tick[7];
}

/* A machine that others disturb takes from all tenants: a GPU that stands idle while they or the arbiter wait for a processor
 * is nobody's, and whoever launches more often waits more often. So what was used is judged by its parts, more loosely by
 * what the host stole meanwhile, and of the whole only that it is neither more than was promised nor a mere part of it. How
 * exact it is follows from test_rounds.c, in made-up time, and is measured on a real GPU (benchmarks/shim). */
void expect_shares(const char *what, double a, double b, double c, double tolerance)
{
    double shares[SHARERS] = {0}, want[SHARERS] = {a, b, c}, whole = a + b + c;
    double off = 1e9, used = 0, stolen = 0;
    for (int again = 0; again < 6 && (off > tolerance + stolen || used < 0.5 * whole); again++) {
        double all_before, all_after, before = stolen_ticks(&all_before);
        node_measure(2, shares);
        stolen = 100 * (stolen_ticks(&all_after) - before) / fmax(all_after - all_before, 1);
        used = shares[0] + shares[1] + shares[2];
        off = fmax(used - whole, 0);
        for (int i = 0; i < node.n; i++)
            off = fmax(off, fabs(whole * shares[i] / used - want[i]));
    }
    expect(off <= tolerance + stolen && used >= 0.5 * whole, "%s: %.1f/%.1f/%.1f for %.0f/%.0f/%.0f (%.0f %% stolen)",
           what, shares[0], shares[1], shares[2], a, b, c, stolen);
}

uint64_t ends_of(int i)
{
    return __atomic_load_n(&node.turns[i]->turn[0].ends_ns, __ATOMIC_SEQ_CST);
}

int all_free(void)
{
    int n = 0;
    for (int i = 0; i < node.n; i++)
        n += ends_of(i) == VCUDA_TURN_FREE;
    return n == node.n;
}

int becomes(int (*so)(void), double seconds)
{
    double until = now_s() + seconds;
    while (!so() && now_s() < until)
        pause_s(0.005);
    return so();
}

int contended(void)
{
    return !all_free();
}
