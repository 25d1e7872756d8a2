/* The entries that programs call, in the order of HOOKED_CUDA and HOOKED_NVML; see entries.c. */
#ifndef HOOKS_ENTRIES_H
#define HOOKS_ENTRIES_H

extern void *const entries_cuda[];
extern void *const entries_nvml[];

/* Forget the parent's contexts and physical allocations, in a forked child. */
void contexts_forget(void);
void vmm_forget(void);

#endif
