/* Copies within the memory of a GPU are charged and held like launches, whichever entry makes them; those between the host and
 * the GPU are neither. */
#include "arbiter_node.h"
#include "real.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

static const char *const hooked[] = {
#define NAME(name) #name,
    HOOKED_CUDA(NAME)};
#undef NAME

static void add_name(char list[400], const char *name, double ratio)
{
    size_t n = strlen(list);
    snprintf(list + n, 400 - n, " %s (%.2f)", name, ratio);
}

/* A real driver lacks some, and gives no addresses to others. */
static int is_right(double ratio)
{
    return (ratio > 0.75 && ratio < 1.33) || (on_real_gpu && ratio == -1);
}

/* How many of the entries are charged rightly; the others' names. */
static int rightly_charged(const struct player *p, char wrong[400], int *entries)
{
    char line[96];
    int rights = 0;
    *entries = 0;
    wrong[0] = 0;
    for (size_t i = 0; i < sizeof hooked / sizeof *hooked; i++) {
        if (strncmp(hooked[i], "cuMemcpy", 8) != 0 || strstr(hooked[i], "toH") || strstr(hooked[i], "HtoD"))
            continue;
        snprintf(line, sizeof line, "within_%s", hooked[i]);
        double ratio = figure_of(p, line);
        ++*entries;
        rights += is_right(ratio);
        if (!is_right(ratio))
            add_name(wrong, hooked[i], ratio);
    }
    return rights;
}

static void test_entries(void)
{
    static const char *const across[] = {
        "cuMemcpyHtoDAsync_v2",   "cuMemcpyDtoHAsync_v2", "cuMemcpyAsync",         "cuMemcpy",
        "cuMemcpy2DAsync_v2",     "cuMemcpy2D_v2",        "cuMemcpyBatchAsync_v2", "cuMemcpy3DAsync_v2",
        "cuMemcpy3DBatchAsync_v2"};
    struct claim claim;
    struct player p;
    char line[96], wrong[400];
    int entries = 1, rights = 0;
    /* Near the whole, so that nothing waits; but not the whole, or only a part would be looked at. */
    claim_make(&claim, 2 * GIB, 95);
    for (int again = 0; again < 3 && rights < entries; again++) {
        play(&p, &claim, PRELOADED, "copies_charged", NULL);
        finish(&p);
        rights = rightly_charged(&p, wrong, &entries);
    }
    expect(rights == entries && entries > 50,
           "of %d entries that copy within the GPU's memory %d are charged what they take%s", entries, rights, wrong);
    for (size_t i = 0; i < sizeof across / sizeof *across; i++) {
        snprintf(line, sizeof line, "across_%s", across[i]);
        double ratio = figure_of(&p, line);
        expect(fabs(ratio) < 0.05 || (on_real_gpu && ratio == -1), "%s to or from the host is not: %.2f", across[i],
               ratio);
    }
    play(&p, &claim, PRELOADED, "copies_captured", NULL);
    finish(&p);
    expect(figure_of(&p, "bad") == 0, "copies in a stream that is captured do not break it (%.0f)",
           figure_of(&p, "bad"));
    claim_end(&claim);
}

/* Copies a second of one entry, without the library or under a limit; retried where a busy machine held them up. */
static double rate_of(const char *entry, int preloaded, uint32_t core, double least)
{
    double rate = 0;
    for (int again = 0; again < 4 && rate <= least; again++) {
        struct claim claim;
        struct player p;
        claim_make(&claim, 2 * GIB, core);
        play(&p, &claim, preloaded, "copies_flood", entry, preloaded ? "2" : "0.5", "100", NULL);
        finish(&p);
        rate = figure_of(&p, "error") == 0 ? figure_of(&p, "overall") : -1;
        claim_end(&claim);
    }
    return rate;
}

/* Copies a second that have the GPU to themselves. The simulated one's follow from its bandwidth; a real one is asked. */
static double whole_rate(const char *entry)
{
    double rate = 1e9 / (64.0 * MIB / 1000 + 1000);
    for (int i = 0; on_real_gpu && i < 3; i++)
        rate = i ? fmax(rate, rate_of(entry, BARE, 100, 0)) : rate_of(entry, BARE, 100, 0);
    return rate;
}

static void test_floods(void)
{
    static const char *const entries[] = {"cuMemcpyDtoDAsync_v2", "cuMemcpyDtoD_v2", "cuMemcpyAsync",
                                          "cuMemcpy2DAsync_v2"};
    double bare = rate_of(entries[0], BARE, 100, 0.9 * whole_rate(entries[0]));
    expect(bare > 0.75 * whole_rate(entries[0]), "control: without the library a flood has the GPU: %.0f %%",
           100 * bare / whole_rate(entries[0]));
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        double whole = whole_rate(entries[i]);
        double share = 100 * rate_of(entries[i], PRELOADED, 25, whole * 0.235) / whole;
        expect(fabs(share - 25) <= (on_real_gpu ? 3 : 2), "a flood of %s under 25 %%: %.1f %%", entries[i], share);
    }
}

/* The next whole window that a player speaks of. */
static double next(struct player *p, const char *name)
{
    for (int window = 0; window < 2; window++) {
        p->length = 0;
        p->text[0] = 0;
        if (!wait_for(p, name))
            return 0;
    }
    return figure_of(p, name);
}

/* Shares by what the tenants themselves get done: a page would not show what nobody charges. */
static void test_neighbours(void)
{
    double whole = whole_rate("cuMemcpyDtoDAsync_v2"), copies = 0, kernels = 0, part = 0;
    node_begin();
    node_add_claim(10, 100);
    node_add_claim(90, 100);
    play(&node.player[0], &node.claim[0], PRELOADED, "copies_flood", "cuMemcpyDtoDAsync_v2", "60", "1", NULL);
    wait_for(&node.player[0], "rate");
    play(&node.player[1], &node.claim[1], PRELOADED, "load", "1000000", "0", "60", "1", NULL);
    wait_for(&node.player[1], "share");
    becomes(contended, 2);
    for (int again = 0; again < 5 && part < 0.97 * 90; again++) {
        copies = 100 * next(&node.player[0], "rate") / whole;
        kernels = next(&node.player[1], "share");
        part = 100 * kernels / (kernels + copies + 1e-9);
    }
    expect(part >= 0.97 * 90 && kernels + copies > 45,
           "beside a flood of copies under 10 %% a tenant keeps its 90: %.1f of %.1f %%", kernels, kernels + copies);
    arbiter_end(SIGTERM);
    node_end();
}

void test_copies(void)
{
    test_entries();
    test_floods();
    test_neighbours();
}
