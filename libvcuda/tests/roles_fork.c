/* A role that makes a child: in each way in which a program can, before and after it uses the GPU, for children that use it
 * and others that do not. The parent says what its own account was before and after. */
#include "harness.h"
#include "tenant.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* How a child ends: what it found. */
enum { FOUND_LIMIT = 20, FOUND_NO_LIMIT = 21, FOUND_NO_DRIVER = 22, FOUND_NOTHING = 23, FOUND_WRONG = 24 };

static struct tenant tenant;
static CUdeviceptr block;

/* What the account held when the context was new: in one accounting contexts are in the sum, in the other beside it. */
static uint64_t context_bytes;

static uint64_t counted_bytes(pid_t pid)
{
    static struct vcuda_usage *usage;
    char path[400];
    snprintf(path, sizeof path, "%s/usage", getenv(VCUDA_CLAIM_DIR_ENV));
    if (!usage && vcuda_usage_open(path, 0, &usage) != 0)
        return 1;
    struct vcuda_process_info infos[VCUDA_MAX_PROCESSES];
    for (int i = vcuda_usage_processes(usage, infos, VCUDA_MAX_PROCESSES); i-- > 0;) {
        struct vcuda_gpu_usage g;
        if (infos[i].pid == (uint32_t)pid && !vcuda_usage_process_gpu(usage, infos[i].slot, 0, &g))
            return g.memory_bytes + g.context_bytes;
    }
    return 0;
}

static uint64_t own_bytes(pid_t pid)
{
    return counted_bytes(pid) - context_bytes;
}

static CUresult begin(void)
{
    CUresult error = tenant_begin(&tenant);
    context_bytes = error ? 0 : counted_bytes(getpid());
    return error;
}

/* A program of its own, or a child that was made before its parent used the GPU. */
static int use_from_the_start(void)
{
    CUdeviceptr p;
    if (begin() || cuda.cuMemAlloc_v2(&p, 16 * MIB))
        return FOUND_WRONG;
    CUresult big = cuda.cuMemAlloc_v2(&p, 6 * GIB);
    if (!big)
        return FOUND_NO_LIMIT;
    int mine = own_bytes(getpid()) == 16 * MIB;
    return big == CUDA_ERROR_OUT_OF_MEMORY && mine && !cuda_spin(tenant.spin, 1, 1000, tenant.stream) ? FOUND_LIMIT
                                                                                                      : FOUND_WRONG;
}

/* A child that was made after: the driver refuses it everything, and the library must not make more of it. */
static int use_the_parents(void)
{
    CUdeviceptr p;
    CUcontext context;
    int granted = cuda.cuInit(0) == 0;
    granted += cuda.cuMemAlloc_v2(&p, 16 * MIB) == 0;
    granted += cuda.cuMemFree_v2(block) == 0;
    granted += cuda.cuMemAllocAsync(&p, 16 * MIB, tenant.stream) == 0;
    granted += cuda.cuMemFreeAsync(block, tenant.stream) == 0;
    granted += cuda_spin(tenant.spin, 1, 1000, tenant.stream) == 0;
    granted += cuda.cuStreamSynchronize(tenant.stream) == 0;
    granted += cuda.cuCtxCreate_v2(&context, 0, 0) == 0;
    granted += cuda.cuDevicePrimaryCtxRelease_v2(0) == 0;
    return granted ? FOUND_WRONG : FOUND_NO_DRIVER;
}

static char *const spawned[] = {(char *)"suite", (char *)"--role", (char *)"spawned", NULL};

/* The environment without the library. */
static char **bare_environment(void)
{
    static char *kept[512];
    int n = 0;
    for (char **at = environ; *at && n < 511; at++)
        if (strncmp(*at, "LD_PRELOAD=", 11) != 0)
            kept[n++] = *at;
    return kept;
}

struct child {
    const char *what;
    int after;
};

static int live(void *argument)
{
    const struct child *child = argument;
    if (!strcmp(child->what, "use"))
        _exit(child->after ? use_the_parents() : use_from_the_start());
    if (!strcmp(child->what, "grandchild")) {
        int status = 0;
        pid_t pid = fork();
        if (pid == 0)
            _exit(child->after ? use_the_parents() : use_from_the_start());
        waitpid(pid, &status, 0);
        _exit(WIFEXITED(status) ? WEXITSTATUS(status) : FOUND_WRONG);
    }
    if (!strcmp(child->what, "idle"))
        exit(FOUND_NOTHING); /* and so run what the library left for the exit */
    execve("/proc/self/exe", spawned, strcmp(child->what, "exec") ? bare_environment() : environ);
    _exit(FOUND_WRONG);
}

static pid_t make_child(const char *how, struct child *child)
{
    static char stack[256 << 10] __attribute__((aligned(16)));
    pid_t pid = -1;
    if (!strcmp(how, "fork")) {
        pid = fork();
        if (pid == 0)
            live(child);
    } else if (!strcmp(how, "vfork")) {
        pid = vfork();
        if (pid == 0) {
            execve("/proc/self/exe", spawned, strcmp(child->what, "exec") ? bare_environment() : environ);
            _exit(FOUND_WRONG);
        }
    } else if (!strcmp(how, "clone")) {
        pid = clone(live, stack + sizeof stack, SIGCHLD, child);
    } else if (!strcmp(how, "clone_vm")) {
        pid = clone(live, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, child);
    } else if (posix_spawn(&pid, "/proc/self/exe", NULL, NULL, spawned,
                           strcmp(child->what, "exec") ? bare_environment() : environ) != 0) {
        pid = -1;
    }
    return pid;
}

static int makes_child(const char *when, const char *how, const char *what)
{
    struct child child = {what, !strcmp(when, "after")};
    int status = 0;
    const char *missing = cuda_api_load();
    bare_environment();
    if (missing || (child.after && (begin() || cuda.cuMemAlloc_v2(&block, 32 * MIB))))
        return 1;
    uint64_t before = own_bytes(getpid());
    pid_t pid = make_child(how, &child);
    waitpid(pid, &status, 0);
    say("child", WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
    say("kept", child.after ? before == 32 * MIB && own_bytes(getpid()) == before : 1);
    CUdeviceptr p;
    int works = child.after || !begin();
    works = works && !cuda.cuMemAlloc_v2(&p, 64 * MIB) && !cuda_spin(tenant.spin, 1, 1000, tenant.stream) &&
            !cuda.cuStreamSynchronize(tenant.stream) && !cuda.cuMemFree_v2(p);
    say("works", works && (!child.after || !cuda.cuMemFree_v2(block)) && own_bytes(getpid()) == 0);
    return 0;
}

static _Atomic int ends;

static void *launch_on(void *nothing)
{
    CUdeviceptr p;
    cuda.cuCtxSetCurrent(tenant.context);
    while (!ends) {
        cuda_spin(tenant.spin, 1, 100000, tenant.stream);
        if (!cuda.cuMemAlloc_v2(&p, 4 * MIB))
            cuda.cuMemFree_v2(p);
    }
    return nothing;
}

/* Children are made while another thread launches and allocates: whatever that thread holds, no child may wait for it. */
static int forks_beside_thread(int count)
{
    pthread_t thread;
    int good = 0;
    if (begin() || pthread_create(&thread, NULL, launch_on, NULL))
        return 1;
    for (int i = 0; i < count; i++) {
        int status = 0;
        pid_t pid = fork();
        if (pid == 0) {
            alarm(10);
            size_t f, t;
            int refused = cuda.cuMemGetInfo_v2(&f, &t) && use_the_parents() == FOUND_NO_DRIVER;
            free(malloc(100000));
            exit(refused ? FOUND_NO_DRIVER : FOUND_WRONG);
        }
        waitpid(pid, &status, 0);
        good += WIFEXITED(status) && WEXITSTATUS(status) == FOUND_NO_DRIVER;
    }
    ends = 1;
    pthread_join(thread, NULL);
    say("good", good);
    say("left", (double)own_bytes(getpid()));
    return 0;
}

/* As a DataLoader does it: workers that compute on the processor, while the parent goes on. */
static int data_loader(void)
{
    pid_t workers[4];
    int bad = 0, good = 0;
    if (begin() || cuda.cuMemAlloc_v2(&block, 32 * MIB))
        return 1;
    for (int i = 0; i < 4; i++) {
        workers[i] = fork();
        if (workers[i] == 0) {
            volatile double sum = 0;
            for (double end = now_s() + 0.2; now_s() < end;)
                sum += now_s();
            exit(sum > 0 ? 0 : 1);
        }
    }
    for (double end = now_s() + 0.3; now_s() < end;)
        bad += cuda_spin(tenant.spin, 1, 200000, tenant.stream) || cuda.cuStreamSynchronize(tenant.stream);
    for (int i = 0; i < 4; i++) {
        int status = -1;
        waitpid(workers[i], &status, 0);
        good += status == 0;
    }
    say("good", good);
    say("bad", bad);
    say("left", (double)own_bytes(getpid()));
    return 0;
}

int role_fork(int argc, char **argv)
{
    if (argc == 4 && !strcmp(argv[0], "makes_child"))
        return makes_child(argv[1], argv[2], argv[3]);
    if (argc == 1 && !strcmp(argv[0], "spawned"))
        return use_from_the_start();
    if (argc == 2 && !strcmp(argv[0], "forks_beside_thread"))
        return forks_beside_thread(atoi(argv[1]));
    if (argc == 1 && !strcmp(argv[0], "data_loader"))
        return data_loader();
    return -1;
}
