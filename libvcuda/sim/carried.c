/* Processes that were dumped on one node and restored on another one, between their checkpoint and their restore.
 *
 * The real driver keeps what it saved in the process and talks to a thread of it. Here the caller reads and writes a
 * structure in the process's memory (registry.c), whose address it knows from its own copy of the library. Who may not
 * trace the process cannot: then it is checkpointed and restored on its own node only.
 */
#include "node.h"
#include "pages.h"

#include "driver.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>

struct mapping {
    uint64_t start, offset, inode;
    char device[16];
};

static int read_mapping(const char *line, struct mapping *m)
{
    unsigned long long start, offset, inode;
    if (sscanf(line, "%llx-%*x %*s %llx %15s %llu", &start, &offset, m->device, &inode) != 4)
        return 0;
    m->start = start;
    m->offset = offset;
    m->inode = inode;
    return 1;
}

static FILE *open_maps(int pid)
{
    char path[64];
    snprintf(path, sizeof path, pid ? "/proc/%d/maps" : "/proc/self/maps", pid);
    return fopen(path, "re");
}

/* The beginning of this library in this process: of the last file that begins before its data. */
static int find_own(struct mapping *own)
{
    char line[512];
    struct mapping m;
    FILE *maps = open_maps(0);
    own->start = 0;
    while (maps && fgets(line, sizeof line, maps))
        if (read_mapping(line, &m) && m.inode && !m.offset && m.start <= (uint64_t)(uintptr_t)&sim_saved)
            *own = m;
    if (maps)
        fclose(maps);
    return own->start != 0;
}

/* Where the structure is in that process; 0: it has not this library. */
static uint64_t find_saved(int pid)
{
    char line[512];
    struct mapping own, m;
    uint64_t found = 0;
    FILE *maps = find_own(&own) ? open_maps(pid) : NULL;
    while (maps && !found && fgets(line, sizeof line, maps))
        if (read_mapping(line, &m) && !m.offset && m.inode == own.inode && !strcmp(m.device, own.device))
            found = m.start + ((uint64_t)(uintptr_t)&sim_saved - own.start);
    if (maps)
        fclose(maps);
    return found;
}

static int copy(int pid, uint64_t there, void *here, size_t size, int out)
{
    struct iovec mine = {here, size}, theirs = {(void *)(uintptr_t)there, size};
    ssize_t n = out ? process_vm_writev(pid, &mine, 1, &theirs, 1, 0) : process_vm_readv(pid, &mine, 1, &theirs, 1, 0);
    return n == (ssize_t)size;
}

#define WRITE(pid, at, from, field)                                                                                    \
    copy(pid, (at) + offsetof(struct sim_saved, field), &(from)->field, sizeof(from)->field, 1)

int sim_carried_read(int pid, struct sim_saved *out)
{
    uint64_t at = find_saved(pid);
    return at && copy(pid, at, out, sizeof *out, 0);
}

static void take_clients(const struct sim_node *node, const struct sim_process *p, struct sim_saved *saved)
{
    for (uint32_t i = 0; i < node->gpus; i++) {
        struct sim_gpu *gpu = (struct sim_gpu *)&node->gpu[i];
        memcpy(saved->uuid[i], gpu->uuid, sizeof gpu->uuid);
        sim_lock(gpu);
        for (int c = 0; c < SIM_MAX_CLIENTS; c++)
            if (gpu->client[c].pid == p->pid && gpu->client[c].pidns == p->pidns &&
                gpu->client[c].start_time == p->start_time)
                saved->client[i] = gpu->client[c];
        sim_unlock(gpu);
    }
}

int sim_carried_save(const struct sim_node *node, const struct sim_process *p, int pid)
{
    struct sim_saved *saved = calloc(1, sizeof *saved);
    uint64_t at = saved ? find_saved(pid) : 0;
    int written = 0;
    if (at) {
        saved->process = *p;
        saved->place = (uint32_t)(p - node->process);
        saved->held = 1;
        take_clients(node, p, saved);
        written = WRITE(pid, at, saved, process) && WRITE(pid, at, saved, place) && WRITE(pid, at, saved, uuid) &&
                  WRITE(pid, at, saved, client) && WRITE(pid, at, saved, held);
    }
    free(saved);
    return written;
}

/* The inode of a process's pid namespace, and its number there. */
static int find_names(int pid, struct sim_process *p)
{
    char path[64], line[256];
    struct stat st;
    snprintf(path, sizeof path, "/proc/%d/ns/pid", pid);
    if (stat(path, &st) != 0)
        return 0;
    p->pidns = (uint32_t)st.st_ino;
    p->pid = (uint32_t)pid;
    p->start_time = pages_start_time((uint32_t)pid);
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, "NSpid:\t", 7))
            p->pid = (uint32_t)strtoul(strrchr(line, '\t'), NULL, 10);
    if (file)
        fclose(file);
    return p->start_time && p->start_time != PAGES_NOT_KNOWN;
}

struct sim_process *sim_carried_find(struct sim_node *node, int pid)
{
    struct sim_saved *saved = calloc(1, sizeof *saved);
    struct sim_process *found = NULL;
    if (saved && sim_carried_read(pid, saved) && saved->held && find_names(pid, &saved->process)) {
        saved->process.state = CU_PROCESS_CHECKPOINTED;
        saved->process.inside = 0;
        saved->process.carried = 1;
        found = sim_process_admit(node, &saved->process);
    }
    free(saved);
    return found;
}

void sim_carried_client(const struct sim_process *p, const struct sim_client *came, struct sim_client *out)
{
    *out = *came;
    memset(out->sample, 0, sizeof out->sample);
    if (out->pid) {
        out->pid = p->pid;
        out->pidns = p->pidns;
        out->start_time = p->start_time;
    }
}

int sim_carried_return(const struct sim_node *node, const struct sim_process *p, int pid)
{
    struct sim_saved *saved = calloc(1, sizeof *saved);
    uint64_t at = saved ? find_saved(pid) : 0;
    int done = at && copy(pid, at, saved, offsetof(struct sim_saved, process), 0);
    if (done && saved->held) {
        uint32_t place = (uint32_t)(p - node->process);
        saved->self += (int64_t)place - (int64_t)saved->place;
        saved->place = place;
        saved->returns += 1;
        saved->held = 0;
        done = WRITE(pid, at, saved, self) && WRITE(pid, at, saved, place) && WRITE(pid, at, saved, returns) &&
               WRITE(pid, at, saved, held);
    }
    free(saved);
    return done;
}
