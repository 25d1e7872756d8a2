/* Lanes: one per stream. The launching thread finds and fills it; any thread that retires empties it. */
#include "lane.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define LINE 64
_Static_assert(offsetof(struct meter_lane, context) == LINE, "a launch without events needs one cache line");

struct meter_lane *lanes[LANES];
uint32_t lane_count;

static uint64_t thread_key(void)
{
    static _Thread_local char here;
    return (uint64_t)(uintptr_t)&here;
}

int lane_is_near(const struct meter_lane *lane)
{
    return lane->stream != CU_STREAM_PER_THREAD || lane->thread == thread_key();
}

static int is_of(const struct meter_lane *lane, CUcontext context, CUstream stream, uint64_t thread)
{
    return lane->context == context && lane->stream == stream && lane->thread == thread;
}

/* The last position of each lane. It is a hint: a lost or stale one costs a search, so it needs no lock. */
_Static_assert(LANES == 1024, "the upper twelve bits of a key name one of 4 * LANES hints");
static struct meter_lane *hints[4 * LANES];

static struct meter_lane **hint_of(CUcontext context, CUstream stream, uint64_t thread)
{
    uint64_t key = ((uint64_t)(uintptr_t)stream ^ (uint64_t)(uintptr_t)context << 7 ^ thread) * 0x9e3779b97f4a7c15ull;
    return &hints[key >> 52];
}

static struct meter_lane *search(CUcontext context, CUstream stream, uint64_t thread)
{
    uint32_t n = __atomic_load_n(&lane_count, __ATOMIC_ACQUIRE);
    for (uint32_t i = 0; i < n && i < LANES; i++) {
        struct meter_lane *lane = __atomic_load_n(&lanes[i], __ATOMIC_ACQUIRE);
        if (lane && is_of(lane, context, stream, thread))
            return lane;
    }
    return NULL;
}

static struct meter_lane *find(CUcontext context, CUstream stream, uint64_t thread)
{
    struct meter_lane **hint = hint_of(context, stream, thread), *lane = __atomic_load_n(hint, __ATOMIC_ACQUIRE);
    if (lane && is_of(lane, context, stream, thread))
        return lane;
    lane = search(context, stream, thread);
    if (lane)
        __atomic_store_n(hint, lane, __ATOMIC_RELEASE);
    return lane;
}

/* Take over an empty lane: a program that creates and destroys streams for ever must not fill the table. */
static struct meter_lane *recycle(void)
{
    for (uint32_t i = 0; i < LANES; i++) {
        struct meter_lane *lane = __atomic_load_n(&lanes[i], __ATOMIC_ACQUIRE);
        if (!lane || !lane_take(lane))
            continue;
        if (!lane->open && !__atomic_load_n(&lane->other_launches, __ATOMIC_ACQUIRE) &&
            lane->head == __atomic_load_n(&lane->tail, __ATOMIC_ACQUIRE)) {
            meter_charge_skipped(lane);
            return lane;
        }
        lane_leave(lane);
    }
    return NULL;
}

static struct meter_lane *make(CUcontext context, CUstream stream, uint64_t thread, int slot)
{
    struct meter_lane *lane = NULL;
    uint32_t n = __atomic_load_n(&lane_count, __ATOMIC_RELAXED);
    int new = n < LANES;
    if (new) {
        if (posix_memalign((void **)&lane, LINE, sizeof *lane) != 0)
            return NULL;
        memset(lane, 0, sizeof *lane);
        lane->busy = 1;
    } else {
        lane = recycle();
    }
    if (!lane)
        return NULL;
    if (lane->context != context)
        lane->last_end = NULL; /* an event of another context is of no use here */
    lane->context = context;
    lane->stream = stream;
    lane->thread = thread;
    lane->slot = slot;
    __atomic_store_n(&lane->epoch, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&lane->rare, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&lane->calm, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&lane->proven, 0, __ATOMIC_RELAXED);
    lane->dry_at = UINT64_MAX;
    lane_set_free_at(lane, 0);
    __atomic_store_n(&lane->skip, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&lane->skip_given, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&lane->skip_left_ns, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&lane->skip_counted_ns, 0, __ATOMIC_RELAXED);
    lane->skipped_ns = 0;
    if (new) {
        uint32_t at = __atomic_fetch_add(&lane_count, 1, __ATOMIC_ACQ_REL);
        if (at >= LANES) {
            free(lane);
            return NULL;
        }
        __atomic_store_n(&lanes[at], lane, __ATOMIC_RELEASE);
    }
    lane_leave(lane);
    return lane;
}

struct meter_lane *lane_of(CUcontext context, CUstream stream, int slot, int create)
{
    uint64_t thread = stream == CU_STREAM_PER_THREAD ? thread_key() : 0;
    if (meter_thread.last && is_of(meter_thread.last, context, stream, thread))
        return meter_thread.last;
    struct meter_lane *lane = find(context, stream, thread);
    if (!lane && create)
        lane = make(context, stream, thread, slot);
    if (lane)
        meter_thread.last = lane;
    return lane;
}

uint64_t lane_inflight(const struct meter_lane *lane)
{
    uint64_t sum = 0;
    uint32_t head = __atomic_load_n(&lane->head, __ATOMIC_ACQUIRE);
    for (uint32_t i = __atomic_load_n(&lane->tail, __ATOMIC_ACQUIRE); i != head; i++)
        sum += lane->ring[i % METER_BURSTS].counted_ns;
    return sum;
}

uint64_t lane_oldest(int slot)
{
    uint64_t least = 0;
    struct meter_lane *lane;
    for (uint32_t i = 0; (lane = lane_at(i)); i++) {
        uint32_t tail = __atomic_load_n(&lane->tail, __ATOMIC_ACQUIRE);
        if (lane->slot != slot || tail == __atomic_load_n(&lane->head, __ATOMIC_ACQUIRE))
            continue;
        uint64_t counted = lane->ring[tail % METER_BURSTS].counted_ns;
        least = !least || counted < least ? counted : least;
    }
    return least;
}

/* Forget everything in the lane without asking the driver about its events: they are gone or about to be. */
void lane_clear(struct meter_lane *lane)
{
    uint64_t counted =
        lane->open && !lane->now.held ? lane->now.predicted_ns + (uint64_t)(lane->left_ns > 0 ? lane->left_ns : 0) : 0;
    for (uint32_t i = lane->tail; i != lane->head; i++)
        counted += lane->ring[i % METER_BURSTS].counted_ns;
    counted += lane->open ? lane->now.skipped_counted_ns : lane->skip_counted_ns;
    inflight_less(lane->slot, counted + __atomic_exchange_n(&lane->other_ns, 0, __ATOMIC_RELAXED));
    lane->context = NULL;
    lane_set_open(lane, 0);
    lane->tail = lane->head;
    lane->last_end = NULL;
    lane_set_free_at(lane, 0);
    __atomic_store_n(&lane->epoch, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&lane->skip, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&lane->skip_given, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&lane->skip_left_ns, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&lane->skip_counted_ns, 0, __ATOMIC_RELAXED);
    lane->skipped_ns = 0;
}

/* In a forked child: abandon the memory of the parent's lanes instead of freeing it, as a lock in it may be held for
 * ever. */
void lane_forget_all(void)
{
    memset(lanes, 0, sizeof lanes);
    memset(hints, 0, sizeof hints);
    lane_count = 0;
    meter_thread.last = NULL;
}
