/* The simulated NVML's performance counters (GPM): how busy the GPU's SMs, tensor cores and memory were between two samples.
 *
 * The simulation knows for how long a kernel ran, and not what it did: the parts below are a training job's, and differ
 * from GPU to GPU.
 */
#include "nvidia_ml.h"

#include "node.h"

#include <stdlib.h>

struct sim_gpm_sample {
    uint64_t wall_ns, busy_ns;
    unsigned kind; /* of work, by the GPU */
};

static int is_without(nvmlDevice_t device)
{
    return __atomic_load_n(&device->faults.no_gpm, __ATOMIC_ACQUIRE) != 0;
}

nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *support)
{
    if (support->version != 1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    support->supported = !is_without(device);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *sample)
{
    *sample = calloc(1, sizeof **sample);
    return *sample ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t sample)
{
    free(sample);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t sample)
{
    if (__atomic_load_n(&device->faults.lost, __ATOMIC_ACQUIRE))
        return NVML_ERROR_GPU_IS_LOST;
    if (is_without(device))
        return NVML_ERROR_NOT_SUPPORTED;
    sim_lock(device);
    *sample = (struct sim_gpm_sample){device->advanced_ns, device->busy_ns, device->uuid[15] % 5u};
    sim_unlock(device);
    return NVML_SUCCESS;
}

static nvmlReturn_t measure(const struct sim_gpm_sample *first, const struct sim_gpm_sample *second,
                            nvmlGpmMetric_t *metric)
{
    double wall = (double)(second->wall_ns - first->wall_ns);
    double sm = 94.0 * (double)(second->busy_ns - first->busy_ns) / wall;
    switch (metric->id) {
    case NVML_GPM_SM_UTIL:
        metric->value = sm;
        return NVML_SUCCESS;
    case NVML_GPM_ANY_TENSOR_UTIL:
        metric->value = sm * (0.2 + 0.1 * second->kind);
        return NVML_SUCCESS;
    case NVML_GPM_DRAM_BW_UTIL:
        metric->value = sm * (0.7 - 0.1 * second->kind);
        return NVML_SUCCESS;
    default:
        return NVML_ERROR_NOT_SUPPORTED;
    }
}

nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *metrics)
{
    const struct sim_gpm_sample *first = metrics->first, *second = metrics->second;
    if (metrics->version != 1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (!first || !second || second->wall_ns <= first->wall_ns || second->busy_ns < first->busy_ns)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned i = 0; i < metrics->count; i++)
        metrics->metric[i].result = measure(first, second, &metrics->metric[i]);
    return NVML_SUCCESS;
}
