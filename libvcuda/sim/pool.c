/* Stream-ordered allocations: a pool reserves device memory in blocks of 32 MiB and gives it back, above its release
 * threshold, when the program synchronises. */
#include "memory.h"

#include <stdlib.h>

/* Guards every pool's numbers; nothing is waited for under it but the GPU's mutex. */
static pthread_mutex_t pools_mutex = PTHREAD_MUTEX_INITIALIZER;

static uint64_t round_up(uint64_t bytes, uint64_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

static CUmemoryPool make_pool(struct sim_device *device)
{
    CUmemoryPool pool = calloc(1, sizeof *pool);
    if (pool)
        pool->device = device;
    return pool;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device)
{
    struct sim_device *d = sim_device(device);
    if (!d)
        return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&pools_mutex);
    if (!d->default_pool)
        d->default_pool = make_pool(d);
    *pool = d->default_pool;
    pthread_mutex_unlock(&pools_mutex);
    return *pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device)
{
    struct sim_device *d = sim_device(device);
    if (d && d->pool)
        return *pool = d->pool, CUDA_SUCCESS;
    return cuDeviceGetDefaultMemPool(pool, device);
}

CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
    struct sim_device *d = sim_device(device);
    if (!d)
        return CUDA_ERROR_INVALID_DEVICE;
    d->pool = pool;
    return CUDA_SUCCESS;
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUpoolProps *props)
{
    struct sim_device *d = props ? sim_device(props->location.id) : NULL;
    if (!d)
        return CUDA_ERROR_INVALID_VALUE;
    *pool = make_pool(d);
    return *pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static void trim(CUmemoryPool pool, uint64_t keep)
{
    uint64_t want = round_up(pool->used, SIM_POOL_BLOCK);
    if (want < keep)
        want = keep;
    if (pool->reserved > want) {
        sim_charge(pool->device, (int64_t)(want - pool->reserved));
        pool->reserved = want;
    }
}

static void trim_locked(CUmemoryPool pool, uint64_t keep)
{
    pthread_mutex_lock(&pools_mutex);
    trim(pool, keep);
    pthread_mutex_unlock(&pools_mutex);
}

CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    /* What is allocated from it stays until it is freed. */
    pool->destroyed = 1;
    trim_locked(pool, 0);
    return CUDA_SUCCESS;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
    trim_locked(pool, keep);
    return CUDA_SUCCESS;
}

/* Only the device's current and default pools: that is enough for the behaviour to be seen. */
void sim_trim_pools(struct sim_device *device)
{
    if (device->default_pool)
        trim_locked(device->default_pool, device->default_pool->threshold);
    if (device->pool && device->pool != device->default_pool)
        trim_locked(device->pool, device->pool->threshold);
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value)
{
    uint64_t *out = value;
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&pools_mutex);
    switch (attribute) {
    case CU_POOL_RELEASE_THRESHOLD:
        *out = pool->threshold;
        break;
    case CU_POOL_RESERVED_CURRENT:
        *out = pool->reserved;
        break;
    case CU_POOL_USED_CURRENT:
        *out = pool->used;
        break;
    default:
        result = CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_unlock(&pools_mutex);
    return result;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value)
{
    if (attribute != CU_POOL_RELEASE_THRESHOLD)
        return CUDA_ERROR_INVALID_VALUE;
    pool->threshold = *(uint64_t *)value;
    return CUDA_SUCCESS;
}

static CUresult reserve(CUmemoryPool pool, uint64_t used)
{
    if (used <= pool->reserved)
        return CUDA_SUCCESS;
    uint64_t want = round_up(used, SIM_POOL_BLOCK);
    CUresult result = sim_charge(pool->device, (int64_t)(want - pool->reserved));
    if (result) {
        want = round_up(used, SIM_GRANULE);
        result = sim_charge(pool->device, (int64_t)(want - pool->reserved));
    }
    if (!result)
        pool->reserved = want;
    return result;
}

/* Captured, an allocation is a node of the graph: its memory is taken when the graph is launched. */
static CUresult add_node(CUdeviceptr *pointer, size_t bytes, struct sim_stream *stream)
{
    struct sim_block block = {
        .pointer = sim_address(bytes), .device = stream->context->device, .bytes = bytes, .graph = 1};
    stream->graph->memory_bytes += round_up(bytes, SIM_POOL_BLOCK);
    sim_block_add(&block);
    *pointer = block.pointer;
    return CUDA_SUCCESS;
}

CUresult sim_charge_graph(struct sim_device *device, uint64_t bytes)
{
    if (bytes <= device->graph_bytes)
        return CUDA_SUCCESS;
    CUresult result = sim_charge(device, (int64_t)(bytes - device->graph_bytes));
    if (!result)
        device->graph_bytes = bytes;
    return result;
}

CUresult cuDeviceGraphMemTrim(CUdevice device)
{
    struct sim_device *d = sim_device(device);
    if (!d)
        return CUDA_ERROR_INVALID_DEVICE;
    CUresult result = sim_charge(d, -(int64_t)d->graph_bytes);
    d->graph_bytes = 0;
    return result;
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    struct sim_stream *s = sim_resolve(stream);
    if (!s || !pool)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!pointer || !bytes)
        return CUDA_ERROR_INVALID_VALUE;
    if (s->capture)
        return add_node(pointer, bytes, s);
    uint64_t size = round_up(bytes, 512);
    pthread_mutex_lock(&pools_mutex);
    CUresult result = reserve(pool, pool->used + size);
    pool->used += result ? 0 : size;
    pthread_mutex_unlock(&pools_mutex);
    if (result)
        return result;
    struct sim_block block = {.pointer = sim_address(bytes), .device = pool->device, .bytes = size, .pool = pool};
    sim_block_add(&block);
    *pointer = block.pointer;
    return CUDA_SUCCESS;
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    return cuMemAllocFromPoolAsync(pointer, bytes, pool, stream);
}

CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream)
{
    CUmemoryPool pool;
    CUdevice device;
    CUresult result = cuCtxGetDevice(&device);
    if (!result)
        result = cuDeviceGetMemPool(&pool, device);
    return result ? result : cuMemAllocFromPoolAsync(pointer, bytes, pool, stream);
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUstream stream)
{
    return cuMemAllocAsync(pointer, bytes, stream);
}

CUresult sim_pool_free(const struct sim_block *block)
{
    pthread_mutex_lock(&pools_mutex);
    block->pool->used -= block->bytes;
    if (block->pool->destroyed)
        trim(block->pool, 0);
    pthread_mutex_unlock(&pools_mutex);
    return CUDA_SUCCESS;
}

CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream)
{
    (void)stream;
    return cuMemFree_v2(pointer);
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream)
{
    return cuMemFreeAsync(pointer, stream);
}
