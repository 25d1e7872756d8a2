/* The simulated NVML's readings: memory, utilisation, processes, power, temperature. */
#include "nvidia_ml.h"

#include "node.h"
#include "pages.h"

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    if (!device || !memory)
        return NVML_ERROR_INVALID_ARGUMENT;
    sim_lock(device);
    sim_clear_dead(device);
    uint64_t used = sim_memory_used(device);
    sim_unlock(device);
    *memory = (nvmlMemory_t){device->memory_bytes, device->memory_bytes - used, used};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    nvmlMemory_t plain;
    nvmlReturn_t result = nvmlDeviceGetMemoryInfo(device, &plain);
    if (result)
        return result;
    memory->total = plain.total;
    memory->reserved = 0;
    memory->free = plain.free;
    memory->used = plain.used;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates)
{
    sim_lock(device);
    rates->gpu = sim_utilisation(device, -1);
    rates->memory = rates->gpu / 2;
    sim_unlock(device);
    return NVML_SUCCESS;
}

/* What the driver has taken for a process, in the granules in which it takes it. */
static uint64_t granules(uint64_t bytes)
{
    return (bytes + SIM_GRANULE - 1) / SIM_GRANULE * SIM_GRANULE;
}

/* A process of another pid namespace has no number here, and is not shown. */
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *infos)
{
    unsigned found = 0, room = infos ? *count : 0;
    uint64_t pidns = pages_pidns();
    sim_lock(device);
    sim_clear_dead(device);
    for (int i = 0; i < SIM_MAX_CLIENTS; i++) {
        const struct sim_client *c = &device->client[i];
        if (!c->pid || c->pidns != pidns || !c->memory_bytes)
            continue;
        if (found < room)
            infos[found] = (nvmlProcessInfo_t){c->pid, granules(c->memory_bytes), 0xffffffffu, 0xffffffffu};
        found++;
    }
    sim_unlock(device);
    *count = found;
    return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *infos)
{
    (void)device, (void)infos;
    *count = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessSample_t *samples, unsigned *count,
                                             unsigned long long since_us)
{
    unsigned found = 0, room = samples ? *count : 0;
    uint64_t pidns = pages_pidns();
    sim_lock(device);
    unsigned long long told_us = device->told_ns / 1000;
    for (int i = 0; i < SIM_MAX_CLIENTS; i++) {
        const struct sim_client *c = &device->client[i];
        if (!c->pid || c->pidns != pidns || told_us <= since_us)
            continue;
        if (found < room)
            samples[found] = (nvmlProcessSample_t){.pid = c->pid, .time_us = told_us, .sm = c->told_percent};
        found++;
    }
    sim_unlock(device);
    *count = found;
    if (!found)
        return NVML_ERROR_NOT_FOUND;
    return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

/* Between 60 W idle and 300 W, and 35 to 75 degrees, by how busy the GPU is. */
nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned *milliwatts)
{
    sim_lock(device);
    *milliwatts = 60000 + 2400 * sim_utilisation(device, -1);
    sim_unlock(device);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned *milliwatts)
{
    (void)device;
    *milliwatts = 300000;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned sensor, unsigned *celsius)
{
    (void)sensor;
    sim_lock(device);
    *celsius = 35 + sim_utilisation(device, -1) * 2 / 5;
    sim_unlock(device);
    return NVML_SUCCESS;
}
