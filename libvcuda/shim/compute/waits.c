/* The program's own waits for its work: they end the open burst, and the page reports that a thread waits. */
#include "lane.h"

static void end_open(struct meter_lane *lane)
{
    if (!lane_take(lane))
        return;
    if (lane->open && lane->context)
        meter_close(lane);
    lane_leave(lane);
}

static int waiting_matters(CUcontext *context)
{
    if (shim_mode() != SHIM_ACTIVE || !shim.self || __atomic_load_n(&shim.stopping, __ATOMIC_RELAXED))
        return 0;
    return shim_slot_of_current(context) >= 0;
}

int meter_wait_begins(void)
{
    CUcontext context;
    if (!waiting_matters(&context))
        return 0;
    int slot = shim_slot_of_current(&context);
    __atomic_fetch_add(&shim_usage(slot)->syncing, 1, __ATOMIC_RELAXED);
    return slot + 1;
}

void meter_wait_ends(int begun)
{
    if (begun > 0)
        __atomic_fetch_sub(&shim_usage(begun - 1)->syncing, 1, __ATOMIC_RELAXED);
}

uint32_t meter_before_wait(CUstream stream, int per_thread)
{
    CUcontext context;
    if (!waiting_matters(&context) || meter_capturing(stream, per_thread))
        return 0;
    struct meter_lane *lane = lane_of(context, lane_stream(stream, per_thread), 0, 0);
    if (!lane)
        return 0;
    end_open(lane);
    return lane->head;
}

void meter_after_wait(CUstream stream, int per_thread, uint32_t seen)
{
    CUcontext context;
    if (!seen || !waiting_matters(&context))
        return;
    struct meter_lane *lane = lane_of(context, lane_stream(stream, per_thread), 0, 0);
    if (!lane || !lane_take(lane))
        return;
    /* Dry only if no launch came since. */
    if (!lane->open && lane->head == seen)
        lane_set_free_at(lane, shim_ticks());
    lane_leave(lane);
}

void meter_before_wait_all(void)
{
    CUcontext context;
    if (!waiting_matters(&context))
        return;
    struct meter_lane *lane;
    for (uint32_t i = 0; (lane = lane_at(i)); i++)
        if (lane->context == context && __atomic_load_n(&lane->open, __ATOMIC_RELAXED) && lane_is_near(lane) &&
            !meter_capturing(lane->stream, 0))
            end_open(lane);
}
