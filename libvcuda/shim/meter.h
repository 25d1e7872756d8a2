/* GPU time, measured: see meter.c. */
#ifndef SHIM_METER_H
#define SHIM_METER_H

#include "shim.h"

#define METER_KINDS 8
#define METER_BURSTS 64

/* Launches of one stream between two timing events. */
struct meter_burst {
    CUevent start; /* NULL: begins where the burst before it ended */
    CUevent end;
    CUevent zero; /* recorded right before start: what an empty pair of events measures */
    CUevent base; /* a new origin for this context's times */
    uint64_t predicted_ns;
    uint64_t begun_ns;
    uint64_t started_ns; /* when the start event was handed to the GPU; 0: none */
    uint64_t lag_ns;     /* from then until the first launch was: the GPU had nothing of ours meanwhile */
    uint32_t launches;
    uint8_t late; /* ended some time after its last launch: the end event may be late too */
    uint8_t kinds;
    struct {
        uint16_t kernel, count;
    } kind[METER_KINDS];
};

/* One stream. Its launching side is owned by whoever holds `busy`, its retiring side by the meter's lock. */
struct meter_lane {
    CUcontext context;
    CUstream stream;
    uint64_t thread; /* per-thread default streams: whose */
    int slot;
    int busy;
    int drained; /* known to be idle: the next burst needs a start event of its own */
    int open;
    uint64_t closed_at, last_at;       /* shim_ticks of the last end event and the last launch */
    uint64_t other_ns, other_launches; /* launched meanwhile by threads that found the lane busy */
    struct meter_burst now;
    uint32_t head, tail; /* ring[tail..head): closed, not yet retired */
    CUevent last_end;    /* end of the burst retired last */
    struct meter_burst ring[METER_BURSTS];
};

struct meter_ticket {
    struct meter_lane *lane; /* NULL: nothing to do afterwards */
    int slot;
    int owned;
    int known; /* the kernel was measured before */
    uint64_t predicted_ns;
    uint16_t kernel;
};

/* Before and after a launch. `begin` waits for credit; an error is the launch's answer. */
CUresult meter_begin(struct meter_ticket *ticket, CUstream stream, int per_thread, const void *kernel, uint64_t blocks);
void meter_end(struct meter_ticket *ticket, CUresult result);
/* Around the program's own waiting for one stream; what `before` returned goes to `after`. */
uint32_t meter_before_wait(CUstream stream, int per_thread);
void meter_after_wait(CUstream stream, int per_thread, uint32_t seen);
void meter_before_wait_all(void); /* for anything else */
int meter_capturing(CUstream stream, int per_thread);

/* Charge what is finished. Does nothing where another thread is at it. Returns how many bursts are still out. */
int meter_retire(void);
void meter_sweep(void); /* by the watcher: forget open bursts that nobody continued */
int meter_lock(void);   /* 0: given up, not locked; unlock only what was locked */
void meter_unlock(void);
void meter_quiesce(void);
int meter_forget_context(CUcontext context); /* locked; returns the slot it was on, or -1 */
void meter_forget_slot(int slot);            /* locked */
void meter_forget_all(void);                 /* in a forked child */

/* ---- origin.c: a context's events and the origin of its times ---- */
struct origin {
    CUcontext context;
    CUevent base;        /* NULL: none yet */
    double base_ns;      /* CLOCK_MONOTONIC of base */
    double least_lag_ns; /* least distance between an event and the moment it was seen, this period */
    double overhead_ns;  /* what an empty pair of events measures */
    int overheads;       /* how often that was looked at */
    uint64_t renewed_ns;
    CUevent spare[256];
    int spares;
    int guard;
};
struct origin *origin_of(CUcontext context);
CUevent origin_event(struct origin *origin); /* NULL: none to be had */
CUevent origin_record(struct origin *origin, const struct meter_lane *lane);
void origin_return(struct origin *origin, CUevent event);
void origin_begin(struct origin *origin, struct meter_burst *burst, struct meter_lane *lane);
void origin_discard(struct origin *origin, struct meter_burst *burst); /* it will never be measured */
/* Start and end of a finished burst on CLOCK_MONOTONIC; 0 where the driver does not say. */
int origin_times(struct origin *origin, const struct meter_burst *burst, CUevent start, double *start_ns,
                 double *end_ns);
void origin_forget(CUcontext context);

/* ---- predict.c ---- */
uint16_t predict_kernel(const void *kernel, uint64_t blocks, uint64_t *predicted_ns, int *known);
void predict_learn(const struct meter_burst *burst, double measured_ns);

#endif
