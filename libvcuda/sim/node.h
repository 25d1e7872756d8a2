/* The virtual node: one file, mapped by every process that uses the simulated driver, holding its GPUs.
 *
 * Kernels cost no processor time: their end is computed from the clock. Each process has a *service clock* per GPU that
 * counts the GPU time it was given, in slices of 2 ms, round robin between processes with work, as real GPUs do it; giving
 * the GPU from one process to another takes time in which nobody runs. A
 * kernel's end is a mark on that clock. Whoever calls first after some time advances the GPU's state to now (under the
 * GPU's mutex), and notes per process which stretches of wall time it was given, so that an event's mark can be told in
 * wall time later on. Work of one process on several streams overlaps.
 *
 * The mutex is robust: a process killed inside leaves a state that is at worst a slice off.
 */
#ifndef SIM_NODE_H
#define SIM_NODE_H

#include <pthread.h>
#include <stdint.h>

#define SIM_MAGIC 0x314d495355504347ull
#define SIM_VERSION 12
#define SIM_MAX_GPUS 16
#define SIM_MAX_CLIENTS 64
#define SIM_MAX_PROCESSES 256
#define SIM_STRETCHES 256
#define SIM_SAMPLES 32
#define SIM_NODE_ENV "GPUCLOUD_SIM_NODE"
/* Indices of GPUs whose device files a program lacks, as one in a container does: "1,3". */
#define SIM_HIDDEN_ENV "GPUCLOUD_SIM_HIDDEN"
/* Set to anything: every simulated GPU is a MIG instance. */
#define SIM_MIG_ENV "GPUCLOUD_SIM_MIG"
/* Set to anything: the program is a client of an MPS server. */
#define SIM_MPS_ENV "GPUCLOUD_SIM_MPS"
/* A real H200's round robin, measured: 2.09 ms. */
#define SIM_SLICE_NS 2090000ull
/* Half of what a round of two busy processes loses, on the same GPU. */
#define SIM_SWITCH_NS 175000ull
#define SIM_SAMPLE_NS 50000000ull
#define SIM_TOLD_NS 200000000ull
#define SIM_GRANULE (2ull << 20)
/* What an H200 keeps for itself of its 143,771 MiB, by NVML (driver 580). */
#define SIM_RESERVED_BYTES (615ull << 20)
/* Control groups whose memory is limited on one GPU, and how many above one another. */
#define SIM_MAX_LIMITS 64
#define SIM_DEPTH 12
#define SIM_NO_LIMIT UINT64_MAX
/* XID errors of a GPU that are kept for those who wait for them. */
#define SIM_XIDS 64

struct sim_stretch {
    uint64_t wall_ns, service_ns, length_ns;
};

struct sim_sample {
    uint64_t wall_ns, busy_ns;
};

/* A process on a GPU. */
struct sim_client {
    uint32_t pid;
    uint32_t contexts;
    uint64_t start_time;
    uint64_t pidns; /* inode of its pid namespace */
    uint64_t memory_bytes;
    uint64_t saved_bytes;      /* moved to host memory by a checkpoint, and not counted in memory_bytes */
    uint64_t group[SIM_DEPTH]; /* inodes of its control groups, its own first; 0 where there is none */
    uint64_t service_ns;       /* GPU time given so far */
    uint64_t demand_ns;        /* the service clock's value at which all launched work is done */
    uint64_t stretches;        /* how many were ever noted; the last SIM_STRETCHES are kept */
    struct sim_stretch stretch[SIM_STRETCHES];
    struct sim_sample sample[SIM_SAMPLES];
    uint64_t told_service_ns; /* when NVML's present figure of it was taken */
    uint32_t told_percent;
    uint32_t kept; /* what its streams cannot begin before it writes a value somewhere (memops.h) */
};

/* Memory that was exported: it lives until the last process that holds it and the last descriptor are gone (share.c). */
#define SIM_SHARES 64
#define SIM_HOLDERS 8
#define SIM_DESCRIPTORS 128

struct sim_holder {
    uint32_t pid, reserved;
    uint64_t start_time, pidns;
};

struct sim_share {
    uint64_t bytes;   /* 0: free */
    uint32_t holders; /* of which the first is the oldest */
    uint32_t passed;  /* its maker holds it no more */
    struct sim_holder holder[SIM_HOLDERS];
};

/* An open file that holds a share. The file is a named pipe beside the node's, locked by whoever has it open. */
struct sim_descriptor {
    uint64_t inode; /* 0: free */
    uint32_t pid, number, share, reserved;
};

/* What NVML lets a control group take of a GPU (limits.c). */
struct sim_limit {
    uint64_t group; /* inode of its directory; 0: this place is free */
    uint64_t soft_bytes, hard_bytes;
    char path[256];
};

/* What `simnode fault` makes a GPU suffer from. */
struct sim_faults {
    uint32_t lost;     /* it has fallen off the bus */
    uint32_t slowdown; /* the clocks' event reasons, by NVML's bits */
    uint32_t remap_pending, remap_failed, pages_pending;
    uint32_t xids;               /* how many there ever were */
    uint64_t ecc, ecc_corrected; /* errors that ECC could not correct, and those that it did */
    uint32_t no_ecc, no_gpm;     /* a card without ECC; one older than GPM's counters */
    uint32_t xid[SIM_XIDS];
};

/* A GPU in MIG mode, or an instance (mig.h). */
struct sim_mig {
    uint32_t mode;   /* of a GPU: 1 in MIG mode */
    uint32_t in_use; /* of a place for instances: it has one */
    uint32_t
        parent; /* of an instance: the index of its GPU; its number, its profile in the GPU's table, memory slices */
    uint32_t id, profile, start, size;
    uint32_t compute; /* it has a compute instance */
};

struct sim_gpu {
    uint8_t uuid[16];
    char name[64];
    struct sim_mig mig;
    uint64_t memory_bytes;   /* what programs can have */
    uint64_t reserved_bytes; /* what the card keeps for itself, beside that */
    pthread_mutex_t mutex;
    uint64_t advanced_ns; /* CLOCK_MONOTONIC up to which the state below is true */
    uint64_t slice_left_ns;
    uint64_t switch_ns;      /* what giving the GPU to another process costs */
    uint64_t switch_left_ns; /* the GPU is on its way to `current` */
    uint64_t told_ns;        /* when NVML's present figures per process were taken */
    uint32_t current;
    uint32_t samples;
    uint64_t busy_ns;
    uint64_t checked_ns; /* when clients were last looked for dead ones */
    struct sim_faults faults;
    struct sim_limit limit[SIM_MAX_LIMITS];
    struct sim_sample sample[SIM_SAMPLES];
    struct sim_client client[SIM_MAX_CLIENTS];
    struct sim_share share[SIM_SHARES];
    struct sim_descriptor descriptor[SIM_DESCRIPTORS];
};

/* A process that has called cuInit, and what a checkpoint has made of it (registry.c). */
struct sim_process {
    uint32_t pid, state; /* CU_PROCESS_*; a futex word */
    uint64_t start_time, pidns;
    uint32_t inside;         /* threads that are within a call */
    uint32_t managed;        /* blocks of managed memory */
    uint32_t lost;           /* a restore failed: it can never be brought back */
    uint32_t opened;         /* memory of others, by handles of 64 bytes */
    uint32_t imported;       /* and by descriptors */
    uint32_t pools_imported; /* pools of others */
    uint32_t mps;            /* a client of an MPS server */
    uint32_t carried;        /* it came from another node, and what it had on its GPUs is in itself only */
    uint32_t seen;  /* the GPUs that its driver found when it began, a bit each, whatever the program sees of them */
    uint32_t moves; /* how often a restore has brought it to other GPUs */
    uint8_t at[SIM_MAX_GPUS]; /* the GPU on which it is now what it began on each */
};

struct sim_node {
    uint64_t magic;
    uint32_t version;
    uint32_t gpus;
    char name[64];
    char driver[32]; /* its version, where it is not the usual one */
    struct sim_process process[SIM_MAX_PROCESSES];
    struct sim_gpu gpu[SIM_MAX_GPUS];
};

struct sim_shape {
    const char *name, *model;
    uint32_t gpus;
    uint64_t memory_bytes, reserved_bytes, switch_ns;
    const char *driver; /* empty: the usual one */
    uint32_t mig;       /* GPUs in MIG mode, a bit each */
};

/* Make a node's file; 0 or -errno. */
int sim_node_create(const char *path, const struct sim_shape *shape);
/* Map it; NULL where it is missing or damaged. `path` NULL: the environment's, mapped once. */
struct sim_node *sim_node_open(const char *path);

uint64_t sim_now(void);
void sim_lock(struct sim_gpu *gpu); /* and advance to now */
/* The same, never looking for dead processes: no system call unless the mutex is held elsewhere. */
void sim_lock_only(struct sim_gpu *gpu);
void sim_unlock(struct sim_gpu *gpu);
/* The calling process's client, taken where missing; NULL when all are taken. Locked. */
struct sim_client *sim_client_take(struct sim_gpu *gpu);
/* Wall time at which the client's service clock passed `mark`; 0 if it has not. Locked. */
uint64_t sim_wall_of(const struct sim_client *client, uint64_t mark);
/* Sleep until the mark is passed. Not locked. */
void sim_wait(struct sim_gpu *gpu, struct sim_client *client, uint64_t mark);
uint64_t sim_memory_used(const struct sim_gpu *gpu); /* locked */
/* Take memory for the calling process, or give it back; 0: there is not so much. Not locked. */
int sim_memory_take(struct sim_gpu *gpu, int64_t bytes);
void sim_clear_dead(struct sim_gpu *gpu); /* locked */

/* ---- share.c: memory that several processes hold. Indices are of `share`; all but the first locked. ---- */
int sim_descriptor_open(void); /* as a program opens the control device: -1 or the descriptor */
int sim_share_make(struct sim_gpu *gpu, uint64_t bytes);      /* of the caller's own memory; -1: no more of them */
int sim_share_export(struct sim_gpu *gpu, int share, int fd); /* 0: no such descriptor, or no room */
int sim_share_of(const struct sim_gpu *gpu, int fd);          /* what the descriptor holds; -1: nothing */
int sim_share_join(struct sim_gpu *gpu, int share);           /* 0: too many hold it */
void sim_share_leave(struct sim_gpu *gpu, int share);
void sim_share_clear_dead(struct sim_gpu *gpu);                                    /* of other pid namespaces */
uint64_t sim_share_bytes(const struct sim_gpu *gpu, uint32_t pid, uint64_t pidns); /* as NVML shows it of a process */
void sim_share_collect(struct sim_gpu *gpu);

/* ---- registry.c: the processes that use the driver ---- */
void sim_process_register(struct sim_node *node);       /* the caller; nothing where all places are taken */
uint32_t sim_process_sees(const struct sim_node *node); /* the GPUs whose device files the caller has, a bit each */
uint32_t sim_process_moves(void);                       /* of the caller */
uint32_t sim_process_at(uint32_t gpu);                  /* where the caller is with what it began on this GPU */
/* One with this number here; NULL: it uses no simulated driver, or is gone. */
struct sim_process *sim_process_find(struct sim_node *node, uint32_t pid);
/* Wait at the beginning of a call while the caller's process is locked; 0: it has failed. Each that returns 1 is left. */
int sim_process_enter(void);
void sim_process_leave(void);
void sim_process_query(void); /* end the caller by SIGSEGV if it is checkpointed */
void sim_process_count_managed(int more);
void sim_process_count_opened(int more);
void sim_process_count_imported(int more);
void sim_process_count_pool(void);

/* What a checkpoint leaves in the process itself, as the real driver does: by it a process is restored that another program
 * (CRIU) has brought to another node, whose file knows nothing of it. Written from outside, by the caller (carried.c). */
struct sim_saved {
    struct sim_process *self; /* its place in the node's file; NULL: it has none */
    uint32_t held;            /* 1 from the checkpoint to the restore: calls wait, whatever the place says */
    uint32_t returns;         /* how often it came back elsewhere: who it is must be asked again */
    uint32_t place, reserved; /* the index of `self` */
    struct sim_process process;
    uint8_t uuid[SIM_MAX_GPUS][16]; /* of the GPUs that it was on */
    struct sim_client client[SIM_MAX_GPUS];
};
extern struct sim_saved sim_saved; /* of the caller */
/* ---- carried.c: the caller of a checkpoint and of a restore reads and writes it in another process ---- */
int sim_carried_save(const struct sim_node *node, const struct sim_process *p, int pid); /* 0: not permitted */
/* A process with this number that another program has restored here, taken in; NULL: there is none such. */
struct sim_process *sim_carried_find(struct sim_node *node, int pid);
int sim_carried_read(int pid, struct sim_saved *out);
/* What came with the process, under its present name. Its times are of another machine's clock. */
void sim_carried_client(const struct sim_process *p, const struct sim_client *came, struct sim_client *out);
/* Let the process's calls go on, from its place here; 0: it cannot be told. */
int sim_carried_return(const struct sim_node *node, const struct sim_process *p, int pid);
/* A place for a process that the node does not know, in this state; NULL: all are taken. */
struct sim_process *sim_process_admit(struct sim_node *node, const struct sim_process *as);

/* The calling process's control groups. */
void sim_find_groups(uint64_t group[SIM_DEPTH]);
/* What is left to this client by the limits of its groups, and the least of these; all ones where there is none. Locked. */
uint64_t sim_group_room(const struct sim_gpu *gpu, const struct sim_client *client, uint64_t *total);
uint64_t sim_group_used(const struct sim_gpu *gpu, uint64_t group); /* locked */
/* The group's limit; with a path made where there is none. NULL: none, or no room for it. Locked. */
struct sim_limit *sim_limit_of(struct sim_gpu *gpu, uint64_t group, const char *path);
/* Percent of the last half second; index of a client, or -1 for the whole GPU. Locked. */
unsigned sim_utilisation(const struct sim_gpu *gpu, int client);
void sim_take_samples(struct sim_gpu *gpu, uint64_t now); /* locked */
int sim_is_mig(void);
/* Who calls, asked of /proc once in a thread's life. */
/* The number here of a process of another pid namespace (namespaces.c); 0: it has ended. */
#define SIM_PID_UNKNOWN UINT32_MAX
uint32_t sim_pid_here(uint32_t pid, uint64_t pidns, uint64_t start_time);
/* As sim_clear_dead, also of other pid namespaces, as far as they can be seen: walks through /proc. */
void sim_clear_dead_everywhere(struct sim_gpu *gpu);
void sim_find_self(uint32_t *pid, uint64_t *pidns, uint64_t *start_time);
void sim_uuid_text(const struct sim_gpu *gpu, char text[48]); /* "GPU-...", or "MIG-..." */

#endif
