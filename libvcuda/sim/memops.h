/* Work that cannot be put on the service clock yet, because a wait for a value in host memory stands before it in its stream
 * (memops.c). How long such a wait lasts is the program's choice, so what stands behind it has no mark: it is kept in a list,
 * in the order of the calls, and goes to its stream when the value is there. */
#ifndef SIM_MEMOPS_H
#define SIM_MEMOPS_H

#include "process.h"

/* An event whose record is kept has this mark, which no clock ever passes. */
#define SIM_NO_MARK UINT64_MAX

enum sim_kind { SIM_WAIT_VALUE, SIM_WRITE_VALUE, SIM_WORK, SIM_RECORD, SIM_WAIT_EVENT, SIM_HOST_CALL };

struct sim_kept {
    enum sim_kind kind;
    struct sim_stream *stream;
    uint64_t number;         /* counts all that was ever kept */
    uint64_t ns;             /* of work */
    struct sim_event *event; /* of a record; NULL: recorded anew since, or destroyed */
    uint64_t behind;         /* of a wait for an event: the number of its record, while that is kept too */
    uint64_t mark;           /* of a wait for an event, its mark; of a write, when it is due, once `marked` */
    struct sim_host_call *host_call;
    uint32_t *address;
    unsigned value, flags;
    int marked;
    struct sim_kept *next;
};

/* Keep this for the stream if it has to wait there; 1: kept, 0: the caller does it now, -1: no memory. */
int sim_keep(struct sim_stream *stream, const struct sim_kept *what);
/* Do what need not be kept any more; no more than a look at a number while nothing is kept. */
void sim_run_kept(void);
/* Something is kept that a wait for the stream waits for. */
int sim_is_held(const struct sim_stream *stream);
int sim_context_is_held(CUcontext context);
/* Wait until nothing is kept any more, of what was at the call, that holds the stream, is in the context or records the event;
 * each may be NULL. */
void sim_wait_held(const struct sim_stream *stream, CUcontext context, const struct sim_event *event);
/* The event is recorded anew or destroyed; the stream's owner goes, and what is kept for it stays; the context ends. */
void sim_kept_without_event(const struct sim_event *event);
void sim_kept_without_stream(struct sim_stream *stream);
void sim_kept_without_context(CUcontext context);

/* ---- what memops.c asks of the others, with its mutex held ---- */
void sim_put_work(struct sim_stream *stream, uint64_t ns);
/* Note that the event will be recorded; put its record at the stream's end, and return its mark. */
void sim_begin_record(struct sim_event *event, const struct sim_stream *stream);
uint64_t sim_put_record(struct sim_event *event, struct sim_stream *stream);
void sim_put_wait(struct sim_stream *stream, uint64_t mark);
void sim_put_host_call(struct sim_host_call *call);
void sim_drop_host_call(struct sim_host_call *call);
void sim_move_host_call(struct sim_host_call *call, struct sim_stream *stream);
void sim_end_record(struct sim_event *event); /* its context has ended */
/* The mark that work which takes no time has at the stream's end. */
uint64_t sim_put_nothing(struct sim_stream *stream);
/* GPU time until the stream would get to what is put there now. */
uint64_t sim_time_until(const struct sim_stream *stream);
int sim_is_past(const struct sim_stream *stream, uint64_t mark);
void sim_count_kept(const struct sim_stream *stream, int more);

#endif
