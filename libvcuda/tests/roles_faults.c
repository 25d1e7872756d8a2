/* A role that does a little of everything, three times, while calls into the driver fail (GPUCLOUD_SIM_FAULTS), and then says
 * what the library counts for it and what the GPU really gave it. */
#include "harness.h"
#include "nvidia_ml.h"
#include "tenant.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct tenant tenant;
static int awaited, met, launched, refused;

/* Every answer that the program gets passes through here. */
static int ok(CUresult result)
{
    met += result != 0 && result == awaited;
    refused += result != 0;
    return result == CUDA_SUCCESS;
}

static void free_block(CUdeviceptr *p)
{
    if (*p && ok(cuda.cuMemFree_v2(*p)))
        *p = 0;
}

static void use_memory(void)
{
    CUdeviceptr plain = 0, managed = 0, pitched = 0, ordered = 0;
    size_t pitch;
    if (!ok(cuda.cuMemAlloc_v2(&plain, 4 * MIB)))
        plain = 0;
    if (!ok(cuda.cuMemAllocManaged(&managed, 8 * MIB, 1)))
        managed = 0;
    if (!ok(cuda.cuMemAllocPitch_v2(&pitched, &pitch, 4096, 1024, 4)))
        pitched = 0;
    if (!ok(cuda.cuMemAllocAsync(&ordered, 10 * MIB, tenant.stream)))
        ordered = 0;
    free_block(&plain);
    free_block(&managed);
    free_block(&pitched);
    if (ordered)
        ok(cuda.cuMemFreeAsync(ordered, tenant.stream));
    CUarrayDescriptor shape = {1024, 1024, 0x20, 1};
    CUarray array;
    if (ok(cuda.cuArrayCreate_v2(&array, &shape)))
        ok(cuda.cuArrayDestroy(array));
}

static void use_mappings(void)
{
    CUallocationProp prop = {.type = 1, .location = {CU_LOCATION_DEVICE, 0}};
    CUhandle handle;
    CUdeviceptr p;
    if (!ok(cuda.cuMemCreate(&handle, 16 * MIB, &prop, 0)))
        return;
    if (ok(cuda.cuMemAddressReserve(&p, 16 * MIB, 0, 0, 0))) {
        if (ok(cuda.cuMemMap(p, 16 * MIB, 0, handle, 0)))
            ok(cuda.cuMemUnmap(p, 16 * MIB));
        ok(cuda.cuMemAddressFree(p, 16 * MIB));
    }
    ok(cuda.cuMemRelease(handle));
}

static void use_graph(void)
{
    CUgraph graph = NULL;
    CUgraphExec exec;
    if (!ok(cuda.cuStreamBeginCapture_v2(tenant.stream, CU_CAPTURE_GLOBAL)))
        return;
    for (int i = 0; i < 3; i++)
        ok(cuda_spin(tenant.spin, 1, 20000, tenant.stream));
    if (!ok(cuda.cuStreamEndCapture(tenant.stream, &graph)) || !graph)
        return;
    if (ok(cuda.cuGraphInstantiateWithFlags(&exec, graph, 0))) {
        ok(cuda.cuGraphLaunch(exec, tenant.stream));
        ok(cuda.cuStreamSynchronize(tenant.stream));
        ok(cuda.cuGraphExecDestroy(exec));
    }
    ok(cuda.cuGraphDestroy(graph));
}

static void use_compute(void)
{
    CUevent event;
    for (int i = 0; i < 8; i++)
        launched += ok(cuda_spin(tenant.spin, 1, 50000, tenant.stream));
    if (ok(cuda.cuEventCreate(&event, 0))) {
        if (ok(cuda.cuEventRecord(event, tenant.stream)))
            ok(cuda.cuEventSynchronize(event));
        ok(cuda.cuEventDestroy_v2(event));
    }
    ok(cuda.cuStreamSynchronize(tenant.stream));
    ok(cuda.cuCtxSynchronize());
}

static void use_context(void)
{
    CUcontext second;
    if (ok(cuda.cuCtxCreate_v2(&second, 0, 0)))
        ok(cuda.cuCtxDestroy_v2(second));
    /* One that is not current any more, and never had work. */
    if (ok(cuda.cuCtxCreate_v2(&second, 0, 0))) {
        ok(cuda.cuCtxSetCurrent(tenant.context));
        ok(cuda.cuCtxDestroy_v2(second));
    }
    ok(cuda.cuCtxSetCurrent(tenant.context));
}

static void use_views(void)
{
    size_t free_bytes, total;
    ok(cuda.cuMemGetInfo_v2(&free_bytes, &total));
    ok(cuda.cuDeviceTotalMem_v2(&total, 0));
}

/* What the library counts for this process. */
static void say_counted(void)
{
    struct vcuda_usage *usage;
    struct vcuda_process_info infos[VCUDA_MAX_PROCESSES];
    struct vcuda_gpu_usage g;
    char path[400];
    snprintf(path, sizeof path, "%s/usage", getenv(VCUDA_CLAIM_DIR_ENV));
    if (vcuda_usage_open(path, 0, &usage) != 0)
        return;
    say("counted", 0);
    for (int i = vcuda_usage_processes(usage, infos, VCUDA_MAX_PROCESSES); i-- > 0;)
        if (infos[i].pid == (uint32_t)getpid() && !vcuda_usage_process_gpu(usage, infos[i].slot, 0, &g)) {
            say("counted_memory", (double)g.memory_bytes);
            say("counted_context", (double)g.context_bytes);
        }
}

static void say_given(void)
{
    nvmlProcessInfo_t infos[256];
    nvmlDevice_t device;
    unsigned count = 256;
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    __typeof__(nvmlInit_v2) *init = library ? dlsym(library, "nvmlInit_v2") : NULL;
    __typeof__(nvmlDeviceGetHandleByIndex_v2) *by_index =
        library ? dlsym(library, "nvmlDeviceGetHandleByIndex_v2") : NULL;
    __typeof__(nvmlDeviceGetComputeRunningProcesses_v3) *processes =
        library ? dlsym(library, "nvmlDeviceGetComputeRunningProcesses_v3") : NULL;
    if (!init || init() || by_index(0, &device) || processes(device, &count, infos))
        return;
    double given = 0;
    for (unsigned i = 0; i < count; i++)
        given += infos[i].pid == (unsigned)getpid() ? (double)infos[i].used : 0;
    say("given", given);
}

static int trouble(int code)
{
    awaited = code;
    CUresult begun = tenant_begin(&tenant);
    if (begun < 0)
        return 1;
    met += begun == code && code;
    for (int round = 0; !begun && round < 3; round++) {
        use_memory();
        use_mappings();
        use_compute();
        use_graph();
        use_context();
        use_views();
    }
    say("begun", begun);
    say("met", met);
    say("launched", launched);
    say("refused", refused);
    say_counted();
    say_given();
    return 0;
}

int role_faults(int argc, char **argv)
{
    if (argc == 2 && !strcmp(argv[0], "trouble"))
        return trouble(atoi(argv[1]));
    return -1;
}
