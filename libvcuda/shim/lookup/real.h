/* The real driver's functions: those that we hook, and those that we only call. */
#ifndef SHIM_REAL_H
#define SHIM_REAL_H

#include "driver.h"
#include "nvidia_ml.h"

/* clang-format off */
/* Entries that programs get from us instead of the driver's. The shim defines a function of each name. */
#define HOOKED_CUDA(X)                                                                                          \
    /* start and lookup */                                                                                      \
    X(cuInit) X(cuGetProcAddress) X(cuGetProcAddress_v2)                                                        \
    /* sizes and use as programs see them */                                                                    \
    X(cuDeviceTotalMem) X(cuDeviceTotalMem_v2) X(cuMemGetInfo) X(cuMemGetInfo_v2)                               \
    /* contexts, and calls that enlarge one */                                                                  \
    X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxRelease) X(cuDevicePrimaryCtxRelease_v2)                    \
    X(cuDevicePrimaryCtxReset) X(cuDevicePrimaryCtxReset_v2)                                                    \
    X(cuCtxCreate) X(cuCtxCreate_v2) X(cuCtxCreate_v3) X(cuCtxCreate_v4) X(cuCtxDestroy) X(cuCtxDestroy_v2)     \
    X(cuGLCtxCreate) X(cuGLCtxCreate_v2) X(cuVDPAUCtxCreate) X(cuVDPAUCtxCreate_v2)                             \
    X(cuGreenCtxCreate) X(cuGreenCtxDestroy) X(cuCtxSetLimit)                                                   \
    /* memory: plain, pitched, managed; arrays; stream-ordered and pools; virtual memory management */          \
    X(cuMemAlloc) X(cuMemAlloc_v2) X(cuMemAllocPitch) X(cuMemAllocPitch_v2) X(cuMemAllocManaged)                \
    X(cuMemFree) X(cuMemFree_v2) X(cuMemFreeAsync) X(cuMemFreeAsync_ptsz)                                       \
    X(cuArrayCreate) X(cuArrayCreate_v2) X(cuArray3DCreate) X(cuArray3DCreate_v2) X(cuArrayDestroy)             \
    X(cuMipmappedArrayCreate) X(cuMipmappedArrayDestroy)                                                        \
    X(cuMemAllocAsync) X(cuMemAllocAsync_ptsz) X(cuMemAllocFromPoolAsync) X(cuMemAllocFromPoolAsync_ptsz)       \
    X(cuMemPoolCreate) X(cuMemPoolDestroy) X(cuMemPoolTrimTo)                                                   \
    X(cuMemCreate) X(cuMemRelease) X(cuMemRetainAllocationHandle) X(cuMemMap) X(cuMemUnmap)                     \
    /* memory of other processes, and memory for them */                                                        \
    X(cuIpcGetMemHandle) X(cuIpcOpenMemHandle) X(cuIpcOpenMemHandle_v2) X(cuIpcCloseMemHandle)                  \
    X(cuMemExportToShareableHandle) X(cuMemImportFromShareableHandle)                                           \
    X(cuMemPoolExportToShareableHandle) X(cuMemPoolImportFromShareableHandle)                                   \
    /* launches */                                                                                              \
    X(cuLaunchKernel) X(cuLaunchKernel_ptsz) X(cuLaunchKernelEx) X(cuLaunchKernelEx_ptsz)                       \
    X(cuLaunchCooperativeKernel) X(cuLaunchCooperativeKernel_ptsz) X(cuLaunchCooperativeKernelMultiDevice)      \
    X(cuLaunch) X(cuLaunchGrid) X(cuLaunchGridAsync) X(cuGraphLaunch) X(cuGraphLaunch_ptsz)                     \
    /* fills, which are kernels of the driver's own */                                                          \
    X(cuMemsetD8_v2) X(cuMemsetD8_v2_ptds) X(cuMemsetD8Async) X(cuMemsetD8Async_ptsz)                           \
    X(cuMemsetD16_v2) X(cuMemsetD16_v2_ptds) X(cuMemsetD16Async) X(cuMemsetD16Async_ptsz)                       \
    X(cuMemsetD32_v2) X(cuMemsetD32_v2_ptds) X(cuMemsetD32Async) X(cuMemsetD32Async_ptsz)                       \
    X(cuMemsetD2D8_v2) X(cuMemsetD2D8_v2_ptds) X(cuMemsetD2D8Async) X(cuMemsetD2D8Async_ptsz)                   \
    X(cuMemsetD2D16_v2) X(cuMemsetD2D16_v2_ptds) X(cuMemsetD2D16Async) X(cuMemsetD2D16Async_ptsz)               \
    X(cuMemsetD2D32_v2) X(cuMemsetD2D32_v2_ptds) X(cuMemsetD2D32Async) X(cuMemsetD2D32Async_ptsz)               \
    /* copies: blocking ones, and those within the memory of GPUs */                                            \
    X(cuMemcpyHtoD_v2) X(cuMemcpyHtoD_v2_ptds) X(cuMemcpyDtoH_v2) X(cuMemcpyDtoH_v2_ptds)                       \
    X(cuMemcpyHtoDAsync_v2) X(cuMemcpyHtoDAsync_v2_ptsz) X(cuMemcpyDtoHAsync_v2) X(cuMemcpyDtoHAsync_v2_ptsz)   \
    X(cuMemcpyDtoD) X(cuMemcpyDtoD_v2) X(cuMemcpyDtoD_v2_ptds) X(cuMemcpyDtoDAsync) X(cuMemcpyDtoDAsync_v2)     \
    X(cuMemcpyDtoDAsync_v2_ptsz) X(cuMemcpyPeer) X(cuMemcpyPeer_ptds) X(cuMemcpyPeerAsync)                      \
    X(cuMemcpyPeerAsync_ptsz) X(cuMemcpyDtoA) X(cuMemcpyDtoA_v2) X(cuMemcpyDtoA_v2_ptds) X(cuMemcpyAtoD)        \
    X(cuMemcpyAtoD_v2) X(cuMemcpyAtoD_v2_ptds) X(cuMemcpyAtoA) X(cuMemcpyAtoA_v2) X(cuMemcpyAtoA_v2_ptds)       \
    X(cuMemcpy) X(cuMemcpy_ptds) X(cuMemcpyAsync) X(cuMemcpyAsync_ptsz) X(cuMemcpyWithAttributesAsync)          \
    X(cuMemcpyWithAttributesAsync_ptsz) X(cuMemcpyBatchAsync) X(cuMemcpyBatchAsync_ptsz)                        \
    X(cuMemcpyBatchAsync_v2) X(cuMemcpyBatchAsync_v2_ptsz) X(cuMemcpy2D) X(cuMemcpy2D_v2)                       \
    X(cuMemcpy2D_v2_ptds) X(cuMemcpy2DUnaligned) X(cuMemcpy2DUnaligned_v2) X(cuMemcpy2DUnaligned_v2_ptds)       \
    X(cuMemcpy2DAsync) X(cuMemcpy2DAsync_v2) X(cuMemcpy2DAsync_v2_ptsz) X(cuMemcpy3D) X(cuMemcpy3D_v2)          \
    X(cuMemcpy3D_v2_ptds) X(cuMemcpy3DAsync) X(cuMemcpy3DAsync_v2) X(cuMemcpy3DAsync_v2_ptsz)                   \
    X(cuMemcpy3DPeer) X(cuMemcpy3DPeer_ptds) X(cuMemcpy3DPeerAsync) X(cuMemcpy3DPeerAsync_ptsz)                 \
    X(cuMemcpy3DBatchAsync) X(cuMemcpy3DBatchAsync_ptsz) X(cuMemcpy3DBatchAsync_v2)                             \
    X(cuMemcpy3DBatchAsync_v2_ptsz) X(cuMemcpy3DWithAttributesAsync) X(cuMemcpy3DWithAttributesAsync_ptsz)      \
    /* questions about pointers */                                                                              \
    X(cuPointerGetAttribute) X(cuPointerGetAttributes) X(cuMemGetAddressRange_v2)                               \
    /* kernels by name */                                                                                       \
    X(cuModuleGetFunction) X(cuLibraryGetKernel) X(cuKernelGetFunction)                                         \
    /* waits */                                                                                                 \
    X(cuCtxSynchronize) X(cuCtxSynchronize_v2) X(cuStreamSynchronize) X(cuStreamSynchronize_ptsz)               \
    X(cuEventSynchronize)                                                                                       \
    /* queries */                                                                                               \
    X(cuStreamQuery) X(cuStreamQuery_ptsz) X(cuEventQuery) X(cuEventElapsedTime) X(cuEventElapsedTime_v2)       \
    /* the ends of streams */                                                                                   \
    X(cuStreamDestroy) X(cuStreamDestroy_v2)                                                                    \
    /* captures */                                                                                              \
    X(cuStreamBeginCapture) X(cuStreamBeginCapture_ptsz) X(cuStreamBeginCapture_v2)                             \
    X(cuStreamBeginCapture_v2_ptsz) X(cuStreamBeginCaptureToGraph) X(cuStreamBeginCaptureToGraph_ptsz)          \
    X(cuStreamBeginRecaptureToGraph) X(cuStreamBeginRecaptureToGraph_ptsz)                                      \
    X(cuStreamBeginCaptureToCig) X(cuStreamBeginCaptureToCig_ptsz)                                              \
    X(cuStreamEndCapture) X(cuStreamEndCapture_ptsz) X(cuStreamEndCaptureToCig) X(cuStreamEndCaptureToCig_ptsz)

/* Entries that we only call. */
#define CALLED_CUDA(X)                                                                                          \
    X(cuCtxGetCurrent) X(cuCtxGetDevice) X(cuCtxPushCurrent_v2) X(cuCtxPopCurrent_v2) X(cuCtxGetLimit)          \
    X(cuCtxRecordEvent)                                                                                         \
    X(cuDeviceGet) X(cuDeviceGetCount) X(cuDeviceGetAttribute) X(cuDeviceGetUuid) X(cuDeviceGetUuid_v2)         \
    X(cuDevicePrimaryCtxGetState) X(cuStreamGetCtx)                                                             \
    X(cuEventCreate) X(cuEventDestroy_v2) X(cuEventRecord) X(cuStreamIsCapturing)                               \
    X(cuThreadExchangeStreamCaptureMode) X(cuDeviceGetMemPool) X(cuMemPoolGetAttribute)                         \
    X(cuDeviceGetDefaultMemPool) X(cuMemHostAlloc) X(cuMemFreeHost) X(cuMemAddressReserve) X(cuMemAddressFree)  \
    X(cuMemSetAccess) X(cuStreamCreate)                                                                         \
    X(cuStreamWaitValue32_v2) X(cuStreamWriteValue32_v2)

#define HOOKED_NVML(X)                                                                                          \
    X(nvmlDeviceGetMemoryInfo) X(nvmlDeviceGetMemoryInfo_v2)                                                    \
    X(nvmlDeviceGetComputeRunningProcesses) X(nvmlDeviceGetComputeRunningProcesses_v2)                          \
    X(nvmlDeviceGetComputeRunningProcesses_v3) X(nvmlDeviceGetGraphicsRunningProcesses)                         \
    X(nvmlDeviceGetGraphicsRunningProcesses_v2) X(nvmlDeviceGetGraphicsRunningProcesses_v3)                     \
    X(nvmlDeviceGetMPSComputeRunningProcesses) X(nvmlDeviceGetMPSComputeRunningProcesses_v2)                    \
    X(nvmlDeviceGetMPSComputeRunningProcesses_v3) X(nvmlDeviceGetRunningProcessDetailList)                      \
    X(nvmlDeviceGetUtilizationRates) X(nvmlDeviceGetProcessUtilization) X(nvmlDeviceGetProcessesUtilizationInfo)
#define CALLED_NVML(X) X(nvmlInit_v2) X(nvmlDeviceGetUUID) X(nvmlDeviceGetHandleByUUID)
/* clang-format on */

#define MEMBER(name) __typeof__(name) *name;
struct real_cuda {
    HOOKED_CUDA(MEMBER)
    CALLED_CUDA(MEMBER)
};
struct real_nvml {
    HOOKED_NVML(MEMBER)
    CALLED_NVML(MEMBER)
};
#undef MEMBER

extern struct real_cuda real;
extern struct real_nvml real_nvml;

/* Find the driver's functions, once; return 0 if there is no driver. `load`: open the library if it is not open yet. */
int real_cuda_ready(int load);
int real_nvml_ready(int load);
/* Return our entry if `found` is one of the driver's that we hook, else `found` itself. */
void *real_hook_of(void *found);

/* Every hook begins like this: without a driver there is nothing to call. */
#define NEED_REAL(name)                                                                                                \
    do {                                                                                                               \
        if (!real_cuda_ready(1) || !real.name)                                                                         \
            return CUDA_ERROR_NO_DEVICE;                                                                               \
    } while (0)

#define NEED_NVML(name)                                                                                                \
    do {                                                                                                               \
        if (!real_nvml_ready(1))                                                                                       \
            return NVML_ERROR_UNINITIALIZED;                                                                           \
        if (!real_nvml.name)                                                                                           \
            return NVML_ERROR_FUNCTION_NOT_FOUND;                                                                      \
    } while (0)

#endif
