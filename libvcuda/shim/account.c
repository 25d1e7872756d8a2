/* Memory: reserve, then sum. See vcuda_pages.h for why this needs no lock. */
#include "shim.h"

#include <string.h>

#define GRANULE (2ull << 20)
/* The driver serves blocks of at most this size from granules that they share. */
#define SMALL (1ull << 20)
#define NEAR (128ull << 20)

static uint64_t round_up(uint64_t bytes, uint64_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

uint64_t account_used(int slot)
{
    uint64_t sum = 0;
    uint32_t n = __atomic_load_n(&shim.usage->slots_used, __ATOMIC_SEQ_CST);
    for (uint32_t i = 0; i < n && i < VCUDA_MAX_PROCESSES; i++) {
        const struct vcuda_process *p = &shim.usage->process[i];
        if (__atomic_load_n(&p->owner, __ATOMIC_SEQ_CST) <= VCUDA_OWNER_CLEARING)
            continue;
        sum += __atomic_load_n(&p->gpu[slot].memory_bytes, __ATOMIC_SEQ_CST);
        sum += __atomic_load_n(&p->gpu[slot].context_bytes, __ATOMIC_SEQ_CST);
    }
    return sum;
}

static uint64_t limit_of(int slot, uint32_t *state)
{
    struct vcuda_limit limit;
    /* Read from the page each time: a cached limit is one that does not move. */
    if (vcuda_limits_get(shim.limits, (uint32_t)slot, &limit) != 0) {
        *state = VCUDA_SLOT_CLOSED;
        return 0;
    }
    *state = limit.state;
    return limit.memory_bytes;
}

int account_over(int slot)
{
    uint32_t state;
    uint64_t limit = limit_of(slot, &state);
    return account_used(slot) > limit;
}

static int try_reserve(int slot, uint64_t bytes)
{
    uint64_t *mine = &shim_usage(slot)->memory_bytes;
    __atomic_fetch_add(mine, bytes, __ATOMIC_SEQ_CST);
    /* The limit is read after the addition: an agent that lowers it and then reads the use has seen these bytes, or
     * they are refused here. */
    if (!account_over(slot))
        return 1;
    __atomic_fetch_sub(mine, bytes, __ATOMIC_SEQ_CST);
    return 0;
}

static CUresult refuse(int slot)
{
    __atomic_fetch_add(&shim_usage(slot)->refused, 1, __ATOMIC_RELAXED);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static void true_up(int slot, uint64_t pending, uint64_t open_calls);

/* Near the limit, what modules and stacks took since the last reading decides: ask NVML (19 us) before granting. */
static int still_fits(int slot, uint64_t bytes, uint64_t limit)
{
    if (account_used(slot) + NEAR <= limit)
        return 1;
    true_up(slot, bytes, 1);
    if (account_used(slot) <= limit)
        return 1;
    account_refund(slot, bytes);
    return 0;
}

CUresult account_reserve(int slot, uint64_t bytes)
{
    uint32_t state;
    if (!shim_attach() || slot < 0)
        return CUDA_ERROR_NOT_PERMITTED;
    uint64_t limit = limit_of(slot, &state);
    if (state != VCUDA_SLOT_OPEN)
        return CUDA_ERROR_NOT_PERMITTED;
    if (bytes <= limit) {
        if (try_reserve(slot, bytes))
            return still_fits(slot, bytes, limit) ? CUDA_SUCCESS : refuse(slot);
        /* Before refusing: give back what dead processes left, and what pools have returned since. */
        vcuda_usage_reap_dead(shim.usage);
        account_refresh_pools(slot);
        if (try_reserve(slot, bytes))
            return still_fits(slot, bytes, limit) ? CUDA_SUCCESS : refuse(slot);
    }
    return refuse(slot);
}

void account_refund(int slot, uint64_t bytes)
{
    if (bytes && shim.self)
        __atomic_fetch_sub(&shim_usage(slot)->memory_bytes, bytes, __ATOMIC_SEQ_CST);
}

uint64_t account_charge(int slot, uint64_t bytes, int sign)
{
    if (bytes > SMALL)
        return round_up(bytes, GRANULE);
    /* The differences of a rounded running total add up to the rounded total, whatever the order of threads. */
    uint64_t size = round_up(bytes, 512), *total = &shim.gpu[slot].small_bytes;
    uint64_t before = sign > 0 ? __atomic_fetch_add(total, size, __ATOMIC_SEQ_CST)
                               : __atomic_fetch_sub(total, size, __ATOMIC_SEQ_CST);
    uint64_t after = sign > 0 ? before + size : before - size;
    uint64_t a = round_up(before, GRANULE), b = round_up(after, GRANULE);
    return a > b ? a - b : b - a;
}

/* ---- Overhead: contexts and whatever else NVML sees that no allocation explains ---- */

static void set_context_bytes(int slot, uint64_t bytes)
{
    __atomic_store_n(&shim_usage(slot)->context_bytes, bytes, __ATOMIC_SEQ_CST);
}

/* The GPU's use before a first context, for where NVML does not know this process (another pid namespace). */
static _Thread_local int64_t device_before;
/* No context of any driver so far costs more; a greater difference is another tenant's. */
#define CONTEXT_MAX (2048ll << 20)

static uint64_t measured_context(int slot)
{
    int64_t seen = nvml_process_bytes(slot);
    uint64_t known = __atomic_load_n(&shim_usage(slot)->memory_bytes, __ATOMIC_SEQ_CST) + shim.gpu[slot].context_base;
    if (seen >= 0)
        return (uint64_t)seen > known ? (uint64_t)seen - known : 0;
    int64_t after = nvml_device_bytes(slot), grown = after - device_before;
    if (device_before < 0 || after < 0 || grown < 0)
        return 0;
    return (uint64_t)(grown < CONTEXT_MAX ? grown : CONTEXT_MAX);
}

CUresult account_context_begin(int slot, uint64_t *reserved)
{
    /* What the last context of this claim cost, taken in advance; a first one is measured before others can follow. */
    *reserved = __atomic_load_n(&shim.usage->bucket[slot].context_hint_bytes, __ATOMIC_RELAXED);
    if (!*reserved)
        device_before = nvml_device_bytes(slot);
    return account_reserve(slot, *reserved);
}

/* The context exists (or failed): turn the reservation into measured overhead. */
CUresult account_context_end(int slot, uint64_t reserved, CUresult result)
{
    struct shim_gpu *gpu = &shim.gpu[slot];
    if (result) {
        account_refund(slot, reserved);
        return result;
    }
    uint64_t cost = reserved;
    if (!reserved) {
        cost = measured_context(slot);
        __atomic_store_n(&shim.usage->bucket[slot].context_hint_bytes, cost, __ATOMIC_RELAXED);
    }
    gpu->context_base += cost;
    gpu->contexts++;
    __atomic_fetch_add(&shim_usage(slot)->context_bytes, cost, __ATOMIC_SEQ_CST);
    account_refund(slot, reserved);
    if (!reserved && account_over(slot)) {
        __atomic_fetch_add(&shim_usage(slot)->refused, 1, __ATOMIC_RELAXED);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_SUCCESS;
}

void account_context_gone(int slot)
{
    struct shim_gpu *gpu = &shim.gpu[slot];
    if (gpu->contexts <= 0 || !shim.self)
        return;
    gpu->context_base -= gpu->context_base / (uint64_t)gpu->contexts;
    gpu->contexts--;
    set_context_bytes(slot, gpu->context_base);
}

/* Overhead is what the process uses beyond its known allocations. `pending` of these is reserved but not yet real, by
 * `open_calls` allocations in progress; a reading that any other allocation disturbed is thrown away. */
static void true_up(int slot, uint64_t pending, uint64_t open_calls)
{
    struct shim_gpu *gpu = &shim.gpu[slot];
    if (gpu->contexts <= 0)
        return;
    uint64_t ended = __atomic_load_n(&shim.memory_ended, __ATOMIC_SEQ_CST);
    uint64_t known = __atomic_load_n(&shim_usage(slot)->memory_bytes, __ATOMIC_SEQ_CST) - pending;
    int64_t seen = nvml_process_bytes(slot);
    if (seen <= 0 || ended + open_calls != __atomic_load_n(&shim.memory_begun, __ATOMIC_SEQ_CST))
        return;
    uint64_t overhead = (uint64_t)seen > known ? (uint64_t)seen - known : 0;
    set_context_bytes(slot, overhead > gpu->context_base ? overhead : gpu->context_base);
}

void account_true_up(void)
{
    for (int slot = 0; slot < VCUDA_MAX_GPUS; slot++) {
        if (shim.gpu[slot].contexts > 0)
            account_refresh_pools(slot);
        true_up(slot, 0, 0);
    }
}
