/* Bursts: how the launches of a stream are bracketed by events, and which launches get none. See meter.c. */
#include "ahead.h"

#define BURST_LAUNCHES 64
/* A program that launches slowly must not pay for two events every few launches: its gaps are known without them. */
#define BURST_TICKS 300000
/* Without a limit the numbers are not urgent, so there are fewer events. */
#define BURST_TICKS_UNLIMITED 500000
/* Most launches get no events; they are charged as predicted. Between two bursts of a claim with a limit, they add up
 * to a tenth of a millisecond at most. Otherwise a program that waits for each of its short kernels would pay more for
 * the events of each kernel than for the kernel. */
#define SKIP_MOST 24
#define SKIP_NS 100000
#define SKIP_UNLIMITED_NS 1000000
/* A program that launches more slowly than the GPU works, without a limit and with the GPU to itself, pays for each event
 * with its own time, and nobody waits for the numbers. On an H200, measuring a tenth as often reduces the overhead of two
 * kernels and a wait from 3.0 to 0.9 %. The work of a GPU that is behind by QUEUED_TICKS at the end of a burst costs the
 * program nothing to measure. */
#define SKIP_MOST_RARE 240
#define SKIP_RARE_NS 10000000
#define QUEUED_TICKS 100000
/* Bursts in a row at whose ends it was not behind: about a step of a training. In a program that is ahead of the GPU in a
 * part of each step, a kernel takes less behind others than by itself, which only its bursts show: see decision 0068. */
#define CALM_BURSTS 32
/* Nor does a GPU that is behind need to be measured more often while one short kernel (or graph) follows itself, and that
 * many bursts in a row took what was predicted. Bursts of few launches are of long kernels, which cost nothing to
 * measure. */
#define PROVEN_BURSTS 4
#define PROVEN_LAUNCHES 8
/* Predictions are no better than this: a stream that should be busy for less is taken to be dry. */
#define DRY_TICKS 10000

static int is_unlimited(int slot)
{
    return gate_limit(slot) >= 100;
}

/* Charge launches without events since the last burst together with the one that opens. */
static void take_skipped(struct meter_lane *lane)
{
    /* Two threads that skip at once may leave more than was given. */
    uint32_t unused = __atomic_exchange_n(&lane->skip, 0, __ATOMIC_RELAXED);
    uint32_t given = __atomic_exchange_n(&lane->skip_given, 0, __ATOMIC_RELAXED);
    lane->kept_skip = unused <= given ? unused : 0;
    lane->kept_skip_ns = __atomic_load_n(&lane->skip_left_ns, __ATOMIC_RELAXED);
    lane->now.skipped = unused <= given ? given - unused : 0;
    lane->now.skipped_ns = __atomic_exchange_n(&lane->skipped_ns, 0, __ATOMIC_RELAXED);
    lane->now.skipping_since_ns = lane->skipping_since_ns;
    lane->now.skipped_counted_ns = lane->skip_counted_ns;
    __atomic_store_n(&lane->skip_left_ns, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&lane->skip_counted_ns, 0, __ATOMIC_RELAXED);
}

void meter_charge_skipped(struct meter_lane *lane)
{
    lane->now = (struct meter_burst){.begun_ns = lane->skipping_since_ns};
    lane->left_ns = 0;
    take_skipped(lane);
    meter_give_up(lane);
}

/* Count the bursts in a row without a GPU that is behind the program; return their number. */
static uint32_t note_calm(struct meter_lane *lane, uint64_t ticks)
{
    int behind = lane->now.contended || lane->free_at >= ticks + QUEUED_TICKS;
    uint32_t calm = behind ? 0 : __atomic_load_n(&lane->calm, __ATOMIC_RELAXED) + 1;
    __atomic_store_n(&lane->calm, calm, __ATOMIC_RELAXED);
    return calm;
}

/* Hold the burst that opens: it may run in any later turn. Return 1 if it is held. */
static int hold(struct meter_lane *lane, const struct admission *admitted)
{
    lane->now.held = admitted->held ? ahead_open(lane, admitted->allowance_ns) : 0;
    if (lane->now.held)
        __atomic_store_n(&lane->turn_word, &lane->turn, __ATOMIC_RELAXED);
    else if (admitted->held)
        inflight_add(lane->slot, admitted->allowance_ns);
    return lane->now.held != 0;
}

void meter_open(struct meter_lane *lane, const struct admission *admitted, int alone)
{
    struct origin *origin = origin_of(lane->context);
    struct vcuda_gpu_usage *usage = shim_usage(lane->slot);
    uint64_t now = shim_now(), ticks = shim_ticks();
    /* All launched work is known to be done, or should be. */
    if (lane->head == __atomic_load_n(&lane->tail, __ATOMIC_ACQUIRE) || ticks > lane->free_at)
        lane_set_free_at(lane, ticks);
    lane->now = (struct meter_burst){
        .begun_ns = now,
        .alone = (uint8_t)alone,
        .idle = __atomic_load_n(&lane->dry_at, __ATOMIC_RELAXED) == lane_position(lane),
        .contended = gate_is_contended(lane->slot),
    };
    take_skipped(lane);
    if (alone)
        note_calm(lane, ticks);
    /* Right behind the end event of the previous burst, a start event is passed late. */
    lane->now.idle &= lane->now.skipped != 0;
    /* Skipped launches run between the last end event and this burst. */
    int dry = alone || lane->now.skipped || ticks + DRY_TICKS > lane->free_at;
    /* Without an arbiter, no turn can begin before hot_epoch changes: read a word that is at hand anyway. */
    const uint64_t *turn_word =
        __atomic_load_n(&shim.turns, __ATOMIC_ACQUIRE) ? &shim.turns->turn[lane->slot].ends_ns : &lane->turn;
    __atomic_store_n(&lane->turn_word, turn_word, __ATOMIC_RELAXED);
    __atomic_store_n(&lane->turn, admitted->turn, __ATOMIC_RELAXED);
    lane->left_ns = (int64_t)admitted->allowance_ns;
    lane->left = BURST_LAUNCHES;
    lane->patience = is_unlimited(lane->slot) ? BURST_TICKS_UNLIMITED : BURST_TICKS;
    lane->opened_at = ticks;
    lane->ended = 0;
    lane->now.queued_ns = dry ? 0 : lane->free_at - ticks;
    lane->now.least_ns = UINT64_MAX;
    lane->gap = origin ? (uint64_t)duration_gap(origin) : 0;
    lane->event_gap = origin ? (uint64_t)duration_event_gap(origin) : 0;
    if (hold(lane, admitted)) {
        lane->now.queued_ns = 0;
        dry = 1;
    }
    if (origin)
        origin_begin(origin, &lane->now, lane, dry);
    __atomic_store_n(&usage->last_launch_ns, shim_to_page(now), __ATOMIC_RELAXED);
    lane_set_open(lane, 1);
}

static uint64_t take_others(struct meter_lane *lane)
{
    lane->now.launches += (uint32_t)__atomic_exchange_n(&lane->other_launches, 0, __ATOMIC_RELAXED);
    return __atomic_exchange_n(&lane->other_ns, 0, __ATOMIC_RELAXED);
}

/* Drop an open burst in which nothing was launched, or nothing can be measured. */
static void drop_burst(struct meter_lane *lane)
{
    struct origin *origin = origin_of(lane->context);
    if (lane->now.held)
        ahead_give_up(lane, 0);
    else
        inflight_less(lane->slot, lane->now.predicted_ns + (uint64_t)(lane->left_ns > 0 ? lane->left_ns : 0));
    __atomic_fetch_add(&lane->skipped_ns, lane->now.skipped_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&lane->skip_counted_ns, lane->now.skipped_counted_ns, __ATOMIC_RELAXED);
    __atomic_fetch_add(&shim_usage(lane->slot)->launches, lane->now.skipped, __ATOMIC_RELAXED);
    if (origin)
        origin_discard(origin, &lane->now);
    lane_set_open(lane, 0);
}

/* Return between a half and one and a half of `most`, depending on the clock. */
static uint32_t thrown(uint32_t most, uint64_t ticks)
{
    return most / 2 + (uint32_t)((ticks * 0x9e3779b97f4a7c15ull >> 32) * most >> 32);
}

/* Let the next `launches` go without events, up to `work_ns` of predicted work. `counted_ns` of it counts as in flight at
 * once, whether it will be launched or not. */
static void give(struct meter_lane *lane, uint32_t launches, uint64_t work_ns, uint64_t counted_ns)
{
    __atomic_store_n(&lane->skip_given, launches, __ATOMIC_RELAXED);
    if (!launches)
        return;
    __atomic_store_n(&lane->skipping_since_ns, lane->now.closed_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&lane->skip_counted_ns, counted_ns, __ATOMIC_RELAXED);
    inflight_add(lane->slot, counted_ns);
    __atomic_store_n(&lane->skip_left_ns, work_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&lane->skip, launches, __ATOMIC_RELAXED);
}

/* Return the part of `work_ns` that counts as in flight: under a limit all of it, because it is not measured yet, and
 * where there is much of it, because nothing else shows the arbiter that the claim is active. */
static uint64_t counted_of(const struct meter_lane *lane, uint64_t work_ns)
{
    return is_unlimited(lane->slot) && !lane_is_rare(lane) ? 0 : work_ns;
}

/* Let the next launches go without events if the burst that ends had short launches. After a launch that was measured by
 * itself, continue those that it interrupted: another burst would cost two more events. */
static void give_skips(struct meter_lane *lane, const struct origin *origin, uint64_t ticks)
{
    const struct meter_burst *burst = &lane->now;
    if (!burst->predicted_ns || lane->turn != VCUDA_TURN_FREE)
        return;
    int unlimited = is_unlimited(lane->slot);
    if (burst->alone) {
        /* A limit may have been set meanwhile. */
        uint64_t kept_ns = unlimited || lane->kept_skip_ns < SKIP_NS ? lane->kept_skip_ns : SKIP_NS;
        give(lane, lane->kept_skip, kept_ns, counted_of(lane, kept_ns));
        return;
    }
    uint32_t calm = note_calm(lane, ticks);
    int proven = burst->launches >= PROVEN_LAUNCHES && !burst->contended &&
                 __atomic_load_n(&lane->proven, __ATOMIC_RELAXED) > PROVEN_BURSTS;
    int rare = unlimited && (calm > CALM_BURSTS || proven) && origin_is_sure(origin);
    uint64_t work_ns = rare ? SKIP_RARE_NS : unlimited ? SKIP_UNLIMITED_NS : SKIP_NS;
    uint64_t most = work_ns * burst->launches / burst->predicted_ns;
    uint64_t bound = (uint64_t)(rare ? SKIP_MOST_RARE : SKIP_MOST) * burst->launches;
    most = most < bound ? most : bound;
    __atomic_store_n(&lane->rare, rare, __ATOMIC_RELAXED);
    give(lane, thrown((uint32_t)most, ticks), work_ns, counted_of(lane, work_ns));
}

/* Close the burst with its end event. While there is no room for it, it continues; without an event it is never
 * measured. */
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
    lane_note_queue(lane, lane->free_at, ticks);
    /* The end of a kernel that was not measured before cannot be predicted: the next burst gets a start event. */
    if (lane->now.alone)
        lane_set_free_at(lane, ticks);
    /* The part of its admission that it did not launch is no longer in flight; launches by others are. */
    uint64_t others = take_others(lane);
    if (lane->now.held)
        ahead_close(lane, others);
    else if (lane->left_ns > 0)
        inflight_less(lane->slot, (uint64_t)lane->left_ns);
    lane->now.counted_ns = lane->now.skipped_counted_ns + (lane->now.held ? 0 : lane->now.predicted_ns + others);
    lane->now.predicted_ns += others;
    __atomic_fetch_add(&shim_usage(lane->slot)->launches, lane->now.launches + lane->now.skipped, __ATOMIC_RELAXED);
    lane->ring[lane->head % METER_BURSTS] = lane->now;
    __atomic_store_n(&lane->head, lane->head + 1, __ATOMIC_RELEASE);
    lane_set_open(lane, 0);
    give_skips(lane, origin, ticks);
    watcher_poke();
}

/* Cover work that others launched while the lane was taken by the owner's burst. If there is no burst, because the
 * owner only probed or closed one, that work gets an end event of its own: otherwise its end would never be seen. */
void meter_cover_others(struct meter_lane *lane)
{
    if (lane->open || !lane->context || !__atomic_load_n(&lane->other_launches, __ATOMIC_ACQUIRE))
        return;
    lane->now = (struct meter_burst){.begun_ns = shim_now(), .contended = 1};
    take_skipped(lane);
    lane->left_ns = 0;
    lane_set_open(lane, 1);
    /* Behind held work its end would be seen only when that has run, and it would count as in flight until then. */
    if (ahead_is_holding())
        meter_give_up(lane);
    else
        meter_close(lane);
}
