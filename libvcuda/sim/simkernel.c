/* See simkernel.h. Objects form a tree, as handles of a client; memory is charged to its GPU until its last handle goes. */
#include "simkernel.h"

#include "simobjects.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct object *objects;
static pid_t owner; /* a forked child's calls name its parent's clients: nothing of theirs changes */
static unsigned long allocations;
static uint32_t next_client = 0xc1d00001;

__attribute__((visibility("default"))) int sim_kernel_present = 1;

static uint64_t number_of(const char *name)
{
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : 0;
}

struct object *objects_find(uint32_t client, uint32_t handle)
{
    struct object *o = objects;
    while (o && (o->client != client || o->handle != handle))
        o = o->next;
    return o;
}

struct object *objects_add(uint32_t client, uint32_t handle, uint32_t parent, struct sim_gpu *gpu)
{
    struct object *o = calloc(1, sizeof *o);
    if (o) {
        *o = (struct object){client, handle, parent, gpu, NULL, objects};
        objects = o;
    }
    return o;
}

static int is_failing(void)
{
    const char *text = getenv("GPUCLOUD_SIM_KERNEL_FAIL");
    unsigned long from = text ? strtoul(text, NULL, 10) : 0, now = ++allocations;
    return from && (now == from || (now > from && strchr(text, '+')));
}

static uint32_t take_memory(struct rm_alloc *a, struct sim_gpu *gpu)
{
    struct rm_memory *params = (void *)(uintptr_t)a->params;
    uint64_t unit = number_of("GPUCLOUD_SIM_KERNEL_ROUND");
    if (is_failing())
        return RM_INSUFFICIENT_RESOURCES;
    if (unit)
        params->size = (params->size + unit - 1) / unit * unit;
    struct memory *memory = malloc(sizeof *memory);
    struct object *o = memory ? objects_add(a->client, a->handle, a->parent, gpu) : NULL;
    if (!o || !sim_memory_take(gpu, (int64_t)params->size)) {
        if (o)
            objects = o->next;
        free(o);
        free(memory);
        return RM_NO_MEMORY;
    }
    *memory = (struct memory){gpu, params->size, 1, -1};
    o->memory = memory;
    return RM_OK;
}

static uint32_t allocate(struct rm_alloc *a)
{
    struct sim_node *node = sim_node_open(NULL);
    struct object *parent = objects_find(a->client, a->parent);
    const uint32_t *params = (const void *)(uintptr_t)a->params;
    if (a->class == RM_CLASS_ROOT) {
        a->handle = a->handle ? a->handle : next_client++;
        return objects_add(a->handle, a->handle, 0, NULL) ? RM_OK : RM_NO_MEMORY;
    }
    if (!parent || !node)
        return RM_INVALID_CLIENT;
    if (a->class == RM_CLASS_DEVICE && params && *params < node->gpus)
        return objects_add(a->client, a->handle, a->parent, &node->gpu[*params]) ? RM_OK : RM_NO_MEMORY;
    if (!parent->gpu)
        return RM_INVALID_OBJECT;
    if (a->class == RM_CLASS_SUBDEVICE)
        return objects_add(a->client, a->handle, a->parent, parent->gpu) ? RM_OK : RM_NO_MEMORY;
    return a->class == RM_CLASS_MEMORY_LOCAL ? take_memory(a, parent->gpu) : RM_NOT_SUPPORTED;
}

static void let_go(struct object *o)
{
    struct memory *m = o->memory;
    if (m && --m->holders == 0) {
        sim_lock(m->gpu);
        if (m->share >= 0)
            sim_share_leave(m->gpu, m->share);
        sim_unlock(m->gpu);
        if (m->share < 0)
            sim_memory_take(m->gpu, -(int64_t)m->bytes);
        free(m);
    }
    free(o);
}

/* The object, and what is below it. */
static uint32_t release(uint32_t client, uint32_t handle)
{
    uint32_t status = RM_INVALID_OBJECT;
    for (struct object **at = &objects; *at;) {
        struct object *o = *at;
        if (o->client != client || (handle != client && o->handle != handle)) {
            at = &o->next;
            continue;
        }
        *at = o->next;
        let_go(o);
        status = RM_OK;
    }
    for (struct object *o = objects; o;) {
        uint32_t below = o->client == client && o->parent == handle ? o->handle : 0;
        if (below)
            release(client, below);
        o = below ? objects : o->next;
    }
    return status;
}

static uint32_t control(const struct rm_control *c)
{
    struct object *o = objects_find(c->client, c->object);
    const char *mode = getenv("GPUCLOUD_SIM_KERNEL_GID");
    struct rm_gid *gid = (void *)(uintptr_t)c->params;
    if (!o)
        return RM_INVALID_OBJECT;
    if (c->command != RM_GET_GID)
        return export_control(c);
    if (!o->gpu || (mode && !strcmp(mode, "none")))
        return RM_NOT_SUPPORTED;
    gid->length = 16;
    memcpy(gid->data, o->gpu->uuid, 16);
    gid->data[15] ^= mode != NULL;
    return RM_OK;
}

static uint32_t duplicate(const struct rm_dup *d)
{
    struct object *of = objects_find(d->source_client, d->source), *parent = objects_find(d->client, d->parent);
    struct object *o = of && parent ? objects_add(d->client, d->handle, d->parent, of->gpu) : NULL;
    if (!o)
        return RM_INVALID_OBJECT;
    o->memory = of->memory;
    if (o->memory)
        o->memory->holders++;
    return RM_OK;
}

static void allocate_short(struct rm_alloc_short *a)
{
    struct rm_alloc whole = {a->client, a->parent, a->handle, a->class, a->params, 0, a->params_size, 0, 0, 0};
    a->status = allocate(&whole);
    a->handle = whole.handle;
}

static void write_answer(unsigned number, size_t size, void *body)
{
    struct rm_alloc *a = body;
    struct rm_free *f = body;
    struct rm_control *c = body;
    struct rm_dup *d = body;
    int is_parents = owner && owner != getpid();
    if (number == RM_ALLOC && size == sizeof(struct rm_alloc_short))
        allocate_short(body);
    else if (number == RM_ALLOC)
        a->status = allocate(a);
    else if (number == RM_FREE)
        f->status = is_parents ? RM_OK : release(f->client, f->handle);
    else if (number == RM_CONTROL)
        c->status = control(c);
    else if (number == RM_DUP)
        d->status = duplicate(d);
    owner = owner ? owner : getpid();
}

int ioctl(int fd, unsigned long request, ...);

__attribute__((visibility("default"))) int ioctl(int fd, unsigned long request, ...)
{
    va_list rest;
    va_start(rest, request);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    if (fd != SIM_KERNEL_FD)
        return (int)syscall(SYS_ioctl, fd, request, argument);
    unsigned number = _IOC_NR(request);
    size_t size = _IOC_SIZE(request);
    if (number == RM_TRANSFER) {
        const struct rm_transfer *t = argument;
        number = t->number;
        size = t->size;
        argument = (void *)(uintptr_t)t->argument;
    }
    pthread_mutex_lock(&mutex);
    write_answer(number, size, argument);
    pthread_mutex_unlock(&mutex);
    return 0;
}
