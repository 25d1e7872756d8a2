/* The retiring side of the meter: finished bursts become charged GPU time.
 *
 * One thread at a time does it: the watcher, or a launch that waits for credit. Only threads that are about to destroy
 * events wait for the lock. */
#include "ahead.h"
#include "credit.h"

#include <sched.h>
#include <time.h>

/* No moment of the GPU is charged twice (credit.c), which requires intervals in the order of their ends. With two
 * streams in alternation, a long kernel that is found after a short one that followed it would be lost. */
#define FINISHED 256
/* A burst of fewer launches proves nothing of short kernels; and one that takes this part more or less than predicted
 * disproves. */
#define PROOF_LAUNCHES 8
#define PROOF_PART 0.03
/* The largest delay of the watchers of other processes. */
#define OTHERS_LATE_NS 2000000ull
#define LONGEST_SPAN_NS 10000000000ull

static int lock;

int meter_try_lock(void)
{
    return !__atomic_exchange_n(&lock, 1, __ATOMIC_ACQUIRE);
}

int meter_lock(void)
{
    /* Bounded: the thread that holds it may have been ended by the exit of the process. */
    for (int i = 0; i < 100000; i++) {
        if (meter_try_lock())
            return 1;
        sched_yield();
    }
    return 0;
}

void meter_unlock(void)
{
    __atomic_store_n(&lock, 0, __ATOMIC_RELEASE);
}

/* At the process's end, after `stopping` was set: let the thread that retires finish, but never hang for it. The lock
 * is not kept: the program's own clean-up may still destroy contexts. */
void meter_quiesce(void)
{
    ahead_end();
    struct timespec pause = {0, 200000};
    for (int i = 0; i < 100; i++) {
        if (meter_try_lock()) {
            meter_unlock();
            return;
        }
        nanosleep(&pause, NULL);
    }
}

/* Record when the GPU last worked for this process; the arbiter uses it. */
static void note_end(int slot, uint64_t end_ns)
{
    uint64_t *last = &shim_usage(slot)->last_end_ns;
    end_ns = shim_to_page(end_ns);
    if (end_ns > __atomic_load_n(last, __ATOMIC_RELAXED))
        __atomic_store_n(last, end_ns, __ATOMIC_SEQ_CST);
}

/* Record the longest kernel, which nothing can interrupt: others of the GPU wait for its end. What stands in the page is
 * of this span and the previous one. */
static void note_longest(int slot, const struct meter_burst *burst)
{
    static struct {
        uint64_t since_ns;
        uint32_t us, before_us;
    } seen[VCUDA_MAX_GPUS];
    uint64_t now = shim_now();
    if (now - seen[slot].since_ns > LONGEST_SPAN_NS) {
        seen[slot].before_us = seen[slot].us;
        seen[slot].us = 0;
        seen[slot].since_ns = now;
    }
    uint32_t us = predict_longest_ns(burst) / 1000;
    if (us > seen[slot].us)
        seen[slot].us = us;
    uint32_t most = seen[slot].us > seen[slot].before_us ? seen[slot].us : seen[slot].before_us;
    __atomic_store_n(&shim_usage(slot)->longest_us, most, __ATOMIC_RELAXED);
}

/* Return 1 if the credit pays for the burst. Within turns the arbiter charges, by the wall clock; credit is for the
 * time without turns. */
static int is_on_credit(const struct meter_lane *lane, const struct meter_burst *burst)
{
    const struct shim_gpu *gpu = &shim.gpu[lane->slot];
    return gate_limit(lane->slot) < 100 &&
           burst->begun_ns >= __atomic_load_n(&gpu->limited_since_ns, __ATOMIC_RELAXED) &&
           !gate_gives_turns(lane->slot);
}

/* Return the busy time without that of others: between two bursts of this claim another one may have had the GPU, so
 * the prediction of its kernels alone is the better figure. */
static double without_others(const struct meter_burst *burst, double busy_ns)
{
    double predicted = (double)burst->predicted_ns;
    return burst->contended && busy_ns > predicted ? predicted : busy_ns;
}

/* Finished and not charged yet, ordered by their ends; protected by the lock. */
static struct finished {
    uint64_t start_ns, end_ns, spent_ns, counted_ns; /* no end: nothing to charge */
    int slot, debit;
} finished[FINISHED];
static int finished_n;

static void charge_one(int at)
{
    struct finished f = finished[at];
    finished_n--;
    for (int i = at; i < finished_n; i++)
        finished[i] = finished[i + 1];
    if (f.end_ns)
        credit_charge(f.slot, f.start_ns, f.end_ns, f.spent_ns, f.debit);
    inflight_less(f.slot, f.counted_ns);
}

static void put_in_order(struct finished f)
{
    if (finished_n == FINISHED)
        charge_one(0);
    int at = finished_n++;
    for (; at > 0 && finished[at - 1].end_ns > f.end_ns; at--)
        finished[at] = finished[at - 1];
    finished[at] = f;
}

static struct finished finish(const struct meter_lane *lane, const struct meter_burst *burst,
                              const struct duration *took)
{
    double spent = without_others(burst, took->busy_ns), start = took->start_ns;
    if (burst->skipped_ns) {
        /* Launched without events since the previous burst, and run before this one. */
        double since = (double)burst->skipping_since_ns;
        spent += (double)burst->skipped_ns;
        start = since < start ? since : start;
    }
    return (struct finished){.start_ns = (uint64_t)start,
                             .end_ns = (uint64_t)took->end_ns,
                             .spent_ns = (uint64_t)spent,
                             .counted_ns = burst->counted_ns,
                             .slot = lane->slot,
                             .debit = is_on_credit(lane, burst)};
}

/* Count the bursts in a row that took what was predicted: only those of one kernel during which the GPU had work all the
 * time prove it. */
static void note_proof(struct meter_lane *lane, const struct meter_burst *burst, const struct duration *took)
{
    double off = took->busy_ns - (double)burst->predicted_ns;
    if (!predict_is_pure(burst) || burst->contended)
        __atomic_store_n(&lane->proven, 0, __ATOMIC_RELAXED);
    else if (!took->backlogged || took->vague || burst->launches < PROOF_LAUNCHES)
        return;
    else if ((off < 0 ? -off : off) > PROOF_PART * (double)burst->predicted_ns)
        __atomic_store_n(&lane->proven, 0, __ATOMIC_RELAXED);
    else
        __atomic_fetch_add(&lane->proven, 1, __ATOMIC_RELAXED);
}

/* Account for the oldest burst of the lane, which has ended. */
static void account_for(struct meter_lane *lane, struct meter_burst *burst, CUresult result)
{
    struct origin *origin = origin_of(lane->context);
    struct finished done = {.counted_ns = burst->counted_ns, .slot = lane->slot};
    struct duration took;
    if (burst->held)
        ahead_settle(burst);
    if (!result && origin) {
        if (!shim_stood_still_since(burst->begun_ns) && duration_of(origin, lane, burst, &took)) {
            predict_learn(burst, &took);
            note_longest(lane->slot, burst);
            if (took.backlogged)
                __atomic_store_n(&lane->calm, 0, __ATOMIC_RELAXED);
            note_proof(lane, burst, &took);
            note_end(lane->slot, (uint64_t)took.end_ns);
        } else {
            /* Its origin is gone (meter_restart), or its time has a suspension in it: take the predicted time. */
            took = (struct duration){.end_ns = (double)shim_now(), .busy_ns = (double)burst->predicted_ns};
            took.start_ns = took.end_ns - took.busy_ns;
        }
        done = finish(lane, burst, &took);
        origin_return(origin, burst->start);
        origin_return(origin, burst->zero);
        origin_return(origin, lane->last_end);
        lane->last_end = burst->end;
    }
    put_in_order(done);
    __atomic_store_n(&lane->tail, lane->tail + 1, __ATOMIC_RELEASE);
}

/* Retire the oldest burst of the lane; return 0 if it is not finished, or if that cannot be asked now. */
static int retire_one(struct meter_lane *lane)
{
    struct meter_burst *burst = &lane->ring[lane->tail % METER_BURSTS];
    if (!shim_begin_query())
        return 0;
    CUresult result = real.cuEventQuery(burst->end);
    if (result != CUDA_ERROR_NOT_READY)
        account_for(lane, burst, result);
    shim_end_query();
    return result != CUDA_ERROR_NOT_READY;
}

/* Collect finished bursts, and repeat until there are no more: work that ended before a burst just found is then found,
 * too. */
static int collect(void)
{
    int left, found;
    do {
        struct meter_lane *lane;
        left = found = 0;
        for (uint32_t i = 0; (lane = lane_at(i)); i++) {
            while (lane->tail != __atomic_load_n(&lane->head, __ATOMIC_ACQUIRE) && retire_one(lane))
                found++;
            left += (int)(__atomic_load_n(&lane->head, __ATOMIC_RELAXED) - lane->tail);
        }
    } while (found && left);
    return left;
}

/* Return 1 if the burst may be charged now. Other processes of the claim charge the same account, a little later or
 * sooner. Within turns the arbiter waits for the end of the work in flight, and charges by the wall clock. */
static int may_charge(const struct finished *f)
{
    return !f->end_ns || shim_now() - f->end_ns > OTHERS_LATE_NS || gate_gives_turns(f->slot) ||
           !credit_others_inflight(f->slot);
}

/* Charge in order on each GPU; waiting on one GPU does not hold up another. */
static void charge_finished(void)
{
    uint32_t held = 0;
    for (int i = 0; i < finished_n;) {
        uint32_t gpu = 1u << finished[i].slot;
        if (!(held & gpu) && may_charge(&finished[i])) {
            charge_one(i);
            continue;
        }
        held |= gpu;
        i++;
    }
}

int meter_retire(void)
{
    int left, mode = CU_CAPTURE_RELAXED;
    if (__atomic_load_n(&shim.stopping, __ATOMIC_ACQUIRE) || !meter_try_lock())
        return 1;
    int changed = __atomic_load_n(&shim.captures, __ATOMIC_RELAXED) > 0 && real.cuThreadExchangeStreamCaptureMode &&
                  !real.cuThreadExchangeStreamCaptureMode(&mode);
    left = collect();
    charge_finished();
    left += finished_n;
    if (changed)
        real.cuThreadExchangeStreamCaptureMode(&mode);
    meter_unlock();
    return left;
}

void meter_give_up(struct meter_lane *lane)
{
    struct origin *origin = origin_of(lane->context);
    struct meter_burst *burst = &lane->now;
    uint64_t others = __atomic_exchange_n(&lane->other_ns, 0, __ATOMIC_RELAXED), now = shim_now();
    uint64_t spent = burst->predicted_ns + others;
    __atomic_fetch_add(&shim_usage(lane->slot)->launches, burst->launches + burst->skipped, __ATOMIC_RELAXED);
    if (burst->held)
        ahead_give_up(lane, others);
    else
        inflight_less(lane->slot, spent + (uint64_t)(lane->left_ns > 0 ? lane->left_ns : 0));
    inflight_less(lane->slot, burst->skipped_counted_ns);
    spent += burst->skipped_ns;
    if (spent)
        credit_charge(lane->slot, now - spent, now, spent, is_on_credit(lane, burst));
    if (origin)
        origin_discard(origin, burst);
    lane_set_open(lane, 0);
}

static int forget(CUcontext context, int slot)
{
    int found = -1;
    struct meter_lane *lane;
    for (uint32_t i = 0; (lane = lane_at(i)); i++) {
        if (!lane->context || (context ? lane->context != context : lane->slot != slot))
            continue;
        /* A program that launches into a context while destroying it is in error: do not wait for it endlessly. */
        int taken = 0;
        for (int try = 0; try < 1000 && !taken; try++)
            taken = lane_take(lane);
        found = lane->slot;
        origin_forget(lane->context);
        lane_clear(lane);
        if (taken)
            lane_leave(lane);
    }
    return found;
}

int meter_forget_context(CUcontext context)
{
    ahead_forget_context(context, -1);
    return forget(context, -1);
}

void meter_forget_slot(int slot)
{
    if (slot < 0)
        return;
    ahead_forget_context(NULL, slot);
    forget(NULL, slot);
}

void meter_forget_all(void)
{
    ahead_forget_all();
    lane_forget_all();
    finished_n = 0;
    origin_forget(NULL);
    meter_unlock();
}
