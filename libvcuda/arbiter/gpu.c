/* See gpu.h. Each thread reads the usage of its claims' processes, lets the round decide, writes the turns, and sleeps
 * until the round wants to read again. The main thread only passes it the list of claims. */
#include "gpu.h"

#include "memory.h"
#include "round.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#define ALIVE_NS 500000000ull
/* The sleep while fewer than two claims use the GPU. */
#define IDLE_NS 50000000ull
/* The sleep while no process is attached. A new process takes as long to create its context, and follows its own limit
 * until it is seen. */
#define DESERTED_NS 200000000ull
/* The same on a GPU with claims that borrow: they take nothing before they were seen. */
#define DESERTED_LEND_NS 20000000ull
/* The delay after which a turn's holder is suspected to be stopped: its turn is over, and its work should have
 * ended. */
#define STOPPED_LATE_NS 3000000ull
#define LOOK_EVERY_NS 5000000ull

struct place {
    struct claim *claim;
    uint32_t index; /* index of the GPU in the claim's pages */
};

/* The target of a seat's `claim`: where to read and write, and the values written last. */
struct desk {
    struct place at;
    struct vcuda_limit limit;
    uint32_t seen_gen;
    uint64_t ends_ns, starts_ns;
    uint32_t share;
    int has_stopped; /* some process of the claim is stopped */
    struct memory_kept memory;
};

struct gpu {
    struct gpu *next;
    uint8_t uuid[16];
    pthread_t thread;
    int started;
    pthread_mutex_t lock;
    /* Protected by the lock: the claims that should have a seat; each holds a reference. */
    struct place guests[ROUND_SEATS];
    int guests_n;
    uint32_t version; /* raised when the guests change */
    uint64_t alive_ns;
    uint64_t looked_ns; /* last look for stopped processes */
    struct round round; /* used by the thread alone */
};

static struct gpu *gpus;
static int stopping;

static int same(const struct place *a, const struct place *b)
{
    return a->claim == b->claim && a->index == b->index;
}

static int among(const struct place *places, int n, const struct place *place)
{
    for (int i = 0; i < n; i++)
        if (same(&places[i], place))
            return 1;
    return 0;
}

static void leave(struct round *r, int index)
{
    struct desk *desk = r->seat[index].claim;
    struct vcuda_turn *turn = &desk->at.claim->turns->turn[desk->at.index];
    __atomic_store_n(&turn->contended, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&turn->depth_ns, 0, __ATOMIC_RELAXED);
    vcuda_turns_set(desk->at.claim->turns, desk->at.index, VCUDA_TURN_FREE, 0);
    memory_leave(desk->at.claim, desk->at.index);
    claim_drop(desk->at.claim);
    free(desk);
    round_leave(r, index);
}

static void arrive(struct round *r, const struct place *place)
{
    struct desk *desk = calloc(1, sizeof *desk);
    if (!desk || !round_sit(r, desk)) {
        free(desk);
        return; /* it stays without turns, under its own limit */
    }
    desk->at = *place;
    desk->ends_ns = VCUDA_TURN_FREE;
    desk->seen_gen = __atomic_load_n(&place->claim->limits->gen, __ATOMIC_ACQUIRE) - 1;
    claim_hold(place->claim);
}

static void reseat(struct gpu *gpu)
{
    struct round *r = &gpu->round;
    struct place present[ROUND_SEATS];
    pthread_mutex_lock(&gpu->lock);
    for (int i = r->n - 1; i >= 0; i--)
        if (!among(gpu->guests, gpu->guests_n, &((struct desk *)r->seat[i].claim)->at))
            leave(r, i);
    for (int i = 0; i < r->n; i++)
        present[i] = ((struct desk *)r->seat[i].claim)->at;
    for (int i = 0, n = r->n; i < gpu->guests_n; i++)
        if (!among(present, n, &gpu->guests[i]))
            arrive(r, &gpu->guests[i]);
    pthread_mutex_unlock(&gpu->lock);
}

/* Read the limits again, as they may change at any time. While a page is being written, the terms read before stay. */
static void refresh_terms(struct round *r, uint64_t now)
{
    r->native = 0;
    r->ceiling = SHARE_WHOLE;
    for (int i = 0; i < r->n; i++) {
        struct seat *s = &r->seat[i];
        struct desk *desk = s->claim;
        uint32_t gen = __atomic_load_n(&desk->at.claim->limits->gen, __ATOMIC_ACQUIRE);
        if (gen != desk->seen_gen && vcuda_limits_get(desk->at.claim->limits, desk->at.index, &desk->limit) == 0) {
            desk->seen_gen = gen;
            share_terms_of(&desk->limit, &s->terms);
            round_disturb(r, now);
        }
        uint32_t ceiling = desk->limit.ceiling ? desk->limit.ceiling * 100 : SHARE_WHOLE;
        r->ceiling = ceiling < r->ceiling ? ceiling : r->ceiling;
        r->native |= desk->limit.policy == VCUDA_POLICY_NATIVE || desk->limit.flags & VCUDA_FLAG_NO_TURNS;
    }
}

static void read_all(struct round *r)
{
    for (int i = 0; i < r->n; i++) {
        const struct desk *desk = r->seat[i].claim;
        /* While a turn drains, only the end of the holder's work matters. */
        if (r->phase == ROUND_DRAINING && i != r->holder)
            continue;
        claim_read(desk->at.claim, desk->at.index, &r->seat[i].reading);
    }
}

/* Look for stopped processes among claims whose work should have ended, and among those seen stopped before, as they
 * may have continued. */
static void look_for_stopped(struct gpu *gpu, uint64_t now)
{
    struct round *r = &gpu->round;
    int late =
        r->phase == ROUND_DRAINING && now > r->closed_ns + STOPPED_LATE_NS && now > r->drained_by_ns + STOPPED_LATE_NS;
    if (now - gpu->looked_ns < LOOK_EVERY_NS)
        return;
    gpu->looked_ns = now;
    for (int i = 0; i < r->n; i++) {
        struct desk *desk = r->seat[i].claim;
        if ((late && i == r->holder) || desk->has_stopped)
            desk->has_stopped = processes_look_for_stopped(desk->at.claim);
    }
}

static void publish(struct round *r, uint64_t now)
{
    for (int i = 0; i < r->n; i++) {
        const struct seat *s = &r->seat[i];
        struct desk *desk = s->claim;
        struct vcuda_turn *turn = &desk->at.claim->turns->turn[desk->at.index];
        uint32_t contended = (uint32_t)round_is_contended(r, i);
        __atomic_store_n(&turn->heartbeat_ns, now, __ATOMIC_RELEASE);
        if (__atomic_load_n(&turn->contended, __ATOMIC_RELAXED) != contended)
            __atomic_store_n(&turn->contended, contended, __ATOMIC_RELAXED);
        if (__atomic_load_n(&turn->depth_ns, __ATOMIC_RELAXED) != s->depth_ns)
            __atomic_store_n(&turn->depth_ns, s->depth_ns, __ATOMIC_RELAXED);
        if (__atomic_load_n(&turn->cap, __ATOMIC_RELAXED) != s->cap)
            __atomic_store_n(&turn->cap, s->cap, __ATOMIC_RELAXED);
        if (desk->share != s->share)
            __atomic_store_n(&turn->share, s->share, __ATOMIC_RELAXED);
        if (desk->ends_ns != VCUDA_TURN_FREE && s->ends_ns && s->ends_ns < desk->ends_ns)
            /* The same turn, but shorter: nobody needs to be woken, and the turn's number stays. */
            __atomic_store_n(&turn->ends_ns, s->ends_ns, __ATOMIC_SEQ_CST);
        else if (desk->ends_ns != s->ends_ns || desk->starts_ns != s->starts_ns)
            vcuda_turns_set(desk->at.claim->turns, desk->at.index, s->ends_ns, s->starts_ns);
        desk->share = s->share;
        desk->ends_ns = s->ends_ns;
        desk->starts_ns = s->starts_ns;
    }
}

static int deserted(const struct round *r)
{
    for (int i = 0; i < r->n; i++)
        if (r->seat[i].reading.processes)
            return 0;
    return r->phase == ROUND_FREE;
}

/* Have borrowed memory given back. Return when to look again, at most. */
static uint64_t lend_memory(struct round *r, uint64_t now)
{
    struct memory_seat seats[ROUND_SEATS];
    for (int i = 0; i < r->n; i++) {
        struct desk *desk = r->seat[i].claim;
        seats[i] = (struct memory_seat){
            .claim = desk->at.claim, .index = desk->at.index, .limit = desk->limit, .kept = &desk->memory};
    }
    uint64_t pause = memory_step(seats, r->n, now);
    return pause == UINT64_MAX ? pause : now + (deserted(r) ? DESERTED_LEND_NS : pause);
}

static void sleep_until(uint64_t ns)
{
    struct timespec ts = {.tv_sec = (time_t)(ns / 1000000000ull), .tv_nsec = (long)(ns % 1000000000ull)};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL);
}

static void *attend(void *argument)
{
    struct gpu *gpu = argument;
    struct round *r = &gpu->round;
    uint32_t seen = 0;
    prctl(PR_SET_TIMERSLACK, 1ul, 0ul, 0ul, 0ul);
    while (!__atomic_load_n(&stopping, __ATOMIC_ACQUIRE)) {
        uint64_t now = pages_clock(CLOCK_MONOTONIC), next = now + IDLE_NS;
        uint32_t version = __atomic_load_n(&gpu->version, __ATOMIC_ACQUIRE);
        __atomic_store_n(&gpu->alive_ns, now, __ATOMIC_RELEASE);
        if (version != seen)
            reseat(gpu);
        seen = version;
        if (r->n > 1 || (r->n == 1 && r->phase != ROUND_FREE)) {
            refresh_terms(r, now);
            look_for_stopped(gpu, now);
            read_all(r);
            now = pages_clock(CLOCK_MONOTONIC);
            next = round_step(r, now);
            publish(r, now);
            if (deserted(r))
                next = now + DESERTED_NS;
        } else if (r->n == 1) {
            refresh_terms(r, now);
        }
        uint64_t memory = lend_memory(r, now);
        next = next < memory ? next : memory;
        sleep_until(next);
    }
    while (r->n)
        leave(r, r->n - 1);
    return NULL;
}

static struct gpu *gpu_of(const uint8_t uuid[16], uint64_t round_ns)
{
    struct gpu *gpu = gpus;
    while (gpu && memcmp(gpu->uuid, uuid, 16) != 0)
        gpu = gpu->next;
    if (gpu || !(gpu = calloc(1, sizeof *gpu)))
        return gpu;
    memcpy(gpu->uuid, uuid, 16);
    pthread_mutex_init(&gpu->lock, NULL);
    round_init(&gpu->round, round_ns);
    gpu->next = gpus;
    return gpus = gpu;
}

/* Find the claims that have an open slot of this GPU. Claims beyond the last seat stay without turns, under their own
 * limits. */
static int find_guests(struct claim *claims, const uint8_t uuid[16], struct place *guests)
{
    struct vcuda_limit limit;
    int n = 0;
    for (struct claim *claim = claims; claim; claim = claim->next)
        for (uint32_t i = 0; claim->limits && i < VCUDA_MAX_GPUS && n < (int)ROUND_SEATS; i++)
            if (vcuda_limits_get(claim->limits, i, &limit) == 0 && limit.state == VCUDA_SLOT_OPEN &&
                memcmp(limit.gpu_uuid, uuid, 16) == 0)
                guests[n++] = (struct place){claim, i};
    return n;
}

static void invite(struct gpu *gpu, const struct place *guests, int n)
{
    int changed = n != gpu->guests_n;
    for (int i = 0; i < n && !changed; i++)
        changed = !among(gpu->guests, gpu->guests_n, &guests[i]);
    if (!changed)
        return;
    pthread_mutex_lock(&gpu->lock);
    for (int i = 0; i < n; i++)
        claim_hold(guests[i].claim);
    for (int i = 0; i < gpu->guests_n; i++)
        claim_drop(gpu->guests[i].claim);
    memcpy(gpu->guests, guests, sizeof *guests * (size_t)n);
    gpu->guests_n = n;
    __atomic_fetch_add(&gpu->version, 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&gpu->lock);
}

static void start(struct gpu *gpu)
{
    __atomic_store_n(&gpu->alive_ns, pages_clock(CLOCK_MONOTONIC), __ATOMIC_RELEASE);
    gpu->started = pthread_create(&gpu->thread, NULL, attend, gpu) == 0;
    if (!gpu->started)
        fputs("vcuda-arbiter: no thread can be started; one GPU is without turns for now\n", stderr);
}

/* A claim borrows only where the arbiter looks, also what nobody else on the GPU uses. */
static int has_borrower(const struct gpu *gpu)
{
    struct vcuda_limit limit;
    for (int i = 0; i < gpu->guests_n; i++)
        if (!vcuda_limits_get(gpu->guests[i].claim->limits, gpu->guests[i].index, &limit) &&
            limit.flags & VCUDA_FLAG_BORROWS)
            return 1;
    return 0;
}

void gpus_seat(struct claim *claims, uint64_t round_ns)
{
    struct vcuda_limit limit;
    struct place guests[ROUND_SEATS];
    for (struct claim *claim = claims; claim; claim = claim->next)
        for (uint32_t i = 0; claim->limits && i < VCUDA_MAX_GPUS; i++)
            if (vcuda_limits_get(claim->limits, i, &limit) == 0 && limit.state == VCUDA_SLOT_OPEN)
                gpu_of(limit.gpu_uuid, round_ns);
    for (struct gpu *gpu = gpus; gpu; gpu = gpu->next) {
        invite(gpu, guests, find_guests(claims, gpu->uuid, guests));
        if (!gpu->started && (gpu->guests_n > 1 || has_borrower(gpu)))
            start(gpu);
    }
}

int gpus_alive(void)
{
    uint64_t now = pages_clock(CLOCK_MONOTONIC);
    for (struct gpu *gpu = gpus; gpu; gpu = gpu->next) {
        uint64_t alive = __atomic_load_n(&gpu->alive_ns, __ATOMIC_ACQUIRE);
        if (gpu->started && alive + ALIVE_NS < now)
            return 0;
    }
    return 1;
}

void gpus_stop(void)
{
    __atomic_store_n(&stopping, 1, __ATOMIC_RELEASE);
    for (struct gpu *gpu; (gpu = gpus);) {
        gpus = gpu->next;
        if (gpu->started)
            pthread_join(gpu->thread, NULL);
        for (int i = 0; i < gpu->guests_n; i++)
            claim_drop(gpu->guests[i].claim);
        free(gpu);
    }
}
