/* The thread that notices changed limits and retires finished work; see watcher.c. */
#ifndef SHIM_WATCHER_H
#define SHIM_WATCHER_H

/* Start the watcher, once per process. */
void watcher_start(void);
/* Forget the parent's thread, in a forked child. */
void watcher_forget(void);

#endif
