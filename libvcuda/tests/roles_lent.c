/* Roles about memory that steps aside while a program makes it hard: work that the host lets go, further contexts, captures
 * without an end. */
#include "harness.h"
#include "tenant.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

static struct tenant tenant;
static __typeof__(cuMemcpyHtoD_v2) *to_gpu;
static uint32_t *words;
static int ends; /* SIGTERM came */

static int is_to_end(void)
{
    return __atomic_load_n(&ends, __ATOMIC_SEQ_CST);
}

static void note_end(int signal)
{
    (void)signal;
    __atomic_store_n(&ends, 1, __ATOMIC_SEQ_CST);
}

static uint32_t word_of(uint32_t seed, size_t i)
{
    return (uint32_t)(i * 2654435761u) ^ seed * 40503u;
}

/* Begin, take a block and write it. */
static CUresult begin(CUdeviceptr *block, size_t bytes)
{
    signal(SIGTERM, note_end);
    to_gpu = tenant_find("cuMemcpyHtoD_v2");
    words = malloc(bytes);
    CUresult error = tenant_begin(&tenant);
    error = error ? error : cuda.cuMemAlloc_v2(block, bytes);
    for (size_t i = 0; i < bytes / 4; i++)
        words[i] = word_of(1, i);
    return error ? error : to_gpu(*block, words, bytes);
}

static double wrong_words(CUdeviceptr block, size_t bytes)
{
    double wrong = 0;
    memset(words, 0, bytes);
    if (cuda.cuMemcpyDtoH_v2(words, block, bytes))
        return (double)bytes / 4;
    for (size_t i = 0; i < bytes / 4; i++)
        wrong += words[i] != word_of(1, i);
    return wrong;
}

static void wait_for_end(double seconds)
{
    for (double until = now_s() + seconds; !is_to_end() && now_s() < until;)
        pause_s(0.005);
}

/* Put a kernel behind a value in host memory. Say how long questions about memory take that come before the value, while
 * the memory is wanted. */
static int held(size_t bytes)
{
    __typeof__(cuStreamWaitValue32_v2) *wait_value = tenant_find("cuStreamWaitValue32_v2");
    __typeof__(cuMemHostAlloc) *host_alloc = tenant_find("cuMemHostAlloc");
    __typeof__(cuMemGetAddressRange_v2) *range = tenant_find("cuMemGetAddressRange_v2");
    CUdeviceptr block, base = 0;
    size_t size;
    void *memory;
    double longest = 0, first = now_s();
    CUresult error = begin(&block, bytes);
    error = error ? error : host_alloc(&memory, 4096, 0);
    uint32_t *value = memory;
    *value = 0;
    error = error ? error : wait_value(tenant.stream, (CUdeviceptr)(uintptr_t)value, 1, CU_WAIT_VALUE_GEQ);
    error = error ? error : cuda_spin(tenant.spin, 1, 100000, tenant.stream);
    say("ready", error);
    for (first = now_s(); !error && now_s() < first + 1.5; pause_s(0.01)) {
        double before = now_s();
        error = range(&base, &size, block + 4096);
        longest = now_s() - before > longest ? now_s() - before : longest;
    }
    say("longest_ms", 1e3 * longest);
    __atomic_store_n(value, 1, __ATOMIC_RELEASE);
    error = error ? error : cuda.cuStreamSynchronize(tenant.stream);
    say("error", error);
    say("let_go", 1);
    wait_for_end(60);
    say("wrong", wrong_words(block, bytes));
    return 0;
}

struct flood {
    CUcontext context;
    CUstream stream;
    CUfunction spin;
    CUresult error;
    double launched;
};

static void *flood(void *argument)
{
    struct flood *f = argument;
    f->error = cuda.cuCtxSetCurrent(f->context);
    for (; !f->error && !is_to_end(); f->launched++) {
        f->error = cuda_spin(f->spin, 1, 200000, f->stream);
        if ((int)f->launched % 8 == 7)
            f->error = f->error ? f->error : cuda.cuStreamSynchronize(f->stream);
    }
    return NULL;
}

/* Work in two contexts of the process, each with a block; the second context ends before the process. */
static int contexts(size_t bytes)
{
    CUfunction spins[CUDA_SPINS];
    struct flood floods[2] = {{0}};
    pthread_t threads[2];
    CUdeviceptr block, more;
    CUcontext second;
    CUresult error = begin(&block, bytes);
    floods[0] = (struct flood){.context = tenant.context, .stream = tenant.stream, .spin = tenant.spin};
    error = error ? error : cuda.cuCtxCreate_v2(&second, 0, 0);
    floods[1].context = second;
    error = error ? error : cuda.cuMemAlloc_v2(&more, bytes);
    error = error ? error : cuda.cuStreamCreate(&floods[1].stream, 1);
    error = error ? error : cuda_load_spins(spins);
    floods[1].spin = spins[0];
    for (int i = 0; i < 2 && !error; i++)
        pthread_create(&threads[i], NULL, flood, &floods[i]);
    say("ready", error);
    for (int i = 0; i < 2 && !error; i++)
        pthread_join(threads[i], NULL);
    say("error", error ? error : floods[0].error ? floods[0].error : floods[1].error);
    say("launched", floods[0].launched < floods[1].launched ? floods[0].launched : floods[1].launched);
    error = cuda.cuCtxSetCurrent(tenant.context);
    say("wrong", wrong_words(block, bytes));
    say("ended", cuda.cuCtxDestroy_v2(second));
    __atomic_store_n(&ends, 0, __ATOMIC_SEQ_CST);
    say("one", 1);
    wait_for_end(60);
    say("wrong_later", wrong_words(block, bytes));
    return 0;
}

/* Begin a capture that never ends; or destroy its stream amid it. */
static int capture(size_t bytes, int destroys)
{
    CUdeviceptr block;
    CUresult error = begin(&block, bytes);
    error = error ? error : cuda.cuStreamBeginCapture_v2(tenant.stream, 0);
    error = error ? error : cuda_spin(tenant.spin, 1, 20000, tenant.stream);
    if (destroys)
        error = error ? error : cuda.cuStreamDestroy_v2(tenant.stream);
    say("ready", error);
    wait_for_end(60);
    say("wrong", wrong_words(block, bytes));
    return 0;
}

int role_lent(int argc, char **argv)
{
    if (argc == 2 && !strcmp(argv[0], "lent_held"))
        return held(strtoull(argv[1], NULL, 10));
    if (argc == 2 && !strcmp(argv[0], "lent_contexts"))
        return contexts(strtoull(argv[1], NULL, 10));
    if (argc == 3 && !strcmp(argv[0], "lent_capture"))
        return capture(strtoull(argv[1], NULL, 10), atoi(argv[2]));
    return -1;
}
