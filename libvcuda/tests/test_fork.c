/* Children, however they are made: each pays for itself, and none touches its parent's account. */
#include "harness.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *when, *how, *what;
    int found; /* how the child must end: see roles_fork.c */
} children[] = {
    {"before", "fork", "use", 20},       {"before", "fork", "idle", 23},       {"before", "fork", "exec", 20},
    {"before", "fork", "exec_bare", 21}, {"before", "fork", "grandchild", 20}, {"before", "clone", "use", 20},
    {"before", "clone", "exec", 20},     {"before", "vfork", "exec", 20},      {"before", "vfork", "exec_bare", 21},
    {"before", "clone_vm", "exec", 20},  {"before", "spawn", "exec", 20},      {"before", "spawn", "exec_bare", 21},
    {"after", "fork", "use", 22},        {"after", "fork", "idle", 23},        {"after", "fork", "exec", 20},
    {"after", "fork", "exec_bare", 21},  {"after", "fork", "grandchild", 22},  {"after", "clone", "use", 22},
    {"after", "clone", "exec", 20},      {"after", "clone", "exec_bare", 21},  {"after", "vfork", "exec", 20},
    {"after", "vfork", "exec_bare", 21}, {"after", "clone_vm", "exec", 20},    {"after", "clone_vm", "exec_bare", 21},
    {"after", "spawn", "exec", 20},      {"after", "spawn", "exec_bare", 21},
};

static const char *meaning(int found)
{
    return found == 20   ? "has an account of its own, and the limit"
           : found == 21 ? "without the library has no limit"
           : found == 22 ? "gets the driver's refusal only"
                         : "ends in peace";
}

/* How a child that uses its parent's context ends without us: some real drivers crash it, instead of refusing. */
static int without_the_library(size_t i)
{
    struct claim claim;
    struct player p;
    if (!on_real_gpu)
        return 22;
    claim_make(&claim, 2 * GIB, 100);
    play(&p, &claim, BARE, "makes_child", children[i].when, children[i].how, children[i].what, NULL);
    int ended = finish_within(&p, 20);
    claim_end(&claim);
    return ended ? (int)figure_of(&p, "child") : 22;
}

static void test_children(void)
{
    struct claim claim;
    struct player p;
    claim_make(&claim, 2 * GIB + 3 * context_cost, 100);
    for (size_t i = 0; i < sizeof children / sizeof *children; i++) {
        play(&p, &claim, PRELOADED, "makes_child", children[i].when, children[i].how, children[i].what, NULL);
        int ended = finish_within(&p, 20), found = children[i].found;
        if (found == 22)
            found = without_the_library(i);
        expect(ended && figure_of(&p, "child") == found && figure_of(&p, "kept") == 1 && figure_of(&p, "works") == 1,
               "%s (%s) %s its parent began: %s (%.0f); the parent's account stays (%.0f) and works on (%.0f)",
               children[i].how, children[i].what, children[i].when, meaning(children[i].found), figure_of(&p, "child"),
               figure_of(&p, "kept"), figure_of(&p, "works"));
    }
    claim_end(&claim);
}

static void test_beside_thread(void)
{
    struct claim claim;
    struct player p;
    char text[16];
    unsigned long count = test_count(50);
    if (on_real_gpu)
        return; /* whose driver promises such children nothing: they hang without the library too */
    snprintf(text, sizeof text, "%lu", count);
    claim_make(&claim, 2 * GIB, 50);
    play(&p, &claim, PRELOADED, "forks_beside_thread", text, NULL);
    int ended = finish_within(&p, 30 + 0.2 * (double)count);
    expect(ended && figure_of(&p, "good") == (double)count && figure_of(&p, "left") == 0,
           "%lu forks beside a thread that launches and allocates: %.0f children ended well, %.0f bytes left", count,
           figure_of(&p, "good"), figure_of(&p, "left"));
    claim_end(&claim);
}

static void test_data_loader(void)
{
    struct claim claim;
    struct player p;
    claim_make(&claim, 2 * GIB, 50);
    play(&p, &claim, PRELOADED, "data_loader", NULL);
    int ended = finish_within(&p, 20);
    expect(ended && figure_of(&p, "good") == 4 && figure_of(&p, "bad") == 0 && figure_of(&p, "left") == 32.0 * MIB,
           "four forked workers compute beside their parent's launches: %.0f ended well, the account is the parent's",
           figure_of(&p, "good"));
    claim_end(&claim);
}

void test_forks(void)
{
    test_children();
    test_beside_thread();
    test_data_loader();
}
