/* libswitch.so: a limited process turns the library's work at launches and waits off and on again, so that a measurement can
 * compare the two within one process. Memory stays as it was accounted: nothing is to be allocated while it is off. */
#include "inside.h"
#include "shim.h"

__attribute__((visibility("default"))) int vcuda_switch(int on);

/* Return 1 if a library that was active is now as wanted. */
int vcuda_switch(int on)
{
    struct shim *state = inside_find("shim");
    int wanted = on ? SHIM_ACTIVE : SHIM_INERT, other = on ? SHIM_INERT : SHIM_ACTIVE;
    if (!state || !__atomic_load_n(&state->self, __ATOMIC_ACQUIRE))
        return 0;
    if (__atomic_compare_exchange_n(&state->mode, &other, wanted, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
        /* Launches look at the mode on the slow path only. */
        __atomic_fetch_add(&state->hot_epoch, 1, __ATOMIC_SEQ_CST);
    return __atomic_load_n(&state->mode, __ATOMIC_RELAXED) == wanted;
}
