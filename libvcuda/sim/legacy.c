/* What is rarely called and still in every driver: the first versions of entries, launches from before cuLaunchKernel,
 * contexts made for graphics, green contexts, limits of a context. */
#include "memory.h"

#include <stdlib.h>

/* Blocks of the first version lie below 4 GiB. */
static CUdeviceptr low_address = 0x10000000;

CUresult cuMemAlloc(CUdeviceptr_v1 *pointer, unsigned bytes)
{
    CUdeviceptr high;
    struct sim_block block;
    CUresult result = cuMemAlloc_v2(&high, bytes);
    if (result)
        return result;
    if (!sim_block_take(high, &block))
        return CUDA_ERROR_UNKNOWN;
    block.pointer =
        __atomic_fetch_add(&low_address, (bytes + SIM_GRANULE - 1) / SIM_GRANULE * SIM_GRANULE, __ATOMIC_RELAXED);
    if (block.pointer + bytes > UINT32_MAX || !sim_block_add(&block)) {
        sim_block_add(&(struct sim_block){.pointer = high, .device = block.device, .bytes = block.bytes});
        cuMemFree_v2(high);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *pointer = (CUdeviceptr_v1)block.pointer;
    return CUDA_SUCCESS;
}

CUresult cuMemAllocPitch(CUdeviceptr_v1 *pointer, unsigned *pitch, unsigned width, unsigned height, unsigned element)
{
    (void)element;
    if (!pitch || !width || !height)
        return CUDA_ERROR_INVALID_VALUE;
    *pitch = (width + 511) / 512 * 512;
    return cuMemAlloc(pointer, *pitch * height);
}

CUresult cuMemFree(CUdeviceptr_v1 pointer)
{
    return cuMemFree_v2(pointer);
}

CUresult cuArrayCreate(CUarray *array, const CUarrayDescriptor_v1 *d)
{
    return cuArrayCreate_v2(array, &(CUarrayDescriptor){d->width, d->height, d->format, d->channels});
}

CUresult cuArray3DCreate(CUarray *array, const CUarray3DDescriptor_v1 *d)
{
    CUarray3DDescriptor now = {d->width, d->height, d->depth, d->format, d->channels, d->flags};
    return cuArray3DCreate_v2(array, &now);
}

/* The kernels of the tests take their arguments from a launch; these launches have none, so they run the default time. */
CUresult cuLaunchGridAsync(CUfunction f, int width, int height, CUstream stream)
{
    uint64_t ns = 10000;
    void *params[] = {&ns};
    return cuLaunchKernel(f, (unsigned)width, (unsigned)height, 1, 1, 1, 1, 0, stream, params, NULL);
}

CUresult cuLaunchGrid(CUfunction f, int width, int height)
{
    return cuLaunchGridAsync(f, width, height, NULL);
}

CUresult cuLaunch(CUfunction f)
{
    return cuLaunchGridAsync(f, 1, 1, NULL);
}

CUresult cuGLCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device)
{
    return cuCtxCreate_v2(context, flags, device);
}

CUresult cuGLCtxCreate(CUcontext *context, unsigned flags, CUdevice device)
{
    return cuCtxCreate_v2(context, flags, device);
}

CUresult cuVDPAUCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device, unsigned vdp, void *vdp_get_proc)
{
    (void)vdp, (void)vdp_get_proc;
    return cuCtxCreate_v2(context, flags, device);
}

CUresult cuVDPAUCtxCreate(CUcontext *context, unsigned flags, CUdevice device, unsigned vdp, void *vdp_get_proc)
{
    return cuVDPAUCtxCreate_v2(context, flags, device, vdp, vdp_get_proc);
}

struct sim_green {
    CUcontext context;
    CUdevice device;
};

/* A part of the device's primary context, which it keeps alive. */
CUresult cuGreenCtxCreate(CUgreenCtx *green, void *resources, CUdevice device, unsigned flags)
{
    (void)resources, (void)flags;
    CUgreenCtx made = malloc(sizeof *made);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    made->device = device;
    CUresult result = cuDevicePrimaryCtxRetain(&made->context, device);
    if (result)
        free(made);
    else
        *green = made;
    return result;
}

CUresult cuGreenCtxDestroy(CUgreenCtx green)
{
    CUresult result = cuDevicePrimaryCtxRelease_v2(green->device);
    free(green);
    return result;
}

CUresult cuCtxFromGreenCtx(CUcontext *context, CUgreenCtx green)
{
    *context = green->context;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetLimit(size_t *value, int limit)
{
    CUcontext context = sim_current();
    if (!context || limit < 0 || limit >= SIM_LIMITS)
        return context ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_CONTEXT;
    *value = context->limit[limit];
    return CUDA_SUCCESS;
}

/* A stack is there for every thread that the GPU holds at a time; the others are there once. What the context costs by
 * itself includes the first values. */
CUresult cuCtxSetLimit(int limit, size_t value)
{
    CUcontext context = sim_current();
    int processors, threads;
    CUdevice device;
    if (!context || limit < 0 || limit >= SIM_LIMITS)
        return context ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_CONTEXT;
    cuCtxGetDevice(&device);
    cuDeviceGetAttribute(&processors, CU_ATTRIBUTE_MULTIPROCESSORS, device);
    cuDeviceGetAttribute(&threads, CU_ATTRIBUTE_THREADS_PER_MULTIPROCESSOR, device);
    int64_t times = limit == CU_LIMIT_STACK_SIZE ? (int64_t)processors * threads : 1;
    int64_t more = ((int64_t)value - (int64_t)context->limit[limit]) * times;
    CUresult result = sim_charge(context->device, more);
    if (!result) {
        context->limit[limit] = value;
        context->limit_bytes += more;
    }
    return result;
}
