/* Devices: what CUDA_VISIBLE_DEVICES leaves of the node's GPUs. */
#include "faults.h"
#include "mig.h"
#include "mps.h"
#include "pages.h"
#include "process.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <unistd.h>

pthread_mutex_t sim_process_mutex = PTHREAD_MUTEX_INITIALIZER;

static struct sim_device devices[SIM_MAX_GPUS];
static int device_count;
/* A page that the kernel empties in a forked child, however that is made: set once cuInit was called in this process. */
static volatile char *initialised_here;

static void add_device(struct sim_node *node, uint32_t index)
{
    uint32_t physical = (uint32_t)(sim_mig_parent(node, &node->gpu[index]) - node->gpu);
    if (sim_process_sees(node) & 1u << physical)
        devices[device_count++] = (struct sim_device){.gpu = &node->gpu[index], .index = index, .began_at = index};
}

/* As a moved process finds its GPUs: the same devices, on other cards. */
void sim_devices_follow(void)
{
    static uint32_t followed;
    uint32_t moves = sim_process_moves();
    if (__builtin_expect(__atomic_load_n(&followed, __ATOMIC_ACQUIRE) == moves, 1))
        return;
    struct sim_node *node = sim_node_open(NULL);
    pthread_mutex_lock(&sim_process_mutex);
    for (int i = 0; node && i < device_count; i++) {
        struct sim_device *d = &devices[i];
        d->index = sim_process_at(d->began_at);
        d->gpu = &node->gpu[d->index];
        if (!d->client)
            continue;
        sim_lock(d->gpu);
        d->client = sim_client_take(d->gpu);
        if (d->client)
            sim_find_groups(d->client->group);
        sim_unlock(d->gpu);
    }
    __atomic_store_n(&followed, moves, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&sim_process_mutex);
}

/* Programs can use it: a GPU that is not in MIG mode, or an instance that has its compute instance. */
static int is_usable(const struct sim_node *node, uint32_t index)
{
    const struct sim_mig *mig = &node->gpu[index].mig;
    return index < node->gpus ? !mig->mode : mig->in_use && mig->compute;
}

static int find_gpu(const struct sim_node *node, const char *word, size_t length)
{
    if (length && isdigit((unsigned char)*word)) {
        unsigned long index = strtoul(word, NULL, 10);
        return index < node->gpus && is_usable(node, (uint32_t)index) ? (int)index : -1;
    }
    for (uint32_t i = 0; i < SIM_MAX_GPUS && length > 4; i++) {
        char text[48];
        sim_uuid_text(&node->gpu[i], text);
        if (is_usable(node, i) && strncasecmp(text, word, length) == 0)
            return (int)i;
    }
    return -1;
}

/* Without a list: all GPUs that are not in MIG mode, else the first MIG device. */
static void find_all(struct sim_node *node)
{
    for (uint32_t i = 0; i < SIM_MAX_GPUS && (i < node->gpus || !device_count); i++)
        if (is_usable(node, i))
            add_device(node, i);
}

/* As the real driver reads it: the list ends at the first word that names no GPU, and a process has one MIG device. */
static void find_devices(struct sim_node *node)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    device_count = 0;
    if (!visible)
        find_all(node);
    while (visible && *visible && device_count < SIM_MAX_GPUS) {
        size_t length = strcspn(visible, ",");
        int index = find_gpu(node, visible, length);
        if (index < 0)
            return;
        add_device(node, (uint32_t)index);
        if (sim_is_instance(node, &node->gpu[index]))
            return;
        visible += length + (visible[length] == ',');
    }
}

/* What this process held before an exec ended with that. */
static void clear_predecessor(struct sim_node *node)
{
    uint64_t pidns = pages_pidns();
    for (uint32_t i = 0; i < SIM_MAX_GPUS; i++) {
        struct sim_gpu *gpu = &node->gpu[i];
        if (i >= node->gpus && !gpu->mig.in_use)
            continue;
        sim_lock(gpu);
        for (int c = 0; c < SIM_MAX_CLIENTS; c++)
            if (gpu->client[c].pid == (uint32_t)getpid() && gpu->client[c].pidns == pidns)
                memset(&gpu->client[c], 0, sizeof gpu->client[c]);
        sim_unlock(gpu);
    }
}

static volatile char *mark_process(void)
{
    size_t size = (size_t)sysconf(_SC_PAGESIZE);
    char *page = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        return NULL;
    madvise(page, size, MADV_WIPEONFORK);
    *page = 1;
    return page;
}

CUresult cuInit(unsigned flags)
{
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (initialised_here)
        return sim_ready();
    struct sim_node *node = sim_node_open(NULL);
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&sim_process_mutex);
    if (node && !initialised_here) {
        clear_predecessor(node);
        find_devices(node);
        sim_open_kernel();
    }
    if (device_count && !initialised_here) {
        sim_process_register(node);
        result = sim_mps_connect();
        if (!result)
            initialised_here = mark_process();
    }
    pthread_mutex_unlock(&sim_process_mutex);
    return device_count ? result : CUDA_ERROR_NO_DEVICE;
}

CUresult sim_ready(void)
{
    volatile char *here = __atomic_load_n(&initialised_here, __ATOMIC_ACQUIRE);
    return here && *here ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

int sim_is_orphan(void)
{
    volatile char *here = __atomic_load_n(&initialised_here, __ATOMIC_ACQUIRE);
    return here && !*here;
}

struct sim_device *sim_device(CUdevice device)
{
    return device >= 0 && device < device_count ? &devices[device] : NULL;
}

CUresult cuDriverGetVersion(int *version)
{
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    *version = sim_driver_version();
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count)
{
    CUresult ready = sim_ready();
    if (!ready)
        *count = device_count;
    return ready;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    CUresult ready = sim_ready();
    if (ready)
        return ready;
    if (!sim_device(ordinal))
        return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int length, CUdevice device)
{
    struct sim_device *d = sim_device(device);
    if (!d || length < 1)
        return CUDA_ERROR_INVALID_DEVICE;
    snprintf(name, (size_t)length, "%s", d->gpu->name);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    struct sim_device *d = sim_device(device);
    if (!d)
        return CUDA_ERROR_INVALID_DEVICE;
    memcpy(uuid->bytes, d->gpu->uuid, 16);
    return CUDA_SUCCESS;
}

/* The first version names the GPU that a MIG instance is a part of. */
CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    CUresult result = cuDeviceGetUuid_v2(uuid, device);
    struct sim_gpu *gpu = result ? NULL : sim_device(device)->gpu;
    if (gpu && sim_is_mig())
        uuid->bytes[0] ^= 0xff;
    else if (gpu && gpu->mig.in_use)
        memcpy(uuid->bytes, sim_mig_parent(sim_node_open(NULL), gpu)->uuid, 16);
    return result;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    struct sim_device *d = sim_device(device);
    if (!d)
        return CUDA_ERROR_INVALID_DEVICE;
    *bytes = d->gpu->memory_bytes;
    return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(unsigned *bytes, CUdevice device)
{
    size_t whole;
    CUresult result = cuDeviceTotalMem_v2(&whole, device);
    if (!result)
        *bytes = whole > UINT32_MAX ? UINT32_MAX : (unsigned)whole;
    return result;
}

static int multiprocessors_of(const struct sim_gpu *gpu)
{
    const struct sim_mig_profile *profile = gpu->mig.in_use ? sim_mig_profile_of(gpu) : NULL;
    return profile ? (int)profile->multiprocessors : 64;
}

/* Attributes by number: 16 multiprocessors, 39 threads on each, 75/76 capability, 10 warp, 1 threads per block, 115 pools,
 * 133 MPS; else 1. */
CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
    if (!sim_device(device))
        return CUDA_ERROR_INVALID_DEVICE;
    switch (attribute) {
    case 1:
        *value = 1024;
        break;
    case 10:
        *value = 32;
        break;
    case CU_ATTRIBUTE_MULTIPROCESSORS:
        *value = multiprocessors_of(sim_device(device)->gpu);
        break;
    case CU_ATTRIBUTE_THREADS_PER_MULTIPROCESSOR:
        *value = 2048;
        break;
    case 75:
        *value = 8;
        break;
    case 76:
        *value = 0;
        break;
    case CU_ATTRIBUTE_MPS_ENABLED:
        *value = sim_mps_is_client();
        break;
    default:
        *value = 1;
        break;
    }
    return CUDA_SUCCESS;
}

CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device)
{
    *major = 8;
    *minor = 0;
    return sim_device(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetPCIBusId(char *id, int length, CUdevice device)
{
    struct sim_device *d = sim_device(device);
    if (!d || length < 13)
        return CUDA_ERROR_INVALID_VALUE;
    unsigned index = d->gpu->mig.in_use ? d->gpu->mig.parent : d->index;
    snprintf(id, (size_t)length, "0000:%02X:00.0", 0x10 + index);
    return CUDA_SUCCESS;
}
