/* Device memory: plain, pitched, managed, host. Addresses are made up; managed and host memory is really there.
 *
 * Sizes are charged as the real allocator does: blocks over 1 MiB in granules of 2 MiB, smaller ones share granules.
 */
#include "memory.h"

#include <stdlib.h>
#include <sys/mman.h>

#define BUCKETS 16384

static struct sim_block *blocks[BUCKETS];
#define FIRST_ADDRESS 0x700000000000ull
static CUdeviceptr next_address = FIRST_ADDRESS;

static unsigned bucket_of(CUdeviceptr pointer)
{
    return (unsigned)((pointer >> 9) * 0x9e3779b97f4a7c15ull >> 50) % BUCKETS;
}

static uint64_t round_up(uint64_t bytes, uint64_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

CUdeviceptr sim_address(uint64_t bytes)
{
    return __atomic_fetch_add(&next_address, round_up(bytes, SIM_GRANULE), __ATOMIC_RELAXED);
}

CUresult cuPointerGetAttribute(void *value, int attribute, CUdeviceptr pointer)
{
    if (!value || attribute != CU_POINTER_MEMORY_TYPE)
        return CUDA_ERROR_INVALID_VALUE;
    /* Addresses that were ever given are the GPU's; those of the host mean nothing to the driver. */
    if (pointer < FIRST_ADDRESS || pointer >= __atomic_load_n(&next_address, __ATOMIC_RELAXED))
        return CUDA_ERROR_INVALID_VALUE;
    *(unsigned *)value = CU_MEMORY_DEVICE;
    return CUDA_SUCCESS;
}

/* Of plain blocks, at their beginning. */
CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr pointer)
{
    pthread_mutex_lock(&sim_process_mutex);
    const struct sim_block *block = blocks[bucket_of(pointer)];
    while (block && block->pointer != pointer)
        block = block->next;
    if (block && base)
        *base = block->pointer;
    if (block && bytes)
        *bytes = block->bytes;
    pthread_mutex_unlock(&sim_process_mutex);
    return block ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

int sim_block_add(const struct sim_block *block)
{
    struct sim_block *made = malloc(sizeof *made);
    if (!made)
        return 0;
    *made = *block;
    pthread_mutex_lock(&sim_process_mutex);
    struct sim_block **head = &blocks[bucket_of(block->pointer)];
    made->next = *head;
    *head = made;
    pthread_mutex_unlock(&sim_process_mutex);
    return 1;
}

int sim_block_take(CUdeviceptr pointer, struct sim_block *out)
{
    pthread_mutex_lock(&sim_process_mutex);
    struct sim_block **at = &blocks[bucket_of(pointer)];
    while (*at && (*at)->pointer != pointer)
        at = &(*at)->next;
    struct sim_block *found = *at;
    if (found)
        *at = found->next;
    pthread_mutex_unlock(&sim_process_mutex);
    if (!found)
        return 0;
    *out = *found;
    free(found);
    return 1;
}

/* Small blocks are charged by what their sum takes in granules. */
static CUresult charge_block(struct sim_device *device, uint64_t bytes, int sign)
{
    if (bytes > (1ull << 20))
        return sim_charge(device, sign * (int64_t)round_up(bytes, SIM_GRANULE));
    pthread_mutex_lock(&sim_process_mutex);
    uint64_t before = round_up(device->small_bytes, SIM_GRANULE);
    device->small_bytes += (uint64_t)sign * round_up(bytes, 512);
    uint64_t after = round_up(device->small_bytes, SIM_GRANULE);
    pthread_mutex_unlock(&sim_process_mutex);
    CUresult result = after == before ? CUDA_SUCCESS : sim_charge(device, (int64_t)(after - before));
    if (result)
        __atomic_fetch_sub(&device->small_bytes, round_up(bytes, 512), __ATOMIC_RELAXED);
    return result;
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes)
{
    CUcontext context = sim_current();
    if (!context || !context->alive)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!pointer || !bytes)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = sim_capture_guard();
    if (!result)
        result = charge_block(context->device, bytes, 1);
    if (result)
        return result;
    struct sim_block block = {.pointer = sim_address(bytes), .device = context->device, .bytes = bytes};
    sim_block_add(&block);
    *pointer = block.pointer;
    return CUDA_SUCCESS;
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned element)
{
    (void)element;
    if (!pitch || !width || !height)
        return CUDA_ERROR_INVALID_VALUE;
    const char *unit = getenv("GPUCLOUD_SIM_PITCH");
    *pitch = round_up(width, unit ? strtoull(unit, NULL, 10) : 512);
    return cuMemAlloc_v2(pointer, *pitch * height);
}

CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned flags)
{
    (void)flags;
    CUcontext context = sim_current();
    if (!context || !pointer || !bytes)
        return context ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_CONTEXT;
    void *host = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (host == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct sim_block block = {
        .pointer = (CUdeviceptr)(uintptr_t)host, .device = context->device, .bytes = bytes, .host = 1};
    sim_block_add(&block);
    sim_process_count_managed(1);
    *pointer = block.pointer;
    return CUDA_SUCCESS;
}

CUresult cuMemFree_v2(CUdeviceptr pointer)
{
    struct sim_block block;
    if (!pointer)
        return CUDA_SUCCESS;
    if (!sim_block_take(pointer, &block))
        return CUDA_ERROR_INVALID_VALUE;
    if (block.pool)
        return sim_pool_free(&block);
    /* Managed memory lies wherever it is touched: it is in no process's figure. */
    if (block.host) {
        sim_process_count_managed(-1);
        munmap((void *)(uintptr_t)pointer, block.bytes);
    }
    if (block.host || block.graph)
        return CUDA_SUCCESS;
    return charge_block(block.device, block.bytes, -1);
}

static void memory_of(struct sim_device *device, size_t *free_bytes, size_t *total)
{
    sim_lock(device->gpu);
    *total = device->gpu->memory_bytes;
    *free_bytes = *total - sim_memory_used(device->gpu);
    /* A limited control group is shown its limit and what is left of it. */
    struct sim_client *client = sim_client_take(device->gpu);
    uint64_t limit, room = client ? sim_group_room(device->gpu, client, &limit) : UINT64_MAX;
    if (room < *free_bytes)
        *free_bytes = room;
    if (client && limit < *total)
        *total = limit;
    sim_unlock(device->gpu);
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    size_t f, t;
    CUcontext context = sim_current();
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    memory_of(context->device, &f, &t);
    if (free_bytes)
        *free_bytes = f;
    if (total)
        *total = t;
    return CUDA_SUCCESS;
}

CUresult cuMemGetInfo(unsigned *free_bytes, unsigned *total)
{
    size_t f, t;
    CUresult result = cuMemGetInfo_v2(&f, &t);
    if (!result) {
        *free_bytes = f > UINT32_MAX ? UINT32_MAX : (unsigned)f;
        *total = t > UINT32_MAX ? UINT32_MAX : (unsigned)t;
    }
    return result;
}

CUresult cuMemHostAlloc(void **pointer, size_t bytes, unsigned flags)
{
    (void)flags;
    *pointer = calloc(1, bytes);
    return *pointer ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemAllocHost_v2(void **pointer, size_t bytes)
{
    return cuMemHostAlloc(pointer, bytes, 0);
}

CUresult cuMemFreeHost(void *pointer)
{
    free(pointer);
    return CUDA_SUCCESS;
}

/* Copies wait for earlier work, as the real ones do. They move something only from and to mapped physical memory. */
#define AT(pointer) (CUdeviceptr)(uintptr_t)(pointer)
#define COPY(name, ...)                                                                                                \
    CUresult name(__VA_ARGS__)                                                                                         \
    {                                                                                                                  \
        CUresult result = cuStreamSynchronize(NULL);                                                                   \
        return result ? result : sim_move_bytes(AT(to), AT(from), bytes);                                              \
    }
COPY(cuMemcpyHtoD_v2, CUdeviceptr to, const void *from, size_t bytes)
COPY(cuMemcpyHtoD_v2_ptds, CUdeviceptr to, const void *from, size_t bytes)
COPY(cuMemcpyDtoH_v2, void *to, CUdeviceptr from, size_t bytes)
COPY(cuMemcpyDtoH_v2_ptds, void *to, CUdeviceptr from, size_t bytes)

/* In a stream, they take as long as PCIe 5 needs, or for what stays on the GPU its memory. */
CUresult sim_copy_async(CUstream stream, size_t bytes, uint64_t bytes_per_us)
{
    struct sim_stream *s = sim_resolve(stream);
    if (!s)
        return CUDA_ERROR_INVALID_CONTEXT;
    uint64_t ns = bytes * 1000 / bytes_per_us + 1000;
    if (!s->capture)
        return sim_submit(s, ns);
    s->graph->total_ns += ns;
    return CUDA_SUCCESS;
}

#define COPY_ASYNC(name, bytes_per_us, ...)                                                                            \
    CUresult name(__VA_ARGS__, CUstream stream)                                                                        \
    {                                                                                                                  \
        CUresult result = sim_copy_async(stream, bytes, bytes_per_us);                                                 \
        return result ? result : sim_move_bytes(AT(to), AT(from), bytes);                                              \
    }
COPY_ASYNC(cuMemcpyHtoDAsync_v2, 50000, CUdeviceptr to, const void *from, size_t bytes)
COPY_ASYNC(cuMemcpyHtoDAsync_v2_ptsz, 50000, CUdeviceptr to, const void *from, size_t bytes)
COPY_ASYNC(cuMemcpyDtoHAsync_v2, 50000, void *to, CUdeviceptr from, size_t bytes)
COPY_ASYNC(cuMemcpyDtoHAsync_v2_ptsz, 50000, void *to, CUdeviceptr from, size_t bytes)
