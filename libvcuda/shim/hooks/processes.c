/* Hooks of the process queries: programs see the claim's own processes, with the figures that its limits are based on.
 *
 * Other tenants' processes are hidden, and a GPU's utilisation is the claim's use of it. Processes of the claim in
 * other pid namespaces have no pid that the caller could use, so they are left out of the lists. */
#include "account.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct own {
    unsigned pid;
    uint64_t bytes;
};

/* List the live processes of the claim that use this GPU; at most VCUDA_MAX_PROCESSES. */
static unsigned own_processes(int slot, struct own *own)
{
    struct vcuda_process_info infos[VCUDA_MAX_PROCESSES];
    uint64_t pidns = pages_pidns();
    unsigned found = 0;
    int saved = errno;
    vcuda_usage_reap_dead(shim.usage);
    errno = saved;
    int count = vcuda_usage_processes(shim.usage, infos, VCUDA_MAX_PROCESSES);
    for (int i = 0; i < count; i++) {
        struct vcuda_gpu_usage used;
        if (infos[i].pidns != pidns || vcuda_usage_process_gpu(shim.usage, infos[i].slot, (uint32_t)slot, &used))
            continue;
        if (used.memory_bytes + used.context_bytes)
            own[found++] = (struct own){infos[i].pid, used.memory_bytes + used.context_bytes};
    }
    return found;
}

static const struct own *find(const struct own *own, unsigned count, unsigned pid)
{
    for (unsigned i = 0; i < count; i++)
        if (own[i].pid == pid)
            return &own[i];
    return NULL;
}

/* Write entry `index` of a list whose entries have `size` bytes: all versions begin with pid and memory. */
static void put(void *infos, unsigned index, size_t size, const struct own *own)
{
    nvmlProcessInfo_t info = {own->pid, own->bytes, 0xffffffffu, 0xffffffffu};
    memcpy((char *)infos + index * size, &info, size < sizeof info ? size : sizeof info);
}

static nvmlReturn_t report_count(unsigned found, unsigned room, unsigned *count)
{
    *count = found;
    return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

static nvmlReturn_t list_own(int slot, unsigned *count, void *infos, size_t size)
{
    struct own own[VCUDA_MAX_PROCESSES];
    unsigned found = own_processes(slot, own), room = infos ? *count : 0;
    for (unsigned i = 0; i < found && i < room; i++)
        put(infos, i, size, &own[i]);
    return report_count(found, room, count);
}

/* Keep the claim's processes of the driver's list. */
static nvmlReturn_t keep_own(int slot, const char *all, unsigned listed, unsigned *count, void *infos, size_t size)
{
    struct own own[VCUDA_MAX_PROCESSES];
    unsigned known = own_processes(slot, own), found = 0, room = infos ? *count : 0;
    for (unsigned i = 0; i < listed; i++) {
        unsigned pid;
        memcpy(&pid, all + i * size, sizeof pid);
        const struct own *mine = find(own, known, pid);
        if (mine && found < room)
            put(infos, found, size, mine);
        found += mine != NULL;
    }
    return report_count(found, room, count);
}

#define LISTED 1024

/* Compute processes are those of the page. Only the driver knows which of them also use graphics or MPS. */
#define LIST(name, type)                                                                                               \
    nvmlReturn_t name(nvmlDevice_t device, unsigned *count, type *infos)                                               \
    {                                                                                                                  \
        NEED_NVML(name);                                                                                               \
        int slot = nvml_slot_of(device);                                                                               \
        if (slot < 0 || !count)                                                                                        \
            return real_nvml.name(device, count, infos);                                                               \
        if (!strncmp(#name, "nvmlDeviceGetCompute", 20))                                                               \
            return list_own(slot, count, infos, sizeof *infos);                                                        \
        type *all = malloc(LISTED * sizeof *all);                                                                      \
        unsigned listed = LISTED;                                                                                      \
        nvmlReturn_t result = all ? real_nvml.name(device, &listed, all) : NVML_ERROR_MEMORY;                          \
        if (!result)                                                                                                   \
            result = keep_own(slot, (const char *)all, listed, count, infos, sizeof *infos);                           \
        free(all);                                                                                                     \
        return result;                                                                                                 \
    }
NVML_PROCESS_LISTS(LIST)

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *list)
{
    NEED_NVML(nvmlDeviceGetRunningProcessDetailList);
    int slot = nvml_slot_of(device);
    if (slot < 0 || !list || list->version != NVML_FIRST_VERSION(nvmlProcessDetailList_t))
        return real_nvml.nvmlDeviceGetRunningProcessDetailList(device, list);
    nvmlProcessDetailList_t all = {list->version, list->mode, LISTED, malloc(LISTED * sizeof *all.processes)};
    nvmlReturn_t result =
        all.processes ? real_nvml.nvmlDeviceGetRunningProcessDetailList(device, &all) : NVML_ERROR_MEMORY;
    if (!result)
        result = keep_own(slot, (const char *)all.processes, all.count, &list->count, list->processes,
                          sizeof *all.processes);
    free(all.processes);
    return result;
}

/* ---- Utilisation ---- */

struct reading {
    uint64_t at_ns, busy_ns;
};

/* Long enough for a burst of launches to be charged within it. */
#define WINDOW_NS 100000000ull

static struct reading read_now(int slot)
{
    struct vcuda_totals totals;
    vcuda_usage_totals(shim.usage, (uint32_t)slot, &totals);
    return (struct reading){shim_now(), totals.gpu_time_ns};
}

/* The last two readings of each GPU, at least a window apart, so that frequent callers still see a whole window. */
static struct reading readings[VCUDA_MAX_GPUS][2];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

/* Return the reading to compare with; `now` if there is none yet. The first query of a process begins a window on every
 * GPU, so that it waits only once. Also `now` if another thread holds the lock, which in a forked child may be a thread
 * that does not exist there. */
static struct reading find_earlier_reading(int slot, struct reading now)
{
    struct reading *kept = readings[slot], found = {0};
    if (pthread_mutex_trylock(&mutex) != 0)
        return found;
    for (int i = 0; !kept[1].at_ns && i < VCUDA_MAX_GPUS; i++)
        if (i != slot)
            readings[i][1] = read_now(i);
    if (now.at_ns - kept[1].at_ns < WINDOW_NS) {
        found = kept[0];
    } else {
        found = kept[0] = kept[1];
        kept[1] = now;
    }
    pthread_mutex_unlock(&mutex);
    return found;
}

/* Return the percentage of the GPU that the claim used lately. A program's first query waits for a window to pass. */
static unsigned busy_percent(int slot)
{
    struct reading now = read_now(slot), before = find_earlier_reading(slot, now);
    if (!before.at_ns) {
        struct timespec window = {0, WINDOW_NS};
        int saved = errno;
        before = now;
        nanosleep(&window, NULL);
        errno = saved;
        now = read_now(slot);
    }
    uint64_t passed = now.at_ns - before.at_ns, busy = now.busy_ns - before.busy_ns;
    uint64_t percent = passed ? (busy * 100 + passed / 2) / passed : 0;
    return percent < 100 ? (unsigned)percent : 100;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates)
{
    NEED_NVML(nvmlDeviceGetUtilizationRates);
    nvmlReturn_t result = real_nvml.nvmlDeviceGetUtilizationRates(device, rates);
    int slot = result ? -1 : nvml_slot_of(device);
    if (slot < 0)
        return result;
    /* Memory utilisation is known for all tenants together only: ours is taken in proportion to our part of the
     * time. */
    unsigned whole = rates->gpu, ours = busy_percent(slot);
    rates->memory = whole ? rates->memory * (ours < whole ? ours : whole) / whole : 0;
    rates->gpu = ours;
    return NVML_SUCCESS;
}

#define FILTER(all, listed, to, room, found)                                                                           \
    do {                                                                                                               \
        struct own own[VCUDA_MAX_PROCESSES];                                                                           \
        unsigned known = own_processes(slot, own);                                                                     \
        for (unsigned i = 0; i < listed; i++)                                                                          \
            if (find(own, known, all[i].pid)) {                                                                        \
                if (found < room)                                                                                      \
                    to[found] = all[i];                                                                                \
                found++;                                                                                               \
            }                                                                                                          \
    } while (0)

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessSample_t *samples, unsigned *count,
                                             unsigned long long since_us)
{
    NEED_NVML(nvmlDeviceGetProcessUtilization);
    int slot = nvml_slot_of(device);
    if (slot < 0 || !samples || !count)
        return real_nvml.nvmlDeviceGetProcessUtilization(device, samples, count, since_us);
    nvmlProcessSample_t *all = malloc(LISTED * sizeof *all);
    unsigned listed = LISTED, found = 0;
    nvmlReturn_t result =
        all ? real_nvml.nvmlDeviceGetProcessUtilization(device, all, &listed, since_us) : NVML_ERROR_MEMORY;
    if (!result)
        FILTER(all, listed, samples, *count, found);
    free(all);
    return result ? result : found ? report_count(found, *count, count) : NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *info)
{
    NEED_NVML(nvmlDeviceGetProcessesUtilizationInfo);
    int slot = nvml_slot_of(device);
    if (slot < 0 || !info || !info->processes || info->version != NVML_FIRST_VERSION(nvmlProcessesUtilizationInfo_t))
        return real_nvml.nvmlDeviceGetProcessesUtilizationInfo(device, info);
    nvmlProcessesUtilizationInfo_t all = {info->version, LISTED, info->since_us,
                                          malloc(LISTED * sizeof *all.processes)};
    unsigned found = 0;
    nvmlReturn_t result =
        all.processes ? real_nvml.nvmlDeviceGetProcessesUtilizationInfo(device, &all) : NVML_ERROR_MEMORY;
    if (!result) {
        info->since_us = all.since_us;
        FILTER(all.processes, all.count, info->processes, info->count, found);
    }
    free(all.processes);
    return result ? result : found ? report_count(found, info->count, &info->count) : NVML_ERROR_NOT_FOUND;
}
