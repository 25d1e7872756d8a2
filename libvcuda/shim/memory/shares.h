/* Memory that several processes may hold; see shares.c. */
#ifndef SHIM_SHARES_H
#define SHIM_SHARES_H

#include <pthread.h>
#include <stdint.h>
#include <sys/types.h>

struct watch;

/* A piece of device memory that this process holds, by however many handles. */
struct memory {
    uint64_t bytes;
    int slot;
    unsigned handles;
    int is_paid;    /* charged to this process; else to `payer` */
    int is_forever; /* a descriptor of it cannot be watched: it stays charged for the process's life */
    int is_listed;
    struct watch *watches; /* open files that hold it */
    int kept;              /* our descriptor of the open file that it came from, or -1 */
    int payer;             /* a slot of the usage page, when it was taken, and by whom */
    uint64_t payer_attached_ns, adopted_ns;
    pid_t payer_pid;
    struct memory *next, **link;
};

/* Guards all memory and the table of handles. Never held across a call into the driver. */
extern pthread_mutex_t objects_mutex;

/* ---- Locked ---- */
void shares_export(struct memory *memory, int fd, uint32_t index);
/* Remove the memory that the export holds at this index of the file. */
void shares_unexport(int fd, uint32_t index);
/* A handle is gone. 1: nothing but descriptors may hold it, so a look tells. */
int shares_drop(struct memory *memory);

/* ---- Not locked ---- */
/* Memory of so many bytes from a descriptor, charged to whoever pays for it. NULL: it does not fit. */
struct memory *shares_import(uint64_t bytes, int slot, int fd);
/* Give back what nothing holds any more, and find who pays for what was imported. */
void shares_settle(void);
/* The same, where something may have changed; for the watcher. */
void shares_tick(uint64_t now);
void shares_forget(void); /* in a forked child */

#endif
