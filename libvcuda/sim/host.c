/* Functions of the program that a stream calls when it gets there: one thread calls them all, in the order in which they were
 * launched. As with the real driver they must not call CUDA. */
#include "memops.h"

#include <stdlib.h>
#include <unistd.h>

struct sim_host_call {
    CUhostFn function;
    void *data;
    struct sim_stream *stream;
    struct sim_device *device;
    uint64_t mark;
    struct sim_host_call *next;
};

static struct sim_host_call *first, **last = &first;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static pid_t served_in; /* a forked child has no such thread */

static void *serve(void *nothing)
{
    pthread_mutex_lock(&mutex);
    for (;;) {
        while (!first)
            pthread_cond_wait(&changed, &mutex);
        struct sim_host_call *call = first;
        first = call->next;
        if (!first)
            last = &first;
        pthread_mutex_unlock(&mutex);
        sim_wait(call->device->gpu, call->device->client, call->mark);
        sim_run_kept(); /* what the stream has written before */
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

void sim_put_host_call(struct sim_host_call *call)
{
    sim_lock(call->device->gpu);
    call->mark = call->stream->tail;
    sim_unlock(call->device->gpu);
    pthread_mutex_lock(&mutex);
    *last = call;
    last = &call->next;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
}

void sim_drop_host_call(struct sim_host_call *call)
{
    pthread_mutex_lock(&mutex);
    call->stream->host_done++;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
    free(call);
}

void sim_move_host_call(struct sim_host_call *call, struct sim_stream *stream)
{
    call->stream = stream;
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *data)
{
    struct sim_stream *s = sim_resolve(stream);
    if (!s || !function)
        return s ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_CONTEXT;
    if (s->capture)
        return CUDA_ERROR_NOT_SUPPORTED; /* graphs here hold kernels only */
    struct sim_host_call *call = malloc(sizeof *call);
    if (!call)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *call = (struct sim_host_call){.function = function, .data = data, .stream = s, .device = s->context->device};
    pthread_mutex_lock(&mutex);
    CUresult result = start_serving();
    s->host_calls += !result;
    pthread_mutex_unlock(&mutex);
    if (result) {
        free(call);
        return result;
    }
    int kept = sim_keep(s, &(struct sim_kept){.kind = SIM_HOST_CALL, .host_call = call});
    if (!kept)
        sim_put_host_call(call);
    else if (kept < 0)
        sim_drop_host_call(call);
    return kept < 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
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
