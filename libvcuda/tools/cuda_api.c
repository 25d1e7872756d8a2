/* The driver's functions and the spin kernel: see cuda_api.h. */
#include "cuda_api.h"

#include <dlfcn.h>
#include <stdio.h>

struct cuda_api cuda;
CUmodule cuda_module;

/* Two kernels that spin until the GPU's own clock has moved by `ns`. The simulated driver knows it by its name (`_ns`: the first argument
 * is its duration); the second has a name like NCCL's. sm_70 and PTX 6.3: every driver of CUDA 10 or newer takes it. */
#define SPIN(name)                                                                                                     \
    ".visible .entry " name "(.param .u64 duration)\n"                                                                 \
    "{\n"                                                                                                              \
    "    .reg .pred %again;\n"                                                                                         \
    "    .reg .u64 %want, %begin, %now, %passed;\n"                                                                    \
    "    ld.param.u64 %want, [duration];\n"                                                                            \
    "    mov.u64 %begin, %globaltimer;\n"                                                                              \
    "spin:\n"                                                                                                          \
    "    mov.u64 %now, %globaltimer;\n"                                                                                \
    "    sub.u64 %passed, %now, %begin;\n"                                                                             \
    "    setp.lt.u64 %again, %passed, %want;\n"                                                                        \
    "    @%again bra spin;\n"                                                                                          \
    "    ret;\n"                                                                                                       \
    "}\n"
#define PTX ".version 6.3\n.target sm_70\n.address_size 64\n"
static const char ptx[] = PTX SPIN("spin_ns") SPIN("_Z11ncclSpin_ns");
/* clang-format off */
static const char spins_ptx[] = PTX
    SPIN("spin0_ns") SPIN("spin1_ns") SPIN("spin2_ns") SPIN("spin3_ns") SPIN("spin4_ns") SPIN("spin5_ns") SPIN("spin6_ns")
    SPIN("spin7_ns") SPIN("spin8_ns") SPIN("spin9_ns") SPIN("spin10_ns") SPIN("spin11_ns") SPIN("spin12_ns")
    SPIN("spin13_ns") SPIN("spin14_ns") SPIN("spin15_ns");
/* clang-format on */

const char *cuda_api_load(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library)
        return "libcuda.so.1";
#define FIND(name)                                                                                                     \
    cuda.name = (__typeof__(cuda.name))dlsym(library, #name);                                                          \
    if (!cuda.name)                                                                                                    \
        return #name;
    CUDA_FUNCTIONS(FIND)
#undef FIND
    return NULL;
}

const char *cuda_error_name(CUresult error)
{
    const char *name = NULL;
    cuda.cuGetErrorName(error, &name);
    return name ? name : "unknown";
}

CUresult cuda_api_start(int ordinal, CUfunction *spin, const char **where)
{
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUresult error;
#define STEP(call, ...)                                                                                                \
    *where = #call;                                                                                                    \
    error = cuda.call(__VA_ARGS__);                                                                                    \
    if (error)                                                                                                         \
        return error;
    STEP(cuInit, 0)
    STEP(cuDeviceGet, &device, ordinal)
    STEP(cuDevicePrimaryCtxRetain, &context, device)
    STEP(cuCtxSetCurrent, context)
    STEP(cuModuleLoadData, &module, ptx)
    STEP(cuModuleGetFunction, spin, module, "spin_ns")
    cuda_module = module;
#undef STEP
    return CUDA_SUCCESS;
}

CUresult cuda_load_spins(CUfunction spins[CUDA_SPINS])
{
    CUmodule module;
    CUresult error = cuda.cuModuleLoadData(&module, spins_ptx);
    for (int i = 0; i < CUDA_SPINS && !error; i++) {
        char name[16];
        snprintf(name, sizeof name, "spin%d_ns", i);
        error = cuda.cuModuleGetFunction(&spins[i], module, name);
    }
    return error;
}

CUresult cuda_spin(CUfunction spin, unsigned grid, uint64_t ns, CUstream stream)
{
    void *params[] = {&ns};
    return cuda.cuLaunchKernel(spin, grid, 1, 1, 32, 1, 1, 0, stream, params, NULL);
}
