/* The claim's slots of the driver's devices and contexts. */
#include "devices.h"

#include "real.h"

#include <string.h>

#define MAX_DEVICES 64

static int8_t device_slot[MAX_DEVICES]; /* slot + 1; 0: not looked up */

int shim_uuid_of_device(CUdevice device, uint8_t uuid[16])
{
    CUuuid found;
    CUresult result = CUDA_ERROR_NOT_FOUND;
    /* The second version returns the MIG instance's UUID if the device is one. */
    if (real.cuDeviceGetUuid_v2)
        result = real.cuDeviceGetUuid_v2(&found, device);
    else if (real.cuDeviceGetUuid)
        result = real.cuDeviceGetUuid(&found, device);
    if (!result)
        memcpy(uuid, found.bytes, 16);
    return !result;
}

int shim_slot_of_device(CUdevice device)
{
    if (device < 0 || device >= MAX_DEVICES)
        return -1;
    int known = __atomic_load_n(&device_slot[device], __ATOMIC_RELAXED);
    if (known)
        return known - 1;
    uint8_t uuid[16];
    int named = shim_uuid_of_device(device, uuid);
    for (uint32_t i = 0; named && i < VCUDA_MAX_GPUS; i++) {
        struct vcuda_limit limit;
        if (vcuda_limits_get(shim.limits, i, &limit) == 0 && limit.state != VCUDA_SLOT_UNUSED &&
            memcmp(limit.gpu_uuid, uuid, 16) == 0) {
            __atomic_store_n(&device_slot[device], (int8_t)(i + 1), __ATOMIC_RELAXED);
            return (int)i;
        }
    }
    return -1;
}

int shim_slot_of_current(CUcontext *context)
{
    static _Thread_local struct {
        CUcontext context;
        unsigned epoch;
        int slot;
    } last;
    CUcontext current = NULL;
    if (real.cuCtxGetCurrent(&current) || !current)
        return -2;
    if (context)
        *context = current;
    unsigned epoch = __atomic_load_n(&shim.context_epoch, __ATOMIC_RELAXED);
    if (last.context == current && last.epoch == epoch)
        return last.slot;
    CUdevice device;
    if (real.cuCtxGetDevice(&device))
        return -2;
    int slot = shim_slot_of_device(device);
    if (slot >= 0) {
        last.context = current;
        last.epoch = epoch;
        last.slot = slot;
    }
    return slot;
}

int devices_use_mps(void)
{
    int enabled = 1;
    /* An older driver does not know the question. */
    if (real.cuDeviceGetAttribute && real.cuDeviceGetAttribute(&enabled, CU_ATTRIBUTE_MPS_ENABLED, 0))
        return 1;
    return enabled;
}

void devices_forget(void)
{
    memset(device_slot, 0, sizeof device_slot);
}
