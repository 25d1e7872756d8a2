/* Fills: kernels of the driver's own, which use the GPU like any other. They are predicted by the entry and the size in
 * MiB. */
#include "barrier.h"
#include "meter.h"

#define FILL(name, per_thread, bytes, on, params, call)                                                                \
    CUresult name params                                                                                               \
    {                                                                                                                  \
        NEED_REAL(name);                                                                                               \
        struct meter_ticket ticket;                                                                                    \
        CUresult result = meter_begin(&ticket, on, per_thread, (const void *)&real.name, 1 + ((bytes) >> 20));         \
        if (result)                                                                                                    \
            return result;                                                                                             \
        result = BARRIER_CALL(real.name call);                                                                         \
        meter_end(&ticket, result);                                                                                    \
        return result;                                                                                                 \
    }

/* The four entries of one kind of fill. Those without a stream use the default one, and do not wait for it either. */
#define FILLS(stem, bytes, params, call)                                                                               \
    FILL(stem##_v2, 0, bytes, NULL, (params), (call))                                                                  \
    FILL(stem##_v2_ptds, 1, bytes, NULL, (params), (call))                                                             \
    FILL(stem##Async, 0, bytes, stream, (params, CUstream stream), (call, stream))                                     \
    FILL(stem##Async_ptsz, 1, bytes, stream, (params, CUstream stream), (call, stream))

#define LIST(...) __VA_ARGS__
#define ROW LIST(to, value, count)
#define ROWS LIST(to, pitch, value, width, height)
FILLS(cuMemsetD8, count, LIST(CUdeviceptr to, unsigned char value, size_t count), ROW)
FILLS(cuMemsetD16, count * 2, LIST(CUdeviceptr to, unsigned short value, size_t count), ROW)
FILLS(cuMemsetD32, count * 4, LIST(CUdeviceptr to, unsigned value, size_t count), ROW)
FILLS(cuMemsetD2D8, width *height, FILL_2D(unsigned char), ROWS)
FILLS(cuMemsetD2D16, width *height * 2, FILL_2D(unsigned short), ROWS)
FILLS(cuMemsetD2D32, width *height * 4, FILL_2D(unsigned), ROWS)
