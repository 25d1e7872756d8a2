/* The launching side of the meter: what each launch passes through.
 *
 * Launches of a stream are bracketed by timing events in bursts: a burst ends after 64 launches, after a millisecond of
 * predicted work, after 50 us of wall time, or where the program is about to wait for the stream. It begins where the last
 * one ended while the stream has work, and with an event of its own where the stream had run dry, so that idle time between
 * launches is not charged. Nothing is ever recorded into a stream that is being captured, and such launches never wait.
 *
 * No lock: a lane belongs to the thread that is launching into it; another thread that launches into the same stream at the
 * same moment adds its work to the lane's "other" counters, and the owner's next end event covers it.
 */
#include "lane.h"

#define BURST_LAUNCHES 64
#define BURST_PREDICTED_NS 1000000
#define BURST_TICKS 50000
/* Without a limit nobody waits for the numbers: fewer events. */
#define BURST_TICKS_UNLIMITED 500000
#define BURST_LAUNCHES_UNLIMITED 256
#define LATE_TICKS 100000
/* A launch that takes longer than this loads code, and most likely submits before it returns. */
#define LAG_MAX_NS 20000

static int relaxed_begin(int *mode)
{
    *mode = CU_CAPTURE_RELAXED;
    return __atomic_load_n(&shim.captures, __ATOMIC_RELAXED) > 0 && real.cuThreadExchangeStreamCaptureMode &&
           !real.cuThreadExchangeStreamCaptureMode(mode);
}

static void relaxed_end(int changed, int *mode)
{
    if (changed)
        real.cuThreadExchangeStreamCaptureMode(mode);
}

int meter_capturing(CUstream stream, int per_thread)
{
    int status = CU_CAPTURE_NONE;
    if (__atomic_load_n(&shim.captures, __ATOMIC_RELAXED) <= 0 || !real.cuStreamIsCapturing)
        return 0;
    CUresult result = real.cuStreamIsCapturing(lane_stream(stream, per_thread), &status);
    return result != CUDA_SUCCESS || status != CU_CAPTURE_NONE;
}

/* The lane is ours, and the stream has nothing of ours in it that is unfinished? */
static int is_dry(struct meter_lane *lane)
{
    if (lane->drained || lane->head == __atomic_load_n(&lane->tail, __ATOMIC_ACQUIRE))
        return 1;
    int mode, changed = relaxed_begin(&mode);
    CUresult result = real.cuEventQuery(lane->ring[(lane->head - 1) % METER_BURSTS].end);
    relaxed_end(changed, &mode);
    return result == CUDA_SUCCESS;
}

static void open_burst(struct meter_lane *lane)
{
    struct origin *origin = origin_of(lane->context);
    lane->drained = is_dry(lane);
    lane->now = (struct meter_burst){.begun_ns = shim_now()};
    if (origin)
        origin_begin(origin, &lane->now, lane);
    lane->open = 1;
}

/* Set the end event. Where that cannot be (no event, no room) the burst just goes on. */
static void close_burst(struct meter_lane *lane, uint64_t ticks)
{
    struct origin *origin = origin_of(lane->context);
    if (lane->head - __atomic_load_n(&lane->tail, __ATOMIC_ACQUIRE) == METER_BURSTS) {
        meter_retire();
        if (lane->head - __atomic_load_n(&lane->tail, __ATOMIC_ACQUIRE) == METER_BURSTS)
            return;
    }
    lane->now.late = ticks - lane->last_at > LATE_TICKS;
    lane->now.end = origin ? origin_record(origin, lane) : NULL;
    if (!lane->now.end)
        return;
    lane->now.predicted_ns += __atomic_exchange_n(&lane->other_ns, 0, __ATOMIC_RELAXED);
    lane->now.launches += (uint32_t)__atomic_exchange_n(&lane->other_launches, 0, __ATOMIC_RELAXED);
    __atomic_fetch_add(&shim_usage(lane->slot)->launches, lane->now.launches, __ATOMIC_RELAXED);
    lane->ring[lane->head % METER_BURSTS] = lane->now;
    __atomic_store_n(&lane->head, lane->head + 1, __ATOMIC_RELEASE);
    lane->closed_at = ticks;
    lane->open = 0;
    lane->drained = 0;
    watcher_poke();
}

static void enter_lane(struct meter_ticket *t, struct meter_lane *lane)
{
    if (lane->open && lane->now.launches) {
        uint64_t ticks = shim_ticks();
        /* A pause, or a kernel that must be measured by itself. */
        if (ticks - lane->last_at > LATE_TICKS || (t->predicted_ns && !t->known))
            close_burst(lane, ticks);
    }
    if (!lane->open)
        open_burst(lane);
}

CUresult meter_begin(struct meter_ticket *t, CUstream stream, int per_thread, const void *kernel, uint64_t blocks)
{
    t->lane = NULL;
    if (shim_mode() != SHIM_ACTIVE || __atomic_load_n(&shim.stopping, __ATOMIC_RELAXED))
        return CUDA_SUCCESS;
    CUcontext context;
    int slot = shim_slot_of_current(&context);
    if (slot == -2)
        return CUDA_SUCCESS;
    if (slot < 0 || (!__atomic_load_n(&shim.self, __ATOMIC_ACQUIRE) && !shim_attach()))
        return CUDA_ERROR_NOT_PERMITTED;
    shim_refresh();
    struct shim_gpu *gpu = &shim.gpu[slot];
    if (__atomic_load_n(&gpu->state, __ATOMIC_RELAXED) != VCUDA_SLOT_OPEN)
        return CUDA_ERROR_NOT_PERMITTED;
    if (meter_capturing(stream, per_thread))
        return CUDA_SUCCESS;
    int limited = __atomic_load_n(&gpu->core_limit, __ATOMIC_RELAXED) < 100;
    CUresult result = limited ? credit_wait(slot) : CUDA_SUCCESS;
    if (result || __atomic_load_n(&shim.stopping, __ATOMIC_RELAXED))
        return result;
    t->slot = slot;
    t->predicted_ns = 0;
    t->known = 1;
    if (limited) {
        t->kernel = predict_kernel(kernel, blocks, &t->predicted_ns, &t->known);
        __atomic_fetch_add(&shim_usage(slot)->inflight_ns, t->predicted_ns, __ATOMIC_RELAXED);
    }
    stream = lane_stream(stream, per_thread);
    t->lane = lane_of(context, stream, slot, 1);
    t->owned = t->lane && lane_take(t->lane);
    if (t->owned)
        enter_lane(t, t->lane);
    return CUDA_SUCCESS;
}

static void add_kind(struct meter_burst *burst, uint16_t kernel)
{
    for (int i = 0; i < burst->kinds; i++)
        if (burst->kind[i].kernel == kernel) {
            burst->kind[i].count++;
            return;
        }
    if (burst->kinds < METER_KINDS) {
        burst->kind[burst->kinds].kernel = kernel;
        burst->kind[burst->kinds++].count = 1;
    }
}

static void add_launch(struct meter_ticket *t, struct meter_lane *lane)
{
    struct meter_burst *burst = &lane->now;
    uint64_t ticks = shim_ticks();
    if (burst->started_ns && !burst->launches) {
        uint64_t lag = shim_now() - burst->started_ns;
        burst->lag_ns = lag < LAG_MAX_NS ? lag : LAG_MAX_NS;
    }
    burst->launches++;
    burst->predicted_ns += t->predicted_ns;
    if (t->predicted_ns)
        add_kind(burst, t->kernel);
    lane->last_at = ticks;
    uint64_t patience = t->predicted_ns ? BURST_TICKS : BURST_TICKS_UNLIMITED;
    uint32_t most = t->predicted_ns ? BURST_LAUNCHES : BURST_LAUNCHES_UNLIMITED;
    if (!t->known || burst->launches >= most || burst->predicted_ns >= BURST_PREDICTED_NS ||
        ticks - lane->closed_at >= patience)
        close_burst(lane, ticks);
}

void meter_end(struct meter_ticket *t, CUresult result)
{
    struct meter_lane *lane = t->lane;
    if (!lane)
        return;
    if (result) {
        if (t->predicted_ns)
            __atomic_fetch_sub(&shim_usage(t->slot)->inflight_ns, t->predicted_ns, __ATOMIC_RELAXED);
        if (t->owned)
            lane_leave(lane);
        return;
    }
    if (t->owned) {
        add_launch(t, lane);
        lane_leave(lane);
    } else {
        __atomic_fetch_add(&lane->other_ns, t->predicted_ns, __ATOMIC_RELAXED);
        __atomic_fetch_add(&lane->other_launches, 1, __ATOMIC_RELAXED);
    }
}

static void end_open(struct meter_lane *lane)
{
    if (!lane_take(lane))
        return;
    if (lane->open && lane->now.launches && lane->context)
        close_burst(lane, shim_ticks());
    lane_leave(lane);
}

static int waiting_matters(CUcontext *context)
{
    if (shim_mode() != SHIM_ACTIVE || !shim.self || __atomic_load_n(&shim.stopping, __ATOMIC_RELAXED))
        return 0;
    return shim_slot_of_current(context) >= 0;
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
    /* Dry only if nobody launched since. */
    if (!lane->open && lane->head == seen)
        lane->drained = 1;
    lane_leave(lane);
}

void meter_before_wait_all(void)
{
    CUcontext context;
    if (!waiting_matters(&context))
        return;
    for (uint32_t i = 0; i < LANES && lanes[i]; i++)
        if (lanes[i]->context == context && lanes[i]->open && !meter_capturing(lanes[i]->stream, 0))
            end_open(lanes[i]);
}
