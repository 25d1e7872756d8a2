/* How long did a finished burst keep the GPU busy?
 *
 * Its events are further apart than that, for two reasons.
 *
 * The events themselves, where the burst has a start event of its own. On an idle stream the GPU passes the start event while
 * the host still makes the launch, so the host's time until the launch's return passes between the events, too, and about as
 * much as between two empty events. Behind other work all of it waits in the stream, the host's time does not count, and the
 * GPU needs longer from event to kernel to event. Measured on an H200, kernels of 0.6 to 31 us against CUPTI's durations, empty
 * events 1.28 us apart: (elapsed - host's time - duration) is 1.20 us on an idle stream, 0.6 right behind two events;
 * (elapsed - duration) is 2.2 us behind other work.
 *
 * Gaps between its launches, where the program launches more slowly than the GPU works. Predictions tell how long those were
 * (`idle_ns`). But a prediction that is too long hides gaps, and learning from their time would confirm it for ever; so whether
 * there were gaps at all is also asked of the clock: where the GPU began a burst only after the program had closed it, all of
 * its launches were there from the beginning, and the whole time counts.
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
#define EMPTY_IDLE 0.94
#define EMPTY_AFTER_ZERO 0.49
#define EMPTY_BEHIND 1.72

/* What the events around a burst add, given when the start event was passed after it was handed over. */
static double events_take(const struct origin *origin, const struct meter_burst *burst, double waited, int *vague)
{
    double empty = origin->overhead_ns < EMPTY_MOST_NS ? origin->overhead_ns : 0, lag = (double)burst->lag_ns;
    double idle = empty * (burst->zero ? EMPTY_AFTER_ZERO : EMPTY_IDLE);
    *vague = lag > LAG_SURE_NS;
    if (waited < IDLE_NS + CLOCK_NS)
        return lag + idle;
    if (waited > lag + CLOCK_NS)
        return empty * EMPTY_BEHIND;
    *vague = 1;
    return (waited - IDLE_NS < lag ? lag - (waited - IDLE_NS) : 0) + idle;
}

int duration_of(struct origin *origin, const struct meter_lane *lane, const struct meter_burst *burst,
                struct duration *out)
{
    double length, end;
    *out = (struct duration){0};
    if (!origin_times(origin, burst, burst->start ? burst->start : lane->last_end, &length, &end))
        return 0;
    double begun = end - length;
    if (burst->start) {
        double added = events_take(origin, burst, begun - (double)burst->started_ns, &out->vague);
        /* The clock was not set yet: the start event waited, though it does not look so. */
        out->vague |= length <= added;
        length -= length > added ? added : length;
    }
    out->end_ns = end;
    out->start_ns = end - length;
    out->backlogged = begun > (double)burst->closed_ns + BEHIND_NS;
    double idle = out->backlogged || burst->alone ? 0 : (double)burst->idle_ns;
    out->busy_ns = length > idle ? length - idle : 0;
    return 1;
}
