/* Handles of the kernel driver: a hash table of the few kinds that accounting needs.
 *
 * One mutex, never held across a call into the kernel. The kernel itself serialises these calls behind a lock of its
 * own, so the mutex costs threads nothing. */
#include "kernel.h"

#include "shares.h"
#include "account.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define DEVICE_IDS 64

struct object {
    uint32_t client, handle, parent, device; /* `device`: the handle of the device above it, or its own */
    uint32_t device_id;                      /* devices only */
    struct memory *memory;                   /* memory only */
    struct object *next;
};

pthread_mutex_t objects_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct object **buckets;
static size_t capacity, count; /* capacity: a power of two */

/* The GPU of each device number: learnt from the first client that asked, and valid as long as the machine runs. */
static struct {
    int known;
    uint8_t uuid[16];
} gpus[DEVICE_IDS];

static size_t bucket_of(uint32_t client, uint32_t handle, size_t size)
{
    return (size_t)(((uint64_t)client << 32 | handle) * 0x9e3779b97f4a7c15ull >> 32) & (size - 1);
}

static struct object *find(uint32_t client, uint32_t handle)
{
    struct object *o = capacity ? buckets[bucket_of(client, handle, capacity)] : NULL;
    while (o && (o->client != client || o->handle != handle))
        o = o->next;
    return o;
}

static int grow(void)
{
    size_t size = capacity ? capacity * 2 : 256;
    struct object **wider = calloc(size, sizeof(struct object *));
    if (!wider)
        return capacity != 0; /* longer chains still find everything */
    for (size_t i = 0; i < capacity; i++)
        for (struct object *o = buckets[i], *next; o; o = next) {
            struct object **head = &wider[bucket_of(o->client, o->handle, size)];
            next = o->next;
            o->next = *head;
            *head = o;
        }
    free(buckets);
    buckets = wider;
    capacity = size;
    return 1;
}

static void link_in(struct object *o)
{
    struct object **head = &buckets[bucket_of(o->client, o->handle, capacity)];
    o->next = *head;
    *head = o;
    count++;
}

/* Locked. An older object of the same handle was freed unseen (its client's file was closed, say): it is replaced. */
static struct object *add(uint32_t client, uint32_t handle, uint32_t parent, uint32_t device)
{
    struct object *o = find(client, handle);
    if (!o && (count < capacity || grow()) && (o = calloc(1, sizeof *o))) {
        o->client = client;
        o->handle = handle;
        link_in(o);
    }
    if (o) {
        shares_drop(o->memory);
        o->memory = NULL;
        o->parent = parent;
        o->device = device;
    }
    return o;
}

/* Locked. */
static uint32_t device_above(uint32_t client, uint32_t parent)
{
    struct object *o = find(client, parent);
    return o ? o->device : 0;
}

void objects_add_device(uint32_t client, uint32_t handle, uint32_t device_id)
{
    pthread_mutex_lock(&objects_mutex);
    struct object *o = add(client, handle, client, handle);
    if (o)
        o->device_id = device_id;
    pthread_mutex_unlock(&objects_mutex);
}

void objects_add_subdevice(uint32_t client, uint32_t handle, uint32_t device)
{
    pthread_mutex_lock(&objects_mutex);
    add(client, handle, device, device);
    pthread_mutex_unlock(&objects_mutex);
}

void objects_set_uuid(uint32_t client, uint32_t subdevice, const uint8_t uuid[16])
{
    pthread_mutex_lock(&objects_mutex);
    struct object *device = find(client, device_above(client, subdevice));
    if (device && device->device_id < DEVICE_IDS) {
        memcpy(gpus[device->device_id].uuid, uuid, 16);
        gpus[device->device_id].known = 1;
    }
    pthread_mutex_unlock(&objects_mutex);
}

/* Locked. */
static int is_known(const uint8_t uuid[16])
{
    for (int i = 0; i < DEVICE_IDS; i++)
        if (gpus[i].known && !memcmp(gpus[i].uuid, uuid, 16))
            return 1;
    return 0;
}

int objects_know_uuid(const uint8_t uuid[16])
{
    pthread_mutex_lock(&objects_mutex);
    int known = is_known(uuid);
    pthread_mutex_unlock(&objects_mutex);
    return known;
}

int objects_know_any(void)
{
    int any = 0;
    pthread_mutex_lock(&objects_mutex);
    for (int i = 0; i < DEVICE_IDS; i++)
        any |= gpus[i].known;
    pthread_mutex_unlock(&objects_mutex);
    return any;
}

/* Locked. Return the slot of a GPU. If a claim's only slot has a UUID that is no GPU's own, it names a MIG device: the
 * kernel returns the UUID of the whole GPU, and the process sees only that device. */
static int slot_of_uuid(const uint8_t uuid[16])
{
    int used = 0, only = OBJECTS_OUTSIDE;
    for (uint32_t i = 0; i < VCUDA_MAX_GPUS; i++) {
        struct vcuda_limit limit;
        if (vcuda_limits_get(shim.limits, i, &limit) != 0 || limit.state == VCUDA_SLOT_UNUSED)
            continue;
        if (!memcmp(limit.gpu_uuid, uuid, 16))
            return (int)i;
        used++;
        only = is_known(limit.gpu_uuid) ? OBJECTS_OUTSIDE : (int)i;
    }
    return used == 1 ? only : OBJECTS_OUTSIDE;
}

int objects_slot(uint32_t client, uint32_t parent)
{
    int slot = OBJECTS_UNKNOWN;
    pthread_mutex_lock(&objects_mutex);
    struct object *device = find(client, device_above(client, parent));
    if (device && device->device_id < DEVICE_IDS && gpus[device->device_id].known)
        slot = slot_of_uuid(gpus[device->device_id].uuid);
    pthread_mutex_unlock(&objects_mutex);
    return slot;
}

void objects_add_memory(uint32_t client, uint32_t handle, uint32_t parent, const struct memory *charged)
{
    struct memory *memory = malloc(sizeof *memory);
    if (!memory)
        return;
    *memory = *charged;
    memory->handles = memory->is_paid = 1;
    memory->kept = -1;
    pthread_mutex_lock(&objects_mutex);
    struct object *o = add(client, handle, parent, device_above(client, parent));
    if (o)
        o->memory = memory;
    pthread_mutex_unlock(&objects_mutex);
    if (!o)
        free(memory);
}

int objects_dup_memory(uint32_t client, uint32_t handle, uint32_t parent, uint32_t source_client, uint32_t source)
{
    pthread_mutex_lock(&objects_mutex);
    struct object *of = find(source_client, source);
    struct memory *memory = of ? of->memory : NULL;
    if (memory) {
        struct object *o = add(client, handle, parent, device_above(client, parent));
        memory->handles++; /* also where it could not be remembered: the charge stays */
        if (o)
            o->memory = memory;
    }
    pthread_mutex_unlock(&objects_mutex);
    return memory != NULL;
}

void objects_export_memory(uint32_t client, uint32_t handle, int fd, uint32_t index)
{
    pthread_mutex_lock(&objects_mutex);
    struct object *o = find(client, handle);
    shares_unexport(fd, index);
    if (o && o->memory)
        shares_export(o->memory, fd, index);
    pthread_mutex_unlock(&objects_mutex);
}

int objects_import_memory(uint32_t client, uint32_t handle, uint32_t parent, uint64_t bytes, int slot, int fd)
{
    struct memory *memory = shares_import(bytes, slot, fd);
    if (!memory)
        return 0;
    pthread_mutex_lock(&objects_mutex);
    struct object *o = add(client, handle, parent, device_above(client, parent));
    if (o)
        o->memory = memory;
    pthread_mutex_unlock(&objects_mutex);
    return 1; /* also where it could not be remembered: the charge stays */
}

static int is_below(const struct object *o, uint32_t client, uint32_t handle)
{
    return o->client == client &&
           (handle == client || o->handle == handle || o->parent == handle || o->device == handle);
}

struct object *objects_take(uint32_t client, uint32_t handle)
{
    struct object *taken = NULL;
    pthread_mutex_lock(&objects_mutex);
    struct object *o = find(client, handle);
    /* Memory has no children; only a device or a whole client is worth a walk through the whole table. */
    size_t first = o && o->memory ? bucket_of(client, handle, capacity) : 0;
    size_t last = o && o->memory ? first + 1 : o || handle == client ? capacity : 0;
    for (size_t i = first; i < last; i++)
        for (struct object **at = &buckets[i]; *at;) {
            o = *at;
            if (!is_below(o, client, handle)) {
                at = &o->next;
                continue;
            }
            *at = o->next;
            o->next = taken;
            taken = o;
            count--;
        }
    pthread_mutex_unlock(&objects_mutex);
    return taken;
}

void objects_put_back(struct object *taken)
{
    pthread_mutex_lock(&objects_mutex);
    for (struct object *next; taken; taken = next) {
        next = taken->next;
        link_in(taken);
    }
    pthread_mutex_unlock(&objects_mutex);
}

void objects_refund(struct object *taken)
{
    int may_linger = 0;
    pthread_mutex_lock(&objects_mutex);
    for (struct object *next; taken; taken = next) {
        next = taken->next;
        may_linger |= shares_drop(taken->memory);
        free(taken);
    }
    pthread_mutex_unlock(&objects_mutex);
    if (may_linger)
        shares_settle();
}

/* In a forked child: another thread of the parent may have held the mutex, and the table may be half-changed: abandon
 * it. */
void objects_forget(void)
{
    pthread_mutex_init(&objects_mutex, NULL);
    buckets = NULL;
    capacity = count = 0;
    shares_forget();
}
