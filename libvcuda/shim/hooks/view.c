/* Hooks of the memory queries: programs see the limit as the GPU's size, and the claim's use as the GPU's use. */
#include "account.h"
#include "pools.h"

/* Compute limit and use of a slot, clipped to the GPU's real size. Return 0 if no limit applies. */
static int compute_view(int slot, uint64_t real_total, uint64_t *total, uint64_t *used)
{
    struct vcuda_limit limit;
    if (slot < 0 || vcuda_limits_get(shim.limits, (uint32_t)slot, &limit) != 0 || limit.memory_bytes >= real_total)
        return 0;
    if (shim.self)
        pools_refresh(slot);
    *total = limit.memory_bytes;
    *used = account_used(slot);
    return 1;
}

static uint64_t compute_room(uint64_t total, uint64_t used)
{
    return used < total ? total - used : 0;
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    NEED_REAL(cuMemGetInfo_v2);
    size_t real_free, real_total;
    CUresult result = real.cuMemGetInfo_v2(&real_free, &real_total);
    if (result)
        return result;
    uint64_t limit, used, lent;
    int slot = shim_mode() == SHIM_ACTIVE ? shim_slot_of_current(NULL) : -1;
    /* What is lent comes back for what is promised; a claim that borrows may find nobody to give more. */
    lent = slot < 0 || __atomic_load_n(&shim.borrows, __ATOMIC_RELAXED) ? 0 : reclaim_lent(slot);
    if (compute_view(slot, real_total, &limit, &used)) {
        /* Other tenants may have left less than our own limit allows. */
        real_free += lent;
        if (compute_room(limit, used) < real_free)
            real_free = compute_room(limit, used);
        real_total = limit;
    }
    if (free_bytes)
        *free_bytes = real_free;
    if (total)
        *total = real_total;
    return CUDA_SUCCESS;
}

static unsigned clip(size_t bytes)
{
    return bytes > UINT32_MAX ? UINT32_MAX : (unsigned)bytes;
}

CUresult cuMemGetInfo(unsigned *free_bytes, unsigned *total)
{
    size_t f, t;
    CUresult result = cuMemGetInfo_v2(&f, &t);
    if (!result && free_bytes)
        *free_bytes = clip(f);
    if (!result && total)
        *total = clip(t);
    return result;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    NEED_REAL(cuDeviceTotalMem_v2);
    CUresult result = real.cuDeviceTotalMem_v2(bytes, device);
    struct vcuda_limit limit;
    int slot = !result && shim_mode() == SHIM_ACTIVE ? shim_slot_of_device(device) : -1;
    if (slot >= 0 && vcuda_limits_get(shim.limits, (uint32_t)slot, &limit) == 0 && limit.memory_bytes < *bytes)
        *bytes = limit.memory_bytes;
    return result;
}

CUresult cuDeviceTotalMem(unsigned *bytes, CUdevice device)
{
    size_t whole;
    CUresult result = cuDeviceTotalMem_v2(&whole, device);
    if (!result && bytes)
        *bytes = clip(whole);
    return result;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    NEED_NVML(nvmlDeviceGetMemoryInfo);
    nvmlReturn_t result = real_nvml.nvmlDeviceGetMemoryInfo(device, memory);
    uint64_t limit, used;
    if (!result && compute_view(nvml_slot_of(device), memory->total, &limit, &used))
        *memory = (nvmlMemory_t){limit, compute_room(limit, used), used};
    return result;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    NEED_NVML(nvmlDeviceGetMemoryInfo_v2);
    nvmlReturn_t result = real_nvml.nvmlDeviceGetMemoryInfo_v2(device, memory);
    uint64_t limit, used;
    if (!result && compute_view(nvml_slot_of(device), memory->total, &limit, &used)) {
        memory->total = limit;
        memory->reserved = 0;
        memory->free = compute_room(limit, used);
        memory->used = used;
    }
    return result;
}
