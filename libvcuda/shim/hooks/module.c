/* Kernels by name. NCCL's kernels on several GPUs wait for one another, so holding one of them up would leave the
 * others spinning: gate.c lets them go if the claim has several GPUs. A kernel's name is seen when a program looks it
 * up. */
#include "meter.h"

#include <ctype.h>
#include <string.h>

/* "ncclDevKernel_…", or its mangled C++ name: "_Z27ncclDevKernel_…". */
static int is_collective(const char *name)
{
    if (strncmp(name, "_Z", 2) == 0)
        for (name += 2; isdigit((unsigned char)*name); name++)
            ;
    return strncmp(name, "nccl", 4) == 0;
}

static CUresult found(CUresult result, const void *kernel, const char *name)
{
    if (!result && name && is_collective(name) && shim_mode() == SHIM_ACTIVE)
        predict_note_collective(kernel);
    return result;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    NEED_REAL(cuModuleGetFunction);
    CUresult result = real.cuModuleGetFunction(function, module, name);
    return found(result, result ? NULL : *function, name);
}

CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
    NEED_REAL(cuLibraryGetKernel);
    CUresult result = real.cuLibraryGetKernel(kernel, library, name);
    return found(result, result ? NULL : *kernel, name);
}

CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
    NEED_REAL(cuKernelGetFunction);
    CUresult result = real.cuKernelGetFunction(function, kernel);
    if (!result && predict_is_collective(kernel))
        predict_note_collective(*function);
    return result;
}
