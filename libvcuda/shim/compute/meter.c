/* The launching side of the meter, which every launch passes through.
 *
 * Launches of a stream are bracketed by timing events in bursts. A burst is admitted as a whole (gate.c): for about a
 * millisecond of predicted work, which stands in the usage page as in flight from that moment on. So the launches after
 * its first need neither the clock nor a shared word that others write. A burst ends when that work is launched, after
 * 64 launches or 0.3 ms, when its turn was closed, and when the program is about to wait for the stream. It begins at
 * the end of the previous one while the stream has work, and with an event of its own if the stream should have run
 * dry.
 *
 * A program that launches more slowly than the GPU works leaves gaps inside a burst. Predictions give their length: the
 * time from when the stream should have been done until the next launch. They are subtracted from the measured time.
 *
 * Nothing is ever recorded into a stream that is being captured, and such launches never wait.
 *
 * No lock: a lane belongs to the thread that is launching into it. Another thread that launches into the same stream at
 * the same moment adds its work to the lane's "other" counters, and the owner's next end event covers it. */
#include "ahead.h"

#include <sched.h>

#define TAKE_TRIES 10000
#define HELD_TRIES 100000

_Thread_local struct meter_thread meter_thread;

int meter_capturing(CUstream stream, int per_thread)
{
    int status = CU_CAPTURE_NONE;
    if (__atomic_load_n(&shim.captures, __ATOMIC_RELAXED) <= 0 || !real.cuStreamIsCapturing)
        return 0;
    CUresult result = real.cuStreamIsCapturing(lane_stream(stream, per_thread), &status);
    return result != CUDA_SUCCESS || status != CU_CAPTURE_NONE;
}

/* Return 1 if the launch may go right away: the open burst has room, in the same turn, under the same limits. */
static int goes_on(const struct meter_ticket *t, const struct meter_lane *lane)
{
    return lane->open && t->known && (int64_t)t->predicted_ns <= lane->left_ns && lane->left &&
           __atomic_load_n(lane->turn_word, __ATOMIC_SEQ_CST) == lane->turn;
}

/* Return 1 if the launch needs no events: it is charged as predicted. Two threads that skip at once may lose one of two
 * launches. */
static int skips(const struct meter_ticket *t, struct meter_lane *lane)
{
    uint32_t left = __atomic_load_n(&lane->skip, __ATOMIC_RELAXED);
    const uint64_t *turn_word = __atomic_load_n(&lane->turn_word, __ATOMIC_RELAXED);
    uint64_t left_ns = __atomic_load_n(&lane->skip_left_ns, __ATOMIC_RELAXED);
    if (!left || !t->known || t->predicted_ns > left_ns ||
        __atomic_load_n(turn_word, __ATOMIC_RELAXED) != __atomic_load_n(&lane->turn, __ATOMIC_RELAXED))
        return 0;
    __atomic_store_n(&lane->skip, left - 1, __ATOMIC_RELAXED);
    __atomic_store_n(&lane->skip_left_ns, left_ns - t->predicted_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&lane->skipped_ns, __atomic_load_n(&lane->skipped_ns, __ATOMIC_RELAXED) + t->predicted_ns,
                     __ATOMIC_RELAXED);
    return 1;
}

static CUresult begin_slow(struct meter_ticket *t, CUstream stream, int per_thread, const void *kernel, uint64_t blocks,
                           int predicted);

CUresult meter_begin(struct meter_ticket *t, CUstream stream, int per_thread, const void *kernel, uint64_t blocks)
{
    struct meter_lane *lane = meter_thread.last;
    if (!lane || lane->stream != lane_stream(stream, per_thread) ||
        __atomic_load_n(&lane->epoch, __ATOMIC_RELAXED) != __atomic_load_n(&shim.hot_epoch, __ATOMIC_ACQUIRE))
        return begin_slow(t, stream, per_thread, kernel, blocks, 0);
    t->kernel = predict_kernel(kernel, blocks, lane_is_rare(lane), &t->predicted_ns, &t->known);
    if (skips(t, lane)) {
        t->lane = NULL;
        return CUDA_SUCCESS;
    }
    if (lane_take(lane)) {
        if (__builtin_expect(goes_on(t, lane), 1)) {
            t->lane = lane;
            t->owned = 1;
            return CUDA_SUCCESS;
        }
        lane_leave(lane);
    }
    return begin_slow(t, stream, per_thread, kernel, blocks, 1);
}

/* Return the slot of the GPU if its launches are metered at all; < 0: `*result` is the result of the launch. */
static int metered_slot(CUcontext *context, CUresult *result)
{
    *result = CUDA_SUCCESS;
    if (shim_mode() != SHIM_ACTIVE || __atomic_load_n(&shim.stopping, __ATOMIC_RELAXED))
        return -1;
    int slot = shim_slot_of_current(context);
    if (slot == -2)
        return -1;
    if (slot >= 0 && (__atomic_load_n(&shim.self, __ATOMIC_ACQUIRE) || shim_attach())) {
        shim_refresh();
        if (__atomic_load_n(&shim.gpu[slot].state, __ATOMIC_RELAXED) == VCUDA_SLOT_OPEN)
            return slot;
    }
    *result = CUDA_ERROR_NOT_PERMITTED;
    return -1;
}

/* Close the held bursts of other streams. One that stays open could get behind the burst that opens now, by a wait between
 * the streams, and would be let go before it. */
static void close_held(const struct meter_lane *but)
{
    struct meter_lane *lane;
    for (uint32_t i = 0; (lane = lane_at(i)); i++) {
        if (lane == but || lane->context != but->context || !__atomic_load_n(&lane->open, __ATOMIC_RELAXED) ||
            !lane_is_near(lane) || !lane_take(lane))
            continue;
        if (lane->open && lane->context && lane->now.held && !meter_capturing(lane->stream, 0))
            meter_close(lane);
        lane_leave(lane);
    }
}

/* With the lane taken: continue its burst, or open a new one for the admitted work. */
static void enter(struct meter_ticket *t, struct meter_lane *lane, const struct admission *admitted)
{
    /* Read before the state that it stands for: a thread that changes that state raises it afterwards. */
    unsigned epoch = __atomic_load_n(&shim.hot_epoch, __ATOMIC_SEQ_CST);
    if (lane->open)
        meter_close(lane);
    /* They run before the burst, which may have to wait. */
    if (!lane->open && admitted->held && __atomic_load_n(&lane->skip_given, __ATOMIC_RELAXED))
        meter_charge_skipped(lane);
    if (lane->open) {
        /* It could not be closed: the admitted work joins it. */
        if (lane->now.held)
            ahead_join(lane, admitted);
        else if (admitted->held)
            inflight_add(lane->slot, admitted->allowance_ns);
        lane->left_ns += (int64_t)admitted->allowance_ns;
        lane->turn = admitted->turn;
    } else {
        if (admitted->held)
            close_held(lane);
        meter_open(lane, admitted, !t->known);
    }
    /* With a second context, the meaning of stream NULL depends on the current one: look it up each time. */
    int ask = __atomic_load_n(&shim.contexts_made, __ATOMIC_SEQ_CST) > 1 ||
              __atomic_load_n(&shim.captures, __ATOMIC_SEQ_CST) > 0;
    __atomic_store_n(&lane->epoch, ask ? 0 : epoch, __ATOMIC_RELAXED);
}

/* `predicted`: the ticket holds the kernel and its prediction already. */
static CUresult begin_slow(struct meter_ticket *t, CUstream stream, int per_thread, const void *kernel, uint64_t blocks,
                           int predicted)
{
    CUcontext context;
    CUresult result;
    struct admission admitted;
    t->lane = NULL;
    int slot = metered_slot(&context, &result);
    if (slot < 0 || meter_capturing(stream, per_thread))
        return result;
    t->slot = slot;
    struct meter_lane *lane = lane_of(context, lane_stream(stream, per_thread), slot, 1);
    if (!lane)
        return CUDA_SUCCESS; /* no memory: work that is not measured is not held up either */
    if (!predicted)
        t->kernel = predict_kernel(kernel, blocks, lane_is_rare(lane), &t->predicted_ns, &t->known);
    if (__atomic_load_n(&lane->open, __ATOMIC_RELAXED) && lane_take(lane)) {
        if (goes_on(t, lane)) {
            t->lane = lane;
            t->owned = 1;
            return CUDA_SUCCESS;
        }
        /* Before waiting: this lane's launches must be seen to finish. */
        meter_close(lane);
        lane_leave(lane);
    }
    result = gate_admit(lane, t->predicted_ns, predict_is_collective(kernel), &admitted);
    if (result || __atomic_load_n(&shim.stopping, __ATOMIC_RELAXED))
        return result;
    t->lane = lane;
    t->owned = lane_take(lane);
    /* Work that joined the owner's burst from outside would be in flight before that burst may run. */
    for (int i = 0; admitted.held && !t->owned && i < HELD_TRIES; i++) {
        sched_yield();
        t->owned = lane_take(lane);
    }
    if (admitted.held && !t->owned)
        t->lane = NULL; /* the owner does not return from the driver; the launch will wait there, too */
    else if (t->owned && (lane->context != context || lane->stream != lane_stream(stream, per_thread))) {
        /* While this launch waited, the lane became another stream's, or its context has ended. */
        t->lane = NULL;
        lane_leave(lane);
        inflight_less(slot, admitted.held ? 0 : admitted.allowance_ns);
    } else if (t->owned)
        enter(t, lane, &admitted);
    else
        inflight_less(slot, admitted.allowance_ns - t->predicted_ns);
    return CUDA_SUCCESS;
}

static void add_kind(struct meter_burst *burst, const struct meter_ticket *t)
{
    int at = 0;
    while (at < burst->kinds && burst->kind[at].kernel != t->kernel)
        at++;
    if (at == METER_KINDS)
        return;
    if (at == burst->kinds)
        burst->kind[burst->kinds++].kernel = t->kernel;
    burst->kind[at].count++;
    burst->kind[at].predicted_ns += t->predicted_ns;
}

static void add_launch(const struct meter_ticket *t, struct meter_lane *lane)
{
    struct meter_burst *burst = &lane->now;
    uint64_t ticks = shim_ticks();
    if (!burst->launches && burst->started_ns) {
        burst->lag_ns = shim_now() - burst->started_ns;
        lane_set_free_at(lane, ticks);
    }
    /* A launch that comes a moment after the end of the previous one begins no sooner than one that waited behind
     * it. */
    uint64_t next = lane->free_at + (burst->launches ? lane->gap : burst->started_ns ? 0 : lane->event_gap);
    lane_note_queue(lane, next, ticks);
    burst->behind += burst->launches && next >= ticks;
    lane_set_free_at(lane, (next > ticks ? next : ticks) + t->predicted_ns);
    lane->left_ns -= (int64_t)t->predicted_ns;
    burst->predicted_ns += t->predicted_ns;
    burst->launches++;
    add_kind(burst, t);
    if (--lane->left == 0 || !t->known || lane->left_ns <= 0 || ticks - lane->opened_at >= lane->patience)
        meter_close(lane);
}

static void add_to_others(struct meter_lane *lane, uint64_t predicted_ns)
{
    __atomic_fetch_add(&lane->other_ns, predicted_ns, __ATOMIC_RELAXED);
    __atomic_fetch_add(&lane->other_launches, 1, __ATOMIC_RELEASE);
    /* The owner leaves the lane within some microseconds; otherwise the watcher covers the work. */
    for (int try = 0; try < TAKE_TRIES && !__atomic_load_n(&lane->open, __ATOMIC_RELAXED); try++)
        if (lane_take(lane)) {
            meter_cover_others(lane);
            lane_leave(lane);
            return;
        }
}

void meter_end(struct meter_ticket *t, CUresult result)
{
    struct meter_lane *lane = t->lane;
    if (!lane)
        return;
    if (t->owned) {
        if (!result)
            add_launch(t, lane);
        lane_leave(lane);
    } else if (result) {
        inflight_less(t->slot, t->predicted_ns);
    } else {
        add_to_others(lane, t->predicted_ns);
    }
}
