/* Memory that is lent: who is to give how much back, now.
 *
 * 1. Read what each claim uses, could give and wants. 2. A want counts up to what is promised to the claim: all that it uses
 * with it must fit the promise. 3. Tell each claim what the others could give, so that it knows whether waiting is of use.
 * 4. Ask the borrowers, those first who borrowed most, for the sum of the wants.
 *
 * An order stands until it was followed; if owners still want after that, the next one follows. Nothing is remembered here:
 * an arbiter that takes over reads the same pages. Usage pages are the tenants': nothing is believed beyond the claim's own
 * limits, and a borrower that does not follow is asked after those that do. */
#include "memory.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

/* While some claim borrows. An owner's allocation waits for one of these looks. */
#define LOOK_NS 2000000ull
/* From an order on, a borrower that has not followed it is asked after others: it may be in a long kernel, or forged. */
#define LATE_NS 300000000ull
/* From an order that was followed until the next one for the same want: the owner tries once a millisecond. */
#define AGAIN_NS 10000000ull
/* What left comes back only when nothing was wanted for this long: each way costs the borrower a stop. */
#define BACK_AFTER_NS 2000000000ull

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static int borrows(const struct memory_seat *s)
{
    return (s->limit.flags & VCUDA_FLAG_BORROWS) != 0;
}

static uint64_t promised(const struct memory_seat *s)
{
    return borrows(s) ? s->limit.memory_request : s->limit.memory_bytes;
}

static void read_seat(struct memory_seat *s, uint64_t now)
{
    uint32_t number = __atomic_load_n(&s->claim->turns->memory[s->index].number, __ATOMIC_SEQ_CST);
    struct memory_reading sum;
    claim_read_memory(s->claim, s->index, number, &sum);
    s->used = least(sum.used_bytes, s->limit.memory_bytes);
    s->movable = least(sum.movable_bytes, s->used);
    s->wanted = s->used <= promised(s) ? least(sum.wanted_bytes, promised(s)) : 0;
    s->followed = !sum.pending;
    s->unfollowed_ns = s->followed ? 0 : s->unfollowed_ns ? s->unfollowed_ns : now;
    s->is_late = !s->followed && now - s->unfollowed_ns > LATE_NS;
    s->borrowed = borrows(s) && s->used > promised(s) ? least(s->movable, s->used - promised(s)) : 0;
    s->give = 0;
}

/* Return 1 if `a` is to give before `b`: it follows orders, or it borrowed more. */
static int gives_before(const struct memory_seat *a, const struct memory_seat *b)
{
    return a->is_late != b->is_late ? !a->is_late : a->borrowed - a->give > b->borrowed - b->give;
}

static void share_out(struct memory_seat *seats, int n, const struct memory_seat *for_seat)
{
    for (uint64_t left = for_seat->wanted; left;) {
        struct memory_seat *most = NULL;
        for (int i = 0; i < n; i++) {
            struct memory_seat *s = &seats[i];
            if (s != for_seat && s->borrowed > s->give && (!most || gives_before(s, most)))
                most = s;
        }
        if (!most)
            return;
        uint64_t part = least(left, most->borrowed - most->give);
        most->give += part;
        left -= part;
    }
}

/* Return 1 if what was given is seen not to be enough. */
static int is_due_again(struct memory_seat *s, uint64_t now)
{
    s->followed_ns = !s->followed ? 0 : s->followed_ns ? s->followed_ns : now;
    return s->followed && now - s->followed_ns >= AGAIN_NS;
}

static void order(struct memory_seat *s, uint64_t now, int is_wanted)
{
    struct vcuda_memory_turn *turn = &s->claim->turns->memory[s->index];
    uint64_t before = __atomic_load_n(&turn->give_bytes, __ATOMIC_RELAXED);
    /* While anybody wants memory, nobody takes some back. */
    s->wanted_ns = is_wanted || !s->wanted_ns ? now : s->wanted_ns;
    uint32_t back = now - s->wanted_ns > BACK_AFTER_NS;
    int again = s->give && (s->give > before || is_due_again(s, now));
    if (!again && s->give == before && back == __atomic_load_n(&turn->back, __ATOMIC_RELAXED))
        return;
    s->followed_ns = again ? 0 : s->followed_ns;
    __atomic_store_n(&turn->give_bytes, s->give, __ATOMIC_SEQ_CST);
    __atomic_store_n(&turn->back, back, __ATOMIC_SEQ_CST);
    if (s->give && !again)
        return; /* less is wanted than before: the order stands */
    __atomic_fetch_add(&turn->number, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &turn->number, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static void tell(struct memory_seat *s, uint32_t borrowers, uint64_t lent, uint64_t now, int quiet)
{
    struct vcuda_memory_turn *turn = &s->claim->turns->memory[s->index];
    /* Once in any case: a program that has just begun waits for it (shim/memory/reclaim.c). */
    if (quiet && !__atomic_load_n(&turn->borrowers, __ATOMIC_RELAXED) && turn->looked_ns)
        return;
    __atomic_store_n(&turn->lent_bytes, lent, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&turn->borrowers, __ATOMIC_RELAXED) != borrowers)
        __atomic_store_n(&turn->borrowers, borrowers, __ATOMIC_SEQ_CST);
    __atomic_store_n(&turn->looked_ns, now, __ATOMIC_SEQ_CST);
}

void memory_leave(struct claim *claim, uint32_t index)
{
    struct vcuda_memory_turn *turn = &claim->turns->memory[index];
    __atomic_store_n(&turn->known, 0, __ATOMIC_SEQ_CST);
    __atomic_store_n(&turn->borrowers, 0, __ATOMIC_SEQ_CST);
    __atomic_store_n(&turn->lent_bytes, 0, __ATOMIC_SEQ_CST);
    __atomic_store_n(&turn->give_bytes, 0, __ATOMIC_SEQ_CST);
}

/* No claim borrows any more. */
static uint64_t forget(struct memory_seat *seats, int n)
{
    for (int i = 0; i < n; i++)
        if (__atomic_load_n(&seats[i].claim->turns->memory[seats[i].index].known, __ATOMIC_RELAXED))
            __atomic_store_n(&seats[i].claim->turns->memory[seats[i].index].known, 0, __ATOMIC_SEQ_CST);
    return UINT64_MAX;
}

uint64_t memory_step(struct memory_seat *seats, int n, uint64_t now)
{
    uint64_t lent = 0;
    uint32_t borrowers = 0;
    int is_wanted = 0;
    for (int i = 0; i < n; i++)
        borrowers += (uint32_t)borrows(&seats[i]);
    for (int i = 0; i < n && borrowers; i++) {
        read_seat(&seats[i], now);
        lent += seats[i].borrowed;
        is_wanted |= seats[i].wanted != 0;
    }
    for (int i = 0; i < n; i++) {
        uint32_t others = borrowers - (uint32_t)borrows(&seats[i]);
        tell(&seats[i], others, others ? lent - seats[i].borrowed : 0, now, !borrowers);
    }
    if (!borrowers)
        return forget(seats, n);
    for (int i = 0; i < n; i++)
        share_out(seats, n, &seats[i]);
    for (int i = 0; i < n; i++)
        if (borrows(&seats[i]))
            order(&seats[i], now, is_wanted);
    /* After all others were told that there are borrowers. */
    for (int i = 0; i < n; i++)
        __atomic_store_n(&seats[i].claim->turns->memory[seats[i].index].known, borrows(&seats[i]), __ATOMIC_SEQ_CST);
    return LOOK_NS;
}
