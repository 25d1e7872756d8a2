/* Functions of the program that a stream calls when it gets there: one thread calls them all, in the order in which they were
 * launched. As with the real driver they must not call CUDA. */
#include "process.h"

#include <stdlib.h>
#include <unistd.h>

struct call {
    CUhostFn function;
    void *data;
    struct sim_stream *stream;
    uint64_t mark;
    struct call *next;
};

static struct call *first, **last = &first;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static pid_t served_in; /* a forked child has no such thread */

static void *serve(void *nothing)
{
    pthread_mutex_lock(&mutex);
    for (;;) {
        while (!first)
            pthread_cond_wait(&changed, &mutex);
        struct call *call = first;
        first = call->next;
        if (!first)
            last = &first;
        pthread_mutex_unlock(&mutex);
        struct sim_device *device = call->stream->context->device;
        sim_wait(device->gpu, device->client, call->mark);
        call->function(call->data);
        pthread_mutex_lock(&mutex);
        call->stream->host_done++;
        pthread_cond_broadcast(&changed);
        free(call);
    }
    return nothing;
}

static CUresult start_serving(void)
{
    pthread_t thread;
    if (served_in == getpid())
        return CUDA_SUCCESS;
    if (pthread_create(&thread, NULL, serve, NULL) != 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_detach(thread);
    served_in = getpid();
    return CUDA_SUCCESS;
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *data)
{
    struct sim_stream *s = sim_resolve(stream);
    if (!s || !function)
        return s ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_CONTEXT;
    if (s->capture)
        return CUDA_ERROR_NOT_SUPPORTED; /* graphs here hold kernels only */
    struct call *call = malloc(sizeof *call);
    if (!call)
        return CUDA_ERROR_OUT_OF_MEMORY;
    sim_lock(s->context->device->gpu);
    *call = (struct call){.function = function, .data = data, .stream = s, .mark = s->tail};
    sim_unlock(s->context->device->gpu);
    pthread_mutex_lock(&mutex);
    CUresult result = start_serving();
    if (!result) {
        s->host_calls++;
        *last = call;
        last = &call->next;
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&mutex);
    if (result)
        free(call);
    return result;
}

CUresult cuLaunchHostFunc_ptsz(CUstream stream, CUhostFn function, void *data)
{
    return cuLaunchHostFunc(stream, function, data);
}

void sim_wait_host_calls(struct sim_stream *s)
{
    pthread_mutex_lock(&mutex);
    uint64_t want = s->host_calls;
    while (s->host_done < want)
        pthread_cond_wait(&changed, &mutex);
    pthread_mutex_unlock(&mutex);
}
