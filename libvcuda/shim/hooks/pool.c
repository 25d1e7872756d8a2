/* Stream-ordered allocations: a pool is charged for the memory that it has reserved from the GPU, whether allocated or
 * not.
 *
 * Before an allocation, the most that the pool may grow by is reserved; afterwards the pool's present reservation is
 * read and the charge becomes exactly that. No stream is synchronised. Frees return memory to the pool, so they need no
 * hook: memory that the pool gives back to the GPU is seen at the next look. */
#include "meter.h"
#include "pools.h"

static int current_pool(CUmemoryPool *pool)
{
    CUdevice device;
    return real.cuDeviceGetMemPool && !real.cuCtxGetDevice(&device) && !real.cuDeviceGetMemPool(pool, device);
}

/* After the driver's call: make the charge exact; if the pool grew past the limit after all, free the block. */
static CUresult finish(struct known_pool *p, uint64_t reserved, CUresult result, CUdeviceptr *pointer, CUstream stream,
                       int per_thread)
{
    if (pools_settle_one(p, reserved) && !result && account_over(p->slot)) {
        per_thread ? real.cuMemFreeAsync_ptsz(*pointer, stream) : real.cuMemFreeAsync(*pointer, stream);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    __atomic_fetch_add(&shim.memory_ended, 1, __ATOMIC_SEQ_CST);
    return result;
}

/* Refuse more pools than can be watched: a pool that is not watched would have no limit. */
static CUresult refuse(int slot)
{
    __atomic_fetch_add(&shim_usage(slot)->refused, 1, __ATOMIC_RELAXED);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Return 1: accounted, `*p` and `*reserved` are set; 0: pass through; else an error is in *result. */
static int begin(CUmemoryPool pool, uint64_t bytes, CUstream stream, int per_thread, struct known_pool **p,
                 uint64_t *reserved, CUresult *result)
{
    *result = CUDA_SUCCESS;
    if (shim_mode() != SHIM_ACTIVE)
        return 0;
    if (account_by_kernel())
        return (*result = account_pass()) ? -1 : 0;
    if (meter_capturing(stream, per_thread))
        return 0;
    int slot = shim_slot_of_current(NULL);
    if (slot == -2)
        return 0;
    *result = slot < 0 || !shim_attach() ? CUDA_ERROR_NOT_PERMITTED : CUDA_SUCCESS;
    if (!*result && !account_enter_calls(slot))
        return 0;
    int named = pool != NULL;
    if (*result || (!named && !current_pool(&pool)))
        return *result ? -1 : 0;
    *p = pools_find(pool);
    if (!*p)
        *p = pools_enter(pool, named ? pools_slot(pool, slot) : slot, 0);
    if (!*p)
        return *result = refuse(slot), -1;
    if ((*p)->slot == SLOT_NONE)
        return 0;
    if ((*p)->slot < 0)
        return *result = CUDA_ERROR_NOT_PERMITTED, -1;
    __atomic_fetch_add(&shim.memory_begun, 1, __ATOMIC_SEQ_CST);
    *result = pools_reserve(*p, bytes, reserved);
    if (*result)
        __atomic_fetch_add(&shim.memory_ended, 1, __ATOMIC_SEQ_CST);
    return *result ? -1 : 1;
}

#define ASYNC(name, per_thread, pool_or_null, params, call)                                                            \
    CUresult name params                                                                                               \
    {                                                                                                                  \
        NEED_REAL(name);                                                                                               \
        struct known_pool *p;                                                                                          \
        uint64_t reserved;                                                                                             \
        CUresult result;                                                                                               \
        int accounted = begin(pool_or_null, bytes, stream, per_thread, &p, &reserved, &result);                        \
        if (result)                                                                                                    \
            return result;                                                                                             \
        result = real.name call;                                                                                       \
        return accounted ? finish(p, reserved, result, pointer, stream, per_thread) : result;                          \
    }

ASYNC(cuMemAllocAsync, 0, NULL, (CUdeviceptr * pointer, size_t bytes, CUstream stream), (pointer, bytes, stream))
ASYNC(cuMemAllocAsync_ptsz, 1, NULL, (CUdeviceptr * pointer, size_t bytes, CUstream stream), (pointer, bytes, stream))
ASYNC(cuMemAllocFromPoolAsync, 0, pool, (CUdeviceptr * pointer, size_t bytes, CUmemoryPool pool, CUstream stream),
      (pointer, bytes, pool, stream))
ASYNC(cuMemAllocFromPoolAsync_ptsz, 1, pool, (CUdeviceptr * pointer, size_t bytes, CUmemoryPool pool, CUstream stream),
      (pointer, bytes, pool, stream))

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUpoolProps *props)
{
    NEED_REAL(cuMemPoolCreate);
    if (shim_mode() != SHIM_ACTIVE || !props)
        return real.cuMemPoolCreate(pool, props);
    /* Memory comes from the pool's GPU, whatever context is current at the allocation. */
    int slot = props->location.type == CU_LOCATION_DEVICE ? shim_slot_of_device(props->location.id) : SLOT_NONE;
    if (slot == -1)
        return CUDA_ERROR_NOT_PERMITTED;
    CUresult result = real.cuMemPoolCreate(pool, props);
    if (result || account_by_kernel() || pools_enter(*pool, slot, 0))
        return result;
    real.cuMemPoolDestroy(*pool);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
    NEED_REAL(cuMemPoolTrimTo);
    CUresult result = real.cuMemPoolTrimTo(pool, keep);
    if (shim_mode() != SHIM_ACTIVE || account_by_kernel())
        return result;
    pools_settle(pool);
    return result;
}

/* Forget the pool before the driver destroys it: it must not be queried afterwards, and another pool may get the same
 * handle. Its allocations live on until they are freed, which is not seen here: they become overhead, which NVML trues
 * up. */
CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    NEED_REAL(cuMemPoolDestroy);
    struct known_pool was = {0};
    if (shim_mode() != SHIM_ACTIVE)
        return real.cuMemPoolDestroy(pool);
    uint64_t living = 0;
    int known = pools_remove(pool, &was, &living);
    CUresult result = real.cuMemPoolDestroy(pool);
    /* Without an entry to return it to, the charge stays: charging too much is safe. */
    if (result && known)
        pools_enter(pool, was.slot, was.charged);
    else if (known && was.charged) {
        overhead_add(was.slot, living < was.charged ? living : was.charged);
        account_refund(was.slot, was.charged);
    }
    return result;
}
