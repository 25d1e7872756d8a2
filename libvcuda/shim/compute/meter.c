/* The launching side of the meter: what each launch passes through.
 *
 * Launches of a stream are bracketed by timing events in bursts. A burst is admitted as a whole (gate.c): for about a
 * millisecond of predicted work, which stands in the usage page as in flight from that moment on; so the launches after its
 * first need neither the clock nor a shared word that others write. It ends when that work is launched, after 64 launches or
 * 0.3 ms, when its turn was closed, and where the program is about to wait for the stream. It begins where the last one ended
 * while the stream has work, and with an event of its own where the stream should have run dry.
 *
 * A program that launches more slowly than the GPU works leaves gaps inside a burst. Predictions tell how long they were:
 * the time from when the stream should have been done until the next launch. They are taken off what the events measure.
 *
 * Nothing is ever recorded into a stream that is being captured, and such launches never wait.
 *
 * No lock: a lane belongs to the thread that is launching into it; another thread that launches into the same stream at the
 * same moment adds its work to the lane's "other" counters, and the owner's next end event covers it.
 */
#include "lane.h"

#define BURST_LAUNCHES 64
/* A program that launches slowly must not pay for two events every few launches: its gaps are known without them. */
#define BURST_TICKS 300000
/* Without a limit nobody waits for the numbers: fewer events, and most launches get none; they are charged as predicted, of
 * about a millisecond at most between two bursts. */
#define BURST_TICKS_UNLIMITED 500000
#define SKIP_MOST 24
#define SKIP_NS 1000000
/* A launch that takes longer than this loads code, and most likely submits before it returns. */
#define LAG_MAX_NS 20000
/* Predictions are no better than this: a stream that should be busy for less is taken to be dry. */
#define DRY_TICKS 10000
#define TAKE_TRIES 10000

_Thread_local struct meter_lane *meter_last;
static const uint64_t no_turns = VCUDA_TURN_FREE;

int meter_capturing(CUstream stream, int per_thread)
{
    int status = CU_CAPTURE_NONE;
    if (__atomic_load_n(&shim.captures, __ATOMIC_RELAXED) <= 0 || !real.cuStreamIsCapturing)
        return 0;
    CUresult result = real.cuStreamIsCapturing(lane_stream(stream, per_thread), &status);
    return result != CUDA_SUCCESS || status != CU_CAPTURE_NONE;
}

static int is_unlimited(int slot)
{
    return __atomic_load_n(&shim.gpu[slot].core_limit, __ATOMIC_RELAXED) >= 100;
}

/* What was launched without events since the last burst is charged with the one that opens. */
static void take_skipped(struct meter_lane *lane)
{
    /* Two threads that skip at once may leave more than was given. */
    uint32_t unused = __atomic_exchange_n(&lane->skip, 0, __ATOMIC_RELAXED);
    lane->now.skipped = lane->skip_given > unused ? lane->skip_given - unused : 0;
    lane->now.skipped_ns = __atomic_exchange_n(&lane->skipped_ns, 0, __ATOMIC_RELAXED);
    lane->now.skipping_since_ns = lane->skipping_since_ns;
    lane->skip_given = 0;
}

static void open_burst(struct meter_lane *lane, const struct admission *admitted, int alone)
{
    struct origin *origin = origin_of(lane->context);
    struct vcuda_gpu_usage *usage = shim_usage(lane->slot);
    uint64_t now = shim_now(), ticks = shim_ticks();
    /* All that was launched is known to be done, or should be. */
    if (lane->head == __atomic_load_n(&lane->tail, __ATOMIC_ACQUIRE) || ticks > lane->free_at)
        lane_set_free_at(lane, ticks);
    int dry = alone || ticks + DRY_TICKS > lane->free_at;
    lane->now = (struct meter_burst){.begun_ns = now, .alone = (uint8_t)alone, .contended = gate_is_contended(lane->slot)};
    take_skipped(lane);
    const uint64_t *turn_word =
        __atomic_load_n(&shim.turns, __ATOMIC_ACQUIRE) ? &shim.turns->turn[lane->slot].ends_ns : &no_turns;
    __atomic_store_n(&lane->turn_word, turn_word, __ATOMIC_RELAXED);
    __atomic_store_n(&lane->turn, admitted->turn, __ATOMIC_RELAXED);
    lane->left_ns = (int64_t)admitted->allowance_ns;
    lane->left = BURST_LAUNCHES;
    lane->patience = is_unlimited(lane->slot) ? BURST_TICKS_UNLIMITED : BURST_TICKS;
    lane->opened_at = ticks;
    lane->ended = 0;
    if (origin)
        origin_begin(origin, &lane->now, lane, dry);
    __atomic_store_n(&usage->last_launch_ns, now, __ATOMIC_RELAXED);
    lane_set_open(lane, 1);
}

static uint64_t take_others(struct meter_lane *lane)
{
    lane->now.launches += (uint32_t)__atomic_exchange_n(&lane->other_launches, 0, __ATOMIC_RELAXED);
    return __atomic_exchange_n(&lane->other_ns, 0, __ATOMIC_RELAXED);
}

/* It was opened, but nothing was launched, or nothing can be measured. */
static void drop_burst(struct meter_lane *lane)
{
    struct origin *origin = origin_of(lane->context);
    inflight_less(lane->slot, lane->now.predicted_ns + (uint64_t)(lane->left_ns > 0 ? lane->left_ns : 0));
    __atomic_fetch_add(&lane->skipped_ns, lane->now.skipped_ns, __ATOMIC_RELAXED);
    if (origin)
        origin_discard(origin, &lane->now);
    lane_set_open(lane, 0);
}

/* From a half to one and a half of `most`, by what time it is. */
static uint32_t thrown(uint32_t most, uint64_t ticks)
{
    return most / 2 + (uint32_t)((ticks * 0x9e3779b97f4a7c15ull >> 32) * most >> 32);
}

/* The burst that ends was one of short launches. */
static void give_skips(struct meter_lane *lane, uint64_t ticks)
{
    const struct meter_burst *burst = &lane->now;
    if (burst->alone || !burst->predicted_ns || lane->turn != VCUDA_TURN_FREE || !is_unlimited(lane->slot))
        return;
    uint64_t most = (uint64_t)SKIP_NS * burst->launches / burst->predicted_ns;
    most = most < SKIP_MOST * burst->launches ? most : SKIP_MOST * burst->launches;
    lane->skip_given = thrown((uint32_t)most, ticks);
    lane->skipping_since_ns = burst->closed_ns;
    __atomic_store_n(&lane->skip, lane->skip_given, __ATOMIC_RELAXED);
}

/* Set the end event. While there is no room for the burst it just goes on; without an event it is never measured. */
void meter_close(struct meter_lane *lane)
{
    struct origin *origin = origin_of(lane->context);
    uint64_t ticks = shim_ticks();
    lane->left = BURST_LAUNCHES;
    if (!lane->now.launches && !__atomic_load_n(&lane->other_launches, __ATOMIC_RELAXED)) {
        drop_burst(lane);
        return;
    }
    if (lane->head - __atomic_load_n(&lane->tail, __ATOMIC_ACQUIRE) == METER_BURSTS) {
        meter_retire();
        if (lane->head - __atomic_load_n(&lane->tail, __ATOMIC_ACQUIRE) == METER_BURSTS)
            return;
    }
    lane->now.end = origin ? origin_record(origin, lane) : NULL;
    lane->now.closed_ns = shim_now();
    if (!lane->now.end) {
        meter_give_up(lane);
        return;
    }
    if (ticks > lane->free_at)
        lane->now.idle_ns += ticks - lane->free_at;
    /* Nobody knows when a kernel ends that was not measured before: the next burst gets a start event. */
    if (lane->now.alone)
        lane_set_free_at(lane, ticks);
    /* What it was admitted for and did not launch is no longer in flight; what others launched is. */
    uint64_t others = take_others(lane);
    if (lane->left_ns > 0)
        inflight_less(lane->slot, (uint64_t)lane->left_ns);
    lane->now.counted_ns = lane->now.predicted_ns + others;
    lane->now.predicted_ns += others;
    __atomic_fetch_add(&shim_usage(lane->slot)->launches, lane->now.launches + lane->now.skipped, __ATOMIC_RELAXED);
    lane->ring[lane->head % METER_BURSTS] = lane->now;
    __atomic_store_n(&lane->head, lane->head + 1, __ATOMIC_RELEASE);
    lane_set_open(lane, 0);
    give_skips(lane, ticks);
    watcher_poke();
}

/* Nothing stands in the way of launching right away: the open burst has room, in the same turn, under the same limits. */
static int goes_on(const struct meter_ticket *t, const struct meter_lane *lane)
{
    return lane->open && t->known && (int64_t)t->predicted_ns <= lane->left_ns && lane->left &&
           __atomic_load_n(lane->turn_word, __ATOMIC_SEQ_CST) == lane->turn;
}

/* Charged as predicted. Two threads that skip at once may lose one of two launches. */
static int skips(const struct meter_ticket *t, struct meter_lane *lane)
{
    uint32_t left = __atomic_load_n(&lane->skip, __ATOMIC_RELAXED);
    const uint64_t *turn_word = __atomic_load_n(&lane->turn_word, __ATOMIC_RELAXED);
    if (!left || !t->known ||
        __atomic_load_n(turn_word, __ATOMIC_RELAXED) != __atomic_load_n(&lane->turn, __ATOMIC_RELAXED))
        return 0;
    __atomic_store_n(&lane->skip, left - 1, __ATOMIC_RELAXED);
    __atomic_store_n(&lane->skipped_ns, __atomic_load_n(&lane->skipped_ns, __ATOMIC_RELAXED) + t->predicted_ns,
                     __ATOMIC_RELAXED);
    return 1;
}

static CUresult begin_slow(struct meter_ticket *t, CUstream stream, int per_thread, const void *kernel,
                           uint64_t blocks, int predicted);

CUresult meter_begin(struct meter_ticket *t, CUstream stream, int per_thread, const void *kernel, uint64_t blocks)
{
    struct meter_lane *lane = meter_last;
    if (!lane || lane->stream != lane_stream(stream, per_thread) ||
        lane->epoch != __atomic_load_n(&shim.hot_epoch, __ATOMIC_ACQUIRE))
        return begin_slow(t, stream, per_thread, kernel, blocks, 0);
    t->kernel = predict_kernel(kernel, blocks, &t->predicted_ns, &t->known);
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

/* The GPU's slot if launches there are metered at all; < 0: `*result` is the launch's answer. */
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

static void end_open(struct meter_lane *lane)
{
    if (!lane_take(lane))
        return;
    if (lane->open && lane->context)
        meter_close(lane);
    lane_leave(lane);
}

/* The lane is taken: go on with its burst, or open one on what was admitted. */
static void enter(struct meter_ticket *t, struct meter_lane *lane, const struct admission *admitted)
{
    /* Read before what it stands for: whoever changes that raises it afterwards. */
    unsigned epoch = __atomic_load_n(&shim.hot_epoch, __ATOMIC_SEQ_CST);
    if (lane->open)
        meter_close(lane);
    if (lane->open) {
        /* It could not be closed: the admitted work joins it. */
        lane->left_ns += (int64_t)admitted->allowance_ns;
        lane->turn = admitted->turn;
    } else {
        open_burst(lane, admitted, !t->known);
    }
    /* With a second context, which stream NULL is depends on the current one: ask each time. */
    int ask = __atomic_load_n(&shim.contexts_made, __ATOMIC_SEQ_CST) > 1 ||
              __atomic_load_n(&shim.captures, __ATOMIC_SEQ_CST) > 0;
    lane->epoch = ask ? 0 : epoch;
}

/* `predicted`: the ticket says already what the kernel is. */
static CUresult begin_slow(struct meter_ticket *t, CUstream stream, int per_thread, const void *kernel,
                           uint64_t blocks, int predicted)
{
    CUcontext context;
    CUresult result;
    struct admission admitted;
    t->lane = NULL;
    int slot = metered_slot(&context, &result);
    if (slot < 0 || meter_capturing(stream, per_thread))
        return result;
    t->slot = slot;
    if (!predicted)
        t->kernel = predict_kernel(kernel, blocks, &t->predicted_ns, &t->known);
    struct meter_lane *lane = lane_of(context, lane_stream(stream, per_thread), slot, 1);
    if (!lane)
        return CUDA_SUCCESS; /* no memory: work that is not measured is not held up either */
    if (__atomic_load_n(&lane->open, __ATOMIC_RELAXED) && lane_take(lane)) {
        if (goes_on(t, lane)) {
            t->lane = lane;
            t->owned = 1;
            return CUDA_SUCCESS;
        }
        /* Before waiting: what this lane has launched must be seen to finish. */
        meter_close(lane);
        lane_leave(lane);
    }
    result = gate_admit(lane, t->predicted_ns, predict_is_collective(kernel), &admitted);
    if (result || __atomic_load_n(&shim.stopping, __ATOMIC_RELAXED))
        return result;
    t->lane = lane;
    t->owned = lane_take(lane);
    if (t->owned && (lane->context != context || lane->stream != lane_stream(stream, per_thread))) {
        /* While this launch waited, the lane became another stream's, or its context has ended. */
        t->lane = NULL;
        lane_leave(lane);
        inflight_less(slot, admitted.allowance_ns);
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
        uint64_t lag = shim_now() - burst->started_ns;
        burst->lag_ns = lag < LAG_MAX_NS ? lag : LAG_MAX_NS;
        lane_set_free_at(lane, ticks);
    }
    if (ticks > lane->free_at) {
        burst->idle_ns += ticks - lane->free_at;
        lane_set_free_at(lane, ticks);
    }
    lane_set_free_at(lane, lane->free_at + t->predicted_ns);
    lane->left_ns -= (int64_t)t->predicted_ns;
    burst->predicted_ns += t->predicted_ns;
    burst->launches++;
    add_kind(burst, t);
    if (--lane->left == 0 || !t->known || lane->left_ns <= 0 || ticks - lane->opened_at >= lane->patience)
        meter_close(lane);
}

/* Work that others launched while the lane was taken is covered by the owner's burst. Where it has none, because it only probed
 * or closed one, that work gets an end event of its own: nobody else would ever see that it is done. */
void meter_cover_others(struct meter_lane *lane)
{
    if (lane->open || !lane->context || !__atomic_load_n(&lane->other_launches, __ATOMIC_ACQUIRE))
        return;
    lane->now = (struct meter_burst){.begun_ns = shim_now(), .contended = 1};
    lane->left_ns = 0;
    lane_set_open(lane, 1);
    meter_close(lane);
}

static void add_to_others(struct meter_lane *lane, uint64_t predicted_ns)
{
    __atomic_fetch_add(&lane->other_ns, predicted_ns, __ATOMIC_RELAXED);
    __atomic_fetch_add(&lane->other_launches, 1, __ATOMIC_RELEASE);
    /* Whoever has it leaves it within some microseconds; where not, the watcher finds it. */
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
    /* Dry only if nobody launched since. */
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
