/* The layers of libvcuda, lowest first. A file includes and calls files of its own layer and of lower ones only; `make`
 * refuses anything else (tools/layers.py reads the table below, all includes, and the symbols of all objects).
 *
 * LAYER process   shim state refusal settings   mode, slot, cached limits, clocks
 * LAYER lookup    lookup/                       the driver's functions, and how programs find ours
 * LAYER devices   devices compat                slots of devices and contexts; limits by environment variables
 * LAYER memory    memory/                       the account of memory; the kernel's calls; NVML
 * LAYER compute   compute/                      measured GPU time; admission of launches
 * LAYER lending   lending/                      memory that leaves the GPU for host memory and comes back
 * LAYER watcher   watcher                       the thread that retires work and sees changed limits
 * LAYER hooks     hooks/                        the entries that programs call
 * LAYER attach    attach                        joins the claim; fills the table of callbacks
 */
#ifndef SHIM_LAYERS_H
#define SHIM_LAYERS_H

/* The functions and tables of higher layers that lower ones use. attach.c defines the table; it is constant, so it is
 * valid before any constructor runs. */
extern const struct shim_callbacks {
    int (*choose_mode)(void); /* map the claim's pages; return enum shim_mode */
    void (*start_watcher)(void);
    void (*forget_parent)(void);                     /* in a forked child */
    void (*lower_credit)(int slot, uint32_t before); /* the limit of this GPU is about to become lower */
    int (*uses_mps)(void);     /* 0 only if the driver says that this process is no client of an MPS server */
    void *const *cuda_entries; /* ours, in the order of HOOKED_CUDA */
    void *const *nvml_entries;
} shim_callbacks;

#endif
