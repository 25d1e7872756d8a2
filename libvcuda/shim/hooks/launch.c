/* Launches, waits and ends of streams: thin wrappers around the meter. */
#include "barrier.h"
#include "entries.h"
#include "hot.h"

#define LAUNCH(name, per_thread, kernel, blocks, on, params, call)                                                     \
    static __attribute__((noinline)) CUresult name##_measured params                                                   \
    {                                                                                                                  \
        /* Found with all others before the first context: nothing else is to be read on the way of a launch. */       \
        if (__builtin_expect(!real.name, 0))                                                                           \
            NEED_REAL(name);                                                                                           \
        struct meter_ticket ticket;                                                                                    \
        CUresult result = meter_begin(&ticket, on, per_thread, (const void *)kernel, blocks);                          \
        if (__builtin_expect(result != CUDA_SUCCESS, 0))                                                               \
            return result;                                                                                             \
        result = BARRIER_CALL(real.name call);                                                                         \
        if (ticket.lane)                                                                                               \
            meter_end(&ticket, result);                                                                                \
        return result;                                                                                                 \
    }                                                                                                                  \
    CUresult name params                                                                                               \
    {                                                                                                                  \
        /* There is no lane before the driver was found. */                                                            \
        if (__builtin_expect(hot_skips(on, per_thread, (const void *)kernel, blocks) && real.name, 1))                 \
            return BARRIER_CALL(real.name call);                                                                       \
        return name##_measured call;                                                                                   \
    }

#define BLOCKS ((uint64_t)gx * gy * gz)
#define SHAPE gx, gy, gz, bx, by, bz, shared_bytes
#define KERNEL_PARAMS (CUfunction f, KERNEL_SHAPE, CUstream stream, void **params, void **extra)
LAUNCH(cuLaunchKernel, 0, f, BLOCKS, stream, KERNEL_PARAMS, (f, SHAPE, stream, params, extra))
LAUNCH(cuLaunchKernel_ptsz, 1, f, BLOCKS, stream, KERNEL_PARAMS, (f, SHAPE, stream, params, extra))

#define COOPERATIVE_PARAMS (CUfunction f, KERNEL_SHAPE, CUstream stream, void **params)
LAUNCH(cuLaunchCooperativeKernel, 0, f, BLOCKS, stream, COOPERATIVE_PARAMS, (f, SHAPE, stream, params))
LAUNCH(cuLaunchCooperativeKernel_ptsz, 1, f, BLOCKS, stream, COOPERATIVE_PARAMS, (f, SHAPE, stream, params))

#define EX_PARAMS (const CUlaunchConfig *config, CUfunction f, void **params, void **extra)
#define EX_BLOCKS (config ? (uint64_t)config->grid[0] * config->grid[1] * config->grid[2] : 0)
#define EX_STREAM (config ? config->stream : NULL)
LAUNCH(cuLaunchKernelEx, 0, f, EX_BLOCKS, EX_STREAM, EX_PARAMS, (config, f, params, extra))
LAUNCH(cuLaunchKernelEx_ptsz, 1, f, EX_BLOCKS, EX_STREAM, EX_PARAMS, (config, f, params, extra))

LAUNCH(cuGraphLaunch, 0, exec, 0, stream, (CUgraphExec exec, CUstream stream), (exec, stream))
LAUNCH(cuGraphLaunch_ptsz, 1, exec, 0, stream, (CUgraphExec exec, CUstream stream), (exec, stream))

#define WAIT_STREAM(name, per_thread)                                                                                  \
    CUresult name(CUstream stream)                                                                                     \
    {                                                                                                                  \
        NEED_REAL(name);                                                                                               \
        struct meter_wait wait;                                                                                        \
        meter_begin_wait(&wait, stream, per_thread);                                                                   \
        CUresult result = real.name(stream);                                                                           \
        meter_end_wait(&wait, result);                                                                                 \
        return result;                                                                                                 \
    }
WAIT_STREAM(cuStreamSynchronize, 0)
WAIT_STREAM(cuStreamSynchronize_ptsz, 1)

#define WAIT(name, params, call)                                                                                       \
    CUresult name params                                                                                               \
    {                                                                                                                  \
        NEED_REAL(name);                                                                                               \
        int begun = meter_begin_wait_all();                                                                            \
        CUresult result = real.name call;                                                                              \
        meter_end_wait_all(begun);                                                                                     \
        return result;                                                                                                 \
    }
WAIT(cuCtxSynchronize, (void), ())
WAIT(cuCtxSynchronize_v2, (CUcontext context), (context))
WAIT(cuEventSynchronize, (CUevent event), (event))

#define END_STREAM(name)                                                                                               \
    CUresult name(CUstream stream)                                                                                     \
    {                                                                                                                  \
        NEED_REAL(name);                                                                                               \
        meter_before_end(stream);                                                                                      \
        CUresult result = real.name(stream);                                                                           \
        if (!result && stream)                                                                                         \
            captures_end_with(stream, NULL);                                                                           \
        return result;                                                                                                 \
    }
END_STREAM(cuStreamDestroy)
END_STREAM(cuStreamDestroy_v2)
