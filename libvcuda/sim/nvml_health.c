/* The simulated NVML's readings of what is wrong: XID errors, ECC, remapped rows, slowdowns; see `simnode fault`. */
#include "nvidia_ml.h"

#include "node.h"

#include <stdlib.h>
#include <time.h>

#define POLL_NS 5000000l

/* Which GPUs' errors are waited for, and how many of each were told. As in a real one, those of before are not. */
struct sim_event_set {
    unsigned gpus;
    struct {
        nvmlDevice_t device;
        uint32_t told;
    } gpu[SIM_MAX_GPUS];
};

static uint32_t load(const uint32_t *value)
{
    return __atomic_load_n(value, __ATOMIC_ACQUIRE);
}

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
    *set = calloc(1, sizeof **set);
    return *set ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    free(set);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types)
{
    *types = NVML_EVENT_XID;
    return load(&device->faults.lost) ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
    if (load(&device->faults.lost))
        return NVML_ERROR_GPU_IS_LOST;
    if (types != NVML_EVENT_XID || set->gpus == SIM_MAX_GPUS)
        return NVML_ERROR_NOT_SUPPORTED;
    set->gpu[set->gpus].device = device;
    set->gpu[set->gpus++].told = load(&device->faults.xids);
    return NVML_SUCCESS;
}

static int next_event(nvmlEventSet_t set, nvmlEventData_t *data)
{
    for (unsigned i = 0; i < set->gpus; i++) {
        nvmlDevice_t device = set->gpu[i].device;
        if (set->gpu[i].told == load(&device->faults.xids))
            continue;
        uint32_t number = device->faults.xid[set->gpu[i].told++ % SIM_XIDS];
        *data = (nvmlEventData_t){device, NVML_EVENT_XID, number, 0xffffffffu, 0xffffffffu};
        return 1;
    }
    return 0;
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned timeout_ms)
{
    uint64_t end = sim_now() + timeout_ms * 1000000ull;
    while (!next_event(set, data)) {
        if (sim_now() >= end)
            return NVML_ERROR_TIMEOUT;
        struct timespec pause = {0, POLL_NS};
        nanosleep(&pause, NULL);
    }
    return NVML_SUCCESS;
}

/* `kind` 1: errors that ECC could not correct; 0: those that it did. */
nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned kind, unsigned counter,
                                         unsigned long long *errors)
{
    (void)counter;
    if (load(&device->faults.no_ecc))
        return NVML_ERROR_NOT_SUPPORTED;
    *errors = __atomic_load_n(kind == 1 ? &device->faults.ecc : &device->faults.ecc_corrected, __ATOMIC_ACQUIRE);
    return load(&device->faults.lost) ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned *corrected, unsigned *uncorrected,
                                       unsigned *pending, unsigned *failed)
{
    *corrected = *uncorrected = 0;
    *pending = load(&device->faults.remap_pending);
    *failed = load(&device->faults.remap_failed);
    return load(&device->faults.lost) ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, unsigned *pending)
{
    *pending = load(&device->faults.pages_pending);
    return load(&device->faults.lost) ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons)
{
    *reasons = load(&device->faults.slowdown);
    return load(&device->faults.lost) ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}
