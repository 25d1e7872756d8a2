/* The simulated NVML: the same virtual node, seen from outside. */
#include "nvidia_mig.h"

#include "mig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static unsigned initialised;
static struct sim_node *node;

static int ready(void)
{
    return __atomic_load_n(&initialised, __ATOMIC_ACQUIRE) != 0;
}

nvmlReturn_t nvmlInit_v2(void)
{
    struct sim_node *found = sim_node_open(NULL);
    if (!found)
        return NVML_ERROR_DRIVER_NOT_LOADED;
    if (!ready())
        __atomic_store_n(&node, found, __ATOMIC_RELEASE);
    __atomic_fetch_add(&initialised, 1, __ATOMIC_RELEASE);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlInit(void)
{
    return nvmlInit_v2();
}

nvmlReturn_t nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    return nvmlInit_v2();
}

nvmlReturn_t nvmlShutdown(void)
{
    if (!ready())
        return NVML_ERROR_UNINITIALIZED;
    __atomic_fetch_sub(&initialised, 1, __ATOMIC_RELEASE);
    return NVML_SUCCESS;
}

const char *nvmlErrorString(nvmlReturn_t result)
{
    switch (result) {
    case NVML_SUCCESS:
        return "Success";
    case NVML_ERROR_UNINITIALIZED:
        return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT:
        return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED:
        return "Not Supported";
    case NVML_ERROR_NO_PERMISSION:
        return "Insufficient Permissions";
    case NVML_ERROR_NOT_FOUND:
        return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE:
        return "Insufficient Size";
    case NVML_ERROR_DRIVER_NOT_LOADED:
        return "Driver Not Loaded";
    case NVML_ERROR_TIMEOUT:
        return "Timeout";
    case NVML_ERROR_GPU_IS_LOST:
        return "GPU is lost";
    case NVML_ERROR_IN_USE:
        return "In use by another client";
    case NVML_ERROR_INSUFFICIENT_RESOURCES:
        return "Insufficient Resources";
    default:
        return "Unknown Error";
    }
}

static nvmlReturn_t give_text(char *to, unsigned length, const char *text)
{
    if (!ready())
        return NVML_ERROR_UNINITIALIZED;
    if (!to || strlen(text) >= length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(to, text);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *text, unsigned length)
{
    return give_text(text, length, ready() && node->driver[0] ? node->driver : "580.00.00-sim");
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *text, unsigned length)
{
    return give_text(text, length, "13.580.00.00-sim");
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    const char *asked = getenv("GPUCLOUD_SIM_CUDA_VERSION");
    *version = asked && atoi(asked) >= 10000 ? atoi(asked) : 13000;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    return nvmlSystemGetCudaDriverVersion_v2(version);
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count)
{
    if (!ready())
        return NVML_ERROR_UNINITIALIZED;
    *count = node->gpus;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount(unsigned *count)
{
    return nvmlDeviceGetCount_v2(count);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
    if (!ready())
        return NVML_ERROR_UNINITIALIZED;
    if (index >= node->gpus)
        return NVML_ERROR_INVALID_ARGUMENT;
    *device = &node->gpu[index];
    return node->gpu[index].faults.lost ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *device)
{
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    for (unsigned i = 0; ready() && i < SIM_MAX_GPUS; i++) {
        struct sim_gpu *gpu = &node->gpu[i];
        char text[48];
        sim_uuid_text(gpu, text);
        if ((i >= node->gpus && !gpu->mig.compute) || strcasecmp(text, uuid) != 0)
            continue;
        *device = gpu;
        return sim_mig_parent(node, gpu)->faults.lost ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
    }
    return ready() ? NVML_ERROR_NOT_FOUND : NVML_ERROR_UNINITIALIZED;
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index)
{
    *index = (unsigned)(sim_mig_parent(node, device) - node->gpu);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned *index)
{
    return nvmlDeviceGetIndex(device, index);
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *text, unsigned length)
{
    char uuid[48];
    sim_uuid_text(device, uuid);
    return give_text(text, length, uuid);
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *text, unsigned length)
{
    return give_text(text, length, device->name);
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *info)
{
    unsigned index;
    nvmlDeviceGetIndex(device, &index);
    *info = (nvmlPciInfo_t){.bus = 0x10 + index, .device_id = 0x233510de};
    snprintf(info->bus_id, sizeof info->bus_id, "00000000:%02X:00.0", info->bus & 0xffu);
    snprintf(info->bus_id_legacy, sizeof info->bus_id_legacy, "0000:%02X:00.0", info->bus & 0xffu);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    (void)device;
    *major = 8;
    *minor = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned link, unsigned *active)
{
    (void)device, (void)link, (void)active;
    return NVML_ERROR_NOT_SUPPORTED;
}

/* Pairs of GPUs share a switch (10), the rest a host bridge (30). */
nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t a, nvmlDevice_t b, int *level)
{
    *level = a == b ? 0 : (a - node->gpu) / 2 == (b - node->gpu) / 2 ? 10 : 30;
    return NVML_SUCCESS;
}
