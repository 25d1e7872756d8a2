/* Memory that is lent: who is to give how much back, now.
 *
 * 1. Read what each claim uses, could give and wants. 2. A want counts up to what is promised to the claim: all that it uses
 * with it must fit the promise. A suspended claim that comes back wants what its programs had. 3. Tell each claim what the
 * others could give, so that it knows whether waiting is of use. 4. Ask the borrowers, those first who borrowed most, for
 * the sum of the wants. 5. If all have followed and an owner still wants, ask again, twice as late each time. A want that
 * six orders did not end is in vain: its owner is told that nothing is lent, until it wants something else. 6. Name the
 * borrower that does not follow although nobody else can give so much: the agent ends its processes.
 *
 * What is kept here only saves time: an arbiter that takes over reads the same pages. Usage pages are the tenants': nothing
 * is believed beyond the claim's own limits, and a borrower that does not follow is asked after those that do. */
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
/* With the waits between them, two thirds of a second. */
#define TRIES 6
/* An owner's allocation waits for 10 s: the rest is for the agent, and for the driver to take a killed process's memory. */
#define OVERDUE_NS 4000000000ull
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

/* A limit that is taken back does not take back what was borrowed by it. */
static int is_borrower(const struct memory_seat *s)
{
    return borrows(s) || s->kept->lends;
}

static int returns(const struct memory_seat *s)
{
    return (s->limit.flags & VCUDA_FLAG_RETURNS) != 0;
}

static uint64_t promised(const struct memory_seat *s)
{
    return borrows(s) ? s->limit.memory_request : s->limit.memory_bytes;
}

static struct vcuda_memory_turn *turn_of(const struct memory_seat *s)
{
    return &s->claim->turns->memory[s->index];
}

static void read_want(struct memory_seat *s, const struct memory_reading *sum)
{
    uint64_t want = s->used <= promised(s) ? sum->wanted_bytes : 0;
    want = least(returns(s) ? s->limit.returning_bytes : want, promised(s));
    struct memory_kept *k = s->kept;
    /* The same number again can be the next want: what is used then has grown by the one before. */
    s->is_next = want && want == k->want && s->used >= k->used + want;
    if (want != k->want || s->is_next)
        k->tries = 0;
    k->used = want != k->want || s->is_next ? s->used : least(k->used, s->used);
    k->want = want;
    s->wanted = k->tries < TRIES ? want : 0;
}

static void read_seat(struct memory_seat *s, uint64_t now)
{
    struct memory_kept *k = s->kept;
    struct memory_reading sum;
    claim_read_memory(s->claim, s->index, __atomic_load_n(&turn_of(s)->number, __ATOMIC_SEQ_CST), &sum);
    k->most = borrows(s) || k->most < s->limit.memory_bytes ? s->limit.memory_bytes : k->most;
    s->used = least(sum.used_bytes, k->most);
    s->movable = least(sum.movable_bytes, s->used);
    read_want(s, &sum);
    s->followed = !sum.pending;
    k->unfollowed_ns = s->followed ? 0 : k->unfollowed_ns ? k->unfollowed_ns : now;
    s->is_late = !s->followed && now - k->unfollowed_ns > LATE_NS;
    if (sum.moved_bytes != k->moved || s->followed)
        k->stuck_ns = 0;
    k->moved = sum.moved_bytes;
    s->borrowed = s->used > promised(s) ? least(s->movable, s->used - promised(s)) : 0;
    s->give = 0;
    k->lends = s->borrowed || sum.out_bytes;
    k->looked = 1;
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

/* What all claims of the GPU want and give, at one step. */
struct wants {
    uint64_t bytes;
    int any;        /* something is wanted, or somebody comes back */
    int next;       /* one was met, and its owner wants as much again */
    int again;      /* all orders were followed, and owners still want */
    uint32_t tries; /* the most of any owner */
};

/* Return 1 if everything that was asked for was given, long enough ago for the owners to have tried again. */
static int is_due_again(struct memory_seat *seats, int n, uint32_t tries, uint64_t now)
{
    int orders = 0, due = 1;
    for (int i = 0; i < n; i++) {
        struct memory_kept *k = seats[i].kept;
        int stands =
            seats[i].give && seats[i].give <= __atomic_load_n(&turn_of(&seats[i])->give_bytes, __ATOMIC_RELAXED);
        k->followed_ns = !stands || !seats[i].followed ? 0 : k->followed_ns ? k->followed_ns : now;
        orders += seats[i].give != 0;
        due &= !seats[i].give || (k->followed_ns && now - k->followed_ns >= AGAIN_NS << tries);
    }
    return orders && due;
}

/* Count one more order in vain. The largest want that had all of them is in vain: where all are asked for together, it may
 * be what the others failed for, so they begin anew. */
static void count_try(struct memory_seat *seats, int n)
{
    struct memory_seat *largest = NULL;
    for (int i = 0; i < n; i++) {
        struct memory_seat *s = &seats[i];
        s->kept->followed_ns = 0;
        s->kept->tries += s->wanted != 0;
        if (s->wanted && s->kept->tries >= TRIES && (!largest || s->wanted > largest->wanted))
            largest = s;
    }
    for (int i = 0; i < n && largest; i++)
        if (seats[i].wanted && &seats[i] != largest)
            seats[i].kept->tries = 0;
}

static struct wants sum_up(struct memory_seat *seats, int n, uint64_t now)
{
    struct wants w = {0};
    for (int i = 0; i < n; i++) {
        w.bytes += seats[i].wanted;
        w.any |= seats[i].wanted || returns(&seats[i]);
        w.next |= seats[i].is_next;
        w.tries = seats[i].wanted && seats[i].kept->tries > w.tries ? seats[i].kept->tries : w.tries;
    }
    w.again = is_due_again(seats, n, w.tries, now) && !w.next;
    if (!w.again)
        return w;
    w.tries++;
    count_try(seats, n);
    return w;
}

static void order(struct memory_seat *s, const struct wants *w, uint64_t now)
{
    struct vcuda_memory_turn *turn = turn_of(s);
    uint64_t before = __atomic_load_n(&turn->give_bytes, __ATOMIC_RELAXED);
    /* While anybody wants memory, nobody takes some back. */
    s->kept->wanted_ns = w->any || !s->kept->wanted_ns ? now : s->kept->wanted_ns;
    if (w->any)
        __atomic_store_n(&turn->wanted_ns, now, __ATOMIC_SEQ_CST);
    uint32_t back = now - s->kept->wanted_ns > BACK_AFTER_NS;
    int more = s->give && (s->give > before || w->again || w->next);
    if (!more && s->give == before && back == __atomic_load_n(&turn->back, __ATOMIC_RELAXED))
        return;
    __atomic_store_n(&turn->wanted_bytes, w->bytes, __ATOMIC_SEQ_CST);
    __atomic_store_n(&turn->tries, w->tries, __ATOMIC_SEQ_CST);
    __atomic_store_n(&turn->give_bytes, s->give, __ATOMIC_SEQ_CST);
    __atomic_store_n(&turn->back, back, __ATOMIC_SEQ_CST);
    if (s->give && !more)
        return; /* less is wanted than before: the order stands */
    __atomic_fetch_add(&turn->number, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &turn->number, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Nothing leaves although it must, and nobody else can give it. */
static void look_for_overdue(struct memory_seat *s, uint64_t now)
{
    struct vcuda_memory_turn *turn = turn_of(s);
    int stands = s->give && !s->followed;
    struct memory_kept *k = s->kept;
    /* Later orders do not make it younger, nor may who followed this one be ended for them. */
    if (!stands || !k->stuck_ns)
        k->stuck_number = __atomic_load_n(&turn->number, __ATOMIC_RELAXED);
    k->stuck_ns = !stands ? 0 : k->stuck_ns ? k->stuck_ns : now;
    uint32_t number = stands && now - k->stuck_ns >= OVERDUE_NS ? k->stuck_number : 0;
    if (__atomic_load_n(&turn->overdue, __ATOMIC_RELAXED) != number)
        __atomic_store_n(&turn->overdue, number, __ATOMIC_SEQ_CST);
}

static void tell(struct memory_seat *s, uint32_t borrowers, uint64_t lent, uint64_t now, int quiet)
{
    struct vcuda_memory_turn *turn = turn_of(s);
    /* Once in any case: a program that has just begun waits for it (shim/memory/reclaim.c). */
    if (quiet && !__atomic_load_n(&turn->borrowers, __ATOMIC_RELAXED) && turn->looked_ns)
        return;
    __atomic_store_n(&turn->lent_bytes, lent, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&turn->borrowers, __ATOMIC_RELAXED) != borrowers)
        __atomic_store_n(&turn->borrowers, borrowers, __ATOMIC_SEQ_CST);
    __atomic_store_n(&turn->looked_ns, now, __ATOMIC_SEQ_CST);
}

static void take_orders_back(struct vcuda_memory_turn *turn)
{
    __atomic_store_n(&turn->known, 0, __ATOMIC_SEQ_CST);
    __atomic_store_n(&turn->overdue, 0, __ATOMIC_SEQ_CST);
    __atomic_store_n(&turn->give_bytes, 0, __ATOMIC_SEQ_CST);
}

void memory_leave(struct claim *claim, uint32_t index)
{
    struct vcuda_memory_turn *turn = &claim->turns->memory[index];
    take_orders_back(turn);
    __atomic_store_n(&turn->borrowers, 0, __ATOMIC_SEQ_CST);
    __atomic_store_n(&turn->lent_bytes, 0, __ATOMIC_SEQ_CST);
}

/* A claim borrows no more: nothing is left of its last orders. */
static void forget(const struct memory_seat *s)
{
    struct vcuda_memory_turn *turn = turn_of(s);
    if (__atomic_load_n(&turn->known, __ATOMIC_RELAXED) || __atomic_load_n(&turn->overdue, __ATOMIC_RELAXED) ||
        __atomic_load_n(&turn->give_bytes, __ATOMIC_RELAXED))
        take_orders_back(turn);
}

/* Read what the claims use. Return how many borrow; 0 also if none did at the last step, and none may now. */
static uint32_t read_seats(struct memory_seat *seats, int n, uint64_t now)
{
    uint32_t borrowers = 0;
    int any = 0;
    for (int i = 0; i < n; i++)
        any |= is_borrower(&seats[i]) || !seats[i].kept->looked;
    for (int i = 0; i < n && any; i++) {
        read_seat(&seats[i], now);
        borrowers += (uint32_t)is_borrower(&seats[i]);
    }
    return borrowers;
}

uint64_t memory_step(struct memory_seat *seats, int n, uint64_t now)
{
    uint64_t lent = 0;
    uint32_t borrowers = read_seats(seats, n, now);
    for (int i = 0; i < n; i++)
        lent += seats[i].borrowed;
    for (int i = 0; i < n; i++) {
        uint32_t others = borrowers - (uint32_t)is_borrower(&seats[i]);
        int in_vain = borrowers && seats[i].kept->want && !seats[i].wanted;
        tell(&seats[i], others, others && !in_vain ? lent - seats[i].borrowed : 0, now, !borrowers);
    }
    for (int i = 0; i < n && borrowers; i++)
        share_out(seats, n, &seats[i]);
    struct wants wants = borrowers ? sum_up(seats, n, now) : (struct wants){0};
    for (int i = 0; i < n; i++) {
        if (!is_borrower(&seats[i])) {
            forget(&seats[i]);
            continue;
        }
        order(&seats[i], &wants, now);
        look_for_overdue(&seats[i], now);
    }
    /* After all others were told that there are borrowers. */
    for (int i = 0; i < n; i++)
        if (__atomic_load_n(&turn_of(&seats[i])->known, __ATOMIC_RELAXED) != (uint32_t)borrows(&seats[i]))
            __atomic_store_n(&turn_of(&seats[i])->known, borrows(&seats[i]), __ATOMIC_SEQ_CST);
    return borrowers ? LOOK_NS : UINT64_MAX;
}
