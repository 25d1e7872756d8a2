/* Limits by environment variables: see compat.c. */
#ifndef SHIM_COMPAT_H
#define SHIM_COMPAT_H

#include <stdint.h>

/* What the environment asks for, where there is no claim: SHIM_INERT: nothing. SHIM_ACTIVE: `*directory` is that of a claim
 * whose slots are still empty. SHIM_UNUSABLE: something that cannot be read or kept. Called once. */
int compat_prepare(const char **directory);
/* On standard error, once: why the mode is SHIM_UNUSABLE. */
void compat_complain(void);
/* After cuInit: give every visible GPU its slot. 0: not possible. Nothing to do, and 1, for a claim made by an agent. */
int compat_fill(void);
/* The slot of a GPU that a program without CUDA asks NVML about, where all GPUs have the same limits: which of them CUDA
 * would number how is not known then. -1: none. */
int compat_slot_of(const uint8_t uuid[16]);

#endif
