/* A library that a program loads into a link namespace of its own. What it looks up is looked up there, by that namespace's C
 * library. */
#include "driver.h"

#include <dlfcn.h>

#define SHOWN __attribute__((visibility("default")))

SHOWN int elsewhere_count(void);
SHOWN CUresult elsewhere_allocate(size_t bytes);

/* Each copy of the library counts for itself. */
int elsewhere_count(void)
{
    static int count;
    return ++count;
}

/* The error of the call that failed; -1: there is no driver here. */
CUresult elsewhere_allocate(size_t bytes)
{
    CUcontext context;
    CUdeviceptr p;
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
#define FIND(name) __typeof__(name) *my_##name = library ? (__typeof__(my_##name))dlsym(library, #name) : NULL
    FIND(cuInit);
    FIND(cuDevicePrimaryCtxRetain);
    FIND(cuCtxSetCurrent);
    FIND(cuMemAlloc_v2);
    if (!my_cuInit || !my_cuDevicePrimaryCtxRetain || !my_cuCtxSetCurrent || !my_cuMemAlloc_v2)
        return -1;
    CUresult error = my_cuInit(0);
    error = error ? error : my_cuDevicePrimaryCtxRetain(&context, 0);
    error = error ? error : my_cuCtxSetCurrent(context);
    return error ? error : my_cuMemAlloc_v2(&p, bytes);
}
