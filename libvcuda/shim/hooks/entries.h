/* The entries that programs call, in the order of HOOKED_CUDA and HOOKED_NVML; see entries.c. */
#ifndef HOOKS_ENTRIES_H
#define HOOKS_ENTRIES_H

#include "driver.h"

extern void *const entries_cuda[];
extern void *const entries_nvml[];

/* Forget the parent's contexts and physical allocations, in a forked child. */
void contexts_forget(void);
void vmm_forget(void);
void captures_forget(void);

/* The stream, or (NULL) all of the context, has ended, and with it its capture. */
void captures_end_with(CUstream stream, CUcontext context);

#endif
