/* How much device memory one process gets, by each way that there is: run under a limit by benchmarks/shim, which asks NVML
 * meanwhile what is really used. The ways that no table of functions names (graph nodes, stacks, contexts, modules) are here
 * because they use memory all the same. */
#include "cuda_api.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MIB 1048576ull
#define LARGEST (256 * MIB)
#define LEAST (2 * MIB)
#define LIMIT_STACK 0
#define STACK_STEP 1024u
#define RACERS_BLOCKS 64

static const char usage[] =
    "usage: bench_memory WAY [MOST-MIB]        allocate until refused, or so much is held (8192); print one JSON "
    "object and\n"
    "                                          hold everything until standard input ends\n"
    "       bench_memory race SEED SECONDS     print `ready`, wait for a line, then allocate and free at random\n"
    "       bench_memory views                 what the driver says of the memory\n"
    "ways: none plain async managed vmm graph stack context pitch array module mixed\n";

/* CUDA_MEM_ALLOC_NODE_PARAMS. */
struct alloc_node {
    CUpoolProps pool;
    const void *access;
    size_t access_count, bytes;
    CUdeviceptr pointer;
};
_Static_assert(sizeof(struct alloc_node) == 120, "driver ABI");

static CUfunction spin;
static CUstream stream;
static size_t stack_bytes;
/* Not every driver has them. */
static CUresult (*add_alloc_node)(void **node, CUgraph graph, const void *before, size_t count,
                                  struct alloc_node *params);
static CUresult (*set_limit)(int limit, size_t value);
static CUresult (*create_graph)(CUgraph *graph, unsigned flags);
static CUresult (*set_bytes)(CUdeviceptr to, unsigned char value, size_t count);

static double now(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static CUresult by_none(size_t bytes)
{
    return bytes ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static CUresult by_plain(size_t bytes)
{
    CUdeviceptr p;
    return cuda.cuMemAlloc_v2(&p, bytes);
}

static CUresult by_async(size_t bytes)
{
    CUdeviceptr p;
    CUresult error = cuda.cuMemAllocAsync(&p, bytes, stream);
    return error ? error : cuda.cuStreamSynchronize(stream);
}

/* Managed memory is on the GPU once it is used there. */
static CUresult by_managed(size_t bytes)
{
    CUdeviceptr p;
    CUresult error = cuda.cuMemAllocManaged(&p, bytes, 1);
    return error || !set_bytes ? error : set_bytes(p, 1, bytes);
}

static CUresult by_vmm(size_t bytes)
{
    CUallocationProp prop = {.type = 1, .location = {CU_LOCATION_DEVICE, 0}};
    CUhandle handle;
    return cuda.cuMemCreate(&handle, bytes, &prop, 0);
}

static CUresult by_graph(size_t bytes)
{
    struct alloc_node params = {.pool = {.type = 1, .location = {CU_LOCATION_DEVICE, 0}}, .bytes = bytes};
    CUgraph graph;
    CUgraphExec exec;
    void *node;
    CUresult error = create_graph && add_alloc_node ? create_graph(&graph, 0) : CUDA_ERROR_NOT_SUPPORTED;
    if (!error)
        error = add_alloc_node(&node, graph, NULL, 0, &params);
    if (!error)
        error = cuda.cuGraphInstantiateWithFlags(&exec, graph, 0);
    if (!error)
        error = cuda.cuGraphLaunch(exec, stream);
    return error ? error : cuda.cuStreamSynchronize(stream);
}

/* The driver keeps a stack for every thread that the GPU can run at once; `bytes` is not what it costs. */
static CUresult by_stack(size_t bytes)
{
    (void)bytes;
    if (!set_limit)
        return CUDA_ERROR_NOT_SUPPORTED;
    CUresult error = set_limit(LIMIT_STACK, stack_bytes + STACK_STEP);
    if (!error)
        error = cuda_spin(spin, 1, 0, stream);
    if (!error)
        error = cuda.cuStreamSynchronize(stream);
    if (!error)
        stack_bytes += STACK_STEP;
    return error;
}

static CUresult by_context(size_t bytes)
{
    CUcontext context;
    (void)bytes;
    return cuda.cuCtxCreate_v2(&context, 0, 0);
}

static CUresult by_pitch(size_t bytes)
{
    CUdeviceptr p;
    size_t pitch;
    return cuda.cuMemAllocPitch_v2(&p, &pitch, MIB, bytes / MIB, 16);
}

static CUresult by_array(size_t bytes)
{
    CUarrayDescriptor floats = {.width = 16384, .height = bytes / 262144, .format = 0x20, .channels = 4};
    CUarray array;
    return cuda.cuArrayCreate_v2(&array, &floats);
}

static CUresult by_module(size_t bytes)
{
    char text[300];
    CUmodule module;
    snprintf(text, sizeof text,
             ".version 6.3\n.target sm_70\n.address_size 64\n.visible .global .align 8 .b8 block[%zu];\n"
             ".visible .entry nothing()\n{\n    ret;\n}\n",
             bytes);
    return cuda.cuModuleLoadData(&module, text);
}

static const struct way {
    const char *name;
    CUresult (*get)(size_t bytes);
    int own_step; /* asks for what it asks for, whatever `bytes` is */
} ways[] = {
    {"none", by_none, 0},   {"plain", by_plain, 0}, {"async", by_async, 0},   {"managed", by_managed, 0},
    {"vmm", by_vmm, 0},     {"graph", by_graph, 0}, {"stack", by_stack, 1},   {"context", by_context, 1},
    {"pitch", by_pitch, 0}, {"array", by_array, 0}, {"module", by_module, 0},
};
#define WAYS (sizeof ways / sizeof *ways)

/* In large steps, then ever smaller ones. A way with its own step is bounded by what the driver says is free. */
static CUresult fill(const struct way *way, uint64_t most, uint64_t *held, unsigned *calls)
{
    size_t first_free = 0, free_bytes, total;
    CUresult error = CUDA_SUCCESS;
    cuda.cuMemGetInfo_v2(&first_free, &total);
    for (size_t step = LARGEST; step >= LEAST; step /= 2)
        while (*held + step <= most) {
            error = way->get(step);
            *calls += !error;
            if (error)
                break;
            cuda.cuMemGetInfo_v2(&free_bytes, &total);
            *held = way->own_step ? (first_free > free_bytes ? first_free - free_bytes : 0) : *held + step;
            if (way->own_step && *calls > 64)
                return error;
        }
    return error;
}

static void hold(const char *way, uint64_t held, unsigned calls, CUresult error)
{
    printf("{\"way\":\"%s\",\"held_bytes\":%llu,\"calls\":%u,\"error\":%d,\"error_name\":\"%s\",\"stack_bytes\":%zu}\n",
           way, (unsigned long long)held, calls, error, error ? cuda_error_name(error) : "none", stack_bytes);
    fflush(stdout);
    while (getchar() != EOF)
        continue;
}

/* Fill plainly, then try every other way once more. `calls`: how many of those were granted. */
static void mixed(uint64_t most)
{
    uint64_t held = 0;
    unsigned plain = 0, granted = 0;
    CUresult error = fill(&ways[1], most, &held, &plain);
    for (size_t i = 1; i < WAYS; i++)
        granted += ways[i].get(LEAST) == CUDA_SUCCESS;
    hold("mixed", held, granted, error);
}

static int race(unsigned seed, double seconds)
{
    CUdeviceptr blocks[RACERS_BLOCKS] = {0};
    unsigned granted = 0, refused = 0;
    puts("{\"event\":\"ready\"}");
    fflush(stdout);
    if (getchar() == EOF)
        return 1;
    for (double end = now() + seconds; now() < end;) {
        int i = rand_r(&seed) % RACERS_BLOCKS;
        size_t bytes = (size_t)(rand_r(&seed) % 64 + 1) * 4 * MIB;
        if (blocks[i]) {
            rand_r(&seed) % 2 ? cuda.cuMemFree_v2(blocks[i]) : cuda.cuMemFreeAsync(blocks[i], stream);
            blocks[i] = 0;
        } else if (rand_r(&seed) % 2 ? cuda.cuMemAlloc_v2(&blocks[i], bytes)
                                     : cuda.cuMemAllocAsync(&blocks[i], bytes, stream)) {
            blocks[i] = 0;
            refused++;
        } else {
            granted++;
        }
    }
    printf("{\"event\":\"raced\",\"granted\":%u,\"refused\":%u}\n", granted, refused);
    return 0;
}

static int views(void)
{
    size_t free_bytes = 0, total = 0, device = 0;
    cuda.cuMemGetInfo_v2(&free_bytes, &total);
    cuda.cuDeviceTotalMem_v2(&device, 0);
    printf("{\"cuMemGetInfo_total\":%zu,\"cuMemGetInfo_free\":%zu,\"cuDeviceTotalMem\":%zu}\n", total, free_bytes,
           device);
    return 0;
}

static CUresult start(const char **where)
{
    CUresult error = cuda_api_start(0, &spin, where);
    if (!error && (*where = "cuStreamCreate"))
        error = cuda.cuStreamCreate(&stream, 1);
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    add_alloc_node = (__typeof__(add_alloc_node))dlsym(library, "cuGraphAddMemAllocNode");
    set_limit = (__typeof__(set_limit))dlsym(library, "cuCtxSetLimit");
    create_graph = (__typeof__(create_graph))dlsym(library, "cuGraphCreate");
    set_bytes = (__typeof__(set_bytes))dlsym(library, "cuMemsetD8_v2");
    return error;
}

static int run(int argc, char **argv)
{
    uint64_t most = argc > 2 ? strtoull(argv[2], NULL, 10) * MIB : 8192 * MIB, held = 0;
    unsigned calls = 0;
    if (!strcmp(argv[1], "race") && argc == 4)
        return race((unsigned)atoi(argv[2]), atof(argv[3]));
    if (!strcmp(argv[1], "views"))
        return views();
    if (!strcmp(argv[1], "mixed"))
        return mixed(most), 0;
    for (size_t i = 0; i < WAYS; i++)
        if (!strcmp(argv[1], ways[i].name)) {
            CUresult error = fill(&ways[i], most, &held, &calls);
            return hold(ways[i].name, held, calls, error), 0;
        }
    return fputs(usage, stderr), 2;
}

int main(int argc, char **argv)
{
    if (argc < 2 || !strcmp(argv[1], "--help"))
        return fputs(usage, argc < 2 ? stderr : stdout), argc < 2 ? 2 : 0;
    const char *where = cuda_api_load();
    CUresult error = where ? CUDA_ERROR_NOT_FOUND : start(&where);
    if (error)
        return fprintf(stderr, "bench_memory: %s failed (%d)\n", where, error), 1;
    return run(argc, argv);
}
