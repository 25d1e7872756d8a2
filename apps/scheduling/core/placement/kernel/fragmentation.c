/* Fragmentation: the idle GPU of a node that the mix cannot use, by sums over the mix; see fragmentation.py. */
#include "kernel.h"

/* Return the number of values of the axis that are reached. */
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

/* Return the core of one GPU times the weight of the one-GPU types that it could carry. */
static int64_t usable_by_one(const struct kernel *k, int32_t model, int32_t cpu, int64_t core, int64_t memory)
{
    const struct mix *m = &k->mix;
    if (core <= 0)
        return 0;
    int64_t at = ((int64_t)model * (m->cpus + 1) + cpu) * (m->cores + 1) +
                 m->core_index[core < k->board.whole ? core : k->board.whole];
    return core * m->single[at * (m->memories + 1) + reached(m->memory_axis, m->memories, memory)];
}

static int carries(const struct mix *m, int32_t j, int32_t model, int64_t core, int64_t memory)
{
    return core >= m->class_core[j] && memory >= m->class_memory[j] && m->class_models[j * m->models + model];
}

static int64_t usable_by_class(const struct kernel *k, int32_t j, int32_t cpu, int64_t core, int32_t count)
{
    return core * k->mix.several[((int64_t)j * (k->mix.cpus + 1) + cpu) * (k->board.width + 1) + count];
}

/* Sum the types of several GPUs, of the whole node; the marked GPUs have this much less. */
static int64_t usable_by_several(const struct kernel *k, int32_t node, int32_t cpu, const struct shape *less,
                                 const uint8_t *marked, struct worth *kept)
{
    const struct board *b = &k->board;
    const struct mix *m = &k->mix;
    int64_t sum = 0;
    for (int32_t j = 0; j < m->classes; j++) {
        int64_t usable = 0;
        int32_t n = 0;
        for (int32_t g = 0; g < b->count[node]; g++) {
            int64_t at = (int64_t)node * b->width + g;
            int64_t core = core_at(b, at) - (marked[g] ? less->core : 0);
            int64_t memory = memory_at(b, at) - (marked[g] ? less->memory : 0);
            if (carries(m, j, b->model[at], core, memory)) {
                usable += core;
                n++;
            }
        }
        if (kept && j < CLASSES_KEPT) {
            kept->class_core[j] = usable;
            kept->class_count[j] = n;
        }
        sum += usable_by_class(k, j, cpu, usable, n);
    }
    return sum;
}

const struct worth *worth_of(struct kernel *k, int32_t node)
{
    const struct board *b = &k->board;
    struct worth *w = &k->worth[node];
    const uint8_t none[WIDEST + 1] = {0};
    if (k->known[node])
        return w;
    k->known[node] = 1;
    w->cpu = cpu_index(&k->mix, b->cpu[node]);
    w->idle = w->usable = 0;
    for (int32_t g = 0; g < b->count[node]; g++) {
        int64_t at = (int64_t)node * b->width + g;
        w->idle += core_at(b, at);
        k->usable[at] = usable_by_one(k, b->model[at], w->cpu, core_at(b, at), memory_at(b, at));
        w->usable += k->usable[at];
    }
    int64_t several = usable_by_several(k, node, w->cpu, 0, none, w);
    w->fragmentation = w->idle * k->mix.total - w->usable - several;
    return w;
}

/* Compute the fragmentation from the sums of the node as it is: only the chosen GPUs are examined. */
static int64_t by_difference(const struct kernel *k, const struct shape *s, int32_t node, const int32_t *chosen)
{
    const struct board *b = &k->board;
    const struct mix *m = &k->mix;
    const struct worth *w = &k->worth[node];
    int64_t usable = w->usable, idle = w->idle - (int64_t)s->core * s->count;
    for (int32_t i = 0; i < s->count; i++) {
        int64_t at = (int64_t)node * b->width + chosen[i];
        usable -= k->usable[at];
        usable += usable_by_one(k, b->model[at], w->cpu, b->core[at] - s->core, b->memory[at] - s->memory);
    }
    for (int32_t j = 0; j < m->classes; j++) {
        int64_t core = w->class_core[j];
        int32_t n = w->class_count[j];
        if (!n)
            continue;
        for (int32_t i = 0; i < s->count; i++) {
            int64_t at = (int64_t)node * b->width + chosen[i];
            if (!carries(m, j, b->model[at], b->core[at], b->memory[at]))
                continue;
            int still = carries(m, j, b->model[at], b->core[at] - s->core, b->memory[at] - s->memory);
            core -= still ? s->core : b->core[at];
            n -= !still;
        }
        usable += usable_by_class(k, j, w->cpu, core, n);
    }
    return idle * m->total - usable;
}

int64_t fragmentation_after(struct kernel *k, const struct shape *s, int32_t node, const int32_t *chosen)
{
    const struct board *b = &k->board;
    const struct worth *w = worth_of(k, node);
    int32_t cpu = b->cpu[node] == UNKNOWN ? w->cpu : cpu_index(&k->mix, b->cpu[node] - s->cpu);
    if (cpu == w->cpu && k->mix.classes <= CLASSES_KEPT)
        return by_difference(k, s, node, chosen);
    int64_t idle = 0, usable = 0;
    uint8_t marked[WIDEST + 1] = {0};
    for (int32_t i = 0; i < s->count; i++)
        marked[chosen[i]] = 1;
    for (int32_t g = 0; g < b->count[node]; g++) {
        int64_t at = (int64_t)node * b->width + g;
        int64_t core = core_at(b, at) - (marked[g] ? s->core : 0);
        int64_t memory = memory_at(b, at) - (marked[g] ? s->memory : 0);
        idle += core;
        usable += usable_by_one(k, b->model[at], cpu, core, memory);
    }
    usable += usable_by_several(k, node, cpu, s, marked, 0);
    return idle * k->mix.total - usable;
}
