/* The GPU time of the kernels of a finished burst.
 *
 * The distance of its events is longer than that, for three reasons.
 *
 * 1. The events themselves, if the burst has a start event of its own. On an idle stream the GPU passes the start event
 *    while the host still makes the launch. So the distance includes the host's time until the launch returns, and
 *    about as much as two empty events are apart. Behind other work, the whole burst waits in the stream: the host's
 *    time does not count, and the GPU needs longer from event to kernel to event. Measured on an H200, kernels of 0.6
 *    to 31 us against CUPTI's durations, empty events 1.28 us apart: (elapsed - host's time - duration) is 1.20 us on
 *    an idle stream, 0.6 right behind two events; (elapsed - duration) is 2.2 us behind other work. If every launch is
 *    another kernel, as in PyTorch's programs, the first figure is 1.5 us: the value used is in the middle.
 *
 * A kernel of a microsecond is over before its end event is handed over, which takes the host 1.2 to 3 us. The events
 * are then as far apart as the host's calls: an upper bound instead of a measurement. If the bound is low, the kernel
 * is taken for one of the shortest that there are; if not, the host was interrupted, and nothing is learned.
 *
 * 2. The GPU's own gap from one kernel to the next that waits behind it: 0.87 us if a kernel follows itself, 1.0 to 1.1
 *    in PyTorch's training (CUPTI, H200). Profilers do not count it as GPU time, and programs of small kernels would be
 *    charged a fifth too much. It is taken to be proportional to the distance of empty events, too.
 *
 * 3. Gaps between its launches, if the program launches more slowly than the GPU works. Predictions give the length of
 *    those (`idle_ns`), and the clock gives how far the GPU was behind when the burst began. A prediction that is too
 *    long hides gaps, and learning from their time would confirm it for ever. So predictions learn only from bursts
 *    that the GPU began after the program had closed them: all of their launches were there from the beginning, and the
 *    whole time counts. */
#include "meter.h"

/* The delay from the call until the GPU passes a start event on an idle stream, and the precision of our clock
 * (origin.c). */
#define IDLE_NS 1000.0
#define CLOCK_NS 3000.0
/* If the GPU was this far behind the program, the burst was certainly complete when it began. */
#define BEHIND_NS 20000.0
/* A launch that took longer loaded code or was interrupted, so the moment of its submission is unknown. */
#define LAG_SURE_NS 20000.0
/* Parts of the distance of two empty events; a distance of more than five microseconds was disturbed by another
 * tenant's slice. */
#define EMPTY_MOST_NS 5000.0
#define EMPTY_IDLE 1.06
#define EMPTY_AFTER_ZERO 0.49
#define EMPTY_BEHIND 1.72
#define EMPTY_GAP 0.75
/* A late end event is passed within this time after it was handed over; up to this bound it hides one of the shortest
 * kernels; and the time that those take. */
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
    /* The host was interrupted after it had handed the event over, before it read the clock. */
    if (waited < -LAG_SURE_NS)
        return lag - waited + idle;
    if (waited < IDLE_NS + CLOCK_NS)
        return lag + idle;
    if (waited > lag + CLOCK_NS)
        return duration_event_gap(origin);
    *vague = 1;
    return (waited - IDLE_NS < lag ? lag - (waited - IDLE_NS) : 0) + idle;
}

/* Correct the length of one launch on an idle stream: if the GPU waited for the end event, the kernel took less than
 * the events show. */
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

/* Return how long the stream had nothing to do: as predicted, corrected by the moment at which the GPU began the burst.
 * If that was later than predicted, the difference is subtracted; if it was earlier, the part that the least queue did
 * not hide is added. */
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
    /* The clock was not set yet: the start event waited, though its times do not show it. */
    out->vague |= length <= added;
    length -= length > added ? added : length;
    out->single = burst->start && burst->launches == 1 && waited < IDLE_NS + CLOCK_NS && (burst->alone || burst->idle);
    if (out->single && !out->vague)
        length = without_late_end(origin, burst, elapsed, length, &out->vague);
    out->end_ns = end;
    out->start_ns = end - length;
    out->backlogged = begun > (double)burst->closed_ns + BEHIND_NS;
    double idle = out->backlogged || burst->alone || (out->single && !out->vague) ? 0 : idle_in(burst, begun);
    uint32_t gaps = out->backlogged ? burst->launches - 1 : burst->behind;
    idle += gaps * duration_gap(origin);
    out->busy_ns = length > idle ? length - idle : 0;
    return 1;
}
