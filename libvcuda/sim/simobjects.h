/* The objects of the simulated kernel driver in one process. */
#ifndef SIM_SIMOBJECTS_H
#define SIM_SIMOBJECTS_H

#include "node.h"
#include "nvidia_rm.h"

struct memory {
    struct sim_gpu *gpu;
    uint64_t bytes;
    unsigned holders; /* handles of this process */
    int share;        /* of the GPU's; -1: nobody else holds it */
};

struct object {
    uint32_t client, handle, parent;
    struct sim_gpu *gpu; /* NULL: a client */
    struct memory *memory;
    struct object *next;
};

/* Locked, all of them. */
struct object *objects_find(uint32_t client, uint32_t handle);
struct object *objects_add(uint32_t client, uint32_t handle, uint32_t parent,
                           struct sim_gpu *gpu); /* NULL: no memory */
/* simexport.c: the commands for exports, imports and what is known of memory; RM_NOT_SUPPORTED: another command. */
uint32_t export_control(const struct rm_control *c);

#endif
