/* Copies, of the driver's ABI: see driver.h, which includes this. Memory is named by a pointer, or by one side of a block of
 * rows that may lie on the host, on a GPU or in an array. */
#ifndef VCUDA_DRIVER_COPIES_H
#define VCUDA_DRIVER_COPIES_H

enum { CU_MEMORY_HOST = 1, CU_MEMORY_DEVICE = 2, CU_MEMORY_ARRAY = 3, CU_MEMORY_UNIFIED = 4 };
enum { CU_POINTER_MEMORY_TYPE = 2 };
enum { CU_OPERAND_POINTER = 1, CU_OPERAND_ARRAY = 2 };

typedef struct {
    size_t x, y;
    int type;
    const void *host;
    CUdeviceptr device;
    CUarray array;
    size_t pitch;
} CUside2D;
typedef struct {
    CUside2D from, to;
    size_t width, height; /* bytes, rows */
} CUcopy2D;
typedef struct {
    size_t x, y, z, level;
    int type;
    const void *host;
    CUdeviceptr device;
    CUarray array;
    CUcontext context; /* of copies between GPUs; else reserved */
    size_t pitch, height;
} CUside3D;
typedef struct {
    CUside3D from, to;
    size_t width, height, depth;
} CUcopy3D;
/* The sides of the first version have no padding between them. */
typedef struct {
    unsigned from_x, from_y;
    int from_type;
    const void *from_host;
    CUdeviceptr_v1 from_device;
    CUarray from_array;
    unsigned from_pitch, to_x, to_y;
    int to_type;
    void *to_host;
    CUdeviceptr_v1 to_device;
    CUarray to_array;
    unsigned to_pitch, width, height;
} CUcopy2D_v1;
typedef struct {
    unsigned x, y, z, level;
    int type;
    const void *host;
    CUdeviceptr_v1 device;
    CUarray array;
    void *reserved;
    unsigned pitch, height;
} CUside3D_v1;
typedef struct {
    CUside3D_v1 from, to;
    unsigned width, height, depth;
} CUcopy3D_v1;
typedef struct {
    int order;
    CUlocation from, to;
    unsigned flags;
} CUcopyAttributes;
typedef struct {
    int type;
    union {
        struct {
            CUdeviceptr pointer;
            size_t row, layer;
            CUlocation hint;
        };
        struct {
            CUarray array;
            size_t x, y, z;
        };
    };
} CUoperand3D;
typedef struct {
    CUoperand3D from, to;
    size_t width, height, depth;
    int order;
    unsigned flags;
} CUcopyOperation3D;
_Static_assert(sizeof(CUcopy2D) == 128 && sizeof(CUcopy3D) == 200 && sizeof(CUcopy2D_v1) == 96, "driver ABI");
_Static_assert(sizeof(CUcopy3D_v1) == 144 && sizeof(CUcopyAttributes) == 24, "driver ABI");
_Static_assert(sizeof(CUcopyOperation3D) == 112 && sizeof(CUoperand3D) == 40, "driver ABI");

CUresult cuPointerGetAttribute(void *value, int attribute, CUdeviceptr pointer);
CUresult cuPointerGetAttributes(unsigned count, int *attributes, void **values, CUdeviceptr pointer);
CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr pointer);

/* Between the host and a GPU. */
VCUDA_BOTH(ptds, cuMemcpyHtoD_v2, CUdeviceptr to, const void *from, size_t bytes);
VCUDA_BOTH(ptds, cuMemcpyDtoH_v2, void *to, CUdeviceptr from, size_t bytes);
VCUDA_BOTH(ptsz, cuMemcpyHtoDAsync_v2, CUdeviceptr to, const void *from, size_t bytes, CUstream stream);
VCUDA_BOTH(ptsz, cuMemcpyDtoHAsync_v2, void *to, CUdeviceptr from, size_t bytes, CUstream stream);

/* Within a GPU's memory, or between GPUs. */
#define COPY_1D CUdeviceptr to, CUdeviceptr from, size_t bytes
VCUDA_BOTH(ptds, cuMemcpyDtoD_v2, COPY_1D);
VCUDA_BOTH(ptsz, cuMemcpyDtoDAsync_v2, COPY_1D, CUstream stream);
CUresult cuMemcpyDtoD(CUdeviceptr_v1 to, CUdeviceptr_v1 from, unsigned bytes);
CUresult cuMemcpyDtoDAsync(CUdeviceptr_v1 to, CUdeviceptr_v1 from, unsigned bytes, CUstream stream);
#define COPY_PEER CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes
VCUDA_BOTH(ptds, cuMemcpyPeer, COPY_PEER);
VCUDA_BOTH(ptsz, cuMemcpyPeerAsync, COPY_PEER, CUstream stream);
VCUDA_BOTH(ptds, cuMemcpyDtoA_v2, CUarray to, size_t to_offset, CUdeviceptr from, size_t bytes);
VCUDA_BOTH(ptds, cuMemcpyAtoD_v2, CUdeviceptr to, CUarray from, size_t from_offset, size_t bytes);
VCUDA_BOTH(ptds, cuMemcpyAtoA_v2, CUarray to, size_t to_offset, CUarray from, size_t from_offset, size_t bytes);
CUresult cuMemcpyDtoA(CUarray to, unsigned to_offset, CUdeviceptr_v1 from, unsigned bytes);
CUresult cuMemcpyAtoD(CUdeviceptr_v1 to, CUarray from, unsigned from_offset, unsigned bytes);
CUresult cuMemcpyAtoA(CUarray to, unsigned to_offset, CUarray from, unsigned from_offset, unsigned bytes);

/* Wherever the pointers, or the sides, say. */
VCUDA_BOTH(ptds, cuMemcpy, COPY_1D);
VCUDA_BOTH(ptsz, cuMemcpyAsync, COPY_1D, CUstream stream);
VCUDA_BOTH(ptsz, cuMemcpyWithAttributesAsync, COPY_1D, CUcopyAttributes *attributes, CUstream stream);
#define COPY_BATCH                                                                                                     \
    CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count, CUcopyAttributes *attributes, size_t *indices,    \
        size_t attribute_count
VCUDA_BOTH(ptsz, cuMemcpyBatchAsync, COPY_BATCH, size_t *failed, CUstream stream);
VCUDA_BOTH(ptsz, cuMemcpyBatchAsync_v2, COPY_BATCH, CUstream stream);
VCUDA_BOTH(ptds, cuMemcpy2D_v2, const CUcopy2D *copy);
VCUDA_BOTH(ptds, cuMemcpy2DUnaligned_v2, const CUcopy2D *copy);
VCUDA_BOTH(ptsz, cuMemcpy2DAsync_v2, const CUcopy2D *copy, CUstream stream);
CUresult cuMemcpy2D(const CUcopy2D_v1 *copy);
CUresult cuMemcpy2DUnaligned(const CUcopy2D_v1 *copy);
CUresult cuMemcpy2DAsync(const CUcopy2D_v1 *copy, CUstream stream);
VCUDA_BOTH(ptds, cuMemcpy3D_v2, const CUcopy3D *copy);
VCUDA_BOTH(ptsz, cuMemcpy3DAsync_v2, const CUcopy3D *copy, CUstream stream);
VCUDA_BOTH(ptds, cuMemcpy3DPeer, const CUcopy3D *copy);
VCUDA_BOTH(ptsz, cuMemcpy3DPeerAsync, const CUcopy3D *copy, CUstream stream);
CUresult cuMemcpy3D(const CUcopy3D_v1 *copy);
CUresult cuMemcpy3DAsync(const CUcopy3D_v1 *copy, CUstream stream);
#define COPY_BATCH_3D size_t count, CUcopyOperation3D *operations
VCUDA_BOTH(ptsz, cuMemcpy3DBatchAsync, COPY_BATCH_3D, size_t *failed, unsigned long long flags, CUstream stream);
VCUDA_BOTH(ptsz, cuMemcpy3DBatchAsync_v2, COPY_BATCH_3D, unsigned long long flags, CUstream stream);
VCUDA_BOTH(ptsz, cuMemcpy3DWithAttributesAsync, CUcopyOperation3D *operation, unsigned long long flags,
           CUstream stream);

#endif
