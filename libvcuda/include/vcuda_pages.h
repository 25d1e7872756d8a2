/* The pages: shared memory between the agent and the processes of one claim on one node.
 *
 * A claim's directory holds one file per writer. `limits` is written by the agent and `turns` by the arbiter; both are
 * read-only to the tenant. `usage` is written by libvcuda inside the tenant's processes and is therefore untrusted: agent
 * and arbiter only read numbers from it. The files have fixed sizes and are never renamed, truncated or replaced while
 * mapped. Processes find the directory by the environment variable GPUCLOUD_CLAIM_DIR.
 *
 * Index i of `vcuda_limits.slot`, of `vcuda_turns.turn` and of every `gpu` array in the usage page mean the same GPU of the
 * claim.
 *
 * Limits: each slot stands behind a sequence lock. Writer's order: seq odd, fields, seq even, gen++, futex wake of gen.
 * `gen` is all that a launch loads when nothing changed, and what a waiting launch sleeps on.
 *
 * Turns: who may use a GPU that several claims want. `ends_ns` is one word, so a launch needs no lock to read it: a process
 * first adds what it is about to launch to its `inflight_ns`, then reads `ends_ns` again, and takes the addition back where
 * the turn was closed meanwhile; the arbiter closes the turn, then reads `inflight_ns`. Both sides are sequentially
 * consistent, so the arbiter never believes a GPU drained that a launch is about to enter.
 *
 * Usage: memory is accounted by reserve-then-sum. Each process adds to its own slot, then sums every live slot, and takes
 * its addition back where the sum passes the limit; the adds are sequentially consistent, so the last successful racer has
 * seen all the others. There is no lock to be held by a killed process, and its death leaves nothing but its own slot.
 * Memory that several processes of a claim hold is charged once, to its maker; where that one's slot is cleared, to those
 * who imported it.
 * Slots never move. A slot belongs to whoever stands in `owner`; it is live once `start_time` is not zero.
 *
 * All integers are little-endian and naturally aligned; sizes are bytes, times nanoseconds, shares percent of one GPU.
 */
#ifndef VCUDA_PAGES_H
#define VCUDA_PAGES_H

#include <stddef.h>
#include <stdint.h>

#define VCUDA_LIMITS_MAGIC 0x53544d494c435647ull /* "GVCLIMTS" */
#define VCUDA_USAGE_MAGIC 0x4547415355435647ull  /* "GVCUSAGE" */
#define VCUDA_TURNS_MAGIC 0x534e525554435647ull  /* "GVCTURNS" */
#define VCUDA_ABI_VERSION 2u

#define VCUDA_MAX_GPUS 16
#define VCUDA_MAX_PROCESSES 256
#define VCUDA_LIMITS_SIZE 4096
#define VCUDA_USAGE_SIZE 561152
#define VCUDA_TURNS_SIZE 4096
#define VCUDA_NO_MEMORY_LIMIT UINT64_MAX

#define VCUDA_CLAIM_DIR_ENV "GPUCLOUD_CLAIM_DIR"
#define VCUDA_LIMITS_FILE "limits"
#define VCUDA_USAGE_FILE "usage"
#define VCUDA_TURNS_FILE "turns"
/* `ends_ns` of a GPU on which no turns are given: every claim follows its own limit alone. */
#define VCUDA_TURN_FREE UINT64_MAX
/* An arbiter that has said nothing of a GPU for so long is dead: its last words no longer count. */
#define VCUDA_TURN_STALE_NS 200000000ull
/* One that speaks for whole pages only, as older ones do. */
#define VCUDA_TURNS_STALE_NS 1000000000ull

enum vcuda_slot_state {
    VCUDA_SLOT_UNUSED = 0,
    VCUDA_SLOT_OPEN = 1,
    /* Allocations and launches fail with driver errors; frees, copies and synchronisation still work. */
    VCUDA_SLOT_CLOSED = 2,
};

/* The rule by which claims share one GPU while several of them want it. */
enum vcuda_policy {
    VCUDA_POLICY_BURST = 0, /* guaranteed core_request, up to core_limit of what others leave */
    VCUDA_POLICY_FIXED = 1, /* core_request, no more */
    VCUDA_POLICY_FAIR = 2,  /* equal parts */
    VCUDA_POLICY_WEIGHTED = 3,
    VCUDA_POLICY_AVERAGE = 4, /* one part of `parts`; parts of nobody stay idle */
    VCUDA_POLICY_PREEMPT = 5, /* as burst, but best-effort claims get only what the others leave */
    VCUDA_POLICY_NATIVE = 6,  /* the driver's own time slices, no limit of compute */
};
/* Return a policy's name as the control plane writes it; NULL for a number that is no policy's. Numbers have no gaps. */
const char *vcuda_policy_name(uint32_t policy);
enum {
    VCUDA_FLAG_BEST_EFFORT = 1,
    /* Of all slots of the claim: its programs are to give their GPUs up, or have done so. No turns are given to them, their
     * watchers leave the driver alone, and programs that have no slot yet wait before they take one. */
    VCUDA_FLAG_SUSPENDED = 2,
    /* No turns are given on this GPU: each claim follows its own limit alone. The same for all claims of a GPU. */
    VCUDA_FLAG_NO_TURNS = 4,
    /* The claim's programs are clients of an MPS server, which gives each a part of the multiprocessors. */
    VCUDA_FLAG_MPS = 8,
    /* The claim may use memory beyond `memory_request`, up to `memory_bytes`: what others of the GPU do not use now. It
     * borrows only blocks that can leave for host memory while its programs live (docs/decisions/0136). */
    VCUDA_FLAG_BORROWS = 16,
    /* Of a suspended claim's slot: its programs come back to this GPU. Borrowers take nothing, and give `returning_bytes`. */
    VCUDA_FLAG_RETURNS = 32,
};

/* One assignment: the claim's share of one GPU. */
struct vcuda_limit_slot {
    uint32_t seq; /* odd while the agent writes */
    uint32_t state;
    uint8_t gpu_uuid[16];
    uint8_t assignment_uid[16];
    uint64_t generation;
    uint64_t memory_bytes; /* VCUDA_NO_MEMORY_LIMIT: none */
    uint32_t core_request;
    uint32_t core_limit; /* 100: may use the whole GPU */
    uint64_t changed_ns; /* CLOCK_MONOTONIC of the last write */
    uint32_t policy;     /* enum vcuda_policy; the same for all claims of a GPU */
    uint32_t weight;     /* 0 means 1 */
    uint32_t ceiling;    /* percent that all claims of the GPU together may use; 0 means 100 */
    uint32_t parts;      /* average: into how many the GPU is divided; 0 means 1 */
    uint32_t flags;
    uint32_t reserved0;
    uint64_t memory_request;    /* of a claim that borrows: promised to it; everybody else is promised memory_bytes */
    uint64_t host_memory_bytes; /* likewise: most host memory that its programs may pin for what leaves the GPU */
    uint64_t returning_bytes;   /* with VCUDA_FLAG_RETURNS: must be free on the GPU first */
    uint8_t reserved[8];
};

struct vcuda_limits {
    uint64_t magic;
    uint32_t version;
    uint32_t size;
    uint32_t gen; /* futex word; raised after every change */
    uint32_t reserved0;
    uint64_t heartbeat_ns; /* CLOCK_BOOTTIME; a stale one changes nothing: the last limits stay */
    uint8_t claim_uid[16];
    uint8_t reserved1[208];
    struct vcuda_limit_slot slot[VCUDA_MAX_GPUS];
    uint8_t reserved2[1792];
};

/* One claim's turn on one GPU. Written by the arbiter. */
struct vcuda_turn {
    uint64_t ends_ns;   /* CLOCK_MONOTONIC: launches that would still run then must wait; 0: closed; VCUDA_TURN_FREE */
    uint64_t starts_ns; /* while closed: when the next turn is expected; 0: not known */
    uint64_t number;    /* of the turn given last */
    uint32_t share;     /* hundredths of a percent allotted at present; what a dashboard shows */
    uint32_t contended; /* 1: other claims may have the GPU in between, so measured times contain theirs */
    uint64_t heartbeat_ns; /* CLOCK_MONOTONIC; see VCUDA_TURN_STALE_NS. 0: the arbiter speaks for the page alone */
    uint64_t depth_ns;     /* at most so much in flight within a turn; 0: as libvcuda thinks best */
    uint32_t cap; /* hundredths of a percent that it may use while no turns are given to it; 0: its own limit */
    uint8_t reserved[12];
};

/* Memory of one GPU that a claim is to give back, or may have back from others. Written by the arbiter. */
struct vcuda_memory_turn {
    uint32_t number;     /* futex word; raised with each order, and when `back` changes */
    uint32_t borrowers;  /* other claims on this GPU that may borrow; 0: an allocation that fails need not wait */
    uint64_t give_bytes; /* the order: to give back; 0: nothing is wanted */
    uint64_t lent_bytes; /* what other claims borrow on this GPU and would give back */
    uint64_t looked_ns;  /* CLOCK_MONOTONIC before the usage was read from which this follows */
    uint32_t back;       /* 1: nothing was wanted for a while, so what is out may come back as far as there is room */
    uint32_t known; /* 1: the claim is known to borrow, and the others know of `borrowers`; it takes nothing before */
    uint64_t wanted_bytes; /* with an order: what owners want of this GPU altogether; it has to be free there */
    uint64_t wanted_ns;    /* CLOCK_MONOTONIC when others last wanted something here; 0: never */
    uint32_t tries;        /* with an order: how many for the same wants were followed in vain before */
    uint32_t overdue;      /* an order that was not followed in time: the agent ends who has not come to it; 0: none */
};

struct vcuda_turns {
    uint64_t magic;
    uint32_t version;
    uint32_t size;
    uint32_t gen; /* futex word; raised when a turn begins or turns are given or no longer given */
    uint32_t reserved0;
    uint64_t heartbeat_ns; /* CLOCK_MONOTONIC; see VCUDA_TURNS_STALE_NS */
    uint8_t reserved1[224];
    struct vcuda_turn turn[VCUDA_MAX_GPUS];
    struct vcuda_memory_turn memory[VCUDA_MAX_GPUS];
    uint8_t reserved2[1792];
};

/* The layer that accounts a process's memory. */
enum vcuda_accounting {
    VCUDA_ACCOUNTING_UNKNOWN = 0,
    VCUDA_ACCOUNTING_KERNEL = 1, /* what the driver takes from the kernel: everything, to the byte */
    VCUDA_ACCOUNTING_CALLS = 2,  /* what the program asks the driver for, trued up from NVML */
};

/* One process's use of one GPU of the claim. The counters only grow; the three *_bytes move both ways. */
struct vcuda_gpu_usage {
    uint64_t memory_bytes;  /* allocations, as the driver rounds them */
    uint64_t context_bytes; /* overhead: contexts, modules, stacks; trued up from NVML */
    /* Time in which a kernel of this process was on the GPU, as charged. Of a client of MPS: that part of it which is the
     * client's part of the multiprocessors. */
    uint64_t gpu_time_ns;
    uint64_t throttled_ns; /* time that launches waited for credit, summed over threads */
    uint64_t launches;
    uint64_t refused; /* allocations refused for the limit */
    /* The assignment generation that this process last acted on: credit recomputed, waiting launches woken. */
    uint64_t observed_generation;
    uint64_t inflight_ns;    /* predicted GPU time of launched work not yet known to be done; 0: nothing of ours runs */
    uint64_t last_end_ns;    /* CLOCK_MONOTONIC at which the work measured last ended on the GPU */
    uint64_t last_launch_ns; /* CLOCK_MONOTONIC about when work was last launched */
    uint32_t waiting;        /* threads that wait for credit or a turn */
    uint32_t accounting;     /* enum vcuda_accounting */
    uint64_t managed_bytes;  /* part of memory_bytes: managed memory, which NVML does not count */
    uint64_t yielded;        /* number of the turn whose rest it has no use for */
    uint32_t syncing;        /* threads that wait in the driver for the GPU */
    uint32_t longest_us; /* its longest kernel or graph of the last ten to twenty seconds with work; 0: none measured */
    uint64_t imported_bytes; /* held here and charged to other processes of the claim: see `imports_seen` */
    uint64_t outside_ns;     /* GPU time, as predicted, of launches that would not wait for their turn; grows */
};

struct vcuda_process {
    /* 0 free; else inode of the pid namespace << 32 | pid in that namespace, with bit 31 set while that process clears the
     * slot of another. One word, so that a process killed right after taking or while clearing it has left its name. */
    uint64_t owner;
    uint64_t start_time;   /* field 22 of /proc/PID/stat; 0 while the slot is being set up */
    uint32_t observed_gen; /* limits.gen last acted on */
    uint32_t imports;      /* memory of other processes that it has open: how many pieces */
    uint64_t attached_ns;  /* CLOCK_BOOTTIME */
    /* `clearings` when this process last found who pays for what it imported. While it is another, some of them may be gone,
     * and `imported_bytes` count as if nobody paid. */
    uint64_t imports_seen;
    uint32_t exports;     /* how often it has given memory of its own to other processes; never falls */
    uint32_t mps_percent; /* of the multiprocessors, which an MPS server gives it; 0: it has not asked one for a part */
    /* Memory that can leave the GPU, all on the one GPU of a claim that borrows, at this index. */
    uint32_t lending_slot;
    uint32_t orders_done;     /* `number` of the last order to give memory back that was followed */
    uint64_t movable_bytes;   /* part of memory_bytes: has a place in host memory to go to */
    uint64_t out_bytes;       /* in host memory now; counts against the limit, not as use of the GPU */
    uint64_t host_bytes;      /* pinned host memory for both */
    uint64_t moved_out_bytes; /* these two only grow */
    uint64_t moved_in_bytes;
    uint64_t stood_ns; /* time for which the program stood still while memory moved; grows */
    /* An allocation that is promised, fits the limit, and does not fit the GPU: it waits for lent memory. */
    uint64_t wanted_bytes;
    uint32_t wanted_slot;
    uint8_t reserved1[12];
    struct vcuda_gpu_usage gpu[VCUDA_MAX_GPUS];
};

#define VCUDA_HOLES 4u
/* The claim's compute credit on one GPU, shared by its processes. */
struct vcuda_bucket {
    uint64_t refilled_ns;   /* CLOCK_MONOTONIC up to which credit was given */
    int64_t credit_ns;      /* below zero: debt */
    uint64_t busy_until_ns; /* CLOCK_MONOTONIC up to which GPU time was charged: overlapping intervals count once */
    uint64_t context_hint_bytes; /* what a context of this claim last cost; the next process reserves it in advance */
    uint64_t holes[VCUDA_HOLES]; /* times before busy_until_ns that nothing was charged for (shim/compute/credit.c) */
};

struct vcuda_usage {
    uint64_t magic;
    uint32_t version;
    uint32_t size;
    uint32_t slots_used; /* one past the highest slot ever taken: sums need not look further */
    uint32_t echo;       /* futex word; raised when any process stores an observed_generation */
    uint64_t clearings;  /* raised while a slot is being cleared, before its memory is no longer counted */
    uint8_t reserved0[32];
    struct vcuda_bucket bucket[VCUDA_MAX_GPUS];
    /* The counters of cleared slots, so that totals never fall; their *_bytes, generation and inflight stay zero. */
    struct vcuda_gpu_usage retired[VCUDA_MAX_GPUS];
    uint8_t reserved1[960];
    struct vcuda_process process[VCUDA_MAX_PROCESSES];
};

/* ---- Helper library: libvcuda-pages.so. Every int-returning function returns a value >= 0, or -errno. ---- */

/* A consistent copy of one limit slot. */
struct vcuda_limit {
    uint32_t index;
    uint32_t state;
    uint8_t gpu_uuid[16];
    uint8_t assignment_uid[16];
    uint64_t generation;
    uint64_t memory_bytes;
    uint32_t core_request;
    uint32_t core_limit;
    uint32_t policy;
    uint32_t weight;
    uint32_t ceiling;
    uint32_t parts;
    uint32_t flags;
    uint32_t reserved;
    uint64_t memory_request;
    uint64_t host_memory_bytes;
    uint64_t returning_bytes;
};

/* Memory of one GPU of the claim that moves, over every live process. */
struct vcuda_lending {
    uint64_t movable_bytes;
    uint64_t out_bytes;
    uint64_t host_bytes;
    uint64_t moved_out_bytes;
    uint64_t moved_in_bytes;
    uint64_t stood_ns;
    uint64_t wanted_bytes;
};

/* One GPU of the claim, over every live process (and, for the counters, every cleared one). */
struct vcuda_totals {
    uint64_t memory_bytes;
    uint64_t context_bytes;
    uint64_t gpu_time_ns;
    uint64_t throttled_ns;
    uint64_t launches;
    uint64_t refused;
    /* The least over live processes; UINT64_MAX where no process is live. */
    uint64_t observed_generation;
    uint64_t inflight_ns;
    uint64_t last_end_ns;    /* the latest */
    uint64_t last_launch_ns; /* the latest */
    uint64_t yielded;        /* the latest */
    uint32_t processes;
    uint32_t waiting;
    uint32_t accounting; /* the weakest way of any live process; 0 where none lives */
    uint32_t longest_us; /* the longest of any live process */
};

/* What keeps the driver from moving a process's memory to host memory and back. */
enum {
    VCUDA_UNMOVABLE_MANAGED = 1,  /* it has managed memory: a checkpoint is refused */
    VCUDA_UNMOVABLE_IMPORTED = 2, /* it has memory of other processes open: a restore fails, and the process is lost */
    VCUDA_UNMOVABLE_EXPORTED = 4, /* others may have its memory open, and would keep the old one */
};

struct vcuda_process_info {
    uint32_t slot;
    uint32_t pid;   /* in its own pid namespace */
    uint64_t pidns; /* inode of that namespace */
    uint64_t start_time;
    uint32_t observed_gen;
    uint32_t unmovable; /* VCUDA_UNMOVABLE_* */
};

/* A process that came from another node: its pid, the same as there, and its new start time. */
struct vcuda_arrival {
    uint32_t pid;
    uint32_t reserved;
    uint64_t start_time;
};

#pragma GCC visibility push(default)

/* Make the page where it is missing (mode 0644), or open the one of the same claim. -EEXIST: another claim's page stands
 * there; -EBADMSG: the file is no page of this version. Never truncates. */
int vcuda_limits_create(const char *path, const uint8_t claim_uid[16], struct vcuda_limits **page);
/* Map an existing page; `writable` only for the agent. -ENOENT, -EACCES, -EBADMSG. */
int vcuda_limits_open(const char *path, int writable, struct vcuda_limits **page);
void vcuda_limits_unmap(struct vcuda_limits *page);

/* Write one assignment's limits and open its slot; `index` and `state` are not read. Returns the slot's index: the one of
 * this GPU, else the first unused one. -ENOSPC: all 16 in use; -EINVAL: core_request > core_limit, core_limit or ceiling
 * over 100, an unknown policy; a claim that borrows with memory_request > memory_bytes. */
int vcuda_limits_set(struct vcuda_limits *page, const struct vcuda_limit *limit);
/* Close one GPU's slot: allocations and launches there return CUDA_ERROR_NOT_PERMITTED from now on. Returns the index;
 * -ENOENT: no slot of this GPU. A later vcuda_limits_set opens it again. */
int vcuda_limits_close_gpu(struct vcuda_limits *page, const uint8_t gpu_uuid[16], uint64_t generation);
/* Give one GPU's slot to another GPU, and that one's slot, if it has one, to the first: programs keep their slots, while
 * the driver moves them. None of them may run. Returns the slot's index; -ENOENT: no slot of `from`. */
int vcuda_limits_move(struct vcuda_limits *page, const uint8_t from[16], const uint8_t to[16]);
/* Say that the agent lives. */
void vcuda_limits_heartbeat(struct vcuda_limits *page);
/* -ERANGE: index not in 0..15; -EAGAIN: the slot stayed half-written (its writer was killed in the middle). */
int vcuda_limits_get(const struct vcuda_limits *page, uint32_t index, struct vcuda_limit *out);

/* Percent of its GPU that the assignment may use while nobody else wants it; 100: no limit. */
uint32_t vcuda_limit_alone(const struct vcuda_limit *limit);

/* Make the page where it is missing (mode 0644), with no turns given, or open the one there. */
int vcuda_turns_create(const char *path, struct vcuda_turns **page);
int vcuda_turns_open(const char *path, int writable, struct vcuda_turns **page);
void vcuda_turns_unmap(struct vcuda_turns *page);
/* Give a turn (`ends_ns` a time), close it (0) or stop giving turns (VCUDA_TURN_FREE). Wakes who waits unless it closes. */
void vcuda_turns_set(struct vcuda_turns *page, uint32_t gpu_index, uint64_t ends_ns, uint64_t starts_ns);
void vcuda_turns_heartbeat(struct vcuda_turns *page);

/* Make the page where it is missing (mode 0600), or open the one there. -EBADMSG as above. */
int vcuda_usage_create(const char *path, struct vcuda_usage **page);
int vcuda_usage_open(const char *path, int writable, struct vcuda_usage **page);
void vcuda_usage_unmap(struct vcuda_usage *page);

/* Sum over one GPU of the claim. -ERANGE. */
int vcuda_usage_totals(const struct vcuda_usage *page, uint32_t gpu_index, struct vcuda_totals *out);
/* Sum over one GPU of the claim. -ERANGE. */
int vcuda_usage_lending(const struct vcuda_usage *page, uint32_t gpu_index, struct vcuda_lending *out);
/* The live processes, at most `max`; returns how many were written. */
int vcuda_usage_processes(const struct vcuda_usage *page, struct vcuda_process_info *out, uint32_t max);
/* One process's numbers on one GPU. -ERANGE. */
int vcuda_usage_process_gpu(const struct vcuda_usage *page, uint32_t slot, uint32_t gpu_index,
                            struct vcuda_gpu_usage *out);
/* Clear the slot of a process that the caller knows to be dead (by its pidfd, say). Returns 1 cleared, 0 no such slot. */
int vcuda_usage_reap(struct vcuda_usage *page, uint64_t pidns, uint32_t pid, uint64_t start_time);
/* Clear the slots of every process of the caller's own pid namespace that /proc no longer shows (or shows with another
 * start time). Slots of other pid namespaces are left alone. Returns how many were cleared. */
int vcuda_usage_reap_dead(struct vcuda_usage *page);
/* Fit a copy of a page to this node, to which its processes were carried from another one; `clock_ns`: this node's
 * CLOCK_MONOTONIC less that node's. Slots of the processes named go on under the new names, all others are cleared: what
 * they counted stays counted. Returns how many go on. The copy is in private memory; none of the processes may run. */
int vcuda_usage_arrive(struct vcuda_usage *copy, uint64_t pidns, const struct vcuda_arrival *processes, uint32_t count,
                       int64_t clock_ns);
/* Wait until `echo` differs from `seen` or the time is over. Returns the present value as the low 31 bits. */
int vcuda_usage_wait_echo(const struct vcuda_usage *page, uint32_t seen, uint64_t timeout_ns);

/* Sizes, offsets and constants of everything above, as one JSON object (also in build/abi.json), so that a mirror in
 * another language can check itself. */
const char *vcuda_abi_describe(void);

#pragma GCC visibility pop

#endif
