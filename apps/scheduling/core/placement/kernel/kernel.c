/* The kernel: its rows, its log of changes, and the choice among nodes. */
#include "kernel.h"

#include <stdlib.h>
#include <string.h>

struct kernel *kernel_open(const struct board *board)
{
    size_t n = (size_t)board->nodes;
    struct kernel *k = calloc(1, sizeof *k);
    if (!k)
        return 0;
    k->board = *board;
    k->log = calloc(n + 1, sizeof *k->log);
    k->stamp = calloc(n + 1, sizeof *k->stamp);
    k->listed = calloc(n + 1, sizeof *k->listed);
    k->usable = calloc(n * (size_t)board->width + 1, sizeof *k->usable);
    k->worth = calloc(n + 1, sizeof *k->worth);
    k->special_score = calloc(n + 1, sizeof *k->special_score);
    k->known = calloc(n + 1, 1);
    k->plain = calloc(n + 1, 1);
    if (k->log && k->stamp && k->listed && k->usable && k->worth && k->special_score && k->known && k->plain)
        return k;
    kernel_close(k);
    return 0;
}

void kernel_close(struct kernel *k)
{
    for (int32_t row = 0; row < k->rows; row++)
        kernel_drop_row(k, row);
    free(k->row);
    free(k->log);
    free(k->stamp);
    free(k->listed);
    free(k->usable);
    free(k->worth);
    free(k->special_score);
    free(k->known);
    free(k->plain);
    free(k);
}

/* Mark every score as out of date, but not which GPUs fit. */
void kernel_set_mix(struct kernel *k, const struct mix *mix)
{
    k->mix = *mix;
    memset(k->known, 0, (size_t)k->board.nodes);
    k->mixes++;
}

static void free_row(struct row *row)
{
    free(row->cell);
    free(row->block);
    free(row->stale);
    free(row);
}

/* Add a row and return its number, or -1 if there is no memory for it. */
int32_t kernel_add_row(struct kernel *k, const struct shape *shape)
{
    size_t n = (size_t)k->board.nodes;
    struct row *row = calloc(1, sizeof *row);
    if (!row)
        return -1;
    row->shape = *shape;
    row->at = k->head - k->board.nodes - 1;
    row->mixes = k->mixes;
    row->cell = calloc(n + 1, sizeof *row->cell);
    row->block = calloc(n / BLOCK + 1, sizeof *row->block);
    row->stale = calloc(n / BLOCK + 1, 1);
    int32_t free_place = 0;
    while (free_place < k->rows && k->row[free_place])
        free_place++;
    struct row **rows = k->row;
    if (free_place == k->rows)
        rows = realloc(k->row, (size_t)(k->rows + 1) * sizeof *rows);
    if (rows)
        k->row = rows;
    if (!rows || !row->cell || !row->block || !row->stale) {
        free_row(row);
        return -1;
    }
    k->rows += free_place == k->rows;
    k->row[free_place] = row;
    return free_place;
}

void kernel_drop_row(struct kernel *k, int32_t row)
{
    if (k->row[row])
        free_row(k->row[row]);
    k->row[row] = 0;
}

void kernel_changed(struct kernel *k, int32_t node)
{
    k->known[node] = 0;
    k->plain[node] = UNSURE;
    k->log[k->head++ % k->board.nodes] = node;
}

/* Take what the shape asks from the node and these GPUs of it, or with `sign` -1 give it back. */
void kernel_move(struct kernel *k, const struct shape *shape, int32_t node, const int32_t *gpus, int32_t sign)
{
    struct board *b = &k->board;
    for (int32_t i = 0; i < shape->count; i++) {
        int64_t at = (int64_t)node * b->width + gpus[i];
        b->core[at] -= sign * shape->core;
        b->memory[at] -= sign * shape->memory;
    }
    if (b->cpu[node] != UNKNOWN)
        b->cpu[node] -= sign * shape->cpu;
    if (b->ram[node] != UNKNOWN)
        b->ram[node] -= sign * shape->ram;
    kernel_changed(k, node);
}

/* Move many claims at once: `shapes[which[i]]` is the shape of the i-th, and `gpus` has its GPUs, numbered through
 * the board. */
void kernel_move_many(struct kernel *k, int32_t n, const struct shape *shapes, const int32_t *which,
                      const int32_t *gpus, int32_t sign)
{
    for (int32_t i = 0; i < n; i++) {
        const struct shape *shape = &shapes[which[i]];
        int32_t places[WIDEST + 1], node = gpus[0] / k->board.width;
        for (int32_t g = 0; g < shape->count; g++)
            places[g] = gpus[g] % k->board.width;
        kernel_move(k, shape, node, places, sign);
        gpus += shape->count;
    }
}

static void rescore(struct kernel *k, struct row *row, int32_t node)
{
    struct fit fit;
    int32_t chosen[WIDEST + 1];
    struct cell *cell = &row->cell[node];
    look(k, &row->shape, node, 0, row->shape.exclusion, &fit);
    if (memcmp(cell->removed, fit.removed, sizeof fit.removed) != 0) {
        for (int32_t f = 0; f < FILTERS; f++)
            row->totals[f] += fit.removed[f] - cell->removed[f];
        memcpy(cell->removed, fit.removed, sizeof fit.removed);
    }
    if (fit.count < needed(&row->shape) && cell->score == NO_FIT)
        return;
    int64_t score = evaluate(k, &row->shape, node, &fit, 0, chosen), *best = &row->block[node / BLOCK];
    if (score >= *best)
        *best = score;
    else if (cell->score == *best)
        row->stale[node / BLOCK] = 1;
    cell->score = score;
}

static void score_again(struct kernel *k, struct row *row)
{
    for (int32_t node = 0; node < k->board.nodes; node++)
        if (row->cell[node].score != NO_FIT)
            rescore(k, row, node);
    row->mixes = k->mixes;
}

/* Visit each node of the log since then once. A row's cells come in no order, so the following ones are prefetched. */
static void follow_log(struct kernel *k, struct row *row)
{
    int32_t nodes = k->board.nodes, next = (int32_t)(row->at % nodes);
    k->serial++;
    for (int64_t left = k->head - row->at; left; left--) {
        int32_t node = k->log[next], ahead = next + 8;
        __builtin_prefetch(&row->cell[k->log[ahead < nodes ? ahead : ahead % nodes]], 1);
        next = next + 1 < nodes ? next + 1 : 0;
        if (k->stamp[node] == k->serial)
            continue;
        k->stamp[node] = k->serial;
        rescore(k, row, node);
    }
}

/* Bring the row up to date with the nodes and with the mix. */
static void catch_up(struct kernel *k, struct row *row)
{
    int32_t nodes = k->board.nodes;
    if (k->head - row->at > nodes) {
        row->mixes = k->mixes;
        memset(row->stale, 1, (size_t)nodes / BLOCK + 1);
        for (int32_t node = 0; node < nodes; node++)
            rescore(k, row, node);
    } else {
        follow_log(k, row);
    }
    row->at = k->head;
    if (row->mixes != k->mixes)
        score_again(k, row);
    for (int32_t block = 0; block * BLOCK < nodes; block++) {
        if (!row->stale[block])
            continue;
        int64_t best = NO_FIT;
        for (int32_t node = block * BLOCK; node < nodes && node < (block + 1) * BLOCK; node++)
            best = row->cell[node].score > best ? row->cell[node].score : best;
        row->block[block] = best;
        row->stale[block] = 0;
    }
}

/* Return the first node with the best score; -1 if nothing fits. */
static int32_t best_of_row(const struct kernel *k, const struct row *row)
{
    int64_t best = NO_FIT;
    int32_t in = -1;
    for (int32_t block = 0; block * BLOCK < k->board.nodes; block++)
        if (row->block[block] > best) {
            best = row->block[block];
            in = block * BLOCK;
        }
    while (in >= 0 && row->cell[in].score != best)
        in++;
    return in;
}

/* Return the row's score, or the one computed for this request alone. */
static int64_t score_of(const struct kernel *k, const struct row *row, const struct special *special, int32_t node)
{
    if (special && k->stamp[node] == k->serial)
        return k->special_score[k->listed[node]];
    return special && special->only ? NO_FIT : row->cell[node].score;
}

static int32_t best_of_all(const struct kernel *k, const struct row *row, const struct special *special, uint64_t draw)
{
    int64_t best = NO_FIT;
    int32_t found = -1;
    uint64_t alike = 0;
    for (int32_t node = 0; node < k->board.nodes; node++) {
        int64_t score = score_of(k, row, special, node);
        if (score > best) {
            best = score;
            found = node;
            alike = 0;
        }
        alike += score == best && score != NO_FIT;
    }
    if (k->board.policy != RANDOM || found < 0)
        return found;
    for (uint64_t left = draw % alike; score_of(k, row, special, found) != best || left--;)
        found++;
    return found;
}

/* Score the listed nodes for this request alone, and count its GPUs as they are for it. */
static void consider(struct kernel *k, const struct row *row, const struct special *special, uint64_t draw,
                     struct answer *answer)
{
    struct fit fit;
    int32_t chosen[WIDEST + 1];
    k->serial++;
    for (int32_t i = 0; i < special->listed; i++) {
        int32_t node = special->nodes[i];
        look(k, &row->shape, node, special->extra + (int64_t)i * k->board.width, special->want, &fit);
        k->special_score[i] = evaluate(k, &row->shape, node, &fit, draw, chosen);
        k->stamp[node] = k->serial;
        k->listed[node] = i;
        for (int32_t f = 0; f < FILTERS; f++)
            answer->removed[f] -= row->cell[node].removed[f];
    }
    if (special->only) {
        answer->removed[AFFINITY] += answer->removed[NONE] + answer->removed[EXCLUSION];
        answer->removed[NONE] = answer->removed[EXCLUSION] = 0;
    }
    for (int32_t i = 0; i < special->listed; i++) {
        look(k, &row->shape, special->nodes[i], special->extra + (int64_t)i * k->board.width, special->want, &fit);
        for (int32_t f = 0; f < FILTERS; f++)
            answer->removed[f] += fit.removed[f];
        answer->most = fit.count > answer->most ? fit.count : answer->most;
    }
}

static void most_on_one_node(const struct kernel *k, const struct row *row, const struct special *special,
                             struct answer *answer)
{
    for (int32_t node = 0; node < k->board.nodes && !(special && special->only); node++)
        if (!special || k->stamp[node] != k->serial) {
            int32_t fits = row->cell[node].removed[NONE];
            answer->most = fits > answer->most ? fits : answer->most;
        }
}

/* Return the node for the request and its GPUs there, or -1 and why; answer->removed counts all GPUs either way. */
int32_t kernel_best(struct kernel *k, int32_t number, uint64_t draw, const struct special *special,
                    struct answer *answer, int32_t *gpus)
{
    struct row *row = k->row[number];
    struct fit fit;
    catch_up(k, row);
    answer->most = 0;
    memcpy(answer->removed, row->totals, sizeof answer->removed);
    if (special)
        consider(k, row, special, draw, answer);
    if (special || k->board.policy == RANDOM)
        answer->node = best_of_all(k, row, special, draw);
    else
        answer->node = best_of_row(k, row);
    if (answer->node < 0) {
        most_on_one_node(k, row, special, answer);
        return -1;
    }
    const uint8_t *extra = 0;
    int32_t want = row->shape.exclusion;
    if (special && k->stamp[answer->node] == k->serial) {
        extra = special->extra + (int64_t)k->listed[answer->node] * k->board.width;
        want = special->want;
    }
    look(k, &row->shape, answer->node, extra, want, &fit);
    evaluate(k, &row->shape, answer->node, &fit, draw, gpus);
    return answer->node;
}

/* Place and take one after the other; `gpus` has room for `width` of each. */
void kernel_place_many(struct kernel *k, int32_t n, const int32_t *rows, const uint64_t *draws, struct answer *answers,
                       int32_t *gpus)
{
    for (int32_t i = 0; i < n; i++) {
        int32_t *chosen = gpus + (int64_t)i * k->board.width;
        if (kernel_best(k, rows[i], draws[i], 0, &answers[i], chosen) >= 0)
            kernel_move(k, &k->row[rows[i]]->shape, answers[i].node, chosen, 1);
    }
}
