/* The layer of accounting below the CUDA API; see kernel.c. */
#ifndef SHIM_KERNEL_H
#define SHIM_KERNEL_H

#include <stdint.h>

/* Return 1 if calls on this slot's GPU pass our ioctl: before any memory was taken, more cannot be known. */
int kernel_watches(int slot);
/* In a forked child: the objects belong to the parent. */
void kernel_forget(void);
/* Return the slot that pays for memory below `parent`; OBJECTS_UNKNOWN: none, it passes. */
int kernel_slot_of(uint32_t client, uint32_t parent);

/* ---- kernel_exports.c: commands that export to descriptors or import from them ---- */
struct rm_control;
typedef int ioctl_function(int fd, unsigned long request, ...);
/* Follow a command that has succeeded; if the memory that it imported does not fit, the command fails. */
void exports_follow(int fd, ioctl_function *kernel, struct rm_control *control);

/* ---- kernel_objects.c: the objects of the kernel's tree that lead from an allocation to its GPU, and back to its cost.
 * No function here calls the driver, NVML or the kernel. ---- */
enum { OBJECTS_OUTSIDE = -1, OBJECTS_UNKNOWN = -2 };

void objects_add_device(uint32_t client, uint32_t handle, uint32_t device_id);
void objects_add_subdevice(uint32_t client, uint32_t handle, uint32_t device);
void objects_set_uuid(uint32_t client, uint32_t subdevice, const uint8_t uuid[16]);
/* Return 1 if the UUID is that of a GPU whose calls pass here. */
int objects_know_uuid(const uint8_t uuid[16]);
int objects_know_any(void);
/* Return the slot of the GPU to which `parent` belongs; OBJECTS_OUTSIDE: a GPU that is not the claim's;
 * OBJECTS_UNKNOWN. */
int objects_slot(uint32_t client, uint32_t parent);
/* Add memory that was charged to a slot. Without room to remember it, the charge stays for the process's life. */
struct memory;
void objects_add_memory(uint32_t client, uint32_t handle, uint32_t parent, const struct memory *charged);
/* Add a second handle of the same memory. Return 0 if the source is not ours: its maker pays. */
int objects_dup_memory(uint32_t client, uint32_t handle, uint32_t parent, uint32_t source_client, uint32_t source);
/* Note the memory that the open file of `fd` holds from now on, as its object with this index; handle 0: none any
 * more. */
void objects_export_memory(uint32_t client, uint32_t handle, int fd, uint32_t index);
/* Add a handle of the memory that `fd` holds, charged to the process that pays for it. Return 0 if it does not fit. */
int objects_import_memory(uint32_t client, uint32_t handle, uint32_t parent, uint64_t bytes, int slot, int fd);

/* Take out the object and all below it, before the kernel frees them: afterwards others may get the same handles. Then
 * either refund memory that no other holder has, or put the objects back. */
struct object;
struct object *objects_take(uint32_t client, uint32_t handle);
void objects_put_back(struct object *taken);
void objects_refund(struct object *taken);
void objects_forget(void);

#endif
