/* Memory: reserve, then sum (vcuda_pages.h explains why this needs no lock), and the choice of the layer that accounts.
 *
 * A process does not know at first whether its driver's calls pass kernel.c. The first allocation that passes there
 * makes the kernel's calls the account; a context or allocation that did not pass there makes the hooks the account.
 * The decision is final. A hook's reservation for a context is given back when the kernel's calls become the account,
 * as they reserve the same memory piece by piece. */
#include "kernel.h"
#include "pools.h"
#include "shares.h"
#include "account.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define GRANULE (2ull << 20)
/* The driver serves blocks of at most this size from granules that they share. */
#define SMALL (1ull << 20)
#define NEAR (128ull << 20)
/* The time that an allocation that does not fit waits for importers to check who pays. Their watchers take less than
 * one pause. */
#define PAUSE_NS 1000000l
#define MOST_PAUSES 20

static uint64_t round_up(uint64_t bytes, uint64_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

_Thread_local uint64_t account_movable;

struct sum {
    uint64_t bytes;
    uint64_t movable, out;     /* part of bytes that can leave the GPU; memory that has left it */
    uint64_t imported, unsure; /* imported memory, and the part of it that may have lost its payer */
    int clearing;              /* a slot is being cleared: all of it may have */
};

static struct sum sum_slots(int slot, uint64_t clearings)
{
    struct sum sum = {0};
    uint32_t n = __atomic_load_n(&shim.usage->slots_used, __ATOMIC_SEQ_CST);
    for (uint32_t i = 0; i < n && i < VCUDA_MAX_PROCESSES; i++) {
        const struct vcuda_process *p = &shim.usage->process[i];
        uint64_t owner = __atomic_load_n(&p->owner, __ATOMIC_SEQ_CST);
        sum.clearing |= owner != VCUDA_OWNER_FREE && !pages_is_process(owner);
        if (!pages_is_process(owner))
            continue;
        sum.bytes += __atomic_load_n(&p->gpu[slot].memory_bytes, __ATOMIC_SEQ_CST);
        sum.bytes += __atomic_load_n(&p->gpu[slot].context_bytes, __ATOMIC_SEQ_CST);
        if (__atomic_load_n(&p->lending_slot, __ATOMIC_RELAXED) == (uint32_t)slot) {
            sum.out += __atomic_load_n(&p->out_bytes, __ATOMIC_SEQ_CST);
            sum.movable += __atomic_load_n(&p->movable_bytes, __ATOMIC_SEQ_CST);
        }
        uint64_t imported = __atomic_load_n(&p->gpu[slot].imported_bytes, __ATOMIC_SEQ_CST);
        sum.imported += imported;
        sum.unsure += __atomic_load_n(&p->imports_seen, __ATOMIC_SEQ_CST) == clearings ? 0 : imported;
    }
    return sum;
}

/* Return the imported bytes whose payer may be gone. They count, as counting too much for a moment is safe, too little
 * is not. */
static uint64_t unsure_bytes(int slot, struct sum *sum)
{
    uint64_t before = __atomic_load_n(&shim.usage->clearings, __ATOMIC_SEQ_CST);
    *sum = sum_slots(slot, before);
    int moved = __atomic_load_n(&shim.usage->clearings, __ATOMIC_SEQ_CST) != before;
    return sum->clearing || moved ? sum->imported : sum->unsure;
}

uint64_t account_used(int slot)
{
    struct sum sum;
    uint64_t unsure = unsure_bytes(slot, &sum);
    return sum.bytes + sum.out + unsure;
}

/* Before refusing: wake processes whose imports count because they have not checked, and give them a moment. */
static void ask_importers(int slot)
{
    struct sum sum;
    shares_settle();
    for (int i = 0; i < MOST_PAUSES && unsure_bytes(slot, &sum); i++) {
        struct timespec pause = {0, PAUSE_NS};
        int saved = errno;
        if (!i)
            syscall(SYS_futex, &shim.limits->gen, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
        nanosleep(&pause, NULL);
        errno = saved;
    }
}

static uint64_t limit_of(int slot, uint32_t *state)
{
    struct vcuda_limit limit;
    /* Read from the page each time: a cached limit would not follow changes. */
    if (vcuda_limits_get(shim.limits, (uint32_t)slot, &limit) != 0) {
        *state = VCUDA_SLOT_CLOSED;
        return 0;
    }
    *state = limit.state;
    return limit.memory_bytes;
}

/* What cannot leave the GPU must fit what is promised: nobody could give the rest back. */
int account_over(int slot)
{
    struct vcuda_limit limit;
    struct sum sum;
    if (vcuda_limits_get(shim.limits, (uint32_t)slot, &limit) != 0)
        limit = (struct vcuda_limit){0};
    uint64_t used = unsure_bytes(slot, &sum) + sum.bytes;
    uint64_t movable = sum.movable < used ? sum.movable : used;
    return used + sum.out > limit.memory_bytes ||
           (limit.flags & VCUDA_FLAG_BORROWS && used - movable > limit.memory_request);
}

static int try_reserve(int slot, uint64_t bytes, int movable)
{
    uint64_t *mine = &shim_usage(slot)->memory_bytes;
    __atomic_fetch_add(mine, bytes, __ATOMIC_SEQ_CST);
    /* After the addition, and before it is taken back: in between, too much counts as what cannot leave, never too
     * little. */
    if (__builtin_expect(movable, 0))
        __atomic_fetch_add(&shim.self->movable_bytes, bytes, __ATOMIC_SEQ_CST);
    /* The limit is read after the addition: if an agent lowers it and then reads the use, either the use includes these
     * bytes, or they are refused here. */
    if (!account_over(slot))
        return 1;
    account_refund_kind(slot, bytes, movable);
    return 0;
}

static CUresult refuse(int slot)
{
    __atomic_fetch_add(&shim_usage(slot)->refused, 1, __ATOMIC_RELAXED);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Return 1 if the bytes fit. Near the limit, the growth of modules and stacks since the last reading decides: read NVML
 * (19 us) before granting. */
static int still_fits(int slot, uint64_t bytes, uint64_t limit)
{
    if (account_used(slot) + NEAR <= limit)
        return 1;
    overhead_true_up(slot, bytes, 1);
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
        if (try_reserve(slot, bytes, 0))
            return still_fits(slot, bytes, limit) ? CUDA_SUCCESS : refuse(slot);
        /* Before refusing: reclaim the slots of dead processes, and memory that pools have returned since. */
        vcuda_usage_reap_dead(shim.usage);
        ask_importers(slot);
        pools_refresh(slot);
        if (try_reserve(slot, bytes, 0))
            return still_fits(slot, bytes, limit) ? CUDA_SUCCESS : refuse(slot);
    }
    return refuse(slot);
}

int account_take_kind(int slot, uint64_t bytes, int movable)
{
    uint32_t state;
    uint64_t limit = limit_of(slot, &state);
    if (state == VCUDA_SLOT_OPEN && bytes <= limit) {
        if (try_reserve(slot, bytes, movable))
            return 1;
        vcuda_usage_reap_dead(shim.usage);
        ask_importers(slot);
        if (try_reserve(slot, bytes, movable))
            return 1;
    }
    refuse(slot);
    return 0;
}

int account_take(int slot, uint64_t bytes)
{
    return account_take_kind(slot, bytes, 0);
}

uint64_t account_take_room(int slot, uint64_t most)
{
    uint32_t state;
    uint64_t limit = limit_of(slot, &state), used = account_used(slot);
    uint64_t room = used < limit ? limit - used : 0;
    room = room < most ? room : most;
    return state == VCUDA_SLOT_OPEN && room && try_reserve(slot, room, 0) ? room : 0;
}

void account_refund_kind(int slot, uint64_t bytes, int movable)
{
    if (!bytes || !shim.self)
        return;
    if (movable)
        __atomic_fetch_sub(&shim.self->movable_bytes, bytes, __ATOMIC_SEQ_CST);
    __atomic_fetch_sub(&shim_usage(slot)->memory_bytes, bytes, __ATOMIC_SEQ_CST);
}

void account_refund(int slot, uint64_t bytes)
{
    account_refund_kind(slot, bytes, 0);
}

/* ---- The layer that accounts ---- */

static void set_accounting(int slot, uint32_t accounting)
{
    uint32_t *told = &shim_usage(slot)->accounting;
    if (__atomic_load_n(told, __ATOMIC_RELAXED) != accounting)
        __atomic_store_n(told, accounting, __ATOMIC_RELEASE);
}

/* Decide which layer accounts, unless that is decided; return 1 if it is this one. */
static int decide(int accounting)
{
    int seen = __atomic_load_n(&shim.accounting, __ATOMIC_ACQUIRE);
    if (seen != VCUDA_ACCOUNTING_UNKNOWN)
        return seen == accounting;
    if (__atomic_compare_exchange_n(&shim.accounting, &seen, accounting, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        return 1;
    return seen == accounting;
}

int account_enter_kernel(int slot)
{
    if (!decide(VCUDA_ACCOUNTING_KERNEL))
        return 0;
    set_accounting(slot, VCUDA_ACCOUNTING_KERNEL);
    uint64_t *pending = &shim.gpu[slot].context_reserved;
    if (__atomic_load_n(pending, __ATOMIC_RELAXED))
        account_refund(slot, __atomic_exchange_n(pending, 0, __ATOMIC_SEQ_CST));
    return 1;
}

int account_enter_calls(int slot)
{
    if (!decide(VCUDA_ACCOUNTING_CALLS))
        return 0;
    set_accounting(slot, VCUDA_ACCOUNTING_CALLS);
    return 1;
}

CUresult account_closed(void)
{
    int slot = shim_slot_of_current(NULL);
    return slot >= 0 && __atomic_load_n(&shim.gpu[slot].state, __ATOMIC_RELAXED) != VCUDA_SLOT_OPEN
               ? CUDA_ERROR_NOT_PERMITTED
               : CUDA_SUCCESS;
}

uint64_t account_charge(uint64_t *total, uint64_t bytes, int sign)
{
    if (bytes > SMALL)
        return round_up(bytes, GRANULE);
    /* The differences of a rounded running total add up to the rounded total, whatever the order of threads. */
    uint64_t size = round_up(bytes, 512);
    uint64_t before = sign > 0 ? __atomic_fetch_add(total, size, __ATOMIC_SEQ_CST)
                               : __atomic_fetch_sub(total, size, __ATOMIC_SEQ_CST);
    uint64_t after = sign > 0 ? before + size : before - size;
    uint64_t a = round_up(before, GRANULE), b = round_up(after, GRANULE);
    return a > b ? a - b : b - a;
}
