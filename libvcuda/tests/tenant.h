/* How a tenant's program begins: libcuda opened, a context, a stream, the spin kernel. */
#ifndef TESTS_TENANT_H
#define TESTS_TENANT_H

#include "cuda_api.h"

struct tenant {
    CUfunction spin;
    CUstream stream;
    CUcontext context;
};

/* 0, or the error of the call that failed; -1 where libcuda lacks something. */
CUresult tenant_begin(struct tenant *tenant);
/* An entry that is not in `cuda`. */
void *tenant_find(const char *name);
/* A line for the suite. */
void say(const char *name, double value);

#endif
