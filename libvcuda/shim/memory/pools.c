/* Memory pools: each is charged for the memory that it has reserved from the GPU, whether allocated or not. */
#include "pools.h"

#include <pthread.h>

#define POOLS 256
#define BLOCK (32ull << 20)
#define GRANULE (2ull << 20)

/* An entry with a pool is in use. Entries change only under the mutex. Pools that no allocation of the caller keeps
 * alive are queried under it, so that a pool is never queried while it is being destroyed. */
static struct known_pool pools[POOLS];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static uint64_t round_up(uint64_t bytes, uint64_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

struct known_pool *pools_find(CUmemoryPool pool)
{
    for (int i = 0; pool && i < POOLS; i++)
        if (__atomic_load_n(&pools[i].pool, __ATOMIC_ACQUIRE) == pool)
            return &pools[i];
    return NULL;
}

/* Return the pool's entry, with `charged` added; a pool without one gets one. NULL: all are taken. */
struct known_pool *pools_enter(CUmemoryPool pool, int slot, uint64_t charged)
{
    pthread_mutex_lock(&mutex);
    struct known_pool *p = pools_find(pool);
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

/* Return the GPU of a pool that was not created here: a device's default pool has its device, any other is taken to be
 * on the current context's GPU. */
int pools_slot(CUmemoryPool pool, int current)
{
    CUmemoryPool own;
    for (CUdevice device = 0; real.cuDeviceGetDefaultMemPool && !real.cuDeviceGetDefaultMemPool(&own, device); device++)
        if (own == pool)
            return shim_slot_of_device(device);
    return current;
}

static uint64_t read_attribute(CUmemoryPool pool, int attribute)
{
    uint64_t value = 0;
    return real.cuMemPoolGetAttribute(pool, attribute, &value) ? 0 : value;
}

/* Set the charge to the pool's present reservation; `reserved` was taken in advance and is given back. Return 1 if it
 * grew by more. */
int pools_settle_one(struct known_pool *p, uint64_t reserved)
{
    uint64_t now = 0;
    if (real.cuMemPoolGetAttribute(p->pool, CU_POOL_RESERVED_CURRENT, &now)) {
        /* The reservation is unknown (a lost GPU, say): the amount taken in advance stays charged. */
        __atomic_fetch_add(&p->charged, reserved, __ATOMIC_SEQ_CST);
        return 0;
    }
    uint64_t before = __atomic_exchange_n(&p->charged, now, __ATOMIC_SEQ_CST);
    __atomic_fetch_add(&shim_usage(p->slot)->memory_bytes, now - before - reserved, __ATOMIC_SEQ_CST);
    return now > before + reserved;
}

void pools_refresh(int slot)
{
    if (account_by_kernel())
        return;
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < POOLS; i++)
        if (pools[i].pool && pools[i].slot == slot)
            pools_settle_one(&pools[i], 0);
    pthread_mutex_unlock(&mutex);
}

void pools_forget(void)
{
    pthread_mutex_init(&mutex, NULL); /* a thread of the parent may have held it */
    for (int i = 0; i < POOLS; i++)
        pools[i] = (struct known_pool){0};
}

/* Reserve the most that the pool may grow by: a whole block, nothing if the bytes fit into its memory, or just the
 * missing part. */
CUresult pools_reserve(struct known_pool *p, uint64_t bytes, uint64_t *reserved)
{
    uint64_t *refused = &shim_usage(p->slot)->refused;
    *reserved = round_up(bytes, BLOCK);
    CUresult result = account_reserve(p->slot, *reserved);
    if (result != CUDA_ERROR_OUT_OF_MEMORY)
        return result;
    uint64_t have = read_attribute(p->pool, CU_POOL_RESERVED_CURRENT),
             used = read_attribute(p->pool, CU_POOL_USED_CURRENT);
    uint64_t need = used + bytes > have ? round_up(used + bytes - have, GRANULE) : 0;
    *reserved = need;
    /* Room in the pool helps only within the limit: above it (it was lowered), no allocation is granted. */
    result = need ? account_reserve(p->slot, need) : account_over(p->slot) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
    /* The first refusal was only for caution: do not count it as the program's. */
    if (!result || need)
        __atomic_fetch_sub(refused, 1, __ATOMIC_RELAXED);
    return result;
}

void pools_settle(CUmemoryPool pool)
{
    pthread_mutex_lock(&mutex);
    struct known_pool *p = pools_find(pool);
    if (p && p->slot >= 0 && shim.self)
        pools_settle_one(p, 0);
    pthread_mutex_unlock(&mutex);
}

int pools_remove(CUmemoryPool pool, struct known_pool *was, uint64_t *living)
{
    pthread_mutex_lock(&mutex);
    struct known_pool *p = pools_find(pool);
    if (p) {
        *was = *p;
        /* A pool that cannot be queried may have handed out all its memory. */
        if (was->charged && real.cuMemPoolGetAttribute(pool, CU_POOL_USED_CURRENT, living))
            *living = was->charged;
        *living = round_up(*living, GRANULE);
        __atomic_store_n(&p->pool, NULL, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&mutex);
    return p != NULL;
}
