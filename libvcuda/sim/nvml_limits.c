/* The simulated NVML's limits of control groups, from driver r615 on: see `simnode driver`.
 *
 * Where GPUCLOUD_SIM_DMEM is set it is as on a kernel with the dmem controller: a group without its files has no limit of its
 * own. Else it is as on one without it, where the driver keeps account by itself. The soft limit is kept and told, no more:
 * what it does is MPS's.
 */
#include "nvidia_ml.h"

#include "node.h"

#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FIRST_DRIVER 615

/* The group's inode; 0: the path cannot be opened. */
static uint64_t inode_of(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode) ? st.st_ino : 0;
}

static nvmlReturn_t check(nvmlDevice_t device, const char *path)
{
    char version[32];
    nvmlReturn_t result = nvmlSystemGetDriverVersion(version, sizeof version);
    if (result)
        return result;
    /* The libraries of older drivers lack the entry. */
    if (atoi(version) < FIRST_DRIVER)
        return NVML_ERROR_FUNCTION_NOT_FOUND;
    if (!device || !path)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (sim_is_mig() || device->mig.mode || device->mig.in_use)
        return NVML_ERROR_NOT_SUPPORTED;
    return inode_of(path) ? NVML_SUCCESS : NVML_ERROR_OPERATING_SYSTEM;
}

static int has_files(const char *path)
{
    char file[PATH_MAX];
    snprintf(file, sizeof file, "%s/dmem.max", path);
    return access(file, F_OK) == 0;
}

/* As the real one: the sentinel is no size, and no other may be more than the GPU has. */
static int is_size(nvmlDevice_t device, unsigned long long bytes)
{
    return bytes == NVML_DEVICE_MEMORY_LIMIT_MAX || bytes <= device->memory_bytes + device->reserved_bytes;
}

nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, nvmlSetMemoryLimits_v1_t *limits)
{
    nvmlReturn_t result = check(device, limits ? limits->name_space : NULL);
    if (result)
        return result;
    if (geteuid() != 0)
        return NVML_ERROR_NO_PERMISSION;
    if (limits->soft > limits->hard || !is_size(device, limits->soft) || !is_size(device, limits->hard))
        return NVML_ERROR_INVALID_ARGUMENT;
    if (getenv("GPUCLOUD_SIM_DMEM") && !has_files(limits->name_space))
        return NVML_ERROR_NOT_FOUND;
    sim_lock(device);
    sim_clear_dead_everywhere(device);
    struct sim_limit *limit = sim_limit_of(device, inode_of(limits->name_space), limits->name_space);
    /* The kernel's counters take no maximum below what is in use, and say nothing (page_counter_set_max). */
    if (limit && sim_group_used(device, limit->group) <= limits->hard)
        limit->hard_bytes = limits->hard;
    if (limit)
        limit->soft_bytes = limits->soft;
    sim_unlock(device);
    return limit ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

/* The group's own limit, or that of the nearest group above it. Locked. */
static const struct sim_limit *nearest(nvmlDevice_t device, const char *path)
{
    char at[PATH_MAX];
    snprintf(at, sizeof at, "%s", path);
    for (char *above = at; strcmp(above, "/") && strcmp(above, "."); above = dirname(above)) {
        const struct sim_limit *limit = sim_limit_of(device, inode_of(above), NULL);
        if (limit)
            return limit;
    }
    return NULL;
}

nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, nvmlGetMemoryLimits_v1_t *limits)
{
    nvmlReturn_t result = check(device, limits ? limits->name_space : NULL);
    if (result)
        return result;
    sim_lock(device);
    sim_clear_dead_everywhere(device);
    const struct sim_limit *limit = nearest(device, limits->name_space);
    if (limit) {
        limits->soft = limit->soft_bytes;
        limits->hard = limit->hard_bytes;
        limits->used = sim_group_used(device, limit->group);
    }
    sim_unlock(device);
    return limit ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}
