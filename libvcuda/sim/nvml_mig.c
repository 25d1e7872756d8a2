/* The simulated NVML's calls for MIG (mig.h). */
#include "nvidia_mig.h"

#include "mig.h"

#include <stdio.h>
#include <string.h>

/* Numbers of profiles of compute instances: a GPU instance has one, of all its slices. */
static const unsigned compute_kinds[] = {[1] = NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE,
                                         [2] = NVML_COMPUTE_INSTANCE_PROFILE_2_SLICE,
                                         [3] = NVML_COMPUTE_INSTANCE_PROFILE_3_SLICE,
                                         [4] = NVML_COMPUTE_INSTANCE_PROFILE_4_SLICE,
                                         [7] = NVML_COMPUTE_INSTANCE_PROFILE_7_SLICE};

static struct sim_node *node(void)
{
    return sim_node_open(NULL);
}

static void lock(void)
{
    sim_lock(&node()->gpu[0]);
}

static void unlock(void)
{
    sim_unlock(&node()->gpu[0]);
}

static int is_physical(nvmlDevice_t device)
{
    return device && !sim_is_instance(node(), device);
}

static struct sim_gpu *gpu_of(const void *instance)
{
    return (struct sim_gpu *)(uintptr_t)instance;
}

/* As NVML does: profiles are known whatever the mode; instances need it. Whoever can write the node's file may make them. */
static nvmlReturn_t table_of(nvmlDevice_t device, const struct sim_mig_table **table)
{
    if (!is_physical(device))
        return NVML_ERROR_INVALID_ARGUMENT;
    *table = sim_mig_table_of(device->name);
    return *table ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

static nvmlReturn_t may_change(nvmlDevice_t device)
{
    if (!is_physical(device))
        return NVML_ERROR_INVALID_ARGUMENT;
    return device->mig.mode ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

static const struct sim_mig_profile *by_id(const struct sim_mig_table *table, unsigned id)
{
    for (int i = 0; i < SIM_MIG_PROFILES; i++)
        if (table->profile[i].id == id)
            return &table->profile[i];
    return NULL;
}

static nvmlReturn_t find_profile(nvmlDevice_t device, unsigned id, const struct sim_mig_profile **profile)
{
    const struct sim_mig_table *table;
    nvmlReturn_t result = table_of(device, &table);
    *profile = result ? NULL : by_id(table, id);
    return result ? result : *profile ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    if (!device || !current || !pending || sim_is_instance(node(), device))
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!sim_is_mig() && !sim_mig_table_of(device->name))
        return NVML_ERROR_NOT_SUPPORTED;
    *current = *pending = sim_is_mig() || device->mig.mode;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned *mig)
{
    *mig = sim_is_mig() || sim_is_instance(node(), device);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned profile,
                                                  nvmlGpuInstanceProfileInfo_v2_t *info)
{
    const struct sim_mig_table *table;
    nvmlReturn_t result = table_of(device, &table);
    if (result)
        return result;
    if (!info || profile >= NVML_GPU_INSTANCE_PROFILE_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (info->version != (sizeof *info | 2u << 24))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    for (int i = 0; i < SIM_MIG_PROFILES; i++) {
        const struct sim_mig_profile *p = &table->profile[i];
        if (p->kind != profile)
            continue;
        *info = (nvmlGpuInstanceProfileInfo_v2_t){.version = info->version,
                                                  .id = p->id,
                                                  .slices = p->compute,
                                                  .instances = p->most,
                                                  .multiprocessors = p->multiprocessors,
                                                  .copy_engines = p->engines,
                                                  .memory_mib = p->memory_mib};
        snprintf(info->name, sizeof info->name, "MIG %s", p->name);
        return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned profile,
                                                 nvmlGpuInstanceProfileInfo_t *info)
{
    nvmlGpuInstanceProfileInfo_v2_t named = {.version = sizeof named | 2u << 24};
    nvmlReturn_t result = nvmlDeviceGetGpuInstanceProfileInfoV(device, profile, &named);
    if (!result)
        *info = (nvmlGpuInstanceProfileInfo_t){.id = named.id,
                                               .slices = named.slices,
                                               .instances = named.instances,
                                               .multiprocessors = named.multiprocessors,
                                               .copy_engines = named.copy_engines,
                                               .memory_mib = named.memory_mib};
    return result;
}

nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned profile_id,
                                                           nvmlGpuInstancePlacement_t *placements, unsigned *count)
{
    const struct sim_mig_profile *profile;
    nvmlReturn_t result = find_profile(device, profile_id, &profile);
    unsigned found = 0, room = placements ? *count : SIM_MIG_SLICES;
    for (unsigned start = 0; !result && start < SIM_MIG_SLICES; start++)
        if (profile->starts >> start & 1) {
            if (placements && found < room)
                placements[found] = (nvmlGpuInstancePlacement_t){start, profile->size};
            found++;
        }
    if (!result)
        *count = found;
    return result ? result : found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements(nvmlDevice_t device, unsigned profile_id,
                                                        nvmlGpuInstancePlacement_t *placements, unsigned *count)
{
    return nvmlDeviceGetGpuInstancePossiblePlacements_v2(device, profile_id, placements, count);
}

nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device, unsigned profile_id, unsigned *count)
{
    const struct sim_mig_profile *profile;
    nvmlReturn_t result = find_profile(device, profile_id, &profile);
    if (result)
        return result;
    unsigned left = 0;
    lock();
    unsigned taken = sim_mig_occupied(node(), device);
    unlock();
    for (unsigned start = 0; start < SIM_MIG_SLICES; start++) {
        unsigned slices = ((1u << profile->size) - 1) << start;
        if (profile->starts >> start & 1 && !(taken & slices)) {
            taken |= slices;
            left++;
        }
    }
    *count = left;
    return NVML_SUCCESS;
}

static nvmlReturn_t make(nvmlDevice_t device, unsigned profile_id, unsigned starts, nvmlGpuInstance_t *made)
{
    const struct sim_mig_profile *profile;
    nvmlReturn_t result = may_change(device);
    if (!result)
        result = find_profile(device, profile_id, &profile);
    if (result)
        return result;
    if (!made || !(profile->starts & starts))
        return NVML_ERROR_INVALID_ARGUMENT;
    struct sim_gpu *instance = NULL;
    lock();
    for (unsigned start = 0; !instance && start < SIM_MIG_SLICES; start++)
        if (profile->starts & starts & 1u << start)
            instance = sim_mig_make(node(), device, profile, start);
    unlock();
    *made = (nvmlGpuInstance_t)instance;
    return instance ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_RESOURCES;
}

nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned profile_id, nvmlGpuInstance_t *made)
{
    return make(device, profile_id, ~0u, made);
}

nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned profile_id,
                                                      const nvmlGpuInstancePlacement_t *placement,
                                                      nvmlGpuInstance_t *made)
{
    const struct sim_mig_profile *profile;
    nvmlReturn_t result = find_profile(device, profile_id, &profile);
    if (!result && (!placement || placement->start >= SIM_MIG_SLICES || placement->size != profile->size))
        result = NVML_ERROR_INVALID_ARGUMENT;
    return result ? result : make(device, profile_id, 1u << placement->start, made);
}

nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t instance)
{
    struct sim_gpu *gpu = gpu_of(instance);
    if (!gpu || !gpu->mig.in_use)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = may_change(sim_mig_parent(node(), gpu));
    if (result)
        return result;
    lock();
    result = gpu->mig.compute ? NVML_ERROR_IN_USE : NVML_SUCCESS;
    if (!result)
        sim_mig_remove(gpu);
    unlock();
    return result;
}

nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned profile_id, nvmlGpuInstance_t *instances,
                                       unsigned *count)
{
    const struct sim_mig_profile *profile;
    nvmlReturn_t result = may_change(device);
    if (!result)
        result = find_profile(device, profile_id, &profile);
    if (result)
        return result;
    unsigned found = 0;
    lock();
    for (struct sim_gpu *g = NULL; (g = sim_mig_next(node(), device, g));)
        if (sim_mig_profile_of(g) == profile)
            instances[found++] = (nvmlGpuInstance_t)g;
    unlock();
    *count = found;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned id, nvmlGpuInstance_t *instance)
{
    nvmlReturn_t result = may_change(device);
    if (result)
        return result;
    *instance = NULL;
    lock();
    for (struct sim_gpu *g = NULL; (g = sim_mig_next(node(), device, g));)
        if (g->mig.id == id)
            *instance = (nvmlGpuInstance_t)g;
    unlock();
    return *instance ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t *info)
{
    struct sim_gpu *gpu = gpu_of(instance);
    const struct sim_mig_profile *profile = gpu && gpu->mig.in_use ? sim_mig_profile_of(gpu) : NULL;
    if (!profile || !info)
        return NVML_ERROR_INVALID_ARGUMENT;
    *info =
        (nvmlGpuInstanceInfo_t){sim_mig_parent(node(), gpu), gpu->mig.id, profile->id, {gpu->mig.start, gpu->mig.size}};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t instance, unsigned profile,
                                                           unsigned engines, nvmlComputeInstanceProfileInfo_v2_t *info)
{
    struct sim_gpu *gpu = gpu_of(instance);
    const struct sim_mig_profile *p = gpu && gpu->mig.in_use ? sim_mig_profile_of(gpu) : NULL;
    if (!p || !info || engines)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (info->version != (sizeof *info | 2u << 24))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (profile != compute_kinds[p->compute])
        return NVML_ERROR_NOT_SUPPORTED;
    *info = (nvmlComputeInstanceProfileInfo_v2_t){.version = info->version,
                                                  .id = profile,
                                                  .slices = p->compute,
                                                  .instances = 1,
                                                  .multiprocessors = p->multiprocessors};
    snprintf(info->name, sizeof info->name, "MIG %s", p->name);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t instance, unsigned profile,
                                                          unsigned engines, nvmlComputeInstanceProfileInfo_t *info)
{
    nvmlComputeInstanceProfileInfo_v2_t named = {.version = sizeof named | 2u << 24};
    nvmlReturn_t result = nvmlGpuInstanceGetComputeInstanceProfileInfoV(instance, profile, engines, &named);
    if (!result)
        *info = (nvmlComputeInstanceProfileInfo_t){.id = named.id,
                                                   .slices = named.slices,
                                                   .instances = named.instances,
                                                   .multiprocessors = named.multiprocessors};
    return result;
}
