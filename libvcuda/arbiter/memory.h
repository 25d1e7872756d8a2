/* Memory that claims of one GPU lend and borrow: see memory.c. */
#ifndef ARBITER_MEMORY_H
#define ARBITER_MEMORY_H

#include "claims.h"

/* What is kept of a claim from step to step; all zero at first. */
struct memory_kept {
    uint64_t followed_ns;   /* since when it has followed its order; 0: it has not */
    uint64_t unfollowed_ns; /* since when it has not; 0: it has */
    uint64_t stuck_ns;      /* since when nothing of what is to be given has left; 0: something does */
    uint32_t stuck_number;  /* the order that stood then */
    uint64_t moved;         /* what had left then */
    uint64_t most;          /* the limit up to which it borrows, or did last */
    int looked;             /* 1: it was read before */
    int lends;              /* 1: at the last step something borrowed could leave, or was out */
    uint64_t wanted_ns;     /* when something was last wanted of this claim, or when it was first seen */
    uint64_t want;          /* what it wanted at the last step */
    uint64_t used;          /* the least of what it used with that */
    uint32_t tries;         /* orders that were followed without an end of this want */
};

/* One claim on the GPU. */
struct memory_seat {
    struct claim *claim;
    uint32_t index; /* of the GPU in the claim's pages */
    struct vcuda_limit limit;
    struct memory_kept *kept;
    /* The rest is memory.c's. */
    uint64_t used, movable; /* as read last; bytes */
    uint64_t wanted;        /* likewise; 0 if giving was in vain */
    int is_next;            /* it wants as much as before, and what it wanted then was given */
    uint64_t borrowed;      /* beyond what is promised, and able to leave */
    uint64_t give;
    int followed; /* the last order was followed by every process that has something to give */
    int is_late;  /* it has not been for a while */
};

/* Read what the claims use and want, and write orders to give back. Return how long to sleep at most until it is called
 * again, ns; UINT64_MAX if no claim borrows. */
uint64_t memory_step(struct memory_seat *seats, int n, uint64_t now);

/* The GPU is no longer the claim's, or nobody looks after it: nothing is lent there, and no allocation waits. */
void memory_leave(struct claim *claim, uint32_t index);

#endif
