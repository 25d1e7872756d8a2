/* Virtual memory management: physical memory is charged to the GPU that it is made on, until neither a handle nor a mapping
 * holds it. Releasing a handle that is still mapped frees nothing, so it refunds nothing. */
#include "shim.h"

#include <pthread.h>
#include <stdlib.h>

struct physical {
    CUhandle handle;
    uint64_t bytes;
    int slot;
    unsigned references; /* handles and mappings */
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

struct mapping {
    CUdeviceptr pointer;
    struct physical *physical;
};

static struct physical **made;
static size_t made_count, made_room;
static struct mapping *mapped;
static size_t mapped_count, mapped_room;

/* Room for one more element; 0: no memory. */
static int make_room(void **array, size_t count, size_t *room, size_t size)
{
    if (count < *room)
        return 1;
    void *bigger = realloc(*array, (*room ? *room * 2 : 64) * size);
    if (!bigger)
        return 0;
    *array = bigger;
    *room = *room ? *room * 2 : 64;
    return 1;
}

static struct physical *find(CUhandle handle)
{
    for (size_t i = 0; i < made_count; i++)
        if (made[i]->handle == handle)
            return made[i];
    return NULL;
}

static void drop(struct physical *p)
{
    if (--p->references)
        return;
    account_refund(p->slot, p->bytes);
    for (size_t i = 0; i < made_count; i++)
        if (made[i] == p)
            made[i] = made[--made_count];
    free(p);
}

static void remember(CUhandle handle, uint64_t bytes, int slot)
{
    pthread_mutex_lock(&mutex);
    struct physical *p = malloc(sizeof *p);
    if (p && make_room((void **)&made, made_count, &made_room, sizeof *made)) {
        *p = (struct physical){handle, bytes, slot, 1};
        made[made_count++] = p;
    } else {
        free(p);
    }
    pthread_mutex_unlock(&mutex);
}

CUresult cuMemCreate(CUhandle *handle, size_t bytes, const CUallocationProp *prop, unsigned long long flags)
{
    NEED_REAL(cuMemCreate);
    if (shim_mode() != SHIM_ACTIVE || !prop || prop->location.type != CU_LOCATION_DEVICE)
        return real.cuMemCreate(handle, bytes, prop, flags);
    int slot = shim_slot_of_device(prop->location.id);
    __atomic_fetch_add(&shim.memory_begun, 1, __ATOMIC_SEQ_CST);
    CUresult result = account_reserve(slot, bytes);
    if (!result) {
        result = real.cuMemCreate(handle, bytes, prop, flags);
        if (result)
            account_refund(slot, bytes);
        else
            remember(*handle, bytes, slot);
    }
    __atomic_fetch_add(&shim.memory_ended, 1, __ATOMIC_SEQ_CST);
    return result;
}

CUresult cuMemRelease(CUhandle handle)
{
    NEED_REAL(cuMemRelease);
    CUresult result = real.cuMemRelease(handle);
    if (result || shim_mode() != SHIM_ACTIVE)
        return result;
    pthread_mutex_lock(&mutex);
    struct physical *p = find(handle);
    if (p)
        drop(p);
    pthread_mutex_unlock(&mutex);
    return result;
}

CUresult cuMemRetainAllocationHandle(CUhandle *handle, void *pointer)
{
    NEED_REAL(cuMemRetainAllocationHandle);
    CUresult result = real.cuMemRetainAllocationHandle(handle, pointer);
    if (result || shim_mode() != SHIM_ACTIVE)
        return result;
    pthread_mutex_lock(&mutex);
    struct physical *p = find(*handle);
    if (p)
        p->references++;
    pthread_mutex_unlock(&mutex);
    return result;
}

CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset, CUhandle handle, unsigned long long flags)
{
    NEED_REAL(cuMemMap);
    CUresult result = real.cuMemMap(pointer, bytes, offset, handle, flags);
    if (result || shim_mode() != SHIM_ACTIVE)
        return result;
    pthread_mutex_lock(&mutex);
    struct physical *p = find(handle);
    if (p && make_room((void **)&mapped, mapped_count, &mapped_room, sizeof *mapped)) {
        mapped[mapped_count++] = (struct mapping){pointer, p};
        p->references++;
    } else if (p) {
        p->references++; /* no memory to remember the mapping: the charge stays */
    }
    pthread_mutex_unlock(&mutex);
    return result;
}

CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes)
{
    NEED_REAL(cuMemUnmap);
    CUresult result = real.cuMemUnmap(pointer, bytes);
    if (result || shim_mode() != SHIM_ACTIVE)
        return result;
    pthread_mutex_lock(&mutex);
    for (size_t i = 0; i < mapped_count;) {
        if (mapped[i].pointer < pointer || mapped[i].pointer >= pointer + bytes) {
            i++;
            continue;
        }
        drop(mapped[i].physical);
        mapped[i] = mapped[--mapped_count];
    }
    pthread_mutex_unlock(&mutex);
    return result;
}
