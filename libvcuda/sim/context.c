/* Contexts, and the thread's stack of current ones. */
#include "memops.h"

#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define STACK 16

static _Thread_local CUcontext stack[STACK];
static _Thread_local int depth;

unsigned sim_thread(void)
{
    static _Thread_local unsigned id;
    if (!id)
        id = (unsigned)syscall(SYS_gettid);
    return id;
}

CUcontext sim_current(void)
{
    /* A forked child inherits the stack, but no driver. */
    return depth && !sim_ready() ? stack[depth - 1] : NULL;
}

/* In several pieces, as the real one is: it may fail half-way. */
static CUresult charge_context(struct sim_device *device)
{
    for (int i = 0; i < SIM_CONTEXT_PIECES; i++)
        if (sim_charge(device, SIM_CONTEXT_BYTES / SIM_CONTEXT_PIECES)) {
            while (i--)
                sim_charge(device, -(int64_t)(SIM_CONTEXT_BYTES / SIM_CONTEXT_PIECES));
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
    return CUDA_SUCCESS;
}

static CUresult make_context(CUcontext *context, struct sim_device *device)
{
    CUresult result = charge_context(device);
    if (result)
        return result;
    CUcontext made = calloc(1, sizeof *made);
    if (!made) {
        sim_charge(device, -(int64_t)SIM_CONTEXT_BYTES);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    made->device = device;
    made->alive = 1;
    made->limit[CU_LIMIT_STACK_SIZE] = 1024;
    made->limit[CU_LIMIT_PRINTF_FIFO_SIZE] = 1 << 20;
    made->limit[CU_LIMIT_MALLOC_HEAP_SIZE] = 8 << 20;
    made->null_stream.context = made;
    *context = made;
    return CUDA_SUCCESS;
}

/* The structure stays, as other threads may still hold it as current; only its cost goes. */
static CUresult end_context(CUcontext context)
{
    if (!context || !context->alive)
        return CUDA_ERROR_INVALID_CONTEXT;
    context->alive = 0;
    sim_kept_without_context(context);
    sim_forget_context_events(context);
    return sim_charge(context->device, -(int64_t)SIM_CONTEXT_BYTES - context->limit_bytes);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    struct sim_device *d = sim_device(device);
    if (sim_ready() || !d || !context)
        return sim_ready() ? CUDA_ERROR_NOT_INITIALIZED : CUDA_ERROR_INVALID_DEVICE;
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&sim_process_mutex);
    if (!d->primary)
        result = make_context(&d->primary, d);
    if (!result) {
        d->primary_refs++;
        *context = d->primary;
    }
    pthread_mutex_unlock(&sim_process_mutex);
    return result;
}

static CUresult drop_primary(CUdevice device, int all)
{
    struct sim_device *d = sim_device(device);
    if (!d)
        return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&sim_process_mutex);
    CUcontext ended = NULL;
    CUresult result = d->primary ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
    if (d->primary && (all || --d->primary_refs == 0)) {
        ended = d->primary;
        d->primary = NULL;
        d->primary_refs = 0;
    }
    pthread_mutex_unlock(&sim_process_mutex);
    return ended ? end_context(ended) : result;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    return drop_primary(device, 0);
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    return drop_primary(device, 0);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    return drop_primary(device, 1);
}

CUresult cuDevicePrimaryCtxReset(CUdevice device)
{
    return drop_primary(device, 1);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
    struct sim_device *d = sim_device(device);
    if (!d)
        return CUDA_ERROR_INVALID_DEVICE;
    *flags = 0;
    *active = d->primary != NULL;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags)
{
    (void)flags;
    return sim_device(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device)
{
    (void)flags;
    struct sim_device *d = sim_device(device);
    if (sim_ready() || !d || !context)
        return sim_ready() ? CUDA_ERROR_NOT_INITIALIZED : CUDA_ERROR_INVALID_VALUE;
    CUresult result = make_context(context, d);
    return result ? result : cuCtxPushCurrent_v2(*context);
}

CUresult cuCtxCreate(CUcontext *context, unsigned flags, CUdevice device)
{
    return cuCtxCreate_v2(context, flags, device);
}

CUresult cuCtxCreate_v3(CUcontext *context, void *affinity, int count, unsigned flags, CUdevice device)
{
    (void)affinity, (void)count;
    return cuCtxCreate_v2(context, flags, device);
}

CUresult cuCtxCreate_v4(CUcontext *context, void *params, unsigned flags, CUdevice device)
{
    (void)params;
    return cuCtxCreate_v2(context, flags, device);
}

CUresult cuCtxDestroy_v2(CUcontext context)
{
    CUresult result = end_context(context);
    if (!result && sim_current() == context)
        depth--;
    return result;
}

CUresult cuCtxDestroy(CUcontext context)
{
    return cuCtxDestroy_v2(context);
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
    CUresult ready = sim_ready();
    if (!ready)
        *context = sim_current();
    return ready;
}

CUresult cuCtxSetCurrent(CUcontext context)
{
    if (depth)
        depth--;
    if (context)
        stack[depth++] = context;
    return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    if (!context || depth == STACK)
        return CUDA_ERROR_INVALID_CONTEXT;
    stack[depth++] = context;
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
    if (!depth)
        return CUDA_ERROR_INVALID_CONTEXT;
    depth--;
    if (context)
        *context = stack[depth];
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device)
{
    CUcontext context = sim_current();
    for (int i = 0; context && sim_device(i); i++)
        if (sim_device(i) == context->device)
            return *device = i, CUDA_SUCCESS;
    return CUDA_ERROR_INVALID_CONTEXT;
}
