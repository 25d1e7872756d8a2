/* Initialisation and contexts: where a process joins its claim, and where overhead begins and ends. */
#include "shim.h"

#include "meter.h"

#include <stdlib.h>
#include <unistd.h>

#define MAX_DEVICES 64

static int primary_counted[MAX_DEVICES];

/* The process is ending: after this no thread of ours calls the driver, which is about to take itself apart. */
static void on_exit_stop(void)
{
    __atomic_store_n(&shim.stopping, 1, __ATOMIC_SEQ_CST);
    meter_quiesce();
}

CUresult cuInit(unsigned flags)
{
    NEED_REAL(cuInit);
    int mode = shim_mode();
    if (mode == SHIM_REFUSED)
        return CUDA_ERROR_NOT_PERMITTED;
    CUresult result = real.cuInit(flags);
    if (result || mode != SHIM_ACTIVE)
        return result;
    /* Registered after the driver's own handlers, and so run before them. */
    static int registered;
    if (!__atomic_exchange_n(&registered, 1, __ATOMIC_ACQ_REL))
        atexit(on_exit_stop);
    /* All slots taken: nobody could account for this process, so it gets no GPU. */
    return shim_attach() ? CUDA_SUCCESS : CUDA_ERROR_NOT_PERMITTED;
}

static int primary_active(CUdevice device)
{
    unsigned flags;
    int active = 0;
    return real.cuDevicePrimaryCtxGetState && !real.cuDevicePrimaryCtxGetState(device, &flags, &active) && active;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    NEED_REAL(cuDevicePrimaryCtxRetain);
    if (shim_mode() != SHIM_ACTIVE || device < 0 || device >= MAX_DEVICES)
        return real.cuDevicePrimaryCtxRetain(context, device);
    if (!shim_attach())
        return CUDA_ERROR_NOT_PERMITTED;
    shim_refresh();
    /* Whoever raises the flag accounts for the context; a context counted already costs nothing again. */
    if (primary_active(device) || __atomic_exchange_n(&primary_counted[device], 1, __ATOMIC_ACQ_REL))
        return real.cuDevicePrimaryCtxRetain(context, device);
    int slot = shim_slot_of_device(device);
    uint64_t reserved;
    CUresult result = slot < 0 ? CUDA_ERROR_NOT_PERMITTED : account_context_begin(slot, &reserved);
    if (!result) {
        result = real.cuDevicePrimaryCtxRetain(context, device);
        CUresult counted = account_context_end(slot, reserved, result);
        if (!result && counted) {
            real.cuDevicePrimaryCtxRelease_v2(device);
            account_context_gone(slot);
            result = counted;
        }
    }
    if (result)
        __atomic_store_n(&primary_counted[device], 0, __ATOMIC_RELEASE);
    return result;
}

/* After a call that may have ended the primary context. */
static CUresult primary_ended(CUdevice device, int locked, CUresult result)
{
    if (!result && !primary_active(device) && device >= 0 && device < MAX_DEVICES) {
        __atomic_fetch_add(&shim.context_epoch, 1, __ATOMIC_SEQ_CST);
        int slot = shim_slot_of_device(device);
        meter_forget_slot(slot);
        if (slot >= 0 && __atomic_exchange_n(&primary_counted[device], 0, __ATOMIC_ACQ_REL))
            account_context_gone(slot);
    }
    if (locked)
        meter_unlock();
    return result;
}

#define PRIMARY_END(name)                                                                                              \
    CUresult name(CUdevice device)                                                                                     \
    {                                                                                                                  \
        NEED_REAL(name);                                                                                               \
        if (shim_mode() != SHIM_ACTIVE || shim.stopping)                                                               \
            return real.name(device);                                                                                  \
        int locked = meter_lock(); /* nobody asks about events while they vanish */                                    \
        return primary_ended(device, locked, real.name(device));                                                       \
    }
PRIMARY_END(cuDevicePrimaryCtxRelease)
PRIMARY_END(cuDevicePrimaryCtxRelease_v2)
PRIMARY_END(cuDevicePrimaryCtxReset)
PRIMARY_END(cuDevicePrimaryCtxReset_v2)

static CUresult create_begin(CUdevice device, int *slot, uint64_t *reserved)
{
    *slot = -1;
    *reserved = 0;
    if (shim_mode() != SHIM_ACTIVE)
        return CUDA_SUCCESS;
    if (!shim_attach())
        return CUDA_ERROR_NOT_PERMITTED;
    *slot = shim_slot_of_device(device);
    return *slot < 0 ? CUDA_ERROR_NOT_PERMITTED : account_context_begin(*slot, reserved);
}

static CUresult create_end(CUcontext *context, int slot, uint64_t reserved, CUresult result)
{
    if (slot < 0)
        return result;
    CUresult counted = account_context_end(slot, reserved, result);
    if (!result && counted) {
        real.cuCtxDestroy_v2(*context);
        account_context_gone(slot);
    }
    return counted;
}

#define CREATE(name, params, call)                                                                                     \
    CUresult name params                                                                                               \
    {                                                                                                                  \
        NEED_REAL(name);                                                                                               \
        int slot;                                                                                                      \
        uint64_t reserved;                                                                                             \
        CUresult result = create_begin(device, &slot, &reserved);                                                      \
        if (result)                                                                                                    \
            return result;                                                                                             \
        return create_end(context, slot, reserved, real.name call);                                                    \
    }
CREATE(cuCtxCreate, (CUcontext * context, unsigned flags, CUdevice device), (context, flags, device))
CREATE(cuCtxCreate_v2, (CUcontext * context, unsigned flags, CUdevice device), (context, flags, device))
CREATE(cuCtxCreate_v3, (CUcontext * context, void *affinity, int count, unsigned flags, CUdevice device),
       (context, affinity, count, flags, device))
CREATE(cuCtxCreate_v4, (CUcontext * context, void *params, unsigned flags, CUdevice device),
       (context, params, flags, device))

#define DESTROY(name)                                                                                                  \
    CUresult name(CUcontext context)                                                                                   \
    {                                                                                                                  \
        NEED_REAL(name);                                                                                               \
        if (shim_mode() != SHIM_ACTIVE || shim.stopping)                                                               \
            return real.name(context);                                                                                 \
        CUcontext current = NULL;                                                                                      \
        int slot = shim_slot_of_current(&current);                                                                     \
        int locked = meter_lock();                                                                                     \
        CUresult result = real.name(context);                                                                          \
        if (!result) {                                                                                                 \
            __atomic_fetch_add(&shim.context_epoch, 1, __ATOMIC_SEQ_CST);                                              \
            int known = meter_forget_context(context);                                                                 \
            /* A context that never launched and is not current leaves its charge to the next true-up. */              \
            if (known < 0 && current == context)                                                                       \
                known = slot;                                                                                          \
            if (known >= 0)                                                                                            \
                account_context_gone(known);                                                                           \
        }                                                                                                              \
        if (locked)                                                                                                    \
            meter_unlock();                                                                                            \
        return result;                                                                                                 \
    }
DESTROY(cuCtxDestroy)
DESTROY(cuCtxDestroy_v2)
