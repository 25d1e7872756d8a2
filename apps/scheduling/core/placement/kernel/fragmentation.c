/* What of a node's idle GPU the mix cannot use, by sums over the mix: fragmentation.py. */
#include "kernel.h"

/* How many values of the axis are reached. */
static int32_t reached(const int64_t *axis, int32_t n, int64_t amount)
{
    int32_t low = 0, high = n;
    while (low < high) {
        int32_t middle = (low + high) / 2;
        if (axis[middle] <= amount)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int32_t cpu_index(const struct mix *m, int64_t cpu)
{
    return cpu == UNKNOWN ? m->cpus : reached(m->cpu_axis, m->cpus, cpu);
}

/* The core of one GPU times the weight of the one-GPU types that it could carry. */
static int64_t usable_by_one(const struct kernel *k, int32_t model, int32_t cpu, int64_t core, int64_t memory)
{
    const struct mix *m = &k->mix;
    if (core <= 0)
        return 0;
    int64_t at = ((int64_t)model * (m->cpus + 1) + cpu) * (m->cores + 1) +
                 m->core_index[core < k->board.whole ? core : k->board.whole];
    return core * m->single[at * (m->memories + 1) + reached(m->memory_axis, m->memories, memory)];
}

/* The same for the types of several GPUs, of the whole node; `less` is what the chosen GPUs will have less. */
static int64_t usable_by_several(const struct kernel *k, int32_t node, int32_t cpu, const struct shape *less,
                                 const uint8_t *chosen)
{
    const struct board *b = &k->board;
    const struct mix *m = &k->mix;
    int64_t sum = 0;
    for (int32_t j = 0; j < m->classes; j++) {
        int64_t usable = 0;
        int32_t n = 0;
        for (int32_t g = 0; g < b->count[node]; g++) {
            int64_t at = (int64_t)node * b->width + g;
            int64_t core = b->core[at] - (chosen && chosen[g] ? less->core : 0);
            int64_t memory = b->memory[at] - (chosen && chosen[g] ? less->memory : 0);
            if (core >= m->class_core[j] && memory >= m->class_memory[j] &&
                m->class_models[j * m->models + b->model[at]]) {
                usable += core;
                n++;
            }
        }
        sum += usable * m->several[((int64_t)j * (m->cpus + 1) + cpu) * (b->width + 1) + n];
    }
    return sum;
}

int64_t fragmentation(const struct kernel *k, int32_t node)
{
    return fragmentation_after(k, 0, node, 0);
}

int64_t fragmentation_after(const struct kernel *k, const struct shape *s, int32_t node, const int32_t *chosen)
{
    const struct board *b = &k->board;
    int64_t left = b->cpu[node], idle = 0, usable = 0;
    uint8_t marked[256] = {0};
    if (s && left != UNKNOWN)
        left -= s->cpu;
    for (int32_t i = 0; s && i < s->count; i++)
        marked[chosen[i]] = 1;
    int32_t cpu = cpu_index(&k->mix, left);
    for (int32_t g = 0; g < b->count[node]; g++) {
        int64_t at = (int64_t)node * b->width + g;
        int64_t core = b->core[at] - (marked[g] ? s->core : 0);
        int64_t memory = b->memory[at] - (marked[g] ? s->memory : 0);
        idle += core;
        usable += usable_by_one(k, b->model[at], cpu, core, memory);
    }
    if (k->mix.classes)
        usable += usable_by_several(k, node, cpu, s, marked);
    return idle * k->mix.total - usable;
}
