/* Stream-ordered allocations: what counts is what a pool has reserved from the GPU, not what lies in it.
 *
 * Before an allocation, the most that the pool may grow by is reserved; afterwards the pool is asked for its present
 * reservation and the charge becomes exactly that. No stream is synchronised. Frees return memory to the pool, so they need
 * no hook: what the pool gives back to the GPU is seen at the next look.
 */
#include "shim.h"

#include "meter.h"

#define POOLS 64
#define BLOCK (32ull << 20)
#define GRANULE (2ull << 20)

static struct known_pool {
    CUmemoryPool pool;
    int slot;
    uint64_t charged;
} pools[POOLS];

static uint64_t round_up(uint64_t bytes, uint64_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

static struct known_pool *find_pool(CUmemoryPool pool, int slot)
{
    for (int i = 0; i < POOLS; i++) {
        CUmemoryPool seen = __atomic_load_n(&pools[i].pool, __ATOMIC_ACQUIRE);
        if (seen == pool)
            return &pools[i];
        if (!seen && __atomic_compare_exchange_n(&pools[i].pool, &seen, pool, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
            pools[i].slot = slot;
            return &pools[i];
        }
        if (seen == pool)
            return &pools[i];
    }
    return NULL;
}

static uint64_t ask(CUmemoryPool pool, int attribute)
{
    uint64_t value = 0;
    return real.cuMemPoolGetAttribute(pool, attribute, &value) ? 0 : value;
}

/* Make the charge what the pool has reserved now; `reserved` was taken in advance and is given back. 1: it grew by more. */
static int settle(struct known_pool *p, uint64_t reserved)
{
    uint64_t now = ask(p->pool, CU_POOL_RESERVED_CURRENT);
    uint64_t before = __atomic_exchange_n(&p->charged, now, __ATOMIC_SEQ_CST);
    __atomic_fetch_add(&shim_usage(p->slot)->memory_bytes, now - before - reserved, __ATOMIC_SEQ_CST);
    return now > before + reserved;
}

void account_refresh_pools(int slot)
{
    for (int i = 0; i < POOLS && pools[i].pool; i++)
        if (pools[i].slot == slot)
            settle(&pools[i], 0);
}

void account_forget_pools(void)
{
    for (int i = 0; i < POOLS; i++)
        pools[i] = (struct known_pool){0};
}

/* The most the pool may grow by: a whole block, or nothing where the bytes fit into what it has, or just the missing. */
static CUresult reserve(struct known_pool *p, uint64_t bytes, uint64_t *reserved)
{
    uint64_t *refused = &shim_usage(p->slot)->refused;
    *reserved = round_up(bytes, BLOCK);
    CUresult result = account_reserve(p->slot, *reserved);
    if (result != CUDA_ERROR_OUT_OF_MEMORY)
        return result;
    uint64_t have = ask(p->pool, CU_POOL_RESERVED_CURRENT), used = ask(p->pool, CU_POOL_USED_CURRENT);
    uint64_t need = used + bytes > have ? round_up(used + bytes - have, GRANULE) : 0;
    *reserved = need;
    /* Room in the pool helps only within the limit: over it (it was lowered), nothing more is handed out. */
    result = need ? account_reserve(p->slot, need) : account_over(p->slot) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
    /* The first refusal was of our own caution: count what the program sees. */
    if (!result || need)
        __atomic_fetch_sub(refused, 1, __ATOMIC_RELAXED);
    return result;
}

static int current_pool(CUmemoryPool *pool, int slot)
{
    CUdevice device;
    (void)slot;
    return real.cuDeviceGetMemPool && !real.cuCtxGetDevice(&device) && !real.cuDeviceGetMemPool(pool, device);
}

/* After the driver's answer: exact charge; where the pool grew past the limit after all, take the block back. */
static CUresult finish(struct known_pool *p, uint64_t reserved, CUresult result, CUdeviceptr *pointer, CUstream stream,
                       int per_thread)
{
    if (settle(p, reserved) && !result && account_over(p->slot)) {
        per_thread ? real.cuMemFreeAsync_ptsz(*pointer, stream) : real.cuMemFreeAsync(*pointer, stream);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    __atomic_fetch_add(&shim.memory_ended, 1, __ATOMIC_SEQ_CST);
    return result;
}

/* 1: accounted, `*p` and `*reserved` are set; 0: pass through; else an error in *result. */
static int begin(CUmemoryPool pool, uint64_t bytes, CUstream stream, int per_thread, struct known_pool **p,
                 uint64_t *reserved, CUresult *result)
{
    *result = CUDA_SUCCESS;
    if (shim_mode() != SHIM_ACTIVE || meter_capturing(stream, per_thread))
        return 0;
    int slot = shim_slot_of_current(NULL);
    if (slot == -2)
        return 0;
    *result = slot < 0 || !shim_attach() ? CUDA_ERROR_NOT_PERMITTED : CUDA_SUCCESS;
    if (*result || (!pool && !current_pool(&pool, slot)))
        return *result ? -1 : 0;
    *p = find_pool(pool, slot);
    if (!*p)
        return 0;
    __atomic_fetch_add(&shim.memory_begun, 1, __ATOMIC_SEQ_CST);
    *result = reserve(*p, bytes, reserved);
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

static struct known_pool *known(CUmemoryPool pool)
{
    for (int i = 0; i < POOLS && pools[i].pool; i++)
        if (pools[i].pool == pool)
            return &pools[i];
    return NULL;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
    NEED_REAL(cuMemPoolTrimTo);
    CUresult result = real.cuMemPoolTrimTo(pool, keep);
    struct known_pool *p = shim_mode() == SHIM_ACTIVE ? known(pool) : NULL;
    if (p)
        settle(p, 0);
    return result;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    NEED_REAL(cuMemPoolDestroy);
    struct known_pool *p = shim_mode() == SHIM_ACTIVE ? known(pool) : NULL;
    CUresult result = real.cuMemPoolDestroy(pool);
    if (p && !result)
        account_refund(p->slot, __atomic_exchange_n(&p->charged, 0, __ATOMIC_SEQ_CST));
    if (p && !result)
        __atomic_store_n(&p->pool, (CUmemoryPool)(uintptr_t)-1, __ATOMIC_RELEASE); /* never a pool again */
    return result;
}
