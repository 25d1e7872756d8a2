/* Roles that once broke the library: many pools, an exit that waits for a launching thread, threads with streams of their
 * own, a program that is exec'd. */
#include "cuda_api.h"
#include "harness.h"
#include "inside.h"
#include "real.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MANY 400

static CUfunction spin;
static CUstream stream;

static int start(void)
{
    const char *where = cuda_api_load();
    return !where && !cuda_api_start(0, &spin, &where) && !cuda.cuStreamCreate(&stream, 1);
}

/* Pools one after the other, then many at once; each time more is asked for than the limit gives. */
static int pools(void)
{
    if (!start())
        return 1;
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    __typeof__(cuMemPoolCreate) *make = (__typeof__(make))dlsym(library, "cuMemPoolCreate");
    __typeof__(cuMemPoolDestroy) *destroy = (__typeof__(destroy))dlsym(library, "cuMemPoolDestroy");
    CUpoolProps props = {.type = 1, .location = {CU_LOCATION_DEVICE, 0}};
    CUmemoryPool pool;
    CUdeviceptr p;
    size_t f, t;
    int bad = 0;
    for (int i = 0; i < MANY; i++) {
        bad += make(&pool, &props) || cuda.cuMemAllocFromPoolAsync(&p, MIB, pool, stream);
        bad += cuda.cuMemFreeAsync(p, stream) || cuda.cuStreamSynchronize(stream) || destroy(pool);
        bad += cuda.cuMemGetInfo_v2(&f, &t) != 0; /* looks at every pool */
    }
    pause_s(0.6); /* so does the watcher */
    printf("bad %d\nfree %.0f\n", bad, (double)f);
    bad = make(&pool, &props) ? -1 : (int)cuda.cuMemAllocFromPoolAsync(&p, 4 * GIB, pool, stream);
    printf("big %d\n", bad);
    props.location.id = 1;
    bad = make(&pool, &props);
    bad = bad ? bad : (int)cuda.cuMemAllocFromPoolAsync(&p, 16 * MIB, pool, stream);
    printf("elsewhere %d\n", bad);
    props.location.id = 0;
    int granted = 0;
    for (bad = 0; !bad && granted < MANY; granted++)
        bad = make(&pool, &props) ? 2 : (int)cuda.cuMemAllocFromPoolAsync(&p, 4 * GIB, pool, stream) == 0;
    printf("crowd %d\n", bad);
    return 0;
}

static void say_used(const char *name)
{
    static size_t before;
    size_t f = 0, t;
    cuda.cuMemGetInfo_v2(&f, &t);
    before = before ? before : f;
    printf("%s %.0f\n", name, (double)(before - f) / MIB);
}

/* A handle and a mapping hold the same 64 MiB; calls that fail change nothing. */
static int maps(void)
{
    CUallocationProp prop = {.type = 1, .location = {CU_LOCATION_DEVICE, 0}};
    CUhandle handle;
    CUdeviceptr p;
    if (!start())
        return 1;
    say_used("nothing");
    if (cuda.cuMemCreate(&handle, 64 * MIB, &prop, 0) || cuda.cuMemAddressReserve(&p, 64 * MIB, 0, 0, 0) ||
        cuda.cuMemMap(p, 64 * MIB, 0, handle, 0) || cuda.cuMemRelease(handle))
        return 1;
    say_used("mapped");
    printf("bad_unmap %d\n", cuda.cuMemUnmap(p + 64 * MIB, 64 * MIB));
    say_used("still");
    if (cuda.cuMemUnmap(p, 64 * MIB))
        return 1;
    say_used("unmapped");
    /* A plain block may be freed in a stream's order, and one of a pool at once. */
    if (cuda.cuMemAlloc_v2(&p, 64 * MIB) || cuda.cuMemFreeAsync(p, stream) || cuda.cuStreamSynchronize(stream))
        return 1;
    say_used("freed_async");
    if (cuda.cuMemAllocAsync(&p, 64 * MIB, stream) || cuda.cuMemFree_v2(p) || cuda.cuStreamSynchronize(stream))
        return 1;
    say_used("freed_plainly");
    return 0;
}

static _Atomic int stop, launched;
static pthread_t launcher;

static void *launch_on(void *context)
{
    cuda.cuCtxSetCurrent(context);
    while (!stop)
        launched += cuda_spin(spin, 1, 300000000, stream) == 0;
    return NULL;
}

static void end_launcher(void)
{
    stop = 1;
    pthread_join(launcher, NULL);
}

/* The program ends while a thread waits for credit, and its own clean-up waits for that thread. */
static int exits(void)
{
    CUcontext context;
    alarm(15);
    atexit(end_launcher);
    if (!start() || cuda.cuDevicePrimaryCtxRetain(&context, 0))
        return 1;
    /* Once measured, such a kernel is predicted: while it runs, far more is in flight than credit can ever be. */
    if (cuda_spin(spin, 1, 300000000, stream) || cuda.cuStreamSynchronize(stream))
        return 1;
    pause_s(0.1);
    pthread_create(&launcher, NULL, launch_on, context);
    while (!launched)
        pause_s(0.005);
    pause_s(0.02);
    return 0;
}

/* Take most of the limit, then become another program that does the same. */
static int execs(char **argv)
{
    CUdeviceptr p;
    if (!start() || cuda.cuMemAlloc_v2(&p, strtoull(argv[1], NULL, 10)))
        return 1;
    execl("/proc/self/exe", "suite", "--role", "fill", "plain", "67108864", "8589934592", NULL);
    return 1;
}

#define PART_NS 900000

/* Kernels on the thread's own default stream, each after a pause. */
static void *launch_on_own(void *context)
{
    cuda.cuCtxSetCurrent(context);
    for (; launched < 200; launched++) {
        cuda_spin(spin, 1, PART_NS, CU_STREAM_PER_THREAD);
        pause_s(0.003);
    }
    stop = 1;
    return NULL;
}

/* Meanwhile this thread waits for what is long done. */
static int per_thread(void)
{
    CUcontext context;
    CUevent done;
    if (!start() || cuda.cuDevicePrimaryCtxRetain(&context, 0) || cuda.cuEventCreate(&done, 2) ||
        cuda.cuEventRecord(done, stream))
        return 1;
    pthread_create(&launcher, NULL, launch_on_own, context);
    for (; !stop; pause_s(0.0001))
        cuda.cuEventSynchronize(done);
    pthread_join(launcher, NULL);
    cuda.cuCtxSynchronize();
    pause_s(0.1);
    printf("worked %.0f\n", (double)launched * PART_NS);
    fflush(stdout);
    pause_s(0.3);
    return 0;
}

/* A kernel, a wait, a thousand times; then nothing. */
static int waits(void)
{
    enum { ROUNDS = 1000, NS = 20000 };
    if (!start())
        return 1;
    for (int i = 0; i < ROUNDS; i++)
        if (cuda_spin(spin, 1, NS, stream) || cuda.cuStreamSynchronize(stream))
            return 1;
    pause_s(0.2);
    printf("launches %d\nworked %d\n", ROUNDS, ROUNDS * NS);
    fflush(stdout);
    pause_s(0.5);
    return 0;
}

static __typeof__(cuEventRecord) *record;
static unsigned recorded;

static CUresult count_record(CUevent event, CUstream on)
{
    __atomic_fetch_add(&recorded, 1, __ATOMIC_RELAXED);
    return record(event, on);
}

/* Short kernels in turn of so many sizes, one behind the other or each after the one before has ended; the library's
 * events are counted after the first third. */
static int events(unsigned ns, unsigned sizes, int behind)
{
    unsigned each = behind ? 24000 : 1200;
    struct real_cuda *driver = inside_find("real");
    if (!driver || !start())
        return 1;
    record = driver->cuEventRecord;
    driver->cuEventRecord = count_record;
    for (unsigned i = 0; i < each * sizes; i++) {
        if (i == each / 3 * sizes)
            __atomic_store_n(&recorded, 0, __ATOMIC_RELAXED);
        if (cuda_spin(spin, 1 + i % sizes, ns, stream))
            return 1;
        for (double until = now_s() + (behind ? 0 : 1e-5 + ns / 1e9); now_s() < until;)
            continue;
    }
    printf("events %u\nlaunches %u\n", recorded, (each - each / 3) * sizes);
    return 0;
}

/* A kernel that nobody waits for, while a capture that will never end is in progress elsewhere. */
static int beside_capture(void)
{
    CUstream other;
    if (!start() || cuda.cuStreamCreate(&other, 1))
        return 1;
    for (int i = 0; i < 8; i++)
        if (cuda_spin(spin, 1, PART_NS, stream) || cuda.cuStreamSynchronize(stream))
            return 1;
    if (cuda.cuStreamBeginCapture_v2(other, CU_CAPTURE_RELAXED) || cuda_spin(spin, 1, PART_NS, stream))
        return 1;
    pause_s(0.4);
    printf("launched 1\n");
    fflush(stdout);
    pause_s(0.3);
    return 0;
}

/* Work without a limit that is charged as predicted; then the program gets a limit. */
static int owes(void)
{
    if (!start())
        return 1;
    for (int i = 0; i < 60; i++, pause_s(0.02))
        if (cuda_spin(spin, 1, PART_NS, CU_STREAM_PER_THREAD))
            return 1;
    printf("worked 1\n");
    fflush(stdout);
    pause_s(0.3);
    double begin = now_s();
    for (int i = 0; i < 2; i++)
        cuda_spin(spin, 1, PART_NS, CU_STREAM_PER_THREAD);
    printf("waited %.3f\n", now_s() - begin);
    return 0;
}

/* A hundred contexts one after the other; in the last one, kernels that were never seen before. */
static int contexts(void)
{
    CUcontext context;
    CUdevice device;
    if (!start() || cuda.cuDeviceGet(&device, 0))
        return 1;
    for (int i = 0; i < 100; i++) {
        int last = i == 99, failed = cuda.cuCtxCreate_v2(&context, 0, device) || cuda.cuStreamCreate(&stream, 1);
        for (int k = 0; k < (last ? 50 : 1); k++, pause_s(0.002))
            failed = failed || cuda_spin(spin, last ? 7 : 1, 100000, stream) || cuda.cuStreamSynchronize(stream);
        if (failed || (!last && cuda.cuCtxDestroy_v2(context)))
            return 1;
    }
    pause_s(0.1);
    printf("worked 1\n");
    fflush(stdout);
    pause_s(0.3);
    return 0;
}

/* Streams that are destroyed with work in them, which is allowed: they end when it does. */
static int short_streams(void)
{
    if (!start())
        return 1;
    for (int i = 0; i < 8; i++)
        if (cuda_spin(spin, 1, PART_NS, stream) || cuda.cuStreamSynchronize(stream))
            return 1;
    for (int i = 0; i < 10; i++, pause_s(0.03))
        if (cuda.cuStreamCreate(&stream, 1) || cuda_spin(spin, 1, PART_NS, stream) || cuda.cuStreamDestroy_v2(stream))
            return 1;
    printf("worked 1\n");
    fflush(stdout);
    pause_s(0.3);
    return 0;
}

/* A second context works on while the device's primary one ends. */
static int second_context(void)
{
    CUcontext second;
    CUdevice device;
    if (!start() || cuda.cuDeviceGet(&device, 0) || cuda.cuCtxCreate_v2(&second, 0, device) ||
        cuda.cuStreamCreate(&stream, 1) || cuda_spin(spin, 1, 200000000, stream) ||
        cuda.cuDevicePrimaryCtxRelease_v2(device) || cuda.cuStreamSynchronize(stream))
        return 1;
    pause_s(0.1);
    printf("worked 1\n");
    fflush(stdout);
    pause_s(0.3);
    return 0;
}

int role_bugs(int argc, char **argv)
{
    if (argc && !strcmp(argv[0], "pools"))
        return pools();
    if (argc && !strcmp(argv[0], "maps"))
        return maps();
    if (argc && !strcmp(argv[0], "exits"))
        return exits();
    if (argc && !strcmp(argv[0], "per_thread"))
        return per_thread();
    if (argc && !strcmp(argv[0], "waits"))
        return waits();
    if (argc == 4 && !strcmp(argv[0], "events"))
        return events((unsigned)atoi(argv[1]), (unsigned)atoi(argv[2]), !strcmp(argv[3], "behind"));
    if (argc && !strcmp(argv[0], "beside_capture"))
        return beside_capture();
    if (argc && !strcmp(argv[0], "owes"))
        return owes();
    if (argc && !strcmp(argv[0], "contexts"))
        return contexts();
    if (argc && !strcmp(argv[0], "short_streams"))
        return short_streams();
    if (argc && !strcmp(argv[0], "second_context"))
        return second_context();
    if (argc == 2 && !strcmp(argv[0], "execs"))
        return execs(argv);
    return 2;
}
