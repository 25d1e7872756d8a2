/* Roles about streams that wait for a value in host memory, and that write one. */
#include "harness.h"
#include "tenant.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define SPIN_NS 2000000

static struct tenant tenant;
static CUstream other;
static volatile unsigned *gate;
static CUevent before, behind, third;
static __typeof__(cuStreamWaitValue32_v2) *wait_value;
static __typeof__(cuStreamWriteValue32_v2) *write_value;
static __typeof__(cuLaunchHostFunc) *host_function;

static CUdeviceptr address_of(const volatile unsigned *word)
{
    return (CUdeviceptr)(uintptr_t)word;
}

static void set(volatile unsigned *word, unsigned value)
{
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

static unsigned get(const volatile unsigned *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static CUresult hold(CUstream stream, unsigned until)
{
    return wait_value(stream, address_of(gate), until, CU_WAIT_VALUE_GEQ);
}

static CUresult spin(CUstream stream)
{
    return cuda_spin(tenant.spin, 1, SPIN_NS, stream);
}

static int start(void)
{
    __typeof__(cuMemHostAlloc) *host_alloc;
    void *words;
    if (tenant_begin(&tenant) || cuda.cuStreamCreate(&other, CU_STREAM_NON_BLOCKING))
        return 0;
    host_alloc = (__typeof__(host_alloc))tenant_find("cuMemHostAlloc");
    wait_value = (__typeof__(wait_value))tenant_find("cuStreamWaitValue32_v2");
    write_value = (__typeof__(write_value))tenant_find("cuStreamWriteValue32_v2");
    host_function = (__typeof__(host_function))tenant_find("cuLaunchHostFunc");
    if (!wait_value || !write_value || host_alloc(&words, 4096, 0))
        return 0;
    memset(words, 0, 4096);
    gate = words;
    return !cuda.cuEventCreate(&before, 0) && !cuda.cuEventCreate(&behind, 0) && !cuda.cuEventCreate(&third, 0);
}

struct release {
    unsigned value;
    double after, at;
    pthread_t thread;
};

static void *release(void *argument)
{
    struct release *r = argument;
    pause_s(r->after);
    r->at = now_s();
    set(gate, r->value);
    return NULL;
}

static void release_later(struct release *r, unsigned value, double after)
{
    *r = (struct release){.value = value, .after = after};
    pthread_create(&r->thread, NULL, release, r);
}

/* 1: the wait, begun before the release, ended no sooner. */
static int ended_after(struct release *r)
{
    double now = now_s();
    pthread_join(r->thread, NULL);
    return now >= r->at;
}

static void order(void)
{
    struct release r;
    float ms = 0, behind_ms = 0;
    int bad = cuda.cuEventRecord(before, tenant.stream) || hold(tenant.stream, 1);
    double begin = now_s();
    bad += spin(tenant.stream) || cuda.cuEventRecord(behind, tenant.stream);
    say("launch_s", now_s() - begin);
    bad += spin(other) || cuda.cuEventRecord(third, other) || cuda.cuStreamSynchronize(other);
    say("other_s", now_s() - begin);
    say("query", cuda.cuStreamQuery(tenant.stream));
    say("event_query", cuda.cuEventQuery(behind));
    say("event_query_before", cuda.cuEventQuery(before));
    pause_s(0.05);
    say("query_later", cuda.cuStreamQuery(tenant.stream));
    release_later(&r, 1, 0.03);
    bad += cuda.cuStreamSynchronize(tenant.stream) != 0;
    say("sync_waits", ended_after(&r));
    say("query_after", cuda.cuStreamQuery(tenant.stream));
    bad += cuda.cuEventElapsedTime(&ms, before, behind) || cuda.cuEventElapsedTime(&behind_ms, third, behind);
    say("held_ms", (r.at - begin) * 1e3);
    say("elapsed_ms", (double)ms);
    say("overtaken_ms", (double)behind_ms);
    say("order_bad", bad);
}

static void writes(void)
{
    volatile unsigned *word = gate + 1;
    int bad = cuda_spin(tenant.spin, 1, 40000000, tenant.stream) ||
              write_value(tenant.stream, address_of(word), 7, 0) ||
              write_value(tenant.stream, address_of(word), 8, 0) || cuda.cuEventRecord(behind, tenant.stream);
    unsigned early = get(word);
    pause_s(0.01);
    say("written_early", early || (cuda.cuEventQuery(behind) && get(word) && cuda.cuEventQuery(behind)));
    bad += cuda.cuEventSynchronize(behind) != 0;
    say("written", get(word));
    /* Nobody calls, and it is written all the same. */
    bad += write_value(tenant.stream, address_of(word), 9, 0) != 0;
    for (int i = 0; i < 1000 && get(word) != 9; i++)
        pause_s(0.001);
    say("written_alone", get(word));
    /* One stream lets another go. */
    bad += hold(other, 2) || spin(other) || spin(tenant.stream) || write_value(tenant.stream, address_of(gate), 2, 0) ||
           cuda.cuStreamSynchronize(other);
    say("let_go", get(gate));
    say("write_bad", bad);
}

static void by_event(void)
{
    struct release r;
    int bad = hold(tenant.stream, 3) || spin(tenant.stream) || cuda.cuEventRecord(before, tenant.stream) ||
              cuda.cuStreamWaitEvent(other, before, 0) || spin(other) || cuda.cuEventRecord(behind, other);
    /* What the other waits for is that record, not a later one of the same event. */
    bad += cuda.cuEventRecord(before, CU_STREAM_PER_THREAD) || cuda.cuEventSynchronize(before);
    say("by_event_query", cuda.cuEventQuery(behind));
    release_later(&r, 3, 0.02);
    bad += cuda.cuEventSynchronize(behind) != 0;
    say("by_event_waits", ended_after(&r));
    bad += cuda.cuStreamQuery(tenant.stream) != 0;
    /* An event that is destroyed before it is recorded. */
    bad += hold(tenant.stream, 4) || cuda.cuEventRecord(behind, tenant.stream) || cuda.cuEventDestroy_v2(behind) ||
           spin(tenant.stream) || cuda.cuEventCreate(&behind, 0);
    release_later(&r, 4, 0.02);
    bad += cuda.cuCtxSynchronize() != 0;
    say("context_waits", ended_after(&r));
    say("by_event_bad", bad);
}

static void null_stream(void)
{
    struct release r;
    CUstream one, two;
    CUdeviceptr memory;
    char word[4];
    int bad = cuda.cuStreamCreate(&one, 0) || cuda.cuStreamCreate(&two, 0) || cuda.cuMemAlloc_v2(&memory, 1 << 21);
    bad += hold(one, 5) || spin(one);
    say("blocking_beside", cuda.cuStreamQuery(two));
    bad += spin(NULL) || spin(two);
    say("null_query", cuda.cuStreamQuery(NULL));
    say("blocking_query", cuda.cuStreamQuery(two));
    say("apart_query", spin(other) || cuda.cuStreamSynchronize(other));
    release_later(&r, 5, 0.02);
    bad += cuda.cuMemcpyDtoH_v2(word, memory, sizeof word) != 0;
    say("copy_waits", ended_after(&r));
    bad += cuda.cuStreamSynchronize(two) || cuda.cuStreamDestroy_v2(one) || cuda.cuStreamDestroy_v2(two);
    say("null_bad", bad);
}

static void note(void *seconds)
{
    double now = now_s();
    __atomic_store((double *)seconds, &now, __ATOMIC_RELEASE);
}

/* How soon a stream goes on while no thread of the program calls the driver: the least of several. */
static void alone(void)
{
    int bad = 0;
    double least = 1, called;
    for (unsigned i = 0; i < 20; i++) {
        double called_at = 0;
        bad += hold(tenant.stream, 6 + i) || host_function(tenant.stream, note, &called_at);
        pause_s(0.002);
        __atomic_load(&called_at, &called, __ATOMIC_ACQUIRE);
        bad += called != 0;
        double begin = now_s();
        set(gate, 6 + i);
        for (called = 0; called == 0 && now_s() < begin + 1;)
            __atomic_load(&called_at, &called, __ATOMIC_ACQUIRE);
        least = called - begin < least ? called - begin : least;
        bad += cuda.cuStreamSynchronize(tenant.stream) != 0;
    }
    say("noticed_us", least * 1e6);
    say("alone_bad", bad);
}

static void *leave(void *done)
{
    cuda.cuCtxSetCurrent(tenant.context);
    int bad = hold(CU_STREAM_PER_THREAD, 30) || spin(CU_STREAM_PER_THREAD) ||
              cuda.cuEventRecord(behind, CU_STREAM_PER_THREAD);
    return bad ? NULL : done;
}

/* A stream that is destroyed, or whose thread ends, before it may go on: its work is done all the same. */
static void gone(void)
{
    pthread_t thread;
    CUstream stream;
    void *done = NULL;
    int bad = pthread_create(&thread, NULL, leave, &tenant) || pthread_join(thread, &done) || !done;
    bad += cuda.cuStreamCreate(&stream, 0) || hold(stream, 30) || spin(stream) || cuda.cuEventRecord(third, stream) ||
           cuda.cuStreamDestroy_v2(stream);
    say("gone_query", cuda.cuEventQuery(behind));
    say("gone_query_destroyed", cuda.cuEventQuery(third));
    pid_t child = fork();
    if (child == 0)
        _exit(cuda.cuEventQuery(behind));
    int status = -1;
    waitpid(child, &status, 0);
    say("child_query", WEXITSTATUS(status));
    set(gate, 30);
    bad += cuda.cuEventSynchronize(behind) || cuda.cuEventSynchronize(third);
    say("gone_bad", bad);
}

/* As many launches as a stream takes, none of which may start. */
static void many(void)
{
    struct release r;
    int bad = hold(tenant.stream, 31);
    double begin = now_s();
    for (int i = 0; i < 1000; i++)
        bad += cuda_spin(tenant.spin, 1, 20000, tenant.stream) != 0;
    say("many_launch_s", now_s() - begin);
    release_later(&r, 31, 0.02);
    bad += cuda.cuStreamSynchronize(tenant.stream) != 0;
    double end = now_s();
    bad += !ended_after(&r);
    say("many_s", end - r.at);
    say("many_bad", bad);
}

static void answers(void)
{
    CUgraph graph;
    say("no_address", wait_value(tenant.stream, 0, 1, 0));
    say("no_address_written", write_value(tenant.stream, 0, 1, 0));
    cuda.cuStreamBeginCapture_v2(tenant.stream, CU_CAPTURE_RELAXED);
    say("captured", wait_value(tenant.stream, address_of(gate), 1, 0));
    say("captured_written", write_value(tenant.stream, address_of(gate), 1, 0));
    cuda.cuStreamEndCapture(tenant.stream, &graph);
    /* The values are a circle: 31 is past it. */
    say("wrapped", hold(tenant.stream, 0xfffffff0u) || cuda.cuStreamSynchronize(tenant.stream));
}

static int all(void)
{
    if (!start())
        return 1;
    order();
    writes();
    by_event();
    null_stream();
    alone();
    gone();
    many();
    answers();
    say("done", 1);
    return 0;
}

/* A stream full of work that may not start, for so long; what the entries are and answer. */
static int blocked(double seconds)
{
    if (!start())
        return 1;
    int bad = hold(tenant.stream, 1);
    for (int i = 0; i < 100; i++)
        bad += spin(tenant.stream) != 0;
    say("blocked", bad);
    pause_s(seconds);
    set(gate, 1);
    say("bad", cuda.cuStreamSynchronize(tenant.stream));
    return 0;
}

static int names(void)
{
    void *found = NULL;
    __typeof__(cuGetProcAddress) *look_up = (__typeof__(look_up))tenant_find("cuGetProcAddress");
    say("exported", tenant_find("cuStreamWaitValue32_v2") && tenant_find("cuStreamWriteValue32_v2"));
    say("lookup", look_up("cuStreamWaitValue32", &found, 13000, 0));
    say("lookup_same", found && found == tenant_find("cuStreamWaitValue32_v2"));
    /* An older driver lacks other things that a tenant needs. */
    if (found && start())
        say("answer", hold(tenant.stream, 0));
    return 0;
}

/* Lock another process for a checkpoint, within a fifth of a second. */
static int lock(int pid)
{
    __typeof__(cuCheckpointProcessLock) *lock_process =
        (__typeof__(lock_process))tenant_find("cuCheckpointProcessLock");
    CUcheckpointLock within = {.timeout_ms = 200};
    if (tenant_begin(&tenant))
        return 1;
    say("locked", lock_process(pid, &within));
    return 0;
}

int role_memops(int argc, char **argv)
{
    if (argc == 1 && !strcmp(argv[0], "memops"))
        return all();
    if (argc == 2 && !strcmp(argv[0], "memops_blocked"))
        return blocked(atof(argv[1]));
    if (argc == 2 && !strcmp(argv[0], "memops_lock"))
        return lock(atoi(argv[1]));
    if (argc == 1 && !strcmp(argv[0], "memops_names"))
        return names();
    return -1;
}
