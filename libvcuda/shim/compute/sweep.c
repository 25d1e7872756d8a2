/* The watcher's work on lanes: it ends bursts without new launches, covers work that launching threads left uncovered,
 * and sets the clocks. Also the end of a stream. */
#include "ahead.h"

#include <sched.h>

/* At 20 ppm the clocks of host and GPU drift apart by two microseconds in this time. */
#define PROBE_NS 100000000ull
/* The interval after a probe that was behind other work. */
#define PROBE_AGAIN_NS 10000000ull
/* Far longer than the launches without events between two bursts take. Where they are rare (burst.c), the page is never
 * behind by more; shorter than the time for which the watcher stays quick. */
#define SKIPS_STALE_NS 5000000ull
#define SKIPS_STALE_RARE_NS 30000000ull

/* Count work in flight as predicted: its events may lie on both sides of the pause. */
void meter_restart(void)
{
    struct meter_lane *lane;
    if (!meter_lock())
        return;
    for (uint32_t i = 0; (lane = lane_at(i)); i++) {
        struct origin *origin = origin_of(lane->context);
        for (uint32_t at = lane->tail; origin && at != __atomic_load_n(&lane->head, __ATOMIC_ACQUIRE); at++) {
            struct meter_burst *burst = &lane->ring[at % METER_BURSTS];
            origin_return(origin, burst->base);
            burst->base = NULL;
            burst->contended = 1;
        }
        if (lane_take(lane)) {
            lane->now.contended = 1;
            lane_leave(lane);
        }
    }
    origin_restart();
    meter_unlock();
}

/* Make the lane's context current in this thread for the moment; return 0 if that is impossible. A per-thread stream
 * belongs to another thread. */
static int enter_context(const struct meter_lane *lane)
{
    return lane->stream != CU_STREAM_PER_THREAD && real.cuCtxPushCurrent_v2 && real.cuCtxPopCurrent_v2 &&
           !real.cuCtxPushCurrent_v2(lane->context);
}

static void leave_context(void)
{
    CUcontext popped;
    real.cuCtxPopCurrent_v2(&popped);
}

static void close_for(struct meter_lane *lane)
{
    if (!enter_context(lane)) {
        meter_give_up(lane);
        return;
    }
    meter_close(lane);
    leave_context();
}

/* Return 1 if an event can pass now, and disturbs no other claim: it makes the GPU switch to this process, which costs the present holder
 * some tenths of a millisecond. */
static int is_undisturbed(int slot)
{
    return !ahead_is_holding() && !gate_is_contended(slot) && (!gate_gives_turns(slot) || gate_has_turn(slot));
}

/* Probe the clocks. A stream may join a capture at any moment, so no stream gets an event during a capture; and
 * contexts must not be destroyed meanwhile. */
void meter_probe(void)
{
    struct meter_lane *lane;
    uint64_t now = shim_now();
    if (!meter_try_lock())
        return;
    /* With the lock held: see hooks/capture.c. */
    for (uint32_t i = 0; (lane = lane_at(i)) && __atomic_load_n(&shim.captures, __ATOMIC_SEQ_CST) <= 0; i++) {
        struct origin *origin = lane->context && is_undisturbed(lane->slot) ? origin_of(lane->context) : NULL;
        if (!origin || !origin->base || now - origin->probed_ns < PROBE_NS || now - origin->tried_ns < PROBE_AGAIN_NS ||
            !lane_take(lane))
            continue;
        int in_use = lane->context && !lane->ended && now - lane->now.begun_ns < PROBE_NS;
        if (in_use && enter_context(lane)) {
            origin->tried_ns = now;
            origin_probe(origin, lane);
            meter_cover_others(lane);
            leave_context();
        }
        lane_leave(lane);
    }
    meter_unlock();
}

static int has_others(const struct meter_lane *lane)
{
    return __atomic_load_n(&lane->other_launches, __ATOMIC_ACQUIRE) != 0;
}

/* Charge launches of others as predicted if no event can be recorded behind them. */
static void give_up_others(struct meter_lane *lane)
{
    __atomic_store_n(&lane->other_launches, 0, __ATOMIC_RELAXED);
    meter_charge_skipped(lane);
}

/* Return 1 if launches without events from before a pause still count as in flight, as the GPU's turns would wait for
 * them. */
static int has_stale_skips(const struct meter_lane *lane)
{
    return !__atomic_load_n(&lane->open, __ATOMIC_RELAXED) &&
           __atomic_load_n(&lane->skip_counted_ns, __ATOMIC_RELAXED) &&
           shim_now() - __atomic_load_n(&lane->skipping_since_ns, __ATOMIC_RELAXED) >
               (lane_is_rare(lane) ? SKIPS_STALE_RARE_NS : SKIPS_STALE_NS);
}

/* Cover launches of other threads before leaving a lane. */
static void cover(struct meter_lane *lane, int captures)
{
    if (lane->open || !lane->context || lane->ended || !has_others(lane))
        return;
    if (captures || !enter_context(lane)) {
        give_up_others(lane);
        return;
    }
    meter_cover_others(lane);
    leave_context();
}

void meter_sweep(uint64_t patience_ns)
{
    /* A stream may join a capture at any moment, so none gets an event meanwhile; and contexts must not be
     * destroyed. */
    if (!meter_try_lock())
        return;
    int captures = __atomic_load_n(&shim.captures, __ATOMIC_SEQ_CST) > 0;
    struct meter_lane *lane;
    for (uint32_t i = 0; (lane = lane_at(i)); i++) {
        int64_t since = (int64_t)(shim_ticks() - __atomic_load_n(&lane->free_at, __ATOMIC_RELAXED));
        int open = __atomic_load_n(&lane->open, __ATOMIC_RELAXED), others = has_others(lane);
        int stale = has_stale_skips(lane);
        if ((!open && !others && !stale) || (open && since < (int64_t)patience_ns) || !lane_take(lane))
            continue;
        since = (int64_t)(shim_ticks() - lane->free_at);
        if (lane->open && lane->context && since >= (int64_t)patience_ns)
            captures ? meter_give_up(lane) : close_for(lane);
        cover(lane, captures);
        if (stale && lane->context && has_stale_skips(lane))
            meter_charge_skipped(lane);
        lane_leave(lane);
    }
    meter_unlock();
}

/* Take the lane. Its owner at most records an event; a program that still launches into the stream is in error. */
static int take_patiently(struct meter_lane *lane)
{
    for (int i = 0; i < 100000; i++) {
        if (lane_take(lane))
            return 1;
        sched_yield();
    }
    return 0;
}

void meter_before_end(CUstream stream)
{
    struct meter_lane *lane;
    if (shim_mode() != SHIM_ACTIVE || __atomic_load_n(&shim.stopping, __ATOMIC_RELAXED) ||
        (uintptr_t)stream <= (uintptr_t)CU_STREAM_PER_THREAD)
        return;
    for (uint32_t i = 0; (lane = lane_at(i)); i++) {
        if (lane->stream != stream || !take_patiently(lane))
            continue;
        lane->ended = 1;
        if (lane->open && lane->context && !meter_capturing(stream, 0))
            close_for(lane);
        if (lane->open && lane->context)
            meter_give_up(lane);
        if (lane->context && (has_others(lane) || __atomic_load_n(&lane->skip_given, __ATOMIC_RELAXED)))
            give_up_others(lane);
        lane_leave(lane);
    }
}
