/* Questions about pointers: a block that may leave the GPU looks like the plain allocation that the program asked for,
 * wherever it lies. */
#include "lending.h"

enum { MEMORY_TYPE = CU_POINTER_MEMORY_TYPE, DEVICE_ORDINAL = 9, RANGE_START = 11, RANGE_SIZE = 12 };

/* Correct one answer of the driver's about an address in a block. */
static void correct(int attribute, void *value, CUdeviceptr base, uint64_t bytes)
{
    CUdevice device;
    if (attribute == MEMORY_TYPE)
        *(unsigned *)value = CU_MEMORY_DEVICE;
    if (attribute == RANGE_START)
        *(CUdeviceptr *)value = base;
    if (attribute == RANGE_SIZE)
        *(size_t *)value = bytes;
    if (attribute == DEVICE_ORDINAL && !real.cuCtxGetDevice(&device))
        *(int *)value = device;
}

static int is_ours(CUdeviceptr pointer, CUdeviceptr *base, uint64_t *bytes)
{
    return __builtin_expect(__atomic_load_n(&shim.lends, __ATOMIC_RELAXED), 0) && lending_finds(pointer, base, bytes);
}

CUresult cuPointerGetAttribute(void *value, int attribute, CUdeviceptr pointer)
{
    NEED_REAL(cuPointerGetAttribute);
    CUdeviceptr base;
    uint64_t bytes;
    CUresult result = BARRIER_CALL(real.cuPointerGetAttribute(value, attribute, pointer));
    if (!result && value && is_ours(pointer, &base, &bytes))
        correct(attribute, value, base, bytes);
    return result;
}

CUresult cuPointerGetAttributes(unsigned count, int *attributes, void **values, CUdeviceptr pointer)
{
    NEED_REAL(cuPointerGetAttributes);
    CUdeviceptr base;
    uint64_t bytes;
    CUresult result = BARRIER_CALL(real.cuPointerGetAttributes(count, attributes, values, pointer));
    if (!result && is_ours(pointer, &base, &bytes))
        for (unsigned i = 0; i < count; i++)
            if (values[i])
                correct(attributes[i], values[i], base, bytes);
    return result;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr pointer)
{
    NEED_REAL(cuMemGetAddressRange_v2);
    CUdeviceptr begin;
    uint64_t whole;
    if (!is_ours(pointer, &begin, &whole))
        return real.cuMemGetAddressRange_v2(base, bytes, pointer);
    if (base)
        *base = begin;
    if (bytes)
        *bytes = whole;
    return CUDA_SUCCESS;
}
