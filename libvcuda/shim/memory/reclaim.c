/* Reclaim: memory that is promised to this claim may be lent to others meanwhile. Where an allocation that fits the limit
 * does not fit the GPU, it says so in the usage page, and waits while the arbiter has the borrowers give it back. Programs
 * see no out-of-memory for memory that is lent.
 *
 * It waits in the kernel's call, where every kind of allocation passes: contexts, graphs and pools, too. The driver holds
 * locks of this process there; the borrowers are others, and need none of them. Two borrowers can wait for each other, so a
 * claim that borrows waits shortly only. */
#include "account.h"

#include <errno.h>
#include <time.h>

/* Ten times what borrowers need, who may have kernels that take seconds; 4 GiB/s for what must be moved. */
#define MOST_NS 10000000000ull
#define BYTES_PER_NS 4
#define BORROWER_MOST_NS 1000000000ull
#define PAUSE_NS 1000000
/* The arbiter looks every 20 ms at least while some claim borrows. */
#define WATCHED_NS 1000000000ull
/* From the arbiter's last look on, what it said of lent memory holds for so long: it may have been killed, and nobody would
 * follow. The agent starts the next one within a second or two. */
#define LEFT_NS 3000000000ull
/* A program that has just begun may be one that the arbiter has not seen yet; it scans four times a second. */
#define YOUNG_NS 2000000000ull

_Thread_local int account_never_waits;

/* One thread at a time has its want in the page: it names one GPU. */
static int taken;

static const struct vcuda_memory_turn *turn_of(int slot)
{
    const struct vcuda_turns *turns = __atomic_load_n(&shim.turns, __ATOMIC_ACQUIRE);
    return turns ? &turns->memory[slot] : NULL;
}

static void pause_once(void)
{
    int saved = errno;
    nanosleep(&(struct timespec){0, PAUSE_NS}, NULL);
    errno = saved;
}

int reclaim_is_watched(int slot)
{
    for (uint64_t begin = shim_page_now(), now = begin; now - begin < WATCHED_NS; now = shim_page_now()) {
        shim_find_turns();
        const struct vcuda_memory_turn *turn = turn_of(slot);
        uint64_t looked = turn ? __atomic_load_n(&turn->looked_ns, __ATOMIC_ACQUIRE) : 0;
        int known = turn && __atomic_load_n(&turn->known, __ATOMIC_ACQUIRE);
        if (known && (looked >= now || now - looked < WATCHED_NS))
            return 1;
        pause_once();
    }
    return 0;
}

/* Return 1 if the arbiter may not have seen this process's claim yet. */
static int is_unseen(int slot)
{
    shim_find_turns();
    const struct vcuda_memory_turn *turn = turn_of(slot);
    return (!turn || !__atomic_load_n(&turn->looked_ns, __ATOMIC_ACQUIRE)) &&
           pages_clock(CLOCK_BOOTTIME) - shim.self->attached_ns < YOUNG_NS;
}

/* Return 1 if other claims may borrow here, and an arbiter would ask them for it. */
static int may_be_lent(const struct vcuda_memory_turn *turn)
{
    if (!turn || !__atomic_load_n(&turn->borrowers, __ATOMIC_ACQUIRE))
        return 0;
    uint64_t looked = __atomic_load_n(&turn->looked_ns, __ATOMIC_ACQUIRE), now = shim_page_now();
    return looked >= now || now - looked < LEFT_NS;
}

uint64_t reclaim_lent(int slot)
{
    const struct vcuda_memory_turn *turn = slot >= 0 ? turn_of(slot) : NULL;
    return may_be_lent(turn) ? __atomic_load_n(&turn->lent_bytes, __ATOMIC_ACQUIRE) : 0;
}

/* Return how long to wait at most; 0: the memory is not promised. The account has its bytes already. */
static uint64_t most_ns(int slot, uint64_t bytes)
{
    struct vcuda_limit limit;
    if (vcuda_limits_get(shim.limits, (uint32_t)slot, &limit) || limit.flags & VCUDA_FLAG_SUSPENDED)
        return 0;
    if (!(limit.flags & VCUDA_FLAG_BORROWS))
        return MOST_NS + bytes / BYTES_PER_NS;
    return account_used(slot) <= limit.memory_request ? BORROWER_MOST_NS : 0;
}

static void raise_want(int slot, uint64_t bytes, struct reclaim *reclaim)
{
    if (reclaim->bytes || __atomic_exchange_n(&taken, 1, __ATOMIC_ACQ_REL))
        return;
    reclaim->bytes = bytes;
    __atomic_store_n(&shim.self->wanted_slot, (uint32_t)slot, __ATOMIC_SEQ_CST);
    __atomic_store_n(&shim.self->wanted_bytes, bytes, __ATOMIC_SEQ_CST);
    reclaim->since_ns = shim_page_now();
}

int reclaim_wait(int slot, uint64_t bytes, struct reclaim *reclaim)
{
    if (!account_never_waits && !reclaim->last && is_unseen(slot)) {
        pause_once();
        return 1;
    }
    const struct vcuda_memory_turn *turn = turn_of(slot);
    int waits = !account_never_waits && !__atomic_load_n(&shim.stopping, __ATOMIC_ACQUIRE) && may_be_lent(turn);
    uint64_t most = waits ? most_ns(slot, bytes) : 0;
    if (!most || reclaim->last)
        return 0;
    if (!reclaim->since_ns)
        reclaim->since_ns = shim_page_now();
    raise_want(slot, bytes, reclaim);
    /* The arbiter has looked since, and nobody has anything to give back: what was given is there by now. */
    reclaim->last = shim_page_now() - reclaim->since_ns > most ||
                    (__atomic_load_n(&turn->looked_ns, __ATOMIC_ACQUIRE) > reclaim->since_ns &&
                     !__atomic_load_n(&turn->lent_bytes, __ATOMIC_ACQUIRE));
    if (!reclaim->last)
        pause_once();
    return 1;
}

void reclaim_end(struct reclaim *reclaim)
{
    if (!reclaim->bytes)
        return;
    __atomic_store_n(&shim.self->wanted_bytes, 0, __ATOMIC_SEQ_CST);
    __atomic_store_n(&taken, 0, __ATOMIC_RELEASE);
}
