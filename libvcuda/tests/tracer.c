/* A tool of the kind that programs are traced with: preloaded too, with an entry of its own before the driver's. */
#include "driver.h"

#include <dlfcn.h>

__attribute__((visibility("default"))) void *tracer_next(const char *name);

void *tracer_next(const char *name)
{
    void *volatile next = dlsym(RTLD_NEXT, name); /* not a tail call: it is to count from here */
    return next;
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes)
{
    __typeof__(cuMemAlloc_v2) *next = (__typeof__(cuMemAlloc_v2) *)tracer_next("cuMemAlloc_v2");
    return next ? next(pointer, bytes) : CUDA_ERROR_NOT_FOUND;
}
