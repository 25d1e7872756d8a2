/* Copies: thin wrappers around the meter, as launches are. */
#ifndef HOOKS_COPY_H
#define HOOKS_COPY_H

#include "barrier.h"
#include "meter.h"

/* A copy of `bytes` is predicted by its entry and its size in MiB. With 0 bytes it is not a copy within the memory of
 * GPUs, and passes. Without a stream the program waits for it, and for the work before it. */
#define COPY_ON(name, per_thread, size, waits, on, params, call)                                                       \
    CUresult name params                                                                                               \
    {                                                                                                                  \
        NEED_REAL(name);                                                                                               \
        struct meter_ticket ticket;                                                                                    \
        uint64_t counted = size;                                                                                       \
        if (!counted) {                                                                                                \
            int begun = (waits) ? meter_begin_wait_all() : 0;                                                          \
            CUresult passed = BARRIER_CALL(real.name call);                                                            \
            meter_end_wait_all(begun);                                                                                 \
            return passed;                                                                                             \
        }                                                                                                              \
        CUresult result = meter_begin(&ticket, on, per_thread, (const void *)&real.name, 1 + (counted >> 20));         \
        if (result)                                                                                                    \
            return result;                                                                                             \
        result = BARRIER_CALL(real.name call);                                                                         \
        meter_end(&ticket, result);                                                                                    \
        return result;                                                                                                 \
    }

#define COPY(name, per_thread, size, params, call) COPY_ON(name, per_thread, size, 1, NULL, params, call)
#define COPY_ASYNC(name, per_thread, size, params, call) COPY_ON(name, per_thread, size, 0, stream, params, call)

/* An entry and its per-thread variant: without a stream, and with one. */
#define COPIES(name, size, params, call)                                                                               \
    COPY(name, 0, size, (params), (call))                                                                              \
    COPY(name##_ptds, 1, size, (params), (call))
#define COPIES_ASYNC(name, size, params, call)                                                                         \
    COPY_ASYNC(name, 0, size, (params, CUstream stream), (call, stream))                                               \
    COPY_ASYNC(name##_ptsz, 1, size, (params, CUstream stream), (call, stream))
#define LIST(...) __VA_ARGS__

/* Return 1 if the pointer is to memory of a GPU; managed memory counts as such. Used only for entries that do not
 * tell. */
int copy_is_on_gpu(CUdeviceptr pointer);
/* Return the bytes to count for a copy from pointer to pointer, or 0. */
uint64_t copy_between(CUdeviceptr to, CUdeviceptr from, uint64_t bytes);

#endif
