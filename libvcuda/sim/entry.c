/* Finding functions by name and version, and the names of errors. */
#include "faults.h"
#include "process.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Every function of driver.h, from a table made at build time. Not dlsym: a preloaded library may stand before it. */
void *sim_find_symbol(const char *name)
{
    for (size_t i = 0; i < sim_symbol_count; i++)
        if (!strcmp(sim_symbols[i].name, name))
            return sim_symbols[i].address;
    return NULL;
}

int sim_driver_version(void)
{
    static int version;
    if (!version) {
        const char *text = getenv("GPUCLOUD_SIM_CUDA_VERSION");
        int asked = text ? atoi(text) : 0;
        version = asked >= 10000 ? asked : 13000;
    }
    return version;
}

/* Entries without a line are older than anything that can be simulated. */
int sim_available_from(const char *name)
{
    static const struct {
        const char *name;
        int version;
    } later[] = {
        {"cuCheckpointProcess", 12080},
        {"cuCtxCreate_v3", 11040},
        {"cuCtxCreate_v4", 12050},
        {"cuCtxRecordEvent", 12050},
        {"cuCtxSynchronize_v2", 13000},
        {"cuEventElapsedTime_v2", 12080},
        {"cuEventRecordWithFlags", 11010},
        {"cuGetProcAddress", 11030},
        {"cuGetProcAddress_v2", 12000},
        {"cuDeviceGetUuid_v2", 11040},
        {"cuDevicePrimaryCtxRelease_v2", 11000},
        {"cuDevicePrimaryCtxReset_v2", 11000},
        {"cuDevicePrimaryCtxSetFlags_v2", 11000},
        {"cuDeviceGetDefaultMemPool", 11020},
        {"cuDeviceGetMemPool", 11020},
        {"cuDeviceSetMemPool", 11020},
        {"cuGraphInstantiateWithFlags", 11040},
        {"cuLaunchKernelEx", 11060},
        {"cuMemAllocAsync", 11020},
        {"cuMemAllocFromPoolAsync", 11020},
        {"cuMemFreeAsync", 11020},
        {"cuMemPool", 11020},
        {"cuMemRetainAllocationHandle", 11000},
        {"cuMemCreate", 10020},
        {"cuMemcpyBatchAsync", 12080},
        {"cuMemcpy3DBatchAsync", 12080},
        {"cuMemcpyBatchAsync_v2", 13000},
        {"cuMemcpy3DBatchAsync_v2", 13000},
        {"cuMemcpyWithAttributesAsync", 13000},
        {"cuMemcpy3DWithAttributesAsync", 13000},
        {"cuStreamBeginCaptureToGraph", 12030},
        {"cuStreamWaitValue32_v2", 11070},
        {"cuStreamWriteValue32_v2", 11070},
    };
    for (size_t i = 0; i < sizeof later / sizeof *later; i++) {
        size_t length = strlen(later[i].name);
        /* The per-thread variant came with the function; all of cuMemPool* and of cuCheckpointProcess* came together. */
        if (!strncmp(name, later[i].name, length) &&
            (!name[length] || !strncmp(name + length, "_pt", 3) || !strcmp(later[i].name, "cuMemPool") ||
             !strcmp(later[i].name, "cuCheckpointProcess")))
            return later[i].version;
    }
    return 0;
}

int sim_is_hidden(const char *name)
{
    return sim_available_from(name) > sim_driver_version();
}

static void *find_version(const char *base, const char *suffix, int version)
{
    static const char *const numbers[] = {"_v4", "_v3", "_v2", ""};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        char name[160];
        snprintf(name, sizeof name, "%s%s", base, numbers[i]);
        if (sim_available_from(name) > version)
            continue;
        snprintf(name, sizeof name, "%s%s%s", base, numbers[i], suffix);
        void *found = sim_find_symbol(name);
        if (found)
            return found;
    }
    return NULL;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, int *status)
{
    if (!symbol || !function)
        return CUDA_ERROR_INVALID_VALUE;
    if (version > sim_driver_version())
        version = sim_driver_version();
    void *found = NULL;
    if (flags & CU_GET_PROC_PER_THREAD) {
        found = find_version(symbol, "_ptsz", version);
        if (!found)
            found = find_version(symbol, "_ptds", version);
    }
    if (!found)
        found = find_version(symbol, "", version);
    *function = found;
    if (status)
        *status = found ? 0 : 1;
    return found ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags)
{
    return cuGetProcAddress_v2(symbol, function, version, flags, NULL);
}

/* clang-format off */
#define ERRORS(X)                                                                                              \
    X(CUDA_SUCCESS, "no error") X(CUDA_ERROR_INVALID_VALUE, "invalid argument")                                \
    X(CUDA_ERROR_OUT_OF_MEMORY, "out of memory") X(CUDA_ERROR_NOT_INITIALIZED, "initialization error")         \
    X(CUDA_ERROR_DEVICE_UNAVAILABLE, "CUDA-capable device(s) is/are busy or unavailable") X(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected") X(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal") \
    X(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid") X(CUDA_ERROR_INVALID_CONTEXT, "invalid device context") \
    X(CUDA_ERROR_ECC_UNCORRECTABLE, "uncorrectable ECC error encountered") X(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure") X(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle") X(CUDA_ERROR_ILLEGAL_STATE, "the operation cannot be performed in the present state") X(CUDA_ERROR_NOT_FOUND, "named symbol not found")   \
    X(CUDA_ERROR_NOT_READY, "device not ready") X(CUDA_ERROR_NOT_PERMITTED, "operation not permitted")         \
    X(CUDA_ERROR_NOT_SUPPORTED, "operation not supported")                                                     \
    X(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing")               \
    X(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "operation failed due to a previous error during capture")        \
    X(CUDA_ERROR_CAPTURED_EVENT, "operation not permitted on an event last recorded in a capturing stream")    \
    X(CUDA_ERROR_MPS_RPC_FAILURE, "MPS client failed to contact the MPS server") X(CUDA_ERROR_MPS_SERVER_NOT_READY, "MPS server is not ready to accept new MPS client requests") \
    X(CUDA_ERROR_UNKNOWN, "unknown error")
/* clang-format on */

static CUresult describe(CUresult error, const char **name, const char **text)
{
#define X(code, words)                                                                                                 \
    case code:                                                                                                         \
        *name = #code;                                                                                                 \
        *text = words;                                                                                                 \
        return CUDA_SUCCESS;
    switch (error) {
        ERRORS(X)
    default:
        *name = *text = NULL;
        return CUDA_ERROR_INVALID_VALUE;
    }
#undef X
}

CUresult cuGetErrorName(CUresult error, const char **name)
{
    const char *text;
    return describe(error, name, &text);
}

CUresult cuGetErrorString(CUresult error, const char **text)
{
    const char *name;
    return describe(error, &name, text);
}
