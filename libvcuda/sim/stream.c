/* Streams and events: see node.h for how time passes. */
#include "costs.h"
#include "process.h"

#include <stdlib.h>

static struct sim_event *pending;
static uint64_t settled_at;

struct sim_stream *sim_resolve(CUstream stream)
{
    CUcontext context = sim_current();
    if (stream > CU_STREAM_PER_THREAD) {
        if (!stream->context)
            abort(); /* the real driver follows a dangling pointer, and with bad luck crashes */
        return stream;
    }
    if (!context || !context->alive)
        return NULL;
    if (stream != CU_STREAM_PER_THREAD)
        return &context->null_stream;
    static _Thread_local struct sim_stream own;
    if (own.context != context)
        own = (struct sim_stream){.context = context};
    return &own;
}

CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
    CUcontext context = sim_current();
    if (!context || !stream)
        return CUDA_ERROR_INVALID_CONTEXT;
    CUstream made = calloc(1, sizeof *made);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    made->context = context;
    made->blocking = !(flags & CU_STREAM_NON_BLOCKING);
    *stream = made;
    return CUDA_SUCCESS;
}

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority)
{
    (void)priority;
    return cuStreamCreate(stream, flags);
}

CUresult cuStreamDestroy_v2(CUstream stream)
{
    if (stream <= CU_STREAM_PER_THREAD)
        return CUDA_ERROR_INVALID_HANDLE;
    /* Kept, to notice who still uses it. */
    static struct sim_stream *destroyed;
    pthread_mutex_lock(&sim_process_mutex);
    stream->context = NULL;
    stream->next = destroyed;
    destroyed = stream;
    pthread_mutex_unlock(&sim_process_mutex);
    return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream stream)
{
    return cuStreamDestroy_v2(stream);
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext *context)
{
    struct sim_stream *s = sim_resolve(stream);
    if (!s || !context)
        return s ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_CONTEXT;
    *context = s->context;
    return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx_ptsz(CUstream stream, CUcontext *context)
{
    return cuStreamGetCtx(stream, context);
}

/* Put `ns` of work at the stream's end, `gap_ns` behind what is still to be done there. Locked. */
static void append(struct sim_stream *s, uint64_t ns, uint64_t gap_ns)
{
    struct sim_client *c = s->context->device->client;
    CUcontext context = s->context;
    /* Work of the null stream and of blocking streams waits for one another's. */
    uint64_t other = s == &context->null_stream ? context->blocking_tail : s->blocking ? context->null_stream.tail : 0;
    uint64_t before = s->tail > other ? s->tail : other;
    s->tail = (before > c->service_ns ? before + gap_ns : c->service_ns) + ns;
    if (s->blocking && s->tail > context->blocking_tail)
        context->blocking_tail = s->tail;
    if (s->tail > c->demand_ns)
        c->demand_ns = s->tail;
}

/* Likewise a timing event: passed at once on an idle stream, but no sooner after another event than after work. */
static void append_event(struct sim_stream *s)
{
    append(s, 0, sim_costs()->event_ns);
    if (s->tail < s->timed_until)
        append(s, s->timed_until - s->tail, 0);
    s->timed_until = s->tail + sim_costs()->event_ns;
}

CUresult sim_submit(struct sim_stream *s, uint64_t ns)
{
    struct sim_device *device = s->context->device;
    struct sim_client *c = device->client;
    /* The GPU hears of a launch at the call's end. */
    if (sim_costs()->launch_ns)
        sim_spin_until(sim_now() + sim_costs()->launch_ns);
    sim_lock_only(device->gpu);
    while (s->launched >= SIM_QUEUE && s->mark[s->launched % SIM_QUEUE] > c->service_ns) {
        uint64_t mark = s->mark[s->launched % SIM_QUEUE];
        sim_unlock(device->gpu);
        sim_wait(device->gpu, c, mark);
        sim_lock_only(device->gpu);
    }
    append(s, ns, sim_costs()->gap_ns);
    s->mark[s->launched++ % SIM_QUEUE] = s->tail;
    uint64_t stretches = c->stretches;
    sim_unlock(device->gpu);
    int settle = stretches - __atomic_load_n(&settled_at, __ATOMIC_RELAXED) > SIM_STRETCHES / 4;
    if (settle)
        __atomic_store_n(&settled_at, stretches, __ATOMIC_RELAXED);
    if (settle)
        sim_settle_events();
    return CUDA_SUCCESS;
}

/* Return the mark at which all work is done that a wait for the stream waits for. Locked. */
static uint64_t tail_of(const struct sim_stream *s)
{
    const struct sim_context *context = s->context;
    int joins = s == &context->null_stream && context->blocking_tail > s->tail;
    return joins ? context->blocking_tail : s->tail;
}

static CUresult wait_stream(CUstream stream)
{
    struct sim_stream *s = sim_resolve(stream);
    if (!s)
        return CUDA_ERROR_INVALID_CONTEXT;
    CUresult result = s->capture ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : sim_capture_guard();
    if (result)
        return result;
    struct sim_device *device = s->context->device;
    sim_lock(device->gpu);
    uint64_t tail = tail_of(s);
    sim_unlock(device->gpu);
    sim_wait(device->gpu, device->client, tail);
    sim_wait_host_calls(s);
    sim_trim_pools(device);
    return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream stream)
{
    return wait_stream(stream);
}

CUresult cuStreamSynchronize_ptsz(CUstream stream)
{
    return wait_stream(stream);
}

CUresult cuStreamQuery(CUstream stream)
{
    struct sim_stream *s = sim_resolve(stream);
    if (!s)
        return CUDA_ERROR_INVALID_CONTEXT;
    CUresult result = s->capture ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : sim_capture_guard();
    if (result)
        return result;
    struct sim_device *device = s->context->device;
    sim_lock(device->gpu);
    int done = device->client->service_ns >= tail_of(s);
    sim_unlock(device->gpu);
    return done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuStreamQuery_ptsz(CUstream stream)
{
    return cuStreamQuery(stream);
}

CUresult cuCtxSynchronize_v2(CUcontext context)
{
    if (!context || !context->alive)
        return CUDA_ERROR_INVALID_CONTEXT;
    CUresult result = sim_capture_guard();
    if (result)
        return result;
    struct sim_device *device = context->device;
    sim_lock(device->gpu);
    uint64_t mark = device->client->demand_ns;
    sim_unlock(device->gpu);
    sim_wait(device->gpu, device->client, mark);
    sim_trim_pools(device);
    return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void)
{
    return cuCtxSynchronize_v2(sim_current());
}

CUresult cuEventCreate(CUevent *event, unsigned flags)
{
    if (!sim_current())
        return CUDA_ERROR_INVALID_CONTEXT;
    *event = calloc(1, sizeof **event);
    if (!*event)
        return CUDA_ERROR_OUT_OF_MEMORY;
    (*event)->untimed = (flags & CU_EVENT_DISABLE_TIMING) != 0;
    return CUDA_SUCCESS;
}

/* Note the time of an event whose mark has passed; 1 if it has. */
static int settle(struct sim_event *e)
{
    if (!e->wall_ns) {
        struct sim_device *device = e->context->device;
        sim_lock_only(device->gpu);
        e->wall_ns = sim_wall_of(device->client, e->mark);
        sim_unlock(device->gpu);
    }
    return e->wall_ns != 0;
}

void sim_settle_events(void)
{
    pthread_mutex_lock(&sim_process_mutex);
    for (struct sim_event **at = &pending; *at;) {
        if (settle(*at))
            *at = (*at)->next_pending;
        else
            at = &(*at)->next_pending;
    }
    pthread_mutex_unlock(&sim_process_mutex);
}

static void unlink_pending(const struct sim_event *event)
{
    struct sim_event **at = &pending;
    while (*at && *at != event)
        at = &(*at)->next_pending;
    if (*at)
        *at = event->next_pending;
}

void sim_forget_context_events(CUcontext context)
{
    pthread_mutex_lock(&sim_process_mutex);
    for (struct sim_event **at = &pending; *at;) {
        if ((*at)->context != context) {
            at = &(*at)->next_pending;
            continue;
        }
        (*at)->wall_ns = sim_now();
        *at = (*at)->next_pending;
    }
    pthread_mutex_unlock(&sim_process_mutex);
}

CUresult cuEventDestroy_v2(CUevent event)
{
    pthread_mutex_lock(&sim_process_mutex);
    unlink_pending(event);
    pthread_mutex_unlock(&sim_process_mutex);
    free(event);
    return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
    struct sim_stream *s = sim_resolve(stream);
    if (!s)
        return CUDA_ERROR_INVALID_CONTEXT;
    pthread_mutex_lock(&sim_process_mutex);
    unlink_pending(event);
    event->context = s->context;
    event->recorded = 1;
    event->captured = s->capture != CU_CAPTURE_NONE;
    event->wall_ns = 0;
    if (!event->captured) {
        struct sim_device *device = s->context->device;
        sim_lock_only(device->gpu);
        if (!event->untimed && sim_costs()->event_ns)
            append_event(s);
        event->mark = s->tail;
        if (s->tail <= device->client->service_ns)
            event->wall_ns = device->gpu->advanced_ns;
        sim_unlock(device->gpu);
        if (!event->wall_ns) {
            event->next_pending = pending;
            pending = event;
        }
    }
    pthread_mutex_unlock(&sim_process_mutex);
    return CUDA_SUCCESS;
}

CUresult cuEventRecord_ptsz(CUevent event, CUstream stream)
{
    return cuEventRecord(event, stream);
}

CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags)
{
    return flags > 1 ? CUDA_ERROR_INVALID_VALUE : cuEventRecord(event, stream);
}

CUresult cuEventRecordWithFlags_ptsz(CUevent event, CUstream stream, unsigned flags)
{
    return cuEventRecordWithFlags(event, stream, flags);
}

static CUresult event_state(CUevent event)
{
    if (event->captured)
        return CUDA_ERROR_CAPTURED_EVENT;
    if (!event->recorded)
        return CUDA_SUCCESS;
    pthread_mutex_lock(&sim_process_mutex);
    int done = settle(event);
    if (done)
        unlink_pending(event);
    pthread_mutex_unlock(&sim_process_mutex);
    return done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventQuery(CUevent event)
{
    CUresult result = sim_capture_guard();
    return result ? result : event_state(event);
}

CUresult cuEventSynchronize(CUevent event)
{
    CUresult result = sim_capture_guard();
    if (result)
        return result;
    while ((result = event_state(event)) == CUDA_ERROR_NOT_READY)
        sim_wait(event->context->device->gpu, event->context->device->client, event->mark);
    return result;
}

CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
{
    if (!start->recorded || !end->recorded || start->untimed || end->untimed)
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult result = event_state(start);
    if (!result)
        result = event_state(end);
    if (!result)
        *milliseconds = (float)((double)(int64_t)(end->wall_ns - start->wall_ns) / 1e6);
    return result;
}

CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end)
{
    return cuEventElapsedTime(milliseconds, start, end);
}
