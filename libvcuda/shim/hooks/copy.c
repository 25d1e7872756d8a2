/* Copies of rows of bytes within the memory of GPUs. They take memory bandwidth from all other work, and on many GPUs
 * the processors too, so they are charged to the current context's GPU and wait like launches. Copies between host and
 * GPU pass: copy engines run them in parallel with kernels. Copies that block the program are waits like any other. */
#include "copy.h"

int copy_is_on_gpu(CUdeviceptr pointer)
{
    unsigned type = 0;
    if (!real.cuPointerGetAttribute)
        return 1;
    return !real.cuPointerGetAttribute(&type, CU_POINTER_MEMORY_TYPE, pointer) && type == CU_MEMORY_DEVICE;
}

uint64_t copy_between(CUdeviceptr to, CUdeviceptr from, uint64_t bytes)
{
    return shim_mode() == SHIM_ACTIVE && copy_is_on_gpu(to) && copy_is_on_gpu(from) ? bytes : 0;
}

#define ROW LIST(to, from, bytes)
COPIES(cuMemcpyHtoD_v2, 0, LIST(CUdeviceptr to, const void *from, size_t bytes), ROW)
COPIES(cuMemcpyDtoH_v2, 0, LIST(void *to, CUdeviceptr from, size_t bytes), ROW)
/* These only pass: nothing of theirs is charged or waits. */
#define PASS(name, params, call)                                                                                       \
    CUresult name params                                                                                               \
    {                                                                                                                  \
        NEED_REAL(name);                                                                                               \
        return BARRIER_CALL(real.name call);                                                                           \
    }
#define IN_PARAMS (CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
#define OUT_PARAMS (void *to, CUdeviceptr from, size_t bytes, CUstream stream)
PASS(cuMemcpyHtoDAsync_v2, IN_PARAMS, (to, from, bytes, stream))
PASS(cuMemcpyHtoDAsync_v2_ptsz, IN_PARAMS, (to, from, bytes, stream))
PASS(cuMemcpyDtoHAsync_v2, OUT_PARAMS, (to, from, bytes, stream))
PASS(cuMemcpyDtoHAsync_v2_ptsz, OUT_PARAMS, (to, from, bytes, stream))
COPIES(cuMemcpyDtoD_v2, bytes, LIST(COPY_1D), ROW)
COPIES_ASYNC(cuMemcpyDtoDAsync_v2, bytes, LIST(COPY_1D), ROW)
#define PEER LIST(to, to_context, from, from_context, bytes)
COPIES(cuMemcpyPeer, bytes, LIST(COPY_PEER), PEER)
COPIES_ASYNC(cuMemcpyPeerAsync, bytes, LIST(COPY_PEER), PEER)

#define TO_ARRAY LIST(to, to_offset, from, bytes)
#define FROM_ARRAY LIST(to, from, from_offset, bytes)
#define ARRAYS LIST(to, to_offset, from, from_offset, bytes)
COPIES(cuMemcpyDtoA_v2, bytes, LIST(CUarray to, size_t to_offset, CUdeviceptr from, size_t bytes), TO_ARRAY)
COPIES(cuMemcpyAtoD_v2, bytes, LIST(CUdeviceptr to, CUarray from, size_t from_offset, size_t bytes), FROM_ARRAY)
COPIES(cuMemcpyAtoA_v2, bytes, LIST(CUarray to, size_t to_offset, CUarray from, size_t from_offset, size_t bytes),
       ARRAYS)

/* The first versions: their pointers have 32 bits, their arrays are the same as today. */
#define ROW_V1 CUdeviceptr_v1 to, CUdeviceptr_v1 from, unsigned bytes
COPY(cuMemcpyDtoD, 0, bytes, (ROW_V1), (ROW))
COPY_ASYNC(cuMemcpyDtoDAsync, 0, bytes, (ROW_V1, CUstream stream), (ROW, stream))
COPY(cuMemcpyDtoA, 0, bytes, (CUarray to, unsigned to_offset, CUdeviceptr_v1 from, unsigned bytes), (TO_ARRAY))
COPY(cuMemcpyAtoD, 0, bytes, (CUdeviceptr_v1 to, CUarray from, unsigned from_offset, unsigned bytes), (FROM_ARRAY))
COPY(cuMemcpyAtoA, 0, bytes, (CUarray to, unsigned to_offset, CUarray from, unsigned from_offset, unsigned bytes),
     (ARRAYS))

/* Only the pointers tell whether source and destination are on a GPU. */
#define BETWEEN copy_between(to, from, bytes)
COPIES(cuMemcpy, BETWEEN, LIST(COPY_1D), ROW)
COPIES_ASYNC(cuMemcpyAsync, BETWEEN, LIST(COPY_1D), ROW)
COPIES_ASYNC(cuMemcpyWithAttributesAsync, BETWEEN, LIST(COPY_1D, CUcopyAttributes *attributes),
             LIST(to, from, bytes, attributes))

static uint64_t batch_bytes(const CUdeviceptr *to, const CUdeviceptr *from, const size_t *bytes, size_t count)
{
    uint64_t sum = 0;
    for (size_t i = 0; to && from && bytes && i < count; i++)
        sum += copy_between(to[i], from[i], bytes[i]);
    return sum;
}

#define BATCH LIST(to, from, bytes, count, attributes, indices, attribute_count)
#define BATCH_BYTES batch_bytes(to, from, bytes, count)
COPIES_ASYNC(cuMemcpyBatchAsync, BATCH_BYTES, LIST(COPY_BATCH, size_t *failed), LIST(BATCH, failed))
COPIES_ASYNC(cuMemcpyBatchAsync_v2, BATCH_BYTES, LIST(COPY_BATCH), BATCH)
