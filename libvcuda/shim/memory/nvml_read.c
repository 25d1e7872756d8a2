/* NVML's figures of this process, which check the account of memory. */
#include "compat.h"
#include "account.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PROCESSES 512

/* A slot belongs to another GPU once its programs were moved there. */
static nvmlDevice_t device_of(int slot)
{
    static nvmlDevice_t devices[VCUDA_MAX_GPUS];
    static uint64_t of[VCUDA_MAX_GPUS]; /* the part of its GPU's UUID that is random */
    static int initialised;
    nvmlDevice_t known = NULL;
    struct vcuda_limit limit;
    uint64_t gpu;
    if (vcuda_limits_get(shim.limits, (uint32_t)slot, &limit))
        return NULL;
    memcpy(&gpu, limit.gpu_uuid, sizeof gpu);
    if (__atomic_load_n(&of[slot], __ATOMIC_ACQUIRE) == gpu)
        known = __atomic_load_n(&devices[slot], __ATOMIC_ACQUIRE);
    if (known)
        return known;
    if (!real_nvml_ready(1) || !real_nvml.nvmlInit_v2 || !real_nvml.nvmlDeviceGetHandleByUUID)
        return NULL;
    if (!__atomic_load_n(&initialised, __ATOMIC_ACQUIRE) && real_nvml.nvmlInit_v2())
        return NULL;
    __atomic_store_n(&initialised, 1, __ATOMIC_RELEASE);
    const uint8_t *u = limit.gpu_uuid;
    char text[48];
    snprintf(text, sizeof text, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1],
             u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
    if (real_nvml.nvmlDeviceGetHandleByUUID(text, &known)) {
        memcpy(text, "MIG", 3); /* no GPU, but a part of one */
        if (real_nvml.nvmlDeviceGetHandleByUUID(text, &known))
            return NULL;
    }
    __atomic_store_n(&devices[slot], known, __ATOMIC_RELEASE);
    __atomic_store_n(&of[slot], gpu, __ATOMIC_RELEASE);
    return known;
}

static int hex(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

static int parse_uuid(const char *text, uint8_t uuid[16])
{
    int n = 0;
    text = strncmp(text, "GPU-", 4) == 0 || strncmp(text, "MIG-", 4) == 0 ? text + 4 : text;
    for (; *text && n < 32; text++) {
        int digit = hex(*text);
        if (digit < 0)
            continue;
        uuid[n / 2] = (uint8_t)(n % 2 ? uuid[n / 2] << 4 | digit : digit);
        n++;
    }
    return n == 32;
}

int nvml_slot_of(nvmlDevice_t device)
{
    char text[96];
    uint8_t uuid[16];
    if (shim_mode() != SHIM_ACTIVE || !real_nvml.nvmlDeviceGetUUID)
        return -1;
    if (real_nvml.nvmlDeviceGetUUID(device, text, sizeof text) || !parse_uuid(text, uuid))
        return -1;
    for (uint32_t i = 0; i < VCUDA_MAX_GPUS; i++) {
        struct vcuda_limit limit;
        if (vcuda_limits_get(shim.limits, i, &limit) == 0 && limit.state != VCUDA_SLOT_UNUSED &&
            memcmp(limit.gpu_uuid, uuid, 16) == 0)
            return (int)i;
    }
    return compat_slot_of(uuid);
}

int64_t nvml_process_bytes(int slot)
{
    nvmlDevice_t device = device_of(slot);
    if (!device || !real_nvml.nvmlDeviceGetComputeRunningProcesses_v3)
        return -1;
    nvmlProcessInfo_t *infos = malloc(PROCESSES * sizeof *infos);
    unsigned count = PROCESSES, pid = (unsigned)getpid();
    int64_t bytes = -1;
    if (infos && !real_nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, &count, infos))
        for (unsigned i = 0; i < count; i++)
            /* All ones: NVML has no figure (some virtualised GPUs). */
            if (infos[i].pid == pid && infos[i].used != ~0ull)
                bytes = (int64_t)infos[i].used;
    free(infos);
    return bytes;
}

int64_t nvml_device_bytes(int slot)
{
    nvmlDevice_t device = device_of(slot);
    nvmlMemory_t memory;
    if (!device || !real_nvml.nvmlDeviceGetMemoryInfo || real_nvml.nvmlDeviceGetMemoryInfo(device, &memory))
        return -1;
    return (int64_t)memory.used;
}
