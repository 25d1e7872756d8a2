/* The retiring side of the meter: finished bursts become charged GPU time.
 *
 * One thread at a time, whoever comes first: the watcher, or a launch that waits for credit. Nobody waits for the lock but
 * those who are about to destroy events.
 */
#include "lane.h"

#include <sched.h>
#include <time.h>

static int lock;

static int try_lock(void)
{
    return !__atomic_exchange_n(&lock, 1, __ATOMIC_ACQUIRE);
}

int meter_lock(void)
{
    /* Bounded: whoever holds it may have been ended with the process that is ending. */
    for (int i = 0; i < 100000; i++) {
        if (try_lock())
            return 1;
        sched_yield();
    }
    return 0;
}

void meter_unlock(void)
{
    __atomic_store_n(&lock, 0, __ATOMIC_RELEASE);
}

/* At the process's end, after `stopping` was set: let whoever is retiring finish, but never hang for it. The lock is not
 * kept: the program's own clean-up may still destroy contexts. */
void meter_quiesce(void)
{
    struct timespec pause = {0, 200000};
    for (int i = 0; i < 100; i++) {
        if (try_lock()) {
            meter_unlock();
            return;
        }
        nanosleep(&pause, NULL);
    }
}

static void charge(const struct meter_lane *lane, const struct meter_burst *burst, double start_ns, double end_ns)
{
    double spent = end_ns - start_ns;
    /* The end event was late: the prediction knows better than the gap. */
    if (burst->late && burst->predicted_ns && spent > (double)burst->predicted_ns)
        spent = (double)burst->predicted_ns;
    predict_learn(burst, spent);
    const struct shim_gpu *gpu = &shim.gpu[lane->slot];
    int debit = gpu->core_limit < 100 && burst->begun_ns >= gpu->limited_since_ns;
    credit_charge(lane->slot, (uint64_t)start_ns, (uint64_t)end_ns, (uint64_t)spent, debit);
}

/* The oldest burst of the lane, if it is finished; 0 if not. */
static int retire_one(struct meter_lane *lane)
{
    struct meter_burst *burst = &lane->ring[lane->tail % METER_BURSTS];
    CUresult result = real.cuEventQuery(burst->end);
    if (result == CUDA_ERROR_NOT_READY)
        return 0;
    struct origin *origin = origin_of(lane->context);
    double start_ns, end_ns;
    if (!result && origin) {
        CUevent start = burst->start ? burst->start : lane->last_end;
        if (origin_times(origin, burst, start, &start_ns, &end_ns))
            charge(lane, burst, start_ns, end_ns);
        origin_return(origin, burst->start);
        origin_return(origin, burst->zero);
        origin_return(origin, lane->last_end);
        lane->last_end = burst->end;
    }
    if (burst->predicted_ns)
        __atomic_fetch_sub(&shim_usage(lane->slot)->inflight_ns, burst->predicted_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&lane->tail, lane->tail + 1, __ATOMIC_RELEASE);
    return 1;
}

int meter_retire(void)
{
    int left = 0, mode = CU_CAPTURE_RELAXED;
    if (__atomic_load_n(&shim.stopping, __ATOMIC_ACQUIRE) || !try_lock())
        return 1;
    int changed = __atomic_load_n(&shim.captures, __ATOMIC_RELAXED) > 0 && real.cuThreadExchangeStreamCaptureMode &&
                  !real.cuThreadExchangeStreamCaptureMode(&mode);
    for (uint32_t i = 0; i < LANES && lanes[i]; i++) {
        struct meter_lane *lane = lanes[i];
        while (lane->tail != __atomic_load_n(&lane->head, __ATOMIC_ACQUIRE) && retire_one(lane))
            ;
        left += (int)(__atomic_load_n(&lane->head, __ATOMIC_RELAXED) - lane->tail);
    }
    if (changed)
        real.cuThreadExchangeStreamCaptureMode(&mode);
    meter_unlock();
    return left;
}

/* An open burst that nobody continued or waited for: charge what was predicted and be done. */
static void give_up(struct meter_lane *lane)
{
    struct origin *origin = origin_of(lane->context);
    struct meter_burst *burst = &lane->now;
    burst->predicted_ns += __atomic_exchange_n(&lane->other_ns, 0, __ATOMIC_RELAXED);
    uint64_t now = shim_now();
    __atomic_fetch_add(&shim_usage(lane->slot)->launches, burst->launches, __ATOMIC_RELAXED);
    if (burst->predicted_ns) {
        __atomic_fetch_sub(&shim_usage(lane->slot)->inflight_ns, burst->predicted_ns, __ATOMIC_RELAXED);
        credit_charge(lane->slot, now - burst->predicted_ns, now, burst->predicted_ns, 1);
    }
    if (origin)
        origin_discard(origin, burst);
    lane->open = 0;
}

void meter_sweep(void)
{
    const uint64_t patience = 100000000;
    for (uint32_t i = 0; i < LANES && lanes[i]; i++) {
        struct meter_lane *lane = lanes[i];
        if (!lane->open || shim_ticks() - lane->last_at < patience || !lane_take(lane))
            continue;
        if (lane->open && lane->context && shim_ticks() - lane->last_at >= patience)
            give_up(lane);
        lane_leave(lane);
    }
}

static int forget(CUcontext context, int slot)
{
    int found = -1;
    for (uint32_t i = 0; i < LANES && lanes[i]; i++) {
        struct meter_lane *lane = lanes[i];
        if (!lane->context || (context ? lane->context != context : lane->slot != slot))
            continue;
        /* A program that launches into a context while destroying it has lost already: no endless waiting for it. */
        int taken = 0;
        for (int try = 0; try < 1000 && !taken; try++)
            taken = lane_take(lane);
        found = lane->slot;
        origin_forget(lane->context);
        lane_clear(lane);
        lane_leave(lane);
    }
    return found;
}

int meter_forget_context(CUcontext context)
{
    return forget(context, -1);
}

void meter_forget_slot(int slot)
{
    if (slot >= 0)
        forget(NULL, slot);
}

void meter_forget_all(void)
{
    lane_forget_all();
    origin_forget(NULL);
    meter_unlock();
}
