/* Filters: the GPUs of a node that fit, and the filters that remove the others; see filters.py. */
#include "kernel.h"

#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "count() writes eight counts as one number, the first one lowest"
#endif

static int kept_off(const struct board *b, int64_t at, int32_t want)
{
    if (want == 0)
        return b->exclusion[at] != 0;
    int in_use = b->core[at] < b->whole || b->memory[at] < b->size[at];
    return in_use && b->exclusion[at] != want;
}

static enum filter verdict(const struct board *b, const struct shape *s, int32_t node, int64_t at, uint8_t extra,
                           int32_t want)
{
    if (!b->alive[at])
        return NODE_UNAVAILABLE;
    if (!s->nodes[node])
        return NODE_SELECTOR;
    if (!s->models[b->model[at]])
        return GPU_MODEL;
    if (b->memory[at] < s->memory)
        return GPU_MEMORY;
    if (b->core[at] < s->core)
        return GPU_CORE;
    if (b->cpu[node] != UNKNOWN && b->cpu[node] < s->cpu)
        return NODE_CPU;
    if (b->ram[node] != UNKNOWN && b->ram[node] < s->ram)
        return NODE_RAM;
    if (extra)
        return extra;
    return kept_off(b, at, want) ? EXCLUSION : NONE;
}

/* Return 1 if only free room decides: every GPU is alive, none has an exclusion label, and all are of one model. */
static int is_plain(const struct board *b, int32_t node)
{
    int64_t first = (int64_t)node * b->width;
    for (int64_t at = first; at < first + b->count[node]; at++)
        if (!b->alive[at] || b->exclusion[at] || b->model[at] != b->model[first])
            return 0;
    return b->count[node] > 0;
}

/* Write the counts of the filters below 8 to fit->removed in one store: the next comparison loads them at once, and
 * would wait for bytes stored one by one. */
static void count(struct fit *fit, enum filter by, int32_t gpus, uint64_t others)
{
    _Static_assert(NODE_RAM < 8, "one number holds the counts of the filters that a plain node knows");
    uint64_t counts = (uint64_t)gpus << 8 * by | others;
    memcpy(fit->removed, &counts, sizeof counts);
}

/* Compute verdict() of each GPU, for a plain node and a request without anything special. */
static void look_plainly(const struct board *b, const struct shape *s, int32_t node, struct fit *fit)
{
    int32_t n = b->count[node], enough_memory = 0, fitting = 0;
    const int32_t *core = b->core + (int64_t)node * b->width;
    const int64_t *memory = b->memory + (int64_t)node * b->width;
    if (!s->nodes[node]) {
        count(fit, NODE_SELECTOR, n, 0);
        return;
    }
    if (!s->models[b->model[(int64_t)node * b->width]]) {
        count(fit, GPU_MODEL, n, 0);
        return;
    }
    for (int32_t g = 0; g < n; g++) {
        int enough = memory[g] >= s->memory;
        fit->gpus[fitting] = g;
        enough_memory += enough;
        fitting += enough & (core[g] >= s->core);
    }
    uint64_t little = (uint64_t)(n - enough_memory) << 8 * GPU_MEMORY;
    little |= (uint64_t)(enough_memory - fitting) << 8 * GPU_CORE;
    enum filter others = NONE;
    if (b->cpu[node] != UNKNOWN && b->cpu[node] < s->cpu)
        others = NODE_CPU;
    else if (b->ram[node] != UNKNOWN && b->ram[node] < s->ram)
        others = NODE_RAM;
    else
        fit->count = fitting;
    count(fit, others, fitting, little);
}

void look(struct kernel *k, const struct shape *s, int32_t node, const uint8_t *extra, int32_t want, struct fit *fit)
{
    const struct board *b = &k->board;
    memset(fit->removed, 0, sizeof fit->removed);
    fit->count = 0;
    if (k->plain[node] == UNSURE)
        k->plain[node] = is_plain(b, node) ? PLAIN : PECULIAR;
    if (!extra && !want && k->plain[node] == PLAIN) {
        look_plainly(b, s, node, fit);
        return;
    }
    for (int32_t g = 0; g < b->count[node]; g++) {
        int64_t at = (int64_t)node * b->width + g;
        enum filter by = verdict(b, s, node, at, extra ? extra[g] : 0, want);
        fit->removed[by]++;
        if (by == NONE)
            fit->gpus[fit->count++] = g;
    }
}
