/* Work that is handed to the GPU before it may run.
 *
 * Best-effort work in flight delays the next request of a claim that must not wait, so little of it may be. But a
 * program's host works in fits and starts, and with little in flight the GPU runs dry whenever it is late. So launches go
 * into their stream behind a wait for a word in host memory. The host works ahead by some milliseconds, and a burst
 * begins when this process raises the word: in turns, and as far as the depth allows (docs/decisions/0131).
 *
 * The GPU writes the end of a burst to memory, too. So neither letting a burst go nor seeing its end needs the driver,
 * whose locks a thread may hold that waits for this very work. */
#include "ahead_thread.h"

#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Many more than may be unfinished, as the times of those that are over are read when they are retired. */
#define ENTRIES 256u
#define UNFINISHED_MOST 48u
/* What the host may be ahead by. A stream takes 1,024 calls at least, most of them launches, before one waits. */
#define HELD_MOST_NS 6000000ull
#define HELD_MOST_LAUNCHES 192u
#define ROOM_NS 1000000
/* Work that does not end for this long, while what is held waits, lies behind that. */
#define STUCK_NS 5000000ull
/* What is held is gone by then, if it has its turns. */
#define PAUSE_NS 20000000ull
#define LOCK_TRIES 100000

struct entry {
    uint64_t ns;        /* predicted; once let go, its part of inflight_ns */
    uint64_t let_go_ns; /* CLOCK_MONOTONIC; 0: held */
    uint64_t closed_ns; /* 0: launches may still join it */
    uint32_t number, launches;
    int done;
};

/* Entries are numbered from 1; entry n lies at n % ENTRIES. Protected by the lock, but for the words. */
static struct {
    int lock, failed, waits;
    uint32_t sleepers; /* threads that wait for room */
    CUcontext context; /* that of the memory; NULL: there is none */
    int slot;
    uint32_t *memory;
    uint32_t *words; /* the memory, while in use. [0]: the last entry that may run; [1 + n % ENTRIES]: n if n is over */
    uint32_t opened, let_go, over; /* the last of each; those up to `over` are over without a gap */
    uint64_t held_ns, paused_until;
    uint64_t stuck_inflight, stuck_since; /* the process's work in flight, and since when it is that */
    uint32_t held_launches;
    struct entry entry[ENTRIES];
} ahead;

/* What is written with the lock held and read without it. */
#define PUT(word, value) __atomic_store_n(&(word), (value), __ATOMIC_SEQ_CST)
#define GET(word) __atomic_load_n(&(word), __ATOMIC_RELAXED)

static int lock(void)
{
    int tries = 0;
    /* A burst whose end is not noted is waited for, so there is no giving up; but the exit of the process may have ended the
     * thread that holds it. */
    while (__atomic_exchange_n(&ahead.lock, 1, __ATOMIC_ACQUIRE)) {
        if (__atomic_load_n(&shim.stopping, __ATOMIC_RELAXED) && ++tries == LOCK_TRIES)
            return 0;
        sched_yield();
    }
    return 1;
}

static void unlock(void)
{
    PUT(ahead.lock, 0);
}

static struct entry *entry_of(uint32_t number)
{
    return &ahead.entry[number % ENTRIES];
}

/* Take the ends of bursts that the GPU has written. Locked. */
static void take_ends(void)
{
    int whole = 1;
    for (uint32_t n = ahead.over + 1; (int32_t)(ahead.let_go - n) >= 0; n++) {
        struct entry *e = entry_of(n);
        if (!e->done && e->closed_ns && __atomic_load_n(&ahead.words[1 + n % ENTRIES], __ATOMIC_ACQUIRE) == n) {
            e->done = 1;
            /* Before its work is taken off, as the arbiter charges the turn until this moment. */
            __atomic_store_n(&shim_usage(ahead.slot)->last_end_ns, shim_page_now(), __ATOMIC_SEQ_CST);
            inflight_less(ahead.slot, e->ns);
        }
        whole &= e->done;
        PUT(ahead.over, ahead.over + (uint32_t)whole);
    }
}

static void raise_gate(void)
{
    uint32_t n = ahead.let_go + 1;
    struct entry *e = entry_of(n);
    PUT(ahead.let_go, n);
    PUT(ahead.held_ns, ahead.held_ns - e->ns);
    PUT(ahead.held_launches, ahead.held_launches - e->launches);
    e->let_go_ns = shim_now();
    __atomic_store_n(&ahead.words[0], n, __ATOMIC_SEQ_CST);
}

/* Let bursts go that may run now. A burst that launches may still join waits for its end while the GPU has other work,
 * so that the time between its launches is none of the GPU's. Locked. */
static void let_go(void)
{
    while (ahead.let_go != ahead.opened) {
        const struct entry *next = entry_of(ahead.let_go + 1);
        if ((!next->closed_ns && ahead.over != ahead.let_go) || !gate_lets_go(ahead.slot, next->ns))
            return;
        raise_gate();
    }
}

static void let_next_go(void)
{
    inflight_add(ahead.slot, entry_of(ahead.let_go + 1)->ns);
    raise_gate();
}

/* Work in flight may wait for work that is held: a launch that was admitted before turns began came behind it, or two threads
 * made streams wait for each other. The arbiter waits for the end of what is in flight before it gives the turn. If none of it
 * ends for longer than it can take, let one burst go. Locked. */
static void let_go_if_stuck(void)
{
    uint64_t now = shim_now(), inflight = __atomic_load_n(&shim_usage(ahead.slot)->inflight_ns, __ATOMIC_RELAXED);
    uint64_t most = STUCK_NS + (ahead.over == ahead.let_go ? 0 : 2 * inflight);
    if (ahead.let_go == ahead.opened || !inflight || inflight != ahead.stuck_inflight) {
        ahead.stuck_inflight = inflight;
        ahead.stuck_since = now;
    } else if (now - ahead.stuck_since > most) {
        let_next_go();
        ahead.stuck_since = now;
    }
}

static void wake(const uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static void sleep_on(const uint32_t *word, uint32_t seen, long ns)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, &(struct timespec){0, ns}, NULL, 0);
}

int ahead_has_room(void)
{
    return shim_now() >= GET(ahead.paused_until) && GET(ahead.held_ns) < HELD_MOST_NS &&
           GET(ahead.held_launches) < HELD_MOST_LAUNCHES && GET(ahead.opened) - GET(ahead.over) < UNFINISHED_MOST;
}

void ahead_pause(void)
{
    PUT(ahead.paused_until, shim_now() + PAUSE_NS);
}

int ahead_is_holding(void)
{
    return GET(ahead.let_go) != GET(ahead.opened);
}

void ahead_wait_for_room(void)
{
    uint32_t seen = GET(ahead.over);
    __atomic_fetch_add(&ahead.sleepers, 1, __ATOMIC_SEQ_CST);
    if (!ahead_has_room() || ahead_is_holding())
        sleep_on(&ahead.over, seen, ROOM_NS);
    __atomic_fetch_sub(&ahead.sleepers, 1, __ATOMIC_SEQ_CST);
}

enum ahead_left ahead_step(int *slot)
{
    enum ahead_left found = AHEAD_NOTHING;
    if (!lock())
        return AHEAD_NOTHING;
    *slot = ahead.slot;
    if (ahead.words) {
        uint32_t over = ahead.over;
        take_ends();
        if (__atomic_load_n(&shim.suspended, __ATOMIC_ACQUIRE) || __atomic_load_n(&shim.stopping, __ATOMIC_ACQUIRE))
            while (ahead.let_go != ahead.opened)
                let_next_go();
        let_go();
        let_go_if_stuck();
        found = ahead.over != ahead.let_go ? AHEAD_RUNNING : ahead.let_go != ahead.opened ? AHEAD_HELD : AHEAD_NOTHING;
        if (over != ahead.over && __atomic_load_n(&ahead.sleepers, __ATOMIC_SEQ_CST))
            wake(&ahead.over);
    }
    int changed = (ahead.let_go != ahead.opened) - ahead.waits;
    ahead.waits += changed;
    if (changed && shim.self)
        __atomic_fetch_add(&shim_usage(ahead.slot)->waiting, (uint32_t)changed, __ATOMIC_SEQ_CST);
    unlock();
    return found;
}

int ahead_serves(const struct meter_lane *lane)
{
    CUcontext context = GET(ahead.context);
    return !GET(ahead.failed) && (!context || context == lane->context) && real.cuStreamWaitValue32_v2 &&
           real.cuStreamWriteValue32_v2 && real.cuMemHostAlloc;
}

/* Have words, in memory of the lane's context. Locked. */
static int prepare(const struct meter_lane *lane)
{
    size_t size = (1 + ENTRIES) * sizeof *ahead.words;
    if (__atomic_load_n(&shim.stopping, __ATOMIC_ACQUIRE) || (ahead.context && ahead.context != lane->context))
        return 0;
    if (!ahead.context) {
        /* The wait is a trial, as not every driver can do it: what it waits for is there already. */
        if (!ahead_thread_start() || real.cuMemHostAlloc((void **)&ahead.memory, size, 0) ||
            !memset(ahead.memory, 0, size) ||
            real.cuStreamWaitValue32_v2(lane->stream, (CUdeviceptr)(uintptr_t)ahead.memory, 0, CU_WAIT_VALUE_GEQ)) {
            PUT(ahead.failed, 1);
            return 0;
        }
        ahead.slot = lane->slot;
        PUT(ahead.opened, 0);
        PUT(ahead.let_go, 0);
        PUT(ahead.over, 0);
        PUT(ahead.context, lane->context);
    }
    PUT(ahead.words, ahead.memory);
    return 1;
}

uint32_t ahead_open(struct meter_lane *lane, uint64_t ns)
{
    if (!lock())
        return 0;
    uint32_t n = 0;
    if (prepare(lane) && ahead.opened - ahead.over < ENTRIES / 2) {
        if (ahead.opened == UINT32_MAX) { /* 0 means that a burst is not held */
            *entry_of(0) = (struct entry){.closed_ns = 1, .done = 1};
            PUT(ahead.opened, 0);
        }
        *entry_of(n = ahead.opened + 1) = (struct entry){.ns = ns, .number = n};
        PUT(ahead.held_ns, ahead.held_ns + ns);
        __atomic_store_n(&ahead.opened, n, __ATOMIC_SEQ_CST);
        let_go();
    }
    uint32_t *gate = ahead.words;
    unlock();
    /* Without the lock, as the call may wait for a place in the stream, which comes when bursts end. */
    if (n && real.cuStreamWaitValue32_v2(lane->stream, (CUdeviceptr)(uintptr_t)gate, n, CU_WAIT_VALUE_GEQ))
        PUT(ahead.failed, 1); /* it runs at once, and is counted when it is let go */
    if (n)
        ahead_thread_poke();
    return n;
}

/* Return 0 if end_all has taken the entry's work off already. Locked. */
static int is_counted(uint32_t n)
{
    return ahead.words && entry_of(n)->number == n && (int32_t)(n - ahead.over) > 0;
}

/* Locked. */
static void close_entry(struct entry *e, const struct meter_burst *burst, uint64_t unused_ns, uint64_t others_ns)
{
    e->closed_ns = shim_now();
    e->ns += others_ns - unused_ns;
    if (e->let_go_ns) {
        inflight_less(ahead.slot, unused_ns);
        return;
    }
    inflight_less(ahead.slot, others_ns);
    e->launches = burst->launches;
    PUT(ahead.held_launches, ahead.held_launches + e->launches);
    PUT(ahead.held_ns, ahead.held_ns + others_ns - unused_ns);
}

static void finish(const struct meter_lane *lane, uint64_t others_ns, int done)
{
    uint64_t unused_ns = lane->left_ns > 0 ? (uint64_t)lane->left_ns : 0;
    uint32_t n = lane->now.held;
    if (!lock())
        return;
    if (!is_counted(n)) {
        inflight_less(lane->slot, others_ns);
    } else {
        close_entry(entry_of(n), &lane->now, unused_ns, others_ns);
        if (done)
            __atomic_store_n(&ahead.words[1 + n % ENTRIES], n, __ATOMIC_RELEASE);
        take_ends();
        let_go();
    }
    unlock();
}

void ahead_join(const struct meter_lane *lane, const struct admission *admitted)
{
    uint64_t ns = admitted->allowance_ns;
    struct entry *e = entry_of(lane->now.held);
    if (!lock())
        return;
    if (!is_counted(lane->now.held)) {
        inflight_less(lane->slot, admitted->held ? 0 : ns);
        unlock();
        return;
    }
    e->ns += ns;
    if (!e->let_go_ns)
        PUT(ahead.held_ns, ahead.held_ns + ns);
    if (e->let_go_ns && admitted->held)
        inflight_add(ahead.slot, ns);
    if (!e->let_go_ns && !admitted->held)
        inflight_less(ahead.slot, ns);
    unlock();
}

void ahead_close(const struct meter_lane *lane, uint64_t others_ns)
{
    uint32_t n = lane->now.held, *words = GET(ahead.words);
    CUdeviceptr word = (CUdeviceptr)(uintptr_t)(words + 1 + n % ENTRIES);
    finish(lane, others_ns, words && real.cuStreamWriteValue32_v2(lane->stream, word, n, 0) != 0);
}

void ahead_give_up(const struct meter_lane *lane, uint64_t others_ns)
{
    finish(lane, others_ns, 1);
}

void ahead_settle(struct meter_burst *burst)
{
    if (!lock())
        return;
    const struct entry *e = entry_of(burst->held);
    /* All of its launches were there when it began, so there are no gaps between them. */
    if (e->number == burst->held && e->let_go_ns > burst->closed_ns) {
        burst->started_ns = burst->closed_ns = e->let_go_ns;
        burst->idle_ns = burst->lag_ns = 0;
    }
    unlock();
}

/* Let everything go, and count none of it any more. Locked. */
static void end_all(void)
{
    for (uint32_t n = ahead.over + 1; (int32_t)(ahead.let_go - n) >= 0; n++)
        if (!entry_of(n)->done)
            inflight_less(ahead.slot, entry_of(n)->ns);
    while (ahead.let_go != ahead.opened)
        raise_gate();
    PUT(ahead.over, ahead.opened);
    PUT(ahead.words, NULL);
}

void ahead_end(void)
{
    if (!lock())
        return;
    if (ahead.words)
        end_all();
    unlock();
}

void ahead_forget_context(CUcontext context, int slot)
{
    if (!lock())
        return;
    if (ahead.context && (context ? context == ahead.context : slot == ahead.slot)) {
        if (ahead.words)
            end_all();
        ahead.memory = NULL; /* freed with the context */
        PUT(ahead.context, NULL);
    }
    unlock();
}

void ahead_forget_all(void)
{
    ahead_thread_forget();
    memset(&ahead, 0, sizeof ahead);
}
