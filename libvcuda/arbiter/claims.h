/* The claims of this node, as their directories show them. A directory's name is the claim's; what it must hold is a limits
 * page. Scanned by the main thread; the GPUs' threads hold references, so that a page stays mapped while it is in use. */
#ifndef ARBITER_CLAIMS_H
#define ARBITER_CLAIMS_H

#include "pages.h"
#include "reading.h"

#include <sys/types.h>

/* One process slot of a usage page, watched for its death. */
struct watched {
    uint64_t owner, start_time;
    int pidfd;        /* -1: none */
    uint32_t pid;     /* here, on the node; 0: not known. Read by all threads, as the next two are */
    uint32_t stopped; /* by a signal: what it has in flight ends, but it does not say so */
    uint64_t dead;    /* the owner word of a process that is known to be dead; read by all threads */
};

struct claim {
    struct claim *next;
    char name[256];
    ino_t directory;
    struct vcuda_limits *limits; /* NULL: its pages cannot be used (yet) */
    struct vcuda_turns *turns;
    int usage_fd; /* -1: there is none yet. Never mapped: the tenant may truncate it */
    ino_t usage_inode;
    int references;
    int gone; /* its directory is no longer there; read by all threads */
    /* The main thread's own. */
    int unseen, complained;
    struct watched watched[VCUDA_MAX_PROCESSES];
};

/* Look for directories that came and went. Returns how many did, or -errno of the claims directory itself. */
int claims_scan(int directory_fd, struct claim **claims);
struct claim *claim_hold(struct claim *claim);
void claim_drop(struct claim *claim);
/* At the end: every claim is left to its own limit. */
void claims_leave(struct claim **claims);
/* The live processes' sums on one GPU; all zero where the page cannot be read. */
void claim_read(const struct claim *claim, uint32_t gpu_index, struct reading *out);

/* ---- processes.c: deaths ---- */
/* Watch the processes that took a slot since the last call; `epoll_fd` then hears of their deaths. How many there are. */
int processes_watch(struct claim *claims, int epoll_fd);
void processes_unwatch(struct claim *claim);
/* Handle an epoll event: `watched` belongs to a process that ended. */
void process_ended(struct watched *watched);
/* Look which of the claim's processes are stopped by a signal; whether any is. From any thread. */
int processes_look_for_stopped(struct claim *claim);
/* One slot's owner and start time, as the page says. 0: none, or no such slot. */
int claim_slot(const struct claim *claim, uint32_t slot, uint64_t *owner, uint64_t *start_time);
uint32_t claim_slots(const struct claim *claim);

#endif
