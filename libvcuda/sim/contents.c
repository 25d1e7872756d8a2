/* What physical memory holds: copies and fills of it are real, as of all simulated device memory nothing else is. The bytes
 * move when the call is made; that the work takes its time in the stream is apart from that. */
#include "memory.h"
#include "physical.h"

#include <string.h>

/* Return the bytes at one side of a copy: mapped physical memory, or the host's; NULL: simulated memory without contents. */
static uint8_t *side(CUdeviceptr pointer, int write, uint64_t *room, int *known)
{
    unsigned type = 0;
    uint8_t *found = sim_bytes_at(pointer, write, room, known);
    if (*known)
        return found;
    return cuPointerGetAttribute(&type, CU_POINTER_MEMORY_TYPE, pointer) ? (uint8_t *)(uintptr_t)pointer : NULL;
}

CUresult sim_move_bytes(CUdeviceptr to, CUdeviceptr from, uint64_t bytes)
{
    while (bytes) {
        uint64_t to_room = bytes, from_room = bytes;
        int to_known, from_known;
        uint8_t *source = side(from, 0, &from_room, &from_known);
        uint8_t *target = side(to, source != NULL, &to_room, &to_known);
        if (to_known == 1 || from_known == 1)
            return CUDA_ERROR_INVALID_VALUE; /* reserved, and nothing is mapped there */
        if (!to_known && !from_known)
            return CUDA_SUCCESS;
        uint64_t part = bytes < to_room ? bytes : to_room;
        part = part < from_room ? part : from_room;
        if (source && target)
            memcpy(target, source, part);
        to += part;
        from += part;
        bytes -= part;
    }
    return CUDA_SUCCESS;
}

CUresult sim_fill_bytes(CUdeviceptr to, const void *value, unsigned width, uint64_t bytes)
{
    while (bytes) {
        uint64_t room = bytes;
        int known;
        uint8_t *target = sim_bytes_at(to, 1, &room, &known);
        if (known < 2)
            return known ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
        uint64_t part = bytes < room ? bytes : room;
        for (uint64_t i = 0; target && i + width <= part; i += width)
            memcpy(target + i, value, width);
        to += part;
        bytes -= part;
    }
    return CUDA_SUCCESS;
}

CUresult cuPointerGetAttributes(unsigned count, int *attributes, void **values, CUdeviceptr pointer)
{
    for (unsigned i = 0; i < count; i++)
        if (attributes[i] == CU_POINTER_MEMORY_TYPE)
            cuPointerGetAttribute(values[i], attributes[i], pointer);
    return CUDA_SUCCESS;
}
