/* A program that is linked to libcuda instead of opening it: its calls must meet the limit all the same. */
#include "driver.h"

#include <stdio.h>

int main(void)
{
    CUcontext context;
    CUdeviceptr p;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context))
        return 1;
    printf("linked %d\n", cuMemAlloc_v2(&p, 6ull << 30));
    return 0;
}
