/* The table of lanes; see lane.c. */
#ifndef SHIM_LANE_H
#define SHIM_LANE_H

#include "meter.h"

#define LANES 1024

extern struct meter_lane *lanes[LANES];
extern uint32_t lane_count;

/* This thread's words, which every launch needs. */
struct meter_thread {
    struct meter_lane *last; /* the lane into which it launched last */
    uint64_t before;         /* the key of its last launch: see predict.c */
};
extern _Thread_local struct meter_thread meter_thread __attribute__((visibility("hidden")));

/* Map the driver's several names for the two default streams to one name each. */
static inline CUstream lane_stream(CUstream stream, int per_thread)
{
    if (!stream && per_thread)
        return CU_STREAM_PER_THREAD;
    return stream == CU_STREAM_LEGACY ? NULL : stream;
}
struct meter_lane *lane_of(CUcontext context, CUstream stream, int slot, int create);
/* Return 1 if the stream's handle means that stream in this thread; another thread's own default stream is not near. */
int lane_is_near(const struct meter_lane *lane);
/* Try to own the launching side. */
static inline int lane_take(struct meter_lane *lane)
{
    return !__atomic_load_n(&lane->busy, __ATOMIC_RELAXED) && !__atomic_exchange_n(&lane->busy, 1, __ATOMIC_ACQUIRE);
}
static inline void lane_leave(struct meter_lane *lane)
{
    __atomic_store_n(&lane->busy, 0, __ATOMIC_RELEASE);
}
/* Return the i-th lane of the table; NULL after the last. */
static inline struct meter_lane *lane_at(uint32_t i)
{
    return i < LANES ? __atomic_load_n(&lanes[i], __ATOMIC_ACQUIRE) : NULL;
}
/* Written by the owner, read by any thread that launches into the stream, and by the watcher. */
static inline int lane_is_rare(const struct meter_lane *lane)
{
    return __atomic_load_n(&lane->rare, __ATOMIC_RELAXED);
}
/* These two belong to the owner, but the watcher reads them before it takes a lane. */
static inline void lane_set_open(struct meter_lane *lane, int open)
{
    __atomic_store_n(&lane->open, open, __ATOMIC_RELAXED);
}
static inline void lane_set_free_at(struct meter_lane *lane, uint64_t ticks)
{
    __atomic_store_n(&lane->free_at, ticks, __ATOMIC_RELAXED);
}
/* Note a launch that enters the stream now, and can begin at `next` by prediction. */
static inline void lane_note_queue(struct meter_lane *lane, uint64_t next, uint64_t ticks)
{
    uint64_t queued = next > ticks ? next - ticks : 0;
    if (!queued)
        lane->now.idle_ns += ticks - lane->free_at;
    if (queued < lane->now.least_ns)
        lane->now.least_ns = queued;
}
/* Return a number that changes with each launch that is counted in bursts or goes without events. */
static inline uint64_t lane_position(const struct meter_lane *lane)
{
    return (uint64_t)__atomic_load_n(&lane->head, __ATOMIC_RELAXED) << 32 |
           __atomic_load_n(&lane->skip, __ATOMIC_RELAXED);
}
uint64_t lane_inflight(const struct meter_lane *lane); /* closed and not yet retired, as predicted; ns */
/* The shortest of the bursts that are the next to end, one a stream; 0: none. */
uint64_t lane_oldest(int slot);
void lane_clear(struct meter_lane *lane);
void lane_forget_all(void);

#endif
