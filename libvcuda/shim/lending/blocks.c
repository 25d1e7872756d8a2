/* Blocks: allocations of a claim that borrows, served from virtual memory management, so that they can leave the GPU and
 * come back at the same address.
 *
 * A block consists of pieces, which move one by one. Each has its place in pinned host memory from the beginning: memory is
 * borrowed only if it can leave within the time that its owner waits. Without a place, or where the driver cannot do it, the
 * allocation is an ordinary one, which must fit what is promised (account.c). What the GPU has no room for now begins in its
 * place, and so does all while owners want memory and shortly after: a program that was let begin goes on. */
#include "lending.h"

#include "account.h"
#include "meter.h"

#include <pthread.h>
#include <stdlib.h>

/* What a program's frameworks ask the driver for is mostly this or more; below, the driver shares granules. */
#define LEAST_BYTES (2ull << 20)
#define GRANULE (2ull << 20)
#define PIECE_BYTES (256ull << 20)
/* As long as the arbiter lets nothing come back. */
#define WANTED_NS 2000000000ull

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
struct block *lending_blocks;

void lending_lock(void)
{
    pthread_mutex_lock(&mutex);
}

void lending_unlock(void)
{
    pthread_mutex_unlock(&mutex);
}

/* Return the slot if an allocation of the current context can be served here; < 0. A claim of several GPUs may copy from one
 * to another by addresses that these blocks have on one only; work of a context that is not known is not waited for. */
static int slot_for(size_t bytes, CUcontext *context, CUdevice *device)
{
    if (bytes < LEAST_BYTES || !account_by_kernel() || __atomic_load_n(&shim.gpus_open, __ATOMIC_RELAXED) != 1 ||
        __atomic_load_n(&shim.captures, __ATOMIC_RELAXED) || !real.cuMemSetAccess || !real.cuMemAddressReserve ||
        !real.cuMemcpyAsync)
        return -1;
    int slot = shim_slot_of_current(context);
    return slot < 0 || !contexts_know(*context) || real.cuCtxGetDevice(device) ? -1 : slot;
}

static struct block *make_block(size_t bytes, CUcontext context)
{
    uint64_t whole = (bytes + GRANULE - 1) / GRANULE * GRANULE;
    unsigned count = (unsigned)((whole + PIECE_BYTES - 1) / PIECE_BYTES);
    struct block *block = calloc(1, sizeof *block + count * sizeof *block->piece);
    if (!block)
        return NULL;
    *block = (struct block){.asked = bytes, .bytes = whole, .context = context, .count = count};
    for (unsigned i = 0; i < count; i++)
        block->piece[i].bytes = i + 1 < count ? PIECE_BYTES : whole - i * PIECE_BYTES;
    return block;
}

static void end_block(struct block *block)
{
    CUdeviceptr at = block->at;
    for (unsigned i = 0; i < block->count; at += block->piece[i++].bytes) {
        struct piece *piece = &block->piece[i];
        if (piece->moved_ns && (!piece->out || piece->host))
            real.cuMemUnmap(at, piece->bytes);
        piece_end(piece);
    }
    if (block->at)
        real.cuMemAddressFree(block->at, block->bytes);
    free(block);
}

/* The GPU has no room for a piece, and the claim may have it: it begins in its place, where kernels reach it. */
static CUresult begin_outside(CUdeviceptr at, struct piece *piece)
{
    if (!piece->host)
        return CUDA_ERROR_OUT_OF_MEMORY;
    __atomic_fetch_add(&shim.self->out_bytes, piece->bytes, __ATOMIC_SEQ_CST);
    piece->out = 1; /* piece_end gives it back */
    return account_over((int)lending_slot()) ? CUDA_ERROR_OUT_OF_MEMORY : piece_map(at, piece, piece->host);
}

int lending_is_wanted(void)
{
    const struct vcuda_turns *turns = __atomic_load_n(&shim.turns, __ATOMIC_ACQUIRE);
    if (!turns)
        return 0;
    const struct vcuda_memory_turn *turn = &turns->memory[lending_slot()];
    uint64_t at = __atomic_load_n(&turn->wanted_ns, __ATOMIC_SEQ_CST), now = shim_page_now();
    return __atomic_load_n(&turn->give_bytes, __ATOMIC_SEQ_CST) || (at && (at >= now || now - at < WANTED_NS));
}

/* Fill a block; OUT_OF_MEMORY if the limit or the GPU has no room, NOT_SUPPORTED if it must be an ordinary allocation. */
static CUresult fill_block(struct block *block)
{
    for (unsigned i = 0; i < block->count; i++)
        if (piece_make_host(&block->piece[i]))
            return CUDA_ERROR_NOT_SUPPORTED;
    CUresult result = real.cuMemAddressReserve(&block->at, block->bytes, 0, 0, 0);
    CUdeviceptr at = block->at;
    for (unsigned i = 0; i < block->count && !result; at += block->piece[i++].bytes) {
        struct piece *piece = &block->piece[i];
        result = piece->host && lending_is_wanted() ? CUDA_ERROR_OUT_OF_MEMORY : piece_make_device(piece);
        if (!result)
            result = piece_map(at, piece, piece->device);
        else if (result == CUDA_ERROR_OUT_OF_MEMORY)
            result = begin_outside(at, piece);
        piece->moved_ns = result ? 0 : shim_now();
    }
    return result;
}

int lending_takes(CUdeviceptr *pointer, size_t bytes, CUresult *result)
{
    CUcontext context;
    CUdevice device;
    int slot = pointer ? slot_for(bytes, &context, &device) : -1;
    if (slot < 0 || !shim_attach())
        return 0;
    if ((*result = account_pass()))
        return 1;
    if (!reclaim_is_watched(slot))
        return 0;
    __atomic_store_n(&shim.self->lending_slot, (uint32_t)slot, __ATOMIC_RELEASE);
    piece_set_device(device);
    struct block *block = make_block(bytes, context);
    if (!block)
        return 0;
    *result = fill_block(block);
    if (*result) {
        end_block(block);
        return *result == CUDA_ERROR_OUT_OF_MEMORY;
    }
    *pointer = block->at;
    lending_lock();
    block->next = lending_blocks;
    lending_blocks = block;
    lending_unlock();
    __atomic_store_n(&shim.lends, 1, __ATOMIC_SEQ_CST);
    borrower_start();
    return 1;
}

static struct block *take_block(CUdeviceptr pointer)
{
    lending_lock();
    struct block **at = &lending_blocks;
    while (*at && (*at)->at != pointer)
        at = &(*at)->next;
    struct block *found = *at;
    if (found)
        *at = found->next;
    lending_unlock();
    return found;
}

int lending_frees(CUdeviceptr pointer, CUresult *result)
{
    struct block *block = pointer ? take_block(pointer) : NULL;
    if (!block)
        return 0;
    CUcontext popped;
    int begun = meter_begin_wait_all(), entered = !real.cuCtxPushCurrent_v2(block->context);
    *result = real.cuCtxSynchronize();
    if (entered)
        real.cuCtxPopCurrent_v2(&popped);
    meter_end_wait_all(begun);
    end_block(block);
    return 1;
}

int lending_finds(CUdeviceptr pointer, CUdeviceptr *base, uint64_t *bytes)
{
    lending_lock();
    const struct block *block = lending_blocks;
    while (block && (pointer < block->at || pointer - block->at >= block->bytes))
        block = block->next;
    if (block) {
        *base = block->at;
        *bytes = block->asked;
    }
    lending_unlock();
    return block != NULL;
}

void lending_forget_context(CUcontext context)
{
    struct block *gone = NULL;
    lending_lock();
    contexts_drop(context);
    moves_forget_context(context);
    for (struct block **at = &lending_blocks; *at;) {
        struct block *block = *at;
        if (context && block->context != context) {
            at = &block->next;
            continue;
        }
        *at = block->next;
        block->next = gone;
        gone = block;
    }
    lending_unlock();
    while (gone) {
        struct block *next = gone->next;
        end_block(gone);
        gone = next;
    }
}

void lending_forget(void)
{
    pthread_mutex_init(&mutex, NULL);
    contexts_drop(NULL);
    moves_forget_context(NULL);
    lending_blocks = NULL;
    shim.lends = 0;
    account_movable = 0;
    barrier_forget();
    borrower_forget();
}
