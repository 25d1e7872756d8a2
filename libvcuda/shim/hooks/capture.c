/* Captures. While the counter is above zero, each stream is checked for a capture before an event is put into it. A
 * capture that is abandoned without an end leaves the counter too high. Then launches take the slow path, and bursts
 * that the watcher ends are charged as predicted. */
#include "barrier.h"
#include "meter.h"

/* Raise the counter, then pass through the watcher's lock: it reads the counter under the lock, so afterwards none of
 * its events is on its way into a stream. */
static void raise_captures(void)
{
    __atomic_fetch_add(&shim.captures, 1, __ATOMIC_SEQ_CST);
    shim_cool();
    if (shim_mode() == SHIM_ACTIVE && meter_lock())
        meter_unlock();
}

static CUresult finish_begin(CUresult result)
{
    if (result)
        __atomic_fetch_sub(&shim.captures, 1, __ATOMIC_SEQ_CST);
    return result;
}

#define BEGIN(name, params, call)                                                                                      \
    CUresult name params                                                                                               \
    {                                                                                                                  \
        NEED_REAL(name);                                                                                               \
        raise_captures();                                                                                              \
        return finish_begin(BARRIER_CALL(real.name call));                                                             \
    }
BEGIN(cuStreamBeginCapture, (CUstream stream), (stream))
BEGIN(cuStreamBeginCapture_ptsz, (CUstream stream), (stream))
BEGIN(cuStreamBeginCapture_v2, (CUstream stream, int mode), (stream, mode))
BEGIN(cuStreamBeginCapture_v2_ptsz, (CUstream stream, int mode), (stream, mode))
#define TO_GRAPH (CUstream stream, CUgraph graph, const void *nodes, const void *edges, size_t count, int mode)
BEGIN(cuStreamBeginCaptureToGraph, TO_GRAPH, (stream, graph, nodes, edges, count, mode))
BEGIN(cuStreamBeginCaptureToGraph_ptsz, TO_GRAPH, (stream, graph, nodes, edges, count, mode))
#define AGAIN (CUstream stream, int mode, CUgraph graph, void *callback, void *data)
BEGIN(cuStreamBeginRecaptureToGraph, AGAIN, (stream, mode, graph, callback, data))
BEGIN(cuStreamBeginRecaptureToGraph_ptsz, AGAIN, (stream, mode, graph, callback, data))
BEGIN(cuStreamBeginCaptureToCig, (CUstream stream, void *params), (stream, params))
BEGIN(cuStreamBeginCaptureToCig_ptsz, (CUstream stream, void *params), (stream, params))

/* An invalidated capture has ended too; after any other error there was none. */
static CUresult finish_end(CUresult result)
{
    if ((!result || result == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED) &&
        __atomic_load_n(&shim.captures, __ATOMIC_RELAXED) > 0)
        __atomic_fetch_sub(&shim.captures, 1, __ATOMIC_SEQ_CST);
    return result;
}

#define END(name, params, call)                                                                                        \
    CUresult name params                                                                                               \
    {                                                                                                                  \
        NEED_REAL(name);                                                                                               \
        return finish_end(real.name call);                                                                             \
    }
END(cuStreamEndCapture, (CUstream stream, CUgraph *graph), (stream, graph))
END(cuStreamEndCapture_ptsz, (CUstream stream, CUgraph *graph), (stream, graph))
END(cuStreamEndCaptureToCig, (CUstream stream), (stream))
END(cuStreamEndCaptureToCig_ptsz, (CUstream stream), (stream))
