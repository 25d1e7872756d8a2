/* Events: see node.h for how time passes. */
#include "costs.h"
#include "memops.h"

#include <stdlib.h>

static struct sim_event *pending;

/* Put a timing event at the stream's end: passed at once on an idle stream, but no sooner after another event than after work. */
static void append_timed(struct sim_stream *s)
{
    sim_append(s, 0, sim_costs()->event_ns);
    if (s->tail < s->timed_until)
        sim_append(s, s->timed_until - s->tail, 0);
    s->timed_until = s->tail + sim_costs()->event_ns;
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
    sim_kept_without_event(event);
    pthread_mutex_lock(&sim_process_mutex);
    unlink_pending(event);
    pthread_mutex_unlock(&sim_process_mutex);
    free(event);
    return CUDA_SUCCESS;
}

void sim_end_record(struct sim_event *event)
{
    pthread_mutex_lock(&sim_process_mutex);
    event->wall_ns = sim_now();
    pthread_mutex_unlock(&sim_process_mutex);
}

/* Note that the event will be passed. What callers read without the mutex is written in their own calls only. Locked. */
static void begin_record(struct sim_event *event, const struct sim_stream *s)
{
    unlink_pending(event);
    event->context = s->context;
    event->recorded = 1;
    event->whole = 0;
    event->captured = s->capture != CU_CAPTURE_NONE;
    event->wall_ns = 0;
    event->mark = SIM_NO_MARK;
}

/* Put it at the stream's end. Locked. */
static void put_record(struct sim_event *event, struct sim_stream *s)
{
    struct sim_device *device = s->context->device;
    sim_lock_only(device->gpu);
    if (!event->untimed && sim_costs()->event_ns)
        append_timed(s);
    event->mark = s->tail;
    if (s->tail <= device->client->service_ns)
        event->wall_ns = device->gpu->advanced_ns;
    sim_unlock(device->gpu);
    if (!event->wall_ns) {
        event->next_pending = pending;
        pending = event;
    }
}

void sim_begin_record(struct sim_event *event, const struct sim_stream *s)
{
    pthread_mutex_lock(&sim_process_mutex);
    begin_record(event, s);
    pthread_mutex_unlock(&sim_process_mutex);
}

uint64_t sim_put_record(struct sim_event *event, struct sim_stream *s)
{
    pthread_mutex_lock(&sim_process_mutex);
    put_record(event, s);
    uint64_t mark = event->mark;
    pthread_mutex_unlock(&sim_process_mutex);
    return mark;
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
    struct sim_stream *s = sim_resolve(stream);
    if (!s)
        return CUDA_ERROR_INVALID_CONTEXT;
    sim_kept_without_event(event);
    int kept = s->capture ? 0 : sim_keep(s, &(struct sim_kept){.kind = SIM_RECORD, .event = event});
    if (kept)
        return kept < 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
    pthread_mutex_lock(&sim_process_mutex);
    begin_record(event, s);
    if (!event->captured)
        put_record(event, s);
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

/* What is kept behind a wait for a value has no mark yet, and so the end of a context's work has none. Return 1 if it has. */
static int mark_whole(CUevent event)
{
    if (event->mark != SIM_NO_MARK)
        return 1;
    if (sim_context_is_held(event->context))
        return 0;
    struct sim_device *device = event->context->device;
    pthread_mutex_lock(&sim_process_mutex);
    sim_lock(device->gpu);
    event->mark = device->client->demand_ns;
    if (event->mark <= device->client->service_ns)
        event->wall_ns = device->gpu->advanced_ns;
    sim_unlock(device->gpu);
    if (!event->wall_ns) {
        unlink_pending(event);
        event->next_pending = pending;
        pending = event;
    }
    pthread_mutex_unlock(&sim_process_mutex);
    return 1;
}

/* Work of the context from after this call counts, too, if it comes before a wait for a value ends. */
CUresult cuCtxRecordEvent(CUcontext context, CUevent event)
{
    if (!context || !context->alive)
        return CUDA_ERROR_INVALID_CONTEXT;
    CUresult result = sim_capture_break();
    if (result)
        return result;
    sim_kept_without_event(event);
    pthread_mutex_lock(&sim_process_mutex);
    begin_record(event, &context->null_stream);
    event->whole = 1;
    pthread_mutex_unlock(&sim_process_mutex);
    mark_whole(event);
    return CUDA_SUCCESS;
}

static CUresult event_state(CUevent event)
{
    if (event->captured)
        return CUDA_ERROR_CAPTURED_EVENT;
    if (!event->recorded)
        return CUDA_SUCCESS;
    if (event->whole && !mark_whole(event))
        return CUDA_ERROR_NOT_READY;
    pthread_mutex_lock(&sim_process_mutex);
    int done = settle(event);
    if (done)
        unlink_pending(event);
    pthread_mutex_unlock(&sim_process_mutex);
    sim_run_kept(); /* also what is written before it */
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
    while ((result = event_state(event)) == CUDA_ERROR_NOT_READY) {
        sim_wait_held(NULL, event->whole ? event->context : NULL, event);
        uint64_t mark = __atomic_load_n(&event->mark, __ATOMIC_RELAXED);
        if (mark != SIM_NO_MARK)
            sim_wait(event->context->device->gpu, event->context->device->client, mark);
    }
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
