/* The simulated NVML's readings of processes, in every version of its functions. */
#include "nvidia_ml.h"

#include "mig.h"

#include <string.h>

/* Return a size rounded up to whole granules, in which the driver takes memory for a process. */
static uint64_t granules(uint64_t bytes)
{
    return (bytes + SIM_GRANULE - 1) / SIM_GRANULE * SIM_GRANULE;
}

static int is_client_of_mps(uint32_t pid)
{
    struct sim_node *node = sim_node_open(NULL);
    const struct sim_process *process = node ? sim_process_find(node, pid) : NULL;
    return process && process->mps;
}

/* Where entries go: `size` bytes each; all versions begin with pid and memory. */
struct entries {
    void *infos;
    size_t size;
    unsigned room, found;
};

/* Add the processes on one device. A process of another pid namespace has no number here, and is not shown, unless this one
 * is around it. */
static void list_one(struct sim_gpu *device, int is_instance, int of_mps, struct entries *to)
{
    unsigned none = 0xffffffffu;
    sim_lock(device);
    sim_clear_dead_everywhere(device);
    for (int i = 0; i < SIM_MAX_CLIENTS; i++) {
        const struct sim_client *c = &device->client[i];
        uint64_t bytes = c->pid ? granules(c->memory_bytes) + sim_share_bytes(device, c->pid, c->pidns) : 0;
        uint32_t pid = bytes ? sim_pid_here(c->pid, c->pidns, c->start_time) : 0;
        if (!pid || pid == SIM_PID_UNKNOWN || (of_mps && !is_client_of_mps(pid)))
            continue;
        nvmlProcessInfo_t info = {pid, bytes, is_instance ? device->mig.id : none, is_instance ? 0 : none};
        if (to->found < to->room)
            memcpy((char *)to->infos + to->found * to->size, &info, to->size < sizeof info ? to->size : sizeof info);
        to->found++;
    }
    sim_unlock(device);
}

/* A GPU in MIG mode shows the processes of all its instances. */
static nvmlReturn_t list(nvmlDevice_t device, unsigned *count, void *infos, size_t size, int of_mps)
{
    struct sim_node *node = sim_node_open(NULL);
    struct entries to = {infos, size, infos ? *count : 0, 0};
    if (__atomic_load_n(&device->faults.lost, __ATOMIC_ACQUIRE))
        return NVML_ERROR_GPU_IS_LOST;
    list_one(device, sim_is_instance(node, device), of_mps, &to);
    for (struct sim_gpu *g = NULL; device->mig.mode && (g = sim_mig_next(node, device, g));)
        list_one(g, 1, of_mps, &to);
    *count = to.found;
    return to.found > to.room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

/* Nothing here draws. A client of MPS is in the list of all that compute, too, as on an H100. */
#define LIST(name, type)                                                                                               \
    nvmlReturn_t name(nvmlDevice_t device, unsigned *count, type *infos)                                               \
    {                                                                                                                  \
        if (strncmp(#name, "nvmlDeviceGetGraphics", 21) != 0)                                                          \
            return list(device, count, infos, sizeof *infos, !strncmp(#name, "nvmlDeviceGetMPS", 16));                 \
        *count = 0;                                                                                                    \
        return NVML_SUCCESS;                                                                                           \
    }
NVML_PROCESS_LISTS(LIST)

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *details)
{
    if (details->version != NVML_FIRST_VERSION(nvmlProcessDetailList_t))
        return NVML_ERROR_INVALID_ARGUMENT;
    return list(device, &details->count, details->processes, sizeof *details->processes, 0);
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessSample_t *samples, unsigned *count,
                                             unsigned long long since_us)
{
    unsigned found = 0, room = samples ? *count : 0;
    if (__atomic_load_n(&device->faults.lost, __ATOMIC_ACQUIRE))
        return NVML_ERROR_GPU_IS_LOST;
    if (device->mig.mode || sim_is_instance(sim_node_open(NULL), device))
        return NVML_ERROR_NOT_SUPPORTED;
    sim_lock(device);
    unsigned long long told_us = device->told_ns / 1000;
    for (int i = 0; i < SIM_MAX_CLIENTS; i++) {
        const struct sim_client *c = &device->client[i];
        uint32_t pid = c->pid && told_us > since_us ? sim_pid_here(c->pid, c->pidns, c->start_time) : 0;
        if (!pid || pid == SIM_PID_UNKNOWN)
            continue;
        if (found < room)
            samples[found] = (nvmlProcessSample_t){.pid = pid, .time_us = told_us, .sm = c->told_percent};
        found++;
    }
    sim_unlock(device);
    *count = found;
    if (!found)
        return NVML_ERROR_NOT_FOUND;
    return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *info)
{
    nvmlProcessSample_t samples[SIM_MAX_CLIENTS];
    unsigned count = SIM_MAX_CLIENTS, room = info->processes ? info->count : 0;
    if (info->version != NVML_FIRST_VERSION(nvmlProcessesUtilizationInfo_t))
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = nvmlDeviceGetProcessUtilization(device, samples, &count, info->since_us);
    for (unsigned i = 0; !result && i < count && i < room; i++)
        info->processes[i] = (nvmlProcessUtilizationInfo_t){
            .time_us = samples[i].time_us, .pid = samples[i].pid, .sm = samples[i].sm, .memory = samples[i].memory};
    info->count = count;
    return result ? result : count > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}
