/* A load of several kinds of kernels with a wait every few launches, and a reckoning of the GPU time that it took.
 *
 * A *step* is `wait_every` launches, the kinds in turn, the streams in turn, and one wait for all of them. The reckoning
 * knows nothing of limits: it adds up how long kernels take (`alone_ns`, each after the gap that is left of `queued_ns` where
 * it waits behind another one in the stream, as calibrated), and counts work that overlaps on several streams once. Events
 * cannot tell how much of what a kernel takes alone is its own beyond its duration, so that is in `extra_ns` too, to be taken
 * off by who wants to be sure. Where other processes
 * slow the GPU down, more of it overlaps than can be known here: `least_ns` is then what the work took at least.
 */
#ifndef TOOLS_MIX_H
#define TOOLS_MIX_H

#include "cuda_api.h"

#define MIX_KINDS CUDA_SPINS
#define MIX_STREAMS 16

enum mix_wait { MIX_STREAM, MIX_EVENT, MIX_DEVICE, MIX_COPY, MIX_POLL };
/* In what the kinds differ, apart from their durations. */
enum mix_differ { MIX_FUNCTIONS, MIX_GRIDS, MIX_BOTH, MIX_ARGUMENTS };

struct mix_options {
    unsigned kinds, streams, wait_every, grid;
    enum mix_wait wait;
    enum mix_differ differ;
    uint64_t duration_ns[MIX_KINDS]; /* what each kind's kernel spins for */
    uint64_t alone_ns[MIX_KINDS];    /* what it takes of an idle GPU */
    uint64_t queued_ns[MIX_KINDS];   /* what it takes behind another kernel, with the gap between them */
    uint64_t cpu_ns;                 /* host work after each launch */
    double seconds, interval;
    int device, json, calibrate;
};

/* Since the start, or since someone zeroed them; whole steps only. */
struct mix_counts {
    uint64_t steps, launches;
    uint64_t work_ns;  /* sum of the finished kernels' durations */
    uint64_t busy_ns;  /* GPU time by our own reckoning */
    uint64_t extra_ns; /* of that, what kernels on an idle GPU are taken to need beyond the time they spin */
    uint64_t least_ns; /* GPU time if the streams of each step overlapped as much as they can */
    uint64_t longest_launch_ns, longest_wait_ns;
};

/* Read the command line; 0: an error was printed. --help prints and exits. */
int mix_parse(int argc, char **argv, struct mix_options *options);
/* Begin with the driver, load the kernels and make the streams. On failure `*where` names the call. */
CUresult mix_start(const struct mix_options *options, const char **where);
/* Run one step. */
CUresult mix_step(struct mix_counts *counts);
/* Launch a kernel of this kind. */
CUresult mix_launch(unsigned kind, CUstream stream);
/* Measure `alone_ns` and `queued_ns` of every kind with events. Only a process without limits gets true figures. */
CUresult mix_calibrate(struct mix_options *options);
uint64_t mix_now(void);

#endif
