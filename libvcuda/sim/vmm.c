/* Virtual memory management and arrays: physical memory is charged until neither a handle nor a mapping holds it, and where it
 * was exported (export.c) neither a descriptor nor another process. */
#include "memory.h"
#include "physical.h"

#include <stdlib.h>

static struct mapping {
    CUdeviceptr pointer;
    struct physical *physical;
    struct mapping *next;
} * mappings;

static uint64_t round_up(uint64_t bytes, uint64_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

static CUresult drop(struct physical *p)
{
    if (__atomic_sub_fetch(&p->references, 1, __ATOMIC_ACQ_REL))
        return CUDA_SUCCESS;
    CUresult result = sim_physical_free(p);
    if (p->imported)
        sim_process_count_imported(-1);
    free(p);
    return result;
}

CUresult cuMemCreate(CUhandle *handle, size_t bytes, const CUallocationProp *prop, unsigned long long flags)
{
    (void)flags;
    struct sim_device *device = prop ? sim_device(prop->location.id) : NULL;
    if (!device || !handle || !bytes || bytes % SIM_GRANULE)
        return CUDA_ERROR_INVALID_VALUE;
    struct physical *p = malloc(sizeof *p);
    if (!p)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *p = (struct physical){device, bytes, 1, 0, 0};
    CUresult result = sim_physical_take(p);
    if (result) {
        free(p);
        return result;
    }
    *handle = (CUhandle)(uintptr_t)p;
    return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUhandle handle)
{
    return handle ? drop((struct physical *)(uintptr_t)handle) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemRetainAllocationHandle(CUhandle *handle, void *pointer)
{
    pthread_mutex_lock(&sim_process_mutex);
    struct mapping *m = mappings;
    while (m && m->pointer != (CUdeviceptr)(uintptr_t)pointer)
        m = m->next;
    if (m) {
        __atomic_add_fetch(&m->physical->references, 1, __ATOMIC_ACQ_REL);
        *handle = (CUhandle)(uintptr_t)m->physical;
    }
    pthread_mutex_unlock(&sim_process_mutex);
    return m ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t bytes, size_t alignment, CUdeviceptr at,
                             unsigned long long flags)
{
    (void)alignment, (void)at, (void)flags;
    *pointer = sim_address(bytes);
    return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr pointer, size_t bytes)
{
    (void)pointer, (void)bytes;
    return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset, CUhandle handle, unsigned long long flags)
{
    (void)bytes, (void)offset, (void)flags;
    struct mapping *m = malloc(sizeof *m);
    if (!m)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *m = (struct mapping){.pointer = pointer, .physical = (struct physical *)(uintptr_t)handle};
    __atomic_add_fetch(&m->physical->references, 1, __ATOMIC_ACQ_REL);
    pthread_mutex_lock(&sim_process_mutex);
    m->next = mappings;
    mappings = m;
    pthread_mutex_unlock(&sim_process_mutex);
    return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes)
{
    struct mapping *gone = NULL;
    pthread_mutex_lock(&sim_process_mutex);
    for (struct mapping **at = &mappings; *at;) {
        struct mapping *m = *at;
        if (m->pointer < pointer || m->pointer >= pointer + bytes) {
            at = &m->next;
            continue;
        }
        *at = m->next;
        m->next = gone;
        gone = m;
    }
    pthread_mutex_unlock(&sim_process_mutex);
    CUresult result = gone ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    while (gone) {
        struct mapping *next = gone->next;
        drop(gone->physical);
        free(gone);
        gone = next;
    }
    return result;
}

CUresult cuMemSetAccess(CUdeviceptr pointer, size_t bytes, const void *descriptions, size_t count)
{
    (void)pointer, (void)bytes, (void)descriptions, (void)count;
    return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUallocationProp *prop, int option)
{
    (void)prop, (void)option;
    *bytes = SIM_GRANULE;
    return CUDA_SUCCESS;
}

CUresult cuArray3DCreate_v2(CUarray *array, const CUarray3DDescriptor *d)
{
    CUcontext context = sim_current();
    if (!context || !d)
        return CUDA_ERROR_INVALID_CONTEXT;
    uint64_t element = (d->format == 1 || d->format == 8                         ? 1
                        : d->format == 3 || d->format == 0x20 || d->format == 10 ? 4
                                                                                 : 2);
    uint64_t bytes = d->width * (d->height ? d->height : 1) * (d->depth ? d->depth : 1) * element * d->channels;
    uint64_t charge = round_up(bytes ? bytes : 1, SIM_GRANULE);
    CUresult result = sim_charge(context->device, (int64_t)charge);
    CUarray made = result ? NULL : malloc(sizeof *made);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *made = (struct sim_array){context->device, charge};
    *array = made;
    return CUDA_SUCCESS;
}

CUresult cuArrayCreate_v2(CUarray *array, const CUarrayDescriptor *d)
{
    CUarray3DDescriptor whole = {d->width, d->height, 0, d->format, d->channels, 0};
    return cuArray3DCreate_v2(array, &whole);
}

CUresult cuArrayDestroy(CUarray array)
{
    CUresult result = sim_charge(array->device, -(int64_t)array->charge);
    free(array);
    return result;
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUarray3DDescriptor *descriptor, unsigned levels)
{
    /* All smaller levels together take a third of the first. */
    CUarray3DDescriptor whole = *descriptor;
    if (levels > 1)
        whole.width += whole.width / 3 + 1;
    return cuArray3DCreate_v2(array, &whole);
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array)
{
    return cuArrayDestroy(array);
}
