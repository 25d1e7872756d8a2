/* Memory of other processes, opened by a handle of 64 bytes, and pools by a descriptor: who has some, not what it holds. */
#include "memory.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAGIC 0x4350495f4d4953ull

/* What a handle or a descriptor says: whose memory it is. */
struct ticket {
    uint64_t magic, pidns, start_time;
    uint32_t pid, device;
    uint64_t pointer;
};

static struct opened {
    CUdeviceptr pointer;
    struct opened *next;
} * opened;

static struct ticket ticket_of(const struct sim_device *device, uint64_t pointer)
{
    struct ticket t = {.magic = MAGIC, .device = device->index, .pointer = pointer};
    sim_find_self(&t.pid, &t.pidns, &t.start_time);
    return t;
}

/* Of a living process, and not of the caller. */
static int is_valid(const struct ticket *t)
{
    struct ticket me = {0};
    sim_find_self(&me.pid, &me.pidns, &me.start_time);
    int mine = t->pid == me.pid && t->pidns == me.pidns && t->start_time == me.start_time;
    return t->magic == MAGIC && !mine && sim_pid_here(t->pid, t->pidns, t->start_time) != 0;
}

CUresult cuIpcGetMemHandle(CUipcHandle *handle, CUdeviceptr pointer)
{
    CUcontext context = sim_current();
    unsigned type;
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!handle || cuPointerGetAttribute(&type, CU_POINTER_MEMORY_TYPE, pointer))
        return CUDA_ERROR_INVALID_VALUE;
    struct ticket t = ticket_of(context->device, pointer);
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &t, sizeof t);
    return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pointer, CUipcHandle handle, unsigned flags)
{
    struct ticket t;
    memcpy(&t, &handle, sizeof t);
    (void)flags;
    if (!sim_current())
        return CUDA_ERROR_INVALID_CONTEXT;
    struct opened *made = pointer && is_valid(&t) ? malloc(sizeof *made) : NULL;
    if (!made)
        return CUDA_ERROR_INVALID_VALUE;
    made->pointer = *pointer = sim_address(1);
    pthread_mutex_lock(&sim_process_mutex);
    made->next = opened;
    opened = made;
    pthread_mutex_unlock(&sim_process_mutex);
    sim_process_count_opened(1);
    return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *pointer, CUipcHandle handle, unsigned flags)
{
    return cuIpcOpenMemHandle_v2(pointer, handle, flags);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr pointer)
{
    pthread_mutex_lock(&sim_process_mutex);
    struct opened **at = &opened;
    while (*at && (*at)->pointer != pointer)
        at = &(*at)->next;
    struct opened *found = *at;
    if (found)
        *at = found->next;
    pthread_mutex_unlock(&sim_process_mutex);
    if (!found)
        return CUDA_ERROR_INVALID_VALUE;
    free(found);
    sim_process_count_opened(-1);
    return CUDA_SUCCESS;
}

CUresult cuMemPoolExportToShareableHandle(void *shareable, CUmemoryPool pool, int type, unsigned long long flags)
{
    int *fd = shareable;
    if (!fd || !pool || type != CU_HANDLE_TYPE_FD || flags)
        return CUDA_ERROR_INVALID_VALUE;
    struct ticket t = ticket_of(pool->device, (uint64_t)(uintptr_t)pool);
    *fd = memfd_create("sim-pool", MFD_CLOEXEC);
    if (*fd < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    if (write(*fd, &t, sizeof t) == (ssize_t)sizeof t)
        return CUDA_SUCCESS;
    close(*fd);
    return CUDA_ERROR_OPERATING_SYSTEM;
}

CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *shareable, int type, unsigned long long flags)
{
    struct ticket t;
    int fd = (int)(intptr_t)shareable;
    if (!pool || type != CU_HANDLE_TYPE_FD || flags || pread(fd, &t, sizeof t, 0) != (ssize_t)sizeof t || !is_valid(&t))
        return CUDA_ERROR_INVALID_VALUE;
    struct sim_device *device = sim_device((CUdevice)t.device);
    struct sim_pool *made = device ? calloc(1, sizeof *made) : NULL;
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    made->device = device;
    sim_process_count_pool();
    *pool = made;
    return CUDA_SUCCESS;
}
