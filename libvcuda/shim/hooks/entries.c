/* The entries that programs call, for the lookup below to hand out. */
#include "entries.h"

#include "real.h"

#define ENTRY(name) (void *)name,
void *const entries_cuda[] = {HOOKED_CUDA(ENTRY)};
void *const entries_nvml[] = {HOOKED_NVML(ENTRY)};
