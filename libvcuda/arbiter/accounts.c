/* Accounts: the charge of each seat in a round, and the balance it carries into the next round. See round.h. */
#include "round.h"

/* The largest credit of a claim that lost time to the long kernels of others. It is paid back over many rounds, at most
 * half a round in each. */
#define CARRY_MOST_NS (1000 * (int64_t)MS)
/* The largest debt of a claim. A debt is paid off over later rounds whatever kernel caused it, but it is bounded. */
#define DEBT_MOST_NS (10000 * (int64_t)MS)
#define OUTSIDE_MOST_NS (2000 * (int64_t)MS)

uint32_t seat_most(const struct round *r, const struct seat *s)
{
    return s->terms.limit < r->ceiling ? s->terms.limit : r->ceiling;
}

void round_charge(struct round *r, struct seat *s, uint64_t until)
{
    int64_t spent = until > r->frontier_ns ? (int64_t)(until - r->frontier_ns) : 0;
    int64_t own = lesser(spent, seat_main_left(s));
    int64_t bonus = lesser(spent - own, s->bonus_ns);
    s->charged_ns += spent - bonus; /* Time beyond its own budget and the bonus is overuse, and becomes debt. */
    s->bonus_ns -= bonus;
    s->used_ns += spent;
    r->used_ns += spent;
    r->frontier_ns += (uint64_t)spent;
}

/* Charge collectives that were launched outside of turns, up to the largest debt. */
static void charge_outside(struct seat *s)
{
    uint64_t grown = s->reading.outside_ns > s->outside_ns ? s->reading.outside_ns - s->outside_ns : 0;
    s->outside_ns = s->reading.outside_ns;
    if (grown && s->carry_ns > -OUTSIDE_MOST_NS)
        s->charged_ns +=
            lesser((int64_t)(grown < OUTSIDE_MOST_NS ? grown : OUTSIDE_MOST_NS), s->carry_ns + OUTSIDE_MOST_NS);
}

static void settle_seat(struct round *r, struct seat *s, uint64_t lasted)
{
    int64_t earned = share_of(lasted, s->share);
    if (s->in_round)
        s->usual_share = s->share;
    if (s->in_round)
        s->carry_ns += earned - s->charged_ns;
    else if (s->carry_ns < 0)
        s->carry_ns = lesser(0, s->carry_ns + earned);
    else
        s->carry_ns += share_of(lasted, s->usual_share);
    /* A claim is owed at most one round's share of the time that it did not want. So a program that works in bursts,
     * and uses less than its share in total, gets through a burst about as quickly as alone. */
    if (s->idled || !seat_wants(s))
        s->carry_ns = lesser(s->carry_ns, share_of(r->length_ns, s->usual_share));
    s->carry_ns = lesser(s->carry_ns, CARRY_MOST_NS);
    s->carry_ns = s->carry_ns < -DEBT_MOST_NS ? -DEBT_MOST_NS : s->carry_ns;
    s->debt_ns = lesser(0, s->debt_ns + share_of(lasted, seat_most(r, s)) - s->used_ns);
    s->debt_ns = s->debt_ns < -DEBT_MOST_NS ? -DEBT_MOST_NS : s->debt_ns;
}

/* Cancel credit that every seat has: time that nobody used (because the arbiter was late, say) cannot be paid back to
 * all. */
static void forget_common_credit(struct round *r)
{
    double least = -1; /* credit in relation to the share */
    for (int i = 0; i < r->n; i++) {
        const struct seat *s = &r->seat[i];
        if (!s->in_round || !s->share)
            continue;
        double owed = (double)s->carry_ns / s->share;
        least = least < 0 || owed < least ? owed : least;
        if (owed <= 0)
            return;
    }
    for (int i = 0; i < r->n && least > 0; i++)
        if (r->seat[i].in_round)
            r->seat[i].carry_ns -= (int64_t)(least * r->seat[i].share);
}

/* Close the accounts of the round that ends now. Work that did not drain in time shares the GPU with the turns of
 * others. */
void round_settle(struct round *r, uint64_t now)
{
    uint64_t lasted = now > r->began_ns ? now - r->began_ns : 0;
    int sharing = 1;
    for (int i = 0; i < r->n; i++)
        sharing += r->seat[i].stray;
    for (int i = 0; i < r->n; i++) {
        if (r->seat[i].stray)
            r->seat[i].charged_ns += (int64_t)lasted / sharing;
        charge_outside(&r->seat[i]);
        settle_seat(r, &r->seat[i], lasted);
    }
    forget_common_credit(r);
    r->debt_ns = lesser(0, r->debt_ns + share_of(lasted, r->ceiling) - r->used_ns);
}
