/* Captures. While the counter is above zero, each stream is checked for a capture before an event is put into it, and no
 * memory moves. A capture ends with its stream or its context, too; one that is abandoned in another way leaves the counter
 * too high. Then launches take the slow path, and bursts that the watcher ends are charged as predicted. */
#include "barrier.h"
#include "entries.h"
#include "meter.h"

#include <pthread.h>
#include <string.h>

/* Streams whose capture was begun; the counter has more where there is no room. */
static struct {
    CUstream stream;
    CUcontext context;
} begun[64];
#define BEGUN (sizeof begun / sizeof *begun)
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

void captures_forget(void)
{
    pthread_mutex_init(&mutex, NULL);
    memset(begun, 0, sizeof begun);
}

/* Raise the counter, then pass through the watcher's lock: it reads the counter under the lock, so afterwards none of
 * its events is on its way into a stream. */
static void raise_captures(void)
{
    __atomic_fetch_add(&shim.captures, 1, __ATOMIC_SEQ_CST);
    shim_cool();
    if (shim_mode() == SHIM_ACTIVE && meter_lock())
        meter_unlock();
}

static CUresult finish_begin(CUstream stream, CUresult result)
{
    CUcontext context = NULL;
    if (result) {
        __atomic_fetch_sub(&shim.captures, 1, __ATOMIC_SEQ_CST);
        return result;
    }
    real.cuCtxGetCurrent(&context);
    pthread_mutex_lock(&mutex);
    for (size_t i = 0; i < BEGUN; i++)
        if (!begun[i].stream) {
            begun[i].stream = stream;
            begun[i].context = context;
            break;
        }
    pthread_mutex_unlock(&mutex);
    return result;
}

/* Forget the capture of one stream, or those of a context; return how many there were. */
static int forget(CUstream stream, CUcontext context)
{
    int n = 0;
    pthread_mutex_lock(&mutex);
    for (size_t i = 0; i < BEGUN && !(n && stream); i++)
        if (begun[i].stream && (stream ? begun[i].stream == stream : begun[i].context == context)) {
            begun[i].stream = NULL;
            n++;
        }
    pthread_mutex_unlock(&mutex);
    return n;
}

void captures_end_with(CUstream stream, CUcontext context)
{
    if (__atomic_load_n(&shim.captures, __ATOMIC_RELAXED) > 0)
        __atomic_fetch_sub(&shim.captures, forget(stream, context), __ATOMIC_SEQ_CST);
}

/* A capture that waits for memory to move has not begun. */
#define BEGIN(name, params, call)                                                                                      \
    CUresult name params                                                                                               \
    {                                                                                                                  \
        NEED_REAL(name);                                                                                               \
        int entered = barrier_enter();                                                                                 \
        raise_captures();                                                                                              \
        CUresult result = finish_begin(stream, real.name call);                                                        \
        barrier_leave(entered);                                                                                        \
        return result;                                                                                                 \
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
static CUresult finish_end(CUstream stream, CUresult result)
{
    if ((!result || result == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED) &&
        __atomic_load_n(&shim.captures, __ATOMIC_RELAXED) > 0) {
        forget(stream, NULL);
        __atomic_fetch_sub(&shim.captures, 1, __ATOMIC_SEQ_CST);
    }
    return result;
}

#define END(name, params, call)                                                                                        \
    CUresult name params                                                                                               \
    {                                                                                                                  \
        NEED_REAL(name);                                                                                               \
        return finish_end(stream, real.name call);                                                                     \
    }
END(cuStreamEndCapture, (CUstream stream, CUgraph *graph), (stream, graph))
END(cuStreamEndCapture_ptsz, (CUstream stream, CUgraph *graph), (stream, graph))
END(cuStreamEndCaptureToCig, (CUstream stream), (stream))
END(cuStreamEndCaptureToCig_ptsz, (CUstream stream), (stream))
