/* Initialisation and contexts: here a process joins its claim, and the overhead of contexts begins and ends. */
#include "account.h"
#include "entries.h"

#include "ahead.h"
#include "compat.h"
#include "lending.h"
#include "meter.h"
#include "refusal.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_DEVICES 64

static int primary_counted[MAX_DEVICES];
static uint64_t primary_cost[MAX_DEVICES];
static CUcontext primary_context[MAX_DEVICES]; /* NULL: never retained, only created for green contexts */

void contexts_forget(void)
{
    memset(primary_counted, 0, sizeof primary_counted);
    memset(primary_context, 0, sizeof primary_context);
    table_forget(&table_contexts);
}

/* At exit: after this no thread of libvcuda calls the driver, which is about to shut down. */
static void on_exit_stop(void)
{
    __atomic_store_n(&shim.stopping, 1, __ATOMIC_SEQ_CST);
    shim_cool();
    meter_quiesce();
}

CUresult cuInit(unsigned flags)
{
    NEED_REAL(cuInit);
    int mode = shim_mode();
    if (mode == SHIM_REFUSED) {
        refusal_print();
        return CUDA_ERROR_NOT_PERMITTED;
    }
    if (mode == SHIM_UNUSABLE) {
        compat_complain();
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = real.cuInit(flags);
    if (result || mode != SHIM_ACTIVE)
        return result;
    if (!compat_fill())
        return CUDA_ERROR_NOT_PERMITTED;
    /* Registered after the driver's own handlers, and so run before them. */
    static int registered;
    if (!__atomic_exchange_n(&registered, 1, __ATOMIC_ACQ_REL))
        atexit(on_exit_stop);
    /* All slots are taken: this process could not be accounted for, so it gets no GPU. */
    return shim_attach() ? CUDA_SUCCESS : CUDA_ERROR_NOT_PERMITTED;
}

static int primary_active(CUdevice device)
{
    unsigned flags;
    int active = 0;
    return real.cuDevicePrimaryCtxGetState && !real.cuDevicePrimaryCtxGetState(device, &flags, &active) && active;
}

/* Note a new context. With a second one, launches look up which is current. */
static void note_context(void)
{
    __atomic_fetch_add(&shim.contexts_made, 1, __ATOMIC_SEQ_CST);
    shim_cool();
}

/* A call that creates the device's primary context if there is none: it retains that context, or creates a green
 * context, which is a part of it. */
struct primary_use {
    CUdevice device;
    int slot; /* < 0: the context exists already, or no limit applies */
    uint64_t reserved;
};

static CUresult primary_begin(struct primary_use *use, CUdevice device)
{
    *use = (struct primary_use){.device = device, .slot = -1};
    if (shim_mode() != SHIM_ACTIVE || device < 0 || device >= MAX_DEVICES)
        return CUDA_SUCCESS;
    if (!shim_attach())
        return CUDA_ERROR_NOT_PERMITTED;
    shim_refresh();
    /* The thread that raises the flag accounts for the context; a context counted already costs nothing again. */
    if (primary_active(device) || __atomic_exchange_n(&primary_counted[device], 1, __ATOMIC_ACQ_REL))
        return CUDA_SUCCESS;
    int slot = shim_slot_of_device(device);
    CUresult result = slot < 0 ? CUDA_ERROR_NOT_PERMITTED : account_context_begin(slot, &use->reserved);
    if (result)
        __atomic_store_n(&primary_counted[device], 0, __ATOMIC_RELEASE);
    else
        use->slot = slot;
    return result;
}

/* Settle the account after the driver's answer. If the result is an error although the driver returned none, the caller
 * gives the context back, and then calls primary_refused. */
static CUresult primary_end(const struct primary_use *use, CUresult result)
{
    if (use->slot < 0)
        return result;
    CUresult counted = account_context_end(use->slot, use->reserved, result, &primary_cost[use->device]);
    if (result)
        __atomic_store_n(&primary_counted[use->device], 0, __ATOMIC_RELEASE);
    else
        note_context();
    return result ? result : counted;
}

static void primary_refused(const struct primary_use *use)
{
    account_context_release(use->slot, primary_cost[use->device]);
    __atomic_store_n(&primary_counted[use->device], 0, __ATOMIC_RELEASE);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    NEED_REAL(cuDevicePrimaryCtxRetain);
    struct primary_use use;
    CUresult result = primary_begin(&use, device);
    if (result)
        return result;
    result = real.cuDevicePrimaryCtxRetain(context, device);
    CUresult answer = primary_end(&use, result);
    if (!result && device >= 0 && device < MAX_DEVICES)
        __atomic_store_n(&primary_context[device], *context, __ATOMIC_RELEASE);
    if (answer && !result) {
        real.cuDevicePrimaryCtxRelease_v2(device);
        primary_refused(&use);
    } else if (!result && shim_mode() == SHIM_ACTIVE) {
        lending_meet_context(*context, 1);
    }
    return answer;
}

CUresult cuGreenCtxCreate(CUgreenCtx *green, void *resources, CUdevice device, unsigned flags)
{
    NEED_REAL(cuGreenCtxCreate);
    struct primary_use use;
    CUresult result = primary_begin(&use, device);
    if (result)
        return result;
    result = real.cuGreenCtxCreate(green, resources, device, flags);
    if (!result) {
        note_context(); /* besides the primary one, whose work takes in its own */
        if (use.slot >= 0)
            lending_meet_context(NULL, 1);
    }
    CUresult answer = primary_end(&use, result);
    if (answer && !result) {
        real.cuGreenCtxDestroy(*green);
        primary_refused(&use);
    }
    return answer;
}

/* After a call that may have ended the primary context: `alone`, or with all green contexts of it. */
static CUresult finish_primary_end(CUdevice device, int alone, int locked, CUresult result)
{
    if (!result && !primary_active(device) && device >= 0 && device < MAX_DEVICES) {
        __atomic_fetch_add(&shim.context_epoch, 1, __ATOMIC_SEQ_CST);
        shim_cool();
        int slot = shim_slot_of_device(device);
        CUcontext ended = __atomic_exchange_n(&primary_context[device], NULL, __ATOMIC_ACQ_REL);
        if (alone && ended)
            meter_forget_context(ended);
        else
            meter_forget_slot(slot);
        if (ended) {
            captures_end_with(NULL, ended);
            lending_forget_context(ended);
        }
        if (slot >= 0 && __atomic_exchange_n(&primary_counted[device], 0, __ATOMIC_ACQ_REL))
            account_context_release(slot, primary_cost[device]);
    }
    if (locked)
        meter_unlock();
    return result;
}

#define PRIMARY_END(name, alone)                                                                                       \
    CUresult name(CUdevice device)                                                                                     \
    {                                                                                                                  \
        NEED_REAL(name);                                                                                               \
        if (shim_mode() != SHIM_ACTIVE || shim.stopping)                                                               \
            return real.name(device);                                                                                  \
        ahead_end();    /* the driver may wait for it */                                                               \
        meter_retire(); /* charge finished work: its events are destroyed with the context */                          \
        lending_begin_end();                                                                                           \
        int locked = meter_lock(); /* no thread may query events while they are destroyed */                           \
        CUresult result = finish_primary_end(device, alone, locked, real.name(device));                                \
        lending_finish_end();                                                                                          \
        return result;                                                                                                 \
    }
PRIMARY_END(cuDevicePrimaryCtxRelease, 1)
PRIMARY_END(cuDevicePrimaryCtxRelease_v2, 1)
PRIMARY_END(cuDevicePrimaryCtxReset, 0)
PRIMARY_END(cuDevicePrimaryCtxReset_v2, 0)

/* The last green context may take its primary context with it; its handle does not tell the device. */
CUresult cuGreenCtxDestroy(CUgreenCtx green)
{
    NEED_REAL(cuGreenCtxDestroy);
    if (shim_mode() != SHIM_ACTIVE || shim.stopping)
        return real.cuGreenCtxDestroy(green);
    ahead_end();
    lending_begin_end();
    int locked = meter_lock();
    CUresult result = real.cuGreenCtxDestroy(green);
    for (CUdevice device = 0; device < MAX_DEVICES; device++)
        if (__atomic_load_n(&primary_counted[device], __ATOMIC_ACQUIRE))
            finish_primary_end(device, 0, 0, result);
    if (locked)
        meter_unlock();
    lending_finish_end();
    return result;
}

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

/* Remember the context with its cost, so that the cost is given back whether or not the context ever launched or is
 * current when it ends. */
static CUresult create_end(CUcontext *context, int slot, uint64_t reserved, CUresult result)
{
    struct charge made = {.slot = slot};
    if (!result)
        note_context();
    if (slot < 0)
        return result;
    CUresult counted = account_context_end(slot, reserved, result, &made.charged);
    if (result)
        return result;
    if (counted) {
        real.cuCtxDestroy_v2(*context);
        account_context_release(slot, made.charged);
        return counted;
    }
    lending_meet_context(*context, 0);
    if (account_by_calls()) {
        made.key = (uint64_t)(uintptr_t)*context;
        table_put(&table_contexts, &made);
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
#define GRAPHICS_PARAMS (CUcontext * context, unsigned flags, CUdevice device)
CREATE(cuGLCtxCreate, GRAPHICS_PARAMS, (context, flags, device))
CREATE(cuGLCtxCreate_v2, GRAPHICS_PARAMS, (context, flags, device))
#define VDPAU_PARAMS (CUcontext * context, unsigned flags, CUdevice device, unsigned vdp, void *vdp_get_proc)
CREATE(cuVDPAUCtxCreate, VDPAU_PARAMS, (context, flags, device, vdp, vdp_get_proc))
CREATE(cuVDPAUCtxCreate_v2, VDPAU_PARAMS, (context, flags, device, vdp, vdp_get_proc))

#define DESTROY(name)                                                                                                  \
    CUresult name(CUcontext context)                                                                                   \
    {                                                                                                                  \
        NEED_REAL(name);                                                                                               \
        if (shim_mode() != SHIM_ACTIVE || shim.stopping)                                                               \
            return real.name(context);                                                                                 \
        struct charge made;                                                                                            \
        /* Forget it before the driver destroys it: afterwards another context may get the same handle. */             \
        int counted = table_take(&table_contexts, (uint64_t)(uintptr_t)context, &made);                                \
        ahead_end();                                                                                                   \
        meter_retire();                                                                                                \
        lending_begin_end();                                                                                           \
        int locked = meter_lock();                                                                                     \
        CUresult result = real.name(context);                                                                          \
        if (!result) {                                                                                                 \
            __atomic_fetch_add(&shim.context_epoch, 1, __ATOMIC_SEQ_CST);                                              \
            shim_cool();                                                                                               \
            meter_forget_context(context);                                                                             \
            captures_end_with(NULL, context);                                                                          \
            lending_forget_context(context);                                                                           \
            if (counted)                                                                                               \
                account_context_release(made.slot, made.charged);                                                      \
        } else if (counted) {                                                                                          \
            table_put(&table_contexts, &made);                                                                         \
        }                                                                                                              \
        if (locked)                                                                                                    \
            meter_unlock();                                                                                            \
        lending_finish_end();                                                                                          \
        return result;                                                                                                 \
    }
DESTROY(cuCtxDestroy)
DESTROY(cuCtxDestroy_v2)
