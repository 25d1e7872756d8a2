/* Every way in which a program takes device memory and gives it back, one step each: the program of test_kernel.c and of
 * memory_walk. */
#include "steps.h"
#include "tenant.h"

#include <stdio.h>

static struct tenant tenant;
static CUdeviceptr block[4];
static CUgraph graph;
static CUgraphExec exec;
static CUcontext second;
static CUmodule module;
static CUmemoryPool pool;
static CUhandle handle;
static CUarray array;
static void *host;

static CUresult allocate(int i, size_t bytes)
{
    return cuda.cuMemAlloc_v2(&block[i], bytes);
}

static CUresult give_back(int i)
{
    return cuda.cuMemFree_v2(block[i]);
}

static CUresult async_allocate(void)
{
    return cuda.cuMemAllocAsync(&block[0], 100 * MIB, tenant.stream);
}

static CUresult async_free(void)
{
    CUresult error = cuda.cuMemFreeAsync(block[0], tenant.stream);
    return error ? error : cuda.cuStreamSynchronize(tenant.stream);
}

static CUresult graph_make(void)
{
    CUresult error = cuda.cuStreamBeginCapture_v2(tenant.stream, CU_CAPTURE_GLOBAL);
    error = error ? error : cuda.cuMemAllocAsync(&block[0], 300 * MIB, tenant.stream);
    error = error ? error : cuda.cuMemFreeAsync(block[0], tenant.stream);
    error = error ? error : cuda.cuStreamEndCapture(tenant.stream, &graph);
    return error ? error : cuda.cuGraphInstantiateWithFlags(&exec, graph, 0);
}

static CUresult graph_launch(void)
{
    CUresult error = cuda.cuGraphLaunch(exec, tenant.stream);
    return error ? error : cuda.cuStreamSynchronize(tenant.stream);
}

static CUresult graph_trim(void)
{
    __typeof__(cuDeviceGraphMemTrim) *trim = tenant_find("cuDeviceGraphMemTrim");
    return trim(0);
}

static CUresult limit(int which, size_t value)
{
    __typeof__(cuCtxSetLimit) *set = tenant_find("cuCtxSetLimit");
    return set(which, value);
}

static CUresult module_load(void)
{
    static const char text[] =
        ".version 6.3\n.target sm_70\n.address_size 64\n.visible .global .align 8 .b8 big[67108864];\n"
        ".visible .entry touch()\n{\n    .reg .u64 %at;\n    mov.u64 %at, big;\n"
        "    st.global.u64 [%at], %at;\n    ret;\n}\n";
    return cuda.cuModuleLoadData(&module, text);
}

static CUresult module_unload(void)
{
    __typeof__(cuModuleUnload) *unload = tenant_find("cuModuleUnload");
    return unload(module);
}

static CUresult second_make(void)
{
    return cuda.cuCtxCreate_v2(&second, 0, 0);
}

static CUresult second_end(void)
{
    CUresult error = cuda.cuCtxDestroy_v2(second);
    return error ? error : cuda.cuCtxSetCurrent(tenant.context);
}

static CUresult pool_make(void)
{
    __typeof__(cuMemPoolCreate) *make = tenant_find("cuMemPoolCreate");
    CUpoolProps props = {.type = 1, .location = {CU_LOCATION_DEVICE, 0}};
    CUresult error = make(&pool, &props);
    return error ? error : cuda.cuMemAllocFromPoolAsync(&block[0], 64 * MIB, pool, tenant.stream);
}

static CUresult pool_end(void)
{
    __typeof__(cuMemPoolDestroy) *end = tenant_find("cuMemPoolDestroy");
    return end(pool);
}

static CUresult physical_make(void)
{
    CUallocationProp prop = {.type = 1, .location = {CU_LOCATION_DEVICE, 0}};
    return cuda.cuMemCreate(&handle, 64 * MIB, &prop, 0);
}

static CUresult physical_map(void)
{
    CUresult error = cuda.cuMemAddressReserve(&block[0], 64 * MIB, 0, 0, 0);
    error = error ? error : cuda.cuMemMap(block[0], 64 * MIB, 0, handle, 0);
    return error ? error : cuda.cuMemRelease(handle);
}

static CUresult physical_end(void)
{
    CUresult error = cuda.cuMemUnmap(block[0], 64 * MIB);
    return error ? error : cuda.cuMemAddressFree(block[0], 64 * MIB);
}

static CUresult host_allocate(void)
{
    __typeof__(cuMemHostAlloc) *take = tenant_find("cuMemHostAlloc");
    return take(&host, 50 * MIB, 0);
}

static CUresult array_make(void)
{
    CUarrayDescriptor shape = {1024, 1024, 0x20, 4};
    return cuda.cuArrayCreate_v2(&array, &shape);
}

static void tell(const char *name, CUresult error)
{
    printf("error %d\n", error);
    step(name);
}

static void walk_blocks(void)
{
    tell("512 bytes", allocate(0, 512));
    tell("another 512 bytes", allocate(1, 512));
    tell("freed", give_back(1));
    tell("freed", give_back(0));
    tell("1 MiB", allocate(0, MIB));
    tell("1 MiB and a byte", allocate(1, MIB + 1));
    tell("2 MiB", allocate(2, 2 * MIB));
    tell("3 MiB", allocate(3, 3 * MIB));
    for (int i = 0; i < 4; i++)
        tell("freed", give_back(i));
    tell("1 GiB", allocate(0, GIB));
    tell("freed", give_back(0));
    tell("managed 100 MiB", cuda.cuMemAllocManaged(&block[0], 100 * MIB, 1));
    tell("freed", give_back(0));
    tell("50 MiB of the host", host_allocate());
}

static void walk_streams(void)
{
    tell("100 MiB in a stream's order", async_allocate());
    tell("freed, synchronised", async_free());
    tell("a graph that allocates 300 MiB", graph_make());
    tell("launched", graph_launch());
    tell("launched again", graph_launch());
    tell("destroyed", cuda.cuGraphExecDestroy(exec));
    tell("trimmed", graph_trim());
    tell("a pool, 64 MiB from it", pool_make());
    tell("the pool destroyed", pool_end());
    tell("its block freed, synchronised", async_free());
}

static void walk_context(void)
{
    tell("a stack of 64 KiB", limit(CU_LIMIT_STACK_SIZE, 64 << 10));
    tell("a stack of 1 KiB", limit(CU_LIMIT_STACK_SIZE, 1 << 10));
    tell("a heap of 256 MiB", limit(CU_LIMIT_MALLOC_HEAP_SIZE, 256 * MIB));
    tell("a second context", second_make());
    tell("destroyed", second_end());
    tell("a module with 64 MiB", module_load());
    tell("unloaded", module_unload());
    tell("64 MiB of physical memory", physical_make());
    tell("mapped, released", physical_map());
    tell("unmapped", physical_end());
    tell("an array of 16 MiB", array_make());
    tell("destroyed", cuda.cuArrayDestroy(array));
}

int role_walk(void)
{
    CUresult error = tenant_begin(&tenant);
    tell("a context", error);
    if (error)
        return 1;
    walk_blocks();
    walk_streams();
    walk_context();
    tell("the primary context released", cuda.cuDevicePrimaryCtxRelease_v2(0) | cuda.cuDevicePrimaryCtxRelease_v2(0));
    return 0;
}
