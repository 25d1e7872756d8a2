/* Fills: bytes are written only to mapped physical memory, in one dimension; they take the time that the GPU's memory needs,
 * and the host does not wait. */
#include "memory.h"

#include <string.h>

#define BYTES_PER_US 2000000

static int is_row(const char *name)
{
    return name[strlen("cuMemsetD")] != '2';
}

#define FILL(name, bytes, on, ...)                                                                                     \
    CUresult name(__VA_ARGS__)                                                                                         \
    {                                                                                                                  \
        CUresult result = sim_copy_async(on, bytes, BYTES_PER_US);                                                     \
        return result || !is_row(#name) ? result : sim_fill_bytes(to, &value, sizeof value, bytes);                    \
    }
#define FILLS(stem, bytes, ...)                                                                                        \
    FILL(stem##_v2, bytes, NULL, __VA_ARGS__)                                                                          \
    FILL(stem##_v2_ptds, bytes, NULL, __VA_ARGS__)                                                                     \
    FILL(stem##Async, bytes, stream, __VA_ARGS__, CUstream stream)                                                     \
    FILL(stem##Async_ptsz, bytes, stream, __VA_ARGS__, CUstream stream)

FILLS(cuMemsetD8, count, CUdeviceptr to, unsigned char value, size_t count)
FILLS(cuMemsetD16, count * 2, CUdeviceptr to, unsigned short value, size_t count)
FILLS(cuMemsetD32, count * 4, CUdeviceptr to, unsigned value, size_t count)
FILLS(cuMemsetD2D8, pitch ? width *height : 0, FILL_2D(unsigned char))
FILLS(cuMemsetD2D16, pitch ? width *height * 2 : 0, FILL_2D(unsigned short))
FILLS(cuMemsetD2D32, pitch ? width *height * 4 : 0, FILL_2D(unsigned))
