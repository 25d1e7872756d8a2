/* The usage of a claim's processes on one GPU, as they report it. The tenant writes it, so every number may be forged:
 * each reading is bounded here, and no decision based on it costs others more than the claim's own share. */
#ifndef ARBITER_READING_H
#define ARBITER_READING_H

#include <stdint.h>

struct reading {
    uint64_t inflight_ns;    /* at most READING_MOST_NS a process */
    uint64_t last_end_ns;    /* never later than the reading */
    uint64_t last_launch_ns; /* never later than the reading */
    uint64_t gpu_time_ns;    /* only its growth is meaningful */
    uint64_t outside_ns;     /* likewise: launched outside of turns, as predicted */
    uint32_t processes;      /* live processes that report themselves */
    uint32_t waiting;        /* processes with threads that wait */
    uint32_t syncing;        /* processes with threads that wait for the GPU to finish */
    int yielded;             /* the rest of the present turn is of no use: nothing fits any more */
};

/* A minute: no honest process has more predicted work in flight. */
#define READING_MOST_NS 60000000000ull

#endif
