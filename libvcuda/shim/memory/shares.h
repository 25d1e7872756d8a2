/* Memory that several processes may hold; see shares.c. */
#ifndef SHIM_SHARES_H
#define SHIM_SHARES_H

#include <pthread.h>
#include <stdint.h>
#include <sys/types.h>

struct watch;

/* A piece of device memory that this process holds, by any number of handles. */
struct memory {
    uint64_t bytes;
    int slot;
    unsigned handles;
    int is_paid;    /* charged to this process; else to `payer` */
    int is_forever; /* a descriptor of it cannot be watched: it stays charged for the process's life */
    int is_listed;
    int is_movable;        /* it can leave the GPU: part of movable_bytes */
    struct watch *watches; /* open files that hold it */
    int kept;              /* our descriptor of the open file that it was imported from, or -1 */
    int payer;             /* a slot of the usage page, when it was taken, and its process */
    uint64_t payer_attached_ns, adopted_ns;
    pid_t payer_pid;
    struct memory *next, **link;
};

/* Protects all memory and the table of handles. Never held across a call into the driver. */
extern pthread_mutex_t objects_mutex;

/* ---- Locked ---- */
void shares_export(struct memory *memory, int fd, uint32_t index);
/* Remove the memory that the export holds at this index of the file. */
void shares_unexport(int fd, uint32_t index);
/* Note that a handle is gone. Return 1 if only descriptors may hold the memory, so that a scan decides. */
int shares_drop(struct memory *memory);

/* ---- Not locked ---- */
/* Add memory of `bytes` from a descriptor, charged to the process that pays for it. NULL: it does not fit. */
struct memory *shares_import(uint64_t bytes, int slot, int fd);
/* Give back memory that has no holder any more, and find the payers of imported memory. */
void shares_settle(void);
/* The same if something may have changed; for the watcher. */
void shares_tick(uint64_t now);
void shares_forget(void); /* in a forked child */

#endif
