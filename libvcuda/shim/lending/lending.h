/* Memory that leaves the GPU for host memory and comes back at the same address; see blocks.c and moves.c. */
#ifndef SHIM_LENDING_H
#define SHIM_LENDING_H

#include "barrier.h"

/* ---- blocks.c: for the hooks ---- */
/* Return 1 if the allocation was served here, with `*result`. */
int lending_takes(CUdeviceptr *pointer, size_t bytes, CUresult *result);
/* Return 1 if it was a block of ours. It waits for the GPU, as the driver's own call does. */
int lending_frees(CUdeviceptr pointer, CUresult *result);
/* Return 1 if the pointer lies in a block, and say which part of memory the program asked for. */
int lending_finds(CUdeviceptr pointer, CUdeviceptr *base, uint64_t *bytes);
/* ---- contexts.c and blocks.c: for the hooks of contexts ---- */
/* There is a context; NULL: the primary one, whose handle is not known yet. */
void lending_meet_context(CUcontext context, int is_primary);
/* Around a call that may destroy contexts: nothing moves meanwhile. */
void lending_begin_end(void);
void lending_finish_end(void);
/* The context has ended; between these two. */
void lending_forget_context(CUcontext context);
void lending_forget(void); /* in a forked child */

/* ---- between the files of this folder ---- */
/* Return 1 if an owner wants memory of this GPU, or did a moment ago: what was given back for it is not to be taken again. */
int lending_is_wanted(void);
struct piece {
    uint64_t bytes;
    CUhandle device;    /* while it is in */
    CUhandle host;      /* 0: pinned memory without a handle, which cannot be mapped at the block's address */
    CUdeviceptr shadow; /* where the host memory is mapped all the time */
    uint64_t moved_ns;  /* when it came to where it is */
    int out;
};
struct block {
    CUdeviceptr at;
    uint64_t asked, bytes;
    CUcontext context;
    struct block *next;
    unsigned count;
    struct piece piece[];
};
/* The blocks; changed and moved with the lock held. */
extern struct block *lending_blocks;
/* The lock is held for short: never while the GPU works for the program, nor while a program's thread is waited for. */
void lending_lock(void);
void lending_unlock(void);

/* The one GPU of the claim on which this process has blocks. */
static inline uint32_t lending_slot(void)
{
    return __atomic_load_n(&shim.self->lending_slot, __ATOMIC_ACQUIRE);
}

/* ---- contexts.c ---- */
/* Return 0 if some context cannot be waited for, so that nothing moves, or if this one is not known. */
int contexts_know(CUcontext context);
/* Begin to wait until no context has work; return 0 if one cannot be waited for. */
int contexts_begin_drain(void);
/* Return 1 if none has, 0 if one has still, -1 if that will not be known. */
int contexts_are_drained(void);
/* With the lock held. */
int contexts_are_ending(void);
void contexts_drop(CUcontext context);

/* ---- pieces.c ---- */
/* Make the host's and the GPU's memory of a piece. Undone by piece_end if it fails. */
CUresult piece_make_host(struct piece *piece);
CUresult piece_make_device(struct piece *piece);
CUresult piece_map(CUdeviceptr at, const struct piece *piece, CUhandle handle);
void piece_end_device(struct piece *piece);
void piece_end(struct piece *piece);
/* Set the device on which pieces are made. */
void piece_set_device(CUdevice device);

/* ---- moves.c: with the barrier closed and the lock held ---- */
/* Move about so many bytes out, those first that came first. Return how many. */
uint64_t moves_out(uint64_t bytes);
/* Return how much of the process's memory could leave. */
uint64_t moves_left(void);
/* Move at most so many bytes in, those first that left last. Return how many. */
uint64_t moves_in(uint64_t bytes);
void moves_forget_context(CUcontext context); /* with the lock held */
uint64_t moves_next_in(void); /* with the lock held: the size of the next piece to come in; 0: none is out */

/* ---- borrower.c ---- */
/* Start the thread that follows orders, once. */
void borrower_start(void);
void borrower_forget(void);

#endif
