/* Physical memory handed to other processes by file descriptors. */
#include "physical.h"
#include "simkernel.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

/* As libcuda opens the control device once more for what it exports. */
static int open_descriptor(void)
{
    int (*open_kernel)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, SIM_KERNEL_OPEN);
    return open_kernel ? open_kernel() : -1;
}

CUresult cuMemExportToShareableHandle(void *shareable, CUhandle handle, int type, unsigned long long flags)
{
    const struct physical *p = (const struct physical *)(uintptr_t)handle;
    int *fd = shareable;
    if (!p || !fd || type != CU_HANDLE_TYPE_FD || flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (!p->object)
        return CUDA_ERROR_NOT_SUPPORTED;
    *fd = open_descriptor();
    if (*fd < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    if (!sim_physical_export(p, *fd))
        return CUDA_SUCCESS;
    close(*fd);
    return CUDA_ERROR_UNKNOWN;
}

/* `shareable` is the descriptor itself. */
CUresult cuMemImportFromShareableHandle(CUhandle *handle, void *shareable, int type)
{
    int fd = (int)(intptr_t)shareable;
    struct sim_device *device = sim_device(0);
    if (!handle || fd < 0 || type != CU_HANDLE_TYPE_FD || !device)
        return CUDA_ERROR_INVALID_VALUE;
    struct physical *p = malloc(sizeof *p);
    if (!p)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *p = (struct physical){.device = device, .references = 1, .imported = 1};
    uint32_t status = sim_physical_import(p, fd);
    if (status) {
        free(p);
        return status == 0x51 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
    }
    sim_process_count_imported(1);
    *handle = (CUhandle)(uintptr_t)p;
    return CUDA_SUCCESS;
}
