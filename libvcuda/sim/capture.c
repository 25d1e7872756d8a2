/* Stream capture and graphs, as far as a limiter must respect them: who may call what while a capture runs, captured events
 * that must not be queried, streams that join by waiting. A graph is the sum of its kernels' times. */
#include "memops.h"

#include <stdlib.h>

#define CAPTURES 64

static struct sim_stream *captures[CAPTURES];
static int capturing;
static _Thread_local int thread_mode;

static void track(struct sim_stream *s)
{
    for (int i = 0; i < CAPTURES; i++)
        if (!captures[i]) {
            captures[i] = s;
            __atomic_fetch_add(&capturing, 1, __ATOMIC_RELEASE);
            return;
        }
}

void sim_untrack(struct sim_stream *s)
{
    pthread_mutex_lock(&sim_process_mutex);
    for (int i = 0; i < CAPTURES; i++)
        if (captures[i] == s) {
            captures[i] = NULL;
            __atomic_fetch_sub(&capturing, 1, __ATOMIC_RELEASE);
        }
    pthread_mutex_unlock(&sim_process_mutex);
}

CUresult sim_capture_guard(void)
{
    if (!__atomic_load_n(&capturing, __ATOMIC_ACQUIRE) || thread_mode == CU_CAPTURE_RELAXED)
        return CUDA_SUCCESS;
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&sim_process_mutex);
    for (int i = 0; i < CAPTURES; i++) {
        struct sim_stream *s = captures[i];
        if (!s)
            continue;
        int mine = s->capture_thread == sim_thread() && s->capture_mode != CU_CAPTURE_RELAXED;
        if (mine || (s->capture_mode == CU_CAPTURE_GLOBAL && thread_mode == CU_CAPTURE_GLOBAL)) {
            s->capture = CU_CAPTURE_INVALIDATED;
            result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    }
    pthread_mutex_unlock(&sim_process_mutex);
    return result;
}

CUresult sim_capture_break(void)
{
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&sim_process_mutex);
    for (int i = 0; i < CAPTURES; i++)
        if (captures[i]) {
            captures[i]->capture = CU_CAPTURE_INVALIDATED;
            result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    pthread_mutex_unlock(&sim_process_mutex);
    return result;
}

CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
    int old = thread_mode;
    thread_mode = *mode;
    *mode = old;
    return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream stream, int *status)
{
    struct sim_stream *s = sim_resolve(stream);
    if (!s)
        return CUDA_ERROR_INVALID_CONTEXT;
    *status = s->capture;
    return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing_ptsz(CUstream stream, int *status)
{
    return cuStreamIsCapturing(stream, status);
}

static CUresult begin(CUstream stream, CUgraph graph, int mode)
{
    struct sim_stream *s = sim_resolve(stream);
    if (!s || s->capture || !stream)
        return s ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_ERROR_INVALID_CONTEXT;
    s->graph = graph ? graph : calloc(1, sizeof *s->graph);
    s->capture_mode = mode;
    s->capture_thread = sim_thread();
    s->capture = CU_CAPTURE_ACTIVE;
    pthread_mutex_lock(&sim_process_mutex);
    track(s);
    pthread_mutex_unlock(&sim_process_mutex);
    return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture(CUstream stream)
{
    return begin(stream, NULL, CU_CAPTURE_GLOBAL);
}

CUresult cuStreamBeginCapture_ptsz(CUstream stream)
{
    return begin(stream, NULL, CU_CAPTURE_GLOBAL);
}

CUresult cuStreamBeginCapture_v2(CUstream stream, int mode)
{
    return begin(stream, NULL, mode);
}

CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, int mode)
{
    return begin(stream, NULL, mode);
}

CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const void *nodes, const void *edges, size_t count,
                                     int mode)
{
    (void)nodes, (void)edges, (void)count;
    return begin(stream, graph, mode);
}

CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const void *nodes, const void *edges,
                                          size_t count, int mode)
{
    return cuStreamBeginCaptureToGraph(stream, graph, nodes, edges, count, mode);
}

/* The graph is made anew, without the comparison that the callback is for. */
CUresult cuStreamBeginRecaptureToGraph(CUstream stream, int mode, CUgraph graph, void *callback, void *data)
{
    (void)callback, (void)data;
    if (graph)
        *graph = (struct sim_graph){.owned_by_user = graph->owned_by_user};
    return begin(stream, graph, mode);
}

CUresult cuStreamBeginRecaptureToGraph_ptsz(CUstream stream, int mode, CUgraph graph, void *callback, void *data)
{
    return cuStreamBeginRecaptureToGraph(stream, mode, graph, callback, data);
}

/* There is no graphics API here that a capture could go to. */
CUresult cuStreamBeginCaptureToCig(CUstream stream, void *params)
{
    (void)stream, (void)params;
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuStreamBeginCaptureToCig_ptsz(CUstream stream, void *params)
{
    return cuStreamBeginCaptureToCig(stream, params);
}

CUresult cuStreamEndCaptureToCig(CUstream stream)
{
    (void)stream;
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuStreamEndCaptureToCig_ptsz(CUstream stream)
{
    return cuStreamEndCaptureToCig(stream);
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    struct sim_stream *s = sim_resolve(stream);
    if (!s || !s->capture)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = s->capture == CU_CAPTURE_INVALIDATED ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
    CUgraph made = s->graph;
    pthread_mutex_lock(&sim_process_mutex);
    for (int i = 0; i < CAPTURES; i++)
        if (captures[i] && captures[i]->graph == made) {
            captures[i]->capture = CU_CAPTURE_NONE;
            captures[i]->graph = NULL;
            captures[i] = NULL;
            __atomic_fetch_sub(&capturing, 1, __ATOMIC_RELEASE);
        }
    pthread_mutex_unlock(&sim_process_mutex);
    *graph = result ? NULL : made;
    return result;
}

CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph)
{
    return cuStreamEndCapture(stream, graph);
}

/* A stream that waits for a captured event joins its capture. */
static CUresult join(struct sim_stream *s, CUevent event)
{
    pthread_mutex_lock(&sim_process_mutex);
    struct sim_stream *origin = NULL;
    for (int i = 0; i < CAPTURES && !origin; i++)
        if (captures[i] && captures[i]->context == event->context)
            origin = captures[i];
    if (origin && !s->capture) {
        s->capture = origin->capture;
        s->capture_mode = origin->capture_mode;
        s->capture_thread = origin->capture_thread;
        s->graph = origin->graph;
        track(s);
    }
    pthread_mutex_unlock(&sim_process_mutex);
    return origin ? CUDA_SUCCESS : CUDA_ERROR_CAPTURED_EVENT;
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
    (void)flags;
    struct sim_stream *s = sim_resolve(stream);
    if (!s)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (event->captured)
        return join(s, event);
    int kept = sim_keep(s, &(struct sim_kept){.kind = SIM_WAIT_EVENT, .event = event});
    if (!kept && event->recorded)
        sim_put_wait(s, event->mark);
    return kept < 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned flags)
{
    return cuStreamWaitEvent(stream, event, flags);
}

CUresult cuGraphCreate(CUgraph *graph, unsigned flags)
{
    (void)flags;
    *graph = calloc(1, sizeof **graph);
    return *graph ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuGraphDestroy(CUgraph graph)
{
    free(graph);
    return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
    (void)flags;
    CUgraphExec made = malloc(sizeof *made);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    made->total_ns = graph->total_ns;
    made->memory_bytes = graph->memory_bytes;
    *exec = made;
    return CUDA_SUCCESS;
}

CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    free(exec);
    return CUDA_SUCCESS;
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    struct sim_stream *s = sim_resolve(stream);
    if (!s)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (s->capture) {
        s->graph->total_ns += exec->total_ns;
        s->graph->memory_bytes += exec->memory_bytes;
        return CUDA_SUCCESS;
    }
    CUresult result = sim_charge_graph(s->context->device, exec->memory_bytes);
    if (result)
        return result;
    return sim_submit(s, exec->total_ns);
}

CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream)
{
    return cuGraphLaunch(exec, stream);
}
