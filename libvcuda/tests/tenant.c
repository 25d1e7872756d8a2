/* See tenant.h. */
#include "tenant.h"

#include <dlfcn.h>
#include <stdio.h>

CUresult tenant_begin(struct tenant *tenant)
{
    const char *where = cuda_api_load();
    CUresult error = where ? -1 : cuda_api_start(0, &tenant->spin, &where);
    if (!error)
        error = cuda.cuStreamCreate(&tenant->stream, 1);
    return error ? error : cuda.cuDevicePrimaryCtxRetain(&tenant->context, 0);
}

void *tenant_find(const char *name)
{
    return dlsym(dlopen("libcuda.so.1", RTLD_NOW), name);
}

void say(const char *name, double value)
{
    printf("%s %.3f\n", name, value);
    fflush(stdout);
}
