/* The program's own waits for its work: they end the open burst, and the page reports that a thread waits. A program that
 * waits for each of its short kernels pays for every step here, so the context is looked up once. */
#include "lane.h"

static int end_open(struct meter_lane *lane)
{
    if (!__atomic_load_n(&lane->open, __ATOMIC_RELAXED) || !lane_take(lane))
        return 0;
    int open = lane->open && lane->context;
    if (open)
        meter_close(lane);
    lane_leave(lane);
    return open;
}

/* Return the slot of the current context's GPU; < 0: the wait does not matter. */
static int waiting_slot(CUcontext *context)
{
    const struct meter_lane *last = meter_thread.last;
    if (last && __atomic_load_n(&last->epoch, __ATOMIC_RELAXED) == __atomic_load_n(&shim.hot_epoch, __ATOMIC_ACQUIRE)) {
        *context = last->context;
        return last->slot;
    }
    if (shim_mode() != SHIM_ACTIVE || !shim.self || __atomic_load_n(&shim.stopping, __ATOMIC_RELAXED))
        return -1;
    return shim_slot_of_current(context);
}

static int begin(int slot)
{
    __atomic_fetch_add(&shim_usage(slot)->syncing, 1, __ATOMIC_RELAXED);
    return slot + 1;
}

void meter_end_wait_all(int begun)
{
    if (begun > 0)
        __atomic_fetch_sub(&shim_usage(begun - 1)->syncing, 1, __ATOMIC_RELAXED);
}

void meter_begin_wait(struct meter_wait *wait, CUstream stream, int per_thread)
{
    CUcontext context;
    int slot = waiting_slot(&context);
    *wait = (struct meter_wait){0};
    if (slot < 0)
        return;
    struct meter_lane *lane =
        meter_capturing(stream, per_thread) ? NULL : lane_of(context, lane_stream(stream, per_thread), 0, 0);
    /* The burst after launches without events has a start event, whether the stream is dry or not. */
    if (lane) {
        wait->closed = end_open(lane) || !__atomic_load_n(&lane->skip_given, __ATOMIC_RELAXED);
        wait->lane = lane;
        wait->position = lane_position(lane);
    }
    wait->begun = begin(slot);
}

void meter_end_wait(const struct meter_wait *wait, CUresult result)
{
    struct meter_lane *lane = wait->lane;
    meter_end_wait_all(wait->begun);
    if (result || !lane)
        return;
    /* Dry only if no launch comes before the next burst: meter_open compares the position. */
    __atomic_store_n(&lane->dry_at, wait->position, __ATOMIC_RELAXED);
    if (!wait->closed || !lane_take(lane))
        return;
    if (!lane->open && lane_position(lane) == wait->position)
        lane_set_free_at(lane, shim_ticks());
    lane_leave(lane);
}

int meter_begin_wait_all(void)
{
    CUcontext context;
    struct meter_lane *lane;
    int slot = waiting_slot(&context);
    if (slot < 0)
        return 0;
    for (uint32_t i = 0; (lane = lane_at(i)); i++)
        if (lane->context == context && __atomic_load_n(&lane->open, __ATOMIC_RELAXED) && lane_is_near(lane) &&
            !meter_capturing(lane->stream, 0))
            end_open(lane);
    return begin(slot);
}
