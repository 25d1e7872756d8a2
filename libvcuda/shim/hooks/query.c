/* The program's own queries of its streams and events: they wait while the claim is suspended; see shim_begin_query. */
#include "real.h"
#include "shim.h"

#include <time.h>

#define PAUSE_NS 1000000

/* Return 1 if the query is counted. */
static int begin(void)
{
    if (shim_mode() != SHIM_ACTIVE || !__atomic_load_n(&shim.self, __ATOMIC_ACQUIRE))
        return 0;
    while (!shim_begin_query()) {
        shim_wait_for_resumption();
        shim_refresh();
        /* A killed agent may have left limits that are half written; then neither of them waits. */
        if (__atomic_load_n(&shim.suspended, __ATOMIC_ACQUIRE))
            nanosleep(&(struct timespec){0, PAUSE_NS}, NULL);
    }
    return 1;
}

#define QUERY(name, params, call)                                                                                      \
    CUresult name params                                                                                               \
    {                                                                                                                  \
        NEED_REAL(name);                                                                                               \
        int counted = begin();                                                                                         \
        CUresult result = real.name call;                                                                              \
        if (counted)                                                                                                   \
            shim_end_query();                                                                                          \
        return result;                                                                                                 \
    }
QUERY(cuStreamQuery, (CUstream stream), (stream))
QUERY(cuStreamQuery_ptsz, (CUstream stream), (stream))
QUERY(cuEventQuery, (CUevent event), (event))
QUERY(cuEventElapsedTime, (float *milliseconds, CUevent start, CUevent end), (milliseconds, start, end))
QUERY(cuEventElapsedTime_v2, (float *milliseconds, CUevent start, CUevent end), (milliseconds, start, end))
