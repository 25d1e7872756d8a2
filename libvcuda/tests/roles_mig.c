/* Roles about MIG, for the node's first GPU. Each prints `name value` lines. */
#include "harness.h"
#include "nvidia_mig.h"
#include "tenant.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIND(name) __typeof__(name) *name##_ = dlsym(dlopen("libnvidia-ml.so.1", RTLD_NOW), #name)

static nvmlDevice_t first(void)
{
    FIND(nvmlInit_v2);
    FIND(nvmlDeviceGetHandleByIndex_v2);
    nvmlDevice_t device = NULL;
    if (nvmlInit_v2_())
        exit(1);
    nvmlDeviceGetHandleByIndex_v2_(0, &device);
    return device;
}

static void say_uuid(nvmlDevice_t mig)
{
    FIND(nvmlDeviceGetUUID);
    char text[96] = "", digits[33] = "", name[16];
    say("uuid_result", nvmlDeviceGetUUID_(mig, text, sizeof text));
    say("is_mig", strncmp(text, "MIG-", 4) == 0);
    for (char *c = text + 4, *to = digits; *c && to < digits + 32; c++)
        if (*c != '-')
            *to++ = *c;
    for (int i = 0; i < 16; i++) {
        char byte[3] = {digits[2 * i], digits[2 * i + 1], 0};
        snprintf(name, sizeof name, "uuid%d", i);
        say(name, (double)strtoul(byte, NULL, 16));
    }
}

/* A compute instance of all slices; the numbers of its kinds are 0 to 8. */
static nvmlReturn_t make_compute(nvmlGpuInstance_t instance)
{
    FIND(nvmlGpuInstanceGetComputeInstanceProfileInfo);
    FIND(nvmlGpuInstanceCreateComputeInstance);
    nvmlComputeInstanceProfileInfo_t info;
    nvmlComputeInstance_t compute;
    for (unsigned kind = 0; kind < 9; kind++)
        if (!nvmlGpuInstanceGetComputeInstanceProfileInfo_(instance, kind, 0, &info))
            return nvmlGpuInstanceCreateComputeInstance_(instance, info.id, &compute);
    return -1;
}

static int make(unsigned profile_id, unsigned start, unsigned size)
{
    FIND(nvmlDeviceCreateGpuInstanceWithPlacement);
    FIND(nvmlGpuInstanceGetInfo);
    FIND(nvmlDeviceGetMaxMigDeviceCount);
    FIND(nvmlDeviceGetMigDeviceHandleByIndex);
    FIND(nvmlDeviceGetGpuInstanceId);
    nvmlDevice_t device = first(), mig;
    nvmlGpuInstance_t instance;
    nvmlGpuInstanceInfo_t info;
    unsigned most = 0, id;
    nvmlGpuInstancePlacement_t at = {start, size};
    nvmlReturn_t result = nvmlDeviceCreateGpuInstanceWithPlacement_(device, profile_id, &at, &instance);
    say("result", result);
    if (result)
        return 0;
    nvmlGpuInstanceGetInfo_(instance, &info);
    say("id", info.id);
    say("start", info.placement.start);
    say("compute", make_compute(instance));
    say("second", make_compute(instance));
    nvmlDeviceGetMaxMigDeviceCount_(device, &most);
    for (unsigned i = 0; i < most; i++)
        if (!nvmlDeviceGetMigDeviceHandleByIndex_(device, i, &mig) && !nvmlDeviceGetGpuInstanceId_(mig, &id) &&
            id == info.id)
            say_uuid(mig);
    return 0;
}

static int remove_instance(unsigned id)
{
    FIND(nvmlDeviceGetGpuInstanceById);
    FIND(nvmlGpuInstanceGetComputeInstanceById);
    FIND(nvmlComputeInstanceDestroy);
    FIND(nvmlGpuInstanceDestroy);
    nvmlGpuInstance_t instance;
    nvmlComputeInstance_t compute;
    if (nvmlDeviceGetGpuInstanceById_(first(), id, &instance))
        return 1;
    say("whole", nvmlGpuInstanceDestroy_(instance));
    say("compute",
        nvmlGpuInstanceGetComputeInstanceById_(instance, 0, &compute) ? -1 : nvmlComputeInstanceDestroy_(compute));
    say("instance", nvmlGpuInstanceDestroy_(instance));
    return 0;
}

/* The profiles with their placements, added up; what is left of each; the devices. */
static int look(void)
{
    FIND(nvmlDeviceGetMigMode);
    FIND(nvmlDeviceGetGpuInstanceProfileInfo);
    FIND(nvmlDeviceGetGpuInstancePossiblePlacements_v2);
    FIND(nvmlDeviceGetGpuInstanceRemainingCapacity);
    FIND(nvmlDeviceGetMemoryInfo);
    FIND(nvmlDeviceGetComputeRunningProcesses_v3);
    nvmlDevice_t device = first();
    nvmlGpuInstanceProfileInfo_t info;
    nvmlGpuInstancePlacement_t at[8];
    nvmlProcessInfo_t running[8] = {0};
    nvmlMemory_t memory = {0};
    unsigned mode = 0, pending, places = 0, count, left, processes = 8;
    nvmlDeviceGetMigMode_(device, &mode, &pending);
    say("mode", mode);
    for (unsigned kind = 0; kind < NVML_GPU_INSTANCE_PROFILE_COUNT; kind++) {
        char name[32];
        count = 8;
        if (nvmlDeviceGetGpuInstanceProfileInfo_(device, kind, &info) ||
            nvmlDeviceGetGpuInstancePossiblePlacements_v2_(device, info.id, at, &count) ||
            nvmlDeviceGetGpuInstanceRemainingCapacity_(device, info.id, &left))
            continue;
        places += count;
        snprintf(name, sizeof name, "left%u", info.id);
        say(name, left);
    }
    say("placements", places);
    say("processes", nvmlDeviceGetComputeRunningProcesses_v3_(device, &processes, running) ? -1 : (double)processes);
    say("in_instance", running[0].gpu_instance);
    say("memory", nvmlDeviceGetMemoryInfo_(device, &memory) ? -1 : (double)memory.used);
    return 0;
}

/* What a program finds: devices, memory, multiprocessors; then it stays until a line comes. */
static int program(int stays)
{
    struct tenant tenant;
    int count = 0, multiprocessors = 0;
    size_t total = 0;
    if (tenant_begin(&tenant)) {
        say("devices", 0);
        return 0;
    }
    CUresult (*get_count)(int *) = tenant_find("cuDeviceGetCount");
    CUresult (*attribute)(int *, int, CUdevice) = tenant_find("cuDeviceGetAttribute");
    get_count(&count);
    attribute(&multiprocessors, CU_ATTRIBUTE_MULTIPROCESSORS, 0);
    cuda.cuDeviceTotalMem_v2(&total, 0);
    say("devices", count);
    say("multiprocessors", multiprocessors);
    say("total", (double)total);
    if (stays)
        pause_s(60);
    return 0;
}

int role_mig(int argc, char **argv)
{
    if (argc == 4 && !strcmp(argv[0], "mig_make"))
        return make((unsigned)atoi(argv[1]), (unsigned)atoi(argv[2]), (unsigned)atoi(argv[3]));
    if (argc == 2 && !strcmp(argv[0], "mig_remove"))
        return remove_instance((unsigned)atoi(argv[1]));
    if (argc && !strcmp(argv[0], "mig_look"))
        return look();
    if (argc && !strcmp(argv[0], "mig_program"))
        return program(argc > 1);
    return -1;
}
