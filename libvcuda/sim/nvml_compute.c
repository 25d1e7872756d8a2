/* The simulated NVML's compute instances and MIG devices: a GPU instance has one compute instance, of all its slices, and is
 * a device from then on. Its number is 0. */
#include "nvidia_mig.h"

#include "mig.h"

static struct sim_node *node(void)
{
    return sim_node_open(NULL);
}

static struct sim_gpu *gpu_of(const void *instance)
{
    return (struct sim_gpu *)(uintptr_t)instance;
}

static void lock(void)
{
    sim_lock(&node()->gpu[0]);
}

static void unlock(void)
{
    sim_unlock(&node()->gpu[0]);
}

static int is_device(nvmlDevice_t device)
{
    return device && sim_is_instance(node(), device) && device->mig.in_use && device->mig.compute;
}

static nvmlReturn_t check_profile(const struct sim_gpu *gpu, unsigned profile_id)
{
    nvmlComputeInstanceProfileInfo_t info;
    return nvmlGpuInstanceGetComputeInstanceProfileInfo((nvmlGpuInstance_t)(uintptr_t)gpu, profile_id, 0, &info);
}

nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t instance, unsigned profile_id,
                                                  nvmlComputeInstance_t *made)
{
    struct sim_gpu *gpu = gpu_of(instance);
    nvmlReturn_t result = check_profile(gpu, profile_id);
    if (result)
        return result;
    lock();
    result = gpu->mig.compute ? NVML_ERROR_INSUFFICIENT_RESOURCES : NVML_SUCCESS;
    gpu->mig.compute = 1;
    unlock();
    *made = (nvmlComputeInstance_t)gpu;
    return result;
}

nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t compute)
{
    struct sim_gpu *gpu = gpu_of(compute);
    if (!is_device(gpu))
        return NVML_ERROR_INVALID_ARGUMENT;
    lock();
    /* Its own mutex only after the first GPU's. */
    nvmlReturn_t result = sim_mig_is_busy(gpu) ? NVML_ERROR_IN_USE : NVML_SUCCESS;
    if (!result)
        gpu->mig.compute = 0;
    unlock();
    return result;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t instance, unsigned profile_id,
                                                nvmlComputeInstance_t *found, unsigned *count)
{
    struct sim_gpu *gpu = gpu_of(instance);
    nvmlReturn_t result = check_profile(gpu, profile_id);
    /* One of another size has none. */
    *count = !result && gpu->mig.compute;
    if (*count)
        found[0] = (nvmlComputeInstance_t)gpu;
    return result == NVML_ERROR_NOT_SUPPORTED ? NVML_SUCCESS : result;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t instance, unsigned id,
                                                   nvmlComputeInstance_t *compute)
{
    struct sim_gpu *gpu = gpu_of(instance);
    if (!gpu || !gpu->mig.in_use)
        return NVML_ERROR_INVALID_ARGUMENT;
    *compute = (nvmlComputeInstance_t)gpu;
    return gpu->mig.compute && id == 0 ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t compute, nvmlComputeInstanceInfo_t *info)
{
    struct sim_gpu *gpu = gpu_of(compute);
    const struct sim_mig_profile *profile = is_device(gpu) ? sim_mig_profile_of(gpu) : NULL;
    if (!profile)
        return NVML_ERROR_INVALID_ARGUMENT;
    *info = (nvmlComputeInstanceInfo_t){.device = sim_mig_parent(node(), gpu),
                                        .gpu_instance = (nvmlGpuInstance_t)gpu,
                                        .placement = {0, profile->compute}};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned *count)
{
    *count = device->mig.mode ? SIM_MIG_MOST : 0;
    return NVML_SUCCESS;
}

/* Indices are from 0 to the most less one; some have no device. */
nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index, nvmlDevice_t *mig)
{
    unsigned seen = 0;
    if (!device->mig.mode || index >= SIM_MIG_MOST)
        return NVML_ERROR_INVALID_ARGUMENT;
    *mig = NULL;
    lock();
    for (struct sim_gpu *g = NULL; (g = sim_mig_next(node(), device, g));)
        if (g->mig.compute && seen++ == index)
            *mig = g;
    unlock();
    return *mig ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *device)
{
    if (!is_device(mig))
        return NVML_ERROR_INVALID_ARGUMENT;
    *device = sim_mig_parent(node(), mig);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t mig, unsigned *id)
{
    if (!is_device(mig))
        return NVML_ERROR_INVALID_ARGUMENT;
    *id = mig->mig.id;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t mig, unsigned *id)
{
    *id = 0;
    return is_device(mig) ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}
