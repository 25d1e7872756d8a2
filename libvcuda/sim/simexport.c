/* Exports to descriptors, imports from them, and the size of what was imported. */
#include "simkernel.h"
#include "simobjects.h"

#include <stdlib.h>

__attribute__((visibility("default"))) int sim_kernel_open(void);

int sim_kernel_open(void)
{
    return sim_descriptor_open();
}

static uint32_t export_memory(uint32_t client, uint32_t handle, int fd)
{
    struct object *o = objects_find(client, handle);
    struct memory *m = o ? o->memory : NULL;
    if (!m)
        return RM_INVALID_OBJECT;
    sim_lock(m->gpu);
    m->share = m->share < 0 ? sim_share_make(m->gpu, m->bytes) : m->share;
    int exported = m->share >= 0 && sim_share_export(m->gpu, m->share, fd);
    sim_unlock(m->gpu);
    return exported ? RM_OK : RM_INVALID_ARGUMENT;
}

/* The kernel chooses the handle where the caller does not. */
static uint32_t import_memory(uint32_t client, uint32_t parent, uint32_t *handle, int fd)
{
    static uint32_t next = 0xcaf00001;
    struct object *device = objects_find(client, parent);
    struct memory *m = device && device->gpu ? malloc(sizeof *m) : NULL;
    if (!m)
        return RM_INVALID_OBJECT;
    *handle = *handle ? *handle : next++;
    *m = (struct memory){device->gpu, 0, 1, -1};
    sim_lock(m->gpu);
    m->share = sim_share_of(m->gpu, fd);
    int joined = m->share >= 0 && sim_share_join(m->gpu, m->share);
    m->bytes = joined ? m->gpu->share[m->share].bytes : 0;
    sim_unlock(m->gpu);
    struct object *o = joined ? objects_add(client, *handle, parent, m->gpu) : NULL;
    if (!o) {
        free(m);
        return RM_INVALID_ARGUMENT;
    }
    o->memory = m;
    return RM_OK;
}

static uint32_t import_many(uint32_t client, struct rm_import_many *i)
{
    uint32_t status = i->count == 1 && !i->index ? RM_OK : RM_INVALID_ARGUMENT;
    status = status ? status : import_memory(client, i->parent, &i->objects[0], i->fd);
    i->types[0] = status ? RM_IMPORTED_NONE : RM_IMPORTED_VIDEO;
    return status;
}

static uint32_t tell_surface(const struct rm_control *c)
{
    const struct object *o = objects_find(c->client, c->object);
    const struct rm_surface_query *query = (void *)(uintptr_t)c->params;
    struct rm_surface_info *infos = (void *)(uintptr_t)query->infos;
    if (!o || !o->memory)
        return RM_NOT_SUPPORTED;
    for (uint32_t i = 0; i < query->count; i++)
        infos[i].data = infos[i].index == RM_SURFACE_SIZE_LOW    ? (uint32_t)o->memory->bytes
                        : infos[i].index == RM_SURFACE_SIZE_HIGH ? (uint32_t)(o->memory->bytes >> 32)
                                                                 : RM_SPACE_VIDEO;
    return RM_OK;
}

uint32_t export_control(const struct rm_control *c)
{
    void *params = (void *)(uintptr_t)c->params;
    const struct rm_export *one = params;
    const struct rm_export_many *many = params;
    struct rm_import *import = params;
    switch (c->command) {
    case RM_EXPORT_OBJECT:
        return export_memory(c->client, one->object, one->fd);
    case RM_EXPORT_OBJECTS:
        return many->count == 1 ? export_memory(c->client, many->objects[0], many->fd) : RM_INVALID_ARGUMENT;
    case RM_IMPORT_OBJECT:
        return import_memory(c->client, import->parent, &import->object, import->fd);
    case RM_IMPORT_OBJECTS:
        return import_many(c->client, params);
    case RM_GET_SURFACE_INFO:
        return tell_surface(c);
    default:
        return RM_NOT_SUPPORTED;
    }
}
