/* The part of the CUDA driver's ABI that this project touches: written from its documentation, so that a C compiler alone
 * builds everything here. The simulated driver defines these functions, the shim interposes them, tests call them.
 *
 * Handles are opaque pointers. Only what is used is named; a structure is given as far as its fields are read.
 */
#ifndef VCUDA_DRIVER_H
#define VCUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult, CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct sim_context *CUcontext;
typedef struct sim_module *CUmodule;
typedef struct sim_function *CUfunction;
/* A library's kernel is launched like a function: the driver takes either. */
typedef struct sim_module *CUlibrary;
typedef struct sim_function *CUkernel;
typedef struct sim_stream *CUstream;
typedef struct sim_event *CUevent;
typedef struct sim_graph *CUgraph;
typedef struct sim_graph_exec *CUgraphExec;
typedef struct sim_pool *CUmemoryPool;
typedef struct sim_array *CUarray, *CUmipmappedArray;
typedef struct sim_green *CUgreenCtx;
typedef unsigned CUdeviceptr_v1;
typedef unsigned long long CUhandle; /* CUmemGenericAllocationHandle */
typedef struct {
    unsigned char bytes[16];
} CUuuid;
/* Of memory, for another process. */
typedef struct {
    char bytes[64];
} CUipcHandle;

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_DEVICE_UNAVAILABLE = 46,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_IMAGE = 200,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_ECC_UNCORRECTABLE = 214,
    CUDA_ERROR_OPERATING_SYSTEM = 304,
    CUDA_ERROR_INVALID_HANDLE = 400,
    CUDA_ERROR_ILLEGAL_STATE = 401,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_LAUNCH_FAILED = 719,
    CUDA_ERROR_MPS_RPC_FAILURE = 806,
    CUDA_ERROR_MPS_SERVER_NOT_READY = 807,
    CUDA_ERROR_NOT_PERMITTED = 800,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
    CUDA_ERROR_CAPTURED_EVENT = 907,
    CUDA_ERROR_UNKNOWN = 999,
};
enum { CU_CAPTURE_GLOBAL = 0, CU_CAPTURE_THREAD_LOCAL = 1, CU_CAPTURE_RELAXED = 2 };
enum { CU_CAPTURE_NONE = 0, CU_CAPTURE_ACTIVE = 1, CU_CAPTURE_INVALIDATED = 2 };
enum { CU_LOCATION_DEVICE = 1, CU_LOCATION_HOST_NUMA = 3 };
enum { CU_ACCESS_READ_WRITE = 3 };
enum { CU_HANDLE_TYPE_FD = 1 };
enum { CU_EVENT_DEFAULT = 0, CU_EVENT_BLOCKING_SYNC = 1, CU_EVENT_DISABLE_TIMING = 2 };
enum { CU_POOL_RELEASE_THRESHOLD = 4, CU_POOL_RESERVED_CURRENT = 5, CU_POOL_USED_CURRENT = 7 };
enum { CU_LIMIT_STACK_SIZE = 0, CU_LIMIT_PRINTF_FIFO_SIZE = 1, CU_LIMIT_MALLOC_HEAP_SIZE = 2 };
enum {
    CU_ATTRIBUTE_MULTIPROCESSORS = 16,
    CU_ATTRIBUTE_THREADS_PER_MULTIPROCESSOR = 39,
    CU_ATTRIBUTE_MPS_ENABLED = 133,
    CU_ATTRIBUTE_HOST_NUMA_ID = 134
};
enum { CU_PROCESS_RUNNING = 0, CU_PROCESS_LOCKED = 1, CU_PROCESS_CHECKPOINTED = 2, CU_PROCESS_FAILED = 3 };
enum { CU_GET_PROC_LEGACY = 1, CU_GET_PROC_PER_THREAD = 2 };
enum { CU_WAIT_VALUE_GEQ = 0, CU_WAIT_VALUE_EQ = 1, CU_WAIT_VALUE_AND = 2, CU_WAIT_VALUE_NOR = 3 };
enum { CU_WAIT_VALUE_CONDITIONS = 3, CU_WAIT_VALUE_FLUSH = 1 << 30, CU_WRITE_VALUE_NO_BARRIER = 1 };
#define CU_STREAM_NON_BLOCKING 1u
#define CU_STREAM_LEGACY ((CUstream)0x1)
#define CU_STREAM_PER_THREAD ((CUstream)0x2)

typedef struct {
    int type, id;
} CUlocation;
typedef struct {
    int type, handle_types;
    CUlocation location;
    void *win32;
    uint64_t flags;
} CUallocationProp;
typedef struct {
    CUlocation location;
    int flags;
} CUaccess;
typedef struct {
    int type, handle_types;
    CUlocation location;
    uint8_t rest[72];
} CUpoolProps;
typedef struct {
    unsigned grid[3], block[3], shared_bytes;
    CUstream stream;
    void *attributes;
    unsigned attribute_count;
} CUlaunchConfig;

typedef struct {
    unsigned timeout_ms; /* 0: none */
    unsigned reserved0;
    uint64_t reserved1[7];
} CUcheckpointLock;

typedef struct {
    CUuuid from, to;
} CUcheckpointPair;

typedef struct {
    const CUcheckpointPair *pairs; /* of each GPU that its driver saw; NULL: to where it was */
    unsigned count;
    char reserved[64 - sizeof(void *) - sizeof(unsigned)];
    uint64_t reserved1;
} CUcheckpointRestore;
typedef struct {
    CUfunction function;
    unsigned grid[3], block[3], shared_bytes;
    CUstream stream;
    void **params;
} CUmultiLaunch; /* CUDA_LAUNCH_PARAMS */
typedef void (*CUhostFn)(void *data);
typedef struct {
    unsigned width, height, format, channels;
} CUarrayDescriptor_v1;
typedef struct {
    unsigned width, height, depth, format, channels, flags;
} CUarray3DDescriptor_v1;
typedef struct {
    size_t width, height;
    unsigned format, channels;
} CUarrayDescriptor;
typedef struct {
    size_t width, height, depth;
    unsigned format, channels, flags;
} CUarray3DDescriptor;
_Static_assert(sizeof(CUallocationProp) == 32 && sizeof(CUpoolProps) == 88 && sizeof(CUlaunchConfig) == 56,
               "driver ABI");
_Static_assert(sizeof(CUarrayDescriptor_v1) == 16 && sizeof(CUarray3DDescriptor_v1) == 24, "driver ABI");
_Static_assert(sizeof(CUarrayDescriptor) == 24 && sizeof(CUarray3DDescriptor) == 40, "driver ABI");

#pragma GCC visibility push(default)

/* A function that has a second entry, in which the null stream means the per-thread one. */
#define VCUDA_BOTH(suffix, name, ...)                                                                                  \
    CUresult name(__VA_ARGS__);                                                                                        \
    CUresult name##_##suffix(__VA_ARGS__)
#define KERNEL_SHAPE unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared_bytes

CUresult cuInit(unsigned flags);
CUresult cuDriverGetVersion(int *version);
CUresult cuGetErrorName(CUresult error, const char **name);
CUresult cuGetErrorString(CUresult error, const char **text);
CUresult cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags);
CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, int *status);

CUresult cuDeviceGetCount(int *count);
CUresult cuDeviceGet(CUdevice *device, int ordinal);
CUresult cuDeviceGetName(char *name, int length, CUdevice device);
CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device);
CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device);
CUresult cuDeviceTotalMem(unsigned *bytes, CUdevice device);
CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device);
CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device);
CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device);
CUresult cuDeviceGetPCIBusId(char *id, int length, CUdevice device);

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult cuDevicePrimaryCtxRelease(CUdevice device);
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device);
CUresult cuDevicePrimaryCtxReset(CUdevice device);
CUresult cuDevicePrimaryCtxReset_v2(CUdevice device);
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active);
CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags);
CUresult cuCtxCreate(CUcontext *context, unsigned flags, CUdevice device);
CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device);
CUresult cuCtxCreate_v3(CUcontext *context, void *affinity, int count, unsigned flags, CUdevice device);
CUresult cuCtxCreate_v4(CUcontext *context, void *params, unsigned flags, CUdevice device);
CUresult cuGLCtxCreate(CUcontext *context, unsigned flags, CUdevice device);
CUresult cuGLCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device);
CUresult cuVDPAUCtxCreate(CUcontext *context, unsigned flags, CUdevice device, unsigned vdp, void *vdp_get_proc);
CUresult cuVDPAUCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device, unsigned vdp, void *vdp_get_proc);
CUresult cuGreenCtxCreate(CUgreenCtx *green, void *resources, CUdevice device, unsigned flags);
CUresult cuGreenCtxDestroy(CUgreenCtx green);
CUresult cuCtxFromGreenCtx(CUcontext *context, CUgreenCtx green);
CUresult cuCtxGetLimit(size_t *value, int limit);
CUresult cuCtxSetLimit(int limit, size_t value);
CUresult cuCtxDestroy(CUcontext context);
CUresult cuCtxDestroy_v2(CUcontext context);
CUresult cuCtxGetCurrent(CUcontext *context);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuCtxPushCurrent_v2(CUcontext context);
CUresult cuCtxPopCurrent_v2(CUcontext *context);
CUresult cuCtxGetDevice(CUdevice *device);
CUresult cuCtxSynchronize(void);
CUresult cuCtxSynchronize_v2(CUcontext context);
CUresult cuCtxRecordEvent(CUcontext context, CUevent event);

CUresult cuMemGetInfo(unsigned *free_bytes, unsigned *total);
CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total);
CUresult cuMemAlloc(CUdeviceptr_v1 *pointer, unsigned bytes);
CUresult cuMemAllocPitch(CUdeviceptr_v1 *pointer, unsigned *pitch, unsigned width, unsigned height, unsigned element);
CUresult cuMemFree(CUdeviceptr_v1 pointer);
CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes);
CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned element);
CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned flags);
CUresult cuMemFree_v2(CUdeviceptr pointer);
CUresult cuMemAllocHost_v2(void **pointer, size_t bytes);
CUresult cuMemHostAlloc(void **pointer, size_t bytes, unsigned flags);
CUresult cuMemFreeHost(void *pointer);
VCUDA_BOTH(ptsz, cuMemAllocAsync, CUdeviceptr *pointer, size_t bytes, CUstream stream);
VCUDA_BOTH(ptsz, cuMemAllocFromPoolAsync, CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream);
VCUDA_BOTH(ptsz, cuMemFreeAsync, CUdeviceptr pointer, CUstream stream);
CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device);
CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device);
CUresult cuDeviceGraphMemTrim(CUdevice device);
CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool);
CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUpoolProps *props);
CUresult cuMemPoolDestroy(CUmemoryPool pool);
CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value);
CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value);
CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep);
CUresult cuMemPoolExportToShareableHandle(void *shareable, CUmemoryPool pool, int type, unsigned long long flags);
CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *shareable, int type, unsigned long long flags);
CUresult cuIpcGetMemHandle(CUipcHandle *handle, CUdeviceptr pointer);
CUresult cuIpcOpenMemHandle(CUdeviceptr *pointer, CUipcHandle handle, unsigned flags);
CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pointer, CUipcHandle handle, unsigned flags);
CUresult cuIpcCloseMemHandle(CUdeviceptr pointer);
CUresult cuMemCreate(CUhandle *handle, size_t bytes, const CUallocationProp *prop, unsigned long long flags);
CUresult cuMemRelease(CUhandle handle);
CUresult cuMemRetainAllocationHandle(CUhandle *handle, void *pointer);
CUresult cuMemExportToShareableHandle(void *shareable, CUhandle handle, int type, unsigned long long flags);
CUresult cuMemImportFromShareableHandle(CUhandle *handle, void *shareable, int type);
CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset, CUhandle handle, unsigned long long flags);
CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes);
CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t bytes, size_t alignment, CUdeviceptr at,
                             unsigned long long flags);
CUresult cuMemAddressFree(CUdeviceptr pointer, size_t bytes);
CUresult cuMemSetAccess(CUdeviceptr pointer, size_t bytes, const CUaccess *descriptions, size_t count);
CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUallocationProp *prop, int option);
CUresult cuArrayCreate(CUarray *array, const CUarrayDescriptor_v1 *descriptor);
CUresult cuArray3DCreate(CUarray *array, const CUarray3DDescriptor_v1 *descriptor);
CUresult cuArrayCreate_v2(CUarray *array, const CUarrayDescriptor *descriptor);
CUresult cuArray3DCreate_v2(CUarray *array, const CUarray3DDescriptor *descriptor);
CUresult cuArrayDestroy(CUarray array);
CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUarray3DDescriptor *descriptor, unsigned levels);
CUresult cuMipmappedArrayDestroy(CUmipmappedArray array);
VCUDA_BOTH(ptds, cuMemsetD8_v2, CUdeviceptr to, unsigned char value, size_t count);
VCUDA_BOTH(ptds, cuMemsetD16_v2, CUdeviceptr to, unsigned short value, size_t count);
VCUDA_BOTH(ptds, cuMemsetD32_v2, CUdeviceptr to, unsigned value, size_t count);
#define FILL_2D(type) CUdeviceptr to, size_t pitch, type value, size_t width, size_t height
VCUDA_BOTH(ptds, cuMemsetD2D8_v2, FILL_2D(unsigned char));
VCUDA_BOTH(ptds, cuMemsetD2D16_v2, FILL_2D(unsigned short));
VCUDA_BOTH(ptds, cuMemsetD2D32_v2, FILL_2D(unsigned));
VCUDA_BOTH(ptsz, cuMemsetD8Async, CUdeviceptr to, unsigned char value, size_t count, CUstream stream);
VCUDA_BOTH(ptsz, cuMemsetD16Async, CUdeviceptr to, unsigned short value, size_t count, CUstream stream);
VCUDA_BOTH(ptsz, cuMemsetD32Async, CUdeviceptr to, unsigned value, size_t count, CUstream stream);
VCUDA_BOTH(ptsz, cuMemsetD2D8Async, FILL_2D(unsigned char), CUstream stream);
VCUDA_BOTH(ptsz, cuMemsetD2D16Async, FILL_2D(unsigned short), CUstream stream);
VCUDA_BOTH(ptsz, cuMemsetD2D32Async, FILL_2D(unsigned), CUstream stream);

CUresult cuModuleLoadData(CUmodule *module, const void *image);
CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, int *options, void **values);
CUresult cuModuleUnload(CUmodule module);
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name);
CUresult cuLibraryLoadData(CUlibrary *library, const void *code, int *jit_options, void **jit_values,
                           unsigned jit_count, int *options, void **values, unsigned count);
CUresult cuLibraryUnload(CUlibrary library);
CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name);
CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel);
CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction function);

CUresult cuStreamCreate(CUstream *stream, unsigned flags);
CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority);
CUresult cuStreamDestroy(CUstream stream);
CUresult cuStreamDestroy_v2(CUstream stream);
VCUDA_BOTH(ptsz, cuStreamSynchronize, CUstream stream);
VCUDA_BOTH(ptsz, cuStreamQuery, CUstream stream);
VCUDA_BOTH(ptsz, cuStreamWaitEvent, CUstream stream, CUevent event, unsigned flags);
VCUDA_BOTH(ptsz, cuStreamWaitValue32_v2, CUstream stream, CUdeviceptr address, unsigned value, unsigned flags);
VCUDA_BOTH(ptsz, cuStreamWriteValue32_v2, CUstream stream, CUdeviceptr address, unsigned value, unsigned flags);
VCUDA_BOTH(ptsz, cuStreamIsCapturing, CUstream stream, int *status);
VCUDA_BOTH(ptsz, cuStreamGetCtx, CUstream stream, CUcontext *context);
VCUDA_BOTH(ptsz, cuStreamBeginCapture, CUstream stream);
VCUDA_BOTH(ptsz, cuStreamBeginCapture_v2, CUstream stream, int mode);
VCUDA_BOTH(ptsz, cuStreamBeginCaptureToGraph, CUstream stream, CUgraph graph, const void *nodes, const void *edges,
           size_t count, int mode);
VCUDA_BOTH(ptsz, cuStreamBeginRecaptureToGraph, CUstream stream, int mode, CUgraph graph, void *callback, void *data);
VCUDA_BOTH(ptsz, cuStreamBeginCaptureToCig, CUstream stream, void *params);
VCUDA_BOTH(ptsz, cuStreamEndCaptureToCig, CUstream stream);
VCUDA_BOTH(ptsz, cuStreamEndCapture, CUstream stream, CUgraph *graph);
CUresult cuThreadExchangeStreamCaptureMode(int *mode);
CUresult cuEventCreate(CUevent *event, unsigned flags);
CUresult cuEventDestroy_v2(CUevent event);
VCUDA_BOTH(ptsz, cuEventRecord, CUevent event, CUstream stream);
VCUDA_BOTH(ptsz, cuEventRecordWithFlags, CUevent event, CUstream stream, unsigned flags);
CUresult cuEventQuery(CUevent event);
CUresult cuEventSynchronize(CUevent event);
CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end);
CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end);

VCUDA_BOTH(ptsz, cuLaunchKernel, CUfunction f, KERNEL_SHAPE, CUstream stream, void **params, void **extra);
VCUDA_BOTH(ptsz, cuLaunchKernelEx, const CUlaunchConfig *config, CUfunction f, void **params, void **extra);
VCUDA_BOTH(ptsz, cuLaunchCooperativeKernel, CUfunction f, KERNEL_SHAPE, CUstream stream, void **params);
CUresult cuLaunchCooperativeKernelMultiDevice(CUmultiLaunch *launches, unsigned count, unsigned flags);
VCUDA_BOTH(ptsz, cuLaunchHostFunc, CUstream stream, CUhostFn function, void *data);
CUresult cuLaunch(CUfunction f);
CUresult cuLaunchGrid(CUfunction f, int width, int height);
CUresult cuLaunchGridAsync(CUfunction f, int width, int height, CUstream stream);
VCUDA_BOTH(ptsz, cuGraphLaunch, CUgraphExec exec, CUstream stream);
CUresult cuGraphCreate(CUgraph *graph, unsigned flags);
CUresult cuGraphDestroy(CUgraph graph);
CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags);
CUresult cuGraphExecDestroy(CUgraphExec exec);

/* Of another process, by its number here (CUDA 12.8). NULL for arguments: the defaults. */
CUresult cuCheckpointProcessLock(int pid, CUcheckpointLock *args);
CUresult cuCheckpointProcessCheckpoint(int pid, void *args);
CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestore *args);
CUresult cuCheckpointProcessUnlock(int pid, void *args);
CUresult cuCheckpointProcessGetState(int pid, int *state);
CUresult cuCheckpointProcessGetRestoreThreadId(int pid, int *tid);

#include "driver_copies.h"

#pragma GCC visibility pop
#endif
