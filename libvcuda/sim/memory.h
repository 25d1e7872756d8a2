/* Blocks of simulated device memory. */
#ifndef SIM_MEMORY_H
#define SIM_MEMORY_H

#include "process.h"

struct sim_block {
    CUdeviceptr pointer;
    struct sim_device *device;
    uint64_t bytes;
    int host;          /* managed: really mapped */
    int graph;         /* a graph's: there while it runs */
    CUmemoryPool pool; /* NULL: plain */
    struct sim_block *next;
};

CUdeviceptr sim_address(uint64_t bytes);
int sim_block_add(const struct sim_block *block);
int sim_block_take(CUdeviceptr pointer, struct sim_block *out); /* 0: no such block */
CUresult sim_pool_free(const struct sim_block *block);

/* The contents of mapped physical memory (contents.c); INVALID_VALUE: an address that is reserved, and not mapped. */
CUresult sim_move_bytes(CUdeviceptr to, CUdeviceptr from, uint64_t bytes);
CUresult sim_fill_bytes(CUdeviceptr to, const void *value, unsigned width, uint64_t bytes);

/* Work in a stream that moves so many bytes at such a rate. */
CUresult sim_copy_async(CUstream stream, size_t bytes, uint64_t bytes_per_us);

#endif
