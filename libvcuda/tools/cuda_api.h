/* The driver's functions that our programs use, found as any program finds them: dlopen and dlsym. */
#ifndef TOOLS_CUDA_API_H
#define TOOLS_CUDA_API_H

#include "driver.h"

/* clang-format off */
#define CUDA_FUNCTIONS(X)                                                                                       \
    X(cuInit) X(cuDriverGetVersion) X(cuGetErrorName) X(cuGetProcAddress_v2) X(cuDeviceGetCount) X(cuDeviceGet) \
    X(cuDeviceGetName) X(cuDeviceGetUuid_v2) X(cuDeviceTotalMem_v2) X(cuDevicePrimaryCtxRetain)                 \
    X(cuDevicePrimaryCtxRelease_v2) X(cuCtxCreate_v2) X(cuCtxDestroy_v2) X(cuCtxSetCurrent) X(cuCtxSynchronize) \
    X(cuMemGetInfo_v2) X(cuMemAlloc_v2) X(cuMemAllocPitch_v2) X(cuMemAllocManaged) X(cuMemFree_v2)              \
    X(cuMemAllocAsync) X(cuMemAllocAsync_ptsz) X(cuMemAllocFromPoolAsync) X(cuMemFreeAsync)                     \
    X(cuDeviceGetDefaultMemPool) X(cuMemPoolTrimTo) X(cuMemPoolGetAttribute) X(cuMemPoolSetAttribute)           \
    X(cuMemCreate) X(cuMemRelease) X(cuMemMap) X(cuMemUnmap) X(cuMemAddressReserve) X(cuMemAddressFree)         \
    X(cuArrayCreate_v2) X(cuArrayDestroy) X(cuModuleLoadData) X(cuModuleGetFunction) X(cuStreamCreate)          \
    X(cuStreamDestroy_v2) X(cuStreamSynchronize) X(cuStreamWaitEvent) X(cuStreamBeginCapture_v2)                \
    X(cuStreamEndCapture) X(cuEventCreate) X(cuEventDestroy_v2) X(cuEventRecord) X(cuEventQuery)                \
    X(cuEventSynchronize) X(cuEventElapsedTime) X(cuLaunchKernel) X(cuLaunchKernelEx) X(cuLaunchKernel_ptsz)    \
    X(cuLaunchCooperativeKernel) X(cuGraphLaunch) X(cuGraphInstantiateWithFlags) X(cuGraphExecDestroy)          \
    X(cuGraphDestroy) X(cuStreamQuery) X(cuMemcpyDtoH_v2) X(cuMemExportToShareableHandle)                       \
    X(cuMemImportFromShareableHandle)
/* clang-format on */

#define CUDA_MEMBER(name) __typeof__(name) *name;
extern struct cuda_api {
    CUDA_FUNCTIONS(CUDA_MEMBER)
} cuda;
#undef CUDA_MEMBER

/* What cuda_api_start loaded: kernels `spin_ns` and `_Z11ncclSpin_ns`, whose one argument is how long they run. */
extern CUmodule cuda_module;

/* Fill `cuda`. NULL, or what was not found. */
const char *cuda_api_load(void);
const char *cuda_error_name(CUresult error);
/* cuInit, the device's primary context made current, the spin kernel loaded. On failure `*where` names the call. */
CUresult cuda_api_start(int ordinal, CUfunction *spin, const char **where);
/* More spin kernels, each a function of its own, in a module that only this loads: programs without them start sooner. */
#define CUDA_SPINS 16
CUresult cuda_load_spins(CUfunction spins[CUDA_SPINS]);
/* Launch the spin kernel for `ns`. */
CUresult cuda_spin(CUfunction spin, unsigned grid, uint64_t ns, CUstream stream);

#endif
