/* Three processes throw dice over memory that they hold together: make, export, send, import, map, release, close, kill. A model
 * knows after every throw what lives and what must be charged. */
#include "shared.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PLACES 4
#define PIECES 512
#define PIECE_MIB 64.0

enum { HANDLE, MAPPING, DESCRIPTOR, KINDS };

/* Which piece lies in which place of whom; 0: none. */
static int held[PARTIES][KINDS][PLACES], maker[PIECES], exported[PIECES], pieces;

static int holds(int party, int kind, int piece)
{
    for (int i = 0; i < PLACES; i++)
        if (held[party][kind][i] == piece)
            return 1;
    return 0;
}

/* What must live, and what is charged at least: memory that descriptors alone hold may be nobody's once its maker is gone. */
static void expect_sums(double *real, double *least)
{
    *real = *least = 0;
    for (int piece = 1; piece <= pieces; piece++) {
        int in_use = 0, described = 0;
        for (int p = 0; p < PARTIES; p++) {
            in_use |= holds(p, HANDLE, piece) || holds(p, MAPPING, piece);
            described |= holds(p, DESCRIPTOR, piece);
        }
        *real += in_use || described ? PIECE_MIB : 0;
        *least += in_use || (described && maker[piece] >= 0) ? PIECE_MIB : 0;
    }
}

static int order(struct circle *circle, int party, const char *format, int i, int j)
{
    char line[32], what[24];
    snprintf(what, sizeof what, format, i, j);
    snprintf(line, sizeof line, "%c %s", 'A' + party, what);
    int error = circle_do(circle, line);
    return error;
}

static int send_and_receive(struct circle *circle, int from, int i, unsigned *seed)
{
    int to = (from + 1 + rand_r(seed) % (PARTIES - 1)) % PARTIES, j = rand_r(seed) % PLACES;
    char line[32];
    if (held[to][DESCRIPTOR][j])
        return 0;
    if (!circle->party[to].is_running)
        order(circle, to, "close -1", 0, 0);
    snprintf(line, sizeof line, "%c send %d %c", 'A' + from, i, 'A' + to);
    int error = circle_do(circle, line);
    held[to][DESCRIPTOR][j] = held[from][DESCRIPTOR][i];
    return error ? error : order(circle, to, "receive %d", j, 0);
}

static void end_party(struct circle *circle, int party, int killed)
{
    order(circle, party, killed ? "kill" : "exit", 0, 0);
    memset(held[party], 0, sizeof held[party]);
    for (int piece = 1; piece <= pieces; piece++)
        maker[piece] = maker[piece] == party ? -1 : maker[piece];
}

static int throw_handle(struct circle *circle, int party, int i, unsigned *seed)
{
    int *handle = &held[party][HANDLE][i], *mapping = &held[party][MAPPING][i], j = rand_r(seed) % PLACES;
    int *descriptor = &held[party][DESCRIPTOR][j];
    if (!*handle && !*mapping && *descriptor) {
        *handle = *descriptor;
        return order(circle, party, "import %d %d", i, j);
    }
    if (!*handle && !*mapping && pieces + 1 < PIECES) {
        *handle = ++pieces;
        maker[pieces] = party;
        return order(circle, party, "make %d %d", i, (int)PIECE_MIB);
    }
    if (*handle && !*descriptor && maker[*handle] == party && !exported[*handle]) {
        *descriptor = *handle;
        exported[*handle] = 1;
        return order(circle, party, "export %d %d", i, j);
    }
    if (*handle && !*mapping && rand_r(seed) % 2) {
        *mapping = *handle;
        return order(circle, party, "map %d", i, 0);
    }
    int *given = *handle ? handle : mapping;
    const char *what = *handle ? "release %d" : "unmap %d";
    int has = *given != 0;
    *given = 0;
    return has ? order(circle, party, what, i, 0) : 0;
}

static int throw_once(struct circle *circle, unsigned *seed)
{
    int party = rand_r(seed) % PARTIES, i = rand_r(seed) % PLACES, dice = rand_r(seed) % 40;
    int *descriptor = &held[party][DESCRIPTOR][i];
    if (!dice && circle->party[party].is_running) {
        end_party(circle, party, rand_r(seed) % 2);
        return 0;
    }
    if (dice < 10 && *descriptor)
        return send_and_receive(circle, party, i, seed);
    if (dice < 18 && *descriptor) {
        *descriptor = 0;
        return order(circle, party, "close %d", i, 0);
    }
    return throw_handle(circle, party, i, seed);
}

/* The account has two seconds to follow: a descriptor's end is found by a look. */
static int agrees(const struct circle *circle)
{
    double real, least;
    expect_sums(&real, &least);
    for (double end = now_s() + 2; now_s() < end; pause_s(0.005)) {
        double charged = circle_charged(circle, circle->claim[0]), used = circle_real(circle);
        int enough = charged >= least || circle_is(charged, least),
            not_more = charged <= real || circle_is(charged, real);
        if (enough && not_more && circle_is(used, real))
            return 1;
    }
    return 0;
}

void test_exports_dice(void)
{
    struct claim claim;
    struct circle circle;
    unsigned first = test_seed(), seed = first;
    unsigned long throws = test_count(400);
    int wrong = 0, errors = 0;
    memset(held, 0, sizeof held);
    memset(exported, 0, sizeof exported);
    pieces = 0;
    claim_make(&claim, 20 * GIB, 100);
    circle_begin(&circle, &claim);
    for (unsigned long i = 0; i < throws && !wrong; i++) {
        errors += throw_once(&circle, &seed) > 0;
        wrong += !agrees(&circle);
    }
    expect(!wrong && !errors,
           "in %lu throws of dice three processes are charged what they hold together, seed %u: "
           "%d errors, %d times not",
           throws, first, errors, wrong);
    circle_end(&circle);
    claim_end(&claim);
}
