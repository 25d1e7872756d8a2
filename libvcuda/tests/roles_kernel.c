/* Roles that take memory until it is refused, one way each, by dice, on two GPUs, and stand still for the suite after every
 * step. */
#include "steps.h"
#include "tenant.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST 2048

static struct tenant tenant;
static union {
    CUdeviceptr pointer;
    CUhandle handle;
    CUarray array;
    CUcontext context;
    CUmodule module;
    CUgraphExec exec;
} held[MOST];

static CUresult take_graph(int i, size_t bytes)
{
    CUdeviceptr p;
    CUgraph graph;
    CUresult error = cuda.cuStreamBeginCapture_v2(tenant.stream, CU_CAPTURE_GLOBAL);
    error = error ? error : cuda.cuMemAllocAsync(&p, bytes, tenant.stream);
    error = error ? error : cuda.cuMemFreeAsync(p, tenant.stream);
    error = error ? error : cuda.cuStreamEndCapture(tenant.stream, &graph);
    error = error ? error : cuda.cuGraphInstantiateWithFlags(&held[i].exec, graph, 0);
    error = error ? error : cuda.cuGraphLaunch(held[i].exec, tenant.stream);
    /* A real driver keeps the memory of all graphs for as long as one that was refused is there. */
    if (error && held[i].exec)
        cuda.cuGraphExecDestroy(held[i].exec);
    return error ? error : cuda.cuStreamSynchronize(tenant.stream);
}

static CUresult take_module(int i)
{
    static const char text[] =
        ".version 6.3\n.target sm_70\n.address_size 64\n.visible .global .align 8 .b8 big[67108864];\n"
        ".visible .entry touch()\n{\n    .reg .u64 %at;\n    mov.u64 %at, big;\n"
        "    st.global.u64 [%at], %at;\n    ret;\n}\n";
    return cuda.cuModuleLoadData(&held[i].module, text);
}

static CUresult set_stack(size_t bytes)
{
    __typeof__(cuCtxSetLimit) *set = tenant_find("cuCtxSetLimit");
    return set(CU_LIMIT_STACK_SIZE, bytes);
}

static CUresult take_block(const char *way, int i)
{
    CUallocationProp prop = {.type = 1, .location = {CU_LOCATION_DEVICE, 0}};
    CUarrayDescriptor shape = {1024, 1024, 0x20, 4};
    if (!strcmp(way, "plain"))
        return cuda.cuMemAlloc_v2(&held[i].pointer, 64 * MIB);
    if (!strcmp(way, "small"))
        return cuda.cuMemAlloc_v2(&held[i].pointer, MIB);
    if (!strcmp(way, "managed"))
        return cuda.cuMemAllocManaged(&held[i].pointer, 64 * MIB, 1);
    if (!strcmp(way, "stream"))
        return cuda.cuMemAllocAsync(&held[i].pointer, 48 * MIB, tenant.stream);
    if (!strcmp(way, "physical"))
        return cuda.cuMemCreate(&held[i].handle, 64 * MIB, &prop, 0);
    return cuda.cuArrayCreate_v2(&held[i].array, &shape);
}

static CUresult take(const char *way, int i)
{
    if (!strcmp(way, "graph"))
        return take_graph(i, (size_t)(i + 1) * 64 * MIB);
    if (!strcmp(way, "stack"))
        return set_stack((size_t)(i + 2) << 10);
    if (!strcmp(way, "context"))
        return cuda.cuCtxCreate_v2(&held[i].context, 0, 0);
    return strcmp(way, "module") ? take_block(way, i) : take_module(i);
}

static CUresult give(const char *way, int i)
{
    __typeof__(cuModuleUnload) *unload = tenant_find("cuModuleUnload");
    if (!strcmp(way, "graph"))
        return cuda.cuGraphExecDestroy(held[i].exec);
    if (!strcmp(way, "stack"))
        return set_stack(1024);
    if (!strcmp(way, "context"))
        return cuda.cuCtxDestroy_v2(held[i].context);
    if (!strcmp(way, "module"))
        return unload(held[i].module);
    if (!strcmp(way, "stream"))
        return cuda.cuMemFreeAsync(held[i].pointer, tenant.stream);
    if (!strcmp(way, "physical"))
        return cuda.cuMemRelease(held[i].handle);
    if (!strcmp(way, "array"))
        return cuda.cuArrayDestroy(held[i].array);
    return cuda.cuMemFree_v2(held[i].pointer);
}

/* Take until refused, then give all back. */
static int edge(const char *way)
{
    __typeof__(cuDeviceGraphMemTrim) *trim = tenant_find("cuDeviceGraphMemTrim");
    CUresult error = tenant_begin(&tenant), wrong = CUDA_SUCCESS;
    int count = 0;
    step("begun");
    while (!error && count < MOST && !(error = take(way, count))) {
        count++;
        step("taken");
    }
    say("error", error);
    step("refused");
    while (count--)
        wrong = wrong ? wrong : give(way, count);
    cuda.cuCtxSetCurrent(tenant.context);
    cuda.cuStreamSynchronize(tenant.stream);
    trim(0);
    say("wrong", wrong);
    step("given");
    return 0;
}

/* What a random run holds, as a model of its own: sizes as the driver rounds them. */
static uint64_t size_of[64], model, model_managed;
static int kind_of[64]; /* 1 plain, 2 managed, 3 physical */

static CUresult roll_take(int i, unsigned *seed)
{
    CUallocationProp prop = {.type = 1, .location = {CU_LOCATION_DEVICE, 0}};
    uint64_t granules = (uint64_t)(rand_r(seed) % 32 + 1);
    kind_of[i] = rand_r(seed) % 3 + 1;
    size_of[i] = granules * 2 * MIB;
    uint64_t bytes = size_of[i] - (kind_of[i] < 3 && granules > 1 ? (uint64_t)(rand_r(seed) % (2 * MIB)) : 0);
    CUresult error = kind_of[i] == 1   ? cuda.cuMemAlloc_v2(&held[i].pointer, bytes)
                     : kind_of[i] == 2 ? cuda.cuMemAllocManaged(&held[i].pointer, bytes, 1)
                                       : cuda.cuMemCreate(&held[i].handle, bytes, &prop, 0);
    if (error) {
        kind_of[i] = 0;
        return error;
    }
    model += size_of[i];
    model_managed += kind_of[i] == 2 ? size_of[i] : 0;
    return CUDA_SUCCESS;
}

static CUresult roll_give(int i)
{
    CUresult error = kind_of[i] == 3 ? cuda.cuMemRelease(held[i].handle) : cuda.cuMemFree_v2(held[i].pointer);
    model -= size_of[i];
    model_managed -= kind_of[i] == 2 ? size_of[i] : 0;
    kind_of[i] = 0;
    return error;
}

static void say_model(void)
{
    printf("model %llu\nmodel_managed %llu\n", (unsigned long long)model, (unsigned long long)model_managed);
}

/* `looks`: stand still after every operation, else only at the end. */
static int dice(unsigned seed, long operations, int looks)
{
    long granted = 0, refused = 0, wrong = 0;
    if (tenant_begin(&tenant))
        return 1;
    step("begun");
    while (operations--) {
        int i = rand_r(&seed) % 64;
        CUresult error = kind_of[i] ? roll_give(i) : roll_take(i, &seed);
        granted += !error;
        refused += error == CUDA_ERROR_OUT_OF_MEMORY;
        wrong += error && error != CUDA_ERROR_OUT_OF_MEMORY;
        if (looks) {
            printf("refused_bytes %llu\n", (unsigned long long)(error ? size_of[i] : 0));
            say_model();
            step("rolled");
        }
    }
    say("granted", (double)granted);
    say("refused", (double)refused);
    say("wrong", (double)wrong);
    say_model();
    step("done");
    for (int i = 0; i < 64; i++)
        if (kind_of[i])
            roll_give(i);
    step("given");
    return 0;
}

/* A context, or the error; again each time it is let go. */
static int retain(int times)
{
    CUcontext context;
    if (cuda_api_load() || cuda.cuInit(0))
        return 1;
    while (times--) {
        say("error", cuda.cuDevicePrimaryCtxRetain(&context, 0));
        step("asked");
    }
    return 0;
}

/* Hold half a gigabyte while the limit is moved. */
static int hold(void)
{
    CUdeviceptr p, more;
    size_t f, t;
    if (tenant_begin(&tenant) || cuda.cuMemAlloc_v2(&p, 512 * MIB))
        return 1;
    step("holding");
    say("more", cuda.cuMemAlloc_v2(&more, 64 * MIB));
    say("free", cuda.cuMemGetInfo_v2(&f, &t) ? -1 : (double)f);
    say("given", cuda.cuMemFree_v2(p));
    say("again", cuda.cuMemAlloc_v2(&more, 64 * MIB));
    step("lowered");
    return 0;
}

/* Fill device 0, then device 1. */
static int two(void)
{
    static const char *const names[] = {"got0", "got1"};
    CUcontext context;
    CUdeviceptr p;
    if (cuda_api_load() || cuda.cuInit(0))
        return 1;
    for (int device = 0; device < 2; device++) {
        double got = 0;
        CUresult error = cuda.cuDevicePrimaryCtxRetain(&context, device);
        error = error ? error : cuda.cuCtxSetCurrent(context);
        while (!error && !(error = cuda.cuMemAlloc_v2(&p, 32 * MIB)))
            got += 32 * MIB;
        say(names[device], got);
        say(device ? "error1" : "error0", error);
    }
    step("filled");
    return 0;
}

static int tell_uuid(CUdevice device)
{
    CUuuid uuid;
    if (cuda_api_load() || cuda.cuInit(0) || cuda.cuDeviceGetUuid_v2(&uuid, device))
        return 1;
    for (int i = 0; i < 16; i++)
        printf("uuid%d %d\n", i, uuid.bytes[i]);
    return 0;
}

/* A pool that is destroyed while something is allocated from it. */
static int orphan(void)
{
    __typeof__(cuMemPoolCreate) *make = tenant_find("cuMemPoolCreate");
    __typeof__(cuMemPoolDestroy) *end = tenant_find("cuMemPoolDestroy");
    CUpoolProps props = {.type = 1, .location = {CU_LOCATION_DEVICE, 0}};
    CUmemoryPool pool;
    CUdeviceptr p;
    if (tenant_begin(&tenant))
        return 1;
    step("begun");
    if (make(&pool, &props) || cuda.cuMemAllocFromPoolAsync(&p, 64 * MIB, pool, tenant.stream) || end(pool))
        return 1;
    step("destroyed");
    cuda.cuMemFreeAsync(p, tenant.stream);
    cuda.cuStreamSynchronize(tenant.stream);
    step("given");
    return 0;
}

int role_kernel(int argc, char **argv)
{
    const char *role = argc ? argv[0] : "";
    if (!strcmp(role, "walk"))
        return role_walk();
    if (!strcmp(role, "edge"))
        return edge(argv[1]);
    if (!strcmp(role, "dice"))
        return dice((unsigned)strtoul(argv[1], NULL, 10), strtol(argv[2], NULL, 10), getenv("LOOKS") != NULL);
    if (!strcmp(role, "retain"))
        return retain(atoi(argv[1]));
    if (!strcmp(role, "hold"))
        return hold();
    if (!strcmp(role, "two"))
        return two();
    if (!strcmp(role, "uuid"))
        return tell_uuid(atoi(argv[1]));
    if (!strcmp(role, "orphan"))
        return orphan();
    return role_calls(argc, argv);
}
