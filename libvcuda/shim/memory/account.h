/* The account of a claim's memory: reserve, sum, refund; see account.c. */
#ifndef SHIM_ACCOUNT_H
#define SHIM_ACCOUNT_H

#include "devices.h"
#include "real.h"

/* ---- account.c ---- */
uint64_t account_used(int slot); /* the claim's memory and overhead on this GPU, whichever layer accounts */
int account_over(int slot);      /* 1 if the sum is above the limit */
/* For the hooks; may call the driver and NVML. Returns OUT_OF_MEMORY or NOT_PERMITTED. */
CUresult account_reserve(int slot, uint64_t bytes);
/* For the kernel's calls; calls neither the driver nor NVML. 0: no room, or a closed slot. */
int account_take(int slot, uint64_t bytes);
/* The same of memory that can leave the GPU (`movable` 1), and its return. */
int account_take_kind(int slot, uint64_t bytes, int movable);
void account_refund_kind(int slot, uint64_t bytes, int movable);
/* Take as much as there is room for, up to `most`; return it. */
uint64_t account_take_room(int slot, uint64_t most);
void account_refund(int slot, uint64_t bytes);
/* The size of memory that can leave the GPU and that this thread has made now; 0: none. What else the driver takes or gives
 * back meanwhile cannot. */
extern _Thread_local uint64_t account_movable __attribute__((visibility("hidden")));
/* Return the cost of an allocation of this size on the GPU; small ones share granules, so this moves `*total`, their
 * sum. */
uint64_t account_charge(uint64_t *total, uint64_t bytes, int sign);
static inline int account_by_kernel(void)
{
    return __atomic_load_n(&shim.accounting, __ATOMIC_ACQUIRE) == VCUDA_ACCOUNTING_KERNEL;
}
static inline int account_by_calls(void)
{
    return __atomic_load_n(&shim.accounting, __ATOMIC_ACQUIRE) == VCUDA_ACCOUNTING_CALLS;
}
/* Make the kernel's calls, or the hooks, the account from now on; return 0 if the other is the account already. */
int account_enter_kernel(int slot);
int account_enter_calls(int slot);
/* The only check of a hook if the kernel's calls account: the error for a closed slot is not out-of-memory. */
CUresult account_closed(void);
static inline CUresult account_pass(void)
{
    shim_refresh();
    return __builtin_expect(__atomic_load_n(&shim.closed, __ATOMIC_RELAXED), 0) ? account_closed() : CUDA_SUCCESS;
}

/* ---- reclaim.c: an allocation that is promised, but does not fit the GPU, waits until lent memory came back ---- */
struct reclaim {
    uint64_t since_ns;
    uint64_t bytes; /* raised in the usage page */
    int last;       /* nothing more comes back: this is the last try */
};
/* Wait a moment; return 0 if waiting is no use. The driver may hold locks meanwhile: it is others that must act. */
int reclaim_wait(int slot, uint64_t bytes, struct reclaim *reclaim);
void reclaim_end(struct reclaim *reclaim);
/* Return 1 if the arbiter knows this claim and looked at the GPU's memory a moment ago; wait for that a second at most.
 * Nobody borrows what nobody would ask back. */
int reclaim_is_watched(int slot);
/* Return the memory that others borrow on this GPU and would give back. */
uint64_t reclaim_lent(int slot);
/* Set in a thread that others may wait for. */
extern _Thread_local int account_never_waits __attribute__((visibility("hidden")));

/* ---- overhead.c ---- */
CUresult account_context_begin(int slot, uint64_t *reserved);
/* `*cost`: the charge of the context, which is given back when it ends. */
CUresult account_context_end(int slot, uint64_t reserved, CUresult result, uint64_t *cost);
void account_context_release(int slot, uint64_t cost);
void overhead_add(int slot, uint64_t bytes);
/* Set the overhead: the memory that the process uses beyond its known allocations. `pending` bytes of these are
 * reserved but not yet real, by `open_calls` allocations in progress; a reading that any other allocation disturbed is
 * discarded. */
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
int nvml_slot_of(nvmlDevice_t device); /* -1: no limit applies to this GPU or MIG instance */

#endif
