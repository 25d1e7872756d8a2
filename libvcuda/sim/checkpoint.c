/* Moving another process's GPU memory to host memory and back: cuCheckpointProcess*.
 *
 *     RUNNING --Lock--> LOCKED --Checkpoint--> CHECKPOINTED --Restore--> LOCKED --Unlock--> RUNNING
 *
 * The real driver does the work in the other process; here the caller moves that process's figures in the virtual node.
 * What the memory holds needs no moving: addresses of simulated memory hold nothing. The figures are kept in the process,
 * too (carried.c), so that it can be restored on another node to which another program has brought it. Where the kernel's calls are
 * simulated too (simkernel.h), its objects stay as they are, so such a process cannot be brought to other GPUs.
 *
 * GPUCLOUD_SIM_CHECKPOINT_RATE: MiB that move in a second, out; back it is twice as fast. Without it, as an H200 does it.
 * GPUCLOUD_SIM_CHECKPOINT_BREAKS: a restore breaks the process: FAILED. Calls that fail or hang: see faults.h.
 */
#include "mig.h"
#include "process.h"

#include <errno.h>
#include <linux/futex.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Measured on an H200 with driver 580: 20 GiB take 8 s out and 3 s back. */
#define RATE_MIB 2560ull

static void nap(uint64_t ns)
{
    struct timespec left = {(time_t)(ns / 1000000000ull), (long)(ns % 1000000000ull)};
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        ;
}

/* One process, as the calls below find it. */
struct target {
    struct sim_node *node;
    struct sim_process *process;
    int pid;
};

/* The letter of its state by the kernel; 0: it is gone. */
static char letter_of(int pid)
{
    char path[64], line[512] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "re");
    size_t length = file ? fread(line, 1, sizeof line - 1, file) : 0;
    if (file)
        fclose(file);
    line[length] = 0;
    const char *end = strrchr(line, ')');
    return end && end[1] ? end[2] : 0;
}

/* As the real driver, which talks to a thread of the process: it waits for one that is stopped, tells apart one that uses
 * no driver from one that is gone, and needs no cuInit here. */
static CUresult find(int pid, uint32_t state, struct target *out)
{
    while (letter_of(pid) == 'T')
        nap(10000000);
    out->node = sim_node_open(NULL);
    out->pid = pid;
    out->process = out->node && pid > 0 ? sim_process_find(out->node, (uint32_t)pid) : NULL;
    if (!out->process && out->node && letter_of(pid))
        out->process = sim_carried_find(out->node, pid);
    if (!out->process)
        return letter_of(pid) ? CUDA_ERROR_NOT_INITIALIZED : CUDA_ERROR_OPERATING_SYSTEM;
    return __atomic_load_n(&out->process->state, __ATOMIC_SEQ_CST) == state ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_STATE;
}

static int move(struct target *t, uint32_t from, uint32_t to)
{
    int moved = __atomic_compare_exchange_n(&t->process->state, &from, to, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &t->process->state, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    return moved;
}

/* Its clients are on each GPU that it has memory on. Locked. */
static struct sim_client *client_of(struct sim_gpu *gpu, const struct sim_process *p)
{
    for (int i = 0; i < SIM_MAX_CLIENTS; i++)
        if (gpu->client[i].pid == p->pid && gpu->client[i].pidns == p->pidns &&
            gpu->client[i].start_time == p->start_time)
            return &gpu->client[i];
    return NULL;
}

static int is_idle(const struct target *t)
{
    int idle = __atomic_load_n(&t->process->inside, __ATOMIC_SEQ_CST) == 0;
    for (uint32_t i = 0; i < t->node->gpus && idle; i++) {
        sim_lock(&t->node->gpu[i]);
        const struct sim_client *c = client_of(&t->node->gpu[i], t->process);
        idle = !c || (c->service_ns >= c->demand_ns && !c->kept);
        sim_unlock(&t->node->gpu[i]);
    }
    return idle;
}

CUresult cuCheckpointProcessLock(int pid, CUcheckpointLock *args)
{
    struct target t;
    CUresult result = find(pid, CU_PROCESS_RUNNING, &t);
    if (result)
        return result;
    if (t.process->mps || sim_mig_carries(t.node, t.process))
        return CUDA_ERROR_NOT_SUPPORTED;
    uint64_t until = args && args->timeout_ms ? sim_now() + args->timeout_ms * 1000000ull : UINT64_MAX;
    if (!move(&t, CU_PROCESS_RUNNING, CU_PROCESS_LOCKED))
        return CUDA_ERROR_ILLEGAL_STATE;
    /* Calls in progress return, and work that was launched ends. */
    while (!is_idle(&t)) {
        if (sim_now() > until) {
            move(&t, CU_PROCESS_LOCKED, CU_PROCESS_RUNNING);
            return CUDA_ERROR_NOT_READY;
        }
        nap(1000000);
    }
    return CUDA_SUCCESS;
}

static uint64_t rate_mib(void)
{
    const char *text = getenv("GPUCLOUD_SIM_CHECKPOINT_RATE");
    uint64_t asked = text ? strtoull(text, NULL, 10) : 0;
    return asked ? asked : RATE_MIB;
}

/* Its bytes on all GPUs: in them, or saved. */
static uint64_t bytes_of(const struct target *t, int saved)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < t->node->gpus; i++) {
        sim_lock(&t->node->gpu[i]);
        const struct sim_client *c = client_of(&t->node->gpu[i], t->process);
        sum += c ? saved ? c->saved_bytes : c->memory_bytes : 0;
        sim_unlock(&t->node->gpu[i]);
    }
    return sum;
}

static uint64_t bytes_from(const struct sim_saved *from)
{
    uint64_t sum = 0;
    for (int i = 0; i < SIM_MAX_GPUS; i++)
        sum += from->client[i].saved_bytes;
    return sum;
}

static void save_memory(const struct target *t)
{
    for (uint32_t i = 0; i < t->node->gpus; i++) {
        sim_lock(&t->node->gpu[i]);
        struct sim_client *c = client_of(&t->node->gpu[i], t->process);
        if (c) {
            c->saved_bytes += c->memory_bytes;
            c->memory_bytes = 0;
        }
        sim_unlock(&t->node->gpu[i]);
    }
}

CUresult cuCheckpointProcessCheckpoint(int pid, void *args)
{
    struct target t;
    (void)args;
    CUresult result = find(pid, CU_PROCESS_LOCKED, &t);
    if (result)
        return result;
    if (__atomic_load_n(&t.process->managed, __ATOMIC_SEQ_CST))
        return CUDA_ERROR_NOT_SUPPORTED;
    nap((bytes_of(&t, 0) >> 10) * 1000000000ull / (rate_mib() << 10));
    save_memory(&t);
    sim_carried_save(t.node, t.process, pid);
    return move(&t, CU_PROCESS_LOCKED, CU_PROCESS_CHECKPOINTED) ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_STATE;
}

static int take_back(struct sim_gpu *gpu, const struct sim_process *p)
{
    int taken = 1;
    uint64_t total;
    sim_lock(gpu);
    struct sim_client *c = client_of(gpu, p);
    if (c) {
        uint64_t room = gpu->memory_bytes - sim_memory_used(gpu), limit = sim_group_room(gpu, c, &total);
        taken = c->saved_bytes <= room && c->saved_bytes <= limit;
        c->memory_bytes += taken ? c->saved_bytes : 0;
        c->saved_bytes = taken ? 0 : c->saved_bytes;
    }
    sim_unlock(gpu);
    return taken;
}

/* All of its memory, or nothing. */
static CUresult restore_memory(const struct target *t)
{
    for (uint32_t i = 0; i < t->node->gpus; i++)
        if (!take_back(&t->node->gpu[i], t->process)) {
            save_memory(t);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
    return CUDA_SUCCESS;
}

/* Memory of other processes goes out, and does not come back: 0, or what an H100 with driver 580 answers. */
static CUresult check_imports(const struct sim_process *p)
{
    if (__atomic_load_n(&p->opened, __ATOMIC_SEQ_CST))
        return CUDA_ERROR_INVALID_VALUE;
    if (__atomic_load_n(&p->imported, __ATOMIC_SEQ_CST))
        return CUDA_ERROR_NOT_SUPPORTED;
    return __atomic_load_n(&p->pools_imported, __ATOMIC_SEQ_CST) ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}

static int index_of(const struct sim_node *node, const void *uuid)
{
    for (uint32_t i = 0; i < node->gpus; i++)
        if (!memcmp(node->gpu[i].uuid, uuid, sizeof node->gpu[i].uuid))
            return (int)i;
    return -1;
}

/* The index of a GPU that the process is on: of one that came from another node, by that one's names. */
static int source_of(const struct target *t, const struct sim_saved *from, const CUuuid *uuid)
{
    for (int i = 0; from && i < SIM_MAX_GPUS; i++)
        if (!memcmp(from->uuid[i], uuid->bytes, sizeof from->uuid[i]))
            return i;
    return from ? -1 : index_of(t->node, uuid->bytes);
}

/* Without a map it comes back to the same cards, if this node has them all. */
static int find_same(const struct target *t, const struct sim_saved *from, uint8_t to[SIM_MAX_GPUS])
{
    for (uint32_t i = 0; from && i < SIM_MAX_GPUS; i++) {
        int here = index_of(t->node, from->uuid[i]);
        if (t->process->seen & 1u << i && here < 0)
            return 0;
        to[i] = here < 0 ? to[i] : (uint8_t)here;
    }
    return 1;
}

/* Read a map as H100s with driver 580 do: it names each GPU once that the driver saw when the program began, by what it is
 * now on, and once each as a target; what CUDA_VISIBLE_DEVICES leaves of them does not matter. An empty one is none. */
static CUresult read_map(const struct target *t, const struct sim_saved *from, const CUcheckpointRestore *args,
                         uint8_t to[SIM_MAX_GPUS])
{
    uint32_t seen = t->process->seen, sources = 0, targets = 0;
    for (uint32_t i = 0; i < SIM_MAX_GPUS; i++)
        to[i] = (uint8_t)i;
    if (!args || !args->pairs || !args->count)
        return find_same(t, from, to) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < args->count; i++) {
        int a = source_of(t, from, &args->pairs[i].from), b = index_of(t->node, args->pairs[i].to.bytes);
        if (a < 0 || b < 0)
            return CUDA_ERROR_INVALID_VALUE;
        sources |= 1u << a;
        targets |= 1u << b;
        to[a] = (uint8_t)b;
    }
    int whole = from ? __builtin_popcount(targets) == __builtin_popcount(seen) : targets == seen;
    return args->count == (unsigned)__builtin_popcount(seen) && sources == seen && whole ? CUDA_SUCCESS
                                                                                         : CUDA_ERROR_INVALID_VALUE;
}

/* Its client on each GPU, taken out of there. */
static void take_out(struct sim_gpu *gpu, const struct sim_process *p, struct sim_client *out)
{
    sim_lock(gpu);
    struct sim_client *c = client_of(gpu, p);
    memset(out, 0, sizeof *out);
    if (c) {
        *out = *c;
        memset(c, 0, sizeof *c);
    }
    sim_unlock(gpu);
}

static int put_in(struct sim_gpu *gpu, const struct sim_client *client)
{
    int put = 0;
    sim_lock(gpu);
    for (int i = 0; i < SIM_MAX_CLIENTS && !put; i++)
        if (!gpu->client[i].pid) {
            gpu->client[i] = *client;
            put = 1;
        }
    sim_unlock(gpu);
    return put;
}

/* Bring what the process has on each GPU to the one that the map says; the process follows at its next call. */
static int change_gpus(const struct target *t, const struct sim_saved *from, const uint8_t to[SIM_MAX_GPUS])
{
    static struct sim_client out[SIM_MAX_GPUS];
    struct sim_process *p = t->process;
    int changed = from != NULL, put = 1;
    for (uint32_t i = 0; i < t->node->gpus; i++)
        changed |= to[i] != i;
    if (!changed)
        return 1;
    memset(out, 0, sizeof out);
    for (uint32_t i = 0; i < SIM_MAX_GPUS; i++)
        if (from)
            sim_carried_client(p, &from->client[i], &out[i]);
        else if (i < t->node->gpus)
            take_out(&t->node->gpu[i], p, &out[i]);
    for (uint32_t i = 0; i < SIM_MAX_GPUS; i++)
        put &= !out[i].pid || put_in(&t->node->gpu[to[i]], &out[i]);
    uint32_t seen = 0;
    for (uint32_t i = 0; i < SIM_MAX_GPUS; i++) {
        p->at[i] = to[p->at[i]];
        seen |= p->seen & 1u << i ? 1u << to[i] : 0;
    }
    p->seen = seen;
    p->carried = 0;
    __atomic_add_fetch(&p->moves, 1, __ATOMIC_RELEASE);
    return put;
}

static CUresult restore(struct target *t, const struct sim_saved *from, const CUcheckpointRestore *args)
{
    uint8_t to[SIM_MAX_GPUS];
    CUresult result = read_map(t, from, args, to);
    if (result)
        return result;
    if (getenv("GPUCLOUD_SIM_CHECKPOINT_BREAKS")) {
        move(t, CU_PROCESS_CHECKPOINTED, CU_PROCESS_FAILED);
        sim_carried_return(t->node, t->process, t->pid);
        return CUDA_ERROR_UNKNOWN;
    }
    nap(((from ? bytes_from(from) : bytes_of(t, 1)) >> 10) * 1000000000ull / (rate_mib() << 11));
    result = check_imports(t->process);
    if (!result)
        result = change_gpus(t, from, to) ? restore_memory(t) : CUDA_ERROR_OUT_OF_MEMORY;
    if (result) {
        /* As on an H100 with driver 580: this answer comes once, and then the other one for ever. */
        __atomic_store_n(&t->process->lost, 1, __ATOMIC_SEQ_CST);
        return result;
    }
    sim_carried_return(t->node, t->process, t->pid);
    return move(t, CU_PROCESS_CHECKPOINTED, CU_PROCESS_LOCKED) ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_STATE;
}

CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestore *args)
{
    struct target t;
    CUresult result = find(pid, CU_PROCESS_CHECKPOINTED, &t);
    if (!result && __atomic_load_n(&t.process->lost, __ATOMIC_SEQ_CST))
        return CUDA_ERROR_OPERATING_SYSTEM;
    if (result || !t.process->carried)
        return result ? result : restore(&t, NULL, args);
    struct sim_saved *from = calloc(1, sizeof *from);
    if (from && sim_carried_read(pid, from))
        result = restore(&t, from, args);
    else
        result = CUDA_ERROR_OPERATING_SYSTEM;
    free(from);
    return result;
}

CUresult cuCheckpointProcessUnlock(int pid, void *args)
{
    struct target t;
    (void)args;
    CUresult result = find(pid, CU_PROCESS_LOCKED, &t);
    /* A caller that was killed within a checkpoint may have moved memory already. */
    if (!result)
        result = restore_memory(&t);
    if (result)
        return result;
    sim_carried_return(t.node, t.process, pid);
    return move(&t, CU_PROCESS_LOCKED, CU_PROCESS_RUNNING) ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_STATE;
}

CUresult cuCheckpointProcessGetState(int pid, int *state)
{
    struct target t;
    CUresult result = state ? find(pid, CU_PROCESS_RUNNING, &t) : CUDA_ERROR_INVALID_VALUE;
    if (result && result != CUDA_ERROR_ILLEGAL_STATE)
        return result;
    *state = (int)__atomic_load_n(&t.process->state, __ATOMIC_SEQ_CST);
    return CUDA_SUCCESS;
}

CUresult cuCheckpointProcessGetRestoreThreadId(int pid, int *tid)
{
    int state;
    CUresult result = tid ? cuCheckpointProcessGetState(pid, &state) : CUDA_ERROR_INVALID_VALUE;
    if (!result)
        *tid = pid;
    return result;
}
