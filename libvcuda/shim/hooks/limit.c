/* cuCtxSetLimit: a larger stack, heap or print buffer is device memory that no allocation call shows. A stack of 64 KiB
 * a thread takes 17 GiB of an H200. */
#include "account.h"

static uint64_t attribute(int which, CUdevice device)
{
    int value = 0;
    return !real.cuDeviceGetAttribute || real.cuDeviceGetAttribute(&value, which, device) || value < 0
               ? 0
               : (uint64_t)value;
}

/* Return the most that the context may grow by: the stack exists once for every thread that the GPU can hold at a
 * time. */
static uint64_t estimate_growth(int limit, size_t value)
{
    size_t before = 0;
    CUdevice device;
    if (!real.cuCtxGetLimit || real.cuCtxGetLimit(&before, limit) || value <= before || real.cuCtxGetDevice(&device))
        return 0;
    if (limit != CU_LIMIT_STACK_SIZE)
        return value - before;
    return (value - before) * attribute(CU_ATTRIBUTE_MULTIPROCESSORS, device) *
           attribute(CU_ATTRIBUTE_THREADS_PER_MULTIPROCESSOR, device);
}

CUresult cuCtxSetLimit(int limit, size_t value)
{
    NEED_REAL(cuCtxSetLimit);
    int slot = -1;
    uint64_t grown = 0;
    if (shim_mode() == SHIM_ACTIVE && !account_by_kernel() && limit >= CU_LIMIT_STACK_SIZE &&
        limit <= CU_LIMIT_MALLOC_HEAP_SIZE)
        slot = shim_slot_of_current(NULL);
    if (slot >= 0)
        grown = estimate_growth(limit, value);
    if (!grown)
        return real.cuCtxSetLimit(limit, value);
    CUresult result = account_reserve(slot, grown);
    if (result)
        return result;
    result = real.cuCtxSetLimit(limit, value);
    /* From here on NVML's figure is better than the estimate. */
    account_refund(slot, grown);
    if (!result)
        account_true_up();
    return result;
}
