/* The barrier that calls with pointers pass while memory may move; see barrier.c. */
#ifndef SHIM_BARRIER_H
#define SHIM_BARRIER_H

#include "shim.h"
#include "real.h"

/* Return 1 if the call is counted; then it must leave. */
int barrier_enter_slow(void);
void barrier_leave_slow(void);
static inline int barrier_enter(void)
{
    return __builtin_expect(__atomic_load_n(&shim.lends, __ATOMIC_RELAXED), 0) ? barrier_enter_slow() : 0;
}
static inline void barrier_leave(int entered)
{
    if (__builtin_expect(entered, 0))
        barrier_leave_slow();
}
/* A call into the driver during which nothing may move. */
#define BARRIER_CALL(call)                                                                                             \
    ({                                                                                                                 \
        int entered_ = barrier_enter();                                                                                \
        CUresult answer_ = call;                                                                                       \
        barrier_leave(entered_);                                                                                       \
        answer_;                                                                                                       \
    })

/* Let nobody in, wait until nobody is inside and no context has work, `patience_ns` at most. Return 0 if that did not
 * succeed: everything goes on. Captures in progress must end first. The lock of the blocks is not held. */
int barrier_close(uint64_t patience_ns);
void barrier_open(void);
void barrier_forget(void);

#endif
