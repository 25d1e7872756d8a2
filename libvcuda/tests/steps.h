/* A role that goes step by step: after each one it waits until the suite has looked at its account and at NVML's figure of
 * it, which a process under the library cannot see by itself. */
#ifndef TESTS_STEPS_H
#define TESTS_STEPS_H

#include "harness.h"

/* What is known of a process between two steps, of one GPU. */
struct account {
    uint64_t bytes, managed; /* by the usage page; managed memory is not in NVML's figure */
    uint64_t nvml;
    uint32_t accounting;
};

/* ---- the suite's side: begin, then next until it is 0 ---- */
struct steps {
    struct player player;
    int go;
};
void steps_begin(struct steps *steps, const struct claim *claim, const char *role, const char *first,
                 const char *second);
int steps_next(struct steps *steps);     /* the role stands after a step; 0: it has ended, and its status is known */
void steps_release(struct steps *steps); /* let it go on, and do not wait for the next step */
struct account account_of(const struct claim *claim, unsigned gpu, pid_t pid);
int account_differs(const struct account *account);

/* ---- the role's side ---- */
void step(const char *name);

/* roles_walk.c: every way in which a program takes memory, one step each. */
int role_walk(void);

#endif
