/* Exports and imports at the kernel's boundary: which memory a descriptor holds, and which was imported from one.
 * shares.c keeps the account of both. */
#include "kernel.h"

#include "nvidia_rm.h"
#include "account.h"

#include <errno.h>
#include <sys/ioctl.h>

struct importer {
    int fd; /* of the call */
    ioctl_function *kernel;
    uint32_t client;
};

/* Return the size of device memory; 0: it is no such memory, or the kernel does not tell. */
static uint64_t size_of(const struct importer *i, uint32_t handle)
{
    struct rm_surface_info infos[] = {{RM_SURFACE_SIZE_LOW, 0}, {RM_SURFACE_SIZE_HIGH, 0}, {RM_SURFACE_SPACE, 0}};
    struct rm_surface_query query = {3, (uint64_t)(uintptr_t)infos};
    struct rm_control c = {i->client, handle, RM_GET_SURFACE_INFO, 0, (uint64_t)(uintptr_t)&query, sizeof query, 0};
    unsigned long request = _IOWR(RM_IOCTL_TYPE, RM_CONTROL, struct rm_control);
    int saved = errno, failed = i->kernel(i->fd, request, &c) || c.status != RM_OK;
    errno = saved;
    return failed || infos[2].data != RM_SPACE_VIDEO ? 0 : (uint64_t)infos[1].data << 32 | infos[0].data;
}

/* Return 0 if it does not fit. Unknown memory passes. */
static int import_memory(const struct importer *i, uint32_t parent, uint32_t handle, int fd)
{
    int slot = kernel_slot_of(i->client, parent);
    uint64_t bytes = slot < 0 ? 0 : size_of(i, handle);
    /* NVML's figure of this process is no longer comparable: it shows such memory in this process, in another one, or
     * not at all. */
    __atomic_store_n(&shim.imported, 1, __ATOMIC_RELAXED);
    if (!bytes || !shim_attach() || !account_enter_kernel(slot))
        return 1;
    __atomic_fetch_add(&shim.memory_begun, 1, __ATOMIC_SEQ_CST);
    int fits = objects_import_memory(i->client, handle, parent, bytes, slot, fd);
    __atomic_fetch_add(&shim.memory_ended, 1, __ATOMIC_SEQ_CST);
    return fits;
}

static void free_handle(const struct importer *i, uint32_t parent, uint32_t handle)
{
    struct rm_free request = {i->client, parent, handle, 0};
    struct object *taken = objects_take(i->client, handle);
    int saved = errno;
    i->kernel(i->fd, _IOWR(RM_IOCTL_TYPE, RM_FREE, struct rm_free), &request);
    errno = saved;
    objects_refund(taken);
}

/* Import all of them, or none, as the kernel does. The number of objects it has room for differs between drivers. */
static int import_many(const struct importer *i, struct rm_import_many *many, uint32_t size)
{
    const uint32_t fixed = sizeof many->fd + sizeof many->parent + sizeof many->count + sizeof many->index;
    uint32_t room = (size - fixed) / 5;
    const uint8_t *types = (const uint8_t *)&many->objects[0] + room * sizeof many->objects[0];
    uint16_t count = *(const uint16_t *)(const void *)(types + room);
    for (uint16_t n = 0; n < count && n < room; n++) {
        if (types[n] != RM_IMPORTED_VIDEO || import_memory(i, many->parent, many->objects[n], many->fd))
            continue;
        for (uint16_t back = 0; back < count && back < room; back++)
            if (types[back] != RM_IMPORTED_NONE)
                free_handle(i, many->parent, many->objects[back]);
        return 0;
    }
    return 1;
}

static void export_many(uint32_t client, const struct rm_export_many *many)
{
    for (uint32_t n = 0; n < many->count && n < sizeof many->objects / sizeof *many->objects; n++)
        objects_export_memory(client, many->objects[n], many->fd, many->index + n);
}

void exports_follow(int fd, ioctl_function *kernel, struct rm_control *control)
{
    struct importer i = {fd, kernel, control->client};
    void *params = (void *)(uintptr_t)control->params;
    const struct rm_export *export = params;
    const struct rm_import *import = params;
    int fits = 1;
    switch (control->command) {
    case RM_EXPORT_OBJECT:
        if (control->params_size >= sizeof *export)
            objects_export_memory(control->client, export->object, export->fd, 0);
        break;
    case RM_EXPORT_OBJECTS:
        if (control->params_size >= sizeof(struct rm_export_many))
            export_many(control->client, params);
        break;
    case RM_IMPORT_OBJECT:
        fits = control->params_size < sizeof *import || import_memory(&i, import->parent, import->object, import->fd);
        if (!fits)
            free_handle(&i, import->parent, import->object);
        break;
    case RM_IMPORT_OBJECTS:
        fits = control->params_size < 64 || import_many(&i, params, control->params_size);
        break;
    default:
        break;
    }
    if (!fits)
        control->status = RM_NO_MEMORY;
}
