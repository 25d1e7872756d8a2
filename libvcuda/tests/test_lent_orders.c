/* Who gives lent memory back, in made-up time: the arbiter's decisions beside owners and borrowers that do, at random, what
 * programs do, and die. */
#define claim arbiter_claim /* the suite has claims of its own */
#include "memory.h"
#undef claim

#include "harness.h"

#include <stdlib.h>
#include <string.h>

#define MS 1000000ull
#define SEATS 4
#define OWNERS 2 /* the rest borrow */
#define GPU (64 * GIB)
#define SLACK (64 * MIB)

/* One claim with one process. */
static struct model {
    struct arbiter_claim claim;
    struct vcuda_turns *turns;
    struct memory_kept kept;
    struct vcuda_limit limit;
    uint64_t in, out, want, moved, since; /* bytes, but the last: when it began to want */
    uint32_t done, seen;
    uint64_t busy_until; /* it cannot follow an order before */
    int is_deaf;         /* it never will */
    uint64_t failed, granted, longest;
} models[SEATS];
static uint64_t now, over_moved;

void claim_read_memory(const struct arbiter_claim *claim, uint32_t gpu_index, uint32_t order,
                       struct memory_reading *out)
{
    (void)gpu_index;
    for (int i = 0; i < SEATS; i++) {
        const struct model *m = &models[i];
        if (claim == &m->claim)
            *out = (struct memory_reading){.used_bytes = m->in + m->want,
                                           .movable_bytes = i < OWNERS ? 0 : m->in,
                                           .wanted_bytes = m->want,
                                           .out_bytes = m->out,
                                           .moved_bytes = m->moved,
                                           .pending = i >= OWNERS && m->in && m->done != order};
    }
}

static uint64_t free_bytes(void)
{
    uint64_t used = 0;
    for (int i = 0; i < SEATS; i++)
        used += models[i].in;
    return GPU - used;
}

static struct vcuda_memory_turn *turn(int i)
{
    return &models[i].turns->memory[0];
}

static void begin(void)
{
    now = 1000 * MS;
    over_moved = 0;
    for (int i = 0; i < SEATS; i++) {
        struct vcuda_turns *page = models[i].turns ? models[i].turns : malloc(sizeof *page);
        memset(page, 0, sizeof *page);
        memset(&models[i], 0, sizeof models[i]);
        models[i].turns = models[i].claim.turns = page;
        models[i].limit = (struct vcuda_limit){.memory_bytes = i < OWNERS ? GPU / 2 : GPU,
                                               .flags = i < OWNERS ? 0 : VCUDA_FLAG_BORROWS};
    }
}

static void arbiter(void)
{
    struct memory_seat seats[SEATS];
    for (int i = 0; i < SEATS; i++)
        seats[i] =
            (struct memory_seat){.arbiter_claim = &models[i].claim, .limit = models[i].limit, .kept = &models[i].kept};
    memory_step(seats, SEATS, now);
}

/* As the library does: an order of its own part, and no more than is missing. */
static void borrower(struct model *m, const struct vcuda_memory_turn *t)
{
    if (m->is_deaf || now < m->busy_until || t->number == m->done)
        return;
    uint64_t slack = SLACK * (1 + t->tries), have = free_bytes();
    m->done = t->number;
    if (!t->give_bytes || t->wanted_bytes + slack <= have || t->wanted_bytes > have + t->lent_bytes + m->in)
        return;
    uint64_t missing = t->wanted_bytes + slack - have;
    uint64_t bytes = missing < t->give_bytes + slack ? missing : t->give_bytes + slack;
    bytes = bytes < m->in ? bytes : m->in;
    m->in -= bytes;
    m->out += bytes;
    m->moved += bytes;
    over_moved += free_bytes() > t->wanted_bytes + 7 * SLACK;
}

/* An owner tries once a millisecond, and gives up when the arbiter has looked and nobody has anything, or after 10 s. */
static void owner(struct model *m, const struct vcuda_memory_turn *t)
{
    if (!m->want)
        return;
    uint64_t waited = now - m->since;
    if (free_bytes() >= m->want) {
        m->in += m->want;
        m->want = 0;
        m->granted++;
        m->longest = waited > m->longest ? waited : m->longest;
    } else if ((t->looked_ns > m->since && !t->lent_bytes) || waited > 10000 * MS) {
        m->want = 0;
        m->failed++;
    }
}

static void run(uint64_t ms)
{
    for (uint64_t until = now + ms * MS; now < until; now += MS) {
        if (now / MS % 2)
            arbiter();
        for (int i = OWNERS; i < SEATS; i++)
            borrower(&models[i], turn(i));
        for (int i = 0; i < OWNERS; i++)
            owner(&models[i], turn(i));
    }
}

static void want(int i, uint64_t bytes)
{
    models[i].want = bytes;
    models[i].since = now;
}

static void test_one(void)
{
    begin();
    models[2].in = 40 * GIB;
    models[3].in = 20 * GIB;
    run(100);
    want(0, 30 * GIB);
    run(200);
    expect(models[0].granted == 1 && models[2].out + models[3].out <= 26 * GIB + 2 * SLACK && !models[3].out,
           "who borrowed most gives what is missing, once: %.2f and %.2f GiB", (double)models[2].out / GIB,
           (double)models[3].out / GIB);
    run(1600);
    expect(!turn(2)->back, "nothing comes back for two seconds");
    run(500);
    expect(turn(2)->back && !turn(2)->give_bytes, "then it may");
    want(0, GIB);
    want(1, 31 * GIB);
    run(500);
    expect(models[0].granted == 2 && models[1].granted == 1 && !models[0].failed && !models[1].failed,
           "two owners at once, beyond what one borrower has");
}

/* 60 GiB are somebody's outside of all claims: giving all that is lent would not do. */
static void test_in_vain(void)
{
    begin();
    models[0].in = 30 * GIB;
    models[0].limit.memory_bytes = 31 * GIB;
    models[1].in = 30 * GIB;
    models[2].in = 2 * GIB;
    run(100);
    want(1, 5 * GIB);
    models[1].limit.memory_bytes = 40 * GIB;
    run(1500);
    expect(models[1].failed == 1 && !models[2].out,
           "a want that no giving can end moves nothing, and ends in a second and a half");
    want(1, 3 * GIB);
    run(500);
    expect(models[1].granted == 1 && models[2].out <= GIB + 2 * SLACK, "its next one is another: %.2f GiB left",
           (double)models[2].out / GIB);
}

/* One want that no giving can end, beside one that some can. */
static void test_in_vain_beside(void)
{
    begin();
    models[0].in = 28 * GIB;
    models[1].in = 30 * GIB;
    models[1].limit.memory_bytes = 60 * GIB;
    models[2].in = 6 * GIB;
    run(100);
    want(0, 2 * GIB);
    want(1, 20 * GIB);
    run(2500);
    expect(models[0].granted == 1 && !models[0].failed && models[1].failed == 1 && !models[1].granted,
           "a want that cannot be met does not fail another that can: after %.0f ms", (double)models[0].longest / 1e6);
}

/* An owner that allocates in equal parts: each is a want of its own, though no look falls between two of them. */
static void test_equal_wants(void)
{
    begin();
    models[1].in = 24 * GIB;
    models[2].in = 40 * GIB;
    run(100);
    for (int i = 0; i < 10; i++) {
        want(0, 2 * GIB);
        while (models[0].want)
            run(1);
    }
    expect(models[0].granted == 10 && !models[0].failed, "ten equal wants in a row are met: %lu are, %lu are not",
           (unsigned long)models[0].granted, (unsigned long)models[0].failed);
    expect(models[2].out <= 20 * GIB + 2 * SLACK && models[0].longest <= 5 * MS,
           "each by its own order: %.2f GiB left, the longest after %.0f ms", (double)models[2].out / GIB,
           (double)models[0].longest / 1e6);
}

static void test_overdue(void)
{
    begin();
    models[2].in = 40 * GIB;
    models[3].in = 20 * GIB;
    models[2].is_deaf = 1;
    run(100);
    want(0, 20 * GIB);
    run(1000);
    expect(models[0].granted == 1 && !turn(2)->overdue, "who does not follow is asked after others");
    want(1, 20 * GIB);
    run(2);
    uint32_t stuck = turn(2)->number;
    run(3798);
    expect(!models[1].granted && !turn(2)->overdue, "a long kernel is waited for");
    run(600);
    expect(turn(2)->overdue == stuck && stuck != models[2].done && !turn(3)->overdue,
           "then it is named, as nobody else has so much");
    expect(turn(2)->number != stuck, "by the order that it is stuck on: another has come since");
    models[2].in = models[2].out = models[2].is_deaf = 0; /* the agent ends it */
    run(100);
    expect(models[1].granted == 1 && !turn(2)->overdue, "ended, its memory is the owner's: after %.1f s",
           (double)models[1].longest / 1e9);
}

static void test_return(void)
{
    begin();
    models[2].in = 60 * GIB;
    models[0].limit.flags = VCUDA_FLAG_SUSPENDED | VCUDA_FLAG_RETURNS;
    models[0].limit.returning_bytes = 20 * GIB;
    run(300);
    uint64_t out = models[2].out;
    expect(free_bytes() >= 20 * GIB && out <= 16 * GIB + 7 * SLACK, "a suspended claim comes back: %.1f GiB leave",
           (double)out / GIB);
    models[0].limit.returning_bytes = 0;
    models[0].in = 20 * GIB;
    run(4000);
    expect(!turn(2)->back && models[2].out == out, "while it does, nothing moves");
    models[0].limit.flags = 0;
    run(2500);
    expect(turn(2)->back, "then what is out may come back");
}

/* The limit is taken back while memory is lent: it stays lent until it has left. */
static void test_taken_back(void)
{
    begin();
    models[2].in = 60 * GIB;
    models[2].limit.memory_request = 4 * GIB;
    run(100);
    models[2].limit = (struct vcuda_limit){.memory_bytes = 4 * GIB};
    want(0, 20 * GIB);
    run(300);
    expect(models[0].granted == 1 && models[2].out >= 16 * GIB && !turn(2)->known,
           "what was borrowed by a limit that was taken back is given back: %.1f GiB", (double)models[2].out / GIB);
    models[2].is_deaf = 1;
    models[1].limit.memory_bytes = 20 * GIB;
    want(1, 20 * GIB);
    run(4500);
    expect(turn(2)->overdue && turn(2)->give_bytes, "kept, it is overdue as another's");
    models[2].in = models[2].out = 0;
    run(100);
    expect(models[1].granted == 1 && !turn(2)->overdue && !turn(2)->give_bytes, "gone, nothing is asked of it");
}

static uint64_t dice(uint64_t most)
{
    return ((uint64_t)random() << 31 | (uint64_t)random()) % most;
}

static void act(struct model *m, int i)
{
    switch (dice(12)) {
    case 0 ... 3:
        if (i < OWNERS && !m->want && m->in < GPU / 2)
            want(i, 1 + dice(GPU / 2 - m->in));
        break;
    case 4:
        if (i < OWNERS)
            m->in -= dice(m->in + 1);
        break;
    case 5 ... 7:
        if (i >= OWNERS) {
            uint64_t bytes = dice(8 * GIB), wanted = turn(i)->wanted_ns;
            int fits = bytes <= free_bytes() && (!wanted || now - wanted > 2000 * MS);
            *(fits ? &m->in : &m->out) += m->in + m->out + bytes <= GPU ? bytes : 0;
        }
        break;
    case 8:
        m->busy_until = now + dice(2000) * MS; /* a long kernel */
        break;
    case 9: /* killed, sometimes */
        if (dice(4))
            break;
        m->in = m->out = m->want = m->done = 0;
        break;
    case 10: /* the arbiter is */
        for (int k = 0; k < SEATS; k++)
            memset(&models[k].kept, 0, sizeof models[k].kept);
        break;
    default:
        if (i >= OWNERS && turn(i)->back && m->out <= free_bytes()) {
            m->in += m->out;
            m->out = 0;
        }
    }
}

/* Return 1 if nobody is asked for more than it borrowed, nor all for more than is wanted. */
static int is_sound(void)
{
    uint64_t asked = 0, wanted = 0;
    for (int i = 0; i < SEATS; i++) {
        asked += turn(i)->give_bytes;
        wanted += models[i].kept.want;
        if (i < OWNERS ? turn(i)->give_bytes || turn(i)->known : models[i].limit.memory_request > 0)
            return 0;
    }
    return asked <= wanted;
}

static void test_interleavings(void)
{
    unsigned seed = test_seed();
    unsigned long rounds = test_count(200), unsound = 0, failed = 0, granted = 0, loud = 0;
    uint64_t longest = 0;
    srandom(seed);
    for (unsigned long r = 0; r < rounds; r++) {
        begin();
        models[2].in = dice(GPU / 2);
        models[3].in = dice(GPU / 2);
        run(10);
        for (int k = 0; k < 100; k++) {
            int i = (int)dice(SEATS);
            act(&models[i], i);
            run(1 + dice(100));
            arbiter();
            unsound += !is_sound();
        }
        for (int i = 0; i < SEATS; i++)
            models[i].busy_until = 0;
        run(12500); /* every want ends, and two seconds pass */
        for (int i = 0; i < SEATS; i++) {
            failed += models[i].failed;
            granted += models[i].granted;
            longest = models[i].longest > longest ? models[i].longest : longest;
            loud += turn(i)->give_bytes || models[i].want || (i >= OWNERS && !turn(i)->back);
        }
    }
    expect(!unsound, "%lu random stories with deaths of all: nobody is asked for more than is wanted (seed %u)", rounds,
           seed);
    expect(granted > rounds && !failed && longest < 10000 * MS,
           "%lu wants of what is promised are met, %lu are not; the longest after %.0f ms", granted, failed,
           (double)longest / 1e6);
    expect(!loud && !over_moved, "in the end nothing is asked, and never did much more leave than was wanted");
}

void test_lent_orders(void)
{
    test_one();
    test_in_vain();
    test_in_vain_beside();
    test_equal_wants();
    test_overdue();
    test_return();
    test_taken_back();
    test_interleavings();
}
