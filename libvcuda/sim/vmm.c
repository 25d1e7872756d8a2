/* Virtual memory management and arrays: physical memory is charged until neither a handle nor a mapping holds it, and where it
 * was exported (export.c) neither a descriptor nor another process. */
#include "memory.h"
#include "physical.h"

#include <stdlib.h>
#include <sys/mman.h>

static struct mapping {
    CUdeviceptr pointer;
    uint64_t bytes;
    int open; /* access was given to it */
    struct physical *physical;
    struct mapping *next;
} * mappings;

static struct range {
    CUdeviceptr pointer;
    uint64_t bytes;
    struct range *next;
} * ranges;

static uint64_t round_up(uint64_t bytes, uint64_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

/* What the driver takes for itself with each piece of the GPU's memory; tests ask for it. */
static int64_t tables(const struct physical *p)
{
    const char *text = p->host ? NULL : getenv("GPUCLOUD_SIM_TABLES");
    return text ? atoll(text) : 0;
}

static CUresult drop(struct physical *p)
{
    if (__atomic_sub_fetch(&p->references, 1, __ATOMIC_ACQ_REL))
        return CUDA_SUCCESS;
    CUresult result = p->host ? CUDA_SUCCESS : sim_physical_free(p);
    if (tables(p))
        sim_charge(p->device, -tables(p));
    if (p->bytes_at)
        munmap(p->bytes_at, p->bytes);
    if (p->imported)
        sim_process_count_imported(-1);
    free(p);
    return result;
}

CUresult cuMemCreate(CUhandle *handle, size_t bytes, const CUallocationProp *prop, unsigned long long flags)
{
    (void)flags;
    int host = prop && prop->location.type == CU_LOCATION_HOST_NUMA;
    struct sim_device *device = prop ? sim_device(host ? 0 : prop->location.id) : NULL;
    if (host && getenv("GPUCLOUD_SIM_NO_HOST_NUMA"))
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!device || !handle || !bytes || bytes % SIM_GRANULE)
        return CUDA_ERROR_INVALID_VALUE;
    struct physical *p = malloc(sizeof *p);
    if (!p)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *p = (struct physical){.device = device, .bytes = bytes, .references = 1, .host = host};
    CUresult result = tables(p) ? sim_charge(device, tables(p)) : CUDA_SUCCESS;
    result = result || host ? result : sim_physical_take(p);
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
    struct range *range = malloc(sizeof *range);
    if (!range)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *pointer = sim_address(bytes);
    pthread_mutex_lock(&sim_process_mutex);
    *range = (struct range){*pointer, bytes, ranges};
    ranges = range;
    pthread_mutex_unlock(&sim_process_mutex);
    return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr pointer, size_t bytes)
{
    pthread_mutex_lock(&sim_process_mutex);
    struct range **at = &ranges, *found = NULL;
    while (*at && ((*at)->pointer != pointer || (*at)->bytes != bytes))
        at = &(*at)->next;
    if ((found = *at))
        *at = found->next;
    pthread_mutex_unlock(&sim_process_mutex);
    free(found);
    return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset, CUhandle handle, unsigned long long flags)
{
    (void)offset, (void)flags;
    struct mapping *made = malloc(sizeof *made);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *made = (struct mapping){.pointer = pointer, .bytes = bytes, .physical = (struct physical *)(uintptr_t)handle};
    pthread_mutex_lock(&sim_process_mutex);
    struct mapping *other = mappings;
    while (other && (other->pointer >= pointer + bytes || pointer >= other->pointer + other->bytes))
        other = other->next;
    if (!other) {
        __atomic_add_fetch(&made->physical->references, 1, __ATOMIC_ACQ_REL);
        made->next = mappings;
        mappings = made;
    }
    pthread_mutex_unlock(&sim_process_mutex);
    if (other)
        free(made);
    return other ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

/* Return 1 if work of this process is on the GPU: it may touch any address. */
static int is_working(struct sim_device *device)
{
    if (!device->client)
        return 0;
    sim_lock(device->gpu);
    int working = device->client->service_ns < device->client->demand_ns || device->client->kept;
    sim_unlock(device->gpu);
    return working;
}

CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes)
{
    struct mapping *gone = NULL;
    /* A kernel that touches it would end the context, as would work that is queued; tests ask for the check. */
    if (getenv("GPUCLOUD_SIM_UNMAP_CHECK") && is_working(sim_device(0)))
        return CUDA_ERROR_LAUNCH_FAILED;
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

CUresult cuMemSetAccess(CUdeviceptr pointer, size_t bytes, const CUaccess *descriptions, size_t count)
{
    (void)descriptions, (void)count;
    uint64_t opened = 0;
    pthread_mutex_lock(&sim_process_mutex);
    for (struct mapping *m = mappings; m; m = m->next)
        if (m->pointer >= pointer && m->pointer < pointer + bytes) {
            m->open = 1;
            opened += m->bytes;
        }
    pthread_mutex_unlock(&sim_process_mutex);
    return opened >= bytes ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Locked. */
static const struct range *range_of(CUdeviceptr pointer)
{
    const struct range *r = ranges;
    while (r && (pointer < r->pointer || pointer - r->pointer >= r->bytes))
        r = r->next;
    return r;
}

uint8_t *sim_bytes_at(CUdeviceptr pointer, int write, uint64_t *room, int *known)
{
    uint8_t *found = NULL;
    *known = 0;
    pthread_mutex_lock(&sim_process_mutex);
    struct mapping *m = ranges ? mappings : NULL;
    while (m && (pointer < m->pointer || pointer - m->pointer >= m->bytes))
        m = m->next;
    if (!m && ranges)
        *known = range_of(pointer) != NULL;
    if (m && range_of(pointer)) {
        struct physical *p = m->physical;
        *known = m->open ? 2 : 1;
        *room = m->bytes - (pointer - m->pointer);
        if (!p->bytes_at && write) {
            int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
            void *made = mmap(NULL, p->bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
            p->bytes_at = made == MAP_FAILED ? NULL : made;
        }
        found = p->bytes_at ? p->bytes_at + (pointer - m->pointer) : NULL;
    }
    pthread_mutex_unlock(&sim_process_mutex);
    return found;
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
