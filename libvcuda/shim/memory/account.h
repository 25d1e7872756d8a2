/* The account of a claim's memory: reserve, sum, refund; see account.c. */
#ifndef SHIM_ACCOUNT_H
#define SHIM_ACCOUNT_H

#include "devices.h"
#include "real.h"

/* ---- account.c ---- */
uint64_t account_used(int slot); /* the claim's memory and overhead on this GPU: the truth, in either accounting */
int account_over(int slot);      /* the sum passes the limit */
/* For the hooks; may ask the driver and NVML. OUT_OF_MEMORY, NOT_PERMITTED. */
CUresult account_reserve(int slot, uint64_t bytes);
/* For the kernel's calls; asks nobody. 0: no room, or a closed slot. */
int account_take(int slot, uint64_t bytes);
/* Take as much as there is room for, `most` at most; return it. */
uint64_t account_take_room(int slot, uint64_t most);
void account_refund(int slot, uint64_t bytes);
/* Return what an allocation of this size costs the GPU; small ones share granules, so this moves `*total`, their sum. */
uint64_t account_charge(uint64_t *total, uint64_t bytes, int sign);
static inline int account_by_kernel(void)
{
    return __atomic_load_n(&shim.accounting, __ATOMIC_ACQUIRE) == VCUDA_ACCOUNTING_KERNEL;
}
static inline int account_by_calls(void)
{
    return __atomic_load_n(&shim.accounting, __ATOMIC_ACQUIRE) == VCUDA_ACCOUNTING_CALLS;
}
/* The account is the kernel's calls, or the hooks, from now on; 0: it is the other's already. */
int account_enter_kernel(int slot);
int account_enter_calls(int slot);
/* All that a hook does where the kernel's calls account: a closed slot's error is not out-of-memory. */
CUresult account_closed(void);
static inline CUresult account_pass(void)
{
    shim_refresh();
    return __builtin_expect(__atomic_load_n(&shim.closed, __ATOMIC_RELAXED), 0) ? account_closed() : CUDA_SUCCESS;
}

/* ---- overhead.c ---- */
CUresult account_context_begin(int slot, uint64_t *reserved);
/* `*cost`: what the context is charged with, to be given back when it goes. */
CUresult account_context_end(int slot, uint64_t reserved, CUresult result, uint64_t *cost);
void account_context_release(int slot, uint64_t cost);
void overhead_add(int slot, uint64_t bytes);
/* Overhead is what the process uses beyond its known allocations. `pending` of these is reserved but not yet real, by
 * `open_calls` allocations in progress; a reading that any other allocation disturbed is thrown away. */
void overhead_true_up(int slot, uint64_t pending, uint64_t open_calls);
void account_true_up(void);

/* ---- table.c ---- */
struct charge {
    uint64_t key, bytes, charged;
    int slot, managed;
};
extern struct table table_blocks, table_contexts;
int table_put(struct table *table, const struct charge *charge); /* 0: no memory */
int table_take(struct table *table, uint64_t key, struct charge *out);
void table_forget(struct table *table);

/* ---- nvml_read.c ---- */
int64_t nvml_process_bytes(int slot); /* -1: NVML does not know this process */
int64_t nvml_device_bytes(int slot);
int nvml_slot_of(nvmlDevice_t device); /* -1: no limit applies to this GPU or part of one */

#endif
