/* The placement core's fast back end: the same integers as policies.py, a row of node scores for each shape of request.
 *
 * The arrays are the caller's (numpy's), laid out node by node with room for `width` GPUs each. A change of a node is
 * written into a log; a row rescores, when it is next asked, the nodes that changed since it was last asked. Nothing here
 * allocates but for a new kernel or row, prints, or ends the process. */
#ifndef PLACEMENT_KERNEL_H
#define PLACEMENT_KERNEL_H

#include <stdint.h>

#define UNKNOWN INT64_MIN
#define NO_FIT INT64_MIN
#define FAR 4
#define BLOCK 32
#define WIDEST 255
/* Each node's counts are stored for this many classes. */
#define CLASSES_KEPT 8

enum policy { GPUCLOUD, FGD, BINPACK, SPREAD, TOPOLOGY, GPU_ADMISSION, RANDOM, POWER };

/* The numbers of filters.py. */
enum filter {
    NONE,
    NODE_UNAVAILABLE,
    NODE_SELECTOR,
    GPU_MODEL,
    GPU_MEMORY,
    GPU_CORE,
    NODE_CPU,
    NODE_RAM,
    RESERVED,
    AFFINITY,
    ANTI_AFFINITY,
    EXCLUSION,
    FILTERS
};

/* `exclusion`: the label's number, 0 for none, -1 for more than one. The free room of a GPU that is not alive counts
 * for nothing. */
struct board {
    int32_t nodes, width, whole, policy;
    const int32_t *count;
    int64_t *cpu, *ram;
    const int64_t *all_cpu;
    int32_t *core;
    int64_t *memory;
    const int64_t *size;
    const uint8_t *alive;
    const int32_t *exclusion, *model;
    /* The number of the node's matrix in `matrices` (width × width distances); -1: its links are not known. */
    const int32_t *near;
    const uint8_t *matrices;
};

/* The mix of typical requests as sums: `single` by model and the number of the axes' values that the CPU, core and
 * memory of a GPU reach; types of several GPUs by class (core, memory, models), CPU and the number of the node's
 * GPUs that carry the class. */
struct mix {
    int64_t total;
    int32_t cores, memories, cpus, classes;
    const int32_t *core_index;
    const int64_t *memory_axis, *cpu_axis;
    const int64_t *single;
    const int32_t *class_core;
    const int64_t *class_memory;
    const uint8_t *class_models;
    const int64_t *several;
    int32_t models, buckets;
    const int64_t *prices, *bucket;
    /* By model: what a GPU draws more once a part of it is allocated. */
    const int64_t *watts;
};

/* `exclusion`: 0 for a request without such a label, 1 for one that needs an empty GPU where none carries its label. */
struct shape {
    int32_t count, core, exclusion;
    int64_t memory, cpu, ram;
    const uint8_t *models, *nodes;
};

/* The differences from the row for one request: `extra` holds, for each listed node, a filter (or 0) for each GPU;
 * `want` is the number of the request's exclusion label; `only`: no other node fits, its GPUs count under AFFINITY. */
struct special {
    int32_t listed, want, only;
    const int32_t *nodes;
    const uint8_t *extra;
};

struct answer {
    int32_t node, most;
    int64_t removed[FILTERS];
};

/* A node in a row: in one place, for rows are large and nodes come in no order. */
struct cell {
    int64_t score;
    uint8_t removed[FILTERS];
};

/* `block` is the best score of BLOCK nodes; `stale` marks those whose best was lowered. */
struct row {
    struct shape shape;
    int64_t at, mixes, totals[FILTERS];
    struct cell *cell;
    int64_t *block;
    uint8_t *stale;
};

/* The mix's sums for a node as it is: `usable` core times weight of each GPU, and by class the GPUs that carry it. */
struct worth {
    int64_t fragmentation, idle, usable, class_core[CLASSES_KEPT];
    int32_t cpu, class_count[CLASSES_KEPT];
};

/* For each node, 1 if only room and models decide which of its GPUs fit. */
enum plainness { UNSURE, PLAIN, PECULIAR };

struct kernel {
    struct board board;
    struct mix mix;
    int64_t head, serial, mixes;
    int64_t *stamp;
    int32_t *log, *listed;
    int32_t rows;
    int64_t *usable, *special_score;
    struct worth *worth;
    uint8_t *known, *plain;
    struct row **row;
};

struct kernel *kernel_open(const struct board *board);
void kernel_close(struct kernel *k);
uint64_t kernel_sources(void);
void kernel_set_mix(struct kernel *k, const struct mix *mix);
int32_t kernel_add_row(struct kernel *k, const struct shape *shape);
void kernel_drop_row(struct kernel *k, int32_t row);
void kernel_changed(struct kernel *k, int32_t node);
void kernel_move(struct kernel *k, const struct shape *shape, int32_t node, const int32_t *gpus, int32_t sign);
void kernel_move_many(struct kernel *k, int32_t n, const struct shape *shapes, const int32_t *which,
                      const int32_t *gpus, int32_t sign);
int32_t kernel_best(struct kernel *k, int32_t row, uint64_t draw, const struct special *special, struct answer *answer,
                    int32_t *gpus);
void kernel_place_many(struct kernel *k, int32_t n, const int32_t *rows, const uint64_t *draws, struct answer *answers,
                       int32_t *gpus);

/* One node: its GPUs that fit, its score, and its GPUs that are chosen. */
struct fit {
    uint8_t removed[FILTERS];
    int32_t count, gpus[WIDEST + 1];
};

void look(struct kernel *k, const struct shape *s, int32_t node, const uint8_t *extra, int32_t want, struct fit *fit);
int64_t evaluate(struct kernel *k, const struct shape *s, int32_t node, const struct fit *fit, uint64_t draw,
                 int32_t *chosen);
const struct worth *worth_of(struct kernel *k, int32_t node);
int64_t fragmentation_after(struct kernel *k, const struct shape *s, int32_t node, const int32_t *chosen);
int64_t nearest(const uint8_t *near, int32_t width, const int32_t *free, int32_t n, int32_t count, int32_t *chosen);
int64_t least_broken(const uint8_t *near, int32_t width, const int32_t *free, int32_t n, int32_t *chosen);

/* The number of GPUs of a node that must fit; a request for CPU alone needs a GPU that fits, too. */
static inline int32_t needed(const struct shape *s)
{
    return s->count ? s->count : 1;
}

static inline int64_t core_at(const struct board *b, int64_t at)
{
    return b->alive[at] ? b->core[at] : 0;
}

static inline int64_t memory_at(const struct board *b, int64_t at)
{
    return b->alive[at] ? b->memory[at] : 0;
}

static inline int64_t floor_div(int64_t a, int64_t b)
{
    int64_t q = a / b;
    return a % b < 0 ? q - 1 : q;
}

#endif
