/* The claim's slots of the driver's devices and contexts; see devices.c. */
#ifndef SHIM_DEVICES_H
#define SHIM_DEVICES_H

#include "shim.h"

/* Return the slot of a CUDA device, or of the current context's device; -1: no slot, -2: no context. */
int shim_slot_of_device(CUdevice device);
int shim_slot_of_current(CUcontext *context);
/* Read a device's UUID, or its MIG instance's own; return 0 if the driver does not give it. */
int shim_uuid_of_device(CUdevice device, uint8_t uuid[16]);
/* Return 0 only if the driver says that this process is no client of an MPS server: it runs without one where no daemon
 * answers. */
int devices_use_mps(void);
/* Forget all devices, in a forked child. */
void devices_forget(void);

#endif
