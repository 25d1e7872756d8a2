/* The arbiter's decisions about one GPU. Pure: the inputs are readings and the clock, the outputs are turns.
 *
 * A seat is one claim on the GPU. The driver of the round sets each seat's `terms` and `reading`, calls round_step,
 * writes the seats' `ends_ns`, `starts_ns` and `share` to the claims' pages, reads again, and calls again at the time
 * that the step returned. Readings must be younger than the last write: a turn is closed first, then its drain is
 * observed.
 *
 * Accounts. A round lasts `length_ns` of wall time. When it begins, the active claims are given shares; a seat's budget
 * is share * length + carry. A turn is charged from the moment at which the GPU was drained of the previous turn to the
 * moment at which it is drained of this one, so the next holder pays for the switch. At the end of the round carry +=
 * share * (the actual length of the round) - charged: a seat that overran pays in the next rounds, and a seat that
 * waited is compensated, by at most half a round in each. Time left over by others is not charged, but counts towards
 * the limit. */
#ifndef ARBITER_ROUND_H
#define ARBITER_ROUND_H

#include "reading.h"
#include "share.h"

#define ROUND_SEATS SHARE_MAX_CLAIMS
#define NOBODY (-1)

enum round_phase {
    ROUND_FREE,     /* no turns are given: each claim follows its own limit */
    ROUND_STARTING, /* all are closed; their work in flight drains */
    ROUND_HOLDING,
    ROUND_DRAINING,
    ROUND_GAP, /* no claim may or wants to use the GPU now */
};

struct seat {
    void *claim; /* opaque to the round */
    /* Set by the driver of the round. */
    struct share_terms terms;
    struct reading reading;
    /* Outputs: the driver writes them to the claim's page. */
    uint64_t ends_ns, starts_ns;
    uint32_t share;
    uint64_t depth_ns;
    uint32_t cap;         /* of a thin claim that was let go; 0: its own limit */
    uint32_t usual_share; /* when it was last active */
    /* The rest belongs to round.c and turn.c. */
    int in_round; /* was active when the round began */
    int stray;    /* did not drain in time: stays closed until it drained, and nobody waits for it */
    int beside;   /* follows its own limit while others take turns: see beside.c */
    int idled;    /* gave its turn back: time it did not use is not owed to it */
    int stops;    /* turns in a row in which it waited, but launched nothing */
    int stopped;  /* too many such turns: no more turns in this round */
    int64_t carry_ns, budget_ns, charged_ns;
    int64_t debt_ns;        /* below zero: used more than its limit in earlier rounds */
    int64_t used_ns;        /* in this round, charged or not */
    int64_t bonus_ns;       /* the part of the present turn that others left over */
    uint64_t idle_since_ns; /* 0 while it wants the GPU */
    uint64_t paused_ns;     /* length of its last pause before it wanted the GPU again */
    uint64_t hold_ns;       /* how long it may idle in its turn; learnt from its earlier pauses */
    uint64_t seen_gpu_time_ns;
    uint64_t turns_gpu_time_ns;          /* at the beginning of the round */
    int64_t dense_used_ns, dense_gpu_ns; /* since dense_since_ns: the length of its turns, and its use of them */
    uint32_t in_turns;                   /* the share of the GPU that it got in turns, when they were last judged */
    uint32_t due;                        /* its share then */
    uint32_t looks, syncs;               /* since dense_since_ns: samples, and samples in which it waited for the GPU */
    int sparse;                          /* windows in a row in which it left its turns idle */
    int light;                           /* leaves its turns idle: may be let go */
    int thin;                            /* light, but would take more than its share: let go under a cap */
    int may_be_capped;
    uint32_t need;  /* how much of its turns it used */
    uint32_t most;  /* its greatest cap since then, or what it is due */
    uint32_t got;   /* its part of the GPU in the last window in which harm was looked for */
    uint32_t usual; /* the same of the first window in which it did not pause */
    int known;      /* was there when turns were last judged */
    int let_go;     /* runs beside others, or without turns as all do */
    uint64_t beside_until_ns, not_beside_until_ns, not_beside_for_ns;
    uint64_t harm_gpu_time_ns; /* at harm_since_ns */
    int rested, harmed;        /* since then: was inactive at some time; windows in a row in which it got too little */
    uint32_t watched, waits;   /* since then: samples, and samples in which it waited to launch */
    int changed;               /* windows in a row in which it looked like another program */
    uint64_t doubted_ns;       /* when that last ended its being let go */
    uint64_t outside_ns;       /* the reading's value that was charged last */
};

struct round {
    uint64_t length_ns;
    uint32_t ceiling;
    int native;
    int phase;
    int n;
    int holder, next; /* seats; `next` is where the search for the next holder begins */
    int first;        /* takes the next turn before all others; mostly NOBODY */
    uint32_t clash;   /* thousandths of the latest readings without turns in which several claims waited for the GPU */
    int waits;        /* steps in a row in which a claim without turns waited for its own limit */
    uint64_t began_ns;
    uint64_t span_ns;     /* planned length: less the overrun of the previous round, so that rounds keep time */
    uint64_t frontier_ns; /* the GPU's time is charged up to this moment */
    uint64_t turn_began_ns;
    uint64_t busy_ns;                  /* when the holder was last seen to use its turn */
    uint64_t closed_ns;                /* when the turn was closed */
    uint64_t drained_by_ns;            /* by its own prediction */
    uint64_t progress_ns, progress_of; /* when the holder's work in flight last changed, and its value then */
    int64_t used_ns, debt_ns;          /* of all seats, against the ceiling */
    uint64_t window_ns;                /* beginning of the window over which use is measured */
    uint32_t use;                      /* in the last whole window, hundredths of a percent */
    /* The last time at which several claims were active; one used its whole turn; all together used much of the GPU. */
    uint64_t crowded_ns, hungry_ns, heavy_ns;
    uint64_t dense_since_ns; /* beginning of the time over which the use of turns is judged */
    uint64_t no_turns_until_ns, no_turns_for_ns;
    int free_active;          /* the number of active claims then */
    uint32_t squeeze;         /* thin claims get this percent of their shares, so that others are not harmed */
    uint32_t filled;          /* windows in a row in which the GPU was full without turns */
    uint64_t filled_ns;       /* when that last was reason to judge again; 0: never */
    uint64_t harm_since_ns;   /* beginning of the window in which harm is looked for; 0: none */
    uint64_t stepped_ns;      /* the last step */
    int is_cut;               /* ends before everyone had its turn, because terms changed */
    uint64_t steady_since_ns; /* no claim came, left or paused, and no terms changed since */
    struct seat seat[ROUND_SEATS];
};

void round_init(struct round *r, uint64_t length_ns);
/* Take a seat; NULL if all are taken. Its pages stay unchanged until the next step. */
struct seat *round_sit(struct round *r, void *claim);
void round_leave(struct round *r, int index);
/* Note that a claim's terms changed: a long round then ends as soon as a usual one. */
void round_disturb(struct round *r, uint64_t now);
/* Decide; return when to read and call again. */
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
/* The shortest turn, as shorter ones are mostly switching. A smaller budget is added to that of the next rounds. */
#define TURN_LEAST_NS (2 * MS)

int seat_is_active(const struct seat *s, uint64_t now); /* has work, or had some a moment ago */
int seat_wants(const struct seat *s);                   /* wants a turn */
int64_t seat_main_left(const struct seat *s);
int seat_arrived(const struct seat *s); /* wants the GPU, but has no share in this round */
int64_t round_allowance(const struct round *r, const struct seat *s, uint64_t now);
void round_begin(struct round *r, uint64_t now);
/* Return 1 if other claims may have the GPU between launches of this seat. */
int round_is_contended(const struct round *r, int index);
/* Return 1 if best-effort work runs while a claim of higher priority may want the GPU at any moment. */
int round_is_watchful(const struct round *r);

/* ---- beside.c ---- */
/* Start to judge the use of turns from now on. */
void round_judge_anew(struct round *r, uint64_t now);
/* At the beginning of a round: let claims go that are better off beside the others. Return 1 if no claim needs turns
 * now. */
int beside_judge(struct round *r, uint64_t now);
/* While some claims run beside others: return 1 if that must end. */
int beside_watch(struct round *r, uint64_t now);
/* Set the caps of thin claims, by the present terms and what the others use. */
void beside_cap(struct round *r, uint64_t now);

/* ---- */
int round_over(const struct round *r, uint64_t now);
uint32_t seat_most(const struct round *r, const struct seat *s); /* by its limit and the ceiling */
void round_charge(struct round *r, struct seat *s, uint64_t until);
/* Close the accounts of the round that ends now. */
void round_settle(struct round *r, uint64_t now);
/* Learn from a pause of `paused_ns` how long to hold the seat's turn. */
void turn_learn_pause(struct seat *s);
uint64_t turn_advance(struct round *r, uint64_t now);
uint64_t turn_hold(struct round *r, uint64_t now);
uint64_t turn_drain(struct round *r, uint64_t now);
uint64_t turn_gap(struct round *r, uint64_t now);

#endif
