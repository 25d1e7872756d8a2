/* The simulated NVML's readings of a GPU: memory, utilisation, power, temperature. */
#include "nvidia_ml.h"

#include "mig.h"

/* A GPU in MIG mode has what its instances use. */
static uint64_t used_of(nvmlDevice_t device)
{
    struct sim_node *node = sim_node_open(NULL);
    uint64_t used = 0;
    for (struct sim_gpu *g = device; g;
         g = device->mig.mode ? sim_mig_next(node, device, g == device ? NULL : g) : NULL) {
        sim_lock(g);
        sim_clear_dead_everywhere(g);
        used += sim_memory_used(g);
        sim_unlock(g);
    }
    return used;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    if (!device || !memory)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (__atomic_load_n(&device->faults.lost, __ATOMIC_ACQUIRE))
        return NVML_ERROR_GPU_IS_LOST;
    uint64_t used = used_of(device);
    /* As on a real card, the first version counts what the card keeps for itself as used. */
    *memory = (nvmlMemory_t){device->memory_bytes + device->reserved_bytes, device->memory_bytes - used,
                             device->reserved_bytes + used};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    nvmlMemory_t plain;
    nvmlReturn_t result = nvmlDeviceGetMemoryInfo(device, &plain);
    if (result)
        return result;
    if (memory->version != (sizeof *memory | 2u << 24))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    memory->total = plain.total;
    memory->reserved = device->reserved_bytes;
    memory->free = plain.free;
    memory->used = plain.used - device->reserved_bytes;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates)
{
    if (__atomic_load_n(&device->faults.lost, __ATOMIC_ACQUIRE))
        return NVML_ERROR_GPU_IS_LOST;
    if (device->mig.mode || sim_is_instance(sim_node_open(NULL), device))
        return NVML_ERROR_NOT_SUPPORTED;
    sim_lock(device);
    rates->gpu = sim_utilisation(device, -1);
    rates->memory = rates->gpu / 2;
    sim_unlock(device);
    return NVML_SUCCESS;
}

/* Between 60 W idle and 300 W, and 30 to 81 degrees, by how busy the GPU is and by its place in the airflow. */
nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned *milliwatts)
{
    if (__atomic_load_n(&device->faults.lost, __ATOMIC_ACQUIRE))
        return NVML_ERROR_GPU_IS_LOST;
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
    if (__atomic_load_n(&device->faults.lost, __ATOMIC_ACQUIRE))
        return NVML_ERROR_GPU_IS_LOST;
    sim_lock(device);
    *celsius = 30 + device->uuid[15] % 12u + sim_utilisation(device, -1) * 2 / 5;
    sim_unlock(device);
    return NVML_SUCCESS;
}
