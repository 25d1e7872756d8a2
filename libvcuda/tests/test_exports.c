/* Memory that several processes hold by descriptors: charged once, to its maker while that one lives, else to one who imported
 * it; given back when the last handle, mapping and descriptor are gone, whatever the order and however processes end. */
#include "shared.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What is done, and the MiB that are charged and really used then. */
struct line {
    const char *what;
    double mib;
};

static void test_lines(const char *sentence, const struct line *lines)
{
    struct claim claim;
    struct circle circle;
    double charged, real;
    char wrong[160] = "";
    claim_make(&claim, 8 * GIB, 100);
    circle_begin(&circle, &claim);
    for (const struct line *l = lines; l->what && !*wrong; l++) {
        int error = circle_do(&circle, l->what);
        if (error > 0)
            snprintf(wrong, sizeof wrong, "'%s' said error %d", l->what, error);
        else if (!circle_becomes(&circle, l->mib, &charged, &real))
            snprintf(wrong, sizeof wrong, "after '%s' %.0f MiB are charged, %.0f used, not %.0f", l->what, charged,
                     real, l->mib);
    }
    expect(!*wrong, "%s%s%s", sentence, *wrong ? ": " : "", wrong);
    circle_end(&circle);
    claim_end(&claim);
}

#define LINES(sentence, ...) test_lines(sentence, (const struct line[]){__VA_ARGS__, {NULL, 0}})

static void test_one_process(void)
{
    LINES("exported memory is given back by its handle, after its descriptor", {"A make 0 256", 256},
          {"A export 0 0", 256}, {"A close 0", 256}, {"A release 0", 0});
    LINES("and by its descriptor, after its handle", {"A make 0 256", 256}, {"A export 0 0", 256}, {"A release 0", 256},
          {"A close 0", 0});
    LINES("by the last of two descriptors", {"A make 0 256", 256}, {"A export 0 0", 256}, {"A dup 0 1", 256},
          {"A release 0", 256}, {"A close 0", 256}, {"A close 1", 0});
    LINES("by the last of two exports", {"A make 0 256", 256}, {"A export 0 0", 256}, {"A export 0 1", 256},
          {"A release 0", 256}, {"A close 1", 256}, {"A close 0", 0});
    LINES("by its mapping", {"A make 0 256", 256}, {"A map 0", 256}, {"A export 0 0", 256}, {"A release 0", 256},
          {"A close 0", 256}, {"A unmap 0", 0});
    LINES("by a forked child's descriptor", {"A make 0 256", 256}, {"A export 0 0", 256}, {"A fork", 256},
          {"A close 0", 256}, {"A release 0", 256}, {"A unfork", 0});
    LINES("what a process imports from itself costs nothing", {"A make 0 256", 256}, {"A export 0 0", 256},
          {"A import 1 0", 256}, {"A close 0", 256}, {"A release 0", 256}, {"A release 1", 0});
    LINES("a descriptor on its way holds it", {"B take 2", 2}, {"A make 0 256", 258}, {"A export 0 0", 258},
          {"A send 0 B", 258}, {"A close 0", 258}, {"A release 0", 258}, {"B receive 0", 258}, {"B close 0", 2});
}

static void test_two_processes(void)
{
    LINES("what another process imports is charged once", {"B take 2", 2}, {"A make 0 256", 258}, {"A export 0 0", 258},
          {"A send 0 B", 258}, {"B receive 0", 258}, {"B import 0 0", 258}, {"B close 0", 258}, {"B map 0", 258},
          {"A close 0", 258}, {"A release 0", 258}, {"B release 0", 258}, {"B unmap 0", 2});
    LINES("what its maker left by exit is its importer's", {"B take 2", 2}, {"A make 0 256", 258},
          {"A export 0 0", 258}, {"A send 0 B", 258}, {"B receive 0", 258}, {"B import 0 0", 258}, {"B close 0", 258},
          {"A exit", 258}, {"B release 0", 2});
    LINES("or by SIGKILL", {"B take 2", 2}, {"A make 0 256", 258}, {"A export 0 0", 258}, {"A send 0 B", 258},
          {"B receive 0", 258}, {"B import 0 0", 258}, {"A kill", 258}, {"B release 0", 258}, {"B close 0", 2});
    LINES("and where it is imported after its maker's death", {"B take 2", 2}, {"A make 0 256", 258},
          {"A export 0 0", 258}, {"A send 0 B", 258}, {"B receive 0", 258}, {"B import 0 0", 258}, {"A kill", 258},
          {"B import 1 0", 258}, {"B release 0", 258}, {"B close 0", 258}, {"B release 1", 2});
    LINES("an importer's death leaves it to its maker", {"B take 2", 2}, {"A make 0 256", 258}, {"A export 0 0", 258},
          {"A send 0 B", 258}, {"B receive 0", 258}, {"B import 0 0", 258}, {"A close 0", 258}, {"A release 0", 258},
          {"B kill", 0});
    LINES("and both deaths leave nothing", {"B take 2", 2}, {"A make 0 256", 258}, {"A export 0 0", 258},
          {"A send 0 B", 258}, {"B receive 0", 258}, {"B import 0 0", 258}, {"A kill", 258}, {"B kill", 0});
}

static void test_three_processes(void)
{
    LINES("two importers of a dead maker's memory pay for it once", {"B take 2", 2}, {"C take 2", 4},
          {"A make 0 256", 260}, {"A export 0 0", 260}, {"A send 0 B", 260}, {"A send 0 C", 260}, {"B receive 0", 260},
          {"C receive 0", 260}, {"B import 0 0", 260}, {"C import 0 0", 260}, {"B close 0", 260}, {"C close 0", 260},
          {"A kill", 260}, {"B release 0", 260}, {"C release 0", 4});
    LINES("whichever of them goes first, and however", {"B take 2", 2}, {"C take 2", 4}, {"A make 0 256", 260},
          {"A export 0 0", 260}, {"A send 0 B", 260}, {"A send 0 C", 260}, {"B receive 0", 260}, {"C receive 0", 260},
          {"B import 0 0", 260}, {"C import 0 0", 260}, {"A exit", 260}, {"C kill", 258}, {"B close 0", 258},
          {"B release 0", 2});
    /* The driver of an H200 (580) refuses to export what was imported. */
    if (on_real_gpu)
        return;
    LINES("what an importer exports on is still charged once", {"B take 2", 2}, {"C take 2", 4}, {"A make 0 256", 260},
          {"A export 0 0", 260}, {"A send 0 B", 260}, {"B receive 0", 260}, {"B import 0 0", 260}, {"B close 0", 260},
          {"B export 0 1", 260}, {"B send 1 C", 260}, {"C receive 0", 260}, {"C import 0 0", 260}, {"C close 0", 260},
          {"B close 1", 260}, {"B release 0", 260}, {"A close 0", 260}, {"A release 0", 260}, {"C release 0", 4});
}

/* Every order in which a handle, its descriptor, its mapping and another process's import can go. */
static void test_orders(void)
{
    static const char *const ways[] = {"A release 0", "A close 0", "A unmap 0", "B release 0"};
    struct claim claim;
    struct circle circle;
    double charged, real;
    int wrong = 0, orders = 0;
    claim_make(&claim, 8 * GIB, 100);
    circle_begin(&circle, &claim);
    circle_do(&circle, "B take 2");
    for (int order = 0; order < 256; order++) {
        int way[4] = {order & 3, order >> 2 & 3, order >> 4 & 3, order >> 6 & 3};
        if (((1 << way[0]) | (1 << way[1]) | (1 << way[2]) | (1 << way[3])) != 15)
            continue;
        static const char *const begin[] = {"A make 0 64", "A map 0",      "A export 0 0", "A send 0 B",
                                            "B receive 0", "B import 0 0", "B close 0"};
        orders++;
        for (size_t i = 0; i < sizeof begin / sizeof *begin; i++)
            wrong += circle_do(&circle, begin[i]) != 0;
        for (int i = 0; i < 4; i++) {
            wrong += circle_do(&circle, ways[way[i]]) != 0;
            wrong += !circle_becomes(&circle, i < 3 ? 66 : 2, &charged, &real);
        }
    }
    expect(orders == 24 && !wrong,
           "in %d orders of handle, descriptor, mapping and import the last one gives it back: "
           "%d wrong",
           orders, wrong);
    circle_end(&circle);
    claim_end(&claim);
}

static void test_churn(void)
{
    struct claim claim;
    struct circle circle;
    claim_make(&claim, context_cost + 512 * MIB, 100);
    circle_begin(&circle, &claim);
    int error = circle_do(&circle, "A churn 256 100");
    double done = figure_of(&circle.party[0].steps.player, "done");
    expect(error == 0 && done == 100, "made, exported, closed and released a hundred times in half a gigabyte: %.0f",
           done);
    circle_end(&circle);
    claim_end(&claim);
}

/* The sum of what is really used never passes the limit, the moment after a maker's death least of all. */
static void test_limit(const char *end)
{
    struct claim claim;
    struct circle circle;
    static const char *const begin[] = {"B take 2",   "C take 2",    "A make 0 512", "A export 0 0",
                                        "A send 0 B", "B receive 0", "B import 0 0", "B close 0"};
    claim_make(&claim, 3 * context_cost + 900 * MIB, 100);
    circle_begin(&circle, &claim);
    for (size_t i = 0; i < sizeof begin / sizeof *begin; i++)
        circle_do(&circle, begin[i]);
    claim_set(&claim, 2 * context_cost + 900 * MIB, 100);
    circle_do(&circle, end);
    int error = circle_do(&circle, "C fill");
    double got = figure_of(&circle.party[2].steps.player, "got"), real = circle_real(&circle);
    expect(error == 2 && got >= 320 && (real <= 900 || circle_is(real, 900)) && got <= 384,
           "after '%s' its importer's 512 MiB count: another gets %.0f of 384, %.0f of 900 used", end, got, real);
    circle_end(&circle);
    claim_end(&claim);
}

/* What was imported counts at once, so what no longer fits is refused; and nothing is taken away. */
static void test_over(void)
{
    struct claim maker, importer;
    struct circle circle;
    claim_make(&maker, 4 * GIB, 100);
    claim_make(&importer, context_cost + 300 * MIB, 100);
    circle_begin(&circle, &maker);
    circle.claim[1] = circle.claim[2] = &importer;
    static const char *const begin[] = {"A make 0 256", "A make 1 256", "A export 0 0", "A export 1 1"};
    for (size_t i = 0; i < sizeof begin / sizeof *begin; i++)
        circle_do(&circle, begin[i]);
    circle_do(&circle, "B take 2");
    circle_do(&circle, "A send 0 B");
    circle_do(&circle, "A send 1 B");
    circle_do(&circle, "B receive 0");
    circle_do(&circle, "B receive 1");
    int first = circle_do(&circle, "B import 0 0"), second = circle_do(&circle, "B import 1 1");
    double charged = circle_charged(&circle, &importer);
    expect(first == 0 && second == 2 && circle_is(charged, 258),
           "another claim's memory is the importer's to pay, too, and refused over the limit: error %d, %.0f MiB",
           second, charged);
    circle_do(&circle, "A kill");
    circle_do(&circle, "B release 0");
    circle_do(&circle, "B close 0");
    circle_do(&circle, "B close 1");
    pause_s(0.3);
    charged = circle_charged(&circle, &importer);
    expect(circle_is(charged, 2) && circle_is(circle_charged(&circle, &maker), 0),
           "and both claims end with nothing: %.0f MiB", charged);
    circle_end(&circle);
    claim_end(&maker);
    claim_end(&importer);
}

/* A program that closes all its descriptors closes ours. What was watched then stays charged; what comes later does not. */
static void test_closed_all(void)
{
    LINES("a program that closes all descriptors goes on", {"A make 0 64", 64}, {"A export 0 0", 64}, {"A close 0", 64},
          {"A release 0", 0}, {"A closeall", 0}, {"A make 0 64", 64}, {"A export 0 0", 64}, {"A close 0", 64},
          {"A release 0", 0});
}

void test_exports(void)
{
    int before = simulated_kernel;
    simulated_kernel = !on_real_gpu;
    test_one_process();
    test_two_processes();
    test_three_processes();
    test_orders();
    test_churn();
    test_limit("A kill");
    test_limit("A exit");
    test_over();
    test_exports_dice();
    if (!on_real_gpu) { /* a real driver's own descriptors are not to be closed */
        test_closed_all();
        setenv("GPUCLOUD_SIM_KERNEL_SHORT", "1", 1);
        test_two_processes();
        unsetenv("GPUCLOUD_SIM_KERNEL_SHORT");
    }
    simulated_kernel = before;
}
