/* Memory pools and what they have reserved from the GPU; see pools.c. */
#ifndef SHIM_POOLS_H
#define SHIM_POOLS_H

#include "account.h"

/* The slot of a pool of host memory, which takes no memory of a GPU. */
#define SLOT_NONE (-2)

struct known_pool {
    CUmemoryPool pool; /* NULL: the entry is free */
    int slot;
    uint64_t charged;
};

/* Return the entry of a pool, or NULL. */
struct known_pool *pools_find(CUmemoryPool pool);
/* Add `charged` to the pool's entry, which is created if there is none. NULL: all entries are taken. */
struct known_pool *pools_enter(CUmemoryPool pool, int slot, uint64_t charged);
/* Return the slot of a pool that was not created here: its device's, for a device's own pool, else `current`. */
int pools_slot(CUmemoryPool pool, int current);
/* Reserve the most that the pool may grow by for an allocation of `bytes`. */
CUresult pools_reserve(struct known_pool *p, uint64_t bytes, uint64_t *reserved);
/* Charge the pool's present reservation and give `reserved` back. Return 1 if it grew by more. */
int pools_settle_one(struct known_pool *p, uint64_t reserved);
/* Charge the present reservation of this pool. */
void pools_settle(CUmemoryPool pool);
/* Remove a pool's entry and copy it to `*was`; `*living` are the bytes allocated from it. Return 0 if there was
 * none. */
int pools_remove(CUmemoryPool pool, struct known_pool *was, uint64_t *living);
/* Charge the present reservation of each pool of a slot. */
void pools_refresh(int slot);
/* Forget all pools, in a forked child. */
void pools_forget(void);

#endif
