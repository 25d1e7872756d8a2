/* Roles of the killing: a nursery that forks victims and kills them at random moments, victims that do everything that a
 * tenant does, and survivors beside them. */
#include "harness.h"
#include "kill.h"
#include "tenant.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define VICTIMS 3
#define HELD 16

static unsigned dice;

static unsigned roll(unsigned sides)
{
    return (unsigned)rand_r(&dice) % sides;
}

static void churn_memory(CUdeviceptr held[HELD], CUstream stream)
{
    CUdeviceptr *p = &held[roll(HELD)];
    if (*p) {
        /* A real driver takes managed memory back in the plain way only. */
        if (roll(2) || cuda.cuMemFreeAsync(*p, stream))
            cuda.cuMemFree_v2(*p);
        *p = 0;
        return;
    }
    size_t bytes = (size_t)(roll(8) ? roll(48) + 1 : 40000) * MIB; /* now and then far too much */
    CUresult error = CUDA_SUCCESS;
    switch (roll(4)) {
    case 0:
        error = cuda.cuMemAllocManaged(p, bytes, 1);
        break;
    case 1:
        error = cuda.cuMemAllocAsync(p, bytes, stream);
        break;
    default:
        error = cuda.cuMemAlloc_v2(p, bytes);
        break;
    }
    if (error)
        *p = 0;
}

static void churn_mapping(void)
{
    CUallocationProp prop = {.type = 1, .location = {CU_LOCATION_DEVICE, 0}};
    CUhandle handle;
    CUdeviceptr p;
    if (cuda.cuMemCreate(&handle, 8 * MIB, &prop, 0))
        return;
    if (!cuda.cuMemAddressReserve(&p, 8 * MIB, 0, 0, 0) && !cuda.cuMemMap(p, 8 * MIB, 0, handle, 0))
        cuda.cuMemUnmap(p, 8 * MIB);
    cuda.cuMemRelease(handle);
}

static void churn_context(const struct tenant *t)
{
    CUcontext second;
    if (!cuda.cuCtxCreate_v2(&second, 0, 0))
        cuda.cuCtxDestroy_v2(second);
    cuda.cuCtxSetCurrent(t->context);
}

static void churn_launches(const struct tenant *t)
{
    for (unsigned n = roll(40) + 1; n; n--)
        cuda_spin(t->spin, 1, (uint64_t[]){20000, 200000, 3000000}[roll(3)], t->stream);
    if (roll(2))
        cuda.cuStreamSynchronize(t->stream);
}

/* Everything at once, until killed. */
static _Noreturn void victim(unsigned seed)
{
    struct tenant t;
    CUdeviceptr held[HELD] = {0};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dice = seed;
    if (tenant_begin(&t))
        pause(); /* no room for its context: it is killed all the same */
    for (;;) {
        unsigned what = roll(16);
        if (what < 9)
            churn_memory(held, t.stream);
        else if (what < 11)
            churn_mapping();
        else if (what < 12)
            churn_context(&t);
        else
            churn_launches(&t);
    }
}

static pid_t give_birth(void)
{
    char seed[16];
    unsigned child_seed = roll(1u << 30);
    int exec = roll(8) == 0;
    pid_t pid = fork();
    if (pid)
        return pid;
    if (!exec)
        victim(child_seed);
    snprintf(seed, sizeof seed, "%u", child_seed);
    execl("/proc/self/exe", "suite", "--role", "victim", seed, NULL);
    _exit(127);
}

/* Before it has begun, while it attaches, while it works. */
static double life_span(void)
{
    static const double longest_us[] = {50, 500, 500, 2000, 4000, 4000, 12000, 12000};
    return longest_us[roll(8)] * roll(1000) / 1e9;
}

static void wait_until(double when)
{
    double left;
    while ((left = when - now_s()) > 0)
        if (left > 1e-4)
            pause_s(left - 5e-5);
}

static int nursery(unsigned seed, unsigned count)
{
    struct {
        pid_t pid;
        double dies;
    } victims[VICTIMS] = {{0}};
    dice = seed;
    prctl(PR_SET_TIMERSLACK, 1000ul, 0, 0, 0);
    if (cuda_api_load())
        return 1;
    unsigned born = 0, killed = 0, ended = 0;
    while (killed < count) {
        int next = -1;
        for (int i = 0; i < VICTIMS; i++) {
            if (!victims[i].pid && born < count) {
                victims[i].pid = give_birth();
                victims[i].dies = now_s() + life_span();
                born++;
            }
            if (victims[i].pid && (next < 0 || victims[i].dies < victims[next].dies))
                next = i;
        }
        int status;
        wait_until(victims[next].dies);
        kill(victims[next].pid, SIGKILL);
        waitpid(victims[next].pid, &status, 0);
        ended += !WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL;
        victims[next].pid = 0;
        killed++;
    }
    say("killed", killed);
    say("ended_otherwise", ended);
    return 0;
}

static struct kill_stage *open_stage(void)
{
    char path[400];
    snprintf(path, sizeof path, "%s/" KILL_STAGE, getenv(VCUDA_CLAIM_DIR_ENV));
    int fd = open(path, O_RDWR | O_CLOEXEC);
    void *map = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(struct kill_stage), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return map == MAP_FAILED ? NULL : map;
}

static void beat(struct kill_stage *stage, int me)
{
    uint64_t now = pages_clock(CLOCK_MONOTONIC), last = stage->last_beat_ns[me];
    if (last && now - last > stage->longest_ns[me])
        stage->longest_ns[me] = now - last;
    stage->last_beat_ns[me] = now;
    __atomic_fetch_add(&stage->beats[me], 1, __ATOMIC_SEQ_CST);
}

/* Work, and rest when told to: then it holds exactly KILL_HOLD and its context. */
static int survivor(int me, unsigned seed)
{
    struct tenant t;
    struct kill_stage *stage = open_stage();
    CUdeviceptr kept, held[HELD] = {0};
    dice = seed;
    if (!stage || tenant_begin(&t) || cuda.cuMemAlloc_v2(&kept, KILL_HOLD))
        return 1;
    say("ready", 1);
    for (;;) {
        uint32_t rest = __atomic_load_n(&stage->rest, __ATOMIC_SEQ_CST);
        if (!(rest & 1)) {
            churn_memory(held, t.stream);
            stage->errors[me] += cuda_spin(t.spin, 1, 50000, t.stream) || cuda.cuStreamSynchronize(t.stream);
            beat(stage, me);
            continue;
        }
        for (int i = 0; i < HELD; i++) {
            stage->errors[me] += held[i] && cuda.cuMemFree_v2(held[i]);
            held[i] = 0;
        }
        stage->errors[me] += cuda.cuCtxSynchronize() != 0;
        __atomic_store_n(&stage->seen[me], rest, __ATOMIC_SEQ_CST);
        pause_s(0.001);
        stage->last_beat_ns[me] = 0;
    }
}

int role_kill(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[0], "nursery"))
        return nursery((unsigned)atoi(argv[1]), (unsigned)atoi(argv[2]));
    if (argc == 2 && !strcmp(argv[0], "victim"))
        victim((unsigned)atoi(argv[1]));
    if (argc == 3 && !strcmp(argv[0], "survivor"))
        return survivor(atoi(argv[1]), (unsigned)atoi(argv[2]));
    return -1;
}
