/* MIG on the virtual node: GPUs in MIG mode, and the instances made of them.
 *
 * An instance is one more entry of the node's `gpu`, behind the physical ones, with clients, memory and a clock of its own:
 * what runs in one never waits for what runs in another. One compute instance, of all its slices, makes it a device that
 * programs can use. The mode is set when the node is made and never changes. The first GPU's mutex guards all instances.
 */
#ifndef SIM_MIG_H
#define SIM_MIG_H

#include "node.h"

#define SIM_MIG_SLICES 8
#define SIM_MIG_MOST 7 /* instances of one GPU */
#define SIM_MIG_PROFILES 7

struct sim_mig_profile {
    const char *name;
    unsigned kind; /* NVML_GPU_INSTANCE_PROFILE_* */
    unsigned id, compute, size, memory_mib, multiprocessors, engines, most;
    unsigned starts; /* a bit for each memory slice at which it may start */
};

struct sim_mig_table {
    const char *model; /* a part of the model's name */
    struct sim_mig_profile profile[SIM_MIG_PROFILES];
};

/* The table of a model; NULL: its profiles are not known here. */
const struct sim_mig_table *sim_mig_table_of(const char *model);
uint64_t sim_mig_whole_bytes(const struct sim_mig_table *table);
const struct sim_mig_profile *sim_mig_profile_of(const struct sim_gpu *instance);
int sim_is_instance(const struct sim_node *node, const struct sim_gpu *gpu);
/* The GPU of an instance; a GPU itself. */
struct sim_gpu *sim_mig_parent(struct sim_node *node, struct sim_gpu *gpu);
/* A bit for each memory slice of the GPU that instances occupy. Locked. */
unsigned sim_mig_occupied(const struct sim_node *node, const struct sim_gpu *gpu);
/* The instance after this one (NULL: the first) of the GPU; NULL: there is none. Locked. */
struct sim_gpu *sim_mig_next(struct sim_node *node, const struct sim_gpu *gpu, struct sim_gpu *after);
/* Make an instance there; NULL: no room. Locked. */
struct sim_gpu *sim_mig_make(struct sim_node *node, struct sim_gpu *gpu, const struct sim_mig_profile *profile,
                             unsigned start);
void sim_mig_remove(struct sim_gpu *instance); /* locked */
/* Programs have contexts on the instance now. */
int sim_mig_is_busy(struct sim_gpu *instance);
/* The process is on an instance: the driver cannot suspend it. */
int sim_mig_carries(struct sim_node *node, const struct sim_process *process);

#endif
