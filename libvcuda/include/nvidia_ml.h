/* The part of NVML's ABI that this project touches, written from its documentation. */
#ifndef VCUDA_NVIDIA_ML_H
#define VCUDA_NVIDIA_ML_H

#include <stdint.h>

typedef struct sim_gpu *nvmlDevice_t;
typedef int nvmlReturn_t;

enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NO_PERMISSION = 4,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_TIMEOUT = 10,
    NVML_ERROR_FUNCTION_NOT_FOUND = 13,
    NVML_ERROR_GPU_IS_LOST = 15,
    NVML_ERROR_OPERATING_SYSTEM = 17,
    NVML_ERROR_MEMORY = 20,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
    NVML_ERROR_UNKNOWN = 999,
};

typedef struct {
    unsigned long long total, free, used;
} nvmlMemory_t;
typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;
typedef struct {
    unsigned gpu, memory;
} nvmlUtilization_t;
/* Functions without a version take the first, of 16 bytes; those of version 2 and 3 the other. */
typedef struct {
    unsigned pid;
    unsigned long long used;
} nvmlProcessInfo_v1_t;
typedef struct {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
} nvmlProcessInfo_t;
typedef struct {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
    unsigned long long protected_bytes;
} nvmlProcessDetail_t;
typedef struct {
    unsigned version, mode, count;
    nvmlProcessDetail_t *processes;
} nvmlProcessDetailList_t;
typedef struct {
    unsigned pid;
    unsigned long long time_us;
    unsigned sm, memory, encoder, decoder;
} nvmlProcessSample_t;
typedef struct {
    unsigned long long time_us;
    unsigned pid, sm, memory, encoder, decoder, jpeg, optical_flow;
} nvmlProcessUtilizationInfo_t;
typedef struct {
    unsigned version, count;
    unsigned long long since_us;
    nvmlProcessUtilizationInfo_t *processes;
} nvmlProcessesUtilizationInfo_t;
/* Limits of a control group, from driver r615 on, as nvml.h of nvidia_nvml_dev 13.5.37 has them. `name_space` is the path of
 * the group's directory; without limits `soft` is 0 and `hard` is all ones. */
#define NVML_DEVICE_MEMORY_LIMIT_MAX (~0ull)
typedef struct {
    const char *name_space;
    unsigned long long soft, hard;
} nvmlSetMemoryLimits_v1_t;
typedef struct {
    const char *name_space;
    unsigned long long soft, hard, used;
} nvmlGetMemoryLimits_v1_t;
_Static_assert(sizeof(nvmlSetMemoryLimits_v1_t) == 24 && sizeof(nvmlGetMemoryLimits_v1_t) == 32, "NVML ABI");
/* What stands in `version` of a structure's first version. */
#define NVML_FIRST_VERSION(type) ((unsigned)sizeof(type) | 1u << 24)
typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} nvmlPciInfo_t;
_Static_assert(sizeof(nvmlMemory_v2_t) == 40 && sizeof(nvmlProcessInfo_t) == 24, "NVML ABI");
_Static_assert(sizeof(nvmlProcessInfo_v1_t) == 16 && sizeof(nvmlProcessDetail_t) == 32, "NVML ABI");
_Static_assert(sizeof(nvmlProcessDetailList_t) == 24 && sizeof(nvmlProcessUtilizationInfo_t) == 40, "NVML ABI");
_Static_assert(sizeof(nvmlProcessesUtilizationInfo_t) == 24, "NVML ABI");
_Static_assert(sizeof(nvmlProcessSample_t) == 32 && sizeof(nvmlPciInfo_t) == 68, "NVML ABI");

/* Bits of the events that can be waited for. */
#define NVML_EVENT_XID 8ull
typedef struct sim_event_set *nvmlEventSet_t;
typedef struct {
    nvmlDevice_t device;
    unsigned long long type, data; /* of an XID error its number */
    unsigned gpu_instance, compute_instance;
} nvmlEventData_t;
_Static_assert(sizeof(nvmlEventData_t) == 32, "NVML ABI");

/* Performance counters (GPM), Hopper and newer: two samples and, of the time in between, metrics in percent. */
enum { NVML_GPM_SM_UTIL = 2, NVML_GPM_ANY_TENSOR_UTIL = 5, NVML_GPM_DRAM_BW_UTIL = 10 };
typedef struct sim_gpm_sample *nvmlGpmSample_t;
typedef struct {
    unsigned version, supported;
} nvmlGpmSupport_t;
typedef struct {
    unsigned id;
    nvmlReturn_t result;
    double value;
    const char *names[3];
} nvmlGpmMetric_t;
/* `metric` has as many places as the caller's header says. */
typedef struct {
    unsigned version, count;
    nvmlGpmSample_t first, second;
    nvmlGpmMetric_t metric[];
} nvmlGpmMetricsGet_t;
_Static_assert(sizeof(nvmlGpmMetric_t) == 40 && sizeof(nvmlGpmMetricsGet_t) == 24, "NVML ABI");

#pragma GCC visibility push(default)
nvmlReturn_t nvmlInit(void);
nvmlReturn_t nvmlInit_v2(void);
nvmlReturn_t nvmlInitWithFlags(unsigned flags);
nvmlReturn_t nvmlShutdown(void);
const char *nvmlErrorString(nvmlReturn_t result);
nvmlReturn_t nvmlSystemGetDriverVersion(char *text, unsigned length);
nvmlReturn_t nvmlSystemGetNVMLVersion(char *text, unsigned length);
nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version);
nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version);
nvmlReturn_t nvmlDeviceGetCount(unsigned *count);
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count);
nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *device);
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device);
nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device);
nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index);
nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned *index);
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *text, unsigned length);
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *text, unsigned length);
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory);
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory);
nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, nvmlSetMemoryLimits_v1_t *limits);
nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, nvmlGetMemoryLimits_v1_t *limits);
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates);
#define NVML_PROCESS_LISTS(X)                                                                                          \
    X(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t)                                                      \
    X(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_t)                                                      \
    X(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t)                                                      \
    X(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t)                                                     \
    X(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_t)                                                     \
    X(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t)                                                     \
    X(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t)                                                   \
    X(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_t)                                                   \
    X(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t)
#define NVML_PROCESS_LIST(name, type) nvmlReturn_t name(nvmlDevice_t device, unsigned *count, type *infos);
NVML_PROCESS_LISTS(NVML_PROCESS_LIST)
#undef NVML_PROCESS_LIST
nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *list);
nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *info);
nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned *mig);
nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessSample_t *samples, unsigned *count,
                                             unsigned long long since_us);
nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned *milliwatts);
nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned *milliwatts);
nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned sensor, unsigned *celsius);
nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t a, nvmlDevice_t b, int *level);
nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *info);
nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor);
nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending);
nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set);
nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set);
nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types);
nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set);
nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned timeout_ms);
nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned kind, unsigned counter,
                                         unsigned long long *errors);
nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned *corrected, unsigned *uncorrected,
                                       unsigned *pending, unsigned *failed);
nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, unsigned *pending);
nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons);
nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *support);
nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *sample);
nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t sample);
nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t sample);
nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *metrics);
nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned link, unsigned *active);
#pragma GCC visibility pop
#endif
