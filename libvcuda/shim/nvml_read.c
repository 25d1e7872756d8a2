/* What NVML knows of this process: the second opinion on memory. */
#include "shim.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define PROCESSES 512

static nvmlDevice_t device_of(int slot)
{
    static nvmlDevice_t devices[VCUDA_MAX_GPUS];
    static int initialised;
    nvmlDevice_t known = __atomic_load_n(&devices[slot], __ATOMIC_ACQUIRE);
    struct vcuda_limit limit;
    if (known)
        return known;
    if (!real_nvml_ready(1) || !real_nvml.nvmlInit_v2 || !real_nvml.nvmlDeviceGetHandleByUUID)
        return NULL;
    if (!__atomic_load_n(&initialised, __ATOMIC_ACQUIRE) && real_nvml.nvmlInit_v2())
        return NULL;
    __atomic_store_n(&initialised, 1, __ATOMIC_RELEASE);
    if (vcuda_limits_get(shim.limits, (uint32_t)slot, &limit))
        return NULL;
    const uint8_t *u = limit.gpu_uuid;
    char text[48];
    snprintf(text, sizeof text, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1],
             u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
    if (real_nvml.nvmlDeviceGetHandleByUUID(text, &known))
        return NULL;
    __atomic_store_n(&devices[slot], known, __ATOMIC_RELEASE);
    return known;
}

int64_t nvml_process_bytes(int slot)
{
    nvmlDevice_t device = device_of(slot);
    if (!device || !real_nvml.nvmlDeviceGetComputeRunningProcesses_v3)
        return -1;
    nvmlProcessInfo_t *infos = malloc(PROCESSES * sizeof *infos);
    unsigned count = PROCESSES, pid = (unsigned)getpid();
    int64_t bytes = -1;
    if (infos && !real_nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, &count, infos))
        for (unsigned i = 0; i < count; i++)
            /* All ones: NVML has no figure (some virtualised GPUs). */
            if (infos[i].pid == pid && infos[i].used != ~0ull)
                bytes = (int64_t)infos[i].used;
    free(infos);
    return bytes;
}

int64_t nvml_device_bytes(int slot)
{
    nvmlDevice_t device = device_of(slot);
    nvmlMemory_t memory;
    if (!device || !real_nvml.nvmlDeviceGetMemoryInfo || real_nvml.nvmlDeviceGetMemoryInfo(device, &memory))
        return -1;
    return (int64_t)memory.used;
}
