/* The steps of a mixed load: see mix.h. */
#include "mix.h"

#include <time.h>

static const struct mix_options *options;
static CUfunction functions[MIX_KINDS];
static CUstream streams[MIX_STREAMS];
static CUevent marks[MIX_STREAMS];
static CUdeviceptr copied;
static uint64_t launches;               /* ever; decides the next kind and stream */
static uint64_t stream_ns[MIX_STREAMS]; /* GPU time of this step's work */
/* When each stream has done what was launched, and until when the GPU's time is counted, by our reckoning. */
static uint64_t free_at[MIX_STREAMS], counted_until;

uint64_t mix_now(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000ull + (uint64_t)ts.tv_nsec;
}

CUresult mix_launch(unsigned kind, CUstream stream)
{
    unsigned function = 0, more = 0;
    switch (options->differ) {
    case MIX_FUNCTIONS:
        function = kind;
        break;
    case MIX_GRIDS:
        more = kind;
        break;
    case MIX_BOTH:
        function = kind / 2;
        more = kind % 2;
        break;
    case MIX_ARGUMENTS:
        function = kind % 2 ? 0 : 1 + kind / 2;
        break;
    }
    return cuda_spin(functions[function], options->grid + more, options->duration_ns[kind], stream);
}

/* A copy waits for the null stream and for streams that are not non-blocking. */
static CUresult make_streams(void)
{
    unsigned flags = options->wait == MIX_COPY ? 0 : CU_STREAM_NON_BLOCKING;
    CUresult error = CUDA_SUCCESS;
    for (unsigned i = 0; i < options->streams && !error; i++) {
        if (options->wait != MIX_COPY || options->streams > 1)
            error = cuda.cuStreamCreate(&streams[i], flags);
        error = error ? error : cuda.cuEventCreate(&marks[i], CU_EVENT_DISABLE_TIMING);
    }
    return error ? error : cuda.cuMemAlloc_v2(&copied, 4096);
}

CUresult mix_start(const struct mix_options *wanted, const char **where)
{
    CUfunction spin;
    options = wanted;
    CUresult error = cuda_api_start(options->device, &spin, where);
    if (error)
        return error;
    *where = "loading the kernels";
    error = cuda_load_spins(functions);
    if (error)
        return error;
    *where = "making streams";
    return make_streams();
}

/* Count the kernel that was just launched: it runs at once, or behind what its stream has to do. */
static void reckon(struct mix_counts *counts, unsigned kind, unsigned stream)
{
    uint64_t now = mix_now(), begin = now, end;
    if (free_at[stream] > now)
        begin = free_at[stream] + options->queued_ns[kind] - options->alone_ns[kind];
    else if (options->alone_ns[kind] > options->duration_ns[kind])
        counts->extra_ns += options->alone_ns[kind] - options->duration_ns[kind];
    end = begin + options->alone_ns[kind];
    free_at[stream] = end;
    stream_ns[stream] += end - begin;
    uint64_t from = counted_until > begin ? counted_until : begin;
    counts->busy_ns += end > from ? end - from : 0;
    counted_until = end > from ? end : from;
    counts->work_ns += options->duration_ns[kind];
    counts->launches++;
}

static CUresult poll(CUstream stream)
{
    CUresult error;
    while ((error = cuda.cuStreamQuery(stream)) == CUDA_ERROR_NOT_READY)
        ;
    return error;
}

static CUresult wait_stream(unsigned i)
{
    switch (options->wait) {
    case MIX_STREAM:
        return cuda.cuStreamSynchronize(streams[i]);
    case MIX_EVENT:
        return cuda.cuEventSynchronize(marks[i]);
    case MIX_POLL:
        return poll(streams[i]);
    case MIX_DEVICE:
    case MIX_COPY:
        break;
    }
    return CUDA_SUCCESS;
}

static CUresult wait_all(struct mix_counts *counts)
{
    CUresult error = CUDA_SUCCESS;
    char host[4096];
    for (unsigned i = 0; i < options->streams && !error && options->wait == MIX_EVENT; i++)
        error = cuda.cuEventRecord(marks[i], streams[i]);
    uint64_t begin = mix_now();
    if (!error && options->wait == MIX_DEVICE)
        error = cuda.cuCtxSynchronize();
    if (!error && options->wait == MIX_COPY)
        error = cuda.cuMemcpyDtoH_v2(host, copied, sizeof host);
    for (unsigned i = 0; i < options->streams && !error; i++)
        error = wait_stream(i);
    uint64_t now = mix_now();
    counts->longest_wait_ns = now - begin > counts->longest_wait_ns ? now - begin : counts->longest_wait_ns;
    /* All is done now, whatever was reckoned. */
    uint64_t most = 0;
    for (unsigned i = 0; i < options->streams; i++) {
        free_at[i] = free_at[i] < now ? free_at[i] : now;
        most = stream_ns[i] > most ? stream_ns[i] : most;
        stream_ns[i] = 0;
    }
    counts->least_ns += most;
    counted_until = counted_until < now ? counted_until : now;
    return error;
}

CUresult mix_step(struct mix_counts *counts)
{
    CUresult error = CUDA_SUCCESS;
    for (unsigned i = 0; i < options->wait_every && !error; i++) {
        unsigned kind = (unsigned)(launches % options->kinds), stream = (unsigned)(launches % options->streams);
        uint64_t begin = mix_now();
        launches++;
        error = mix_launch(kind, streams[stream]);
        if (error)
            return error;
        reckon(counts, kind, stream);
        uint64_t now = mix_now();
        counts->longest_launch_ns = now - begin > counts->longest_launch_ns ? now - begin : counts->longest_launch_ns;
        while (options->cpu_ns && mix_now() - now < options->cpu_ns)
            ;
    }
    counts->steps++;
    return wait_all(counts);
}
