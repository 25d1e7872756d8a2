/* Claims that run beside the turns of others. See round.h.
 *
 * A program that launches more slowly than the GPU works leaves most of its turn idle, and has nothing in flight during
 * all other turns: with 30 % of the time it reaches 30 % of its speed alone, though it needs no more than 22 % of the
 * GPU. The driver's own time slices serve it better: its kernels queue up while another process has the GPU, and run
 * without gaps in its slice. The steps are:
 *
 * 1. Measure for a quarter of a second how well each claim uses its turns (no other claim disturbs that, until some are
 *    let go).
 * 2. Let go each claim that leaves its turns idle. One that would use less of the GPU than its share even with the whole
 *    GPU to itself follows its own limit. One that would use more is *thin*: its share is its limit as long as the others
 *    want theirs. Only the others take turns; if at most one of them is left, no turns are given at all.
 * 3. Watch every claim from then on. A claim is harmed if it gets less than it got in turns, and less than its share (a
 *    program that waits for each kernel waits for a whole slice of another process each time). Then claims that were let
 *    go are treated as thin, as is one that takes more than its share: turns are too short to show all that a program
 *    needs. If that does not help, turns begin again, and the next attempt comes later.
 * 4. Turns also begin again, to be judged anew, once a program has changed: it uses far more than at first, or
 *    waits under its cap all the time, as a flood does.
 *
 * A claim that understates its use is let go and gets what the driver's equal slices give; the agent's audit compares
 * with NVML. */
#include "round.h"

/* A claim that uses less than this part of its turns is not limited by the GPU. */
#define DENSE_PERCENT 60
#define DENSE_OVER_NS (250 * MS)
#define DENSE_OVER_MOST_NS (1000 * MS) /* if kernels are so long that none of them has ended yet */
#define DENSE_LEAST_NS (20 * (int64_t)MS)
/* So many windows in a row must show it: a program that has only begun leaves its turns idle, too. */
#define SPARSE_WINDOWS 2
/* A claim that pauses for longer than its turn is held for it has many short turns; this much use of them is enough to
 * let it go. */
#define LIGHT_LEAST_NS (4 * (int64_t)MS)
/* A claim waits often if it waits in more than this part of the samples. */
#define SYNC_PERCENT 30
/* The time without turns before they are tried again; doubled each time. */
#define NO_TURNS_LEAST_NS (2000 * MS)
#define NO_TURNS_MOST_NS (16000 * (int64_t)MS)
/* The same for claims beside others. It is longer, as harm would be noticed. */
#define BESIDE_LEAST_NS (8000 * MS)
#define BESIDE_MOST_NS (64000 * (int64_t)MS)
/* Not as long: a cap hides that a claim has become dense. */
#define THIN_MOST_NS (16000 * MS)
/* A claim that was not there when turns were judged, and takes this part of the GPU, is reason to judge again. */
#define NEWCOMER_LEAST (SHARE_WHOLE / 20)
/* The least share that may be a cap: a smaller one would be rounded to no limit at all. */
#define CAP_LEAST (SHARE_WHOLE / 100)
/* A claim that used so much in a window may want this much more. */
#define DEMAND_PERCENT 125
#define DEMAND_MORE (SHARE_WHOLE / 10)
/* The length of a window in which harm is looked for. Several windows in a row must show it, as programs pause. */
#define HARM_OVER_NS (250 * MS)
#define HARM_PERCENT 88
#define GREED_PERCENT 120
#define GREED_MORE (SHARE_WHOLE / 50)
/* If no claim fills the GPU, a claim that takes more takes it from nobody. */
#define GREED_MORE_SPARSE (SHARE_WHOLE / 10)
#define HARM_WINDOWS 2
/* A program that uses this much more than in the first window has changed. */
#define CHANGED_PERCENT 150
#define CHANGED_MORE (SHARE_WHOLE / 10)
/* Programs have changed if together they use this much of the GPU without turns, in so many windows in a row: those that
 * leave it idle in their turns reach 84 to 91 % side by side, those that fill it 100 and more. */
#define FILLED_LEAST (SHARE_WHOLE / 100 * 96)
#define FILLED_WINDOWS 3
/* A flood is free to launch in less than this part of the time in which a program of its need would be. */
#define FLOOD_PART 3
/* Caps are reduced by this much more than is missing; not to less than this part of what the claims got in turns. */
#define SQUEEZE_MORE (SHARE_WHOLE / 100)
#define SQUEEZE_LEAST_PERCENT 120

/* Return 1 if the measurement is complete. Work is measured when it ends, and work that did not drain takes time from
 * the turns of others. */
static int can_judge(const struct round *r, uint64_t now)
{
    uint64_t lasted = now - r->dense_since_ns;
    for (int i = 0; i < r->n && lasted < DENSE_OVER_MOST_NS; i++) {
        const struct seat *s = &r->seat[i];
        if (s->stray || (s->used_ns && s->reading.last_end_ns <= r->dense_since_ns))
            return 0;
    }
    return lasted >= DENSE_OVER_NS;
}

void round_judge_anew(struct round *r, uint64_t now)
{
    r->dense_since_ns = now;
    for (int i = 0; i < r->n; i++) {
        r->seat[i].dense_used_ns = r->seat[i].dense_gpu_ns = 0;
        r->seat[i].looks = r->seat[i].syncs = 0;
    }
}

static uint32_t part(int64_t of, uint64_t whole)
{
    uint64_t found = of > 0 && whole ? (uint64_t)of * SHARE_WHOLE / whole : 0;
    return found < SHARE_WHOLE ? (uint32_t)found : SHARE_WHOLE;
}

/* Add up the seat's use of its turns. Return 0 if a process of the claim has ended, as its times are then missing from
 * the sum. */
static int count_turns(struct seat *s)
{
    uint64_t time = s->reading.gpu_time_ns;
    int whole = time >= s->turns_gpu_time_ns;
    uint64_t grown = time > s->turns_gpu_time_ns ? time - s->turns_gpu_time_ns : 0;
    s->dense_gpu_ns += (int64_t)(grown < DENSE_OVER_MOST_NS ? grown : DENSE_OVER_MOST_NS); /* more is forged */
    s->turns_gpu_time_ns = time;
    s->dense_used_ns += s->used_ns;
    return whole;
}

/* Decide whether the claim is light, and thin. It needs less than its share if it leaves the GPU idle in its turns so
 * often that it would not need its share even alone, or if it gives turns back and uses far less than its share. It must
 * not wait for the GPU often: beside others it would wait for a whole slice of theirs each time. And letting it go must
 * not have harmed anybody a moment ago. */
static void judge_seat(struct seat *s, uint32_t density, uint64_t lasted, uint64_t now)
{
    int idles = density && density * 100 < DENSE_PERCENT * SHARE_WHOLE;
    s->sparse = idles ? s->sparse + 1 : 0;
    int sparse = s->sparse >= SPARSE_WINDOWS;
    int needs_less = density <= s->share || (s->idled && 2 * part(s->dense_used_ns, lasted) <= s->share);
    s->may_be_capped = s->terms.tier == 0 && s->share >= CAP_LEAST && (s->idled || s->dense_used_ns > DENSE_LEAST_NS);
    s->light = sparse && (needs_less || s->may_be_capped) && s->syncs * 100 <= s->looks * SYNC_PERCENT &&
               now >= s->not_beside_until_ns;
    s->thin = s->light && s->may_be_capped && density > s->share;
    s->need = density;
}

static void watch_from(struct round *r, uint64_t now)
{
    r->harm_since_ns = now;
    r->filled = 0;
    r->squeeze = 100;
    for (int i = 0; i < r->n; i++) {
        r->seat[i].harm_gpu_time_ns = r->seat[i].reading.gpu_time_ns;
        r->seat[i].harmed = r->seat[i].changed = 0;
        r->seat[i].watched = r->seat[i].waits = 0;
        r->seat[i].got = SHARE_WHOLE;
        r->seat[i].usual = 0;
        r->seat[i].most = r->seat[i].due;
        r->seat[i].rested = !seat_is_active(&r->seat[i], now);
    }
}

int beside_judge(struct round *r, uint64_t now)
{
    int takers = 0, sparse = 0, light = 0, thin = 0, whole = 1;
    uint64_t lasted = now - r->dense_since_ns;
    for (int i = 0; i < r->n; i++)
        whole &= count_turns(&r->seat[i]);
    if (!whole)
        round_judge_anew(r, now);
    int judged = can_judge(r, now), disturbed = 0;
    for (int i = 0; i < r->n; i++)
        disturbed |= r->seat[i].beside;
    for (int i = 0; judged && i < r->n; i++) {
        struct seat *s = &r->seat[i];
        s->known = s->beside || s->dense_used_ns > 0;
        if (s->beside || s->dense_used_ns <= LIGHT_LEAST_NS)
            continue;
        /* What was measured before a claim was let go counts, as that one takes time from the turns now. */
        if (disturbed && s->in_turns) {
            takers++;
            continue;
        }
        uint32_t density = part(s->dense_gpu_ns, (uint64_t)s->dense_used_ns);
        s->in_turns = part(s->dense_gpu_ns, lasted);
        s->due = s->share;
        judge_seat(s, density, lasted, now);
        takers++;
        light += s->light;
        thin += s->thin;
        sparse += s->sparse >= SPARSE_WINDOWS && s->dense_used_ns > DENSE_LEAST_NS && now >= s->not_beside_until_ns;
    }
    if (!judged)
        return 0;
    round_judge_anew(r, now);
    int all_sparse = sparse == takers && sparse > 1;
    if (!all_sparse && !light)
        r->no_turns_for_ns = NO_TURNS_LEAST_NS;
    if (!all_sparse && (!light || takers < 2))
        return 0;
    watch_from(r, now);
    r->free_active = r->n;
    for (int i = 0; i < r->n; i++) {
        r->seat[i].light &= !all_sparse;
        r->seat[i].thin &= r->seat[i].light;
        r->seat[i].let_go = all_sparse || r->seat[i].light;
    }
    uint64_t beside_most = thin ? THIN_MOST_NS : BESIDE_MOST_NS;
    if (all_sparse || takers - light < 2) {
        uint64_t most = all_sparse ? NO_TURNS_MOST_NS : beside_most;
        uint64_t least = all_sparse ? NO_TURNS_LEAST_NS : BESIDE_LEAST_NS;
        r->no_turns_for_ns = r->no_turns_for_ns > least ? r->no_turns_for_ns : least;
        r->no_turns_until_ns = now + r->no_turns_for_ns;
        r->no_turns_for_ns = (uint64_t)lesser((int64_t)r->no_turns_for_ns * 2, (int64_t)most);
        return 1;
    }
    for (int i = 0; i < r->n; i++) {
        struct seat *s = &r->seat[i];
        if (s->beside || !s->light)
            continue;
        s->beside = 1;
        s->beside_until_ns = now + beside_most;
    }
    return 0;
}

void beside_cap(struct round *r, uint64_t now)
{
    struct share_terms terms[ROUND_SEATS];
    uint32_t shares[ROUND_SEATS];
    int thin = 0;
    for (int i = 0; i < r->n; i++) {
        struct seat *s = &r->seat[i];
        uint32_t wanted = s->got * DEMAND_PERCENT / 100 + DEMAND_MORE;
        thin |= s->thin;
        s->cap = 0;
        terms[i] = s->terms;
        terms[i].demand = s->thin ? SHARE_WHOLE : seat_is_active(s, now) ? (uint32_t)lesser(wanted, SHARE_WHOLE) : 0;
    }
    if (!thin)
        return;
    share_fill(terms, (uint32_t)r->n, r->ceiling, shares);
    for (int i = 0; i < r->n; i++)
        if (r->seat[i].thin) {
            uint32_t cap = shares[i] * r->squeeze / 100;
            r->seat[i].cap = cap > CAP_LEAST ? cap : CAP_LEAST;
            r->seat[i].most = r->seat[i].most > r->seat[i].cap ? r->seat[i].most : r->seat[i].cap;
        }
}

/* Return 1 if the seat got less than it is due. Work is measured when it ends, so a kernel longer than the window is no
 * evidence. */
static int is_harmed(const struct round *r, const struct seat *s, uint32_t got)
{
    uint32_t due = s->due < s->in_turns ? s->due : s->in_turns;
    return !s->rested && s->reading.last_end_ns > r->harm_since_ns && got * 100 < due * HARM_PERCENT;
}

/* The driver's time slices cost up to a seventh of the GPU, which is then missing from the others' shares. Reduce the caps
 * of thin claims by what the seat lacks; return 0 if they would get little more than in turns. */
static int squeeze(struct round *r, const struct seat *harmed, uint32_t got)
{
    uint32_t due = harmed->due < harmed->in_turns ? harmed->due : harmed->in_turns, caps = 0, in_turns = 0;
    for (int i = 0; i < r->n; i++) {
        caps += r->seat[i].cap;
        in_turns += r->seat[i].cap ? r->seat[i].in_turns : 0;
    }
    uint32_t missing = due * HARM_PERCENT / 100 + SQUEEZE_MORE - got, rest = caps > missing ? caps - missing : 0;
    if (harmed->let_go || rest * 100 <= in_turns * SQUEEZE_LEAST_PERCENT)
        return 0;
    r->squeeze = r->squeeze * rest / caps;
    return 1;
}

/* Return 1 if the seat was let go and takes more than it may. */
static int is_greedy(const struct seat *s, uint32_t got)
{
    uint32_t more = s->light ? GREED_MORE : GREED_MORE_SPARSE;
    return s->let_go && s->due && got * 100 > s->most * GREED_PERCENT + 100 * more;
}

/* Return 1 if the seat's program is no longer the one whose need was measured. If that has just been judged again, it is
 * believed. */
static int is_changed(const struct seat *s, uint64_t now)
{
    uint64_t launching = s->watched - s->waits;
    if (!s->let_go || !s->need || (s->doubted_ns && now - s->doubted_ns < THIN_MOST_NS))
        return 0;
    if (s->cap)
        return launching * FLOOD_PART * s->need < (uint64_t)s->watched * s->got;
    return s->usual && s->got > s->usual * CHANGED_PERCENT / 100 + CHANGED_MORE;
}

/* Cap the light claims that may have harmed the seat, or the seat itself if it took too much. Return 1 if there are any. */
static int cap_light(struct round *r, struct seat *seat, int harmed, uint64_t now)
{
    int found = 0;
    for (int i = 0; i < r->n && !(harmed && seat->let_go); i++) {
        struct seat *s = &r->seat[i];
        if (!s->let_go || !s->light || s->thin || !s->may_be_capped || (!harmed && s != seat))
            continue;
        s->thin = found = 1;
        s->beside_until_ns = (uint64_t)lesser((int64_t)s->beside_until_ns, (int64_t)(now + THIN_MOST_NS));
        r->no_turns_until_ns = (uint64_t)lesser((int64_t)r->no_turns_until_ns, (int64_t)(now + THIN_MOST_NS));
    }
    /* Each has the next windows to show what that does. */
    for (int i = 0; i < r->n && found; i++)
        r->seat[i].harmed = 0;
    return found;
}

static void take_back(struct seat *s, uint64_t now)
{
    s->beside = s->light = s->thin = s->let_go = 0;
    s->not_beside_for_ns =
        s->not_beside_for_ns ? (uint64_t)lesser((int64_t)s->not_beside_for_ns * 2, BESIDE_MOST_NS) : BESIDE_LEAST_NS;
    s->not_beside_until_ns = now + s->not_beside_for_ns;
}

/* Terms may have changed since turns were judged: what each claim is due follows them. */
static void renew_dues(struct round *r)
{
    struct share_terms terms[ROUND_SEATS];
    uint32_t shares[ROUND_SEATS];
    for (int i = 0; i < r->n; i++) {
        terms[i] = r->seat[i].terms;
        terms[i].demand = r->seat[i].known ? SHARE_WHOLE : 0;
    }
    share_fill(terms, (uint32_t)r->n, r->ceiling, shares);
    for (int i = 0; i < r->n; i++) {
        if (r->seat[i].due != shares[i])
            r->squeeze = 100;
        r->seat[i].due = shares[i];
    }
}

/* Judge what the seat got in the window that ends now. Return 1 if it is harmed, or takes more than it may. */
static int is_wrong(const struct round *r, struct seat *s, uint64_t lasted, int *harmed)
{
    uint64_t time = s->reading.gpu_time_ns, before = s->harm_gpu_time_ns;
    s->got = part(time > before ? (int64_t)(time - before) : 0, lasted);
    s->harm_gpu_time_ns = time;
    *harmed = time >= before && is_harmed(r, s, s->got);
    return *harmed || (time >= before && is_greedy(s, s->got));
}

/* Return 1 if turns must begin again because of this seat. */
static int ends_it(struct round *r, struct seat *s, int harmed, uint64_t now)
{
    if (s->harmed >= HARM_WINDOWS) {
        s->harmed = 0;
        if (cap_light(r, s, harmed, now) || (harmed && squeeze(r, s, s->got)))
            return 0;
        for (int k = 0; k < r->n; k++)
            if (r->seat[k].let_go && (&r->seat[k] == s || !s->let_go))
                take_back(&r->seat[k], now);
        return 1;
    }
    if (s->changed >= HARM_WINDOWS)
        s->doubted_ns = now;
    if (s->changed >= HARM_WINDOWS || (s->beside && now >= s->beside_until_ns)) {
        s->changed = 0;
        s->beside = s->light = s->thin = s->let_go = 0; /* to be judged anew */
        return 1;
    }
    return r->phase == ROUND_FREE && !s->known && s->got > NEWCOMER_LEAST;
}

/* Return 1 if turns were ended because programs left the GPU idle, and these fill it now: each has the driver's equal
 * slices, and none looks harmed, as it was due what its program used before. A program that had only begun to work when
 * it was judged does so, too. What has just been judged again is believed. */
static int is_filled(struct round *r, uint64_t now)
{
    uint32_t got = 0;
    int let_go = 0;
    for (int i = 0; i < r->n; i++) {
        got += r->seat[i].got;
        let_go |= r->seat[i].let_go;
    }
    int believed = r->filled_ns && now - r->filled_ns < THIN_MOST_NS;
    r->filled = r->phase == ROUND_FREE && let_go && got >= FILLED_LEAST && !believed ? r->filled + 1 : 0;
    if (r->filled < FILLED_WINDOWS)
        return 0;
    r->filled_ns = now;
    return 1;
}

int beside_watch(struct round *r, uint64_t now)
{
    int ended = 0, tight = 0, harmed;
    for (int i = 0; i < r->n; i++)
        r->seat[i].rested |= !seat_is_active(&r->seat[i], now);
    /* While a turn drains, only its holder is read. */
    for (int i = 0; i < r->n && r->phase != ROUND_DRAINING; i++) {
        r->seat[i].watched++;
        r->seat[i].waits += r->seat[i].reading.waiting != 0;
    }
    uint64_t lasted = now - r->harm_since_ns;
    if (!r->harm_since_ns || lasted < HARM_OVER_NS || r->phase == ROUND_DRAINING)
        return 0;
    renew_dues(r);
    for (int i = 0; i < r->n; i++) {
        struct seat *s = &r->seat[i];
        s->harmed = is_wrong(r, s, lasted, &harmed) ? s->harmed + 1 : 0;
        s->changed = is_changed(s, now) ? s->changed + 1 : 0;
        s->watched = s->waits = 0;
        s->usual = s->usual || s->rested ? s->usual : s->got;
        tight |= harmed;
        s->most = s->cap ? s->cap : s->due;
        s->rested = !seat_is_active(s, now);
        ended |= ends_it(r, s, harmed, now);
    }
    ended |= is_filled(r, now);
    r->squeeze += !tight && r->squeeze < 100;
    r->harm_since_ns = now;
    return ended;
}
