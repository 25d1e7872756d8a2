/* One thread for each GPU on which several claims have a share. */
#ifndef ARBITER_GPU_H
#define ARBITER_GPU_H

#include "claims.h"

/* Pass every GPU's thread the claims that have an open slot of it, and start threads for GPUs that now have several. */
void gpus_seat(struct claim *claims, uint64_t round_ns);
/* Return 1 if every thread has worked within the last half second. */
int gpus_alive(void);
/* End the threads; no turns are given any more. */
void gpus_stop(void);

#endif
