/* See shared.h. */
#include "shared.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define REAL_SLACK_MIB 24

void circle_begin(struct circle *circle, struct claim *claim)
{
    memset(circle, 0, sizeof *circle);
    for (int i = 0; i < PARTIES; i++)
        circle->claim[i] = claim;
    circle->tells = getenv("VCUDA_TEST_TELL") != NULL;
    circle->real = gpu_memory_real(0);
}

static uint64_t charged_bytes(const struct claim *claim)
{
    struct vcuda_totals t;
    vcuda_usage_reap_dead(claim->usage);
    vcuda_usage_totals(claim->usage, 0, &t);
    return t.memory_bytes + t.context_bytes;
}

static void begin_party(struct circle *circle, int i)
{
    struct party *p = &circle->party[i];
    char path[400], line[40];
    uint64_t charged = charged_bytes(circle->claim[i]), real = gpu_memory_real(0);
    snprintf(path, sizeof path, "%s/orders-%c", circle->claim[i]->directory, 'A' + i);
    unlink(path);
    mkfifo(path, 0600);
    p->orders = open(path, O_RDWR | O_CLOEXEC);
    setenv(SHARED_ORDERS_ENV, path, 1);
    steps_begin(&p->steps, circle->claim[i], "shared", NULL, NULL);
    p->is_running = steps_next(&p->steps);
    p->charged = charged_bytes(circle->claim[i]) - charged;
    p->real = gpu_memory_real(0) - real;
    snprintf(path, sizeof path, "%s/../party-%c", circle->claim[0]->directory, 'A' + i);
    unlink(path);
    snprintf(line, sizeof line, "%c listen %c", 'A' + i, 'A' + i);
    circle_do(circle, line);
}

static int end_party(struct party *p, int signal)
{
    if (signal)
        kill(p->steps.player.pid, signal);
    while (steps_next(&p->steps))
        ;
    close(p->orders);
    p->is_running = 0;
    return -1;
}

static void tell(const struct circle *circle, const char *line, int error)
{
    printf("      %-22s error %3d  charged %6.0f  real %6.0f  by process:", line, error,
           circle_charged(circle, circle->claim[0]), circle_real(circle));
    for (int i = 0; i < PARTIES; i++) {
        const struct party *p = &circle->party[i];
        if (!p->is_running)
            continue;
        struct account a = account_of(circle->claim[i], 0, p->steps.player.pid);
        printf("  %c account %.0f nvml %.0f", 'A' + i, (double)a.bytes / MIB, (double)a.nvml / MIB);
    }
    printf("\n");
}

int circle_do(struct circle *circle, const char *line)
{
    struct party *p = &circle->party[*line - 'A'];
    const char *what = line + 2;
    int error = -1;
    if (!p->is_running)
        begin_party(circle, *line - 'A');
    if (!strcmp(what, "kill")) {
        end_party(p, SIGKILL);
    } else if (dprintf(p->orders, "%s\n", what) < 0 || !strcmp(what, "exit")) {
        end_party(p, 0);
    } else if (steps_next(&p->steps)) {
        error = (int)figure_of(&p->steps.player, "error");
    } else {
        p->is_running = 0;
    }
    if (circle->tells)
        tell(circle, line, error);
    return error;
}

double circle_charged(const struct circle *circle, const struct claim *claim)
{
    int64_t bytes = (int64_t)charged_bytes(claim);
    for (int i = 0; i < PARTIES; i++)
        if (circle->party[i].is_running && circle->claim[i] == claim)
            bytes -= (int64_t)circle->party[i].charged;
    return (double)bytes / MIB;
}

double circle_real(const struct circle *circle)
{
    int64_t bytes = (int64_t)(gpu_memory_real(0) - circle->real);
    for (int i = 0; i < PARTIES; i++)
        if (circle->party[i].is_running)
            bytes -= (int64_t)circle->party[i].real;
    return (double)bytes / MIB;
}

int circle_is(double mib, double expected)
{
    double slack = on_real_gpu ? REAL_SLACK_MIB : 0;
    return mib >= expected - slack && mib <= expected + slack;
}

int circle_becomes(const struct circle *circle, double mib, double *charged, double *real)
{
    for (double end = now_s() + 2;; pause_s(0.005)) {
        *charged = circle_charged(circle, circle->claim[0]);
        *real = circle_real(circle);
        if ((circle_is(*charged, mib) && circle_is(*real, mib)) || now_s() > end)
            return now_s() <= end;
    }
}

void circle_end(struct circle *circle)
{
    for (int i = 0; i < PARTIES; i++)
        if (circle->party[i].is_running) {
            dprintf(circle->party[i].orders, "exit\n");
            end_party(&circle->party[i], 0);
        }
}
