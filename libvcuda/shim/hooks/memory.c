/* Plain, pitched and managed memory, and arrays: reserve, call the driver, remember the cost of the block. If the
 * kernel's calls account (kernel.c), only managed memory is charged here. */
#include "account.h"
#include "lending.h"

struct taking {
    int slot; /* < 0: not accounted */
    int managed;
    uint64_t bytes, charged;
};

/* Managed memory has granules of its own. */
static uint64_t *small_total(int slot, int managed)
{
    return managed ? &shim.gpu[slot].small_managed_bytes : &shim.gpu[slot].small_bytes;
}

/* Charge the cost of `t->bytes` to the GPU of the current context. */
static CUresult take_charged(struct taking *t)
{
    int slot = shim_slot_of_current(NULL);
    if (slot == -2)
        return CUDA_SUCCESS; /* no context: the driver returns that error itself */
    if (slot < 0 || !shim_attach())
        return CUDA_ERROR_NOT_PERMITTED;
    /* With a context that did not pass the kernel's boundary, the hooks keep the account. */
    if (!account_enter_calls(slot) && !t->managed)
        return account_pass();
    __atomic_fetch_add(&shim.memory_begun, 1, __ATOMIC_SEQ_CST);
    t->charged = account_charge(small_total(slot, t->managed), t->bytes, 1);
    CUresult result = account_reserve(slot, t->charged);
    if (result) {
        account_charge(small_total(slot, t->managed), t->bytes, -1);
        __atomic_fetch_add(&shim.memory_ended, 1, __ATOMIC_SEQ_CST);
        return result;
    }
    if (t->managed)
        __atomic_fetch_add(&shim_usage(slot)->managed_bytes, t->charged, __ATOMIC_SEQ_CST);
    t->slot = slot;
    return CUDA_SUCCESS;
}

static CUresult take(struct taking *t, uint64_t bytes)
{
    *t = (struct taking){.slot = -1, .bytes = bytes};
    if (shim_mode() != SHIM_ACTIVE || bytes == 0)
        return CUDA_SUCCESS;
    return account_by_kernel() ? account_pass() : take_charged(t);
}

static void give_back(const struct charge *c)
{
    uint64_t refund = account_charge(small_total(c->slot, c->managed), c->bytes, -1);
    refund = c->bytes > (1ull << 20) ? c->charged : refund;
    if (c->managed)
        __atomic_fetch_sub(&shim_usage(c->slot)->managed_bytes, refund, __ATOMIC_SEQ_CST);
    account_refund(c->slot, refund);
}

/* After the driver's call: keep the charge under the block's key, or give it back. */
static CUresult settle(struct taking *t, CUresult result, uint64_t key)
{
    if (t->slot < 0)
        return result;
    struct charge charge = {key, t->bytes, t->charged, t->slot, t->managed};
    /* Without room to remember it, the charge stays for the process's life: charging too much is safe, too little is
     * not. */
    if (result)
        give_back(&charge);
    else if (table_put(&table_blocks, &charge) && t->managed)
        __atomic_fetch_add(&shim.managed_blocks, 1, __ATOMIC_RELEASE);
    __atomic_fetch_add(&shim.memory_ended, 1, __ATOMIC_SEQ_CST);
    return result;
}

/* Return 1 if frees pass because nothing was charged here. */
static int frees_pass(void)
{
    return shim_mode() != SHIM_ACTIVE ||
           (account_by_kernel() && !__atomic_load_n(&shim.managed_blocks, __ATOMIC_ACQUIRE));
}

/* Forget the block before the driver frees it: afterwards another thread may get the same address. */
static CUresult free_block(uint64_t key, struct charge *charge)
{
    __atomic_fetch_add(&shim.memory_begun, 1, __ATOMIC_SEQ_CST);
    if (!table_take(&table_blocks, key, charge))
        return CUDA_ERROR_NOT_FOUND;
    if (charge->managed)
        __atomic_fetch_sub(&shim.managed_blocks, 1, __ATOMIC_RELEASE);
    return CUDA_SUCCESS;
}

static CUresult freed(CUresult found, const struct charge *charge, CUresult result)
{
    if (!found && !result)
        give_back(charge);
    else if (!found && table_put(&table_blocks, charge) && charge->managed)
        __atomic_fetch_add(&shim.managed_blocks, 1, __ATOMIC_RELEASE);
    __atomic_fetch_add(&shim.memory_ended, 1, __ATOMIC_SEQ_CST);
    return result;
}

static inline int borrows(void)
{
    return __builtin_expect(__atomic_load_n(&shim.borrows, __ATOMIC_RELAXED), 0);
}

static inline int lends(void)
{
    return __builtin_expect(__atomic_load_n(&shim.lends, __ATOMIC_RELAXED), 0);
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes)
{
    NEED_REAL(cuMemAlloc_v2);
    struct taking t;
    CUresult result;
    if (borrows() && lending_takes(pointer, bytes, &result))
        return result;
    result = take(&t, bytes);
    if (result)
        return result;
    result = real.cuMemAlloc_v2(pointer, bytes);
    return settle(&t, result, result ? 0 : *pointer);
}

/* The block has `bytes`, more than was charged: charge the rest too, or give everything back. */
static CUresult take_rest(struct taking *t, uint64_t bytes)
{
    uint64_t *total = small_total(t->slot, t->managed);
    /* Remove the old size from the running totals and add the new one: the charge changes by the difference. */
    uint64_t old = account_charge(total, t->bytes, -1), new = account_charge(total, bytes, 1);
    CUresult result = new > old ? account_reserve(t->slot, new - old) : CUDA_SUCCESS;
    if (!result && new < old)
        account_refund(t->slot, old - new);
    if (!result) {
        t->bytes = bytes;
        t->charged = new;
        return CUDA_SUCCESS;
    }
    /* Other threads may have changed the totals meanwhile: correct for the sum of the four steps (modulo 2^64). */
    uint64_t out = account_charge(total, bytes, -1), in = account_charge(total, t->bytes, 1);
    account_refund(t->slot, old + out - new - in);
    return result;
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned element)
{
    NEED_REAL(cuMemAllocPitch_v2);
    struct taking t;
    uint64_t padded = (width + 511) / 512 * 512;
    CUresult answer;
    if (borrows() && pitch && lending_takes(pointer, padded * height, &answer)) {
        *pitch = padded;
        return answer;
    }
    /* Rows are padded to 512 bytes on every GPU so far; if the driver pads more, the rest is charged after the call. */
    CUresult result = take(&t, padded * height);
    if (result)
        return result;
    result = real.cuMemAllocPitch_v2(pointer, pitch, width, height, element);
    if (!result && t.slot >= 0 && *pitch * height > t.bytes) {
        result = take_rest(&t, *pitch * height);
        if (result)
            real.cuMemFree_v2(*pointer);
    }
    return settle(&t, result, result ? 0 : *pointer);
}

/* Always charged here: another kernel driver owns this memory, and NVML does not count it. */
CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned flags)
{
    NEED_REAL(cuMemAllocManaged);
    struct taking t = {.slot = -1, .managed = 1, .bytes = bytes};
    CUresult result = shim_mode() == SHIM_ACTIVE && bytes ? take_charged(&t) : CUDA_SUCCESS;
    if (result)
        return result;
    result = real.cuMemAllocManaged(pointer, bytes, flags);
    return settle(&t, result, result ? 0 : *pointer);
}

CUresult cuMemFree_v2(CUdeviceptr pointer)
{
    NEED_REAL(cuMemFree_v2);
    struct charge charge;
    CUresult result;
    if (lends() && lending_frees(pointer, &result))
        return result;
    if (frees_pass())
        return real.cuMemFree_v2(pointer);
    CUresult found = free_block(pointer, &charge);
    return freed(found, &charge, real.cuMemFree_v2(pointer));
}

/* The first version, with 32-bit addresses and sizes. */
CUresult cuMemAlloc(CUdeviceptr_v1 *pointer, unsigned bytes)
{
    NEED_REAL(cuMemAlloc);
    struct taking t;
    CUresult result = take(&t, bytes);
    if (result)
        return result;
    result = real.cuMemAlloc(pointer, bytes);
    return settle(&t, result, result ? 0 : *pointer);
}

CUresult cuMemAllocPitch(CUdeviceptr_v1 *pointer, unsigned *pitch, unsigned width, unsigned height, unsigned element)
{
    NEED_REAL(cuMemAllocPitch);
    struct taking t;
    CUresult result = take(&t, ((uint64_t)width + 511) / 512 * 512 * height);
    if (result)
        return result;
    result = real.cuMemAllocPitch(pointer, pitch, width, height, element);
    if (!result && t.slot >= 0 && (uint64_t)*pitch * height > t.bytes) {
        result = take_rest(&t, (uint64_t)*pitch * height);
        if (result)
            real.cuMemFree(*pointer);
    }
    return settle(&t, result, result ? 0 : *pointer);
}

CUresult cuMemFree(CUdeviceptr_v1 pointer)
{
    NEED_REAL(cuMemFree);
    struct charge charge;
    if (frees_pass())
        return real.cuMemFree(pointer);
    CUresult found = free_block(pointer, &charge);
    return freed(found, &charge, real.cuMemFree(pointer));
}

/* A program may free a plain block this way too; a block of a pool returns to its pool, where it stays charged. */
#define FREE_ASYNC(name)                                                                                               \
    CUresult name(CUdeviceptr pointer, CUstream stream)                                                                \
    {                                                                                                                  \
        NEED_REAL(name);                                                                                               \
        struct charge charge;                                                                                          \
        CUresult result;                                                                                               \
        if (lends() && lending_frees(pointer, &result))                                                                \
            return result;                                                                                             \
        if (frees_pass())                                                                                              \
            return real.name(pointer, stream);                                                                         \
        CUresult found = free_block(pointer, &charge);                                                                 \
        return freed(found, &charge, real.name(pointer, stream));                                                      \
    }
FREE_ASYNC(cuMemFreeAsync)
FREE_ASYNC(cuMemFreeAsync_ptsz)

static uint64_t element_bytes(unsigned format)
{
    switch (format) {
    case 0x01:
    case 0x08:
        return 1; /* 8-bit integers */
    case 0x03:
    case 0x0a:
    case 0x20:
        return 4; /* 32-bit integers, float */
    default:
        return 2; /* 16-bit integers, half */
    }
}

static uint64_t array_bytes(size_t width, size_t height, size_t depth, unsigned format, unsigned channels)
{
    return width * (height ? height : 1) * (depth ? depth : 1) * channels * element_bytes(format);
}

/* Arrays never share granules. */
static uint64_t round_to_granules(uint64_t bytes)
{
    return bytes <= (1ull << 20) ? (1ull << 20) + 1 : bytes;
}

#define ARRAY(name, descriptor, depth_of)                                                                              \
    CUresult name(CUarray *array, const descriptor *d)                                                                 \
    {                                                                                                                  \
        NEED_REAL(name);                                                                                               \
        struct taking t;                                                                                               \
        CUresult result =                                                                                              \
            take(&t, d ? round_to_granules(array_bytes(d->width, d->height, depth_of, d->format, d->channels)) : 0);   \
        if (result)                                                                                                    \
            return result;                                                                                             \
        result = real.name(array, d);                                                                                  \
        return settle(&t, result, result ? 0 : (uint64_t)(uintptr_t)*array);                                           \
    }
ARRAY(cuArrayCreate, CUarrayDescriptor_v1, 0)
ARRAY(cuArrayCreate_v2, CUarrayDescriptor, 0)
ARRAY(cuArray3DCreate, CUarray3DDescriptor_v1, d->depth)
ARRAY(cuArray3DCreate_v2, CUarray3DDescriptor, d->depth)

CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUarray3DDescriptor *d, unsigned levels)
{
    NEED_REAL(cuMipmappedArrayCreate);
    struct taking t;
    uint64_t bytes = d ? array_bytes(d->width, d->height, d->depth, d->format, d->channels) : 0;
    CUresult result = take(&t, d ? round_to_granules(levels > 1 ? bytes + bytes / 3 : bytes) : 0);
    if (result)
        return result;
    result = real.cuMipmappedArrayCreate(array, d, levels);
    return settle(&t, result, result ? 0 : (uint64_t)(uintptr_t)*array);
}

CUresult cuArrayDestroy(CUarray array)
{
    NEED_REAL(cuArrayDestroy);
    struct charge charge;
    if (frees_pass())
        return real.cuArrayDestroy(array);
    CUresult found = free_block((uint64_t)(uintptr_t)array, &charge);
    return freed(found, &charge, real.cuArrayDestroy(array));
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array)
{
    NEED_REAL(cuMipmappedArrayDestroy);
    struct charge charge;
    if (frees_pass())
        return real.cuMipmappedArrayDestroy(array);
    CUresult found = free_block((uint64_t)(uintptr_t)array, &charge);
    return freed(found, &charge, real.cuMipmappedArrayDestroy(array));
}
