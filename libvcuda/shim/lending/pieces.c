/* Pieces of movable memory: physical memory of the GPU, and its place in pinned host memory.
 *
 * Where the driver makes host memory that can be mapped like the GPU's own, a piece that is out lies at its old address and
 * kernels reach it, slowly. Elsewhere its place is ordinary pinned memory, and the program stands still while it is out. */
#include "lending.h"

#include "account.h"

/* CU_MEM_ALLOCATION_TYPE_PINNED */
#define PINNED 1

static CUdevice device;
static int no_host_handles; /* the driver, or the machine, does not make such memory */

void piece_set_device(CUdevice number)
{
    device = number;
}

static CUallocationProp prop_of(int type, int id)
{
    return (CUallocationProp){.type = PINNED, .location = {type, id}};
}

CUresult piece_map(CUdeviceptr at, const struct piece *piece, CUhandle handle)
{
    CUaccess access = {{CU_LOCATION_DEVICE, device}, CU_ACCESS_READ_WRITE};
    CUresult result = real.cuMemMap(at, piece->bytes, 0, handle, 0);
    if (!result && (result = real.cuMemSetAccess(at, piece->bytes, &access, 1)))
        real.cuMemUnmap(at, piece->bytes);
    return result;
}

/* Reserve before pinning: a claim's limit of host memory holds for all its processes. */
static int reserve_host(uint64_t bytes)
{
    struct vcuda_limit limit;
    struct vcuda_lending all;
    uint32_t slot = lending_slot();
    __atomic_fetch_add(&shim.self->host_bytes, bytes, __ATOMIC_SEQ_CST);
    if (!vcuda_limits_get(shim.limits, slot, &limit) && !vcuda_usage_lending(shim.usage, slot, &all) &&
        all.host_bytes <= limit.host_memory_bytes)
        return 1;
    __atomic_fetch_sub(&shim.self->host_bytes, bytes, __ATOMIC_SEQ_CST);
    return 0;
}

static CUresult make_host_handle(struct piece *piece)
{
    int node = 0;
    real.cuDeviceGetAttribute(&node, CU_ATTRIBUTE_HOST_NUMA_ID, device);
    CUallocationProp prop = prop_of(CU_LOCATION_HOST_NUMA, node > 0 ? node : 0);
    CUresult result = real.cuMemCreate(&piece->host, piece->bytes, &prop, 0);
    if (result)
        return result;
    result = real.cuMemAddressReserve(&piece->shadow, piece->bytes, 0, 0, 0);
    if (!result && (result = piece_map(piece->shadow, piece, piece->host)))
        real.cuMemAddressFree(piece->shadow, piece->bytes);
    if (result) {
        real.cuMemRelease(piece->host);
        piece->host = piece->shadow = 0;
    }
    return result;
}

CUresult piece_make_host(struct piece *piece)
{
    void *memory = NULL;
    if (!reserve_host(piece->bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!no_host_handles) {
        CUresult result = make_host_handle(piece);
        if (!result)
            return result;
        no_host_handles = result != CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (no_host_handles && !real.cuMemHostAlloc(&memory, piece->bytes, 0)) {
        piece->shadow = (CUdeviceptr)(uintptr_t)memory;
        return CUDA_SUCCESS;
    }
    __atomic_fetch_sub(&shim.self->host_bytes, piece->bytes, __ATOMIC_SEQ_CST);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult piece_make_device(struct piece *piece)
{
    CUallocationProp prop = prop_of(CU_LOCATION_DEVICE, device);
    account_movable = piece->bytes;
    CUresult result = real.cuMemCreate(&piece->device, piece->bytes, &prop, 0);
    account_movable = 0;
    return result;
}

void piece_end_device(struct piece *piece)
{
    if (piece->device)
        real.cuMemRelease(piece->device);
    piece->device = 0;
}

void piece_end(struct piece *piece)
{
    piece_end_device(piece);
    if (!piece->shadow)
        return;
    if (piece->host) {
        real.cuMemUnmap(piece->shadow, piece->bytes);
        real.cuMemAddressFree(piece->shadow, piece->bytes);
        real.cuMemRelease(piece->host);
    } else {
        real.cuMemFreeHost((void *)(uintptr_t)piece->shadow);
    }
    if (piece->out)
        __atomic_fetch_sub(&shim.self->out_bytes, piece->bytes, __ATOMIC_SEQ_CST);
    __atomic_fetch_sub(&shim.self->host_bytes, piece->bytes, __ATOMIC_SEQ_CST);
    piece->host = piece->shadow = 0;
}
