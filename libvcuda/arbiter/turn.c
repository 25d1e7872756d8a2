/* Turns: the next holder of the GPU, the end of its turn, and the moment at which its work has drained. See round.h. */
#include "round.h"

/* A holder that neither runs nor wants anything for this long gives its turn back. A program that waits for each kernel
 * continues within a millisecond: with 0.2 ms for everyone such a program got 3 % instead of 50. A program that pauses
 * for longer after each burst would leave the GPU idle, so its hold is halved each time down to the least. */
#define HOLD_MOST_NS (1 * MS)
#define HOLD_LEAST_NS (MS / 4)
/* A process that waits but launches nothing for this long is stopped, or its page is forged. */
#define IDLE_WAIT_NS (5 * MS)
/* On a busy machine an honest process may be late too: it loses the rest of a round only after this many turns without
 * a launch. */
#define STOPS_MOST 3
/* Near the end of a turn, work that no longer fits is not launched, so there is nothing to wait for. */
#define TAIL_NS (3 * MS)
/* A sleeping thread needs 140 to 160 us to wake; a timer that is set this much earlier is punctual. */
#define WAKE_EARLY_NS (300000ull)
#define HOLD_POLL_NS (500000ull)
#define IDLE_POLL_NS (100000ull)
#define DRAIN_POLL_NS (10000ull)
/* A lone holder's next turn is given before it stops launching for the end of this one. */
#define EXTEND_EARLY_NS (4 * MS)
/* A claim that paused for this long, and returns with some of its share left, may come before its place. */
#define BOOST_PAUSE_NS (2 * MS)
/* A claim that arrived may end another's turn only after this time: shorter turns would be mostly switching. */
#define HELD_LEAST_NS (2 * MS)
/* Work in flight is no longer waited for if it did not change for STALL_NS, or did not end for STALL_MOST_NS. */
#define STALL_NS (1000 * MS)
#define STALL_MOST_NS (5000 * MS)
/* A turn that took this long to drain is no evidence of how turns are used. */
#define LONG_DRAIN_NS (100 * MS)
/* A process's watcher sees the end of its work with at most this delay; an older end is not believed. */
#define END_DELAY_NS (1 * MS)
/* The arbiter's own lateness is not charged to the next holder; a switch takes about 0.2 ms. */
#define SWITCH_MOST_NS (1 * MS)

static int may_have_main(const struct seat *s)
{
    return seat_wants(s) && seat_main_left(s) >= (int64_t)TURN_LEAST_NS;
}

static int may_have_bonus(const struct round *r, const struct seat *s, uint64_t now)
{
    return seat_wants(s) && round_allowance(r, s, now) >= (int64_t)TURN_LEAST_NS;
}

/* Return 1 if the seat still pays for work that was much longer than its turn. */
static int is_debtor(const struct round *r, const struct seat *s)
{
    return s->carry_ns < -(int64_t)r->length_ns / 4;
}

void turn_learn_pause(struct seat *s)
{
    if (s->paused_ns <= 2 * HOLD_MOST_NS)
        s->hold_ns = HOLD_MOST_NS;
    else
        s->hold_ns = s->hold_ns / 2 > HOLD_LEAST_NS ? s->hold_ns / 2 : HOLD_LEAST_NS;
}

/* Return the seat's part of the time that is left over, by weight among the seats of its tier that may have some. */
static int64_t bonus_of(const struct round *r, const struct seat *s, uint64_t now)
{
    uint64_t weights = 0, rest = r->began_ns + r->span_ns - now;
    for (int i = 0; i < r->n; i++)
        if (r->seat[i].terms.tier == s->terms.tier && may_have_bonus(r, &r->seat[i], now) &&
            is_debtor(r, &r->seat[i]) == is_debtor(r, s))
            weights += r->seat[i].terms.weight;
    int64_t fair = (int64_t)(rest * s->terms.weight / (weights ? weights : 1)), most = round_allowance(r, s, now);
    fair = fair < (int64_t)TURN_LEAST_NS ? (int64_t)TURN_LEAST_NS : fair;
    return fair < most ? fair : most;
}

/* Return 1 if the seat may have a turn of this kind. Kinds are given in the order: own share (0), time left over (1),
 * time left over to debtors (2). */
static int may_have(const struct round *r, const struct seat *s, int kind, uint64_t now)
{
    if (kind == 0)
        return may_have_main(s);
    return may_have_bonus(r, s, now) && is_debtor(r, s) == (kind == 2);
}

/* Return the next holder; `bonus` is set if it gets time that others left over. Tier 1 gets what tier 0 does not
 * want. */
static int pick(const struct round *r, uint64_t now, int *bonus)
{
    if (r->first != NOBODY && may_have_main(&r->seat[r->first])) {
        *bonus = 0;
        return r->first;
    }
    for (uint32_t tier = 0; tier < 2; tier++)
        for (*bonus = 0; *bonus < 3; ++*bonus)
            for (int i = 0; i < r->n; i++) {
                int k = (r->next + i) % r->n;
                const struct seat *s = &r->seat[k];
                if (s->terms.tier == tier && may_have(r, s, *bonus, now))
                    return k;
            }
    return NOBODY;
}

static int others_want(const struct round *r, int holder, uint64_t now)
{
    for (int i = 0; i < r->n; i++) {
        const struct seat *s = &r->seat[i];
        if (i != holder && (may_have_main(s) || may_have_bonus(r, s, now) || seat_arrived(s)))
            return 1;
    }
    return 0;
}

/* Write to the later seats when to expect their turn. */
static void announce(struct round *r)
{
    uint64_t at = r->seat[r->holder].ends_ns, over = r->began_ns + r->span_ns;
    for (int i = 0; i < r->n; i++) {
        struct seat *s = &r->seat[(r->next + i) % r->n];
        if (s == &r->seat[r->holder])
            continue;
        s->starts_ns = seat_main_left(s) >= (int64_t)TURN_LEAST_NS || at > over ? at : over;
        if (may_have_main(s))
            at += (uint64_t)seat_main_left(s);
    }
}

static uint64_t hold_until(const struct round *r, uint64_t now)
{
    uint64_t ends = r->seat[r->holder].ends_ns;
    int watchful = r->seat[r->holder].terms.tier && round_is_watchful(r);
    if ((watchful || r->busy_ns < now) && now + WAKE_EARLY_NS < ends)
        return now + IDLE_POLL_NS;
    if (now + WAKE_EARLY_NS >= ends)
        return now + DRAIN_POLL_NS;
    return now + HOLD_POLL_NS < ends - WAKE_EARLY_NS ? now + HOLD_POLL_NS : ends - WAKE_EARLY_NS;
}

static uint64_t grant(struct round *r, int k, int bonus, uint64_t now)
{
    struct seat *s = &r->seat[k];
    int64_t length = seat_main_left(s), most = round_allowance(r, s, now);
    if (now - r->frontier_ns > SWITCH_MOST_NS)
        r->frontier_ns = now - SWITCH_MOST_NS;
    if (bonus)
        length += bonus_of(r, s, now);
    else if (!others_want(r, k, now) && most > length)
        length = most;
    if (r->is_cut)
        length = lesser(length, (int64_t)(r->began_ns + r->span_ns - now));
    s->bonus_ns = length > seat_main_left(s) ? length - seat_main_left(s) : 0;
    if (k != r->first)
        r->next = (k + 1) % r->n;
    r->first = NOBODY;
    r->phase = ROUND_HOLDING;
    r->holder = k;
    r->turn_began_ns = r->busy_ns = now;
    s->paused_ns = 0;
    s->hold_ns = s->hold_ns ? s->hold_ns : HOLD_MOST_NS;
    s->starts_ns = 0;
    s->ends_ns = r->frontier_ns + (uint64_t)length;
    announce(r);
    return hold_until(r, now);
}

uint64_t turn_advance(struct round *r, uint64_t now)
{
    int bonus, anew = r->is_cut && round_over(r, now);
    for (int i = 0; i < r->n; i++)
        anew |= seat_arrived(&r->seat[i]);
    if (anew)
        round_begin(r, now);
    int k = r->phase == ROUND_FREE ? NOBODY : pick(r, now, &bonus);
    if (k == NOBODY && r->phase != ROUND_FREE && round_over(r, now)) {
        round_begin(r, now);
        k = r->phase == ROUND_FREE ? NOBODY : pick(r, now, &bonus);
    }
    if (r->phase == ROUND_FREE)
        return now + HOLD_POLL_NS;
    if (k != NOBODY)
        return grant(r, k, bonus, now);
    r->phase = ROUND_GAP;
    r->holder = NOBODY;
    return now + HOLD_POLL_NS;
}

uint64_t turn_gap(struct round *r, uint64_t now)
{
    r->frontier_ns = now; /* idle time is not charged */
    return turn_advance(r, now);
}

static uint64_t close_turn(struct round *r, uint64_t now)
{
    struct seat *s = &r->seat[r->holder];
    s->ends_ns = 0;
    s->starts_ns = now + r->length_ns;
    r->phase = ROUND_DRAINING;
    r->closed_ns = r->progress_ns = now;
    r->progress_of = s->reading.inflight_ns;
    /* The work that runs now began when the work before it ended. */
    uint64_t since = s->reading.last_end_ns > r->turn_began_ns ? s->reading.last_end_ns : r->turn_began_ns;
    r->drained_by_ns = since + s->reading.inflight_ns;
    return now; /* read again at once: a launch may have entered just before */
}

/* Return 1 if this seat may take the GPU from the holder before the end of its turn. */
static int displaces(const struct round *r, const struct seat *s, const struct seat *holder, uint64_t now)
{
    int arrived = seat_arrived(s);
    if (s == holder || s->terms.tier > holder->terms.tier)
        return 0;
    if (s->terms.tier < holder->terms.tier)
        return arrived || may_have_main(s) || may_have_bonus(r, s, now);
    if (!(arrived || may_have_main(s)))
        return 0;
    if (now - r->turn_began_ns < HELD_LEAST_NS)
        return 0;
    return arrived || s->paused_ns >= BOOST_PAUSE_NS;
}

static int displaced(struct round *r, uint64_t now)
{
    const struct seat *holder = &r->seat[r->holder];
    for (int i = 0; i < r->n; i++) {
        if (!displaces(r, &r->seat[i], holder, now))
            continue;
        r->first = i;
        /* The interrupted holder continues after that. */
        r->next = r->holder;
        return 1;
    }
    return 0;
}

/* Shrink the turn to the holder's own share if another seat now has a right to the time that was left over. */
static void take_bonus_back(struct round *r, uint64_t now)
{
    struct seat *holder = &r->seat[r->holder];
    int wanted = 0;
    for (int i = 0; i < r->n && holder->bonus_ns > 0; i++)
        wanted |= i != r->holder && r->seat[i].terms.tier <= holder->terms.tier && may_have_main(&r->seat[i]);
    if (!wanted || now - r->turn_began_ns < HELD_LEAST_NS)
        return;
    uint64_t own = r->frontier_ns + (uint64_t)seat_main_left(holder), soon = now + WAKE_EARLY_NS;
    uint64_t ends = own > soon ? own : soon;
    if (ends >= holder->ends_ns)
        return;
    holder->bonus_ns -= (int64_t)(holder->ends_ns - ends);
    holder->bonus_ns = holder->bonus_ns > 0 ? holder->bonus_ns : 0;
    holder->ends_ns = ends;
    announce(r);
}

static int anybody_else(const struct round *r, int holder)
{
    for (int i = 0; i < r->n; i++)
        if (i != holder && seat_wants(&r->seat[i]))
            return 1;
    return 0;
}

/* Continue a lone holder in a new turn: no other seat wants the GPU, so the accounts are closed now as if it were
 * drained. */
static int extend(struct round *r, uint64_t now, uint64_t *next)
{
    int k = r->holder;
    struct seat *s = &r->seat[k];
    uint64_t over = r->began_ns + r->span_ns;
    if (now + EXTEND_EARLY_NS < s->ends_ns || s->ends_ns + TURN_LEAST_NS < over || anybody_else(r, k))
        return 0;
    round_charge(r, s, now);
    round_begin(r, now);
    if (r->phase == ROUND_FREE) {
        *next = now;
    } else if (s->beside) {
        r->holder = NOBODY;
        *next = turn_advance(r, now);
    } else if (may_have_main(s))
        *next = grant(r, k, 0, now);
    else
        *next = close_turn(r, now);
    return 1;
}

/* Return 1 if the holder does not use the rest of its turn. */
static int gives_back(struct round *r, uint64_t now)
{
    struct seat *s = &r->seat[r->holder];
    const struct reading *u = &s->reading;
    if (u->inflight_ns || u->last_launch_ns > r->busy_ns) {
        r->busy_ns = u->inflight_ns ? now : u->last_launch_ns;
        s->stops = 0;
    }
    if (u->inflight_ns)
        return 0;
    if (u->yielded || now + WAKE_EARLY_NS >= s->ends_ns)
        return 1;
    if (now - r->busy_ns < (u->waiting ? HOLD_MOST_NS : s->hold_ns))
        return 0;
    int stopped = u->waiting && now - r->busy_ns > IDLE_WAIT_NS;
    s->stops += stopped;
    s->stopped = s->stops >= STOPS_MOST;
    s->idled |= stopped || !u->waiting;
    return stopped || !u->waiting || now + TAIL_NS > s->ends_ns;
}

uint64_t turn_hold(struct round *r, uint64_t now)
{
    uint64_t next;
    struct seat *s = &r->seat[r->holder];
    if (now >= s->ends_ns) {
        r->hungry_ns = now;
        return close_turn(r, now);
    }
    if (!s->terms.limit || gives_back(r, now) || displaced(r, now)) {
        r->hungry_ns = s->reading.yielded || (s->reading.waiting && now + TAIL_NS > s->ends_ns) ? now : r->hungry_ns;
        return close_turn(r, now);
    }
    take_bonus_back(r, now);
    if (extend(r, now, &next))
        return next;
    return hold_until(r, now);
}

/* Return the moment at which the holder's work was over, as its process reported it where possible; 0 if it is not
 * over. */
static uint64_t drained_at(const struct round *r, const struct seat *s, uint64_t now)
{
    uint64_t end = s->reading.last_end_ns;
    if (s->reading.inflight_ns)
        return 0;
    return end > r->turn_began_ns && end <= now && end + END_DELAY_NS > r->busy_ns ? end : now;
}

/* Return 1 if the work does not end (a hung kernel, or a forged page), so that it cannot block the others for ever. */
static int is_stalled(struct round *r, const struct seat *s, uint64_t now)
{
    if (s->reading.inflight_ns != r->progress_of) {
        r->progress_of = s->reading.inflight_ns;
        r->progress_ns = now;
    }
    return now - r->progress_ns > STALL_NS || now - r->closed_ns > STALL_MOST_NS;
}

static uint64_t drain_poll(const struct round *r, uint64_t now)
{
    uint64_t late = now > r->drained_by_ns ? now - r->drained_by_ns : 0;
    uint64_t early = r->drained_by_ns > now ? r->drained_by_ns - now : 0;
    /* The prediction of work in flight is too high, as bursts are admitted as a whole. */
    if (early > WAKE_EARLY_NS)
        return now + (early - WAKE_EARLY_NS < HOLD_POLL_NS ? early - WAKE_EARLY_NS : HOLD_POLL_NS);
    return now + (late < 2 * MS ? DRAIN_POLL_NS : late < 20 * MS ? 10 * DRAIN_POLL_NS : MS);
}

uint64_t turn_drain(struct round *r, uint64_t now)
{
    struct seat *s = &r->seat[r->holder];
    uint64_t end = drained_at(r, s, now);
    if (!end && !is_stalled(r, s, now)) {
        r->busy_ns = now;
        return drain_poll(r, now);
    }
    s->stray = !end;
    if (now - r->closed_ns > LONG_DRAIN_NS)
        round_judge_anew(r, now);
    round_charge(r, s, end ? end : now);
    s->bonus_ns = 0;
    r->holder = NOBODY;
    return turn_advance(r, now);
}
