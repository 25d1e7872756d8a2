/* A library to preload behind ours: writes down the calls about memory that reach the kernel driver, and which descriptors of
 * its devices are closed, a line each, into the file that VCUDA_TEST_IOTRACE names. For finding out in what order a driver
 * makes them (the suite's chapter `ioctls`). */
#include "nvidia_rm.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define RM_SHARE 0x35
#define PUBLIC __attribute__((visibility("default")))

typedef int ioctl_function(int fd, unsigned long request, ...);
typedef int close_function(int fd);

int ioctl(int fd, unsigned long request, ...);

static void write_line(const char *format, ...) __attribute__((format(printf, 1, 2)));

static void write_line(const char *format, ...)
{
    char line[512];
    const char *path = getenv("VCUDA_TEST_IOTRACE");
    int saved = errno, fd = path ? open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600) : -1;
    int length = snprintf(line, sizeof line, "        [%d] ", (int)getpid());
    va_list rest;
    va_start(rest, format);
    length += vsnprintf(line + length, sizeof line - (size_t)length - 1, format, rest);
    va_end(rest);
    line[length++] = '\n';
    if (fd < 0 || write(fd, line, (size_t)length) < 0)
        length = 0;
    if (fd >= 0)
        ((close_function *)dlsym(RTLD_NEXT, "close"))(fd);
    errno = saved;
}

/* The file behind a descriptor, where it is the driver's. */
static const char *device_of(int fd, char name[64])
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, name, 63);
    name[n > 0 ? n : 0] = 0;
    return strstr(name, "/dev/nvidia") || strstr(name, ".fd-") ? name : NULL;
}

static void tell_alloc(const struct rm_alloc *a, size_t size)
{
    const struct rm_memory *m = (const void *)(uintptr_t)a->params;
    uint32_t status = size == sizeof *a ? a->status : ((const struct rm_alloc_short *)(const void *)a)->status;
    int is_memory = a->class == RM_CLASS_MEMORY_LOCAL && m;
    write_line("ALLOC client %08x parent %08x handle %08x class %x size %llu MiB status %x", a->client, a->parent,
               a->handle, a->class, is_memory ? (unsigned long long)m->size >> 20 : 0ull, status);
}

static void tell_export(const struct rm_control *c, const void *params)
{
    char name[64];
    const struct rm_export *one = params;
    const struct rm_export_many *many = params;
    const struct rm_import *in = params;
    const struct rm_import_many *ins = params;
    int fd = c->command == RM_EXPORT_OBJECT ? one->fd : *(const int *)params;
    write_line("%s fd %d (%s) of client %08x",
               c->command == RM_EXPORT_OBJECT    ? "EXPORT_OBJECT_TO_FD"
               : c->command == RM_EXPORT_OBJECTS ? "EXPORT_OBJECTS_TO_FD"
               : c->command == RM_IMPORT_OBJECT  ? "IMPORT_OBJECT_FROM_FD"
                                                 : "IMPORT_OBJECTS_FROM_FD",
               fd, device_of(fd, name) ? name : "?", c->client);
    if (c->command == RM_EXPORT_OBJECT)
        write_line("    object %08x flags %x status %x", one->object, one->flags, c->status);
    else if (c->command == RM_EXPORT_OBJECTS)
        write_line("    count %d index %d first %08x of at most %d status %x", many->count, many->index,
                   many->objects[0], many->max_objects, c->status);
    else if (c->command == RM_IMPORT_OBJECT)
        write_line("    parent %08x object %08x status %x", in->parent, in->object, c->status);
    else
        write_line("    parent %08x count %d index %d first %08x type %d params %d status %x", ins->parent, ins->count,
                   ins->index, ins->objects[0], ins->types[0], c->params_size, c->status);
}

static void tell_control(const struct rm_control *c)
{
    const void *params = (const void *)(uintptr_t)c->params;
    uint32_t family = c->command >> 8;
    if (params && (c->command == RM_EXPORT_OBJECT || c->command == RM_EXPORT_OBJECTS ||
                   c->command == RM_IMPORT_OBJECT || c->command == RM_IMPORT_OBJECTS)) {
        tell_export(c, params);
    } else if (c->command == RM_GET_SURFACE_INFO && params && !c->status) {
        const struct rm_surface_query *query = params;
        const struct rm_surface_info *infos = (const void *)(uintptr_t)query->infos;
        write_line("SURFACE_INFO of %08x", c->object);
        for (uint32_t i = 0; i < query->count; i++)
            write_line("    index %u is %u", infos[i].index, infos[i].data);
    } else if (family == 0x3d || family == 0x0d || family == 0x4101 || family == 0x4100) {
        write_line("CONTROL %x of client %08x object %08x params %u status %x", c->command, c->client, c->object,
                   c->params_size, c->status);
    }
}

static void tell(unsigned number, size_t size, const void *body)
{
    const struct rm_free *f = body;
    const struct rm_dup *d = body;
    const uint32_t *words = body;
    if (number == RM_ALLOC)
        tell_alloc(body, size);
    else if (number == RM_FREE)
        write_line("FREE client %08x parent %08x handle %08x status %x", f->client, f->parent, f->handle, f->status);
    else if (number == RM_DUP)
        write_line("DUP client %08x parent %08x handle %08x from client %08x object %08x flags %x status %x", d->client,
                   d->parent, d->handle, d->source_client, d->source, d->flags, d->status);
    else if (number == RM_CONTROL)
        tell_control(body);
    else if (number == RM_SHARE)
        write_line("SHARE client %08x object %08x (%zu bytes)", words[0], words[1], size);
}

PUBLIC int ioctl(int fd, unsigned long request, ...)
{
    va_list rest;
    va_start(rest, request);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    unsigned number = _IOC_NR(request);
    size_t size = _IOC_SIZE(request);
    const void *body = argument;
    int result = ((ioctl_function *)dlsym(RTLD_NEXT, "ioctl"))(fd, request, argument);
    if (_IOC_TYPE(request) != RM_IOCTL_TYPE || result)
        return result;
    if (number == RM_TRANSFER) {
        const struct rm_transfer *t = argument;
        number = t->number;
        size = t->size;
        body = (const void *)(uintptr_t)t->argument;
    }
    tell(number, size, body);
    return result;
}

PUBLIC int close(int fd)
{
    char name[64];
    if (device_of(fd, name))
        write_line("close fd %d (%s)", fd, name);
    return ((close_function *)dlsym(RTLD_NEXT, "close"))(fd);
}
