/* Copies of blocks of rows, in two and three dimensions. Each side states its kind: host memory, a GPU's, an array, or
 * a pointer whose kind the driver knows. */
#include "copy.h"

static int is_side_on_gpu(int type, CUdeviceptr device)
{
    return type == CU_MEMORY_DEVICE || type == CU_MEMORY_ARRAY || (type == CU_MEMORY_UNIFIED && copy_is_on_gpu(device));
}

static uint64_t counted_bytes(int to, CUdeviceptr to_device, int from, CUdeviceptr from_device, uint64_t bytes)
{
    int is_counted = shim_mode() == SHIM_ACTIVE && is_side_on_gpu(to, to_device) && is_side_on_gpu(from, from_device);
    return is_counted ? bytes : 0;
}

#define SIDES(c) (c)->to.type, (c)->to.device, (c)->from.type, (c)->from.device

static uint64_t bytes_2d(const CUcopy2D *c)
{
    return c ? counted_bytes(SIDES(c), (uint64_t)c->width * c->height) : 0;
}

static uint64_t bytes_2d_v1(const CUcopy2D_v1 *c)
{
    uint64_t bytes = c ? (uint64_t)c->width * c->height : 0;
    return c ? counted_bytes(c->to_type, c->to_device, c->from_type, c->from_device, bytes) : 0;
}

static uint64_t bytes_3d(const CUcopy3D *c)
{
    return c ? counted_bytes(SIDES(c), (uint64_t)c->width * c->height * c->depth) : 0;
}

static uint64_t bytes_3d_v1(const CUcopy3D_v1 *c)
{
    return c ? counted_bytes(SIDES(c), (uint64_t)c->width * c->height * c->depth) : 0;
}

COPIES(cuMemcpy2D_v2, bytes_2d(copy), LIST(const CUcopy2D *copy), LIST(copy))
COPIES(cuMemcpy2DUnaligned_v2, bytes_2d(copy), LIST(const CUcopy2D *copy), LIST(copy))
COPIES_ASYNC(cuMemcpy2DAsync_v2, bytes_2d(copy), LIST(const CUcopy2D *copy), LIST(copy))
COPY(cuMemcpy2D, 0, bytes_2d_v1(copy), (const CUcopy2D_v1 *copy), (copy))
COPY(cuMemcpy2DUnaligned, 0, bytes_2d_v1(copy), (const CUcopy2D_v1 *copy), (copy))
COPY_ASYNC(cuMemcpy2DAsync, 0, bytes_2d_v1(copy), (const CUcopy2D_v1 *copy, CUstream stream), (copy, stream))

COPIES(cuMemcpy3D_v2, bytes_3d(copy), LIST(const CUcopy3D *copy), LIST(copy))
COPIES_ASYNC(cuMemcpy3DAsync_v2, bytes_3d(copy), LIST(const CUcopy3D *copy), LIST(copy))
COPIES(cuMemcpy3DPeer, bytes_3d(copy), LIST(const CUcopy3D *copy), LIST(copy))
COPIES_ASYNC(cuMemcpy3DPeerAsync, bytes_3d(copy), LIST(const CUcopy3D *copy), LIST(copy))
COPY(cuMemcpy3D, 0, bytes_3d_v1(copy), (const CUcopy3D_v1 *copy), (copy))
COPY_ASYNC(cuMemcpy3DAsync, 0, bytes_3d_v1(copy), (const CUcopy3D_v1 *copy, CUstream stream), (copy, stream))

static int type_of(const CUoperand3D *operand)
{
    return operand->type == CU_OPERAND_ARRAY ? CU_MEMORY_ARRAY : CU_MEMORY_UNIFIED;
}

/* The width of an array is in elements, of up to 16 bytes: precise enough for a prediction. */
static uint64_t bytes_of_all(const CUcopyOperation3D *operations, size_t count)
{
    uint64_t sum = 0;
    for (size_t i = 0; operations && i < count; i++) {
        const CUcopyOperation3D *o = &operations[i];
        sum += counted_bytes(type_of(&o->to), o->to.pointer, type_of(&o->from), o->from.pointer,
                             (uint64_t)o->width * o->height * o->depth);
    }
    return sum;
}

#define ALL bytes_of_all(operations, count)
COPIES_ASYNC(cuMemcpy3DBatchAsync, ALL, LIST(COPY_BATCH_3D, size_t *failed, unsigned long long flags),
             LIST(count, operations, failed, flags))
COPIES_ASYNC(cuMemcpy3DBatchAsync_v2, ALL, LIST(COPY_BATCH_3D, unsigned long long flags),
             LIST(count, operations, flags))
COPIES_ASYNC(cuMemcpy3DWithAttributesAsync, bytes_of_all(operation, 1),
             LIST(CUcopyOperation3D *operation, unsigned long long flags), LIST(operation, flags))
