/* Physical memory of the simulated driver. */
#ifndef SIM_PHYSICAL_H
#define SIM_PHYSICAL_H

#include "process.h"

struct physical {
    struct sim_device *device;
    uint64_t bytes;
    unsigned references;
    uint32_t object;   /* the kernel's handle of it; 0: no kernel */
    int imported;      /* another process's */
    int host;          /* it lies in host memory: nothing of the GPU is charged for it */
    uint8_t *bytes_at; /* what it holds; NULL: nothing was ever written there */
};

/* The bytes behind an address where physical memory is mapped, and how many follow there; NULL: none is, or nothing was
 * written yet and `write` is 0. `*known`: 0 if the address was not reserved, 1 reserved, 2 mapped. */
uint8_t *sim_bytes_at(CUdeviceptr pointer, int write, uint64_t *room, int *known);

/* Charge, and make the kernel's object where there is a kernel (charge.c). */
CUresult sim_physical_take(struct physical *physical);
CUresult sim_physical_free(const struct physical *physical);
/* The kernel's calls for a descriptor of it; 0, or the kernel's status. */
uint32_t sim_physical_export(const struct physical *physical, int fd);
uint32_t sim_physical_import(struct physical *physical, int fd);

#endif
