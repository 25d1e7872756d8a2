/* The policies, as policies.py defines them. Places of GPUs are in order wherever they are listed. */
#include "kernel.h"

#include <string.h>

/* Choose the first `count` of the fitting GPUs by core and then memory: least first, or with `sign` -1 most first. */
static void pick(const struct board *b, int32_t node, const struct fit *fit, int32_t count, int32_t sign,
                 int32_t *chosen)
{
    uint8_t taken[WIDEST + 1] = {0};
    const int32_t *core = b->core + (int64_t)node * b->width;
    const int64_t *memory = b->memory + (int64_t)node * b->width;
    for (int32_t i = 0; i < count; i++) {
        int32_t best = -1;
        for (int32_t j = 0; j < fit->count; j++) {
            int32_t g = fit->gpus[j];
            if (taken[g])
                continue;
            int64_t by_core = best < 0 ? -1 : sign * ((int64_t)core[g] - core[best]);
            if (by_core < 0 || (by_core == 0 && sign * (memory[g] - memory[best]) < 0))
                best = g;
        }
        taken[best] = 1;
    }
    for (int32_t j = 0, found = 0; j < fit->count; j++)
        if (taken[fit->gpus[j]])
            chosen[found++] = fit->gpus[j];
}

static int64_t idle_of(const struct board *b, int32_t node)
{
    int64_t idle = 0;
    for (int32_t g = 0; g < b->count[node]; g++)
        idle += core_at(b, (int64_t)node * b->width + g);
    return idle;
}

static int64_t binpack(const struct board *b, const struct shape *s, int32_t node, const struct fit *fit,
                       int32_t *chosen)
{
    int64_t score = 0;
    pick(b, node, fit, s->count, 1, chosen);
    for (int32_t i = 0; i < s->count; i++) {
        int64_t at = (int64_t)node * b->width + chosen[i];
        score -= b->core[at] * (1ll << 36) + b->memory[at];
    }
    return score;
}

static int64_t spread(const struct board *b, const struct shape *s, int32_t node, const struct fit *fit,
                      int32_t *chosen)
{
    int64_t core = 0;
    pick(b, node, fit, s->count, -1, chosen);
    for (int32_t i = 0; i < s->count; i++)
        core += b->core[(int64_t)node * b->width + chosen[i]];
    return (core << 20) + idle_of(b, node);
}

static int64_t gpu_admission(const struct board *b, const struct shape *s, int32_t node, const struct fit *fit,
                             int32_t *chosen)
{
    int64_t memory = 0;
    pick(b, node, fit, s->count, 1, chosen);
    for (int32_t g = 0; g < b->count[node]; g++)
        memory += memory_at(b, (int64_t)node * b->width + g);
    return -(idle_of(b, node) * (1ll << 36) + memory);
}

static int64_t drawn(const struct shape *s, const struct fit *fit, uint64_t draw, int32_t *chosen)
{
    uint8_t taken[WIDEST + 1] = {0};
    uint64_t start = draw / 1000003 % (uint64_t)fit->count;
    for (int32_t i = 0; i < s->count; i++)
        taken[fit->gpus[(start + (uint64_t)i) % (uint64_t)fit->count]] = 1;
    for (int32_t j = 0, found = 0; j < fit->count; j++)
        if (taken[fit->gpus[j]])
            chosen[found++] = fit->gpus[j];
    return 0;
}

static int64_t by_links(const struct board *b, const struct shape *s, int32_t node, const struct fit *fit,
                        int32_t *chosen)
{
    const uint8_t *near = 0;
    if (b->near[node] >= 0)
        near = b->matrices + (int64_t)b->near[node] * b->width * b->width;
    if (s->count > 1)
        return nearest(near, b->width, fit->gpus, fit->count, s->count, chosen);
    return least_broken(near, b->width, fit->gpus, fit->count, chosen);
}

static int64_t topology(const struct board *b, const struct shape *s, int32_t node, const struct fit *fit,
                        int32_t *chosen)
{
    if (s->count == 0 || (s->count == 1 && s->core < b->whole))
        return binpack(b, s, node, fit, chosen);
    return -(by_links(b, s, node, fit, chosen) * (1ll << 36) + idle_of(b, node));
}

static int64_t bucket(const struct mix *m, int64_t fall)
{
    int32_t low = 0, high = m->buckets;
    while (low < high) {
        int32_t middle = (low + high) / 2;
        if (m->bucket[middle] <= fall)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Return the imbalance between the free shares of core and of CPU; see fragmentation.py. */
static int64_t imbalance(const struct board *b, int32_t node, int64_t idle, int64_t cpu)
{
    const int64_t parts = 1024;
    int64_t all = (int64_t)b->count[node] * b->whole, all_cpu = b->all_cpu[node];
    if (all_cpu <= 0)
        return 0;
    idle = idle < all ? idle : all;
    cpu = cpu < 0 ? 0 : cpu < all_cpu ? cpu : all_cpu;
    int64_t apart = idle * parts / all - cpu * parts / all_cpu;
    return b->count[node] * apart * apart;
}

static int64_t packages(int64_t milli)
{
    return milli > 0 ? (milli + 31999) / 32000 : 0;
}

/* Return the watts that the node draws more with the request on these GPUs; see power.py. */
static int64_t watts_of(const struct kernel *k, const struct shape *s, int32_t node, const int32_t *chosen)
{
    const struct board *b = &k->board;
    int64_t watts = 0, all = b->all_cpu[node], free = b->cpu[node];
    for (int32_t i = 0; i < s->count; i++) {
        int64_t at = (int64_t)node * b->width + chosen[i];
        if (core_at(b, at) >= b->whole)
            watts += k->mix.watts[b->model[at]];
    }
    if (free == UNKNOWN || all == UNKNOWN)
        return watts;
    return watts + 105 * (packages(all - free + s->cpu) - packages(all - free));
}

/* Return the score of the node with the request on these GPUs, by the fall of its fragmentation. */
static int64_t descent(struct kernel *k, const struct shape *s, int32_t node, const int32_t *chosen)
{
    const struct board *b = &k->board;
    const struct mix *m = &k->mix;
    const struct worth *w = worth_of(k, node);
    int64_t fall = w->fragmentation - fragmentation_after(k, s, node, chosen), charged = 0, left;
    if (b->policy == FGD)
        return bucket(m, fall);
    for (int32_t i = 0; i < s->count; i++)
        charged += m->prices[b->model[(int64_t)node * b->width + chosen[i]]] * s->core;
    int64_t idle = w->idle - (int64_t)s->core * s->count, gpu = b->whole * m->total, cpu = b->cpu[node];
    left = floor_div(idle * m->total, 16);
    if (cpu != UNKNOWN) {
        int64_t apart = imbalance(b, node, idle, cpu - s->cpu) - imbalance(b, node, w->idle, cpu);
        left += floor_div((cpu - s->cpu) * gpu, 128000) + floor_div(3 * apart * gpu, 1024 * 1024);
    }
    if (charged)
        left += floor_div(10 * charged * m->total, 1000);
    if (b->policy == POWER)
        left += floor_div(watts_of(k, s, node, chosen) * gpu, 20);
    return floor_div(25 * fall - left, gpu);
}

/* Choose the best of the GPUs that fit, for a part of one. Equal GPUs score alike, so only the first of them is
 * tried. */
static int64_t best_single(struct kernel *k, const struct shape *s, int32_t node, const struct fit *fit,
                           int32_t *chosen)
{
    const struct board *b = &k->board;
    int64_t first = (int64_t)node * b->width, best = NO_FIT;
    for (int32_t i = 0; i < fit->count; i++) {
        int64_t at = first + fit->gpus[i];
        int alike = 0;
        for (int32_t j = 0; j < i && !alike; j++) {
            int64_t other = first + fit->gpus[j];
            alike =
                b->core[at] == b->core[other] && b->memory[at] == b->memory[other] && b->model[at] == b->model[other];
        }
        if (alike)
            continue;
        int64_t score = descent(k, s, node, &fit->gpus[i]);
        if (score > best) {
            best = score;
            chosen[0] = fit->gpus[i];
        }
    }
    return best;
}

int64_t evaluate(struct kernel *k, const struct shape *s, int32_t node, const struct fit *fit, uint64_t draw,
                 int32_t *chosen)
{
    const struct board *b = &k->board;
    if (fit->count < needed(s))
        return NO_FIT;
    switch (b->policy) {
    case BINPACK:
        return binpack(b, s, node, fit, chosen);
    case SPREAD:
        return spread(b, s, node, fit, chosen);
    case GPU_ADMISSION:
        return gpu_admission(b, s, node, fit, chosen);
    case TOPOLOGY:
        return topology(b, s, node, fit, chosen);
    case RANDOM:
        return drawn(s, fit, draw, chosen);
    default:
        break;
    }
    if (s->count == 1 && s->core < b->whole)
        return best_single(k, s, node, fit, chosen);
    if (b->policy != FGD && s->count)
        by_links(b, s, node, fit, chosen);
    else
        memcpy(chosen, fit->gpus, (size_t)s->count * sizeof *chosen);
    return descent(k, s, node, chosen);
}
