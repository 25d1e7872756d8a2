/* Processes of a claim that hold memory together: the suite gives each its orders, one line at a time (roles_shared.c), and
 * after each line knows what is charged and what the GPU really gave. */
#ifndef TESTS_SHARED_H
#define TESTS_SHARED_H

#include "steps.h"

#define SHARED_ORDERS_ENV "VCUDA_TEST_ORDERS"
#define PARTIES 3

/* A to C: processes of the claim; started when first named. */
struct party {
    struct steps steps;
    int orders, is_running;
    uint64_t charged, real; /* what it took to begin */
};

struct circle {
    struct claim *claim[PARTIES]; /* whose process each is */
    struct party party[PARTIES];
    uint64_t real; /* the GPU's use before */
    int tells;     /* print every line, with all figures */
};

void circle_begin(struct circle *circle, struct claim *claim);
/* One line: "A make 0 256", or "A kill", "A exit". The error that the process says, or -1 where it is gone. */
int circle_do(struct circle *circle, const char *line);
/* MiB beyond what the processes took to begin: charged to a claim, and in use of the GPU. */
double circle_charged(const struct circle *circle, const struct claim *claim);
double circle_real(const struct circle *circle);
/* The two are the same; on a real GPU nearly, as it takes page tables and what else it keeps. */
int circle_is(double mib, double expected);
/* Both become `mib` within two seconds; they are left in the last two. */
int circle_becomes(const struct circle *circle, double mib, double *charged, double *real);
void circle_end(struct circle *circle);

void test_exports_dice(void); /* test_exports_dice.c: a part of the chapter */

#endif
