/* Old launch calls: every driver still has them, so without hooks they would bypass a limit. */
#include "barrier.h"
#include "meter.h"

#define LAUNCH(name, blocks, on, params, call)                                                                         \
    CUresult name params                                                                                               \
    {                                                                                                                  \
        NEED_REAL(name);                                                                                               \
        struct meter_ticket ticket;                                                                                    \
        CUresult result = meter_begin(&ticket, on, 0, (const void *)f, blocks);                                        \
        if (result)                                                                                                    \
            return result;                                                                                             \
        result = BARRIER_CALL(real.name call);                                                                         \
        meter_end(&ticket, result);                                                                                    \
        return result;                                                                                                 \
    }

/* The grid is one block; the block's shape and the arguments were set on the function before. */
LAUNCH(cuLaunch, 1, NULL, (CUfunction f), (f))
#define GRID_BLOCKS ((uint64_t)(width > 0 ? width : 0) * (uint64_t)(height > 0 ? height : 0))
LAUNCH(cuLaunchGrid, GRID_BLOCKS, NULL, (CUfunction f, int width, int height), (f, width, height))
LAUNCH(cuLaunchGridAsync, GRID_BLOCKS, stream, (CUfunction f, int width, int height, CUstream stream),
       (f, width, height, stream))

/* No machine has held more GPUs; launches beyond this number are not measured. */
#define DEVICES 16

/* Make the context of the part's stream current while the meter looks; the caller's becomes current again after it. */
static int enter(const CUmultiLaunch *launch)
{
    CUcontext context;
    return real.cuStreamGetCtx && real.cuCtxPushCurrent_v2 && real.cuCtxPopCurrent_v2 &&
           !real.cuStreamGetCtx(launch->stream, &context) && !real.cuCtxPushCurrent_v2(context);
}

static void leave(void)
{
    CUcontext context;
    real.cuCtxPopCurrent_v2(&context);
}

static void end_all(struct meter_ticket *tickets, const int *begun, const CUmultiLaunch *launches, unsigned count,
                    CUresult result)
{
    for (unsigned i = 0; i < count; i++)
        if (begun[i] && enter(&launches[i])) {
            meter_end(&tickets[i], result);
            leave();
        }
}

CUresult cuLaunchCooperativeKernelMultiDevice(CUmultiLaunch *launches, unsigned count, unsigned flags)
{
    NEED_REAL(cuLaunchCooperativeKernelMultiDevice);
    struct meter_ticket tickets[DEVICES];
    int begun[DEVICES] = {0};
    unsigned known = !launches ? 0 : count < DEVICES ? count : DEVICES;
    CUresult result = CUDA_SUCCESS;
    for (unsigned i = 0; i < known && !result; i++) {
        const CUmultiLaunch *l = &launches[i];
        if (!enter(l))
            continue;
        uint64_t blocks = (uint64_t)l->grid[0] * l->grid[1] * l->grid[2];
        result = meter_begin(&tickets[i], l->stream, 0, (const void *)l->function, blocks);
        begun[i] = !result;
        leave();
    }
    if (!result)
        result = real.cuLaunchCooperativeKernelMultiDevice(launches, count, flags);
    end_all(tickets, begun, launches, known, result);
    return result;
}
