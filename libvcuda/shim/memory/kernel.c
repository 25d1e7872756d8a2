/* Memory at the kernel's boundary: the second layer of accounting, and the only one if it works.
 *
 * All device memory of a process comes from one kind of ioctl, whatever the program asked for: allocations, pools,
 * graph nodes, stacks, modules, contexts. The sum of these objects' sizes is NVML's figure, to the byte. So the limit
 * is enforced here: bytes are reserved before the kernel is called. If they do not fit, the kernel is not called; the
 * driver gets the kernel's status for no memory, and returns the usual out-of-memory to its program.
 *
 * The layer that accounts is decided once in a process's life (account.c). If calls that look like allocations pass
 * here, on a device whose UUID was seen, it is this one (VCUDA_ACCOUNTING_KERNEL): from then on the hooks above charge
 * only managed memory, which another kernel driver owns. If a context exists without one such call, it is the hooks
 * (VCUDA_ACCOUNTING_CALLS), and then every ioctl passes unchanged.
 *
 * The driver calls this with its locks held: no code here calls the driver or NVML, or waits for this process. */
#include "kernel.h"

#include "nvidia_rm.h"
#include "account.h"
#include "shares.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

int ioctl(int fd, unsigned long request, ...);

static int by_syscall(int fd, unsigned long request, ...)
{
    va_list rest;
    va_start(rest, request);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    return (int)syscall(SYS_ioctl, fd, request, argument);
}

static ioctl_function *next_ioctl(void)
{
    static ioctl_function *next;
    ioctl_function *found = __atomic_load_n(&next, __ATOMIC_RELAXED);
    if (__builtin_expect(found != NULL, 1))
        return found;
    found = (ioctl_function *)dlsym(RTLD_NEXT, "ioctl");
    found = found ? found : by_syscall;
    __atomic_store_n(&next, found, __ATOMIC_RELAXED);
    return found;
}

/* One ioctl of the resource manager. The program's errno is saved while we work. */
struct call {
    int fd, saved_errno;
    unsigned long request;
    void *argument; /* as the kernel gets it */
    unsigned number;
    size_t size;
    void *body; /* the same, or the target of a transfer */
};

static int forward(struct call *c)
{
    errno = c->saved_errno;
    int result = next_ioctl()(c->fd, c->request, c->argument);
    c->saved_errno = errno;
    return result;
}

/* An allocation in either of its two forms. */
struct allocation {
    uint32_t client, parent, class, params_size;
    uint32_t *handle, *status;
    void *params;
};

static int read_allocation(const struct call *c, struct allocation *a)
{
    struct rm_alloc *whole = c->body;
    struct rm_alloc_short *part = c->body;
    if (c->size != sizeof *whole && c->size != sizeof *part)
        return 0;
    int is_whole = c->size == sizeof *whole;
    *a = (struct allocation){.client = whole->client, .parent = whole->parent, .class = whole->class};
    a->params_size = is_whole ? whole->params_size : part->params_size;
    a->handle = &whole->handle;
    a->status = is_whole ? &whole->status : &part->status;
    a->params = (void *)(uintptr_t)whole->params;
    return 1;
}

static int only_slot(void)
{
    int used = 0, only = OBJECTS_UNKNOWN;
    for (uint32_t i = 0; i < VCUDA_MAX_GPUS; i++) {
        struct vcuda_limit limit;
        if (vcuda_limits_get(shim.limits, i, &limit) || limit.state == VCUDA_SLOT_UNUSED)
            continue;
        used++;
        only = (int)i;
    }
    return used == 1 ? only : OBJECTS_UNKNOWN;
}

/* Once the kernel's calls are the account, nothing passes without a charge. */
int kernel_slot_of(uint32_t client, uint32_t parent)
{
    int slot = objects_slot(client, parent);
    if (slot != OBJECTS_UNKNOWN || !account_by_kernel())
        return slot;
    slot = only_slot();
    return slot == OBJECTS_UNKNOWN ? OBJECTS_OUTSIDE : slot;
}

static int refuse(const struct allocation *a)
{
    *a->status = RM_NO_MEMORY;
    return 0;
}

/* The kernel took more than was asked for, and that does not fit: free it again. */
static int give_up(struct call *c, const struct allocation *a)
{
    struct rm_free request = {a->client, a->parent, *a->handle, 0};
    next_ioctl()(c->fd, _IOWR(RM_IOCTL_TYPE, RM_FREE, struct rm_free), &request);
    return refuse(a);
}

/* If the GPU is full, and memory that is promised to this claim is lent: try again while it comes back. */
static int forward_patiently(struct call *c, const struct allocation *a, struct rm_memory *memory, int slot)
{
    struct reclaim reclaim = {0};
    /* Of the parameters of older drivers no more is there. */
    uint8_t asked[offsetof(struct rm_memory, size) + sizeof memory->size];
    memcpy(asked, memory, sizeof asked);
    uint64_t bytes = memory->size;
    uint32_t handle = *a->handle, status = *a->status;
    int result = forward(c);
    while (!result && *a->status == RM_NO_MEMORY && reclaim_wait(slot, bytes, &reclaim)) {
        memcpy(memory, asked, sizeof asked);
        *a->handle = handle;
        *a->status = status;
        result = forward(c);
    }
    reclaim_end(&reclaim);
    return result;
}

static int allocate_charged(struct call *c, const struct allocation *a, struct rm_memory *memory, int slot)
{
    uint64_t bytes = memory->size;
    int movable = account_movable == bytes;
    if (!account_take_kind(slot, bytes, movable))
        return refuse(a);
    int result = forward_patiently(c, a, memory, slot);
    if (result || *a->status != RM_OK) {
        account_refund_kind(slot, bytes, movable);
        return result;
    }
    if (memory->size > bytes && !account_take_kind(slot, memory->size - bytes, movable)) {
        account_refund_kind(slot, bytes, movable);
        return give_up(c, a);
    }
    if (memory->size < bytes)
        account_refund_kind(slot, bytes - memory->size, movable);
    if (movable)
        account_movable = 0;
    objects_add_memory(a->client, *a->handle, a->parent,
                       &(struct memory){.bytes = memory->size, .slot = slot, .is_movable = movable});
    return result;
}

static int allocate_memory(struct call *c, const struct allocation *a)
{
    struct rm_memory *memory = a->params;
    size_t needed = offsetof(struct rm_memory, size) + sizeof memory->size;
    if (!memory || (a->params_size && a->params_size < needed) || !memory->size)
        return forward(c);
    unsigned location = RM_LOCATION(memory->attributes);
    if (location != RM_LOCATION_VIDEO && location != RM_LOCATION_ANY)
        return forward(c);
    int slot = kernel_slot_of(a->client, a->parent);
    if (slot == OBJECTS_UNKNOWN)
        return forward(c);
    if (slot < 0 || !shim_attach())
        return refuse(a);
    if (!account_enter_kernel(slot))
        return forward(c);
    __atomic_fetch_add(&shim.memory_begun, 1, __ATOMIC_SEQ_CST);
    int result = allocate_charged(c, a, memory, slot);
    __atomic_fetch_add(&shim.memory_ended, 1, __ATOMIC_SEQ_CST);
    return result;
}

static int allocate(struct call *c)
{
    struct allocation a;
    if (!read_allocation(c, &a))
        return forward(c);
    if (a.class == RM_CLASS_MEMORY_LOCAL)
        return allocate_memory(c, &a);
    int result = forward(c);
    if (result || *a.status != RM_OK)
        return result;
    if (a.class == RM_CLASS_DEVICE)
        objects_add_device(a.client, *a.handle, a.params ? *(const uint32_t *)a.params : 0);
    else if (a.class == RM_CLASS_SUBDEVICE)
        objects_add_subdevice(a.client, *a.handle, a.parent);
    return result;
}

static int release(struct call *c)
{
    struct rm_free *f = c->body;
    if (c->size != sizeof *f)
        return forward(c);
    struct object *taken = objects_take(f->client, f->handle);
    if (!taken)
        return forward(c);
    __atomic_fetch_add(&shim.memory_begun, 1, __ATOMIC_SEQ_CST);
    int result = forward(c);
    if (result || f->status != RM_OK)
        objects_put_back(taken);
    else
        objects_refund(taken);
    __atomic_fetch_add(&shim.memory_ended, 1, __ATOMIC_SEQ_CST);
    return result;
}

static int control(struct call *c)
{
    struct rm_control *r = c->body;
    int result = forward(c);
    void *params = c->size == sizeof *r ? (void *)(uintptr_t)r->params : NULL;
    if (result || !params || r->status != RM_OK)
        return result;
    const struct rm_gid *gid = params;
    if (r->command == RM_GET_GID && RM_GID_FORMAT(gid->flags) == RM_GID_BINARY && gid->length == 16)
        objects_set_uuid(r->client, r->object, gid->data);
    else
        exports_follow(c->fd, next_ioctl(), r);
    return result;
}

/* Within the process the memory lives until its last handle is freed; memory that came from another process without a
 * descriptor is paid by its maker. */
static int duplicate(struct call *c)
{
    struct rm_dup *d = c->body;
    int result = forward(c);
    if (result || c->size != sizeof *d || d->status != RM_OK)
        return result;
    if (!objects_dup_memory(d->client, d->handle, d->parent, d->source_client, d->source))
        __atomic_store_n(&shim.imported, 1, __ATOMIC_RELAXED);
    return result;
}

static int dispatch(struct call *c)
{
    switch (c->number) {
    case RM_ALLOC:
        return allocate(c);
    case RM_FREE:
        return release(c);
    case RM_CONTROL:
        return control(c);
    case RM_DUP:
        return duplicate(c);
    default:
        return forward(c);
    }
}

static int watched(struct call *c)
{
    c->body = c->argument;
    if (c->number == RM_TRANSFER && c->size == sizeof(struct rm_transfer) && c->argument) {
        const struct rm_transfer *t = c->argument;
        c->number = t->number;
        c->size = t->size;
        c->body = (void *)(uintptr_t)t->argument;
    }
    int ours = c->body && shim_mode() == SHIM_ACTIVE && !account_by_calls();
    int result = ours ? dispatch(c) : forward(c);
    errno = c->saved_errno;
    return result;
}

__attribute__((visibility("default"))) int ioctl(int fd, unsigned long request, ...)
{
    va_list rest;
    va_start(rest, request);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    unsigned number = _IOC_NR(request);
    if (_IOC_TYPE(request) != RM_IOCTL_TYPE || number < RM_FREE)
        return next_ioctl()(fd, request, argument);
    struct call call = {fd, errno, request, argument, number, _IOC_SIZE(request), NULL};
    return watched(&call);
}

int kernel_watches(int slot)
{
    struct vcuda_limit limit;
    if (slot < 0 || vcuda_limits_get(shim.limits, (uint32_t)slot, &limit))
        return 0;
    return objects_know_uuid(limit.gpu_uuid) || (objects_know_any() && only_slot() == slot);
}

void kernel_forget(void)
{
    objects_forget();
    shim.imported = 0;
}
