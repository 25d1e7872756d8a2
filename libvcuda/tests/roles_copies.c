/* Roles about copies: each entry once, what it is charged beside what it took; and a flood of one of them. */
#include "harness.h"
#include "tenant.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WIDTH 32768
#define ROWS 2048
#define BYTES ((size_t)WIDTH * ROWS)
#define LINE (2u << 20)
#define TIMES 40

static CUdeviceptr a, b;
static CUdeviceptr_v1 low_a, low_b;
static CUarray rows_a, rows_b, line_a, line_b;
static void *host;
static struct tenant tenant;
static struct vcuda_usage *page;

static CUcopy2D plane, plane_of_host, plane_of_host_unified;
static CUcopy2D_v1 old_plane;
static CUcopy3D cube, cube_of_host;
static CUcopy3D_v1 old_cube;
static CUcopyOperation3D operation, operation_of_host;
static CUcopyAttributes attributes = {.order = 1};
static size_t bytes = BYTES, failed, first;
static CUdeviceptr on_host;

#define LEGACY NULL
#define THREAD CU_STREAM_PER_THREAD
#define OWN tenant.stream
#define PEER_ARGS b, tenant.context, a, tenant.context, BYTES
#define BATCH_ARGS &b, &a, &bytes, 1, &attributes, &first, 1

/* clang-format off */
#define WITHIN(X)                                                                                               \
    X(cuMemcpyDtoD_v2, LEGACY, (b, a, BYTES)) X(cuMemcpyDtoD_v2_ptds, THREAD, (b, a, BYTES))                    \
    X(cuMemcpyDtoDAsync_v2, OWN, (b, a, BYTES, OWN)) X(cuMemcpyDtoDAsync_v2_ptsz, THREAD, (b, a, BYTES, NULL))  \
    X(cuMemcpyDtoD, LEGACY, (low_b, low_a, LINE)) X(cuMemcpyDtoDAsync, OWN, (low_b, low_a, LINE, OWN))          \
    X(cuMemcpyPeer, LEGACY, (PEER_ARGS)) X(cuMemcpyPeer_ptds, THREAD, (PEER_ARGS))                              \
    X(cuMemcpyPeerAsync, OWN, (PEER_ARGS, OWN)) X(cuMemcpyPeerAsync_ptsz, THREAD, (PEER_ARGS, NULL))            \
    X(cuMemcpyDtoA, LEGACY, (line_b, 0, low_a, LINE)) X(cuMemcpyDtoA_v2, LEGACY, (line_b, 0, a, LINE))          \
    X(cuMemcpyDtoA_v2_ptds, THREAD, (line_b, 0, a, LINE)) X(cuMemcpyAtoD, LEGACY, (low_b, line_a, 0, LINE))     \
    X(cuMemcpyAtoD_v2, LEGACY, (b, line_a, 0, LINE)) X(cuMemcpyAtoD_v2_ptds, THREAD, (b, line_a, 0, LINE))      \
    X(cuMemcpyAtoA, LEGACY, (line_b, 0, line_a, 0, LINE)) X(cuMemcpyAtoA_v2, LEGACY, (line_b, 0, line_a, 0, LINE)) \
    X(cuMemcpyAtoA_v2_ptds, THREAD, (line_b, 0, line_a, 0, LINE))                                               \
    X(cuMemcpy, LEGACY, (b, a, BYTES)) X(cuMemcpy_ptds, THREAD, (b, a, BYTES))                                  \
    X(cuMemcpyAsync, OWN, (b, a, BYTES, OWN)) X(cuMemcpyAsync_ptsz, THREAD, (b, a, BYTES, NULL))                \
    X(cuMemcpyWithAttributesAsync, OWN, (b, a, BYTES, &attributes, OWN))                                        \
    X(cuMemcpyWithAttributesAsync_ptsz, THREAD, (b, a, BYTES, &attributes, THREAD))                             \
    X(cuMemcpyBatchAsync, OWN, (BATCH_ARGS, &failed, OWN))                                                      \
    X(cuMemcpyBatchAsync_ptsz, THREAD, (BATCH_ARGS, &failed, THREAD))                                           \
    X(cuMemcpyBatchAsync_v2, OWN, (BATCH_ARGS, OWN)) X(cuMemcpyBatchAsync_v2_ptsz, THREAD, (BATCH_ARGS, THREAD)) \
    X(cuMemcpy2D, LEGACY, (&old_plane)) X(cuMemcpy2DUnaligned, LEGACY, (&old_plane))                            \
    X(cuMemcpy2DAsync, OWN, (&old_plane, OWN)) X(cuMemcpy2D_v2, LEGACY, (&plane))                               \
    X(cuMemcpy2D_v2_ptds, THREAD, (&plane)) X(cuMemcpy2DUnaligned_v2, LEGACY, (&plane))                         \
    X(cuMemcpy2DUnaligned_v2_ptds, THREAD, (&plane)) X(cuMemcpy2DAsync_v2, OWN, (&plane, OWN))                  \
    X(cuMemcpy2DAsync_v2_ptsz, THREAD, (&plane, NULL))                                                          \
    X(cuMemcpy3D, LEGACY, (&old_cube)) X(cuMemcpy3DAsync, OWN, (&old_cube, OWN))                                \
    X(cuMemcpy3D_v2, LEGACY, (&cube)) X(cuMemcpy3D_v2_ptds, THREAD, (&cube))                                    \
    X(cuMemcpy3DAsync_v2, OWN, (&cube, OWN)) X(cuMemcpy3DAsync_v2_ptsz, THREAD, (&cube, NULL))                  \
    X(cuMemcpy3DPeer, LEGACY, (&cube)) X(cuMemcpy3DPeer_ptds, THREAD, (&cube))                                  \
    X(cuMemcpy3DPeerAsync, OWN, (&cube, OWN)) X(cuMemcpy3DPeerAsync_ptsz, THREAD, (&cube, NULL))                \
    X(cuMemcpy3DBatchAsync, OWN, (1, &operation, &failed, 0, OWN))                                              \
    X(cuMemcpy3DBatchAsync_ptsz, THREAD, (1, &operation, &failed, 0, THREAD))                                   \
    X(cuMemcpy3DBatchAsync_v2, OWN, (1, &operation, 0, OWN))                                                    \
    X(cuMemcpy3DBatchAsync_v2_ptsz, THREAD, (1, &operation, 0, THREAD))                                         \
    X(cuMemcpy3DWithAttributesAsync, OWN, (&operation, 0, OWN))                                                 \
    X(cuMemcpy3DWithAttributesAsync_ptsz, THREAD, (&operation, 0, THREAD))
/* The same entries, and some that we do not stand before, to or from the host. */
#define ACROSS(X)                                                                                               \
    X(cuMemcpyHtoDAsync_v2, OWN, (b, host, BYTES, OWN)) X(cuMemcpyDtoHAsync_v2, OWN, (host, a, BYTES, OWN))     \
    X(cuMemcpyAsync, OWN, (b, on_host, BYTES, OWN)) X(cuMemcpy, LEGACY, (on_host, a, BYTES))                    \
    X(cuMemcpyBatchAsync_v2, OWN, (&b, &on_host, &bytes, 1, &attributes, &first, 1, OWN))                       \
    X(cuMemcpy2DAsync_v2, OWN, (&plane_of_host, OWN)) X(cuMemcpy2D_v2, LEGACY, (&plane_of_host_unified))        \
    X(cuMemcpy3DAsync_v2, OWN, (&cube_of_host, OWN)) X(cuMemcpy3DBatchAsync_v2, OWN, (1, &operation_of_host, 0, OWN))
/* clang-format on */

#define DEFINE(kind, name, args)                                                                                       \
    static CUresult kind##_##name(void)                                                                                \
    {                                                                                                                  \
        static __typeof__(name) *call;                                                                                 \
        if (!call)                                                                                                     \
            call = (__typeof__(call))tenant_find(#name);                                                               \
        return call ? call args : CUDA_ERROR_NOT_FOUND;                                                                \
    }
#define DEFINE_WITHIN(name, on, args) DEFINE(within, name, args)
#define DEFINE_ACROSS(name, on, args) DEFINE(across, name, args)
WITHIN(DEFINE_WITHIN)
ACROSS(DEFINE_ACROSS)

typedef CUresult copy_function(void);

static int make_memory(void)
{
    CUarrayDescriptor rows = {WIDTH / 4, ROWS, 0x20, 1}, line = {LINE / 16, 0, 0x20, 4};
    __typeof__(cuMemAllocHost_v2) *of_host = (__typeof__(of_host))tenant_find("cuMemAllocHost_v2");
    __typeof__(cuMemAlloc) *low = (__typeof__(low))tenant_find("cuMemAlloc");
    if (cuda.cuMemAlloc_v2(&a, BYTES) || cuda.cuMemAlloc_v2(&b, BYTES) || of_host(&host, BYTES) ||
        cuda.cuArrayCreate_v2(&rows_a, &rows) || cuda.cuArrayCreate_v2(&rows_b, &rows) ||
        cuda.cuArrayCreate_v2(&line_a, &line) || cuda.cuArrayCreate_v2(&line_b, &line))
        return 0;
    /* Of today's drivers none gives such addresses. */
    if (!low || low(&low_a, LINE) || low(&low_b, LINE))
        low_a = low_b = 0;
    on_host = (CUdeviceptr)(uintptr_t)host;
    return 1;
}

static void describe(void)
{
    plane.from = (CUside2D){.type = CU_MEMORY_DEVICE, .device = a, .pitch = WIDTH};
    plane.to = (CUside2D){.type = CU_MEMORY_ARRAY, .array = rows_b};
    plane.width = WIDTH;
    plane.height = ROWS;
    plane_of_host = plane_of_host_unified = plane;
    plane_of_host.from = (CUside2D){.type = CU_MEMORY_HOST, .host = host, .pitch = WIDTH};
    plane_of_host_unified.from = (CUside2D){.type = CU_MEMORY_UNIFIED, .device = on_host, .pitch = WIDTH};
    old_plane.from_type = old_plane.to_type = old_cube.from.type = old_cube.to.type = CU_MEMORY_ARRAY;
    old_plane.from_array = old_cube.from.array = rows_a;
    old_plane.to_array = old_cube.to.array = rows_b;
    old_plane.width = old_cube.width = WIDTH;
    old_plane.height = old_cube.height = ROWS;
    old_cube.depth = 1;
    cube.from = (CUside3D){.type = CU_MEMORY_UNIFIED, .device = a, .pitch = WIDTH, .height = ROWS};
    cube.to = (CUside3D){.type = CU_MEMORY_DEVICE, .device = b, .pitch = WIDTH, .height = ROWS};
    cube.from.context = cube.to.context = tenant.context;
    cube.width = WIDTH;
    cube.height = ROWS;
    cube.depth = 1;
    cube_of_host = cube;
    cube_of_host.from = (CUside3D){.type = CU_MEMORY_HOST, .host = host, .pitch = WIDTH, .height = ROWS};
    operation = (CUcopyOperation3D){.width = WIDTH, .height = ROWS, .depth = 1, .order = 1};
    operation.from.type = operation.to.type = CU_OPERAND_POINTER;
    operation.from.pointer = a;
    operation.to.pointer = b;
    operation_of_host = operation;
    operation_of_host.from.pointer = on_host;
}

static double charged_ns(void)
{
    struct vcuda_totals totals;
    return vcuda_usage_totals(page, 0, &totals) ? 0 : (double)totals.gpu_time_ns;
}

/* What so many were charged, as a part of the time they took; -1: the driver has no such entry, or refuses. */
static void charge(const char *kind, const char *name, copy_function *copy, CUstream stream, int is_charged)
{
    char line[96];
    float took = 0;
    CUevent begin, end;
    CUresult error = copy();
    double ratio = 0;
    cuda.cuCtxSynchronize();
    pause_s(0.02); /* for credit, and until the first one is charged */
    double before = charged_ns();
    if (cuda.cuEventCreate(&begin, 0) || cuda.cuEventCreate(&end, 0) || cuda.cuEventRecord(begin, stream))
        error = -1;
    for (int i = 0; i < TIMES && !error; i++)
        error = copy();
    if (!error)
        error = cuda.cuEventRecord(end, stream);
    cuda.cuCtxSynchronize();
    error = error ? error : cuda.cuEventElapsedTime(&took, begin, end);
    /* Retired by the library's own thread, a moment later. */
    for (double until = now_s() + (is_charged ? 1 : 0.05); now_s() < until && ratio < 0.9; pause_s(0.005))
        ratio = took > 0 ? (charged_ns() - before) / ((double)took * 1e6) : 0;
    cuda.cuEventDestroy_v2(begin);
    cuda.cuEventDestroy_v2(end);
    snprintf(line, sizeof line, "%s_%s", kind, name);
    say(line, error ? -1 : ratio);
}

static int charges(void)
{
    char path[400];
    snprintf(path, sizeof path, "%s/" VCUDA_USAGE_FILE, getenv(VCUDA_CLAIM_DIR_ENV));
    if (tenant_begin(&tenant) || !make_memory() || vcuda_usage_open(path, 0, &page))
        return 1;
    describe();
#define CHARGE_WITHIN(name, on, args) charge("within", #name, within_##name, on, 1);
#define CHARGE_ACROSS(name, on, args) charge("across", #name, across_##name, on, 0);
    WITHIN(CHARGE_WITHIN)
    ACROSS(CHARGE_ACROSS)
    return 0;
}

static const struct {
    const char *name;
    copy_function *copy;
} floods[] = {{"cuMemcpyDtoD_v2", within_cuMemcpyDtoD_v2},
              {"cuMemcpyDtoDAsync_v2", within_cuMemcpyDtoDAsync_v2},
              {"cuMemcpyAsync", within_cuMemcpyAsync},
              {"cuMemcpy2DAsync_v2", within_cuMemcpy2DAsync_v2}};

/* Keep sixteen copies in flight; say the rate of each window, and of all. */
static int flood(copy_function *copy, CUstream stream, double seconds, double window)
{
    CUevent marks[16];
    uint64_t copies = 0, counted = 0;
    CUresult error = CUDA_SUCCESS;
    if (tenant_begin(&tenant) || !make_memory())
        return 1;
    describe();
    for (int i = 0; i < 16; i++)
        cuda.cuEventCreate(&marks[i], 2);
    double begin = now_s(), last = begin;
    for (; !error && now_s() < begin + seconds; copies++) {
        error = copies >= 16 ? cuda.cuEventSynchronize(marks[copies % 16]) : CUDA_SUCCESS;
        error = error ? error : copy();
        error = error ? error : cuda.cuEventRecord(marks[copies % 16], stream ? tenant.stream : NULL);
        double now = now_s();
        if (now - last >= window) {
            say("rate", (double)(copies - counted) / (now - last));
            last = now;
            counted = copies;
        }
    }
    cuda.cuCtxSynchronize();
    say("overall", (double)copies / (now_s() - begin));
    say("error", error);
    return 0;
}

/* Captures of copies by entries that know both sides and that ask for them, while other copies are metered. */
static int captures(void)
{
    CUgraph graph;
    CUgraphExec exec;
    int bad = 0;
    if (tenant_begin(&tenant) || !make_memory())
        return 1;
    describe();
    for (int i = 0; i < 20; i++) {
        bad += within_cuMemcpyDtoD_v2() || within_cuMemcpyDtoDAsync_v2();
        bad += cuda.cuStreamBeginCapture_v2(tenant.stream, CU_CAPTURE_GLOBAL) || within_cuMemcpyDtoDAsync_v2() ||
               within_cuMemcpyAsync() || within_cuMemcpy2DAsync_v2();
        pause_s(0.002);
        bad += cuda.cuStreamEndCapture(tenant.stream, &graph) || cuda.cuGraphInstantiateWithFlags(&exec, graph, 0) ||
               cuda.cuGraphLaunch(exec, tenant.stream);
    }
    bad += cuda.cuStreamSynchronize(tenant.stream) != 0;
    say("bad", bad);
    return 0;
}

int role_copies(int argc, char **argv)
{
    if (argc == 1 && !strcmp(argv[0], "copies_charged"))
        return charges();
    if (argc == 1 && !strcmp(argv[0], "copies_captured"))
        return captures();
    for (size_t i = 0; argc == 4 && !strcmp(argv[0], "copies_flood") && i < sizeof floods / sizeof *floods; i++)
        if (!strcmp(argv[1], floods[i].name))
            return flood(floods[i].copy, i ? CU_STREAM_PER_THREAD : NULL, atof(argv[2]), atof(argv[3]));
    return -1;
}
