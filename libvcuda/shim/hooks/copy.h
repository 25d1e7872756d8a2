/* Copies: thin doors to the meter, as launches are. */
#ifndef HOOKS_COPY_H
#define HOOKS_COPY_H

#include "meter.h"

/* A copy of `bytes` is predicted by its entry and the size in MiB; 0 bytes: not one within the memory of GPUs, so it passes.
 * Entries without a stream use the default one, and do not wait for it either. */
#define COPY(name, per_thread, size, on, params, call)                                                                 \
    CUresult name params                                                                                               \
    {                                                                                                                  \
        NEED_REAL(name);                                                                                               \
        struct meter_ticket ticket;                                                                                    \
        uint64_t counted = size;                                                                                       \
        if (!counted)                                                                                                  \
            return real.name call;                                                                                     \
        CUresult result = meter_begin(&ticket, on, per_thread, (const void *)&real.name, 1 + (counted >> 20));         \
        if (result)                                                                                                    \
            return result;                                                                                             \
        result = real.name call;                                                                                       \
        meter_end(&ticket, result);                                                                                    \
        return result;                                                                                                 \
    }

/* An entry and its per-thread one: without a stream, and with one. */
#define COPIES(name, size, params, call)                                                                               \
    COPY(name, 0, size, NULL, (params), (call))                                                                        \
    COPY(name##_ptds, 1, size, NULL, (params), (call))
#define COPIES_ASYNC(name, size, params, call)                                                                         \
    COPY(name, 0, size, stream, (params, CUstream stream), (call, stream))                                             \
    COPY(name##_ptsz, 1, size, stream, (params, CUstream stream), (call, stream))
#define LIST(...) __VA_ARGS__

/* Asked only where an entry does not say it: 1, the pointer is to memory of a GPU; managed memory counts as such. */
int copy_is_on_gpu(CUdeviceptr pointer);
/* `bytes` of a copy from pointer to pointer that is to be counted, else 0. */
uint64_t copy_between(CUdeviceptr to, CUdeviceptr from, uint64_t bytes);

#endif
