/* The claims of this node, read from their directories. A directory is named after its claim, and must hold a limits
 * page. The main thread scans them; the threads of the GPUs hold references, so that a page stays mapped while it is in
 * use. */
#ifndef ARBITER_CLAIMS_H
#define ARBITER_CLAIMS_H

#include "pages.h"
#include "reading.h"

#include <sys/types.h>

/* One process slot of a usage page, watched for the end of its process. */
struct watched {
    uint64_t owner, start_time;
    int pidfd;        /* -1: none */
    uint32_t pid;     /* the pid on the node; 0: unknown. Read by all threads, as are the next two fields */
    uint32_t stopped; /* stopped by a signal: its work in flight ends, but the process cannot report it */
    uint64_t dead;    /* the owner word of a process that is known to be dead; read by all threads */
};

struct claim {
    struct claim *next;
    char name[256];
    ino_t directory;
    struct vcuda_limits *limits; /* NULL: its pages cannot be used (yet) */
    struct vcuda_turns *turns;
    int usage_fd; /* -1: there is none yet. Never mapped, as the tenant may truncate it */
    ino_t usage_inode;
    int references;
    int gone; /* its directory no longer exists; read by all threads */
    /* Used by the main thread alone. */
    int unseen, complained;
    struct watched watched[VCUDA_MAX_PROCESSES];
};

/* Look for directories that came and went. Return the number of changes, or -errno of the claims directory itself. */
int claims_scan(int directory_fd, struct claim **claims);
struct claim *claim_hold(struct claim *claim);
void claim_drop(struct claim *claim);
/* At exit: let every claim follow its own limit. */
void claims_leave(struct claim **claims);
/* Sum up the live processes on one GPU; all zero if the page cannot be read. */
void claim_read(const struct claim *claim, uint32_t gpu_index, struct reading *out);

/* Memory of the live processes on one GPU. */
struct memory_reading {
    uint64_t used_bytes, movable_bytes, wanted_bytes, out_bytes;
    uint64_t moved_bytes; /* that left so far; grows while processes live */
    uint32_t pending;     /* processes with movable memory that have not followed this order */
};
void claim_read_memory(const struct claim *claim, uint32_t gpu_index, uint32_t order, struct memory_reading *out);

/* ---- processes.c: ends of processes ---- */
/* Watch the processes that took a slot since the last call; their ends are reported through `epoll_fd`. Return the
 * number of processes. */
int processes_watch(struct claim *claims, int epoll_fd);
void processes_unwatch(struct claim *claim);
/* Handle an epoll event: `watched` belongs to a process that ended. */
void process_ended(struct watched *watched);
/* Check which of the claim's processes are stopped by a signal. Return 1 if any is. May be called from any thread. */
int processes_look_for_stopped(struct claim *claim);
/* Read one slot's owner and start time from the page. Return 0 if there is none. */
int claim_slot(const struct claim *claim, uint32_t slot, uint64_t *owner, uint64_t *start_time);
uint32_t claim_slots(const struct claim *claim);

#endif
