/* Rounds: when turns are given at all, and how much of each round a claim may use. See round.h. */
#include "round.h"

#include <string.h>

/* A claim with work this recently stays active: programs pause between steps. */
#define ACTIVE_NS (50 * MS)
/* The longest time to wait, before turns begin, for work launched without turns to drain. */
#define START_DRAIN_NS (20 * MS)
#define FREE_POLL_NS (10 * MS)
#define FREE_IDLE_POLL_NS (50 * MS)
#define WINDOW_NS (100 * MS)
/* Turns begin when the claims together use this much, and end after a second below the lower mark: exclusive turns give
 * up the overlap by which the driver serves light claims better. */
#define HEAVY_USE 8000u
#define LIGHT_USE 6000u
/* Turns also begin when the claims wait for the GPU at the same time so often that it mostly switches between them: two
 * programs that each wait for every kernel of 0.1 ms get 21 % each side by side, while one gets 92 % alone. */
#define CLASH 400u
#define CLASH_USE 3000u
#define LIGHT_FOR_NS (1000 * MS)
#define ALONE_FOR_NS (500 * MS)
/* If everyone has used its turns to the end for this long, short rounds help nobody, and each switch costs time. */
#define STEADY_NS (500 * MS)
#define STEADY_ROUNDS 2
/* The longest pause of a program that waits for its kernels. */
#define STEADY_PAUSE_NS (1 * MS)
/* While turns are given the round steps every millisecond. After a gap this long the record of use is incomplete. */
#define AWAY_NS (100 * MS)
/* The depth of best-effort work in flight while a claim of higher priority may want the GPU. More of it is handed to the GPU
 * ahead (shim/compute/ahead.c), so it need not cover the pauses of the program. */
#define DEPTH_BEST_EFFORT_NS (3 * MS / 10)

void round_init(struct round *r, uint64_t length_ns)
{
    memset(r, 0, sizeof *r);
    r->length_ns = length_ns;
    r->ceiling = SHARE_WHOLE;
    r->holder = r->first = NOBODY;
}

struct seat *round_sit(struct round *r, void *claim)
{
    if (r->n == ROUND_SEATS)
        return NULL;
    struct seat *s = &r->seat[r->n++];
    memset(s, 0, sizeof *s);
    s->claim = claim;
    s->ends_ns = r->phase == ROUND_FREE ? VCUDA_TURN_FREE : 0;
    r->steady_since_ns = 0;
    return s;
}

static int after_leaving(int place, int index)
{
    return place == index ? NOBODY : place > index ? place - 1 : place;
}

void round_leave(struct round *r, int index)
{
    memmove(&r->seat[index], &r->seat[index + 1], sizeof *r->seat * (size_t)(r->n - index - 1));
    r->n--;
    r->steady_since_ns = 0;
    if (r->holder == index)
        r->phase = ROUND_GAP; /* its turn is over, and the work in it is not waited for */
    r->holder = after_leaving(r->holder, index);
    r->first = after_leaving(r->first, index);
    r->next = r->next > index ? r->next - 1 : r->next;
    r->next = r->next < r->n ? r->next : 0;
}

int seat_wants(const struct seat *s)
{
    return !s->stray && !s->stopped && !s->beside && s->terms.limit && (s->reading.waiting || s->reading.inflight_ns);
}

int seat_is_active(const struct seat *s, uint64_t now)
{
    const struct reading *u = &s->reading;
    return s->terms.limit &&
           (u->waiting || u->inflight_ns || (u->last_launch_ns && now - u->last_launch_ns < ACTIVE_NS));
}

int round_is_contended(const struct round *r, int index)
{
    uint64_t seen = r->stepped_ns;
    for (int i = 0; i < r->n; i++)
        if (i != index && seat_is_active(&r->seat[i], seen) &&
            (r->phase == ROUND_FREE || r->seat[i].beside || r->seat[index].beside || r->seat[i].stray))
            return 1;
    return 0;
}

int round_is_watchful(const struct round *r)
{
    int first = 0, best_effort = 0;
    for (int i = 0; i < r->n; i++) {
        first |= r->seat[i].terms.tier == 0 && r->seat[i].terms.limit && r->seat[i].reading.processes;
        best_effort |= r->seat[i].terms.tier == 1 && seat_is_active(&r->seat[i], r->stepped_ns);
    }
    return first && best_effort;
}

int seat_arrived(const struct seat *s)
{
    return !s->in_round && seat_wants(s) && s->carry_ns >= 0;
}

int64_t seat_main_left(const struct seat *s)
{
    return s->in_round && s->budget_ns > s->charged_ns ? s->budget_ns - s->charged_ns : 0;
}

/* Return how much of this round's time the seat may still have, from its own share or from others'. */
int64_t round_allowance(const struct round *r, const struct seat *s, uint64_t now)
{
    int64_t rest = (int64_t)(r->began_ns + r->span_ns) - (int64_t)now;
    int64_t all = share_of(r->span_ns, r->ceiling) + r->debt_ns - r->used_ns;
    int64_t own = share_of(r->span_ns, seat_most(r, s)) + s->debt_ns - s->used_ns;
    return s->in_round ? lesser(rest, lesser(all, own)) : 0;
}

int round_over(const struct round *r, uint64_t now)
{
    return now + TURN_LEAST_NS > r->began_ns + r->span_ns;
}

static void free_seat(const struct round *r, struct seat *s)
{
    s->ends_ns = VCUDA_TURN_FREE;
    s->starts_ns = 0;
    s->share = s->cap ? s->cap : seat_most(r, s);
}

static void give_no_turns(struct round *r)
{
    r->phase = ROUND_FREE;
    r->holder = r->first = NOBODY;
    r->window_ns = 0;
    beside_cap(r, r->stepped_ns);
    for (int i = 0; i < r->n; i++) {
        r->seat[i].stray = r->seat[i].beside = 0;
        free_seat(r, &r->seat[i]);
    }
}

static int is_steady(struct round *r, uint64_t now)
{
    for (int i = 0; i < r->n; i++) {
        struct seat *s = &r->seat[i];
        if (s->in_round ? s->idled || !seat_wants(s) : seat_wants(s))
            r->steady_since_ns = now;
    }
    r->steady_since_ns = r->steady_since_ns ? r->steady_since_ns : now;
    return now - r->steady_since_ns >= STEADY_NS;
}

/* Return the length of the next round. A small deviation is corrected in it; after a larger one, time is counted
 * anew. */
static uint64_t next_span(const struct round *r, uint64_t length, uint64_t now)
{
    int64_t late = (int64_t)(now - (r->began_ns + r->span_ns)), most = (int64_t)r->length_ns / 4;
    return r->began_ns && late > -most && late < most ? (uint64_t)((int64_t)length - late) : length;
}

void round_disturb(struct round *r, uint64_t now)
{
    uint64_t soon = now + TURN_LEAST_NS, over = r->began_ns + r->length_ns;
    r->steady_since_ns = now;
    over = over > soon ? over : soon;
    if (r->phase == ROUND_FREE || r->phase == ROUND_STARTING || r->began_ns + r->span_ns <= over)
        return;
    r->span_ns = over - r->began_ns;
    r->is_cut = 1;
    if (r->phase == ROUND_HOLDING && r->seat[r->holder].ends_ns > over)
        r->seat[r->holder].ends_ns = over;
}

/* Let nobody go beside the others' turns. A guaranteed service leaves its turns idle between its requests, and gets no less of
 * the GPU by the driver's slices; but beside best effort it would wait for a whole slice at each request. */
static void keep_in_turns(struct round *r, uint64_t now)
{
    for (int i = 0; i < r->n; i++) {
        struct seat *s = &r->seat[i];
        if (s->beside)
            s->ends_ns = s->starts_ns = 0;
        s->beside = s->light = s->thin = s->let_go = s->sparse = 0;
        s->cap = 0;
        s->turns_gpu_time_ns = s->reading.gpu_time_ns;
    }
    round_judge_anew(r, now);
}

void round_begin(struct round *r, uint64_t now)
{
    struct share_terms terms[ROUND_SEATS];
    uint32_t shares[ROUND_SEATS];
    int watchful = round_is_watchful(r), idle = r->began_ns && !watchful && beside_judge(r, now);
    uint64_t length = r->length_ns * (is_steady(r, now) ? STEADY_ROUNDS : 1);
    if (r->began_ns)
        round_settle(r, now);
    int needless =
        now - r->crowded_ns > ALONE_FOR_NS || (now - r->hungry_ns > LIGHT_FOR_NS && now - r->heavy_ns > LIGHT_FOR_NS);
    if (idle || (needless && !watchful)) {
        give_no_turns(r);
        return;
    }
    if (watchful)
        keep_in_turns(r, now);
    for (int i = 0; i < r->n; i++) {
        r->seat[i].in_round = seat_is_active(&r->seat[i], now) && !r->seat[i].beside;
        terms[i] = r->seat[i].terms;
        terms[i].demand = r->seat[i].in_round ? SHARE_WHOLE : 0;
    }
    share_fill(terms, (uint32_t)r->n, r->ceiling, shares);
    beside_cap(r, now);
    r->span_ns = next_span(r, length, now);
    for (int i = 0; i < r->n; i++) {
        struct seat *s = &r->seat[i];
        /* A claim that pauses works its debt off at the share that it had last. */
        s->share = s->in_round || s->carry_ns >= 0 ? shares[i] : s->share;
        s->budget_ns = share_of(r->span_ns, s->share) + lesser(s->carry_ns, (int64_t)r->length_ns / 2);
        s->charged_ns = s->used_ns = s->bonus_ns = 0;
        s->idled = s->stopped = 0;
        s->depth_ns = s->terms.tier && watchful ? DEPTH_BEST_EFFORT_NS : 0;
        if (s->beside)
            free_seat(r, s);
    }
    r->used_ns = 0;
    r->is_cut = 0;
    r->began_ns = now;
}

/* Measure over whole windows how much of the GPU the claims report to have used together. */
static void measure(struct round *r, uint64_t now)
{
    uint64_t lasted = now - r->window_ns, used = 0;
    if (r->window_ns && lasted < WINDOW_NS)
        return;
    for (int i = 0; i < r->n; i++) {
        struct seat *s = &r->seat[i];
        uint64_t time = s->reading.gpu_time_ns, grown = time > s->seen_gpu_time_ns ? time - s->seen_gpu_time_ns : 0;
        used += grown < lasted ? grown : lasted;
        s->seen_gpu_time_ns = time;
    }
    r->use = r->window_ns ? (uint32_t)(used * SHARE_WHOLE / lasted) : 0;
    r->window_ns = now;
    if (r->use >= LIGHT_USE)
        r->heavy_ns = now;
}

static int observe(struct round *r, uint64_t now)
{
    int active = 0, takers = 0;
    for (int i = 0; i < r->n; i++) {
        struct seat *s = &r->seat[i];
        active += seat_is_active(s, now);
        s->looks++;
        s->syncs += s->reading.syncing != 0;
        takers += seat_is_active(s, now) && !s->beside;
        if (!s->reading.inflight_ns)
            s->stray = 0;
        if (!seat_wants(s)) {
            s->idle_since_ns = s->idle_since_ns ? s->idle_since_ns : now;
        } else if (s->idle_since_ns) {
            s->paused_ns = now - s->idle_since_ns;
            s->idle_since_ns = 0;
            if (s->paused_ns >= STEADY_PAUSE_NS)
                r->steady_since_ns = now;
            turn_learn_pause(s);
        }
    }
    if (takers > 1)
        r->crowded_ns = now;
    measure(r, now);
    return active;
}

static void start(struct round *r, uint64_t now)
{
    r->phase = ROUND_STARTING;
    r->began_ns = 0;
    r->turn_began_ns = r->frontier_ns = now;
    r->used_ns = r->debt_ns = 0;
    r->crowded_ns = r->hungry_ns = r->heavy_ns = r->steady_since_ns = now;
    r->harm_since_ns = r->no_turns_until_ns = 0;
    round_judge_anew(r, now);
    for (int i = 0; i < r->n; i++) {
        struct seat *s = &r->seat[i];
        s->ends_ns = s->starts_ns = 0;
        s->carry_ns = s->debt_ns = s->budget_ns = s->charged_ns = s->used_ns = s->bonus_ns = 0;
        s->let_go = s->thin = 0;
        s->cap = 0;
        /* What left its turns idle before may be another program after a pause. */
        s->sparse = s->rested ? 0 : s->sparse;
        s->turns_gpu_time_ns = s->reading.gpu_time_ns;
        s->in_round = s->stray = s->beside = 0;
        s->outside_ns = s->reading.outside_ns;
        s->paused_ns = 0;
    }
}

/* Waiting must be seen twice: a claim that was just freed may still be waking up. */
static uint64_t stay_free(struct round *r, int active, uint64_t now)
{
    int waiting = 0, busy = 0;
    beside_cap(r, now);
    for (int i = 0; i < r->n; i++) {
        waiting += r->seat[i].reading.waiting && r->seat[i].terms.limit;
        busy += r->seat[i].reading.syncing && r->seat[i].terms.limit;
        free_seat(r, &r->seat[i]); /* a new claim, or one whose limit changed */
    }
    r->waits = waiting ? r->waits + 1 : 0;
    r->clash = r->clash - r->clash / 8 + (busy > 1 ? 125 : 0);
    int clashing = r->clash >= CLASH && r->use >= CLASH_USE;
    int harm = beside_watch(r, now), watchful = round_is_watchful(r);
    if (now < r->no_turns_until_ns && r->n <= r->free_active && !harm && !watchful)
        return now + FREE_POLL_NS;
    int fight = active > 1 && (harm || r->waits > 1 || r->use >= HEAVY_USE || clashing);
    if (!r->native && (fight || watchful)) {
        r->clash = 0;
        start(r, now);
        return now + MS / 5;
    }
    return now + (active ? FREE_POLL_NS : FREE_IDLE_POLL_NS);
}

static uint64_t drain_all(struct round *r, uint64_t now)
{
    int undrained = 0;
    for (int i = 0; i < r->n; i++)
        undrained += r->seat[i].reading.inflight_ns != 0;
    if (undrained && now - r->turn_began_ns < START_DRAIN_NS)
        return now + MS / 5;
    for (int i = 0; i < r->n; i++)
        r->seat[i].stray = r->seat[i].reading.inflight_ns != 0;
    r->frontier_ns = now;
    round_begin(r, now);
    return turn_advance(r, now);
}

uint64_t round_step(struct round *r, uint64_t now)
{
    int away = r->stepped_ns && now - r->stepped_ns > AWAY_NS;
    r->stepped_ns = now;
    int active = observe(r, now);
    if (r->native && r->phase != ROUND_FREE)
        give_no_turns(r);
    if (r->phase != ROUND_FREE && (away || beside_watch(r, now)))
        start(r, now);
    switch (r->phase) {
    case ROUND_FREE:
        return stay_free(r, active, now);
    case ROUND_STARTING:
        return drain_all(r, now);
    case ROUND_HOLDING:
        return turn_hold(r, now);
    case ROUND_DRAINING:
        return turn_drain(r, now);
    default:
        return turn_gap(r, now);
    }
}
