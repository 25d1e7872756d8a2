/* Stream-ordered allocations: what counts is what a pool has reserved from the GPU, not what lies in it.
 *
 * Before an allocation, the most that the pool may grow by is reserved; afterwards the pool is asked for its present
 * reservation and the charge becomes exactly that. No stream is synchronised. Frees return memory to the pool, so they need
 * no hook: what the pool gives back to the GPU is seen at the next look.
 */
#include "shim.h"

#include "meter.h"

#include <pthread.h>

#define POOLS 256
/* A pool of host memory: nothing of it lies on a GPU. */
#define SLOT_NONE (-2)
#define BLOCK (32ull << 20)
#define GRANULE (2ull << 20)

/* An entry with a pool is in use. Entries change only under the mutex, and looks at pools that no allocation of the caller's
 * keeps alive are taken under it, so that a pool is never asked once it is being destroyed. */
static struct known_pool {
    CUmemoryPool pool;
    int slot;
    uint64_t charged;
} pools[POOLS];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static uint64_t round_up(uint64_t bytes, uint64_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

static struct known_pool *known(CUmemoryPool pool)
{
    for (int i = 0; pool && i < POOLS; i++)
        if (__atomic_load_n(&pools[i].pool, __ATOMIC_ACQUIRE) == pool)
            return &pools[i];
    return NULL;
}

/* Its entry, with `charged` more on it; a pool that has none gets one. NULL: all are taken. */
static struct known_pool *enter(CUmemoryPool pool, int slot, uint64_t charged)
{
    pthread_mutex_lock(&mutex);
    struct known_pool *p = known(pool);
    for (int i = 0; !p && i < POOLS; i++)
        if (!pools[i].pool) {
            p = &pools[i];
            p->slot = slot;
            p->charged = 0;
            __atomic_store_n(&p->pool, pool, __ATOMIC_RELEASE);
        }
    if (p)
        __atomic_fetch_add(&p->charged, charged, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&mutex);
    return p;
}

/* The GPU of a pool that was not made here: a device's own, else taken to be the current context's. */
static int slot_of_pool(CUmemoryPool pool, int current)
{
    CUmemoryPool own;
    for (CUdevice device = 0; real.cuDeviceGetDefaultMemPool && !real.cuDeviceGetDefaultMemPool(&own, device); device++)
        if (own == pool)
            return shim_slot_of_device(device);
    return current;
}

static uint64_t ask(CUmemoryPool pool, int attribute)
{
    uint64_t value = 0;
    return real.cuMemPoolGetAttribute(pool, attribute, &value) ? 0 : value;
}

/* Make the charge what the pool has reserved now; `reserved` was taken in advance and is given back. 1: it grew by more. */
static int settle(struct known_pool *p, uint64_t reserved)
{
    uint64_t now = 0;
    if (real.cuMemPoolGetAttribute(p->pool, CU_POOL_RESERVED_CURRENT, &now)) {
        /* Nobody knows (a lost GPU, say): what was taken in advance stays taken. */
        __atomic_fetch_add(&p->charged, reserved, __ATOMIC_SEQ_CST);
        return 0;
    }
    uint64_t before = __atomic_exchange_n(&p->charged, now, __ATOMIC_SEQ_CST);
    __atomic_fetch_add(&shim_usage(p->slot)->memory_bytes, now - before - reserved, __ATOMIC_SEQ_CST);
    return now > before + reserved;
}

void account_refresh_pools(int slot)
{
    if (account_by_kernel())
        return;
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < POOLS; i++)
        if (pools[i].pool && pools[i].slot == slot)
            settle(&pools[i], 0);
    pthread_mutex_unlock(&mutex);
}

void account_forget_pools(void)
{
    pthread_mutex_init(&mutex, NULL); /* a thread of the parent may have held it */
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

static int current_pool(CUmemoryPool *pool)
{
    CUdevice device;
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

/* More pools at once than can be watched: what is not watched would have no limit. */
static CUresult refuse(int slot)
{
    __atomic_fetch_add(&shim_usage(slot)->refused, 1, __ATOMIC_RELAXED);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* 1: accounted, `*p` and `*reserved` are set; 0: pass through; else an error in *result. */
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
    *p = known(pool);
    if (!*p)
        *p = enter(pool, named ? slot_of_pool(pool, slot) : slot, 0);
    if (!*p)
        return *result = refuse(slot), -1;
    if ((*p)->slot == SLOT_NONE)
        return 0;
    if ((*p)->slot < 0)
        return *result = CUDA_ERROR_NOT_PERMITTED, -1;
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

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUpoolProps *props)
{
    NEED_REAL(cuMemPoolCreate);
    if (shim_mode() != SHIM_ACTIVE || !props)
        return real.cuMemPoolCreate(pool, props);
    /* Memory comes from the GPU that the pool lies on, whatever context is current when it is taken. */
    int slot = props->location.type == CU_LOCATION_DEVICE ? shim_slot_of_device(props->location.id) : SLOT_NONE;
    if (slot == -1)
        return CUDA_ERROR_NOT_PERMITTED;
    CUresult result = real.cuMemPoolCreate(pool, props);
    if (result || account_by_kernel() || enter(*pool, slot, 0))
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
    pthread_mutex_lock(&mutex);
    struct known_pool *p = known(pool);
    if (p && p->slot >= 0 && shim.self)
        settle(p, 0);
    pthread_mutex_unlock(&mutex);
    return result;
}

/* Forget the pool before the driver destroys it: nobody may ask about it then, and another may get the same handle. What is
 * allocated from it lives on until it is freed, which is not seen here: it becomes overhead, which NVML trues up. */
CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    NEED_REAL(cuMemPoolDestroy);
    struct known_pool was = {0};
    if (shim_mode() != SHIM_ACTIVE)
        return real.cuMemPoolDestroy(pool);
    uint64_t living = 0;
    pthread_mutex_lock(&mutex);
    struct known_pool *p = known(pool);
    if (p) {
        was = *p;
        /* A pool that cannot be asked may have lent all that it has. */
        if (was.charged && real.cuMemPoolGetAttribute(pool, CU_POOL_USED_CURRENT, &living))
            living = was.charged;
        __atomic_store_n(&p->pool, NULL, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&mutex);
    CUresult result = real.cuMemPoolDestroy(pool);
    /* Without an entry to put it back to, the charge stays: too much is safe. */
    if (result && p)
        enter(pool, was.slot, was.charged);
    else if (p && was.charged) {
        living = round_up(living, GRANULE);
        overhead_add(was.slot, living < was.charged ? living : was.charged);
        account_refund(was.slot, was.charged);
    }
    return result;
}
