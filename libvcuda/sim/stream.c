/* Streams: see node.h for how time passes. */
#include "costs.h"
#include "memops.h"

#include <stdlib.h>

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
    if (own.context != context) {
        sim_kept_without_stream(&own);
        own = (struct sim_stream){.context = context, .of_thread = 1};
    }
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
    sim_kept_without_stream(stream);
    sim_untrack(stream);
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

/* Return the mark at which the stream gets to what is put there now. Locked. */
static uint64_t begin_of(const struct sim_stream *s)
{
    const struct sim_context *context = s->context;
    /* Work of the null stream and of blocking streams waits for one another's. */
    uint64_t other = s == &context->null_stream ? context->blocking_tail : s->blocking ? context->null_stream.tail : 0;
    return s->tail > other ? s->tail : other;
}

void sim_append(struct sim_stream *s, uint64_t ns, uint64_t gap_ns)
{
    struct sim_client *c = s->context->device->client;
    CUcontext context = s->context;
    uint64_t before = begin_of(s);
    s->tail = (before > c->service_ns ? before + gap_ns : c->service_ns) + ns;
    if (s->blocking && s->tail > context->blocking_tail)
        context->blocking_tail = s->tail;
    if (s->tail > c->demand_ns)
        c->demand_ns = s->tail;
}

/* Put a launch's work there. The client's stretches are few, and events' times are told from them: see to it in time. */
static void put_work(struct sim_stream *s, uint64_t ns)
{
    sim_append(s, ns, sim_costs()->gap_ns);
    s->mark[s->launched++ % SIM_QUEUE] = s->tail;
    uint64_t stretches = s->context->device->client->stretches;
    sim_unlock(s->context->device->gpu);
    int settle = stretches - __atomic_load_n(&settled_at, __ATOMIC_RELAXED) > SIM_STRETCHES / 4;
    if (settle)
        __atomic_store_n(&settled_at, stretches, __ATOMIC_RELAXED);
    if (settle)
        sim_settle_events();
}

void sim_put_work(struct sim_stream *s, uint64_t ns)
{
    sim_lock_only(s->context->device->gpu);
    put_work(s, ns);
}

uint64_t sim_put_nothing(struct sim_stream *s)
{
    sim_lock_only(s->context->device->gpu);
    sim_append(s, 0, 0);
    uint64_t mark = s->tail;
    sim_unlock(s->context->device->gpu);
    return mark;
}

void sim_put_wait(struct sim_stream *s, uint64_t mark)
{
    sim_lock(s->context->device->gpu);
    if (mark > s->tail)
        s->tail = mark;
    sim_unlock(s->context->device->gpu);
}

uint64_t sim_time_until(const struct sim_stream *s)
{
    struct sim_device *device = s->context->device;
    sim_lock_only(device->gpu);
    uint64_t begin = begin_of(s), now = device->client->service_ns;
    sim_unlock(device->gpu);
    return begin > now ? begin - now : 0;
}

int sim_is_past(const struct sim_stream *s, uint64_t mark)
{
    sim_lock_only(s->context->device->gpu);
    int past = s->context->device->client->service_ns >= mark;
    sim_unlock(s->context->device->gpu);
    return past;
}

void sim_count_kept(const struct sim_stream *s, int more)
{
    sim_lock_only(s->context->device->gpu);
    s->context->device->client->kept += (uint32_t)more;
    sim_unlock(s->context->device->gpu);
}

CUresult sim_submit(struct sim_stream *s, uint64_t ns)
{
    struct sim_device *device = s->context->device;
    struct sim_client *c = device->client;
    /* The GPU hears of a launch at the call's end. */
    if (sim_costs()->launch_ns)
        sim_spin_until(sim_now() + sim_costs()->launch_ns);
    int kept = sim_keep(s, &(struct sim_kept){.kind = SIM_WORK, .ns = ns});
    if (kept)
        return kept < 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
    sim_lock_only(device->gpu);
    while (s->launched >= SIM_QUEUE && s->mark[s->launched % SIM_QUEUE] > c->service_ns) {
        uint64_t mark = s->mark[s->launched % SIM_QUEUE];
        sim_unlock(device->gpu);
        sim_wait(device->gpu, c, mark);
        sim_lock_only(device->gpu);
    }
    put_work(s, ns);
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
    sim_wait_held(s, NULL, NULL);
    sim_lock(device->gpu);
    uint64_t tail = tail_of(s);
    sim_unlock(device->gpu);
    sim_wait(device->gpu, device->client, tail);
    sim_run_kept();
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
    if (sim_is_held(s))
        return CUDA_ERROR_NOT_READY;
    sim_lock(device->gpu);
    int done = device->client->service_ns >= tail_of(s);
    sim_unlock(device->gpu);
    sim_run_kept();
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
    sim_wait_held(NULL, context, NULL);
    sim_lock(device->gpu);
    uint64_t mark = device->client->demand_ns;
    sim_unlock(device->gpu);
    sim_wait(device->gpu, device->client, mark);
    sim_run_kept();
    sim_trim_pools(device);
    return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void)
{
    return cuCtxSynchronize_v2(sim_current());
}
