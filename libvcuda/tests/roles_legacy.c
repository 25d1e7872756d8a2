/* Roles about entries that few programs call. Each prints `name value` lines. */
#include "harness.h"
#include "tenant.h"

#include <stdlib.h>
#include <string.h>

#define STEP (64u << 20)
#define CALL(name) ((__typeof__(name) *)tenant_find(#name))

/* One block of STEP by a first version of an entry. */
static CUresult one(const char *way)
{
    CUdeviceptr_v1 p;
    CUarray array;
    unsigned pitch;
    if (!strcmp(way, "plain"))
        return CALL(cuMemAlloc)(&p, STEP);
    if (!strcmp(way, "pitch"))
        return CALL(cuMemAllocPitch)(&p, &pitch, STEP / 1024 - 100, 1024, 4);
    if (!strcmp(way, "array"))
        return CALL(cuArrayCreate)(&array, &(CUarrayDescriptor_v1){STEP / 4096, 1024, 0x20, 1});
    return CALL(cuArray3DCreate)(&array, &(CUarray3DDescriptor_v1){STEP / 4096 / 16, 1024, 16, 0x20, 1, 0});
}

static int memory(const char *way)
{
    struct tenant tenant;
    CUresult error = CUDA_SUCCESS;
    double got = 0;
    if (tenant_begin(&tenant))
        return 1;
    while (got < 3e9 && !(error = one(way)))
        got += STEP;
    say("got", got);
    say("error", error);
    if (strcmp(way, "plain") != 0)
        return 0;
    CUdeviceptr_v1 p = 0x10000000;
    say("again", CALL(cuMemFree)(p) ? -1 : CALL(cuMemAlloc)(&p, STEP));
    return 0;
}

static CUresult make_context(const char *way, CUcontext *context)
{
    if (!strcmp(way, "gl"))
        return CALL(cuGLCtxCreate)(context, 0, 0);
    if (!strcmp(way, "gl_v2"))
        return CALL(cuGLCtxCreate_v2)(context, 0, 0);
    if (!strcmp(way, "vdpau"))
        return CALL(cuVDPAUCtxCreate_v2)(context, 0, 0, 0, NULL);
    return CALL(cuCtxCreate_v4)(context, NULL, 0, 0);
}

/* Contexts until one is refused. */
static int contexts(const char *way)
{
    CUcontext context;
    CUresult error = CUDA_SUCCESS;
    int made = 0;
    if (cuda_api_load() || cuda.cuInit(0))
        return 1;
    while (made < 12 && !(error = make_context(way, &context)))
        made++;
    say("made", made);
    say("error", error);
    return 0;
}

static double used(void)
{
    size_t f = 0, t = 0;
    cuda.cuMemGetInfo_v2(&f, &t);
    return (double)(t - f);
}

/* A green context brings its device's primary context, and takes it away. */
static int green(void)
{
    CUgreenCtx a, b;
    CUcontext context;
    if (cuda_api_load() || cuda.cuInit(0) || CALL(cuGreenCtxCreate)(&a, NULL, 0, 1) ||
        CALL(cuGreenCtxCreate)(&b, NULL, 0, 1) || CALL(cuCtxFromGreenCtx)(&context, a) || cuda.cuCtxSetCurrent(context))
        return 1;
    say("used", used());
    say("destroyed", CALL(cuGreenCtxDestroy)(a) || CALL(cuGreenCtxDestroy)(b) ? 1 : 0);
    say("ready", 1);
    pause_s(30);
    return 0;
}

/* A stack that would take more than the limit, and one that fits. */
static int stack(void)
{
    struct tenant tenant;
    if (tenant_begin(&tenant))
        return 1;
    double before = used();
    say("huge", CALL(cuCtxSetLimit)(CU_LIMIT_STACK_SIZE, 64 << 10));
    say("after_huge", used() - before);
    say("fits", CALL(cuCtxSetLimit)(CU_LIMIT_STACK_SIZE, 4 << 10));
    say("after_fits", used() - before);
    return 0;
}

/* A quarter of a GiB, by the stream's and by the default stream's entry, in one row and in many. */
static CUresult fill(const char *way, const struct tenant *t, uint64_t *ns)
{
    static CUdeviceptr block;
    size_t bytes = 256 << 20;
    *ns = bytes / 2000 + 1000; /* as the simulated driver counts */
    CUresult error = block ? CUDA_SUCCESS : cuda.cuMemAlloc_v2(&block, bytes);
    if (error)
        return error;
    if (!strcmp(way, "fill_rows"))
        return CALL(cuMemsetD2D16Async_ptsz)(block, 4096, 0, 2048, bytes / 4096, t->stream);
    return !strcmp(way, "fill") ? CALL(cuMemsetD8_v2)(block, 0, bytes)
                                : CALL(cuMemsetD32Async)(block, 0, bytes / 4, t->stream);
}

static CUresult launch(const char *way, const struct tenant *t, uint64_t *ns)
{
    void *params[] = {ns};
    CUmultiLaunch several = {t->spin, {1, 1, 1}, {1, 1, 1}, 0, t->stream, params};
    if (!strncmp(way, "fill", 4))
        return fill(way, t, ns);
    if (!strcmp(way, "several"))
        return CALL(cuLaunchCooperativeKernelMultiDevice)(&several, 1, 0);
    *ns = 10000; /* what the simulated driver takes a kernel without arguments for */
    if (!strcmp(way, "launch"))
        return CALL(cuLaunch)(t->spin);
    return !strcmp(way, "grid") ? CALL(cuLaunchGrid)(t->spin, 4, 4) : CALL(cuLaunchGridAsync)(t->spin, 4, 4, t->stream);
}

/* Launch for a while; say what share of the time the kernels took. */
static int launches(const char *way, double seconds)
{
    struct tenant tenant;
    uint64_t ns = 1000000, count = 0;
    CUresult error = CUDA_SUCCESS;
    if (tenant_begin(&tenant))
        return 1;
    double begin = now_s();
    for (; !error && now_s() < begin + seconds; count++)
        error = launch(way, &tenant, &ns);
    cuda.cuCtxSynchronize();
    say("share", 100 * (double)count * (double)ns / 1e9 / (now_s() - begin));
    say("error", error);
    return 0;
}

/* A capture by the first version of its entry, and one of a graph made before, while launches are metered. */
static int captures(void)
{
    struct tenant t;
    CUgraph graph = NULL, same = NULL;
    int bad = 0;
    if (tenant_begin(&t))
        return 1;
    for (int i = 0; i < 20; i++) {
        cuda_spin(t.spin, 1, 100000, t.stream);
        bad += CALL(cuStreamBeginCapture)(t.stream) || cuda_spin(t.spin, 1, 100000, t.stream) ||
               cuda.cuStreamEndCapture(t.stream, &graph);
        bad += CALL(cuStreamBeginRecaptureToGraph)(t.stream, 0, graph, NULL, NULL) ||
               cuda_spin(t.spin, 1, 100000, t.stream) || cuda.cuStreamEndCapture(t.stream, &same) || same != graph;
    }
    say("bad", bad);
    say("cig", CALL(cuStreamBeginCaptureToCig)(t.stream, NULL));
    return 0;
}

int role_legacy(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[0], "legacy_memory"))
        return memory(argv[1]);
    if (argc > 1 && !strcmp(argv[0], "legacy_contexts"))
        return contexts(argv[1]);
    if (argc > 1 && !strcmp(argv[0], "legacy_launches"))
        return launches(argv[1], 0.8);
    if (argc && !strcmp(argv[0], "green"))
        return green();
    if (argc && !strcmp(argv[0], "stack"))
        return stack();
    if (argc && !strcmp(argv[0], "legacy_captures"))
        return captures();
    return -1;
}
