/* Virtual memory management: physical memory is charged to the GPU on which it is created, until neither a handle nor a
 * mapping holds it. Releasing a handle that is still mapped frees nothing, so it refunds nothing. Imported memory is
 * counted as such for as long, whoever keeps the account. */
#include "kernel.h"
#include "account.h"
#include "entries.h"
#include "imports.h"
#include "lending.h"

#include <pthread.h>
#include <stdlib.h>

struct physical {
    CUhandle handle;
    uint64_t bytes;
    int slot;            /* < 0: nothing is charged here */
    int imported;        /* counted as memory of another process */
    unsigned references; /* handles and mappings */
    unsigned handles;    /* 0: the driver may give this handle's number to another */
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

struct mapping {
    CUdeviceptr pointer;
    size_t bytes;
    struct physical *physical;
    uint64_t ending; /* number of the call that is unmapping it, so that it is no longer found */
};

static int imports; /* number of imported ones; read without the lock, too */
static struct physical **made;
static size_t made_count, made_room;
static struct mapping *mapped;
static size_t mapped_count, mapped_room;

/* Make room for one more element; return 0 if there is no memory. */
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
        if (made[i]->handle == handle && made[i]->handles)
            return made[i];
    return NULL;
}

static void drop(struct physical *p)
{
    if (--p->references)
        return;
    if (p->slot >= 0)
        account_refund(p->slot, p->bytes);
    if (p->imported) {
        __atomic_fetch_sub(&imports, 1, __ATOMIC_RELAXED);
        imports_end();
    }
    for (size_t i = 0; i < made_count; i++)
        if (made[i] == p)
            made[i] = made[--made_count];
    free(p);
}

/* Locked. NULL: there is no memory for it. */
static struct physical *add(CUhandle handle, uint64_t bytes, int slot)
{
    struct physical *p = malloc(sizeof *p);
    if (p && make_room((void **)&made, made_count, &made_room, sizeof *made)) {
        *p = (struct physical){handle, bytes, slot, 0, 1, 1};
        return made[made_count++] = p;
    }
    free(p);
    return NULL;
}

static void remember(CUhandle handle, uint64_t bytes, int slot)
{
    pthread_mutex_lock(&mutex);
    add(handle, bytes, slot);
    pthread_mutex_unlock(&mutex);
}

/* Return 1 if handles and mappings are recorded: the hooks charge, or some memory was imported. */
static int hooks_keep_track(void)
{
    return shim_mode() == SHIM_ACTIVE && (!account_by_kernel() || __atomic_load_n(&imports, __ATOMIC_RELAXED));
}

/* The import is counted already. Without memory to remember it, it stays counted for the process's life. */
static void remember_import(CUhandle handle)
{
    pthread_mutex_lock(&mutex);
    struct physical *p = find(handle);
    if (p) {
        p->handles++;
        p->references++;
    } else {
        p = add(handle, 0, -1);
    }
    if (p && p->imported) {
        imports_end();
    } else if (p) {
        p->imported = 1;
        __atomic_fetch_add(&imports, 1, __ATOMIC_RELAXED);
    }
    pthread_mutex_unlock(&mutex);
}

CUresult cuMemImportFromShareableHandle(CUhandle *handle, void *shareable, int type)
{
    NEED_REAL(cuMemImportFromShareableHandle);
    int counted = imports_begin();
    CUresult result = real.cuMemImportFromShareableHandle(handle, shareable, type);
    if (counted && result)
        imports_end();
    else if (counted)
        remember_import(*handle);
    return result;
}

/* Create memory before it is known which layer accounts: the driver's own call decides it. If that call does not pass
 * the kernel's boundary, the memory is charged afterwards, or released. */
static CUresult create_first(CUhandle *handle, size_t bytes, const CUallocationProp *prop, unsigned long long flags,
                             int slot)
{
    CUresult result = real.cuMemCreate(handle, bytes, prop, flags);
    if (result || !account_enter_calls(slot))
        return result;
    result = account_reserve(slot, bytes);
    if (result)
        real.cuMemRelease(*handle);
    else
        remember(*handle, bytes, slot);
    return result;
}

static CUresult create_charged(CUhandle *handle, size_t bytes, const CUallocationProp *prop, unsigned long long flags,
                               int slot)
{
    if (!account_enter_calls(slot))
        return real.cuMemCreate(handle, bytes, prop, flags);
    CUresult result = account_reserve(slot, bytes);
    if (result)
        return result;
    result = real.cuMemCreate(handle, bytes, prop, flags);
    if (result)
        account_refund(slot, bytes);
    else
        remember(*handle, bytes, slot);
    return result;
}

CUresult cuMemCreate(CUhandle *handle, size_t bytes, const CUallocationProp *prop, unsigned long long flags)
{
    NEED_REAL(cuMemCreate);
    if (shim_mode() != SHIM_ACTIVE || !prop || prop->location.type != CU_LOCATION_DEVICE)
        return real.cuMemCreate(handle, bytes, prop, flags);
    int slot = shim_slot_of_device(prop->location.id);
    shim_refresh();
    if (slot < 0 || !shim_attach() || __atomic_load_n(&shim.gpu[slot].state, __ATOMIC_RELAXED) != VCUDA_SLOT_OPEN)
        return CUDA_ERROR_NOT_PERMITTED;
    if (account_by_kernel())
        return real.cuMemCreate(handle, bytes, prop, flags);
    __atomic_fetch_add(&shim.memory_begun, 1, __ATOMIC_SEQ_CST);
    int first = !account_by_calls() && kernel_watches(slot);
    CUresult result =
        first ? create_first(handle, bytes, prop, flags, slot) : create_charged(handle, bytes, prop, flags, slot);
    __atomic_fetch_add(&shim.memory_ended, 1, __ATOMIC_SEQ_CST);
    return result;
}

/* Forget the handle before the driver releases it: afterwards another allocation may get the same one. */
CUresult cuMemRelease(CUhandle handle)
{
    NEED_REAL(cuMemRelease);
    if (!hooks_keep_track())
        return real.cuMemRelease(handle);
    pthread_mutex_lock(&mutex);
    struct physical *p = find(handle);
    if (p)
        p->handles--;
    pthread_mutex_unlock(&mutex);
    CUresult result = real.cuMemRelease(handle);
    pthread_mutex_lock(&mutex);
    if (p && result)
        p->handles++;
    else if (p)
        drop(p);
    pthread_mutex_unlock(&mutex);
    return result;
}

static struct physical *mapped_at(CUdeviceptr pointer)
{
    for (size_t i = 0; i < mapped_count; i++)
        if (!mapped[i].ending && pointer >= mapped[i].pointer && pointer - mapped[i].pointer < mapped[i].bytes)
            return mapped[i].physical;
    return NULL;
}

CUresult cuMemRetainAllocationHandle(CUhandle *handle, void *pointer)
{
    NEED_REAL(cuMemRetainAllocationHandle);
    CUdeviceptr base;
    uint64_t whole;
    /* Memory with a handle of the program's could not leave; a plain block has none either. */
    if (__atomic_load_n(&shim.lends, __ATOMIC_ACQUIRE) && lending_finds((CUdeviceptr)(uintptr_t)pointer, &base, &whole))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = real.cuMemRetainAllocationHandle(handle, pointer);
    if (result || !hooks_keep_track())
        return result;
    pthread_mutex_lock(&mutex);
    struct physical *p = find(*handle);
    if (!p)
        p = mapped_at((CUdeviceptr)(uintptr_t)pointer);
    if (p) {
        p->handle = *handle;
        p->handles++;
        p->references++;
    }
    pthread_mutex_unlock(&mutex);
    return result;
}

CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset, CUhandle handle, unsigned long long flags)
{
    NEED_REAL(cuMemMap);
    CUresult result = real.cuMemMap(pointer, bytes, offset, handle, flags);
    if (result || !hooks_keep_track())
        return result;
    pthread_mutex_lock(&mutex);
    struct physical *p = find(handle);
    if (p && make_room((void **)&mapped, mapped_count, &mapped_room, sizeof *mapped)) {
        mapped[mapped_count++] = (struct mapping){pointer, bytes, p, 0};
        p->references++;
    } else if (p) {
        p->references++; /* no memory to remember the mapping: the charge stays */
    }
    pthread_mutex_unlock(&mutex);
    return result;
}

/* As with a handle: forget it before the driver's call, and restore it if that fails. */
CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes)
{
    static uint64_t calls;
    NEED_REAL(cuMemUnmap);
    if (!hooks_keep_track())
        return real.cuMemUnmap(pointer, bytes);
    pthread_mutex_lock(&mutex);
    uint64_t call = ++calls;
    for (size_t i = 0; i < mapped_count; i++)
        if (!mapped[i].ending && mapped[i].pointer >= pointer && mapped[i].pointer - pointer < bytes)
            mapped[i].ending = call;
    pthread_mutex_unlock(&mutex);
    CUresult result = real.cuMemUnmap(pointer, bytes);
    pthread_mutex_lock(&mutex);
    for (size_t i = 0; i < mapped_count; i++) {
        if (mapped[i].ending != call)
            continue;
        mapped[i].ending = 0;
        if (result)
            continue;
        drop(mapped[i].physical);
        mapped[i--] = mapped[--mapped_count];
    }
    pthread_mutex_unlock(&mutex);
    return result;
}

/* In a forked child: another thread of the parent may have held the mutex; the entries belong to the parent. */
void vmm_forget(void)
{
    pthread_mutex_init(&mutex, NULL);
    made = NULL;
    mapped = NULL;
    made_count = made_room = mapped_count = mapped_room = 0;
    imports = 0;
}
