/* gpuload: a GPU program with a known load, for demonstrations and measurements.
 *
 * It launches kernels of a given duration and tells once a second how much GPU time it got, by its own reckoning: kernels
 * finished × duration / wall time. It knows nothing of limits; what it prints is what a tenant would see.
 */
#include "cuda_api.h"

#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define WINDOW 8
#define MOST_STREAMS 16

static const char usage[] =
    "usage: gpuload [options]\n\n"
    "Runs kernels of a known duration and prints, once a second, the share of GPU time it got.\n"
    "  --kernel-us N     a kernel's duration in microseconds (1000); 0: no kernels, memory only\n"
    "  --grid N          blocks per kernel (1)\n"
    "  --streams N       launch on so many streams in turn (1); their kernels overlap, so shares add up to more than "
    "100\n"
    "  --sync            wait for every kernel before launching the next (default: keep the queue filled)\n"
    "  --memory SIZE     allocate this much first and hold it (e.g. 512MiB)\n"
    "  --grow SIZE       try to allocate this much now and then, print the result, free it again\n"
    "  --every SECONDS   how often (1)\n"
    "  --device N        CUDA device (0)\n"
    "  --seconds N       end after this time (default: run until SIGTERM)\n"
    "  --interval S      seconds between the printed lines (1)\n"
    "  --json            one JSON object a line\n"
    "Sizes: bytes, or with KiB, MiB, GiB. Ends with 0 on SIGTERM, SIGINT or when the time is over.\n";

static struct {
    uint64_t kernel_ns, memory, grow;
    double every, seconds, interval;
    unsigned grid, streams;
    int device, sync, json;
} options = {.kernel_ns = 1000000, .every = 1, .interval = 1, .grid = 1, .streams = 1};

static volatile sig_atomic_t ended;
static uint64_t launched, finished, held;
static CUstream streams[MOST_STREAMS];
static unsigned batches;
static CUevent marks[WINDOW];
static uint64_t mark_at[WINDOW]; /* kernels launched when the mark was set */
static unsigned first_mark, mark_count;

static void on_signal(int number)
{
    (void)number;
    ended = 1;
}

static double now(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static void pause_for(double seconds)
{
    struct timespec ts = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&ts, NULL);
}

static uint64_t parse_size(const char *text)
{
    char *unit;
    double n = strtod(text, &unit);
    switch (*unit) {
    case 'G':
    case 'g':
        return (uint64_t)(n * 1073741824.0);
    case 'M':
    case 'm':
        return (uint64_t)(n * 1048576.0);
    case 'K':
    case 'k':
        return (uint64_t)(n * 1024.0);
    default:
        return (uint64_t)n;
    }
}

static void say(const char *event, uint64_t bytes, CUresult error)
{
    if (options.json)
        printf("{\"at\":%.6f,\"event\":\"%s\",\"bytes\":%llu,\"error\":%d,\"error_name\":\"%s\"}\n", now(), event,
               (unsigned long long)bytes, error, cuda_error_name(error));
    else
        printf("%s %llu MiB: %s (%d)\n", event, (unsigned long long)bytes >> 20, cuda_error_name(error), error);
    fflush(stdout);
}

/* Wait for the oldest mark; every kernel up to it is finished. */
static CUresult wait_oldest(void)
{
    CUresult error = cuda.cuEventSynchronize(marks[first_mark]);
    finished = mark_at[first_mark];
    first_mark = (first_mark + 1) % WINDOW;
    mark_count--;
    return error;
}

/* Launch about a millisecond of kernels on the next stream and set a mark behind them. Marks are waited for in the order in
 * which they were set, so a mark that is done says that everything launched before it is, on the other streams too. */
static CUresult launch_batch(CUfunction spin)
{
    CUstream stream = streams[batches++ % options.streams];
    uint64_t batch = options.sync ? 1 : options.kernel_ns >= 1000000 ? 1 : 1000000 / options.kernel_ns;
    for (uint64_t i = 0; i < batch; i++) {
        CUresult error = cuda_spin(spin, options.grid, options.kernel_ns, stream);
        if (error)
            return error;
        launched++;
    }
    if (options.sync) {
        CUresult error = cuda.cuStreamSynchronize(stream);
        finished = launched;
        return error;
    }
    if (mark_count == WINDOW) {
        CUresult error = wait_oldest();
        if (error)
            return error;
    }
    unsigned at = (first_mark + mark_count++) % WINDOW;
    mark_at[at] = launched;
    return cuda.cuEventRecord(marks[at], stream);
}

static void try_growing(void)
{
    CUdeviceptr pointer;
    CUresult error = cuda.cuMemAlloc_v2(&pointer, options.grow);
    say("grow", options.grow, error);
    if (!error)
        cuda.cuMemFree_v2(pointer);
}

/* Count what has finished meanwhile without waiting for it. */
static void count_finished(void)
{
    while (mark_count && cuda.cuEventQuery(marks[first_mark]) == CUDA_SUCCESS)
        if (wait_oldest())
            return;
}

static void report(double start, double last, double at, uint64_t since)
{
    size_t free_bytes = 0, total = 0;
    count_finished();
    cuda.cuMemGetInfo_v2(&free_bytes, &total);
    double share = 100.0 * (double)(finished - since) * (double)options.kernel_ns / 1e9 / (at - last);
    if (options.json)
        printf("{\"at\":%.6f,", at); /* CLOCK_MONOTONIC, to be laid beside other processes' windows */
    printf(options.json ? "\"seconds\":%.2f,\"kernels\":%llu,\"share_percent\":%.2f,\"held_bytes\":%llu,"
                          "\"free_bytes\":%zu,\"total_bytes\":%zu}\n"
                        : "%7.2f s  %8llu kernels  share %6.2f %%  held %llu B  free %zu B of %zu B\n",
           at - start, (unsigned long long)finished, share, (unsigned long long)held, free_bytes, total);
    fflush(stdout);
}

static void hold_memory(void)
{
    CUdeviceptr pointer;
    CUresult error = cuda.cuMemAlloc_v2(&pointer, options.memory);
    say("hold", options.memory, error);
    if (!error)
        held = options.memory;
}

static CUresult run(CUfunction spin)
{
    double start = now(), last = start, grown = start;
    uint64_t since = 0;
    while (!ended) {
        CUresult error = options.kernel_ns ? launch_batch(spin) : CUDA_SUCCESS;
        double at = now();
        if (error && error != CUDA_ERROR_NOT_PERMITTED && error != CUDA_ERROR_OUT_OF_MEMORY)
            return error;
        /* Refused launches: the claim was closed. Its agent ends this process; until then, say so and wait. */
        if (error)
            say("launch", 0, error);
        if (error || !options.kernel_ns)
            pause_for(error ? 0.2 : 0.02);
        if (options.grow && at - grown >= options.every) {
            try_growing();
            grown = at;
        }
        if (at - last >= options.interval) {
            report(start, last, at, since);
            last = at;
            since = finished;
        }
        if (options.seconds > 0 && at - start >= options.seconds)
            break;
    }
    return CUDA_SUCCESS;
}

static int parse(int argc, char **argv)
{
    static const struct option names[] = {
        {"kernel-us", 1, NULL, 'k'}, {"grid", 1, NULL, 'g'},     {"streams", 1, NULL, 'r'}, {"sync", 0, NULL, 's'},
        {"memory", 1, NULL, 'm'},    {"grow", 1, NULL, 'w'},     {"every", 1, NULL, 'e'},   {"device", 1, NULL, 'd'},
        {"seconds", 1, NULL, 't'},   {"interval", 1, NULL, 'i'}, {"json", 0, NULL, 'j'},    {"help", 0, NULL, 'h'},
        {NULL, 0, NULL, 0}};
    for (int c; (c = getopt_long(argc, argv, "h", names, NULL)) != -1;)
        switch (c) {
        case 'k':
            options.kernel_ns = (uint64_t)(strtod(optarg, NULL) * 1000);
            break;
        case 'g':
            options.grid = (unsigned)strtoul(optarg, NULL, 10);
            break;
        case 'r':
            options.streams = (unsigned)strtoul(optarg, NULL, 10);
            break;
        case 's':
            options.sync = 1;
            break;
        case 'm':
            options.memory = parse_size(optarg);
            break;
        case 'w':
            options.grow = parse_size(optarg);
            break;
        case 'e':
            options.every = strtod(optarg, NULL);
            break;
        case 'd':
            options.device = atoi(optarg);
            break;
        case 't':
            options.seconds = strtod(optarg, NULL);
            break;
        case 'i':
            options.interval = strtod(optarg, NULL);
            break;
        case 'j':
            options.json = 1;
            break;
        case 'h':
            fputs(usage, stdout);
            exit(0);
        default:
            fputs(usage, stderr);
            return 0;
        }
    if (options.streams >= 1 && options.streams <= MOST_STREAMS)
        return 1;
    fprintf(stderr, "gpuload: --streams must be 1 to %d\n", MOST_STREAMS);
    return 0;
}

static int fail(const char *where, CUresult error)
{
    fprintf(stderr, "gpuload: %s: %s (%d)\n", where, cuda_error_name(error), error);
    return 1;
}

int main(int argc, char **argv)
{
    if (!parse(argc, argv))
        return 2;
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    const char *where = cuda_api_load();
    if (where) {
        fprintf(stderr, "gpuload: %s not found\n", where);
        return 1;
    }
    CUfunction spin;
    CUresult error = cuda_api_start(options.device, &spin, &where);
    for (unsigned i = 0; !error && i < options.streams; i++)
        error = cuda.cuStreamCreate(&streams[i], 1);
    for (int i = 0; !error && i < WINDOW; i++)
        error = cuda.cuEventCreate(&marks[i], 2);
    if (error)
        return fail(where, error);
    if (options.memory)
        hold_memory();
    error = run(spin);
    return error ? fail("run", error) : 0;
}
