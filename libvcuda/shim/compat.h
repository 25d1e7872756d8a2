/* Limits by environment variables: see compat.c. */
#ifndef SHIM_COMPAT_H
#define SHIM_COMPAT_H

#include <stdint.h>

/* Read what the environment asks for if there is no claim. SHIM_INERT: nothing. SHIM_ACTIVE: `*directory` is that of a
 * claim whose slots are still empty. SHIM_UNUSABLE: a value that cannot be read or enforced. Called once. */
int compat_prepare(const char **directory);
/* Print on standard error, once, why the mode is SHIM_UNUSABLE. */
void compat_complain(void);
/* After cuInit: give every visible GPU its slot. Return 0 if that failed; 1 also for a claim of an agent, where there
 * is nothing to do. */
int compat_fill(void);
/* Return the slot of a GPU for a program without CUDA that asks NVML. Only if all GPUs have the same limits, as CUDA's
 * numbering of the GPUs is unknown then. -1: none. */
int compat_slot_of(const uint8_t uuid[16]);

#endif
