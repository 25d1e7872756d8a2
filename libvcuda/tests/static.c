/* A program that no library can be preloaded into: it is linked statically, its driver with it. It takes memory, says so,
 * and waits to be ended. */
#include "../sim/faults.h"
#include "driver.h"

#include <stdio.h>
#include <unistd.h>

/* Nobody looks anything up by name. */
const struct sim_symbol sim_symbols[] = {{0}};
const size_t sim_symbol_count = 0;

int main(void)
{
    CUcontext context;
    CUdeviceptr p;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context) || cuMemAlloc_v2(&p, 6ull << 30))
        return 1;
    puts("holds");
    fflush(stdout);
    return pause();
}
