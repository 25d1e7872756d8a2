/* The GPU time of the kernels of a finished burst.
 *
 * Its events are further apart than that, for three reasons.
 *
 * The events themselves, where the burst has a start event of its own. On an idle stream the GPU passes the start event while
 * the host still makes the launch, so the host's time until the launch's return passes between the events, too, and about as
 * much as between two empty events. Behind other work all of it waits in the stream, the host's time does not count, and the
 * GPU needs longer from event to kernel to event. Measured on an H200, kernels of 0.6 to 31 us against CUPTI's durations, empty
 * events 1.28 us apart: (elapsed - host's time - duration) is 1.20 us on an idle stream, 0.6 right behind two events;
 * (elapsed - duration) is 2.2 us behind other work. Where every launch is another kernel, as in PyTorch's programs, the former is
 * 1.5 us: the value taken is in the middle.
 *
 * A kernel of a microsecond is over before its end event is handed over, which takes the host 1.2 to 3 us. The events are then
 * as far apart as the host's calls: a bound, and no measurement. Where the bound is low, it is taken for one of the shortest
 * kernels that there are; where not, the host was interrupted, and nothing is learned.
 *
 * The GPU's own gap from one kernel to the next that waits behind it: 0.87 us where a kernel follows itself, 1.0 to 1.1 in
 * PyTorch's training (CUPTI, H200). No profiler calls that GPU time, and programs of small kernels would be charged a fifth too
 * much. It is taken to be in proportion to what empty events are apart, too.
 *
 * Gaps between its launches, where the program launches more slowly than the GPU works. Predictions tell how long those were
 * (`idle_ns`), and the clock how much the GPU was behind when the burst began. A prediction that is too long hides gaps, and
 * learning from their time would confirm it for ever; so only such bursts teach that the GPU began after the program had closed
 * them: all of their launches were there from the beginning, and the whole time counts.
 */
#include "meter.h"

/* How long after the call the GPU passes a start event on an idle stream, and how well our clock tells (origin.c). */
#define IDLE_NS 1000.0
#define CLOCK_NS 3000.0
/* The GPU was so far behind the program that it is beyond doubt. */
#define BEHIND_NS 20000.0
/* A launch that took longer loaded code, or was interrupted: nobody knows when it was submitted. */
#define LAG_SURE_NS 20000.0
/* Of what two empty events are apart; more than five microseconds was disturbed by another tenant's slice. */
#define EMPTY_MOST_NS 5000.0
#define EMPTY_IDLE 1.06
#define EMPTY_AFTER_ZERO 0.49
#define EMPTY_BEHIND 1.72
#define EMPTY_GAP 0.75
/* An end event that came late is passed within so much of when it was handed over. Up to which bound it hides one of the
 * shortest kernels, and how long those take. */
#define EMPTY_LATE 1.0
#define EMPTY_SHORT 2.5
#define EMPTY_SHORTEST 0.75

static double empty_of(const struct origin *origin)
{
    double empty;
    __atomic_load(&origin->overhead_ns, &empty, __ATOMIC_RELAXED);
    return empty < EMPTY_MOST_NS ? empty : 0;
}

double duration_gap(const struct origin *origin)
{
    return EMPTY_GAP * empty_of(origin);
}

double duration_event_gap(const struct origin *origin)
{
    return EMPTY_BEHIND * empty_of(origin);
}

/* Return the time that the events around a burst add, given when the start event was passed after it was handed over. */
static double events_take(const struct origin *origin, const struct meter_burst *burst, double waited, int *vague)
{
    double lag = (double)burst->lag_ns, idle = empty_of(origin) * (burst->zero ? EMPTY_AFTER_ZERO : EMPTY_IDLE);
    *vague = lag > LAG_SURE_NS || waited < -LAG_SURE_NS;
    /* The host was interrupted after it had handed the event over, before it looked at the clock. */
    if (waited < -LAG_SURE_NS)
        return lag - waited + idle;
    if (waited < IDLE_NS + CLOCK_NS)
        return lag + idle;
    if (waited > lag + CLOCK_NS)
        return duration_event_gap(origin);
    *vague = 1;
    return (waited - IDLE_NS < lag ? lag - (waited - IDLE_NS) : 0) + idle;
}

/* One launch on an idle stream. Did the GPU wait for the end event? Then it took less than the events tell. */
static double without_late_end(const struct origin *origin, const struct meter_burst *burst, double elapsed,
                               double length, int *vague)
{
    double empty = empty_of(origin), shortest = EMPTY_SHORTEST * empty;
    double host = (double)(burst->closed_ns - burst->started_ns);
    if (length <= shortest || elapsed >= host + EMPTY_LATE * empty)
        return length;
    *vague = length > EMPTY_SHORT * empty;
    return *vague ? length : shortest;
}

/* How long had the stream nothing to do? By prediction, corrected by when the GPU really came to the burst: where that was later
 * than predicted, so much less; where it was earlier, what the least queue did not hide. */
static double idle_in(const struct meter_burst *burst, double begun)
{
    double idle = (double)burst->idle_ns,
           put = (double)(burst->start ? burst->started_ns + burst->lag_ns : burst->begun_ns);
    double late = begun - put - (double)burst->queued_ns;
    if (late > CLOCK_NS)
        return idle > late ? idle - late : 0;
    if (late < -CLOCK_NS && !burst->start && -late > (double)burst->least_ns)
        return idle - late - (double)burst->least_ns;
    return idle;
}

int duration_of(struct origin *origin, const struct meter_lane *lane, const struct meter_burst *burst,
                struct duration *out)
{
    double length, end;
    *out = (struct duration){0};
    if (!origin_times(origin, burst, burst->start ? burst->start : lane->last_end, &length, &end))
        return 0;
    double begun = end - length;
    double elapsed = length, waited = begun - (double)burst->started_ns;
    double added = burst->start ? events_take(origin, burst, waited, &out->vague) : duration_event_gap(origin);
    /* The clock was not set yet: the start event waited, though it does not look so. */
    out->vague |= length <= added;
    length -= length > added ? added : length;
    if (burst->alone && burst->start && waited < IDLE_NS + CLOCK_NS && !out->vague)
        length = without_late_end(origin, burst, elapsed, length, &out->vague);
    out->end_ns = end;
    out->start_ns = end - length;
    out->backlogged = begun > (double)burst->closed_ns + BEHIND_NS;
    double idle = out->backlogged || burst->alone ? 0 : idle_in(burst, begun);
    uint32_t gaps = out->backlogged ? burst->launches - 1 : burst->behind;
    idle += gaps * duration_gap(origin);
    out->busy_ns = length > idle ? length - idle : 0;
    return 1;
}
