/* The part of the NVIDIA kernel driver's interface through which device memory is taken and given back: the resource
 * manager's ioctls on /dev/nvidiactl, as the open kernel modules document them (nvos.h, nv_escape.h, cl0080.h, cl2080.h,
 * ctrl0000unix.h, ctrl0041.h, ctrl2080gpu.h). libcuda enters the kernel through libc's `ioctl`, so a preloaded library sees
 * these calls.
 *
 * Every object has a handle, unique within its client (the root), and a parent; freeing an object frees what is below it.
 * A failure is told in `status`, while the ioctl itself returns 0.
 *
 * Memory lives until its last handle is freed, in whichever process. Exporting it to a file descriptor (of a file that the
 * exporter opened for that) makes one more handle, the kernel's own, which goes when the last descriptor of that open file
 * is closed: by close, by the end of a process, in any process that got it by fork, dup or a socket. Importing makes a handle
 * in the importer. NVML shows the memory at the process whose handle is the oldest; where that is the kernel's, at none.
 */
#ifndef NVIDIA_RM_H
#define NVIDIA_RM_H

#include <stddef.h>
#include <stdint.h>

/* ioctl type and numbers; the argument's size stands in the request. */
#define RM_IOCTL_TYPE 'F'
enum { RM_FREE = 0x29, RM_CONTROL = 0x2a, RM_ALLOC = 0x2b, RM_DUP = 0x34, RM_TRANSFER = 211 };
enum { RM_CLASS_MEMORY_LOCAL = 0x40, RM_CLASS_ROOT = 0x41, RM_CLASS_DEVICE = 0x80, RM_CLASS_SUBDEVICE = 0x2080 };
enum {
    RM_OK = 0,
    RM_INSUFFICIENT_RESOURCES = 0x1a,
    RM_INVALID_ARGUMENT = 0x1f,
    RM_INVALID_CLIENT = 0x23,
    RM_INVALID_OBJECT = 0x33,
    RM_NO_MEMORY = 0x51,
    RM_NOT_SUPPORTED = 0x56,
};
enum {
    RM_EXPORT_OBJECT = 0x3d05, /* of a client: struct rm_export */
    RM_IMPORT_OBJECT = 0x3d06,
    RM_EXPORT_OBJECTS = 0x3d0b, /* struct rm_export_many */
    RM_IMPORT_OBJECTS = 0x3d0c,
    RM_GET_GID = 0x2080014a,        /* of a subdevice: struct rm_gid */
    RM_GET_SURFACE_INFO = 0x410110, /* of memory: struct rm_surface_query */
};

struct rm_alloc {
    uint32_t client, parent, handle, class; /* handle 0: the kernel chooses one and writes it here */
    uint64_t params, rights;
    uint32_t params_size, flags, status, reserved; /* params_size 0: as large as the class's parameters are */
};
struct rm_alloc_short { /* the older form */
    uint32_t client, parent, handle, class;
    uint64_t params;
    uint32_t params_size, status;
};
struct rm_free {
    uint32_t client, parent, handle, status;
};
struct rm_control {
    uint32_t client, object, command, flags;
    uint64_t params;
    uint32_t params_size, status;
};
struct rm_dup {
    uint32_t client, parent, handle, source_client, source, flags, status;
};
/* Any of the above, whose size does not go into the request. */
struct rm_transfer {
    uint32_t number, size;
    uint64_t argument;
};

struct rm_memory { /* parameters of the memory classes */
    uint32_t owner, type, flags, width, height;
    int32_t pitch;
    uint32_t attributes, attributes2, format, compression, zcull, reserved0;
    uint64_t range_low, range_high, size, alignment, offset, limit, address;
    uint32_t rest[6];
};
/* Where the memory lies: 0 on the GPU, 3 where it fits, else in the host. */
#define RM_LOCATION(attributes) ((attributes) >> 25 & 3u)
enum { RM_LOCATION_VIDEO = 0, RM_LOCATION_HOST = 1, RM_LOCATION_ANY = 3 };

struct rm_gid {
    uint32_t index, flags, length;
    uint8_t data[256];
};
#define RM_GID_FORMAT(flags) ((flags)&3u)
enum { RM_GID_BINARY = 2 };

struct rm_export {
    uint32_t type, device, parent, object;
    int32_t fd;
    uint32_t flags;
};
struct rm_export_many {
    int32_t fd;
    uint32_t device;
    uint16_t max_objects;
    uint8_t metadata[64];
    uint32_t objects[512];
    uint16_t count, index;
};
/* The kernel chooses handles that are 0, and writes them here. */
struct rm_import {
    int32_t fd;
    uint32_t type, device, parent, object;
};
#define RM_IMPORT_MOST 128
struct rm_import_many {
    int32_t fd;
    uint32_t parent;
    uint32_t objects[RM_IMPORT_MOST];
    uint8_t types[RM_IMPORT_MOST]; /* RM_IMPORTED_NONE: there was nothing at this index */
    uint16_t count, index;
};
enum { RM_IMPORTED_NONE = 0, RM_IMPORTED_VIDEO = 1 };

struct rm_surface_info {
    uint32_t index, data;
};
struct rm_surface_query {
    uint32_t count;
    uint64_t infos; /* struct rm_surface_info, of which `index` is given */
};
enum { RM_SURFACE_SIZE_LOW = 2, RM_SURFACE_SIZE_HIGH = 3, RM_SURFACE_SPACE = 9 };
enum { RM_SPACE_HOST = 1, RM_SPACE_VIDEO = 2 };

_Static_assert(sizeof(struct rm_alloc) == 48 && offsetof(struct rm_alloc, status) == 40, "kernel ABI");
_Static_assert(sizeof(struct rm_alloc_short) == 32 && offsetof(struct rm_alloc_short, status) == 28, "kernel ABI");
_Static_assert(sizeof(struct rm_free) == 16 && sizeof(struct rm_control) == 32, "kernel ABI");
_Static_assert(sizeof(struct rm_dup) == 28 && sizeof(struct rm_transfer) == 16, "kernel ABI");
_Static_assert(sizeof(struct rm_memory) == 128 && offsetof(struct rm_memory, attributes) == 24, "kernel ABI");
_Static_assert(offsetof(struct rm_memory, size) == 64 && offsetof(struct rm_gid, data) == 12, "kernel ABI");
_Static_assert(sizeof(struct rm_export) == 24 && offsetof(struct rm_export_many, objects) == 76, "kernel ABI");
_Static_assert(sizeof(struct rm_import) == 20 && sizeof(struct rm_import_many) == 652, "kernel ABI");
_Static_assert(sizeof(struct rm_surface_query) == 16, "kernel ABI");

#endif
