/* Roles about what programs see. Each prints `name value` lines. */
#include "harness.h"
#include "nvidia_ml.h"
#include "tenant.h"

#include <dlfcn.h>
#include <linux/capability.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static void *nvml_find(const char *name)
{
    return dlsym(dlopen("libnvidia-ml.so.1", RTLD_NOW), name);
}

/* NVML's handle of CUDA's first device, which may be a part of a GPU. */
static int find_device(nvmlDevice_t *device)
{
    __typeof__(nvmlInit_v2) *init = nvml_find("nvmlInit_v2");
    __typeof__(nvmlDeviceGetHandleByUUID) *by_uuid = nvml_find("nvmlDeviceGetHandleByUUID");
    CUuuid u;
    char text[48], *at = text + sprintf(text, "GPU-");
    if (!init || !by_uuid || init() || cuda.cuDeviceGetUuid_v2(&u, 0))
        return 0;
    for (int i = 0; i < 16; i++)
        at += sprintf(at, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", u.bytes[i]);
    if (by_uuid(text, device) == NVML_SUCCESS)
        return 1;
    memcpy(text, "MIG", 3);
    return by_uuid(text, device) == NVML_SUCCESS;
}

/* What CUDA and NVML say of the GPU's memory. */
static int nvml(void)
{
    struct tenant tenant;
    nvmlDevice_t device;
    __typeof__(nvmlDeviceGetMemoryInfo) *memory = nvml_find("nvmlDeviceGetMemoryInfo");
    __typeof__(nvmlDeviceGetMemoryInfo_v2) *memory_v2 = nvml_find("nvmlDeviceGetMemoryInfo_v2");
    nvmlMemory_t m;
    nvmlMemory_v2_t m2 = {.version = sizeof m2 | 2u << 24};
    size_t total = 0, f = 0, t = 0;
    CUdeviceptr p;
    if (tenant_begin(&tenant) || !find_device(&device) || cuda.cuMemAlloc_v2(&p, 100 * MIB))
        return 1;
    cuda.cuDeviceTotalMem_v2(&total, 0);
    say("device_total", (double)total);
    say("nvml_total", memory(device, &m) ? -1 : (double)m.total);
    say("nvml_used", (double)m.used);
    say("nvml_total_v2", memory_v2(device, &m2) ? -1 : (double)m2.total);
    cuda.cuMemGetInfo_v2(&f, &t);
    say("cuda_used", (double)(t - f));
    return 0;
}

/* One list of processes: how many, how many bytes this process has in it, and whether more than was asked for was written. */
#define SAY_LIST(label, name, type)                                                                                    \
    do {                                                                                                               \
        __typeof__(name) *list = nvml_find(#name);                                                                     \
        type infos[65];                                                                                                \
        unsigned n = 64, none = 0;                                                                                     \
        memset(infos, 0x5a, sizeof infos);                                                                             \
        nvmlReturn_t asked = list ? list(device, &none, NULL) : -1;                                                    \
        nvmlReturn_t result = list ? list(device, &n, infos) : -1;                                                     \
        say(label "_result", result);                                                                                  \
        say(label "_count", n);                                                                                        \
        say(label "_asked", asked == (n ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS) && none == n);                  \
        for (unsigned i = 0; i < n && !result; i++)                                                                    \
            if (infos[i].pid == (unsigned)getpid())                                                                    \
                say(label "_own", (double)infos[i].used);                                                              \
        say(label "_beyond", ((unsigned char *)&infos[n < 64 ? n : 64])[0] == 0x5a);                                   \
    } while (0)

static int processes(void)
{
    struct tenant tenant;
    nvmlDevice_t device;
    CUdeviceptr p;
    size_t f, t;
    if (tenant_begin(&tenant) || !find_device(&device) || cuda.cuMemAlloc_v2(&p, 100 * MIB))
        return 1;
    SAY_LIST("v1", nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t);
    SAY_LIST("v2", nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_t);
    SAY_LIST("v3", nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t);
    SAY_LIST("graphics", nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t);
    SAY_LIST("mps", nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t);
    __typeof__(nvmlDeviceGetRunningProcessDetailList) *details = nvml_find("nvmlDeviceGetRunningProcessDetailList");
    nvmlProcessDetail_t entries[64];
    nvmlProcessDetailList_t list = {NVML_FIRST_VERSION(nvmlProcessDetailList_t), 0, 64, entries};
    say("details_count", details && details(device, &list) == NVML_SUCCESS ? (double)list.count : -1);
    cuda.cuMemGetInfo_v2(&f, &t);
    say("cuda_used", (double)(t - f));
    return 0;
}

static void *work(void *tenant)
{
    struct tenant *t = tenant;
    cuda.cuCtxSetCurrent(t->context);
    while (!cuda_spin(t->spin, 1, 2000000, t->stream))
        ;
    return NULL;
}

/* Work for a while; say what NVML takes it for, at the first question and at a later one. */
static int busy(double seconds)
{
    struct tenant tenant;
    nvmlDevice_t device;
    nvmlUtilization_t rates = {0};
    nvmlProcessSample_t samples[64];
    pthread_t thread;
    unsigned n = 64, foreign = 0;
    __typeof__(nvmlDeviceGetUtilizationRates) *utilisation = nvml_find("nvmlDeviceGetUtilizationRates");
    __typeof__(nvmlDeviceGetProcessUtilization) *by_process = nvml_find("nvmlDeviceGetProcessUtilization");
    if (tenant_begin(&tenant) || !find_device(&device) || pthread_create(&thread, NULL, work, &tenant))
        return 1;
    pause_s(seconds / 2);
    say("first", utilisation(device, &rates) ? -1 : (double)rates.gpu);
    pause_s(seconds / 2);
    say("later", utilisation(device, &rates) ? -1 : (double)rates.gpu);
    say("memory", rates.memory);
    nvmlReturn_t result = by_process(device, samples, &n, 0);
    for (unsigned i = 0; !result && i < n; i++)
        foreign += samples[i].pid != (unsigned)getpid();
    say("samples_result", result);
    say("samples_foreign", foreign);
    fflush(stdout);
    _exit(0); /* the thread is somewhere in the driver */
}

/* As nvidia-smi sees a GPU: without CUDA. */
static int nvml_only(void)
{
    __typeof__(nvmlInit_v2) *start = nvml_find("nvmlInit_v2");
    __typeof__(nvmlDeviceGetHandleByIndex_v2) *by_index = nvml_find("nvmlDeviceGetHandleByIndex_v2");
    __typeof__(nvmlDeviceGetMemoryInfo) *memory = nvml_find("nvmlDeviceGetMemoryInfo");
    nvmlDevice_t device;
    nvmlMemory_t m;
    if (!start || start() || by_index(0, &device) || memory(device, &m))
        return 1;
    say("total", (double)m.total);
    say("used", (double)m.used);
    return 0;
}

/* Root reads every file: without its capabilities it is a user like others. */
static void give_up_rights(void)
{
    struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[2] = {{0}, {0}};
    if (syscall(SYS_capset, &head, none) != 0)
        perror("capset");
}

/* Nothing but the beginning, with what is said on standard error among the lines. */
static int init(int plainly)
{
    if (plainly)
        give_up_rights();
    dup2(1, 2);
    const char *where = cuda_api_load();
    say("init", where ? -1 : cuda.cuInit(0));
    say("again", where ? -1 : cuda.cuInit(0));
    return 0;
}

int role_views(int argc, char **argv)
{
    if (argc && !strcmp(argv[0], "nvml"))
        return nvml();
    if (argc && !strcmp(argv[0], "processes"))
        return processes();
    if (argc && !strcmp(argv[0], "nvml_only"))
        return nvml_only();
    if (argc && !strcmp(argv[0], "init"))
        return init(argc > 1 && !strcmp(argv[1], "plainly"));
    if (argc > 1 && !strcmp(argv[0], "busy"))
        return busy(atof(argv[1]));
    return -1;
}
