/* Roles about memory that steps aside. */
#include "harness.h"
#include "tenant.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST 256

static struct tenant tenant;
static __typeof__(cuMemcpyHtoD_v2) *to_gpu;
static __typeof__(cuMemcpyDtoH_v2) *to_host;
static CUdeviceptr held[MOST];
static uint32_t *words;

static int begin(void)
{
    to_gpu = tenant_find("cuMemcpyHtoD_v2");
    to_host = tenant_find("cuMemcpyDtoH_v2");
    return tenant_begin(&tenant);
}

static uint32_t word_of(uint32_t seed, size_t i)
{
    return (uint32_t)(i * 2654435761u) ^ seed * 40503u;
}

static CUresult write_words(CUdeviceptr to, size_t bytes, uint32_t seed)
{
    for (size_t i = 0; i < bytes / 4; i++)
        words[i] = word_of(seed, i);
    return to_gpu(to, words, bytes);
}

/* Return how many words are wrong; all if they cannot be read. */
static double wrong_words(CUdeviceptr from, size_t bytes, uint32_t seed)
{
    double wrong = 0;
    memset(words, 0, bytes);
    if (to_host(words, from, bytes))
        return (double)bytes / 4;
    for (size_t i = 0; i < bytes / 4; i++)
        wrong += words[i] != word_of(seed, i);
    return wrong;
}

/* Say what each call answers about a block, and that its contents are what was written. */
static int paths(size_t bytes)
{
    __typeof__(cuMemGetAddressRange_v2) *range = tenant_find("cuMemGetAddressRange_v2");
    __typeof__(cuPointerGetAttribute) *attribute = tenant_find("cuPointerGetAttribute");
    __typeof__(cuMemsetD32_v2) *fill = tenant_find("cuMemsetD32_v2");
    __typeof__(cuMemcpyDtoD_v2) *within = tenant_find("cuMemcpyDtoD_v2");
    __typeof__(cuMemcpyHtoDAsync_v2) *to_gpu_later = tenant_find("cuMemcpyHtoDAsync_v2");
    __typeof__(cuIpcGetMemHandle) *share = tenant_find("cuIpcGetMemHandle");
    __typeof__(cuMemRetainAllocationHandle) *retain = tenant_find("cuMemRetainAllocationHandle");
    CUdeviceptr a, b, base = 0;
    CUipcHandle handle;
    CUhandle physical;
    size_t size = 0;
    unsigned type = 0;
    words = malloc(bytes);
    if (begin() || cuda.cuMemAlloc_v2(&a, bytes) || cuda.cuMemAlloc_v2(&b, bytes))
        return 1;
    say("range", range(&base, &size, a + bytes / 2));
    say("range_base", base == a);
    say("range_bytes", (double)size);
    say("attribute", attribute(&type, CU_POINTER_MEMORY_TYPE, a + 4096));
    say("type", type);
    say("shared", share(&handle, a));
    say("retained", retain(&physical, (void *)(uintptr_t)a));
    CUresult error = write_words(a, bytes, 1);
    error = error ? error : within(b, a, bytes);
    say("wrong", wrong_words(a, bytes, 1) + wrong_words(b, bytes, 1));
    error = error ? error : fill(a, word_of(9, 0), bytes / 4);
    say("filled", to_host(words, a, bytes) ? -1 : words[0] == word_of(9, 0) && words[bytes / 4 - 1] == word_of(9, 0));
    for (size_t i = 0; i < bytes / 4; i++)
        words[i] = word_of(5, i);
    error = error ? error : to_gpu_later(a, words, bytes, tenant.stream);
    error = error ? error : cuda.cuStreamSynchronize(tenant.stream);
    say("later", wrong_words(a, bytes, 5));
    say("error", error);
    say("ready", 1);
    pause_s(0.3);
    say("freed", cuda.cuMemFree_v2(a));
    say("freed_later", ((__typeof__(cuMemFreeAsync) *)tenant_find("cuMemFreeAsync"))(b, tenant.stream));
    say("done", 1);
    pause_s(0.3);
    return 0;
}

static CUresult capture(CUgraphExec *exec)
{
    CUgraph graph;
    CUresult error = cuda.cuStreamBeginCapture_v2(tenant.stream, CU_CAPTURE_GLOBAL);
    for (int i = 0; i < 4 && !error; i++)
        error = cuda_spin(tenant.spin, 1, 20000, tenant.stream);
    error = error ? error : cuda.cuStreamEndCapture(tenant.stream, &graph);
    return error ? error : cuda.cuGraphInstantiateWithFlags(exec, graph, 0);
}

static volatile sig_atomic_t is_to_end, is_to_grow, pauses;

static void note_signal(int signal)
{
    if (signal == SIGTERM)
        is_to_end = 1;
    else if (signal == SIGUSR2)
        pauses++;
    else
        is_to_grow = 1;
}

/* Take one more block, after a gigabyte without contents. */
static CUresult grow(int *count, size_t bytes)
{
    CUdeviceptr more;
    is_to_grow = 0;
    CUresult error = cuda.cuMemAlloc_v2(&more, GIB);
    error = error ? error : cuda.cuMemAlloc_v2(&held[*count], bytes);
    error = error ? error : write_words(held[*count], bytes, (uint32_t)*count);
    *count += !error;
    say("grown", error);
    return error;
}

/* Keep all memory from leaving until the next SIGUSR2, without a lock of anybody's: by a capture. */
static CUresult stand(void)
{
    char name[24];
    CUgraph graph;
    CUresult error = cuda.cuStreamBeginCapture_v2(tenant.stream, CU_CAPTURE_GLOBAL);
    snprintf(name, sizeof name, "stands%d", pauses);
    say(name, error);
    while (pauses % 2 && !is_to_end)
        pause_s(0.001);
    error = error ? error : cuda.cuStreamEndCapture(tenant.stream, &graph);
    return error ? error : cuda.cuGraphDestroy(graph);
}

/* Hold `count` blocks with contents, and one of `ballast` bytes without; launch kernels and a graph, and take another block
 * with SIGUSR1, until SIGTERM comes or the time is over; then say whether the contents are right. */
static int hold(int count, size_t bytes, size_t ballast, double seconds, uint64_t ns)
{
    CUgraphExec exec;
    CUdeviceptr more;
    double wrong = 0, until, launched = 0;
    signal(SIGTERM, note_signal);
    signal(SIGUSR1, note_signal);
    signal(SIGUSR2, note_signal);
    CUresult error = begin();
    words = malloc(bytes);
    for (int i = 0; i < count && !error; i++) {
        error = cuda.cuMemAlloc_v2(&held[i], bytes);
        error = error ? error : write_words(held[i], bytes, (uint32_t)i);
    }
    error = error || !ballast ? error : cuda.cuMemAlloc_v2(&more, ballast);
    error = error ? error : capture(&exec);
    say("held", error);
    say("ready", 1);
    for (until = now_s() + seconds; !error && now_s() < until && !is_to_end; launched++) {
        error = cuda_spin(tenant.spin, 1, ns, tenant.stream);
        error = error ? error : cuda.cuGraphLaunch(exec, tenant.stream);
        error = error || !is_to_grow ? error : grow(&count, bytes);
        error = error || !(pauses % 2) ? error : stand();
        if ((int)launched % 8 == 7)
            error = error ? error : cuda.cuStreamSynchronize(tenant.stream);
    }
    error = error ? error : cuda.cuCtxSynchronize();
    say("error", error);
    say("launched", launched);
    for (int i = 0; i < count; i++)
        wrong += wrong_words(held[i], bytes, (uint32_t)i);
    say("wrong", wrong);
    for (int i = 0; i < count; i++)
        error = error ? error : cuda.cuMemFree_v2(held[i]);
    say("freed", error);
    say("ended", 1);
    pause_s(0.2);
    return 0;
}

/* Take a block as an owner; say how long it took. */
static int take(size_t bytes, double seconds)
{
    CUdeviceptr p;
    if (begin())
        return 1;
    say("ready", 1);
    double before = now_s();
    say("error", cuda.cuMemAlloc_v2(&p, bytes));
    say("took_ms", 1e3 * (now_s() - before));
    pause_s(seconds);
    return 0;
}

/* Take what cannot leave until it is refused. */
static int take_fixed(size_t bytes)
{
    CUdeviceptr p;
    CUresult error = begin();
    double got = 0;
    while (!error && !(error = cuda.cuMemAllocAsync(&p, bytes, tenant.stream)))
        got += (double)bytes;
    say("got", got);
    say("error", error);
    return 0;
}

int role_lending(int argc, char **argv)
{
    if (argc == 2 && !strcmp(argv[0], "lend_paths"))
        return paths(strtoull(argv[1], NULL, 10));
    if (argc == 6 && !strcmp(argv[0], "lend_hold"))
        return hold(atoi(argv[1]), strtoull(argv[2], NULL, 10), strtoull(argv[3], NULL, 10), atof(argv[4]),
                    strtoull(argv[5], NULL, 10));
    if (argc == 3 && !strcmp(argv[0], "lend_take"))
        return take(strtoull(argv[1], NULL, 10), atof(argv[2]));
    if (argc == 2 && !strcmp(argv[0], "lend_fixed"))
        return take_fixed(strtoull(argv[1], NULL, 10));
    return -1;
}
