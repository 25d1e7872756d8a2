/* Which GPUs of a node fit, and what removed the others: filters.py. */
#include "kernel.h"

#include <string.h>

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

void look(const struct board *b, const struct shape *s, int32_t node, const uint8_t *extra, int32_t want,
          struct fit *fit)
{
    memset(fit->removed, 0, sizeof fit->removed);
    fit->count = 0;
    for (int32_t g = 0; g < b->count[node]; g++) {
        int64_t at = (int64_t)node * b->width + g;
        enum filter by = verdict(b, s, node, at, extra ? extra[g] : 0, want);
        fit->removed[by]++;
        if (by == NONE)
            fit->gpus[fit->count++] = g;
    }
}
