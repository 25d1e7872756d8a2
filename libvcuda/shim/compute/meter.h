/* Measured GPU time: see meter.c. */
#ifndef SHIM_METER_H
#define SHIM_METER_H

#include "devices.h"
#include "real.h"

#define METER_KINDS 8
#define METER_BURSTS 64

/* Launches of one stream between two timing events. */
struct meter_burst {
    CUevent start; /* NULL: begins at the end of the previous burst */
    CUevent end;
    CUevent zero; /* recorded right before start: gives the distance of an empty pair of events */
    CUevent base; /* a new origin for this context's times */
    uint64_t predicted_ns;
    uint64_t counted_ns; /* its part of the usage page's inflight_ns */
    uint64_t idle_ns;    /* time in it during which, by prediction, the stream had nothing to do */
    uint64_t queued_ns;  /* by prediction: work before it in the stream when it was opened */
    uint64_t least_ns;   /* the least work that was queued at any of its launches */
    uint32_t behind;     /* launches that, by prediction, followed another one of the burst without a pause */
    uint64_t begun_ns;
    uint64_t closed_ns;  /* when the end event was handed to the GPU */
    uint64_t started_ns; /* when the start event was handed to the GPU; 0: none */
    uint64_t lag_ns;     /* from then until the first launch was handed over: the GPU had no work of ours meanwhile */
    uint32_t launches;
    /* Launched between the previous burst and this one, without events: their number, predicted time and beginning. */
    uint32_t skipped;
    uint64_t skipped_ns, skipping_since_ns;
    uint64_t skipped_counted_ns; /* the part of it that stands in inflight_ns */
    uint32_t held;               /* its number in ahead.c; 0: it could run when it was launched */
    uint8_t alone;               /* one launch, measured by itself */
    uint8_t idle;                /* it began after the program had waited for everything in the stream */
    uint8_t contended;           /* other claims may have had the GPU in between */
    uint8_t kinds;
    struct {
        uint16_t kernel;
        uint32_t count;
        uint64_t predicted_ns; /* of all of them, when they were launched */
    } kind[METER_KINDS];
};

/* One stream. The thread that holds `busy` owns its launching side; the meter's lock protects its retiring side. */
struct meter_lane {
    /* A launch without events needs these: one cache line, as the driver's launch leaves little of ours in the cache. */
    CUstream stream;
    unsigned epoch;            /* the value of shim.hot_epoch with which launches may skip the slow path; 0: never */
    int rare;                  /* few launches are measured: see burst.c */
    const uint64_t *turn_word; /* `ends_ns` of this GPU's turn, and its value when `now` was admitted */
    uint64_t turn;
    uint64_t skip_left_ns;     /* the most predicted work that may skip events */
    uint64_t skipped_ns;       /* predicted time of those since the last burst */
    uint32_t skip, skip_given; /* launches that need no events: those left, and those given */
    int busy;
    int open; /* `now` has launches, or may get some */
    CUcontext context;
    uint64_t thread; /* the thread of a per-thread default stream */
    int slot;
    int ended;                /* the stream has been destroyed; its handle may be used again */
    int64_t left_ns;          /* rest of the work for which `now` was admitted */
    uint32_t left;            /* launches until an end event is due */
    uint32_t calm;            /* bursts in a row at whose ends the stream was almost done */
    uint64_t skip_counted_ns; /* the part of skip_left_ns in inflight_ns */
    uint64_t skipping_since_ns;
    uint32_t proven;    /* bursts in a row whose kernels took what was predicted */
    uint32_t kept_skip; /* launches without events that a launch measured by itself interrupted, and their work */
    uint64_t kept_skip_ns;
    uint64_t patience;                 /* shim_ticks after which an end event is due */
    uint64_t opened_at, free_at;       /* shim_ticks: when `now` began; when the stream is predicted to be done */
    uint64_t gap, event_gap;           /* duration_gap, duration_event_gap */
    uint64_t dry_at;                   /* lane_position() when the program had last waited for the stream */
    uint64_t other_ns, other_launches; /* launched meanwhile by threads that found the lane busy */
    struct meter_burst now;
    uint32_t head, tail; /* ring[tail..head): closed, not yet retired */
    CUevent last_end;    /* end of the burst retired last */
    struct meter_burst ring[METER_BURSTS];
};

struct meter_ticket {
    struct meter_lane *lane; /* NULL: nothing to do after the launch */
    uint64_t predicted_ns;
    int slot;
    int owned;
    int known; /* the kernel was measured before */
    uint16_t kernel;
};

struct admission;
/* Before and after a launch. `begin` waits for credit or a turn; an error is the result of the launch. */
CUresult meter_begin(struct meter_ticket *ticket, CUstream stream, int per_thread, const void *kernel, uint64_t blocks);
void meter_end(struct meter_ticket *ticket, CUresult result);
/* Before and after the program waits for one stream. */
struct meter_wait {
    struct meter_lane *lane; /* NULL: nothing to learn from its end */
    uint64_t position;       /* lane_position() when it began */
    int closed;              /* it ended a burst, or there was nothing to end */
    int begun;
};
void meter_begin_wait(struct meter_wait *wait, CUstream stream, int per_thread);
void meter_end_wait(const struct meter_wait *wait, CUresult result);
/* The same for any other wait for the GPU; pass the result to the second. */
int meter_begin_wait_all(void);
void meter_end_wait_all(int begun);
/* Prepare for the end of a stream: nothing of ours may be put into it afterwards. */
void meter_before_end(CUstream stream);
int meter_capturing(CUstream stream, int per_thread);
/* Begin a burst with the admitted work. The caller owns the lane. `alone`: it will be one launch. */
void meter_open(struct meter_lane *lane, const struct admission *admitted, int alone);
void meter_close(struct meter_lane *lane);        /* by the lane's owner: end its open burst */
void meter_cover_others(struct meter_lane *lane); /* by the owner, before leaving it */
void meter_charge_skipped(
    struct meter_lane *lane); /* by the owner, with no burst open: charge launches without events, as predicted */
/* By the owner, if no event can be recorded: charge the burst as predicted. */
void meter_give_up(struct meter_lane *lane);

/* Charge finished work. Does nothing if another thread is doing so. Return the number of bursts still out. */
int meter_retire(void);
void meter_sweep(uint64_t patience_ns); /* by the watcher: end open bursts without a launch for this long */
int meter_try_lock(void);
int meter_lock(void); /* 0: gave up, not locked; unlock only after a lock */
void meter_unlock(void);
void meter_quiesce(void);
int meter_forget_context(CUcontext context); /* locked; returns the slot it was on, or -1 */
void meter_forget_slot(int slot);            /* locked */
void meter_forget_all(void);                 /* in a forked child */

void meter_probe(void);   /* by the watcher: set the clocks of contexts that are in use */
void meter_restart(void); /* after a pause of the whole process: events from before it are no longer used */

/* ---- gate.c: permission to launch ---- */
struct admission {
    uint64_t allowance_ns; /* predicted work that may be launched on it; in inflight_ns from now on */
    uint64_t turn;         /* the turn's `ends_ns` word under which it was given */
    int held;              /* it is for a burst that is handed over ahead, and not in inflight_ns yet */
};
CUresult gate_admit(const struct meter_lane *lane, uint64_t predicted_ns, int collective, struct admission *out);
/* Return 1 if work that was handed over ahead may begin; it is in inflight_ns from now on. */
int gate_lets_go(int slot, uint64_t ns);
/* Wait until that may have become so. */
void gate_wait_to_let_go(int slot);
void inflight_add(int slot, uint64_t ns);
void inflight_less(int slot, uint64_t ns);

/* ---- duration.c: the GPU time of a finished burst ---- */
struct origin;
struct duration {
    double start_ns, end_ns; /* CLOCK_MONOTONIC */
    double busy_ns;          /* part of that time: kernels alone, without the gaps between them */
    int backlogged;          /* the GPU had work all the time: busy_ns is exact */
    int single;              /* one launch on an idle stream, so busy_ns is its time */
    int vague;               /* too uncertain to learn from */
};
/* Return the time from the end of a kernel to the beginning of one that waits behind it, ns; and the same with an event
 * between the two. */
double duration_gap(const struct origin *origin);
double duration_event_gap(const struct origin *origin);
/* Return 0 if the driver gives no times. */
int duration_of(struct origin *origin, const struct meter_lane *lane, const struct meter_burst *burst,
                struct duration *out);

/* ---- origin.c: a context's events and the origin of its times ---- */
struct origin {
    CUcontext context;
    CUevent base;        /* NULL: none yet */
    double base_ns;      /* CLOCK_MONOTONIC of base */
    double least_lag_ns; /* least distance between an event and the moment it was seen, this period */
    double overhead_ns;  /* distance of an empty pair of events */
    int overheads;       /* number of such measurements */
    uint64_t renewed_ns, probed_ns, tried_ns;
    CUevent spare[256];
    int spares;
    int guard;
};
struct origin *origin_of(CUcontext context);
CUevent origin_event(struct origin *origin); /* NULL: none available */
CUevent origin_record(struct origin *origin, const struct meter_lane *lane);
void origin_return(struct origin *origin, CUevent event);
/* `dry`: the stream has nothing to do, so the burst gets a start event of its own. */
void origin_begin(struct origin *origin, struct meter_burst *burst, struct meter_lane *lane, int dry);
/* Return 1 if the distance of empty events has been measured often enough. */
int origin_is_sure(const struct origin *origin);
void origin_discard(struct origin *origin, struct meter_burst *burst); /* it will never be measured */
/* Compute the time between the two events around a finished burst, ns, and its end on CLOCK_MONOTONIC. Return 0 if the
 * driver gives no times. Its base, if it has one, becomes the origin. */
int origin_times(struct origin *origin, const struct meter_burst *burst, CUevent start, double *length_ns,
                 double *end_ns);
void origin_forget(CUcontext context);
/* By the lane's owner, with its context current: set the origin by an event that is seen as it happens. */
void origin_probe(struct origin *origin, const struct meter_lane *lane);
/* Take a new origin with the next burst. */
void origin_restart(void);

/* ---- predict.c ---- */
/* Return the kernel's entry. `rare`: it is seldom measured. `known`: 0 if the launch must be measured by itself. */
uint16_t predict_kernel(const void *kernel, uint64_t blocks, int rare, uint64_t *predicted_ns, int *known);
/* Learn from a finished burst; one that is neither alone nor backlogged is ignored. */
void predict_learn(const struct meter_burst *burst, const struct duration *took);
/* Return 1 if all launches of the burst are of one kernel. */
int predict_is_pure(const struct meter_burst *burst);
/* Return the time of the burst's longest kernel, as far as its kernels were measured more than once; 0: none was. */
uint32_t predict_longest_ns(const struct meter_burst *burst);
/* Register a kernel that waits for its peers on other GPUs, as NCCL's kernels do. */
void predict_note_collective(const void *kernel);
int predict_is_collective(const void *kernel);

/* ---- gate.c ---- */
/* Return the percent of the GPU that the claim may use while it has no turns: its own limit, or the arbiter's cap. */
uint32_t gate_limit(int slot);
/* Return 1 if the arbiter gives turns on this GPU: see gate.c. */
int gate_gives_turns(int slot);
int gate_has_turn(int slot); /* 1 if this claim's turn is open now */
/* Return 1 if other claims may have the GPU between launches of this process. */
int gate_is_contended(int slot);
/* Return when the work in flight of this process should have ended, by prediction. CLOCK_MONOTONIC. */
uint64_t gate_drained_at(int slot);

#endif
