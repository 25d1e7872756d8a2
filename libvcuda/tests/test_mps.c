/* Limits of clients of MPS: a client counts by its part of the multiprocessors, and only what is beyond the parts needs
 * credit. On the simulated driver: its nvidia-cuda-mps-control, and kernels that take their time whatever the part. */
#include "harness.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define TOLERANCE 2.0

static char directory[] = "/tmp/vcuda-mps-XXXXXX";

static pid_t start_daemon(void)
{
    char program[512], socket[300];
    /* Beside the simulated driver, where the harness lets programs find that. */
    snprintf(program, sizeof program, "%s/nvidia-cuda-mps-control", getenv("LD_LIBRARY_PATH"));
    snprintf(socket, sizeof socket, "%s/control", directory);
    pid_t pid = fork();
    if (!pid) {
        execl(program, program, "-f", (char *)NULL);
        _exit(127);
    }
    for (int i = 0; i < 500 && access(socket, F_OK) != 0; i++)
        pause_s(0.01);
    return pid;
}

static void end_daemon(pid_t pid)
{
    kill(pid, SIGTERM);
    waitpid(pid, NULL, 0);
}

static void set_limit(struct claim *claim, uint32_t core)
{
    struct vcuda_limit limit = {.assignment_uid = {7},
                                .generation = ++claim->generation,
                                .memory_bytes = 4 * GIB,
                                .core_request = core,
                                .core_limit = core,
                                .flags = VCUDA_FLAG_NO_TURNS | VCUDA_FLAG_MPS};
    memcpy(limit.gpu_uuid, gpu_uuid, 16);
    vcuda_limits_set(claim->limits, &limit);
}

static void make(struct claim *claim, uint32_t core)
{
    claim_make(claim, 4 * GIB, core);
    set_limit(claim, core);
}

static double page_time(const struct claim *claim)
{
    struct vcuda_totals totals;
    vcuda_usage_totals(claim->usage, 0, &totals);
    return (double)totals.gpu_time_ns / 1e9;
}

/* Run one client under a claim of this limit; return its share of the time and, in `page`, what its page was charged. */
static double measure(uint32_t core, double *page)
{
    struct claim claim;
    struct player p;
    make(&claim, core);
    play(&p, &claim, PRELOADED, "load", "1000000", "0", "2", "100", NULL);
    finish(&p);
    double share = figure_of(&p, "overall");
    *page = page_time(&claim) / 2 * 100;
    claim_end(&claim);
    return share;
}

static void test_one_client(void)
{
    double page, share = measure(30, &page);
    expect(
        share > 95 && fabs(page - 30) <= TOLERANCE,
        "a client with a part of 30 %% runs all the time under a limit of 30 %%, and counts as 30: %.1f %%, page %.1f",
        share, page);
    share = measure(10, &page);
    expect(fabs(share - 100.0 / 3) <= 2 * TOLERANCE && fabs(page - 10) <= TOLERANCE,
           "under a limit of 10 %% it runs a third of the time: %.1f %%, page %.1f", share, page);
    share = measure(60, &page);
    expect(share > 95 && fabs(page - 30) <= TOLERANCE, "a limit above its part gives it no more: %.1f %%, page %.1f",
           share, page);
}

static void test_two_clients(void)
{
    struct claim claim;
    struct player a, b;
    make(&claim, 20);
    play(&a, &claim, PRELOADED, "load", "1000000", "0", "3", "100", NULL);
    play(&b, &claim, PRELOADED, "load", "1000000", "0", "3", "100", NULL);
    finish(&a);
    finish(&b);
    double sum = figure_of(&a, "overall") + figure_of(&b, "overall"), page = page_time(&claim) / 3 * 100;
    expect(fabs(sum * 0.3 - 20) <= TOLERANCE && fabs(page - 20) <= TOLERANCE,
           "two clients of a claim, each with a part of 30 %%, share its limit of 20: %.1f %%, page %.1f", sum * 0.3,
           page);
    claim_end(&claim);
}

/* In 100 ms under 10 %: 10 ms of credit, one quantum of 5 ms and what was in flight; with all that a claim can save, 30. */
static void test_lowered(void)
{
    struct claim claim;
    struct player p;
    make(&claim, 10);
    play(&p, &claim, PRELOADED, "load", "1000000", "0", "1", "100", NULL);
    pause_s(0.3);
    set_limit(&claim, 30);
    pause_s(0.3);
    double before = page_time(&claim), spent;
    set_limit(&claim, 10);
    pause_s(0.1);
    spent = (page_time(&claim) - before) * 1000;
    finish(&p);
    expect(before > 0 && spent < 22,
           "a lowered limit leaves a client no more than one quantum of what it had saved: %.1f ms", spent);
    claim_end(&claim);
}

static void test_without_server(void)
{
    double page, share = measure(30, &page);
    expect(fabs(share - 30) <= TOLERANCE && fabs(page - 30) <= TOLERANCE,
           "where no daemon answers, the program has the whole GPU, and 30 %% of its time: %.1f %%, page %.1f", share,
           page);
}

void test_mps(void)
{
    if (on_real_gpu || !mkdtemp(directory))
        return;
    setenv("CUDA_MPS_PIPE_DIRECTORY", directory, 1);
    setenv("CUDA_MPS_LOG_DIRECTORY", directory, 1);
    setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "30", 1);
    pid_t daemon = start_daemon();
    test_one_client();
    test_two_clients();
    test_lowered();
    end_daemon(daemon);
    test_without_server();
    unsetenv("CUDA_MPS_PIPE_DIRECTORY");
    unsetenv("CUDA_MPS_LOG_DIRECTORY");
    unsetenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
}
