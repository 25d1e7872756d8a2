/* Where the simulated driver's device memory comes from: the virtual node, directly, or where the simulated kernel is there
 * (simkernel.h) from that, by ioctl, as one object for each piece of memory.
 */
#include "simkernel.h"
#include "nvidia_rm.h"
#include "physical.h"
#include "process.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define CLIENT_HANDLE 0
#define DEVICE_HANDLE 0x5c000000u
#define SUBDEVICE_HANDLE 0x5d000000u

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static uint32_t client;
static uint32_t next_handle = 0x5e000000u;

static struct piece {
    uint32_t handle;
    struct sim_device *device;
    uint64_t bytes;
    struct piece *next;
} * pieces;

static int has_kernel(void)
{
    static int known; /* 1 no, 2 yes */
    if (!known)
        known = dlsym(RTLD_DEFAULT, SIM_KERNEL_PRESENT) ? 2 : 1;
    return known == 2;
}

static int is_short(void)
{
    return getenv("GPUCLOUD_SIM_KERNEL_SHORT") != NULL;
}

static int call(unsigned number, size_t size, void *body)
{
    struct rm_transfer t = {number, (uint32_t)size, (uint64_t)(uintptr_t)body};
    if (is_short())
        return ioctl(SIM_KERNEL_FD, _IOWR(RM_IOCTL_TYPE, RM_TRANSFER, struct rm_transfer), &t);
    return ioctl(SIM_KERNEL_FD, _IOC(_IOC_READ | _IOC_WRITE, RM_IOCTL_TYPE, number, size), body);
}

static uint32_t allocate(uint32_t parent, uint32_t *handle, uint32_t class, void *params, uint32_t size)
{
    struct rm_alloc_short part = {client, parent, *handle, class, (uint64_t)(uintptr_t)params, size, 0};
    struct rm_alloc whole = {client, parent, *handle, class, (uint64_t)(uintptr_t)params, 0, size, 0, 0, 0};
    int failed = is_short() ? call(RM_ALLOC, sizeof part, &part) : call(RM_ALLOC, sizeof whole, &whole);
    *handle = is_short() ? part.handle : whole.handle;
    uint32_t status = is_short() ? part.status : whole.status;
    return failed ? RM_NOT_SUPPORTED : status;
}

/* As libcuda does it when it starts: a client, its devices, and their UUIDs. */
void sim_open_kernel(void)
{
    if (!has_kernel() || client)
        return;
    uint32_t made = CLIENT_HANDLE;
    allocate(0, &made, RM_CLASS_ROOT, NULL, 0);
    client = made;
    for (int i = 0; sim_device(i); i++) {
        uint32_t id[14] = {sim_device(i)->index}, device = DEVICE_HANDLE + id[0], part = SUBDEVICE_HANDLE + id[0],
                 of = 0;
        allocate(client, &device, RM_CLASS_DEVICE, id, sizeof id);
        allocate(device, &part, RM_CLASS_SUBDEVICE, &of, sizeof of);
        struct rm_gid gid = {.flags = RM_GID_BINARY};
        struct rm_control control = {client, part, RM_GET_GID, 0, (uint64_t)(uintptr_t)&gid, sizeof gid, 0};
        call(RM_CONTROL, sizeof control, &control);
    }
}

/* Locked. */
static int take_piece(struct sim_device *device, uint64_t bytes)
{
    struct piece *piece = malloc(sizeof *piece);
    struct rm_memory params = {.owner = client, .size = bytes};
    if (!piece)
        return 0;
    *piece = (struct piece){next_handle++, device, bytes, pieces};
    if (allocate(DEVICE_HANDLE + device->index, &piece->handle, RM_CLASS_MEMORY_LOCAL, &params, sizeof params)) {
        free(piece);
        return 0;
    }
    pieces = piece;
    return 1;
}

static void free_piece(struct piece **at)
{
    struct piece *piece = *at;
    struct rm_free request = {client, DEVICE_HANDLE + piece->device->index, piece->handle, 0};
    *at = piece->next;
    call(RM_FREE, sizeof request, &request);
    free(piece);
}

/* Locked. The piece of exactly so many bytes, else the largest smaller one, else the smallest. */
static struct piece **choose(const struct sim_device *device, uint64_t bytes)
{
    struct piece **below = NULL, **above = NULL;
    for (struct piece **at = &pieces; *at; at = &(*at)->next) {
        uint64_t size = (*at)->bytes;
        if ((*at)->device != device)
            continue;
        if (size == bytes)
            return at;
        if (size < bytes && (!below || size > (*below)->bytes))
            below = at;
        if (size > bytes && (!above || size < (*above)->bytes))
            above = at;
    }
    return below ? below : above;
}

/* Locked. Where no pieces add up to it, one is given back whole and what was too much taken anew. */
static void give_pieces(struct sim_device *device, uint64_t bytes)
{
    while (bytes) {
        struct piece **at = choose(device, bytes);
        if (!at)
            return;
        uint64_t size = (*at)->bytes;
        free_piece(at);
        if (size > bytes)
            take_piece(device, size - bytes);
        bytes -= size < bytes ? size : bytes;
    }
}

static int charge_kernel(struct sim_device *device, int64_t bytes)
{
    int taken = 1;
    pthread_mutex_lock(&mutex);
    if (bytes > 0)
        taken = take_piece(device, (uint64_t)bytes);
    else
        give_pieces(device, (uint64_t)-bytes);
    pthread_mutex_unlock(&mutex);
    return taken;
}

static int has_client(struct sim_device *device)
{
    if (!device->client) {
        sim_lock(device->gpu);
        device->client = sim_client_take(device->gpu);
        sim_unlock(device->gpu);
    }
    return device->client != NULL;
}

CUresult sim_charge(struct sim_device *device, int64_t bytes)
{
    if (!has_client(device))
        return CUDA_ERROR_OUT_OF_MEMORY;
    int taken = has_kernel() ? charge_kernel(device, bytes) : sim_memory_take(device->gpu, bytes);
    return taken ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* ---- Physical memory: an object of its own, as a descriptor is of one ---- */

CUresult sim_physical_take(struct physical *p)
{
    struct rm_memory params = {.owner = client, .size = p->bytes};
    if (!has_kernel())
        return sim_charge(p->device, (int64_t)p->bytes);
    if (!has_client(p->device))
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&mutex);
    uint32_t handle = next_handle++;
    uint32_t status =
        allocate(DEVICE_HANDLE + p->device->index, &handle, RM_CLASS_MEMORY_LOCAL, &params, sizeof params);
    pthread_mutex_unlock(&mutex);
    p->object = status ? 0 : handle;
    return status ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult sim_physical_free(const struct physical *p)
{
    struct rm_free request = {client, DEVICE_HANDLE + p->device->index, p->object, 0};
    if (!p->object)
        return sim_charge(p->device, -(int64_t)p->bytes);
    return call(RM_FREE, sizeof request, &request) ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

static uint32_t control(uint32_t command, void *params, uint32_t size)
{
    struct rm_control c = {client, client, command, 0, (uint64_t)(uintptr_t)params, size, 0};
    return call(RM_CONTROL, sizeof c, &c) ? RM_NOT_SUPPORTED : c.status;
}

uint32_t sim_physical_export(const struct physical *p, int fd)
{
    uint32_t device = DEVICE_HANDLE + p->device->index;
    struct rm_export one = {1, device, device, p->object, fd, 0};
    struct rm_export_many many = {.fd = fd, .device = device, .max_objects = 1, .objects = {p->object}, .count = 1};
    return is_short() ? control(RM_EXPORT_OBJECT, &one, sizeof one) : control(RM_EXPORT_OBJECTS, &many, sizeof many);
}

uint32_t sim_physical_import(struct physical *p, int fd)
{
    uint32_t device = DEVICE_HANDLE + p->device->index;
    struct rm_import one = {fd, 1, device, device, 0};
    struct rm_import_many many = {.fd = fd, .parent = device, .count = 1};
    uint32_t status = !has_kernel() || !has_client(p->device) ? RM_NOT_SUPPORTED
                      : is_short()                            ? control(RM_IMPORT_OBJECT, &one, sizeof one)
                                                              : control(RM_IMPORT_OBJECTS, &many, sizeof many);
    p->object = is_short() ? one.object : many.objects[0];
    return status;
}
