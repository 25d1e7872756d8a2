/* See steps.h. The role reads a byte from a pipe of its own, in the claim's directory, before it goes on. */
#include "steps.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PIPE_ENV "VCUDA_TEST_STEPS"

void steps_begin(struct steps *steps, const struct claim *claim, const char *role, const char *first,
                 const char *second)
{
    static int number;
    char path[400];
    snprintf(path, sizeof path, "%s/steps-%d", claim->directory, ++number);
    mkfifo(path, 0600);
    setenv(PIPE_ENV, path, 1);
    /* For reading too, so that opening does not wait for the role. */
    steps->go = open(path, O_RDWR | O_CLOEXEC);
    play(&steps->player, claim, PRELOADED, role, first, second, NULL);
}

void steps_release(struct steps *steps)
{
    if (write(steps->go, "g", 1) != 1)
        perror("steps");
}

int steps_next(struct steps *steps)
{
    struct player *p = &steps->player;
    if (p->length)
        steps_release(steps);
    p->length = 0;
    p->text[0] = 0;
    if (wait_for(p, "step"))
        return 1;
    finish(p);
    close(steps->go);
    return 0;
}

struct account account_of(const struct claim *claim, unsigned gpu, pid_t pid)
{
    struct vcuda_process_info infos[VCUDA_MAX_PROCESSES];
    struct vcuda_gpu_usage usage;
    struct account account = {.nvml = gpu_memory_of(gpu, pid)};
    int count = vcuda_usage_processes(claim->usage, infos, VCUDA_MAX_PROCESSES);
    for (int i = 0; i < count; i++)
        if (infos[i].pid == (uint32_t)pid && !vcuda_usage_process_gpu(claim->usage, infos[i].slot, gpu, &usage)) {
            account.bytes = usage.memory_bytes + usage.context_bytes;
            account.managed = usage.managed_bytes;
            account.accounting = usage.accounting;
        }
    return account;
}

int account_differs(const struct account *account)
{
    return account->bytes - account->managed != account->nvml;
}

void step(const char *name)
{
    static int go = -1;
    char byte;
    if (go < 0)
        go = open(getenv(PIPE_ENV), O_RDONLY | O_CLOEXEC);
    printf("at %s\nstep 1\n", name);
    fflush(stdout);
    if (read(go, &byte, 1) != 1)
        exit(3);
}
