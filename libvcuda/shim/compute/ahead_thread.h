/* The thread that lets held bursts go: see ahead.c. */
#ifndef SHIM_AHEAD_THREAD_H
#define SHIM_AHEAD_THREAD_H

#include "ahead.h"

enum ahead_left { AHEAD_NOTHING, AHEAD_HELD, AHEAD_RUNNING };

/* Start the thread, once; return 0 if there is none. */
int ahead_thread_start(void);
/* There is new work: wake the thread if it sleeps. */
void ahead_thread_poke(void);
void ahead_thread_forget(void); /* in a forked child */

/* By the thread, in ahead.c: take the ends of bursts, and let others go. Return what is left, on the GPU of `*slot`. */
enum ahead_left ahead_step(int *slot);

#endif
