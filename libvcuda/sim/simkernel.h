/* The simulated kernel driver (libsimkernel.so), for the library that stands between it and the simulated libcuda.
 *
 * Preloaded after that library, it answers its ioctls on a file descriptor that is none, as the real one does on
 * /dev/nvidiactl, and then all device memory of the simulated libcuda goes through it. Without it, none does.
 *
 *     GPUCLOUD_SIM_KERNEL_FAIL=3      the third allocation of memory is refused for lack of resources; 3+: and all later
 *     GPUCLOUD_SIM_KERNEL_ROUND=N     takes memory in multiples of N bytes, more than was asked for
 *     GPUCLOUD_SIM_KERNEL_GID=none    tells no GPU's UUID; other: tells another than libcuda does, as with a MIG device
 *     GPUCLOUD_SIM_KERNEL_SHORT=1     libcuda uses the older form of calls, wrapped in transfers; one object to an export
 */
#ifndef SIM_SIMKERNEL_H
#define SIM_SIMKERNEL_H

#define SIM_KERNEL_FD 0x5e1f0000
#define SIM_KERNEL_PRESENT "sim_kernel_present"
/* int (void): a descriptor for exporting memory to, as opening the control device once more gives one. */
#define SIM_KERNEL_OPEN "sim_kernel_open"

#endif
