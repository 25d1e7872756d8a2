/* See mig.h. The tables are those of NVIDIA's MIG user guide (docs.nvidia.com/datacenter/tesla/mig-user-guide, "Supported MIG
 * Profiles") and of `nvidia-smi mig -lgip` and `-lgipp`, which it shows: memory is NVML's, in MiB. */
#include "mig.h"

#include "nvidia_mig.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define BIT(n) (1u << (n))
#define EVERY_SECOND (BIT(0) | BIT(2) | BIT(4) | BIT(6))

/* name, memory of one and of two slices and so on, multiprocessors of 1, 2, 3, 4 and 7 compute slices, and of the one that
 * has the memory of two. Placements are the same on all three. */
#define TABLE(model, n1, n2, n3, n4, n7, m1, m2, m4, m8, s1, s1x, s2, s3, s4, s7)                                      \
    {                                                                                                                  \
        model,                                                                                                         \
            {                                                                                                          \
                {"1g." n1, NVML_GPU_INSTANCE_PROFILE_1_SLICE, 19, 1, 1, m1, s1, 1, 7, BIT(7) - 1},                     \
                {"1g." n1 "+me", NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV1, 20, 1, 1, m1, s1, 1, 1, BIT(7) - 1},          \
                {"1g." n2, NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV2, 15, 1, 2, m2, s1x, 1, 4, EVERY_SECOND},             \
                {"2g." n2, NVML_GPU_INSTANCE_PROFILE_2_SLICE, 14, 2, 2, m2, s2, 2, 3, EVERY_SECOND & ~BIT(6)},         \
                {"3g." n3, NVML_GPU_INSTANCE_PROFILE_3_SLICE, 9, 3, 4, m4, s3, 3, 2, BIT(0) | BIT(4)},                 \
                {"4g." n4, NVML_GPU_INSTANCE_PROFILE_4_SLICE, 5, 4, 4, m4, s4, 4, 1, BIT(0)},                          \
                {"7g." n7, NVML_GPU_INSTANCE_PROFILE_7_SLICE, 0, 7, 8, m8, s7, 7, 1, BIT(0)},                          \
            },                                                                                                         \
    }

static const struct sim_mig_table tables[] = {
    TABLE("A100", "5gb", "10gb", "20gb", "20gb", "40gb", 4864, 9984, 20096, 40448, 14, 14, 28, 42, 56, 98),
    TABLE("H100", "10gb", "20gb", "40gb", "40gb", "80gb", 9984, 20096, 40448, 81152, 16, 26, 32, 60, 64, 132),
    TABLE("H200", "18gb", "35gb", "71gb", "71gb", "141gb", 16384, 33280, 71168, 143360, 16, 26, 32, 60, 64, 132),
};

const struct sim_mig_table *sim_mig_table_of(const char *model)
{
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        if (strstr(model, tables[i].model))
            return &tables[i];
    return NULL;
}

uint64_t sim_mig_whole_bytes(const struct sim_mig_table *table)
{
    return (uint64_t)table->profile[SIM_MIG_PROFILES - 1].memory_mib << 20;
}

int sim_is_instance(const struct sim_node *node, const struct sim_gpu *gpu)
{
    return gpu - node->gpu >= (ptrdiff_t)node->gpus;
}

struct sim_gpu *sim_mig_parent(struct sim_node *node, struct sim_gpu *gpu)
{
    return sim_is_instance(node, gpu) ? &node->gpu[gpu->mig.parent] : gpu;
}

const struct sim_mig_profile *sim_mig_profile_of(const struct sim_gpu *instance)
{
    const struct sim_mig_table *table = sim_mig_table_of(instance->name);
    return table && instance->mig.profile < SIM_MIG_PROFILES ? &table->profile[instance->mig.profile] : NULL;
}

struct sim_gpu *sim_mig_next(struct sim_node *node, const struct sim_gpu *gpu, struct sim_gpu *after)
{
    for (struct sim_gpu *g = after ? after + 1 : &node->gpu[node->gpus]; g < &node->gpu[SIM_MAX_GPUS]; g++)
        if (g->mig.in_use && g->mig.parent == (uint32_t)(gpu - node->gpu))
            return g;
    return NULL;
}

unsigned sim_mig_occupied(const struct sim_node *node, const struct sim_gpu *gpu)
{
    unsigned slices = 0;
    for (const struct sim_gpu *g = &node->gpu[node->gpus]; g < &node->gpu[SIM_MAX_GPUS]; g++)
        if (g->mig.in_use && g->mig.parent == (uint32_t)(gpu - node->gpu))
            slices |= (BIT(g->mig.size) - 1) << g->mig.start;
    return slices;
}

/* The least number that no instance of the GPU has. */
static uint32_t free_id(struct sim_node *node, const struct sim_gpu *gpu)
{
    uint32_t taken = 0;
    for (struct sim_gpu *g = NULL; (g = sim_mig_next(node, gpu, g));)
        taken |= BIT(g->mig.id);
    uint32_t id = 1;
    while (taken & BIT(id))
        id++;
    return id;
}

static struct sim_gpu *free_place(struct sim_node *node)
{
    for (struct sim_gpu *g = &node->gpu[node->gpus]; g < &node->gpu[SIM_MAX_GPUS]; g++)
        if (!g->mig.in_use)
            return g;
    return NULL;
}

static unsigned count_of(struct sim_node *node, const struct sim_gpu *gpu, unsigned profile)
{
    unsigned found = 0;
    for (struct sim_gpu *g = NULL; (g = sim_mig_next(node, gpu, g));)
        found += g->mig.profile == profile;
    return found;
}

struct sim_gpu *sim_mig_make(struct sim_node *node, struct sim_gpu *gpu, const struct sim_mig_profile *profile,
                             unsigned start)
{
    const struct sim_mig_table *table = sim_mig_table_of(gpu->name);
    unsigned index = (unsigned)(profile - table->profile), slices = (BIT(profile->size) - 1) << start;
    struct sim_gpu *made = free_place(node);
    if (!made || slices & sim_mig_occupied(node, gpu) || count_of(node, gpu, index) == profile->most)
        return NULL;
    made->memory_bytes = (uint64_t)profile->memory_mib << 20;
    made->switch_ns = gpu->switch_ns;
    made->advanced_ns = sim_now();
    snprintf(made->name, sizeof made->name, "%.30s MIG %.20s", gpu->name, profile->name);
    made->mig = (struct sim_mig){.parent = (uint32_t)(gpu - node->gpu),
                                 .id = free_id(node, gpu),
                                 .profile = index,
                                 .start = start,
                                 .size = profile->size};
    /* By what it is, as a real one's: made again in the same place, it is the same. */
    memcpy(made->uuid, gpu->uuid, sizeof made->uuid);
    made->uuid[0] ^= (uint8_t)(0x80 | made->mig.id);
    made->uuid[1] ^= (uint8_t)(index << 4 | start);
    __atomic_store_n(&made->mig.in_use, 1, __ATOMIC_RELEASE);
    return made;
}

void sim_mig_remove(struct sim_gpu *instance)
{
    __atomic_store_n(&instance->mig.in_use, 0, __ATOMIC_RELEASE);
    sim_lock(instance);
    memset(instance->client, 0, sizeof instance->client);
    memset(instance->share, 0, sizeof instance->share);
    memset(instance->descriptor, 0, sizeof instance->descriptor);
    sim_unlock(instance);
}

int sim_mig_is_busy(struct sim_gpu *instance)
{
    int busy = 0;
    sim_lock(instance);
    sim_clear_dead_everywhere(instance);
    for (int i = 0; i < SIM_MAX_CLIENTS; i++)
        busy |= instance->client[i].pid && instance->client[i].contexts;
    busy |= sim_memory_used(instance) > 0;
    sim_unlock(instance);
    return busy;
}

int sim_mig_carries(struct sim_node *node, const struct sim_process *process)
{
    for (struct sim_gpu *g = &node->gpu[node->gpus]; g < &node->gpu[SIM_MAX_GPUS]; g++)
        for (int i = 0; g->mig.in_use && i < SIM_MAX_CLIENTS; i++)
            if (g->client[i].pid == process->pid && g->client[i].pidns == process->pidns &&
                g->client[i].start_time == process->start_time)
                return 1;
    return 0;
}
