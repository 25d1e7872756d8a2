/* The entries that programs call, as a table for the lookup layer. */
#include "entries.h"

#include "real.h"

#define ENTRY(name) (void *)name,
void *const entries_cuda[] = {HOOKED_CUDA(ENTRY)};
void *const entries_nvml[] = {HOOKED_NVML(ENTRY)};
