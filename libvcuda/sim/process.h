/* The state of the simulated driver in one process. One mutex guards it all; it is never held while waiting. */
#ifndef SIM_PROCESS_H
#define SIM_PROCESS_H

#include "driver.h"
#include "node.h"

/* What a context costs on a real H200 with driver 580 is 518 MiB; a virtual GPU is smaller. */
#define SIM_CONTEXT_BYTES (128ull << 20)
#define SIM_CONTEXT_PIECES 4
#define SIM_POOL_BLOCK (32ull << 20)
/* A real stream takes about this many launches before launching blocks. */
#define SIM_QUEUE 1024

struct sim_device {
    struct sim_gpu *gpu;
    uint32_t index;    /* on the node */
    uint32_t began_at; /* its index before the process was moved */
    struct sim_client *client;
    CUcontext primary;
    unsigned primary_refs;
    CUmemoryPool pool, default_pool;
    uint64_t small_bytes; /* blocks of at most 1 MiB, which share granules */
    uint64_t graph_bytes; /* kept for graphs' allocations until it is trimmed */
};

struct sim_stream {
    CUcontext context;
    uint64_t tail;        /* service mark at which all its work is done */
    uint64_t timed_until; /* until then no further timing event is passed (costs.h) */
    uint64_t mark[SIM_QUEUE];
    uint64_t launched;
    int blocking;                   /* made to wait for the null stream's work */
    int of_thread;                  /* a thread's own, which goes with it */
    uint64_t host_calls, host_done; /* functions of the program: launched, returned */
    int capture;                    /* CU_CAPTURE_* status */
    int capture_mode;
    unsigned capture_thread;
    CUgraph graph;
    struct sim_stream *next;
};

/* Of a context's limits: stack, print buffer, heap. */
#define SIM_LIMITS 3

struct sim_context {
    struct sim_device *device;
    int alive;
    size_t limit[SIM_LIMITS];
    int64_t limit_bytes; /* what the limits have added to the context's cost */
    struct sim_stream null_stream;
    uint64_t blocking_tail; /* service mark at which all work of its blocking streams is done */
    struct sim_stream *streams;
};

struct sim_event {
    int recorded, captured, untimed;
    int whole; /* of all work of its context */
    CUcontext context;
    uint64_t mark;
    uint64_t wall_ns; /* 0 until known */
    struct sim_event *next_pending;
};

struct sim_graph {
    uint64_t kernels;
    uint64_t total_ns;
    uint64_t memory_bytes; /* what its allocation nodes take while it runs */
    int owned_by_user;
};

struct sim_graph_exec {
    uint64_t total_ns, memory_bytes;
};

struct sim_pool {
    struct sim_device *device;
    uint64_t used, reserved, threshold;
    int destroyed;
};

struct sim_array {
    struct sim_device *device;
    uint64_t charge;
};

struct sim_function {
    char name[128];
    int timed; /* its first argument is its duration in nanoseconds */
    struct sim_function *next;
};

struct sim_module {
    struct sim_device *device;
    uint64_t charge;
    struct sim_function *functions;
};

extern pthread_mutex_t sim_process_mutex;

CUresult sim_ready(void);                       /* cuInit was called in this process */
int sim_is_orphan(void);                        /* it was called before this process was forked: no driver here */
struct sim_device *sim_device(CUdevice device); /* NULL: no such device */
void sim_devices_follow(void);                  /* at the beginning of a call: the process may have been moved */
CUcontext sim_current(void);
/* The stream that a handle means, in the current context; NULL: no context. */
struct sim_stream *sim_resolve(CUstream stream);
/* Take or give back device memory of a GPU (charge.c); OUT_OF_MEMORY. */
CUresult sim_charge(struct sim_device *device, int64_t bytes);
void sim_open_kernel(void); /* when the driver starts */
/* The memory that a graph's allocation nodes need from its launch on. */
CUresult sim_charge_graph(struct sim_device *device, uint64_t bytes);
/* An API that waits or allocates breaks a capture in progress (unless the thread is relaxed), as the real driver's does. */
CUresult sim_capture_guard(void);
/* An API that concerns all streams of a context breaks every capture, in whatever mode the thread is. */
CUresult sim_capture_break(void);
void sim_untrack(struct sim_stream *stream); /* a stream that is destroyed takes its capture with it */
/* Queue `ns` of work, waiting for room in the queue. */
CUresult sim_submit(struct sim_stream *stream, uint64_t ns);
/* Put `ns` of work at the stream's end, `gap_ns` behind what is still to be done there. The GPU is locked. */
void sim_append(struct sim_stream *stream, uint64_t ns, uint64_t gap_ns);
/* Wait until the program's functions launched so far into the stream have returned. */
void sim_wait_host_calls(struct sim_stream *stream);
void sim_settle_events(void); /* note the time of every event that has happened; takes the mutex */
void sim_forget_context_events(CUcontext context);
void sim_trim_pools(struct sim_device *device);
unsigned sim_thread(void);
void *sim_find_symbol(const char *name);

#endif
