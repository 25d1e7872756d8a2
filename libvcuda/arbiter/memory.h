/* Memory that claims of one GPU lend and borrow: see memory.c. */
#ifndef ARBITER_MEMORY_H
#define ARBITER_MEMORY_H

#include "claims.h"

/* One claim on the GPU. */
struct memory_seat {
    struct claim *claim;
    uint32_t index; /* of the GPU in the claim's pages */
    struct vcuda_limit limit;
    /* The rest is memory.c's. */
    uint64_t used, movable, wanted; /* as read last; bytes */
    uint64_t borrowed;              /* beyond what is promised, and able to leave */
    uint64_t give;
    int followed;         /* the last order was followed by every process that has something to give */
    int is_late;          /* it has not been for a while */
    uint64_t followed_ns; /* since when; kept from step to step, as are the next two. 0: it was not */
    uint64_t unfollowed_ns;
    uint64_t wanted_ns; /* when something was last wanted of this claim, or when it was first seen */
};

/* Read what the claims use and want, and write orders to give back. Return how long to sleep at most until it is called
 * again, ns; UINT64_MAX if no claim borrows. */
uint64_t memory_step(struct memory_seat *seats, int n, uint64_t now);

/* The GPU is no longer the claim's, or nobody looks after it: nothing is lent there, and no allocation waits. */
void memory_leave(struct claim *claim, uint32_t index);

#endif
