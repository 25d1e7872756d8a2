/* Overhead: contexts, and all other memory that NVML shows and no allocation explains.
 *
 * If the hooks account, this is how contexts, modules and stacks are counted at all: a context's cost is reserved in
 * advance (the cost of the claim's last one; for the first, all the room that a context could take), and NVML's figure
 * trues it up. If the kernel's calls account there is nothing to add, and NVML's figure only shows what they missed. */
#include "kernel.h"
#include "pools.h"
#include "account.h"

#include <time.h>

/* No context of any driver so far costs more; a greater difference belongs to another tenant. */
#define CONTEXT_MAX (2048ll << 20)
/* The longest wait of a second context for the cost of the first one. */
#define FIRST_CONTEXT_NS 3000000000ull
/* NVML takes the driver's locks, and the kernel's account is exact by itself. */
#define CROSS_CHECK_NS 10000000000ull

static uint64_t load(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_SEQ_CST);
}

/* Return what NVML should show of this process without its overhead: managed memory is not in its figure. */
static uint64_t known_bytes(int slot, uint64_t pending)
{
    const struct vcuda_gpu_usage *mine = shim_usage(slot);
    return load(&mine->memory_bytes) - load(&mine->managed_bytes) - pending;
}

/* The GPU's use before a first context, for use where NVML does not list this process (another pid namespace). */
static _Thread_local int64_t device_before;

static uint64_t measured_context(int slot, uint64_t pending)
{
    int64_t seen = nvml_process_bytes(slot);
    uint64_t known = known_bytes(slot, pending) + shim.gpu[slot].context_base;
    if (seen >= 0)
        return (uint64_t)seen > known ? (uint64_t)seen - known : 0;
    int64_t after = nvml_device_bytes(slot), grown = after - device_before;
    if (device_before < 0 || after < 0 || grown < 0)
        return 0;
    return (uint64_t)(grown < CONTEXT_MAX ? grown : CONTEXT_MAX);
}

/* Reserve for the first context of this claim, whose cost is unknown: take all the room it could need, so that of two
 * first contexts created at once the second waits until the first is measured. */
static CUresult reserve_first(int slot, uint64_t *reserved)
{
    uint64_t give_up = shim_now() + FIRST_CONTEXT_NS;
    const uint64_t *hint = &shim.usage->bucket[slot].context_hint_bytes;
    for (;;) {
        CUresult open = account_reserve(slot, 0);
        if (open)
            return open;
        *reserved = account_take_room(slot, CONTEXT_MAX);
        /* In this order: room is returned after the cost is known. The rest may be less than a context takes. */
        uint64_t cost = load(hint);
        if (cost) {
            account_refund(slot, *reserved);
            *reserved = cost;
            return account_reserve(slot, cost);
        }
        if (*reserved)
            return CUDA_SUCCESS;
        if (shim_now() > give_up) {
            *reserved = 1;
            return account_reserve(slot, *reserved);
        }
        vcuda_usage_reap_dead(shim.usage);
        struct timespec pause = {0, 1000000 + (long)(shim_now() % 3000000)};
        nanosleep(&pause, NULL);
    }
}

CUresult account_context_begin(int slot, uint64_t *reserved)
{
    *reserved = 0;
    if (!shim_attach())
        return CUDA_ERROR_NOT_PERMITTED;
    shim_refresh();
    uint64_t hint = load(&shim.usage->bucket[slot].context_hint_bytes);
    CUresult result;
    if (account_by_kernel() || (!hint && kernel_watches(slot)))
        return __atomic_load_n(&shim.gpu[slot].state, __ATOMIC_RELAXED) == VCUDA_SLOT_OPEN ? CUDA_SUCCESS
                                                                                           : CUDA_ERROR_NOT_PERMITTED;
    if (hint) {
        *reserved = hint;
        result = account_reserve(slot, hint);
    } else {
        device_before = nvml_device_bytes(slot);
        result = reserve_first(slot, reserved);
    }
    if (!result)
        __atomic_fetch_add(&shim.gpu[slot].context_reserved, *reserved, __ATOMIC_SEQ_CST);
    return result;
}

/* Return the rest of the reservation: nothing if the kernel's calls became the account meanwhile. */
static uint64_t still_reserved(int slot, uint64_t reserved)
{
    uint64_t *pending = &shim.gpu[slot].context_reserved, seen = load(pending);
    while (seen >= reserved)
        if (__atomic_compare_exchange_n(pending, &seen, seen - reserved, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
            return reserved;
    return 0;
}

/* The context exists (or failed): turn the reservation into measured overhead. */
CUresult account_context_end(int slot, uint64_t reserved, CUresult result, uint64_t *cost)
{
    struct shim_gpu *gpu = &shim.gpu[slot];
    reserved = still_reserved(slot, reserved);
    *cost = 0;
    if (result || !account_enter_calls(slot)) {
        account_refund(slot, reserved);
        return result;
    }
    uint64_t *hint = &shim.usage->bucket[slot].context_hint_bytes;
    *cost = load(hint);
    int measured = !*cost;
    if (measured) {
        *cost = measured_context(slot, reserved);
        __atomic_store_n(hint, *cost, __ATOMIC_SEQ_CST);
    }
    __atomic_fetch_add(&gpu->context_base, *cost, __ATOMIC_SEQ_CST);
    __atomic_fetch_add(&gpu->contexts, 1, __ATOMIC_SEQ_CST);
    __atomic_fetch_add(&shim_usage(slot)->context_bytes, *cost, __ATOMIC_SEQ_CST);
    account_refund(slot, reserved);
    if ((measured || reserved < *cost) && account_over(slot)) {
        __atomic_fetch_add(&shim_usage(slot)->refused, 1, __ATOMIC_RELAXED);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_SUCCESS;
}

void account_context_release(int slot, uint64_t cost)
{
    struct shim_gpu *gpu = &shim.gpu[slot];
    if (!shim.self || __atomic_load_n(&gpu->contexts, __ATOMIC_SEQ_CST) <= 0)
        return;
    __atomic_fetch_add(&shim.memory_begun, 1, __ATOMIC_SEQ_CST);
    int left = __atomic_sub_fetch(&gpu->contexts, 1, __ATOMIC_SEQ_CST);
    uint64_t base = __atomic_sub_fetch(&gpu->context_base, cost, __ATOMIC_SEQ_CST);
    /* Its modules and stacks ended with it, but their part of the overhead is unknown: the next true-up measures it. */
    uint64_t *mine = &shim_usage(slot)->context_bytes, seen = load(mine), now;
    do {
        now = !left ? 0 : seen > base + cost ? seen - cost : base;
    } while (!__atomic_compare_exchange_n(mine, &seen, now, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    __atomic_fetch_add(&shim.memory_ended, 1, __ATOMIC_SEQ_CST);
}

/* Add memory that outlives the object to which it was charged: overhead, until NVML shows that it is freed. */
void overhead_add(int slot, uint64_t bytes)
{
    __atomic_fetch_add(&shim_usage(slot)->context_bytes, bytes, __ATOMIC_SEQ_CST);
}

/* Return the bytes that NVML shows for this process beyond the known ones; -1 if an allocation other than the caller's
 * disturbed the reading. The order matters: an allocation that ends between reading the counters and `known` is
 * detected at the end. */
static int64_t beyond_known(int slot, uint64_t pending, uint64_t open_calls)
{
    uint64_t ended = load(&shim.memory_ended);
    if (ended + open_calls != load(&shim.memory_begun))
        return -1;
    uint64_t known = known_bytes(slot, pending);
    int64_t seen = nvml_process_bytes(slot);
    if (seen <= 0 || ended + open_calls != load(&shim.memory_begun))
        return -1;
    return (uint64_t)seen > known ? seen - (int64_t)known : 0;
}

void overhead_true_up(int slot, uint64_t pending, uint64_t open_calls)
{
    struct shim_gpu *gpu = &shim.gpu[slot];
    if (__atomic_load_n(&gpu->contexts, __ATOMIC_SEQ_CST) <= 0 || account_by_kernel())
        return;
    uint64_t *mine = &shim_usage(slot)->context_bytes, before = load(mine);
    int64_t overhead = beyond_known(slot, pending, open_calls);
    if (overhead < 0)
        return;
    uint64_t base = load(&gpu->context_base), now = (uint64_t)overhead > base ? (uint64_t)overhead : base;
    /* Unless a context came or went meanwhile. */
    __atomic_compare_exchange_n(mine, &before, now, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

/* Count memory that NVML shows beyond the kernel's calls as drift. It must be there twice, as memory that was just
 * freed may still show. Imported memory is charged to its exporter, though NVML may show it here. */
static void cross_check(int slot, uint64_t now)
{
    struct shim_gpu *gpu = &shim.gpu[slot];
    if (__atomic_load_n(&shim.imported, __ATOMIC_RELAXED) || now - gpu->checked_ns < CROSS_CHECK_NS)
        return;
    int first = gpu->checked_ns == 0;
    gpu->checked_ns = now;
    int64_t seen = first ? -1 : beyond_known(slot, 0, 0);
    if (seen < 0)
        return;
    uint64_t drift = (uint64_t)seen;
    __atomic_store_n(&shim_usage(slot)->context_bytes, drift < gpu->drift ? drift : gpu->drift, __ATOMIC_SEQ_CST);
    gpu->drift = drift;
}

void account_true_up(void)
{
    if (!shim.self)
        return;
    uint64_t now = shim_now();
    for (int slot = 0; slot < VCUDA_MAX_GPUS; slot++) {
        uint32_t accounting = __atomic_load_n(&shim_usage(slot)->accounting, __ATOMIC_ACQUIRE);
        if (accounting == VCUDA_ACCOUNTING_KERNEL)
            cross_check(slot, now);
        if (accounting != VCUDA_ACCOUNTING_CALLS)
            continue;
        if (__atomic_load_n(&shim.gpu[slot].contexts, __ATOMIC_SEQ_CST) > 0)
            pools_refresh(slot);
        overhead_true_up(slot, 0, 0);
    }
}
