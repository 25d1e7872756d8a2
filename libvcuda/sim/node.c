/* The virtual node's file, and who lives on it. */
#include "node.h"

#include "file.h"
#include "pages.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint64_t mix(uint64_t x)
{
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdull;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53ull;
    return x ^ x >> 33;
}

/* A UUID from the node's name and the index, so that a node made anew is the same node. */
static void make_uuid(uint8_t uuid[16], const char *name, uint32_t index)
{
    uint64_t hash = 0x9e3779b97f4a7c15ull + index;
    for (const char *c = name; *c; c++)
        hash = mix(hash ^ (uint8_t)*c);
    uint64_t words[2] = {mix(hash), mix(hash + 0x632be59bd9b4e019ull)};
    memcpy(uuid, words, 16);
    uuid[6] = (uint8_t)((uuid[6] & 0x0f) | 0x40);
    uuid[8] = (uint8_t)((uuid[8] & 0x3f) | 0x80);
}

static void make_mutex(struct sim_gpu *gpu)
{
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&gpu->mutex, &attributes);
    pthread_mutexattr_destroy(&attributes);
}

static void make_gpu(struct sim_gpu *gpu, uint32_t index, const struct sim_shape *shape)
{
    make_uuid(gpu->uuid, shape->name, index);
    snprintf(gpu->name, sizeof gpu->name, "%s", shape->model);
    gpu->memory_bytes = shape->memory_bytes;
    gpu->reserved_bytes = shape->reserved_bytes;
    gpu->switch_ns = shape->switch_ns;
    gpu->advanced_ns = sim_now();
    gpu->mig.mode = shape->mig >> index & 1;
}

int sim_node_create(const char *path, const struct sim_shape *shape)
{
    struct sim_node *node = calloc(1, sizeof *node);
    if (!node)
        return -ENOMEM;
    node->magic = SIM_MAGIC;
    node->version = SIM_VERSION;
    node->gpus = shape->gpus;
    snprintf(node->name, sizeof node->name, "%s", shape->name);
    snprintf(node->driver, sizeof node->driver, "%s", shape->driver);
    for (uint32_t i = 0; i < SIM_MAX_GPUS; i++)
        make_mutex(&node->gpu[i]);
    for (uint32_t i = 0; i < shape->gpus; i++)
        make_gpu(&node->gpu[i], i, shape);
    int error = page_file_make(path, node, sizeof *node, 0600);
    free(node);
    return error;
}

struct sim_node *sim_node_open(const char *path)
{
    static struct sim_node *shared;
    struct sim_node *seen = __atomic_load_n(&shared, __ATOMIC_ACQUIRE);
    if (!path && seen)
        return seen;
    const char *file = path ? path : getenv(SIM_NODE_ENV);
    void *map;
    if (!file || page_file_map(file, sizeof(struct sim_node), 1, &map) != 0)
        return NULL;
    struct sim_node *node = map;
    if (node->magic != SIM_MAGIC || node->version != SIM_VERSION || node->gpus > SIM_MAX_GPUS)
        return NULL;
    if (!path)
        __atomic_store_n(&shared, node, __ATOMIC_RELEASE);
    return node;
}

int sim_is_mig(void)
{
    static int known; /* 1: no; 2: yes */
    if (!known)
        known = getenv(SIM_MIG_ENV) ? 2 : 1;
    return known == 2;
}

void sim_uuid_text(const struct sim_gpu *gpu, char text[48])
{
    const uint8_t *u = gpu->uuid;
    snprintf(text, 48, "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
             sim_is_mig() || gpu->mig.in_use ? "MIG" : "GPU", u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8],
             u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
}

void sim_clear_dead(struct sim_gpu *gpu)
{
    uint64_t pidns = pages_pidns();
    for (int i = 0; i < SIM_MAX_CLIENTS; i++) {
        struct sim_client *c = &gpu->client[i];
        /* Of another namespace's processes nothing can be told from here. */
        if (!c->pid || c->pidns != pidns || pages_start_time(c->pid) == c->start_time)
            continue;
        memset(c, 0, sizeof *c);
    }
    sim_share_collect(gpu);
    gpu->checked_ns = sim_now();
}

void sim_clear_dead_everywhere(struct sim_gpu *gpu)
{
    uint64_t pidns = pages_pidns();
    for (int i = 0; i < SIM_MAX_CLIENTS; i++) {
        struct sim_client *c = &gpu->client[i];
        if (c->pid && c->pidns != pidns && !sim_pid_here(c->pid, c->pidns, c->start_time))
            memset(c, 0, sizeof *c);
    }
    sim_share_clear_dead(gpu);
    sim_clear_dead(gpu);
}

static struct sim_client *find_client(struct sim_gpu *gpu, uint32_t pid, uint64_t pidns)
{
    for (int i = 0; i < SIM_MAX_CLIENTS; i++)
        if (gpu->client[i].pid == pid && gpu->client[i].pidns == pidns)
            return &gpu->client[i];
    return NULL;
}

void sim_find_self(uint32_t *pid, uint64_t *pidns, uint64_t *start_time)
{
    static _Thread_local uint32_t known;
    static _Thread_local uint64_t known_pidns, known_start_time;
    static _Thread_local uint32_t returns;
    uint32_t now = __atomic_load_n(&sim_saved.returns, __ATOMIC_ACQUIRE);
    *pid = (uint32_t)getpid();
    if (known != *pid || returns != now) {
        known = *pid;
        returns = now;
        known_pidns = pages_pidns();
        known_start_time = pages_start_time(*pid);
    }
    *pidns = known_pidns;
    *start_time = known_start_time;
}

struct sim_client *sim_client_take(struct sim_gpu *gpu)
{
    uint32_t pid;
    uint64_t pidns, start_time;
    sim_find_self(&pid, &pidns, &start_time);
    struct sim_client *mine = find_client(gpu, pid, pidns);
    if (mine && mine->start_time == start_time)
        return mine;
    sim_clear_dead_everywhere(gpu);
    mine = find_client(gpu, 0, 0);
    if (mine) {
        sim_find_groups(mine->group);
        mine->start_time = start_time;
        mine->pidns = pidns;
        mine->pid = pid;
    }
    return mine;
}

uint64_t sim_memory_used(const struct sim_gpu *gpu)
{
    uint64_t used = 0;
    for (int i = 0; i < SIM_MAX_CLIENTS; i++)
        used += gpu->client[i].pid ? gpu->client[i].memory_bytes : 0;
    for (int i = 0; i < SIM_SHARES; i++)
        used += gpu->share[i].bytes;
    return used;
}

static int has_room(const struct sim_gpu *gpu, const struct sim_client *client, uint64_t bytes)
{
    uint64_t total;
    return bytes <= gpu->memory_bytes - sim_memory_used(gpu) && bytes <= sim_group_room(gpu, client, &total);
}

int sim_memory_take(struct sim_gpu *gpu, int64_t bytes)
{
    sim_lock(gpu);
    struct sim_client *client = sim_client_take(gpu);
    if (bytes > 0 && client && !has_room(gpu, client, (uint64_t)bytes))
        sim_clear_dead_everywhere(gpu);
    int taken = client && (bytes <= 0 || has_room(gpu, client, (uint64_t)bytes));
    if (taken)
        client->memory_bytes += (uint64_t)bytes;
    sim_unlock(gpu);
    return taken;
}
