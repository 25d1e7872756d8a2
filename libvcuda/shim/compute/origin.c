/* Conversion of events to times.
 *
 * cuEventElapsedTime gives the distance of two events as a float of milliseconds, which after eight seconds is no
 * better than a microsecond: so every context has an origin event that is renewed every four seconds. The origin's own
 * time is first taken to be the time at which it was recorded; but it may wait in its stream, and another process may
 * have the GPU at that moment. No event happens before it is recorded, nor is seen before it happens: both facts
 * correct the origin. But most events are seen long after they happened, and the clocks of host and GPU drift apart. So
 * ten times a second the watcher probes: it records an event of its own into an idle stream, and polls until it
 * happens. Processes of one claim compare times, so they must agree on the clock.
 *
 * Two events with nothing between them are still a microsecond or two apart on a real GPU. The least of many
 * measurements is taken, since on an idle stream a host that hands over the second one late makes the distance longer;
 * duration.c subtracts it. */
#include "meter.h"

#include <stdlib.h>
#include <string.h>

#define ORIGINS 64
/* The context of a free entry. */
#define NOBODY ((CUcontext)(uintptr_t)-1)
#define RENEW_NS 4000000000ull
/* Sixteen were too few: processes on a slow host measured 1.5 to 1.8 us on an H200, where it is 1.28. */
#define OVERHEAD_LOOKS 64
/* The first kernels of a program are all measured by themselves. Later ones are not: their time is surer without a third
 * event before them. */
#define OVERHEAD_LOOKS_ALONE 16
/* An event may happen this long before the call that records it has returned. */
#define RETURN_NS 3000.0
/* A probe (record an event, poll until it is seen) takes some microseconds on an idle stream; one that took longer was
 * behind other work. */
#define PROBE_MOST_NS 25000

static struct origin *origins[ORIGINS];

/* Add an entry for no context yet. Return 0 if there is no memory. */
static int add(int at)
{
    struct origin *made = calloc(1, sizeof *made), *none = NULL;
    if (!made)
        return 0;
    made->context = NOBODY;
    made->least_lag_ns = made->overhead_ns = 1e18;
    if (!__atomic_compare_exchange_n(&origins[at], &none, made, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        free(made); /* another thread was first */
    return 1;
}

struct origin *origin_of(CUcontext context)
{
    for (;;) {
        struct origin *vacant = NULL, *o;
        CUcontext nobody = NOBODY;
        int i = 0;
        for (; i < ORIGINS && (o = __atomic_load_n(&origins[i], __ATOMIC_ACQUIRE)); i++) {
            CUcontext of = __atomic_load_n(&o->context, __ATOMIC_RELAXED);
            if (of == context)
                return o;
            vacant = !vacant && of == NOBODY ? o : vacant;
        }
        if (vacant &&
            __atomic_compare_exchange_n(&vacant->context, &nobody, context, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
            return vacant;
        if (!vacant && (i == ORIGINS || !add(i)))
            return NULL;
    }
}

static void guard(struct origin *o)
{
    while (__atomic_exchange_n(&o->guard, 1, __ATOMIC_ACQUIRE))
        ;
}

CUevent origin_event(struct origin *o)
{
    CUevent event = NULL;
    guard(o);
    if (o->spares)
        event = o->spare[--o->spares];
    __atomic_store_n(&o->guard, 0, __ATOMIC_RELEASE);
    if (!event && real.cuEventCreate(&event, 0))
        return NULL;
    return event;
}

void origin_return(struct origin *o, CUevent event)
{
    if (!event)
        return;
    guard(o);
    int kept = o->spares < (int)(sizeof o->spare / sizeof *o->spare);
    if (kept)
        o->spare[o->spares++] = event;
    __atomic_store_n(&o->guard, 0, __ATOMIC_RELEASE);
    if (!kept)
        real.cuEventDestroy_v2(event);
}

CUevent origin_record(struct origin *o, const struct meter_lane *lane)
{
    CUevent event = origin_event(o);
    if (!event)
        return NULL;
    if (!real.cuEventRecord(event, lane->stream))
        return event;
    origin_return(o, event);
    return NULL;
}

/* Begin a burst: record its start event, and other events that are due. */
void origin_begin(struct origin *o, struct meter_burst *burst, struct meter_lane *lane, int dry)
{
    uint64_t now = shim_now();
    if (!o->renewed_ns || now - o->renewed_ns > RENEW_NS) {
        burst->base = origin_record(o, lane);
        if (!o->renewed_ns)
            o->base_ns = (double)now;
        o->renewed_ns = now;
    }
    if (!dry)
        return;
    if (o->overheads < (burst->alone ? OVERHEAD_LOOKS_ALONE : OVERHEAD_LOOKS)) {
        burst->zero = origin_record(o, lane);
        o->overheads++;
    }
    burst->start = origin_record(o, lane);
    burst->started_ns = shim_now();
}

int origin_is_sure(const struct origin *o)
{
    return o->overheads >= OVERHEAD_LOOKS;
}

void origin_discard(struct origin *o, struct meter_burst *burst)
{
    origin_return(o, burst->start);
    origin_return(o, burst->zero);
    origin_return(o, burst->base);
    if (!__atomic_load_n(&o->base, __ATOMIC_RELAXED))
        o->renewed_ns = 0;
    burst->start = burst->zero = burst->base = NULL;
}

static int elapsed(CUevent from, CUevent to, double *ns)
{
    float milliseconds;
    if (real.cuEventElapsedTime(&milliseconds, from, to))
        return 0;
    *ns = (double)milliseconds * 1e6;
    return 1;
}

static void renew(struct origin *o, CUevent base)
{
    double moved;
    if (o->base) {
        if (!elapsed(o->base, base, &moved)) {
            origin_return(o, base);
            return;
        }
        o->base_ns += moved;
        origin_return(o, o->base);
        /* The clocks drift apart: if the smallest lag of a whole period was larger than this, ours is behind. */
        if (o->least_lag_ns < 1e17 && o->least_lag_ns > 20000)
            o->base_ns += o->least_lag_ns - 20000;
    }
    __atomic_store_n(&o->base, base, __ATOMIC_RELAXED);
    o->least_lag_ns = 1e18;
}

int origin_times(struct origin *o, const struct meter_burst *burst, CUevent start, double *length_ns, double *end_ns)
{
    double end, zero;
    if (burst->zero && burst->start && elapsed(burst->zero, burst->start, &zero) && zero < o->overhead_ns)
        __atomic_store(&o->overhead_ns, &zero, __ATOMIC_RELAXED);
    if (burst->base)
        renew(o, burst->base);
    if (!start || !o->base || !elapsed(start, burst->end, length_ns) || !elapsed(o->base, burst->end, &end))
        return 0;
    end += o->base_ns;
    double early = (double)burst->closed_ns - RETURN_NS - end;
    if (early > 0) {
        o->base_ns += early;
        end += early;
    }
    double lag = (double)shim_now() - end;
    if (lag < 0) {
        o->base_ns += lag;
        end += lag;
        lag = 0;
    }
    if (lag < o->least_lag_ns)
        o->least_lag_ns = lag;
    *end_ns = end;
    return 1;
}

/* Record an event and see it as it happens. Behind other work it takes too long, and is no evidence. */
void origin_probe(struct origin *o, const struct meter_lane *lane)
{
    if (!shim_begin_query())
        return;
    uint64_t begin = shim_now(), end = begin;
    double passed;
    CUevent event = o->base ? origin_record(o, lane) : NULL;
    CUresult result = event ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
    while (result == CUDA_ERROR_NOT_READY && end - begin < PROBE_MOST_NS) {
        result = real.cuEventQuery(event);
        end = shim_now();
    }
    if (event && !result && end - begin < PROBE_MOST_NS && elapsed(o->base, event, &passed)) {
        o->base_ns = ((double)begin + (double)end) / 2 - passed;
        o->probed_ns = end;
    }
    shim_end_query();
    origin_return(o, event);
}

void origin_restart(void)
{
    for (int i = 0; i < ORIGINS; i++) {
        struct origin *o = __atomic_load_n(&origins[i], __ATOMIC_ACQUIRE);
        if (!o || o->context == NOBODY)
            continue;
        origin_return(o, o->base);
        __atomic_store_n(&o->base, NULL, __ATOMIC_RELAXED);
        o->least_lag_ns = 1e18;
        o->renewed_ns = 0;
    }
}

/* Forget the context with its events, which are destroyed with it; NULL: all contexts. */
void origin_forget(CUcontext context)
{
    for (int i = 0; i < ORIGINS; i++) {
        struct origin *o = __atomic_load_n(&origins[i], __ATOMIC_ACQUIRE);
        if (!o || (context && o->context != context))
            continue;
        memset(o, 0, sizeof *o);
        o->least_lag_ns = o->overhead_ns = 1e18;
        __atomic_store_n(&o->context, NOBODY, __ATOMIC_RELEASE);
    }
}
