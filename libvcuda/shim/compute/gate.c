/* The gate decides whether this process may launch now, and how much.
 *
 * While no turns are given on the GPU, a claim follows its own limit: credit (credit.c), or no limit at all if it may
 * use everything. While several claims want the GPU, the arbiter gives them turns, and the turn alone decides: work may
 * be launched as far as it is predicted to end within the turn, and no more than a few milliseconds of it at a time, so
 * that the GPU is free soon after the turn's end. The turns of an arbiter that has died are ignored.
 *
 * A launch waits with a futex on the limits page's `gen` (a changed limit ends the wait at once) or, for a turn, on the
 * turns page's. Waking an idle processor takes longer than a switch should, so the last stretch before an expected turn
 * is polled. A thread that waits also retires finished work, as the GPU is handed on when the usage page shows that it
 * is drained. */
#include "ahead.h"
#include "credit.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The GPU time that one burst is admitted for, unless its first kernel needs more. */
#define CHUNK_NS 1000000
/* The work in flight within a turn: enough to keep the GPU busy while the host does something else, little enough to
 * drain soon. */
#define TURN_DEPTH_NS 2500000
/* The work in flight without any limit, as others may want the GPU; and while kernels reach memory that is out. */
#define FREE_DEPTH_NS 50000000
#define OUT_DEPTH_NS 10000000
#define WAIT_MIN_NS 50000ll
/* A thread that waits for credit is not woken when turns begin, so it looks again after this time. */
#define WAIT_MAX_NS 20000000ll
/* A turn is polled for from this long before its expected beginning, at this interval. */
#define POLL_AHEAD_NS 300000ll
#define POLL_LATE_NS 3000000ll
#define POLL_NS 8000
/* The end of work in flight is polled for from this long before it is due. */
#define DRAIN_POLL_NS 12000
#define DRAIN_AHEAD_NS 50000ll
#define DRAIN_MAX_NS 1000000ll
/* The most that a claim may owe for collectives that did not wait; beyond it they wait like other kernels. */
#define COLLECTIVE_DEBT_NS 2000000000ll

void inflight_add(int slot, uint64_t ns)
{
    __atomic_fetch_add(&shim_usage(slot)->inflight_ns, ns, __ATOMIC_SEQ_CST);
}

void inflight_less(int slot, uint64_t ns)
{
    if (ns && shim.self)
        __atomic_fetch_sub(&shim_usage(slot)->inflight_ns, ns, __ATOMIC_SEQ_CST);
}

/* Return the turns page; NULL if no arbiter has created it yet. */
static const struct vcuda_turns *turns_page(void)
{
    return __atomic_load_n(&shim.turns, __ATOMIC_ACQUIRE);
}

static uint64_t turn_word(int slot)
{
    const struct vcuda_turns *turns = turns_page();
    return turns ? __atomic_load_n(&turns->turn[slot].ends_ns, __ATOMIC_SEQ_CST) : VCUDA_TURN_FREE;
}

/* Return 1 if its heartbeat for this GPU is fresh; an older arbiter has one heartbeat per page, written less often. */
static int arbiter_lives(int slot)
{
    const struct vcuda_turns *turns = turns_page();
    if (!turns)
        return 0;
    uint64_t heard = __atomic_load_n(&turns->turn[slot].heartbeat_ns, __ATOMIC_ACQUIRE), now = shim_page_now();
    uint64_t stale = heard ? VCUDA_TURN_STALE_NS : VCUDA_TURNS_STALE_NS;
    heard = heard ? heard : __atomic_load_n(&turns->heartbeat_ns, __ATOMIC_ACQUIRE);
    return heard && (heard >= now || now - heard < stale);
}

uint32_t gate_limit(int slot)
{
    uint32_t limit = __atomic_load_n(&shim.gpu[slot].core_limit, __ATOMIC_RELAXED);
    const struct vcuda_turns *turns = turns_page();
    if (limit && limit < 100 && credit_is_held_by_parts(slot, limit))
        return 100;
    uint32_t cap = turns ? (__atomic_load_n(&turns->turn[slot].cap, __ATOMIC_RELAXED) + 50) / 100 : 0;
    return cap && cap < limit && arbiter_lives(slot) ? cap : limit;
}

int gate_gives_turns(int slot)
{
    return turn_word(slot) != VCUDA_TURN_FREE && arbiter_lives(slot);
}

int gate_has_turn(int slot)
{
    return turn_word(slot) > shim_page_now();
}

int gate_is_contended(int slot)
{
    const struct vcuda_turns *turns = turns_page();
    return turns && __atomic_load_n(&turns->turn[slot].contended, __ATOMIC_RELAXED) && arbiter_lives(slot);
}

uint64_t gate_drained_at(int slot)
{
    const struct vcuda_gpu_usage *usage = shim_usage(slot);
    uint64_t ended = __atomic_load_n(&usage->last_end_ns, __ATOMIC_RELAXED);
    uint64_t begun = __atomic_load_n(&shim.gpu[slot].busy_since_ns, __ATOMIC_RELAXED);
    ended += ended ? (uint64_t)shim.clock_ahead_ns : 0;
    return (ended > begun ? ended : begun) + __atomic_load_n(&usage->inflight_ns, __ATOMIC_RELAXED);
}

struct waiting {
    uint64_t since, last_looked_for_dead;
    int counted, slack;
    int64_t missing;
};

static void sleep_on(const uint32_t *word, uint32_t seen, int64_t ns)
{
    ns = ns < WAIT_MIN_NS ? WAIT_MIN_NS : ns > WAIT_MAX_NS ? WAIT_MAX_NS : ns;
    struct timespec ts = {0, (long)ns};
    syscall(SYS_futex, word, FUTEX_WAIT, seen, &ts, NULL, 0);
}

static void doze(long ns)
{
    struct timespec ts = {0, ns};
    nanosleep(&ts, NULL);
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Return the work that the arbiter wants in flight at most; 0: the usual. */
static uint64_t turn_depth(int slot)
{
    return __atomic_load_n(&turns_page()->turn[slot].depth_ns, __ATOMIC_RELAXED);
}

/* Return the GPU time that one burst is admitted for. Two of them fit within a depth: while the GPU runs one, it has the
 * other. */
static uint64_t turn_chunk(uint64_t depth)
{
    return depth && depth / 2 < CHUNK_NS ? depth / 2 : CHUNK_NS;
}

/* Return how much may be launched in this turn; 0: nothing now. */
static uint64_t turn_allows(int slot, uint64_t ends, uint64_t predicted)
{
    const struct vcuda_turn *turn = &turns_page()->turn[slot];
    struct shim_gpu *gpu = &shim.gpu[slot];
    uint64_t now = shim_page_now(), number = __atomic_load_n(&turn->number, __ATOMIC_SEQ_CST);
    if (!ends || now >= ends)
        return 0;
    uint64_t inflight = credit_inflight(slot), left = ends - now;
    uint64_t depth = turn_depth(slot), chunk = turn_chunk(depth);
    if (inflight == 0) {
        /* A kernel as long as several turns must run at some time: the first of a turn always goes, and is charged. */
        int first = __atomic_exchange_n(&gpu->turn_used, number, __ATOMIC_RELAXED) != number;
        if (first || left >= predicted / 2)
            return predicted > least(left, chunk) ? predicted : least(left, chunk);
        __atomic_store_n(&shim_usage(slot)->yielded, number, __ATOMIC_SEQ_CST);
        return 0;
    }
    /* Deviations of half a kernel even out over the rounds. */
    if (inflight + predicted / 2 > left)
        return 0;
    /* Never less than two launches: the GPU must find the next one when it ends the first. */
    depth = depth ? depth : TURN_DEPTH_NS;
    if (inflight + predicted > depth)
        return inflight <= predicted + predicted / 4 ? predicted : 0;
    uint64_t room = least(depth, left > inflight ? left : inflight) - inflight;
    return predicted > least(room, chunk) ? predicted : least(room, chunk);
}

int gate_lets_go(int slot, uint64_t ns)
{
    uint64_t turn = turn_word(slot);
    int free = turn == VCUDA_TURN_FREE || !arbiter_lives(slot) ||
               __atomic_load_n(&shim.gpu[slot].state, __ATOMIC_ACQUIRE) != VCUDA_SLOT_OPEN;
    if (!free && !turn_allows(slot, turn, ns))
        return 0;
    if (!__atomic_load_n(&shim_usage(slot)->inflight_ns, __ATOMIC_RELAXED))
        __atomic_store_n(&shim.gpu[slot].busy_since_ns, shim_now(), __ATOMIC_RELAXED);
    /* First the addition, then a second look at the turn: see vcuda_pages.h. */
    inflight_add(slot, ns);
    if (!free && turn_word(slot) != turn) {
        inflight_less(slot, ns);
        return 0;
    }
    __atomic_store_n(&shim_usage(slot)->last_launch_ns, shim_page_now(), __ATOMIC_RELAXED);
    return 1;
}

/* Return the work that this process has in flight on other streams. Work on several streams overlaps, and each moment
 * is charged once. If one stream had to wait until another's work is measured, a program that overlaps its work would
 * run at half its speed. */
static uint64_t beside(const struct meter_lane *lane)
{
    uint64_t all = __atomic_load_n(&shim_usage(lane->slot)->inflight_ns, __ATOMIC_RELAXED), own = lane_inflight(lane);
    return all > own ? all - own : 0;
}

static uint64_t limit_allows(const struct meter_lane *lane, uint64_t predicted, int64_t *missing)
{
    int slot = lane->slot;
    uint32_t limit = gate_limit(slot);
    int64_t credit;
    if (limit >= 100) {
        uint64_t inflight = __atomic_load_n(&shim_usage(slot)->inflight_ns, __ATOMIC_RELAXED);
        uint64_t depth = __atomic_load_n(&shim.self->out_bytes, __ATOMIC_RELAXED) ? OUT_DEPTH_NS : FREE_DEPTH_NS;
        *missing = (int64_t)inflight - (int64_t)depth / 2;
        return inflight > depth && inflight > 2 * predicted && arbiter_lives(slot)
                   ? 0
                   : (predicted > CHUNK_NS ? predicted : CHUNK_NS);
    }
    *missing = WAIT_MAX_NS;
    if (!limit || (credit = credit_available(slot, limit, beside(lane), missing)) <= 0) {
        *missing = limit ? *missing / limit * 100 : WAIT_MAX_NS;
        return 0;
    }
    uint64_t chunk = least((uint64_t)credit, CHUNK_NS);
    return predicted > chunk ? predicted : chunk;
}

/* Return 1 if a launch goes although it should wait: a kernel that waits for its peers on the claim's other GPUs leaves
 * them spinning while it is held up. It goes, and its time is owed. On a single GPU it has no peers under this
 * claim. */
static int goes_anyway(int slot, int collective)
{
    return collective && __atomic_load_n(&shim.gpus_open, __ATOMIC_RELAXED) > 1 &&
           __atomic_load_n(&shim.usage->bucket[slot].credit_ns, __ATOMIC_RELAXED) > -COLLECTIVE_DEBT_NS;
}

static void begin_waiting(int slot, struct waiting *w)
{
    if (w->counted)
        return;
    w->counted = 1;
    w->since = shim_now();
    w->slack = prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);
    prctl(PR_SET_TIMERSLACK, 1ul, 0, 0, 0);
    __atomic_fetch_add(&shim_usage(slot)->waiting, 1, __ATOMIC_SEQ_CST);
}

static void end_waiting(int slot, const struct waiting *w)
{
    if (!w->counted)
        return;
    __atomic_fetch_sub(&shim_usage(slot)->waiting, 1, __ATOMIC_SEQ_CST);
    __atomic_fetch_add(&shim_usage(slot)->throttled_ns, shim_now() - w->since, __ATOMIC_RELAXED);
    prctl(PR_SET_TIMERSLACK, (unsigned long)(w->slack > 0 ? w->slack : 0), 0, 0, 0);
}

/* Wait until the turn comes, or until some of the work in flight may have ended. */
static void wait_for_turn(int slot, uint64_t before, uint32_t turns_gen)
{
    const struct vcuda_turn *turn = &turns_page()->turn[slot];
    meter_retire();
    if (credit_inflight(slot) < before)
        return; /* there may be room now */
    uint64_t mine = __atomic_load_n(&shim_usage(slot)->inflight_ns, __ATOMIC_SEQ_CST);
    uint64_t starts = __atomic_load_n(&turn->starts_ns, __ATOMIC_SEQ_CST);
    int64_t ahead = (int64_t)(starts - shim_page_now());
    if (mine) {
        uint64_t oldest = lane_oldest(slot), later = mine > oldest && oldest ? mine - oldest : 0;
        int64_t due = (int64_t)(gate_drained_at(slot) - later - shim_now()) - DRAIN_AHEAD_NS;
        /* The GPU has more work than the oldest, so that need not be seen to end at once if it is late. */
        due = due < 0 && later && gate_has_turn(slot) ? -due / 8 : due;
        doze(due < DRAIN_POLL_NS ? DRAIN_POLL_NS : due < DRAIN_MAX_NS ? (long)due : DRAIN_MAX_NS);
    } else if (shim_page_now() < turn_word(slot) || (starts && ahead < POLL_AHEAD_NS && ahead > -POLL_LATE_NS))
        doze(POLL_NS); /* the turn may still be ours, with room in it for the work that was just retired */
    else
        sleep_on(&turns_page()->gen, turns_gen, starts && ahead > 0 ? ahead - POLL_AHEAD_NS : WAIT_MAX_NS / 2);
}

void gate_wait_to_let_go(int slot)
{
    const struct vcuda_turns *page = turns_page();
    uint32_t gen = page ? __atomic_load_n(&page->gen, __ATOMIC_ACQUIRE) : 0;
    if (!page || gate_has_turn(slot)) {
        doze(POLL_NS);
        return;
    }
    uint64_t starts = __atomic_load_n(&page->turn[slot].starts_ns, __ATOMIC_SEQ_CST);
    int64_t early = (int64_t)(starts - shim_page_now()) - POLL_AHEAD_NS;
    if (starts && early < 0 && early > -POLL_LATE_NS)
        doze(POLL_NS);
    else
        sleep_on(&page->gen, gen, starts && early > 0 ? early : WAIT_MAX_NS / 2);
}

/* Return 1 if the launch is handed over ahead, on `out`; < 0: it must wait for those that were. A claim of several GPUs has
 * kernels that wait for each other's, and a program that captures may not be disturbed. */
static int goes_ahead(const struct meter_lane *lane, uint64_t predicted, struct admission *out)
{
    uint64_t depth = turn_depth(lane->slot);
    int holds = ahead_is_holding();
    out->held = 0;
    if (!depth && !holds)
        return 0;
    if (!ahead_serves(lane) || __atomic_load_n(&shim.gpus_open, __ATOMIC_RELAXED) > 1 ||
        __atomic_load_n(&shim.captures, __ATOMIC_RELAXED) > 0) {
        if (holds)
            ahead_pause();
        return holds ? -1 : 0;
    }
    if (!ahead_has_room())
        return -1;
    out->held = 1;
    out->allowance_ns = predicted > turn_chunk(depth) ? predicted : turn_chunk(depth);
    return 1;
}

/* Clear slots of processes that were killed: their work in flight would hold everyone else back. */
static void look_for_dead(struct waiting *w)
{
    uint64_t now = shim_now();
    if (now - w->since > 100000000ull && now - w->last_looked_for_dead > 1000000000ull) {
        w->last_looked_for_dead = now;
        vcuda_usage_reap_dead(shim.usage);
    }
}

/* Record a collective that goes during another claim's turn: the arbiter charges it by this counter. */
static void note_outside(int slot, uint64_t turn, uint64_t predicted)
{
    if (turn != VCUDA_TURN_FREE && turn < shim_page_now())
        __atomic_fetch_add(&shim_usage(slot)->outside_ns, predicted, __ATOMIC_RELAXED);
}

static CUresult admit(const struct meter_lane *lane, uint64_t predicted, int collective, struct admission *out,
                      struct waiting *w)
{
    int slot = lane->slot;
    struct shim_gpu *gpu = &shim.gpu[slot];
    for (;;) {
        int anyway = goes_anyway(slot, collective);
        uint32_t gen = __atomic_load_n(&shim.limits->gen, __ATOMIC_ACQUIRE);
        const struct vcuda_turns *page = turns_page();
        uint32_t turns_gen = page ? __atomic_load_n(&page->gen, __ATOMIC_ACQUIRE) : 0;
        shim_refresh();
        if (__atomic_load_n(&gpu->state, __ATOMIC_ACQUIRE) != VCUDA_SLOT_OPEN)
            return CUDA_ERROR_NOT_PERMITTED;
        out->turn = turn_word(slot);
        uint64_t before = out->turn != VCUDA_TURN_FREE ? credit_inflight(slot) : 0;
        int turns =
            out->turn != VCUDA_TURN_FREE && __atomic_load_n(&gpu->core_limit, __ATOMIC_RELAXED) && arbiter_lives(slot);
        int ahead = turns && !anyway ? goes_ahead(lane, predicted, out) : (out->held = 0);
        if (ahead > 0)
            return CUDA_SUCCESS;
        out->allowance_ns = ahead < 0 ? 0
                            : anyway  ? predicted
                            : turns   ? turn_allows(slot, out->turn, predicted)
                                      : limit_allows(lane, predicted, &w->missing);
        if (out->allowance_ns) {
            /* First the addition, then a second look at the turn: see vcuda_pages.h. */
            if (!__atomic_load_n(&shim_usage(slot)->inflight_ns, __ATOMIC_RELAXED))
                __atomic_store_n(&gpu->busy_since_ns, shim_now(), __ATOMIC_RELAXED);
            inflight_add(slot, out->allowance_ns);
            if (anyway)
                note_outside(slot, out->turn, predicted);
            if (anyway || turn_word(slot) == out->turn)
                return CUDA_SUCCESS;
            inflight_less(slot, out->allowance_ns);
            continue;
        }
        begin_waiting(slot, w);
        /* Nothing is measured any more when the process ends, so its work in flight stays: waiting for it would never
         * end. */
        if (__atomic_load_n(&shim.stopping, __ATOMIC_ACQUIRE)) {
            inflight_add(slot, out->allowance_ns = predicted);
            return CUDA_SUCCESS;
        }
        if (ahead < 0) {
            ahead_wait_for_room();
        } else if (turns) {
            wait_for_turn(slot, before, turns_gen);
        } else {
            /* Work that was charged a moment ago changes what is missing. */
            meter_retire();
            if (!limit_allows(lane, predicted, &w->missing))
                sleep_on(&shim.limits->gen, gen, w->missing);
        }
        look_for_dead(w);
    }
}

CUresult gate_admit(const struct meter_lane *lane, uint64_t predicted_ns, int collective, struct admission *out)
{
    struct waiting w = {0};
    int error = errno; /* the program's own errno; a library must not change it on a call that succeeds */
    CUresult result = admit(lane, predicted_ns, collective, out, &w);
    end_waiting(lane->slot, &w);
    errno = error;
    return result;
}
