/* Distances between the GPUs of a node; see topology.py. Without known links every GPU is as far as can be. */
#include "kernel.h"

#include <string.h>

struct group {
    int32_t n, gpus[WIDEST + 1];
};

static int32_t distance(const uint8_t *near, int32_t width, int32_t a, int32_t b)
{
    return near ? near[a * width + b] : FAR;
}

/* Find the group of `first` among the members that are not in one yet, in the members' order. */
static void reach(const uint8_t *near, int32_t width, const struct group *members, int32_t most, int32_t first,
                  uint8_t *seen, struct group *group)
{
    int32_t edge[WIDEST + 1], edges = 0;
    uint8_t here[WIDEST + 1] = {0};
    here[first] = 1;
    edge[edges++] = first;
    while (edges) {
        int32_t from = edge[--edges];
        for (int32_t i = 0; i < members->n; i++) {
            int32_t to = members->gpus[i];
            if (!here[to] && distance(near, width, from, to) <= most) {
                here[to] = 1;
                edge[edges++] = to;
            }
        }
    }
    group->n = 0;
    for (int32_t i = 0; i < members->n; i++)
        if (here[members->gpus[i]]) {
            group->gpus[group->n++] = members->gpus[i];
            seen[members->gpus[i]] = 1;
        }
}

/* Find the smallest group of at least `count`, the first of equals; 0 if there is none. */
static int smallest(const uint8_t *near, int32_t width, const struct group *members, int32_t most, int32_t count,
                    uint8_t *seen, struct group *best)
{
    struct group group;
    best->n = 0;
    for (int32_t i = 0; i < members->n; i++) {
        if (seen[members->gpus[i]])
            continue;
        reach(near, width, members, most, members->gpus[i], seen, &group);
        if (group.n >= count && (!best->n || group.n < best->n))
            *best = group;
    }
    return best->n > 0;
}

/* Find the largest group of those not marked in `done`, the first of equals; 0 if there is none. */
static int largest(const uint8_t *near, int32_t width, const struct group *members, int32_t most, const uint8_t *done,
                   struct group *best)
{
    struct group group;
    uint8_t seen[WIDEST + 1];
    memcpy(seen, done, sizeof seen);
    best->n = 0;
    for (int32_t i = 0; i < members->n; i++) {
        if (seen[members->gpus[i]])
            continue;
        reach(near, width, members, most, members->gpus[i], seen, &group);
        if (group.n > best->n)
            *best = group;
    }
    return best->n > 0;
}

/* Choose `count` of the group: whole inner groups, the largest first, the rest from the smallest that has it. */
static void part(const uint8_t *near, int32_t width, const struct group *group, int32_t count, int32_t most,
                 uint8_t *taken)
{
    struct group members = *group, inner;
    for (; most > 0 && near; most--) {
        uint8_t done[WIDEST + 1] = {0}, left_out[WIDEST + 1];
        memset(left_out, 1, sizeof left_out);
        while (largest(near, width, &members, most, done, &inner)) {
            int whole = inner.n <= count;
            count -= whole ? inner.n : 0;
            for (int32_t i = 0; i < inner.n; i++) {
                done[inner.gpus[i]] = 1;
                taken[inner.gpus[i]] |= (uint8_t)whole;
                left_out[inner.gpus[i]] = (uint8_t)whole;
            }
        }
        if (!count)
            return;
        smallest(near, width, &members, most, count, left_out, &inner);
        members = inner;
    }
    for (int32_t i = 0; i < count; i++)
        taken[members.gpus[i]] = 1;
}

int64_t nearest(const uint8_t *near, int32_t width, const int32_t *free, int32_t n, int32_t count, int32_t *chosen)
{
    struct group members = {.n = n}, group;
    uint8_t taken[WIDEST + 1] = {0};
    int32_t most = near ? 1 : FAR;
    memcpy(members.gpus, free, (size_t)n * sizeof *free);
    for (; most < FAR; most++) {
        uint8_t seen[WIDEST + 1] = {0};
        if (smallest(near, width, &members, most, count, seen, &group))
            break;
    }
    if (most == FAR)
        group = members;
    part(near, width, &group, count, most - 1, taken);
    for (int32_t i = 0, found = 0; i < n; i++)
        if (taken[free[i]])
            chosen[found++] = free[i];
    return most * 64 + (group.n < 63 ? group.n : 63);
}

int64_t least_broken(const uint8_t *near, int32_t width, const int32_t *free, int32_t n, int32_t *chosen)
{
    int64_t best = INT64_MAX;
    for (int32_t i = 0; i < n; i++) {
        int64_t counts[FAR + 1] = {0}, cost = 0;
        for (int32_t j = 0; near && j < n; j++)
            if (j != i)
                counts[distance(near, width, free[i], free[j])]++;
        for (int32_t most = 1; most < FAR; most++)
            cost = cost << 8 | (counts[most] < 255 ? counts[most] : 255);
        if (cost < best) {
            best = cost;
            chosen[0] = free[i];
        }
    }
    return best;
}
