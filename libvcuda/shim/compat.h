/* Limits by environment variables: see compat.c. */
#ifndef SHIM_COMPAT_H
#define SHIM_COMPAT_H

/* What the environment asks for, where there is no claim: SHIM_INERT: nothing. SHIM_ACTIVE: `*directory` is that of a claim
 * whose slots are still empty. SHIM_UNUSABLE: something that cannot be read or kept. Called once. */
int compat_prepare(const char **directory);
/* On standard error, once: why the mode is SHIM_UNUSABLE. */
void compat_complain(void);
/* After cuInit: give every visible GPU its slot. 0: not possible. Nothing to do, and 1, for a claim made by an agent. */
int compat_fill(void);

#endif
