/* Roles about memory and life. Each prints `name value` lines. */
#include "cuda_api.h"
#include "harness.h"
#include "nvidia_ml.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static CUfunction spin;
static CUstream stream;

static void say(const char *name, double value)
{
    printf("%s %.0f\n", name, value);
    fflush(stdout);
}

static int start(void)
{
    const char *where = cuda_api_load();
    CUresult error = where ? -1 : cuda_api_start(0, &spin, &where);
    if (error) {
        say("start_error", error);
        return 0;
    }
    return cuda.cuStreamCreate(&stream, 1) == CUDA_SUCCESS;
}

static void say_memory(const char *free_name, const char *total_name)
{
    size_t f = 0, t = 0;
    cuda.cuMemGetInfo_v2(&f, &t);
    say(free_name, (double)f);
    say(total_name, (double)t);
}

static int about(void)
{
    const char *where = cuda_api_load();
    CUuuid uuid;
    if (where || cuda.cuInit(0) || cuda.cuDeviceGetUuid_v2(&uuid, 0))
        return 1;
    for (int i = 0; i < 16; i++)
        printf("uuid%d %d\n", i, uuid.bytes[i]);
    /* What a context costs: NVML's figure of this process, before it has allocated anything. */
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    __typeof__(nvmlInit_v2) *init = library ? dlsym(library, "nvmlInit_v2") : NULL;
    __typeof__(nvmlDeviceGetHandleByIndex_v2) *by_index = dlsym(library, "nvmlDeviceGetHandleByIndex_v2");
    __typeof__(nvmlDeviceGetComputeRunningProcesses_v3) *processes =
        dlsym(library, "nvmlDeviceGetComputeRunningProcesses_v3");
    nvmlDevice_t device;
    nvmlProcessInfo_t infos[256];
    unsigned count = 256;
    if (!init || init() || by_index(0, &device) || !start() || processes(device, &count, infos))
        return 1;
    for (unsigned i = 0; i < count; i++)
        if (infos[i].pid == (unsigned)getpid())
            say("context", (double)infos[i].used);
    return 0;
}

/* Allocate blocks of `step` one way until refused; say how many bytes were got and by what the last was refused. */
static CUresult one(const char *way, CUdeviceptr *p, size_t step)
{
    size_t pitch;
    CUmemoryPool pool;
    CUhandle handle;
    CUallocationProp prop = {.type = 1, .location = {CU_LOCATION_DEVICE, 0}};
    CUarrayDescriptor array = {step / 4096, 1024, 0x20, 1};
    if (!strcmp(way, "plain"))
        return cuda.cuMemAlloc_v2(p, step);
    if (!strcmp(way, "managed"))
        return cuda.cuMemAllocManaged(p, step, 1);
    if (!strcmp(way, "pitch"))
        return cuda.cuMemAllocPitch_v2(p, &pitch, step / 1024 - 100, 1024, 4);
    if (!strcmp(way, "async"))
        return cuda.cuMemAllocAsync(p, step, stream);
    if (!strcmp(way, "async_ptsz"))
        return cuda.cuMemAllocAsync_ptsz(p, step, stream);
    if (!strcmp(way, "pool"))
        return cuda.cuDeviceGetDefaultMemPool(&pool, 0) ? -1 : cuda.cuMemAllocFromPoolAsync(p, step, pool, stream);
    if (!strcmp(way, "vmm"))
        return cuda.cuMemCreate(&handle, step, &prop, 0) ? CUDA_ERROR_OUT_OF_MEMORY : (*p = handle, CUDA_SUCCESS);
    return !strcmp(way, "array") ? cuda.cuArrayCreate_v2((CUarray *)p, &array) : (CUresult)-1;
}

static int fill(const char *way, size_t step, size_t most)
{
    if (!start())
        return 1;
    say_memory("free_before", "total");
    size_t got = 0;
    CUdeviceptr p, first = 0;
    CUresult error = CUDA_SUCCESS;
    while (got < most && !(error = one(way, &p, step))) {
        first = first ? first : p;
        got += step;
    }
    say("got", (double)got);
    say("error", error);
    say_memory("free_after", "total");
    /* One block back, one block more: what is freed can be had again. */
    if (!strcmp(way, "plain") && first)
        say("again", cuda.cuMemFree_v2(first) ? -1 : cuda.cuMemAlloc_v2(&p, step));
    say("filled", 1);
    if (getenv("STAY"))
        for (;;)
            pause();
    return 0;
}

/* Several of these at once: allocate and free at random for a while; say nothing of the limit. */
static int race(unsigned seed, double seconds)
{
    if (!start())
        return 1;
    /* All contexts first: a racer that comes late would find their room taken. */
    char go[300];
    snprintf(go, sizeof go, "%s/go", getenv(VCUDA_CLAIM_DIR_ENV));
    say("ready", 1);
    for (double end = now_s() + 60; access(go, F_OK) != 0 && now_s() < end; pause_s(0.001))
        ;
    CUdeviceptr held[64] = {0};
    int refused = 0, granted = 0;
    for (double end = now_s() + seconds; now_s() < end;) {
        int i = rand_r(&seed) % 64;
        if (held[i]) {
            cuda.cuMemFree_v2(held[i]);
            held[i] = 0;
        } else if (cuda.cuMemAlloc_v2(&held[i], (size_t)(rand_r(&seed) % 64 + 1) * 4 * MIB)) {
            held[i] = 0;
            refused++;
        } else {
            granted++;
        }
    }
    say("refused", refused);
    say("granted", granted);
    return 0;
}

/* Try an allocation again and again, each time a line is asked for on standard input; here: every 20 ms. */
static int retry(size_t bytes, double seconds)
{
    if (!start())
        return 1;
    CUdeviceptr p;
    say("ready", 1);
    for (double end = now_s() + seconds; now_s() < end; pause_s(0.02)) {
        CUresult error = cuda.cuMemAlloc_v2(&p, bytes);
        printf("result %d\n", error);
        fflush(stdout);
        if (!error)
            cuda.cuMemFree_v2(p);
    }
    return 0;
}

static int forks(void)
{
    CUdeviceptr p;
    /* Looked up, but not initialised, before the fork: as a DataLoader's worker finds it. */
    const char *where = cuda_api_load();
    if (where)
        return 1;
    pid_t child = fork();
    if (child == 0) {
        if (!start())
            _exit(3);
        say("child_big", cuda.cuMemAlloc_v2(&p, 6 * GIB));
        say("child_small", cuda.cuMemAlloc_v2(&p, 16 * MIB));
        say("child_ready", 1);
        pause_s(0.5);
        _exit(0);
    }
    int status;
    if (!start())
        return 1;
    cuda.cuMemAlloc_v2(&p, 32 * MIB);
    pid_t late = fork();
    if (late == 0)
        /* After initialisation the driver refuses a child; the shim must not make it worse. */
        _exit(cuda.cuMemAlloc_v2(&p, 16 * MIB) == CUDA_SUCCESS ? 1 : 0);
    waitpid(late, &status, 0);
    say("late_child", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    say("parent_ready", 1);
    waitpid(child, &status, 0);
    say("child_status", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    return 0;
}

int role_play(int argc, char **argv)
{
    const char *role = argc ? argv[0] : "";
    if (!strcmp(role, "about"))
        return about();
    if (!strcmp(role, "fill"))
        return fill(argv[1], strtoull(argv[2], NULL, 10), strtoull(argv[3], NULL, 10));
    if (!strcmp(role, "race"))
        return race((unsigned)atoi(argv[1]), atof(argv[2]));
    if (!strcmp(role, "retry"))
        return retry(strtoull(argv[1], NULL, 10), atof(argv[2]));
    if (!strcmp(role, "forks"))
        return forks();
    return role_compute(argc, argv);
}
