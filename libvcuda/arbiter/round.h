/* The arbiter's decisions about one GPU, pure: readings and the clock go in, turns come out.
 *
 * A seat is one claim on the GPU. Whoever drives the round sets each seat's `terms` and `reading`, calls round_step, writes
 * what the seats' `ends_ns`, `starts_ns` and `share` say to the claims' pages, reads again, and calls again when the step
 * asked for it. Readings must be younger than what was last written: a turn is closed, then seen to be drained.
 *
 * Accounts. A round lasts `length_ns` of wall time. At its begin the claims that are active are given shares; a seat's
 * budget is share * length + carry. A turn is charged from the moment the GPU was drained of the one before to the moment it
 * is drained of this one, so that switching is paid by whoever comes. At the round's end
 * carry += share * (what the round really lasted) - charged: whoever overran pays in the next rounds, whoever was kept
 * waiting is given back, at most half a round in each. Time that others left over is not charged, but counts towards the limit.
 */
#ifndef ARBITER_ROUND_H
#define ARBITER_ROUND_H

#include "reading.h"
#include "share.h"

#define ROUND_SEATS SHARE_MAX_CLAIMS
#define NOBODY (-1)

enum round_phase {
    ROUND_FREE,     /* no turns are given: each claim follows its own limit */
    ROUND_STARTING, /* all are closed; what they have in flight drains */
    ROUND_HOLDING,
    ROUND_DRAINING,
    ROUND_GAP, /* nobody may or wants to use the GPU now */
};

struct seat {
    void *claim; /* the driver's own */
    /* Set by the driver. */
    struct share_terms terms;
    struct reading reading;
    /* For the driver to write to the claim's page. */
    uint64_t ends_ns, starts_ns;
    uint32_t share;
    uint64_t depth_ns;
    uint32_t usual_share; /* when it was last active */
    /* The rest is round.c's and turn.c's. */
    int in_round; /* was active when the round began */
    int stray;    /* did not drain in time: stays closed until it did, and nobody waits for it */
    int beside;   /* follows its own limit while others take turns: see beside.c */
    int idled;    /* gave its turn back: what it did not use is not owed to it */
    int stops;    /* turns in a row in which it waited, but launched nothing */
    int stopped;  /* too many of them: no more of this round for it */
    int64_t carry_ns, budget_ns, charged_ns;
    int64_t debt_ns;        /* below zero: used more than its limit in earlier rounds */
    int64_t used_ns;        /* in this round, charged or not */
    int64_t bonus_ns;       /* how much of the present turn is time that others left */
    uint64_t idle_since_ns; /* 0 while it wants the GPU */
    uint64_t paused_ns;     /* how long it did not want the GPU before it wanted it now */
    uint64_t hold_ns;       /* for how long it may idle in its turn; learnt from what it did before */
    uint64_t seen_gpu_time_ns;
    uint64_t turns_gpu_time_ns;          /* when the round began */
    int64_t dense_used_ns, dense_gpu_ns; /* since dense_since_ns: of its turns, and what it used of them */
    uint32_t in_turns;                   /* the share of the GPU that it got in turns, when they were last judged */
    uint32_t due;                        /* its share then */
    uint32_t looks, syncs;               /* since dense_since_ns: how often it was looked at, and waited for the GPU */
    int light;                           /* needs less than its share: may be let go */
    int let_go;                          /* beside others, or without turns as all are */
    uint64_t beside_until_ns, not_beside_until_ns, not_beside_for_ns;
    uint64_t harm_gpu_time_ns; /* at harm_since_ns */
    int rested, harmed;  /* did not want the GPU at some time since; windows in a row in which it got too little */
    uint64_t outside_ns; /* of its reading, as charged */
};

struct round {
    uint64_t length_ns;
    uint32_t ceiling;
    int native;
    int phase;
    int n;
    int holder, next; /* seats; `next` is where the search for the next holder begins */
    int first;        /* who comes before that; NOBODY mostly */
    uint32_t clash;   /* thousandths of the latest readings without turns in which several claims waited for the GPU */
    int waits;        /* steps in a row in which a claim without turns waited for its own limit */
    uint64_t began_ns;
    uint64_t
        span_ns; /* how long this one is to last: what the one before overran is taken off, so that rounds keep time */
    uint64_t frontier_ns; /* up to where the GPU's time was charged */
    uint64_t turn_began_ns;
    uint64_t busy_ns;                  /* when the holder was last seen to use its turn */
    uint64_t closed_ns;                /* when the turn was closed */
    uint64_t drained_by_ns;            /* by its own prediction */
    uint64_t progress_ns, progress_of; /* when what it has in flight last changed, and to what */
    int64_t used_ns, debt_ns;          /* of all seats, against the ceiling */
    uint64_t window_ns;                /* begin of the window over which use is measured */
    uint32_t use;                      /* of the last whole window, hundredths of a percent */
    /* When last several claims were active, one used its whole turn, all together used much of the GPU. */
    uint64_t crowded_ns, hungry_ns, heavy_ns;
    uint64_t dense_since_ns; /* begin of the time over which the use of turns is looked at */
    uint64_t no_turns_until_ns, no_turns_for_ns;
    int free_active;          /* how many there were then */
    uint64_t harm_since_ns;   /* begin of the time over which harm is looked for; 0: it is not */
    uint64_t stepped_ns;      /* when this was last looked at */
    int is_cut;               /* ends before everyone had its turn, as somebody's terms changed */
    uint64_t steady_since_ns; /* nobody came, left or paused, and no terms changed since */
    struct seat seat[ROUND_SEATS];
};

void round_init(struct round *r, uint64_t length_ns);
/* Take a seat; NULL: all are taken. Its pages stay as they are until the next step. */
struct seat *round_sit(struct round *r, void *claim);
void round_leave(struct round *r, int index);
/* Somebody's terms changed: a long round ends as soon as a usual one. */
void round_disturb(struct round *r, uint64_t now);
/* Decide; returns when to read and call again. */
uint64_t round_step(struct round *r, uint64_t now);

/* ---- between round.c (rounds), accounts.c and turn.c (one turn after the other) ---- */
#define MS 1000000ull
static inline int64_t lesser(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
static inline int64_t share_of(uint64_t ns, uint32_t share)
{
    return (int64_t)(ns * share / SHARE_WHOLE);
}
/* Shorter turns are all switching; who is owed less is given it with what the next rounds add. */
#define TURN_LEAST_NS (2 * MS)

int seat_is_active(const struct seat *s, uint64_t now); /* has work, or had some a moment ago */
int seat_wants(const struct seat *s);                   /* a turn */
int64_t seat_main_left(const struct seat *s);
int seat_arrived(const struct seat *s); /* wants the GPU, but has no share in this round */
int64_t round_allowance(const struct round *r, const struct seat *s, uint64_t now);
void round_begin(struct round *r, uint64_t now);
/* Others may have the GPU in between what this seat launches now. */
int round_is_contended(const struct round *r, int index);
/* Best-effort work runs, and a claim that comes before it may want the GPU at any moment. */
int round_is_watchful(const struct round *r);

/* ---- beside.c ---- */
/* How well turns are used is looked at from now on. */
void round_judge_anew(struct round *r, uint64_t now);
/* At a round's begin: let claims go that are better off beside the others. 1: nobody needs turns now. */
int beside_judge(struct round *r, uint64_t now);
/* While some run beside others: 1 where that is to end. */
int beside_watch(struct round *r, uint64_t now);

/* ---- */
int round_over(const struct round *r, uint64_t now);
uint32_t seat_most(const struct round *r, const struct seat *s); /* by its limit and the ceiling */
void round_charge(struct round *r, struct seat *s, uint64_t until);
/* Close the accounts of the round that ends now. */
void round_settle(struct round *r, uint64_t now);
/* It wants the GPU again, after `paused_ns`. */
void turn_learn_pause(struct seat *s);
uint64_t turn_advance(struct round *r, uint64_t now);
uint64_t turn_hold(struct round *r, uint64_t now);
uint64_t turn_drain(struct round *r, uint64_t now);
uint64_t turn_gap(struct round *r, uint64_t now);

#endif
