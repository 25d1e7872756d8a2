/* Copies: bytes are moved only from and to mapped physical memory, in one dimension. Within the GPU's memory they take the
 * time in which it reads and writes 2 TB a second, between host and GPU that of PCIe 5; the host does not wait. */
#include "memory.h"

/* What a copy is told beyond its size makes no difference here. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

#define WITHIN_BYTES_PER_US 1000000
#define ACROSS_BYTES_PER_US 50000

static int is_on_gpu(int type, CUdeviceptr pointer)
{
    unsigned known = 0;
    if (type == CU_MEMORY_UNIFIED)
        return !cuPointerGetAttribute(&known, CU_POINTER_MEMORY_TYPE, pointer) && known == CU_MEMORY_DEVICE;
    return type == CU_MEMORY_DEVICE || type == CU_MEMORY_ARRAY;
}

static CUresult copy_in(CUstream stream, uint64_t bytes, int is_within)
{
    return sim_copy_async(stream, bytes, is_within ? WITHIN_BYTES_PER_US : ACROSS_BYTES_PER_US);
}

#define COPY(name, size, is_within, ...)                                                                               \
    CUresult name(__VA_ARGS__)                                                                                         \
    {                                                                                                                  \
        return copy_in(NULL, size, is_within);                                                                         \
    }
#define COPY_ASYNC(name, size, is_within, ...)                                                                         \
    CUresult name(__VA_ARGS__, CUstream stream)                                                                        \
    {                                                                                                                  \
        return copy_in(stream, size, is_within);                                                                       \
    }
/* Each with its per-thread entry. */
#define COPIES(name, size, is_within, ...)                                                                             \
    COPY(name, size, is_within, __VA_ARGS__)                                                                           \
    CUresult name##_ptds(__VA_ARGS__)                                                                                  \
    {                                                                                                                  \
        return copy_in(CU_STREAM_PER_THREAD, size, is_within);                                                         \
    }
#define COPIES_ASYNC(name, size, is_within, ...)                                                                       \
    COPY_ASYNC(name, size, is_within, __VA_ARGS__)                                                                     \
    CUresult name##_ptsz(__VA_ARGS__, CUstream stream)                                                                 \
    {                                                                                                                  \
        return copy_in(stream ? stream : CU_STREAM_PER_THREAD, size, is_within);                                       \
    }

/* Those whose contents are followed. */
#define ROWS(name, is_within)                                                                                          \
    CUresult name(COPY_1D)                                                                                             \
    {                                                                                                                  \
        CUresult result = copy_in(NULL, bytes, is_within);                                                             \
        return result ? result : sim_move_bytes(to, from, bytes);                                                      \
    }                                                                                                                  \
    CUresult name##_ptds(COPY_1D)                                                                                      \
    {                                                                                                                  \
        CUresult result = copy_in(CU_STREAM_PER_THREAD, bytes, is_within);                                             \
        return result ? result : sim_move_bytes(to, from, bytes);                                                      \
    }
#define ROWS_ASYNC(name, is_within)                                                                                    \
    CUresult name(COPY_1D, CUstream stream)                                                                            \
    {                                                                                                                  \
        CUresult result = copy_in(stream, bytes, is_within);                                                           \
        return result ? result : sim_move_bytes(to, from, bytes);                                                      \
    }                                                                                                                  \
    CUresult name##_ptsz(COPY_1D, CUstream stream)                                                                     \
    {                                                                                                                  \
        CUresult result = copy_in(stream ? stream : CU_STREAM_PER_THREAD, bytes, is_within);                           \
        return result ? result : sim_move_bytes(to, from, bytes);                                                      \
    }

ROWS(cuMemcpyDtoD_v2, 1)
ROWS_ASYNC(cuMemcpyDtoDAsync_v2, 1)
COPY(cuMemcpyDtoD, bytes, 1, CUdeviceptr_v1 to, CUdeviceptr_v1 from, unsigned bytes)
COPY_ASYNC(cuMemcpyDtoDAsync, bytes, 1, CUdeviceptr_v1 to, CUdeviceptr_v1 from, unsigned bytes)
COPIES(cuMemcpyPeer, bytes, 1, COPY_PEER)
COPIES_ASYNC(cuMemcpyPeerAsync, bytes, 1, COPY_PEER)
COPIES(cuMemcpyDtoA_v2, bytes, 1, CUarray to, size_t to_offset, CUdeviceptr from, size_t bytes)
COPIES(cuMemcpyAtoD_v2, bytes, 1, CUdeviceptr to, CUarray from, size_t from_offset, size_t bytes)
COPIES(cuMemcpyAtoA_v2, bytes, 1, CUarray to, size_t to_offset, CUarray from, size_t from_offset, size_t bytes)
COPY(cuMemcpyDtoA, bytes, 1, CUarray to, unsigned to_offset, CUdeviceptr_v1 from, unsigned bytes)
COPY(cuMemcpyAtoD, bytes, 1, CUdeviceptr_v1 to, CUarray from, unsigned from_offset, unsigned bytes)
COPY(cuMemcpyAtoA, bytes, 1, CUarray to, unsigned to_offset, CUarray from, unsigned from_offset, unsigned bytes)

static int are_on_gpu(CUdeviceptr to, CUdeviceptr from)
{
    return is_on_gpu(CU_MEMORY_UNIFIED, to) && is_on_gpu(CU_MEMORY_UNIFIED, from);
}

ROWS(cuMemcpy, are_on_gpu(to, from))
ROWS_ASYNC(cuMemcpyAsync, are_on_gpu(to, from))
COPIES_ASYNC(cuMemcpyWithAttributesAsync, bytes, are_on_gpu(to, from), COPY_1D, CUcopyAttributes *attributes)

static uint64_t sum_of(const size_t *bytes, size_t count)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += bytes[i];
    return sum;
}

/* All of a batch go the way of its first. */
#define BATCH_WITHIN count &&are_on_gpu(to[0], from[0])
COPIES_ASYNC(cuMemcpyBatchAsync, sum_of(bytes, count), BATCH_WITHIN, COPY_BATCH, size_t *failed)
COPIES_ASYNC(cuMemcpyBatchAsync_v2, sum_of(bytes, count), BATCH_WITHIN, COPY_BATCH)

#define BYTES_2D copy->width * copy->height
#define BYTES_3D copy->width * copy->height * copy->depth
#define SIDE(copy, side) is_on_gpu((copy)->side.type, (copy)->side.device)
#define WITHIN SIDE(copy, to) && SIDE(copy, from)
#define WITHIN_V1 is_on_gpu(copy->to_type, copy->to_device) && is_on_gpu(copy->from_type, copy->from_device)
COPIES(cuMemcpy2D_v2, BYTES_2D, WITHIN, const CUcopy2D *copy)
COPIES(cuMemcpy2DUnaligned_v2, BYTES_2D, WITHIN, const CUcopy2D *copy)
COPIES_ASYNC(cuMemcpy2DAsync_v2, BYTES_2D, WITHIN, const CUcopy2D *copy)
COPY(cuMemcpy2D, BYTES_2D, WITHIN_V1, const CUcopy2D_v1 *copy)
COPY(cuMemcpy2DUnaligned, BYTES_2D, WITHIN_V1, const CUcopy2D_v1 *copy)
COPY_ASYNC(cuMemcpy2DAsync, BYTES_2D, WITHIN_V1, const CUcopy2D_v1 *copy)
COPIES(cuMemcpy3D_v2, BYTES_3D, WITHIN, const CUcopy3D *copy)
COPIES_ASYNC(cuMemcpy3DAsync_v2, BYTES_3D, WITHIN, const CUcopy3D *copy)
COPIES(cuMemcpy3DPeer, BYTES_3D, WITHIN, const CUcopy3D *copy)
COPIES_ASYNC(cuMemcpy3DPeerAsync, BYTES_3D, WITHIN, const CUcopy3D *copy)
COPY(cuMemcpy3D, BYTES_3D, WITHIN, const CUcopy3D_v1 *copy)
COPY_ASYNC(cuMemcpy3DAsync, BYTES_3D, WITHIN, const CUcopy3D_v1 *copy)

static int is_operand_on_gpu(const CUoperand3D *operand)
{
    return is_on_gpu(operand->type == CU_OPERAND_ARRAY ? CU_MEMORY_ARRAY : CU_MEMORY_UNIFIED, operand->pointer);
}

static uint64_t sum_of_blocks(const CUcopyOperation3D *o, size_t count)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += o[i].width * o[i].height * o[i].depth;
    return sum;
}

#define WITHIN_ALL(o, n) (n) && is_operand_on_gpu(&(o)->to) && is_operand_on_gpu(&(o)->from)
#define BLOCKS sum_of_blocks(operations, count)
COPIES_ASYNC(cuMemcpy3DBatchAsync, BLOCKS, WITHIN_ALL(operations, count), COPY_BATCH_3D, size_t *failed,
             unsigned long long flags)
COPIES_ASYNC(cuMemcpy3DBatchAsync_v2, BLOCKS, WITHIN_ALL(operations, count), COPY_BATCH_3D, unsigned long long flags)
COPIES_ASYNC(cuMemcpy3DWithAttributesAsync, sum_of_blocks(operation, 1), WITHIN_ALL(operation, 1),
             CUcopyOperation3D *operation, unsigned long long flags)
