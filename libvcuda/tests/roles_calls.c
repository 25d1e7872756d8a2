/* A role that makes the kernel driver's calls itself, on the simulated kernel: every form of them, and what a program may
 * do with handles. It reads its own account in the claim's page. */
#include "nvidia_rm.h"
#include "simkernel.h"
#include "steps.h"
#include "tenant.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define DEVICE 0x100u
#define PART 0x101u

static uint32_t client;
static struct vcuda_usage *page;

static double own(void)
{
    struct vcuda_process_info infos[VCUDA_MAX_PROCESSES];
    struct vcuda_gpu_usage usage;
    int count = vcuda_usage_processes(page, infos, VCUDA_MAX_PROCESSES);
    for (int i = 0; i < count; i++)
        if (infos[i].pid == (uint32_t)getpid() && !vcuda_usage_process_gpu(page, infos[i].slot, 0, &usage))
            return (double)usage.memory_bytes / MIB;
    return 0;
}

typedef int ioctl_function(int fd, unsigned long request, ...);
static ioctl_function *enter = ioctl;

#define CALL(number, body) enter(SIM_KERNEL_FD, _IOWR(RM_IOCTL_TYPE, number, __typeof__(body)), &(body))

static uint32_t allocate(uint32_t parent, uint32_t handle, uint32_t class, void *params, uint32_t size)
{
    struct rm_alloc a = {client, parent, handle, class, (uint64_t)(uintptr_t)params, 0, size, 0, 99, 0};
    if (CALL(RM_ALLOC, a))
        return 98;
    if (class == RM_CLASS_ROOT)
        client = a.handle;
    return a.status;
}

static uint32_t memory(uint32_t parent, uint32_t handle, uint64_t mib, uint32_t params_size)
{
    struct rm_memory m = {.size = mib * MIB};
    return allocate(parent, handle, RM_CLASS_MEMORY_LOCAL, &m, params_size);
}

static uint32_t release(uint32_t handle)
{
    struct rm_free f = {client, DEVICE, handle, 99};
    return CALL(RM_FREE, f) ? 98 : f.status;
}

/* A client with a device, whose UUID is asked for. */
static void open_device(void)
{
    uint32_t id[14] = {0};
    struct rm_gid gid = {.flags = RM_GID_BINARY};
    allocate(0, 0, RM_CLASS_ROOT, NULL, 0);
    allocate(client, DEVICE, RM_CLASS_DEVICE, id, sizeof id);
    allocate(DEVICE, PART, RM_CLASS_SUBDEVICE, id, 4);
    struct rm_control c = {client, PART, RM_GET_GID, 0, (uint64_t)(uintptr_t)&gid, sizeof gid, 0};
    CALL(RM_CONTROL, c);
}

static void forms(void)
{
    struct rm_memory m = {.size = 32 * MIB};
    struct rm_alloc_short s = {client, DEVICE, 2, RM_CLASS_MEMORY_LOCAL, (uint64_t)(uintptr_t)&m, sizeof m, 99};
    say("long_status", memory(DEVICE, 1, 64, sizeof m));
    say("long", own());
    CALL(RM_ALLOC, s);
    say("short", own());
    s.handle = 3;
    struct rm_transfer t = {RM_ALLOC, sizeof s, (uint64_t)(uintptr_t)&s};
    CALL(RM_TRANSFER, t);
    say("wrapped", own());
    memory(DEVICE, 4, 8, 72);
    memory(PART, 5, 8, 0);
    say("sizes", own());
    memory(DEVICE, 6, 8, 40);
    say("too_short", own());
    struct rm_memory host = {.size = 32 * MIB, .attributes = RM_LOCATION_HOST << 25};
    allocate(DEVICE, 7, RM_CLASS_MEMORY_LOCAL, &host, sizeof host);
    say("host", own());
    for (uint32_t handle = 1; handle < 8; handle++)
        release(handle);
    say("released", own());
}

static void handles(void)
{
    memory(DEVICE, 1, 64, 0);
    struct rm_dup d = {client, DEVICE, 2, client, 1, 0, 99};
    CALL(RM_DUP, d);
    say("dup", own());
    release(1);
    say("first_gone", own());
    say("twice", release(1));
    release(2);
    say("both_gone", own());
    uint32_t first = client;
    open_device();
    memory(DEVICE, 1, 16, 0);
    memory(PART, 2, 16, 0);
    say("second_client", own());
    release(DEVICE);
    say("device_gone", own());
    client = first;
    struct rm_free whole = {first, 0, first, 99};
    memory(DEVICE, 1, 16, 0);
    CALL(RM_FREE, whole);
    say("client_gone", own());
}

static void refusals(void)
{
    open_device();
    errno = 77;
    say("over", memory(DEVICE, 1, 1 << 20, 0));
    say("errno", errno);
    say("after_over", own());
    say("other_ioctl", ioctl(0, TIOCGWINSZ, NULL) < 0 && errno != 77);
    memory(DEVICE, 1, 16, 0);
    pid_t child = fork();
    if (child == 0) {
        release(1);
        _exit(0);
    }
    waitpid(child, NULL, 0);
    say("child_freed", own());
    int (*open_kernel)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, SIM_KERNEL_OPEN);
    struct rm_export e = {1, DEVICE, DEVICE, 1, open_kernel(), 0};
    struct rm_control c = {client, client, RM_EXPORT_OBJECT, 0, (uint64_t)(uintptr_t)&e, sizeof e, 99};
    CALL(RM_CONTROL, c);
    release(1);
    say("exported", own());
    close(e.fd);
    /* It fits only once the library has looked. */
    if (!memory(DEVICE, 2, 4090, 0) && !release(2))
        say("closed", own());
}

/* Memory of `mib`: the status, and what is charged then. */
static void one(uint64_t mib)
{
    say("status", memory(DEVICE, 1, mib, 0));
    say("charged", own());
}

/* Memory that passes the library by: the kernel is entered without it. */
static int hidden(void)
{
    Dl_info info;
    struct tenant tenant;
    if (tenant_begin(&tenant) || !dladdr(dlsym(RTLD_DEFAULT, SIM_KERNEL_PRESENT), &info))
        return 1;
    step("begun");
    enter = (ioctl_function *)dlsym(dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD), "ioctl");
    open_device();
    memory(DEVICE, 1, 96, 0);
    step("taken");
    release(1);
    step("given");
    return 0;
}

int role_calls(int argc, char **argv)
{
    char path[400];
    if (argc == 1 && !strcmp(argv[0], "hidden"))
        return hidden();
    if (argc < 1 || strcmp(argv[0], "calls"))
        return -1;
    snprintf(path, sizeof path, "%s/" VCUDA_USAGE_FILE, getenv(VCUDA_CLAIM_DIR_ENV));
    if (vcuda_usage_open(path, 0, &page))
        return 1;
    open_device();
    if (argc > 1) {
        one(strtoull(argv[1], NULL, 10));
        step("one");
        return 0;
    }
    forms();
    handles();
    refusals();
    return 0;
}
