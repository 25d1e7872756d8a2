/* A node for the arbiter: claims that share the machine's first GPU, in a directory of their own, and an arbiter on it. */
#ifndef TESTS_ARBITER_NODE_H
#define TESTS_ARBITER_NODE_H

#include "harness.h"

#define SHARERS 3

struct node {
    pid_t arbiter;
    int n;
    struct claim claim[SHARERS];
    struct vcuda_turns *turns[SHARERS];
    struct player player[SHARERS];
};

extern struct node node;
extern char node_directory[200], node_clock[260];

void node_begin(void);
void node_end(void); /* kills what still plays */
pid_t arbiter_start(const char *directory);
int arbiter_end(int signal); /* its exit status */
void node_add_claim(uint32_t request, uint32_t core_limit);
/* GPU, generation and memory are filled in. */
void node_set_limit(int i, struct vcuda_limit limit);
void node_stop(int i); /* kills the claim's player */
/* The shares of GPU time over some seconds, in percent, as the usage pages say. */
void node_measure(double seconds, double shares[SHARERS]);
/* By its parts within so many points of these shares; measured up to six times. */
void expect_shares(const char *what, double a, double b, double c, double tolerance);

uint64_t ends_of(int i);
int all_free(void); /* nobody is given turns */
int contended(void);
/* Return 1 if this becomes true within some seconds. */
int becomes(int (*so)(void), double seconds);

#endif
